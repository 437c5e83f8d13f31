"""Fusion candidates with what they win, as the rows that the macro fusion() reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tracekit.fusion_candidates import ACTIVE, Candidate, candidates, estimates, graphs_of
from tracekit.fusion_estimate import DEFAULTS, Limits
from tracekit.gains import Estimate
from tracekit.trace import Trace

_SCHEMA = pa.schema(
    [
        ("place", pa.int64()),
        *(("rank", pa.int32()), ("device", pa.int64()), ("phase", pa.string()), ("bucket", pa.string())),
        *(("steps", pa.int64()), ("pattern", pa.string()), ("kernels", pa.string()), ("count", pa.int64())),
        *(("time_ns", pa.int64()), ("bytes_removed", pa.int64()), ("saving_low_ns", pa.int64())),
        *(("saving_high_ns", pa.int64()), ("error", pa.float64()), ("grade", pa.string()), ("state", pa.string())),
        *(("remark", pa.string()), ("example_id", pa.int64())),
    ]
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A candidate and what it wins in a step on top of those before it in its group, and of graphs that are advised
    there; None where nothing is to be won, or nothing can be said.
    """

    candidate: Candidate
    estimate: Estimate | None
    beside_graphs: bool = False


def judged(trace: Trace, limits: Limits = DEFAULTS) -> tuple[Judged, ...]:
    """All candidates of a trace, in the order in which they are estimated."""
    found: tuple[Judged, ...] = trace.once(("fusion judged", limits), lambda: tuple(_judged(trace, limits)))
    return found


def _judged(trace: Trace, limits: Limits) -> list[Judged]:
    by_group: dict[tuple[int, int | None, str, str], list[Candidate]] = {}
    for one in candidates(trace, limits):
        by_group.setdefault(one.group.key, []).append(one)
    rows = []
    for of_group in by_group.values():
        group = of_group[0].group
        chosen = [one for one in of_group if one.is_open and not group.refusal]
        graphs = graphs_of(trace, group) if chosen else []
        won = dict(zip(map(id, chosen), estimates(group, chosen, graphs), strict=True))
        rows += [Judged(one, won.get(id(one)), bool(graphs) and id(one) in won) for one in of_group]
    return rows


def fusion_table(trace: Trace, limits: Limits = DEFAULTS) -> pa.Table:
    """The rows of the table fusion_table: those of the macro fusion(), and their place."""
    return pa.Table.from_pylist([_row(place, one) for place, one in enumerate(judged(trace, limits))], schema=_SCHEMA)


def _row(place: int, one: Judged) -> dict[str, object]:
    found, won = one.candidate, one.estimate
    group = found.group
    return {
        "place": place,
        "rank": group.rank,
        "device": group.device,
        "phase": group.phase,
        "bucket": group.bucket,
        "steps": len(group.steps),
        "pattern": found.pattern.name,
        "kernels": " -> ".join(found.kernels),
        "count": found.count,
        "time_ns": found.time_ns,
        "bytes_removed": found.bytes_removed,
        "saving_low_ns": None if won is None else won.saving_low_ns,
        "saving_high_ns": None if won is None else won.saving_high_ns,
        "error": group.error if group.chosen else None,
        "grade": found.grade if found.count else "",
        "state": found.state,
        "remark": "; ".join(remarks(one)),
        "example_id": found.example[0] if found.example else None,
    }


def remarks(one: Judged) -> Sequence[str]:
    """What was seen beside: fused kernels, graphs that are taken for granted, why there is no estimate."""
    found, said = one.candidate, []
    if found.active:
        runs = ", ".join(f"{name} x {count:,}" for name, count in found.active.items())
        said.append(f"fused already: {runs}" if found.state == ACTIVE else f"fused elsewhere: {runs}")
    if found.others:
        said.append(f"{found.others:,} other sequence" + ("s" if found.others > 1 else ""))
    if one.beside_graphs:
        said.append("on top of CUDA graphs")
    if found.is_open and found.group.refusal:
        said.append(f"no estimate: {found.group.refusal}")
    if not found.pattern.fusible:
        said.append("usually not fusible")
    return said
