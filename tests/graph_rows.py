"""Rows of steps that launch kernel by kernel, with something in the way of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.event_rows import annotation, kernel, launch, op

US = 1_000
DECODE = "step[DECODE bs=4]"
NAMES = ("vllm::rms_norm_kernel", "nvjet_tst_64x8_64x16", "vllm::act_and_mul_kernel", "nvjet_tst_128x8_64x16")
Row = dict[str, Any]
Rows = list[Row]
Between = Callable[[Rows, int, int], None]  # adds to rows from a time on, in a step


def put(rows: Rows, call: Row, *works: Row) -> None:
    """Add a call and its work."""
    number = len(rows) + 1
    rows.append(call)
    rows += [{**work, "launch_id": number} for work in works]


def step(
    rows: Rows,
    number: int = 0,
    *,
    between: Between | None = None,
    every_ns: int = 50 * US,
    dur: int = 5 * US,
    layers: int = 3,
    stream: int = 7,
    mark: str | None = DECODE,
    grid: int = 4,
    waits: bool = False,
) -> None:
    """Add a step of 2 ms: layers of four kernels, one launched every 50 us; `between` comes after half of them. waits:
    the host waits for the last.
    """
    at = number * 2_000 * US
    if mark is not None:
        rows.append(annotation(mark, at, 1_990 * US, tid=1))
    free = ts = 0
    for turn in range(layers * len(NAMES)):
        ts = at + (turn + 1) * every_ns
        if between is not None and turn == layers * len(NAMES) // 2:
            between(rows, ts - 40 * US, number)
        begin = max(ts + 6 * US, free + US)
        put(rows, launch(ts, 4 * US), kernel(begin, dur, name=NAMES[turn % 4], grid_x=grid, stream=stream))
        free = begin + dur
    if waits:
        rows.append(launch(ts + 6 * US, free - ts, name="cudaStreamSynchronize"))


def steps(between: Between | None = None, count: int = 4, **columns: Any) -> Rows:
    """So many steps."""
    rows: Rows = []
    for number in range(count):
        step(rows, number, between=between, **columns)
    return rows


def ranked(*parts: Sequence[Row]) -> Rows:
    """Each part as the trace of a rank of its own."""
    rows: Rows = []
    for rank, part in enumerate(parts):
        base = len(rows)
        for row in part:
            moved = {key: row[key] + base for key in ("launch_id", "op_id") if row.get(key)}
            rows.append({**row, "rank": rank, **moved})
    return rows


def replay(rows: Rows, ts: int, kernels: Sequence[str] = NAMES * 3, **columns: Any) -> None:
    """Add a graph replay of these kernels, one every 10 us."""
    works = [kernel(ts + (i + 1) * 10 * US, 9 * US, name=name, grid_x=4, **columns) for i, name in enumerate(kernels)]
    put(rows, launch(ts, 8 * US, name="cudaGraphLaunch"), *works)


# ---- what stands in the way ------------------------------------------------------------------------------------------


def call(name: str) -> Between:
    """A call without device work."""
    return lambda rows, ts, number: rows.append(launch(ts, 3 * US, name=name))


def item(rows: Rows, ts: int, number: int) -> None:
    """A copy to the host and the wait for it, in one op."""
    rows.append(op(ts, 20 * US, name="aten::_local_scalar_dense"))
    around = {"op_id": len(rows)}
    copy = {"kind": "memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "copy_kind": "DtoH", "bytes": 4}
    put(rows, launch(ts + US, 3 * US, name="cudaMemcpyAsync", **around), {**copy, "ts": ts + 6 * US, "dur": US})
    rows.append(launch(ts + 5 * US, 10 * US, name="cudaStreamSynchronize", **around))


def copied(name: str, kind: str, memory: str, **columns: Any) -> Between:
    """A copy by a call of that name."""

    def add(rows: Rows, ts: int, number: int) -> None:
        work = {"kind": "memcpy", "name": f"Memcpy {kind} ({memory})", "copy_kind": kind, "bytes": 64}
        put(rows, launch(ts, 12 * US, name=name), {**work, "ts": ts + 4 * US, "dur": US, **columns})

    return add


def on_legacy_stream(rows: Rows, ts: int, number: int) -> None:
    """A kernel on stream 0."""
    put(rows, launch(ts, 3 * US), kernel(ts + 6 * US, 2 * US, name="own_kernel", grid_x=1, stream=0))


def varying(rows: Rows, ts: int, number: int) -> None:
    """A kernel whose grid is another one in each step."""
    put(rows, launch(ts, 3 * US), kernel(ts + 6 * US, 2 * US, name="own_kernel", grid_x=100 + number))
