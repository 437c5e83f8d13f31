"""Why does the device wait, and who is to blame? Idle time by cause, by function, by length of gap, and gap by gap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.analyses._idle_advice import MEANINGS
from tracekit.analysis import Result, Row, duration
from tracekit.html_svg import Slice, bar, share_bar, swatch
from tracekit.html_views import (
    Block,
    Cell,
    Column,
    Notes,
    Section,
    Table,
    name_cell,
    number_cell,
    reason_of,
    share_cell,
    shown,
    some_of,
    table,
    text_cell,
    time_cell,
)
from tracekit.plot_style import idle_fill
from tracekit.roofline_names import kernel_name

if TYPE_CHECKING:
    from tracekit.trace import Trace

_BLAMED = 40  # rows of the table of functions
_GAPS = 40  # of that of gaps
_PHASES = 3  # columns of times per step
_BINS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)  # ns; as in the summary of idle_gaps
_EDGES = ("1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms")
# By cause and name of the row that is blamed.
_BY_NAME = """
    SELECT
        g.cause,
        e.kind,
        e.name,
        count(DISTINCT g.after_id) AS gaps,
        sum(g.dur)::BIGINT AS ns,
        max(g.dur) AS longest_ns,
        arg_max(g.blame, (g.dur, -g.blame)) AS example_id
    FROM idle_rows AS g
    JOIN events AS e ON e.id = g.blame
    GROUP BY
        g.cause,
        e.kind,
        e.name
    ORDER BY
        ns DESC,
        g.cause,
        e.name,
        e.kind
"""
# Gaps whole, as the histogram counts them, and the part of each cause in them.
_BY_LENGTH = f"""
    WITH gaps AS (
        SELECT
            *,
            sum(dur) OVER (PARTITION BY rank, device, after_id) AS whole_ns
        FROM idle_rows
    )
    SELECT
        {" + ".join(f"(whole_ns >= {edge})::INTEGER" for edge in _BINS)} AS bin,
        cause,
        sum(dur)::BIGINT AS ns
    FROM gaps
    GROUP BY
        bin,
        cause
    ORDER BY
        bin,
        ns DESC,
        cause
"""


def section(trace: Trace, idle: Result, again: str) -> Section:
    """again: the command that prints all of it."""
    if not idle.table.num_rows:
        said = reason_of(idle, "the device never waited: there is no gap in its work")
        return Section("idle", "Idle time", "", (Notes(said),))
    blocks: list[Block] = [_causes(idle), *_remarks(idle)]
    blocks += [_lengths(trace, idle), *_blamed(trace, idle, again), _longest(trace, idle, again)]
    lead = "Every nanosecond in which a device did nothing has one cause; a gap is cut where the cause changes."
    return Section("idle", "Idle time", lead, tuple(blocks))


def _of_gaps(trace: Trace, idle: Result, query: str) -> list[Row]:
    """Rows of a query over `idle_rows`, the table of idle_gaps, which takes long to compute again."""
    cursor = trace.cursor()
    cursor.register("idle_rows", idle.table)
    try:
        rows: list[Row] = cursor.sql(query).to_arrow_table().to_pylist()
    finally:
        cursor.unregister("idle_rows")
        cursor.close()
    return rows


# ---- causes ----------------------------------------------------------------------------------------------------------


def _causes(idle: Result) -> Table:
    span = sum(row["span_ns"] for row in idle.summary)
    by_cause: Counter[str] = Counter()
    for row in idle.summary:
        by_cause.update(row["by_cause"])
    counts = idle.table.group_by("cause").aggregate([("after_id", "count_distinct")]).to_pylist()
    gaps = {row["cause"]: row["after_id_count_distinct"] for row in counts}
    per_step = _per_step(idle.summary)
    phases = list(per_step)[:_PHASES]
    columns = (
        Column("cause"),
        Column("time", "number"),
        Column("of the span", "bar", "of the span of all devices"),
        Column("gaps", "number"),
        *(Column("a step" if phase == "unknown" else f"a {phase} step", "number") for phase in phases),
        Column("what it means", "prose"),
    )
    most = max(by_cause.values(), default=1)
    rows = [
        (
            Cell(shown(cause, 40), markup=swatch(idle_fill(cause))),
            time_cell(ns),
            share_cell(ns / span, share_bar(ns / most)),
            number_cell(gaps.get(cause)),
            *(time_cell(per_step[phase].get(cause)) for phase in phases),
            text_cell(MEANINGS.get(cause, "")),
        )
        for cause, ns in sorted(by_cause.items(), key=lambda item: (-item[1], item[0]))
    ]
    return table("By cause", columns, rows)


def _per_step(summary: Sequence[Row]) -> Mapping[str, Mapping[str, float]]:
    """Mean idle time of a step by phase and cause, over all devices; the phase with most of it first."""
    spent: dict[str, Counter[str]] = {}
    steps: Counter[str] = Counter()
    for row in summary:
        steps.update({one["phase"]: one["steps"] for one in row["per_step"]})
        for one in row["per_step"]:
            spent.setdefault(one["phase"], Counter())[one["cause"]] += one["ns"]
    ranked = sorted(spent, key=lambda phase: (-spent[phase].total(), phase))
    return {phase: {cause: ns / steps[phase] for cause, ns in spent[phase].items()} for phase in ranked}


def _remarks(idle: Result) -> list[Notes]:
    said = [*reason_of(idle)] if idle.coverage.reason else []
    if excluded := sum(row["excluded_ns"] or 0 for row in idle.summary):
        said.append(
            f"{duration(excluded)} of it was ended by work launched before the recording began: no finding counts it."
        )
    skew = max((row["skew_ns"] or 0 for row in idle.summary), default=0)
    if skew and (uncertain := sum(row["uncertain_ns"] or 0 for row in idle.summary)):
        said.append(
            f"{duration(uncertain)} of it may be of a neighbouring cause: the clocks differ by up to {duration(skew)}."
        )
    return [Notes(tuple(said))] if said else []


# ---- lengths ---------------------------------------------------------------------------------------------------------


def _lengths(trace: Trace, idle: Result) -> Table:
    """A row for each order of magnitude: its bar is time, by cause."""
    parts = _of_gaps(trace, idle, _BY_LENGTH)
    gaps: Counter[int] = Counter()
    for row in idle.summary:
        gaps.update({at: one["gaps"] for at, one in enumerate(row["histogram"])})
    time: Counter[int] = Counter()
    for part in parts:
        time[part["bin"]] += part["ns"]
    most, total = max(time.values(), default=1), time.total()
    filled = [at for at in range(len(_BINS) + 1) if time[at]]
    rows = []
    for at in range(filled[0], filled[-1] + 1) if filled else ():
        slices = [
            Slice(part["ns"] / most, idle_fill(part["cause"]), f"{part['cause']}: {duration(part['ns'])}")
            for part in parts
            if part["bin"] == at
        ]
        rows.append(
            (
                Cell(_extent(at), at),
                number_cell(gaps[at]),
                time_cell(time[at]),
                share_cell(time[at] / total, bar(slices, f"{_extent(at)}, by cause", 16)),
            )
        )
    columns = (Column("gaps of"), Column("gaps", "number"), Column("time", "number"), Column("of the idle time", "bar"))
    return table("By length of gap", columns, rows, "Bars: time, by cause in the colours above.")


def _extent(at: int) -> str:
    if at == 0:
        return f"below {_EDGES[0]}"
    return f"{_EDGES[-1]} and more" if at == len(_EDGES) else f"{_EDGES[at - 1]} to {_EDGES[at]}"


# ---- who is to blame -------------------------------------------------------------------------------------------------


def _blamed(trace: Trace, idle: Result, again: str) -> list[Block]:
    found = _of_gaps(trace, idle, _BY_NAME)
    if not found:
        return [Notes(("The trace does not show what the host did in these gaps: nobody is blamed.",))]
    columns = (
        Column("blamed on", "code", "the host row that held the launching thread for the longest time of the gap"),
        Column("kind"),
        Column("cause"),
        Column("time", "number"),
        Column("gaps", "number"),
        Column("longest", "number"),
        Column("row id", "number", "of the longest"),
    )
    rows = [
        (
            name_cell(row["name"]),
            text_cell(row["kind"]),
            Cell(shown(row["cause"], 40), markup=swatch(idle_fill(row["cause"]))),
            time_cell(row["ns"]),
            number_cell(row["gaps"]),
            time_cell(row["longest_ns"]),
            number_cell(row["example_id"], "{}"),
        )
        for row in found[:_BLAMED]
    ]
    return [table("By blamed function", columns, rows, some_of(len(rows), len(found), "those with most time", again))]


def _longest(trace: Trace, idle: Result, again: str) -> Table:
    """The longest parts of gaps, with the work that ended them and what they are blamed on."""
    ordered: pa.Table = idle.table.sort_by([("dur", "descending"), ("rank", "ascending"), ("ts", "ascending")])
    parts = ordered.slice(0, _GAPS).to_pylist()
    names = trace.rows(id for part in parts for id in (part["blame"], part["after_id"]) if id is not None)
    several = len(idle.summary) > 1
    columns = (
        *((Column("rank", "number"), Column("device", "number")) if several else ()),
        Column("start", "number", "from the trace's start"),
        Column("duration", "number"),
        Column("cause"),
        Column("step", "number"),
        Column("phase"),
        Column("blamed on", "code"),
        Column("ended by", "code"),
    )
    rows = [
        (
            *((number_cell(part["rank"]), number_cell(part["device"])) if several else ()),
            number_cell(part["ts"] / 1e6, "{:,.3f} ms"),
            time_cell(part["dur"]),
            Cell(shown(part["cause"], 40), markup=swatch(idle_fill(part["cause"]))),
            number_cell(part["step"], "{}"),
            text_cell(part["phase"]),
            _referred(part["blame"], names),
            _referred(part["after_id"], names),
        )
        for part in parts
    ]
    left = some_of(len(rows), ordered.num_rows, "the longest", again)
    return table("Longest gaps", columns, rows, left)


def _referred(id: int | None, names: Mapping[int, Row]) -> Cell:
    """A row by its name; of a kernel the bare function."""
    if id is None or id not in names:
        return Cell("", "")
    row = names[id]
    if row["kind"] == "kernel":
        return Cell(shown(kernel_name(row["name"]), 60), title=shown(row["name"]))
    return name_cell(row["name"])
