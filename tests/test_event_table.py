"""The event table's schema is that of schema.sql, and its file appears whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracekit.errors import UsageError
from tracekit.event_table import EventWriter, event_schema, schema_sql
from tracekit.footer import KEY, Footer, Ledger

FOOTER = Footer(sources=(), devices=(), origin_ns=5, capture={}, ledger=Ledger(read=1))
REQUIRED = {"id": 0, "kind": "op", "name": "a", "ts": 0, "dur": 0, "rank": 0}


def query(sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return connection.execute(sql).fetchall()


def table(*rows: dict[str, Any]) -> pa.Table:
    full = [dict.fromkeys(event_schema().names) | REQUIRED | row for row in rows]
    plain = {name: [row[name] for row in full] for name in event_schema().names}
    return pa.table(
        [
            pa.array(plain[column.name], pa.string()).dictionary_encode()
            if pa.types.is_dictionary(column.type)
            else pa.array(plain[column.name], column.type)
            for column in event_schema()
        ],
        schema=event_schema(),
    )


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "trace.parquet"


def test_columns_are_those_of_the_ddl(out: Path) -> None:
    writer = EventWriter(out, force=False)
    writer.write(table({}))
    writer.finish(FOOTER)
    with duckdb.connect() as connection:
        connection.execute(schema_sql())
        declared = [row[:2] for row in connection.execute("DESCRIBE events").fetchall()]
        stored = [row[:2] for row in connection.execute(f"DESCRIBE FROM read_parquet('{out}')").fetchall()]
        connection.execute(f"INSERT INTO events FROM read_parquet('{out}')")
    assert stored == declared
    assert event_schema().names == [name for name, _ in declared]


def test_no_rows_are_a_file_too(out: Path) -> None:
    writer = EventWriter(out, force=False)
    writer.write(table())
    writer.finish(FOOTER)
    assert pq.read_table(out).num_rows == 0
    assert Footer.from_bytes(pq.read_metadata(out).metadata[KEY]) == FOOTER
    assert query(f"SELECT count(*) FROM read_parquet('{out}')") == [(0,)]


def test_each_table_is_a_row_group_that_its_statistics_tell_apart(out: Path) -> None:
    writer = EventWriter(out, force=False)
    writer.write(table({"kind": "op", "ts": 3}, {"id": 1, "kind": "op", "ts": 7, "launch_id": 9, "args": '{"a": "é"}'}))
    writer.write(table({"id": 2, "kind": "kernel", "ts": 5, "dur": -(2**62), "occupancy": 0.5}))
    writer.finish(FOOTER)
    metadata = pq.read_metadata(out)
    kind, ts = event_schema().get_field_index("kind"), event_schema().get_field_index("ts")
    ranges = []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        kinds, times = group.column(kind).statistics, group.column(ts).statistics
        ranges.append((group.num_rows, kinds.min, kinds.max, times.min, times.max))
    assert ranges == [(2, "op", "op", 3, 7), (1, "kernel", "kernel", 5, 5)]

    expected = [
        {"id": 0, "kind": "op", "ts": 3, "dur": 0, "launch_id": None, "occupancy": None, "args": None},
        {"id": 1, "kind": "op", "ts": 7, "dur": 0, "launch_id": 9, "occupancy": None, "args": '{"a": "é"}'},
        {"id": 2, "kind": "kernel", "ts": 5, "dur": -(2**62), "launch_id": None, "occupancy": 0.5, "args": None},
    ]
    assert pq.read_table(out, columns=list(expected[0])).to_pylist() == expected
    columns = ", ".join(expected[0])
    rows = query(f"SELECT {columns} FROM read_parquet('{out}')")
    assert rows == [tuple(row.values()) for row in expected]


def test_the_file_is_as_readable_as_others(out: Path) -> None:
    before = os.umask(0o027)
    try:
        EventWriter(out, force=False).finish(FOOTER)
    finally:
        os.umask(before)
    assert out.stat().st_mode & 0o777 == 0o640


def test_an_existing_file_is_replaced_only_when_told_to_and_only_when_done(out: Path) -> None:
    out.write_text("precious")
    with pytest.raises(UsageError, match=r"trace\.parquet exists; pass --force"):
        EventWriter(out, force=False)
    assert [path.name for path in out.parent.iterdir()] == ["trace.parquet"]
    writer = EventWriter(out, force=True)
    writer.write(table({}))
    assert out.read_text() == "precious"
    writer.abandon()
    assert out.read_text() == "precious"
    writer = EventWriter(out, force=True)
    writer.finish(FOOTER)
    writer.abandon()
    assert pq.read_metadata(out).num_rows == 0
    assert [path.name for path in out.parent.iterdir()] == ["trace.parquet"]


def test_places_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write there"):
        EventWriter(tmp_path / "absent" / "trace.parquet", force=False)
    (tmp_path / "folder").mkdir()
    for force in (False, True):
        with pytest.raises(UsageError, match="folder"):
            EventWriter(tmp_path / "folder", force=force)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_when_the_making_of_rows_fails(out: Path, error: type[BaseException]) -> None:
    writer = EventWriter(out, force=False)
    with pytest.raises(error):
        try:
            writer.write(table({}))
            raise error
        finally:
            writer.abandon()
    writer.abandon()
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("failing", ["write_table", "close"])
def test_a_failing_encoder_says_so_and_never_blocks(out: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    before = threading.active_count()
    writer = EventWriter(out, force=False)
    monkeypatch.setattr(pq.ParquetWriter, failing, fail)
    outcome: list[BaseException] = []

    def work() -> None:
        try:
            try:
                for _ in range(50):
                    writer.write(table({}))
                writer.finish(FOOTER)
            finally:
                writer.abandon()
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert [str(error) for error in outcome] == ["No space left on device"]
    assert list(out.parent.iterdir()) == []
    assert threading.active_count() == before
