"""Does one kernel read what another wrote, how many bytes go, and how long would one kernel take?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.op_calls import call, tensor
from tracekit.fusion_estimate import Device, fused
from tracekit.fusion_evidence import Evidence, evidence_of
from tracekit.fusion_inputs import Flow, Inputs, flow_of
from tracekit.fusion_match import Match
from tracekit.op_call import OpCall

T = "bf16 4x64"
SIZE = 2 * 4 * 64
ADD = call("aten::add", T, T, 1)
NORM = call("_C::rms_norm", T, T, "bf16 64", 1e-6)
FUSED_NORM = call("_C::fused_add_rms_norm", T, T, "bf16 64", 1e-6)
QUANT = call("_C::static_scaled_fp8_quant", "fp8_e4m3 4x64", T, "fp32 1")
SILU, MUL = call("aten::silu", T), call("aten::mul", T, T)
ROPE = call("_C::rotary_embedding", "int64 4", "bf16 4x128", T, 64, "bf16 512x64", True)
CACHE = call("_C_cache_ops::reshape_and_cache_flash", "bf16 4x1x64", "bf16 4x1x64", "bf16 9x16x1x64", "bf16 9x16x1x64")


def evidence(*calls: OpCall | None, kept: Sequence[int] = ()) -> Evidence | None:
    """Of kernels launched by these ops one after another; None for one of which nothing was recorded."""
    ops = {place: (one, "") for place, one in enumerate(calls) if one is not None}
    return evidence_of(Match(tuple(range(len(calls))), frozenset(kept)), np.arange(len(calls)), Inputs(ops, {}))


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        # Written once and read once.
        ((SILU, MUL), Evidence("B", 2 * SIZE, 2 * SIZE, 5 * SIZE)),
        # The ops say where they write: a tensor of their own,
        ((NORM, QUANT), Evidence("A", 2 * SIZE, 2 * SIZE, (2 * SIZE + 128) + (SIZE + SIZE // 2 + 4))),
        # or one that they read, too, and others may read later: the write may have to stay.
        ((ROPE, CACHE), Evidence("A", SIZE, 2 * SIZE, None)),
        ((FUSED_NORM, QUANT), Evidence("A", SIZE, 2 * SIZE, (4 * SIZE + 128) + (SIZE + SIZE // 2 + 4))),
        # Nothing was recorded of one.
        ((None, CACHE), Evidence("C")),
        ((ROPE, None, CACHE), Evidence("C")),
        ((call("aten::add"), NORM), Evidence("C")),
        # The second takes nothing that the first made: other sizes, types, strides.
        ((ADD, call("_C::rms_norm", "bf16 9x64", "bf16 9x64", "bf16 64", 1e-6)), None),
        ((ADD, call("_C::rms_norm", "fp32 4x64", "fp32 4x64", "fp32 64", 1e-6)), None),
        (
            (
                call("aten::copy_", tensor(T, 64, 1), tensor(T, 1, 4), False),
                call("aten::copy_", tensor(T, 64, 1), tensor(T, 1, 4), False),
            ),
            None,
        ),
        # A view has another shape.
        (
            (ADD, call("_C::rms_norm", "bf16 8x32", "bf16 8x32", "bf16 32", 1e-6)),
            Evidence("B", 2 * SIZE, 2 * SIZE, None),
        ),
    ],
)
def test_evidence(calls: tuple[OpCall | None, ...], expected: Evidence | None) -> None:
    found = evidence(*calls)
    if found is None or expected is None or expected.moved is not None:
        assert found == expected
    else:
        assert (found.grade, found.removed_low, found.removed_high) == (
            expected.grade, expected.removed_low, expected.removed_high,
        )  # fmt: skip


def test_what_somebody_else_reads_is_written_all_the_same() -> None:
    """The residual: only its read by the norm goes."""
    found = evidence(ADD, NORM, kept=(0,))
    assert found is not None
    assert (found.grade, found.removed_low, found.removed_high) == ("B", SIZE, SIZE)


def test_eager_rope_hangs_together() -> None:
    """x cos + rotated x sin: both halves are read, what is negated and joined, both products."""
    half, whole = "bf16 2x4x32", "bf16 2x4x64"
    times = call("aten::mul", whole, "bf16 1x1x64")
    joined = OpCall("aten::cat", ((tensor(half), tensor(half)), -1))
    found = evidence(times, call("aten::neg", half), joined, times, call("aten::add", whole, whole, 1))
    size = 2 * 2 * 4 * 64
    assert found is not None
    assert (found.grade, found.removed_low) == ("B", 7 * size)


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (call("aten::relu_", T), Flow((tensor(T),), (tensor(T),), True, True)),
        (call("aten::fill_", T, 0), Flow((), (tensor(T),), True, False)),
        (call("aten::copy_", "fp32 4x64", T, False), Flow((tensor(T),), (tensor("fp32 4x64"),), True, False)),
        (call("aten::rsqrt", "int32 4"), Flow((tensor("int32 4"),), (tensor("fp32 4"),), False, False)),
        (call("aten::mean", "fp32 4x64"), Flow((tensor("fp32 4x64"),), (tensor("fp32 4x1"),), False, False)),
        (call("aten::mm", T, "bf16 64x8"), Flow((tensor(T), tensor("bf16 64x8")), (tensor("bf16 4x8"),), False, False)),
        (call("aten::add", T, "bf16 3x64"), None),
        (call("mine::op", T), None),
        (call("aten::add"), None),
    ],
)
def test_flow(of: OpCall, expected: Flow | None) -> None:
    assert flow_of(of) == expected


# ---- how long one kernel would take ----------------------------------------------------------------------------------

KNOWN = Device(floor_ns=1_100, bandwidth=1e12, cached=3e12, cached_bytes=1e6)  # 1 KB in a ns
UNKNOWN = Device(floor_ns=1_100, bandwidth=None, cached=None, cached_bytes=0)
NOTHING = Evidence("C")


def by_bytes(removed: int, moved: int) -> Evidence:
    """So many bytes of all go for sure."""
    return Evidence("B", removed, removed, moved)


def took(durs: Sequence[int], evidence: Evidence, device: Device = KNOWN, *, sure: bool = True) -> tuple[int, int]:
    """At best and at worst. All kernels move as much."""
    ns = np.array(durs, np.int64)
    moved = [None if evidence.moved is None else evidence.moved // len(durs)] * len(durs)
    found = fused(Match(tuple(range(len(durs)))), evidence, (ns, ns, ns), device, moved, sure=sure)
    assert found.rows.tolist() == list(range(len(durs)))
    return found.dur_low_ns, found.dur_high_ns


@pytest.mark.parametrize(
    ("durs", "evidence", "device", "expected"),
    [
        # At best the longest; at worst a shortest kernel less.
        ([2_000, 1_500], NOTHING, KNOWN, (2_000, 2_400)),
        ([2_000, 900], NOTHING, KNOWN, (2_000, 2_000)),
        ([2_000, 1_500, 1_500], NOTHING, UNKNOWN, (2_000, 2_800)),
        # 20 of 40 MB go: 20 us of memory are left.
        ([20_000, 20_000], by_bytes(20_000_000, 40_000_000), KNOWN, (20_000, 20_000)),
        # 20 of 60 MB go: 40 us are left.
        ([30_000, 30_000], by_bytes(20_000_000, 60_000_000), KNOWN, (40_000, 40_000)),
        # At most 0.9 MB fit in the cache: it is read three times as fast, and no more than that is sure.
        ([9_000, 9_000], by_bytes(900_000, 1_800_000), KNOWN, (9_000, 16_900)),
        ([9_000, 9_000], by_bytes(6_000_000, 18_000_000), KNOWN, (12_000, 12_000)),
        # A device of which nothing is known.
        ([9_000, 9_000], by_bytes(6_000_000, 18_000_000), UNKNOWN, (9_000, 16_900)),
    ],
)
def test_one_kernel_takes(durs: Sequence[int], evidence: Evidence, device: Device, expected: tuple[int, int]) -> None:
    assert took(durs, evidence, device) == expected


def test_where_nothing_is_sure() -> None:
    assert took([2_000, 1_500], NOTHING, sure=False) == (2_000, 3_500)


def test_never_shorter_than_the_longest_nor_longer_than_all() -> None:
    numbers = np.random.default_rng(7)
    for _ in range(200):
        durs = numbers.integers(1, 50_000, numbers.integers(2, 9)).tolist()
        moved = int(numbers.integers(1, 10**8))
        removed = int(numbers.integers(0, moved))
        low, high = took(durs, Evidence("B", removed // 2, removed, moved))
        assert max(durs) <= low <= high <= sum(durs)
