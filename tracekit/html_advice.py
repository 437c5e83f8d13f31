"""What to change, and what each change wins: the plan, CUDA graphs, kernel fusion."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from tracekit.analysis import Result, Row, duration
from tracekit.html_svg import span_bar
from tracekit.html_views import (
    ROWS,
    Block,
    Cell,
    Column,
    Fold,
    Notes,
    Section,
    interval_cell,
    interval_text,
    name_cell,
    number_cell,
    sentence,
    shown,
    some_of,
    table,
    text_cell,
    time_cell,
)
from tracekit.wording import counted

_GROUP = ("rank", "device", "phase", "bucket")
_PLANS = 6  # kinds of steps with a plan of their own


def _empty(id: str, title: str, reason: str) -> Section:
    return Section(id, title, "", (Notes((sentence(reason),)),))


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    return [list(one) for _, one in groupby(rows, key=lambda row: tuple(row[name] for name in _GROUP))]


def _label(row: Row) -> str:
    named = [shown(row[name], 40) for name in ("phase", "bucket") if row[name] != "unknown"]
    return " ".join(named) or "the whole recording"


def _where(row: Row, several: bool) -> str:
    return f" on rank {row['rank']} device {row['device']}" if several else ""


# ---- plan ------------------------------------------------------------------------------------------------------------


def plan(result: Result, again: str) -> Section:
    """The kinds of steps with most time: what to change in them, in this order."""
    groups = _groups(result.table.to_pylist())
    if not groups:
        return _empty("plan", "Plan", result.coverage.reason or "no steps to plan for")
    several = len({(row["rank"], row["device"]) for row in result.summary}) > 1
    blocks = [block for group in groups[:_PLANS] for block in _plan(group, several)]
    if left := groups[_PLANS:]:
        kinds = ", ".join(_label(rows[0]) + _where(rows[0], several) for rows in left[:_PLANS])
        blocks.append(Notes((f"{counted(len(left), 'more kind')} of steps, with less time: {kinds}. All: {again}",)))
    checks = dict.fromkeys(shown(finding.verify) for finding in result.findings if finding.verify)
    if checks:
        blocks.append(Notes(tuple(f"Check: {one}" for one in checks)))
    lead = "What to change first, from a replay of the steps with the change made; each on top of those before it."
    return Section("plan", "Plan", lead, tuple(blocks))


def _plan(rows: Sequence[Row], several: bool) -> Iterator[Block]:
    head = rows[0]
    name = _label(head) + _where(head, several)
    if head["launches_free_ns"] is None:
        yield Notes((f"{name}: no estimate, {head['reason']}.",), "warn")
        return
    is_step = head["steps"] > 1 or _label(head) != "the whole recording"
    size = duration(head["step_ns"]) + (" a step" if is_step else "")
    limit = f"No change of launches alone gets below {duration(head['launches_free_ns'])}."
    remedies = [row for row in rows if row["place"] is not None]
    if not remedies:
        yield Notes((f"{name}, {size}: {head['reason']}. {limit}",))
        return
    columns = (
        Column("order", "number"),
        Column("change", "prose"),
        Column("saves a step", "number"),
        Column("step then", "bar", "dark: it takes at least so long; pale: at most"),
        Column("price", "prose"),
        Column("more in"),
    )
    cells = [
        (
            number_cell(row["place"]),
            Cell(shown(row["remedy"], 200)),
            interval_cell(row["saving_low_ns"], row["saving_high_ns"]),
            _then(row),
            Cell(shown(row["price"])),
            text_cell(row["source"]),
        )
        for row in remedies
    ]
    error = f"Played without any change, the replay is {head['error']:.1%} off."
    yield table(f"Plan for {name}: {counted(head['steps'], 'step')}, {size}", columns, cells, f"{limit} {error}")


def _then(row: Row) -> Cell:
    low, high, now = row["after_low_ns"], row["after_high_ns"], max(1, row["step_ns"])
    return Cell(interval_text(low, high), high, markup=span_bar(low / now, high / now))


# ---- CUDA graphs -----------------------------------------------------------------------------------------------------


def graphs(result: Result, again: str) -> Section:
    """Regions of steps that a graph could replay, and what does not allow it."""
    rows = result.table.to_pylist()
    title = "CUDA graphs"
    if not rows:
        return _empty("graphs", title, result.coverage.reason or "no launches that a graph could replay")
    several = len({(row["rank"], row["device"]) for row in rows}) > 1
    columns = (
        Column("steps of"),
        Column("region"),
        Column("verdict"),
        Column("steps", "number"),
        Column("launches", "number"),
        Column("time", "number", "from its first launch to the end of its work, mean of a step"),
        Column("GPU", "number", "of it busy"),
        Column("saves a step", "number"),
        Column("why", "prose"),
    )
    cells = [
        (
            Cell(_label(row) + _where(row, several)),
            text_cell(row["region"]),
            text_cell(row["verdict"]),
            number_cell(row["steps"]),
            number_cell(row["launches"]),
            time_cell(row["wall_ns"]),
            time_cell(row["gpu_ns"]),
            interval_cell(row["saving_low_ns"], row["saving_high_ns"]),
            Cell(shown(row["reason"] or "", 300)),
        )
        for row in rows[:ROWS]
    ]
    note = some_of(len(cells), len(rows), "the first", again)
    lead = "Stretches of a step that a CUDA graph could replay with one launch, and what it wins by replay of the step."
    return Section("graphs", title, lead, (table("Regions", columns, cells, note), *_blockers(rows, several)))


def _blockers(rows: Sequence[Row], several: bool) -> Iterator[Block]:
    """What a capture does not allow, of each kind of steps once."""
    found: dict[tuple[str, str], tuple[str, Row]] = {}
    for row in rows:
        for one in json.loads(row["blockers"] or "[]"):
            if one["splits"] or one["place"] == "inside":
                steps = _label(row) + _where(row, several)
                found.setdefault((steps, json.dumps(one, sort_keys=True)), (steps, one))
    if not found:
        return
    columns = (
        Column("steps of"),
        Column("what"),
        Column("call", "code"),
        Column("in", "code"),
        Column("where", title="inside a region it is in the way; before or after it is none"),
        Column("a step", "number", "times in a step"),
    )
    cells = [
        (
            Cell(steps),
            text_cell(one["kind"]),
            name_cell(one["call"]),
            name_cell(one["op"] or one["function"]),
            text_cell(one["place"]),
            number_cell(one["per_step"], "{:g}"),
        )
        for steps, one in found.values()
    ]
    yield table("What a capture does not allow", columns, cells[:ROWS])


# ---- fusion ----------------------------------------------------------------------------------------------------------


def fusion(result: Result, again: str) -> Section:
    """Sequences of kernels that could be one; folded, those that are already."""
    rows = result.table.to_pylist()
    title = "Kernel fusion"
    if not rows:
        said = result.coverage.reason or "no kernels that are known to be fused elsewhere"
        return _empty("fusion", title, said)
    several = len({(row["rank"], row["device"]) for row in rows}) > 1
    found, done = ([row for row in rows if bool(row["count"]) == wanted] for wanted in (True, False))
    blocks: list[Block] = []
    if found:
        note = some_of(min(len(found), ROWS), len(found), "the first", again)
        cells = [_candidate(row, several) for row in found[:ROWS]]
        blocks.append(table("Kernels that one could replace", _CANDIDATES, cells, note))
    else:
        blocks.append(Notes(("Nothing to fuse: no neighbouring kernels here are known to be one kernel elsewhere.",)))
    if done:
        cells = [_fused(row, several) for row in done[:ROWS]]
        columns = (Column("steps of"), Column("pattern"), Column("kernels", "code"), Column("remark", "prose"))
        blocks.append(Fold(f"{counted(len(done), 'pattern')} fused already", (table("Fused", columns, cells),)))
    lead = "Neighbouring kernels that one kernel could replace: fewer launches, and less memory written and read again."
    return Section("fusion", title, lead, tuple(blocks))


_CANDIDATES = (
    Column("steps of"),
    Column("pattern"),
    Column("kernels", "code"),
    Column("state"),
    Column("grade", title="how sure it is that they can be one, A the surest"),
    Column("a step", "number", "times in a step"),
    Column("time", "number", "of these kernels in a step"),
    Column("saves a step", "number"),
    Column("remark", "prose"),
)


def _candidate(row: Row, several: bool) -> list[Cell]:
    return [
        Cell(_label(row) + _where(row, several)),
        text_cell(row["pattern"]),
        name_cell(row["kernels"]),
        text_cell(row["state"]),
        text_cell(row["grade"]),
        number_cell(row["count"]),
        time_cell(row["time_ns"]),
        interval_cell(row["saving_low_ns"], row["saving_high_ns"]),
        Cell(shown(row["remark"] or "", 200)),
    ]


def _fused(row: Row, several: bool) -> list[Cell]:
    said = (row["remark"] or "").removeprefix("fused already: ")
    return [
        Cell(_label(row) + _where(row, several)),
        text_cell(row["pattern"]),
        name_cell(row["kernels"]),
        Cell(shown(said, 200)),
    ]
