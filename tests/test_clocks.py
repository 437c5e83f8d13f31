"""Ranges of two recordings laid over each other: the shift that makes them agree, and what both have."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from tracekit.clocks import agree

STEP = (7, "step")
MS = 1_000_000


def starts(*of_steps: int) -> dict[tuple[int, str], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return {STEP: np.array(of_steps, np.int64)} if of_steps else {}


def irregular(count: int, seed: int = 0) -> list[int]:
    """Steps of 9.6 to 10.4 ms."""
    chance = random.Random(seed)
    return list(itertools.accumulate(chance.randrange(9_600_000, 10_400_000) for _ in range(count)))


@pytest.mark.parametrize(
    ("mine", "theirs"), [([], []), ([5], []), ([0], [2_000 * MS])], ids=["nothing", "one side", "days apart"]
)
def test_nothing_in_common(mine: list[int], theirs: list[int]) -> None:
    found = agree(starts(*mine), starts(*theirs))
    assert (found.offset_ns, found.spread_ns, found.anchors) == (0, 0, 0)


def test_the_median_counts() -> None:
    found = agree(starts(100, 200, 300), starts(90, 192, 290))
    assert (found.offset_ns, found.spread_ns, found.anchors) == (10, 2, 3)


@pytest.mark.parametrize("offset", [-700 * MS, -40 * MS, -300, 0, 5 * MS, 900 * MS])
@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (slice(0, 30), slice(0, 30)),
        (slice(0, 20), slice(10, 30)),
        (slice(12, 30), slice(0, 18)),
        (slice(0, 30), slice(9, 17)),
    ],
    ids=["the same steps", "theirs began later", "theirs began earlier", "theirs are within"],
)
def test_steps_that_are_not_all_the_same(mine: slice, theirs: slice, offset: int) -> None:
    """As many steps on both sides are not the same steps."""
    steps = irregular(30)
    found = agree(starts(*steps[mine]), starts(*(step - offset for step in steps[theirs])))
    assert found.offset_ns == offset
    assert found.mine[STEP].tolist() == steps[max(mine.start, theirs.start) : min(mine.stop, theirs.stop)]


def test_of_steps_that_are_all_alike_the_nearest() -> None:
    """20 steps of 10 ms on each side, the last 4 of which the other did not see, and a clock that is 30 us late."""
    steps = [10 * MS * number for number in range(24)]
    found = agree(starts(*steps[:20]), starts(*(step - 30_000 for step in steps[4:])))
    assert (found.offset_ns, found.anchors) == (30_000, 16)


def test_rare_names_tell_more() -> None:
    step, request = (7, "step"), (7, "request 81")
    alike = np.arange(20, dtype=np.int64) * 10 * MS
    mine = {step: alike, request: np.array([3 * MS])}
    theirs = {step: alike + 2, request: np.array([3 * MS + 2])}
    assert agree(mine, theirs).offset_ns == -2
