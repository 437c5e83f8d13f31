"""Are steps slower or faster than before, and what explains it?

    import tracekit
    from tracekit.compare import compare

    with tracekit.open("before.parquet") as base, tracekit.open("after.parquet") as candidate:
        compare([base], [candidate]).df()

Steps of one phase and batch size are compared with their like. docs/compare.md says how, and how often it is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracekit.compare_conditions import conditions, warnings
from tracekit.compare_groups import group_changes
from tracekit.compare_kernels import KernelChange
from tracekit.compare_measure import Basis, Recording, measure
from tracekit.compare_result import (
    Comparison,
    GroupChange,
    Part,
    QuantileChange,
    SideInfo,
    StepTimes,
    Thresholds,
)
from tracekit.errors import UsageError
from tracekit.trace import Trace

__all__ = [
    "Comparison", "GroupChange", "KernelChange", "Part", "QuantileChange", "Recording", "StepTimes", "Thresholds",
    "compare", "compared", "measure",
]  # fmt: skip

_DEFAULTS = Thresholds()
_MEASURED = {
    "device": "steps on the device",
    "host": "steps on the host, as no device work was recorded",
    "whole": "the recording as a whole, as no steps were found (--step-range names what is a step)",
}
_ALONE = (
    "one recording a side: how much one differs from the next is not known and counted as nothing; record three or more"
)


def compare(base: Sequence[Trace], candidate: Sequence[Trace], *, thresholds: Thresholds = _DEFAULTS) -> Comparison:
    """Compare recordings of one side, or the parts of them that are looked at, with those of the other.

    Raises UsageError for a side without recordings, and for sides that cannot be measured alike.
    """
    for side in (base, candidate):
        if isinstance(side, (str, Trace)) or not all(isinstance(one, Trace) for one in side):
            raise UsageError("a side is a list of open traces: compare([tracekit.open(path)], ...)")
    return compared([measure(one) for one in base], [measure(one) for one in candidate], thresholds)


def compared(
    base: Sequence[Recording], candidate: Sequence[Recording], thresholds: Thresholds = _DEFAULTS
) -> Comparison:
    """The same of what was measured already: traces need not be open all at once."""
    if not base or not candidate:
        raise UsageError(f"nothing to compare: no recording of {'candidate' if base else 'base'}")
    basis = _basis((*base, *candidate))
    groups = group_changes(base, candidate, thresholds)
    return Comparison(
        _info(base),
        _info(candidate),
        basis,
        groups,
        conditions(base, candidate),
        tuple(_warnings(base, candidate, groups)),
        thresholds,
    )


def _basis(recordings: Sequence[Recording]) -> Basis:
    """What all of them are measured by, those without anything aside."""
    found = {one.basis: one for one in recordings if one.basis != "nothing"}
    if len(found) > 1:
        listed = "; ".join(f"{one.name}: {_MEASURED[basis]}" for basis, one in found.items())
        raise UsageError(f"these cannot be compared, since their times mean different things: {listed}")
    return next(iter(found), "nothing")


def _info(side: Sequence[Recording]) -> SideInfo:
    settings = dict(side[0].facts.settings)
    alike = {
        name: value for name, value in settings.items() if all(one.facts.settings.get(name) == value for one in side)
    }
    return SideInfo(tuple(one.name for one in side), sum(one.events for one in side), alike)


def _warnings(
    base: Sequence[Recording], candidate: Sequence[Recording], groups: Sequence[GroupChange]
) -> Iterator[str]:
    yield from warnings(base, candidate)
    if len(base) == len(candidate) == 1 and any(one.p_value is not None for one in groups):
        yield _ALONE
