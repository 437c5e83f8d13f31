"""Which kernels could be one, and what would that win?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tracekit.analyses import _arithmetic as arithmetic
from tracekit.analyses import _fusion_texts as texts
from tracekit.analyses import _replay_sums as replay
from tracekit.analyses._idle_advice import Scene
from tracekit.analyses._idle_scene import Setting, setting
from tracekit.analyses._missing import no_device
from tracekit.analysis import SEVERITIES, Coverage, Finding, Result, Row, Scalar, Severity, duration
from tracekit.fusion_candidates import Candidate
from tracekit.fusion_estimate import DEFAULTS, Limits
from tracekit.fusion_table import Judged, fusion_table, judged
from tracekit.gains import Estimate
from tracekit.replay_choice import groups
from tracekit.trace import Trace
from tracekit.wording import counted

_SHOWN = 8  # rows of an example as evidence
_NAMED = 5  # kernels of a sequence named
_UNITS = (("B", 1), ("KB", 1e3), ("MB", 1e6), ("GB", 1e9))
_Key = tuple[int, int | None]


class Fusion:
    """Sequences of the catalogue and chains of element-wise kernels, with what one kernel instead of each would win."""

    name = "fusion"
    question = "Which kernels could be one, and what would that win?"
    parameters: Mapping[str, Scalar] = MappingProxyType(
        {
            "kernel_floor_ns": DEFAULTS.kernel_floor_ns,
            "cache_speedup": DEFAULTS.cache_speedup,
            "cache_share": DEFAULTS.cache_share,
            "finding_share": 0.01,  # of the step, won at best: from here on, there is a finding
            "warning_share": 0.03,  # won at worst: from here on, it is more than a remark
        }
    )

    def run(self, trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
        """Match, replay, and say what to change where it is worth it."""
        limits = Limits(
            int(parameters["kernel_floor_ns"] or 0),
            float(parameters["cache_speedup"] or 0),
            float(parameters["cache_share"] or 0),
        )
        found = judged(trace, limits)
        table = trace.macro(self.name) if limits == DEFAULTS else fusion_table(trace, limits).drop_columns(["place"])
        summary = list(_summary(trace, found))
        if not summary:
            return Result(self.name, parameters, (), table, (), Coverage(reason=no_device(trace.footer)))
        findings = sorted(_findings(trace, found, parameters), key=_rank)
        return Result(self.name, parameters, summary, table, tuple(findings), _coverage(trace))


def _rank(finding: Finding) -> tuple[int, int]:
    """Worst first, and of these what wins most."""
    return -SEVERITIES.index(finding.severity), -finding.saving_high_ns


def _summary(trace: Trace, found: Sequence[Judged]) -> Iterator[Row]:
    """fusible_ns: time of kernels that could be fewer, of all steps; share: of the busy time."""
    for row in trace.macro("device_time").to_pylist():
        here = [one for one in found if (one.candidate.group.rank, one.candidate.group.device) == _device(row)]
        open_ones = [one for one in here if one.candidate.is_open]
        fusible = min(row["busy_ns"], sum(one.candidate.time_ns * _steps(one) for one in open_ones))
        won = [(one.estimate, _steps(one)) for one in open_ones if one.estimate is not None]
        yield {
            "rank": row["rank"],
            "device": row["device"],
            "patterns": len({one.candidate.pattern.name for one in open_ones}),
            "fusible_ns": fusible,
            "busy_ns": row["busy_ns"],
            "share": fusible / row["busy_ns"] if row["busy_ns"] else 0.0,
            "saving_low_ns": sum(one.saving_low_ns * steps for one, steps in won),
            "saving_high_ns": sum(one.saving_high_ns * steps for one, steps in won),
        }


def _device(row: Row) -> _Key:
    return row["rank"], row["device"]


def _steps(one: Judged) -> int:
    return len(one.candidate.group.steps)


def _coverage(trace: Trace) -> Coverage:
    """The time of steps that could be replayed."""
    of_trace = groups(trace)
    known = sum(group.total_ns for group in of_trace if not group.refusal)
    refused = [group for group in of_trace if group.refusal]
    reasons = dict.fromkeys(f"{group.label}: {group.refusal}" if group.label else group.refusal for group in refused)
    reason = "; ".join(reasons) or ("" if of_trace else "no whole step to look at")
    return Coverage(known, sum(group.total_ns for group in of_trace), reason)


# ---- findings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Case:
    """A pattern in the steps of a phase on one device: those of each batch size with what it wins there."""

    parts: tuple[tuple[Candidate, Estimate, bool], ...]

    @property
    def main(self) -> tuple[Candidate, Estimate, bool]:
        """Those that win most."""
        return max(self.parts, key=lambda part: part[1].saving_high_ns * len(part[0].group.steps))

    @property
    def steps(self) -> int:
        return sum(len(found.group.steps) for found, _, _ in self.parts)

    @property
    def low_ns(self) -> int:
        return sum(won.saving_low_ns * len(found.group.steps) for found, won, _ in self.parts)

    @property
    def high_ns(self) -> int:
        return sum(won.saving_high_ns * len(found.group.steps) for found, won, _ in self.parts)

    @property
    def step_ns(self) -> int:
        """Time of all steps."""
        return sum(won.before_ns * len(found.group.steps) for found, won, _ in self.parts)


def _findings(trace: Trace, found: Sequence[Judged], parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    """One for each pattern and phase, on the device where it takes the largest share: devices work side by side."""
    cases: dict[tuple[str, str], dict[_Key, list[tuple[Candidate, Estimate, bool]]]] = {}
    for one in found:
        if one.estimate is not None:
            group = one.candidate.group
            of_device = cases.setdefault((one.candidate.pattern.name, group.phase), {})
            part = one.candidate, one.estimate, one.beside_graphs
            of_device.setdefault((group.rank, group.device), []).append(part)
    whole: Setting | None = None
    devices = trace.macro("device_time").num_rows
    for of_device in cases.values():
        worst = max((_Case(tuple(parts)) for parts in of_device.values()), key=_share)
        if worst.high_ns and _share(worst) >= float(parameters["finding_share"] or 0):
            whole = whole or setting(trace.whole)
            yield _finding(worst, whole, len(of_device), devices, float(parameters["warning_share"] or 0))


def _share(case: _Case) -> float:
    return case.high_ns / case.step_ns if case.step_ns else 0.0


def _finding(case: _Case, whole: Setting, hit: int, devices: int, warning_share: float) -> Finding:
    found, won, beside_graphs = case.main
    group, pattern = found.group, found.pattern
    where = f" on rank {group.rank} device {group.device}" if devices > 1 else ""
    where += f", the worst of {hit}" if hit > 1 else ""
    fused = next(iter(found.active), "")
    instead = f"{fused} in place of these kernels" if fused else "fewer kernels in their place"
    return Finding(
        severity=_severity(case, warning_share),
        title=texts.TITLE.format(
            pattern=pattern.name,
            possibly="possibly, " if found.grade == "C" else "",
            launches=f"{found.launches:,}",
            count=f"{found.count:,}",
            won=interval(won.saving_low_ns, won.saving_high_ns),
            phase="" if group.phase == "unknown" else f"{group.phase} ",
            share=_shares(won),
            where=where,
        ),
        detail=_detail(found, won, beside_graphs),
        saving_low_ns=case.low_ns,
        saving_high_ns=case.high_ns,
        evidence=found.example[:_SHOWN],
        remedy=texts.remedy(pattern.switches, whole.engine),
        cost=pattern.price,
        verify=texts.VERIFY.format(instead=instead, metric=Scene(whole.workload, group.phase).metric),
        arithmetic=tuple(_sums(case)),
    )


def _sums(case: _Case) -> Iterator[str]:
    """Batch size by batch size, those that win most first, as the title has them; then all together."""
    parts = sorted(case.parts, key=lambda part: -part[1].saving_high_ns * len(part[0].group.steps))
    for found, won, _ in parts:
        saved, which = (won.saving_low_ns, won.saving_high_ns), f" ({found.group.label})" if len(parts) > 1 else ""
        lines = (*replay.replayed(won.before_ns, saved), *replay.scaled(saved, len(found.group.steps)))
        yield from (line.replace(":", f"{which}:", 1) for line in lines)
        yield arithmetic.share(f"of the median step, at worst{which}", won.saving_low_ns, won.before_ns)
        yield arithmetic.share(f"of the median step, at best{which}", won.saving_high_ns, won.before_ns)
    sums = [
        tuple(ns * len(found.group.steps) for ns in (won.saving_low_ns, won.saving_high_ns)) for found, won, _ in parts
    ]
    yield from replay.interval("all batch sizes", [(low, high) for low, high in sums])
    yield arithmetic.saving(case.low_ns, case.high_ns)


def _severity(case: _Case, warning_share: float) -> Severity:
    """What is only possible, and what wins little, is a remark."""
    certain = all(found.grade != "C" for found, _, _ in case.parts)
    return "warning" if certain and case.step_ns and case.low_ns / case.step_ns >= warning_share else "info"


def _detail(found: Candidate, won: Estimate, beside_graphs: bool) -> str:
    kernels = list(found.kernels[:_NAMED])
    if left := len(found.kernels) - len(kernels):
        kernels.append(f"{left} more")
    size = "" if found.bytes_removed is None else f" ({amount(found.bytes_removed)} of a step)"
    said = texts.DETAIL.format(
        title=found.pattern.title[0].upper() + found.pattern.title[1:],
        kernels=" -> ".join(kernels),
        others=f" and {counted(found.others, 'other sequence')}" if found.others else "",
        time=duration(found.time_ns),
        grade=texts.GRADES[found.grade],
        removes=found.pattern.removes,
        bytes=size,
    )
    if found.active:
        names = ", ".join(f"{name} x {count:,}" for name, count in list(found.active.items())[:2])
        said += texts.ACTIVE.format(names=names)
    said += texts.BESIDE_GRAPHS if beside_graphs else ""
    return said + texts.ERROR.format(error=f"{won.error:.1%}")


def interval(low: int, high: int) -> str:
    """Both ends in one unit where they share it: "22.0 to 65.0 us"."""
    (first, unit), (last, other) = duration(low).split(" "), duration(high).split(" ")
    if low == high:
        return duration(high)
    return f"{first} to {last} {other}" if unit == other else f"{first} {unit} to {last} {other}"


def amount(size: int) -> str:
    """Bytes in three figures with a fitting unit."""
    unit, scale = next((one for one in _UNITS if size < 999.5 * one[1]), _UNITS[-1])
    return f"{size / scale:.3g} {unit}"


def _shares(won: Estimate) -> str:
    low, high = (f"{100 * ns / won.before_ns:.1f}" for ns in (won.saving_low_ns, won.saving_high_ns))
    return f"{high}%" if low == high else f"{low} to {high}%"


ANALYSIS = Fusion()
