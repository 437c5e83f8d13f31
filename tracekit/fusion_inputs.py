"""What did the op behind each device row take, and what did it write? For rows of some steps, from what was recorded.

The profiler records inputs, no results and no addresses. Many serving ops get their results as arguments, and ops in
place write what they read: of these the result is known by the op's schema. Of PyTorch's own functions it follows from
the inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from tracekit.arrays import ABSENT, numbers
from tracekit.classify import words
from tracekit.op_call import OpCall, Tensor, parse_call
from tracekit.replay_step import Step
from tracekit.trace import Trace
from tracekit.work import work_of
from tracekit.work_sizes import broadcast, floating, promoted

# Places of the arguments that ops write. Schemas: vLLM csrc/torch_bindings.cpp, SGLang sgl-kernel common_extension.cc
# and jit kernels, FlashInfer norm.py and activation.py, AITER rmsnorm.py.
_WRITES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            *("_C::rms_norm", "sgl_kernel::rmsnorm", "sgl-kernel::rmsnorm", "sgl_kernel::gemma_rmsnorm"),
            *("flashinfer::rmsnorm", "flashinfer::gemma_rmsnorm", "aiter::rmsnorm", "_C::rms_norm_static_fp8_quant"),
            *("_C::silu_and_mul", "_C::mul_and_silu", "_C::gelu_and_mul", "_C::gelu_tanh_and_mul"),
            *("sgl_kernel::silu_and_mul", "sgl_kernel::gelu_and_mul", "sgl_kernel::gelu_tanh_and_mul"),
            *("flashinfer::silu_and_mul", "_C::static_scaled_fp8_quant", "_C::static_scaled_int8_quant"),
        ),
        (0,),
    ),
    **dict.fromkeys(
        (
            *("_C::fused_add_rms_norm", "sgl_kernel::fused_add_rmsnorm", "flashinfer::fused_add_rmsnorm"),
            *("sgl_kernel::gemma_fused_add_rmsnorm", "flashinfer::gemma_fused_add_rmsnorm"),
        ),
        (0, 1),
    ),
    **dict.fromkeys(
        (
            *("_C::dynamic_scaled_fp8_quant", "_C::dynamic_per_token_scaled_fp8_quant"),
            *("_C::dynamic_scaled_int8_quant", "_C::rms_norm_dynamic_per_token_quant"),
        ),
        (0, 2),
    ),
    **dict.fromkeys(("_C::per_token_group_fp8_quant", "sgl_kernel::sgl_per_token_group_quant_8bit"), (1, 2)),
    **dict.fromkeys(("_C::rotary_embedding", "sgl_kernel::rotary_embedding", "aiter::rotary_embedding"), (1, 2)),
    **dict.fromkeys(
        ("sgl_kernel::apply_rope_pos_ids_cos_sin_cache", "flashinfer::apply_rope_pos_ids_cos_sin_cache"), (2, 3)
    ),
    **dict.fromkeys(("aiter::add_rmsnorm", "aiter::rmsnorm2d_fwd_with_add"), (0, 3)),
    **dict.fromkeys(("_C_cache_ops::reshape_and_cache_flash", "_C_cache_ops::reshape_and_cache"), (2, 3)),
    **dict.fromkeys(("sglang::store_cache", "sgl_kernel::store_kv_cache"), (2, 3)),
}
# Written and read. All others of the above write only.
_UPDATES = frozenset(
    (
        *("_C::fused_add_rms_norm", "sgl_kernel::fused_add_rmsnorm", "flashinfer::fused_add_rmsnorm"),
        *("sgl_kernel::gemma_fused_add_rmsnorm", "flashinfer::gemma_fused_add_rmsnorm"),
        *("_C::rotary_embedding", "sgl_kernel::rotary_embedding", "aiter::rotary_embedding"),
    )
)
_FILLS = frozenset(("aten::fill_", "aten::zero_", "aten::copy_"))  # write what they do not read
_ALWAYS_FLOATS = frozenset(
    ("rsqrt", "sqrt", "exp", "log", "sin", "cos", "reciprocal", "sigmoid", "tanh", "div", "true_divide")
)
_POINTWISE = _ALWAYS_FLOATS | {
    *("add", "sub", "mul", "rsub", "pow", "maximum", "minimum", "neg", "abs", "square", "silu", "gelu", "relu"),
    *("clamp", "clamp_min", "clamp_max", "where", "masked_fill", "softplus", "hardswish", "logical_not"),
    *("bitwise_not", "exp2", "floor_divide", "lerp", "addcmul", "addcdiv"),
}
_SAME_AS_FIRST = frozenset(
    ("_softmax", "softmax", "native_layer_norm", "layer_norm", "rms_norm", "clone", "contiguous", "cumsum", "sort")
)
_DISTINCT = 1 << 14  # calls of which it is remembered: a step calls the same ones in each layer
_ROWWISE = frozenset(("mean", "sum", "amax", "amin", "var", "std"))


@dataclass(frozen=True, slots=True)
class Flow:
    """Tensors that the work of a row reads and writes. certain: the op's schema says where it writes, rather than its
    inputs what it must. updated: those that it writes are read, too, and belong to somebody else."""

    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    certain: bool
    updated: bool


class Inputs:
    """Ops of device rows by the row's id."""

    def __init__(self, ops: Mapping[int, tuple[OpCall, str]], threads: Mapping[int, int]) -> None:
        self._ops, self._threads = ops, threads

    def call(self, id: int) -> OpCall | None:
        """The op as called, None without one."""
        found = self._ops.get(id)
        return None if found is None else found[0]

    def flow(self, id: int) -> Flow | None:
        """What it reads and writes, None where nobody can tell."""
        call = self.call(id)
        return None if call is None else _flow(call)

    def moved(self, id: int) -> int | None:
        """Bytes that it moves at least, None where no model knows."""
        call = self.call(id)
        return None if call is None else _bytes(call)

    def op_words(self, id: int) -> str:
        """Its name as words, "" without one."""
        found = self._ops.get(id)
        return "" if found is None else found[1]

    def threads(self, id: int) -> int:
        """Threads of all blocks of a kernel, 0 where they are not known."""
        return self._threads.get(id, 0)


def inputs_of(trace: Trace, steps: Iterable[Step]) -> Inputs:
    """The ops behind all own rows of some steps."""
    ids = sorted({id for step in steps for id in step.rows.id[step.rows.own].tolist()})
    if not ids:
        return Inputs({}, {})
    query = "FROM fusion_rows() WHERE id BETWEEN $low AND $high AND id IN (SELECT unnest($ids))"
    table = trace.whole.sql(query, {"low": ids[0], "high": ids[-1], "ids": ids})
    threads = zip(numbers(table, "id").tolist(), numbers(table, "threads").tolist(), strict=True)
    made = cache(parse_call)
    as_words = cache(words)
    columns = (table[name].to_pylist() for name in ("id", "op", "shapes", "dtypes", "scalars", "strides"))
    ops = {
        id: (made(op, shapes, dtypes, scalars, strides), as_words(op))
        for id, op, shapes, dtypes, scalars, strides in zip(*columns, strict=True)
        if op is not None
    }
    return Inputs(ops, {id: count for id, count in threads if count != ABSENT})


def flow_of(call: OpCall) -> Flow | None:
    """What an op reads and writes, None where nobody can tell: shapes were not recorded, or its schema is not known."""
    tensors = tuple(one for one in call.tensors() if one.shape)
    if not tensors:
        return None
    if (places := _WRITES.get(call.name)) is not None:
        return _declared(call, tensors, places)
    namespace, _, name = call.name.rpartition("::")
    first = call.tensor(0)
    if name.endswith("_") and not name.startswith("_") and first is not None:
        if call.name in _FILLS:
            return Flow(tuple(one for one in tensors[1:]), (first,), True, False)
        return Flow(tensors, (first,), True, True)
    if namespace != "aten":
        return None
    written_by = _result(name, call, tensors)
    return None if written_by is None else Flow(tensors, (written_by,), False, False)


def _declared(call: OpCall, tensors: tuple[Tensor, ...], places: tuple[int, ...]) -> Flow:
    """Of an op of whose arguments it is known which it writes."""
    written = tuple(one for place in places if (one := call.tensor(place)) is not None)
    if call.name in _UPDATES:
        return Flow(tensors, written, True, True)
    read = [one for place, one in enumerate(call.args) if isinstance(one, Tensor) and place not in places]
    return Flow(tuple(read), written, True, False)


def _result(name: str, call: OpCall, tensors: tuple[Tensor, ...]) -> Tensor | None:
    """The result of one of PyTorch's functions."""
    first = tensors[0]
    if name in _POINTWISE:
        shape = broadcast(one.shape for one in tensors)
        dtype = promoted(call.args[:3])
        return None if shape is None else Tensor(shape, floating(dtype) if name in _ALWAYS_FLOATS else dtype)
    if name in _SAME_AS_FIRST:
        return Tensor(first.shape, first.dtype)
    if name in _ROWWISE:
        return Tensor((*first.shape[:-1], 1), first.dtype)
    if name == "cat":
        dtype = next((one.dtype for one in tensors if one.dtype), "")
        return Tensor((sum(one.elements for one in tensors),), dtype)
    if name in ("mm", "addmm", "linear", "matmul"):
        return _product(name, call)
    return None


def _product(name: str, call: OpCall) -> Tensor | None:
    left, right = (call.tensor(1), call.tensor(2)) if name == "addmm" else (call.tensor(0), call.tensor(1))
    if left is None or right is None or len(right.shape) != 2:
        return None
    return Tensor((*left.shape[:-1], right.shape[0 if name == "linear" else 1]), left.dtype)


@lru_cache(maxsize=_DISTINCT)
def _flow(call: OpCall) -> Flow | None:
    return flow_of(call)


@lru_cache(maxsize=_DISTINCT)
def _bytes(call: OpCall) -> int | None:
    """Not of ops whose work depends on what the step works on."""
    work = work_of(call)
    return None if work is None or work.by_load else work.bytes
