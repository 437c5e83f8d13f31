"""What does the trace show around gaps of one cause? The evidence that advice has to follow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses._idle_advice import Scene, Shape, Workload
from tracekit.analysis import duration
from tracekit.trace import Trace

_FEW = 3  # gaps: where so many hold most of the time, it is not the price of launching
_NAMED = 2  # API calls named
_MUCH = 1 / 3  # of the time is blamed on one kind of thing: enough to advise on that first
_WORTH_NAMING = 0.05  # of the time

_DATA = re.compile(r"dataloader", re.IGNORECASE)
# Functions that compile or load. Wrappers around compiled code (compile_wrapper, CompiledFxGraph) run in each step.
_COMPILATION = re.compile(
    r"subprocess|\bninja\b|nvrtc|cpp_extension|importlib|dlopen|\bcompile(?!d|_wrapper)|async_compile|convert_frame"
    r"|(cu|hip)(Module|Library)Load"
)
_KERNEL_LAUNCH = re.compile(r"Launch(Cooperative)?Kernel")

_TRACE = r"""
    SELECT
        (SELECT count(*) FROM steps WHERE source = 'execute_context') AS vllm_steps,
        (SELECT count(*) FROM steps WHERE source = 'step') AS sglang_steps,
        coalesce(sum(count) FILTER (regexp_matches(name, '\bvllm\b')), 0) AS vllm,
        coalesce(sum(count) FILTER (regexp_matches(name, '\b(sglang|sgl_kernel)\b')), 0) AS sglang,
        coalesce(bool_or(regexp_matches(name, '^autograd::engine|Backward\d*$|^Optimizer\.')), false) AS training
    FROM (
        SELECT
            name,
            count(*) AS count
        FROM events
        WHERE kind IN ('op', 'python', 'annotation')
        GROUP BY name
    )
"""
_GRAPH_SHARE = """
    SELECT coalesce(avg(c.is_graph::INTEGER), 0) AS share
    FROM device_activity AS d
    LEFT JOIN launch_calls() AS c ON c.id = d.launch_id
"""
_ENDED_BY = """
    SELECT
        l.name,
        sum(g.dur)::BIGINT AS ns,
        coalesce(sum(g.dur) FILTER (b.launch_id = g.launch_id), 0)::BIGINT AS same_launch_ns
    FROM idle_gaps_raw() AS g
    JOIN launches AS l ON l.id = g.launch_id
    JOIN device_activity AS b ON b.id = g.before_id
    WHERE g.after_id IN (SELECT unnest($ids))
    GROUP BY l.name
    ORDER BY
        ns DESC,
        l.name
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """What holds for the whole trace."""

    workload: Workload
    engine: str
    graphs: bool


def setting(trace: Trace) -> Setting:
    """Is this serving or training, by which engine, and do graph replays bring most of the work?"""
    (row,) = trace.sql(_TRACE).to_pylist()
    (graphs,) = trace.sql(_GRAPH_SHARE).to_pylist()
    workload: Workload = "unknown"
    if row["vllm_steps"] or row["sglang_steps"]:
        workload = "serving"
    elif row["training"]:
        workload = "training"
    # Engines use each other's kernels and marks: the marks count first, then who has more names.
    shown = {"vLLM": (row["vllm"] > 0, row["vllm_steps"], row["vllm"])}
    shown["SGLang"] = (row["sglang"] > 0, row["sglang_steps"], row["sglang"])
    engine = max(shown, key=lambda name: shown[name])
    return Setting(workload, engine if any(shown[engine]) else "", graphs["share"] >= 0.5)


@dataclass(frozen=True, slots=True)
class Blame:
    """Time of gaps by the name of the host row that they are blamed on, costliest first; and that of API calls."""

    by_name: Mapping[str, int]
    in_calls_ns: int
    in_other_calls_ns: int


def blame(trace: Trace, gaps: pa.Table) -> Blame:
    """Add the gaps up by what they are blamed on."""
    by_id = ns_by(gaps.select(["blame", "dur"]).drop_null(), "blame")
    rows = trace.rows(by_id)
    by_name: Counter[str] = Counter()
    calls: Counter[bool] = Counter()
    for id, ns in by_id.items():
        name = rows[id]["name"]
        by_name[name] += ns
        if rows[id]["kind"] == "launch":
            calls[bool(_KERNEL_LAUNCH.search(name))] += ns
    ranked = dict(sorted(by_name.items(), key=lambda item: (-item[1], item[0])))
    return Blame(ranked, calls.total(), calls[False])


def scene(whole: Setting, gaps: pa.Table, blamed: Blame, *, small_ns: int, latency_ns: int) -> Scene:
    """What advice on these gaps, longest first, has to fit."""
    ns = total(gaps)
    phases = ns_by(gaps, "phase")

    def much(pattern: re.Pattern[str]) -> bool:
        return sum(part for name, part in blamed.by_name.items() if pattern.search(name)) >= _MUCH * ns

    return Scene(
        workload=whole.workload,
        phase=max(phases, key=lambda phase: (phases[phase], phase)),
        engine=whole.engine,
        graphs=whole.graphs,
        shape=_shape(gaps, ns, small_ns),
        pauses=ns < latency_ns * gaps.num_rows,
        in_calls=2 * blamed.in_calls_ns >= ns,
        in_other_calls=2 * blamed.in_other_calls_ns >= ns,
        on_data=much(_DATA),
        on_compilation=much(_COMPILATION),
    )


def _shape(gaps: pa.Table, ns: int, small_ns: int) -> Shape:
    if 2 * total(gaps.slice(0, _FEW)) >= ns:
        return "few gaps"
    return "small gaps" if 2 * total(gaps.filter(pc.field("dur") < small_ns)) >= ns else "long gaps"


def ended_by(trace: Trace, gaps: pa.Table) -> str:
    """Sentences that say which API calls brought the work that ended the gaps: the only place that a wait has."""
    found = trace.sql(_ENDED_BY, {"ids": gaps["after_id"].to_pylist()}).to_pylist()
    if not found:
        return ""
    worth = [row for row in found if row["ns"] >= _WORTH_NAMING * total(gaps)] or found
    parts = [f"{duration(row['ns'])} end at work of {row['name']}" for row in worth[:_NAMED]]
    if inside := sum(row["same_launch_ns"] for row in found):
        parts.append(f"{duration(inside)} lie between rows of the same launch")
    text = ", ".join(parts) + "."
    if "GraphLaunch" in found[0]["name"]:
        text += " Kernels of a graph may not be recorded; then the device was at work here."
    return text


def total(gaps: pa.Table) -> int:
    """Length of all gaps."""
    return pc.sum(gaps["dur"]).as_py() or 0


def ns_by(gaps: pa.Table, column: Literal["blame", "phase"]) -> dict[Any, int]:
    """Length of all gaps by a column."""
    grouped = gaps.group_by(column).aggregate([("dur", "sum")])
    return {row[column]: row["dur_sum"] for row in grouped.to_pylist()}
