"""How long would a step take if something in it were different? A step as constraints, played forward.

Every time in a step follows from earlier ones: a call begins some host time after the call before it on its thread; a
kernel begins when its launch has reached the device, its stream is free, and what it waits for on other streams is
done; a blocking call returns when the device has done its part. Playing that forward gives the step's time. Changed
constraints (replay_edits.py) give the time of the changed step. The constraints are a max-plus system: each start is
the latest of a few earlier times plus a distance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tracekit.arrays import Bools, Int64s

AT_ONCE = -(2**62)  # before everything, and no overflow if added to


@dataclass(frozen=True, slots=True)
class Times:
    """When everything happens: a start and an end for each call and each row, and the time of the step; all ns."""

    call_start: Int64s
    call_end: Int64s
    row_start: Int64s
    row_end: Int64s
    step_ns: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The constraints of a step. Integer ns; calls and rows are named by index, in the order of their starts.

    calls    API calls that start device work or may wait for it
    rows     device work: kernels, copies, fills, graph replays recorded as one block
    """

    # Calls. Each begins call_gap after the end of call_before (earlier on its thread, or on the thread that handed over
    # to it), at call_at if that is -1. It takes call_cost, and longer while it waits for a row.
    call_before: Int64s
    call_gap: Int64s
    call_at: Int64s
    call_cost: Int64s
    # Waits: the call wait_call[i] returns no earlier than wait_return[i] after the end of the row wait_row[i].
    wait_call: Int64s
    wait_row: Int64s
    wait_return: Int64s
    # Rows. Each begins no earlier than row_at (AT_ONCE if nothing is known), than row_latency after its call (after its
    # end if row_from_end, else its start; row_call is -1 if it was launched before the window), and than row_gap after
    # the end of row_before, the row before it on its stream (negative where they overlap; -1: none). A row that is gone
    # takes no time at all.
    row_call: Int64s
    row_at: Int64s
    row_latency: Int64s
    row_from_end: Bools
    row_before: Int64s
    row_gap: Int64s
    row_dur: Int64s
    row_gone: Bools
    # Edges across streams: the row after_row[i] begins no earlier than after_gap[i] after the end of after_on[i].
    after_row: Int64s
    after_on: Int64s
    after_gap: Int64s
    # Which comes first, of n calls: the start of call c is c, its end is n + c, row r is 2 n + r.
    order: Int64s
    # The step lasts from the start of first_row to that of last_row, the first work of the step after; if there is
    # none (-1), to the end of all rows.
    first_row: int
    last_row: int

    @property
    def calls(self) -> int:
        """How many."""
        return len(self.call_cost)

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.row_dur)

    def times(self) -> Times:
        """Play the step: O(calls + rows + edges)."""
        calls = self.calls
        call_start, call_end = [0] * calls, [0] * calls
        row_start, row_end = [0] * self.rows, [0] * self.rows
        call_before, call_gap = self.call_before.tolist(), self.call_gap.tolist()
        call_at, call_cost = self.call_at.tolist(), self.call_cost.tolist()
        row_call, row_at, row_latency = self.row_call.tolist(), self.row_at.tolist(), self.row_latency.tolist()
        row_before, row_gap = self.row_before.tolist(), self.row_gap.tolist()
        row_dur, row_gone, from_end = self.row_dur.tolist(), self.row_gone.tolist(), self.row_from_end.tolist()
        waits = _edges(self.wait_call, self.wait_row, self.wait_return)
        after = _edges(self.after_row, self.after_on, self.after_gap)
        for item in self.order.tolist():
            if item < calls:
                before = call_before[item]
                call_start[item] = call_at[item] if before < 0 else call_end[before] + call_gap[item]
                continue
            if item < 2 * calls:
                call = item - calls
                end = call_start[call] + call_cost[call]
                for row, lag in waits.get(call, ()):
                    end = max(end, row_end[row] + lag)
                call_end[call] = end
                continue
            row = item - 2 * calls
            call, before, start = row_call[row], row_before[row], row_at[row]
            if row_gone[row]:
                start = row_end[before] if before >= 0 else start
            else:
                if call >= 0:
                    start = max(start, (call_end[call] if from_end[row] else call_start[call]) + row_latency[row])
                if before >= 0:
                    start = max(start, row_end[before] + row_gap[row])
            for other, lag in after.get(row, ()):
                start = max(start, row_end[other] + lag)
            row_start[row] = start
            row_end[row] = start if row_gone[row] else start + row_dur[row]
        until = row_start[self.last_row] if self.last_row >= 0 else max(row_end, default=0)
        step_ns = until - row_start[self.first_row] if self.rows else 0
        return Times(_ns(call_start), _ns(call_end), _ns(row_start), _ns(row_end), max(0, step_ns))


def _ns(values: list[int]) -> Int64s:
    return np.array(values, np.int64)


def _edges(to: Int64s, on: Int64s, gap: Int64s) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for one, other, ns in zip(to.tolist(), on.tolist(), gap.tolist(), strict=True):
        found.setdefault(one, []).append((other, ns))
    return found


def _topological(before: list[list[int]]) -> list[int]:
    """Items in an order in which each comes after all of before[item]; those of a circle are left out."""
    after: list[list[int]] = [[] for _ in before]
    left = [len(one) for one in before]
    for item, earlier in enumerate(before):
        for one in earlier:
            after[one].append(item)
    order = [item for item, count in enumerate(left) if count == 0]
    for item in order:  # grows meanwhile
        for one in after[item]:
            left[one] -= 1
            if left[one] == 0:
                order.append(one)
    return order


def ordered(schedule: Schedule) -> Schedule:
    """The same with its order. Waits that would make a circle, as they may where clocks differ, are dropped."""
    calls, total = schedule.calls, 2 * schedule.calls + schedule.rows
    earlier: list[list[int]] = [[] for _ in range(total)]
    for call, before in enumerate(schedule.call_before.tolist()):
        earlier[calls + call].append(call)
        if before >= 0:
            earlier[call].append(calls + before)
    starts = np.where(schedule.row_from_end, calls, 0) + schedule.row_call
    for row, (call, start, before) in enumerate(
        zip(schedule.row_call.tolist(), starts.tolist(), schedule.row_before.tolist(), strict=True)
    ):
        earlier[2 * calls + row] += ([start] if call >= 0 else []) + ([2 * calls + before] if before >= 0 else [])
    for call, row in zip(schedule.wait_call.tolist(), schedule.wait_row.tolist(), strict=True):
        earlier[calls + call].append(2 * calls + row)
    for row, on in zip(schedule.after_row.tolist(), schedule.after_on.tolist(), strict=True):
        earlier[2 * calls + row].append(2 * calls + on)
    order = _topological(earlier)
    if len(order) == total:
        return replace(schedule, order=np.array(order, np.int64))
    return ordered(_without_first_circle(schedule, set(order)))


def _without_first_circle(schedule: Schedule, placed: set[int]) -> Schedule:
    """Drop the first wait or edge in time that could not be placed."""
    calls = schedule.calls
    waits = np.array([calls + call not in placed for call in schedule.wait_call.tolist()], np.bool_)
    edges = np.array([2 * calls + row not in placed for row in schedule.after_row.tolist()], np.bool_)
    first_wait = int(np.flatnonzero(waits)[0]) if waits.any() else -1
    first_edge = int(np.flatnonzero(edges)[0]) if edges.any() else -1
    if first_wait < 0 and first_edge < 0:
        raise ValueError("calls and rows wait for each other in a circle")
    kept_waits, kept_edges = np.ones(len(waits), np.bool_), np.ones(len(edges), np.bool_)
    if first_wait >= 0:
        kept_waits[first_wait] = False
    else:
        kept_edges[first_edge] = False
    return replace(
        schedule, wait_call=schedule.wait_call[kept_waits], wait_row=schedule.wait_row[kept_waits],
        wait_return=schedule.wait_return[kept_waits], after_row=schedule.after_row[kept_edges],
        after_on=schedule.after_on[kept_edges], after_gap=schedule.after_gap[kept_edges],
    )  # fmt: skip
