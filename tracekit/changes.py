"""What could be changed in a step? Each change as edits of the replay (replay_edits.py); gains.py says what it wins.

Each is done twice: by the worst of what is not known, as that a graph's launch is dear and that kernels in it pause as
they do without, and by the best.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tracekit.arrays import Int64s
from tracekit.replay import Schedule, ordered
from tracekit.replay_edits import (
    GraphCost,
    as_graph,
    free_launches,
    overlapped,
    with_durations,
    without_nodes,
    without_rows,
    without_waits,
)
from tracekit.replay_step import Step

# The launch call of a CUDA graph and what a program does around it, and more for each kernel: from next to nothing
# (NVIDIA: straight-line graphs launch in constant time) to a fraction of a us; HIP recorded 0.2 to 2.9 us a node.
# Sources: docs/replay.md.
GRAPH_BASE_NS = (5_000, 15_000)
GRAPH_NODE_NS = {"cuda": (0.0, 300.0), "hip": (200.0, 1_500.0)}
# Between kernels of a graph: at best nothing from Hopper on, where they may begin before their predecessor ends
# (programmatic launch); at worst what they pause without a graph, or this if that is not known.
GRAPH_GAP_NS = (500, 1_000)
OVERLAPPING_FROM = 9  # compute capability
# Of the host time of launches that fusion saves, at least this share goes: the fused one has more to prepare.
FUSED_HOST_SHARE = 0.9


class Change(Protocol):
    """Something to change in a step. optimistic: by the best that can be expected, else by the worst."""

    @property
    def name(self) -> str:
        """As texts name it."""
        ...

    def apply(self, step: Step, schedule: Schedule, optimistic: bool) -> Schedule:
        """The schedule of the changed step; schedule: that of the step, perhaps changed by others already."""
        ...


@dataclass(frozen=True, slots=True)
class Graph:
    """Launches become CUDA graph replays. calls: of a step, the indexes of the calls of each graph, ascending."""

    name: str
    calls: Callable[[Step], Sequence[Int64s]]

    def apply(self, step: Step, schedule: Schedule, optimistic: bool) -> Schedule:
        """As Change says."""
        for calls in self.calls(step):
            schedule = captured(step, schedule, calls, optimistic)
        return schedule


def captured(step: Step, schedule: Schedule, calls: Int64s, optimistic: bool) -> Schedule:
    """The schedule with calls of one thread as one graph, and what follows from that. calls: indexes, ascending."""
    if not len(calls):
        return schedule
    changed = as_graph(schedule, calls, graph_cost(step, optimistic))
    # One graph is launched no sooner than a graph that is but a part of it.
    replays = [call for call in calls.tolist() if step.calls.cause[call] == "graph_launch"]
    call_cost = changed.call_cost.copy()
    call_cost[calls[0]] = max([int(call_cost[calls[0]]), *(int(schedule.call_cost[call]) for call in replays)])
    changed = replace(changed, call_cost=call_cost)
    if optimistic:
        changed = _prompt_peers(step, changed, calls)
    return _next_as_well(changed, int(calls[0]))


def _next_as_well(schedule: Schedule, call: int) -> Schedule:
    """Where the graph begins the step, it begins the next one, too, whose first work comes as late after its launch."""
    first, last = schedule.first_row, schedule.last_row
    if last < 0 or schedule.row_call[first] != call or schedule.row_call[last] < 0:
        return schedule
    call_cost, row_latency, from_end = (
        one.copy() for one in (schedule.call_cost, schedule.row_latency, schedule.row_from_end)
    )
    call_cost[schedule.row_call[last]] = call_cost[call]
    row_latency[last], from_end[last] = row_latency[first], from_end[first]
    return ordered(replace(schedule, call_cost=call_cost, row_latency=row_latency, row_from_end=from_end))


def graph_cost(step: Step, optimistic: bool) -> GraphCost:
    """What a graph replay takes on the device of a step."""
    pace, vendor = step.pace, _vendor(step)
    overlapping = pace.capability >= OVERLAPPING_FROM or min(pace.gap(None, False), pace.gap(None, True)) < 0
    least, most = (0 if overlapping else GRAPH_GAP_NS[0]), pace.eager_gaps.get(None, GRAPH_GAP_NS[1])
    return GraphCost(
        base_ns=GRAPH_BASE_NS[not optimistic],
        node_ns=GRAPH_NODE_NS[vendor][not optimistic],
        latency_ns=max(0, pace.latency(f"{vendor}GraphLaunch").ns),
        gap_ns=min(least, most) if optimistic else most,
    )


def _vendor(step: Step) -> str:
    return "hip" if any(name.startswith("hip") for name in step.calls.name) else "cuda"


def _prompt_peers(step: Step, schedule: Schedule, calls: Int64s) -> Schedule:
    """Collectives take what the shortest of their kind took: what they take beyond is waiting for ranks that launch
    late, and these launch in time then, too.
    """
    within = np.isin(step.rows.call, calls) & ~schedule.row_gone
    rows = [row for row in np.flatnonzero(within).tolist() if step.rows.category[row] == "communication"]
    kinds = [(step.rows.name[row], int(step.rows.elements_in[row])) for row in rows]
    durs = [
        min(int(schedule.row_dur[row]), step.pace.collectives.get(kind, int(schedule.row_dur[row])))
        for row, kind in zip(rows, kinds, strict=True)
    ]
    return with_durations(schedule, np.array(rows, np.int64), np.array(durs, np.int64))


@dataclass(frozen=True, slots=True)
class FusedRows:
    """Kernels that would be one. rows: their indexes in the step, at least two, in order; the first one stands for the
    fused kernel: what comes before it, on the host and on its stream, stays. dur_low_ns, dur_high_ns: what the fused
    kernel would take at best and at worst.
    """

    rows: Int64s
    dur_low_ns: int
    dur_high_ns: int


@dataclass(frozen=True, slots=True)
class Fuse:
    """Kernels become one. groups: of a step, those of each fused kernel."""

    name: str
    groups: Callable[[Step], Sequence[FusedRows]]

    def apply(self, step: Step, schedule: Schedule, optimistic: bool) -> Schedule:
        """As Change says."""
        groups = self.groups(step)
        if not groups:
            return schedule
        first = np.array([one.rows[0] for one in groups], np.int64)
        durs = np.array([_fused_dur(step, schedule, one, optimistic) for one in groups], np.int64)
        gone = np.concatenate([one.rows[1:] for one in groups])
        schedule = _shorter_graphs(step, schedule, gone, optimistic)
        schedule = without_rows(schedule, gone, 1.0 if optimistic else FUSED_HOST_SHARE)
        return with_durations(schedule, first, durs)


def _fused_dur(step: Step, schedule: Schedule, fused: FusedRows, optimistic: bool) -> int:
    """What the fused kernel takes: as much less or more as its kernels take by other changes than as recorded."""
    recorded, now = int(step.rows.dur[fused.rows].sum()), int(schedule.row_dur[fused.rows].sum())
    dur = fused.dur_low_ns if optimistic else fused.dur_high_ns
    return dur if now == recorded or not recorded else round(dur * now / recorded)


def _shorter_graphs(step: Step, schedule: Schedule, gone: Int64s, optimistic: bool) -> Schedule:
    """A graph of fewer nodes is launched sooner: one that was recorded at best by what a node costs at most, one that
    is but planned by what it was said to cost.
    """
    calls = schedule.row_call[gone]
    replays = np.array([call >= 0 and step.calls.cause[call] == "graph_launch" for call in calls.tolist()], np.bool_)
    of_vendor = GRAPH_NODE_NS[_vendor(step)]
    schedule = without_nodes(schedule, gone[replays], of_vendor[optimistic])
    return without_nodes(schedule, gone[~replays], of_vendor[not optimistic])


@dataclass(frozen=True, slots=True)
class Scale:
    """Device rows whose name matches take another time: factor 0.5 is twice as fast."""

    pattern: re.Pattern[str]
    factor: float

    @property
    def name(self) -> str:
        """As texts name it."""
        return f"kernels {self.pattern.pattern!r} x {self.factor:g}"

    def rows(self, step: Step) -> Int64s:
        """Rows of the step that match."""
        return np.array(
            [row for row, name in enumerate(step.rows.name) if step.rows.own[row] and self.pattern.search(name)],
            np.int64,
        )

    def apply(self, step: Step, schedule: Schedule, optimistic: bool) -> Schedule:
        """As Change says."""
        rows = self.rows(step)
        return with_durations(schedule, rows, np.rint(schedule.row_dur[rows] * self.factor).astype(np.int64))


@dataclass(frozen=True, slots=True)
class RemoveSync:
    """Calls that wait for the device, by name or by that of an op around them, wait no more."""

    pattern: re.Pattern[str]

    @property
    def name(self) -> str:
        """As texts name it."""
        return f"no waiting in {self.pattern.pattern!r}"

    def calls(self, step: Step) -> Int64s:
        """Calls of the step that may wait and match."""
        waiting = set(step.schedule.wait_call.tolist())
        return np.array(
            [
                call
                for call, name in enumerate(step.calls.name)
                if (call in waiting or step.calls.cause[call] in ("sync", "pageable_copy"))
                and (self.pattern.search(name) or self.pattern.search(step.calls.op[call]))
            ],
            np.int64,
        )

    def apply(self, step: Step, schedule: Schedule, optimistic: bool) -> Schedule:
        """As Change says."""
        return without_waits(schedule, self.calls(step))


@dataclass(frozen=True, slots=True)
class FreeLaunches:
    """All launches cost the host nothing: the least that graphs or a faster host can get to."""

    name: str = "launches for free"

    def apply(self, step: Step, schedule: Schedule, optimistic: bool) -> Schedule:
        """As Change says."""
        return free_launches(schedule, np.flatnonzero(step.calls.rows > 0))


@dataclass(frozen=True, slots=True)
class OverlapCommunication:
    """Communication hides behind other work; what waits for its results is not looked at: at worst nothing is won."""

    name: str = "communication overlapped"

    def rows(self, step: Step) -> Int64s:
        """Communication of the step."""
        return np.array(
            [row for row, one in enumerate(step.rows.category) if one == "communication" and step.rows.own[row]],
            np.int64,
        )

    def apply(self, step: Step, schedule: Schedule, optimistic: bool) -> Schedule:
        """As Change says."""
        return overlapped(schedule, self.rows(step)) if optimistic else schedule
