"""How much work are sums, extremes, scans, sorts and random numbers?

A reduction reads its input once and takes one operation per element (a variance four). Its result depends on the
dimensions; where they were not recorded it is one element to as many as the input has. Sorts and top-k compare: no
floating-point operations are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tracekit.op_call import Argument, OpCall, Tensor
from tracekit.work import Model, Work, models
from tracekit.work_pointwise import pointwise_binary
from tracekit.work_sizes import (
    dtype_of_number,
    each_once,
    result_of,
    size_of,
    sum_known,
    vector_math,
    vector_work,
    weigh,
)


def axis(shape: tuple[int, ...], dim: int | float | None, default: int = 0) -> int | None:
    """The place in a shape that a recorded dimension means, the default's if none is recorded; None if out of range."""
    at = default if dim is None else int(dim) if isinstance(dim, int) else len(shape)
    return at % len(shape) if -len(shape) <= at < len(shape) else None


@dataclass(frozen=True, slots=True)
class _Rule:
    """dims: the place of the dimensions; result: "same", "mean", "sum" (of integers: int64), "int64" or "bool"."""

    dims: int = 1
    cost: int = 1
    result: str = "same"
    indices: bool = False


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("sum", "nansum", "prod"), _Rule(result="sum")),
    "mean": _Rule(result="mean"),
    **dict.fromkeys(("amax", "amin", "logsumexp"), _Rule()),
    **dict.fromkeys(("any", "all"), _Rule(result="bool")),
    **dict.fromkeys(("argmax", "argmin"), _Rule(result="int64")),
    **dict.fromkeys(("var", "std"), _Rule(cost=4)),
    **dict.fromkeys(("linalg_vector_norm", "norm"), _Rule(dims=2, cost=2)),
}


def _reduced(rule: _Rule) -> Model:
    def model(call: OpCall) -> Work | None:
        return reduction(call, rule)

    return model


def reduction(call: OpCall, rule: _Rule) -> Work | None:
    """The work of a reduction of its first argument over the dimensions at its rule's place."""
    source, out = call.tensor(0), result_of(call, 1)
    if source is None:
        return None
    args = call.args[:-1] if out is not None else call.args
    dtype = out.dtype if out is not None else _dtype(args, rule, source)
    kept = 1 if len(args) <= 2 else _kept(source.shape, args, rule.dims)
    least, most = (kept, kept) if kept is not None else (min(1, source.elements), source.elements)
    reads, low, high = weigh(source), size_of(least, dtype), size_of(most, dtype)
    if reads is None or low is None or high is None:
        return None
    index = 8 if rule.indices else 0
    notes = () if kept is not None else ("dimensions not recorded",)
    top = -1 if kept is not None else reads + high + index * most
    total = reads + low + index * least
    return vector_work("reduction", rule.cost * source.elements, total, source.dtype, bytes_high=top, notes=notes)


for _name, _rule in _RULES.items():
    models(f"aten::{_name}")(_reduced(_rule))


@models("aten::max", "aten::min")
def extreme(call: OpCall) -> Work | None:
    """(self): one element; (self, dimension): values and indices; (self, other): element by element."""
    if call.tensor(1) is not None:
        return pointwise_binary(call)
    if call.number(1) is None:
        source = call.tensor(0)
        return reduction(OpCall(call.name, (source,)), _Rule())
    return reduction(OpCall(call.name, (*call.args[:2], False)), _Rule(indices=True))


@models("aten::cumsum", "aten::cumprod", "aten::cumsum_", "aten::logcumsumexp")
def scan(call: OpCall) -> Work | None:
    """(self, dimension, dtype): a result of the same size; integers become int64 where no type is given."""
    source, out = call.tensor(0), result_of(call, 3)
    if source is None:
        return None
    given = dtype_of_number(call.args[2]) if len(call.args) > 2 else ""
    same = vector_math(source.dtype) or call.name.endswith("_")
    dtype = out.dtype if out is not None else given or (source.dtype if same else "int64")
    total = sum_known((weigh(source), size_of(source.elements, dtype)))
    return vector_work("reduction", source.elements, total, source.dtype)


@models("aten::sort", "aten::argsort")
def sort(call: OpCall) -> Work | None:
    """Values (not of argsort) and int64 indices of the input's size: one pass; a sort takes several."""
    source = call.tensor(0)
    if source is None:
        return None
    values = 0 if call.name == "aten::argsort" else source.elements
    total = sum_known((weigh(source), size_of(values, source.dtype), 8 * source.elements))
    return None if total is None else Work("reduction", 0, total, notes=("one pass of several",))


@models("aten::topk")
def topk(call: OpCall) -> Work | None:
    """(self, k, dimension): k values and int64 indices of each row."""
    source, count = call.tensor(0), call.number(1)
    at = None if source is None else axis(source.shape, call.number(2), -1)
    if source is None or not isinstance(count, int) or at is None or not 0 <= count <= source.shape[at]:
        return None
    found = source.elements // source.shape[at] * count if count else 0
    total = sum_known((weigh(source), size_of(found, source.dtype), 8 * found))
    return None if total is None else Work("reduction", 0, total)


@models(
    "aten::normal_",
    "aten::uniform_",
    "aten::random_",
    "aten::exponential_",
    "aten::bernoulli_",
    "aten::cauchy_",
    "aten::geometric_",
    "aten::log_normal_",
)
def random(call: OpCall) -> Work | None:
    """Written, not read. Operations of the generator are not counted."""
    target = call.tensor(0)
    total = weigh(target)
    return None if total is None else Work("random", 0, total)


@models("aten::multinomial")
def multinomial(call: OpCall) -> Work | None:
    """(probabilities of rows x classes, samples): int64 indices. Steps in between are not compulsory."""
    source, count = call.tensor(0), call.number(1)
    if source is None or not isinstance(count, int) or count < 0 or not source.shape:
        return None
    total = sum_known((weigh(source), 8 * prod(source.shape[:-1]) * count))
    return None if total is None else Work("sampling", 0, total)


# SGLang sgl-kernel common_extension.cc; FlashInfer sampling.py, where the samples are returned as int32.
_SAMPLERS = (
    "top_k_renorm_probs",
    "top_p_renorm_probs",
    "sampling_from_probs",
    "top_k_sampling_from_probs",
    "top_p_sampling_from_probs",
    "min_p_sampling_from_probs",
    "top_k_top_p_sampling_from_probs",
)


@models(*(f"{library}::{name}" for library in ("sgl_kernel", "flashinfer") for name in _SAMPLERS))
def sampled(call: OpCall) -> Work | None:
    """(probabilities of rows x classes, ...): read once at least, whatever the number of rounds."""
    source, total = call.tensor(0), each_once(call)
    if source is None or total is None:
        return None
    if call.name.startswith("flashinfer"):
        total += (weigh(source) or 0) if "renorm" in call.name else 4 * prod(source.shape[:-1])
    return Work("sampling", 0, total, notes=("one pass of several",))


@models("_C::apply_repetition_penalties_")
def repetition_penalties(call: OpCall) -> Work | None:
    """(logits, mask of the prompt, mask of the output, penalties): logits in place."""
    logits = call.tensor(0)
    return None if logits is None else vector_work("sampling", logits.elements, each_once(call, (0,)), logits.dtype)


def _dtype(args: tuple[Argument, ...], rule: _Rule, source: Tensor) -> str:
    """The type of the result: as given after all other arguments, else by the rule."""
    if rule.result in ("int64", "bool"):
        return rule.result
    # (self, dtype), or (self, dimensions, keepdim, dtype); norms have their order in between.
    has_dtype = len(args) == rule.dims + 3 or (len(args) == 2 and rule.result in ("sum", "mean"))
    given = dtype_of_number(args[-1]) if has_dtype and rule.cost < 4 else ""
    if not given and rule.result == "sum" and not vector_math(source.dtype):
        return "int64"
    return given or source.dtype


def _kept(shape: tuple[int, ...], args: tuple[Argument, ...], place: int) -> int | None:
    """Elements that are left after reducing over the dimensions at `place`; None if these are not recorded.

    None is all dimensions where keepdim, a truth value behind it, was recorded: then scalars were.
    """
    dims = args[place] if len(args) > place else None
    if dims in ((), "[]") or (dims is None and any(isinstance(one, bool) for one in args[place + 1 :])):
        return 1
    places = (dims,) if type(dims) is int else dims
    if not isinstance(places, tuple):
        return None
    wanted = {one for one in places if type(one) is int}
    if len(wanted) != len(places) or not all(-len(shape) <= one < len(shape) for one in wanted):
        return None
    reduced = {one % len(shape) for one in wanted}
    return prod(size for place, size in enumerate(shape) if place not in reduced)
