"""Is a condition met that must not be? What `--fail-on` takes, parsed by a small grammar and never evaluated as code.

    condition = severity | "slower" | metric comparison value
    severity  = "warning" | "critical"              a finding this bad or worse (analyze)
    "slower"                                        steps of some phase became slower beyond noise (compare)
    comparison = ">" | ">=" | "<" | "<="
    value     = ["+" | "-"] number ["%" | "pp" | "ns" | "us" | "ms" | "s"]

A value with a sign is a change from the base, which only `compare` knows: a part of the base in per cent, percentage
points of a share (pp), or a time. One without is what the trace, or the candidate, has: a time with its unit, a share
as 0.2 or 20%. Metrics: gate_metrics.py.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Literal

from tracekit.analysis import SEVERITIES, Result, Severity, duration
from tracekit.errors import UsageError

Kind = Literal["time", "share"]
Number = int | float | Fraction

SLOWER = "slower"
_CONDITION = re.compile(
    r"\s*(?P<metric>[a-z]\w*(?:\[[^\[\]]+\])?(?:\.\w+)?)\s*(?P<compare>>=|<=|>|<)\s*"
    r"(?P<sign>[+-]?)(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|pp|ns|us|ms|s)?\s*"
)
_COMPARE: Mapping[str, Callable[[Number, Number], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_EXAMPLES = "'decode.p50 > +3%', 'idle_share > 0.2', 'decode.p99 > 12ms' or 'critical'"
_LISTED = 12


@dataclass(frozen=True, slots=True)
class Measure:
    """What a trace says of a metric: ns of a time, 0 to 1 of a share; None where it cannot tell, and why."""

    kind: Kind
    value: Number | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric of a trace, or of the candidate and its base. low, high: bounds of the change, in the metric's unit,
    where noise is known.
    """

    value: Measure
    base: Measure | None = None
    low: Number | None = None
    high: Number | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition as parsed. metric "" for a word; threshold in ns or as a part of 1."""

    text: str
    word: str = ""
    metric: str = ""
    compare: str = ""
    threshold: Fraction = Fraction(0)
    unit: str = ""
    is_change: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a condition: failed where it is met, or where nothing can tell whether it is."""

    condition: str
    failed: bool
    said: str


def parse(text: str) -> Condition:
    """One condition. Raises UsageError for what is none."""
    word = text.strip()
    if word in (*SEVERITIES[1:], SLOWER):
        return Condition(word, word=word)
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise UsageError(f"not a condition to fail on: {text!r}; it looks like {_EXAMPLES}")
    unit, number = found["unit"] or "", Fraction(found["number"])
    scale = Fraction(_NS[unit]) if unit in _NS else Fraction(1, 100) if unit else Fraction(1)
    is_change = bool(found["sign"])
    if is_change and not unit:
        raise UsageError(f"{word!r}: a change needs a unit: %, pp (of a share), ns, us, ms or s")
    if unit == "pp" and not is_change:
        raise UsageError(f"{word!r}: pp is for changes: +2pp; a share itself is 0.2 or 20%")
    signed = -number if found["sign"] == "-" else number
    return Condition(
        word, metric=found["metric"], compare=found["compare"], threshold=signed * scale, unit=unit, is_change=is_change
    )


def check_values(condition: Condition, values: Mapping[str, Measured]) -> Verdict:
    """A condition on a metric. Raises UsageError for a metric that there is none of, or a unit that does not fit it."""
    measured = values.get(condition.metric)
    if measured is None:
        alike = get_close_matches(condition.metric, values, n=3)
        known = ", ".join(alike or list(values)[:_LISTED]) + ("" if alike or len(values) <= _LISTED else ", ...")
        raise UsageError(f"{condition.text!r}: no metric {condition.metric!r}; there are: {known}")
    _check_unit(condition, measured.value.kind)
    for one in (measured.value, measured.base):
        if one is not None and one.value is None:
            return Verdict(condition.text, True, f"cannot tell: {one.reason}")
    if condition.is_change:
        return _check_change(condition, measured)
    value = _known(measured.value)
    failed = _COMPARE[condition.compare](value, condition.threshold)
    whole = ", with the idle time before the step" if measured.value.kind == "time" else ""
    return Verdict(condition.text, failed, f"it is {shown(value, measured.value.kind)}{whole}")


def _check_unit(condition: Condition, kind: Kind) -> None:
    is_time = condition.unit in _NS
    if condition.unit == "pp" and kind == "time":
        raise UsageError(f"{condition.text!r}: {condition.metric} is a time: a change of it is +3% or +200us")
    if condition.unit == "%" and condition.is_change:
        return
    if is_time != (kind == "time") and condition.unit != "pp":
        fitting = "has the unit ns, us, ms or s" if kind == "time" else "is a share: 0.2 or 20%"
        raise UsageError(f"{condition.text!r}: {condition.metric} {fitting}")
    if kind != "time" and not condition.is_change and not 0 <= condition.threshold <= 1:
        raise UsageError(f"{condition.text!r}: {condition.metric} lies between 0 and 1: 0.2 or 20%")


def _check_change(condition: Condition, measured: Measured) -> Verdict:
    """A worsening counts only beyond noise: what chance makes of two recordings of the same is no reason to fail."""
    if measured.base is None:
        raise UsageError(f"{condition.text!r}: a change is from a base, which only `tracekit compare` has")
    base, value = _known(measured.base), _known(measured.value)
    change = value - base
    said = f"{shown(base, measured.value.kind)} -> {shown(value, measured.value.kind)}"
    if condition.unit == "%":
        if base == 0:
            return Verdict(condition.text, value != 0, f"{said}: no part of nothing")
        size: Number = Fraction(change) / Fraction(base)
        said += f" is {float(size):+.1%}"
    else:
        size = change
        said += f" is {_signed(change, measured.value.kind)}"
    failed = _COMPARE[condition.compare](size, condition.threshold)
    if measured.low is not None and measured.high is not None:
        low, high = (_part(one, base, condition.unit, measured.value.kind) for one in (measured.low, measured.high))
        said += f", between {low} and {high}"
        if failed and _is_noise(condition, measured.low, measured.high):
            return Verdict(condition.text, False, f"{said}: not beyond noise")
    return Verdict(condition.text, failed, said)


def _is_noise(condition: Condition, low: Number, high: Number) -> bool:
    """Of a limit to worsening in its own direction; one like "> -5%" demands a gain, and noise does not prove one."""
    worse_up = condition.compare.startswith(">") and condition.threshold >= 0
    worse_down = condition.compare.startswith("<") and condition.threshold <= 0
    return (worse_up and low <= 0) or (worse_down and high >= 0)


def check_severity(condition: Condition, results: Mapping[str, Result]) -> Verdict:
    """A finding this bad or worse."""
    bad = SEVERITIES[SEVERITIES.index(_severity(condition.word)) :]
    named = [
        (name, finding)
        for result in results.values()
        for name, finding in result.named_findings().items()
        if finding.severity in bad
    ]
    if not named:
        return Verdict(condition.text, False, "no such finding")
    worst = max(named, key=lambda one: SEVERITIES.index(one[1].severity))
    more = f", and {len(named) - 1} more" if len(named) > 1 else ""
    graver = f" is {worst[1].severity}" if worst[1].severity != condition.word else ""
    return Verdict(condition.text, True, f"{worst[0]}{graver}: {worst[1].title}{more}")


def _severity(word: str) -> Severity:
    return next(one for one in SEVERITIES if one == word)


def refuse_words(conditions: Sequence[Condition], barred: Sequence[str], why: str) -> None:
    """Raises UsageError for a word that a command knows nothing of."""
    for condition in conditions:
        if condition.word in barred:
            raise UsageError(f"--fail-on {condition.word}: {why}")


# ---- as text ---------------------------------------------------------------------------------------------------------


def shown(value: Number, kind: Kind) -> str:
    """A metric for a reader: "8.29 ms", "32.2%"."""
    return duration(float(value)) if kind == "time" else f"{float(value):.1%}"


def _signed(change: Number, kind: Kind) -> str:
    sign = "+" if change >= 0 else "-"
    size: Number = change if change >= 0 else -change
    return f"{sign}{duration(float(size))}" if kind == "time" else f"{sign}{float(size) * 100:.1f} pp"


def _part(bound: Number, base: Number, unit: str, kind: Kind) -> str:
    return f"{float(bound) / float(base):+.1%}" if unit == "%" else _signed(bound, kind)


def _known(measure: Measure) -> Number:
    assert measure.value is not None
    return measure.value
