"""How often does a comparison raise a false alarm, and how often does it find a change, where steps are alike?

    python -m benchmarks.false_alarms                            # one recording a side
    python -m benchmarks.false_alarms --runs 3 --between 0.01    # three, which differ by 1 %
    python -m benchmarks.false_alarms --change 1.03              # something to find

Sides are series of steps with nothing between them, or with a change that was made. Each step's noise is 2 % of its
time and shares `alike` of itself with the step before (an AR(1) process). An alarm is p < 5 % of the mean, as in
compare, without its other condition, that the change is 1 % at least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import click
import numpy as np

from tracekit.compare_stats import Floats, _blocks, changes, t_tails

Side = Sequence[Floats]
Test = Callable[[Side, Side], bool]

NOISE = 0.02
LEVEL = 0.05


def series(random: np.random.Generator, count: int, alike: float, mean: float, run: float) -> Floats:
    """One recording. run: standard deviation of what all of its steps share, as a part of the mean."""
    shocks = random.standard_normal(count)
    noise = np.empty(count)
    noise[0] = shocks[0]
    for at in range(1, count):
        noise[at] = alike * noise[at - 1] + math.sqrt(1 - alike**2) * shocks[at]
    steps: Floats = mean * (1 + run * random.standard_normal() + NOISE * noise)[:, np.newaxis]
    return steps


def ours(base: Side, candidate: Side) -> bool:
    """The test of the means that compare makes."""
    (found,) = changes(base, candidate, 1 - LEVEL)
    return found.p < LEVEL


def welch(base: Side, candidate: Side) -> bool:
    """A t test that takes each step for independent, as most scripts do."""
    sides = [np.concatenate(side)[:, 0] for side in (base, candidate)]
    parts = [float(one.var(ddof=1)) / len(one) for one in sides]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(one) - 1) for part, one in zip(parts, sides, strict=True))
    return t_tails(float(sides[1].mean() - sides[0].mean()) / math.sqrt(sum(parts)), freedom) < LEVEL


def bootstrap(base: Side, candidate: Side, resamples: int = 400) -> bool:
    """The percentile interval of block-bootstrapped means does not reach zero."""
    random = np.random.default_rng(0)
    means = []
    for side in (base, candidate):
        parts = [np.concatenate(list(_blocks(one[:, 0], resamples, random))).mean(axis=1) for one in side]
        means.append(np.mean(parts, axis=0))
    low, high = np.quantile(means[1] - means[0], [LEVEL / 2, 1 - LEVEL / 2])
    return not low <= 0 <= high


TESTS: dict[str, Test] = {"compare": ours, "Welch's t": welch, "block bootstrap": bootstrap}


def rate(test: Test, pairs: int, *, runs: int, steps: int, alike: float, run: float, change: float) -> float:
    """The share of pairs of sides that raise an alarm."""
    random = np.random.default_rng(1)
    alarms = 0
    for _ in range(pairs):
        sides = [[series(random, steps, alike, mean, run) for _ in range(runs)] for mean in (1e6, 1e6 * change)]
        alarms += test(*sides)
    return alarms / pairs


@click.command()
@click.option("--pairs", default=1_000, show_default=True)
@click.option("--runs", default=1, show_default=True, help="Recordings a side.")
@click.option("--between", default=0.0, show_default=True, help="How much recordings differ, as a part of the mean.")
@click.option("--change", default=1.0, show_default=True, help="Mean of the candidate over that of the base.")
def main(pairs: int, runs: int, between: float, change: float) -> None:
    """Print a table of docs/compare.md: alarms by steps of a recording, and by how alike two in a row are."""
    print(f"| steps | alike | {' | '.join(TESTS)} |")
    print("|" + "---|" * (2 + len(TESTS)))
    for steps in (9, 20, 60, 200):
        for alike in (0.0, 0.5, 0.8):
            rates = [
                rate(test, pairs, runs=runs, steps=steps, alike=alike, run=between, change=change)
                for test in TESTS.values()
            ]
            print(f"| {steps} | {alike} | {' | '.join(f'{one:.1%}' for one in rates)} |", flush=True)


if __name__ == "__main__":
    main()
