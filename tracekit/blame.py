"""Which host row held a thread in a piece of its time: the innermost one that covers more than half of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tracekit.arrays import Int64s, int64_array, integers, one_array
from tracekit.links import order_rows

_NONE = -1
_BATCH = 2_000_000  # events, about: what is looked at together


def batches(pieces: pa.Table, events: int) -> Iterator[tuple[pa.Table, int, int]]:
    """Rows of gap_pieces by stretches of time, as many as keep the host rows of each few, with start and end of each.

    events: of the trace. At least one batch, which may be empty.
    """
    ts, end = (integers(one_array(pieces[name])) for name in ("ts", "end_ts"))
    edges = np.linspace(ts.min(initial=0), ts.max(initial=0), 2 + events // _BATCH)[1:-1]
    batch = np.searchsorted(edges, ts, side="right")
    for number in np.unique(batch) if len(batch) else [0]:
        here = np.flatnonzero(batch == number)
        yield pieces.take(int64_array(here)), min(ts[here].tolist(), default=0), max(end[here].tolist(), default=0)


def holders(pieces: pa.Table, host: pa.Table) -> pa.Table:
    """Rows of the macro gap_pieces as rows of the table gap_holders.

    host: host rows (id, rank, pid, tid, ts, end_ts, parent_id) of at least the threads of the pieces. A row that covers
    more than half of a piece covers its middle. So: the last row to start before the middle, then outwards until one
    covers enough.
    """
    columns = {name: integers(one_array(pieces[name]), _NONE) for name in pieces.column_names}
    rows = {name: integers(one_array(host[name]), _NONE) for name in host.column_names}
    held_by = np.full(pieces.num_rows, _NONE)
    of_thread = dict(_threads(rows))
    for thread, asked in _threads(columns):
        if thread in of_thread:
            own = {name: rows[name][of_thread[thread]] for name in ("id", "ts", "end_ts", "parent_id")}
            held_by[asked] = _innermost(columns["ts"][asked], columns["end_ts"][asked], own)
    found = held_by != _NONE
    return pa.table(
        {
            "after_id": int64_array(columns["after_id"][found]),
            "position": int64_array(columns["position"][found]),
            "id": int64_array(held_by[found]),
        }
    )


def _threads(columns: dict[str, Int64s]) -> Iterator[tuple[tuple[int, int, int], Int64s | slice]]:
    """Each thread and its rows, as places in the columns."""
    rank, pid, tid = (columns[name] for name in ("rank", "pid", "tid"))
    several = [values for values in (rank, pid, tid) if len(values) and (values != values[0]).any()]
    if not several and len(rank):
        yield (int(rank[0]), int(pid[0]), int(tid[0])), slice(None)
        return
    lane = np.zeros(len(rank), np.int64)
    for values in several:
        codes = int64_array(values).dictionary_encode()
        lane = lane * len(codes.dictionary) + integers(codes.indices)
    lanes = integers(int64_array(lane).dictionary_encode().indices)
    order = np.argsort(lanes.astype(np.uint16) if lanes.max(initial=0) < 1 << 16 else lanes, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(lanes[order])) + 1):
        if len(rows):
            yield (int(rank[rows[0]]), int(pid[rows[0]]), int(tid[rows[0]])), rows


def _innermost(ts: Int64s, end: Int64s, rows: dict[str, Int64s]) -> Int64s:
    if (rows["id"][1:] < rows["id"][:-1]).any() or (rows["ts"][1:] < rows["ts"][:-1]).any():
        order = order_rows(rows["ts"], -rows["end_ts"], rows["id"])
        rows = {name: values[order] for name, values in rows.items()}
    id, begin, stop, parent = (rows[name] for name in ("id", "ts", "end_ts", "parent_id"))
    by_id = np.argsort(id, kind="stable")
    id_sorted = id[by_id]
    at: Int64s = np.searchsorted(begin, ts + (end - ts) // 2, side="right") - 1
    while True:
        covered = np.minimum(stop[at], end) - np.maximum(begin[at], ts)
        short = np.flatnonzero((at != _NONE) & (2 * covered <= end - ts))
        if not len(short):
            return np.where(at == _NONE, _NONE, id[at])
        above = parent[at[short]]
        place = np.minimum(np.searchsorted(id_sorted, above), len(id) - 1)
        at[short] = np.where(id_sorted[place] == above, by_id[place], _NONE)
