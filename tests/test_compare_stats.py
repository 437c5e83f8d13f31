"""Is a change more than chance? Against definitions too naive to be wrong, and by how often the test is wrong."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compare_recordings import noise
from tracekit.compare_stats import (
    Change,
    Floats,
    _blocks,
    changes,
    holm,
    quantile,
    quantile_intervals,
    spread,
    t_quantile,
    t_tails,
)


def column(*values: float) -> Floats:
    return np.array(values, np.float64)[:, np.newaxis]


def noisy(random: np.random.Generator, count: int, mean: float = 1e6, *, alike: float = 0.5) -> Floats:
    return mean * noise(random, count, alike=alike)[:, np.newaxis]


def only(base: list[Floats], candidate: list[Floats]) -> Change:
    (found,) = changes(base, candidate, 0.95)
    return found


# ---- steps that do not vary ------------------------------------------------------------------------------------------


def test_without_any_scatter_equal_is_equal_and_else_is_else() -> None:
    same, other = column(*[7.0] * 5), column(*[8.0] * 5)
    assert only([same], [same]) == Change(0.0, 0.0, 1.0)
    assert only([same], [other]) == Change(1.0, 0.0, 0.0)
    assert only([same, same], [other, other]) == Change(1.0, 0.0, 0.0)


def test_means_of_whole_nanoseconds_that_differ_by_less_are_equal() -> None:
    """A third of 10 ns, in other orders: what the sums lose in their last bits is no change."""
    thirds = column(*[10 / 3] * 7)
    assert only([thirds], [column(*[10 / 3] * 11)]).p == 1.0


def test_a_column_has_nothing_to_do_with_the_next() -> None:
    random = np.random.default_rng(1)
    a, b = noisy(random, 9), noisy(random, 9)
    changed, same = changes([np.hstack([a, a])], [np.hstack([b, a])], 0.95)
    assert changed.p == pytest.approx(only([a], [b]).p) and same.p == only([a], [a]).p == 1.0


# ---- against naive definitions ---------------------------------------------------------------------------------------


def naive_spread(values: list[float]) -> tuple[float, float]:
    """As the docstring of worth has it, a sum at a time."""
    n, mean = len(values), sum(values) / len(values)
    off = [value - mean for value in values]
    squares = sum(one * one for one in off)
    first = sum(off[at] * off[at - 1] for at in range(1, n)) / squares
    first = min(max(first + (2 + 3 * first) / n, 0), 0.95)
    ratio = first
    if n >= 20:
        second = sum(off[at] * off[at - 2] for at in range(2, n)) / squares + 1 / n
        ratio = min(max(second / first if first else 0, first), 0.95)
    worth = min(1 + 2 * first / (1 - ratio), n / 2)
    return squares / (n - worth) / (n / worth), max(2.0, n / worth - 1)


@pytest.mark.parametrize("count", [2, 5, 19, 20, 60])
@pytest.mark.parametrize("alike", [0.0, 0.6, 0.99])
def test_spread_is_that_of_the_naive_definition(count: int, alike: float) -> None:
    values = noisy(np.random.default_rng(count), count, alike=alike)
    variance, freedom = spread(values)
    assert (float(variance[0]), float(freedom[0])) == pytest.approx(naive_spread(values[:, 0].tolist()))


def test_alternating_steps_are_not_worth_more_than_they_are() -> None:
    variance, freedom = spread(column(*[1.0, 3.0] * 10))
    assert (float(variance[0]), float(freedom[0])) == pytest.approx((20 / 19 / 20, 19))


def permuted(base: Floats, candidate: Floats) -> float:
    """How many of all ways to deal the values to two sides have means at least as far apart."""
    values, size = np.concatenate([base, candidate])[:, 0], len(base)
    total = values.sum()
    sums = np.array([values[list(chosen)].sum() for chosen in combinations(range(len(values)), size)])
    apart = np.abs(sums / size - (total - sums) / (len(values) - size))
    return float((apart >= abs(base.mean() - candidate.mean()) * (1 - 1e-9)).mean())


@pytest.mark.parametrize("seed", range(5))
def test_it_is_no_bolder_than_all_permutations_where_steps_are_independent(seed: int) -> None:
    random = np.random.default_rng(seed)
    base, candidate = noisy(random, 6, alike=0.0), noisy(random, 6, alike=0.0)
    for factor in (1.0, 1.01, 1.02):
        exact, found = permuted(base, candidate * factor), only([base], [candidate * factor]).p
        assert found >= min(exact, 0.05) * 0.7
    assert permuted(base, candidate * 1.5) == 2 / 924  # no other way to deal them is as far apart
    assert only([base], [candidate * 1.5]).p < 0.05


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.7062), (2, 4.30265), (4, 2.77645), (30, 2.04227), (1e6, 1.95997)])
def test_t_is_that_of_the_tables(freedom: float, t: float) -> None:
    assert t_quantile(0.95, freedom) == pytest.approx(t, rel=1e-5)
    assert t_tails(t, freedom) == pytest.approx(0.05, rel=1e-4)
    assert t_tails(0, freedom) == 1.0


@given(st.floats(1, 500), st.floats(0, 30))
@settings(max_examples=30, deadline=None)
def test_t_tails_are_the_area_under_its_density(freedom: float, t: float) -> None:
    """Both areas as sums, over t = sqrt(freedom) tan(x), which maps the whole line to an interval."""
    angles = np.linspace(-np.pi / 2, np.pi / 2, 200_001)
    density = np.maximum(np.cos(angles), 0) ** (freedom - 1)
    outside = np.abs(angles) >= np.arctan(t / np.sqrt(freedom))
    expected = float(density[outside].sum() / density.sum())
    assert t_tails(t, freedom) == pytest.approx(expected, abs=2e-3)


@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_rejects_what_its_rule_rejects(chances: list[float]) -> None:
    """Sorted, the first at level / n, the next at level / (n - 1), until one is above."""
    for level in (0.01, 0.05, 0.3):
        rejected = set[int]()
        for place, at in enumerate(sorted(range(len(chances)), key=lambda one: chances[one])):
            if chances[at] * (len(chances) - place) > level:
                break
            rejected.add(at)
        assert {at for at, raised in enumerate(holm(chances)) if raised <= level} == rejected


# ---- quantiles -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_the_least_value_that_so_many_do_not_exceed(values: list[int], share: float) -> None:
    found = quantile(np.array(values, np.float64), share)
    enough = [one for one in values if 100 * sum(other <= one for other in values) >= round(100 * share) * len(values)]
    assert found == min(enough)


def test_resamples_are_blocks_of_steps_that_follow_each_other() -> None:
    """Of numbered steps, each that does not begin a block follows the one before; the first follows the last."""
    steps = np.arange(27, dtype=np.float64)
    rows = np.concatenate(list(_blocks(steps, 50, np.random.default_rng(0))))
    assert rows.shape == (50, 27)
    length = 14  # numbers in order are as alike as steps can be: two blocks
    for start in range(0, 27, length):
        block = rows[:, start : start + length]
        assert np.array_equal(np.diff(block, axis=1) % 27, np.ones((50, block.shape[1] - 1)))
    assert len(np.unique(rows[:, 0])) > 15


def test_intervals_of_quantiles() -> None:
    """They hold what was found and not 0, a hundred times as much in other units; of the longest step there is none."""
    random = np.random.default_rng(5)
    base, candidate = noisy(random, 60)[:, 0], noisy(random, 60, 1.2e6)[:, 0]

    def intervals(scale: float) -> list[tuple[float, float] | None]:
        mean = only([base[:, np.newaxis] * scale], [candidate[:, np.newaxis] * scale])
        sides, shares = ([base * scale], [candidate * scale]), [0.5, 0.9, 0.99]
        return quantile_intervals(*sides, shares, mean, confidence=0.95, resamples=300, seed=0)

    median, high, longest = intervals(1.0)
    assert median is not None and high is not None and longest is None
    change = quantile(candidate, 0.5) - quantile(base, 0.5)
    assert 0 < median[0] < change < median[1] < 2 * change
    assert intervals(100.0)[0] == pytest.approx((100 * median[0], 100 * median[1]))


def test_recordings_that_differ_widen_the_intervals_of_quantiles() -> None:
    random = np.random.default_rng(6)
    shifted = [noisy(random, 30, mean)[:, 0] for mean in (0.9e6, 1.0e6, 1.1e6)]
    alike = [noisy(random, 30)[:, 0] for _ in range(3)]
    widths = []
    for sample in (shifted, alike):
        mean = only([one[:, np.newaxis] for one in sample], [one[:, np.newaxis] for one in sample])
        found = quantile_intervals(sample, sample, [0.5], mean, confidence=0.95, resamples=300, seed=0)[0]
        assert found is not None and found[0] < 0 < found[1]
        widths.append(found[1] - found[0])
    assert widths[0] > 5 * widths[1]


# ---- how often it is wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alike", [0.0, 0.5])
@pytest.mark.parametrize("count", [8, 20, 60])
def test_one_of_twenty_pairs_without_a_change_raises_an_alarm_at_most(count: int, alike: float) -> None:
    random = np.random.default_rng(count)
    pairs = [(noisy(random, count, alike=alike), noisy(random, count, alike=alike)) for _ in range(200)]
    assert sum(only([base], [candidate]).p <= 0.05 for base, candidate in pairs) <= 10


def test_recordings_that_differ_by_more_than_their_steps_raise_no_alarm() -> None:
    """Each of them is some per cent off as a whole, which nobody can know who has but one a side."""
    random = np.random.default_rng(3)

    def side() -> list[Floats]:
        return [noisy(random, 20) * factor for factor in noise(random, 3, alike=0.0, size=0.05)]

    pairs = [(side(), side()) for _ in range(200)]
    assert sum(only(base, candidate).p <= 0.05 for base, candidate in pairs) <= 19  # 5 % and what chance adds
    assert sum(only(base[:1], candidate[:1]).p <= 0.05 for base, candidate in pairs) > 60


def test_a_change_that_matters_is_found() -> None:
    """5 % in 40 steps that vary by 2 %, independent or not; and in three recordings a side."""
    random = np.random.default_rng(4)
    for alike, least in ((0.0, 20), (0.5, 16)):
        pairs = [(noisy(random, 40, alike=alike), noisy(random, 40, 1.05e6, alike=alike)) for _ in range(20)]
        assert sum(only([base], [candidate]).p <= 0.05 for base, candidate in pairs) >= least
    sides = [[noisy(random, 20, mean) for _ in range(3)] for mean in (1e6, 1.05e6)]
    assert only(*sides).p <= 0.05
