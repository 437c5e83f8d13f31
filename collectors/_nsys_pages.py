"""Read a SQLite table from the pages of its file, thousands of rows at a time, without asking SQLite for each value.

Only what is plain: a table with row numbers whose rows lie whole on their leaf pages; integers, texts in UTF-8, NULL.
For anything else the answer is None, and SQLite, which knows all cases, reads the rows: it is also the one to say what
is wrong with a damaged file. The layout is documented at sqlite.org/fileformat2.html, by whose terms things are named.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.arrays import Bools, Int64s, int64_array, text_array

Bytes = npt.NDArray[np.uint8]
Types = Bytes | Int64s

_INTERIOR, _LEAF = 0x05, 0x0D
_HEADER = {_INTERIOR: 12, _LEAF: 8}
_DEEPEST = 12
_TAIL = 1 << 15  # bytes behind the last page: a damaged record leads that far, with 2000 columns, until it is found out
_LONGEST_VARINT = 8  # a ninth byte would be of another shape; only numbers beyond 2**56 have one
# By serial type: bytes of a value; 10 and 11 are reserved, from 12 on blobs and texts take turns.
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0], np.int64)
_REAL, _ONE, _RESERVED, _FIRST_BLOB = 7, 9, 10, 12


@dataclass(frozen=True, slots=True)
class Leaves:
    """The leaf pages of a table, in the order of its rows. upto: the highest row number that each may hold."""

    pages: Int64s
    upto: Int64s


class PageFile:
    """The pages of a database. Whoever uses it holds a lock, so that no page changes.

    The file stays open as long as that: to close it would release the locks that SQLite has on it in this process.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("rb", buffering=0)
        head = self._file.read(100)
        size = int.from_bytes(head[16:18], "big")
        self.page_bytes = 1 << 16 if size == 1 else size
        self._usable = self.page_bytes - head[20]
        self._pages = path.stat().st_size // self.page_bytes if self.page_bytes else 0
        self.plain = head[56:60] == b"\0\0\0\1" and head[18:20] in {b"\1\1", b"\2\2"} and self.page_bytes >= 512

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def leaves(self, root: int) -> Leaves | None:
        """The leaves below a root page."""
        pages, upto = np.array([root]), np.array([np.iinfo(np.int64).max])
        for _ in range(_DEEPEST):
            data = self._read(pages[:1])
            if data is None:
                return None
            if data[0] == _LEAF:
                return Leaves(pages, upto)
            data = self._read(pages)
            below = None if data is None else self._children(data, upto)
            if below is None:
                return None
            pages, upto = below
        return None

    def columns(self, pages: Int64s, wanted: Mapping[int, bool]) -> dict[int, pa.Array] | None:
        """Columns of all rows of leaf pages, by their place in the table; None if a row is not plain.

        wanted: whether each is one of texts.
        """
        data = self._read(pages)
        cells = None if data is None else self._cells(data, len(pages), _LEAF)
        if data is None or cells is None:
            return None
        found: dict[int, pa.Array] = {}
        records = _Records.at(data, cells, self._usable, self.page_bytes)
        if records is None:
            return None
        for place in range(max(wanted) + 1):
            types = records.next_types()
            if types is None:
                return None
            if place in wanted:
                column = records.texts(types) if wanted[place] else records.integers(types)
                if column is None:
                    return None
                found[place] = column
            records.skip(types)
        return found if records.were_whole() else None

    def _read(self, pages: Int64s) -> Bytes | None:
        """Pages one behind the other, in one piece."""
        if len(pages) == 0 or pages.min() < 1 or pages.max() > self._pages:
            return None
        data = np.zeros(len(pages) * self.page_bytes + _TAIL, np.uint8)
        breaks = (np.flatnonzero(np.diff(pages) != 1) + 1).tolist()
        with self._lock:
            for first, last in zip([0, *breaks], [*breaks, len(pages)], strict=True):
                part = data[first * self.page_bytes : last * self.page_bytes]
                self._file.seek((int(pages[first]) - 1) * self.page_bytes)
                if self._file.readinto(part.data) != len(part):
                    return None
        return data

    def _cells(self, data: Bytes, pages: int, kind: int) -> Int64s | None:
        """Where the cells of pages begin, which all are of one kind."""
        starts = np.arange(pages) * self.page_bytes
        counts = _big_endian(data, starts + 3, 2)
        if (data[starts] != kind).any() or (counts * 2 > self._usable - _HEADER[kind]).any():
            return None
        before = np.cumsum(counts) - counts
        number = np.arange(int(counts.sum())) - np.repeat(before, counts)
        page = np.repeat(starts, counts)
        pointers = _big_endian(data, page + _HEADER[kind] + 2 * number, 2)
        inside = (pointers >= _HEADER[kind]) & (pointers < self._usable - 3)
        return page + pointers if inside.all() else None

    def _children(self, data: Bytes, upto: Int64s) -> tuple[Int64s, Int64s] | None:
        """The pages below interior pages, each with the highest row number that it may hold."""
        cells = self._cells(data, len(upto), _INTERIOR)
        if cells is None:
            return None
        keys, sizes = _varints(data, cells + 4)
        if sizes.max(initial=0) > _LONGEST_VARINT:
            return None
        starts = np.arange(len(upto)) * self.page_bytes
        # The child at the right of all cells of a page stands in its header.
        page = np.concatenate([cells // self.page_bytes, np.arange(len(upto))])
        children = np.concatenate([_big_endian(data, cells, 4), _big_endian(data, starts + 8, 4)])
        limits = np.concatenate([keys, upto])
        order = np.lexsort((limits, page))
        return children[order], limits[order]


@dataclass(slots=True)
class _Records:
    """Records of one batch, walked column by column: where the next serial type and the next value of each stand."""

    data: Bytes
    type_at: Int64s
    types_end: Int64s
    value_at: Int64s
    end: Int64s

    @classmethod
    def at(cls, data: Bytes, cells: Int64s, usable: int, page_bytes: int) -> _Records | None:
        """The records in cells of leaf pages; None if one is not whole on its page."""
        payload, payload_size = _varints(data, cells)
        _, row_size = _varints(data, cells + payload_size)
        start = cells + payload_size + row_size
        header, header_size = _varints(data, start)
        end = start + payload
        page_end = cells // page_bytes * page_bytes + usable
        whole = (payload_size < _LONGEST_VARINT) & (header_size < 3) & (header <= payload) & (payload >= 0)
        whole &= (payload <= usable - 35) & (end <= page_end)
        return cls(data, start + header_size, start + header, start + header, end) if whole.all() else None

    def next_types(self) -> Types | None:
        """The serial types of the next column; None if they are none, or a long value would not lie in its record."""
        types: Types = self.data[self.type_at]
        highest = types.max(initial=0)
        if highest < 0x80:
            self.type_at += 1
        else:
            types, sizes = _varints(self.data, self.type_at)
            self.type_at += sizes
            if sizes.max() >= _LONGEST_VARINT:
                return None
        if highest >= _RESERVED and (
            (types == _RESERVED).any()
            or (types == _RESERVED + 1).any()
            or (self.value_at + _sizes(types) > self.end).any()
        ):
            return None
        return types

    def skip(self, types: Types) -> None:
        """Go behind the values of these types."""
        self.value_at += _sizes(types)

    def were_whole(self) -> bool:
        """Whether all that was read was within its record."""
        return bool((self.type_at <= self.types_end).all() and (self.value_at <= self.end).all())

    def integers(self, types: Types) -> pa.Array | None:
        """The values as integers; None if there is another."""
        if (types >= _FIRST_BLOB).any() or (types == _REAL).any():
            return None
        null = types == 0
        if null.all():
            return pa.nulls(len(types), pa.int64())
        sizes = _sizes(types)
        if np.ndim(sizes) == 0 and sizes == 0:
            return int64_array(np.full(len(types), types[0] == _ONE, np.int64))
        # The number and what follows it, eight bytes in all; then what follows is shifted out.
        values = np.ndarray(len(self.data) - 7, ">i8", self.data.data, strides=(1,))[self.value_at].astype(np.int64)
        values >>= 64 - 8 * np.maximum(sizes, 1)
        if np.ndim(sizes):
            short = sizes == 0
            values[short] = types[short] == _ONE
        return int64_array(values, null if null.any() else None)

    def texts(self, types: Types) -> pa.Array | None:
        """The values as texts; None if there is another."""
        null = types == 0
        if null.all():
            return pa.nulls(len(types), pa.string())
        if not (null | ((types > _FIRST_BLOB) & (types % 2 == 1))).all():
            return None
        lengths = np.where(null, 0, _sizes(types))
        place = np.repeat(self.value_at - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))
        return _texts(self.data[place].tobytes(), lengths, null)


def _sizes(types: Types) -> Int64s | np.int64:
    """Bytes of the values of some types; one number if all are the same."""
    if (types == types[:1]).all():
        types = types[:1]
    highest = types.max(initial=0)
    sizes = _SIZES[types] if highest < _RESERVED else _sizes_of_any(types.astype(np.int64))
    return sizes[0] if len(sizes) == 1 else sizes


def _sizes_of_any(types: Int64s) -> Int64s:
    return np.where(types < _FIRST_BLOB, _SIZES[np.minimum(types, _ONE)], (types - _FIRST_BLOB) >> 1)


def _big_endian(data: Bytes, at: Int64s, size: int) -> Int64s:
    """Unsigned numbers of a few bytes."""
    value = data[at].astype(np.int64)
    for place in range(1, size):
        value = value << 8 | data[at + place]
    return value


def _varints(data: Bytes, at: Int64s) -> tuple[Int64s, Int64s]:
    """Numbers of variable length and their lengths in bytes; those of more than eight are not whole."""
    byte = data[at]
    value = (byte & 0x7F).astype(np.int64)
    size = np.ones(len(at), np.int64)
    more = np.flatnonzero(byte >= 0x80)
    while len(more):
        where = at[more] + size[more]
        more, where = more[where < len(data)], where[where < len(data)]
        byte = data[where]
        value[more] = value[more] << 7 | (byte & 0x7F)
        size[more] += 1
        more = more[(byte >= 0x80) & (size[more] <= _LONGEST_VARINT)]
    return value, size


def _texts(joined: bytes, lengths: Int64s, null: Bools) -> pa.Array:
    """Texts that stand one behind the other in `joined`. What is not UTF-8 is replaced as `bytes.decode` does."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    validity = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
    buffers = [validity, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(joined)]
    texts = pa.Array.from_buffers(pa.string(), len(lengths), buffers)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        pieces = [joined[start:end].decode(errors="replace") for start, end in itertools.pairwise(ends)]
        texts = pa.Array.from_buffers(pa.string(), len(lengths), [validity, *text_array(pieces).buffers()[1:]])
    return texts
