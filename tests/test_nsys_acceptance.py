"""An engine that waits for its stream after every step, as Nsight Systems would export it: 116 ms, 200 steps on two
overlapping streams, idle for 62 % of the time, however replays are recorded and whoever marks the steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests import naive, naive_nsys
from tests.command_line import run
from tests.nsys_files import NsysFile
from tracekit.analysis import Result

STEPS = 200
US = 1_000
FIRST_END, SECOND_START, BUSY = 140 * US, 80 * US, 221_500
WAIT = 300 * US  # how long the host sleeps on after the device has run dry
PERIOD = BUSY + 360_300
LAUNCHED = 6 * US  # before the work starts
MARKED = 20 * US  # before it, too
BETWEEN = PERIOD - MARKED - BUSY - WAIT - 10 * US  # the mark of a step and that of the next

DECODE = "tracekit.step[decode decode_requests=4 decode_tokens=4]"

# How a step is recorded: "eager" kernels, the "nodes" of a replay, the "graph" as a block, or "both".
Shape = Callable[[int], str]


def engine(shape: Shape, mark: str = DECODE) -> NsysFile:
    file = NsysFile()
    file.gpu()
    for step in range(STEPS):
        at, correlation = 1_000_000 + step * PERIOD, 10 * step + 1
        file.nvtx(at - MARKED, at + BUSY + WAIT + 10 * US, mark)
        recorded = shape(step)
        replay = recorded != "eager"
        if replay:
            file.runtime(at - LAUNCHED, at - 2 * US, "cudaGraphLaunch_v10000", correlationId=correlation)
        else:
            file.runtime(at - LAUNCHED, at - 4 * US, correlationId=correlation)
            file.runtime(at - 4 * US, at - 2 * US, correlationId=correlation + 1)
        if recorded in {"graph", "both"}:
            file.graph(at, at + BUSY, correlationId=correlation)
        if recorded in {"nodes", "both", "eager"}:
            node: dict[str, Any] = {"graphId": 5, "graphNodeId": 5 << 32 | 1} if replay else {}
            file.kernel(at, at + FIRST_END, correlationId=correlation, **node)
            second = correlation if replay else correlation + 1
            file.kernel(at + SECOND_START, at + BUSY, "rms_norm", streamId=13, correlationId=second, **node)
        waited = correlation + 2
        file.runtime(at + 5 * US, at + BUSY + WAIT, "cudaStreamSynchronize_v3020", correlationId=waited)
        file.sync(at + 6 * US, at + BUSY, correlationId=waited)
    return file


def idle_gaps(path: Path) -> Result:
    with tracekit.open(path) as trace:
        return trace.analyze("idle_gaps")


SHAPES: dict[str, Shape] = {
    "launched one by one": lambda step: "eager",
    "half of the replays as blocks": lambda step: "graph" if step % 2 else "eager",
    "replays as blocks and as nodes": lambda step: "both" if step % 2 else "nodes",
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_62_per_cent_idle_for_stream_synchronisation(shape: Shape, tmp_path: Path) -> None:
    path = engine(shape).write(tmp_path / "serve.sqlite")
    (row,) = idle_gaps(path).summary

    ((_, intervals),) = naive_nsys.device_intervals(naive_nsys.rows(path)).items()
    span, busy = naive.span_and_busy(intervals)
    assert (span, busy) == (115_999_700, 44_300_000)
    assert {key: row[key] for key in ("span_ns", "busy_ns", "idle_ns")} == {
        "span_ns": span,
        "busy_ns": busy,
        "idle_ns": 71_699_700,
    }
    assert round(100 * row["idle_ns"] / row["span_ns"]) == 62
    # Within a step the host waits, or does what follows a wait; between two marks it schedules; at last it launches.
    causes = dict(row["by_cause"])
    assert causes.pop("sync") == (STEPS - 1) * (PERIOD - BUSY - BETWEEN - LAUNCHED)
    assert causes.pop("scheduler") == (STEPS - 1) * BETWEEN
    assert causes.keys() <= {"launch_latency", "graph_launch"}
    assert sum(causes.values()) == (STEPS - 1) * LAUNCHED


def test_the_report_says_so(tmp_path: Path) -> None:
    path = engine(SHAPES["half of the replays as blocks"]).write(tmp_path / "serve.sqlite")
    result = run("analyze", path, "idle_gaps")
    assert result.exit_code == 0
    for said in ("61.8%", "71.7 ms", "sync"):
        assert said in result.output


def test_no_row_is_lost_and_no_replay_is_counted_twice(tmp_path: Path) -> None:
    path = engine(lambda step: "both").write(tmp_path / "serve.sqlite")
    with tracekit.open(path) as trace:
        (device,) = trace.sql("FROM device_time()").to_pylist()
        ledger = trace.footer.ledger
    assert ledger.by_kind == {"annotation": STEPS, "launch": 2 * STEPS, "kernel": 2 * STEPS, "sync": STEPS}
    assert device["sum_ns"] == STEPS * (FIRST_END + BUSY - SECOND_START)
    assert ledger.read - ledger.stored == STEPS == sum(ledger.skipped.values())


# ---- steps -----------------------------------------------------------------------------------------------------------

DIALECTS = {
    "tracekit": ("tracekit.step[prefill prefill_requests=2 prefill_tokens=60]", DECODE),
    "vLLM": ("execute_context_2(60)_generation_0(0)", "execute_context_0(0)_generation_4(4)"),
    "SGLang": ("step[EXTEND bs=2 toks=60]", "step[DECODE bs=4]"),
}


@pytest.mark.parametrize("marks", DIALECTS.values(), ids=DIALECTS.keys())
def test_steps_of_every_dialect(marks: tuple[str, str], tmp_path: Path) -> None:
    """A prefill and two decodes, each with one kernel that ends after its mark; one mark is a registered string."""
    file = NsysFile()
    for step, mark in enumerate([marks[0], marks[1], marks[1]]):
        at = 1_000 * step
        file.nvtx(at, at + 900, mark, registered=step == 1)
        file.runtime(at + 10, at + 20, correlationId=step + 1)
        file.kernel(at + 500, at + 1_100, correlationId=step + 1)
    with tracekit.open(file.write(tmp_path / "serve.sqlite")) as trace:
        steps = trace.sql("SELECT step, phase, prefill_requests, prefill_tokens, decode_requests, ts, dur FROM steps")
        kernels = trace.sql("SELECT step, ts FROM kernels ORDER BY ts")
    (first, *decodes) = (tuple(row.values()) for row in steps.to_pylist())
    assert first[:4] == (0, "prefill", 2, 60)
    assert [(row[1], row[4]) for row in decodes] == [("decode", 4), ("decode", 4)]
    assert [tuple(row.values()) for row in kernels.to_pylist()] == [(0, 500), (1, 1_500), (2, 2_500)]


def test_time_by_phase(tmp_path: Path) -> None:
    """The first step has no gap before it."""
    path = engine(SHAPES["half of the replays as blocks"]).write(tmp_path / "serve.sqlite")
    with tracekit.open(path) as trace:
        rows = trace.analyze("steps").table.to_pylist()
    columns = ("kind", "phase", "count", "busy_ns", "gap_before_ns")
    assert [tuple(row[column] for column in columns) for row in rows] == [
        ("steady", "decode", STEPS - 1, (STEPS - 1) * BUSY, (STEPS - 1) * (PERIOD - BUSY)),
        ("first", "decode", 1, BUSY, 0),
    ]
