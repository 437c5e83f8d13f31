"""Time budget, idle histogram, step times: which figures they show, and what is together or left out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.event_rows import kernel, launch
from tests.pictures import labels
from tests.served_steps import DECODE, PREFILL, SMALL, opened, served
from tests.test_idle_summary import endless
from tracekit import plots
from tracekit.analysis import Coverage, Result
from tracekit.budget import step_budget
from tracekit.errors import UsageError
from tracekit.plot_budget import Bar, Budget, budget_of, together
from tracekit.plot_idle import Histogram, histogram_of
from tracekit.plot_steps import Curve, step_times_of

US = 1_000

# ---- time budget -----------------------------------------------------------------------------------------------------


def test_a_bar_for_each_phase_and_batch(tmp_path: Path) -> None:
    """Two decode steps of 30 busy and 40 idle ns together: half of that each."""
    with opened(tmp_path, SMALL) as trace:
        assert budget_of(trace) == Budget(
            title="Time budget of a step",
            caption=("Mean of the steady steps, each with the gap before it",),
            axis="time per step",
            bars=(
                Bar(
                    "decode 3-4\n2 steps",
                    {("busy", "other"): 15.0, ("idle", "unattributed"): 15.0, ("idle", "launch_bound"): 5.0},
                ),
            ),
        )
        axes = plots.time_budget(trace)
    assert "0.035 us, 43% busy" in labels(axes.figure.figure)


def test_devices_are_one_bar(tmp_path: Path) -> None:
    """A step of 10 busy and 10 idle ns on one rank, of 30 busy ns on the other."""
    rows = served((DECODE, [(0, 10)]), (DECODE, [(20, 10)]))
    rows += served((DECODE, [(0, 10)]), (DECODE, [(10, 30)]), rank=1, first_id=len(rows) + 1)
    with opened(tmp_path, rows) as trace:
        budget = budget_of(trace)
    assert budget.caption == ("Mean of the steady steps, each with the gap before it, over 2 devices",)
    assert budget.bars == (Bar("decode 3-4\n2 steps", {("busy", "other"): 20.0, ("idle", "unattributed"): 5.0}),)


def test_without_steps_it_is_the_recording(tmp_path: Path) -> None:
    with opened(tmp_path, [kernel(0, 10), kernel(30, 10), kernel(5, 20, device=1)]) as trace:
        assert step_budget(trace).num_rows == 0
        budget = budget_of(trace)
    assert (budget.title, budget.axis) == ("Time budget of the recording", "time")
    assert budget.bars == (
        Bar("rank 0\ndevice 0", {("busy", "other"): 20.0, ("idle", "unattributed"): 20.0}),
        Bar("rank 0\ndevice 1", {("busy", "other"): 20.0}),
    )


def test_no_cause_of_what_may_be_lost_work(tmp_path: Path) -> None:
    with opened(tmp_path, endless(32, 3)) as trace:
        budget = budget_of(trace)
    assert "3 of 128 device rows have no recorded end" in budget.caption[-1]
    assert {name for bar in budget.bars for kind, name in bar.parts if kind == "idle"} == {"unattributed"}


def test_small_parts_are_together() -> None:
    """One small part alone stays itself."""
    long = Bar("a", {("busy", "gemm"): 900.0, ("busy", "norm"): 5.0, ("busy", "rope"): 4.0, ("idle", "sync"): 1.0})
    short = Bar("b", {("busy", "gemm"): 1.0, ("busy", "norm"): 6.0})
    assert together((long, short)) == (
        (("busy", "gemm"), ("busy", "other busy parts"), ("idle", "sync")),
        (
            Bar("a", {("busy", "gemm"): 900.0, ("busy", "other busy parts"): 9.0, ("idle", "sync"): 1.0}),
            Bar("b", {("busy", "gemm"): 1.0, ("busy", "other busy parts"): 6.0, ("idle", "sync"): 0.0}),
        ),
    )


@given(
    st.lists(
        st.dictionaries(
            st.tuples(st.sampled_from(["busy", "idle"]), st.sampled_from("abcdefghijklmnop")),
            st.integers(1, 10**9).map(float),
            min_size=1,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_what_is_together_is_as_much(parts: list[dict[tuple[str, str], float]]) -> None:
    bars = [Bar(str(at), one) for at, one in enumerate(parts)]
    shown, merged = together(bars)
    assert len(shown) <= 9 + 8 + 2
    for bar, again in zip(bars, merged, strict=True):
        assert again.total_ns == bar.total_ns and again.busy == bar.busy
        assert tuple(again.parts) == shown


# ---- idle histogram --------------------------------------------------------------------------------------------------


def gaps(*parts: tuple[int, str, int], span_ns: int = 1_000_000, reason: str = "") -> Result:
    """A result of idle_gaps: for each part the row that ended the gap, the cause and ns."""
    table = pa.table(
        {
            "after_id": pa.array([part[0] for part in parts], pa.int64()),
            "cause": pa.array([part[1] for part in parts], pa.string()),
            "dur": pa.array([part[2] for part in parts], pa.int64()),
        }
    )
    return Result("idle_gaps", {}, [{"span_ns": span_ns}], table, (), Coverage(reason=reason))


def test_no_gap_no_histogram() -> None:
    with pytest.raises(UsageError, match="nothing to plot: no device was idle between its work"):
        histogram_of(gaps())
    with pytest.raises(UsageError, match="nothing to plot: cannot tell"):
        histogram_of(gaps(reason="cannot tell"))


def test_a_gap_counts_once_by_its_whole_length() -> None:
    """3 us have two causes; 2 us are in the bar from 2 us on, what is below 100 ns in the first."""
    found = histogram_of(
        gaps((1, "sync", 2 * US), (1, "python", US), (2, "sync", 2 * US), (3, "sync", 40 * US), (4, "gc", 7))
    )
    assert found == Histogram(
        edges=(100, 200, 500, US, 2 * US, 5 * US, 10 * US, 20 * US, 50 * US),
        counts=(1, 0, 0, 0, 2, 0, 0, 1),
        time=({"gc": 7}, {}, {}, {}, {"sync": 4 * US, "python": US}, {}, {}, {"sync": 40 * US}),
        causes=("sync", "python", "gc"),
        devices=1,
        span_ns=1_000_000,
    )
    assert found.idle_ns == 45 * US + 7


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["sync", "gc"]), st.integers(1, 10**13)), min_size=1))
def test_the_histogram_is_all_idle_time(parts: list[tuple[int, str, int]]) -> None:
    found = histogram_of(gaps(*parts))
    assert found.idle_ns == sum(ns for _, _, ns in parts)
    assert sum(found.counts) == len({gap for gap, _, _ in parts})
    whole: dict[int, int] = {}
    for gap, _, ns in parts:
        whole[gap] = whole.get(gap, 0) + ns
    for at, count in enumerate(found.counts):  # the outermost have what lies beyond, too
        low = 0 if at == 0 else found.edges[at]
        high = found.edges[at + 1] if at + 1 < len(found.counts) else 10**20
        assert count == sum(low <= ns < high for ns in whole.values())


def test_counts_stand_above_the_bars() -> None:
    axes = plots.idle_histogram(gaps((1, "sync", 3 * US), (2, "sync", 3 * US), (3, "gc", 30 * US)))
    assert labels(axes.figure.figure)[:4] == [
        "3 gaps, 36.0 us idle: 3.6% of 1.00 ms. The number above a bar: gaps of that length",
        "Idle time by length of gap",
        "2",
        "1",
    ]


# ---- step times ------------------------------------------------------------------------------------------------------


def test_without_steady_steps_there_is_no_distribution(tmp_path: Path) -> None:
    with (
        opened(tmp_path, [launch(0, 1), kernel(5, 10, launch_id=1)]) as trace,
        pytest.raises(UsageError, match="nothing to plot: no step markers"),
    ):
        step_times_of(trace)


def test_a_curve_for_each_phase_and_batch(tmp_path: Path) -> None:
    steps = [(DECODE, [(0, 10)]), (DECODE, [(20, 10)]), (DECODE, [(40, 30)]), (PREFILL, [(90, 5), (99, 1)])]
    with opened(tmp_path, served(*steps)) as trace:
        found = step_times_of(trace)
    assert found.curves == (Curve("decode 3-4", (10, 30)), Curve("prefill 1, <=64 tok", (10,)))
    assert len(found.caption) == 1


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=250), st.sampled_from([1, 50, 90, 99, 100]))
def test_quantiles_are_times_that_were_measured(times: list[int], percent: int) -> None:
    """The least time that so many percent of the steps do not exceed."""
    found = Curve("", tuple(sorted(times))).quantile(percent)
    assert found == min(one for one in times if 100 * sum(other <= one for other in times) >= percent * len(times))


def test_quantiles_are_those_of_the_analysis(tmp_path: Path) -> None:
    steps = [(DECODE, [(100 * at, 10 + at * 7 % 23)]) for at in range(30)]
    with opened(tmp_path, served(*steps)) as trace:
        (curve,) = step_times_of(trace).curves
        (row,) = [row for row in trace.analyze("steps").table.to_pylist() if row["kind"] == "steady"]
        axes = plots.step_times(trace)
    assert (curve.quantile(50), curve.quantile(99)) == (row["p50_ns"], row["p99_ns"])
    assert {f"P50 0.0{row['p50_ns']} us", f"P99 0.0{row['p99_ns']} us"} <= set(labels(axes.figure.figure))


@pytest.mark.parametrize(("first", "scale"), [(5, "log"), (0, "linear"), (2_000, "linear")])
def test_an_axis_that_shows_all_steps(tmp_path: Path, first: int, scale: str) -> None:
    """Logarithmic where the longest is many times the shortest, which must not be none."""
    steps = [(DECODE, [(0, 1)]), (DECODE, [(10, first)]), (PREFILL, [(2_100, 2_000)])]
    with opened(tmp_path, served(*steps)) as trace:
        axes = plots.step_times(trace)
    low, high = axes.get_xlim()
    assert axes.get_xscale() == scale and low <= first / US and high > 2
    assert ("logarithmic" in axes.get_xlabel()) == (scale == "log")
