"""Public exports of Nsight Systems: nothing is lost, and busy and idle time are what plain sqlite3 makes of them."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tracekit
from tests import naive, naive_nsys
from tests.command_line import run
from tests.real_traces import NSYS, parameters
from tests.real_traces import trace as recording
from tracekit.convert import convert
from tracekit.registry import analyses
from tracekit.store import read_footer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("converted")


def converted(path: Path, folder: Path) -> Path:
    """The file as Parquet, made once for the tests of this module."""
    out = folder / f"{path.stem}.parquet"
    if not out.exists():
        convert([path], out)
    return out


@cache
def said(path: Path) -> list[naive_nsys.Row]:
    """What the naive reading makes of the file; nobody changes it."""
    return naive_nsys.rows(path)


@pytest.mark.parametrize("path", parameters(NSYS))
def test_every_row_is_stored_or_accounted_for(path: Path, folder: Path) -> None:
    counts = naive_nsys.event_counts(path)
    ledger = read_footer(converted(path, folder)).ledger
    assert ledger.read == sum(counts.values()) == ledger.stored + sum(ledger.skipped.values())
    for table, kind in (("KERNEL", "kernel"), ("MEMCPY", "memcpy"), ("MEMSET", "memset"), ("RUNTIME", "launch")):
        assert ledger.by_kind.get(kind, 0) == counts.get(f"CUPTI_ACTIVITY_KIND_{table}", 0)


@pytest.mark.parametrize("path", parameters(NSYS))
def test_busy_time_idle_time_and_launches_are_those_of_plain_sqlite(path: Path, folder: Path) -> None:
    events = said(path)
    ranks = naive_nsys.ranks(events)
    with tracekit.open(converted(path, folder)) as trace:
        devices = trace.sql("FROM device_time()").to_pylist()
        links = trace.sql("""
            SELECT d.kind, d.ts, d.rank, l.name, l.ts AS call_ts
            FROM device_activity AS d
            LEFT JOIN launches AS l ON l.id = d.launch_id
        """).to_pylist()
        shift = trace.footer.origin_ns - trace.footer.sources[0].base_ns

    intervals = naive_nsys.device_intervals(events)
    expected = {(ranks[key], key[1]): naive.span_and_busy(found) for key, found in intervals.items()}
    assert {(row["rank"], row["device"]): (row["span_ns"], row["busy_ns"]) for row in devices} == expected
    assert all(row["idle_ns"] == row["span_ns"] - row["busy_ns"] for row in devices)
    found = Counter((row["kind"], row["ts"], row["rank"], row["name"], row["call_ts"]) for row in links)
    assert found == Counter(
        (
            row["kind"],
            row["ts"] - shift,
            ranks[row["process"], row["device"]],
            row["call"],
            row["call"] and row["call_ts"] - shift,
        )
        for row in events
        if "call" in row
    )


@pytest.mark.parametrize("path", parameters(NSYS))
def test_every_analysis_answers_and_accounts_for_all_busy_time(path: Path, folder: Path) -> None:
    with tracekit.open(converted(path, folder)) as trace:
        results = {name: trace.analyze(name) for name in analyses()}
        devices = trace.sql("FROM device_time()").to_pylist()
    busy: Counter[tuple[int, int]] = Counter()
    for row in results["attribution"].table.to_pylist():
        busy[row["rank"], row["device"]] += row["exclusive_ns"]
    assert busy == {(row["rank"], row["device"]): row["busy_ns"] for row in devices}


@pytest.mark.parametrize("path", parameters(NSYS[1:3]))
def test_a_folder_of_parquet_files_says_the_same(path: Path, folder: Path, tmp_path: Path) -> None:
    exported = tmp_path / f"{path.stem}_pqtdir"
    exported.mkdir()
    for name, rows in naive_nsys.tables(path).items():
        if rows:
            columns = {column: [row[column] for row in rows] for column in rows[0]}
            pq.write_table(pa.table(columns), exported / f"{name}.parquet")
    of_sqlite, of_folder = converted(path, folder), tmp_path / "of_folder.parquet"
    found = convert([exported], of_folder)
    assert pq.read_table(of_folder).equals(pq.read_table(of_sqlite))
    expected = read_footer(of_sqlite)
    for part in ("ledger", "origin_ns", "devices", "capture"):
        assert getattr(found, part) == getattr(expected, part)


# ---- two devices that copy -------------------------------------------------------------------------------------------


def test_two_devices_are_kept_apart_and_copies_are_work(folder: Path) -> None:
    """A recording of a model that is loaded: idle for 97.7 % of its time if copies did not count."""
    path = recording("nsys-ai__h100_2gpu_1s")
    events = said(path)
    shares = {}
    for key, intervals in naive_nsys.device_intervals(events).items():
        span, busy = naive.span_and_busy(intervals)
        _, computing = naive.span_and_busy(naive_nsys.device_intervals(events, "kernel")[key])
        shares[key[1]] = [round(100 * (1 - part / span), 1) for part in (busy, computing)]
    assert shares == {0: [0.7, 97.7], 1: [0.7, 97.7]}

    with tracekit.open(converted(path, folder)) as trace:
        devices = trace.sql("FROM device_time() ORDER BY rank").to_pylist()
        calling = {row["rank"] for row in trace.sql("SELECT DISTINCT rank FROM launches").to_pylist()}
    assert [(row["rank"], row["device"]) for row in devices] == [(0, 0), (1, 1)]
    assert [round(100 * row["idle_ns"] / row["span_ns"], 1) for row in devices] == [0.7, 0.7]
    assert calling == {0, 1}


def test_the_report_shows_what_copies_make_of_it(folder: Path) -> None:
    path = converted(recording("nsys-ai__h100_2gpu_1s"), folder)
    text = run("analyze", path, "idle_gaps", "attribution")
    assert text.exit_code == 0
    document = json.loads(run("analyze", path, "attribution", "--format", "json").output)
    for row in document["results"]["attribution"]["summary"]:
        assert round(100 * row["idle_ns"] / row["span_ns"], 1) == 0.7
        assert round(100 * (1 - row["kernel_ns"] / row["span_ns"]), 1) == 97.7
    assert text.output.count("99.3%   0.7%  memory; kernels alone 22.4 ms (2.3%)") == 2
