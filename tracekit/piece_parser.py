"""Parse pieces of a JSON event array side by side: DuckDB reads, Arrow keeps, on a pool of threads.

A reader brings its SQL: a file of statements, each under a line `-- name: NAME`. `load` makes the table `piece` from
the file `{piece}`, `counts` tells what is in it, `argument_names` lists the arguments seen in a sample; and each class
of rows in the spool has a statement of its name, in which `{class}` stands for the categories of that class and
`{known}` for all. They return the category as `kind`, times as decimal microseconds.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import int32_array, int64_array, integers, is_null, one_array, text_array
from tracekit.json_repair import MAX_TIME_US, NON_FINITE
from tracekit.secrets import redact
from tracekit.spool import DEVICE_CLASSES, HOST_CLASSES, Run, Spool

_MEMORY = Path("/dev/shm")  # pieces live for a fraction of a second; kept off the disk where there is room
_ROOM_FOR_PIECES = 16
_STATEMENT = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_KEY = re.compile(r'"([^"]+)":|(?<=\'|\{)(\w+):|"([^"]+)"|->> \'([^\']+)\'')
_LABEL = re.compile(r"\[([^\]]+)\]\s*(-?\d+)")
_NUMBER = re.compile(r"-?\d+")
_NOT_FREE_TEXT = frozenset({"copy_kind", "args"})  # args: the SQL lets numbers and checked words through
_BY_PHASE = frozenset({"instant", "counter"})
# A name with control characters was a path with raw backslashes whose escapes happened to be legal.
_REESCAPED = {ord(char): f"\\{letter}" for char, letter in zip("\t\n\r\f\b", "tnrfb", strict=True)}
# A time, for DuckDB before 2.0: as a text it becomes a decimal exactly. Within strings, quotes are escaped: no match.
_TIME = re.compile(rb'("(?:ts|dur)"\s*:\s*)(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)(?=\s*[,}])')
_CONTROLS = re.compile(r"[\t\n\r\f\b]")

# What DuckDB raises for text that is not what it should be; anything else it raises is a fault of ours.
REFUSED = (duckdb.DataError, duckdb.InvalidInputException, duckdb.InvalidTypeException)

METADATA = "metadata (names and sort order of processes)"
SKIPPED_WINDOW = "profiler window (spans everything, no work)"
SKIPPED_OWN = "drawn by tracekit (steps, categories and gaps of an exported trace)"
CLASS_KINDS = {
    "python": {"python"},
    "host": {"op", "annotation"},
    "launch": {"launch"},
    "other": {"overhead", "os", "instant", "counter"},
    "device": {"kernel", "memcpy", "memset", "graph", "sync", "gpu_annotation"},
}

AS_TEXT = "process or thread given as text"
REESCAPED = "control character in a name, written as an escape"
REDACTED = "text with the shape of a credential, blanked (distinct values)"


@dataclass(frozen=True, slots=True)
class Renumbered:
    """Process and thread numbers, as text, that a file has in the place of others: label and process, and thread."""

    processes: Mapping[str, tuple[str | None, int | None]] = field(default_factory=dict)
    threads: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(slots=True)
class Part:
    """What one piece became."""

    runs: dict[str, Run | None] = field(default_factory=dict)
    read: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    dropped_args: Counter[str] = field(default_factory=Counter)
    labels: set[str] = field(default_factory=set)
    first_unreadable: int | None = None


class PieceParser:
    """Pieces in, sorted runs out; each thread has a cursor of one in-memory database.

    renumbered: set by the reader before the first piece, if the file says so.
    """

    def __init__(self, directory: Path, sql: Path, kinds: Mapping[str, str]) -> None:
        self.workers = max(1, min(os.cpu_count() or 1, 8))
        self._directory = directory
        text = sql.read_text(encoding="utf-8")
        names = _STATEMENT.findall(text)
        statements = dict(zip(names, _STATEMENT.split(text)[2::2], strict=True))
        self._load = statements.pop("load")
        categories = _quoted_categories(kinds)
        self._statements = {name: statement.format(**categories) for name, statement in statements.items()}
        self._known_arguments = {key for match in _KEY.findall(text) for key in match if key}
        self._kinds = dict(kinds)
        self._exact = True
        self._cursors: list[duckdb.DuckDBPyConnection] = []
        self._pool = ThreadPoolExecutor(self.workers)
        self._connected = self._pool.submit(self._connect)  # while the first piece is being read
        self._sampled = False
        self.renumbered = Renumbered()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        database = duckdb.connect(":memory:", config={"threads": 1, "memory_limit": "512MB"})
        self._exact = _reads_decimals_exactly(database)
        self._cursors = [database.cursor() for _ in range(self.workers)]
        return database

    def __enter__(self) -> PieceParser:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        if not self._connected.cancelled():
            database = self._connected.result()
            for cursor in self._cursors:
                cursor.close()
            database.close()

    def submit(self, spool: Spool, text: bytes | memoryview, cut: int) -> Future[Part]:
        """Parse events `text[:cut]`; the future raises one of REFUSED if they are not exactly a list of events."""
        sample, self._sampled = not self._sampled, True
        return self._pool.submit(self._parse, spool, text, cut, sample)

    def _parse(self, spool: Spool, text: bytes | memoryview, cut: int, sample: bool) -> Part:
        self._connected.result()
        cursor = self._cursors.pop()
        try:
            if not self._exact:
                text = _TIME.sub(rb'\1"\2"', bytes(memoryview(text)[:cut]))
                cut = len(text)
            with _piece_file(self._directory, text, cut) as name:
                load = self._load.format(piece=name, object_bytes=max(16 << 20, cut + 2))
                cursor.execute(load)
            return self._rows(cursor, spool, sample)
        finally:
            self._cursors.append(cursor)

    def _rows(self, cursor: duckdb.DuckDBPyConnection, spool: Spool, sample: bool) -> Part:
        part = Part()
        present: set[str] = set()
        for phase, category, without_ts, rows, without_end in cursor.execute(self._statements["counts"]).fetchall():
            part.read += rows
            reason = _not_stored(phase, without_ts, self._kinds.get(category))
            if reason is not None:
                part.skipped[reason] += rows
                continue
            present.add(_row_class(phase, self._kinds.get(category)))
            if phase == "X":
                if category not in self._kinds:
                    shown = "missing" if category is None else f'"{redact(category)[:40]}"'
                    part.repaired[f"category {shown} is not known, kept as annotation"] += rows
                if without_end:
                    part.repaired["no end recorded"] += without_end
        # A piece mostly has rows of one or two classes, and planning a statement takes as long as a thousand rows.
        classes = [name for name in HOST_CLASSES + DEVICE_CLASSES if name in present]
        tables = {name: cursor.sql(self._statements[name]).to_arrow_table() for name in classes}
        if sample:
            for argument, count in cursor.execute(self._statements["argument_names"]).fetchall():
                if argument not in self._known_arguments:
                    part.dropped_args[redact(argument)[:60]] += count
        cursor.execute("DROP TABLE piece")
        for name, table in tables.items():
            if not table.num_rows:
                continue
            repaired: Counter[str] = Counter()
            tidy = _tidy(table, self._kinds, self.renumbered, repaired)
            if name == "other":  # the profiler itself gives its marks processes called "" and "Traces"
                del repaired[AS_TEXT]
            part.repaired.update(repaired)
            part.runs[name] = spool.write(tidy)
            if "label" in tidy.column_names:
                part.labels.update(filter(None, tidy.column("label").unique().to_pylist()))
        return part


def _reads_decimals_exactly(database: duckdb.DuckDBPyConnection) -> bool:
    """Whether a number in JSON becomes a decimal without a double in between: from DuckDB 2.0 on."""
    query = """SELECT json_transform('{"ts": 1714000000000001.001}', '{"ts": "DECIMAL(22,3)"}').ts::VARCHAR"""
    return database.execute(query).fetchone() == ("1714000000000001.001",)


@contextmanager
def _piece_file(directory: Path, text: bytes | memoryview, cut: int) -> Iterator[str]:
    """A file with the piece as a JSON array, for as long as it is needed."""
    room = shutil.disk_usage(_MEMORY).free if os.access(_MEMORY, os.W_OK) else 0
    where = _MEMORY if room > _ROOM_FOR_PIECES * cut else directory
    descriptor, name = tempfile.mkstemp(prefix="tracekit-", suffix=".json", dir=where)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for part in (b"[", memoryview(text)[:cut], b"]"):
                written = 0
                while written < len(part):
                    written += file.write(part[written:])
        yield name.replace("'", "''")
    finally:
        Path(name).unlink()


def _quoted_categories(kinds: Mapping[str, str]) -> dict[str, str]:
    """SQL lists of the categories of each class of rows."""
    chosen = {name: [cat for cat, kind in kinds.items() if kind in CLASS_KINDS[name]] for name in CLASS_KINDS}
    chosen["known"] = list(kinds)
    return {name: ", ".join(f"'{category}'" for category in categories) or "''" for name, categories in chosen.items()}


def _not_stored(phase: str | None, without_ts: bool, kind: str | None) -> str | None:
    """Why events of this phase and kind are no rows, or None if they are."""
    if phase is None:
        return "no phase"
    if phase in {"s", "t", "f"}:
        return "flow arrow (links are made by correlation)"
    if phase == "M":
        return METADATA
    if phase not in {"X", "i", "I", "C"}:
        return f"phase {phase[:20]!r} is not read"
    if without_ts:
        return "no timestamp"
    return kind if phase == "X" and kind in {SKIPPED_WINDOW, SKIPPED_OWN} else None


def _row_class(phase: str | None, kind: str | None) -> str:
    """The class of rows that the statements put events of this phase and kind in."""
    if phase != "X":
        return "other"
    return next((name for name, kinds in CLASS_KINDS.items() if kind in kinds), "host")


def _tidy(table: pa.Table, kinds: Mapping[str, str], renumbered: Renumbered, repaired: Counter[str]) -> pa.Table:
    """Sorted by start; times in ns; text as dictionaries, without credentials; columns without a value left out."""
    columns: dict[str, pa.Array] = {}
    for name in table.column_names:
        column = one_array(table.column(name))
        if column.null_count == len(column) and name not in {"dur", "kind"}:
            continue
        if name in {"ts", "dur"}:
            columns[name] = _nanoseconds(column)
        elif pa.types.is_floating(column.type):
            columns[name] = _finite(column, repaired)
        elif not pa.types.is_string(column.type):
            columns[name] = column
        elif name in {"pid", "tid"}:
            columns |= _process_or_thread(name, column.dictionary_encode(), renumbered, repaired)
        elif name == "kind":
            columns[name] = _kinds(column, kinds)
        else:
            columns[name] = column.dictionary_encode()
            if name not in _NOT_FREE_TEXT:
                columns[name] = _clean(columns[name], name == "name", repaired)
    ts = integers(columns["ts"])
    tidy = pa.table(columns)
    return tidy if np.all(ts[1:] >= ts[:-1]) else tidy.take(int64_array(np.argsort(ts, kind="stable")))


def _nanoseconds(column: pa.Array) -> pa.Array:
    """Decimal microseconds with three places: the low half of the 128-bit number behind each is the nanoseconds."""
    if not pa.types.is_decimal(column.type):
        return pc.multiply(pc.cast(column, pa.int64()), 1000)
    words = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 2)
    words = words[column.offset : column.offset + len(column)]
    null = is_null(column) if column.null_count else None
    present = words if null is None else words[~null]
    if (present[:, 1] != present[:, 0] >> 63).any() or (np.abs(present[:, 0]) >= MAX_TIME_US * 1000).any():
        raise duckdb.OutOfRangeException("a time too far from any other")  # refused like what DuckDB refuses
    return int64_array(words[:, 0], null)


def _finite(column: pa.Array, repaired: Counter[str]) -> pa.Array:
    """Numbers with a point; what is bare `inf` or `NaN` in the source, which DuckDB lets pass, is missing."""
    is_finite = pc.is_finite(column)
    if not is_finite.false_count:
        return column
    repaired[NON_FINITE] += is_finite.false_count
    return pc.if_else(is_finite, column, None)


def _kinds(column: pa.Array, kinds: Mapping[str, str]) -> pa.DictionaryArray:
    encoded = column.dictionary_encode()
    values = [
        kinds.get(category, category if category in _BY_PHASE else "annotation")
        for category in encoded.dictionary.to_pylist()
    ]
    if encoded.null_count:  # no category at all
        values.append("annotation")
    names, codes = np.unique(values, return_inverse=True)
    indices = codes[integers(encoded.indices, len(values) - 1)]
    return pa.DictionaryArray.from_arrays(int32_array(indices), text_array(names.tolist()))


def _clean(column: pa.DictionaryArray, is_name: bool, repaired: Counter[str]) -> pa.DictionaryArray:
    values = column.dictionary.to_pylist()
    cleaned = list(map(redact, values))
    changed = sum(map(str.__ne__, values, cleaned))
    if changed:
        repaired[REDACTED] += changed
    if is_name:
        for position, value in enumerate(cleaned):
            if _CONTROLS.search(value):
                cleaned[position] = value.translate(_REESCAPED)
                repaired[REESCAPED] += _count(column, position)
                changed += 1
    return pa.DictionaryArray.from_arrays(column.indices, pa.array(cleaned)) if changed else column


def _count(column: pa.DictionaryArray, position: int) -> int:
    """How many rows have the value at this position of the dictionary."""
    return int(np.count_nonzero(integers(column.indices, -1) == position))


def _process_or_thread(
    name: str, column: pa.DictionaryArray, renumbered: Renumbered, repaired: Counter[str]
) -> dict[str, pa.Array]:
    """Integers; of a text like "stream 7" or "[TP01] 83" the number, and in `label` what stands in the brackets."""
    known = renumbered.processes if name == "pid" else {key: (None, tid) for key, tid in renumbered.threads.items()}
    numbers: list[int | None] = []
    labels: list[str | None] = []
    for position, text in enumerate(column.dictionary.to_pylist()):
        if text in known:
            labels.append(known[text][0])
            numbers.append(known[text][1])
            continue
        labelled = _LABEL.fullmatch(text)
        labels.append(labelled.group(1) if labelled else None)
        plain = _plain_integer(text)
        if plain is None:
            repaired[AS_TEXT] += _count(column, position)
            found = _NUMBER.search(labelled.group(2) if labelled else text)
            plain = int(found.group()) if found else None
        numbers.append(plain if plain is not None and -(2**63) <= plain < 2**63 else None)
    unknown = np.array([number is None for number in numbers])
    values = int64_array(np.array([number or 0 for number in numbers], np.int64), unknown if unknown.any() else None)
    columns: dict[str, pa.Array] = {name: values.take(column.indices)}
    if name == "pid" and any(labels):
        columns["label"] = pa.array(labels, pa.string()).take(column.indices).dictionary_encode()
    return columns


def _plain_integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None
