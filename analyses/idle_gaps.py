"""Why does the GPU idle, how long for each cause, and what would end it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses import _idle_advice as advice
from tracekit.analysis import Coverage, Finding, Result, Row, Scalar, Severity
from tracekit.trace import Trace

CAUSES = ("launch_bound", "sync", "between_steps", "queued", "unattributed")
NO_DEVICE = (
    "no device activity in this trace: record with CUDA activities (ProfilerActivity.CUDA, or `tracekit collect` on a "
    "machine with a GPU) and check that CUPTI may profile (driver permission, no second profiler)"
)
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
_GRAPH_SHARE = """
    SELECT coalesce(avg(c.is_graph::INTEGER), 0) AS share
    FROM device_activity AS d
    LEFT JOIN launch_calls() AS c ON c.id = d.launch_id
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
            "missing_share": 0.1,  # of launches without device work: above, holes are not taken for idle time
        }
    )

    def run(self, trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
        """Measure with the macro idle_gaps, add up by device and cause, judge the sums."""
        table = trace.macro(self.name, parameters)
        devices = trace.macro("device_time").to_pylist()
        if not devices:
            return Result(self.name, parameters, (), table, (), Coverage(reason=NO_DEVICE))
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
    (row,) = trace.sql(_MISSING).to_pylist()
    for missing, total, what in (
        (row["graphs_silent"], row["graphs"], "graph replays"),
        (row["calls_silent"], row["calls"], "launch calls"),
    ):
        if missing > threshold * total:
            return (
                f"idle time cannot be told: {missing:,} of {total:,} {what} left no device work in the trace, so a "
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
            yield _finding(trace, cause, gaps, share=share, where=where, parameters=parameters)


def _gaps_of(table: pa.Table, cause: str, device: Row) -> pa.Table:
    here = (pc.field("cause") == cause) & (pc.field("rank") == device["rank"])
    if device["device"] is not None:
        here &= pc.field("device") == device["device"]
    return table.filter(here).sort_by([("dur", "descending"), ("after_id", "ascending")])


def _finding(
    trace: Trace, cause: str, gaps: pa.Table, *, share: float, where: str, parameters: Mapping[str, Scalar]
) -> Finding:
    by_name, in_calls_ns = _blamed(trace, gaps)
    ns: int = sum(row["dur"] for row in gaps.select(["dur"]).to_pylist())
    said = advice.CAUSES[cause]
    if cause == "launch_bound":
        phase = max(_by(gaps, "phase").items(), key=lambda item: item[1])[0]
        (row,) = trace.sql(_GRAPH_SHARE).to_pylist()
        said = advice.launch_bound(in_calls=2 * in_calls_ns >= ns, graphs=row["share"] >= 0.5, phase=phase)
    longest = gaps.slice(0, _SHOWN)
    evidence = [*longest["after_id"].to_pylist(), *(id for id in longest["blame"].to_pylist() if id is not None)]
    named = "; ".join(f"{name} ({blamed / 1e6:,.3f} ms)" for name, blamed in by_name[:_NAMED])
    return Finding(
        severity=_severity(cause, share, ns / gaps.num_rows, parameters),
        title=f"{said.title}: {ns / 1e6:,.3f} ms idle ({share:.1%} of the span){where}",
        detail=f"{gaps.num_rows:,} gap{'s' * (gaps.num_rows > 1)}, the longest {gaps['dur'][0].as_py() / 1e3:,.1f} us"
        + (f"; mostly in {named}. " if named else ". ")
        + said.detail,
        saving_low_ns=0,
        saving_high_ns=ns,
        evidence=tuple(dict.fromkeys(evidence)),
        remedy=said.remedy,
        cost=said.cost,
        verify=said.verify,
    )


def _blamed(trace: Trace, gaps: pa.Table) -> tuple[list[tuple[str, int]], int]:
    """Names of the host rows that these gaps are blamed on, costliest first; and the time blamed on API calls."""
    by_id = _by(gaps.select(["blame", "dur"]).drop_null(), "blame")
    rows = trace.rows(by_id)
    by_name: Counter[str] = Counter()
    for id, ns in by_id.items():
        by_name[rows[id]["name"]] += ns
    in_calls = sum(ns for id, ns in by_id.items() if rows[id]["kind"] == "launch")
    return sorted(by_name.items(), key=lambda item: (-item[1], item[0])), in_calls


def _by(gaps: pa.Table, column: str) -> dict[Any, int]:
    grouped = gaps.group_by(column).aggregate([("dur", "sum")])
    return {row[column]: row["dur_sum"] for row in grouped.to_pylist()}


def _severity(cause: str, share: float, mean_ns: float, parameters: Mapping[str, Scalar]) -> Severity:
    ordinary = cause == "queued" and mean_ns < float(parameters["launch_latency_ns"] or 0)
    if cause == "unattributed" or ordinary:
        return "info"
    return "critical" if share >= float(parameters["critical_share"] or 0) else "warning"


ANALYSIS = IdleGaps()
