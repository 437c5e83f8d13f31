"""What a kernel must do, by the model's sizes and what the step works on; counted by hand, and against naive counts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model_configs import DEEPSEEK_V3
from tracekit import config_estimates as estimates
from tracekit.attention_counts import Range
from tracekit.config_estimates import Side
from tracekit.config_layers import Layers
from tracekit.model_config import model_config
from tracekit.step_marks import Composition


def test_latent_attention() -> None:
    """DeepSeek-V3 on 8 devices: decode works on 576 values a key for all 16 heads, prefill on 192 and 128 a head."""
    layers = Layers(model_config(DEEPSEEK_V3, "c"), 8)
    load = Composition("mixed", 1, 100, 4, 4, 100, 10_000, 10_000, 4000, 4, 4000)
    decode = estimates.attention(layers, 0, load, "decode")
    prefill = estimates.attention(layers, 0, load, "prefill")
    both = estimates.attention(layers, 0, load, "all")
    assert decode and prefill and both
    assert decode.flops == Range.exactly(2 * 4000 * 16 * (576 + 512))
    assert decode.bytes == Range.exactly(4000 * 576 * 2 + 4 * 16 * (576 + 512) * 2)
    assert prefill.flops == Range.exactly(2 * (100 * 101 // 2) * 16 * (192 + 128))
    assert prefill.bytes == Range.exactly(100 * 16 * (192 + 128) * 2 + 100 * 16 * (192 + 128) * 2)
    assert (both.flops, both.bytes) == (decode.flops + prefill.flops, decode.bytes + prefill.bytes)


# ---- attention, against a count of every pair ------------------------------------------------------------------------

LENGTHS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(0, 7), st.booleans(), st.booleans())
def test_pairs_against_naive(lengths: list[tuple[int, int]], window: int, sums: bool, counted: bool) -> None:
    queries = [new for new, _ in lengths]
    keys = [new + earlier for new, earlier in lengths]
    seen = [
        {key for key in range(at + 1) if not window or key > at - window}
        for new, earlier in lengths
        for at in range(earlier, earlier + new)
    ]
    pairs = sum(len(one) for one in seen)
    first = [earlier + 1 - window if window else 0 for _, earlier in lengths]
    read = sum(k - max(0, start) for k, start in zip(keys, first, strict=True))
    sqsq = sum(q * q for q in queries) if sums else None
    sqsk = sum(q * k for q, k in zip(queries, keys, strict=True)) if sums else None
    side = Side(len(lengths) if counted else None, sum(queries), sum(keys), sqsq, sqsk)
    found, moved = estimates.pairs_of(side, window), estimates.keys_of(side, window)
    assert found and moved
    assert found.low <= pairs <= found.high
    assert found.low <= found.expected <= found.high
    assert moved.low <= read <= moved.high
    assert moved.low <= moved.expected <= moved.high
    if not window:
        assert (moved.low, moved.high) == (read, read)
        if sums or (counted and len(lengths) == 1):
            assert (found.low, found.high) == (pairs, pairs)


def test_windows_of_equal_lengths() -> None:
    """What is expected of a window is exact where all requests are as long."""
    side = Side(32, 32, 32 * 1721, 32, 32 * 1721)
    assert estimates.pairs_of(side, 128) == Range(128 + 31, 32 * 128, 32 * 128)
    assert estimates.keys_of(Side(2, 20, 60, None, None), 4) == Range(20, 2 * (10 + 3), 2 * 10 + 2 * 3)


@pytest.mark.parametrize("side", [Side(1, 5, None, None, None), Side(1, 5, 4, None, None)])
def test_no_key_lengths_no_attention(side: Side) -> None:
    assert (estimates.pairs_of(side, 0), estimates.keys_of(side, 0)) == (None, None)
