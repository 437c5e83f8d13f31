"""Rows in: writes a trace from the few columns a test cares about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import tracekit.trace
from tracekit.footer import KEY, DeviceInfo, Footer, Ledger, SourceInfo
from tracekit.restep import StepColumn
from tracekit.steps import RULES

SCHEMA = Path(tracekit.trace.__file__).with_name("schema.sql").read_text(encoding="utf-8")
DEVICE_KINDS = ("kernel", "memcpy", "memset", "graph", "sync", "gpu_annotation")


def footer_of(rows: Sequence[Mapping[str, Any]], **changes: Any) -> Footer:
    """A footer that fits the rows: one source a rank, nothing skipped."""
    ranks = sorted({row.get("rank", 0) for row in rows}) or [0]
    devices = sorted({(row.get("rank", 0), row.get("device", 0)) for row in rows if row["kind"] in DEVICE_KINDS})
    footer = Footer(
        sources=tuple(SourceInfo(path=f"rank{rank}.json", format="kineto", rank=rank) for rank in ranks),
        devices=tuple(DeviceInfo(rank=rank, device=device, name="NVIDIA H100 80GB HBM3") for rank, device in devices),
        origin_ns=0,
        capture={},
        ledger=Ledger(read=len(rows), stored=len(rows)),
    )
    return replace(footer, **changes)


def write_trace(path: Path, rows: Sequence[Mapping[str, Any]], footer: Footer | None = None) -> Path:
    """Write `rows` as a trace. Left out: id (position from 1), dur 0, rank 0, host rows' pid 1 and tid 1, device rows'
    device 0 and stream 7, name (the kind); everything else NULL. Steps are those that converting
    would find, unless a row says its own.
    """
    full = []
    for position, row in enumerate(rows, start=1):
        on_device = row["kind"] in DEVICE_KINDS
        where = {"device": 0, "stream": 7} if on_device else {"pid": 1, "tid": 1}
        full.append({"id": position, "name": row["kind"], "dur": 0, "rank": 0} | where | dict(row))
    connection = duckdb.connect()
    connection.execute(SCHEMA)
    if full:
        columns = list(dict.fromkeys(key for row in full for key in row))
        connection.register("given", pa.table({column: [row.get(column) for row in full] for column in columns}))
        connection.execute(f"INSERT INTO events ({', '.join(columns)}) FROM given")
    made = replace(footer if footer is not None else footer_of(rows), step_rules=RULES)
    table: pa.Table = connection.sql("FROM events ORDER BY id").to_arrow_table()
    if not any("step" in row for row in rows):
        table = StepColumn(lambda query: connection.sql(query).to_arrow_table(), made.step_range).put(table)
    connection.close()
    pq.write_table(table.replace_schema_metadata({KEY: made.to_bytes()}), path)
    return path


def kernel(ts: int, dur: int, **columns: Any) -> dict[str, Any]:
    """A kernel."""
    return {"kind": "kernel", "ts": ts, "dur": dur, **columns}


def launch(ts: int, dur: int, **columns: Any) -> dict[str, Any]:
    """A launch call on the host."""
    return {"kind": "launch", "name": "cudaLaunchKernel", "ts": ts, "dur": dur, **columns}


def op(ts: int, dur: int, **columns: Any) -> dict[str, Any]:
    """A host op."""
    return {"kind": "op", "name": "aten::mm", "ts": ts, "dur": dur, **columns}


def annotation(name: str, ts: int, dur: int, **columns: Any) -> dict[str, Any]:
    """A user range on the host."""
    return {"kind": "annotation", "name": name, "ts": ts, "dur": dur, **columns}
