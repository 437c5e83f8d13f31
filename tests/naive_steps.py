"""Which step a row is in, row by row from the rules as they are written down."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
DEVICE_KINDS = ("kernel", "memcpy", "memset", "graph", "sync", "gpu_annotation")
DIALECTS = (
    r"execute_(\d+_)?context_\d+\([^)]*\)_generation_\d+\([^)]*\)",
    r"step\[[A-Z_]+",
    r"tracekit\.step\[",
    r"gpu_model_runner: forward$",
    r"gpu_model_runner: preprocess$",
    r"scheduler\.run_batch$",
    r"ProfilerStep#\d+",
)
EXECUTE, STEP = 1, 2


def dialect(name: str, step_range: str | None) -> int:
    if step_range is not None and re.search(step_range, name):
        return 0
    return next((number for number, one in enumerate(DIALECTS, start=1) if re.match(one, name)), 99)


def end(row: Row) -> int:
    return int(row["ts"] + row["dur"])


def thread(row: Row) -> tuple[Any, Any]:
    return row["pid"], row["tid"]


def holds(outer: Row, inner: Row) -> bool:
    return thread(outer) == thread(inner) and outer["ts"] <= inner["ts"] and end(inner) <= end(outer)


def outermost(marks: Sequence[Row]) -> list[Row]:
    """marks: by start, then falling end, so that what encloses another comes before it."""
    return [mark for at, mark in enumerate(marks) if not any(holds(other, mark) for other in marks[:at])]


def marks_of_rank(rows: Sequence[Row], rank: int, step_range: str | None) -> list[tuple[Row, Row | None]]:
    """The mark of each step, in order, and what wraps it."""
    found = [row for row in rows if row["kind"] == "annotation" and row["rank"] == rank]
    found.sort(key=lambda row: (row["ts"], -row["dur"], row["id"]))
    by_dialect: dict[int, list[Row]] = {}
    for row in found:
        by_dialect.setdefault(dialect(row["name"], step_range), []).append(row)
    best = min(by_dialect, default=99)
    if best == 99:
        return []
    marks, wrapped = outermost(by_dialect[best]), dict[int, tuple[Row, Row | None]]()
    for mark in marks if best == EXECUTE else []:
        inner = [one for one in outermost(by_dialect.get(STEP, [])) if holds(mark, one)]
        if len(inner) == 1:
            wrapped[inner[0]["id"]] = inner[0], mark  # an instant where two marks meet is the later one's
    wrappers = {mark["id"] for _, mark in wrapped.values() if mark is not None}
    steps = [*wrapped.values(), *((mark, None) for mark in marks if mark["id"] not in wrappers)]
    return sorted(steps, key=lambda step: (step[0]["ts"], -step[0]["dur"], step[0]["id"]))


def step_of(row: Row, steps: Sequence[tuple[Row, Row | None]]) -> int | None:
    """The step of a host row among those of its rank."""
    own = [number for number, (mark, _) in enumerate(steps) if thread(mark) == thread(row)]
    if not own:
        before = [number for number, (mark, _) in enumerate(steps) if mark["ts"] <= row["ts"]]
        return before[-1] if before and row["ts"] < end(steps[before[-1]][0]) else None
    before = [number for number in own if steps[number][0]["ts"] <= row["ts"]]
    if not before:
        return None
    (mark, wrapper), is_last = steps[before[-1]], before[-1] == own[-1]
    if wrapper is not None:
        return before[-1] if row["ts"] < max(end(wrapper), end(mark)) else None
    return before[-1] if not is_last or row["ts"] < end(mark) + mark["dur"] else None


def naive_column(rows: Sequence[Row], step_range: str | None = None) -> dict[int, int | None]:
    """The step of each row of an event table, by its id."""
    steps = {rank: marks_of_rank(rows, rank, step_range) for rank in {row["rank"] for row in rows}}
    host = {row["id"]: step_of(row, steps[row["rank"]]) for row in rows if row["kind"] not in DEVICE_KINDS}
    return host | {row["id"]: host.get(row["launch_id"]) for row in rows if row["kind"] in DEVICE_KINDS}
