"""Where does the time of each device go, by what the work is for?"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analysis import Coverage, Finding, Result, Row, Scalar
from tracekit.trace import Trace

HOST_ONLY = (
    "no device activity in this trace: this is host op time (each op without the ops inside it), not GPU time; "
    "record with CUDA activities to see the device"
)
_NAMED = 5  # unclassified names said in a finding

_OTHERS = """
    SELECT
        rank,
        device,
        name,
        sum(exclusive_ns)::BIGINT AS ns,
        arg_max(id, (exclusive_ns, -id)) AS example
    FROM classified_segments()
    WHERE category = 'other'
    GROUP BY ALL
    ORDER BY ns DESC, name
"""


class Attribution:
    """Busy time by category and phase; on a trace without device activity, host op time."""

    name = "attribution"
    question = "Where does the busy time go?"
    parameters: Mapping[str, Scalar] = MappingProxyType({"other_share": 0.1})

    def run(self, trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
        """Measure with the macro attribution; judge whether enough of the time has a category."""
        table = trace.macro(self.name, parameters)
        if table.num_rows == 0:
            return _host(trace, parameters)
        unclassified = _other_by_device(table)
        devices = sorted(trace.macro("device_time", {}).to_pylist(), key=lambda row: (row["rank"], row["device"] or 0))
        summary = [
            {key: row[key] for key in ("rank", "device", "span_ns", "busy_ns", "idle_ns", "sum_ns")}
            | {"unclassified_ns": unclassified.get((row["rank"], row["device"]), 0)}
            for row in devices
        ]
        busy = sum(row["busy_ns"] for row in summary)
        other = sum(row["unclassified_ns"] for row in summary)
        findings = _findings(trace, summary, float(parameters["other_share"] or 0))
        reason = f"{other / busy:.1%} of the busy time is in kernels that no rule knows" if other else ""
        return Result(self.name, parameters, summary, table, findings, Coverage(busy - other, busy, reason))


def _other_by_device(table: pa.Table) -> dict[tuple[int, int | None], int]:
    others = table.filter(pc.equal(table["category"], "other"))
    grouped = others.group_by(["rank", "device"]).aggregate([("exclusive_ns", "sum")])
    return {(row["rank"], row["device"]): row["exclusive_ns_sum"] for row in grouped.to_pylist()}


def _findings(trace: Trace, summary: list[Row], threshold: float) -> tuple[Finding, ...]:
    hit = [row for row in summary if row["busy_ns"] and row["unclassified_ns"] / row["busy_ns"] > threshold]
    if not hit:
        return ()
    worst = max(hit, key=lambda row: row["unclassified_ns"] / row["busy_ns"])
    names = [
        row
        for row in trace.sql(_OTHERS).to_pylist()
        if (row["rank"], row["device"]) == (worst["rank"], worst["device"]) and row["ns"] > 0
    ]
    listed = "; ".join(f"{row['name']} ({row['ns'] / worst['busy_ns']:.1%})" for row in names[:_NAMED])
    more = f"; and {len(names) - _NAMED} more names" if len(names) > _NAMED else ""
    return (
        Finding(
            severity="warning",
            title=f"{worst['unclassified_ns'] / worst['busy_ns']:.1%} of the busy time has no category"
            + (f" on rank {worst['rank']} device {worst['device']}" if len(summary) > 1 else ""),
            detail=f"{listed}{more}",
            evidence=tuple(row["example"] for row in names[:_NAMED]),
            remedy="Name these kernels in a rules file of your own and pass it with --rules.",
            cost="A few lines of TOML.",
            verify="The share of `other` in the next run.",
        ),
    )


def _host(trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
    table = trace.macro("host_attribution", {})
    summary: list[Row] = []
    for rank in sorted(set(table["rank"].to_pylist())):
        rows = table.filter(pc.equal(table["rank"], rank))
        total = sum(rows["exclusive_ns"].to_pylist())
        other = sum(rows.filter(pc.equal(rows["category"], "other"))["exclusive_ns"].to_pylist())
        cannot_tell = dict.fromkeys(("span_ns", "busy_ns", "idle_ns", "sum_ns"))
        summary.append({"rank": rank, "device": None, **cannot_tell, "unclassified_ns": other, "host_op_ns": total})
    total = sum(row["host_op_ns"] for row in summary)
    other = sum(row["unclassified_ns"] for row in summary)
    return Result("attribution", parameters, summary, table, (), Coverage(total - other, total, HOST_ONLY))


ANALYSIS = Attribution()
