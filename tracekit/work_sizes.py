"""What do the tensors of a call weigh, and which type has a result? Sums shared by the models of ops (work_*.py).

Rules of broadcasting and type promotion are those of PyTorch (torch.result_type, "Broadcasting semantics").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracekit.op_call import Argument, OpCall, Tensor
from tracekit.work import Work

# c10::ScalarType as an op's dtype argument records it: a number.
_SCALAR_TYPES = {
    **{0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "fp16", 6: "fp32", 7: "fp64", 9: "complex64"},
    **{10: "complex128", 11: "bool", 15: "bf16", 23: "fp8_e5m2", 24: "fp8_e4m3", 25: "fp8_e5m2", 26: "fp8_e4m3"},
    **{27: "uint16", 28: "uint32", 29: "uint64", 44: "e8m0", 45: "fp4x2"},
}
INDEX_TYPES = ("int32", "int64")  # of lengths, pages, slots, chosen experts
_FLOATS = ("fp8_e5m2", "fp8_e4m3", "fp16", "bf16", "fp32", "fp64")
_COMPLEX = ("complex64", "complex128")
_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
_MATRIX = {
    **{"fp64": "fp64_matrix", "fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "int8": "int8"},
    **{"fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp4x2": "fp4"},
}


def weigh(*tensors: Tensor | None) -> int | None:
    """Bytes of these tensors in memory, each once; None if one is missing or of unknown type."""
    total = 0
    for one in tensors:
        if one is None or one.bytes is None:
            return None
        total += one.bytes
    return total


def size_of(elements: int, dtype: str) -> int | None:
    """Bytes of that many elements, None if the type is not known."""
    size = Tensor((), dtype).itemsize
    return None if size is None else elements * size


def sum_known(values: Iterable[int | None]) -> int | None:
    """The sum, None if one of them is not known."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def beyond(value: int, least: int) -> int:
    """An upper or expected figure as Work has it: -1 where it is the same as at least."""
    return -1 if value == least else value


def each_once(call: OpCall, twice: Sequence[int] = ()) -> int | None:
    """Bytes of all tensors of a call, those at the places in `twice` (updated in place) read and written.

    For custom ops that get their results as arguments. None if a type is not known or a tensor to update is absent.
    """
    updated = [call.tensor(place) for place in twice]
    return weigh(*call.tensors(), *updated)


def broadcast(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The common shape, aligned at the last dimension; None if there is none."""
    result: list[int] = []
    for shape in shapes:
        longer, shorter = (list(shape), result) if len(shape) > len(result) else (result, list(shape))
        offset = len(longer) - len(shorter)
        for place, size in enumerate(shorter, start=offset):
            if longer[place] != size and 1 not in (longer[place], size):
                return None
            longer[place] = size if longer[place] == 1 else longer[place]
        result = longer
    return tuple(result)


def promoted(operands: Iterable[Argument]) -> str:
    """The element type that operands are computed in, "" if it is not known.

    Tensors with dimensions decide; numbers and tensors without dimensions only by kind (a float makes int64 to fp32).
    """
    arguments = list(operands)
    tensors = [one for one in arguments if isinstance(one, Tensor)]
    if any(not one.dtype for one in tensors):
        return ""
    strong = [one.dtype for one in tensors if one.shape] or [one.dtype for one in tensors]
    weak = [one.dtype for one in tensors if not one.shape] if len(strong) < len(tensors) else []
    weak += [_kind(one) for one in arguments if not isinstance(one, Tensor)]
    result = ""
    for dtype in strong:
        result = _wider(result, dtype)
    # Python numbers are recorded as fp64 and int64; they raise the kind to the default of the kind, not to fp64.
    default = {"float": "fp32", "complex": "complex64", "int": "int64"}
    for dtype in weak:
        if _rank(dtype) > _rank(result):
            result = default.get(_kind_of(dtype), dtype)
    return result


def floating(dtype: str) -> str:
    """The type of a result that is never an integer, as of a square root: fp32 for integers and bool."""
    return "fp32" if dtype in _INTEGERS or dtype == "bool" else dtype


def vector_math(dtype: str) -> str:
    """What the vector units compute this type with; "" for integers, which take no floating-point operations."""
    if dtype in ("fp64", "complex128"):
        return "fp64"
    return "fp32" if dtype in _FLOATS or dtype == "complex64" else ""


def matrix_math(dtype: str) -> str:
    """What a product of matrices of this type runs on, one of MATHS; "" if no matrix unit takes it."""
    return _MATRIX.get(dtype, "")


def vector_work(
    family: str, operations: int, total: int | None, dtype: str, *, bytes_high: int = -1, notes: tuple[str, ...] = ()
) -> Work | None:
    """Work of the vector units on this type: no operations for integers. None where the bytes are not known."""
    if total is None:
        return None
    math = vector_math(dtype) if operations else ""
    return Work(family, operations if math else 0, total, math, bytes_high=beyond(bytes_high, total), notes=notes)


def dtype_of_number(value: Argument) -> str:
    """The type that a recorded dtype argument means, "" if it is none."""
    return _SCALAR_TYPES.get(value, "") if type(value) is int else ""


def result_of(call: OpCall, after: int) -> Tensor | None:
    """The tensor that an out-variant writes: the last argument, if it comes after the inputs."""
    return call.tensor(-1) if len(call.args) > after else None


def _kind(value: Argument) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64"
    return "fp32" if isinstance(value, float) else ""


def _kind_of(dtype: str) -> str:
    if dtype in _FLOATS:
        return "float"
    return "complex" if dtype in _COMPLEX else "int" if dtype in _INTEGERS else dtype


def _rank(dtype: str) -> int:
    return {"": -1, "bool": 0, "int": 1, "float": 2, "complex": 3}.get(_kind_of(dtype), 2)


def _wider(one: str, other: str) -> str:
    if _rank(one) != _rank(other):
        return one if _rank(one) > _rank(other) else other
    if {one, other} == {"fp16", "bf16"}:
        return "fp32"
    for order in (_FLOATS, _COMPLEX, _INTEGERS):
        if one in order and other in order:
            return max(one, other, key=order.index)
    return one
