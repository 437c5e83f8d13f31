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
    device = _Device(calls, rows)
    for call in range(len(calls)):
        pending = device.awaited(call)
        if not pending:
            continue
        ts, end, dur = int(calls.ts[call]), int(calls.end[call]), int(calls.dur[call])
        last = max(int(rows.end[row]) for row in pending)
        lag = max(0, end - last) if last > ts else min(dur, _RETURN_NS)
        if last > ts:
            cost[call] = min(dur, max(_WAIT_COST_NS, lag))
        found += [(call, row, min(lag, max(0, end - int(rows.end[row])))) for row in pending]
    edges = np.array(found, np.int64).reshape(-1, 3)
    return edges[:, 0], edges[:, 1], edges[:, 2], cost


class _Device:
    """Rows of a device, to be asked what a call waits for. Each answer takes logarithmic time: a step may wait for
    thousands of times.
    """

    def __init__(self, calls: Calls, rows: Rows) -> None:
        self._calls, self._rows = calls, rows
        before = np.iinfo(np.int64).min
        launched = np.where(rows.call >= 0, calls.ts[np.maximum(rows.call, 0)] if len(calls) else 0, before)
        self._launched = launched
        self._by_launch = np.sort(launched)
        self._by_end = np.argsort(rows.end, kind="stable")
        self._ends = rows.end[self._by_end]
        self._of_call: dict[int, list[int]] = {}
        for row, call in enumerate(rows.call.tolist()):
            self._of_call.setdefault(call, []).append(row)
        streams = [np.flatnonzero(rows.stream == stream) for stream in np.unique(rows.stream)]
        self._streams = [(lane, np.maximum.accumulate(launched[lane])) for lane in streams]
        copies = np.array([row for row, name in enumerate(rows.name) if "DtoH" in name], np.int64)
        self._copies = (copies, np.maximum.accumulate(launched[copies]))

    def awaited(self, call: int) -> list[int]:
        """Rows that a call waits for: of each stream the last one, of those that were done when it returned."""
        kind, end = self._calls.wait[call], int(self._calls.end[call])
        if kind == "own":
            return [row for row in self._of_call.get(call, ()) if self._rows.end[row] <= end + _SKEW_NS]
        if kind == "":
            return self._full_queue(call)
        if kind == "event":
            return self._of_event(call)
        last = [row for lane in self._streams if (row := self._last_done(lane, call)) >= 0]
        return last if kind == "device" else sorted(last, key=lambda row: int(self._rows.end[row]))[-1:]

    def _last_done(self, lane: tuple[Int64s, Int64s], call: int) -> int:
        """Of rows in order the last that was launched before a call and done when it returned; -1 if there is none."""
        rows, launched = lane
        done = int(self._calls.end[call]) + _SKEW_NS
        place = int(np.searchsorted(launched, self._calls.ts[call], side="left")) - 1
        while place >= 0 and self._rows.end[rows[place]] > done:
            place -= 1
        return int(rows[place]) if place >= 0 else -1

    def _of_event(self, call: int) -> list[int]:
        """Of which event is not recorded. What is waited for is results: the last copy to the host, whether or not it
        took until then; where there is none, what ended meanwhile.
        """
        copy = self._last_done(self._copies, call)
        if copy >= 0:
            return [copy]
        return self._ended_within(call, launched_before=int(self._calls.ts[call]))

    def _ended_within(self, call: int, launched_before: int) -> list[int]:
        """The row that ended last within a call, if it was launched before then."""
        ts, end = int(self._calls.ts[call]), int(self._calls.end[call])
        place = int(np.searchsorted(self._ends, end + _SKEW_NS, side="right")) - 1
        while place >= 0 and self._ends[place] > ts:
            if self._launched[self._by_end[place]] < launched_before:
                return [int(self._by_end[place])]
            place -= 1
        return []

    def _full_queue(self, call: int) -> list[int]:
        """A long launch call while hundreds of rows wait is held up by the device: it goes on as one of them ends."""
        ts, end = int(self._calls.ts[call]), int(self._calls.end[call])
        if end - ts < _LONG_CALL_NS or "Graph" in self._calls.name[call]:
            return []
        launched = int(np.searchsorted(self._by_launch, ts, side="left"))
        done = int(np.searchsorted(self._ends, ts, side="right"))
        return self._ended_within(call, launched_before=ts) if launched - done >= _FULL_QUEUE else []


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
