"""Rows of steps in which the device idles once, and how to have them judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tracekit
from tests.event_rows import annotation, kernel, launch, op, write_trace
from tracekit.analysis import Finding, Result

US = 1_000
MS = 1_000_000
GAP = 400 * US
STEP = GAP + 200 * US
DECODE = "step[DECODE bs=4]"
VLLM = "execute_context_0(0)_generation_4(4)"
OWN = "tracekit.step[decode decode_requests=4 decode_tokens=4]"
TRAINING = "ProfilerStep#3"
BACKWARD = op(0, 1, name="autograd::engine::evaluate_function: MulBackward0", tid=9)
Row = dict[str, Any]
Rows = list[Row]
Hold = Callable[[int, int], Rows]


def analyze(path: Path, rows: Sequence[Row], **parameters: Any) -> Result:
    with tracekit.open(write_trace(path / "trace.parquet", rows)) as trace:
        return trace.analyze("idle_gaps", **parameters)


def by_cause(result: Result) -> dict[str, Finding]:
    """Findings by the first word of their title, which each has for itself."""
    found = {one.title.partition(":")[0]: one for one in result.findings}
    assert len(found) == len(result.findings)
    return found


# ---- what holds the host: from when, for how long --------------------------------------------------------------------


def held(kind: str, name: str) -> Hold:
    """One row of the thread."""
    return lambda ts, dur: [{"kind": kind, "name": name, "ts": ts, "dur": dur}]


def waited(ts: int, dur: int) -> Rows:
    """A wait that began while the device worked, until it had run dry; then an op."""
    return [launch(ts - 70 * US, 71 * US, name="cudaStreamSynchronize"), op(ts + US, dur - US)]


def warned(ts: int, dur: int) -> Rows:
    """Nothing, after a call that had a stream wait for an event."""
    return [launch(ts - 80 * US, 5 * US, name="cudaStreamWaitEvent")]


def unseen(ts: int, dur: int) -> Rows:
    """Nothing that the trace shows."""
    return []


OP = held("op", "aten::mm")


# ---- steps -----------------------------------------------------------------------------------------------------------


def put(rows: Rows, call: Row, work: Row) -> None:
    """Add a launch call and its work."""
    rows += [call, {**work, "launch_id": len(rows) + 1}]


def end_of(rows: Sequence[Row]) -> int:
    """End of the last step."""
    marks = [row["ts"] + row["dur"] for row in rows if row["kind"] == "annotation" and "tid" in row]
    return max(marks, default=0)


def step(
    rows: Rows, hold: Hold = OP, *, mark: str = DECODE, gap: int = GAP, call: Row | None = None, work: Row | None = None
) -> None:
    """Add a step, gap + 200 us long, after the others.

    The device works from 5 to 100 us and for 95 us after the gap; the host is held from 1 us before the gap to the
    launch that ends it, 5 us before its end. Idle are the gap, and 10 us before the work of the next step; 5 us at the
    end of either are launch_latency, 5 us launch_bound. call: columns of that launch, its ts counted from the start of
    the step; work: columns of what it launched.
    """
    at = end_of(rows)
    rows.append(annotation(mark, at, gap + 200 * US, tid=1))
    put(rows, launch(at, 4 * US), kernel(at + 5 * US, 95 * US))
    rows += hold(at + 99 * US, gap - 4 * US)
    ends = {"ts": gap + 95 * US, "dur": 4 * US, **(call or {})}
    put(rows, launch(**{**ends, "ts": at + ends["ts"]}), {**kernel(at + gap + 100 * US, 95 * US), **(work or {})})
    rows.append(op(at + gap + 100 * US, 95 * US, name="aten::argmax"))


def steps(hold: Hold = OP, count: int = 8, **columns: Any) -> Rows:
    """So many steps; the first is in no figure."""
    rows: Rows = []
    for _ in range(count):
        step(rows, hold, **columns)
    return rows


def small_gaps(mark: str = DECODE, *, ahead: bool, count: int = 8) -> Rows:
    """Steps of ten kernels of 50 us after 10 us each: launched when the device has run dry, or all ahead."""
    rows: Rows = []
    for at in range(0, count * STEP, STEP):
        rows.append(annotation(mark, at, STEP, tid=1))
        for i in range(10):
            put(rows, launch(at + i * (US if ahead else 60 * US), US), kernel(at + i * 60 * US + 10 * US, 50 * US))
    return rows


def causes(mark: str) -> dict[str, Rows]:
    """For each cause steps in which it takes most of the time."""
    slow = {"ts": 99 * US, "dur": GAP - US}
    pageable = {"kind": "memcpy", "name": "Memcpy HtoD (Pageable -> Device)"}
    return {
        "launch_latency": small_gaps(mark, ahead=False),
        "launch_bound": steps(OP, mark=mark),
        "graph_launch": steps(unseen, mark=mark, call={"name": "cudaGraphLaunch", **slow}),
        "sync": steps(waited, mark=mark),
        "pageable_copy": steps(unseen, mark=mark, call={"name": "cudaMemcpyAsync", **slow}, work=pageable),
        "allocation": steps(held("launch", "cudaMalloc"), mark=mark),
        "input_preparation": steps(held("python", "model_runner.py(7): _prepare_inputs"), mark=mark),
        "scheduler": steps(held("annotation", "gpu_model_runner: bookkeep"), mark=mark),
        "python": steps(held("python", "sampler.py(5): forward"), mark=mark, gap=900 * US),
        "gc": steps(held("python", "Python GC"), mark=mark),
        "lazy_load_or_jit": steps(held("python", "triton/compiler/compiler.py(230): compile"), mark=mark),
        "stream_dependency": steps(warned, mark=mark, call={"ts": 30 * US}),
        "communication_wait": steps(held("annotation", "gloo:broadcast"), mark=mark),
        "no_requests": steps(held("annotation", "scheduler.recv_requests"), mark=mark, gap=25 * MS),
        "profiler": steps(held("overhead", "Buffer Flush"), mark=mark),
        "unattributed": steps(unseen, mark=mark),
    }


def ranked(*parts: Sequence[Row]) -> Rows:
    """Each part as the trace of a rank of its own."""
    rows: Rows = []
    for rank, part in enumerate(parts):
        base = len(rows)
        for row in part:
            moved = {"launch_id": row["launch_id"] + base} if row.get("launch_id") else {}
            rows.append({**row, "rank": rank, **moved})
    return rows


def unmarked(rows: Sequence[Row]) -> Rows:
    """The same rows without marks of steps."""
    return [{**row, "kind": "counter"} if row["kind"] == "annotation" and "tid" in row else row for row in rows]
