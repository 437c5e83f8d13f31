"""Kernels of two sides: which are the same, which have other shapes, and which stand in for which."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.compare_kernels import KernelChange, KernelSums, KernelTime, Match, kernel_changes

GEMM, NORM = "void gemm_kernel<(int)4>(float*)", "rms_norm_kernel"
SILU, MUL, FUSED = "silu_kernel", "mul_kernel", "act_and_mul_kernel"
LAYER = (GEMM, SILU, MUL)


def sums(
    sequence: Sequence[str], *, ns: int = 10, device_steps: int = 1, shape: str = "grid 1", inputs: str = ""
) -> KernelSums:
    """Kernels in the order of a step, each as long, of one shape; their sums over so many device steps."""
    spelt = tuple("gemm_kernel<4>" if name == GEMM else name for name in sequence)
    times = [
        KernelTime("kernel", name, "gemm" if name == GEMM else "other", shape, inputs, ns * count, count)
        for name in dict.fromkeys(sequence)
        for count in [sequence.count(name) * device_steps]
    ]
    return KernelSums(tuple(times), device_steps, spelt)


def told(base: KernelSums, candidate: KernelSums) -> list[tuple[Match, Sequence[str], Sequence[str], int, int]]:
    return [
        (one.match, one.base, one.candidate, one.base_ns, one.candidate_ns)
        for one in kernel_changes([base], [candidate])
    ]


def test_no_kernels() -> None:
    assert kernel_changes([KernelSums((), 0, ())], [KernelSums((), 0, ())]) == ()


def test_the_same_kernel_per_step() -> None:
    """Sums are of 2 steps and of 3, so that it takes 20 ns and 24 ns; the name is spelt in another way."""
    other = sums([GEMM, GEMM], device_steps=3, ns=12)
    other = KernelSums(
        tuple(
            KernelTime("kernel", "gemm_kernel<4>", *("gemm", "grid 1", ""), one.ns, one.count) for one in other.times
        ),
        3,
        other.sequence,
    )
    assert kernel_changes([sums([GEMM, GEMM], device_steps=2)], [other]) == (
        KernelChange("same", (GEMM,), ("gemm_kernel<4>",), "gemm", "grid 1", 20, 24, 2.0, 2.0),
    )


def test_several_recordings_are_one_side() -> None:
    base = [sums([NORM], ns=10), sums([NORM], ns=20)]
    (change,) = kernel_changes(base, [sums([NORM], ns=15)])
    assert (change.base_ns, change.candidate_ns, change.change_ns, change.base_count) == (15, 15, 0, 1.0)


def test_another_shape_of_the_same_kernel() -> None:
    both = [sums([NORM], shape="grid 1"), sums([NORM], shape="grid 2", ns=30)]
    assert told(*both) == [("other shape", (NORM,), (NORM,), 10, 30)]


def test_input_shapes_count_only_where_both_sides_know_them() -> None:
    known, other, unknown = sums([NORM], inputs="[[1]]"), sums([NORM], inputs="[[2]]"), sums([NORM])
    assert [match for match, *_ in told(known, other)] == ["other shape"]
    assert [match for match, *_ in told(known, unknown)] == ["same"]


def test_kernels_that_are_fused_are_replaced() -> None:
    base, candidate = sums(LAYER * 4), sums((GEMM, FUSED) * 4)
    assert told(base, candidate) == [
        ("replaced", (SILU, MUL), (FUSED,), 80, 40),
        ("same", (GEMM,), (GEMM,), 40, 40),
    ]
    first, *_ = kernel_changes([base], [candidate])
    assert (first.is_fused, first.base_count, first.candidate_count) == (True, 8.0, 4.0)
    assert kernel_changes([candidate], [base])[0].is_fused is False


def test_a_kernel_that_is_only_partly_replaced() -> None:
    """The first norm of the model has nothing to add, and so stays what it was."""
    base = sums([NORM, GEMM, *["add", NORM, GEMM] * 3])
    candidate = sums([NORM, GEMM, *["fused_add_norm", GEMM] * 3])
    assert told(base, candidate) == [
        ("replaced", ("add", NORM), ("fused_add_norm",), 60, 30),
        ("same", (NORM,), (NORM,), 10, 10),
        ("same", (GEMM,), (GEMM,), 40, 40),
    ]


def test_a_kernel_of_another_name_in_its_place() -> None:
    assert told(sums(["a", "nvjet_64", "z"]), sums(["a", "nvjet_128", "z"])) == [
        ("same", ("a",), ("a",), 10, 10),
        ("replaced", ("nvjet_64",), ("nvjet_128",), 10, 10),
        ("same", ("z",), ("z",), 10, 10),
    ]


def test_kernels_that_moved_replace_nothing() -> None:
    assert {match for match, *_ in told(sums(["a", "b", "c"]), sums(["c", "b", "a"]))} == {"same"}


def test_kernels_that_are_gone_or_new() -> None:
    assert told(sums(["a", "b"]), sums(["a"])) == [("gone", ("b",), (), 10, 0), ("same", ("a",), ("a",), 10, 10)]
    assert told(sums(["a"]), sums(["a", "b"]))[0] == ("new", (), ("b",), 0, 10)


def test_replays_recorded_as_one_block_are_one_kernel() -> None:
    both = [KernelSums((KernelTime("graph", name, *("graph", "", ""), 50, 1),), 1, ("graph replay",)) for name in "12"]
    assert told(*both) == [("same", ("graph replay",), ("graph replay",), 50, 50)]


def test_of_long_steps_the_begin_and_the_end_are_compared() -> None:
    """And stand for all of it: the last layer, told of with what comes after it, for 1 in 200."""
    base, candidate = sums([*LAYER * 500, "end"]), sums([*(GEMM, FUSED) * 500, "last"])
    assert told(base, candidate) == [
        ("replaced", (SILU, MUL), (FUSED,), 9_950, 4_975),
        ("replaced", (SILU, MUL, "end"), (FUSED, "last"), 60, 35),
        ("same", (GEMM,), (GEMM,), 5_000, 5_000),
    ]


@given(st.lists(st.sampled_from("abcdef"), max_size=12), st.lists(st.sampled_from("cdefgh"), max_size=12))
@settings(max_examples=200, deadline=None)
def test_no_time_is_lost_or_told_of_twice(base: list[str], candidate: list[str]) -> None:
    """Up to rounding, half a nanosecond a line: with 1,000 ns each, a part of a kernel that is missing would show."""
    found = kernel_changes([sums(base, ns=1_000)], [sums(candidate, ns=1_000)])
    assert abs(sum(one.base_ns for one in found) - 1_000 * len(base)) <= len(found)
    assert abs(sum(one.candidate_ns for one in found) - 1_000 * len(candidate)) <= len(found)
    names = {name for one in found for name in one.base}, {name for one in found for name in one.candidate}
    assert names == (set(base), set(candidate))
