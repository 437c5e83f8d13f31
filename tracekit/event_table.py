"""The event table as an Arrow schema and as a Parquet file that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import tempfile
import threading
from functools import cache
from importlib.resources import files
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.arrays import TEXT
from tracekit.errors import UsageError
from tracekit.footer import KEY, Footer

_COLUMN = re.compile(r"^    (\w+) (BIGINT|INTEGER|DOUBLE|VARCHAR)\b", re.MULTILINE)
_TYPES = {"BIGINT": pa.int64(), "INTEGER": pa.int32(), "DOUBLE": pa.float64(), "VARCHAR": TEXT}
# Rising or slowly changing integers: deltas are a third of what plain or dictionary encoding needs.
_DELTA = (
    "id",
    "ts",
    "dur",
    "correlation",
    "launch_id",
    "op_id",
    "parent_id",
    "bytes",
    "elements_in",
    "elements_out",
)
_QUEUE = 2


@cache
def schema_sql() -> str:
    """The documented DDL."""
    return files("tracekit").joinpath("schema.sql").read_text(encoding="utf-8")


@cache
def event_schema() -> pa.Schema:
    """The columns of `schema.sql`, in its order. Text is in dictionaries, as it waits in the spool and in the file."""
    return pa.schema([(name, _TYPES[type_name]) for name, type_name in _COLUMN.findall(schema_sql())])


class EventWriter:
    """Writes row groups to a temporary file beside `path`; `finish` renames it. Anything else leaves nothing.

    Encoding runs in a thread of its own, so that it overlaps with the making of the next rows.
    """

    def __init__(self, path: Path, *, force: bool) -> None:
        if path.is_dir():
            raise UsageError(f"{path} is a directory; name a file in it")
        if path.exists() and not force:
            raise UsageError(f"{path} exists; pass --force to overwrite it")
        self._path = path
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        except OSError as error:
            raise UsageError(f"{path}: cannot write there: {error.strerror or error}") from error
        os.close(descriptor)
        self._temporary = Path(name)
        schema = event_schema()
        self._writer = pq.ParquetWriter(
            self._temporary,
            schema,
            compression="zstd",
            compression_level=3,
            version="2.6",
            data_page_version="2.0",
            use_dictionary=[column for column in schema.names if column not in _DELTA and column != "occupancy"],
            column_encoding=dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
            store_schema=False,
        )
        self._tables: queue.Queue[pa.Table | None] = queue.Queue(_QUEUE)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._encode, daemon=True)
        self._thread.start()

    def write(self, table: pa.Table) -> None:
        """Append a table with the columns of the schema as one row group."""
        if self._error is not None:
            raise self._error
        if table.num_rows:
            self._tables.put(table)

    def finish(self, footer: Footer) -> None:
        """Write the footer and put the file in its place."""
        self._stop()
        if self._error is not None:
            raise self._error
        self._writer.add_key_value_metadata({KEY: footer.to_bytes()})
        self._writer.close()
        _adopt_umask(self._temporary)
        self._temporary.replace(self._path)

    def abandon(self) -> None:
        """Remove what was written, unless it is finished."""
        self._stop()
        if self._temporary.exists():
            with contextlib.suppress(OSError, pa.ArrowException):  # what it could not write is not wanted any more
                self._writer.close()
            self._temporary.unlink()

    def _stop(self) -> None:
        if self._thread.is_alive():
            self._tables.put(None)
            self._thread.join()

    def _encode(self) -> None:
        while (table := self._tables.get()) is not None:
            if self._error is not None:
                continue  # keep taking, so that the other side never blocks on a full queue
            try:
                self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            except BaseException as error:
                self._error = error


def _adopt_umask(path: Path) -> None:
    """mkstemp makes files private; a trace is as readable as any other file the user makes."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)
