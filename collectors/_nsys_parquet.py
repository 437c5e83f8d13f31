"""Read folders of Parquet files, one a table, that Nsight Systems exports as `parquetdir`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracekit.arrays import one_array
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
from tracekit.errors import MalformedTraceError

_ENDING = ".parquet"
_SIGNS = ("StringIds", "META_DATA_EXPORT", "TARGET_INFO_SESSION_START_TIME")


def is_parquet_export(path: Path) -> bool:
    """Whether a folder has tables of Nsight Systems as Parquet files."""
    return any((path / f"{sign}{_ENDING}").is_file() for sign in _SIGNS)


class ParquetExport:
    """An export in a folder; a part of a table is a row group. Files are opened for as long as they are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tables: dict[str, tuple[str, ...]] = {}
        for file in sorted(path.glob(f"*{_ENDING}")):
            with self._reading(file.stem) as opened:
                self.tables[file.stem] = tuple(opened.schema_arrow.names)

    def close(self) -> None:
        """Nothing is open between two calls."""

    def parts(self, table: str) -> list[Part]:
        """Row groups, by number."""
        with self._reading(table) as file:
            return [Part(group, group) for group in range(file.num_row_groups)]

    def batches(self, table: str, part: Part, columns: Mapping[str, ColumnType]) -> Iterator[Batch]:
        """The rows of a row group."""
        with self._reading(table) as file:
            groups = None if part.first is None else [part.first]
            for rows in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=list(columns)):
                yield _batch(pa.table(rows), columns)

    def count(self, table: str) -> int:
        """How many rows a table has."""
        with self._reading(table) as file:
            return int(file.metadata.num_rows)

    def small(self, table: str, columns: Sequence[str], where: tuple[str, Sequence[int]] | None = None) -> list[Row]:
        """All rows, or those in which a column has one of some values, sorted by all columns asked for."""
        rows: list[Row] = []
        with self._reading(table) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=sorted({*columns, *((where[0],) if where else ())})):
                found = pa.table(batch)
                if where is not None:
                    kept = pc.is_in(found.column(where[0]).cast(pa.int64()), pa.array(where[1], pa.int64()))
                    found = found.filter(kept)
                rows += zip(*(found.column(name).to_pylist() for name in columns), strict=True)
        return sorted(rows, key=lambda row: [(str(type(value)), value) for value in row])

    def strings(self, ids: Sequence[int]) -> dict[int, str]:
        """Texts by id; of two texts with one id the first counts."""
        found: dict[int, str] = {}
        if "StringIds" not in self.tables:
            return found
        wanted = pa.array(ids, pa.int64())
        with self._reading("StringIds") as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=["id", "value"]):
                number = batch.column("id").cast(pa.int64())
                chosen = pc.is_in(number, wanted)
                texts = batch.column("value").filter(chosen).to_pylist()
                for one, text in zip(number.filter(chosen).to_pylist(), texts, strict=True):
                    if text is not None:
                        found.setdefault(one, str(text))
        return found

    @contextmanager
    def _reading(self, table: str) -> Iterator[pq.ParquetFile]:
        path = self.path / f"{table}{_ENDING}"
        try:
            with pq.ParquetFile(path) as file:
                yield file
        except (pa.ArrowException, OSError) as error:
            raise MalformedTraceError(f"{path}: {error}; the file is damaged or incomplete, export it again") from error


def _batch(rows: pa.Table, columns: Mapping[str, ColumnType]) -> Batch:
    own: list[str] = []
    arrays: dict[str, pa.Array] = {}
    wrong = 0
    for name, column_type in columns.items():
        column = one_array(rows.column(name))
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        kind = column.type
        if column_type != "text" and pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
            found = column.cast(pa.int64())
            arrays[name] = name_ids(found) if column_type == "name" else found
        elif column_type != "integer" and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            texts = column.cast(pa.string())
            arrays[name] = names_of_texts(texts, own) if column_type == "name" else texts
        else:
            arrays[name], odd = column_of_values(column.to_pylist(), column_type, own)
            wrong += odd
    return Batch(pa.table(arrays), own, wrong)
