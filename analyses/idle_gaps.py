"""Why does the GPU idle in serving steps, how long for each cause, and what would end it?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses import _arithmetic as arithmetic
from tracekit.analyses import _idle_scene as evidence
from tracekit.analyses._idle_advice import MEANINGS, Scene, advise
from tracekit.analyses._idle_groups import Group, groups, on_device, outside
from tracekit.analyses._idle_scene import Setting
from tracekit.analyses._idle_summary import GRAPH_HOLE_NS, lost_records, summarize, without_idle
from tracekit.analyses._missing import no_device
from tracekit.analysis import SEVERITIES, Coverage, Finding, Result, Row, Scalar, Severity, duration
from tracekit.trace import Trace
from tracekit.wording import counted

CAUSES = tuple(MEANINGS)
_SHOWN = 5  # longest gaps named as evidence of a finding
_NOT_TO_BE_WON = ("no_requests", "profiler", "unattributed")  # no change of the engine ends these
# What launching in another way would win, graphs say by replaying steps: no nanosecond is promised twice.
_SAVED_BY_GRAPHS = ("launch_bound", "launch_latency", "graph_launch")
_AT_MOST_A_WARNING = ("stream_dependency", "launch_latency")  # what made the work wait, or could hide it, is not shown
_RECORD_MORE = (
    "It was launched before the first marked step, between two, or after the last: record more steps and see whether "
    "it comes again. A wait at the very start may be for work that began before the recording."
)
_MARK_IT = "If this work belongs to steps, mark it: tracekit.step in your own engine, or --step-range REGEX."


class IdleGaps:
    """Every hole in the device's work, what held it up, nanosecond by nanosecond, and what each cause costs a step."""

    name = "idle_gaps"
    question = "Why does the GPU idle?"
    parameters: Mapping[str, Scalar] = MappingProxyType(
        {
            "launch_latency_ns": 12_000,  # launch start to kernel start on an idle stream: 5-13 us on H100 to A100
            "sync_slack_ns": 2_000,
            "small_gap_ns": 500_000,
            "host_hole_ns": 100_000,  # Python between two eager launches takes 20 to 90 us
            "no_requests_ns": 20_000_000,
            "first_use_ns": 50_000,
            "idle_share": 0.02,  # of the span: devices that idle less are left in peace
            "finding_share": 0.02,  # of the step time: causes below stay quiet
            "critical_share": 0.2,
            # Of launches without device work, and of device rows without an end: above, holes are not taken for idle.
            "missing_share": 0.02,
            "graph_hole_ns": GRAPH_HOLE_NS,
        }
    )

    def run(self, trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
        """Measure with the macro idle_gaps, add up by device and cause, judge the sums per step and phase."""
        table = trace.macro(self.name, parameters)
        if trace.macro("device_time").num_rows == 0:
            return Result(self.name, parameters, (), table, (), Coverage(reason=no_device(trace.footer)))
        losses = lost_records(
            trace.whole, float(parameters["missing_share"] or 0), int(parameters["graph_hole_ns"] or 0)
        )
        if losses.refusal:
            nothing = table.slice(0, 0)
            return Result(self.name, parameters, without_idle(trace), nothing, (), Coverage(reason=losses.refusal))
        by_step = groups(trace, table)
        summary = summarize(trace, table, by_step)
        idle = sum(row["idle_ns"] for row in summary)
        unknown = sum(row["by_cause"].get("unattributed", 0) for row in summary)
        reasons = [losses.doubt, _unknown(table) if unknown else ""]
        return Result(
            self.name,
            parameters,
            summary,
            table,
            tuple(sorted(_findings(trace, table, by_step, summary, parameters), key=_rank)),
            Coverage(idle - unknown, idle, "; ".join(reason for reason in reasons if reason)),
        )


def _rank(finding: Finding) -> tuple[int, int]:
    """Worst first, and of these what costs most."""
    return -SEVERITIES.index(finding.severity), -finding.saving_high_ns


def _unknown(table: pa.Table) -> str:
    nameless = table.filter(pc.field("cause") == "unattributed")
    early = nameless.filter(pc.field("place") == "prefix")
    said = f"{counted(nameless.num_rows, 'part')} of gaps show no cause in the trace"
    if early.num_rows:
        said += (
            f"; {early.num_rows:,} of them ({duration(evidence.total(early))}) lie before the first work whose launch "
            "was recorded and are left out of the findings"
        )
    return said


@dataclass(frozen=True, slots=True)
class _Case:
    """What one finding is about: gaps of a cause in a group of steps on one device."""

    cause: str
    group: Group
    gaps: pa.Table
    where: str

    @property
    def ns(self) -> int:
        return evidence.total(self.gaps)

    @property
    def share(self) -> float:
        return self.ns / self.group.total_ns if self.group.total_ns else 0.0


def _findings(
    trace: Trace, table: pa.Table, by_step: list[Group], summary: list[Row], parameters: Mapping[str, Scalar]
) -> Iterator[Finding]:
    """One for each cause and phase, on the device where it takes the largest share: devices idle side by side, so their
    savings do not add up.
    """
    idle = max((row["idle_ns"] - row["excluded_ns"]) / max(1, row["span_ns"]) for row in summary)
    if idle < float(parameters["idle_share"] or 0):
        return
    whole: Setting | None = None
    for case in _cases(by_step, len(summary)):
        if case.share >= float(parameters["finding_share"] or 0):
            whole = whole or evidence.setting(trace.whole)
            yield _finding(trace, case, whole, parameters)
    yield from _outside(trace, table, summary, whole, parameters)


def _cases(by_step: list[Group], devices: int) -> Iterator[_Case]:
    for phase in dict.fromkeys(group.phase for group in by_step):
        of_phase = [group for group in by_step if group.phase == phase]
        for cause in CAUSES:
            found = [_Case(cause, group, group.of(cause), "") for group in of_phase]
            hit = [case for case in found if case.ns]
            if hit:
                worst = max(hit, key=lambda case: case.share)
                where = f" on rank {worst.group.rank} device {worst.group.device}" if devices > 1 else ""
                where += f", the worst of {len(hit)}" if len(hit) > 1 else ""
                yield _Case(cause, worst.group, worst.gaps, where)


def _finding(trace: Trace, case: _Case, whole: Setting, parameters: Mapping[str, Scalar]) -> Finding:
    blamed = evidence.blame(trace, case.gaps)
    scene = evidence.scene(whole, case.group.phase, case.gaps, blamed, small_ns=int(parameters["small_gap_ns"] or 0))
    said = advise(case.cause, scene)
    longest = case.gaps.slice(0, _SHOWN)
    ids = [*longest["after_id"].to_pylist(), *(id for id in longest["blame"].to_pylist() if id is not None)]
    return Finding(
        severity=_severity(case, scene, float(parameters["critical_share"] or 0)),
        title=f"{case.cause}: {said.title}, {_cost(case)}{case.where}",
        detail=f"{_extent(trace, case, blamed)} {said.detail}",
        saving_low_ns=0,
        saving_high_ns=0 if case.cause in (*_NOT_TO_BE_WON, *_SAVED_BY_GRAPHS) else case.ns,
        evidence=tuple(dict.fromkeys(ids)),
        remedy=said.remedy,
        cost=said.cost,
        verify=said.verify,
        arithmetic=tuple(_sums(case, parameters)),
    )


def _sums(case: _Case, parameters: Mapping[str, Scalar]) -> Iterator[str]:
    group, gaps = case.group, arithmetic.called("idle_gaps", parameters)
    chosen = f"cause = {case.cause!r} AND {group.chosen}"
    yield arithmetic.queried("idle", f"SELECT sum(dur) FROM {gaps} WHERE {chosen}", case.ns)
    if group.steps:
        yield arithmetic.each("of each step", case.ns, group.steps)
    yield arithmetic.queried("time of the steps" if group.steps else "span", group.whole, group.total_ns)
    yield arithmetic.share("share", case.ns, group.total_ns)
    if case.cause not in (*_NOT_TO_BE_WON, *_SAVED_BY_GRAPHS):
        yield arithmetic.saving(0, case.ns)


def _cost(case: _Case) -> str:
    group = case.group
    if not group.steps:
        return f"{case.share:.1%} of the span"
    phase = "" if group.phase == "unknown" else f"{group.phase} "
    which = "in the only" if group.steps == 1 else "per"
    return f"{duration(case.ns / group.steps)} {which} {phase}step, {case.share:.1%} of its time"


def _extent(trace: Trace, case: _Case, blamed: evidence.Blame) -> str:
    size = evidence.lengths(case.gaps)
    if case.group.steps:
        size += f", in {counted(case.group.steps, 'step')}"
    # Launches of 12 us each come from everywhere: one of them says nothing.
    names = evidence.named(trace, blamed, callers=case.cause != "launch_latency")
    return f"{size}; mostly in {names}." if names else f"{size}."


def _severity(case: _Case, scene: Scene, critical_share: float) -> Severity:
    if case.cause in _NOT_TO_BE_WON or (case.cause == "launch_latency" and scene.pauses):
        return "info"
    if case.cause in _AT_MOST_A_WARNING or case.share < critical_share:
        return "warning"
    return "critical"


def _outside(
    trace: Trace, table: pa.Table, summary: list[Row], whole: Setting | None, parameters: Mapping[str, Scalar]
) -> Iterator[Finding]:
    """Idle time that belongs to no step says nothing about one: told apart, once, for the device with most of it."""
    share = float(parameters["finding_share"] or 0)
    apart = outside(trace, table)
    shares = [(evidence.total(on_device(apart, row)) / max(1, row["span_ns"]), row) for row in summary]
    largest, worst = max(shares, key=lambda item: item[0])
    if not apart.num_rows or largest < share:
        return
    whole = whole or evidence.setting(trace.whole)
    gaps = on_device(apart, worst).sort_by([("dur", "descending"), ("after_id", "ascending")])
    where = f" on rank {worst['rank']} device {worst['device']}" if len(summary) > 1 else ""
    spent = (
        gaps.group_by("cause").aggregate([("dur", "sum")]).sort_by([("dur_sum", "descending"), ("cause", "ascending")])
    )
    causes = ", ".join(f"{row['cause']} {duration(row['dur_sum'])}" for row in spent.to_pylist()[:3])
    idle, here = evidence.total(gaps), arithmetic.on(worst["rank"], worst["device"])
    called = arithmetic.called("idle_gaps", parameters)
    yield Finding(
        severity="info",
        title=f"outside steps: {duration(idle)} of idle time, {largest:.1%} of the span{where}",
        detail=f"{evidence.lengths(gaps)} ({causes}), ended by work that no step launched. They are in no figure per "
        "step.",
        evidence=tuple(dict.fromkeys(gaps.slice(0, _SHOWN)["after_id"].to_pylist())),
        remedy=_RECORD_MORE if whole.workload == "serving" else _MARK_IT,
        cost="None.",
        verify="The idle time outside steps in the next trace.",
        arithmetic=(
            arithmetic.queried("idle", f"SELECT sum(dur) FROM {called} WHERE {here} AND place = 'outside'", idle),
            arithmetic.queried("span", f"SELECT span_ns FROM device_time() WHERE {here}", worst["span_ns"]),
            arithmetic.share("share", idle, worst["span_ns"]),
        ),
    )


ANALYSIS = IdleGaps()
