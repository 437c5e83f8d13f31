"""The timeline: which window, which rows on which level, what is too short to be seen, what is left out and said."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracekit
from tests.event_rows import annotation, kernel, launch, op, write_trace
from tests.pictures import flaws, labels
from tests.served_steps import DECODE, PREFILL, opened, served
from tests.test_idle_summary import endless
from tracekit import plots
from tracekit.errors import UsageError
from tracekit.plot_timeline import Band, Piece, View, _together, view_of
from tracekit.trace import Trace

US = 1_000


def view(trace: Trace, **asked: int) -> View:
    return view_of(trace, *(asked.get(name) for name in ("step", "start_ns", "end_ns", "rank")))


def bands(found: View) -> dict[str, Band]:
    return {band.name: band for band in found.bands}


# ---- which window ----------------------------------------------------------------------------------------------------


def test_nothing_recorded(tmp_path: Path) -> None:
    with opened(tmp_path, []) as trace, pytest.raises(UsageError, match="nothing to plot: the trace has no events"):
        view(trace)


STEPS = [(PREFILL, [(0, 900)]), (DECODE, [(1000, 60)]), (DECODE, [(1100, 20)]), (DECODE, [(1200, 40)])]


def test_the_median_step_of_the_phase_with_most_time(tmp_path: Path) -> None:
    """The first step is none of the steady ones; of three decode steps the one of 40 ns, marked 10 us later each."""
    with opened(tmp_path, served(*STEPS)) as trace:
        found = view(trace)
    assert found.title == "Timeline of step 3, decode"
    assert found.caption[0] == (
        "The median of 3 steady steps of the phase with most time: 9.00 us from its mark on the host to the end of "
        "its work"
    )
    assert (found.start_ns, found.end_ns, found.origin_ns) == (40 * US - 180, 49 * US + 180, 40 * US)
    assert found.origin == "from the start of step 3"


def test_a_step_or_a_window(tmp_path: Path) -> None:
    with opened(tmp_path, served(*STEPS)) as trace:
        assert view(trace, step=1).title == "Timeline of step 1, decode"
        window = view(trace, start_ns=1_000, end_ns=1_250)
        assert (window.title, window.caption) == ("Timeline of 0.250 us, from 1.00 us on", ())
        assert [(piece.start_ns, piece.end_ns) for piece in bands(window)["GPU 0 stream 7"].pieces] == [
            (1000, 1060),
            (1100, 1120),
            (1200, 1240),
        ]
        assert (view(trace, start_ns=1_000).end_ns, view(trace, end_ns=50).start_ns) == (49_000, 0)
        for asked, said in (
            ({"step": 9}, "no step 9; steps are 0 to 3"),
            ({"step": 1, "end_ns": 5}, "of a step or of a window of time"),
            ({"start_ns": 10**9}, "no time lies from 1.00 s until 49.0 us, the trace's end"),
            ({"start_ns": 3_000, "end_ns": 3_100}, "nothing to plot: the trace has no row in this window"),
            ({"step": 1, "rank": 4}, "no step 1 of rank 4"),
        ):
            with pytest.raises(UsageError, match=said):
                view(trace, **asked)


def test_of_several_ranks_one(tmp_path: Path) -> None:
    rows = served(*STEPS)
    rows += served(*STEPS, rank=1, first_id=len(rows) + 1)
    with opened(tmp_path, rows) as trace:
        assert view(trace).title == "Timeline of step 3, decode, rank 0"
        assert view(trace, step=2, rank=1).title == "Timeline of step 2, decode, rank 1"
        with trace.only(rank=1) as part:
            assert view(part).title == view(part, step=3).title == "Timeline of step 3, decode, rank 1"
        assert "GPU 0 stream 7" in bands(view(trace, start_ns=0, end_ns=2_000, rank=1))
        assert "rank 1 GPU 0 stream 7" in bands(view(trace, start_ns=0, end_ns=2_000))


def test_without_steps_all_of_it(tmp_path: Path) -> None:
    with opened(tmp_path, [kernel(50, 10), kernel(80, 10)]) as trace:
        found = view(trace)
    assert (found.title, found.start_ns, found.end_ns) == ("Timeline of the recording", 50, 90)
    assert found.caption == ("No step with work on a device is marked or found: all of the recording",)


# ---- what is in it ---------------------------------------------------------------------------------------------------


def test_rows_are_named_and_cut_to_the_window(tmp_path: Path) -> None:
    """An outer function fills all of the window, and so does one in it: the inner one says where all this happens."""
    rows = [
        launch(5, 5),
        kernel(10, 60, launch_id=1, name="void at::native::vectorized_elementwise_kernel<4, Add>(int, Add)"),
        kernel(120, 60, name="nvjet_tst"),
        {"kind": "python", "name": "/opt/lib/python3.12/site-packages/vllm/main.py(7): run", "ts": 0, "dur": 190},
        {"kind": "python", "name": "vllm/v1/worker.py(11): execute", "ts": 0, "dur": 180},
        {"kind": "python", "name": "torch/nn/module.py(3): forward", "ts": 1, "dur": 60},
        op(2, 20, name="aten::add"),
    ]
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        found = bands(view(trace, start_ns=3, end_ns=130))
    assert {name: [(piece.name, piece.level, piece.start_ns, piece.end_ns) for piece in band.pieces]
            for name, band in found.items()} == {
        "GPU 0 idle": [("unattributed", 0, 70, 120)],
        "GPU 0 stream 7": [("vectorized_elementwise_kernel", 0, 10, 70), ("nvjet_tst", 0, 120, 130)],
        "thread 1 API calls": [("cudaLaunchKernel", 0, 5, 10)],
        "thread 1 ops": [("aten::add", 0, 3, 22)],
        "thread 1 Python": [("execute, worker.py(11)", 0, 3, 130), ("forward, module.py(3)", 1, 3, 61)],
    }  # fmt: skip


def test_levels_that_are_too_deep_are_said(tmp_path: Path) -> None:
    rows = [op(at, 100 - 2 * at) for at in range(9)]
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        found = view(trace, start_ns=-100, end_ns=200)
    assert found.caption == ("Not drawn: 3 rows of deeper levels",)
    assert [band.levels for band in found.bands] == [6]


def test_lanes_with_least_time_are_left_out_and_said(tmp_path: Path) -> None:
    rows = [op(0, 100 + tid, tid=tid) for tid in range(11)]
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        found = view(trace)
    assert [band.name for band in found.bands] == [f"thread {tid} ops" for tid in range(3, 11)]
    assert found.caption[-1] == "Not drawn: 3 lanes with the least time"


def test_where_holes_may_be_lost_work_it_is_said(tmp_path: Path) -> None:
    with opened(tmp_path, endless(32, 3)) as trace:
        assert any("3 of 128 device rows have no recorded end" in line for line in view(trace).caption)


def piece(start: int, end: int, label: str = "", name: str = "", covered: float = 1.0) -> Piece:
    return Piece(start, end, 0, label, name, covered)


def test_what_is_too_short_to_be_seen_is_drawn_together() -> None:
    """In cells of 100 ns: three in one cell, one alone, a long one, two at its end."""
    short = [piece(0, 30, "a"), piece(40, 50, "b"), piece(90, 120, "a"), piece(500, 520, "c")]
    long = [piece(600, 900, "d", "name"), piece(900, 990, "e"), piece(991, 999, "f")]
    assert list(_together([*short, *long], 100)) == [
        piece(0, 120, "a", covered=70 / 120),
        piece(500, 520, "c", covered=0.2),
        piece(600, 900, "d", "name"),
        piece(900, 999, "e", covered=98 / 100),
    ]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 300)), max_size=40), st.integers(1, 120))
def test_together_is_as_much_time(lengths: list[tuple[int, int]], cell: int) -> None:
    """None is longer than it was but those together, and these are no longer than two cells."""
    pieces, at = [], 0
    for gap, length in lengths:
        pieces.append(piece(at + gap, at + gap + length, name="x"))
        at += gap + length
    found = list(_together(pieces, cell))
    drawn = sum(round(one.covered * max(cell, one.end_ns - one.start_ns)) if not one.name else one.end_ns - one.start_ns
                for one in found)  # fmt: skip
    assert drawn == sum(length for _, length in lengths)
    assert all(one.end_ns - one.start_ns < 2 * cell for one in found if not one.name)
    assert [one for one in found if one.name] == [one for one in pieces if one.end_ns - one.start_ns >= cell]


def test_names_stand_where_they_fit(tmp_path: Path) -> None:
    rows = [
        annotation(DECODE, 0, 1_000),
        kernel(10, 400, name="gemm_with_room"),
        kernel(420, 15, name="gemm_without"),
        kernel(440, 500, name="k" * 200),
    ]
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        axes = plots.timeline(trace)
    shown = labels(axes.figure.figure)
    assert "gemm_with_room" in shown and "gemm_without" not in shown
    assert [text[:3] for text in shown if text.startswith("kk")] == ["kkk"]
    assert flaws(axes.figure.figure) == []
