"""How much work are embeddings, gathers, scatters, joins of tensors and writes to a KV cache? Bytes only.

Which rows an index names is not recorded. Of a table at least nothing new is read (all may name one row, which caches
hold), at most one row per index, which is what is expected. What is written is certain.
"""

from __future__ import annotations

import re
from math import ceil

from tracekit.op_call import DTYPES, OpCall, Tensor
from tracekit.work import Work, models
from tracekit.work_reduce import axis
from tracekit.work_sizes import beyond, result_of, size_of, sum_known, weigh

# Profilers record no more tensors of a list than this.
_LIST_LIMIT = 30
_JOINS = ("aten::cat", "aten::concat", "aten::_cat", "aten::stack")
_OPAQUE = re.compile(r"\bOpaqueType<\s*(?:\(unsigned int\))?(\d+)")
_TYPED = re.compile(r"\bCatArrayBatchedCopy\w*<\s*([\w:]+)")


@models("aten::embedding")
def embedding(call: OpCall) -> Work | None:
    """(table of rows x width, indices): a row for each index."""
    table, indices = call.tensor(0), call.tensor(1)
    if table is None or indices is None or len(table.shape) != 2:
        return None
    return _gathered("embedding", table, indices.elements * table.shape[1], indices)


@models("aten::index_select")
def index_select(call: OpCall) -> Work | None:
    """(self, dimension, index): slices of self, one for each index."""
    table, indices, dim = call.tensor(0), call.tensor(2), call.number(1)
    at = None if table is None else axis(table.shape, dim)
    if table is None or indices is None or at is None or len(indices.shape) > 1 or not table.shape[at]:
        return None
    return _gathered("index", table, table.elements // table.shape[at] * indices.elements, indices)


@models("aten::gather")
def gather(call: OpCall) -> Work | None:
    """(self, dimension, index): an element for each of the index, which may be broadcast (stride 0).

    aten::embedding does that on some devices: rows of int64 as wide as the table, all of stride 0. Where strides were
    not recorded, one number per place of the dimension is certain.
    """
    table, indices, dim = call.tensor(0), call.tensor(2), call.number(1)
    if table is None or indices is None:
        return None
    if indices.shape and not indices.strides:
        if (at := axis(indices.shape, dim)) is None:
            return None
        certain = Tensor((indices.shape[at] if indices.elements else 0,), indices.dtype)
        return _gathered("index", table, indices.elements, certain, indices)
    return _gathered("index", table, indices.elements, indices)


@models("aten::scatter", "aten::scatter_", "aten::index_copy", "aten::index_copy_")
def scatter(call: OpCall) -> Work | None:
    """(self, dimension, index, source or number): written are as many elements as the source or the index has."""
    return _scattered(call, adds=False)


@models("aten::scatter_add", "aten::scatter_add_", "aten::index_add", "aten::index_add_")
def scatter_add(call: OpCall) -> Work | None:
    """(self, dimension, index, source): what is written was read before."""
    return _scattered(call, adds=True)


@models("aten::_index_put_impl_", "aten::index_put_", "aten::index_put")
def index_put(call: OpCall) -> Work | None:
    """(self, indices, values, accumulate): at least the values are read and written. The indices are not recorded."""
    target, values = call.tensor(0), call.tensor(2)
    if target is None or values is None:
        return None
    passes = 2 if call.flag(3) else 1
    total = sum_known((weigh(values), size_of(passes * values.elements, target.dtype)))
    return None if total is None else Work("index", 0, total, notes=("indices not recorded",))


@models("aten::slice_scatter", "aten::select_scatter")
def slice_scatter(call: OpCall) -> Work | None:
    """(self, source): a copy of self in which a part comes from the source."""
    target, source = call.tensor(0), call.tensor(1)
    if target is None or source is None or source.elements > target.elements:
        return None
    kept = size_of(target.elements - source.elements, target.dtype)
    total = sum_known((kept, weigh(source), size_of(target.elements, target.dtype)))
    return None if total is None else Work("index", 0, total)


@models(*_JOINS)
def joined(call: OpCall) -> Work | None:
    """(list of tensors, dimension, out): profilers do not record the type of the elements of a list.

    It is that of an out tensor; without one the kernel's name tells it (`join_by_kernel`).
    """
    out = result_of(call, 1)
    size = None if out is None else out.itemsize
    return join_by_kernel(call, call.kernel) if size is None else join(call, size)


def join(call: OpCall, itemsize: int) -> Work | None:
    """The work of aten::cat or aten::stack for elements of `itemsize` bytes."""
    parts = call.args[0] if call.args else None
    if not isinstance(parts, tuple) or not parts or not all(isinstance(one, Tensor) for one in parts):
        return None
    elements = sum(one.elements for one in parts if isinstance(one, Tensor))
    notes = ("at least: the list is cut short",) if len(parts) >= _LIST_LIMIT else ()
    return Work("index", 0, 2 * elements * itemsize, notes=notes)


def join_by_kernel(call: OpCall, kernel: str) -> Work | None:
    """The same, with the size of an element from the name of the kernel that ran: `CatArrayBatchedCopy<float, ...>`.

    Newer ones are instances for opaque types of a size, `OpaqueType<2u>`. None where the name tells neither.
    """
    opaque = _OPAQUE.search(kernel)
    typed = _TYPED.search(kernel)
    if call.name not in _JOINS or (opaque is None and typed is None):
        return None
    dtype = DTYPES.get(typed[1].removeprefix("c10::"), "") if typed else ""
    size = int(opaque[1]) if opaque else Tensor((), dtype).itemsize
    return None if size is None else join(call, size)


@models("aten::arange")
def arange(call: OpCall) -> Work | None:
    """(start, end, step, out) or (end, out): an out tensor is recorded as it was before, often empty."""
    out = call.tensor(-1)
    numbers = [call.number(place) for place in range(len(call.args) - 1)]
    if out is None or any(one is None for one in numbers) or len(numbers) not in (1, 3):
        return None
    start, end, step = (0, numbers[0], 1) if len(numbers) == 1 else numbers
    if start is None or end is None or not step:
        return None
    try:
        elements = max(0, ceil((end - start) / step))
    except (OverflowError, ValueError):
        return None
    total = size_of(elements, out.dtype)
    return None if total is None else Work("elementwise", 0, total)


@models(
    "_C_cache_ops::reshape_and_cache",
    "_C_cache_ops::reshape_and_cache_flash",
    "aiter::reshape_and_cache",
    "aiter::reshape_and_cache_flash",
)
def reshape_and_cache(call: OpCall) -> Work | None:
    """(key, value, key cache, value cache, slots): one token of keys and values for each slot, at the cache's type."""
    key, value, slots = call.tensor(0), call.tensor(1), call.tensor(4)
    return _cached([(key, call.tensor(2)), (value, call.tensor(3))], slots)


@models("sglang::store_cache", "sgl_kernel::store_cache")
def store_cache(call: OpCall) -> Work | None:
    """(key, value, key cache, value cache, slots, ...)."""
    return reshape_and_cache(call)


@models("_C_cache_ops::concat_and_cache_mla", "aiter::concat_and_cache_mla")
def concat_and_cache_mla(call: OpCall) -> Work | None:
    """(latent, rotated key, cache, slots): the two side by side in one cache."""
    return _cached([(call.tensor(0), call.tensor(2)), (call.tensor(1), call.tensor(2))], call.tensor(3))


@models("vllm::unified_kv_cache_update", "vllm::unified_mla_kv_cache_update")
def unified_kv_cache_update(call: OpCall) -> Work | None:
    """vLLM's: (key, value, name of the layer, ...), latent and rotated key for MLA. The cache is found by that name.

    Its type is not recorded, unless a text says it (`fp8_e4m3`): at least a byte a value, expected is the keys' type.
    """
    sources, tokens = (call.tensor(0), call.tensor(1)), {one.shape[:1] for one in call.tensors()[:2]}
    read = weigh(*sources)
    elements = sum(one.elements for one in sources if one is not None)
    if read is None or len(tokens) != 1 or () in tokens:
        return None
    said = any(isinstance(one, str) and one.startswith("fp8") for one in call.args[2:])
    low, high = read + elements, read + (elements if said else read)
    notes = ("no slot taken as padding", *(() if said else ("cache type not recorded",)))
    top = beyond(high, low)
    return Work("kv_cache", 0, low, bytes_high=top, bytes_expected=top, notes=notes)


def _cached(pairs: list[tuple[Tensor | None, Tensor | None]], slots: Tensor | None) -> Work | None:
    """Tokens of each source are read and written to its cache. There may be fewer slots than (padded) tokens."""
    if slots is None:
        return None
    amounts: list[int | None] = [weigh(slots)]
    for source, cache in pairs:
        if source is None or cache is None or not source.shape or not source.shape[0]:
            return None
        elements = source.elements // source.shape[0] * min(slots.elements, source.shape[0])
        amounts += [size_of(elements, source.dtype), size_of(elements, cache.dtype)]
    total = sum_known(amounts)
    return None if total is None else Work("kv_cache", 0, total, notes=("no slot taken as padding",))


def _gathered(family: str, table: Tensor, elements: int, indices: Tensor, at_most: Tensor | None = None) -> Work | None:
    """Results are written, and as many elements of the table read, or none. at_most: the indices if not broadcast."""
    written = size_of(elements, table.dtype)
    least = sum_known((weigh(indices), written))
    most = sum_known((weigh(at_most or indices), written, size_of(min(elements, table.elements), table.dtype)))
    if least is None or most is None:
        return None
    # Expected is each index another row: the vocabulary and the cache are far larger than a batch.
    expected = high = beyond(most, least)
    return Work(family, 0, least, bytes_high=high, bytes_expected=expected, notes=("indices taken as distinct",))


def _scattered(call: OpCall, *, adds: bool) -> Work | None:
    target, indices, source = call.tensor(0), call.tensor(2), call.tensor(3)
    if target is None or indices is None:
        return None
    given = source if source is not None and source.shape else None
    # A source of scatter may be larger than the index, which decides; that of index_add and index_copy is all used.
    elements = indices.elements if given is None or "scatter" in call.name else given.elements
    if call.name.endswith("_"):
        touched = elements * (2 if adds else 1)
    else:  # the result is a copy, of which some elements come from elsewhere
        touched = 2 * target.elements - (0 if adds else min(elements, target.elements))
    amounts = [weigh(indices), size_of(touched, target.dtype)]
    amounts += [size_of(elements, given.dtype)] if given is not None else []
    total = sum_known(amounts)
    return None if total is None else Work("index", 0, total, notes=("indices taken as distinct",))
