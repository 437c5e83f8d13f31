"""Which constraints did a recorded step keep? From its calls and rows, as measured, to what replay.py plays.

Calls are in the order of their thread, with the host time between them as measured; device rows in that of their
stream. What else held anything up is looked for (replay_waits.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays import Bools, Int64s
from tracekit.replay import AT_ONCE, Schedule, ordered
from tracekit.replay_waits import LATE_NS, call_waits, inferred_edges, recorded_edges

if TYPE_CHECKING:
    from tracekit.replay_pace import Pace
    from tracekit.replay_step import Calls, Rows

# A thread without calls for so long, while another thread of its process made some, was waiting for that one.
_HAND_OFF_NS = 50_000


def build(
    calls: Calls, rows: Rows, pace: Pace, recorded: pa.Table, *, first_row: int, last_row: int
) -> tuple[Schedule, int]:
    """The constraints that the step kept, and how many of its edges across streams are inferred."""
    call_before, call_gap = _host_order(calls)
    row_before, row_gap = streams = _stream_order(rows, pace)
    wait_call, wait_row, wait_return, call_cost = call_waits(calls, rows)
    waits_itself = np.zeros(len(calls), np.bool_)
    waits_itself[wait_call[rows.call[wait_row] == wait_call]] = True
    of_waiting = (rows.call >= 0) & waits_itself[np.maximum(rows.call, 0)] if len(calls) else rows.call >= 0
    launched = _own_copies(calls, rows, of_waiting, row_before, _latencies(calls, rows, pace))
    after = recorded_edges(calls, rows, recorded)
    at = _earliest(rows)
    ready = _ready(calls, rows, at, launched, streams)
    inferred = inferred_edges(rows, ready, known=after[0])
    at = _behind_unrecorded_work(rows, at, ready, row_before, explained=np.concatenate([after[0], inferred[0]]))
    edges = [np.concatenate(pair) for pair in zip(after, inferred, strict=True)]
    schedule = Schedule(
        call_before, call_gap, calls.ts.copy(), call_cost, wait_call, wait_row, wait_return, rows.call, at,
        *launched, row_before, row_gap, rows.dur.copy(), np.zeros(len(rows), np.bool_), edges[0], edges[1], edges[2],
        np.zeros(0, np.int64), first_row, last_row,
    )  # fmt: skip
    return ordered(schedule), len(inferred[0])


def _host_order(calls: Calls) -> tuple[Int64s, Int64s]:
    """The call whose end each call follows, and after how long."""
    before = np.full(len(calls), -1)
    gap = np.zeros(len(calls), np.int64)
    latest: dict[int, int] = {}
    opening = int(calls.ts[0]) if len(calls) else 0
    for call, (thread, ts) in enumerate(zip(calls.thread.tolist(), calls.ts.tolist(), strict=True)):
        previous = latest.get(thread, -1)
        free = int(calls.end[previous]) if previous >= 0 else opening
        if ts - free > _HAND_OFF_NS:
            # Calls of other threads that ended in the pause: the last of them handed over.
            handed = [(int(calls.end[one]), one) for other, one in latest.items() if other != thread]
            previous = max(((end, one) for end, one in handed if free <= end <= ts), default=(0, previous))[1]
        before[call] = previous
        gap[call] = ts - int(calls.end[previous]) if previous >= 0 else 0
        latest[thread] = call
    return before, gap


def _latencies(calls: Calls, rows: Rows, pace: Pace) -> tuple[Int64s, Bools]:
    by_name = {name: pace.latency(name) for name in set(calls.name)}
    latency = np.zeros(len(rows), np.int64)
    from_end = np.zeros(len(rows), np.bool_)
    for row, call in enumerate(rows.call.tolist()):
        if call >= 0:
            found = by_name[calls.name[call]]
            latency[row], from_end[row] = found.ns, found.from_end
    return latency, from_end


def _stream_order(rows: Rows, pace: Pace) -> tuple[Int64s, Int64s]:
    """The row before each on its stream, and the least pause after it."""
    before = np.full(len(rows), -1)
    gap = np.zeros(len(rows), np.int64)
    latest: dict[int, int] = {}
    for row, stream in enumerate(rows.stream.tolist()):
        previous = latest.get(stream, -1)
        before[row] = previous
        if previous >= 0:
            same_call = rows.call[row] >= 0 and rows.call[row] == rows.call[previous]
            gap[row] = pace.gap(rows.name[row], bool(same_call))
        latest[stream] = row
    return before, gap


def _own_copies(
    calls: Calls, rows: Rows, of_waiting: Bools, row_before: Int64s, launched: tuple[Int64s, Bools]
) -> tuple[Int64s, Bools]:
    """A call that waits for its own copy cannot end before that begins: it is counted from the call's start."""
    latency, from_end = (one.copy() for one in launched)
    for row in np.flatnonzero(of_waiting).tolist():
        call, before = int(rows.call[row]), int(row_before[row])
        start = max(int(calls.ts[call]), int(rows.end[before]) if before >= 0 else 0)
        latency[row], from_end[row] = max(0, int(rows.ts[row]) - start), False
    return latency, from_end


def _earliest(rows: Rows) -> Int64s:
    """From when on rows may begin whatever their launches say: those of which nobody knows who launched them when they
    did; of those launched before the window the first of each stream, too, and the others at once, in their order.
    """
    at = np.full(len(rows), AT_ONCE)
    seen: set[int] = set()
    linked: set[int] = set()
    for row, (stream, call) in enumerate(zip(rows.stream.tolist(), rows.call.tolist(), strict=True)):
        linked |= {stream} if rows.linked[row] else set()
        if call < 0 and (stream not in seen or (stream in linked and not rows.linked[row])):
            at[row] = rows.ts[row]
        seen.add(stream)
    return at


def _ready(
    calls: Calls, rows: Rows, at: Int64s, launched: tuple[Int64s, Bools], streams: tuple[Int64s, Int64s]
) -> Int64s:
    """When each row could have begun, by its launch and its stream alone, as measured."""
    (latency, from_end), (row_before, row_gap) = launched, streams
    ready = at.copy()
    if len(calls):
        call = np.maximum(rows.call, 0)
        arrived = np.where(from_end, calls.end[call], calls.ts[call]) + latency
        ready = np.where(rows.call >= 0, np.maximum(ready, arrived), ready)
    free = rows.end[np.maximum(row_before, 0)] + row_gap
    found: Int64s = np.where(row_before >= 0, np.maximum(ready, free), ready)
    return found


def _behind_unrecorded_work(rows: Rows, at: Int64s, ready: Int64s, row_before: Int64s, explained: Int64s) -> Int64s:
    """The first row of a stream that began late for no recorded reason: the device was at work that was launched, and
    ran, before the recording began. It begins when it did.
    """
    heads = np.flatnonzero((row_before < 0) & (rows.ts - ready > LATE_NS))
    heads = heads[~np.isin(heads, explained)]
    at = at.copy()
    at[heads] = rows.ts[heads]
    return at
