"""Exports as versions and options of Nsight Systems vary them, and as SQLite lets them vary."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tracekit
from tests import naive_nsys
from tests.nsys_files import EPOCH_NS, MARK, TID, NsysFile, quoted
from tests.nsys_reading import read

KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.sqlite"


def sample(schema: str = "3.25") -> NsysFile:
    """One of each kind that most exports have."""
    file = NsysFile(schema)
    file.nvtx(0, 900, "forward")
    file.osrt(2, 8, "poll")
    file.runtime(10, 30, correlationId=7)
    file.kernel(100, 150, correlationId=7)
    file.runtime(40, 50, "cudaMemcpyAsync_v3020", correlationId=8)
    file.memcpy(160, 170, correlationId=8)
    file.memset(180, 181, correlationId=9)
    return file


SAMPLE = [
    ("annotation", "forward", 0, 900),
    ("os", "poll", 2, 6),
    ("launch", "cudaLaunchKernel", 10, 20),
    ("launch", "cudaMemcpyAsync", 40, 10),
    ("kernel", "gemm", 100, 50),
    ("memcpy", "Memcpy HtoD (Pageable -> Device)", 160, 10),
    ("memset", "Memset (Device)", 180, 1),
]


# ---- which tables there are ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", ["3.0", "3.25"])
def test_no_event_at_all(schema: str, path: Path) -> None:
    file = NsysFile(schema)
    file.rows[KERNEL_TABLE] = []
    rows, footer = read(file.write(path))
    assert (rows, footer.ledger.read) == ([], 0)


def test_an_empty_kernel_table_beside_others(path: Path) -> None:
    file = NsysFile()
    file.rows[KERNEL_TABLE] = []
    file.nvtx(5, 9, "load")
    assert read(file.write(path))[0] == [("annotation", "load", 5, 4)]


LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "old": ("3.0", {}),
    "new": ("3.25", {}),
    "old, rows and columns in any order": ("3.0", {"shuffled": 1}),
    "new, _V2": ("3.25", {"rename": lambda name: f"{name}_V2"}),
    "new, _V12 and any order": ("3.25", {"rename": lambda name: f"{name}_V12", "shuffled": 2}),
    "old, lower case": ("3.0", {"rename": str.lower}),
    "new, no start of the session": ("3.25", {"epoch_ns": None}),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_the_same_rows_whatever_the_tables_look_like(layout: tuple[str, dict[str, Any]], path: Path) -> None:
    schema, options = layout
    rows, footer = read(sample(schema).write(path, **options))
    assert rows == SAMPLE
    assert footer.origin_ns == (0 if "epoch_ns" in options else EPOCH_NS)


@pytest.mark.parametrize(
    ("missing", "kind"),
    [
        ("NVTX_EVENTS", "annotation"),
        ("OSRT_API", "os"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "launch"),
        (KERNEL_TABLE, "kernel"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "memcpy"),
        ("CUPTI_ACTIVITY_KIND_MEMSET", "memset"),
    ],
)
def test_any_table_may_be_missing(missing: str, kind: str, path: Path) -> None:
    path = sample().write(path, without=[missing])
    assert read(path)[0] == [row for row in SAMPLE if row[0] != kind]


def altered(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


def test_a_view_is_as_good_as_a_table(path: Path) -> None:
    altered(
        sample().write(path),
        f"ALTER TABLE {KERNEL_TABLE} RENAME TO all_kernels",
        f"CREATE VIEW {KERNEL_TABLE} AS SELECT * FROM all_kernels WHERE start > 0",
    )
    rows, footer = read(path)
    assert [row for row in rows if row[0] == "kernel"] == [SAMPLE[4]]
    assert footer.ledger.read in {len(SAMPLE), len(SAMPLE) + 1}  # the table behind it may count, as not stored


def test_a_table_without_row_numbers(path: Path) -> None:
    altered(
        sample().write(path),
        "ALTER TABLE NVTX_EVENTS RENAME TO old",
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, "
        "PRIMARY KEY (start, text)) WITHOUT ROWID",
        "INSERT INTO NVTX_EVENTS SELECT start, end, eventType, text, globalTid FROM old",
        "DROP TABLE old",
    )
    assert read(path)[0] == SAMPLE


def test_tables_that_nobody_knows_are_counted(path: Path) -> None:
    names = ['a "quoted" name', "it's", "semi; DROP TABLE StringIds --", "[x]", "select", "ü"]
    statements = [
        statement
        for name in names
        for statement in (
            f"CREATE TABLE {quoted(name)} (start INTEGER, {quoted(name + '2')} TEXT)",
            f"INSERT INTO {quoted(name)} VALUES (5, 'x'), (6, 'y')",
        )
    ]
    rows, footer = read(altered(sample().write(path), *statements))
    assert rows == SAMPLE
    assert footer.ledger.skipped == {f"{name}: not stored": 2 for name in names}


def test_such_a_folder_is_analysed_as_it_is(path: Path) -> None:
    """It holds Parquet files that tracekit did not make."""
    exported = path.with_name("trace_pqtdir")
    exported.mkdir()
    for name, rows in naive_nsys.tables(sample().write(path)).items():
        pq.write_table(pa.Table.from_pylist(rows), exported / f"{name}.parquet")
    with tracekit.open(exported) as trace:
        rows = trace.sql("SELECT kind, name, ts, dur FROM events ORDER BY id").to_pylist()
    assert [tuple(row.values()) for row in rows] == SAMPLE


# ---- ranges ----------------------------------------------------------------------------------------------------------


def test_ranges_of_every_kind(path: Path) -> None:
    file = NsysFile()
    file.nvtx(0, 100, "pushed")
    file.nvtx(10, 20, "registered", registered=True)
    file.nvtx_start_end(30, 90, "request 7", end_tid=TID + 1)
    file.nvtx(40, None, "now", eventType=MARK)
    file.nvtx(50, None, "never popped")
    rows, _ = read(
        file.write(path), "e.kind, e.name, e.ts, e.dur, e.tid, e.args -> '$.end_tid', e.args -> '$.finished'"
    )
    assert rows == [
        ("annotation", "pushed", 0, 100, TID, None, None),
        ("annotation", "registered", 10, 10, TID, None, None),
        ("annotation", "request 7", 30, 60, TID, str(TID + 1), None),
        ("instant", "now", 40, 0, TID, None, None),
        ("annotation", "never popped", 50, 50, TID, None, "false"),  # until the end of the recording
    ]


def test_threads_off_the_cpu(path: Path) -> None:
    """Times between two schedulings of a thread; the one that did not come back has no end."""
    file = NsysFile()
    for start, on, tid in [(5, True, 1), (10, False, 1), (12, False, 2), (30, True, 1), (32, True, 2), (40, False, 1)]:
        file.sched(start, on, tid=tid)
    rows, footer = read(file.write(path, shuffled=3), "e.kind, e.name, e.ts, e.dur, e.tid")
    assert rows == [("os", "off CPU", 10, 20, 1), ("os", "off CPU", 12, 20, 2), ("os", "off CPU", 40, 0, 1)]
    assert footer.ledger.read == 6


def test_metrics_of_two_devices(path: Path) -> None:
    file = NsysFile()
    for timestamp, value, gpu in [(10, 50, 0), (10, 7, 1), (20, 100, 0)]:
        file.metric(timestamp, value, gpu=gpu)
    rows, _ = read(file.write(path), "e.kind, e.name, e.ts, e.device, e.args ->> '$.value'")
    assert sorted(rows) == [
        ("counter", "SM Active", 10, 0, "50"),
        ("counter", "SM Active", 10, 1, "7"),
        ("counter", "SM Active", 20, 0, "100"),
    ]


def test_what_is_known_of_the_device(path: Path) -> None:
    file = sample()
    file.gpu(0)
    _, footer = read(file.write(path))
    (device,) = footer.devices
    assert (device.device, device.name) == (0, "NVIDIA H100 80GB HBM3")
    said = {"numSms": 132, "totalGlobalMem": 85_018_279_936, "computeMajor": 9, "memoryBandwidth": 3_352_320_000_000}
    assert {key: device.properties.get(key) for key in said} == said


# ---- links -----------------------------------------------------------------------------------------------------------

LINKS = "e.kind, e.ts, e.rank, launch.ts"
WORK = "e.kind = 'kernel'"


def test_processes_share_correlations_and_links_do_not_cross(path: Path) -> None:
    file = NsysFile()
    for process, pid in enumerate((300, 100, 200)):
        file.runtime(10 + process, 20, pid=pid, tid=pid, correlationId=1)
        file.kernel(100 + process, 150, pid=pid, correlationId=1, deviceId=process)
    rows, footer = read(file.write(path), LINKS, where=WORK)
    assert rows == [("kernel", 100, 0, 10), ("kernel", 101, 1, 11), ("kernel", 102, 2, 12)]
    assert footer.ranks == (0, 1, 2)


def test_large_correlations(path: Path) -> None:
    """Each in two processes, and beside a neighbour that differs in the lowest bit alone."""
    file = NsysFile()
    numbers = [1, 2**31, 2**32 - 2, 2**47]
    for pid in (100, 200):
        for place, correlation in enumerate(numbers):
            at = pid + 10 * place
            file.runtime(at, at + 5, pid=pid, correlationId=correlation)
            file.runtime(at + 1, at + 4, pid=pid, correlationId=correlation + 1)
            file.kernel(1_000 + at, 2_000, pid=pid, correlationId=correlation)
    rows, _ = read(file.write(path), LINKS, where=WORK)
    starts = [(rank, 100 * (rank + 1) + 10 * place) for rank in (0, 1) for place in range(len(numbers))]
    assert rows == [("kernel", 1_000 + at, rank, at) for rank, at in starts]


def test_work_without_calls_and_calls_without_work(path: Path) -> None:
    file = NsysFile()
    file.kernel(100, 150, correlationId=5)
    file.kernel(160, 170, correlationId=None)
    file.runtime(10, 20, correlationId=6)
    file.runtime(30, 40, correlationId=None)
    rows, _ = read(file.write(path), "e.kind, e.ts, e.correlation, e.launch_id")
    assert rows == [
        ("launch", 10, 6, None),
        ("launch", 30, None, None),
        ("kernel", 100, 5, None),
        ("kernel", 160, None, None),
    ]


# ---- values ----------------------------------------------------------------------------------------------------------


def test_rows_that_end_never_or_before_they_begin(path: Path) -> None:
    file = NsysFile()
    file.kernel(100, None)
    file.kernel(200, 190)
    file.kernel(300, 300)
    file.runtime(-50, -20)
    rows, footer = read(file.write(path))
    assert rows == [
        ("launch", "cudaLaunchKernel", -50, 30),
        ("kernel", "gemm", 100, 0),
        ("kernel", "gemm", 200, 0),
        ("kernel", "gemm", 300, 0),
    ]
    assert sum(footer.ledger.repaired.values()) in {1, 2}  # the negative duration; NULL may be usual


@pytest.mark.parametrize("value", ["'soon'", "x'00ff'", "12.5", "NULL", "1e300"])
def test_a_start_that_is_no_whole_number_is_counted(value: str, path: Path) -> None:
    """SQLite takes any value in any column."""
    altered(sample().write(path), f"UPDATE {KERNEL_TABLE} SET start = {value}")
    rows, footer = read(path)
    assert rows == [row for row in SAMPLE if row[0] != "kernel"]
    assert (footer.ledger.read, sum(footer.ledger.skipped.values())) == (len(SAMPLE), 1)


def test_text_in_other_columns_is_nothing(path: Path) -> None:
    columns = ("gridX", "registersPerThread", "graphNodeId", "streamId", "correlationId")
    changes = ", ".join(f"{column} = 'many'" for column in columns)
    altered(sample().write(path), f"UPDATE {KERNEL_TABLE} SET {changes}")
    rows, _ = read(path, "e.kind, e.name, e.ts, e.dur, e.grid_x, e.registers, e.stream, e.launch_id", where=WORK)
    assert rows == [(*SAMPLE[4], None, None, None, None)]


FAR = 2**63 - 1


def test_the_largest_numbers_there_are(path: Path) -> None:
    """Such times are none: the row is left out, or has no end; the others stay as they are."""
    file = sample()
    spans = [(FAR, FAR), (-FAR - 1, -FAR - 1), (-FAR - 1, FAR), (-FAR - 1, 5), (0, FAR)]
    for start, end in spans:
        file.kernel(start, end, "far")
    rows, footer = read(file.write(path))
    assert [row for row in rows if row[1] != "far"] == SAMPLE
    assert [row for row in rows if row[1] == "far"] == [("kernel", "far", 0, 0)]
    assert (sum(footer.ledger.skipped.values()), sum(footer.ledger.repaired.values())) == (4, 1)


def test_work_of_years_has_no_end(path: Path) -> None:
    """Each such time is one, but their sum is none."""
    file = NsysFile()
    for start in range(9):
        file.kernel(start, 1 << 60, "far")
    rows, footer = read(file.write(path), "e.dur, e.args", where=WORK)
    assert rows == [(0, '{"finished": false}')] * 9
    assert footer.ledger.repaired == {"no end recorded": 9}


def test_one_text_under_two_ids_and_two_texts_under_one(path: Path) -> None:
    altered(
        sample().write(path),
        "CREATE TABLE twice AS SELECT id, value FROM StringIds UNION ALL SELECT id, value || '!' FROM StringIds",
        "DROP TABLE StringIds",
        "ALTER TABLE twice RENAME TO StringIds",
    )
    rows, _ = read(path)
    assert [(kind, ts, dur) for kind, _, ts, dur in rows] == [(kind, ts, dur) for kind, _, ts, dur in SAMPLE]
    assert {name.rstrip("!") for _, name, *_ in rows} == {name for _, name, *_ in SAMPLE}


@pytest.mark.parametrize(
    "statement", ["DELETE FROM StringIds", "DROP TABLE StringIds", "UPDATE StringIds SET value = NULL"]
)
def test_names_that_are_missing_cost_no_row(statement: str, path: Path) -> None:
    rows, _ = read(altered(sample().write(path), statement))
    assert [(kind, ts, dur) for kind, _, ts, dur in rows] == [(kind, ts, dur) for kind, _, ts, dur in SAMPLE]


RAW: dict[bytes, Callable[[str], bool]] = {
    b"a\0b": lambda name: name.startswith("a"),
    b"\xff\xfe broken": lambda name: name.endswith(" broken"),
    "käse 🧀".encode(): lambda name: name == "käse 🧀",
    b"\xed\xa0\x80 half a pair": lambda name: name.endswith(" half a pair"),
}


def test_any_bytes_in_a_text(path: Path) -> None:
    """In the table itself, and in that of strings."""
    file = NsysFile()
    for place in range(len(RAW)):
        file.nvtx(10 * place, 10 * place + 5, f"text {place}")
        file.nvtx(10 * place + 1, 10 * place + 4, f"text {place}", registered=True)
    with closing(sqlite3.connect(file.write(path))) as connection:
        for place, raw in enumerate(RAW):
            for table, column in (("NVTX_EVENTS", "text"), ("StringIds", "value")):
                change = f"UPDATE {table} SET {column} = CAST(? AS TEXT) WHERE {column} = ?"
                connection.execute(change, (raw, f"text {place}"))
        connection.commit()
    rows, _ = read(path)
    assert [(ts, dur) for _, _, ts, dur in rows] == [
        span for place in range(len(RAW)) for span in ((10 * place, 5), (10 * place + 1, 3))
    ]
    for place, is_right in enumerate(RAW.values()):
        assert all(is_right(name) for _, name, *_ in rows[2 * place : 2 * place + 2])
