"""How many (query, key) pairs does attention multiply, and how many keys does it read? Exactly, or between two bounds.

A query of a causal model sees the keys up to its own. With q queries and k keys the two orders end together
(right-aligned: chunked prefill, decode), or begin together (top-left: PyTorch's `is_causal`). The rest is sums:

    pairs of a causal sequence, right-aligned   q k - (q q - q) / 2
    keys                                        k, with a window of w keys at most q + w - 1

Expected is what equal lengths would give, where sums of them are known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracekit.step_marks import Composition

UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys a query sees. causal: None where not known. left, right: keys beside its own place, -1 for all."""

    causal: bool | None = False
    left: int = UNLIMITED
    right: int = UNLIMITED
    top_left: bool = False

    @property
    def window(self) -> int | None:
        """Keys that a query of a causal model sees at most, None without limit."""
        return self.left + 1 if self.causal and self.left >= 0 else None


@dataclass(frozen=True, slots=True)
class Range:
    """A count: at least, expected, at most."""

    low: int
    expected: int
    high: int

    @classmethod
    def clamped(cls, low: int, expected: int, high: int) -> Range:
        """Where ends were counted in different ways, and the expectation by rounded lengths."""
        return cls(min(low, high), min(max(low, expected), high), high)

    @classmethod
    def exactly(cls, value: int) -> Range:
        """A count that is known."""
        return cls(value, value, value)

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.expected + other.expected, self.high + other.high)

    def times(self, factor: int) -> Range:
        """Each end multiplied."""
        return Range(self.low * factor, self.expected * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class Counts:
    """Sums over the sequences of a call. queries, and at least and at most: pairs, and keys that are read. _expected:
    if all are as long; -1 for the same as at least.
    """

    queries: int
    pairs: int
    pairs_high: int
    keys: int
    keys_high: int
    notes: tuple[str, ...] = ()
    pairs_expected: int = -1
    keys_expected: int = -1

    @classmethod
    def within(cls, queries: int, pairs: Range, keys: Range) -> Counts:
        """Of both ranges."""
        likely_pairs, likely_keys = (one.expected if one.expected != one.low else -1 for one in (pairs, keys))
        return cls(queries, pairs.low, pairs.high, keys.low, keys.high, (), likely_pairs, likely_keys)

    @property
    def pairs_range(self) -> Range:
        """Pairs at least, expected, at most."""
        return Range(self.pairs, max(self.pairs, self.pairs_expected), self.pairs_high)

    @property
    def keys_range(self) -> Range:
        """Keys at least, expected, at most."""
        return Range(self.keys, max(self.keys, self.keys_expected), self.keys_high)

    @property
    def exact(self) -> bool:
        """Whether nothing is left open."""
        return (self.pairs, self.keys) == (self.pairs_high, self.keys_high)

    def plus(self, other: Counts) -> Counts:
        """Of the sequences of both."""
        both = Counts.within(
            self.queries + other.queries, self.pairs_range + other.pairs_range, self.keys_range + other.keys_range
        )
        return replace(both, notes=(*self.notes, *(note for note in other.notes if note not in self.notes)))


@dataclass(frozen=True, slots=True)
class Batch:
    """What shapes say of the sequences of a call: how many, their queries in all and in the longest; keys in all,
    between two bounds, and in the longest. own_keys: the keys are those of the queries, none come from a cache.
    """

    sequences: int
    queries: int
    longest: int
    keys_low: int
    keys_high: int
    longest_keys: int
    own_keys: bool = False


NOTHING = Counts(0, 0, 0, 0, 0)


# ---- one sequence, exactly -------------------------------------------------------------------------------------------


def pairs_of(queries: int, keys: int, mask: Mask) -> int:
    """Pairs that one sequence multiplies. A window on both sides is exact too."""
    right = 0 if mask.causal else mask.right
    place = 0 if mask.top_left else keys - queries
    ends = queries * keys if right < 0 else _clamped_sum(place + right + 1, queries, keys)
    return ends - (0 if mask.left < 0 else _clamped_sum(place - mask.left, queries, keys))


def keys_of(queries: int, keys: int, mask: Mask) -> int:
    """Keys that at least one query of a sequence sees."""
    if not queries:
        return 0
    right = 0 if mask.causal else mask.right
    place = 0 if mask.top_left else keys - queries
    last = keys if right < 0 else _clamp(place + queries + right, keys)
    return max(0, last - (0 if mask.left < 0 else _clamp(place - mask.left, keys)))


def _clamp(value: int, limit: int) -> int:
    return min(max(value, 0), limit)


def _clamped_sum(first: int, count: int, limit: int) -> int:
    """Sum of `count` whole numbers from `first` on, each held between 0 and `limit`."""
    return _clamped_up_to(first + count - 1, limit) - _clamped_up_to(first - 1, limit)


def _clamped_up_to(last: int, limit: int) -> int:
    if last <= 0:
        return 0
    low = min(last, limit)
    return low * (low + 1) // 2 + (last - low) * limit


# ---- many sequences, by what shapes say ------------------------------------------------------------------------------


def counts_of_equal(sequences: int, queries: int, keys: int, mask: Mask) -> Counts:
    """Of sequences all of one length. Where it is not known if they are causal, the bounds are both answers."""
    if mask.causal is None:
        low, high = (Mask(causal, mask.left, mask.right, mask.top_left) for causal in (True, False))
    else:
        low = high = mask
    return Counts(
        sequences * queries,
        sequences * pairs_of(queries, keys, low),
        sequences * pairs_of(queries, keys, high),
        sequences * keys_of(queries, keys, low),
        sequences * keys_of(queries, keys, high),
        () if low == high else ("mask not recorded",),
    )


def counts_within(batch: Batch, mask: Mask) -> Counts | None:
    """Between which bounds the sums of a batch lie. None where the shapes contradict each other."""
    most_keys = min(batch.keys_high, batch.sequences * batch.longest_keys)
    if batch.queries > batch.sequences * batch.longest or batch.keys_low > most_keys:
        return None
    if not batch.queries:
        return NOTHING
    if mask.causal is None:
        low, high = (counts_within(batch, Mask(causal, mask.left, mask.right)) for causal in (True, False))
        return None if low is None or high is None else _spanning(low, high)
    return _own(batch, mask) if batch.own_keys else _cached(batch, mask)


def _spanning(low: Counts, high: Counts) -> Counts:
    return Counts(
        low.queries,
        min(low.pairs, high.pairs),
        max(low.pairs_high, high.pairs_high),
        min(low.keys, high.keys),
        max(low.keys_high, high.keys_high),
        (*low.notes, "mask not recorded"),
    )


def _own(batch: Batch, mask: Mask) -> Counts:
    """Pairs grow faster than lengths: fewest if all lengths are equal, most if as many as can be are of the longest."""
    each, more = divmod(batch.queries, batch.sequences)
    full, rest = divmod(batch.queries, batch.longest or 1)
    few = (batch.sequences - more) * pairs_of(each, each, mask) + more * pairs_of(each + 1, each + 1, mask)
    most = full * pairs_of(batch.longest, batch.longest, mask) + pairs_of(rest, rest, mask)
    return Counts(batch.queries, few, most, batch.queries, batch.queries)


def _cached(batch: Batch, mask: Mask) -> Counts:
    """Keys may be more than queries. With q <= Q and k <= K, (Q - q)(K - k) >= 0 bounds the sum of q k from below."""
    n, queries, longest, most = batch.sequences, batch.queries, batch.longest, batch.longest_keys
    keys_low, keys_high = batch.keys_low, min(batch.keys_high, n * most)
    products_low = max(queries * most + keys_low * longest - n * longest * most, 0)
    products_high = min(queries * most, longest * keys_high)
    if not mask.causal:
        low = max(products_low, min(queries, keys_low))
        return Counts(queries, low, max(low, products_high), keys_low, max(keys_low, keys_high))
    keys_low, keys_high = max(keys_low, queries), max(keys_high, queries)  # each query's own key is there
    own = _own(Batch(n, queries, longest, queries, queries, longest, own_keys=True), Mask(causal=True))
    # own.pairs is half the sum of q q + q: the sum of q q lies between those of equal and of most unequal lengths.
    few = max(own.pairs, products_low + queries - own.pairs_high)
    many = max(few, products_high + queries - own.pairs)
    full = Counts(queries, few, many, keys_low, keys_high)
    return full if mask.window is None else windowed(full, n, mask.window, most)


def windowed(full: Counts, sequences: int, window: int, longest_keys: int) -> Counts:
    """The sums if each query sees only the last `window` keys: a share of at least window / longest_keys is left."""
    if window >= longest_keys:
        return full
    pairs = max(-(-full.pairs * window // longest_keys), min(full.queries, full.pairs))
    keys = max(full.keys * window // longest_keys, min(full.queries, full.keys))
    return Counts(
        full.queries,
        pairs,
        max(pairs, min(full.pairs_high, full.queries * window)),
        keys,
        max(keys, min(full.keys_high, full.queries + sequences * (window - 1))),
        full.notes,
    )


# ---- many sequences, by what the step works on -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Phases:
    """The sums of a step's prompts, and of its decoded tokens."""

    prompts: Counts
    decoded: Counts

    @property
    def together(self) -> Counts:
        """Of both."""
        return self.prompts.plus(self.decoded)


@dataclass(frozen=True, slots=True)
class Sums:
    """Over requests with q new tokens and k keys: of 1, q, k, q q and q k."""

    requests: int
    queries: int
    keys: int
    squares: int
    products: int


def counts_of_step(load: Composition, queries: int, window: int | None = None) -> Phases | None:
    """What a call with this many queries works on, if they are the step's: all tokens, those of prompts, or decoded.

    A batch may be padded: more queries than tokens. None where the step's mark does not say enough.
    """
    prefill, decode = load.prefill_tokens, load.decode_tokens
    if prefill is None or decode is None or min(prefill, decode) < 0:
        return None
    whole = queries >= prefill + decode
    prompts = _prompts(load, window) if whole or queries == prefill else NOTHING
    decoded = _decoded(load, window) if whole or queries == decode else NOTHING
    if prompts is None or decoded is None or not (whole or queries in (prefill, decode)):
        return None
    if queries > prefill + decode:
        prompts = replace(prompts, notes=("batch is padded", *prompts.notes))
    return Phases(prompts, decoded)


def _decoded(load: Composition, window: int | None) -> Counts | None:
    tokens, requests, keys = load.decode_tokens, load.decode_requests, load.decode_kv_tokens
    if not tokens:
        return NOTHING
    if requests is None or keys is None:
        return None
    products, squares = load.decode_sqsk, load.decode_sqsq
    if tokens == requests:  # one each: both sums follow
        products, squares = keys, tokens
    if products is None or squares is None:
        return None
    return _summed(Sums(requests, tokens, keys, squares, products), window)


def _prompts(load: Composition, window: int | None) -> Counts | None:
    tokens, requests = load.prefill_tokens, load.prefill_requests
    if not tokens:
        return NOTHING
    if requests is None or requests <= 0:
        return None
    if load.prefill_kv_tokens is not None and load.prefill_sqsq is not None and load.prefill_sqsk is not None:
        sums = Sums(requests, tokens, load.prefill_kv_tokens, load.prefill_sqsq, load.prefill_sqsk)
        return _summed(sums, window)
    longest = tokens - requests + 1
    own = Batch(requests, tokens, longest, tokens, tokens, longest, own_keys=True)
    counts = counts_within(own, Mask(causal=True, left=UNLIMITED if window is None else window - 1))
    if counts is None:
        return None
    notes = ("key lengths not recorded: taken as if nothing was cached",)
    return replace(counts, notes=notes)


def _summed(sums: Sums, window: int | None) -> Counts | None:
    """None for sums that no requests can have."""
    requests, tokens, keys = sums.requests, sums.queries, sums.keys
    uneven = sums.squares - tokens  # the sum of q (q - 1): even
    if requests <= 0 or keys < tokens or sums.products < sums.squares or uneven < 0 or uneven % 2:
        return None
    if sums.squares * requests < tokens * tokens:
        return None
    pairs = Range.exactly(sums.products - uneven // 2)
    if window is None:
        return Counts.within(tokens, pairs, Range.exactly(keys))
    return Counts.within(
        tokens,
        pairs_in_window(pairs, tokens, keys, requests, window),
        keys_in_window(tokens, keys, requests, window),
    )


# ---- windows over requests of which only sums are known --------------------------------------------------------------


def pairs_in_window(full: Range, queries: int, keys: int, requests: int | None, window: int) -> Range:
    """Pairs if each query sees only the last `window` keys. full: without it; keys: of all requests, new ones too.

    At least: no request has cached keys, or nearly all keys are one request's, or a share of window / longest is left.
    """
    high = min(full.high, queries * window)
    longest = keys - (requests or 1) + 1
    if window >= longest:
        return full
    if requests is None:
        return Range.clamped(queries, queries, high)
    mask = Mask(causal=True, left=window - 1)
    if requests == 1:
        return Range.exactly(pairs_of(queries, keys, mask))
    if requests == queries:
        least = min(longest, window) + requests - 1
        return Range.clamped(least, requests * min(keys // requests, window), high)
    new = queries // requests
    least = max(requests * pairs_of(new, new, mask), -(-full.low * window // longest))
    return Range.clamped(least, requests * pairs_of(new, keys // requests, mask), high)


def keys_in_window(queries: int, keys: int, requests: int | None, window: int) -> Range:
    """Keys that are read at least once, over all requests."""
    longest = keys - (requests or 1) + 1
    if window >= longest:
        return Range.exactly(keys)
    if requests is None:
        return Range(queries, queries, keys)
    if requests == queries:
        return pairs_in_window(Range.exactly(keys), queries, keys, requests, window)
    high = min(keys, queries + requests * (window - 1))
    if requests == 1:
        return Range.exactly(high)
    likely = requests * min(keys // requests, queries // requests + window - 1)
    return Range.clamped(max(queries, keys * window // longest), likely, high)
