"""What could be changed in the steps of a group, by the evidence of its trace? What the plan chooses from.

Graphs come from graph_regions.py, fusions from fusion_candidates.py, waits of the host from the calls of the steps
(remedy_waits.py), communication from its kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tracekit import fusion_candidates, graph_regions
from tracekit.arrays import Int64s
from tracekit.changes import Change, Fuse, FusedRows, Graph, OverlapCommunication
from tracekit.graph_regions import OneGraph, Region
from tracekit.remedy_waits import waits
from tracekit.replay import Schedule
from tracekit.replay_choice import Group
from tracekit.replay_step import Step
from tracekit.trace import Trace
from tracekit.wording import counted

Kind = Literal["graph", "fusion", "sync", "copy", "overlap"]
_WORTH = (graph_regions.WORTH, graph_regions.MAY_HELP)
_PRICES: dict[Kind, str] = {
    "graph": "Capture takes start-up time and memory; shapes and addresses are fixed, so batches are padded to a few "
    "sizes.",
    "sync": "Results are seen a step later, or stay on the device.",
    "copy": "Pinned host memory, which the system cannot swap.",
    "overlap": "Work has to be split; kernels beside communication share its bandwidth and multiprocessors.",
}
_SHOWN = 3  # rows named as evidence


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something to change. source: the analysis that says more of it. price: what it costs. evidence: ids of some of
    the rows that it changes. possible: it rests on adjacency alone. joins: it makes one graph of those that another
    remedy makes.
    """

    change: Change
    kind: Kind
    source: str
    evidence: tuple[int, ...] = ()
    price: str = ""
    possible: bool = False
    joins: bool = False

    @property
    def name(self) -> str:
        """As texts name it."""
        return self.change.name


@dataclass(frozen=True, slots=True)
class Remaining:
    """A fusion of those kernels that no other has taken away already."""

    fuse: Fuse

    @property
    def name(self) -> str:
        """That of the fusion."""
        return self.fuse.name

    def groups(self, step: Step) -> Sequence[FusedRows]:
        """Those of the fusion, all of them."""
        return self.fuse.groups(step)

    def apply(self, step: Step, schedule: Schedule, optimistic: bool) -> Schedule:
        """As Fuse does it."""
        left = [one for one in self.groups(step) if not schedule.row_gone[one.rows].any()]
        return Fuse(self.fuse.name, lambda _step: left).apply(step, schedule, optimistic)


def remedies(trace: Trace, group: Group) -> list[Remedy]:
    """All that there are for a group that is not refused, in no order that means anything."""
    if group.refusal or not group.chosen:
        return []
    return [*_graphs(trace, group), *_fusions(trace, group), *_waits(group), *_overlap(group)]


# ---- graphs ----------------------------------------------------------------------------------------------------------


def _graphs(trace: Trace, group: Group) -> Iterator[Remedy]:
    """The regions that are worth it, together; and one graph of all, where something stands between them."""
    here = [one for one in graph_regions.regions(trace, max_error=group.max_error) if one.group.key == group.key]
    parts = [one for one in here if one.change is not None and one.verdict in _WORTH and not one.is_whole]
    count = sum(one.pieces for one in parts)
    if count:
        which = "CUDA graph" if count == 1 else f"{count} CUDA graphs"
        name = f"{which} of {counted(sum(one.kernels for one in parts), 'kernel')}"
        yield _graph(Graph(name, _Regions(tuple(parts))), group.median)
    for one in here:
        if isinstance(one.change, OneGraph) and one.verdict not in (graph_regions.GPU_BOUND, graph_regions.ALREADY):
            change = replace(one.change, name=f"one CUDA graph of {counted(one.kernels, 'kernel')}{_unblocked(one)}")
            yield replace(_graph(change, group.median), joins=count > 0)


def _unblocked(region: Region) -> str:
    """What must not be in it any more."""
    if not region.verdict.startswith(graph_regions.BLOCKED):
        return ""
    blocker = region.verdict.removeprefix(graph_regions.BLOCKED)
    return f", with no {blocker.replace('_', ' ')} inside"


@dataclass(frozen=True, slots=True)
class _Regions:
    """Calls of several regions: what Graph asks for."""

    regions: tuple[Region, ...]

    def __call__(self, step: Step) -> list[Int64s]:
        return [calls for region in self.regions for calls in region.calls(step)]


def _graph(change: Graph | OneGraph, step: Step) -> Remedy:
    calls = list(change.calls(step))
    evidence = ids(step.calls.id, np.concatenate(calls)) if calls else ()
    return Remedy(change, "graph", "cuda_graphs", evidence, _PRICES["graph"])


def ids(of: Int64s, chosen: Int64s) -> tuple[int, ...]:
    """The first few ids."""
    return tuple(of[chosen[:_SHOWN]].tolist())


# ---- the others ------------------------------------------------------------------------------------------------------


def _fusions(trace: Trace, group: Group) -> Iterator[Remedy]:
    for one in fusion_candidates.candidates(trace, max_error=group.max_error):
        if one.group.key == group.key and one.is_open:
            change, shown = Remaining(one.change), one.example[:_SHOWN]
            yield Remedy(change, "fusion", "fusion", shown, one.pattern.price, possible=one.grade == "C")


def _waits(group: Group) -> Iterator[Remedy]:
    for change in waits(group):
        calls = change.calls(group.median)
        kind: Kind = "copy" if change.cause == "pageable_copy" else "sync"
        yield Remedy(change, kind, "idle_gaps", ids(group.median.calls.id, calls), _PRICES[kind])


def _overlap(group: Group) -> Iterator[Remedy]:
    change = OverlapCommunication()
    if len(rows := change.rows(group.median)):
        yield Remedy(change, "overlap", "communication", ids(group.median.rows.id, rows), _PRICES["overlap"])
