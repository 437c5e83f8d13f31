"""What do changes of a step win? Predicted by replaying it with and without them.

A saving is an interval. Its lower end assumes the worst of what is not known: that recording made the host slower than
it is, and of each change what changes.py says. Its upper end assumes the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from tracekit.changes import Change
from tracekit.replay import Schedule
from tracekit.replay_choice import Group
from tracekit.replay_edits import deflated
from tracekit.replay_step import Step

# What recording adds: to each launch call what it takes beyond CALL_NS, at most CALL_ADDED_NS (recording one takes some
# 1 to 3 us); to the time between calls a tenth at least, as measured (docs/collect.md).
CALL_NS = 2_500
CALL_ADDED_NS = 3_000
HOST_ADDED = 0.1


@dataclass(frozen=True, slots=True)
class Estimate:
    """What changes win in a step. before_ns: the time of the median step, as recorded. error: of the replay, as a share
    of that. spread: lowest and highest middle of the interval over the steps replayed.
    """

    before_ns: int
    saving_low_ns: int
    saving_high_ns: int
    error: float
    spread_low_ns: int
    spread_high_ns: int


def estimate(group: Group, changes: Sequence[Change]) -> Estimate:
    """All changes together. Raises ValueError for a group that is refused."""
    sums = _cumulative(group, changes)
    return _median_of(group, [(low[-1], high[-1]) for low, high in sums])


def joint(group: Group, changes: Sequence[Change]) -> list[Estimate]:
    """Changes one on top of the other, in their order: each entry is what that change adds. The upper ends add up to no
    more than what all of them win together at best, which is never more than the step takes. Raises ValueError for a
    group that is refused.
    """
    sums = _cumulative(group, changes)
    together = [_median_of(group, [(low[place], high[place]) for low, high in sums]) for place in range(len(changes))]
    added = []
    for place, one in enumerate(together):
        before = together[place - 1] if place else replace(one, saving_low_ns=0, saving_high_ns=0)
        parts = (one.saving_low_ns - before.saving_low_ns, one.saving_high_ns - before.saving_high_ns)
        middles = [
            (low[place] + high[place] - (low[place - 1] + high[place - 1] if place else 0)) // 2 for low, high in sums
        ]
        added.append(
            replace(
                one,
                saving_low_ns=min(parts),
                saving_high_ns=max(parts),
                spread_low_ns=min(middles),
                spread_high_ns=max(middles),
            )
        )
    return _within(added, together[-1].saving_high_ns if together else 0)


def gains(group: Group, changes: Sequence[Change]) -> list[tuple[int, int]]:
    """What the first change wins, the first two, and so on, at worst and at best, ns; negative where the step becomes
    longer, of which estimates say that nothing is won. Raises ValueError for a group that is refused.
    """
    if group.refusal or not group.chosen:
        raise ValueError(group.refusal or "no step to replay")
    times = [
        [_times(step, one, changes, optimistic=place > 0) for place, one in enumerate(worst_and_best(step))]
        for step in group.chosen
    ]
    found = []
    for place in range(1, len(changes) + 1):
        pairs = [sorted((worst[0] - worst[place], best[0] - best[place])) for worst, best in times]
        found.append((int(median(low for low, _ in pairs)), int(median(high for _, high in pairs))))
    return found


def _within(estimates: Sequence[Estimate], most: int) -> list[Estimate]:
    """The same with upper ends that add up to no more than that. What a change adds at worst may be more than at best:
    then those before it have left more.
    """
    kept = []
    for place, one in enumerate(estimates):
        high = min(one.saving_high_ns, most - sum(later.saving_low_ns for later in estimates[place + 1 :]))
        kept.append(replace(one, saving_high_ns=high))
        most -= high
    return kept


def _cumulative(group: Group, changes: Sequence[Change]) -> list[tuple[list[int], list[int]]]:
    """For each chosen step what the first change wins, the first two, and so on: at worst and at best."""
    if group.refusal or not group.chosen:
        raise ValueError(group.refusal or "no step to replay")
    return [_savings(step, changes) for step in group.chosen]


def worst_and_best(step: Step) -> tuple[Schedule, Schedule]:
    """The unchanged step as estimates begin with it: at worst recording made the host slower, at best it did not."""
    return deflated(step.schedule, *_added(step)), _without_guessed_gaps(step)


def applied(change: Change, step: Step, schedule: Schedule, optimistic: bool) -> Schedule:
    """The schedule with a change to the step and to that which leads in."""
    for one in (step.lead, step) if step.lead else (step,):
        schedule = change.apply(one, schedule, optimistic)
    return schedule


def _savings(step: Step, changes: Sequence[Change]) -> tuple[list[int], list[int]]:
    start = worst_and_best(step)
    worst = _times(step, start[0], changes, optimistic=False)
    best = _times(step, start[1], changes, optimistic=True)
    low: list[int] = []
    high: list[int] = []
    for place in range(1, len(worst)):
        pair = sorted((worst[0] - worst[place], best[0] - best[place]))
        # More changes never win less: what one takes back is left out of the sum.
        low.append(max(0, pair[0], low[-1] if low else 0))
        high.append(max(low[-1], pair[1], high[-1] if high else 0))
    return low, high


def _without_guessed_gaps(step: Step) -> Schedule:
    """Where no pause of a busy stream was recorded, the best is that there is none."""
    schedule = step.schedule
    if step.pace.eager_gaps:
        return schedule
    return replace(schedule, row_gap=np.minimum(schedule.row_gap, 0))


def _times(step: Step, schedule: Schedule, changes: Sequence[Change], optimistic: bool) -> list[int]:
    times = [schedule.times().step_ns]
    for change in changes:
        schedule = applied(change, step, schedule, optimistic)
        times.append(schedule.times().step_ns)
    return times


def _added(step: Step) -> tuple[int, float]:
    """What recording added to the host's time: ns to a call, and a share of the time between calls."""
    costs = step.calls.dur[(step.calls.rows > 0) & (step.calls.rows < 2)]
    usual = int(np.median(costs)) if len(costs) else 0
    return min(max(0, usual - CALL_NS), CALL_ADDED_NS), HOST_ADDED


def _median_of(group: Group, intervals: Sequence[tuple[int, int]]) -> Estimate:
    step = group.median
    low = int(median(one for one, _ in intervals))
    high = int(median(one for _, one in intervals))
    middles = [(one + other) // 2 for one, other in intervals]
    most = step.measured_ns
    return Estimate(most, min(low, most), min(high, most), step.error, min(middles), max(middles))
