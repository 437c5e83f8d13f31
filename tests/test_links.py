"""Links between rows against definitions that look at every row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from tracekit.links import ENCLOSING_ORDER, NONE, HostRows, LinkIndex, Nesting, innermost_enclosing, order_rows

Int64s = npt.NDArray[np.int64]
Row = tuple[str, int, int, int]  # kind, start, end, thread

OP = ENCLOSING_ORDER["op"]
LEAVES = {ENCLOSING_ORDER[kind] for kind in ("overhead", "os", "instant", "counter")}
NO_ROWS = np.empty(0, np.int64)


def numbers(values: Sequence[int]) -> Int64s:
    return np.array(values, np.int64)


def linked(rows: list[Row], *windows: int) -> tuple[list[int], list[int]]:
    """Parent and op of each row, by position; `windows` are the starts of windows after the first."""
    order = sorted(range(len(rows)), key=lambda at: (rows[at][1], -rows[at][2], ENCLOSING_ORDER[rows[at][0]]))
    assert order == list(range(len(rows))), "rows of a test are written in canonical order"
    kind, ts, end, lane = (
        numbers(column) for column in zip(*((ENCLOSING_ORDER[k], *rest) for k, *rest in rows), strict=True)
    )
    return in_windows(ts, HostRows(np.arange(len(rows)), end, lane, kind), [*windows, 1 << 40])


def in_windows(ts: Int64s, rows: HostRows, ends: list[int]) -> tuple[list[int], list[int]]:
    nesting = Nesting()
    parents: list[int] = []
    operators: list[int] = []
    start = -(1 << 40)
    for end in ends:
        chosen = (ts >= start) & (ts < end)
        start = end
        window = HostRows(rows.id[chosen], rows.end[chosen], rows.lane[chosen], rows.kind[chosen])
        parent, operator = nesting.link(window, end)
        parents += parent.tolist()
        operators += operator.tolist()
    return parents, operators


def test_no_rows() -> None:
    parent, operator = Nesting().link(HostRows(NO_ROWS, NO_ROWS, NO_ROWS, NO_ROWS), 10)
    assert (parent.tolist(), operator.tolist()) == ([], [])
    assert innermost_enclosing(NO_ROWS, np.empty(0, np.bool_)).tolist() == []
    assert order_rows(NO_ROWS, NO_ROWS).tolist() == []


@pytest.mark.parametrize("windows", [(), (5,), (3, 4, 5, 6)])
@pytest.mark.parametrize(
    ("rows", "parents", "operators"),
    [
        ([("op", 0, 10, 0)], [NONE], [NONE]),
        ([("op", 0, 10, 0), ("launch", 2, 4, 0), ("launch", 5, 10, 0)], [NONE, 0, 0], [NONE, 0, 0]),
        ([("op", 0, 10, 0), ("op", 2, 4, 1)], [NONE, NONE], [NONE, NONE]),
        # What ends later than its surroundings is in what surrounds those.
        ([("python", 0, 99, 0), ("op", 0, 10, 0), ("op", 5, 15, 0)], [NONE, 0, 0], [NONE, NONE, NONE]),
        ([("op", 0, 10, 0), ("op", 5, 15, 0), ("op", 8, 9, 0)], [NONE, NONE, 1], [NONE, NONE, 1]),
        # Equal times: the order of kinds.
        ([("python", 3, 5, 0), ("op", 3, 5, 0), ("launch", 3, 5, 0)], [NONE, 0, 1], [NONE, NONE, 1]),
        # No duration at the very end of what surrounds it, and at the start.
        ([("op", 0, 5, 0), ("instant", 0, 0, 0), ("op", 5, 5, 0), ("instant", 5, 5, 0)], [NONE, 0, 0, 2],
         [NONE, 0, 0, 2]),
        # A leaf encloses nothing.
        ([("op", 0, 9, 0), ("overhead", 1, 8, 0), ("launch", 2, 3, 0)], [NONE, 0, 0], [NONE, 0, 0]),
        ([("op", 0, 9, 0), ("annotation", 1, 8, 0), ("launch", 2, 3, 0)], [NONE, 0, 1], [NONE, 0, 0]),
    ],
)  # fmt: skip
def test_nesting(rows: list[Row], parents: list[int], operators: list[int], windows: tuple[int, ...]) -> None:
    assert linked(rows, *windows) == (parents, operators)


def naive_nesting(rows: HostRows) -> tuple[list[int], list[int]]:
    """The latest earlier row of the thread that ends no earlier and is no leaf; its nearest ancestor that is an op."""
    parents: list[int] = []
    operators: list[int] = []
    for row in range(len(rows.id)):
        parent = NONE
        for earlier in range(row):
            same = rows.lane[earlier] == rows.lane[row] and rows.kind[earlier] not in LEAVES
            if same and rows.end[earlier] >= rows.end[row]:
                parent = earlier
        parents.append(parent)
        while parent != NONE and rows.kind[parent] != OP:
            parent = parents[parent]
        operators.append(parent)
    return parents, operators


@pytest.mark.parametrize("span", [3, 20, 1000])
@pytest.mark.parametrize("lanes", [1, 3])
def test_nesting_against_every_earlier_row(span: int, lanes: int) -> None:
    rng = np.random.default_rng(span + lanes)
    for _ in range(300):
        count = int(rng.integers(1, 40))
        ts, duration = rng.integers(0, span, count), rng.integers(0, max(2, span // 2), count)
        lane, kind = rng.integers(0, lanes, count), rng.integers(0, 7, count)
        duration[rng.random(count) < 0.2] = 0
        order = order_rows(ts, -(ts + duration), kind, lane, np.arange(count))
        ts, end, lane, kind = ts[order], (ts + duration)[order], lane[order], kind[order]
        rows = HostRows(np.arange(count), end, lane, kind)
        cuts = sorted({int(cut) for cut in rng.integers(0, span + 1, 4)})
        assert in_windows(ts, rows, [*cuts, 1 << 40]) == naive_nesting(rows)


def test_many_threads_and_a_deep_stack() -> None:
    depth = 3000
    ts = np.arange(depth)
    rows = HostRows(np.arange(depth), 10 * depth - ts, np.zeros(depth, np.int64), np.zeros(depth, np.int64))
    parent, operator = Nesting().link(rows, 1 << 40)
    assert parent.tolist() == list(range(-1, depth - 1))
    assert set(operator.tolist()) == {NONE}

    lane = np.arange(70_000)  # more than 16 bits hold
    rows = HostRows(np.arange(70_000), np.full(70_000, 5), lane, np.full(70_000, OP))
    parent, _ = Nesting().link(rows, 1 << 40)
    assert set(parent.tolist()) == {NONE}


def test_order_rows_against_sorted() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        count = int(rng.integers(0, 30))
        keys = [rng.integers(-3, 4, count) for _ in range(int(rng.integers(1, 4)))]
        rows = zip(*(key.tolist() for key in keys), range(count), strict=True)
        assert order_rows(*keys).tolist() == [row[-1] for row in sorted(rows)]


def test_link_index_against_a_dictionary() -> None:
    rng = np.random.default_rng(0)
    absent = np.iinfo(np.int64).min
    for _ in range(500):
        wanted = np.unique(rng.integers(-5, 15, int(rng.integers(0, 10))))
        index = LinkIndex(wanted)
        first: dict[int, tuple[int, int]] = {}
        ambiguous = identity = 0
        for _ in range(int(rng.integers(0, 4))):
            key = rng.integers(-5, 15, int(rng.integers(0, 10)))
            key[rng.random(len(key)) < 0.2] = absent
            ids = np.arange(identity, identity := identity + len(key))
            index.add(key, ids, ids + 1000)
            for one, number in zip(key.tolist(), ids.tolist(), strict=True):
                if one in wanted.tolist():
                    ambiguous += one in first
                    first.setdefault(one, (number, number + 1000))
        asked = np.concatenate([rng.integers(-9, 20, 20), [absent]])
        found, operators = index.find(asked)
        expected = [first.get(key, (NONE, NONE)) for key in asked.tolist()]
        assert list(zip(found.tolist(), operators.tolist(), strict=True)) == expected
        assert index.ambiguous == ambiguous
    assert LinkIndex.empty().find(numbers([1]))[0].tolist() == [NONE]
