"""Pairs and keys of attention: computed by hand, and against a definition too naive to be wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attention_rows import MIXED
from tracekit.attention_counts import Batch, Counts, Mask, counts_of_step, counts_within, keys_of, pairs_of
from tracekit.step_marks import Composition

CAUSAL = Mask(causal=True)


def window(keys: int) -> Mask:
    """Of a causal model that sees the last keys."""
    return Mask(causal=True, left=keys - 1)


# ---- how many pairs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queries", "keys", "mask", "pairs", "touched"),
    [
        (0, 0, CAUSAL, 0, 0),
        (4, 4, Mask(), 16, 4),
        (4, 4, CAUSAL, 1 + 2 + 3 + 4, 4),
        (3, 8, CAUSAL, 6 + 7 + 8, 8),  # a chunk after 5 cached tokens
        (1, 4096, CAUSAL, 4096, 4096),
        (3, 8, Mask(causal=True, top_left=True), 1 + 2 + 3, 3),
        (8, 3, CAUSAL, 1 + 2 + 3, 3),  # the first five see nothing
        (8, 8, window(3), 1 + 2 + 3 * 6, 8),
        (1, 4096, window(128), 128, 128),
        (3, 8, window(4), 4 * 3, 6),
        (4, 4, Mask(left=1, right=1), 2 + 3 + 3 + 2, 4),
        (8944, 8944, CAUSAL, 8944 * 8945 // 2, 8944),
    ],
)
def test_pairs_of_one_sequence(queries: int, keys: int, mask: Mask, pairs: int, touched: int) -> None:
    assert (pairs_of(queries, keys, mask), keys_of(queries, keys, mask)) == (pairs, touched)


SIDES = st.sampled_from([-1, 0, 1, 3])


@given(st.integers(0, 6), st.integers(0, 8), st.builds(Mask, st.booleans(), SIDES, SIDES, st.booleans()))
def test_pairs_are_those_that_the_mask_leaves(queries: int, keys: int, mask: Mask) -> None:
    right = 0 if mask.causal else mask.right
    first = 0 if mask.top_left else keys - queries
    seen = [
        (query, key)
        for query in range(queries)
        for key in range(keys)
        if (right < 0 or key <= first + query + right) and (mask.left < 0 or key >= first + query - mask.left)
    ]
    assert pairs_of(queries, keys, mask) == len(seen)
    assert keys_of(queries, keys, mask) == len({key for _, key in seen})


@pytest.mark.parametrize(
    ("batch", "mask", "expected"),
    [
        (Batch(0, 0, 0, 0, 0, 0), CAUSAL, Counts(0, 0, 0, 0, 0)),
        (Batch(0, 5, 5, 5, 5, 5), CAUSAL, None),
        (Batch(2, 9, 4, 9, 9, 9), CAUSAL, None),  # two of at most 4 are no 9
        # Own keys: 4 + 3 + 3 at least, 6 + 4 + 0 at most.
        (Batch(3, 10, 6, 10, 10, 6, own_keys=True), CAUSAL, Counts(10, 10 + 6 + 6, 21 + 10, 10, 10)),
        (Batch(3, 10, 6, 10, 10, 6, own_keys=True), Mask(), Counts(10, 16 + 9 + 9, 36 + 16, 10, 10)),
        # 15 of 1024 at most are 15360 only if each is 1024: the sums are exact.
        (
            Batch(15, 15360, 1024, 15360, 15616, 1024),
            CAUSAL,
            Counts(15360, *(15 * 1024 * 1025 // 2,) * 2, 15360, 15360),
        ),
        # A decode of 4 sequences on 4 x 8 pages of 16: from one key each to all.
        (Batch(4, 4, 1, 4, 4 * 8 * 16, 128), CAUSAL, Counts(4, 4, 512, 4, 512)),
        (Batch(4, 4, 1, 100, 100, 128), CAUSAL, Counts(4, 100, 100, 100, 100)),
        (Batch(4, 4, 1, 100, 100, 128), window(32), Counts(4, 25, 100, 25, 100)),
    ],
)
def test_bounds_by_shapes(batch: Batch, mask: Mask, expected: Counts | None) -> None:
    assert counts_within(batch, mask) == expected


REQUESTS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(0, 2), st.integers(0, 2), st.booleans(), st.sampled_from([None, 1, 2, 4]))
def test_bounds_hold_for_any_lengths(
    requests: list[tuple[int, int]], longer: int, more: int, lengths_said: bool, seen: int | None
) -> None:
    mask = CAUSAL if seen is None else window(seen)
    lengths = [(queries, queries + cached) for queries, cached in requests]
    tokens, keys = (sum(column) for column in zip(*lengths, strict=True))
    longest, most = max(q for q, _ in lengths) + longer, max(k for _, k in lengths) + more
    low, high = (keys, keys) if lengths_said else (tokens, len(lengths) * most)
    found = counts_within(Batch(len(lengths), tokens, longest, low, high, most), mask)
    assert found is not None
    assert found.pairs <= sum(pairs_of(q, k, mask) for q, k in lengths) <= found.pairs_high
    assert found.keys <= sum(keys_of(q, k, mask) for q, k in lengths) <= found.keys_high


@pytest.mark.parametrize(
    ("load", "queries", "seen", "expected"),
    [
        (Composition(), 4, None, None),
        (Composition("decode", 0, 0, 2, 2), 2, None, None),  # nothing says how many keys
        (Composition("decode", 0, 0, 2, 2, decode_kv_tokens=9), 2, None, Counts(2, 9, 9, 9, 9)),
        (MIXED, 7, None, Counts(7, 27 + 9, 36, 21, 21)),
        (MIXED, 5, None, Counts(5, 27, 27, 12, 12)),
        (MIXED, 2, None, Counts(2, 9, 9, 9, 9)),
        (MIXED, 8, None, Counts(7, 36, 36, 21, 21, ("batch is padded",))),
        (MIXED, 4, None, None),
        # One request of 4 on 10 keys, a window of 3: 3 each, of the last 6 keys.
        (Composition("prefill", 1, 4, 0, 0, 10, 16, 40, 0, 0, 0), 4, 3, Counts(4, 12, 12, 6, 6)),
        # Two decodes on 9 keys, a window of 3: 3 + 1 if one has 8 of them, 3 each if lengths are equal.
        (Composition("decode", 0, 0, 2, 2, decode_kv_tokens=9), 2, 3, Counts(2, 4, 6, 4, 6, (), 6, 6)),
        (Composition("decode", 0, 0, 2, 2, decode_kv_tokens=9), 2, 8, Counts(2, 9, 9, 9, 9)),  # no one has more keys
        # Chunks of 2 on 5 keys and 3 on 7, a window of 4: of 27 pairs at least 4 / 11 (one may have 11 of the keys),
        # 5 x 4 at most. Equal ones of 2 on 6 have 2 x 8, and each 5 keys.
        (MIXED, 5, 4, Counts(5, 10, 20, 5, 11, (), 16, 10)),
        # Only requests and tokens: as if nothing was cached, of 444 each at least, of 887 and 1 at most.
        (
            Composition("prefill", 2, 888, 0, 0),
            888,
            None,
            Counts(
                888,
                444 * 445,
                887 * 888 // 2 + 1,
                888,
                888,
                ("key lengths not recorded: taken as if nothing was cached",),
            ),
        ),
        # Sums that no requests have: q q is not less than q.
        (Composition("prefill", 2, 5, 0, 0, 12, 4, 30, 0, 0, 0), 5, None, None),
    ],
)
def test_sums_of_a_step(load: Composition, queries: int, seen: int | None, expected: Counts | None) -> None:
    found = counts_of_step(load, queries, seen)
    assert (None if found is None else found.together) == expected
