"""How much work is a product of matrices? PyTorch's own ops; quantised ones are in work_quantized.py.

M x K by K x N: 2MNK operations; MK + KN + MN elements, each operand at its own type. These are the counts of
torch.utils.flop_counter (mm_flop, addmm_flop, bmm_flop, baddbmm_flop). A bias is read, its additions are not counted;
split-K workspaces are not compulsory. The second matrix is taken as a weight of the model, or the only one where the
other is a vector: in inference it nearly always is one, so no note says so.
"""

from __future__ import annotations

from math import prod

from tracekit.op_call import Argument, OpCall, Tensor
from tracekit.work import Work, models
from tracekit.work_sizes import broadcast, dtype_of_number, matrix_math, result_of, size_of, sum_known, weigh


def gemm(
    sizes: tuple[int, int, int],
    reads: int | None,
    out_dtype: str,
    math: str,
    *,
    batch: int = 1,
    weight: Tensor | None = None,
) -> Work | None:
    """The work of `batch` products of M x K by K x N, sizes (M, N, K), that read `reads` bytes and write `out_dtype`.

    None where a type is not known, or no unit multiplies matrices of it.
    """
    m, n, k = sizes
    total = sum_known((reads, size_of(batch * m * n, out_dtype)))
    if total is None or not math:
        return None
    weight_bytes = weight.bytes if weight is not None else None
    return Work(
        "gemm",
        2 * batch * m * n * k,
        total,
        math if batch * m * n * k else "",
        weight_bytes=weight_bytes or 0,
        weight_bits=8 * (weight.itemsize or 0) if weight is not None else 0,
    )


@models("aten::mm")
def mm(call: OpCall) -> Work | None:
    """M x K by K x N: (self, mat2); a third number is the type of the result."""
    return _plain(call.tensor(0), call.tensor(1), _out_dtype(call, 2, 0))


@models("aten::_int_mm")
def int_mm(call: OpCall) -> Work | None:
    """int8 M x K by K x N into int32."""
    return _plain(call.tensor(0), call.tensor(1), "int32")


@models("aten::addmm", "aten::addmm_", "aten::_addmm_activation")
def addmm(call: OpCall) -> Work | None:
    """(bias, M x K, K x N, beta, alpha): the bias is as large as recorded, and not read where beta is 0."""
    bias = _addend(call)
    if bias is None:
        return None
    return _plain(call.tensor(1), call.tensor(2), _out_dtype(call, 3, 2), bias)


@models("aten::bmm")
def bmm(call: OpCall) -> Work | None:
    """B products: (B x M x K, B x K x N). No operand is taken for a weight."""
    return _batched(call.tensor(0), call.tensor(1), _out_dtype(call, 2, 0), 0)


@models("aten::baddbmm", "aten::baddbmm_")
def baddbmm(call: OpCall) -> Work | None:
    """(addend, B x M x K, B x K x N, beta, alpha)."""
    return _batched(call.tensor(1), call.tensor(2), _out_dtype(call, 3, 2), _addend(call))


@models("aten::addbmm", "aten::addbmm_")
def addbmm(call: OpCall) -> Work | None:
    """(addend, B x M x K, B x K x N, beta, alpha): the products are summed into one M x N."""
    a, b = call.tensor(1), call.tensor(2)
    if a is None or b is None or (sizes := _sizes3(a, b)) is None:
        return None
    batch, m, n, k = sizes
    return gemm((m, n, batch * k), sum_known((weigh(a, b), _addend(call))), a.dtype, matrix_math(a.dtype))


@models("aten::linear", "vllm::rocm_unquantized_gemm")
def linear(call: OpCall) -> Work | None:
    """(... x K, N x K, bias N): every leading dimension counts as a row."""
    a, weight = call.tensor(0), call.tensor(1)
    if a is None or weight is None or not a.shape or len(weight.shape) != 2 or a.shape[-1] != weight.shape[1]:
        return None
    n, k = weight.shape
    bias = call.tensor(2)
    reads = weigh(a, weight) if bias is None else weigh(a, weight, bias)
    return gemm((prod(a.shape[:-1]), n, k), reads, a.dtype, matrix_math(a.dtype), weight=weight)


@models("aten::matmul")
def matmul(call: OpCall) -> Work | None:
    """(... x M x K, ... x K x N), leading dimensions broadcast; a vector is a row (left) or a column (right)."""
    a, b = call.tensor(0), call.tensor(1)
    if a is None or b is None or not a.shape or not b.shape:
        return None
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    batch = broadcast((left[:-2], right[:-2]))
    if batch is None or left[-1] != right[-2]:
        return None
    weight = b if len(b.shape) == 2 else None
    sizes = (left[-2], right[-1], left[-1])
    return gemm(sizes, weigh(a, b), a.dtype, matrix_math(a.dtype), batch=prod(batch), weight=weight)


@models("aten::mv")
def mv(call: OpCall) -> Work | None:
    """M x K by a vector of K."""
    return _vector(call.tensor(0), call.tensor(1), 0)


@models("aten::addmv", "aten::addmv_")
def addmv(call: OpCall) -> Work | None:
    """(addend, M x K, vector of K, beta, alpha)."""
    return _vector(call.tensor(1), call.tensor(2), _addend(call))


@models("aten::dot", "aten::vdot")
def dot(call: OpCall) -> Work | None:
    """Two vectors of K into one number."""
    a, b = call.tensor(0), call.tensor(1)
    if a is None or b is None or len(a.shape) != 1 or a.shape != b.shape:
        return None
    return gemm((1, 1, a.elements), weigh(a, b), a.dtype, matrix_math(a.dtype))


@models("aten::addr", "aten::addr_")
def addr(call: OpCall) -> Work | None:
    """(addend, vector of M, vector of N): their outer product."""
    a, b = call.tensor(1), call.tensor(2)
    if a is None or b is None or len(a.shape) != 1 or len(b.shape) != 1:
        return None
    return gemm((a.elements, b.elements, 1), sum_known((weigh(a, b), _addend(call))), a.dtype, matrix_math(a.dtype))


def _addend(call: OpCall) -> int | None:
    """Bytes of what is added: argument 0, nothing where beta is 0."""
    scalars = _scalars(call, 3)
    if len(scalars) >= 2 and scalars[-2] == 0:
        return 0
    return weigh(call.tensor(0))


def _scalars(call: OpCall, inputs: int) -> list[Argument]:
    """Arguments after the inputs that are no tensors: [dtype,] beta, alpha; not the flag of a fused activation."""
    end = inputs + 2 if call.name == "aten::_addmm_activation" else len(call.args)
    return [one for one in call.args[inputs:end] if not isinstance(one, Tensor)]


def _out_dtype(call: OpCall, inputs: int, after: int) -> str | None:
    """The type of the result where the call gives it: an out tensor, or a dtype before `after` other scalars."""
    out = result_of(call, inputs)
    if out is not None:
        return out.dtype
    more = _scalars(call, inputs)
    return dtype_of_number(more[0]) if len(more) > after else None


def _plain(a: Tensor | None, b: Tensor | None, out: str | None, addend: int = 0) -> Work | None:
    if a is None or b is None or len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        return None
    reads = sum_known((weigh(a, b), addend))
    sizes = (a.shape[0], b.shape[1], a.shape[1])
    out_dtype = a.dtype if out is None else out
    return gemm(sizes, reads, out_dtype, matrix_math(a.dtype), weight=b)


def _sizes3(a: Tensor, b: Tensor) -> tuple[int, int, int, int] | None:
    """Batch, M, N, K of two stacks of matrices."""
    if len(a.shape) != 3 or len(b.shape) != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        return None
    return a.shape[0], a.shape[1], b.shape[2], a.shape[2]


def _batched(a: Tensor | None, b: Tensor | None, out: str | None, addend: int | None) -> Work | None:
    if a is None or b is None or (sizes := _sizes3(a, b)) is None:
        return None
    batch, m, n, k = sizes
    out_dtype = a.dtype if out is None else out
    return gemm((m, n, k), sum_known((weigh(a, b), addend)), out_dtype, matrix_math(a.dtype), batch=batch)


def _vector(a: Tensor | None, b: Tensor | None, addend: int | None) -> Work | None:
    if a is None or b is None or len(a.shape) != 2 or b.shape != a.shape[1:]:
        return None
    reads = sum_known((weigh(a, b), addend))
    return gemm(
        (a.shape[0], 1, a.shape[1]),
        reads,
        a.dtype,
        matrix_math(a.dtype),
        weight=a,
    )
