"""Batches of an export: out of the pages of a database, value by value and from Parquet they are the same."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracekit.collectors._nsys_export_batches import BATCH_ROWS, FIRST_OWN, Batch, ColumnType, Export, Part
from tracekit.collectors._nsys_pages import PageFile
from tracekit.collectors._nsys_parquet import ParquetExport
from tracekit.collectors._nsys_sqlite import SqliteExport

COLUMNS: dict[str, ColumnType] = {"start": "integer", "nameId": "name", "text": "text"}
PLAIN: list[tuple[Any, ...]] = [(1, 5, "a"), (-(2**63), None, None), (2**63 - 1, 6, ""), (None, 0, "Zeile\n,\"'é\x00")]


def sqlite_file(
    path: Path, rows: list[tuple[Any, ...]], declared: str = "start INTEGER, nameId INTEGER, text TEXT"
) -> Path:
    with sqlite3.connect(path) as connection:
        connection.execute(f'CREATE TABLE "T" ({declared})')
        connection.executemany('INSERT INTO "T" VALUES (?, ?, ?)', rows)
    connection.close()
    return path


def rows_of(export: Export, columns: dict[str, ColumnType] = COLUMNS) -> tuple[list[tuple[Any, ...]], int]:
    """All rows of the table T, names as ids or as the texts that they are, and how many values were wrong."""
    batches = [batch for part in export.parts("T") for batch in export.batches("T", part, columns)]
    export.close()
    return [row for batch in batches for row in _rows(batch)], sum(batch.wrong for batch in batches)


def _rows(batch: Batch) -> list[tuple[Any, ...]]:
    def named(value: Any) -> Any:
        return batch.own[FIRST_OWN - value] if value is not None and value <= FIRST_OWN else value

    rows = batch.table.to_pylist()
    return [
        tuple(named(row[name]) if name == "nameId" else row[name] for name in batch.table.column_names) for row in rows
    ]


def test_an_empty_table(tmp_path: Path) -> None:
    assert rows_of(SqliteExport(sqlite_file(tmp_path / "e.sqlite", []))) == ([], 0)


def test_values_as_they_should_be_are_read_from_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("read value by value")

    monkeypatch.setattr("tracekit.collectors._nsys_sqlite._by_value", refused)
    assert rows_of(SqliteExport(sqlite_file(tmp_path / "e.sqlite", PLAIN))) == (PLAIN, 0)


@pytest.mark.parametrize(
    ("row", "expected", "wrong"),
    [
        (("3", "4", 5), (3, 4, "5"), 0),
        ((3.0, 4.0, 5.5), (3, 4, "5.5"), 0),
        ((3.5, 4.5, b"\xff"), (None, None, "�"), 2),
        (("x,y", "call", None), (None, "call", None), 1),
        (("1\n2", b"call", None), (None, None, None), 2),
        (("", "", ""), (None, None, ""), 0),
    ],
)
def test_values_of_another_type(row: tuple[Any, ...], expected: tuple[Any, ...], wrong: int, tmp_path: Path) -> None:
    file = sqlite_file(tmp_path / "e.sqlite", [*PLAIN, row], "start, nameId, text")
    assert rows_of(SqliteExport(file)) == ([*PLAIN, expected], wrong)


def test_names_that_are_texts(tmp_path: Path) -> None:
    rows = [(1, "gemm", None), (2, None, None), (3, "copy", None), (4, "gemm", None)]
    file = sqlite_file(tmp_path / "e.sqlite", rows, "start INTEGER, nameId TEXT, text TEXT")
    assert rows_of(SqliteExport(file)) == (rows, 0)


def test_tables_that_are_read_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "e.sqlite"
    with sqlite3.connect(file) as connection:
        connection.executescript("""
            CREATE TABLE unnumbered (start INTEGER PRIMARY KEY, nameId INTEGER, text TEXT) WITHOUT ROWID;
            CREATE TABLE keyed (start INTEGER PRIMARY KEY, nameId INTEGER, text TEXT);
            CREATE TABLE made (start INTEGER, nameId INTEGER, text TEXT AS ('a'));
            CREATE TABLE kept (start INTEGER, nameId INTEGER, text TEXT);
            CREATE TABLE shadowed (start INTEGER, nameId INTEGER, text TEXT, RowId TEXT);
            CREATE VIEW seen AS SELECT * FROM kept;
            INSERT INTO unnumbered VALUES (1, 5, 'a');
            INSERT INTO keyed VALUES (1, 5, 'a');
            INSERT INTO made VALUES (1, 5);
            INSERT INTO kept VALUES (1, 5, 'a');
            INSERT INTO shadowed VALUES (1, 5, 'a', 'x');
        """)
    connection.close()
    export = SqliteExport(file)
    for table in ("unnumbered", "keyed", "made", "shadowed", "seen"):
        assert export.parts(table) == [Part()]
        assert [row for batch in export.batches(table, Part(), COLUMNS) for row in _rows(batch)] == PLAIN[:1]
    [part] = export.parts("kept")
    assert [row for batch in export.batches("kept", part, COLUMNS) for row in _rows(batch)] == PLAIN[:1]
    export.close()


def test_columns_that_came_later(tmp_path: Path) -> None:
    file = sqlite_file(tmp_path / "e.sqlite", PLAIN)
    with sqlite3.connect(file) as connection:
        connection.execute("ALTER TABLE T ADD COLUMN later INTEGER DEFAULT 9")
        connection.execute("INSERT INTO T VALUES (7, 8, 'new', 10)")
    connection.close()
    expected = [(*row, 9) for row in PLAIN] + [(7, 8, "new", 10)]
    assert rows_of(SqliteExport(file), COLUMNS | {"later": "integer"}) == (expected, 0)


@pytest.mark.parametrize(("page", "rows", "step"), [(512, 2_000, 1), (4096, 150_000, 1), (4096, 3_000, 1 << 40)])
def test_a_table_of_many_pages_comes_in_parts_of_rows_that_follow(
    page: int, rows: int, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "e.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute(f"PRAGMA page_size = {page}")
        connection.execute("CREATE TABLE T (start INTEGER, text TEXT)")
        numbers = ((number * step, number, "x" * (number % 40)) for number in range(1, rows + 1))
        connection.executemany("INSERT INTO T (rowid, start, text) VALUES (?, ?, ?)", numbers)
    connection.close()
    monkeypatch.setattr("tracekit.collectors._nsys_sqlite._by_value", None)
    export = SqliteExport(file)
    batches = [
        batch.table
        for part in export.parts("T")
        for batch in export.batches("T", part, {"start": "integer", "text": "text"})
    ]
    export.close()
    whole = pa.concat_tables(batches)
    assert whole.column("start").to_pylist() == list(range(1, rows + 1))
    assert whole.column("text").to_pylist() == ["x" * (number % 40) for number in range(1, rows + 1)]
    assert all(batch.num_rows <= 2 * BATCH_ROWS for batch in batches)


NUMBERS = (0, 1, -1, 7, 127, 128, -129, 2**15, 2**23 - 1, -(2**23), 2**31, -(2**40), 2**47, -(2**63), 2**63 - 1, None)
TEXTS = ("", "gemm", "a,b\n", "\x00", "Größe", "long " * 40, None)
ODD = (1.0, 2.5, "12", b"\xff\x00", b"x", "too long for a page " * 300)


@pytest.mark.parametrize("seed", range(20))
def test_every_way_of_reading_gives_the_same(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    odd = ODD if seed % 2 else ()
    pools = [(*chance.sample(values, chance.randint(1, 6)), *odd) for values in (NUMBERS, NUMBERS, TEXTS)]
    rows = [tuple(map(chance.choice, pools)) for _ in range(chance.randint(1, 300))]
    declared = chance.choice(("start, nameId, text", "start INTEGER, nameId INTEGER, text TEXT"))
    file = sqlite_file(tmp_path / "e.sqlite", rows, declared)
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE VIEW V AS SELECT * FROM T")
    connection.close()
    export = SqliteExport(file)
    [by_value] = export.batches("V", Part(), COLUMNS)
    assert rows_of(export) == (_rows(by_value), by_value.wrong)


def test_damaged_pages_are_left_to_sqlite(tmp_path: Path) -> None:
    file = tmp_path / "e.sqlite"
    sound = sqlite_file(file, [(number, number % 7, f"text {number}") for number in range(400)]).read_bytes()
    chance = random.Random(1)
    read = 0
    for _ in range(300):
        damaged = bytearray(sound)
        for _ in range(chance.randint(1, 20)):
            damaged[chance.randrange(4096, len(damaged))] = chance.choice(
                (0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))
            )
        file.write_bytes(damaged)
        pages = PageFile(file)
        leaves = pages.leaves(2)
        columns = None if leaves is None else pages.columns(leaves.pages, {0: False, 1: False, 2: True})
        assert columns is None or len({len(column) for column in columns.values()}) == 1
        read += columns is not None
        pages.close()
    assert 0 < read < 300


def test_parquet_gives_what_sqlite_gives(tmp_path: Path) -> None:
    columns = {name: pa.array(values) for name, values in zip(COLUMNS, zip(*PLAIN, strict=True), strict=True)}
    pq.write_table(pa.table(columns), tmp_path / "T.parquet", row_group_size=3)
    export = ParquetExport(tmp_path)
    assert export.tables == {"T": ("start", "nameId", "text")}
    assert export.parts("T") == [Part(0, 0), Part(1, 1)]
    assert export.count("T") == 4
    assert rows_of(export) == (PLAIN, 0)
    assert export.small("T", ["nameId"], ("nameId", (5, 6))) == [(5,), (6,)]
