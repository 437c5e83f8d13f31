"""By how much do two clocks differ, if both stamped ranges of the same names?

One recording may have begun earlier or ended later, and steps of a server look all the same: to pair ranges in their
order, or with the nearest, can be wrong by whole steps. But no step is as long as the next: of the shifts that lay one
recording over the other the right one makes most starts agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.arrays import Int64s

Starts = Mapping[tuple[int, str], Int64s]  # of ranges, in ns, ascending, by thread and name

SAME_RANGE_NS = 1_000_000  # how far the starts of one range may differ, once the clocks agree
SLACK_NS = 1_000_000_000  # how far the clocks of one machine may be apart, at most
_AGREE_NS = 20_000  # starts of one range by the right shift, but for a few
_EACH_WAY = 64  # shifts by so many ranges are tried
_ENOUGH = 1 << 12  # ranges by which shifts are compared


@dataclass(frozen=True, slots=True)
class Agreement:
    """offset_ns: what to add to their times. mine: my starts of the ranges that both have, by thread and name.

    spread_ns: nine of ten ranges deviate by no more from it. Where no shift fits, nothing is the same and all is 0.
    """

    offset_ns: int
    spread_ns: int
    mine: Starts

    @property
    def anchors(self) -> int:
        """How many ranges both have."""
        return sum(map(len, self.mine.values()))


def agree(mine: Starts, theirs: Starts) -> Agreement:
    """Lay ranges of two recordings over each other."""
    common = sorted(mine.keys() & theirs.keys(), key=lambda key: (len(mine[key]) + len(theirs[key]), key))
    shift = _best(mine, theirs, common) if common else None
    if shift is None:
        return Agreement(0, 0, {})
    pairs = {key: _pairs(mine[key], theirs[key], shift) for key in common}
    late = np.concatenate([here - there for here, there in pairs.values()])
    near = np.sort(late[np.abs(late - shift) <= SAME_RANGE_NS])
    offset = int(near[len(near) // 2])
    same = {key: here[np.abs(here - there - offset) <= SAME_RANGE_NS] for key, (here, there) in pairs.items()}
    apart = np.abs(late - offset)
    deviations = np.sort(apart[apart <= SAME_RANGE_NS])
    return Agreement(offset, int(deviations[-(-9 * len(deviations) // 10) - 1]), same)


def _best(mine: Starts, theirs: Starts, common: Sequence[tuple[int, str]]) -> int | None:
    """The shift by which most ranges agree; None if none is small enough. common: the rarest names first."""
    rows = np.cumsum([len(mine[key]) + len(theirs[key]) for key in common])
    telling = [_part(mine[key], theirs[key]) for key in common[: max(1, int((rows <= _ENOUGH).sum()))]]
    shifts = {shift for here, there in telling for shift in _shifts(here, there)}
    fits: dict[int, float] = {}
    for shift in sorted(shifts, key=lambda one: (abs(one), one)):
        pairs = [_pairs(*starts, shift) for starts in telling]
        apart = np.concatenate([np.abs(here - there - shift) for here, there in pairs])
        agreeing = int((apart <= _AGREE_NS).sum())
        fits[shift] = agreeing * agreeing / len(apart)  # many of few say more than many of many
    best = max(fits.values(), default=0)
    # Where all ranges are alike several shifts fit; the clocks of one machine seldom differ by much.
    good = [shift for shift, fit in fits.items() if 2 * fit >= best]
    return min(good, key=lambda shift: (max(abs(shift), SAME_RANGE_NS), -fits[shift]), default=None)


def _part(mine: Int64s, theirs: Int64s) -> tuple[Int64s, Int64s]:
    """So many of them that comparing them takes no time: of those that lie at one time the middle ones."""
    begin, end = np.searchsorted(theirs, [mine[0] - SLACK_NS, mine[-1] + SLACK_NS])
    middle = theirs[begin:end][max(0, (end - begin - _ENOUGH) // 2) :][:_ENOUGH]
    if not len(middle):
        return mine[:1], theirs[:1]
    begin, end = np.searchsorted(mine, [middle[0] - SLACK_NS, middle[-1] + SLACK_NS])
    return mine[begin:end], middle


def _shifts(mine: Int64s, theirs: Int64s) -> Iterator[int]:
    """Shifts by which ranges of one name can be laid over each other: each by what fits the middle one of the pairs."""
    around = int(np.searchsorted(mine, theirs[0]) - np.searchsorted(theirs, mine[0]))
    lags = {*range(around - _EACH_WAY, around + _EACH_WAY + 1), 0, len(mine) - len(theirs)}
    for lag in sorted(lags):  # mine[place + lag] may be theirs[place]
        here, there = mine[max(lag, 0) :], theirs[max(-lag, 0) :]
        size = min(len(here), len(there))
        if size:
            shift = int(np.sort(here[:size] - there[:size])[size // 2])
            if abs(shift) <= SLACK_NS:
                yield shift


def _pairs(mine: Int64s, theirs: Int64s, shift: int) -> tuple[Int64s, Int64s]:
    """Starts that are each other's nearest once theirs are shifted."""
    there, back = _nearest(mine, theirs + shift), _nearest(theirs + shift, mine)
    mutual = back[there] == np.arange(len(mine))
    return mine[mutual], theirs[there[mutual]]


def _nearest(values: Int64s, among: Int64s) -> Int64s:
    after = np.minimum(np.searchsorted(among, values), len(among) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(np.abs(among[before] - values) <= np.abs(among[after] - values), before, after)
