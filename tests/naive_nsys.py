"""What an export of Nsight Systems says, row by row in plain sqlite3: too naive to be wrong, and too slow to use."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.nsys_files import quoted

Row = dict[str, Any]
Intervals = dict[tuple[int, int], list[tuple[int, int]]]

WORK = {"KERNEL": "kernel", "MEMCPY": "memcpy", "MEMSET": "memset"}
EVENT_KINDS = {33: None, 34: "instant", 59: "annotation", 60: "annotation", 75: None, 76: None}
SYNC_NAMES = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}
NO_STREAM = 4294967295
TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that gives rows by column."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        yield connection


def tables(path: Path) -> dict[str, list[Row]]:
    """All rows of all tables."""
    with opened(path) as connection:
        names = [row["name"] for row in connection.execute(TABLES)]
        return {name: [dict(row) for row in connection.execute(f"SELECT * FROM {quoted(name)}")] for name in names}


def event_counts(path: Path) -> dict[str, int]:
    """Rows of each table of things that happened at some time."""
    counts = {}
    with opened(path) as connection:
        for row in connection.execute(TABLES).fetchall():
            table = quoted(row["name"])
            columns = {column["name"] for column in connection.execute(f"PRAGMA table_info({table})")}
            if columns & {"start", "timestamp", "rawTimestamp"}:
                counts[row["name"]] = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return counts


def device_intervals(said: list[Row], *kinds: str) -> Intervals:
    """Start and end of all device work, or of these kinds of it, by process and device. said: by `rows`."""
    found: Intervals = {}
    for row in said:
        if row["kind"] in (kinds or ("kernel", "memcpy", "memset", "graph")):
            found.setdefault((row["process"], row["device"]), []).append((row["ts"], row["ts"] + row["dur"]))
    return found


def ranks(said: list[Row]) -> dict[tuple[int, int], int]:
    """The rank of each process on each device it works on: processes count by their first device, then by number."""
    working = sorted(device_intervals(said), key=lambda key: (key[1], key[0]))
    order = list(dict.fromkeys(process for process, _ in working))
    return {key: order.index(key[0]) for key in working}


def rows(path: Path) -> list[Row]:
    """The main kinds of events, with times as recorded. `process` is that of device rows, `pid` that of host rows;
    `call` and `call_ts` are the call of the same process and correlation as some device work.
    """
    found = {re.sub(r"_V\d+$", "", name, flags=re.I).upper(): rows for name, rows in tables(path).items()}
    texts = {row["id"]: row["value"] for row in found.get("STRINGIDS", [])}
    made = [*_device_rows(found, texts), *_host_rows(found, texts)]
    last = max((row["ts"] + (row["dur"] or 0) for row in made), default=0)
    for row in made:
        if row["dur"] is None:  # the host was in it until the recording ended; of the device nobody knows
            row["dur"] = 0 if "process" in row else last - row["ts"]
    calls = {(row["pid"], row["correlation"]): row for row in made if row["kind"] == "launch"}
    for row in made:
        if row["kind"] in (*WORK.values(), "graph"):
            call = calls.get((row["process"], row["correlation"]), {})
            row |= {"call": call.get("name"), "call_ts": call.get("ts")}
    return made


def _device_rows(found: dict[str, list[Row]], texts: dict[int, str]) -> list[Row]:
    made = []
    for table, kind in [*WORK.items(), ("GRAPH_TRACE", "graph"), ("SYNCHRONIZATION", "sync")]:
        for row in found.get(f"CUPTI_ACTIVITY_KIND_{table}", []):
            if row["start"] == row["end"] == 0:
                continue  # CUPTI could not get the times
            made.append(
                {"kind": kind, **_times(row), "process": _process(row["globalPid"]), "device": row["deviceId"]}
                | {"stream": None if row["streamId"] == NO_STREAM else row["streamId"], "context": row["contextId"]}
                | {"correlation": row["correlationId"], "graph_id": row.get("graphId") or None}
                | {"graph_node_id": row.get("graphNodeId") or None}
                | _described(kind, row, texts)
            )
    nodes = {(row["process"], row["correlation"]) for row in made if row["kind"] in WORK.values()}
    return [row for row in made if row["kind"] != "graph" or (row["process"], row["correlation"]) not in nodes]


def _described(kind: str, row: Row, texts: dict[int, str]) -> Row:
    if kind == "kernel":
        shared = row["staticSharedMemory"] + row["dynamicSharedMemory"]
        grid, block = (tuple(row[f"{size}{axis}"] for axis in "XYZ") for size in ("grid", "block"))
        name = texts[row["demangledName"]]
        return {"name": name, "grid": grid, "block": block, "registers": row["registersPerThread"], "shared": shared}
    if kind == "memcpy":
        copy, source, target = COPIES[row["copyKind"]], MEMORY[row["srcKind"]], MEMORY[row["dstKind"]]
        return {"name": f"Memcpy {copy} ({source} -> {target})", "copy_kind": copy, "bytes": row["bytes"]}
    if kind == "memset":
        return {"name": f"Memset ({MEMORY[row['memKind']]})", "bytes": row["bytes"]}
    return {"name": SYNC_NAMES[row["syncType"]]} if kind == "sync" else {}


def _host_rows(found: dict[str, list[Row]], texts: dict[int, str]) -> list[Row]:
    made = []
    for row in found.get("CUPTI_ACTIVITY_KIND_RUNTIME", []):
        name = re.sub(r"_v\d+$", "", texts[row["nameId"]])
        made.append(
            {"kind": "launch", "name": name, "correlation": row["correlationId"], **_times(row), **_thread(row)}
        )
    for row in found.get("NVTX_EVENTS", []):
        kind = EVENT_KINDS[row["eventType"]]
        text = row["text"] if row["text"] is not None else texts.get(row["textId"])
        if kind is not None:
            times = {"ts": row["start"], "dur": 0} if kind == "instant" else _times(row)
            made.append({"kind": kind, "name": text, **times, **_thread(row)})
    for row in found.get("OSRT_API", []):
        made.append({"kind": "os", "name": texts[row["nameId"]], **_times(row), **_thread(row)})
    return made


def _times(row: Row) -> Row:
    """What ended before it began has no length; what never ended has none yet."""
    return {"ts": row["start"], "dur": None if row["end"] is None else max(0, row["end"] - row["start"])}


def _process(number: int) -> int:
    return number >> 24 & 0xFFFFFF


def _thread(row: Row) -> Row:
    return {"pid": _process(row["globalTid"]), "tid": row["globalTid"] & 0xFFFFFF}
