"""The waterfall: from base to candidate without a gap, largest change first, small ones together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pictures import flaws, labels
from tracekit import plots
from tracekit.compare_result import Comparison, GroupChange, Part, SideInfo, StepTimes, Thresholds
from tracekit.errors import UsageError
from tracekit.plot_style import fill_of, idle_fill
from tracekit.plot_waterfall import Fall, falls_of

US = 1_000


def part(kind: str, name: str, change: int, *, sure: bool = False) -> Part:
    """Of 1 ms before; its interval is a tenth of the change."""
    spread = abs(change) // 10
    return Part(kind, name, 1000 * US, 1000 * US + change, change, change - spread, change + spread, sure)


def group(*parts: Part, base: int = 10_000 * US) -> GroupChange:
    change = sum(one.change_ns for one in parts)
    before, after = (StepTimes(1, 20, mean, mean, mean, mean) for mean in (base, base + change))
    return GroupChange(
        phase="decode", bucket="3-4", base=before, candidate=after, change_ns=change, low_ns=None, high_ns=None,
        p_value=None, verdict="slower", changed=True, reason="", quantiles=(), parts=parts, kernels=(),
    )  # fmt: skip


def comparison(*groups: GroupChange, warnings: tuple[str, ...] = ()) -> Comparison:
    side = SideInfo(("a.parquet",), 10, {})
    return Comparison(side, side, "device", groups, (), warnings, Thresholds())


def test_nothing_to_compare() -> None:
    with pytest.raises(UsageError, match="nothing to plot: no steps of one phase and size of batch are on both sides"):
        plots.waterfall(comparison())
    with pytest.raises(UsageError, match="no group 1 of steps to plot; there are: 0 decode 3-4"):
        plots.waterfall(comparison(group()), group=1)


def test_nothing_changed() -> None:
    assert falls_of(group(part("busy", "gemm", 0))) == (
        Fall("base, 20 steps", 0, 10_000 * US, True),
        Fall("candidate, 20 steps", 0, 10_000 * US, True),
    )
    assert labels(plots.waterfall(comparison(group())).figure.figure) == [
        "Slower: 0 us (+0.0%)",
        "What changed: decode 3-4",
        "10.0 ms",
        "10.0 ms",
    ]


def test_largest_change_first() -> None:
    """Three of less than a hundredth of it are one row."""
    parts = (
        part("busy", "norm", 3 * US),
        part("idle", "launch_bound", -400 * US),
        part("busy", "gemm", 900 * US, sure=True),
        part("busy", "rope", -4 * US),
        part("idle", "gc", 7 * US),
    )
    assert falls_of(group(*parts)) == (
        Fall("base, 20 steps", 0, 10_000 * US, True),
        Fall("gemm", 10_000 * US, 10_900 * US, False, fill_of("gemm"), 810 * US, 990 * US, True),
        Fall("idle: launch bound", 10_900 * US, 10_500 * US, False, idle_fill("launch_bound"), -440 * US, -360 * US),
        Fall("3 other parts", 10_500 * US, 10_506 * US, False),
        Fall("candidate, 20 steps", 0, 10_506 * US, True),
    )  # fmt: skip
    axes = plots.waterfall(comparison(group(*parts), warnings=("another driver",)))
    assert labels(axes.figure.figure) == [
        "1 warning: tracekit compare says what to doubt",
        "Slower: +506 us (+5.1%)",
        "What changed: decode 3-4",
        *("10.0 ms", "+900 us", "-400 us", "+6.00 us", "10.5 ms"),
    ]
    assert axes.get_xlabel() == "mean time of a step (ms; the axis begins at 9.67 ms)"
    assert flaws(axes.figure.figure) == []


def test_an_axis_from_zero_where_much_changed() -> None:
    axes = plots.waterfall(comparison(group(part("busy", "gemm", -6_000 * US))))
    assert axes.get_xlim()[0] == 0
    assert axes.get_xlabel() == "mean time of a step (ms)"


CHANGES = st.lists(
    st.tuples(st.sampled_from(["busy", "idle", "host"]), st.sampled_from(["gemm", "gc", "x"]), st.integers(-500, 500)),
    max_size=30,
)


@given(CHANGES)
def test_rows_add_up(changes: list[tuple[str, str, int]]) -> None:
    """Each row begins where the one before ended; the last change ends at the candidate; none is lost."""
    parts = [part(kind, name, change) for kind, name, change in changes]
    base, *steps, candidate = falls_of(group(*parts))
    at = base.end_ns
    for step in steps:
        assert step.start_ns == at and not step.total
        at = step.end_ns
    assert at == candidate.end_ns == base.end_ns + sum(change for _, _, change in changes)
    assert len(steps) <= 13
    shown = [abs(step.change_ns) for step in steps if "other part" not in step.label]
    assert shown == sorted((abs(change) for _, _, change in changes if change), reverse=True)[: len(shown)]
