"""What a kernel group is called in texts and pictures: its work first (`mm 8944x1024x2816`, `qkv`), then its kernel.

Also how sure its figures are: `~` before what is expected, `>=` before what is known from below only.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracekit.analysis import Row
from tracekit.kernel_names import name_forms
from tracekit.text_grid import cut

OPEN = "key lengths not recorded"  # note on what may do far more than is known
_KERNEL, _SIZES = 60, 48  # characters of a part of a name
_WIDE = 1.05  # between the ends of an interval: from here on, it is said
# Ranges that torch.compile writes around the code it made: they have no inputs, and what it launches is no op.
COMPILED = re.compile(r"(## )?(Call )?(Torch-Compiled Region|CompiledFxGraph|CompiledFunction)")


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product, rows by inner size by columns, `batch` of them."""

    batch: int
    m: int
    k: int
    n: int

    def __str__(self) -> str:
        sizes = f"{self.m}x{self.k}x{self.n}"
        return sizes if self.batch == 1 else f"{self.batch} of {sizes}"


# ---- the work --------------------------------------------------------------------------------------------------------

# Where the two factors are among the inputs; the rest have them first.
_AFTER_A_BIAS = frozenset({"addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation"})
_TRANSPOSED = frozenset({"linear"})
_PRODUCTS = _AFTER_A_BIAS | _TRANSPOSED | {"mm", "bmm", "matmul", "mv", "_int_mm", "_scaled_mm"}


def product_of(op: str | None, shapes: str | None) -> Product | None:
    """The sizes of a product of two recorded matrices; None for any other op, or if they do not fit each other."""
    name = (op or "").rpartition("::")[2]
    if name not in _PRODUCTS:
        return None
    factors = _dimensions(shapes)[1 if name in _AFTER_A_BIAS else 0 :][:2]
    if len(factors) != 2 or not all(_is_tensor(one) for one in factors):
        return None
    left, right = factors
    if name in _TRANSPOSED:
        right = right[::-1]
    if len(right) == 1:
        right = [*right, 1]
    if not left or len(right) < 2 or left[-1] != right[-2]:
        return None
    batch = _times(right[:-2])
    return Product(batch, _times(left[:-1]) // batch if batch else 0, left[-1], right[-1])


def _dimensions(shapes: str | None) -> list[Any]:
    """What was recorded of each input; nothing if that is no list."""
    try:
        found = json.loads(shapes or "[]")
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _is_tensor(one: object) -> bool:
    return isinstance(one, list) and bool(one) and all(type(size) is int for size in one)


def _times(sizes: Sequence[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def _sizes(op: str | None, shapes: str | None) -> str:
    """Of a matrix product its three sizes; else those of the first tensor, or of the first of a list of tensors."""
    if product := product_of(op, shapes):
        return str(product)
    for one in _dimensions(shapes):
        if _is_tensor(one):
            return _by(one)
        if isinstance(one, list) and one and _is_tensor(one[0]):
            return f"{len(one)} of {_by(one[0])}"
    return ""


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def work_name(row: Row) -> str:
    """A part of the model, or an op with its sizes; where there is none, and of copies, the kernel."""
    if not row["op"] or row["category"] == "memory" or COMPILED.match(row["op"]):
        return kernel_name(row["kernel"])
    return op_with_sizes(row)


def op_with_sizes(row: Row) -> str:
    """The op without its namespace, and the sizes that it works on; "" without an op."""
    op = row["op"] or ""
    return f"{cut(op.rpartition('::')[2] or op, _SIZES)} {cut(_sizes(op, row['shapes']), _SIZES)}".strip()


# ---- the kernel ------------------------------------------------------------------------------------------------------

_COPY = re.compile(r"(Mem(?:cpy|set)\b[^(]*)\(")
_TENSILE = re.compile(r"(Cijk_[A-Za-z]+_[A-Za-z]+)_.*?(MT\d+x\d+x\d+)")
_TRACED = re.compile(r"kernel_cutlass_(?:kernel_)?(.+?)(?:_object_at_.*|_tensorptr.*|$)")  # by CuTe's Python compiler
# Functions that start whatever their template argument is.
_STARTERS = frozenset({"kernel", "Kernel", "Kernel2", "kentry", "device_kernel", "kernel_entry", "trampoline_kernel"})
_AROUND = frozenset({"enable_sm80", "enable_sm90", "enable_sm100", "enable_sm90_or_later", "enable_if", "void"})
_FUNCTOR = re.compile(r"(\w+?)(?:_functor|Functor|_kernel_cuda|_kernel_impl|_kernel|Ops)\b")
_POINTWISE = re.compile(r"\w*(elementwise_kernel\w*|reduce_kernel|multi_tensor_apply_kernel)")


def kernel_name(kernel: str) -> str:
    """The bare function; of one that only starts another (`kentry`, `Kernel2`) the other; `Memcpy HtoD` of copies."""
    if copied := _COPY.match(kernel):
        return copied[1].strip()
    if tensile := _TENSILE.match(kernel):
        return f"{tensile[1]} {tensile[2]}"
    if traced := _TRACED.match(kernel):
        return cut(traced[1].strip("_") or kernel, _KERNEL)
    forms = name_forms(kernel)
    if forms.function in _STARTERS:
        return cut(_mangled_argument(kernel, forms.function) or _argument(forms.simplified) or forms.function, _KERNEL)
    if _POINTWISE.fullmatch(forms.function) and (functors := _FUNCTOR.findall(_arguments(forms.simplified))):
        return cut(f"{forms.function} ({functors[-1].strip('_')})", _KERNEL)
    return cut(forms.function, _KERNEL)


def _arguments(simplified: str) -> str:
    return simplified.partition("<")[2]


def _argument(simplified: str) -> str:
    """The first template argument that is a name of its own."""
    names = re.findall(r"[A-Za-z_]\w{3,}", _arguments(simplified))
    return next((name for name in names if name not in _AROUND), "")


def _mangled_argument(kernel: str, function: str) -> str:
    """The same of a mangled name: the last one of the first run of names with their lengths, after the function's."""
    rest = kernel.partition(f"{len(function)}{function}")[2] if kernel.startswith("_Z") else ""
    found = ""
    while (length := re.search(r"(?<!Li)(?<!\d)(\d+)(?=[A-Za-z_])", rest)) and not (found and length.start()):
        end = length.end() + int(length[1])
        found, rest = rest[length.end() : end], rest[end:]
    return found


# ---- names of several ------------------------------------------------------------------------------------------------


def titles(rows: Sequence[Row]) -> list[str]:
    """A name for each row, all different: with what tells those apart that are for the same work, at last a number."""
    said = [work_name(row) for row in rows]
    for tell in (_all_sizes, _kernel, _types, _inner, _evidence, _whole_kernel):
        alike: dict[str, set[str]] = {}
        for name, row in zip(said, rows, strict=True):
            alike.setdefault(name, set()).add(tell(row))
        said = [
            f"{name}, {more}" if len(alike[name]) > 1 and (more := tell(row)) and more not in name else name
            for name, row in zip(said, rows, strict=True)
        ]
    again: Counter[str] = Counter()
    numbered = []
    for name in said:
        again[name] += 1
        numbered.append(name if again[name] == 1 else f"{name} #{again[name]}")
    return numbered


def _all_sizes(row: Row) -> str:
    """Of the other inputs, too; of a copy those of its op."""
    if row["category"] == "memory":
        return cut(_sizes(row["op"], row["shapes"]), _SIZES)
    return cut(" ".join(_by(one) for one in _dimensions(row["shapes"])[1:] if _is_tensor(one)), _SIZES)


def _kernel(row: Row) -> str:
    return cut(kernel_name(row["kernel"]), 40)


def _types(row: Row) -> str:
    """Types of its tensors."""
    found = [one for one in _dimensions(row["dtypes"]) if isinstance(one, str) and one]
    return cut(" ".join(one.removeprefix("c10::") for one in found if "Scalar" not in one), _SIZES)


def _evidence(row: Row) -> str:
    return f"by {row['how']}" if row["how"] else ""


def _inner(row: Row) -> str:
    return cut(_argument(name_forms(row["kernel"]).simplified), 40)


def _whole_kernel(row: Row) -> str:
    return cut(name_forms(row["kernel"]).simplified, _KERNEL)


# ---- how sure a figure is --------------------------------------------------------------------------------------------


def mark(row: Row, what: str) -> str:
    """Before a figure made of `flops` or `bytes`: `>=` if known from below only, `~` if expected, "" if it is exact."""
    value, low, high = row[what], row[f"{what}_low"], row[f"{what}_high"]
    if not value:
        return ""
    if OPEN in (row["notes"] or ""):
        return ">="
    if low is not None and value > _WIDE * low:
        return "~"
    return ">=" if high is not None and high > _WIDE * value else ""


def mark_of_both(row: Row) -> str:
    """The same before a ratio of both, which nobody knows an end of."""
    return "~" if mark(row, "flops") or mark(row, "bytes") else ""


def mark_of_roof(row: Row) -> str:
    """The same before a share of the roof, which the larger of both makes."""
    return mark(row, "bytes" if (row["memory_ns"] or 0) >= (row["compute_ns"] or 0) else "flops")
