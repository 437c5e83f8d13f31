"""Idle time of each device in numbers, and whether the trace can tell it at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses._idle_advice import MEANINGS
from tracekit.analyses._idle_groups import Group, on_device
from tracekit.analyses._missing import CANNOT_TELL
from tracekit.analysis import Row, duration
from tracekit.trace import Trace

_TIMES = ("rank", "device", "span_ns", "busy_ns")
_EDGES = (0, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)  # ns, of the histogram
GRAPH_HOLE_NS = 100_000  # 7,000 holes inside replays of public traces of vLLM and xDiT are shorter than 6 us
_AGAIN = "record again (node-level graph tracing, a shorter window, another CUPTI)"


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
    (found,) = trace.macro("recording_losses", {"graph_hole_ns": graph_hole_ns}).to_pylist()
    count, rows = found["unfinished"], found["rows"]
    if count > threshold * rows:
        return Losses(
            f"{CANNOT_TELL}: {count:,} of {rows:,} device rows have no recorded end, so a hole may be work; "
            "record again and stop the profiler before the program ends"
        )
    doubts = [f"{count:,} of {rows:,} device rows have no recorded end"] if count else []
    for missing, forgiven, total, what in _launches_without_work(found):
        if missing > max(threshold * total, forgiven):
            return Losses(f"{CANNOT_TELL}: {missing:,} of {total:,} {what}, so a hole may be unrecorded work; {_AGAIN}")
        if missing:
            doubts.append(f"{missing:,} of {total:,} {what}")
    holes = found["replay_holes_ns"]
    inside = f"{duration(holes)} of holes lie inside graph replays, whose kernels wait for no host"
    if holes > threshold * found["span_ns"]:
        return Losses(f"{CANNOT_TELL}: {inside}, so kernels were lost; {_AGAIN}")
    doubts += [inside] if holes else []
    return Losses(doubt=f"{'; '.join(doubts)}: some holes may be unrecorded work" if doubts else "")


def _launches_without_work(found: Row) -> Iterator[tuple[int, int, int, str]]:
    """How many, how many of them the end of the recording may have cut off, of how many, and what they are."""
    none, few = "left no device work in the trace", "left fewer rows in the trace than others of their graph"
    yield found["graphs_silent"], min(found["graphs_last"], 1), found["graphs"], f"graph replays {none}"
    yield found["replays_short"], min(found["replays"] - 1, 1), found["replays"], f"graph replays {few}"
    yield found["calls_silent"], min(found["calls_last"], 1), found["calls"], f"launch calls {none}"


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
