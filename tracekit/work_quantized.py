"""How much work is a product with quantised operands? fp8, int8 and fp4 GEMM, and GEMM with 2 to 8 bit weights.

Where both operands are small types, those are multiplied: fp8 runs at fp8. Where only the weight is (GPTQ, AWQ,
Marlin, Machete), it is expanded first: the product runs at the activation's math, only the bytes shrink. Two 4-bit
values are a byte, eight are an int32; K of a packed operand is what it holds. Bytes: each tensor of the call once,
scales, zero points and biases as recorded; workspaces and split-K partial sums are not compulsory.

Schemas: ATen native_functions.yaml, vLLM csrc/torch_bindings.cpp and csrc/libtorch_stable/torch_bindings.cpp, SGLang
sgl-kernel/csrc/common_extension.cc, AITER aiter/ops/gemm_op_a8w8.py, bitsandbytes _ops.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tracekit.op_call import OpCall, Tensor
from tracekit.work import Model, Work, models
from tracekit.work_sizes import dtype_of_number, each_once, matrix_math, size_of, sum_known, weigh

_TAKEN_AS_16 = ("result taken as 16 bits",)


def product(
    sizes: tuple[int, int, int], total: int | None, math: str, weight: Tensor, *, notes: tuple[str, ...] = ()
) -> Work | None:
    """The work of M x K by a weight of K x N that moves `total` bytes; None where a part is not known."""
    m, n, k = sizes
    if total is None or not math or weight.bytes is None or not n * k:
        return None
    bits = 8 * weight.bytes // (n * k)
    used = math if m else ""
    return Work("gemm", 2 * m * n * k, total, used, weight_bytes=weight.bytes, weight_bits=bits, notes=notes)


@models("aten::_scaled_mm", "aten::_scaled_mm_v2")
def scaled_mm(call: OpCall) -> Work | None:
    """(M x K, K x N, scales, bias, dtype of the result, out): scales by shape, as any tensor of the call.

    Without a recorded type the result has that of the input or is as wide as fp32: an interval.
    """
    a, b = call.tensor(0), call.tensor(1)
    if a is None or b is None or len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        return None
    packed = 2 if a.dtype == "fp4x2" else 1  # two values along K of either
    m, n, k = a.shape[0], b.shape[1], a.shape[1] * packed
    tensors = [one for one in call.args if isinstance(one, Tensor)]
    found = product((m, n, k), weigh(*tensors), matrix_math(a.dtype), b)
    last = call.tensor(-1)
    if found is None or (last is not None and len(call.args) > 8 and last.shape in ((m, n), (0,))):
        return found
    dtypes = [dtype for one in call.args[2:] if (dtype := dtype_of_number(one))]
    least, most = (1, 4) if not dtypes else (Tensor((), dtypes[0]).itemsize or 1,) * 2
    notes = () if dtypes else ("type of the result not recorded",)
    low, high = (found.bytes + m * n * size for size in (least, most))
    return Work(
        "gemm",
        found.flops,
        low,
        found.math,
        bytes_high=high if high > low else -1,
        weight_bytes=found.weight_bytes,
        weight_bits=found.weight_bits,
        notes=notes,
    )


@dataclass(frozen=True, slots=True)
class _Out:
    """Places of activation, weight and result. moves: newer versions have a bias before the result."""

    a: int
    b: int
    out: int
    moves: bool = False


# The result tells N, the activation K; the weight may lie either way, or be shuffled: only its size must agree.
_WITH_RESULT: dict[str, _Out] = {
    **dict.fromkeys(
        ("_C::cutlass_scaled_mm", "_C::cutlass_scaled_mm_azp", "_C::cutlass_scaled_fp4_mm", "_C::dsv3_fused_a_gemm"),
        _Out(1, 2, 0),
    ),
    **dict.fromkeys(
        ("sgl_kernel::cutlass_scaled_fp4_mm", "sgl_kernel::dsv3_fused_a_gemm", "sgl_kernel::dsv3_router_gemm"),
        _Out(1, 2, 0),
    ),
    **dict.fromkeys(
        (
            "aiter::gemm_a8w8_ck",
            "aiter::gemm_a8w8_asm",
            "aiter::gemm_a8w8_bpreshuffle",
            "aiter::gemm_a8w8_bpreshuffle_ck",
            "aiter::gemm_a8w8_blockscale",
            "aiter::gemm_a8w8_blockscale_ck",
            "aiter::gemm_a8w8_blockscale_bpreshuffle_ck",
        ),
        _Out(0, 1, 4),
    ),
    "sglang::deep_gemm_fp8_fp8_bf16_nt": _Out(0, 2, 4),
    "_rocm_C::wvSplitKQ": _Out(1, 0, 2, moves=True),
}


def _with_result(rule: _Out) -> Model:
    def model(call: OpCall) -> Work | None:
        a, b = call.tensor(rule.a), call.tensor(rule.b)
        places = (rule.out,) if not rule.moves else (rule.out, rule.out + 1)
        out = next((one for place in places if (one := call.tensor(place)) and len(one.shape) > 1), None)
        if a is None or b is None or out is None or not a.shape:
            return None
        packed = a.dtype in ("uint8", "fp4x2")
        n, k = out.shape[-1], a.shape[-1] * (2 if packed else 1)
        m = prod(out.shape[:-1])
        values = b.elements * (2 if packed else 1)
        if values != n * k or a.elements * (2 if packed else 1) != m * k:
            return None
        return product((m, n, k), each_once(call), "fp4" if packed else matrix_math(a.dtype), b)

    return model


for _name, _rule in _WITH_RESULT.items():
    models(_name)(_with_result(_rule))


@dataclass(frozen=True, slots=True)
class _Returned:
    """Places of activation and weight, whether the weight is N x K (else K x N), and of the result's dtype, if any."""

    a: int
    b: int
    rows_are_n: bool
    dtype: int = -1


_RETURNED: dict[str, _Returned] = {
    **dict.fromkeys(
        ("sgl_kernel::fp8_scaled_mm", "sgl_kernel::int8_scaled_mm", "sgl_kernel::fp8_blockwise_scaled_mm"),
        _Returned(0, 1, False, 4),
    ),
    **dict.fromkeys(
        (
            "vllm::w8a8_block_fp8_matmul_deepgemm",
            "vllm::w8a8_triton_block_scaled_mm_func",
            "vllm::rocm_aiter_gemm_w8a8_blockscale",
        ),
        _Returned(0, 1, True, 5),
    ),
    "bitsandbytes::int8_linear_matmul": _Returned(0, 1, True),
    # vLLM csrc/rocm/torch_bindings.cpp: the weight comes first.
    **dict.fromkeys(("_rocm_C::wvSplitK", "_rocm_C::wvSplitKrc", "_rocm_C::LLMM1"), _Returned(1, 0, True)),
    "aiter::gemm_a16w16": _Returned(0, 1, True, 3),
}


def _returned(rule: _Returned) -> Model:
    def model(call: OpCall) -> Work | None:
        a, b = call.tensor(rule.a), call.tensor(rule.b)
        if a is None or b is None or not a.shape or len(b.shape) != 2:
            return None
        n, k = b.shape if rule.rows_are_n else (b.shape[1], b.shape[0])
        if a.shape[-1] != k:
            return None
        m = prod(a.shape[:-1])
        given = dtype_of_number(call.args[rule.dtype]) if 0 <= rule.dtype < len(call.args) else ""
        fixed = "" if rule.dtype >= 0 else "int32" if a.dtype == "int8" else a.dtype
        result, notes = given or fixed or "bf16", () if given or fixed else _TAKEN_AS_16
        total = sum_known((each_once(call), size_of(m * n, result)))
        return product((m, n, k), total, matrix_math(a.dtype), b, notes=notes)

    return model


for _name, _places in _RETURNED.items():
    models(_name)(_returned(_places))


@models("flashinfer::bmm_fp8", "sgl_kernel::bmm_fp8")
def bmm_fp8(call: OpCall) -> Work | None:
    """(B x M x K, B x K x N, result, scale, scale, workspace, ...)."""
    a, b, out = call.tensor(0), call.tensor(1), call.tensor(2)
    if a is None or b is None or out is None or len(a.shape) != 3 or len(out.shape) != 3:
        return None
    batch, m, k = a.shape
    n = out.shape[2]
    scales = [one for one in (call.tensor(3), call.tensor(4)) if one is not None]
    total = weigh(a, b, out, *scales)
    if out.shape[:2] != (batch, m) or b.elements != batch * k * n or total is None or not matrix_math(a.dtype):
        return None
    flops = 2 * batch * m * n * k
    return Work("gemm", flops, total, matrix_math(a.dtype) if flops else "")


def weight_only(
    a: Tensor | None, b: Tensor | None, n: int | float | None, *others: Tensor | None, written: bool = False
) -> Work | None:
    """The work of ... x K activations by a packed weight of N columns; `others` are further operands, if present.

    written: the result is among them, else it is taken at the activation's type (16 bits of an 8-bit one).
    """
    if a is None or b is None or not a.shape or not isinstance(n, int) or n <= 0 or not a.shape[-1]:
        return None
    m, k = prod(a.shape[:-1]), a.shape[-1]
    bits = 8 * (b.bytes or 0) / (n * k)
    result = 0 if written else size_of(m * n, a.dtype if a.itemsize != 1 else "bf16")
    total = sum_known((weigh(a, b, *(one for one in others if one is not None)), result))
    if not 1 <= bits <= 8.5:  # some layouts pad; far outside, the sizes were not understood
        return None
    return product((m, n, k), total, matrix_math(a.dtype), b)


@models(
    "_C::gptq_marlin_gemm",
    "_C::marlin_gemm",
    "_C::awq_marlin_gemm",
    "_C::fp8_marlin_gemm",
    "sgl_kernel::gptq_marlin_gemm",
)
def marlin(call: OpCall) -> Work | None:
    """(M x K, buffer for the result or none, packed weight, ..., scales, ..., workspace, type, M, N, K, flags).

    Versions have different operands in between. The weight is the first tensor of int32; N is the last but one integer,
    or else the width of the scales that follow it. The last tensor is the workspace.
    """
    a = call.tensor(0)
    tensors = [one for one in call.args if isinstance(one, Tensor)]
    weights = [place for place, one in enumerate(tensors) if one.dtype == "int32" and place > 0]
    if a is None or not weights or len(tensors) < 4:
        return None
    at = weights[0]
    b, others = tensors[at], tensors[at + 1 : -1]
    numbers = [one for one in call.args if type(one) is int]
    scales = [one for one in others if len(one.shape) == 2 and one.dtype not in ("int32", "")]
    n = numbers[-2] if len(numbers) >= 3 else scales[0].shape[1] if scales else None
    return weight_only(a, b, n, *others)


@models("_C::awq_gemm", "sgl_kernel::awq_gemm")
def awq_gemm(call: OpCall) -> Work | None:
    """(M x K, weight K x N/8 int32, scales K/g x N, zero points)."""
    b = call.tensor(1)
    n = b.shape[1] * 8 if b is not None and len(b.shape) == 2 else None
    return weight_only(call.tensor(0), b, n, call.tensor(2), call.tensor(3))


def _columns(call: OpCall) -> int | None:
    """N of a weight packed along K: the width of argument 1."""
    b = call.tensor(1)
    return b.shape[1] if b is not None and len(b.shape) == 2 else None


@models("_C::gptq_gemm", "sgl_kernel::gptq_gemm")
def gptq_gemm(call: OpCall) -> Work | None:
    """(M x K, weight K x bits/32 x N int32, zero points, scales, order of K)."""
    return weight_only(call.tensor(0), call.tensor(1), _columns(call), *(call.tensor(at) for at in (2, 3, 4)))


@models("_C::machete_mm")
def machete(call: OpCall) -> Work | None:
    """(M x K, weight K x bits/32 x N int32, type, dtype, group scales, group zeros, size, channel and token scales)."""
    return weight_only(call.tensor(0), call.tensor(1), _columns(call), *(call.tensor(at) for at in (4, 5, 7, 8)))


@models("_C::cutlass_w4a8_mm")
def cutlass_w4a8(call: OpCall) -> Work | None:
    """(M x K fp8, packed weight, group scales, size, channel scales of N, token scales)."""
    channel = call.tensor(4)
    n = channel.elements if channel is not None else None
    return weight_only(call.tensor(0), call.tensor(1), n, call.tensor(2), channel, call.tensor(5))


@models("_C::allspark_w8a16_gemm")
def allspark(call: OpCall) -> Work | None:
    """(M x K, weight int8, scales, zero points, N, ...)."""
    return weight_only(call.tensor(0), call.tensor(1), call.number(4), call.tensor(2), call.tensor(3))


@models("_C::ggml_mul_mat_a8", "_C::ggml_mul_mat_vec_a8")
def ggml_mul_mat(call: OpCall) -> Work | None:
    """(weight in blocks, M x K, type, N): activations are quantised to int8 on the way; scales are in the blocks."""
    b, a, n = call.tensor(0), call.tensor(1), call.number(3)
    found = weight_only(a, b, n)
    if found is None:
        return None
    return Work(
        "gemm",
        found.flops,
        found.bytes,
        found.math and "int8",
        weight_bytes=found.weight_bytes,
        weight_bits=found.weight_bits,
    )


@models("bitsandbytes::gemv_4bit")
def gemv_4bit(call: OpCall) -> Work | None:
    """(1 x K, packed weight, its shape N x K, scales of blocks, code, block size)."""
    shape = call.args[2] if len(call.args) > 2 else None
    n = shape[0] if isinstance(shape, tuple) and len(shape) == 2 and type(shape[0]) is int else None
    return weight_only(call.tensor(0), call.tensor(1), n, call.tensor(3), call.tensor(4))


@models("aten::_weight_int4pack_mm", "aten::_weight_int8pack_mm")
def weight_int4pack(call: OpCall) -> Work | None:
    """(M x K, packed weight, group size, scales and zeros K/g x N x 2), or (M x K, N x K int8, scales of N)."""
    if "int8" in call.name:
        b = call.tensor(1)
        return weight_only(call.tensor(0), b, b.shape[0] if b is not None and b.shape else None, call.tensor(2))
    scales = call.tensor(3)
    n = scales.shape[1] if scales is not None and len(scales.shape) == 3 else None
    return weight_only(call.tensor(0), call.tensor(1), n, scales)


@models("_C::awq_dequantize", "sgl_kernel::awq_dequantize")
def awq_dequantize(call: OpCall) -> Work | None:
    """(weight K x N/8 int32, scales, zero points): K x N at the scales' type; a subtraction and a product of each."""
    b, scales, zeros = call.tensor(0), call.tensor(1), call.tensor(2)
    if b is None or scales is None or b.dtype != "int32":
        return None
    values = b.elements * 8
    total = sum_known((weigh(b, scales, zeros), size_of(values, scales.dtype)))
    if total is None or not values:
        return None
    return Work("dequant", 2 * values, total, "fp32", weight_bytes=b.bytes or 0, weight_bits=4)


@models("_C::ggml_dequantize")
def ggml_dequantize(call: OpCall) -> Work | None:
    """(weight in blocks, type, M, N, dtype): M x N in fp16 where no type is given."""
    b, m, n = call.tensor(0), call.number(2), call.number(3)
    if b is None or not isinstance(m, int) or not isinstance(n, int) or m <= 0 or n <= 0:
        return None
    given = dtype_of_number(call.args[4]) if len(call.args) > 4 else ""
    total = sum_known((weigh(b), size_of(m * n, given or "fp16")))
    if total is None:
        return None
    return Work(
        "dequant", 2 * m * n, total, "fp32", weight_bytes=b.bytes or 0, weight_bits=8 * (b.bytes or 0) // (m * n)
    )


# Quantisation of activations: the place of the source, and operations per element: scale and clamp (2), with the
# largest of each group before (4). All results are arguments.
_QUANT: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("_C::static_scaled_fp8_quant", "_C::static_scaled_int8_quant"), (1, 2)),
    **dict.fromkeys(
        ("_C::dynamic_scaled_fp8_quant", "_C::dynamic_per_token_scaled_fp8_quant", "_C::dynamic_scaled_int8_quant"),
        (1, 4),
    ),
    **dict.fromkeys(
        (
            "_C::per_token_group_fp8_quant",
            "_C::per_token_group_fp8_quant_packed",
            "_C::per_token_group_quant_int8",
            "sgl_kernel::sgl_per_token_group_quant_fp8",
            "sgl_kernel::sgl_per_token_group_quant_int8",
            "sgl_kernel::sgl_per_token_group_quant_8bit",
            "sgl_kernel::sgl_per_tensor_quant_fp8",
            "sgl_kernel::sgl_per_token_quant_fp8",
        ),
        (0, 4),
    ),
    **dict.fromkeys(("aiter::static_per_tensor_quant", "aiter::dynamic_per_tensor_quant"), (1, 4)),
    "aiter::dynamic_per_token_scaled_quant": (1, 4),
}


def _quantised(source: int, cost: int) -> Model:
    def model(call: OpCall) -> Work | None:
        tensor, total = call.tensor(source), each_once(call)
        if tensor is None or total is None:
            return None
        return Work("quant", cost * tensor.elements, total, "fp32" if tensor.elements else "")

    return model


for _name, (_source, _cost) in _QUANT.items():
    models(_name)(_quantised(_source, _cost))


@models("_C::scaled_fp4_quant", "sgl_kernel::scaled_fp4_quant")
def scaled_fp4_quant(call: OpCall) -> Work | None:
    """(result, input, scales, scale), or (input, scale, layout) that returns half a byte and 1/16 scale per element."""
    first, second = call.tensor(0), call.tensor(1)
    if first is None or second is None:
        return None
    source = second if first.dtype in ("uint8", "fp4x2") else first
    results = 0 if source is second or len(call.args) > 3 else source.elements // 2 + source.elements // 16
    total = sum_known((each_once(call), results))
    return None if total is None else Work("quant", 4 * source.elements, total, "fp32" if source.elements else "")
