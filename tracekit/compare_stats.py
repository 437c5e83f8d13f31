"""Is a mean really another one, if the steps that it is taken over come one after another?

Steps that follow each other resemble each other (contexts grow, clocks drift, caches warm up), so n of them tell less
than n independent ones would. How much less is estimated from the first two autocorrelations, and the test is a t test
with so many steps. docs/compare.md has its rate of false alarms, and that of the tests it was preferred to.

A sample is a list of recordings, each an array with a row for each step, in order, and a column for each series.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_MOST_CORRELATED = 0.95  # two steps in a row: beyond, a recording would be a single value
_STEPS_FOR_TWO_LAGS = 20  # of fewer, the second autocorrelation is mostly chance
# With 1, of ten steps that seem alike nothing would be believed: not even that they take twice as long.
_LEAST_FREEDOM = 2.0
_SAME_NS = 0.5  # times are whole nanoseconds: means that differ by less do so by rounding
_CELLS = 4_000_000  # resampled steps held at once
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Change:
    """Of a mean, in ns. half_ns: half the width of its interval; p: how often chance changes it as much or more."""

    change_ns: float
    half_ns: float
    p: float


# ---- means -----------------------------------------------------------------------------------------------------------


def changes(base: Sequence[Floats], candidate: Sequence[Floats], confidence: float) -> list[Change]:
    """The change of each column's mean over all steps of a sample. confidence: of the interval, e.g. 0.95.

    Where a side has several recordings, their means tell how much one differs from the next, whatever the reason. The
    scatter of means, or that of steps if it is larger, is then taken with the degrees of freedom of the means: with
    those of the steps, recordings that are alike by chance would raise alarms.
    """
    samples = (base, candidate)
    difference = _mean(candidate) - _mean(base)
    difference = np.where(np.abs(difference) < _SAME_NS, 0.0, difference)
    variance, freedom = _within(samples)
    if more := sum(len(sample) - 1 for sample in samples):
        variance, freedom = np.maximum(variance, _between(samples, more)), np.full_like(freedom, more)
    columns = zip(difference.tolist(), variance.tolist(), freedom.tolist(), strict=True)
    return [_change(one, off, free, confidence) for one, off, free in columns]


def _mean(sample: Sequence[Floats]) -> Floats:
    mean: Floats = np.concatenate(sample).mean(axis=0)
    return mean


def _within(samples: Sequence[Sequence[Floats]]) -> tuple[Floats, Floats]:
    """Variance of the difference of means as the steps tell it, and its degrees of freedom (Welch, Satterthwaite)."""
    spreads = [(len(one) / sum(map(len, sample)), *spread(one)) for sample in samples for one in sample]
    parts = np.array([weight**2 * variance for weight, variance, _ in spreads])
    freedoms = np.array([freedom for *_, freedom in spreads])
    variance: Floats = parts.sum(axis=0)
    used = np.maximum((parts**2 / freedoms).sum(axis=0), _TINY)
    return variance, np.maximum(_LEAST_FREEDOM, variance**2 / used)


def spread(steps: Floats) -> tuple[Floats, Floats]:
    """Variance of the mean of each column of one recording, and its degrees of freedom."""
    count, squares = len(steps), _squares(steps)
    if count < 2:
        return squares, np.full_like(squares, _LEAST_FREEDOM)
    each = worth(steps)
    return squares / (count - each) * each / count, np.maximum(_LEAST_FREEDOM, count / each - 1)


def worth(steps: Floats) -> Floats:
    """How many steps of one recording tell as much as one independent step would, for each column.

    Autocorrelations are taken to fall geometrically from the first to the second and on, which an AR(1) process under
    white noise does; then it is 1 + 2 r1 / (1 - r2 / r1). r1 has the bias of short series taken off, (1 + 3 r1) / n
    (Kendall 1954), and 1 / n more: of few steps it is hardly known, and steps that are taken for too independent raise
    false alarms. Where steps alternate each would be worth more than one; that is not believed.
    """
    count = len(steps)
    deviations = steps - steps.mean(axis=0)
    squares = np.maximum(_squares(steps), _TINY)
    first = (deviations[1:] * deviations[:-1]).sum(axis=0) / squares
    first = np.clip(first + (2 + 3 * first) / count, 0, _MOST_CORRELATED)
    ratio = first
    if count >= _STEPS_FOR_TWO_LAGS:
        second = (deviations[2:] * deviations[:-2]).sum(axis=0) / squares + 1 / count
        ratio = np.clip(second / np.maximum(first, _TINY), first, _MOST_CORRELATED)
    found: Floats = np.minimum(1 + 2 * first / (1 - ratio), max(1.0, count / 2))
    return found


def _squares(steps: Floats) -> Floats:
    squares: Floats = ((steps - steps.mean(axis=0)) ** 2).sum(axis=0)
    return squares


def _between(samples: Sequence[Sequence[Floats]], more: int) -> Floats:
    """Variance of the difference as the means of recordings tell it, which scatter alike on both sides."""
    means = [np.array([one.mean(axis=0) for one in sample]) for sample in samples]
    scatter = sum(((one - one.mean(axis=0)) ** 2).sum(axis=0) for one in means) / more
    weights = [np.array([len(one) for one in sample]) / sum(map(len, sample)) for sample in samples]
    variance: Floats = scatter * sum(float((one**2).sum()) for one in weights)
    return variance


def _change(difference: float, variance: float, freedom: float, confidence: float) -> Change:
    error = math.sqrt(variance)
    if error == 0:
        return Change(difference, 0.0, 1.0 if difference == 0 else 0.0)
    return Change(difference, error * t_quantile(confidence, freedom), t_tails(difference / error, freedom))


def holm(chances: Sequence[float]) -> list[float]:
    """Chances of several tests, raised so that one of them is below some level by chance no more often than one test
    alone would be (Holm 1979).
    """
    raised = [0.0] * len(chances)
    worst = 0.0
    for place, at in enumerate(sorted(range(len(chances)), key=lambda one: chances[one])):
        worst = max(worst, min(1.0, chances[at] * (len(chances) - place)))
        raised[at] = worst
    return raised


# ---- quantiles -------------------------------------------------------------------------------------------------------


def quantile(values: Floats, share: float) -> float:
    """By nearest rank, as the analysis steps has it: the value at position ceil(share * count) in order."""
    at = _rank(share, len(values))
    return float(np.partition(values, at)[at])


def quantile_intervals(
    base: Sequence[Floats],
    candidate: Sequence[Floats],
    shares: Sequence[float],
    mean: Change,
    *,
    confidence: float,
    resamples: int,
    seed: int,
) -> list[tuple[float, float] | None]:
    """Intervals of the changes of quantiles: from resampled recordings, and blocks of steps that follow each other in
    them. base, candidate: of one series. mean: the change of its mean.

    Intervals from blocks are too narrow, which no length of blocks mends in series this short. All are stretched by
    as much as that of the mean has to be to become the interval of its t test. None for a quantile beyond which a side
    has no step: the longest of n steps cannot be resampled.
    """
    random = np.random.default_rng(seed)
    resampled = [_resampled(sample, shares, resamples, random) for sample in (base, candidate)]
    before, after = np.concatenate(base), np.concatenate(candidate)
    seen = np.array([after.mean() - before.mean(), *(quantile(after, one) - quantile(before, one) for one in shares)])
    off = resampled[1] - resampled[0] - seen
    wide = float(np.quantile(np.abs(off[:, 0]), confidence))
    stretch = max(1.0, mean.half_ns / wide) if wide > 0 else 1.0
    low, high = np.quantile(off[:, 1:], [(1 - confidence) / 2, (1 + confidence) / 2], axis=0) * stretch + seen[1:]
    fewest = min(len(before), len(after))
    known = [_rank(share, fewest) < fewest - 1 for share in shares]
    return [(float(a), float(b)) if is_known else None for a, b, is_known in zip(low, high, known, strict=True)]


def _rank(share: float, count: int) -> int:
    """From 0. Rounded first: 0.9 * 10 is 9, whatever the last bit says."""
    return max(0, math.ceil(round(share * count, 9)) - 1)


def _resampled(
    sample: Sequence[Floats], shares: Sequence[float], resamples: int, random: np.random.Generator
) -> Floats:
    """The mean and the quantiles of each resample, a row each."""
    if len(sample) == 1:
        return np.concatenate([_summary(rows, shares) for rows in _blocks(sample[0], resamples, random)])
    each = max(1, resamples // len(sample))
    drawn = [np.concatenate(list(_blocks(one, each, random))) for one in sample]
    rows = []
    for _ in range(resamples):
        chosen = random.integers(len(sample), size=len(sample))
        one = np.concatenate([drawn[at][random.integers(each)] for at in chosen])
        rows.append(_summary(one[np.newaxis], shares))
    return np.concatenate(rows)


def _summary(rows: Floats, shares: Sequence[float]) -> Floats:
    ranks = [_rank(share, rows.shape[1]) for share in shares]
    ordered = np.partition(rows, sorted(set(ranks)), axis=1)
    summary: Floats = np.column_stack([rows.mean(axis=1), ordered[:, ranks]])
    return summary


def _blocks(steps: Floats, resamples: int, random: np.random.Generator) -> Iterator[Floats]:
    """Resamples of one recording, a row each: blocks of its steps, which go on from the last to the first (circular
    block bootstrap, Politis and Romano 1992).
    """
    count = len(steps)
    length = min(count, math.ceil(max(count ** (1 / 3), float(worth(steps[:, np.newaxis])[0]))))
    blocks = -(-count // length)
    at_once = max(1, _CELLS // count)
    for done in range(0, resamples, at_once):
        starts = random.integers(count, size=(min(at_once, resamples - done), blocks, 1))
        yield steps[((starts + np.arange(length)) % count).reshape(len(starts), -1)[:, :count]]


# ---- Student's t -----------------------------------------------------------------------------------------------------


def t_tails(t: float, freedom: float) -> float:
    """How often a t variable is as far from 0 as this or farther."""
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def t_quantile(confidence: float, freedom: float) -> float:
    """How far from 0 a t variable is at most, so often."""
    low, high = 0.0, 1.0
    while t_tails(high, freedom) > 1 - confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tails(middle, freedom) > 1 - confidence else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    numerator, denominator, found = 1.0, 0.0, 1.0
    for step in range(300):
        half = step // 2
        if step == 0:
            term = 1.0
        elif step % 2 == 0:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        else:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        denominator = 1 / (1 + term * denominator)
        numerator = 1 + term / numerator
        found *= numerator * denominator
        if abs(numerator * denominator - 1) < 1e-12:
            break
    return math.exp(scale) * (found - 1) / a
