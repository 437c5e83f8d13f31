"""Random exports against their reading row by row: the same events, each with the same call that launched it."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests import naive_nsys
from tests.nsys_files import MARK, START_END, SYNC_TYPES, NsysFile
from tests.nsys_reading import read

PROCESSES = {101: (0,), 102: (1, 0), 103: (), 0xFFFFFF: (1,)}  # and the devices that each works on
STREAMS = (0, 7, 13)
EVENTS = 60
KERNELS, MEMSETS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMSET"
HOST = ("launch", "annotation", "instant", "os")
COLUMNS = (
    "e.kind, nullif(e.name, CASE WHEN e.kind = 'graph' THEN e.name END), e.ts, e.dur, e.rank, e.pid, e.tid, e.device, "
    "e.stream, e.context, e.correlation, e.graph_id, e.graph_node_id, e.grid_x, e.grid_y, e.grid_z, e.block_x, "
    "e.block_y, e.block_z, e.registers, e.shared_memory, e.bytes, e.copy_kind, "
    "CASE WHEN e.kind <> 'sync' THEN launch.name END, CASE WHEN e.kind <> 'sync' THEN launch.ts END"
)


def random_file(seed: int) -> NsysFile:
    """Times that tie, overlap, end never or before they began; correlations that several processes share."""
    chance = random.Random(seed)
    file = NsysFile(schema=chance.choice(["3.0", "3.25"]))
    free = {pid: chance.sample(range(1, 1 << 33), 2 * EVENTS) for pid in PROCESSES}
    used: dict[int, list[int]] = {pid: [] for pid in PROCESSES}
    common = list(range(1, EVENTS))
    for pid in PROCESSES:
        free[pid][:EVENTS] = common

    def span() -> tuple[int, int | None]:
        start = chance.choice([chance.randrange(-50, 300), chance.randrange(10**12)])
        return start, chance.choice(
            [start + chance.randrange(90), start + chance.randrange(90), start, None, start - 3]
        )

    for _ in range(EVENTS):
        pid = chance.choice(list(PROCESSES))
        number = free[pid].pop(chance.randrange(len(free[pid])))
        if chance.random() < 0.8:
            name = chance.choice(["cudaLaunchKernel_v7000", "cuLaunchKernelEx", "cudaGraphLaunch_v10000"])
            file.runtime(*span(), name, pid=pid, tid=pid + 1, correlationId=number, eventClass=name.startswith("cuL"))
        used[pid].append(number)
        _host_event(file, chance, span(), pid)
        for _ in range(chance.randrange(5) if PROCESSES[pid] else 0):
            _device_event(file, chance, span(), pid, used[pid][-1] if chance.random() < 0.9 else free[pid][-1])
    return file


def _host_event(file: NsysFile, chance: random.Random, span: tuple[int, int | None], pid: int) -> None:
    text = chance.choice(["forward", "läuft", "a\nb", "step", ""])
    match chance.randrange(4):
        case 0:
            file.nvtx(*span, text, registered=chance.random() < 0.5, pid=pid, tid=chance.choice([7, 8]))
        case 1:
            file.nvtx_start_end(*span, text, pid=pid, end_tid=9, eventType=START_END)
        case 2:
            file.nvtx(span[0], None, text, pid=pid, eventType=MARK)
        case _:
            file.osrt(*span, chance.choice(["poll", "sem_wait"]), tid=chance.choice([7, 8]))


def _device_event(file: NsysFile, chance: random.Random, span: tuple[int, int | None], pid: int, number: int) -> None:
    where: dict[str, Any] = {"deviceId": chance.choice(PROCESSES[pid]), "streamId": chance.choice(STREAMS)}
    where |= {"correlationId": number, "contextId": chance.choice([1, 2])}
    match chance.randrange(6):
        case 0:
            kind, source, target = chance.choice([(1, 0, 2), (1, 1, 2), (2, 2, 1), (8, 2, 2), (8, 4, 2), (10, 2, 2)])
            what = {"copyKind": kind, "srcKind": source, "dstKind": target, "bytes": chance.randrange(1 << 40)}
            file.memcpy(*span, pid=pid, **where | what)
        case 1:
            file.memset(*span, pid=pid, **where | {"memKind": chance.choice([1, 2, 4])})
        case 2:
            file.graph(*span, pid=pid, **where | {"graphId": chance.choice([5, 6])})
        case 3:
            waits = chance.choice(list(SYNC_TYPES))
            where |= {"streamId": naive_nsys.NO_STREAM} if waits == "context" else {}
            file.sync(*span, waits, pid=pid, **where)
        case _:
            node = chance.choice([{}, {"graphId": 5, "graphNodeId": 5 << 32 | 9}]) if file.schema != "3.0" else {}
            size = {"gridX": chance.randrange(1, 1 << 31), "gridY": 2, "blockY": 3, "registersPerThread": 255}
            name = chance.choice(["gemm", "void f<int>(T1, {lambda(int)#1})", "käse"])
            file.kernel(*span, name, pid=pid, **where | size | {"dynamicSharedMemory": 49_152, **node})


def expected(said: list[naive_nsys.Row]) -> Counter[tuple[Any, ...]]:
    """What the naive reading says, in the columns of the event table."""
    of_process = {process: rank for (process, _), rank in naive_nsys.ranks(said).items()}
    found: Counter[tuple[Any, ...]] = Counter()
    for row in said:
        process = row["pid"] if row["kind"] in HOST else row["process"]
        where = [row.get(name) for name in ("pid", "tid", "device", "stream", "context", "correlation")]
        graph = [row.get("graph_id"), row.get("graph_node_id")]
        shape = [*row.get("grid", [None] * 3), *row.get("block", [None] * 3), row.get("registers"), row.get("shared")]
        rest = [row.get(name) for name in ("bytes", "copy_kind", "call", "call_ts")]
        what = [row["kind"], row.get("name"), row["ts"], row["dur"], of_process.get(process, 0)]
        found.update([(*what, *where, *graph, *shape, *rest)])
    return found


def agree(path: Path) -> None:
    """Events, links and ledger are those of the naive reading."""
    rows, footer = read(path, COLUMNS)
    assert Counter(rows) == expected(naive_nsys.rows(path))
    assert footer.ledger.read == sum(naive_nsys.event_counts(path).values())


@pytest.mark.parametrize("seed", range(8))
def test_every_row_and_every_link(seed: int, tmp_path: Path) -> None:
    agree(random_file(seed).write(tmp_path / "random.sqlite", shuffled=seed if seed % 2 else None))


# ---- what SQLite may make of the same rows ---------------------------------------------------------------------------

LAYOUTS = {
    "small pages, long texts, holes": [
        "PRAGMA page_size = 512",
        "UPDATE NVTX_EVENTS SET text = text || hex(zeroblob(700)) WHERE rowid % 5 = 0",
        "DELETE FROM NVTX_EVENTS WHERE rowid % 3 = 0",
        "VACUUM",
        "DELETE FROM OSRT_API WHERE rowid % 3 = 0",
    ],
    "large pages, pages that move, row numbers far apart": [
        "PRAGMA page_size = 65536",
        "PRAGMA auto_vacuum = FULL",
        "VACUUM",
        "UPDATE NVTX_EVENTS SET rowid = -rowid",
        f"UPDATE {KERNELS} SET rowid = rowid * 123456789012",
    ],
    "a column that came later, with a value for the rows before": [
        f"ALTER TABLE {KERNELS} DROP COLUMN registersPerThread",
        f"ALTER TABLE {KERNELS} ADD COLUMN registersPerThread INTEGER DEFAULT 77",
    ],
    "columns that are computed, kept or not, and one that is the row's number": [
        "ALTER TABLE OSRT_API RENAME TO calls",
        "CREATE TABLE OSRT_API (start INTEGER, class AS (27) VIRTUAL, length AS (end - start) STORED, end INTEGER, "
        "id INTEGER PRIMARY KEY, globalTid INTEGER, nameId INTEGER)",
        "INSERT INTO OSRT_API (start, end, globalTid, nameId) SELECT start, end, globalTid, nameId FROM calls",
        "DROP TABLE calls",
        f"ALTER TABLE {MEMSETS} RENAME TO sets",
        f"CREATE TABLE {MEMSETS} (start INTEGER, end INTEGER, deviceId INTEGER, bytes INTEGER PRIMARY KEY, "
        "contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, memKind INTEGER)",
        f"INSERT INTO {MEMSETS} SELECT start, end, deviceId, NULL, contextId, streamId, correlationId, globalPid, "
        "memKind FROM sets",
        "DROP TABLE sets",
    ],
}


@pytest.mark.parametrize("statements", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_whatever_the_pages_look_like(statements: list[str], tmp_path: Path) -> None:
    path = random_file(0).write(tmp_path / "random.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    agree(path)


def test_texts_in_utf_16(tmp_path: Path) -> None:
    with closing(sqlite3.connect(random_file(0).write(tmp_path / "8.sqlite"))) as given:
        script = "\n".join(given.iterdump())
    path = tmp_path / "16.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"PRAGMA encoding = 'UTF-16le'; {script}")
    agree(path)
