"""Work of a mixture of experts: operations, and bytes between the fewest and the most experts, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.op_calls import call, tensor
from tracekit.moe_experts import expected_experts
from tracekit.op_call import Argument, OpCall
from tracekit.work import Part, Work, work_of


@pytest.mark.parametrize(
    ("experts", "chosen", "tokens", "expected"),
    [
        (0, 0, 0, 0.0),
        (8, 2, 0, 0.0),
        (8, 2, 1, 2.0),
        (8, 2, 2, 8 * (1 - 0.75**2)),
        (128, 4, 888, 128 * (1 - (1 - 4 / 128) ** 888)),
        (4, 8, 3, 4.0),
    ],
)
def test_experts_that_uniform_routing_touches(experts: int, chosen: int, tokens: int, expected: float) -> None:
    assert expected_experts(experts, chosen, tokens) == pytest.approx(expected)


def work(
    flops: int,
    size: int,
    weight_bytes: int = 0,
    *,
    likely: int = -1,
    most: int = -1,
    math: str = "bf16",
    bits: int = 16,
    parts: tuple[Part, ...] = (),
    flops_likely: int = -1,
    flops_high: int = -1,
    notes: tuple[str, ...] = (),
) -> Work:
    """Of grouped products."""
    found = Work("gemm", flops, size, math, flops_high, most, weight_bytes, bits, parts=parts, notes=notes)
    return replace(found, flops_expected=flops_likely, bytes_expected=likely)


def grouped(flops: int, size: int) -> Work:
    """Of grouped products whose matrices are no weights."""
    return Work("gemm", flops, size, "bf16")


FUSED = "vllm::inplace_fused_experts"
# 3 tokens of 64 values, 8 experts of 32 inner values, gated: 2 of them for each token.
UP, DOWN = 64 * 64, 64 * 32
MIXTRAL: tuple[Argument, ...] = ("bf16 3x64", "bf16 8x64x64", "bf16 8x64x32", "fp32 3x2", "int32 3x2", "silu", False)
BOTH = 2 * (UP + DOWN)  # bytes of an expert
FLOPS = 2 * 3 * 2 * (UP + DOWN)
MOVED = 2 * 3 * 64 * 2 + 2 * 3 * 2 * 4  # hidden in and out; ids and weights of the chosen
PARTS = (
    Part("gemm", 2 * 6 * UP, 6 * (64 + 64) * 2 + 2 * UP * 2),
    Part("gemm", 2 * 6 * DOWN, 6 * (32 + 64) * 2 + 2 * DOWN * 2),
)
SOME = ("5 of 8 experts if routing is uniform",)  # 8 (1 - (3/4)^3) = 4.625
SHARED = ("experts of other ranks: share of this one not recorded",)
# A row to one of 8, six times: 8 (1 - (7/8)^6) = 4.409637 experts, to a millionth of one.
SIX_ROWS = 4409637
SPREAD = 726807 * BOTH // 10**6  # 8 (1 - (1 - 2/64)^3) = 0.726807
FP4: tuple[Argument, ...] = ("uint8 1x32", "int32 1x2", "fp32 1x2", "int64 8x64x4")
MARLIN: tuple[Argument, ...] = (
    "int32 99",
    "int32 4",
    "int32 1",
    "fp32 3x2",
    16,
    2,
    False,
    1125899906843648,
    3,
    128,
    64,
)

CALLS: list[tuple[OpCall, Work | None]] = [
    (call("vllm::moe_forward", "bf16 888x3072", "bf16 888x128", None), None),  # the weights are hidden
    (call(FUSED), None),
    (call(FUSED, "bf16 3x64", "bf16 8x64x48", "bf16 8x64x32", "fp32 3x2", "int32 3x2"), None),  # sizes do not fit
    (
        call(FUSED, *MIXTRAL),
        work(
            FLOPS,
            MOVED + 2 * BOTH,
            4625 * BOTH // 1000,
            likely=MOVED + 4625 * BOTH // 1000,
            most=MOVED + 6 * BOTH,
            parts=PARTS,
            notes=SOME,
        ),
    ),
    # One token: exactly the experts that it chose.
    (
        call("aiter::fused_moe_", "bf16 1x64", "bf16 8x64x64", "bf16 8x64x32", "fp32 1x2", "int32 1x2"),
        work(
            FLOPS // 3,
            2 * 64 * 2 + 2 * 2 * 4 + 2 * BOTH,
            2 * BOTH,
            parts=(
                Part("gemm", 2 * 2 * UP, 2 * (64 + 64) * 2 + 2 * UP * 2),
                Part("gemm", 2 * 2 * DOWN, 2 * (32 + 64) * 2 + 2 * DOWN * 2),
            ),
        ),
    ),
    # fp8 with a scale for each block of weights: 8 bits multiply 8 bits.
    (
        call(
            "sglang::outplace_fused_experts",
            *("bf16 1x64", "fp8_e4m3 8x64x64", "fp8_e4m3 8x64x32", "fp32 1x2", "int32 1x2", "silu", False),
            *("fp32 8x1x1", "fp32 8x1x1"),
        ),
        work(
            FLOPS // 3,
            2 * 64 * 2 + 2 * 2 * 4 + 2 * (BOTH // 2 + 8),
            2 * (BOTH // 2 + 8),
            math="fp8",
            bits=8,
            parts=(
                Part("gemm", 2 * 2 * UP, 2 * (64 + 64 * 2) + 2 * (UP + 8)),
                Part("gemm", 2 * 2 * DOWN, 2 * (32 + 64 * 2) + 2 * DOWN),
            ),
        ),
    ),
    # Two weights of 4 bits in a byte are expanded: the activations' units multiply.
    (
        call(FUSED, "bf16 1x64", "uint8 8x64x32", "uint8 8x64x16", "fp32 1x2", "int32 1x2"),
        work(
            FLOPS // 3,
            2 * 64 * 2 + 2 * 2 * 4 + 2 * BOTH // 4,
            2 * BOTH // 4,
            bits=4,
            parts=(
                Part("gemm", 2 * 2 * UP, 2 * (64 + 64) * 2 + 2 * UP // 2),
                Part("gemm", 2 * 2 * DOWN, 2 * (32 + 64) * 2 + 2 * DOWN // 2),
            ),
        ),
    ),
    # Expert parallelism, 8 of 64 experts: this rank may have all of the rows, or none; of evenly spread ones an eighth.
    *(
        (
            call(FUSED, *MIXTRAL, *more),
            work(
                0,
                MOVED,
                SPREAD,
                likely=MOVED + SPREAD,
                most=MOVED + 6 * BOTH,
                flops_likely=FLOPS // 8,
                flops_high=FLOPS,
                notes=SHARED,
            ),
        )
        for more in ((64, None), (-1, tensor("int32 64")), (64, tensor("int32 64")))
    ),
    # TensorRT-LLM, fp4 throughout, 16 weights in a word; 2 of tensor parallelism, then 1 or 4 of expert parallelism.
    (
        call("trtllm::fused_moe", *FP4[:4], "int64 8x64x2", 15, None, None, 2, 0, 1, 0),
        work(
            FLOPS // 3,
            32 + 64 * 2 + 2 * 2 * 4 + 2 * BOTH // 4,
            2 * BOTH // 4,
            math="fp4",
            bits=4,
            parts=(
                Part("gemm", 2 * 2 * UP, 2 * (64 // 2 + 64 * 2) + 2 * UP // 2),
                Part("gemm", 2 * 2 * DOWN, 2 * (32 // 2 + 64 * 2) + 2 * DOWN // 2),
            ),
        ),
    ),
    (
        call("trtllm::fused_moe", *FP4[:4], None, "int64 8x64x2", None, 15, None, None, True, 2, 0, 4, 0),
        work(
            0,
            32 + 64 * 2 + 2 * 2 * 4,
            BOTH // 4 // 2,  # 2 of 32 are chosen, 8 of 32 are here: half of one
            likely=32 + 64 * 2 + 2 * 2 * 4 + BOTH // 4 // 2,
            most=32 + 64 * 2 + 2 * 2 * 4 + 2 * BOTH // 4,
            math="fp4",
            bits=4,
            flops_likely=FLOPS // 3 // 4,
            flops_high=FLOPS // 3,
            notes=SHARED,
        ),
    ),
    # Grouped products: rows are all that is known, so one expert at least.
    (
        call("_C::cutlass_moe_mm", "bf16 6x128", "fp8_e4m3 6x64", "fp8_e4m3 8x64x128", "fp32 6x1", "fp32 8x1"),
        work(
            2 * 6 * 64 * 128,
            6 * 64 + 6 * 128 * 2 + 64 * 128 + 4,
            SIX_ROWS * (64 * 128 + 4) // 10**6,
            likely=6 * 64 + 6 * 128 * 2 + SIX_ROWS * (64 * 128 + 4) // 10**6,
            most=6 * 64 + 6 * 128 * 2 + 6 * (64 * 128 + 4),
            math="fp8",
            bits=8,
            notes=("4 of 8 experts if routing is uniform",),
        ),
    ),
    (
        call("sgl_kernel::cutlass_fp4_group_mm", "bf16 1x128", "uint8 1x32", "uint8 8x128x32", "fp8_e4m3 1x4"),
        work(2 * 64 * 128, 32 + 128 * 2 + 64 * 64, 64 * 64, math="fp4", bits=4),
    ),
    (
        call("aten::_grouped_mm", "bf16 6x64", "bf16 8x64x128", "int32 8"),
        work(
            2 * 6 * 64 * 128,
            2 * (6 * 64 + 6 * 128 + 64 * 128),
            SIX_ROWS * 2 * 64 * 128 // 10**6,
            likely=2 * (6 * 64 + 6 * 128) + SIX_ROWS * 2 * 64 * 128 // 10**6,
            most=2 * (6 * 64 + 6 * 128 + 6 * 64 * 128),
            notes=("4 of 8 experts if routing is uniform",),
        ),
    ),
    (
        call("aten::_grouped_mm", "bf16 16x64", "bf16 64x32", "int32 4"),  # k in 4 groups: 4 results
        grouped(2 * 16 * 64 * 32, 2 * (16 * 64 + 64 * 32 + 4 * 16 * 32)),
    ),
    (
        call("aten::_grouped_mm", "bf16 4x16x64", "bf16 4x64x32"),
        grouped(2 * 4 * 16 * 64 * 32, 2 * 4 * (16 * 64 + 64 * 32 + 16 * 32)),
    ),
    # Marlin: the sizes are numbers after the tensors, 4 bits are found from the packed weights.
    (
        call("_moe_C::moe_wna16_marlin_gemm", "bf16 3x64", "bf16 6x128", "int32 8x4x256", "bf16 8x1x128", *MARLIN),
        work(
            2 * 6 * 64 * 128,
            2 * (3 * 64 + 6 * 128) + 2 * (64 * 128 // 2 + 128 * 2),
            4625 * (64 * 128 // 2 + 128 * 2) // 1000,
            likely=2 * (3 * 64 + 6 * 128) + 4625 * (64 * 128 // 2 + 128 * 2) // 1000,
            most=2 * (3 * 64 + 6 * 128) + 6 * (64 * 128 // 2 + 128 * 2),
            bits=4,
            notes=SOME,
        ),
    ),
    (
        call("_moe_C::moe_wna16_marlin_gemm", "bf16 3x64", "bf16 6x128", "int32 8x4x255", "bf16 8x1x128", *MARLIN),
        None,
    ),
    (
        call("_moe_C::moe_wna16_gemm", "fp16 1x64", "fp16 1x2x128", "uint8 8x128x32", "fp16 8x128x1", None, None, 2),
        work(
            2 * 2 * 64 * 128,
            2 * (64 + 2 * 128) + 2 * (64 * 128 // 2 + 128 * 2),
            2 * (64 * 128 // 2 + 128 * 2),
            math="fp16",
            bits=4,
        ),
    ),
    (
        call(
            "aiter::ck_moe_stage2",
            *("bf16 1x2x32", "bf16 8x64x64", "bf16 8x64x32", "int32 99", "int32 9", "int32 1", "bf16 1x64", 2),
        ),
        work(2 * 2 * DOWN, 2 * (2 * 32 + 64) + 2 * 2 * DOWN, 2 * 2 * DOWN),
    ),
    # Routing moves what it reads and writes; a sum adds all but one of the rows of a token.
    (
        call("_moe_C::topk_softmax", "fp32 3x2", "int32 3x2", "int32 3x2", "bf16 3x8", True),
        Work("moe", 0, 3 * 6 * 4 + 3 * 8 * 2),
    ),
    (call("_moe_C::topk_softmax"), None),
    (
        call("sgl_kernel::moe_fused_gate", "fp32 3x256", "fp32 256", 8, 4, 8, 0, 2.5),
        Work("moe", 0, 3 * 256 * 4 + 3 * 64),
    ),
    (call("_moe_C::moe_align_block_size", "int32 3x2", 8, 16, "int32 99"), Work("moe", 0, 6 * 4 + 6 * 4)),
    (call("_moe_C::moe_sum", "bf16 3x2x64", "bf16 3x64"), Work("moe", 3 * 64, (6 + 3) * 64 * 2, "fp32")),
    (call("_moe_C::moe_sum", "bf16 3x2x64", "bf16 3x65"), None),
]


@pytest.mark.parametrize(("one", "expected"), CALLS)
def test_calls(one: OpCall, expected: Work | None) -> None:
    assert work_of(one) == expected
