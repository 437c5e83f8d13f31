"""lanes: rows in, lanes of a window out; which rows go where not all have room."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit
from tests.event_rows import annotation, kernel, launch, op, write_trace
from tracekit.errors import UsageError
from tracekit.lanes import KINDS, Lane, _depths, _shares, step_extent, window_of
from tracekit.trace import Trace

Opened = Callable[[Sequence[Mapping[str, Any]]], Trace]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    traces: list[Trace] = []

    def open_(rows: Sequence[Mapping[str, Any]]) -> Trace:
        traces.append(tracekit.open(write_trace(tmp_path / f"{len(traces)}.parquet", rows)))
        return traces[-1]

    yield open_
    for trace in traces:
        trace.close()


def brief(lanes: Sequence[Lane]) -> list[tuple[Any, ...]]:
    """Per row: lane, id, name, label, depth."""
    return [
        (lane.name, row["id"], row["name"], row["label"], row["depth"])
        for lane in lanes
        for row in lane.rows.to_pylist()
    ]


def step(ts: int, dur: int, number: int = 0, **columns: Any) -> dict[str, Any]:
    return annotation(f"step[DECODE bs={number + 1}]", ts, dur, **columns)


def test_nothing(opened: Opened) -> None:
    window = window_of(opened([]), 0, 10)
    assert (window.start_ns, window.end_ns, window.lanes, window.left_out) == (0, 10, (), {})


def test_all_kinds(opened: Opened) -> None:
    """What overlaps 100 to 900, whole; not the op that ends at 100 nor the kernel that begins at 900."""
    trace = opened(
        [
            op(0, 100),
            step(50, 800),
            {"kind": "python", "name": "run.py(1): run", "ts": 60, "dur": 700},
            op(110, 60),
            launch(120, 20, op_id=4),
            op(130, 10),
            kernel(150, 200, launch_id=5, op_id=4, name="gemm<float>"),
            kernel(340, 60, launch_id=5, op_id=4, name="gemm<float>"),
            kernel(890, 5, launch_id=5, op_id=4, stream=8, name="weird"),
            kernel(900, 50, launch_id=5, op_id=4),
        ]
    )
    lanes = window_of(trace, 100, 900).lanes
    assert brief(lanes) == [
        ("steps", 2, "step 0 decode", "", 0),
        ("GPU 0 idle", 9, "cudaLaunchKernel", "launch_latency", 0),
        ("GPU 0 idle", 10, "cudaLaunchKernel", "launch_latency", 0),
        ("GPU 0 stream 7", 7, "gemm<float>", "gemm", 0),
        ("GPU 0 stream 7", 8, "gemm<float>", "gemm", 1),  # before the first is done
        ("GPU 0 stream 8", 9, "weird", "gemm", 0),
        ("thread 1 API calls", 5, "cudaLaunchKernel", "", 0),
        ("thread 1 ranges", 2, "step[DECODE bs=1]", "", 0),
        ("thread 1 ops", 4, "aten::mm", "", 0),
        ("thread 1 ops", 6, "aten::mm", "", 1),
        ("thread 1 Python", 3, "run.py(1): run", "", 0),
    ]
    assert [(lane.kind, lane.rank) for lane in lanes][1:4] == [("idle", 0), ("device", 0), ("device", 0)]
    first = lanes[2].rows.to_pylist()[0]
    assert (first["ts"], first["dur"], first["launch_id"], first["step"]) == (150, 200, 5, 0)
    assert str(lanes[2].rows.schema.field("depth").type) == "int32"


def test_ranks_are_told_apart_and_chosen(opened: Opened) -> None:
    trace = opened([kernel(0, 10), kernel(0, 20, rank=1, device=1), kernel(0, 30, rank=1, device=2)])
    names = ["rank 0 GPU 0 stream 7", "rank 1 GPU 1 stream 7", "rank 1 GPU 2 stream 7"]
    assert [lane.name for lane in window_of(trace, 0, 50).lanes] == names
    assert [lane.name for lane in window_of(trace, 0, 50, rank=1).lanes] == ["GPU 1 stream 7", "GPU 2 stream 7"]
    with trace.only(rank=1, device=2) as part:
        assert [lane.name for lane in window_of(part, 0, 50).lanes] == ["GPU 2 stream 7"]


def test_gaps_that_the_part_does_not_count_are_drawn(opened: Opened) -> None:
    trace = opened([kernel(0, 10, step=0), kernel(50, 10, step=1), kernel(90, 10, step=2)])
    with trace.only(since_ns=55) as part:
        gaps = [lane.rows.to_pylist() for lane in window_of(part, 0, 100).lanes if lane.kind == "idle"]
    assert [(row["ts"], row["dur"]) for row in gaps[0]] == [(10, 40), (60, 30)]


def test_the_shortest_are_left_out(opened: Opened) -> None:
    """Five kernels and the gaps between them share with one op; gaps and kernels get as many each."""
    kernels = [kernel(100 * at, 10 + at, id=10 + at) for at in range(5)]
    trace = opened([op(0, 1, id=1), *kernels])
    window = window_of(trace, 0, 1000, most=5)
    assert brief(window.lanes) == [
        ("GPU 0 idle", 11, "", "unattributed", 0),
        ("GPU 0 idle", 12, "", "unattributed", 0),
        ("GPU 0 stream 7", 13, "kernel", "other", 0),
        ("GPU 0 stream 7", 14, "kernel", "other", 0),
        ("thread 1 ops", 1, "aten::mm", "", 0),
    ]
    assert window.left_out == {"idle": 2, "device": 3}


@given(there=st.dictionaries(st.sampled_from(KINDS), st.integers(1, 30)), most=st.integers(1, 100))
def test_shares(there: dict[str, int], most: int) -> None:
    """All the room is used; who is cut short has no less than anyone else, but for the remainder."""
    shares = _shares(there, most)
    assert sum(shares.values()) == min(most, sum(there.values()))
    assert all(shares[kind] <= there[kind] for kind in there)
    for kind, count in there.items():
        if shares[kind] < count:
            assert max(shares.values()) <= shares[kind] + 1


@given(spans=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=20))
@settings(deadline=None)
def test_depths_against_the_definition(spans: list[tuple[int, int]]) -> None:
    """No two rows of one level overlap, what lies within another is deeper, and no row is deeper than it must be."""
    rows = [{"ts": ts, "dur": dur} for ts, dur in sorted(spans, key=lambda span: (span[0], -span[1]))]
    depths = _depths(rows)
    ends = [row["ts"] + row["dur"] for row in rows]
    for at, row in enumerate(rows):
        open_ = [other for other in range(at) if ends[other] > row["ts"]]
        assert depths[at] not in [depths[other] for other in open_]
        around = [depths[other] for other in open_ if ends[other] >= ends[at]]
        assert all(depths[at] > depth for depth in around)
        levels_taken = {depths[other] for other in open_}
        assert all(level in levels_taken or level <= max(around, default=-1) for level in range(depths[at]))


def test_extent_of_a_step(opened: Opened) -> None:
    """The device works on after the mark ends; without device work, the mark is all there is."""
    marks = [step(0, 100, 0, id=1), step(200, 100, 1, id=2), step(0, 90, 0, id=3, rank=1)]
    work = [
        launch(10, 5, id=4, step=0),
        kernel(20, 500, id=5, launch_id=4, step=0),
        kernel(20, 600, id=6, rank=1, step=0),
    ]
    trace = opened([*(mark | {"step": at} for mark, at in zip(marks, (0, 1, 0), strict=True)), *work])
    assert step_extent(trace, 0) == (0, 620)
    assert step_extent(trace, 0, rank=0) == (0, 520)
    assert step_extent(trace, 1) == (200, 300)
    with pytest.raises(UsageError, match=r"^no step 7; steps are 0 to 1$"):
        step_extent(trace, 7)
    with pytest.raises(UsageError, match=r"^no step 1 of rank 1; steps are 0 to 1$"):
        step_extent(trace, 1, rank=1)


def test_what_cannot_be_asked(opened: Opened) -> None:
    trace = opened([])
    with pytest.raises(UsageError, match=r"^no step 0; the trace has no steps$"):
        step_extent(trace, 0)
    with pytest.raises(UsageError, match=r"^no time lies from 5 until 5 ns$"):
        window_of(trace, 5, 5)
    with pytest.raises(UsageError, match=r"^at most 0 rows is no timeline"):
        window_of(trace, 0, 5, most=0)
