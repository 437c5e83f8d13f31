"""How much must a kernel do, by the model's sizes and what the step works on?

Formulas: a matrix product and attention as in docs/work_model.md and docs/work_attention.md; multiply-add is two
operations, each operand is moved once. Exact where the step's mark says enough, else an interval with an expectation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracekit.attention_counts import Range, keys_in_window, pairs_in_window
from tracekit.config_layers import Layers, Slot
from tracekit.moe_experts import Routing
from tracekit.step_marks import Composition
from tracekit.work import Work

_LARGEST = 2**63 - 1
_BITS = {"bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp4": 4, "int4": 4}
_DECODING = frozenset({"decode", "verify", "draft"})
# Operations an element of what is no matrix product: squares, sum, scale and weight of an RMS norm; a pair rotated by
# four products and two sums; SiLU as exponential, sum, quotient, and the product with the other half.
_NORM_FLOPS, _ROPE_FLOPS, _ACTIVATION_FLOPS = 4, 3, 4

PADDING = "padding not counted"
# Composable Kernel's names hold an enumeration: `FusedAddEnumE0` is none.
_WITH_RESIDUAL = re.compile(
    r"fused_?add(?!enum)|fusedaddenume[12]|add_?rms|rms_?norm_?add|add_?layer_?norm", re.IGNORECASE
)
_ALONE = re.compile(r"fusedaddenume0", re.IGNORECASE)
_QUANTIZED = re.compile(r"quant(?!enum)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Work of a kernel, and what of the interval is expected: experts chosen evenly, sequences of equal length."""

    work: Work
    flops: Range
    bytes: Range


@dataclass(frozen=True, slots=True)
class Side:
    """The prefill or the decode half of a step; None where its mark does not say."""

    requests: int | None
    tokens: int
    keys: int | None
    sqsq: int | None
    sqsk: int | None


def sides(load: Composition) -> dict[str, Side] | None:
    """Both halves of a step, None if it is not known how many tokens each has. A plain step has one half."""
    prefill = 0 if load.prefill_tokens is None and load.phase in _DECODING else load.prefill_tokens
    decode = 0 if load.decode_tokens is None and load.phase == "prefill" else load.decode_tokens
    if prefill is None or decode is None or prefill < 0 or decode < 0:
        return None
    return {
        "prefill": Side(load.prefill_requests, prefill, load.prefill_kv_tokens, load.prefill_sqsq, load.prefill_sqsk),
        "decode": Side(load.decode_requests, decode, load.decode_kv_tokens, load.decode_sqsq, load.decode_sqsk),
    }


def tokens_of(load: Composition) -> int | None:
    """New tokens of a step, None if that is not known or there are none."""
    halves = sides(load)
    return (halves["prefill"].tokens + halves["decode"].tokens or None) if halves else None


def sampled_of(load: Composition) -> int | None:
    """Rows of the product with the vocabulary: the last token of each request, all tokens where drafts are verified."""
    halves = sides(load)
    if halves is None:
        return None
    decode = halves["decode"].tokens if load.phase == "verify" else halves["decode"].requests
    prefill = halves["prefill"].requests if halves["prefill"].tokens else 0
    decode = decode if halves["decode"].tokens else 0
    return None if prefill is None or decode is None else prefill + decode or None


def estimate(
    family: str,
    flops: Range,
    moved: Range,
    math: str,
    *,
    weights: Range | None = None,
    weight_bits: int = 0,
    keys: int = 0,
    notes: tuple[str, ...] = (),
) -> Estimate | None:
    """As Work; None for what no BIGINT holds, which only a broken mark can ask for."""
    if min(flops.low, moved.low) < 0 or max(flops.high, moved.high) > _LARGEST:
        return None
    work = Work(
        family,
        flops.low,
        moved.low,
        math if flops.high else "",
        flops.high if flops.high != flops.low else -1,
        moved.high if moved.high != moved.low else -1,
        weights.expected if weights else 0,
        weight_bits,
        keys,
        by_load=True,
        notes=notes,
    )
    return Estimate(work, flops, moved)


# ---- matrix products -------------------------------------------------------------------------------------------------


def gemm(layers: Layers, slot: Slot, layer: int, load: Composition) -> Estimate | None:
    """rows x inputs times inputs x outputs: 2 * rows * inputs * outputs operations; both matrices and the result."""
    rows = sampled_of(load) if slot.rows == "sampled" else tokens_of(load)
    if rows is None:
        return None
    config, stored = layers.config, layers.config.quantization
    module = slot.module if slot.module in ("", "lm_head") else f"model.layers.{layer}.{slot.module}"
    if stored is not None and stored.covers(module):
        one = _Weight(stored.weight_bytes(slot.inputs, slot.outputs), stored.bits, stored.math or config.dtype)
    else:
        one = _Weight(size(slot.inputs * slot.outputs, config.dtype), _BITS[config.dtype], config.dtype)
    if slot.rows == "routed":
        return _experts(layers, slot, rows, one)
    flops = Range.exactly(2 * slot.batch * rows * slot.inputs * slot.outputs)
    weights = Range.exactly(slot.batch * one.bytes)
    moved = Range.exactly(size(slot.batch * rows * slot.inputs, one.math) + output_bytes(layers, slot, rows))
    notes = (PADDING, *config.assumed)
    return estimate("gemm", flops, weights + moved, one.math, weights=weights, weight_bits=one.bits, notes=notes)


def output_bytes(layers: Layers, slot: Slot, rows: int) -> int:
    """Bytes of the result of a product: what a kernel that adds up its parts writes."""
    return size(slot.batch * rows * slot.outputs, layers.config.dtype)


@dataclass(frozen=True, slots=True)
class _Weight:
    """A weight matrix: bytes with its scales, bits of an element, what it is multiplied as."""

    bytes: int
    bits: int
    math: str


def _experts(layers: Layers, slot: Slot, tokens: int, one: _Weight) -> Estimate | None:
    """Grouped products: 2 * tokens * experts of each * inputs * outputs; the weights of the experts that are touched.

    Which experts are touched: moe_experts.py. The activation after the first product and the sum over a token's experts
    after the second may be part of the kernel: the least that it writes is the result of that.
    """
    experts, dtype = layers.config.experts, layers.config.dtype
    if experts is None:
        return None
    count, each = experts.count, experts.per_token
    routing = Routing(count, tokens, each)
    weights = Range(one.bytes * routing.fewest, routing.likely_bytes(one.bytes), one.bytes * routing.most)
    first = slot.name == "experts_gate_up"
    read = size(tokens * slot.inputs * (1 if first else each), one.math)
    written = tokens * each * slot.outputs
    least = (written // 2 if layers.config.gated else written) if first else tokens * slot.outputs
    activations = Range(read + size(least, dtype), read + size(least, dtype), read + size(written, dtype))
    notes = (PADDING, f"{round(routing.likely)} of {count} experts if routing is uniform", *layers.config.assumed)
    flops = Range.exactly(2 * tokens * each * slot.inputs * slot.outputs)
    moved = weights + activations
    return estimate("moe", flops, moved, one.math, weights=weights, weight_bits=one.bits, notes=notes)


# ---- attention -------------------------------------------------------------------------------------------------------


def attention(layers: Layers, layer: int, load: Composition, part: str, cache_bits: int = 0) -> Estimate | None:
    """2 * pairs of query and key * heads * (width of a key + width of a value); keys and values once for each of their
    heads, queries and results once. Operations of softmax are left out, as in every published figure.

    part: "prefill", "decode" or "all" of the step. Latent attention (arXiv 2405.04434) works on the compressed keys in
    decode, which all heads share, and on the expanded ones in prefill.
    """
    halves = sides(load)
    if halves is None:
        return None
    found = [
        _attention_side(layers, layer, half, name == "decode", cache_bits)
        for name, half in halves.items()
        if part in ("all", name) and half.tokens
    ]
    known = [one for one in found if one is not None]
    if not known or len(known) != len(found):
        return None
    flops, moved, keys = (sum(values[1:], values[0]) for values in zip(*known, strict=True))
    notes = ("softmax not counted", *layers.config.assumed)
    return estimate("attention", flops, moved, layers.config.dtype, keys=keys.expected, notes=notes)


def _attention_side(
    layers: Layers, layer: int, side: Side, decode: bool, cache_bits: int
) -> tuple[Range, Range, Range] | None:
    """Operations, bytes, and the bytes of keys and values among them."""
    config, latent = layers.config, layers.config.latent
    window = config.window(layer)
    pairs, keys = pairs_of(side, window), keys_of(side, window)
    if pairs is None or keys is None:
        return None
    if latent is None:
        query = value = config.head_dim
        stored = layers.kv_heads * (query + value)
    elif decode:
        query, value = latent.key_value + latent.rope, latent.key_value
        stored = query
    else:
        query, value = latent.nope + latent.rope, latent.value
        stored = layers.heads * (query + value)
    bits = cache_bits or (config.quantization.kv_bits if config.quantization else 0) or _BITS[config.dtype]
    flops = pairs.times(2 * layers.heads * (query + value))
    read = Range(*(-(-count * stored * bits // 8) for count in (keys.low, keys.expected, keys.high)))
    ends = Range.exactly(size(side.tokens * layers.heads * (query + value), config.dtype))
    return flops, read + ends, read


def pairs_of(side: Side, window: int) -> Range | None:
    """Pairs of a query and a key it sees, over all requests: causal, aligned to the last key. None if not even the sum
    of key lengths is known.

    A request of q queries and k keys has q * k - (q * q - q) / 2 pairs: its last query sees all keys, each before it
    one less. One sequence of the sums has the most pairs; equal lengths without earlier keys have the fewest.
    """
    if (keys := side.keys) is None or keys < side.tokens:
        return None
    count, requests = side.tokens, side.requests
    if requests is None or not 0 < requests <= count:
        requests = None
    if side.sqsq is not None and side.sqsk is not None and side.sqsq >= count and side.sqsk >= side.sqsq:
        full = Range.exactly(side.sqsk - (side.sqsq - count) // 2)
    elif requests == count:
        full = Range.exactly(keys)
    else:
        high = count * keys - (count * count - count) // 2
        least = _own(requests, count) + keys - count if requests else keys
        full = Range.exactly(high) if requests == 1 else Range.clamped(least, least, high)
    return pairs_in_window(full, count, keys, requests, window) if window else full


def _own(requests: int, count: int) -> int:
    """Pairs of as many new tokens in requests of equal length that have no earlier keys, rounded down."""
    each = count // requests
    return requests * (each * each + each) // 2


def keys_of(side: Side, window: int) -> Range | None:
    """Keys that are read at least once, over all requests. None if not even the sum of key lengths is known."""
    if (keys := side.keys) is None or keys < side.tokens:
        return None
    requests = side.requests if side.requests is not None and 0 < side.requests <= side.tokens else None
    return keys_in_window(side.tokens, keys, requests, window) if window else Range.exactly(keys)


# ---- the small kernels between ---------------------------------------------------------------------------------------


def norm(layers: Layers, load: Composition, name: str, what: str) -> Estimate | None:
    """what: "hidden", "q", "k" or "qk". With the residual: both read, both written. Where the name does not say whether
    there is one, an interval. Quantised results are one byte.
    """
    tokens, config = tokens_of(load), layers.config
    if tokens is None:
        return None
    if what != "hidden":
        heads = ("q" in what) * layers.heads + ("k" in what) * layers.kv_heads
        elements = tokens * heads * config.head_dim
        moved = Range.exactly(2 * size(elements, config.dtype))
    else:
        elements = tokens * config.hidden
        once = size(elements, config.dtype)
        low = 4 if _WITH_RESIDUAL.search(name) else 2
        high = 2 if _ALONE.search(name) else 4
        saved = once - elements if _QUANTIZED.search(name) else 0
        moved = Range(low * once - saved, low * once - saved, high * once - saved)
    return estimate("norm", Range.exactly(_NORM_FLOPS * elements), moved, "fp32", notes=(PADDING, *config.assumed))


def rope(layers: Layers, load: Composition) -> Estimate | None:
    """Queries and keys read and written in place; positions and their table are small."""
    tokens, config = tokens_of(load), layers.config
    if tokens is None:
        return None
    width = config.latent.rope if config.latent else config.head_dim
    elements = tokens * (layers.heads + (1 if config.latent else layers.kv_heads)) * width
    moved = Range.exactly(2 * size(elements, config.dtype))
    return estimate("rope", Range.exactly(_ROPE_FLOPS * elements), moved, "fp32", notes=(PADDING, *config.assumed))


def activation(layers: Layers, load: Composition, name: str, what: str) -> Estimate | None:
    """what: "dense", "shared" or "experts". The gate and the up projection read, their product written."""
    tokens, config = tokens_of(load), layers.config
    if tokens is None:
        return None
    width = {"dense": layers.intermediate, "shared": layers.shared_intermediate}.get(what, layers.expert_intermediate)
    each = config.experts.per_token if what == "experts" and config.experts else 1
    elements = tokens * each * width
    read = size((2 if config.gated else 1) * elements, config.dtype)
    written = elements if _QUANTIZED.search(name) else size(elements, config.dtype)
    flops = Range.exactly(_ACTIVATION_FLOPS * elements)
    return estimate("activation", flops, Range.exactly(read + written), "fp32", notes=(PADDING, *config.assumed))


def cache_write(layers: Layers, load: Composition, cache_bits: int = 0) -> Estimate | None:
    """Keys and values of the new tokens, read and written."""
    tokens, config = tokens_of(load), layers.config
    if tokens is None:
        return None
    latent = config.latent
    each = latent.key_value + latent.rope if latent else 2 * layers.kv_heads * config.head_dim
    bits = cache_bits or (config.quantization.kv_bits if config.quantization else 0) or _BITS[config.dtype]
    moved = size(tokens * each, config.dtype) + -(-tokens * each * bits // 8)
    return estimate("kv_cache", Range.exactly(0), Range.exactly(moved), "", notes=(PADDING, *config.assumed))


def embedding(layers: Layers, load: Composition) -> Estimate | None:
    """A row of the table for each token, read and written."""
    tokens, config = tokens_of(load), layers.config
    if tokens is None:
        return None
    moved = Range.exactly(2 * size(tokens * config.hidden, config.dtype))
    return estimate("embedding", Range.exactly(0), moved, "", notes=(PADDING, *config.assumed))


def size(elements: int, math: str) -> int:
    """Bytes of so many elements of a type of MATHS."""
    return -(-elements * _BITS[math] // 8)
