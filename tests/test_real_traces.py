"""Public recordings, each against plain json and exact decimals, and in every shape the same bytes could have had."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests import naive
from tests.real_traces import KINETO, parameters, trace
from tracekit.convert import convert
from tracekit.event_table import schema_sql

IDENTITY = "SELECT * EXCLUDE (args), args FROM events ORDER BY id"


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("CREATE VIEW events AS FROM read_parquet(?)".replace("?", f"'{path}'"))
        return connection.execute(query).fetchall()


def converted(source: Path, tmp_path: Path) -> Path:
    out = tmp_path / f"{source.name}.parquet"
    footer = convert([source], out)
    assert footer.ledger.read == footer.ledger.stored + sum(footer.ledger.skipped.values())
    return out


@pytest.mark.parametrize("path", parameters())
def test_every_event_is_stored_or_accounted_for_and_every_nanosecond_of_device_time_is_right(
    path: Path, tmp_path: Path
) -> None:
    events, _ = naive.load(path)
    out = tmp_path / "trace.parquet"
    footer = convert([path], out)

    assert footer.ledger.read == len(events)
    assert footer.ledger.stored == len(events) - sum(footer.ledger.skipped.values())
    assert footer.ledger.stored == rows(out, "SELECT count(*) FROM events")[0][0]
    found = rows(
        out,
        "SELECT device, list((ts, ts + dur)) FROM events WHERE kind IN ('kernel', 'memcpy', 'memset') GROUP BY device",
    )
    expected = {device: naive.span_and_busy(spans) for device, spans in naive.device_intervals(events).items()}
    assert {device: naive.span_and_busy(spans) for device, spans in found} == expected


@pytest.mark.parametrize("path", parameters())
def test_rows_keep_the_promises_of_the_schema(path: Path, tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        connection.execute(schema_sql())
        connection.execute(f"INSERT INTO events FROM read_parquet('{converted(path, tmp_path)}')")
        broken = connection.execute("""
            SELECT count(*) FROM events AS child JOIN events AS parent ON parent.id = child.parent_id
            WHERE child.pid IS DISTINCT FROM parent.pid OR child.tid IS DISTINCT FROM parent.tid
            OR child.ts < parent.ts OR child.ts + child.dur > parent.ts + parent.dur
        """).fetchall()
        launches = connection.execute("""
            SELECT count(*) FROM events JOIN events AS launch ON launch.id = events.launch_id
            WHERE launch.kind <> 'launch' OR launch.correlation <> events.correlation
        """).fetchall()
        operators = connection.execute("""
            SELECT count(*) FROM events JOIN events AS op ON op.id = events.op_id WHERE op.kind <> 'op'
        """).fetchall()
        ids = connection.execute("SELECT count(*), count(DISTINCT id), min(id), max(id) FROM events").fetchone()
    assert broken == launches == operators == [(0,)]
    assert ids is not None and ids == (ids[0], ids[0], 0, ids[0] - 1)


@pytest.mark.parametrize("path", parameters([path for path in KINETO if path.stat().st_size < 800_000]))
def test_nothing_depends_on_layout_compression_or_the_order_of_events(path: Path, tmp_path: Path) -> None:
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)
    events = document if isinstance(document, list) else document["traceEvents"]
    expected = rows(converted(path, tmp_path), IDENTITY)

    random.Random(0).shuffle(events)
    minified = tmp_path / f"minified-{path.name.removesuffix('.gz')}"
    minified.write_text(json.dumps(document, separators=(",", ":"), ensure_ascii=False))
    assert rows(converted(minified, tmp_path), IDENTITY) == expected

    indented = tmp_path / f"indented-{path.name}"
    indented.write_bytes(gzip.compress(json.dumps(document, indent=3).encode(), 1))
    assert rows(converted(indented, tmp_path), IDENTITY) == expected


def test_b200_eager_is_86_per_cent_idle(tmp_path: Path) -> None:
    out = converted(trace("tracelens__b200_eager"), tmp_path)
    spans = rows(out, "SELECT list((ts, ts + dur)) FROM events WHERE kind IN ('kernel', 'memcpy', 'memset')")[0][0]
    span, busy = naive.span_and_busy(spans)
    assert round(100 * (1 - busy / span), 1) == 86.3


def test_356_kernels_of_the_b300_trace_belong_to_one_graph_launch(tmp_path: Path) -> None:
    out = converted(trace("tracelens__sglang_deepseek-r1_b300"), tmp_path)
    counts = rows(
        out,
        """
        SELECT launch.name, count(*) FROM events JOIN events AS launch ON launch.id = events.launch_id
        WHERE events.kind = 'kernel' AND launch.name ILIKE '%graphlaunch%' GROUP BY launch.id, launch.name
        """,
    )
    assert counts == [("cudaGraphLaunch", 356)]


def test_kernels_of_the_h100_trace_without_a_launch_are_kept(tmp_path: Path) -> None:
    out = converted(trace("tracelens__h100_qwen1.5"), tmp_path)
    work = "kind IN ('kernel', 'memcpy', 'memset')"
    assert rows(out, f"SELECT count(*), count(*) FILTER (launch_id IS NULL) FROM events WHERE {work}") == [(1707, 509)]
