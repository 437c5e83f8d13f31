"""What does the trace show around gaps of one cause? The evidence that advice has to follow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses._idle_advice import Scene, Shape, Workload
from tracekit.analysis import duration
from tracekit.arrays import integers, numbers, one_array
from tracekit.text_grid import from_package
from tracekit.trace import Trace

_FEW = 3  # gaps: where so many hold most of the time, it is not the price of launching
_NAMED = 2  # host rows named
_LEAST_NAMED = 0.01  # of the time of all
_MUCH = 1 / 3  # of the time is blamed on one kind of thing: enough to advise on that first
_DATA = re.compile(r"dataloader", re.IGNORECASE)
_ENGINE_CODE = r"(^|/)(vllm|sglang|tensorrt_llm|transformers)/"  # functions that a user can look at and act on

_TRACE = r"""
    SELECT
        (SELECT count(*) FROM steps WHERE source = 'execute_context') AS vllm_steps,
        (SELECT count(*) FROM steps WHERE source = 'step') AS sglang_steps,
        (SELECT count(*) FROM steps WHERE source IN ('tracekit', 'stage')) AS own_steps,
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
_PLACE = "SELECT rank, pid, tid, ts, ts + dur AS end_ts FROM events WHERE id = $id AND pid IS NOT NULL"
# The innermost function of an engine around that place.
_CALLER = f"""
    SELECT name
    FROM python_calls
    WHERE rank = $rank
        AND pid = $pid
        AND tid = $tid
        AND ts <= $ts
        AND ts + dur >= $end_ts
        AND regexp_matches(name, '{_ENGINE_CODE}')
        AND NOT contains(name, ': __torch_')  -- hooks around every op: not who called it
    ORDER BY
        dur,
        id DESC
    LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """What holds for the whole trace."""

    workload: Workload
    engine: str
    graphs: bool


def setting(trace: Trace) -> Setting:
    """Is this serving or training, by which engine, and do graph replays bring most of the work?"""
    found: Setting = trace.once(("setting",), lambda: _setting(trace))
    return found


def _setting(trace: Trace) -> Setting:
    (row,) = trace.sql(_TRACE).to_pylist()
    (graphs,) = trace.sql(_GRAPH_SHARE).to_pylist()
    workload: Workload = "unknown"
    if row["vllm_steps"] or row["sglang_steps"] or row["own_steps"]:
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
    """Time in gaps of the host rows that these are blamed on, by name, costliest first, with the number of such rows
    and the id of the costliest; and that of API calls."""

    by_name: Mapping[str, int]
    rows: Mapping[str, int]
    example: Mapping[str, int]
    in_calls_ns: int


def blame(trace: Trace, gaps: pa.Table) -> Blame:
    """Add up what the rows that gaps are blamed on took of them."""
    parts = gaps.select(["blame", "ts", "dur"]).drop_null()
    if not parts.num_rows:
        return Blame({}, {}, {}, 0)
    blamed, ts, dur = (numbers(parts, name) for name in ("blame", "ts", "dur"))
    ids, row_of = np.unique(blamed, return_inverse=True)
    rows = trace.row_table(ids.tolist())
    begin, end = numbers(rows, "ts"), numbers(rows, "ts") + numbers(rows, "dur")
    is_call = integers(pc.equal(rows["kind"], "launch").combine_chunks().cast(pa.int64())) > 0
    # An API call took all of a part, for the device waits for it also after its return; other rows took what they
    # lasted, since they are blamed for what holds most of the part.
    common = np.maximum(0, np.minimum(ts + dur, end[row_of]) - np.maximum(ts, begin[row_of]))
    ns = np.zeros(len(ids), np.int64)
    np.add.at(ns, row_of, np.where(is_call[row_of], dur, common))

    names = one_array(rows["name"]).dictionary_encode()
    texts, code = names.dictionary.to_pylist(), integers(names.indices)
    by_name = np.zeros(len(texts), np.int64)
    np.add.at(by_name, code, ns)
    count = np.bincount(code, minlength=len(texts))
    costliest = np.lexsort((ids, -ns))[::-1]
    example = np.zeros(len(texts), np.int64)
    example[code[costliest]] = ids[costliest]  # of several values for one place the last one stays
    ranked = sorted(range(len(texts)), key=lambda at: (-int(by_name[at]), texts[at]))
    return Blame(
        {texts[at]: int(by_name[at]) for at in ranked},
        {texts[at]: int(count[at]) for at in ranked},
        {texts[at]: int(example[at]) for at in ranked},
        int(ns[is_call].sum()),
    )


def named(trace: Trace, blamed: Blame, *, callers: bool) -> str:
    """The costliest names and their times, with the engine's function the costliest row was called from where stacks
    tell: of the others it says nothing.
    """
    parts = []
    least = _LEAST_NAMED * sum(blamed.by_name.values())
    for name, ns in [(name, ns) for name, ns in blamed.by_name.items() if ns >= least][:_NAMED]:
        caller = _caller(trace, blamed.example[name]) if callers else ""
        which = "called by" if blamed.rows[name] == 1 else "the longest called by"
        under = f", {which} {from_package(caller)}" if caller not in ("", name) else ""
        parts.append(f"{from_package(name)} ({duration(ns)}{under})")
    return "; ".join(parts)


def _caller(trace: Trace, id: int) -> str:
    for place in trace.sql(_PLACE, {"id": id}).to_pylist():
        for row in trace.sql(_CALLER, place).to_pylist():
            return str(row["name"])
    return ""


def scene(whole: Setting, phase: str, gaps: pa.Table, blamed: Blame, *, small_ns: int) -> Scene:
    """What advice on these gaps, longest first, has to fit."""
    ns = total(gaps)
    in_time = total(gaps.filter(pc.field("launch_lead_ns") > 0))
    on_data = sum(part for name, part in blamed.by_name.items() if _DATA.search(name))
    return Scene(
        workload=whole.workload,
        phase=phase,
        engine=whole.engine,
        graphs=whole.graphs,
        shape=_shape(gaps, ns, small_ns),
        pauses=2 * in_time >= ns,
        in_calls=2 * blamed.in_calls_ns >= ns,
        on_data=on_data >= _MUCH * ns,
    )


def _shape(gaps: pa.Table, ns: int, small_ns: int) -> Shape:
    if 2 * total(gaps.slice(0, _FEW)) >= ns:
        return "few gaps"
    return "small gaps" if 2 * total(gaps.filter(pc.field("dur") < small_ns)) >= ns else "long gaps"


def total(gaps: pa.Table) -> int:
    """Length of all gaps."""
    return pc.sum(gaps["dur"]).as_py() or 0


def lengths(gaps: pa.Table) -> str:
    """How many gaps there are, and what the longest takes: not their parts, of which one gap may have several."""
    per_gap = gaps.group_by("after_id").aggregate([("dur", "sum")])["dur_sum"]
    longest = duration(pc.max(per_gap).as_py())
    return f"1 gap of {longest}" if len(per_gap) == 1 else f"{len(per_gap):,} gaps, the longest {longest}"
