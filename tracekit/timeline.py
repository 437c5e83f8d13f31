"""What held each host thread, nanosecond by nanosecond: nested and overlapping rows made into disjoint pieces.

At any time the innermost row with a cause of its own speaks for its thread; without one, that the thread was in an op
or API call; else that it was in a Python function; else nothing. Over that lies what stops all threads of a process,
and beside it whether the time is within a serving step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tracekit.arrays import Bools, Int64s, int32_array, int64_array, integers, one_array, text_array
from tracekit.links import innermost_enclosing, order_rows

_NOTHING = -1
_LONG_BEFORE, _LONG_AFTER = -(1 << 61), 1 << 61  # ns; no trace lasts 73 years
_FOREVER = np.iinfo(np.int64).max
_WORK = ("python", "op")  # what a row without a cause of its own says, the stronger last; the first causes
_STEP, _RANGE = "step", "range"
_PLACES = ("in", "between", "out")
_IN, _BETWEEN, _OUT = range(3)


@dataclass(frozen=True, slots=True)
class _Spans:
    """Intervals that are not empty, by start, falling end, cause. `cause` is a place in the list of causes."""

    ts: Int64s
    end: Int64s
    cause: Int64s
    id: Int64s


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A step function of time: from each `ts` to the next it has this value. The first begins long before the trace."""

    ts: Int64s
    cause: Int64s
    id: Int64s

    def at(self, ts: Int64s) -> Int64s:
        """Which piece each time lies in."""
        found: Int64s = np.searchsorted(self.ts, ts, side="right") - 1
        return found


def flatten(rows: pa.Table) -> pa.Table:
    """Rows of the macro host_spans as rows of the table host_timeline."""
    encoded = one_array(rows["cause"]).dictionary_encode()
    found = encoded.dictionary.to_pylist()
    causes = [*_WORK, *sorted(set(found) - set(_WORK))]
    codes = np.array([causes.index(cause) for cause in found], np.int64)
    columns = {
        name: integers(one_array(rows[name]), _NOTHING)
        for name in ("layer", "rank", "pid", "tid", "ts", "end_ts", "id")
    }
    columns["cause"] = codes[integers(encoded.indices)] if found else integers(encoded.indices)
    parts: list[pa.Table] = []
    position = 0
    for thread, own, over, steps in _threads(columns):
        part = _timeline(_spans(columns, own), _spans(columns, over), _spans(columns, steps), causes)
        parts.append(_placed(part, thread, position))
        position += part.num_rows
    return pa.concat_tables(parts) if parts else _placed(_named({}, causes), (0, 0, 0), 0)


def _threads(columns: dict[str, Int64s]) -> Iterator[tuple[tuple[int, int, int], Int64s, Int64s, Int64s]]:
    """Each thread, with its own rows, those that lie over it, and the steps of its rank."""
    layer, rank, pid, tid = (columns[name] for name in ("layer", "rank", "pid", "tid"))
    own = np.flatnonzero(layer == 0)
    own = own[np.lexsort((tid[own], pid[own], rank[own]))]
    over, steps = np.flatnonzero(layer == 1), np.flatnonzero(layer == 2)
    changes = np.zeros(len(own), np.bool_)
    for values in (rank, pid, tid):
        changes[1:] |= values[own[1:]] != values[own[:-1]]
    for rows in np.split(own, np.flatnonzero(changes)):
        if len(rows):
            thread = (int(rank[rows[0]]), int(pid[rows[0]]), int(tid[rows[0]]))
            here = (rank[over] == thread[0]) & ((pid[over] == thread[1]) | (pid[over] == _NOTHING))
            yield thread, rows, over[here], steps[rank[steps] == thread[0]]


def _spans(columns: dict[str, Int64s], rows: Int64s) -> _Spans:
    ts, end, cause, id = (columns[name][rows] for name in ("ts", "end_ts", "cause", "id"))
    order = order_rows(ts, -end, cause, id)
    order = order[end[order] > ts[order]]
    return _Spans(ts[order], end[order], cause[order], id[order])


def _timeline(own: _Spans, over: _Spans, steps: _Spans, causes: Sequence[str]) -> pa.Table:
    base, above, places = _pieces(own), _pieces(over), _step_places(steps, causes)
    ts = np.sort(np.concatenate([base.ts, above.ts, places.ts]), kind="stable")  # np.unique hashes, which takes longer
    ts = ts[np.append(ts[1:] != ts[:-1], True)]
    at, at_above = base.at(ts), above.at(ts)
    is_over = above.cause[at_above] != _NOTHING
    cause = np.where(is_over, above.cause[at_above], base.cause[at])
    length = np.append(base.ts[1:], _LONG_AFTER) - base.ts
    columns = {
        "ts": ts,
        "end_ts": np.append(ts[1:], _LONG_AFTER),
        "cause": cause,
        "id": np.where(is_over, above.id[at_above], base.id[at]),
        "over": is_over.astype(np.int64),
        "place": places.cause[places.at(ts)],
        "unseen_ns": np.where(cause == _NOTHING, length[at], 0),
    }
    return _named(columns, causes)


def _pieces(spans: _Spans) -> _Pieces:
    """Which span speaks at each time: the innermost with a cause of its own, else whether an op or Python is around.

    Rows of one thread nest, or should: one that a later row outlives ends where that begins.
    """
    end = np.minimum(spans.end, _outlived_at(spans))
    specific = spans.cause >= len(_WORK)
    says, who = spans.cause.copy(), spans.id.copy()
    for stronger in (spans.cause == _WORK.index("op"), specific):
        nearest = _enclosed_by(end, stronger)
        inherits = (nearest != _NOTHING) & (says < len(_WORK)) & ~stronger
        says[inherits], who[inherits] = spans.cause[nearest[inherits]], spans.id[nearest[inherits]]
    who[says < len(_WORK)] = _NOTHING

    # At its start a row takes over; at its end it hands back to the row around it, of ends at one time the outer last.
    parent = _enclosed_by(end, np.ones(len(end), np.bool_))
    count = len(end)
    rows = np.concatenate([np.arange(count), parent])
    ts = np.concatenate([spans.ts, end])
    starts = np.repeat([1, 0], count)
    turn = np.concatenate([np.arange(count), -np.arange(count)])
    order = order_rows(ts, starts, turn)
    order = order[np.append(ts[order][1:] != ts[order][:-1], True)] if count else order
    rows, ts = rows[order], ts[order]
    cause = np.append(_NOTHING, np.where(rows == _NOTHING, _NOTHING, says[rows]) if count else [])
    id = np.append(_NOTHING, np.where(rows == _NOTHING, _NOTHING, who[rows]) if count else [])
    changes = np.append(True, (cause[1:] != cause[:-1]) | (id[1:] != id[:-1]))
    return _Pieces(np.append(_LONG_BEFORE, ts)[changes], cause[changes].astype(np.int64), id[changes].astype(np.int64))


def _enclosed_by(end: Int64s, among: Bools) -> Int64s:
    """For each span the innermost earlier one of `among` that ends no earlier; _NOTHING without one."""
    rooted = np.append(_FOREVER, end)
    found: Int64s = innermost_enclosing(rooted, np.append(False, ~among))[1:] - 1
    return found


def _outlived_at(spans: _Spans) -> Int64s:
    """When the first later span begins that ends later; of spans that end together the first counts as the last."""
    count = len(spans.end)
    by_end = np.lexsort((-np.arange(count), spans.end))
    place = np.empty(count, np.int64)
    place[by_end] = np.arange(count)
    later = innermost_enclosing(np.append(_FOREVER, place[::-1]), np.zeros(count + 1, np.bool_))[1:]
    starts: Int64s = np.append(_FOREVER, spans.ts[::-1])[later][::-1]
    return starts


def _step_places(steps: _Spans, causes: Sequence[str]) -> _Pieces:
    """In a step, between two that an engine marked, or neither; a rank without steps is one."""
    if not len(steps.ts):
        return _Pieces(np.array([_LONG_BEFORE]), np.array([_IN]), np.array([_NOTHING]))
    reach = np.maximum.accumulate(steps.end)
    opens = np.append(True, steps.ts[1:] > reach[:-1])
    begin, end = steps.ts[opens], reach[np.append(opens[1:], True)]
    engine = _STEP in causes and bool((steps.cause == causes.index(_STEP)).all())
    after = np.full(len(end), _BETWEEN if engine else _OUT)
    after[-1] = _OUT
    ts = np.append(_LONG_BEFORE, np.column_stack([begin, end]).ravel())
    place = np.append(_OUT, np.column_stack([np.full(len(begin), _IN), after]).ravel())
    return _Pieces(ts, place, np.full(len(ts), _NOTHING))


def _named(columns: dict[str, Int64s], causes: Sequence[str]) -> pa.Table:
    """Codes as the texts that they stand for."""
    empty = np.empty(0, np.int64)
    get = {name: columns.get(name, empty) for name in ("ts", "end_ts", "cause", "id", "over", "place", "unseen_ns")}
    nothing = get["cause"] == _NOTHING
    return pa.table(
        {
            "ts": int64_array(get["ts"]),
            "end_ts": int64_array(get["end_ts"]),
            "cause": text_array([*causes]).take(int64_array(get["cause"], nothing)),
            "id": int64_array(get["id"], get["id"] == _NOTHING),
            "over": int64_array(get["over"]).cast(pa.bool_()),
            "place": text_array(_PLACES).take(int64_array(get["place"])),
            "unseen_ns": int64_array(get["unseen_ns"]),
        }
    )


def _placed(part: pa.Table, thread: tuple[int, int, int], position: int) -> pa.Table:
    """With the thread and the place in the whole table."""
    rank, pid, tid = (np.full(part.num_rows, value) for value in thread)
    columns = {
        "position": int64_array(np.arange(position, position + part.num_rows)),
        "rank": int32_array(rank),
        "pid": int64_array(pid),
        "tid": int64_array(tid),
    }
    return pa.table(columns | {name: part[name] for name in part.column_names})
