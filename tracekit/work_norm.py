"""How much work are norms, softmax and rotary embeddings, PyTorch's own and those of serving engines?

Bytes: each tensor once, what is updated in place twice. FLOPs are nominal, per element of the input: RMS norm squares,
sums, scales and weighs (4); layer norm also centres twice and adds a bias (7); softmax takes the maximum, subtracts,
exponentiates, sums and divides (5); a rotation takes two multiplications and an addition per rotated element (3).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tracekit.op_call import OpCall, Tensor
from tracekit.work import Model, Work, models
from tracekit.work_sizes import dtype_of_number, each_once, size_of, sum_known, vector_work, weigh

_RMS, _LAYER, _SOFTMAX = 4, 7, 5


@models("aten::native_layer_norm", "aten::layer_norm", "aten::rms_norm", "aten::_fused_rms_norm")
def aten_norm(call: OpCall) -> Work | None:
    """(input, normalized shape, weight, bias): result, and by row what backward needs: mean, 1/deviation."""
    source, shape = call.tensor(0), call.args[1] if len(call.args) > 1 else None
    rms = "rms" in call.name
    parameters = [one for one in call.args[2 : 3 if rms else 4] if isinstance(one, Tensor)]
    if source is None:
        return None
    row = prod(one for one in shape if isinstance(one, int)) if isinstance(shape, tuple) else _row(parameters)
    saved = 0 if not call.name.startswith(("aten::native", "aten::_fused")) else 1 if rms else 2
    rows = source.elements // row if row > 0 else 0
    statistic = "fp64" if source.dtype == "fp64" else "fp32"
    total = sum_known(
        (weigh(source, *parameters), size_of(source.elements, source.dtype), size_of(saved * rows, statistic))
    )
    return _norm(source, _RMS if rms else _LAYER, total)


@models("aten::native_group_norm", "aten::group_norm", "aiter::_groupnorm_run")
def group_norm(call: OpCall) -> Work | None:
    """(input, weight, bias, ...), groups before the weight or after. Statistics are not counted."""
    return _norm(call.tensor(0), _LAYER, _with_result(call))


@models(
    "aten::native_batch_norm",
    "aten::_native_batch_norm_legit",
    "aten::_native_batch_norm_legit_no_training",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
)
def batch_norm(call: OpCall) -> Work | None:
    """(input, weight, bias, running mean, running variance, training): training also takes the statistics."""
    training = call.flag(5) is not False and not call.name.endswith("no_training")
    return _norm(call.tensor(0), _LAYER if training else 4, _with_result(call))


@models("aten::_softmax", "aten::_log_softmax", "aten::_safe_softmax", "aten::softmax", "aten::log_softmax")
def softmax(call: OpCall) -> Work | None:
    """(input, dimension, half to float or dtype): a result of the input's type, or of fp32, or as given."""
    source = call.tensor(0)
    if source is None:
        return None
    given = dtype_of_number(call.args[2]) if len(call.args) > 2 else ""
    written = "fp32" if call.flag(2) else given or source.dtype
    total = sum_known((weigh(source), size_of(source.elements, written)))
    return vector_work("softmax", _SOFTMAX * source.elements, total, source.dtype)


@models("aten::_softmax_backward_data", "aten::_log_softmax_backward_data")
def softmax_backward(call: OpCall) -> Work | None:
    """(gradient, result): 4 operations per element."""
    gradient, output = call.tensor(0), call.tensor(1)
    if output is None:
        return None
    return vector_work("softmax", 4 * output.elements, weigh(gradient, output, output), output.dtype)


@dataclass(frozen=True, slots=True)
class _Custom:
    """source: the place of the normalised tensor. updated: places read and written. optional: the same if present."""

    source: int
    cost: int
    updated: tuple[int, ...] = ()
    optional: tuple[int, ...] = ()


# Schemas: vLLM csrc/torch_bindings.cpp, SGLang sgl-kernel common_extension.cc, FlashInfer norm.py, AITER rmsnorm.py.
# Tensors are arguments, results among them; scales of quantised results are small tensors of the call.
_OUT = _Custom(1, _RMS)
_ADDED = _Custom(0, _RMS + 1, updated=(0, 1))
_CUSTOM: dict[str, _Custom] = {
    **dict.fromkeys(
        ("_C::rms_norm", "sgl_kernel::rmsnorm", "sgl_kernel::gemma_rmsnorm", "flashinfer::rmsnorm", "aiter::rmsnorm"),
        _OUT,
    ),
    **dict.fromkeys(("flashinfer::gemma_rmsnorm", "aiter::rms_norm_cu", "sgl-kernel::rmsnorm"), _OUT),
    **dict.fromkeys(
        ("_C::fused_add_rms_norm", "sgl_kernel::fused_add_rmsnorm", "flashinfer::fused_add_rmsnorm"), _ADDED
    ),
    **dict.fromkeys(
        ("sgl_kernel::gemma_fused_add_rmsnorm", "flashinfer::gemma_fused_add_rmsnorm", "aiter::fused_add_rms_norm_cu"),
        _ADDED,
    ),
    "_C::rms_norm_weightless": _Custom(1, _RMS - 1),
    "_C::fused_add_rms_norm_weightless": _Custom(0, _RMS, updated=(0, 1)),
    "_C::rms_norm_static_fp8_quant": _Custom(1, _RMS + 1),
    "_C::fused_add_rms_norm_static_fp8_quant": _Custom(1, _RMS + 2, updated=(2,)),
    "_C::rms_norm_dynamic_per_token_quant": _Custom(1, _RMS + 3, optional=(6,)),
    "_C::rms_norm_per_block_quant": _Custom(1, _RMS + 3, optional=(6,)),
    # Results and residuals of these have places of their own: nothing is updated.
    **dict.fromkeys(("aiter::add_rmsnorm", "aiter::rmsnorm2d_fwd_with_add"), _Custom(1, _RMS + 1)),
    **dict.fromkeys(("aiter::add_rmsnorm_quant", "aiter::rmsnorm2d_fwd_with_add_dynamicquant"), _Custom(1, _RMS + 4)),
    **dict.fromkeys(("aiter::rmsnorm_quant", "aiter::rmsnorm2d_fwd_with_dynamicquant"), _Custom(1, _RMS + 3)),
}


def _custom(rule: _Custom) -> Model:
    def model(call: OpCall) -> Work | None:
        present = tuple(place for place in rule.optional if call.tensor(place) is not None)
        return _norm(call.tensor(rule.source), rule.cost, each_once(call, (*rule.updated, *present)))

    return model


for _name, _rule in _CUSTOM.items():
    models(_name)(_custom(_rule))


@models("aiter::rms_norm", "aiter::rmsnorm2d_fwd", "_C::gemma_rms_norm")
def returned_norm(call: OpCall) -> Work | None:
    """(input, weight, ...): a result of the input's size, which no argument holds."""
    source = call.tensor(0)
    total = None if source is None else sum_known((weigh(source, call.tensor(1)), weigh(source)))
    return _norm(source, _RMS, total)


@models(
    "_C::rotary_embedding",
    "sgl_kernel::rotary_embedding",
    "aiter::rotary_embedding",
)
def rotary_embedding(call: OpCall) -> Work | None:
    """(positions, query, key, head size, cos/sin table of positions x rotated dimensions, neox): in place.

    Only the rotated part of each head is touched. Of the table at least one row is read, at most one per token.
    """
    positions, query, key, table = call.tensor(0), call.tensor(1), call.tensor(2), call.tensor(4)
    head = call.number(3)
    if positions is None or query is None or table is None or len(table.shape) != 2:
        return None
    rotated = [one for one in (query, key) if one is not None]
    if not isinstance(head, int) or head <= 0 or any(one.elements % head for one in rotated):
        return None
    elements = sum(one.elements for one in rotated) // head * min(table.shape[1], head)
    return _rope(query, elements, positions, table)


@models("sgl_kernel::apply_rope_pos_ids_cos_sin_cache", "flashinfer::apply_rope_pos_ids_cos_sin_cache")
def rope_of_positions(call: OpCall) -> Work | None:
    """(q, k, rotated q, rotated k, cos/sin table, positions): q and k are tokens x heads x head size."""
    query, key, table, positions = call.tensor(0), call.tensor(1), call.tensor(4), call.tensor(5)
    if query is None or key is None or table is None or positions is None or len(table.shape) != 2:
        return None
    if query.dtype != key.dtype:
        return None
    return _rope(query, query.elements + key.elements, positions, table)


@models("_C::fused_qk_norm_rope", "sgl_kernel::fused_qk_norm_rope")
def qk_norm_rope(call: OpCall) -> Work | None:
    """(qkv of tokens x heads, heads of q, k and v, head size, epsilon, weights of q and k, ...): q and k, in place."""
    qkv, numbers = call.tensor(0), [call.number(place) for place in range(1, 5)]
    counts = [one for one in numbers if isinstance(one, int) and one >= 0]
    if qkv is None or not qkv.shape or len(counts) != 4:
        return None
    q, k, v, head = counts
    if qkv.elements != qkv.shape[0] * (q + k + v) * head:
        return None
    elements = qkv.shape[0] * (q + k) * head
    total = sum_known((size_of(2 * elements, qkv.dtype), weigh(*(one for one in call.tensors()[1:3]))))
    return vector_work("rope", (_RMS + 3) * elements, total, qkv.dtype)


def _rope(query: Tensor, elements: int, positions: Tensor, table: Tensor) -> Work | None:
    fixed = sum_known((size_of(2 * elements, query.dtype), weigh(positions)))
    row = size_of(table.shape[1], table.dtype)
    if fixed is None or row is None:
        return None
    most = min(positions.elements, table.shape[0])
    high = fixed + row * most
    return vector_work("rope", 3 * elements, fixed + row * min(1, most), query.dtype, bytes_high=high)


def _row(parameters: list[Tensor]) -> int:
    """Elements of a normalised row where its shape was not recorded: those of the weight."""
    return parameters[0].elements if parameters else 0


def _with_result(call: OpCall) -> int | None:
    source = call.tensor(0)
    return None if source is None else sum_known((weigh(*call.tensors()), size_of(source.elements, source.dtype)))


def _norm(source: Tensor | None, cost: int, total: int | None) -> Work | None:
    return None if source is None else vector_work("norm", cost * source.elements, total, source.dtype)
