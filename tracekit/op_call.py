"""One call of a framework's op, as a trace records it: tensors with shape, strides and element type, and scalars.

What profilers write differs (`c10::BFloat16`, `signed char`, nested dims of a TensorList). Here it is one thing, for
the work model. Nothing recorded is ever evaluated: text that is no number stays text.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

# Types of elements by the names that PyTorch's profiler and NVTX ranges print, without `c10::`.
DTYPES: dict[str, str] = {
    "double": "fp64",
    "float": "fp32",
    "Half": "fp16",
    "BFloat16": "bf16",
    "Float8_e4m3fn": "fp8_e4m3",
    "Float8_e4m3fnuz": "fp8_e4m3",
    "Float8_e5m2": "fp8_e5m2",
    "Float8_e5m2fnuz": "fp8_e5m2",
    "Float8_e8m0fnu": "e8m0",
    "Float4_e2m1fn_x2": "fp4x2",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "signed char": "int8",
    "char": "int8",
    "unsigned char": "uint8",
    "unsigned short": "uint16",
    "unsigned int": "uint32",
    "unsigned long": "uint64",
    "bool": "bool",
    "complex<float>": "complex64",
    "complex<double>": "complex128",
}
_BYTES = {
    **dict.fromkeys(("fp64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("fp32", "int32", "uint32"), 4),
    **dict.fromkeys(("fp16", "bf16", "int16", "uint16"), 2),
    **dict.fromkeys(("fp8_e4m3", "fp8_e5m2", "e8m0", "fp4x2", "int8", "uint8", "bool"), 1),
    "complex128": 16,
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument. dtype: "bf16", "fp8_e4m3", "int32", ...; "" if it is not known. strides: () if not recorded.

    An element of fp4x2 is a byte with two values: the last dimension counts bytes.
    """

    shape: tuple[int, ...]
    dtype: str = ""
    strides: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """Elements by its shape."""
        return math.prod(self.shape)

    @property
    def stored(self) -> int:
        """Elements in memory: a dimension of stride 0 is one element that is read again and again."""
        if len(self.strides) != len(self.shape):
            return self.elements
        return math.prod(size for size, stride in zip(self.shape, self.strides, strict=True) if stride or not size)

    @property
    def itemsize(self) -> int | None:
        """Bytes of an element, None if its type is not known."""
        return _BYTES.get(self.dtype)

    @property
    def bytes(self) -> int | None:
        """Bytes in memory, None if its type is not known."""
        return None if self.itemsize is None else self.stored * self.itemsize


Argument = Tensor | tuple[Tensor, ...] | int | float | bool | str | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Message:
    """What PyTorch notes of a collective: its kind (`allreduce`), type (`BFloat16`), elements of a rank, ranks."""

    collective: str
    dtype: str
    elements_in: int
    elements_out: int
    group_size: int | None


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call: the op's name without overload (`aten::add`), and its arguments by place, None where not known.

    kernel: name of a kernel that it launched, "" where that was not asked for. message: of a collective.
    """

    name: str
    args: tuple[Argument, ...] = ()
    kernel: str = ""
    message: Message | None = None

    def tensor(self, at: int) -> Tensor | None:
        """The tensor at this place, None if there is none, or its dimensions were not recorded."""
        found = self.args[at] if -len(self.args) <= at < len(self.args) else None
        return found if isinstance(found, Tensor) else None

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors in order, those of lists among them."""
        found: list[Tensor] = []
        for one in self.args:
            if isinstance(one, Tensor):
                found.append(one)
            elif isinstance(one, tuple):
                found += [each for each in one if isinstance(each, Tensor)]
        return tuple(found)

    def number(self, at: int) -> int | float | None:
        """The number at this place, None if there is none."""
        found = self.args[at] if -len(self.args) <= at < len(self.args) else None
        return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None

    def flag(self, at: int) -> bool | None:
        """The truth value at this place, None if there is none."""
        found = self.args[at] if -len(self.args) <= at < len(self.args) else None
        return found if isinstance(found, bool) else None


def parse_call(
    name: str,
    shapes: str | None,
    dtypes: str | None,
    scalars: str | None,
    strides: str | None,
    *,
    kernel: str = "",
    message: Message | None = None,
) -> OpCall:
    """A call from the columns `name`, `shapes`, `dtypes`, `scalars` and the `Input Strides` of `args`, all JSON lists.

    What cannot be understood is None: a model that needs it then has no answer. Never raises for what a trace holds.
    """
    dims, types = _list(shapes), _list(dtypes)
    values, steps = _list(scalars), _list(strides)
    count = max(len(dims), len(types), len(values))
    args = tuple(_argument(_at(dims, k), _at(types, k), _at(values, k), _at(steps, k)) for k in range(count))
    return OpCall(name, args, kernel, message)


def _list(text: str | None) -> list[Any]:
    if not text:
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _at(values: list[Any], place: int) -> Any:
    return values[place] if place < len(values) else None


def _argument(dims: Any, dtype: Any, value: Any, strides: Any) -> Argument:
    kind = dtype if isinstance(dtype, str) else ""
    if kind in ("Scalar", "ScalarList"):
        return _scalar(value)
    if kind in ("TensorList", "GenericList"):
        return tuple(one for each in (dims if isinstance(dims, list) else []) if (one := _tensor(each, "", None)))
    known = kind.removeprefix("c10::")
    if known in DTYPES:  # a scalar tensor has no dimensions
        return _tensor(dims if isinstance(dims, list) else [], DTYPES[known], strides)
    if isinstance(dims, list) and dims and all(isinstance(one, list) for one in dims):
        return tuple(one for each in dims if (one := _tensor(each, "", None)))
    if isinstance(dims, list) and dims:
        return _tensor(dims, "", strides)
    return _scalar(value)


def _tensor(dims: Any, dtype: str, strides: Any) -> Tensor | None:
    sizes = _sizes(dims)
    if sizes is None or any(size < 0 for size in sizes):
        return None
    return Tensor(sizes, dtype, _sizes(strides) or ())


def _sizes(values: Any) -> tuple[int, ...] | None:
    if not isinstance(values, list) or not all(type(one) is int for one in values):
        return None
    return tuple(values)


def _scalar(value: Any) -> Argument:
    """A recorded scalar: `1`, `0.125`, `True`, `[-1]`, or any text."""
    if value is None or value == "":
        return None
    if isinstance(value, (bool, int, float)):
        return value
    text = str(value).strip()
    if text in ("True", "False"):
        return text == "True"
    if text.startswith("["):
        return _sizes(_list(text)) or text
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
