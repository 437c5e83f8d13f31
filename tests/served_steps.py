"""Serving steps as rows: each with its mark, its launch calls and its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tracekit
from tests.event_rows import annotation, kernel, launch, write_trace
from tracekit.trace import Trace

Rows = list[dict[str, Any]]
DECODE = "execute_context_0(0)_generation_4(4)"
PREFILL = "execute_context_1(60)_generation_0(0)"


def served(*steps: tuple[str, Sequence[tuple[int, int]]], rank: int = 0, first_id: int = 1, **columns: Any) -> Rows:
    """Steps by the names of their marks, each with its kernels (ts, dur) and a launch call for each of them."""
    rows: Rows = []
    for index, (name, work) in enumerate(steps, start=1):
        rows.append(annotation(name, 10_000 * index, 9_000, rank=rank))
        for at, (ts, dur) in enumerate(work):
            rows.append(launch(10_000 * index + 1 + at, 1, rank=rank))
            rows.append(kernel(ts, dur, launch_id=first_id + len(rows) - 1, rank=rank, **columns))
    return rows


def opened(path: Path, rows: Sequence[Mapping[str, Any]]) -> Trace:
    return tracekit.open(write_trace(path / "trace.parquet", rows))


def cells(rows: Sequence[Mapping[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


# Busy time is the step's own, also where steps overlap; a gap is that of the step whose work ended it.
#     0    10   20   30   40   50   60   70   80   90   100  110
#     p p p p       p         d0 d0          d1 d1    d1        o
#               ^inside  ^between     ^between      ^inside ^outside
SMALL = [
    *served((PREFILL, [(0, 20), (25, 5)]), (DECODE, [(40, 10)]), (DECODE, [(70, 10), (90, 10)]), (DECODE, [])),
    launch(0, 1),
    kernel(115, 5, launch_id=15),
]
