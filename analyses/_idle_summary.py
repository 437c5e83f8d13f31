"""Idle time of each device in numbers, and whether the trace can tell it at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses._idle_advice import MEANINGS
from tracekit.analyses._idle_groups import Group, on_device
from tracekit.analyses._missing import CANNOT_TELL, unfinished
from tracekit.analysis import Row, duration
from tracekit.trace import Trace

_TIMES = ("rank", "device", "span_ns", "busy_ns")
_EDGES = (0, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)  # ns, of the histogram
GRAPH_HOLE_NS = 100_000  # 7,000 holes inside replays of public traces of vLLM and xDiT are shorter than 6 us
_AGAIN = "record again (node-level graph tracing, a shorter window, another CUPTI)"

# What was launched before the first recorded work makes no hole in it: the head of a recording is often lost. Nor does
# what was launched after the last, but a recording that stops in the middle has lost more. A memset of no bytes leaves
# no row.
_MISSING = """
    SELECT
        count(*) FILTER (WHERE is_graph) AS graphs,
        count(*) FILTER (WHERE is_graph AND NOT worked) AS graphs_silent,
        count(*) FILTER (WHERE is_graph AND NOT worked AND ts > last_ts) AS graphs_last,
        count(*) FILTER (WHERE NOT is_graph) AS calls,
        count(*) FILTER (
            WHERE NOT is_graph
                AND NOT worked
                AND coalesce(ts > first_ts, true)
                AND NOT contains(name, 'Memset')
        ) AS calls_silent,
        count(*) FILTER (WHERE NOT is_graph AND NOT worked AND ts > last_ts) AS calls_last
    FROM (
        SELECT
            *,
            min(ts) FILTER (WHERE worked) OVER (PARTITION BY rank) AS first_ts,
            max(ts) FILTER (WHERE worked) OVER (PARTITION BY rank) AS last_ts
        FROM launch_calls()
        WHERE expected
    )
"""
# Kernels of one replay follow each other in microseconds and need no host: a long hole between them is a lost kernel.
_HOLES_IN_REPLAYS = """
    SELECT
        (SELECT sum(span_ns) FROM device_time())::BIGINT AS span_ns,
        coalesce(sum(g.dur), 0)::BIGINT AS ns
    FROM idle_gaps_raw() AS g
    JOIN device_activity AS b ON b.id = g.before_id
    JOIN launches AS l ON l.id = g.launch_id
    WHERE b.launch_id = g.launch_id
        AND contains(l.name, 'GraphLaunch')
        AND g.dur > $graph_hole_ns
"""
# Replays of one graph start the same rows, but for graphs with conditional nodes, which are rare.
_SHORT_REPLAYS = """
    WITH replays AS (
        SELECT
            l.rank,
            l.pid,
            d.graph_id,
            d.launch_id,
            count(*) AS rows
        FROM device_activity AS d
        JOIN launches AS l ON l.id = d.launch_id
        WHERE d.graph_id IS NOT NULL
        GROUP BY ALL
    )
    SELECT
        count(*) AS replays,
        count(*) FILTER (WHERE rows < whole) AS short
    FROM (SELECT rows, max(rows) OVER (PARTITION BY rank, pid, graph_id) AS whole FROM replays)
"""


@dataclass(frozen=True, slots=True)
class Losses:
    """refusal: why holes cannot be taken for idle time, "" if they can. doubt: what little is missing all the same."""

    refusal: str = ""
    doubt: str = ""


def lost_records(trace: Trace, threshold: float, graph_hole_ns: int = GRAPH_HOLE_NS) -> Losses:
    """Work that was not recorded leaves holes too.

    threshold: share of launches, of rows, or of the span, that may be missing. graph_hole_ns: a longer hole between
    rows of one graph replay is taken for a lost kernel.
    """
    count, rows = unfinished(trace)
    if count > threshold * rows:
        return Losses(
            f"{CANNOT_TELL}: {count:,} of {rows:,} device rows have no recorded end, so a hole may be work; "
            "record again and stop the profiler before the program ends"
        )
    doubts = [f"{count:,} of {rows:,} device rows have no recorded end"] if count else []
    for missing, forgiven, total, what in _launches_without_work(trace):
        if missing > max(threshold * total, forgiven):
            return Losses(f"{CANNOT_TELL}: {missing:,} of {total:,} {what}, so a hole may be unrecorded work; {_AGAIN}")
        if missing:
            doubts.append(f"{missing:,} of {total:,} {what}")
    (holes,) = trace.sql(_HOLES_IN_REPLAYS, {"graph_hole_ns": graph_hole_ns}).to_pylist()
    inside = f"{duration(holes['ns'])} of holes lie inside graph replays, whose kernels wait for no host"
    if holes["ns"] > threshold * (holes["span_ns"] or 0):
        return Losses(f"{CANNOT_TELL}: {inside}, so kernels were lost; {_AGAIN}")
    doubts += [inside] if holes["ns"] else []
    return Losses(doubt=f"{'; '.join(doubts)}: some holes may be unrecorded work" if doubts else "")


def _launches_without_work(trace: Trace) -> Iterator[tuple[int, int, int, str]]:
    """How many, how many of them the end of the recording may have cut off, of how many, and what they are."""
    (calls,) = trace.sql(_MISSING).to_pylist()
    (replays,) = trace.sql(_SHORT_REPLAYS).to_pylist()
    none, few = "left no device work in the trace", "left fewer rows in the trace than others of their graph"
    yield calls["graphs_silent"], min(calls["graphs_last"], 1), calls["graphs"], f"graph replays {none}"
    yield replays["short"], min(replays["replays"] - 1, 1), replays["replays"], f"graph replays {few}"
    yield calls["calls_silent"], min(calls["calls_last"], 1), calls["calls"], f"launch calls {none}"


def summarize(trace: Trace, table: pa.Table, by_step: Sequence[Group]) -> list[Row]:
    """One row per device. by_cause adds up to idle_ns; excluded_ns of it lies before the first recorded launch."""
    skews = {(row["rank"], row["device"]): row["skew_ns"] for row in trace.macro("clock_skew").to_pylist()}
    return [
        _row(device, on_device(table, device), by_step) | {"skew_ns": skews.get((device["rank"], device["device"]))}
        for device in _devices(trace)
    ]


def without_idle(trace: Trace) -> list[Row]:
    """The same rows where idle time cannot be told: no figure of it."""
    unknown = dict.fromkeys(("idle_ns", "excluded_ns", "uncertain_ns", "skew_ns"))
    nothing: Row = {"by_cause": {}, "per_step": [], "histogram": []}
    return [{key: device[key] for key in _TIMES} | unknown | nothing for device in _devices(trace)]


def _devices(trace: Trace) -> list[Row]:
    return sorted(trace.macro("device_time").to_pylist(), key=_where)


def _row(device: Row, gaps: pa.Table, by_step: Sequence[Group]) -> Row:
    sums = _ns_by_cause(gaps)
    here = [group for group in by_step if (group.rank, group.device) == (device["rank"], device["device"])]
    return {key: device[key] for key in (*_TIMES, "idle_ns")} | {
        "excluded_ns": _sum(gaps.filter(pc.field("place") == "prefix")),
        "uncertain_ns": pc.sum(gaps["uncertain_ns"]).as_py() or 0,
        "by_cause": {cause: sums[cause] for cause in MEANINGS if cause in sums},
        "per_step": [row for group in here if group.steps for row in _per_step(group)],
        "histogram": _histogram(gaps),
    }


def _per_step(group: Group) -> list[Row]:
    sums = _ns_by_cause(group.gaps)
    common = {"phase": group.phase, "steps": group.steps, "step_ns": group.total_ns}
    return [common | {"cause": cause, "ns": sums[cause]} for cause in MEANINGS if cause in sums]


def _ns_by_cause(gaps: pa.Table) -> dict[str, int]:
    grouped = gaps.group_by("cause").aggregate([("dur", "sum")])
    return {row["cause"]: row["dur_sum"] for row in grouped.to_pylist()}


def _histogram(gaps: pa.Table) -> list[Row]:
    """Whole gaps by length: how many, and their time."""
    lengths = gaps.group_by("after_id").aggregate([("dur", "sum")])["dur_sum"]
    bins = []
    for low, high in zip(_EDGES, (*_EDGES[1:], None), strict=True):
        chosen = pc.greater_equal(lengths, low)
        if high is not None:
            chosen = pc.and_(chosen, pc.less(lengths, high))
        part = pc.filter(lengths, chosen)
        bins.append({"from_ns": low, "to_ns": high, "gaps": len(part), "ns": pc.sum(part).as_py() or 0})
    return bins


def _sum(gaps: pa.Table) -> int:
    return pc.sum(gaps["dur"]).as_py() or 0


def _where(row: Row) -> tuple[int, int]:
    return row["rank"], -1 if row["device"] is None else row["device"]
