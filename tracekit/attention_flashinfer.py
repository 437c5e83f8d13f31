"""What does a call of FlashInfer's attention cost? Sequences in one row, keys in pages or beside them.

Arguments as FlashInfer's csrc/*_jit_binding.cu and flashinfer/prefill.py have them while its kernels are PyTorch ops
(later releases call them without one). After the output numbers follow whose order never changed: kind of mask, layout,
window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracekit.attention_counts import Batch, Mask, counts_of_equal, counts_within
from tracekit.attention_work import attention_rows, attention_work
from tracekit.flash_calls import told_by_load
from tracekit.op_call import OpCall, Tensor
from tracekit.step_marks import Composition
from tracekit.work import Work

_HEADS_FIRST = 1  # of TensorLayout
_MASKS = {0: Mask(causal=False), 1: Mask(causal=True)}  # of MaskMode; the others are bits of a tensor


@dataclass(frozen=True, slots=True)
class _Run:
    """A call. key, value: [(pages,) tokens, heads, width]. mask: with its window."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor | None
    mask: Mask


def flashinfer_decode(call: OpCall, load: Composition | None) -> Work | None:
    """Two workspaces, a plan, query [sequences, heads, width], caches, each sequence's first page, pages, how much of
    its last page is filled, output, log-sum-exp; then layout and window.
    """
    run = _run(call, 3, output_at=9, has_kind=False)
    if run is None or len(run.query.shape) != 3 or len(run.key.shape) != 4:
        return None
    sequences = run.query.shape[0]
    return _paged(run, call.tensor(7), (sequences, sequences, 1), load)


def flashinfer_prefill(call: OpCall, load: Composition | None) -> Work | None:
    """The same with each sequence's first query before its first page, and the kind of mask before the layout. Of a
    `ragged_run` keys and values are [tokens, heads, width], and each sequence's first key stands for pages.
    """
    paged = "ragged" not in call.name
    run, starts = _run(call, 3, output_at=10 if paged else 8, has_kind=True), call.tensor(6)
    if run is None or starts is None or len(run.query.shape) != 3 or len(run.key.shape) != (4 if paged else 3):
        return None
    sequences, queries = starts.elements - 1, run.query.shape[0]
    longest = queries - sequences + 1
    if sequences <= 0 or longest <= 0:
        return None
    if paged:
        return _paged(run, call.tensor(8), (sequences, queries, longest), load)
    keys = run.key.shape[0]
    own = Batch(sequences, queries, longest, keys, keys, keys - sequences + 1, own_keys=keys == queries)
    return _work(run, own, load, cached=False)


def flashinfer_single(call: OpCall, _: Composition | None) -> Work | None:
    """One sequence: query [queries, heads, width], keys and values [tokens, heads, width], workspace, output; then kind
    of mask, layout and window. Of a decode the query is [heads, width], and there is no kind of mask.
    """
    query = call.tensor(0)
    decode = query is not None and len(query.shape) == 2
    run = _run(call, 0, output_at=4, has_kind=not decode)
    if run is None or len(run.query.shape) != (2 if decode else 3) or len(run.key.shape) != 3:
        return None
    rows = attention_rows(run.query, run.key, run.value, run.output)
    counts = counts_of_equal(1, 1 if decode else run.query.shape[0], run.key.shape[0], run.mask)
    return None if rows is None else attention_work(counts, rows, cached=decode)


def _run(call: OpCall, first: int, *, output_at: int, has_kind: bool) -> _Run | None:
    """Query, keys and values from a place on, and the numbers after the output."""
    query, key, value = (call.tensor(first + at) for at in range(3))
    whole = [one for one in call.args[output_at:] if type(one) is int]
    if query is None or key is None or value is None or len(whole) < 2 + has_kind:
        return None
    if len(key.shape) not in (3, 4) or key.shape[:-1] != value.shape[:-1]:
        return None
    kind, layout, window = whole[:3] if has_kind else (1, *whole[:2])
    if layout == _HEADS_FIRST:
        key, value = _tokens_first(key), _tokens_first(value)
    mask = replace(_MASKS.get(kind, Mask(causal=None)), left=max(window, -1))
    return _Run(query, key, value, call.tensor(output_at), mask)


def _tokens_first(tensor: Tensor) -> Tensor:
    """[.., heads, tokens, width] as [.., tokens, heads, width]."""
    *before, heads, tokens, width = tensor.shape
    return Tensor((*before, tokens, heads, width), tensor.dtype)


def _paged(run: _Run, pages: Tensor | None, batch: tuple[int, int, int], load: Composition | None) -> Work | None:
    """pages: the list of all pages in use. batch: sequences, queries, most of one. One may have all of the pages."""
    if pages is None:
        return None
    room = pages.elements * run.key.shape[1]
    sequences, queries, longest = batch
    whole = Batch(sequences, queries, longest, min(queries, room), room, room)
    return _work(run, whole, load, cached=True)


def _work(run: _Run, batch: Batch, load: Composition | None, *, cached: bool) -> Work | None:
    rows, counts = attention_rows(run.query, run.key, run.value, run.output), counts_within(batch, run.mask)
    if rows is None or counts is None:
        return None
    return attention_work(told_by_load(counts, run.mask, load), rows, cached=cached)
