"""What tests of parts of a trace share: a trace of five steps, and the times that its analyses tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tracekit
from tests.event_rows import annotation, kernel, launch, write_trace
from tracekit.trace import Trace

Rows = list[dict[str, Any]]
PREFILL, DECODE = "step[EXTEND bs=1 toks=60]", "step[DECODE bs=4]"
GEMM, NCCL = "nvjet_tst", "ncclDevKernel_AllReduce"

# Marks of five steps; the host runs ahead of the device. One kernel has no launch, the last step no kernel. Device 1
# works for step 1 only.
#   device 0:  [10 30) 0   gap   [100 140) 1   [140 160) 2   gap   [200 210) 2   gap   [300 340) 3   gap  [350 360) -
FIVE: Rows = [
    annotation(PREFILL, 0, 15),
    launch(1, 1),
    annotation(DECODE, 20, 15),
    launch(21, 1),
    launch(23, 1),
    annotation(PREFILL, 40, 15),
    launch(41, 1),
    launch(43, 1),
    annotation(DECODE, 60, 15),
    launch(61, 1),
    annotation(DECODE, 80, 15),
    kernel(10, 20, launch_id=2, name=GEMM),
    kernel(100, 40, launch_id=4, name=GEMM),
    kernel(130, 30, launch_id=7, name=NCCL, stream=8),
    kernel(200, 10, launch_id=8, name=GEMM),
    kernel(300, 40, launch_id=10, name=GEMM),
    kernel(350, 10, name=GEMM),
    kernel(110, 5, launch_id=5, name=GEMM, device=1),
    kernel(120, 5, launch_id=5, name=GEMM, device=1),
]


def opened(path: Path, rows: Sequence[Mapping[str, Any]]) -> Trace:
    return tracekit.open(write_trace(path / "trace.parquet", rows))


def times(trace: Trace) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Span, busy and idle time by rank and device, as attribution and idle_gaps say them alike."""
    said = {
        (row["rank"], row["device"]): (row["span_ns"], row["busy_ns"], row["idle_ns"])
        for row in trace.analyze("attribution").summary
    }
    idle = Counter[tuple[int, int]]()
    for gap in trace.analyze("idle_gaps").table.to_pylist():
        idle[gap["rank"], gap["device"]] += gap["dur"]
    assert {where: idle[where] for where in said} == {where: row[2] for where, row in said.items()}
    return said
