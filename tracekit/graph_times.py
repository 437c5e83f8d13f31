"""How often do pieces come again in other steps, and how long do they take?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from tracekit.arrays import ABSENT, Int64s, numbers
from tracekit.replay_choice import Group
from tracekit.replay_step import Step
from tracekit.trace import Trace

Calls = Mapping[int | None, tuple[Int64s, ...]]  # of each chosen step the ids of the calls of each graph


def indexes(of: Calls, step: Step) -> list[Int64s]:
    """Where the calls of each graph are in a step."""
    found = [np.flatnonzero(np.isin(step.calls.id, ids)).astype(np.int64) for ids in of.get(step.step, ())]
    return [at for at in found if len(at)]


def repeats(trace: Trace, group: Group, places: Sequence[int]) -> int:
    """Steps of the group in which each of these pieces of the median step is found again."""
    rank, device, step, structure = _structures(trace)
    here = (rank == group.rank) & (device == (ABSENT if group.device is None else group.device))
    here &= np.isin(step, [ABSENT if one is None else one for one in group.steps])
    reference = ABSENT if group.median.step is None else group.median.step
    of_reference = structure[here & (step == reference)]
    if not len(of_reference):
        return 0
    wanted = np.unique(of_reference[list(places)])
    found = here & np.isin(structure, wanted)
    pairs = np.unique(np.stack([step[found], structure[found]]), axis=1)
    _, kinds = np.unique(pairs[0], return_counts=True)
    return int(np.count_nonzero(kinds == len(wanted)))


def _structures(trace: Trace) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Rank, device, step and structure of all pieces of a trace."""

    def read() -> tuple[Int64s, ...]:
        table = trace.whole.sql("SELECT rank, device, step, structure FROM graph_pieces()")
        return tuple(numbers(table, name) for name in ("rank", "device", "step", "structure"))

    rank, device, step, structure = trace.once(("graph structures",), read)
    return rank, device, step, structure


def times(group: Group, of: Calls) -> tuple[int, int]:
    """Time from the first launch of each graph to the end of its work, and how long of that the device was busy: ns,
    medians over the chosen steps.
    """
    found = [_times_of(step, indexes(of, step)) for step in group.chosen if of.get(step.step)]
    return (int(median(one for one, _ in found)), int(median(one for _, one in found))) if found else (0, 0)


def _times_of(step: Step, graphs: Sequence[Int64s]) -> tuple[int, int]:
    # Before that nothing is known of the device: it may have been at work that was not recorded.
    begin = int(step.rows.ts[np.flatnonzero(step.rows.own)[0]])
    windows = []
    for calls in graphs:
        rows = np.flatnonzero(np.isin(step.rows.call, calls))
        if len(rows):
            windows.append((max(begin, int(step.calls.ts[calls[0]])), int(step.rows.end[rows].max())))
    wall = _union(windows)
    busy = _union(list(zip(step.rows.ts.tolist(), step.rows.end.tolist(), strict=True)))
    return sum(end - ts for ts, end in wall), _overlap(wall, busy)


def _union(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for ts, end in sorted(spans):
        if merged and ts <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((ts, end))
    return merged


def _overlap(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> int:
    """Time in both; each disjoint and in order."""
    total = at = 0
    for ts, end in some:
        while at and others[at - 1][1] > ts:
            at -= 1
        while at < len(others) and others[at][0] < end:
            total += max(0, min(end, others[at][1]) - max(ts, others[at][0]))
            at += 1
    return total
