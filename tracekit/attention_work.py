"""The work of attention from what it counts and how its tensors lie in memory.

    flops   2 pairs (query width + output width), softmax left out: the same sum as in PyTorch's flop counter
    bytes   queries and outputs once, keys and values once per sequence for all the query heads that share them

Only matrix products count: exponentials, scales and masks are some 5 operations a pair and run on other units. What a
kernel writes beside the output (log-sum-exp, partial results of a split) is left out: it needs not be written.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.attention_counts import Counts, Range
from tracekit.op_call import Tensor
from tracekit.work import Work
from tracekit.work_sizes import beyond

_MATHS = {"fp64": "fp64_matrix", "fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}


@dataclass(frozen=True, slots=True)
class Rows:
    """What belongs to one token, all heads together. query, output: elements that its products run over, heads times
    width. read_bytes, written_bytes: of its queries and outputs. key_bytes: of its key and value. math: one of MATHS.
    """

    query: int
    output: int
    read_bytes: int
    written_bytes: int
    key_bytes: int
    math: str


def math_of(tensor: Tensor) -> str | None:
    """What multiplies tensors of this type, None if it is not known."""
    return _MATHS.get(tensor.dtype)


def output_itemsize(query: Tensor, output: Tensor | None) -> int | None:
    """Bytes of an output element: that of the recorded output, or the query's type; fp8 queries give 16 bits."""
    if output is not None and output.itemsize is not None:
        return output.itemsize
    return None if query.itemsize is None else max(query.itemsize, 2)


def attention_rows(query: Tensor, key: Tensor, value: Tensor, output: Tensor | None = None) -> Rows | None:
    """Of tensors whose last two dimensions are heads and width. Heads of keys may be fewer (grouped queries).

    None if shapes do not fit each other or a type is not known.
    """
    if min(len(query.shape), len(key.shape), len(value.shape)) < 2:
        return None
    (heads, width), (key_heads, key_width), (value_heads, value_width) = (
        tensor.shape[-2:] for tensor in (query, key, value)
    )
    shared = key_heads > 0 and key_heads == value_heads and heads % key_heads == 0
    math, written = math_of(query), output_itemsize(query, output)
    sizes = (query.itemsize, key.itemsize, value.itemsize)
    if not shared or width != key_width or math is None or written is None or None in sizes:
        return None
    read, key_size, value_size = (size or 0 for size in sizes)
    return Rows(
        heads * width,
        heads * value_width,
        heads * width * read,
        heads * value_width * written,
        _stored_heads(key) * width * key_size + _stored_heads(value) * value_width * value_size,
        math,
    )


def _stored_heads(tensor: Tensor) -> int:
    """Heads in memory: keys that were expanded to all query heads (stride 0) are there once."""
    broadcast = len(tensor.strides) == len(tensor.shape) and tensor.strides[-2] == 0
    return min(1, tensor.shape[-2]) if broadcast else tensor.shape[-2]


def attention_work(
    counts: Counts, rows: Rows, *, cached: bool, extra_bytes: int = 0, notes: tuple[str, ...] = ()
) -> Work:
    """The work of these sums. cached: all keys come from a cache; else only those that the queries do not bring."""
    moved = counts.queries * (rows.read_bytes + rows.written_bytes) + extra_bytes
    flops, keys = counts.pairs_range.times(2 * (rows.query + rows.output)), counts.keys_range
    earlier = keys.expected if cached else max(0, keys.expected - counts.queries)
    return within(
        flops,
        Range.exactly(moved) + keys.times(rows.key_bytes),
        rows.math,
        kv_bytes=earlier * rows.key_bytes,
        notes=(*counts.notes, *notes),
    )


def within(flops: Range, moved: Range, math: str, *, kv_bytes: int = 0, notes: tuple[str, ...] = ()) -> Work:
    """Work of attention of these operations and bytes."""
    return Work(
        "attention",
        flops.low,
        moved.low,
        math if flops.high else "",
        flops_high=beyond(flops.high, flops.low),
        bytes_high=beyond(moved.high, moved.low),
        kv_bytes=kv_bytes,
        notes=notes,
        flops_expected=beyond(flops.expected, flops.low),
        bytes_expected=beyond(moved.expected, moved.low),
    )


def backward_work(counts: Counts, rows: Rows) -> Work:
    """Of the gradients: five products where the forward pass has two, as scores are computed again (FlashAttention).

    3 of them run over the width of keys (scores, gradients of queries and of keys), 2 over that of values. Read once:
    queries, keys, values, outputs and their gradients; written: gradients of queries, keys and values.
    """
    moved = Range.exactly(2 * counts.queries * (rows.read_bytes + rows.written_bytes))
    return within(
        counts.pairs_range.times(2 * (3 * rows.query + 2 * rows.output)),
        moved + counts.keys_range.times(2 * rows.key_bytes),
        rows.math,
        notes=(*counts.notes, "backward"),
    )


def flops_of(work: Work) -> Range:
    """Operations at least, expected, at most."""
    return Range(work.flops, max(work.flops, work.flops_expected), max(work.flops, work.flops_high))


def bytes_of(work: Work) -> Range:
    """Bytes at least, expected, at most."""
    return Range(work.bytes, max(work.bytes, work.bytes_expected), max(work.bytes, work.bytes_high))
