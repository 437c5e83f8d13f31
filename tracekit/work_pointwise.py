"""How much work is an op that computes each element by itself? Arithmetic, comparisons, activations, fills, copies.

Bytes: every operand as stored (a broadcast dimension once), every result once; an op in place reads what it updates. A
tensor without dimensions is not counted: it may be a Python number, passed with the launch. FLOPs are nominal: the
operations of the formula per element of the result, an exponential or a root as one. Integers take none.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tracekit.op_call import OpCall, Tensor
from tracekit.work import Model, Work, models
from tracekit.work_sizes import (
    broadcast,
    dtype_of_number,
    each_once,
    floating,
    promoted,
    result_of,
    size_of,
    sum_known,
    vector_work,
    weigh,
)


@dataclass(frozen=True, slots=True)
class _Rule:
    """inputs: arguments that may be operands. result: "same" as computed in, "float" never an integer, or "bool"."""

    inputs: int
    cost: int = 1
    family: str = "elementwise"
    result: str = "same"


_ROUNDING = "neg abs square sign sgn floor ceil round trunc frac positive bitwise_not conj_physical nan_to_num"
_FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh erf erfc erfinv "
    "lgamma digamma i0 sinc deg2rad rad2deg logit"
)
_ARITHMETIC = (
    "add sub mul rsub pow maximum minimum fmax fmin remainder fmod floor_divide clamp_min clamp_max copysign heaviside "
    "hypot gcd lcm bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ "
    "__lshift__ __rshift__ __iand__ __ior__ __ixor__"
)
_RULES: tuple[tuple[str, _Rule], ...] = (
    (_ROUNDING, _Rule(1)),
    (_FUNCTIONS, _Rule(1, result="float")),
    ("logical_not isnan isinf isposinf isneginf signbit", _Rule(1, result="bool")),
    (_ARITHMETIC, _Rule(2)),
    ("div true_divide atan2 xlogy logaddexp", _Rule(2, result="float")),
    ("eq ne lt le gt ge logical_and logical_or logical_xor", _Rule(2, result="bool")),
    ("clamp", _Rule(3, 2)),
    ("lerp addcmul addcdiv", _Rule(3, 3)),
    ("masked_fill", _Rule(2, 0)),
    ("relu relu6 hardtanh leaky_relu threshold", _Rule(1, 1, "activation")),
    ("tanh", _Rule(1, 1, "activation", "float")),
    ("sigmoid hardsigmoid hardswish", _Rule(1, 3, "activation", "float")),
    ("silu elu celu selu softplus log_sigmoid_forward", _Rule(1, 4, "activation")),
    ("gelu mish", _Rule(1, 5, "activation")),
    ("_prelu_kernel threshold_backward", _Rule(2, 1, "activation")),
    ("hardtanh_backward leaky_relu_backward elu_backward", _Rule(2, 2, "activation")),
    ("sigmoid_backward tanh_backward", _Rule(2, 3, "activation")),
    ("silu_backward", _Rule(2, 7, "activation")),
    ("gelu_backward", _Rule(2, 10, "activation")),
)
# `aten::masked_fill_` and the like update their first operand; these have no such form.
_NO_IN_PLACE = ("backward", "_forward", "isinf", "isneginf", "isposinf", "isnan", "signbit", "maximum", "minimum")


def pointwise(call: OpCall, rule: _Rule, in_place: bool) -> Work | None:
    """The work of an op by its rule, from the operands at its first places and an out tensor behind them."""
    operands = call.args[: rule.inputs]
    tensors = [one for one in operands if isinstance(one, Tensor)]
    shape = broadcast(one.shape for one in tensors)
    if not tensors or shape is None:
        return None
    dtype = floating(promoted(operands)) if rule.result == "float" else promoted(operands)
    out = tensors[0] if in_place else result_of(call, rule.inputs)
    written = "bool" if rule.result == "bool" else dtype
    elements = prod(tensors[0].shape) if in_place else prod(shape)
    reads = sum_known(one.bytes for one in tensors if one.shape)
    total = sum_known((reads, size_of(elements, out.dtype if out is not None else written)))
    return vector_work(rule.family, rule.cost * elements, total, dtype) if dtype else None


def pointwise_binary(call: OpCall) -> Work | None:
    """The work of an op on two operands that has no name of its own, as the larger of two tensors."""
    return pointwise(call, _Rule(2), False)


def _model(rule: _Rule, in_place: bool) -> Model:
    def model(call: OpCall) -> Work | None:
        return pointwise(call, rule, in_place)

    return model


for _names, _rule in _RULES:
    for _name in _names.split():
        models(f"aten::{_name}")(_model(_rule, _name.startswith("__i")))
        if not _name.startswith("__") and not any(one in _name for one in _NO_IN_PLACE):
            models(f"aten::{_name}_")(_model(_rule, True))


@models("aten::where")
def where(call: OpCall) -> Work | None:
    """(condition, self, other): a choice, no operations."""
    condition = call.tensor(0)
    values = call.args[1:3]
    tensors = [one for one in (condition, *values) if isinstance(one, Tensor)]
    shape = broadcast(one.shape for one in tensors)
    dtype = promoted(values)
    if condition is None or len(values) < 2 or shape is None or not dtype:
        return None
    total = sum_known((*(one.bytes for one in tensors if one.shape), size_of(prod(shape), dtype)))
    return None if total is None else Work("elementwise", 0, total)


@models("aten::fill_", "aten::zero_")
def fill(call: OpCall) -> Work | None:
    """Written, not read."""
    total = weigh(call.tensor(0))
    return None if total is None else Work("elementwise", 0, total)


@models("aten::copy_")
def copy(call: OpCall) -> Work | None:
    """(to, from): each at its own type; what is broadcast is read once. One side may be in host memory."""
    target, source = call.tensor(0), call.tensor(1)
    if target is None:
        return None
    total = sum_known((size_of(target.elements, target.dtype), weigh(source)))
    return None if total is None else Work("copy", 0, total)


@models("aten::clone", "aten::contiguous", "aten::flip", "aten::roll", "aten::triu", "aten::tril", "aten::alias_copy")
def duplicate(call: OpCall) -> Work | None:
    """A result of the size and type of the input."""
    source = call.tensor(0)
    total = None if source is None else sum_known((weigh(source), size_of(source.elements, source.dtype)))
    return None if total is None else Work("copy", 0, total)


@models("aten::_to_copy")
def to_copy(call: OpCall) -> Work | None:
    """(self, dtype): a copy in another type, the same one where none is recorded as given."""
    source = call.tensor(0)
    if source is None:
        return None
    dtype = dtype_of_number(call.args[1]) if call.number(1) is not None else source.dtype
    total = sum_known((weigh(source), size_of(source.elements, dtype)))
    return None if total is None else Work("copy", 0, total)


@models("aten::repeat")
def repeat(call: OpCall) -> Work | None:
    """(self, times by dimension)."""
    source, times = call.tensor(0), call.args[1] if len(call.args) > 1 else None
    if source is None or not isinstance(times, tuple) or not all(type(one) is int and one >= 0 for one in times):
        return None
    elements = source.elements
    for one in times:
        elements *= one if isinstance(one, int) else 1
    total = sum_known((weigh(source), size_of(elements, source.dtype)))
    return None if total is None else Work("copy", 0, total)


@models("aten::upsample_nearest2d", "aten::upsample_bilinear2d", "aten::upsample_bicubic2d")
def upsample(call: OpCall) -> Work | None:
    """(batch x channels x height x width, size of the result): interpolation is not counted as operations."""
    source, size = call.tensor(0), call.args[1] if len(call.args) > 1 else None
    if source is None or len(source.shape) != 4 or not isinstance(size, tuple) or len(size) != 2:
        return None
    height, width = size
    if not isinstance(height, int) or not isinstance(width, int) or min(height, width) < 0:
        return None
    written = size_of(source.shape[0] * source.shape[1] * height * width, source.dtype)
    total = sum_known((weigh(source), written))
    return None if total is None else Work("elementwise", 0, total)


@models("aten::glu")
def glu(call: OpCall) -> Work | None:
    """Half of a dimension gated by the other half: 4 operations per element of the result."""
    source = call.tensor(0)
    total = None if source is None else sum_known((weigh(source), size_of(source.elements // 2, source.dtype)))
    return None if source is None else vector_work("activation", 4 * (source.elements // 2), total, source.dtype)


@models("aten::native_dropout")
def dropout(call: OpCall) -> Work | None:
    """Result and mask of bool: one multiplication per element, random numbers not counted."""
    source = call.tensor(0)
    total = (
        None if source is None else sum_known((weigh(source), size_of(source.elements, source.dtype), source.elements))
    )
    return None if source is None else vector_work("elementwise", source.elements, total, source.dtype)


# Custom activations (vLLM csrc/torch_bindings.cpp, sgl-kernel common_extension.cc, FlashInfer activation, AITER): the
# result is the first argument. Operations per element of it: the function and, where gated, one multiplication.
_ACTIVATIONS = {
    **dict.fromkeys(("silu_and_mul", "mul_and_silu"), 5),
    **dict.fromkeys(("gelu_and_mul", "gelu_tanh_and_mul", "gelu_fast_and_mul"), 6),
    **{"fatrelu_and_mul": 2, "swigluoai_and_mul": 7, "silu_and_mul_quant": 6, "silu_and_mul_per_block_quant": 8},
    **{"gelu_new": 8, "gelu_fast": 8, "gelu_quick": 5, "scaled_silu_and_mul": 6},
}
_LIBRARIES = ("_C", "sgl_kernel", "sgl-kernel", "flashinfer", "aiter")


def _activation(cost: int) -> Model:
    def model(call: OpCall) -> Work | None:
        result, source = call.tensor(0), call.tensor(1)
        if result is None or source is None:
            return None
        return vector_work("activation", cost * result.elements, each_once(call), source.dtype)

    return model


for _name, _cost in _ACTIVATIONS.items():
    models(*(f"{library}::{_name}" for library in _LIBRARIES))(_activation(_cost))
