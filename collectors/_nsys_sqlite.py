"""Read SQLite exports of Nsight Systems fast, with Python's own sqlite3, and without a trace left beside them.

Rows that pass through Python one by one cost more than everything else, so batches are read from the pages of the file
(`_nsys_pages`). SQLite's columns have no types: a batch in which anything is not as it should be is read by SQLite,
value by value, and so are views. Both ways give the same.
"""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from tracekit.arrays import Int64s, integers, one_array
from tracekit.collectors._nsys_export_batches import (
    BATCH_ROWS,
    Batch,
    ColumnType,
    Part,
    Row,
    column_of_values,
    name_ids,
    names_of_texts,
)
from tracekit.collectors._nsys_pages import Leaves, PageFile
from tracekit.errors import MalformedTraceError

MAGIC = b"SQLite format 3\0"

_WAIT_S = 2.0
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_STRINGS = "StringIds"
_FIRST_ROW = -(1 << 63)
_SMALLEST_ROW = 8  # bytes
_BATCH_BYTES = 1 << 25
_AT_A_TIME = 1 << 14  # ids looked up in one statement
_CORRUPT = "the file is damaged or was cut short when it was copied; export it again"


class SqliteExport:
    """An export in a SQLite file. Each thread that reads has a connection of its own.

    path: what errors name; database: the SQLite file, where that is another one, made from it.
    """

    def __init__(self, path: Path, database: Path | None = None) -> None:
        self.path = path
        self._database = database or path
        self._uri = _uri(self._database)
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._strings: dict[int, str] | None = None
        self._texts: dict[str, frozenset[str]] = {}
        self._roots: dict[str, int] = {}
        self._leaves: dict[tuple[str, Part], Int64s] = {}
        self.tables: dict[str, tuple[str, ...]] = {}
        self._pages = PageFile(self._database)
        try:
            with self._reading("the list of tables") as connection:
                connection.execute("BEGIN")  # a lock: what this has read no program changes before `close`
                self._find_tables(connection)
        except MalformedTraceError:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections, then the file: in this order, as PageFile says."""
        for connection in self._connections:
            connection.close()
        self._pages.close()

    def _find_tables(self, connection: sqlite3.Connection) -> None:
        query = "SELECT name, rootpage FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
        for table, root in connection.execute(query).fetchall():
            columns = connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
            self.tables[table] = tuple(name for _, name, *_ in columns)
            self._texts[table] = frozenset(name for _, name, kind, *_ in columns if _holds_text(kind))
            is_key = {name: key > 0 for _, name, _, _, _, key in columns}
            # A key can be the row number, which is not stored; generated columns are not either. And where a column is
            # called rowid, nothing else is.
            stored = connection.execute(f"PRAGMA table_xinfo({_quoted(table)})").fetchall()
            called = {name.lower() for name in self.tables[table]}
            if root and not any(is_key.values()) and len(stored) == len(columns) and "rowid" not in called:
                self._roots[table] = root
            if table == _STRINGS and not is_key.get("id"):
                self._strings = {}

    def parts(self, table: str) -> list[Part]:
        """By row numbers, some pages of the file each, where the table is one of plain pages; else all of it."""
        leaves = self._pages.leaves(self._roots[table]) if self._pages.plain and table in self._roots else None
        if leaves is None:
            return [Part()]
        bounds = [0, *_breaks(leaves, self._pages.page_bytes), len(leaves.pages)]
        parts: list[Part] = []
        for low, high in itertools.pairwise(bounds):
            first = _FIRST_ROW if low == 0 else int(leaves.upto[low - 1]) + 1
            parts.append(Part(first, int(leaves.upto[high - 1])))
            self._leaves[table, parts[-1]] = leaves.pages[low:high]
        return parts

    def batches(self, table: str, part: Part, columns: Mapping[str, ColumnType]) -> Iterator[Batch]:
        """The rows of a part."""
        batch = self._of_pages(table, part, columns)
        if batch is None:
            with self._reading(table) as connection:
                yield from _by_value(connection, table, part, columns)
        elif batch.table.num_rows:
            yield batch

    def count(self, table: str) -> int:
        """How many rows a table has."""
        with self._reading(table) as connection:
            return int(connection.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()[0])

    def small(self, table: str, columns: Sequence[str], where: tuple[str, Sequence[int]] | None = None) -> list[Row]:
        """All rows, or those in which a column has one of some values, sorted by all columns asked for."""
        query = f"SELECT {', '.join(map(_quoted, columns))} FROM {_quoted(table)}"
        rows: list[Row] = []
        with self._reading(table) as connection:
            if where is None:
                rows = connection.execute(query).fetchall()
            else:
                query += f" WHERE {_quoted(where[0])} IN ({', '.join('?' * len(where[1]))})"
                for part in self.parts(table):
                    if self._may_have(table, part, where):
                        within = "" if part.first is None else f" AND rowid BETWEEN {part.first} AND {part.last}"
                        rows += connection.execute(query + within, tuple(where[1])).fetchall()
        return sorted(rows, key=lambda row: [(str(type(value)), value) for value in row])

    def _may_have(self, table: str, part: Part, where: tuple[str, Sequence[int]]) -> bool:
        """Whether a part may have such rows: for SQLite to look for them takes ten times as long."""
        batch = self._of_pages(table, part, {where[0]: "integer"})
        return batch is None or bool(np.isin(integers(one_array(batch.table.column(0)), -1), where[1]).any())

    def strings(self, ids: Sequence[int]) -> dict[int, str]:
        """Texts by id; of two texts with one id the first counts."""
        if "value" not in self.tables.get(_STRINGS, ()) or "id" not in self.tables[_STRINGS]:
            return {}
        found: dict[int, str] = {}
        with self._reading(_STRINGS) as connection:
            if self._strings is not None:
                return self._unsorted_strings(connection, ids)
            for start in range(0, len(ids), _AT_A_TIME):
                chosen = ", ".join(map(str, ids[start : start + _AT_A_TIME]))
                rows = connection.execute(f"SELECT id, value FROM {_STRINGS} WHERE id IN ({chosen})").fetchall()
                found.update((number, str(text)) for number, text in rows if text is not None)
        return found

    def _unsorted_strings(self, connection: sqlite3.Connection, ids: Sequence[int]) -> dict[int, str]:
        """Where the table has no primary key: all of it is kept, since each look-up would read it all."""
        with self._lock:
            if not self._strings:
                rows = connection.execute(f"SELECT id, value FROM {_STRINGS}").fetchall()
                self._strings = {number: str(text) for number, text in reversed(rows) if text is not None}
            known = self._strings
        return {number: known[number] for number in ids if number in known}

    def _of_pages(self, table: str, part: Part, columns: Mapping[str, ColumnType]) -> Batch | None:
        """The rows of a part out of the file; None if a value is not what it should be."""
        pages = self._leaves.get((table, part))
        if pages is None:
            return None
        are_texts = {
            name: column_type == "text" or (column_type == "name" and name in self._texts[table])
            for name, column_type in columns.items()
        }
        places = {name: self.tables[table].index(name) for name in columns}
        found = self._pages.columns(pages, {places[name]: is_text for name, is_text in are_texts.items()})
        if found is None:
            return None
        own: list[str] = []
        arrays: dict[str, pa.Array] = {}
        for name, column_type in columns.items():
            column = found[places[name]]
            if column_type == "name":
                column = names_of_texts(column, own) if are_texts[name] else name_ids(column)
            arrays[name] = column
        return Batch(pa.table(arrays), own)

    @contextmanager
    def _reading(self, place: str) -> Iterator[sqlite3.Connection]:
        try:
            if not hasattr(self._local, "connection"):
                self._local.connection = self._connect()
            connection: sqlite3.Connection = self._local.connection
            yield connection
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the second: names, or a message with names
            raise MalformedTraceError(f"{self.path}: {place}: {_why(error)}") from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._uri, uri=True, timeout=_WAIT_S, check_same_thread=False)
        connection.text_factory = lambda raw: raw.decode(errors="replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        with self._lock:
            self._connections.append(connection)
        return connection


def _uri(path: Path) -> str:
    """How to open a file that is only to be read. Raises MalformedTraceError where that would not be the whole of it.

    A file in WAL mode is opened as one that nobody changes: to open it otherwise leaves two files beside it.
    """
    with path.open("rb") as file:
        head = file.read(100)
    if len(head) < 100:
        raise MalformedTraceError(f"{path}: the file ends at byte {len(head)}, within SQLite's header; {_CORRUPT}")
    size = path.stat().st_size
    page = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    wanted = pages * (1 << 16 if page == 1 else page)
    if head[24:28] == head[92:96] and size < wanted:
        raise MalformedTraceError(f"{path}: the file ends at byte {size:,} of {wanted:,}; {_CORRUPT}")
    if _beside(path, "-wal"):
        raise MalformedTraceError(
            f"{path}: part of its rows are still in {path.name}-wal beside it: another program is writing to it, or "
            "ended without closing it; open and close it with sqlite3 once, or export it again"
        )
    if _beside(path, "-journal").startswith(_JOURNAL_MAGIC):
        raise MalformedTraceError(
            f"{path}: {path.name}-journal beside it says that a change is under way, or was broken off; wait for the "
            "export to end, or export it again"
        )
    in_wal_mode = head[18] == 2 or head[19] == 2
    return f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if in_wal_mode else ''}"


def _beside(path: Path, ending: str) -> bytes:
    """The first bytes of a file of SQLite's own beside `path`."""
    try:
        with path.with_name(path.name + ending).open("rb") as file:
            return file.read(8)
    except OSError:
        return b""


def _why(error: Exception) -> str:
    text = str(error)
    if "locked" in text:
        return f"{text}: another program is writing to the file; wait until it is done"
    if isinstance(error, UnicodeDecodeError) or "malformed" in text or "not a database" in text:
        return f"{text}: {_CORRUPT}"
    return text


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _holds_text(declared: str) -> bool:
    """Whether SQLite's rules of affinity make a column of this declared type one of texts."""
    declared = declared.upper()
    return "INT" not in declared and any(word in declared for word in ("CHAR", "CLOB", "TEXT"))


def _breaks(leaves: Leaves, page_bytes: int) -> list[int]:
    """Where to cut leaf pages into batches: after about BATCH_ROWS rows, as their row numbers say, or many bytes."""
    fits = page_bytes // _SMALLEST_ROW
    rows = np.clip(np.diff(leaves.upto[:-1], prepend=leaves.upto[:1]), 1, fits)
    share = np.cumsum(np.maximum(rows / BATCH_ROWS, page_bytes / _BATCH_BYTES)).astype(np.int64)
    return [int(place) + 1 for place in np.flatnonzero(np.diff(share))]


def _by_value(
    connection: sqlite3.Connection, table: str, part: Part, columns: Mapping[str, ColumnType]
) -> Iterator[Batch]:
    """The rows of a part, each value looked at."""
    chosen = "" if part.first is None else "WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
    bounds = () if part.first is None else (part.first, part.last)
    cursor = connection.execute(f"SELECT {', '.join(map(_quoted, columns))} FROM {_quoted(table)} {chosen}", bounds)
    while rows := cursor.fetchmany(BATCH_ROWS):
        own: list[str] = []
        found = [
            column_of_values(values, column_type, own)
            for values, column_type in zip(zip(*rows, strict=True), columns.values(), strict=True)
        ]
        arrays = dict(zip(columns, (array for array, _ in found), strict=True))
        yield Batch(pa.table(arrays), own, sum(wrong for _, wrong in found))
