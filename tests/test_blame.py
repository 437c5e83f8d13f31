"""holders: pieces of a thread's time in, the row that held it out; and the same by looking at every row."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.blame import holders

Piece = tuple[int, int, int, int, int]  # after_id, position, tid, ts, end
Row = tuple[int, int, int, int, int | None]  # id, tid, ts, end, parent


def table(rows: Sequence[tuple[int | None, ...]], names: str) -> pa.Table:
    columns = {name: pa.array([row[at] for row in rows], pa.int64()) for at, name in enumerate(names.split())}
    zeros = pa.array([0] * len(rows), pa.int64())
    return pa.table(columns | {"rank": zeros.cast(pa.int32()), "pid": zeros})


def found(pieces: Sequence[Piece], rows: Sequence[Row]) -> list[tuple[int, int, int]]:
    result = holders(table(pieces, "after_id position tid ts end_ts"), table(rows, "id tid ts end_ts parent_id"))
    return [(row["after_id"], row["position"], row["id"]) for row in result.to_pylist()]


def test_nothing_in_nothing_out() -> None:
    assert found([], []) == []
    assert found([(1, 1, 1, 0, 10)], []) == []
    assert found([], [(1, 1, 0, 10, None)]) == []


def test_the_innermost_row_over_more_than_half() -> None:
    rows = [(1, 1, 0, 100, None), (2, 1, 10, 90, 1), (3, 1, 20, 60, 2), (4, 1, 25, 45, 3), (5, 2, 0, 100, None)]
    pieces = [
        (7, 0, 1, 20, 60),  # 4 covers exactly half of it, which is not enough
        (7, 1, 1, 25, 46),
        (7, 2, 1, 60, 100),
        (8, 3, 1, 95, 100),
        (8, 4, 2, 95, 100),
        (9, 5, 1, 200, 300),
        (9, 6, 3, 0, 10),  # a thread without rows
    ]
    assert found(pieces, rows) == [(7, 0, 3), (7, 1, 4), (7, 2, 2), (8, 3, 1), (8, 4, 5)]


def test_rows_of_two_files_interleave() -> None:
    """Ids grow with time in one file, and start anew after it in the next."""
    rows = [(1, 1, 0, 10, None), (2, 1, 40, 50, None), (3, 1, 20, 30, None), (4, 1, 20, 28, 3)]
    assert found([(9, 0, 1, 20, 30), (9, 1, 1, 41, 50), (9, 2, 1, 0, 9)], rows) == [(9, 0, 4), (9, 1, 2), (9, 2, 1)]


@st.composite
def nested(draw: st.DrawFn) -> list[Row]:
    """A tree of rows on one thread, in canonical order."""
    rows: list[Row] = []

    def fill(ts: int, end: int, parent: int | None, depth: int) -> None:
        at = ts
        while at < end and depth < 4 and len(rows) < 25 and draw(st.booleans()):
            begin = draw(st.integers(at, end))
            stop = draw(st.integers(begin, end))
            rows.append((len(rows), 1, begin, stop, parent))
            fill(begin, stop, len(rows) - 1, depth + 1)
            at = stop + 1

    fill(0, 120, None, 0)
    return rows


@settings(deadline=None)
@given(nested(), st.lists(st.tuples(st.integers(0, 120), st.integers(1, 60)), max_size=10))
def test_against_every_row(rows: list[Row], drawn: list[tuple[int, int]]) -> None:
    pieces = [(0, at, 1, ts, ts + dur) for at, (ts, dur) in enumerate(drawn)]
    expected = []
    for _, position, _, ts, end in pieces:
        enough = [row for row in rows if 2 * (min(row[3], end) - max(row[2], ts)) > end - ts]
        if enough:
            expected.append((0, position, max(enough, key=lambda row: (row[2], -row[3], row[0]))[0]))
    assert found(pieces, rows) == expected
