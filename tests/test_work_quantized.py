"""Work of quantised products, quantisation and convolutions, computed by hand."""

from __future__ import annotations

import pytest

from tests.op_calls import call, tensor
from tracekit.op_call import Argument, OpCall
from tracekit.work import Work, work_of

M, N, K = 16, 6144, 4096
FLOPS = 2 * M * N * K
RESULT = 2 * M * N


def work(size: int, math: str, weight: int, bits: int, *notes: str, high: int = -1) -> Work:
    """A product of M x K by K x N."""
    return Work("gemm", FLOPS, size, math, bytes_high=high, weight_bytes=weight, weight_bits=bits, notes=notes)


A8, B8 = M * K, K * N
SCALED = A8 + B8 + 4 + 4 * N
A16, W4, SCALES = 2 * M * K, K * N // 2, 2 * N * (K // 128)
MARLIN = "int32 256x12288"  # K/16 x N*16/8 of int32: eight 4-bit weights in each
ORDER = 4 * K

PRODUCTS: list[tuple[OpCall, Work]] = [
    # The type of the result is a number (15 is bf16), or that of an out tensor, or not recorded.
    (
        call("aten::_scaled_mm", "fp8_e4m3 16x4096", "fp8_e4m3 4096x6144", "fp32", f"fp32 1x{N}", None, None, 15, True),
        work(SCALED + RESULT, "fp8", B8, 8),
    ),
    (
        call(
            "aten::_scaled_mm",
            *("fp8_e4m3 16x4096", "fp8_e4m3 4096x6144", "fp32", f"fp32 1x{N}", f"bf16 {N}", None, 15, True),
            f"bf16 16x{N}",
        ),
        work(SCALED + 2 * N + RESULT, "fp8", B8, 8),
    ),
    (
        call(
            "aten::_scaled_mm", "fp8_e4m3 16x4096", "fp8_e4m3 4096x6144", "fp32", f"fp32 1x{N}", None, None, None, None
        ),
        work(SCALED + M * N, "fp8", B8, 8, "type of the result not recorded", high=SCALED + 4 * M * N),
    ),
    # Block scales, 1 x 128 and 128 x 128.
    (
        call("aten::_scaled_mm", "fp8_e4m3 16x4096", "fp8_e4m3 4096x6144", "fp32 16x32", "fp32 32x48", None, None, 15),
        work(A8 + B8 + 4 * (16 * 32 + 32 * 48) + RESULT, "fp8", B8, 8),
    ),
    # Two 4-bit values in a byte: K is twice what is recorded. A scale of a byte for 16 of them.
    (
        call(
            "aten::_scaled_mm", "fp4x2 16x2048", "fp4x2 2048x6144", "fp8_e4m3 4096", "fp8_e4m3 1572864", None, None, 15
        ),
        work(A8 // 2 + B8 // 2 + 4096 + 1572864 + RESULT, "fp4", W4, 4),
    ),
    (
        call(
            "_C::cutlass_scaled_fp4_mm", f"bf16 16x{N}", "uint8 16x2048", f"uint8 {N}x2048", "uint8 128x256", "uint8 9"
        ),
        work(RESULT + A8 // 2 + B8 // 2 + 128 * 256 + 9, "fp4", W4, 4),
    ),
    (
        call(
            "_C::cutlass_scaled_mm", f"bf16 16x{N}", "int8 16x4096", "int8 4096x6144", "fp32 16x1", f"fp32 1x{N}", None
        ),
        work(RESULT + A8 + B8 + 4 * 16 + 4 * N, "int8", B8, 8),
    ),
    (
        call("sgl_kernel::fp8_scaled_mm", "fp8_e4m3 16x4096", "fp8_e4m3 4096x6144", "fp32 16", f"fp32 {N}", 15, None),
        work(A8 + B8 + 4 * 16 + 4 * N + RESULT, "fp8", B8, 8),
    ),
    (
        call("sgl_kernel::fp8_blockwise_scaled_mm", "fp8_e4m3 16x4096", "fp8_e4m3 4096x6144", "fp32 4", "fp32 4", None),
        work(A8 + B8 + 32 + RESULT, "fp8", B8, 8, "result taken as 16 bits"),
    ),
    (
        call(
            "vllm::w8a8_block_fp8_matmul_deepgemm",
            "fp8_e4m3 16x4096",
            "fp8_e4m3 6144x4096",
            "fp32 4",
            "fp32 4",
            (128, 128),
            15,
        ),
        work(A8 + B8 + 32 + RESULT, "fp8", B8, 8),
    ),
    (
        call(
            "sglang::deep_gemm_fp8_fp8_bf16_nt",
            "fp8_e4m3 16x4096",
            "fp32 4",
            "fp8_e4m3 6144x4096",
            "fp32 4",
            f"bf16 16x{N}",
        ),
        work(A8 + B8 + 32 + RESULT, "fp8", B8, 8),
    ),
    # The weight's layout is shuffled: its size must agree, its shape need not.
    (
        call(
            "aiter::gemm_a8w8_blockscale_ck",
            "fp8_e4m3 16x4096",
            "fp8_e4m3 384x65536",
            "fp32 4",
            "fp32 4",
            f"bf16 16x{N}",
        ),
        work(A8 + B8 + 32 + RESULT, "fp8", B8, 8),
    ),
    (
        call("aiter::gemm_a16w16", "bf16 16x4096", f"bf16 {N}x4096", None, 15, None, None, None),
        work(A16 + 2 * B8 + RESULT, "bf16", 2 * B8, 16),
    ),
    (
        call("_rocm_C::wvSplitK", f"bf16 {N}x4096", "bf16 16x4096", f"bf16 {N}", 304),
        work(A16 + 2 * B8 + 2 * N + RESULT, "bf16", 2 * B8, 16),
    ),
    (
        call("bitsandbytes::int8_linear_matmul", "int8 2x8x4096", "int8 6144x4096"),
        work(A8 + B8 + 4 * M * N, "int8", B8, 8),
    ),
    # 4-bit weights run at the activation's math. Operands in the order of three versions.
    (
        call(
            "_C::gptq_marlin_gemm",
            *("fp16 16x4096", MARLIN, f"fp16 32x{N}", "int32 0", "int32 0", "int32 0", "int32 512"),
            *(7, 16, N, K, True, False, True, False),
        ),
        work(A16 + W4 + SCALES + RESULT, "fp16", W4, 4),
    ),
    (
        call(
            "_C::gptq_marlin_gemm",
            *(
                "bf16 16x4096",
                None,
                MARLIN,
                f"bf16 32x{N}",
                None,
                "int32 32x768",
                "int32 4096",
                "int32 4096",
                "int32 512",
            ),
            *(7, 16, N, K, True, False, True, False),
        ),
        work(A16 + W4 + SCALES + 4 * 32 * 768 + 2 * ORDER + RESULT, "bf16", W4, 4),
    ),
    (
        call(
            "_C::marlin_gemm",
            *("bf16 16x4096", f"bf16 16x{N}", MARLIN, f"bf16 {N}", f"bf16 32x{N}", None, None, None, None, None),
            *("int32 512", None, None, None, None, None, None, None, None),
        ),
        work(A16 + W4 + 2 * N + SCALES + RESULT, "bf16", W4, 4),
    ),
    (
        call("_C::awq_gemm", "fp16 16x4096", "int32 4096x768", f"fp16 32x{N}", "int32 32x768", 8),
        work(A16 + W4 + SCALES + 4 * 32 * 768 + RESULT, "fp16", W4, 4),
    ),
    (
        call(
            "_C::gptq_gemm",
            "fp16 16x4096",
            "int32 512x6144",
            "int32 32x768",
            f"fp16 32x{N}",
            "int32 4096",
            True,
            False,
            4,
        ),
        work(A16 + W4 + 4 * 32 * 768 + SCALES + ORDER + RESULT, "fp16", W4, 4),
    ),
    (
        call("_C::machete_mm", "bf16 16x4096", "int32 512x6144", 7, None, f"bf16 32x{N}", None, 128, None, None, None),
        work(A16 + W4 + SCALES + RESULT, "bf16", W4, 4),
    ),
    (
        call(
            "_C::cutlass_w4a8_mm",
            "fp8_e4m3 16x4096",
            "int32 512x6144",
            "fp8_e4m3 32x6144x8",
            128,
            f"fp32 {N}",
            "fp32 16",
            15,
        ),
        work(A8 + W4 + 32 * N * 8 + 4 * N + 4 * 16 + RESULT, "fp8", W4, 4),
    ),
    (
        call("aten::_weight_int4pack_mm", "bf16 16x4096", "int32 768x32x32x4", 128, f"bf16 32x{N}x2"),
        work(A16 + W4 + 2 * SCALES + RESULT, "bf16", W4, 4),
    ),
    (
        call("aten::_weight_int8pack_mm", "bf16 16x4096", "int8 6144x4096", f"bf16 {N}"),
        work(A16 + B8 + 2 * N + RESULT, "bf16", B8, 8),
    ),
    # Q4_0 blocks: 18 bytes for 32 weights, 4.5 bits each.
    (
        call("_C::ggml_mul_mat_a8", "uint8 6144x2304", "fp16 16x4096", 2, N),
        work(A16 + N * 2304 + RESULT, "int8", N * 2304, 4),
    ),
    (
        call("_rocm_C::wvSplitKQ", "fp8_e4m3 6144x4096", "fp8_e4m3 16x4096", None, f"bf16 16x{N}", "fp32", "fp32", 304),
        work(A8 + B8 + 8 + RESULT, "fp8", B8, 8),
    ),
]

OTHERS: list[tuple[OpCall, Work]] = [
    (
        call(
            "flashinfer::bmm_fp8",
            "fp8_e4m3 8x16x64",
            "fp8_e4m3 8x64x32",
            "bf16 8x16x32",
            "fp32",
            "fp32",
            "int8 33554432",
        ),
        Work("gemm", 2 * 8 * 16 * 64 * 32, 8 * (16 * 64 + 64 * 32 + 2 * 16 * 32) + 8, "fp8"),
    ),
    (
        call("_C::awq_dequantize", "int32 4096x768", f"fp16 32x{N}", "int32 32x768", 0, 0, 0),
        Work("dequant", 2 * K * N, W4 + SCALES + 4 * 32 * 768 + 2 * K * N, "fp32", weight_bytes=W4, weight_bits=4),
    ),
    (
        call("_C::ggml_dequantize", "uint8 6144x2304", 2, N, K, None),
        Work("dequant", 2 * K * N, N * 2304 + 2 * K * N, "fp32", weight_bytes=N * 2304, weight_bits=4),
    ),
    (
        call("_C::static_scaled_fp8_quant", "fp8_e4m3 888x512", "bf16 888x512", "fp32", None),
        Work("quant", 2 * 888 * 512, 3 * 888 * 512 + 4, "fp32"),
    ),
    (
        call(
            "_C::per_token_group_fp8_quant",
            "bf16 8x256",
            "fp8_e4m3 8x256",
            "fp32 8x2",
            128,
            1e-10,
            -448.0,
            448.0,
            False,
        ),
        Work("quant", 4 * 2048, 3 * 2048 + 4 * 16, "fp32"),
    ),
    (
        call("_C::scaled_fp4_quant", "uint8 8x128", "bf16 8x256", "int32 128x4", "fp32"),
        Work("quant", 4 * 2048, 1024 + 2 * 2048 + 4 * 512 + 4, "fp32"),
    ),
    (
        call("_C::scaled_fp4_quant", "bf16 8x256", "fp32", True),
        Work("quant", 4 * 2048, 2 * 2048 + 4 + 1024 + 128, "fp32"),
    ),
    # (224 + 6 - 7) // 2 + 1 = 112
    (
        call(
            "aten::cudnn_convolution",
            "bf16 32x3x224x224",
            "bf16 64x3x7x7",
            (3, 3),
            (2, 2),
            (1, 1),
            1,
            False,
            False,
            True,
        ),
        Work(
            "conv",
            2 * 32 * 64 * 112 * 112 * 3 * 49,
            2 * (32 * 3 * 224 * 224 + 64 * 3 * 49 + 32 * 64 * 112 * 112),
            "bf16",
            weight_bytes=2 * 64 * 3 * 49,
            weight_bits=16,
        ),
    ),
    (
        call(
            "aten::miopen_convolution",
            "bf16 1x16x64x64",
            "bf16 512x16x3x3",
            "bf16 512",
            (1,),
            (1,),
            (1,),
            1,
            False,
            False,
        ),
        Work(
            "conv",
            2 * 512 * 64 * 64 * 16 * 9,
            2 * (16 * 64 * 64 + 512 * 16 * 9 + 512 + 512 * 64 * 64),
            "bf16",
            weight_bytes=2 * 512 * 16 * 9,
            weight_bits=16,
        ),
    ),
    # (4 - 1) * 2 - 2 + 2 + 1 + 1 = 8
    (
        call(
            "aten::cudnn_convolution_transpose",
            "fp32 1x4x4",
            "fp32 4x3x3",
            (1,),
            (1,),
            (2,),
            (1,),
            2,
            False,
            False,
            True,
        ),
        Work(
            "conv",
            2 * 4 * 4 * 3 * 3,
            4 * (16 + 36 + 6 * 8),
            "fp32",
            weight_bytes=4 * 36,
            weight_bits=32,
        ),
    ),
]


@pytest.mark.parametrize(
    ("given", "expected"),
    PRODUCTS + OTHERS,
    ids=lambda one: one.name if isinstance(one, OpCall) else "",
)
def test_work(given: OpCall, expected: Work) -> None:
    assert work_of(given) == expected


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten::_scaled_mm", ("fp8_e4m3 4x8", "fp8_e4m3 9x2", "fp32", "fp32")),
        ("_C::cutlass_scaled_mm", ("bf16 4x2", "fp8_e4m3 4x8", "fp8_e4m3 9x2", "fp32", "fp32")),
        ("_C::gptq_marlin_gemm", ("bf16 16x4096", "bf16 32x64")),
        # 64 bits a weight: N was taken from the wrong place
        ("_C::awq_gemm", ("fp16 16x64", "int32 4096x768", "fp16 32x6144", "int32 32x768", 8)),
        ("_C::machete_mm", ("bf16 16x4096",)),
        ("aten::cudnn_convolution", ("bf16 1x3x9x9", "bf16 4x3x3x3", None, None, None)),
        ("aten::cudnn_convolution", (tensor(" 1x3x9x9"), tensor(" 4x3x3x3"), (1, 1), (1, 1), (1, 1))),
        ("aten::convolution", ("bf16 1x3x9x9", "bf16 4x3x3x3", None, (0, 0), (1, 1), (1, 1), False, (0, 0), 1)),
    ],
)
def test_no_answer(name: str, args: tuple[Argument, ...]) -> None:
    assert work_of(call(name, *args)) is None
