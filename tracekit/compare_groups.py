"""How much did steps of each kind change, is it more than chance, and which parts of them explain it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from tracekit.compare_kernels import kernel_changes
from tracekit.compare_measure import IDLE, WHOLE, GroupSteps, Key, PartName, Recording
from tracekit.compare_result import (
    QUANTILES,
    GroupChange,
    Part,
    QuantileChange,
    StepTimes,
    Thresholds,
    Verdict,
)
from tracekit.compare_stats import Change, Floats, changes, holm, quantile, quantile_intervals
from tracekit.wording import counted

Side = Sequence[GroupSteps]  # of one kind, a recording each

_PHASES = ("decode", "verify", "draft", "mixed", "prefill", "unknown")


@dataclass(frozen=True, slots=True)
class _Pair:
    """Steps of one kind on both sides, with the names of all parts of them. told: the change of the step's mean and
    those of the parts; reason: why they are not tested.
    """

    key: Key
    base: Side
    candidate: Side
    names: tuple[PartName, ...]
    told: tuple[Change, ...]
    reason: str


def group_changes(
    base: Sequence[Recording], candidate: Sequence[Recording], thresholds: Thresholds
) -> tuple[GroupChange, ...]:
    """Those that both sides have, in the order of the analysis steps; verdicts share one rate of false alarms."""
    without_causes = any(one.losses.refusal for one in (*base, *candidate))
    keys = {key: group.bounds for one in (*base, *candidate) for key, group in one.groups.items()}
    pairs = []
    for key in sorted(keys, key=lambda one: (_PHASES.index(one[0]), keys[one], one)):
        sides = [[one.groups[key] for one in side if key in one.groups] for side in (base, candidate)]
        if all(sides):
            pairs.append(_pair(key, sides[0], sides[1], without_causes, thresholds))
    chances = iter(holm([one.told[0].p for one in pairs if not one.reason]))
    return tuple(_change(one, None if one.reason else next(chances), thresholds) for one in pairs)


def _pair(key: Key, base: Side, candidate: Side, without_causes: bool, thresholds: Thresholds) -> _Pair:
    if without_causes:
        base, candidate = (tuple(_without_causes(one) for one in side) for side in (base, candidate))
    names = tuple(sorted({name for one in (*base, *candidate) for name in one.parts}))
    fewest = {"base": _steps(base), "candidate": _steps(candidate)}
    what = "recording" if key == WHOLE else "step"
    few = [f"{counted(steps, what)} in {name}" for name, steps in fewest.items() if steps < thresholds.min_steps]
    reason = f"{' and '.join(few)}; it takes {thresholds.min_steps} to tell a change from chance" if few else ""
    before, after = ([_columns(one, names) for one in side] for side in (base, candidate))
    return _Pair(key, base, candidate, names, tuple(changes(before, after, thresholds.confidence)), reason)


def _steps(side: Side) -> int:
    return sum(len(one.devices) for one in side)


def _columns(group: GroupSteps, names: Sequence[PartName]) -> Floats:
    """A row a step: its time, then its parts; means over devices, in ns."""
    nothing = np.zeros(len(group.devices), np.int64)
    parts = [group.parts.get(name, nothing) for name in names]
    columns: Floats = np.column_stack([group.totals, *parts]) / group.devices[:, np.newaxis]
    return columns


def _without_causes(group: GroupSteps) -> GroupSteps:
    """Its idle time in one, for there are recordings in which causes cannot be told."""
    idle = [ns for (kind, _), ns in group.parts.items() if kind == "idle"]
    parts = {name: ns for name, ns in group.parts.items() if name[0] != "idle"}
    if idle:
        parts[IDLE] = np.sum(idle, axis=0)
    return replace(group, parts=parts)


def _change(pair: _Pair, chance: float | None, thresholds: Thresholds) -> GroupChange:
    """chance: that of the mean, made good for the number of groups; None where it is not to be tested."""
    base, candidate = _exact(pair.base, pair.names), _exact(pair.candidate, pair.names)
    times = _times(pair.base, sum(base.values())), _times(pair.candidate, sum(candidate.values()))
    change_ns = times[1].mean_ns - times[0].mean_ns
    verdict = _verdict(change_ns, times[0].mean_ns, chance, thresholds)
    low, high = _interval(change_ns, pair.told[0]) if chance is not None else (None, None)
    changed = verdict in ("slower", "faster")
    return GroupChange(
        *pair.key,
        *times,
        change_ns,
        low,
        high,
        chance,
        verdict,
        changed,
        pair.reason,
        _quantiles(pair, times, thresholds),
        _parts(pair, base, candidate, changed, thresholds),
        kernel_changes([one.kernels for one in pair.base], [one.kernels for one in pair.candidate]),
    )


def _verdict(change_ns: int, mean_ns: int, chance: float | None, thresholds: Thresholds) -> Verdict:
    if chance is None:
        return "cannot tell"
    if chance > 1 - thresholds.confidence or abs(change_ns) < thresholds.min_change * mean_ns:
        return "no difference shown"
    return "slower" if change_ns > 0 else "faster"


def _interval(change_ns: int, told: Change) -> tuple[int, int]:
    return round(change_ns - told.half_ns), round(change_ns + told.half_ns)


# ---- figures ---------------------------------------------------------------------------------------------------------


def _exact(side: Side, names: Sequence[PartName]) -> dict[PartName, int]:
    """Whole nanoseconds of each part of the mean step that add up to those of the step: its mean is rounded, and what
    rounding the parts down leaves goes to those that lost most.
    """
    means = {name: Fraction(0) for name in names}
    for group in side:
        for devices in set(group.devices.tolist()):
            chosen = group.devices == devices
            for name, ns in group.parts.items():
                means[name] += Fraction(int(ns[chosen].sum()), devices)
    means = {name: ns / _steps(side) for name, ns in means.items()}
    whole = {name: int(ns) for name, ns in means.items()}
    left = round(sum(means.values(), Fraction(0))) - sum(whole.values())
    for name in sorted(names, key=lambda one: (whole[one] - means[one], one))[:left]:
        whole[name] += 1
    return whole


def _totals(side: Side) -> list[Floats]:
    return [one.totals / one.devices for one in side]


def _times(side: Side, mean_ns: int) -> StepTimes:
    steps = np.concatenate(_totals(side))
    return StepTimes(len(side), len(steps), mean_ns, *(round(quantile(steps, share)) for _, share in QUANTILES))


def _quantiles(pair: _Pair, times: tuple[StepTimes, StepTimes], thresholds: Thresholds) -> tuple[QuantileChange, ...]:
    intervals: Sequence[tuple[float, float] | None] = [None] * len(QUANTILES)
    if not pair.reason:
        intervals = quantile_intervals(
            _totals(pair.base),
            _totals(pair.candidate),
            [share for _, share in QUANTILES],
            pair.told[0],
            confidence=thresholds.confidence,
            resamples=thresholds.resamples,
            seed=thresholds.seed,
        )
    found = []
    for (name, _), interval in zip(QUANTILES, intervals, strict=True):
        was, now = (getattr(one, f"{name}_ns") for one in times)
        low, high = (None, None) if interval is None else map(round, interval)
        found.append(QuantileChange(name, now - was, low, high))
    return tuple(found)


def _parts(
    pair: _Pair,
    base: Mapping[PartName, int],
    candidate: Mapping[PartName, int],
    changed: bool,
    thresholds: Thresholds,
) -> tuple[Part, ...]:
    """The largest change first. What explains the step's change is told of only where that is one, so that the parts of
    many steps that did not change raise no alarms; and beyond chance, for as many parts as there are.
    """
    change_ns = sum(candidate.values()) - sum(base.values())
    least = max(thresholds.part_share * abs(change_ns), thresholds.min_change * sum(base.values()))
    chances = holm([one.p for one in pair.told[1:]])
    found = []
    for name, told, chance in zip(pair.names, pair.told[1:], chances, strict=True):
        ns = candidate[name] - base[name]
        low, high = (None, None) if pair.reason else _interval(ns, told)
        significant = changed and chance <= 1 - thresholds.confidence and abs(ns) >= least
        found.append(Part(*name, base[name], candidate[name], ns, low, high, significant))
    return tuple(sorted(found, key=lambda one: (-abs(one.change_ns), one.kind, one.name)))
