"""The yardstick of benchmarks.nsys: an export of Nsight Systems to Parquet, row by row in Python, as scripts do it.

    python -m benchmarks.nsys_naive EXPORT OUT

Each row of the cursor becomes a dict with columns of the event table, its name looked up in a dict of strings; 100,000
at a time become Arrow and Parquet. Nothing is ordered, linked or checked, and no step is found. Prints the seconds it
took, without imports.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BATCH = 100_000
_NUMBERS = ["ts", "dur", "pid", "tid", "device", "stream", "context", "correlation", "bytes"]
_NUMBERS += ["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers", "shared_memory"]
SCHEMA = pa.schema([("kind", pa.string()), ("name", pa.string()), *((name, pa.int64()) for name in _NUMBERS)])
_DEVICE = "start, end, globalPid, deviceId, streamId, contextId, correlationId"
_GEOMETRY = "gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread, staticSharedMemory + dynamicSharedMemory"
_PID = (1 << 24) - 1
Row = dict[str, Any]


def device_rows(connection: sqlite3.Connection, texts: dict[int, str]) -> Iterator[Row]:
    """Kernels, copies, memsets and synchronisations."""
    query = f"SELECT {_DEVICE}, demangledName, {_GEOMETRY} FROM CUPTI_ACTIVITY_KIND_KERNEL"
    for start, end, process, device, stream, context, correlation, name, *geometry in connection.execute(query):
        grid_x, grid_y, grid_z, block_x, block_y, block_z, registers, shared = geometry
        yield {
            "kind": "kernel",
            "name": texts[name],
            "ts": start,
            "dur": end - start,
            "pid": process >> 24 & _PID,
            "device": device,
            "stream": stream,
            "context": context,
            "correlation": correlation,
            "grid_x": grid_x,
            "grid_y": grid_y,
            "grid_z": grid_z,
            "block_x": block_x,
            "block_y": block_y,
            "block_z": block_z,
            "registers": registers,
            "shared_memory": shared,
        }
    for kind, size in (("memcpy", "bytes"), ("memset", "bytes"), ("synchronization", "NULL")):
        query = f"SELECT {_DEVICE}, {size} FROM CUPTI_ACTIVITY_KIND_{kind}"
        for start, end, process, device, stream, context, correlation, size_bytes in connection.execute(query):
            yield {
                "kind": kind,
                "name": kind,
                "ts": start,
                "dur": end - start,
                "pid": process >> 24 & _PID,
                "device": device,
                "stream": stream,
                "context": context,
                "correlation": correlation,
                "bytes": size_bytes,
            }


def host_rows(connection: sqlite3.Connection, texts: dict[int, str]) -> Iterator[Row]:
    """Calls and ranges."""
    query = "SELECT start, end, globalTid, nameId, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    for start, end, thread, name, correlation in connection.execute(query):
        yield {
            "kind": "launch",
            "name": texts[name],
            "ts": start,
            "dur": end - start,
            "pid": thread >> 24 & _PID,
            "tid": thread & _PID,
            "correlation": correlation,
        }
    for start, end, thread, text, name in connection.execute(
        "SELECT start, end, globalTid, text, textId FROM NVTX_EVENTS"
    ):
        yield {
            "kind": "annotation",
            "name": texts[name] if text is None else text,
            "ts": start,
            "dur": end - start,
            "pid": thread >> 24 & _PID,
            "tid": thread & _PID,
        }


def convert(file: str, out: str) -> None:
    """Write all events."""
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    texts = dict(connection.execute("SELECT id, value FROM StringIds"))
    with pq.ParquetWriter(out, SCHEMA, compression="zstd") as writer:
        rows: list[Row] = []
        for events in (device_rows, host_rows):
            for row in events(connection, texts):
                rows.append(row)
                if len(rows) == BATCH:
                    writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
                    rows = []
        writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
    connection.close()


if __name__ == "__main__":
    began = time.perf_counter()
    convert(sys.argv[1], sys.argv[2])
    print(time.perf_counter() - began)
