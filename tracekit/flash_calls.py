"""Which sequences does a call of FlashAttention's family work on? Its many copies differ in places, not in order.

All of them (FlashAttention 2 and 3, the forks in vLLM and SGLang, AITER's) take queries, keys, values first, then
tables of integers (cumulated lengths, pages), then the longest lengths, then a flag `causal` and the window beside it.
So what a thing is, is told by its kind and order: the places moved between versions, the order did not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracekit.attention_counts import Batch, Counts, Mask, counts_of_equal, counts_of_step, counts_within
from tracekit.op_call import OpCall, Tensor
from tracekit.step_marks import Composition
from tracekit.work_sizes import INDEX_TYPES


@dataclass(frozen=True, slots=True)
class Form:
    """How a member of the family differs. flags: how many flags stand before `causal`. causal, window: the places where
    they are fixed. top_left: how a causal mask is aligned. pages_at: place of the list of all pages in use. latent_at:
    of queries that multiply the values too (FlashAttention 3 for latent attention).
    """

    flags: int = 0
    causal: int | None = None
    window: int | None = None
    top_left: bool = False
    pages_at: int | None = None
    latent_at: int | None = None


@dataclass(frozen=True, slots=True)
class FlashCall:
    """Queries, keys and values with heads and width last, and the sums. latent: queries for the values."""

    query: Tensor
    key: Tensor
    value: Tensor
    counts: Counts
    cached: bool
    latent: Tensor | None


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What stands in a call. lengths: whole numbers before the mask: of the longest queries, of the longest keys.
    tables: tensors of integers. pages: the list of all pages in use, for a cache that has one.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    lengths: tuple[int, ...]
    tables: tuple[Tensor, ...]
    pages: Tensor | None

    @property
    def cached(self) -> bool:
        """Whether keys come from a cache: there is a table of pages, or lengths beside queries of one length."""
        ranks = {len(table.shape) for table in self.tables}
        return self.pages is not None or 2 in ranks or (len(self.query.shape) == 4 and 1 in ranks)


def flash_call(call: OpCall, form: Form, load: Composition | None = None) -> FlashCall | None:
    """Of a recorded call, None where it lacks what tells the lengths. load: makes them exact if it is this call's."""
    query, key, value = (call.tensor(at) for at in range(3))
    if query is None or key is None or value is None or len(query.shape) not in (3, 4) or len(key.shape) not in (3, 4):
        return None
    at = _causal_at(call, form)
    mask = _mask(call, form, at)
    lengths = tuple(one for one in call.args[: at or 0] if type(one) is int and one > 0)
    tables = tuple(tensor for tensor in call.tensors()[3:] if tensor.dtype in INDEX_TYPES)
    pages = None if form.pages_at is None else call.tensor(form.pages_at)
    if form.pages_at is not None and (pages is None or len(pages.shape) != 1):
        return None
    recorded = _Recorded(query, key, value, lengths, tables, pages)
    if len(query.shape) == 4 and not recorded.cached:
        counts = _dense(query, key, mask)
    else:
        batch = _batch(recorded)
        counts = None if batch is None else counts_within(batch, mask)
        counts = None if counts is None else told_by_load(counts, mask, load)
    latent = None if form.latent_at is None else call.tensor(form.latent_at)
    return None if counts is None else FlashCall(query, key, value, counts, recorded.cached, latent)


def _dense(query: Tensor, key: Tensor, mask: Mask) -> Counts | None:
    """[batch, tokens, heads, width]: all sequences are of one length."""
    if len(key.shape) != 4 or query.shape[0] != key.shape[0]:
        return None
    counts = counts_of_equal(query.shape[0], query.shape[1], key.shape[1], mask)
    if len(key.strides) == 4 and key.strides[0] == 0 and key.shape[0] > 1:  # one prompt that is read for all
        counts = replace(counts, keys=counts.keys // key.shape[0])
    return counts


def _causal_at(call: OpCall, form: Form) -> int | None:
    if form.causal is not None:
        return form.causal if call.flag(form.causal) is not None else None
    flags = [place for place, one in enumerate(call.args) if isinstance(one, bool)]
    return flags[form.flags] if form.flags < len(flags) else None


def _mask(call: OpCall, form: Form, at: int | None) -> Mask:
    if at is None:
        return Mask(None, top_left=form.top_left)
    first = at + 1 if form.window is None else form.window
    left, right = (_whole(call.number(place)) for place in (first, first + 1))
    if left is None or right is None or len(call.args) <= first + 1:
        left = right = -1
    return Mask(call.flag(at), max(left, -1), max(right, -1), form.top_left)


def _whole(number: int | float | None) -> int | None:
    return number if isinstance(number, int) else None


def _batch(recorded: _Recorded) -> Batch | None:
    """Of tokens of all sequences in one row, or of queries of one length and keys in pages."""
    shape, lengths = recorded.query.shape, recorded.lengths
    starts = next((table.shape[0] for table in recorded.tables if len(table.shape) == 1), 0)
    if len(shape) == 4:
        sequences, queries, longest = shape[0], shape[0] * shape[1], shape[1]
    elif starts < 2:
        return None
    else:
        sequences, queries = starts - 1, shape[0]
        longest = min(lengths[0], queries) if lengths else queries
    most = lengths[1] if len(lengths) > 1 else None
    if recorded.cached:
        room = _room(recorded)
        if room is None:
            return None
        longest_keys, high = (room if most is None else min(room, most)), sequences * room
        if recorded.pages is not None:
            high = room
        return Batch(sequences, queries, longest, min(queries, high), high, longest_keys)
    rows = recorded.key.shape[0]
    own = rows == queries and most in (None, lengths[0] if lengths else None)
    return Batch(sequences, queries, longest, rows, rows, rows if most is None else min(rows, most), own_keys=own)


def _room(recorded: _Recorded) -> int | None:
    """Keys that a sequence can have at most: its row in the table of pages, or all pages in use."""
    shape = recorded.key.shape
    page = shape[1] if len(shape) == 4 else 1
    if recorded.pages is not None:
        return recorded.pages.shape[0] * page
    table = next((one for one in recorded.tables if len(one.shape) == 2), None)
    if len(shape) != 4:
        return None
    return page if table is None else table.shape[1] * page


def told_by_load(counts: Counts, mask: Mask, load: Composition | None) -> Counts:
    """What shapes say of a call, or the step's own sums where they leave it open and both may be true at once:
    otherwise the call is of something else.
    """
    if load is None or not mask.causal or counts.exact:
        return counts
    phases = counts_of_step(load, counts.queries, mask.window)
    return phases.together if phases is not None and _agree(counts, phases.together) else counts


def _agree(one: Counts, other: Counts) -> bool:
    pairs = one.pairs <= other.pairs_high and other.pairs <= one.pairs_high
    return pairs and one.keys <= other.keys_high and other.keys <= one.keys_high
