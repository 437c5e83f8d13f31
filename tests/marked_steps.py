"""The steps that a trace of the real profiler has, for tests of what marks them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tracekit

Step = tuple[str, int | None, int | None, int | None, int | None]

COLUMNS = "phase, prefill_requests, prefill_tokens, decode_requests, decode_tokens"


def record(work: Callable[[], object], path: Path) -> Path:
    """Run the work under torch.profiler, of this thread, and write its trace."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        work()
    profiler.export_chrome_trace(str(path))
    return path


def steps_of(path: Path) -> list[Step]:
    """Phase, requests and tokens of prefill and of decode of each step, in order."""
    with tracekit.open(path) as trace:
        return [tuple(row.values()) for row in trace.sql(f"SELECT {COLUMNS} FROM steps ORDER BY step").to_pylist()]


def steps(work: Callable[[], object], folder: Path) -> list[Step]:
    """Both."""
    return steps_of(record(work, folder / "raw.json"))
