"""What would CUDA graphs win, and what stands in their way?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from tracekit import graph_regions
from tracekit.analyses import _graph_sums as sums
from tracekit.analyses import _graph_texts as texts
from tracekit.analyses._idle_scene import Setting, setting
from tracekit.analyses._missing import no_device
from tracekit.analysis import SEVERITIES, Coverage, Finding, Result, Row, Scalar, Severity, duration
from tracekit.gains import Estimate
from tracekit.graph_blockers import Blocker, named
from tracekit.graph_regions import DEFAULTS, Limits, Region, launches, regions
from tracekit.graph_sizes import FallBack, Padding, fall_backs, paddings, ranges
from tracekit.graph_table import region_table
from tracekit.replay_choice import Group
from tracekit.trace import Trace
from tracekit.wording import counted

_PROMISED = (graph_regions.WORTH, graph_regions.MAY_HELP)
_NOTHING = (graph_regions.ALREADY, graph_regions.GPU_BOUND)
_BEYOND = (
    " By replay a step would be {} shorter: the rest is idle time of other causes, which idle_gaps names and promises."
)
_SHOWN = 3  # calls of each region named as evidence
# Idle time that is for graphs to promise: of other causes idle_gaps says what it could save at most.
_TOLD_BY_IDLE = "what waiting costs in all idle_gaps says, and promises."
_LAUNCHING = ("launch_bound", "launch_latency", "graph_launch")
_DEVICES = """
    SELECT
        rank,
        device,
        count(step) AS steps,
        sum(launches)::BIGINT AS launches,
        sum(replays)::BIGINT AS replays,
        sum(dur_ns)::BIGINT AS dur_ns,
        sum(replayed_ns)::BIGINT AS replayed_ns
    FROM graph_steps()
    WHERE in_scope(rank, device, step)
    GROUP BY
        rank,
        device
    ORDER BY
        rank,
        device
"""


class CudaGraphs:
    """Regions that could be captured, what each would win by replay of the step, and what stands between them."""

    name = "cuda_graphs"
    question = "What would CUDA graphs win, and what stands in their way?"
    parameters: Mapping[str, Scalar] = MappingProxyType(
        {
            "min_launches": DEFAULTS.min_launches,
            "gpu_bound_share": DEFAULTS.gpu_bound_share,
            "graphed_share": DEFAULTS.graphed_share,
            "critical_share": 0.2,  # of the step, won at worst
            "wasted_share": 0.1,  # of the rows of padded steps
        }
    )

    def run(self, trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
        """Cut steps into what could be captured, replay them with it as graphs, judge what that wins."""
        limits = Limits(
            int(parameters["min_launches"] or 0),
            float(parameters["gpu_bound_share"] or 0),
            float(parameters["graphed_share"] or 0),
        )
        found = regions(trace, limits)
        table = region_table(trace, limits)
        if not found:
            reason = no_device(trace.footer) if trace.macro("device_time").num_rows == 0 else "no whole step to look at"
            return Result(self.name, parameters, (), table, (), Coverage(reason=reason))
        falls, padded = fall_backs(trace), paddings(trace)
        idle = trace.analyze("idle_gaps").table
        launching = idle.filter(pc.field("cause").isin(_LAUNCHING)) if idle.num_rows else None
        findings = _findings(found, (falls, padded), setting(trace.whole), launching, parameters)
        return Result(
            self.name,
            parameters,
            list(_summary(trace, found, falls)),
            table,
            tuple(sorted(findings, key=lambda one: (-SEVERITIES.index(one.severity), -one.saving_high_ns))),
            _coverage(found),
        )


def _by_group(found: Iterable[Region]) -> Iterator[tuple[Group, list[Region]]]:
    for _, same in groupby(found, key=lambda one: id(one.group)):
        regions_of = list(same)
        yield regions_of[0].group, regions_of


def _coverage(found: Sequence[Region]) -> Coverage:
    groups = [group for group, _ in _by_group(found)]
    refused = [(one, same[0].reason) for one, same in _by_group(found) if same[0].verdict == graph_regions.CANNOT_TELL]
    total = sum(one.total_ns for one in groups)
    reasons = [f"{one.label}: {why}" if one.label else why for one, why in refused]
    return Coverage(total - sum(one.total_ns for one, _ in refused), total, "; ".join(dict.fromkeys(reasons)))


def _summary(trace: Trace, found: Sequence[Region], falls: Sequence[FallBack]) -> Iterator[Row]:
    """saving: of all steps, of the regions that are worth it; blocked: on top, with nothing between them.
    graphed_share: of the time of device rows.
    """
    for row in trace.sql(_DEVICES).to_pylist():
        here = [one for one in found if (one.group.rank, one.group.device) == (row["rank"], row["device"])]
        low, high = _sum(one for one in here if one.verdict in _PROMISED)
        blocked_low, blocked_high = _sum(one for one in here if one.verdict.startswith(graph_regions.BLOCKED))
        fall = [one for one in falls if (one.rank, one.device) == (row["rank"], row["device"])]
        yield {
            "rank": row["rank"],
            "device": row["device"],
            "steps": row["steps"],
            "launches": row["launches"],
            "replays": row["replays"],
            "graphed_share": row["replayed_ns"] / row["dur_ns"] if row["dur_ns"] else 0.0,
            "saving_low_ns": low,
            "saving_high_ns": high,
            "blocked_low_ns": blocked_low,
            "blocked_high_ns": blocked_high,
            "eager_batches": {one.phase: ranges(one.eager) for one in fall},
            "largest_graph": {one.phase: one.largest for one in fall},
        }


def _sum(found: Iterable[Region]) -> tuple[int, int]:
    """Over all steps of their groups."""
    parts = [(one.estimate, len(one.group.steps)) for one in found if one.estimate is not None]
    return sum(one.saving_low_ns * steps for one, steps in parts), sum(
        one.saving_high_ns * steps for one, steps in parts
    )


# ---- findings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Case:
    """What a finding is about: regions of a group. where: on which device, if there are several."""

    group: Group
    regions: tuple[Region, ...]
    where: str

    def promised(self, most: int | None) -> tuple[int, int]:
        """Of all steps, what is for graphs alone to promise. most: idle time that launching caused; None: not known."""
        low, high = (ns * len(self.group.steps) for ns in self.saving)
        return (low, high) if most is None else (min(low, most), min(high, most))

    def idle(self, launching: pa.Table | None) -> int | None:
        """Of the gaps that launching caused, those of its steps."""
        if launching is None:
            return None
        here = (pc.field("rank") == self.group.rank) & pc.field("device").isin([self.group.device])
        if self.group.steps != (None,):
            here &= pc.field("step").isin([one for one in self.group.steps if one is not None])
        return pc.sum(launching.filter(here)["dur"]).as_py() or 0

    @property
    def saving(self) -> tuple[int, int]:
        """Of one step."""
        found = [one.estimate for one in self.regions if one.estimate is not None]
        return sum(one.saving_low_ns for one in found), sum(one.saving_high_ns for one in found)

    @property
    def per_step(self) -> str:
        group = self.group
        step = f"{group.label} step" if group.label else "step" if group.steps != (None,) else "trace"
        return f"per {step} of {duration(group.median.measured_ns)}"

    @property
    def interval(self) -> str:
        """What is saved of one step."""
        return _interval(*self.saving)

    @property
    def evidence(self) -> tuple[int, ...]:
        step = self.group.median
        return tuple(
            int(step.calls.id[calls[0]]) for one in self.regions for calls in one.calls(step)[:_SHOWN] if len(calls)
        )


def _findings(
    found: Sequence[Region],
    sizes: tuple[Sequence[FallBack], Sequence[Padding]],
    whole: Setting,
    launching: pa.Table | None,
    parameters: Mapping[str, Scalar],
) -> list[Finding]:
    falls, padded = sizes
    promised = [
        _worth(case, whole, launching, float(parameters["critical_share"] or 0))
        for case in _worst(found, lambda one: one in _PROMISED)
    ]
    blocked = [_blocked(case) for case in _worst(found, lambda one: one.startswith(graph_regions.BLOCKED))]
    eager = [_fall_back(one, whole) for one in falls if one.beyond]
    wasteful = [_padding(one, whole) for one in padded if one.wasted >= float(parameters["wasted_share"] or 0)]
    nothing = [] if promised or blocked else list(_nothing(found))
    return [*promised, *blocked, *eager, *wasteful, *nothing]


def _worst(found: Sequence[Region], wanted: Callable[[str], bool]) -> Iterator[_Case]:
    """Of each phase and batch size the device where most is to be won: devices work side by side, so their savings do
    not add up.
    """
    cases: dict[tuple[str, str], list[_Case]] = {}
    devices = len({(one.group.rank, one.group.device) for one in found})
    for group, same in _by_group(found):
        chosen = tuple(one for one in same if wanted(one.verdict) and one.estimate is not None)
        if chosen:
            cases.setdefault((group.phase, group.bucket), []).append(_Case(group, chosen, ""))
    for hit in cases.values():
        worst = max(hit, key=lambda case: case.saving[1] * len(case.group.steps))
        where = f" on rank {worst.group.rank} device {worst.group.device}" if devices > 1 else ""
        where += f", the worst of {len(hit)}" if len(hit) > 1 else ""
        yield _Case(worst.group, worst.regions, where)


def _worth(case: _Case, whole: Setting, launching: pa.Table | None, critical_share: float) -> Finding:
    group, idle = case.group, case.idle(launching)
    promised = case.promised(idle)
    low, high = (ns // len(group.steps) for ns in promised)
    step = group.median.measured_ns
    severity: Severity = "warning" if any(one.verdict == graph_regions.WORTH for one in case.regions) else "info"
    if low >= critical_share * step:
        severity = "critical"
    elif high < graph_regions.DEFAULTS.gpu_bound_share * step:
        severity = "info"
    has_graphs = any(one.replays for one in case.regions)
    what = "one CUDA graph for the pieces" if has_graphs else "CUDA graphs"
    share = (
        f"{low / step:.0%}-{high / step:.0%}" if f"{low / step:.0%}" != f"{high / step:.0%}" else f"{high / step:.0%}"
    )
    return Finding(
        severity=severity,
        title=f"{what} would save {_interval(low, high)} {case.per_step}, {share}{case.where}",
        detail=_detail(case) + ("" if (low, high) == case.saving else _BEYOND.format(case.interval)),
        saving_low_ns=promised[0],
        saving_high_ns=promised[1],
        evidence=case.evidence,
        remedy=texts.remedy(whole.engine, group.phase, has_graphs=has_graphs, serving=whole.workload == "serving"),
        cost=texts.COST,
        verify=texts.verify(group.phase),
        arithmetic=tuple(sums.worth(group, _estimates(case), promised, None if idle is None else (_LAUNCHING, idle))),
    )


def _interval(low: int, high: int) -> str:
    return f"{duration(low)} to {duration(high)}" if low < high else duration(high)


def _detail(case: _Case) -> str:
    """Which launches, what is known of them, how sure the figures are."""
    group = case.group
    parts = []
    for one in case.regions:
        why = f": {one.reason}" if one.reason else ""
        parts.append(
            f"{one.label}, {launches(one.launches)}{why}, {duration(one.idle_ns)} of {duration(one.wall_ns)} idle"
        )
    said = f"{'; '.join(parts)}. By replay of {counted(len(group.chosen), 'step')}, {group.error:.1%} off unchanged"
    middles = [(one.spread_low_ns, one.spread_high_ns) for one in _estimates(case)]
    if len(group.chosen) > 1 and middles:
        low, high = sum(low for low, _ in middles), sum(high for _, high in middles)
        said += f"; from step to step {duration(low)} to {duration(high)}"
    blockers = case.regions[0].blockers
    outside = [one for one in blockers if one.place == "before" and one.splits]
    inside = [one for one in blockers if one.place == "inside" and one.splits]
    said += f". Cut by {named(inside, len(group.steps))}" if inside else ""
    said += f". Before it, and no hindrance: {named(outside, len(group.steps))}." if outside else "."
    return said[0].upper() + said[1:]


def _estimates(case: _Case) -> list[Estimate]:
    return [one.estimate for one in case.regions if one.estimate is not None]


def _blocked(case: _Case) -> Finding:
    (region,) = case.regions
    group, steps = case.group, len(case.group.steps)
    inside = [one for one in region.blockers if one.place == "inside" and one.splits]
    return Finding(
        severity="warning",
        title=f"what stands between CUDA graphs costs {case.interval} more {case.per_step}: {named(inside, steps, 2)}"
        f"{case.where}",
        detail=f"Without {named(inside, steps)} {_whole_of(group)} could be one graph of {launches(region.launches)}. "
        f"The saving comes on top of that of graphs of the pieces; {_TOLD_BY_IDLE}",
        evidence=_ids(inside),
        remedy=texts.unblock(one.kind for one in inside),
        cost=texts.BLOCKED_COST,
        verify=texts.verify(group.phase),
        arithmetic=tuple(line for one in _estimates(case) for line in sums.blocked(group, one)),
    )


def _whole_of(group: Group) -> str:
    return "the step" if group.phase == "unknown" else "the forward pass"


def _ids(blockers: Iterable[Blocker]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(one for blocker in blockers for one in blocker.ids))


def _fall_back(one: FallBack, whole: Setting) -> Finding:
    sizes = ranges(one.beyond)
    largest = f"is for {one.largest}" if one.is_capacity else f"holds {one.largest}"
    return Finding(
        severity="warning",
        title=f"{one.phase} batches of {sizes} run eagerly: the largest graph seen {largest}",
        detail=f"{counted(one.steps, 'step')} launched kernel by kernel, {duration(one.eager_ns)} at the median; "
        f"replayed ones take {duration(one.graphed_ns)}. What graphs would win there is a finding of its own.",
        evidence=one.marks,
        remedy=texts.more_sizes(whole.engine),
        cost=texts.COST,
        verify=texts.verify(one.phase),
        arithmetic=tuple(sums.fall_back(one)),
    )


def _padding(one: Padding, whole: Setting) -> Finding:
    least = " at least" if one.at_least else ""
    why = "a larger batch replays the same kernels with the same grids" if one.at_least else "the grids of norms tell"
    return Finding(
        severity="info",
        title=f"{one.phase} batches of {ranges(one.sizes)} are padded to {one.padded_to}{least}: {one.wasted:.0%} of "
        "their rows",
        detail=f"{counted(one.steps, 'step')} of {duration(one.ns)} at the median; {why}. Where kernels are bound by "
        "the weights they read, padding costs little.",
        evidence=one.marks,
        remedy=texts.closer_sizes(whole.engine),
        cost=texts.COST,
        verify=texts.verify(one.phase),
        arithmetic=tuple(sums.padding(one)),
    )


def _nothing(found: Sequence[Region]) -> Iterator[Finding]:
    """Where graphs win nothing, said once: an answer, too."""
    said: dict[str, list[str]] = {}
    for group, same in _by_group(found):
        if all(one.verdict in _NOTHING for one in same):
            kind = "replayed as one graph already" if same[0].verdict == graph_regions.ALREADY else "bound by the GPU"
            said.setdefault(kind, []).append(group.label or "the trace")
    if said:
        parts = [f"{', '.join(dict.fromkeys(labels))} {kind}" for kind, labels in said.items()]
        reasons = dict.fromkeys(f"{one.group.label or 'the trace'}: {one.reason}" for one in found if one.reason)
        yield Finding(
            severity="info",
            title=f"nothing to win from CUDA graphs: {'; '.join(parts)}",
            detail="; ".join(list(reasons)[:_SHOWN]) + ".",
            evidence=tuple(dict.fromkeys(_first_call(group) for group, _ in _by_group(found) if group.chosen))[:_SHOWN],
            remedy="None.",
            cost="None.",
            verify="Idle time inside steps in the next trace.",
            arithmetic=tuple(line for one in found if one.estimate for line in sums.nothing(one.group, one.estimate)),
        )


def _first_call(group: Group) -> int:
    """The largest launch of the median step: a replay, if it has one."""
    calls = group.median.calls
    return int(calls.id[calls.rows.argmax()]) if len(calls) else int(group.median.rows.id[0])


ANALYSIS = CudaGraphs()
