"""Why does the GPU idle, how long for each cause, and what would end it?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses import _idle_scene as evidence
from tracekit.analyses._idle_advice import MEANINGS, Scene, advise
from tracekit.analyses._idle_scene import Blame, Setting
from tracekit.analyses._missing import CANNOT_TELL, no_device, unfinished
from tracekit.analysis import Coverage, Finding, Result, Row, Scalar, Severity, duration
from tracekit.trace import Trace

CAUSES = tuple(MEANINGS)
_SHOWN = 5  # longest gaps named as evidence of a finding
_NAMED = 2  # host rows named in a finding

_MISSING = """
    SELECT
        count(*) FILTER (WHERE is_graph) AS graphs,
        count(*) FILTER (WHERE is_graph AND NOT worked) AS graphs_silent,
        count(*) AS calls,
        count(*) FILTER (WHERE NOT worked) AS calls_silent
    FROM launch_calls()
    WHERE expected
"""


class IdleGaps:
    """Every hole in the device's work, its cause, and what each cause costs in all."""

    name = "idle_gaps"
    question = "Why does the GPU idle?"
    parameters: Mapping[str, Scalar] = MappingProxyType(
        {
            "launch_latency_ns": 12_000,  # launch start to kernel start on an idle stream: 5-13 us on H100 to A100
            "sync_slack_ns": 2_000,
            "finding_share": 0.02,  # of the span: causes below stay quiet
            "critical_share": 0.2,
            "small_gap_ns": 500_000,  # gaps below may be the price of launching, not of one thing on the host
            # Of launches without device work, and of device rows without an end: above, holes are not taken for idle.
            "missing_share": 0.1,
        }
    )

    def run(self, trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
        """Measure with the macro idle_gaps, add up by device and cause, judge the sums."""
        table = trace.macro(self.name, parameters)
        devices = trace.macro("device_time").to_pylist()
        if not devices:
            return Result(self.name, parameters, (), table, (), Coverage(reason=no_device(trace.footer)))
        sums = _sums(table)
        summary = [_summary(device, sums) for device in sorted(devices, key=_where)]
        idle = sum(row["idle_ns"] for row in summary)
        if refusal := _refusal(trace, float(parameters["missing_share"] or 0)):
            return Result(self.name, parameters, summary, table, (), Coverage(0, idle, refusal))
        unknown = sum(row["by_cause"].get("unattributed", 0) for row in summary)
        return Result(
            self.name,
            parameters,
            summary,
            table,
            tuple(_findings(trace, table, summary, parameters)),
            Coverage(idle - unknown, idle, _reason(table) if unknown else ""),
        )


def _refusal(trace: Trace, threshold: float) -> str:
    """Why the holes cannot be taken for idle time, "" if they can: work that was not recorded leaves holes too."""
    count, rows = unfinished(trace)
    if count > threshold * rows:
        return (
            f"{CANNOT_TELL}: {count:,} of {rows:,} device rows have no recorded end, so a hole may be work; "
            "record again and stop the profiler before the program ends"
        )
    (row,) = trace.sql(_MISSING).to_pylist()
    for missing, total, what in (
        (row["graphs_silent"], row["graphs"], "graph replays"),
        (row["calls_silent"], row["calls"], "launch calls"),
    ):
        if missing > threshold * total:
            return (
                f"{CANNOT_TELL}: {missing:,} of {total:,} {what} left no device work in the trace, so a "
                "hole may be unrecorded work; record again (node-level graph tracing, a shorter window, another CUPTI)"
            )
    return ""


def _where(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["rank"], -1 if row["device"] is None else row["device"]


def _sums(table: pa.Table) -> dict[tuple[int, int | None, str], int]:
    grouped = table.group_by(["rank", "device", "cause"]).aggregate([("dur", "sum")])
    return {(row["rank"], row["device"], row["cause"]): row["dur_sum"] for row in grouped.to_pylist()}


def _summary(device: Row, sums: Mapping[tuple[int, int | None, str], int]) -> Row:
    keys = {cause: (device["rank"], device["device"], cause) for cause in CAUSES}
    return {
        "rank": device["rank"],
        "device": device["device"],
        "span_ns": device["span_ns"],
        "busy_ns": device["busy_ns"],
        "idle_ns": device["idle_ns"],
        "by_cause": {cause: sums[key] for cause, key in keys.items() if key in sums},
    }


def _reason(table: pa.Table) -> str:
    unattributed = table.filter(pc.field("cause") == "unattributed")
    return f"{unattributed.num_rows:,} of {table.num_rows:,} gaps show no cause in the trace"


def _findings(trace: Trace, table: pa.Table, summary: list[Row], parameters: Mapping[str, Scalar]) -> Iterable[Finding]:
    """One per cause, on the device where it takes the largest share: devices idle side by side, so their savings do
    not add up.
    """
    whole: Setting | None = None
    for cause in CAUSES:
        hit = [row for row in summary if row["by_cause"].get(cause, 0) > 0]
        if not hit:
            continue
        worst = max(hit, key=lambda row: row["by_cause"][cause] / row["span_ns"])
        share = worst["by_cause"][cause] / worst["span_ns"]
        if share >= float(parameters["finding_share"] or 0):
            where = f" on rank {worst['rank']} device {worst['device']}" if len(summary) > 1 else ""
            if len(hit) > 1:
                where += f", the worst of {len(hit)}"
            gaps = _gaps_of(table, cause, worst)
            whole = whole or evidence.setting(trace)
            yield _finding(trace, cause, gaps, share=share, where=where, whole=whole, parameters=parameters)


def _gaps_of(table: pa.Table, cause: str, device: Row) -> pa.Table:
    here = (pc.field("cause") == cause) & (pc.field("rank") == device["rank"])
    if device["device"] is not None:
        here &= pc.field("device") == device["device"]
    return table.filter(here).sort_by([("dur", "descending"), ("after_id", "ascending")])


def _finding(
    trace: Trace,
    cause: str,
    gaps: pa.Table,
    *,
    share: float,
    where: str,
    whole: Setting,
    parameters: Mapping[str, Scalar],
) -> Finding:
    blamed = evidence.blame(trace, gaps)
    ns = evidence.total(gaps)
    scene = evidence.scene(
        whole,
        gaps,
        blamed,
        small_ns=int(parameters["small_gap_ns"] or 0),
        latency_ns=int(parameters["launch_latency_ns"] or 0),
    )
    said = advise(cause, scene)
    place = evidence.ended_by(trace, gaps) if cause == "queued" and not scene.pauses else ""
    longest = gaps.slice(0, _SHOWN)
    ids = [*longest["after_id"].to_pylist(), *(id for id in longest["blame"].to_pylist() if id is not None)]
    return Finding(
        severity=_severity(cause, share, scene, parameters),
        title=f"{cause}: {said.title}, {share:.1%} of the span{where}",
        detail=" ".join(part for part in (_extent(gaps, blamed), place, said.detail) if part),
        saving_low_ns=0,
        saving_high_ns=ns,
        evidence=tuple(dict.fromkeys(ids)),
        remedy=said.remedy,
        cost=said.cost,
        verify=said.verify,
    )


def _extent(gaps: pa.Table, blamed: Blame) -> str:
    longest = duration(gaps["dur"][0].as_py())
    named = "; ".join(f"{name} ({duration(ns)})" for name, ns in list(blamed.by_name.items())[:_NAMED])
    size = f"1 gap of {longest}" if gaps.num_rows == 1 else f"{gaps.num_rows:,} gaps, the longest {longest}"
    return f"{size}; mostly in {named}." if named else f"{size}."


def _severity(cause: str, share: float, scene: Scene, parameters: Mapping[str, Scalar]) -> Severity:
    """What made queued work wait is not in the trace, and may be work that was not recorded: at most a warning."""
    if cause == "unattributed" or (cause == "queued" and scene.pauses):
        return "info"
    critical = cause != "queued" and share >= float(parameters["critical_share"] or 0)
    return "critical" if critical else "warning"


ANALYSIS = IdleGaps()
