"""In which order are remedies worth most, each on top of those before it?

Greedy: at each turn the remedy that adds most to what is chosen already, by the middle of its interval, played on the
median step of a group. What each adds is then played on all chosen steps (gains.joint). What rests on adjacency alone
comes after what has evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.changes import Change, FreeLaunches
from tracekit.gains import Estimate, applied, estimate, joint, worst_and_best
from tracekit.graph_regions import decode_graph
from tracekit.remedies import Remedy, remedies
from tracekit.replay import Schedule
from tracekit.replay_choice import MAX_ERROR, Group, groups
from tracekit.replay_step import Step
from tracekit.trace import Trace


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is worth planning. min_share: of the step, what a remedy has to add; most: remedies of a group; group_share:
    of the time of all groups, what a group has to take; max_error: of the replay.
    """

    min_share: float = 0.01
    most: int = 10
    group_share: float = 0.02
    max_error: float = MAX_ERROR


DEFAULTS = Bounds()


@dataclass(frozen=True, slots=True)
class Plan:
    """Of one group. remedies and what each adds on top of those before. busy_ns: of the median step, when its device
    works. free_ns: the step at best if launches were free, be it in graphs. devices: on how many this group is found.
    reason: why there is no remedy.
    """

    group: Group
    remedies: tuple[Remedy, ...] = ()
    added: tuple[Estimate, ...] = ()
    busy_ns: int = 0
    free_ns: int = 0
    devices: int = 1
    reason: str = ""

    @property
    def step_ns(self) -> int:
        """The median step as recorded."""
        return self.group.median.measured_ns if self.group.chosen else 0

    @property
    def told(self) -> bool:
        """Something can be said of the group, if only that there is nothing to win."""
        return bool(self.group.chosen) and not self.group.refusal

    @property
    def saving(self) -> tuple[int, int]:
        """What all remedies together save of a step, at worst and at best."""
        return sum(one.saving_low_ns for one in self.added), sum(one.saving_high_ns for one in self.added)


def plans(trace: Trace, bounds: Bounds) -> tuple[Plan, ...]:
    """Of each phase and batch size on the device where it takes most time, those that take most time first; asked
    again, the same.
    """
    found: tuple[Plan, ...] = trace.once(("plans", bounds), lambda: tuple(_plans(trace, bounds)))
    return found


def _plans(trace: Trace, bounds: Bounds) -> list[Plan]:
    everything = groups(trace, max_error=bounds.max_error)
    alike: dict[tuple[str, str], list[Group]] = {}
    for group in everything:
        # Without steps every device did something of its own.
        key = (group.phase, group.bucket) if group.steps != (None,) else (str(group.rank), str(group.device))
        alike.setdefault(key, []).append(group)
    total = sum(same[0].total_ns for same in alike.values())
    worth = [same for same in alike.values() if same[0].total_ns >= bounds.group_share * total]
    return [_plan(trace, same[0], len(same), bounds) for same in worth]


def _plan(trace: Trace, group: Group, devices: int, bounds: Bounds) -> Plan:
    if group.refusal or not group.chosen:
        return Plan(group, devices=devices, reason=group.refusal or "no step to replay")
    order, added = _worth(group, ranked(group, remedies(trace, group), bounds), bounds)
    reason = "" if order else f"nothing known here would win {bounds.min_share:.0%} of the step"
    return Plan(
        group, tuple(order), tuple(added), busy_ns(group.median), _free_ns(trace, group, order), devices, reason
    )


def _worth(group: Group, order: Sequence[Remedy], bounds: Bounds) -> tuple[list[Remedy], list[Estimate]]:
    """What adds enough in all of the chosen steps, not in the median one alone."""
    added = joint(group, [one.change for one in order])
    least = 2 * bounds.min_share * group.median.measured_ns
    kept = [one for one, won in zip(order, added, strict=True) if won.saving_low_ns + won.saving_high_ns >= least]
    return kept, added if len(kept) == len(order) else joint(group, [one.change for one in kept])


def _free_ns(trace: Trace, group: Group, order: Sequence[Remedy]) -> int:
    """The step at best if launches were free, without graphs, with those of the plan and with one of all: kernels
    in a graph follow each other sooner, and their collectives do not wait for ranks that launch late, as free
    launches alone do not tell.
    """
    graphs = [one.change for one in order if one.kind == "graph"]
    choices: list[list[Change]] = [[], graphs, [decode_graph(trace, group)]]
    free = [estimate(group, [*changes, FreeLaunches()]) for changes in choices if changes or changes is choices[0]]
    return min(one.before_ns - one.saving_high_ns for one in free)


def ranked(group: Group, choice: Sequence[Remedy], bounds: Bounds) -> list[Remedy]:
    """The order, without what adds too little."""
    order: list[Remedy] = []
    played = _Played(group.median)
    least = max(1.0, bounds.min_share * group.median.measured_ns)
    for stage in range(3):
        while len(order) < bounds.most:
            left = [one for one in choice if one not in order and _turn(one, order) <= stage]
            gains = [played.gain(one) for one in left]
            best = max(range(len(left)), key=lambda place: gains[place], default=-1)
            if best < 0 or gains[best] < least:
                break
            order.append(left[best])
            played.add(order[-1])
    return order


def _turn(remedy: Remedy, order: Sequence[Remedy]) -> int:
    """First what has evidence, a graph of graphs once there are these; then that without; then what is but possible."""
    if remedy.possible:
        return 2
    return int(remedy.joins and not any(one.kind == remedy.kind for one in order))


class _Played:
    """A step with what is chosen so far, at worst and at best."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._schedules = worst_and_best(step)
        self._ns = _sum(self._schedules)

    def gain(self, remedy: Remedy) -> int:
        """What a remedy would add: the middle of worst and best."""
        return (self._ns - _sum(self._with(remedy))) // 2

    def add(self, remedy: Remedy) -> None:
        self._schedules = self._with(remedy)
        self._ns = _sum(self._schedules)

    def _with(self, remedy: Remedy) -> tuple[Schedule, Schedule]:
        worst, best = self._schedules
        change = remedy.change
        return applied(change, self._step, worst, False), applied(change, self._step, best, True)


def _sum(schedules: Sequence[Schedule]) -> int:
    return sum(one.times().step_ns for one in schedules)


def busy_ns(step: Step) -> int:
    """Time in which the device does work of the step, on any stream."""
    rows = step.rows
    total, until = 0, -(2**62)
    for ts, end, own in zip(rows.ts.tolist(), rows.end.tolist(), rows.own.tolist(), strict=True):
        if own and end > until:
            total += end - max(ts, until)
            until = end
    return total
