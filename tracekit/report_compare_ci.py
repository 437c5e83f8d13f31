"""A comparison for a build server: a case for each gate, each kind of steps, and each condition that is not alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tracekit.compare_result import Comparison, GroupChange, Verdict
from tracekit.gate import Verdict as GateVerdict
from tracekit.report_ci import Case, Level, gate_case
from tracekit.report_compare import mean_told, signed

_LEVELS: Mapping[Verdict, Level] = {
    "slower": "warning",
    "faster": "notice",
    "no difference shown": "fine",
    "cannot tell": "notice",
}


def cases_of_comparison(found: Comparison, verdicts: Sequence[GateVerdict]) -> list[Case]:
    """Gates first. What is slower is a warning unless a gate says that it fails."""
    cases = [gate_case(one) for one in verdicts]
    cases += [Case("conditions", one.name, "warning", one.text) for one in found.conditions]
    return cases + [_group(one) for one in found.groups]


def _group(group: GroupChange) -> Case:
    title = f"{group.verdict}: {mean_told(group)}"
    return Case("steps", group.label, _LEVELS[group.verdict], title, "\n".join(_detail(group)))


def _detail(group: GroupChange) -> Iterator[str]:
    if group.reason:
        yield group.reason
    for part in group.parts:
        if part.significant:
            yield f"{part.kind} {part.name}: {signed(part.change_ns)}"
