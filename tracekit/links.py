"""Who encloses whom, and who launched what: links between rows, found on sorted intervals.

All functions work on NumPy arrays of equal length, one element a row; times are integer nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NONE = -1  # no such row
_FOREVER = np.iinfo(np.int64).max
_NEVER = np.iinfo(np.int64).min

# On a tie of start and end the kind decides who encloses: a Python function calls an op, an op calls the API.
ENCLOSING_ORDER = {
    "python": 0,
    "annotation": 1,
    "op": 2,
    "launch": 3,
    "overhead": 4,
    "os": 5,
    "instant": 6,
    "counter": 7,
}
_OP = ENCLOSING_ORDER["op"]
_FIRST_LEAF = ENCLOSING_ORDER["overhead"]  # from here on rows have no children


def innermost_enclosing(end: Int64s, leaf: Bools) -> Int64s:
    """For each row the nearest earlier one that is no leaf and ends no earlier; the first row gets itself.

    With rows sorted by start (and, on a tie, by falling end) that is the innermost enclosing row. Pointer jumping:
    between a row and its pointer all rows end earlier, and a jump keeps that true, so partial overlaps do no harm.
    """
    reach = np.where(leaf, _NEVER, end)
    pointer = np.arange(-1, len(end) - 1)
    if len(end):
        pointer[0] = 0
    # Leaves first look for any row that is none, so that the second search never steps from leaf to leaf.
    _jump(pointer, pointer, reach, np.arange(len(end)), np.where(leaf, _NEVER + 1, end))
    leaves = np.flatnonzero(leaf)
    _jump(pointer, pointer.copy(), reach, leaves, end[leaves])
    return pointer


def _jump(pointer: Int64s, step: Int64s, reach: Int64s, rows: Int64s, end: Int64s) -> None:
    """Move the pointers of `rows` back, along `step`, until each is at a row that reaches its `end`."""
    behind = reach[pointer[rows]] < end
    while behind.any():
        rows, end = rows[behind], end[behind]
        pointer[rows] = step[pointer[rows]]
        behind = reach[pointer[rows]] < end


def order_rows(ts: Int64s, *tie_breakers: Int64s) -> Int64s:
    """Order by start; rows that start together by the tie breakers, first one first.

    Runs of sorted starts merge in linear time, and only rows that tie are sorted by more than one key.
    """
    order = np.argsort(ts, kind="stable")
    sorted_ts = ts[order]
    same = sorted_ts[1:] == sorted_ts[:-1]
    if same.any():
        tied = np.zeros(len(ts), np.bool_)
        tied[1:] |= same
        tied[:-1] |= same
        places = np.flatnonzero(tied)
        rows = order[places]
        keys = [key[rows] for key in (ts, *tie_breakers)]
        order[places] = rows[np.lexsort(keys[::-1])]
    return order


@dataclass(slots=True)
class HostRows:
    """Rows of one window, in canonical order. `lane` numbers threads, `kind` is a place in ENCLOSING_ORDER."""

    id: Int64s
    end: Int64s
    lane: Int64s
    kind: Int64s


def _no_rows() -> HostRows:
    empty = np.empty(0, np.int64)
    return HostRows(empty, empty, empty, empty)


@dataclass(slots=True)
class Nesting:
    """Finds parents window by window: rows still open at the end of one window are carried into the next."""

    _open: HostRows = field(default_factory=_no_rows)

    def link(self, rows: HostRows, next_window: int) -> tuple[Int64s, Int64s]:
        """Ids of the innermost enclosing row and of the innermost enclosing op, NONE where there is none.

        rows: all host rows that start in this window, by start. next_window: no later row starts before.
        """
        lanes = np.unique(np.concatenate([rows.lane, self._open.lane]))
        count = len(lanes)
        # A root per thread that ends never keeps the search within the thread.
        end = np.concatenate([np.full(count, _FOREVER), self._open.end, rows.end])
        lane = np.concatenate([lanes, self._open.lane, rows.lane])
        identity = np.concatenate([np.full(count, NONE), self._open.id, rows.id])
        kind = np.concatenate([np.full(count, NONE), self._open.kind, rows.kind])

        by_lane = np.argsort(lane.astype(np.uint16) if lane.max(initial=0) < 1 << 16 else lane, kind="stable")
        end, lane, identity, kind = end[by_lane], lane[by_lane], identity[by_lane], kind[by_lane]
        pointer = innermost_enclosing(end, kind >= _FIRST_LEAF)
        operator = pointer.copy()
        _climb(operator, pointer, (kind != _OP) & (kind != NONE))

        still_open = (end >= next_window) & (kind != NONE) & (kind < _FIRST_LEAF)
        self._open = HostRows(identity[still_open], end[still_open], lane[still_open], kind[still_open])

        parent_id = np.empty(len(by_lane), np.int64)
        op_id = np.empty(len(by_lane), np.int64)
        parent_id[by_lane] = identity[pointer]
        op_id[by_lane] = identity[operator]
        first = len(by_lane) - len(rows.id)
        return parent_id[first:], op_id[first:]


def _climb(pointer: Int64s, parent: Int64s, passed_over: Bools) -> None:
    """Move each pointer up, in place, until it is at a row that is not passed over."""
    active = np.flatnonzero(passed_over[pointer])
    while active.size:
        pointer[active] = parent[pointer[active]]
        active = active[passed_over[pointer[active]]]


@dataclass(slots=True)
class LinkIndex:
    """Rows by a key that other rows refer to: API calls by correlation, ops by External id.

    wanted: the keys that are referred to, sorted and unique; no other is kept. width: how many values are kept of a
    row, the first being its id. Filled window by window in canonical order, then searched: of rows that share a key (a
    runtime call and the driver call within it) the first counts. `ambiguous` counts the others.
    """

    wanted: Int64s
    width: int = 2
    ambiguous: int = 0
    _values: list[Int64s] = field(init=False)

    def __post_init__(self) -> None:
        self._values = [np.full(len(self.wanted), NONE) for _ in range(self.width)]

    @classmethod
    def empty(cls) -> LinkIndex:
        """One in which nothing is found."""
        return cls(np.empty(0, np.int64))

    def add(self, key: Int64s, *values: Int64s) -> None:
        """Take in rows: their key, their id, and what else a row that refers to them gets from them."""
        place, found = self._places(key)
        identity = self._values[0]
        fresh = np.flatnonzero(found)[::-1]  # of equal places NumPy keeps what is assigned last
        fresh = fresh[identity[place[fresh]] == NONE]
        for kept, value in zip(self._values, values, strict=True):
            kept[place[fresh]] = value[fresh]
        self.ambiguous += int(found.sum() - (identity[place[found]] == values[0][found]).sum())

    def find(self, key: Int64s) -> list[Int64s]:
        """The values of the rows with these keys, the ids first; NONE where there is no such row."""
        place, hit = self._places(key)
        found = [np.full(len(key), NONE) for _ in range(self.width)]
        for column, values in zip(found, self._values, strict=True):
            column[hit] = values[place[hit]]
        return found

    def _places(self, key: Int64s) -> tuple[Int64s, Bools]:
        """Where each key is among the wanted, and whether it is."""
        if not len(self.wanted):
            return np.zeros(len(key), np.int64), np.zeros(len(key), np.bool_)
        place: Int64s = np.minimum(np.searchsorted(self.wanted, key), len(self.wanted) - 1)
        return place, (self.wanted[place] == key) & (key != _NEVER)
