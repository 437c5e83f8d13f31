"""Why does the GPU idle, how long for each cause, and what would end it?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analysis import Coverage, Finding, Result, Row, Scalar, Severity
from tracekit.trace import Trace

CAUSES = ("launch_bound", "sync", "between_steps", "queued", "unattributed")
NO_DEVICE = (
    "no device activity in this trace: record with CUDA activities (ProfilerActivity.CUDA, or `tracekit collect` on a "
    "machine with a GPU) and check that CUPTI may profile (driver permission, no second profiler)"
)
_SHOWN = 5  # longest gaps named as evidence of a finding

_MISSING = """
    SELECT
        count(*) FILTER (WHERE is_graph) AS graphs,
        count(*) FILTER (WHERE is_graph AND NOT worked) AS graphs_silent,
        count(*) AS calls,
        count(*) FILTER (WHERE NOT worked) AS calls_silent
    FROM launch_calls()
    WHERE expected
"""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about a cause."""

    title: str
    detail: str
    remedy: str
    cost: str
    verify: str


_SAME_LOAD = "Same load, this one change: idle by cause in a new trace, then P50 and P99 of ITL without the profiler."
ADVICE: Mapping[str, Advice] = MappingProxyType(
    {
        "launch_bound": Advice(
            "the host launches too slowly",
            "The host was still preparing or launching when the device ran dry. Tracing itself slows the host, so the "
            "true figure is lower.",
            "Replay decode steps as CUDA graphs (vLLM: drop enforce_eager; SGLang: drop disable-cuda-graph); where "
            "shapes vary, compile or fuse to launch fewer, larger kernels.",
            "Graph memory and a longer start-up; padding to captured batch sizes; no host-dependent control flow.",
            _SAME_LOAD,
        ),
        "sync": Advice(
            "the host waits for the device, then starts from empty",
            "A synchronising call drained the device; the gap is the time to refill it. The wait is not the cost, the "
            "refill is.",
            "Remove .item(), .cpu(), nonzero() and copies of pageable memory from the step; copy results back pinned "
            "and non-blocking, and wait on an event one step later (asynchronous scheduling).",
            "Results arrive one step later; stop conditions and structured output must tolerate that.",
            _SAME_LOAD,
        ),
        "between_steps": Advice(
            "the device waits for the scheduler between steps",
            "Most of these gaps lies outside all steps: scheduling, input preparation or output processing on the "
            "host.",
            "Overlap scheduling with the forward pass (vLLM: async scheduling; SGLang: overlap schedule), and take "
            "detokenisation and input preparation off that path. With too little load there is nothing to overlap.",
            "One step of latency in stopping and in admitting requests; more host memory for staged inputs.",
            _SAME_LOAD,
        ),
        "queued": Advice(
            "the device waits although work is queued",
            "The next kernel had been launched in time, so the host is not the cause: it waited for another stream or "
            "rank, or these are the device's own pauses between kernels (1-2 us each).",
            "Short gaps: fewer, larger kernels, or programmatic dependent launch inside CUDA graphs. Long gaps: look at "
            "the work that ends them and at what its stream waits for.",
            "Fused kernels must exist for the shapes in use.",
            _SAME_LOAD,
        ),
        "unattributed": Advice(
            "idle time without a cause in the trace",
            "The work that ends these gaps has no recorded launch, or its thread shows neither op nor call nor Python "
            "function for most of the gap.",
            "Record again with Python stacks (with_stack) and synchronisation events to see the host in these gaps.",
            "Stacks slow the host and enlarge the trace; record few steps.",
            "The unattributed share in the new trace.",
        ),
    }
)


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
            tuple(_findings(table, summary, parameters)),
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
                f"idle time cannot be told: {missing:,} of {total:,} {what} left no device work in the trace, so a hole "
                "may be unrecorded work; record again (node-level graph tracing, a shorter window, another CUPTI)"
            )
    return ""


def _where(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["rank"], -1 if row["device"] is None else row["device"]


def _sums(table: pa.Table) -> dict[tuple[int, int, str], int]:
    grouped = table.group_by(["rank", "device", "cause"]).aggregate([("dur", "sum")])
    return {(*_where(row), row["cause"]): row["dur_sum"] for row in grouped.to_pylist()}


def _summary(device: Row, sums: Mapping[tuple[int, int, str], int]) -> Row:
    by_cause = {cause: sums[(*_where(device), cause)] for cause in CAUSES if (*_where(device), cause) in sums}
    return {
        "rank": device["rank"],
        "device": device["device"],
        "span_ns": device["span_ns"],
        "busy_ns": device["busy_ns"],
        "idle_ns": device["idle_ns"],
        "by_cause": by_cause,
    }


def _reason(table: pa.Table) -> str:
    unattributed = table.filter(pc.equal(table["cause"], "unattributed"))
    return f"{unattributed.num_rows} of {table.num_rows} gaps show no cause in the trace"


def _findings(table: pa.Table, summary: list[Row], parameters: Mapping[str, Scalar]) -> Iterable[Finding]:
    """One per cause, on the device where it takes the largest share: devices idle side by side, so their savings do
    not add up.
    """
    for cause in CAUSES:
        hit = [row for row in summary if row["by_cause"].get(cause, 0) > 0 and row["span_ns"] > 0]
        if not hit:
            continue
        worst = max(hit, key=lambda row: row["by_cause"][cause] / row["span_ns"])
        share = worst["by_cause"][cause] / worst["span_ns"]
        if share >= float(parameters["finding_share"] or 0):
            yield _finding(cause, share, worst, _gaps_of(table, cause, worst), len(hit), len(summary), parameters)


def _gaps_of(table: pa.Table, cause: str, device: Row) -> pa.Table:
    here = pc.and_(pc.equal(table["cause"], cause), pc.equal(table["rank"], device["rank"]))
    if device["device"] is not None:
        here = pc.and_(here, pc.equal(table["device"], device["device"]))
    return table.filter(here).sort_by([("dur", "descending"), ("after_id", "ascending")])


def _finding(
    cause: str, share: float, worst: Row, gaps: pa.Table, hit: int, devices: int, parameters: Mapping[str, Scalar]
) -> Finding:
    advice = ADVICE[cause]
    ns = worst["by_cause"][cause]
    where = f" on rank {worst['rank']} device {worst['device']}, the worst of {hit} of {devices}" if devices > 1 else ""
    longest = gaps.slice(0, _SHOWN)
    blamed = [row["blame"] for row in longest.to_pylist() if row["blame"] is not None]
    return Finding(
        severity=_severity(cause, share, ns / gaps.num_rows, parameters),
        title=f"{advice.title}: {ns / 1e6:.3f} ms idle ({share:.1%} of the span){where}",
        detail=f"{gaps.num_rows:,} gaps, the longest {gaps['dur'][0].as_py() / 1e3:,.1f} us. {advice.detail}",
        saving_low_ns=0,
        saving_high_ns=ns,
        evidence=tuple(dict.fromkeys([*longest["after_id"].to_pylist(), *blamed])),
        remedy=advice.remedy,
        cost=advice.cost,
        verify=advice.verify,
    )


def _severity(cause: str, share: float, mean_ns: float, parameters: Mapping[str, Scalar]) -> Severity:
    ordinary = cause == "queued" and mean_ns < float(parameters["launch_latency_ns"] or 0)
    if cause == "unattributed" or ordinary:
        return "info"
    return "critical" if share >= float(parameters["critical_share"] or 0) else "warning"


ANALYSIS = IdleGaps()
