"""What does a file that Nsight Systems exported hold, whatever its container? Tables of integers and texts, by batches.

`SqliteExport` and `ParquetExport` give the same batches; all that makes events of them is written once, behind this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import pyarrow as pa

from tracekit.arrays import int64_array, integers, is_null

BATCH_ROWS = 1 << 16

# What a column is read as. "name": a text, for which almost every export has its id in StringIds.
ColumnType = Literal["integer", "name", "text"]
Value = int | float | str | None

FIRST_OWN = -2  # names that are no ids: -2 is the first of Batch.own, -3 the second


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a table: those with numbers from `first` to `last`; None: all, in the order they come."""

    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of one table, columns as asked for; what the file lacks is NULL.

    table: integers as int64, texts as string, names as int64: ids in StringIds, or from FIRST_OWN downwards places in
    `own`. wrong: values that were of another type, and are NULL.
    """

    table: pa.Table
    own: list[str] = field(default_factory=list)
    wrong: int = 0


class Export(Protocol):
    """An exported file. Tables and columns are asked for by the names that the file has for them."""

    @property
    def path(self) -> Path:
        """The file, for messages."""
        ...

    @property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """Columns by table."""
        ...

    def parts(self, table: str) -> list[Part]:
        """The table in parts that can be read side by side."""
        ...

    def batches(self, table: str, part: Part, columns: Mapping[str, ColumnType]) -> Iterator[Batch]:
        """The rows of a part. Raises MalformedTraceError, with the place, where the file cannot be read."""
        ...

    def count(self, table: str) -> int:
        """How many rows a table has."""
        ...

    def small(self, table: str, columns: Sequence[str], where: tuple[str, Sequence[int]] | None = None) -> list[Row]:
        """All rows of a small table, sorted; or those of any table in which a column has one of some values."""
        ...

    def strings(self, ids: Sequence[int]) -> dict[int, str]:
        """Texts of StringIds by id; ids without a text are left out."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


Row = tuple[Value, ...]


def name_ids(column: pa.Array) -> pa.Array:
    """Ids of names as recorded; what is below 0 is none."""
    values = integers(column)
    null = is_null(column) | (values < 0)
    return int64_array(values, null) if null.any() else column


def names_of_texts(texts: pa.Array, own: list[str]) -> pa.Array:
    """Texts as names: each gets a place in `own`, which grows by the distinct ones."""
    encoded = texts.dictionary_encode()
    first = FIRST_OWN - len(own)
    own += encoded.dictionary.to_pylist()
    null = is_null(encoded.indices)
    return int64_array(first - integers(encoded.indices), null if null.any() else None)


def column_of_values(values: Sequence[object], column_type: ColumnType, own: list[str]) -> tuple[pa.Array, int]:
    """A column of Python values, each of whatever type, and how many were of the wrong one. No text is no value."""
    if column_type == "text":
        texts = [None if value is None else _text(value) for value in values]
        return pa.array(texts, pa.string()), 0
    numbers: list[int | None] = []
    wrong = 0
    for value in values:
        number = _integer(value)
        if value == "":
            number = None
        elif number is None and column_type == "name" and isinstance(value, str):
            own.append(value)
            number = FIRST_OWN - len(own) + 1
        elif number is None and value is not None:
            wrong += 1
        elif number is not None and column_type == "name" and number < 0:
            number = None
        numbers.append(number)
    return pa.array(numbers, pa.int64()), wrong


def _integer(value: object) -> int | None:
    """An integer that a column holds as such, as a number with a point, or as digits."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and -(1 << 63) <= value < 1 << 63 else None


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
