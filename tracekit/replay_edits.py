"""What if? Each edit takes a schedule and returns the changed one; edits go on top of each other in any order.

All but one leave what comes before what as it is, and so the order of a schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tracekit.arrays import Bools, Int64s
from tracekit.replay import Schedule, ordered


@dataclass(frozen=True, slots=True)
class GraphCost:
    """What a graph replay takes, ns. base_ns and node_ns: the launch call, and more of it for each kernel. latency_ns:
    from the end of the call to the first kernel. gap_ns: between kernels in the graph at most, where they follow each
    other on a stream; None: as without a graph.
    """

    base_ns: int
    node_ns: float
    latency_ns: int
    gap_ns: int | None


def _mask(size: int, chosen: Int64s) -> Bools:
    mask = np.zeros(size, np.bool_)
    mask[chosen] = True
    return mask


def as_graph(schedule: Schedule, calls: Int64s, cost: GraphCost) -> Schedule:
    """Calls of one thread become one graph replay, launched by the first of them: the host time between them and their
    own is gone, and each costs what a node does. calls: indexes, ascending.
    """
    if not len(calls):
        return schedule
    first, within = int(calls[0]), _mask(schedule.calls, calls)
    rows = (schedule.row_call >= 0) & within[schedule.row_call] if schedule.calls else schedule.row_call >= 0
    nodes = int(np.count_nonzero(rows & ~schedule.row_gone))
    call_cost, call_gap = np.where(within, 0, schedule.call_cost), np.where(within, 0, schedule.call_gap)
    call_cost[first] = cost.base_ns + round(cost.node_ns * nodes)
    call_gap[first] = schedule.call_gap[first]
    row_gap = schedule.row_gap
    if cost.gap_ns is not None:
        follows = rows & (schedule.row_before >= 0) & rows[schedule.row_before]
        row_gap = np.where(follows, np.minimum(row_gap, cost.gap_ns), row_gap)
    kept = ~within[schedule.wait_call]  # a call that waits cannot be captured: if it is to be, its wait is gone
    return replace(
        schedule, call_cost=call_cost, call_gap=call_gap, row_call=np.where(rows, first, schedule.row_call),
        row_latency=np.where(rows, cost.latency_ns, schedule.row_latency), row_from_end=schedule.row_from_end | rows,
        row_gap=row_gap, wait_call=schedule.wait_call[kept], wait_row=schedule.wait_row[kept],
        wait_return=schedule.wait_return[kept],
    )  # fmt: skip


def free_launches(schedule: Schedule, calls: Int64s) -> Schedule:
    """Calls, and the host time before each, take nothing: what the device alone would take. Waits stay."""
    free = _mask(schedule.calls, calls)
    return replace(
        schedule, call_cost=np.where(free, 0, schedule.call_cost), call_gap=np.where(free, 0, schedule.call_gap)
    )


def without_rows(schedule: Schedule, rows: Int64s, host_share: float) -> Schedule:
    """Device rows are not there any more. host_share: of the host time of calls left without rows (their own and that
    before them), how much goes, too.
    """
    gone = schedule.row_gone | _mask(schedule.rows, rows)
    started = np.bincount(schedule.row_call[schedule.row_call >= 0], minlength=schedule.calls)
    left = np.bincount(schedule.row_call[(schedule.row_call >= 0) & ~gone], minlength=schedule.calls)
    touched = np.unique(schedule.row_call[rows])
    empty = _mask(schedule.calls, touched[touched >= 0]) & (started > 0) & (left == 0)
    kept = 1.0 - host_share
    return replace(
        schedule, row_gone=gone,
        call_cost=np.where(empty, np.rint(schedule.call_cost * kept).astype(np.int64), schedule.call_cost),
        call_gap=np.where(empty, np.rint(schedule.call_gap * kept).astype(np.int64), schedule.call_gap),
    )  # fmt: skip


def without_nodes(schedule: Schedule, rows: Int64s, node_ns: float) -> Schedule:
    """Calls that start several rows, as graph replays do, cost so much less for each of these rows. To be followed by
    without_rows.
    """
    chosen = rows[(schedule.row_call[rows] >= 0) & ~schedule.row_gone[rows]]
    started = np.bincount(schedule.row_call[schedule.row_call >= 0], minlength=schedule.calls)
    fewer = np.bincount(schedule.row_call[chosen], minlength=schedule.calls)
    saved = np.rint(np.where(started > 1, fewer, 0) * node_ns).astype(np.int64)
    return replace(schedule, call_cost=np.maximum(0, schedule.call_cost - saved))


def with_durations(schedule: Schedule, rows: Int64s, durs: Int64s) -> Schedule:
    """Device rows take another time."""
    row_dur = schedule.row_dur.copy()
    row_dur[rows] = durs
    return replace(schedule, row_dur=row_dur)


def without_waits(schedule: Schedule, calls: Int64s) -> Schedule:
    """Calls wait for nothing any more; those that start no work are not made at all."""
    chosen = _mask(schedule.calls, calls)
    works = _mask(schedule.calls, schedule.row_call[schedule.row_call >= 0])
    kept = ~chosen[schedule.wait_call]
    return replace(
        schedule, call_cost=np.where(chosen & ~works, 0, schedule.call_cost), wait_call=schedule.wait_call[kept],
        wait_row=schedule.wait_row[kept], wait_return=schedule.wait_return[kept],
    )  # fmt: skip


def overlapped(schedule: Schedule, rows: Int64s) -> Schedule:
    """Device rows run beside the others, which do not wait for them; only the end of the step does. That is more than
    can be had where the next kernel reads what they deliver: a bound.
    """
    aside = _mask(schedule.rows, rows)
    if not aside.any():
        return schedule
    row_before = schedule.row_before.copy()
    for row in range(schedule.rows):
        # Rows aside follow each other, the others each other.
        while row_before[row] >= 0 and aside[row_before[row]] != aside[row]:
            row_before[row] = schedule.row_before[row_before[row]]
    kept = ~aside[schedule.after_on]
    ends = _edge_to_the_end(schedule, rows)
    changed = replace(
        schedule, row_before=row_before,
        after_row=np.concatenate([schedule.after_row[kept], ends[0]]),
        after_on=np.concatenate([schedule.after_on[kept], ends[1]]),
        after_gap=np.concatenate([schedule.after_gap[kept], np.zeros(len(ends[0]), np.int64)]),
    )  # fmt: skip
    return ordered(changed)


def _edge_to_the_end(schedule: Schedule, rows: Int64s) -> tuple[Int64s, Int64s]:
    """The next step begins no earlier than the last of these rows ends."""
    nothing = np.zeros(0, np.int64)
    if schedule.last_row < 0:
        return nothing, nothing
    earlier = rows[rows < schedule.last_row]
    return np.full(len(earlier), schedule.last_row), earlier


def deflated(schedule: Schedule, call_ns: int, host_share: float) -> Schedule:
    """Without what recording adds to the host's time: call_ns of each call that starts work, this share of the time
    between calls.
    """
    works = _mask(schedule.calls, schedule.row_call[schedule.row_call >= 0])
    shorter = np.rint(schedule.call_gap * (1.0 - host_share)).astype(np.int64)
    return replace(
        schedule,
        call_cost=np.where(works, np.maximum(0, schedule.call_cost - call_ns), schedule.call_cost),
        call_gap=np.where(schedule.call_gap > 0, shorter, schedule.call_gap),
    )
