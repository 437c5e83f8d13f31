"""What did a call wait for, and what a row on another stream? Recorded where the profiler says it, else inferred.

Edges are three arrays: who waits, for the end of which row, and how long after that it goes on at the earliest (ns).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays import Int64s, numbers

if TYPE_CHECKING:
    from tracekit.replay_step import Calls, Rows

Edges = tuple[Int64s, Int64s, Int64s]

_RETURN_NS = 5_000  # from the end of what a call waits for to its own, where it is not seen
_WAIT_COST_NS = 2_000  # what a waiting call takes by itself, likewise
LATE_NS = 2_000  # a row that begins so much later than it could have waited for something
_HAND_OVER_NS = 15_000  # within so long of the end of that
_SKEW_NS = 1_000  # that ends may be recorded too late
_FULL_QUEUE = 256  # rows waiting, when launches may block because the driver's queue is full
_LONG_CALL_NS = 30_000


def call_waits(calls: Calls, rows: Rows) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Which call waits for which row, how long after its end it returns, and what each call takes when it waits for
    nothing: four arrays, the last by call.
    """
    cost = calls.dur.copy()
    found: list[tuple[int, int, int]] = []
    launched = np.where(rows.call >= 0, calls.ts[np.maximum(rows.call, 0)] if len(calls) else 0, np.iinfo(np.int64).min)
    for call in range(len(calls)):
        pending = _awaited(call, calls, rows, launched)
        if not len(pending):
            continue
        ts, end = int(calls.ts[call]), int(calls.end[call])
        ends = rows.end[pending]
        waited = int(ends.max()) > ts
        lag = max(0, end - int(ends.max())) if waited else min(int(calls.dur[call]), _RETURN_NS)
        cost[call] = min(int(calls.dur[call]), max(_WAIT_COST_NS, lag)) if waited else calls.dur[call]
        found += [(call, int(row), min(lag, max(0, end - int(rows.end[row])))) for row in pending]
    edges = np.array(found, np.int64).reshape(-1, 3)
    return edges[:, 0], edges[:, 1], edges[:, 2], cost


def _awaited(call: int, calls: Calls, rows: Rows, launched: Int64s) -> Int64s:
    """Rows that a call waits for: of each stream the last one, of those that were done when it returned."""
    kind, end = calls.wait[call], int(calls.end[call])
    if kind == "own":
        own = np.flatnonzero(rows.call == call)
        return own[rows.end[own] <= end + _SKEW_NS]
    if kind == "":
        return _full_queue(call, calls, rows, launched)
    ts = int(calls.ts[call])
    done = np.flatnonzero((launched < ts) & (rows.end <= end + _SKEW_NS) & (rows.ts < end))
    if kind == "event":
        return _of_event(done, rows, ts)
    last = {int(rows.stream[row]): int(row) for row in done[np.argsort(rows.end[done], kind="stable")]}
    if kind == "device" or not last:
        return np.array(sorted(last.values()), np.int64)
    return np.array([max(last.values(), key=lambda row: int(rows.end[row]))], np.int64)


def _of_event(done: Int64s, rows: Rows, ts: int) -> Int64s:
    """Of which event is not recorded. What is waited for is results: the last copy to the host, whether or not it took
    until then; where there is none, what ended meanwhile.
    """
    copies = np.array([row for row in done.tolist() if "DtoH" in rows.name[row]], np.int64)
    meant = copies if len(copies) else done[rows.end[done] > ts]
    return meant[[int(np.argmax(rows.end[meant]))]] if len(meant) else meant


def _full_queue(call: int, calls: Calls, rows: Rows, launched: Int64s) -> Int64s:
    """A long launch call while hundreds of rows wait is held up by the device: it goes on as one of them is done."""
    ts, end = int(calls.ts[call]), int(calls.end[call])
    nothing = np.zeros(0, np.int64)
    if end - ts < _LONG_CALL_NS or "Graph" in calls.name[call]:
        return nothing
    waiting = np.flatnonzero((launched < ts) & (rows.end > ts))
    done = waiting[rows.end[waiting] <= end]
    return done[[int(np.argmax(rows.end[done]))]] if len(waiting) >= _FULL_QUEUE and len(done) else nothing


def recorded_edges(calls: Calls, rows: Rows, recorded: pa.Table) -> Edges:
    """Edges across streams that the profiler recorded. recorded: rows of the macro recorded_waits."""
    found = []
    launched = np.where(rows.call >= 0, calls.ts[np.maximum(rows.call, 0)] if len(calls) else 0, -1)
    columns = (numbers(recorded, name).tolist() for name in ("stream", "call_ts", "on_stream", "record_ts"))
    for stream, call_ts, on_stream, record_ts in zip(*columns, strict=True):
        after = np.flatnonzero((rows.stream == stream) & (launched >= call_ts))
        on = np.flatnonzero((rows.stream == on_stream) & (launched < record_ts))
        if len(after) and len(on) and rows.ts[on[-1]] <= rows.ts[after[0]]:
            late = int(rows.ts[after[0]] - rows.end[on[-1]])
            found.append((int(after[0]), int(on[-1]), min(max(0, late), LATE_NS)))
    edges = np.array(found, np.int64).reshape(-1, 3)
    return edges[:, 0], edges[:, 1], edges[:, 2]


def inferred_edges(rows: Rows, ready: Int64s, known: Int64s) -> Edges:
    """Rows that began late and right after work of another stream ended. ready: when each could have begun."""
    late = rows.ts - ready > LATE_NS
    late[known] = False
    if len(np.unique(rows.stream)) < 2:
        late[:] = False
    by_end = np.argsort(rows.end, kind="stable")
    ends = rows.end[by_end]
    found = [
        (row, on, max(0, int(rows.ts[row] - rows.end[on])))
        for row in np.flatnonzero(late).tolist()
        if (on := _ended_before(row, rows, by_end, ends)) >= 0
    ]
    edges = np.array(found, np.int64).reshape(-1, 3)
    return edges[:, 0], edges[:, 1], edges[:, 2]


def _ended_before(row: int, rows: Rows, by_end: Int64s, ends: Int64s) -> int:
    """The row of another stream that ended last before a row began, -1 if none did shortly before."""
    ts = int(rows.ts[row])
    place = int(np.searchsorted(ends, ts + _SKEW_NS, side="right")) - 1
    while place >= 0 and int(ends[place]) >= ts - _HAND_OVER_NS:
        other = int(by_end[place])
        if rows.stream[other] != rows.stream[row] and rows.ts[other] < ts:
            return other
        place -= 1
    return -1
