"""The metrics that `--fail-on` can ask for, by name, of one trace or of two sides.

    PHASE.STAT, PHASE[BATCH].STAT   time of a step with the idle time before it; STAT: mean, p50, p90, p99
    busy_share, idle_share          part of the span of the device that is busy least, idle most
    idle.CAUSE                      idle time of a cause, as a part of the span of the device that has most of it
    busy.CATEGORY                   time of a category, as a part of the busy time of the device that has most of it

Of what a trace cannot tell, the measure says why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from statistics import median

import numpy as np

from tracekit.analyses._idle_advice import MEANINGS
from tracekit.analysis import Row
from tracekit.classify import CATEGORIES
from tracekit.compare import Recording, Thresholds, measure
from tracekit.compare_result import QUANTILES
from tracekit.compare_stats import Floats, changes, quantile, quantile_intervals
from tracekit.gate import Measure, Measured, Number
from tracekit.ranges import PHASES
from tracekit.trace import Trace

_MEAN = "mean"
_STATISTICS = (_MEAN, *(name for name, _ in QUANTILES))
_SHARES = dict(QUANTILES)
_DEFAULTS = Thresholds()

Steps = Mapping[str, Sequence[Floats]]  # by "decode" or "decode[5-8]": times in ns, an array a recording


def metrics_of(trace: Trace) -> dict[str, Measured]:
    """All metrics of a trace, or of the part of it that is looked at."""
    steps = _steps([measure(trace)])
    times = {f"{name}.{stat}": _time(name, steps, stat) for name in _names(steps) for stat in _STATISTICS}
    return {name: Measured(one) for name, one in {**times, **shares_of(trace)}.items()}


def metrics_of_sides(
    base: Sequence[Recording],
    candidate: Sequence[Recording],
    shares: tuple[Sequence[Mapping[str, Measure]], Sequence[Mapping[str, Measure]]],
    wanted: Collection[str],
    thresholds: Thresholds = _DEFAULTS,
) -> dict[str, Measured]:
    """All metrics of the candidate beside those of the base; intervals of changes for those that are wanted.

    shares: those of each recording of a side (`shares_of`), of which the median counts.
    """
    before, after = _steps(base), _steps(candidate)
    found = {}
    for name in _names({**before, **after}):
        for stat in _STATISTICS:
            metric = f"{name}.{stat}"
            has_interval = metric in wanted and name in before and name in after
            interval = _interval(before[name], after[name], stat, thresholds) if has_interval else None
            low, high = interval or (None, None)
            found[metric] = Measured(_time(name, after, stat), _time(name, before, stat), low, high)
    names = dict.fromkeys(name for side in shares for one in side for name in one)
    return found | {name: Measured(_middle(name, shares[1]), _middle(name, shares[0])) for name in names}


# ---- steps -----------------------------------------------------------------------------------------------------------


def _steps(recordings: Sequence[Recording]) -> dict[str, list[Floats]]:
    found: dict[str, list[Floats]] = defaultdict(list)
    for recording in recordings:
        by_phase: dict[str, list[Floats]] = defaultdict(list)
        for (phase, bucket), group in recording.groups.items():
            times: Floats = group.totals / group.devices
            found[f"{phase}[{bucket}]"].append(times)
            by_phase[phase].append(times)
        for phase, parts in by_phase.items():
            found[phase].append(np.concatenate(parts))
    return found


def _names(steps: Steps) -> list[str]:
    """Each phase, whether there are steps of it or not, and each size of batch that there is."""
    return list(dict.fromkeys((*PHASES, *sorted(steps))))


def _time(name: str, steps: Steps, stat: str) -> Measure:
    if name not in steps:
        return Measure("time", None, f"there are no {name} steps")
    times = np.concatenate(list(steps[name]))
    value = float(times.mean()) if stat == _MEAN else quantile(times, _SHARES[stat])
    return Measure("time", round(value))


def _interval(
    base: Sequence[Floats], candidate: Sequence[Floats], stat: str, thresholds: Thresholds
) -> tuple[Number, Number] | None:
    """Of the change, None where there are too few steps to tell."""
    if min(sum(map(len, side)) for side in (base, candidate)) < thresholds.min_steps:
        return None
    columns = [[one[:, np.newaxis] for one in side] for side in (base, candidate)]
    (mean,) = changes(columns[0], columns[1], thresholds.confidence)
    if stat == _MEAN:
        return mean.change_ns - mean.half_ns, mean.change_ns + mean.half_ns
    (found,) = quantile_intervals(
        base,
        candidate,
        [_SHARES[stat]],
        mean,
        confidence=thresholds.confidence,
        resamples=thresholds.resamples,
        seed=thresholds.seed,
    )
    return found


# ---- shares ----------------------------------------------------------------------------------------------------------


def shares_of(trace: Trace) -> dict[str, Measure]:
    """Those metrics of a trace that are shares."""
    return {**dict(_idle(trace)), **dict(_busy(trace))}


def _middle(name: str, side: Sequence[Mapping[str, Measure]]) -> Measure:
    measures = [one[name] for one in side if name in one]
    values = [one.value for one in measures if one.value is not None]
    if len(values) < len(side):
        return next((one for one in measures if one.value is None), Measure("share", None, f"not all tell {name}"))
    return Measure("share", median([Fraction(one) for one in values]))


def _idle(trace: Trace) -> Iterator[tuple[str, Measure]]:
    result = trace.analyze("idle_gaps")
    names = ("idle_share", "busy_share", *(f"idle.{cause}" for cause in MEANINGS))
    rows = [row for row in result.summary if row["span_ns"]]
    if not rows or any(row["idle_ns"] is None for row in rows):
        yield from _unknown(names, result.coverage.reason or "no device worked")
        return
    yield "idle_share", Measure("share", max(Fraction(row["idle_ns"], row["span_ns"]) for row in rows))
    yield "busy_share", Measure("share", min(Fraction(row["busy_ns"], row["span_ns"]) for row in rows))
    for cause in MEANINGS:
        largest = max(Fraction(row["by_cause"].get(cause, 0), row["span_ns"]) for row in rows)
        yield f"idle.{cause}", Measure("share", largest)


def _busy(trace: Trace) -> Iterator[tuple[str, Measure]]:
    result = trace.analyze("attribution")
    by_device: dict[tuple[int, int | None], list[Row]] = defaultdict(list)
    for row in result.table.to_pylist():
        by_device[row["rank"], row["device"]].append(row)
    on_device = {where: rows for where, rows in by_device.items() if where[1] is not None}
    names = [f"busy.{category}" for category in sorted(CATEGORIES)]
    if not on_device:
        yield from _unknown(names, result.coverage.reason or "no device worked")
        return
    for name in names:
        yield name, Measure("share", max(_part(rows, name.partition(".")[2]) for rows in on_device.values()))


def _part(rows: Sequence[Row], category: str) -> Fraction:
    total = sum(row["exclusive_ns"] for row in rows)
    return Fraction(sum(row["exclusive_ns"] for row in rows if row["category"] == category), max(1, total))


def _unknown(names: Sequence[str], reason: str) -> Iterator[tuple[str, Measure]]:
    for name in names:
        yield name, Measure("share", None, reason)
