"""What does a mixture of experts cost: routing, grouped GEMMs, and ops that run all of it?

    flops   2 x rows x n x k for each projection, rows = tokens x experts per token
    bytes   the weights of each touched expert once, with its scales; activations in and out (moe_experts.py)

Ops that hide the weights, as `vllm::moe_forward`, have no answer.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tracekit.moe_experts import (
    FLOATS,
    TWO_IN_A_BYTE,
    Projection,
    Routing,
    experts_work,
    math_of_experts,
    projection_of,
    scales_of,
)
from tracekit.op_call import OpCall, Tensor
from tracekit.work import Model, Part, Work, models
from tracekit.work_sizes import INDEX_TYPES, beyond

_OPERAND_BITS = {"fp8": 8, "int8": 8, "fp4": 4}  # of activations, quantised before a product
_RUNNERS = ("trtllm::fused_moe", "flashinfer::cutlass_fused_moe")


# ---- ops that run all of it ------------------------------------------------------------------------------------------


def _fused(hidden_at: int, first_at: int, chosen_at: int) -> Model:
    """Hidden [tokens, k], weights [experts, n, k] and, perhaps after a bias, [experts, k, inner], chosen experts
    [tokens, experts per token].
    """

    def model(call: OpCall) -> Work | None:
        hidden, first, chosen = (call.tensor(at) for at in (hidden_at, first_at, chosen_at))
        places = (first_at + 1, first_at + 2)
        second_at = next((at for at in places if (one := call.tensor(at)) and len(one.shape) == 3), -1)
        second = call.tensor(second_at)
        if hidden is None or first is None or second is None or chosen is None or hidden.itemsize is None:
            return None
        if len(hidden.shape) != 2 or len(chosen.shape) != 2 or len(second.shape) != 3:
            return None
        width = hidden.shape[1] * (2 if hidden.dtype in TWO_IN_A_BYTE else 1)
        experts = second.shape[0]
        up = projection_of(first, width)
        if up is None or first.shape[0] != experts or second.shape[1] != width or chosen.shape[0] != hidden.shape[0]:
            return None
        inner = second.shape[2] * (width // first.shape[2])
        down = projection_of(second, inner)
        math = math_of_experts(hidden, first, up.bits)
        if down is None or math is None or up.n not in (inner, 2 * inner):
            return None
        everywhere = _mapped(call, experts, chosen_at) or _spread(call, experts, first_at, second_at)
        routing = Routing(experts, hidden.shape[0], chosen.shape[1], everywhere)
        scaled = sum((one.bytes or 0) // experts for one in scales_of(call, max(chosen_at, second_at) + 1, experts))
        up = replace(up, expert_bytes=up.expert_bytes + scaled)
        size = max(2, hidden.itemsize)  # of results, where the input is quantised
        moved = hidden.elements * hidden.itemsize + routing.tokens * width * size + 2 * (chosen.bytes or 0)
        parts = () if routing.partial else tuple(_part(routing, one, math, size) for one in (up, down))
        return experts_work(routing, (up, down), math, moved, parts)

    return model


def _mapped(call: OpCall, experts: int, chosen_at: int) -> int:
    """Experts on all ranks where a map of them is given, which says whose they are; else 0."""
    rest = [call.tensor(at) for at in range(chosen_at + 1, len(call.args))]
    flat = [one for one in rest if one is not None and len(one.shape) == 1 and one.dtype in INDEX_TYPES]
    return max((one.shape[0] for one in flat if one.shape[0] >= experts), default=0)


def _spread(call: OpCall, experts: int, first_at: int, second_at: int) -> int:
    """The same where a number says that experts are spread: of all experts (vLLM, the first whole number), or of ranks
    (TensorRT-LLM: after the result's type size and rank of tensor parallelism, then of expert parallelism).
    """
    if call.name.startswith("vllm::"):
        whole = [one for one in call.args[second_at + 1 :] if type(one) is int]
        return whole[0] if whole and whole[0] > experts else 0
    if call.name in _RUNNERS:
        result_at = second_at + (second_at - first_at)  # a bias stands after both weights, or after none
        whole = [one for one in call.args[result_at + 1 :] if type(one) is int]
        return experts * whole[2] if len(whole) > 2 and whole[2] > 1 else 0
    return 0


def _part(routing: Routing, projection: Projection, math: str, size: int) -> Part:
    """One of the two products on its own: what lies between them is written and read. size: bytes of a result."""
    read = _OPERAND_BITS.get(math, size * 8) * projection.k // 8
    flops = 2 * routing.rows * projection.n * projection.k
    moved = routing.rows * (read + projection.n * size)
    return Part("gemm", flops, moved + routing.fewest * projection.expert_bytes)


models(
    "vllm::inplace_fused_experts",
    "vllm::outplace_fused_experts",
    "vllm::rocm_aiter_fused_moe",
    "sglang::inplace_fused_experts",
    "sglang::outplace_fused_experts",
    "aiter::fused_moe_",
)(_fused(0, 1, 4))
models(_RUNNERS[0])(_fused(0, 3, 1))
models(_RUNNERS[1])(_fused(1, 4, 2))


# ---- grouped products ------------------------------------------------------------------------------------------------


def _grouped(first: int) -> Model:
    """Output [rows, n], activations [rows, k] at place `first`, then weights [experts, n, k] or [experts, k, n]."""

    def model(call: OpCall) -> Work | None:
        output, rows, weight = call.tensor(0), call.tensor(first), call.tensor(first + 1)
        if output is None or rows is None or weight is None or len(weight.shape) != 3:
            return None
        if len(output.shape) != 2 or len(rows.shape) != 2 or output.shape[0] != rows.shape[0]:
            return None
        return _grouped_work(rows, weight, output, scales_of(call, first + 2, weight.shape[0]))

    return model


def _grouped_work(rows: Tensor, weight: Tensor, output: Tensor, scales: tuple[Tensor, ...]) -> Work | None:
    """Rows [rows, k] times the matrices [experts, k, n] of their experts, or [experts, n, k]: the output's n tells."""
    count, n = output.shape
    stored = rows.shape[1]
    if weight.shape[1:] not in ((stored, n), (n, stored)) or rows.itemsize is None or output.itemsize is None:
        return None
    packed = 2 if rows.dtype in TWO_IN_A_BYTE else 1  # in both operands
    found = projection_of(weight, stored, scales, transposed=weight.shape[1:] != (n, stored))
    if found is None:
        return None
    projection = Projection(n, stored * packed, found.expert_bytes, found.bits // packed)
    math = math_of_experts(rows, weight, projection.bits)
    if math is None:
        return None
    moved = rows.elements * rows.itemsize + output.elements * output.itemsize
    return experts_work(Routing(weight.shape[0], count, 1), (projection,), math, moved, ())


models(
    "_C::cutlass_blockwise_scaled_grouped_mm",
    "_C::cutlass_moe_mm",
    "_C::cutlass_fp4_group_mm",
    "_C::cutlass_mxfp4_group_mm",
    "sgl_kernel::cutlass_fp4_group_mm",
)(_grouped(1))
models("sgl_kernel::fp8_blockwise_scaled_grouped_mm")(_grouped(6))


@models("aten::_grouped_mm", "aten::_scaled_grouped_mm")
def grouped_mm(call: OpCall) -> Work | None:
    """PyTorch's: [rows, k] x [experts, k, n]; [experts, m, k] x [k, columns]; or both in two dimensions, k in groups,
    with one product [m, n] per group. Offsets [experts] follow (after two scales where the operands are fp8).
    """
    one, other = call.tensor(0), call.tensor(1)
    scaled = call.name.endswith("_scaled_grouped_mm")
    offsets = call.tensor(4 if scaled else 2)
    if one is None or other is None or one.itemsize is None or other.itemsize is None:
        return None
    size = 2 if scaled else one.itemsize
    ranks = (len(one.shape), len(other.shape))
    if ranks == (2, 3) and one.shape[1] == other.shape[1]:
        rows, n = one.shape[0], other.shape[2]
        output = Tensor((rows, n), "bf16" if scaled else one.dtype)
        scales = tuple(found for found in (call.tensor(3),) if scaled and found is not None and len(found.shape) > 1)
        return _grouped_work(one, other, output, scales)
    math = math_of_experts(one, other, other.itemsize * 8)
    if math is None or ranks not in ((3, 2), (2, 2), (3, 3)) or one.shape[-1] != other.shape[-2]:
        return None
    m, k, n = one.shape[-2], one.shape[-1], other.shape[-1]
    groups = offsets.elements if ranks == (2, 2) and offsets is not None else 1
    batches = one.shape[0] if ranks == (3, 3) else 1
    flops, shared = 2 * batches * m * n * k, other.stored * other.itemsize + m * n * groups * batches * size
    weights = one.stored * one.itemsize
    low = likely = high = weights
    if ranks == (3, 2) and one.shape[0]:  # each column has one of the matrices
        routing, each = Routing(one.shape[0], n, 1), weights // one.shape[0]
        low, likely, high = routing.fewest * each, routing.likely_bytes(each), routing.most * each
    return Work(
        "gemm",
        flops,
        low + shared,
        math if flops else "",
        bytes_high=beyond(high + shared, low + shared),
        bytes_expected=beyond(likely + shared, low + shared),
    )


# ---- grouped products with packed weights ----------------------------------------------------------------------------


@models("_moe_C::moe_wna16_marlin_gemm", "sgl_kernel::moe_wna16_marlin_gemm")
def marlin_moe(call: OpCall) -> Work | None:
    """Marlin: activations, (output,) packed weights [experts, k / 16, n x 16 / packed], ...; then whole numbers: block
    size, experts per token, weight type, size_m, size_n, size_k. What was added between did not change their order.
    """
    rows = call.tensor(0)
    weight = next((one for one in call.tensors()[1:] if len(one.shape) == 3), None)
    whole = [one for one in call.args if type(one) is int]
    if rows is None or weight is None or len(whole) < 6 or rows.itemsize is None or weight.itemsize is None:
        return None
    chosen, (tokens, n, k) = whole[1], whole[3:6]
    experts = weight.shape[0]
    values = experts * n * k
    if min(chosen, tokens, n, k, experts) <= 0 or len(rows.shape) != 2 or rows.shape != (tokens, k):
        return None
    bits, left = divmod(weight.elements * weight.itemsize * 8, values)
    math = FLOATS.get(rows.dtype)
    if left or bits not in (4, 8) or math is None:
        return None
    scales = sum((one.bytes or 0) // experts for one in scales_of(call, 2, experts) if one is not weight)
    projection = Projection(n, k, n * k * bits // 8 + scales, bits)
    routing = Routing(experts, tokens, chosen)
    return experts_work(routing, (projection,), math, (rows.elements + routing.rows * n) * rows.itemsize, ())


@models("_moe_C::moe_wna16_gemm")
def wna16_moe(call: OpCall) -> Work | None:
    """vLLM's: activations [tokens, k], output [.., n], weights [experts, n, k / packed], scales, zero points."""
    rows, output, weight = (call.tensor(at) for at in range(3))
    whole = [one for one in call.args if type(one) is int]
    if rows is None or output is None or weight is None or not whole or len(rows.shape) != 2 or rows.itemsize is None:
        return None
    tokens, k = rows.shape
    chosen, math = whole[0], FLOATS.get(rows.dtype)
    experts = weight.shape[0] if weight.shape else 0
    projection = projection_of(weight, k, scales_of(call, 3, experts))
    if projection is None or math is None or chosen <= 0 or output.shape[-1:] != (projection.n,):
        return None
    routing = Routing(experts, tokens, chosen)
    moved = (rows.elements + routing.rows * projection.n) * rows.itemsize
    return experts_work(routing, (projection,), math, moved, ())


@models("aiter::ck_moe_stage1", "aiter::ck_moe_stage2")
def ck_moe_stage(call: OpCall) -> Work | None:
    """AITER's two stages: rows, the weights of both projections [experts, n, k], sorted tokens, ..., output, experts
    per token. The first takes [tokens, k], the second [tokens, experts per token, inner].
    """
    first = call.name.endswith("1")
    rows, weight, output = call.tensor(0), call.tensor(1 if first else 2), call.tensor(6)
    chosen = next((one for one in call.args if type(one) is int), 0)
    if rows is None or weight is None or output is None or rows.itemsize is None or output.itemsize is None:
        return None
    if len(rows.shape) != (2 if first else 3) or chosen <= 0 or (not first and rows.shape[1] != chosen):
        return None
    projection = projection_of(weight, rows.shape[-1])
    math = None if projection is None else math_of_experts(rows, weight, projection.bits)
    if projection is None or math is None:
        return None
    routing = Routing(weight.shape[0], rows.shape[0], chosen)
    moved = rows.elements * rows.itemsize + output.elements * output.itemsize
    return experts_work(routing, (projection,), math, moved, ())


# ---- routing and sums ------------------------------------------------------------------------------------------------


@models(
    "_moe_C::topk_softmax",
    "_moe_C::topk_sigmoid",
    "sgl_kernel::topk_softmax",
    "sgl_kernel::topk_sigmoid",
    "sgl_kernel::shuffle_rows",
    "sgl_kernel::apply_shuffle_mul_sum",
)
def all_once(call: OpCall) -> Work | None:
    """Every tensor, results among them, is read or written once. Some operations per element are not counted."""
    tensors = call.tensors()
    sizes = [one.bytes for one in tensors]
    if not sizes or None in sizes:
        return None
    return Work("moe", 0, sum(size or 0 for size in sizes))


@models("sgl_kernel::moe_fused_gate", "_moe_C::grouped_topk")
def fused_gate(call: OpCall) -> Work | None:
    """Scores [tokens, experts], bias; groups, chosen groups, chosen experts. Writes weights and ids, 4 bytes each."""
    scores = call.tensor(0)
    whole = [one for one in call.args if type(one) is int]
    if scores is None or len(scores.shape) != 2 or scores.bytes is None or len(whole) < 3 or whole[2] <= 0:
        return None
    return Work("moe", 0, scores.bytes + scores.shape[0] * whole[2] * 8)


@models("_moe_C::moe_align_block_size", "sgl_kernel::moe_align_block_size", "_moe_C::sgl_moe_align_block_size")
def align_block_size(call: OpCall) -> Work | None:
    """Reads the chosen experts [tokens, experts per token], writes a place for each. Padding is not counted."""
    chosen = call.tensor(0)
    if chosen is None or chosen.bytes is None or chosen.dtype not in INDEX_TYPES:
        return None
    return Work("moe", 0, chosen.bytes + 4 * chosen.elements)


@models("_moe_C::moe_sum", "sgl_kernel::moe_sum", "sgl_kernel::moe_sum_reduce")
def moe_sum(call: OpCall) -> Work | None:
    """[tokens, experts per token, width] is summed to [tokens, width], in fp32."""
    rows, output = call.tensor(0), call.tensor(1)
    if rows is None or output is None or rows.bytes is None or output.bytes is None or len(rows.shape) != 3:
        return None
    if output.elements != prod(rows.shape[::2]):
        return None
    added = max(0, rows.elements - output.elements)
    return Work("moe", added, rows.bytes + output.bytes, "fp32" if added else "")
