"""Between Arrow and NumPy, without copying where there are no NULLs, and without pandas.

`pa.array`, `Array.to_numpy` and each Arrow function that is given a Python number or text import pandas, if it is
there, to see whether they were handed a Series. That takes a quarter of a second: half of what a small trace takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

TEXT = pa.dictionary(pa.int32(), pa.string())
ABSENT = np.iinfo(np.int64).min  # NULL, where an integer has to stand for it


def distinct(values: Int64s) -> Int64s:
    """Each value once, sorted. np.unique hashes first, which takes several times as long."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    once: Int64s = ordered[first]
    return once


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column in one piece."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def is_null(column: pa.Array) -> Bools:
    """Which values are NULL."""
    if pa.types.is_null(column.type):
        return np.ones(len(column), np.bool_)
    validity = column.buffers()[0] if column.null_count else None
    if validity is None:
        return np.zeros(len(column), np.bool_)
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), count=column.offset + len(column), bitorder="little")
    return np.logical_not(bits[column.offset :])


def integers(column: pa.Array, absent: int = 0) -> Int64s:
    """An integer column, `absent` where it is NULL."""
    if pa.types.is_null(column.type):
        return np.full(len(column), absent, np.int64)
    stored = np.frombuffer(column.buffers()[1], column.type.to_pandas_dtype())
    values = stored[column.offset : column.offset + len(column)].astype(np.int64, copy=False)
    return np.where(is_null(column), absent, values) if column.null_count else values


def numbers(table: pa.Table, name: str, absent: int = ABSENT) -> Int64s:
    """A column as integers, `absent` for NULL and for a column that no row has a value in."""
    if name not in table.column_names:
        return np.full(table.num_rows, absent)
    return integers(one_array(table.column(name)), absent)


def int64_array(values: Int64s, null: Bools | None = None) -> pa.Array:
    """Integers as an Arrow array, NULL where `null`."""
    validity = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(values, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(values), [validity, data])


def int32_array(values: npt.NDArray[np.signedinteger], null: Bools | None = None) -> pa.Array:
    """Small integers as an Arrow array, NULL where `null`."""
    validity = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(pa.int32(), len(values), [validity, pa.py_buffer(values.astype(np.int32))])


def text_array(values: Sequence[str]) -> pa.Array:
    """Texts as an Arrow array."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(encoded), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])


def compact(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same texts with a dictionary of those that occur."""
    used = column.indices.dictionary_encode()
    return pa.DictionaryArray.from_arrays(used.indices, column.dictionary.take(used.dictionary))
