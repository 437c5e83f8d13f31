"""What does attention cost on a paged KV cache: vLLM's, paged attention kernels, and latent attention (MLA)?

Lengths of keys are in no shape: they come from the step's mark, or lie between one key a sequence and all its pages.
"""

from __future__ import annotations

from dataclasses import replace

from tracekit.attention_counts import Batch, Counts, Mask, Range, counts_of_step, counts_within
from tracekit.attention_flashinfer import flashinfer_decode, flashinfer_prefill, flashinfer_single
from tracekit.attention_work import (
    Rows,
    attention_rows,
    attention_work,
    bytes_of,
    flops_of,
    math_of,
    output_itemsize,
    within,
)
from tracekit.flash_calls import told_by_load
from tracekit.op_call import OpCall, Tensor
from tracekit.step_marks import Composition
from tracekit.work import LoadModel, Work, load_models, models
from tracekit.work_sizes import INDEX_TYPES, each_once, vector_work

_CAUSAL = Mask(causal=True)
_NOT_RECORDED = ("cache type and window not recorded",)


# ---- vLLM's op around attention --------------------------------------------------------------------------------------


@load_models("vllm::unified_attention", "vllm::unified_attention_with_output", "sglang::unified_attention_with_output")
def unified_attention(call: OpCall, load: Composition | None) -> Work | None:
    """All requests of a step. query [tokens, heads, width], key, value [tokens, key heads, width], or two dimensions.

    Neither the cache nor a window is among the arguments. At least, a query sees its own key alone, as in a window of
    one; expected is that it sees all earlier ones. Keys are counted in the type of the new ones, or of the queries
    where these are fp8 (they are only if the cache is). Writing the new keys is another op.
    """
    query, key, value = (call.tensor(at) for at in range(3))
    if query is None or key is None or value is None or load is None:
        return None
    if query.dtype.startswith("fp8"):
        key, value = (replace(one, dtype=query.dtype) for one in (key, value))
    rows = _token_rows(query, key, value, call.tensor(3))
    phases = counts_of_step(load, query.shape[0]) if query.shape else None
    if rows is None or phases is None:
        return None
    return attention_work(_any_window(phases.together), rows, cached=True, notes=_NOT_RECORDED)


def _any_window(full: Counts) -> Counts:
    """The sums where a window may be of any size. full: without one."""
    pairs, keys = (
        Range(min(full.queries, one.low), one.expected, one.high) for one in (full.pairs_range, full.keys_range)
    )
    return replace(Counts.within(full.queries, pairs, keys), notes=full.notes)


def _token_rows(query: Tensor, key: Tensor, value: Tensor, output: Tensor | None) -> Rows | None:
    """Of [tokens, heads, width], or [tokens, heads times width]: there the sums are those of one wide head of keys."""
    ranks = {len(one.shape) for one in (query, key, value)}
    if ranks == {2}:
        (tokens, row), key_row = query.shape, key.shape[1]
        if not key_row or row % key_row:
            return None
        query = Tensor((tokens, row // key_row, key_row), query.dtype)
        key, value = (Tensor((one.shape[0], 1, one.shape[1]), one.dtype) for one in (key, value))
    elif ranks != {3}:
        return None
    return attention_rows(query, key, value, output)


@load_models("trtllm::attn_custom_op_inplace")
def trtllm_attention(call: OpCall, load: Composition | None) -> Work | None:
    """TensorRT-LLM's: query [tokens, row], key, value alike or all in one row; a window; the output [tokens, row].

    Heads are not among the arguments and are not needed: rows tell the sums.
    """
    query, key, value, window = call.tensor(0), call.tensor(1), call.tensor(2), call.number(6)
    if query is None or len(query.shape) != 2 or load is None:
        return None
    tokens, row = query.shape
    later = (call.tensor(at) for at in range(9, len(call.args)))
    output = next((one for one in later if one and len(one.shape) == 2 and one.shape[0] == tokens), None)
    if output is None or output.dtype in ("uint8", "fp4x2"):  # packed: its row is not the row
        return None
    if key is None and value is None:
        width, left = divmod(row - output.shape[1], 2)
        if width <= 0 or left:
            return None
        query, key = Tensor(output.shape, query.dtype), Tensor((tokens, width), query.dtype)
        value = key
    if key is None or value is None:
        return None
    limited = window if isinstance(window, int) and window > 0 else None
    rows, phases = _token_rows(query, key, value, output), counts_of_step(load, tokens, limited)
    if rows is None or phases is None:
        return None
    return attention_work(phases.together, rows, cached=True, notes=("cache type not recorded",))


@load_models("vllm::unified_mla_attention", "vllm::unified_mla_attention_with_output")
def unified_mla_attention(call: OpCall, load: Composition | None) -> Work | None:
    """Latent attention of a step: query [tokens, heads, width], latent [tokens, rank], rope [tokens, (1,) rope width].

    Decoded tokens multiply the latent itself (rank + rope width, then rank), prompts the expanded keys and values
    (DeepSeek V2). The projections that this op also runs are left out: their weights are not among the arguments.
    """
    query, latent, rope = (call.tensor(at) for at in range(3))
    if query is None or latent is None or rope is None or len(query.shape) != 3 or load is None:
        return None
    phases, math, size = counts_of_step(load, query.shape[0]), math_of(query), latent.itemsize
    output = call.tensor(3) if call.name.endswith("_with_output") else None
    written = output_itemsize(query, output)
    if phases is None or math is None or size is None or written is None or not (latent.shape and rope.shape):
        return None
    heads, width, rank, beside = *query.shape[1:], latent.shape[-1], rope.shape[-1]
    values = 0 if output is None or not query.shape[0] else output.elements // query.shape[0]
    if output is None and phases.prompts.queries:
        return None
    key_bytes = (rank + beside) * min(size, query.itemsize or size)
    shared = (heads * width * (query.itemsize or 0), values * written, key_bytes, math)
    decoded = attention_work(phases.decoded, Rows(heads * (rank + beside), heads * rank, *shared), cached=True)
    prompts = attention_work(phases.prompts, Rows(heads * width, values, *shared), cached=True)
    return within(
        flops_of(prompts) + flops_of(decoded),
        bytes_of(prompts) + bytes_of(decoded),
        math,
        kv_bytes=prompts.kv_bytes + decoded.kv_bytes,
        notes=("projections left out", *phases.together.notes),
    )


# ---- kernels of decode on pages --------------------------------------------------------------------------------------


def _paged(first: int) -> LoadModel:
    """The query [sequences, heads, width] at this place, then the caches [pages, key heads, width / x, page, x] and
    [pages, key heads, width, page], and among the others the table [sequences, pages] (vLLM's PagedAttention).
    """

    def model(call: OpCall, load: Composition | None) -> Work | None:
        query, keys, values = (call.tensor(first + at) for at in range(3))
        table = _table(call, first + 3)
        if query is None or keys is None or values is None or table is None:
            return None
        if len(query.shape) != 3 or len(keys.shape) != 5 or len(values.shape) < 4 or keys.shape[0] != values.shape[0]:
            return None
        page, size = keys.shape[3], keys.itemsize
        (tokens, heads, width), key_heads = query.shape, keys.shape[1]
        math, written = math_of(query), output_itemsize(query, None)
        slots = keys.shape[0] * page
        if not slots or not key_heads or heads % key_heads or size is None or math is None or written is None:
            return None
        token_bytes = (keys.elements + values.elements) // slots * size
        row = heads * width
        rows = Rows(row, row, row * (query.itemsize or 0), row * written, token_bytes, math)
        return _decode_work(tokens, table, page, rows, load)

    return model


def _table(call: OpCall, first: int) -> Tensor | None:
    """The table of pages: the first two-dimensional tensor of integers from a place on."""
    for place in range(first, len(call.args)):
        found = call.tensor(place)
        if found is not None and found.dtype in INDEX_TYPES and len(found.shape) == 2:
            return found
    return None


def _decode_work(tokens: int, table: Tensor, page: int, rows: Rows, load: Composition | None) -> Work | None:
    """Of `tokens` queries on the sequences of a table: as many of each, or else only the step can tell."""
    sequences, room = table.shape[0], table.shape[1] * page
    if not sequences or tokens % sequences or tokens > sequences * room:
        return None
    batch = Batch(sequences, tokens, tokens // sequences, tokens, sequences * room, room)
    counts = counts_within(batch, _CAUSAL)
    return None if counts is None else attention_work(told_by_load(counts, _CAUSAL, load), rows, cached=True)


load_models("_C::paged_attention_v1")(_paged(1))
load_models("_C::paged_attention_v2", "_rocm_C::paged_attention")(_paged(4))
load_models("aiter::pa_fwd_asm", "aiter::pa_fwd_naive")(_paged(0))


# ---- FlashInfer ------------------------------------------------------------------------------------------------------

# Kernels built when they are needed are libraries with a name that says for what, each with its own `run`:
# batch_decode_with_kv_cache_dtype_q_bf16_..._posenc_0_...::run. Those built before are in flashinfer_kernels.
load_models(
    "batch_decode_with_kv_cache_*",
    "flashinfer::batch_decode_with_kv_cache_*",
    "flashinfer_kernels::batch_decode_with_*",
)(flashinfer_decode)
load_models(
    "batch_prefill_with_kv_cache_*",
    "flashinfer::batch_prefill_with_kv_cache_*",
    "flashinfer_kernels::batch_prefill_with_*",
    "flashinfer_kernels_sm90::batch_prefill_with_*",
)(flashinfer_prefill)
load_models(
    *("single_decode_with_kv_cache_*", "single_prefill_with_kv_cache_*"),
    *("flashinfer::single_decode_with_kv_cache_*", "flashinfer::single_prefill_with_kv_cache_*"),
    *("flashinfer_kernels::single_decode_with_kv_cache", "flashinfer_kernels::single_prefill_with_kv_cache"),
    "flashinfer_kernels_sm90::single_prefill_with_kv_cache_sm90",
)(flashinfer_single)


# ---- parts of one attention, brought together ------------------------------------------------------------------------


@models("_C::merge_attn_states")
def merge_attn_states(call: OpCall) -> Work | None:
    """vLLM's: output, its log-sum-exp or None, then the same of the earlier and of the new keys. A number says how many
    tokens have earlier keys: the others are copied.
    """
    output, first, tokens = call.tensor(0), call.tensor(2), call.number(6)
    total = each_once(call)
    if output is None or first is None or first.bytes is None or total is None or not first.shape:
        return None
    if isinstance(tokens, int) and 0 <= tokens < first.shape[0]:
        total -= first.bytes - first.bytes * tokens // first.shape[0]
    return _merged(output, total)


@models(
    "sgl_kernel::merge_state", "sgl_kernel::merge_state_v2", "cascade::merge_state", "flashinfer_kernels::merge_state"
)
def merge_state(call: OpCall) -> Work | None:
    """SGLang's and FlashInfer's library: output and log-sum-exp of two parts, then of both."""
    output = call.tensor(4)
    return None if output is None else _merged(output, each_once(call))


@models("flashinfer::merge_state", "flashinfer::merge_state_in_place")
def flashinfer_merge_state(call: OpCall) -> Work | None:
    """FlashInfer's: of two parts; the result is new, or takes the place of the first."""
    output = call.tensor(0)
    return None if output is None else _merged(output, each_once(call, twice=(0, 1)))


def _merged(output: Tensor, total: int | None) -> Work | None:
    """Two products and a sum for each value. It is fp32 inside, whatever comes out."""
    return vector_work("attention", 3 * output.elements, total, "fp32")


# ---- kernels of latent attention -------------------------------------------------------------------------------------


@load_models("_flashmla_C::fwd_kvcache_mla", "sgl_kernel::fwd_kvcache_mla")
def flash_mla(call: OpCall, load: Composition | None) -> Work | None:
    """FlashMLA: query [sequences, queries, heads, rank + rope], cache [pages, page, 1, row], then the width of values.

    A row of an fp8 cache holds its scales too. A sparse call (a list of keys per query) has no answer: how many of the
    list are padding is not recorded.
    """
    query, cache, width = call.tensor(0), call.tensor(1), next((one for one in call.args if type(one) is int), None)
    table = _table(call, 2)
    sparse = any(len(one.shape) == 3 and one.dtype in INDEX_TYPES for one in call.tensors()[2:])
    if query is None or cache is None or table is None or width is None or width <= 0 or sparse:
        return None
    if len(query.shape) != 4 or len(cache.shape) != 4:
        return None
    sequences, each, heads, row = query.shape
    rows = _latent_rows(query, heads, row, width, cache)
    return None if rows is None else _decode_work(sequences * each, table, cache.shape[1], rows, load)


def _cutlass(first: int) -> LoadModel:
    """Queries in two parts [sequences, heads, rank] and [.., heads, rope], the cache [pages, page, rank + rope]."""

    def model(call: OpCall, load: Composition | None) -> Work | None:
        latent, rope, cache = (call.tensor(first + at) for at in range(3))
        table = _table(call, first + 3)
        if latent is None or rope is None or cache is None or table is None:
            return None
        if len(latent.shape) != 3 or len(rope.shape) != 3 or len(cache.shape) != 3:
            return None
        heads, rank = latent.shape[1:]
        rows = _latent_rows(latent, heads, rank + rope.shape[2], rank, cache)
        return None if rows is None else _decode_work(latent.shape[0], table, cache.shape[1], rows, load)

    return model


def _latent_rows(query: Tensor, heads: int, row: int, width: int, cache: Tensor) -> Rows | None:
    """All heads share one row of the cache; what they multiply with it first, `row`, and then, `width`, differs."""
    math, written = math_of(query), output_itemsize(query, None)
    if math is None or written is None or cache.itemsize is None:
        return None
    read = heads * row * (query.itemsize or 0)
    return Rows(heads * row, heads * width, read, heads * width * written, cache.shape[-1] * cache.itemsize, math)


load_models("_C::cutlass_mla_decode", "sgl_kernel::cutlass_mla_decode")(_cutlass(1))
load_models("_C::sm100_cutlass_mla_decode")(_cutlass(2))


@load_models("aiter::mla_decode_stage1_asm_fwd")
def aiter_mla(call: OpCall, load: Composition | None) -> Work | None:
    """AITER: query [tokens, heads, rank + rope], cache [pages, page, 1, rank + rope], cumulated queries, cumulated
    pages, list of pages; the partial results [.., splits, heads, rank] tell the width of values.
    """
    query, cache, starts, pages = call.tensor(0), call.tensor(1), call.tensor(2), call.tensor(4)
    partial = next((one for one in call.tensors()[2:] if len(one.shape) == 4), None)
    if query is None or cache is None or starts is None or pages is None or partial is None:
        return None
    if len(query.shape) != 3 or len(cache.shape) != 4 or len(pages.shape) != 1:
        return None
    rows = _latent_rows(query, query.shape[1], query.shape[2], partial.shape[-1], cache)
    tokens, sequences, room = query.shape[0], starts.elements - 1, pages.shape[0] * cache.shape[1]
    longest = tokens - sequences + 1
    counts = None
    if sequences > 0 and longest > 0:
        counts = counts_within(Batch(sequences, tokens, longest, min(tokens, room), room, room), _CAUSAL)
    if rows is None or counts is None:
        return None
    return attention_work(told_by_load(counts, _CAUSAL, load), rows, cached=True)
