"""What does attention cost whose call says its lengths: PyTorch's SDPA family, FlashAttention and its copies?

Formula: FlashAttention's, 2 x pairs x heads x (width of keys + width of values), with the pairs that the mask leaves
counted exactly. PyTorch's own flop counter does not look at the mask: its figure for a causal call is twice as much.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracekit.attention_counts import Batch, Mask, counts_of_equal, counts_within
from tracekit.attention_work import attention_rows, attention_work, backward_work
from tracekit.flash_calls import FlashCall, Form, flash_call
from tracekit.op_call import OpCall, Tensor
from tracekit.step_marks import Composition
from tracekit.work import LoadModel, Model, Work, load_models, models

# Of `custom_mask_type` of `aten::_efficient_attention_forward`.
_CAUSAL_TYPES = {0: Mask(False), 1: Mask(True, top_left=True), 2: Mask(True)}


# ---- PyTorch's scaled_dot_product_attention --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Places:
    """Where an SDPA op has its arguments. query: of the first of query, key, value. top_left: how its causal mask is
    aligned if there are more keys than queries: PyTorch's is, FlashAttention's is not.
    """

    causal: int
    bias: int | None = None
    top_left: bool = True
    query: int = 0


def _sdpa(places: Places, *, backward: bool = False) -> Model:
    def model(call: OpCall) -> Work | None:
        tensors = [call.tensor(places.query + at) for at in range(3)]
        laid = [_tokens_first(tensor) for tensor in tensors if tensor is not None and len(tensor.shape) == 4]
        if len(laid) != 3:
            return None
        query, key, value = laid
        rows = attention_rows(query, key, value)
        if rows is None or not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[1] != value.shape[1]:
            return None
        mask = Mask(call.flag(places.causal), top_left=places.top_left)
        counts = counts_of_equal(query.shape[0], query.shape[1], key.shape[1], mask)
        if backward:
            return backward_work(counts, rows)
        bias = None if places.bias is None else call.tensor(places.bias)
        extra = 0 if bias is None else bias.bytes or 0
        return attention_work(counts, rows, cached=False, extra_bytes=extra)

    return model


def _tokens_first(tensor: Tensor) -> Tensor:
    """[batch, heads, tokens, width] as [batch, tokens, heads, width], what was broadcast still broadcast."""
    order = (0, 2, 1, 3)
    strides = tuple(tensor.strides[at] for at in order) if len(tensor.strides) == 4 else ()
    return Tensor(tuple(tensor.shape[at] for at in order), tensor.dtype, strides)


models("aten::_scaled_dot_product_flash_attention")(_sdpa(Places(4, top_left=False)))
models("aten::_scaled_dot_product_flash_attention_for_cpu")(_sdpa(Places(4, bias=5)))
models("aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_cudnn_attention")(
    _sdpa(Places(6, bias=3))
)
models("aten::_scaled_dot_product_fused_attention_overrideable")(_sdpa(Places(5, bias=3)))
models("aten::_scaled_dot_product_flash_attention_backward")(_sdpa(Places(11, top_left=False, query=1), backward=True))
models("aten::_scaled_dot_product_flash_attention_for_cpu_backward")(_sdpa(Places(7, query=1), backward=True))
models("aten::_scaled_dot_product_efficient_attention_backward")(_sdpa(Places(11, query=1), backward=True))
models("aten::_scaled_dot_product_cudnn_attention_backward")(_sdpa(Places(14, query=1), backward=True))


@models("aten::_efficient_attention_forward")
def efficient_attention(call: OpCall) -> Work | None:
    """[batch, tokens, heads, width], or all sequences in one row with cumulated lengths. Last, keys of a window."""
    query, key, value = (call.tensor(at) for at in range(3))
    if query is None or key is None or value is None or {len(one.shape) for one in (query, key, value)} != {4}:
        return None
    kind = call.number(9)
    mask = _CAUSAL_TYPES.get(kind, Mask(None)) if isinstance(kind, int) else Mask(None)
    window = call.number(13)
    if isinstance(window, int) and window > 0 and mask.causal:
        mask = Mask(mask.causal, window - 1, top_left=mask.top_left)
    rows, lengths, bias = attention_rows(query, key, value), call.tensor(4), call.tensor(3)
    if rows is None or query.shape[0] != key.shape[0]:
        return None
    if lengths is None:
        counts = counts_of_equal(query.shape[0], query.shape[1], key.shape[1], mask)
    else:
        longest = call.number(6)
        most = longest if isinstance(longest, int) and longest > 0 else query.shape[1]
        tokens, keys = query.shape[1], key.shape[1]
        batch = Batch(lengths.elements - 1, tokens, min(most, tokens), keys, keys, keys, own_keys=keys == tokens)
        within = counts_within(batch, Mask(mask.causal, mask.left))
        if within is None:
            return None
        counts = within
    return attention_work(counts, rows, cached=False, extra_bytes=0 if bias is None else bias.bytes or 0)


# ---- FlashAttention and its copies -----------------------------------------------------------------------------------


def _flash(form: Form) -> LoadModel:
    def model(call: OpCall, load: Composition | None) -> Work | None:
        found = flash_call(call, form, load)
        return None if found is None else _work(found)

    return model


def _work(found: FlashCall) -> Work | None:
    rows, latent = attention_rows(found.query, found.key, found.value), found.latent
    if rows is not None and latent is not None:
        if latent.shape[:-1] != found.query.shape[:-1] or latent.itemsize is None:
            return None
        more = latent.shape[-2] * latent.shape[-1]  # heads times width: scores are of both products together
        rows = replace(rows, query=rows.query + more, read_bytes=rows.read_bytes + more * latent.itemsize)
    return None if rows is None else attention_work(found.counts, rows, cached=found.cached)


load_models("aten::_flash_attention_forward")(_flash(Form(causal=8, window=11)))
load_models(
    "flash_attn::_flash_attn_forward",
    "flash_attn::_flash_attn_varlen_forward",
    "aiter::_flash_attn_forward",
    "_vllm_fa2_C::fwd_kvcache",
    "aiter::mha_fwd",
    "aiter::fmha_v3_fwd",
)(_flash(Form()))
load_models(
    "flash_attn_3::fwd",
    "flash_attn_3::_flash_attn_forward",
    "_vllm_fa3_C::fwd",
    "_cutlass_fa3_C::fwd",
    "sgl_kernel::fwd",
)(_flash(Form(latent_at=5)))
# A flag `zero_tensors` stands before `causal`.
load_models("_vllm_fa2_C::varlen_fwd", "aiter::mha_varlen_fwd", "aiter::fmha_v3_varlen_fwd")(_flash(Form(flags=1)))
load_models("aiter::mha_batch_prefill")(_flash(Form(flags=1, pages_at=5)))
