"""timeline: overlapping rows in, disjoint pieces out; and the same said nanosecond by nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.timeline import flatten

FIELDS = ("layer", "rank", "pid", "tid", "ts", "end_ts", "cause", "id")
END_OF_TIME = 1 << 61
Row = tuple[int, int, int | None, int | None, int, int, str, int]


def spans(rows: Sequence[Row]) -> pa.Table:
    types = [pa.int32(), pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.int64()]
    return pa.table([pa.array([row[at] for row in rows], type_) for at, type_ in enumerate(types)], names=list(FIELDS))


def own(ts: int, end: int, cause: str, id: int, tid: int = 1) -> Row:
    return (0, 0, 1, tid, ts, end, cause, id)


def pieces(rows: Sequence[Row], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in flatten(spans(rows)).to_pylist()]


def said(rows: Sequence[Row]) -> list[tuple[int, str | None, int | None]]:
    """From when on, which cause, by which row; without the endless pieces before and after."""
    return pieces(rows, "ts", "cause", "id")[1:]


def test_nothing_in_nothing_out() -> None:
    table = flatten(spans([]))
    assert table.num_rows == 0
    assert table.column_names == [
        "position", "rank", "pid", "tid", "ts", "end_ts", "cause", "id", "over", "place", "unseen_ns",
    ]  # fmt: skip


def test_whole_table() -> None:
    rows = [own(10, 30, "op", 9), own(12, 20, "sync", 6), (2, 0, None, None, 0, 15, "step", 1)]
    common = {"rank": 0, "pid": 1, "tid": 1, "over": False}
    outside, nothing = common | {"place": "out"}, {"cause": None, "id": None}
    endless = {"unseen_ns": END_OF_TIME + 10}
    assert flatten(spans(rows)).to_pylist() == [
        outside | nothing | {"position": 0, "ts": -END_OF_TIME, "end_ts": 0} | endless,
        common | nothing | {"position": 1, "ts": 0, "end_ts": 10, "place": "in"} | endless,
        common | {"position": 2, "ts": 10, "end_ts": 12, "cause": "op", "id": None, "place": "in", "unseen_ns": 0},
        common | {"position": 3, "ts": 12, "end_ts": 15, "cause": "sync", "id": 6, "place": "in", "unseen_ns": 0},
        outside | {"position": 4, "ts": 15, "end_ts": 20, "cause": "sync", "id": 6, "unseen_ns": 0},
        outside | {"position": 5, "ts": 20, "end_ts": 30, "cause": "op", "id": None, "unseen_ns": 0},
        outside | nothing | {"position": 6, "ts": 30, "end_ts": END_OF_TIME, "unseen_ns": END_OF_TIME - 30},
    ]


def test_the_innermost_cause_speaks_and_work_without_one_does_not_silence_it() -> None:
    rows = [own(0, 100, "scheduler", 1), own(10, 90, "op", 9), own(20, 50, "allocation", 3), own(30, 40, "python", 4)]
    assert said(rows) == [(0, "scheduler", 1), (20, "allocation", 3), (50, "scheduler", 1), (100, None, None)]


def test_an_op_speaks_before_a_python_function_wherever_it_is() -> None:
    rows = [own(0, 100, "python", 1), own(10, 50, "op", 9), own(20, 30, "python", 3), own(60, 70, "op", 9)]
    assert said(rows) == [
        (0, "python", None), (10, "op", None), (50, "python", None),
        (60, "op", None), (70, "python", None), (100, None, None),
    ]  # fmt: skip


def test_one_call_that_is_work_and_has_a_cause() -> None:
    assert said([own(0, 10, "op", 9), own(0, 10, "sync", 1)]) == [(0, "sync", 1), (10, None, None)]


def test_neighbours_and_rows_of_no_duration() -> None:
    rows = [own(0, 10, "op", 9), own(5, 5, "sync", 2), own(10, 20, "op", 9), own(20, 20, "sync", 4)]
    assert said(rows) == [(0, "op", None), (20, None, None)]


def test_a_row_that_a_later_one_outlives_ends_where_that_begins() -> None:
    assert said([own(0, 100, "sync", 1), own(90, 150, "gc", 2)]) == [(0, "sync", 1), (90, "gc", 2), (150, None, None)]


def test_what_lies_over_a_process_lies_over_its_threads_and_no_other() -> None:
    rows = [
        own(0, 100, "op", 9),
        own(0, 100, "op", 9, tid=2),
        (0, 0, 7, 1, 0, 100, "op", 9),
        (0, 1, 1, 1, 0, 100, "op", 9),
        (1, 0, 1, None, 20, 30, "gc", 5),
        (1, 0, None, None, 50, 60, "profiler", 6),
    ]
    found = pieces(rows, "rank", "pid", "tid", "ts", "id", "over")
    assert [row for row in found if row[5]] == [
        (0, 1, 1, 20, 5, True), (0, 1, 1, 50, 6, True),
        (0, 1, 2, 20, 5, True), (0, 1, 2, 50, 6, True),
        (0, 7, 1, 50, 6, True),
    ]  # fmt: skip


def test_between_steps_is_only_where_an_engine_marked_both() -> None:
    def places(cause: str) -> list[tuple[int, str]]:
        marks = [(2, 0, None, None, ts, ts + 10, cause, -1) for ts in (0, 5, 30)]
        return pieces([own(0, 100, "op", 9), *marks], "ts", "place")[1:]

    assert places("step") == [(0, "in"), (15, "between"), (30, "in"), (40, "out"), (100, "out")]
    assert places("range") == [(0, "in"), (15, "out"), (30, "in"), (40, "out"), (100, "out")]


def test_the_length_of_a_hole_is_that_of_all_of_it() -> None:
    rows = [own(0, 10, "op", 9), own(50, 60, "op", 9), (2, 0, None, None, 0, 30, "step", 1)]
    assert pieces(rows, "ts", "cause", "place", "unseen_ns")[2:4] == [(10, None, "in", 40), (30, None, "out", 40)]


NESTED = st.lists(
    st.tuples(
        st.integers(0, 40), st.integers(0, 30), st.sampled_from(["python", "op", "sync", "gc"]), st.integers(1, 2)
    ),
    max_size=25,
)


def laminar(drawn: list[tuple[int, int, str, int]]) -> list[Row]:
    """Of rows that overlap in part the later drawn is left out."""
    kept: list[Row] = []
    for id, (ts, dur, cause, tid) in enumerate(drawn):
        end = ts + dur
        mates = [row for row in kept if row[3] == tid]
        if all(end <= row[4] or row[5] <= ts or (ts <= row[4] and row[5] <= end) or (row[4] <= ts and end <= row[5])
               for row in mates):  # fmt: skip
            kept.append(own(ts, end, cause, id, tid))
    return kept


@settings(deadline=None, max_examples=150)
@given(NESTED)
def test_against_every_nanosecond(drawn: list[tuple[int, int, str, int]]) -> None:
    rows = laminar(drawn)
    found = {(row["tid"], at): row["cause"] for row in flatten(spans(rows)).to_pylist()
             for at in range(max(0, row["ts"]), min(80, row["end_ts"]))}  # fmt: skip
    strength = ("python", "op", "gc", "sync")
    for tid in {row[3] for row in rows if row[3] is not None}:
        for at in range(80):
            around = [row for row in rows if row[3] == tid and row[4] <= at < row[5]]
            # Innermost first: the shortest, and of rows alike the one with a cause.
            around.sort(key=lambda row: (row[5] - row[4], -strength.index(row[6])))
            caused = [row[6] for row in around if row[6] not in ("python", "op")]
            kinds = {row[6] for row in around}
            expected = caused[0] if caused else "op" if "op" in kinds else "python" if kinds else None
            assert found.get((tid, at)) == expected
