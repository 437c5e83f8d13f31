"""Which kernels do the steps of a trace run? Its device rows as arrays, a step after the other, for config_work.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.arrays import Bools, Int64s
from tracekit.config_match import Kernel
from tracekit.step_marks import Composition

LOAD = tuple(field.name for field in fields(Composition))


@dataclass(frozen=True, slots=True)
class Steps:
    """Rows in order of rank, device, step and time. codes: which of `kernels` a row is. shown: rows to answer for."""

    ids: Int64s
    durations: Int64s
    codes: Int64s
    kernels: list[Kernel]
    shown: Bools
    starts: Int64s
    loads: pa.Table

    @classmethod
    def of(cls, rows: pa.Table, *, windows: bool) -> Steps | None:
        """Of the rows that config_work takes, None if none is in a step. windows: layers of the model have some."""
        rows = rows.filter(rows.column("step").is_valid())
        if not len(rows):
            return None
        keys = [_numbers(rows, name) for name in ("id", "ts", "step", "device", "rank")]
        order = np.lexsort(keys)
        ids, _, step, device, rank = (key[order] for key in keys)
        new = np.ones(len(order), np.bool_)
        new[1:] = (np.diff(rank) != 0) | (np.diff(device) != 0) | (np.diff(step) != 0)
        starts = np.flatnonzero(new).astype(np.int64)
        known, unsure = (_flags(rows, name)[order] for name in ("known", "unsure"))
        codes, kernels = _kernels(rows, order, known)
        loads = rows.select(LOAD).take(pa.array(order[starts]))
        return cls(ids, _numbers(rows, "dur")[order], codes, kernels, ~known | (unsure & windows), starts, loads)

    def spans(self) -> Iterator[tuple[int, int, Composition]]:
        """Of each step: where its rows begin and end, and what it works on."""
        ends = [*self.starts[1:].tolist(), len(self.ids)]
        loads = zip(*(self.loads.column(name).to_pylist() for name in LOAD), strict=True)
        for start, end, (phase, *numbers) in zip(self.starts.tolist(), ends, loads, strict=True):
            yield start, end, Composition(str(phase), *numbers)


def _flags(rows: pa.Table, name: str) -> Bools:
    """All false without the column."""
    if name not in rows.column_names:
        return np.zeros(len(rows), np.bool_)
    values: Bools = rows.column(name).fill_null(False).to_numpy().astype(np.bool_)
    return values


def _numbers(rows: pa.Table, name: str) -> Int64s:
    values: Int64s = rows.column(name).fill_null(-1).to_numpy().astype(np.int64)
    return values


def _kernels(rows: pa.Table, order: npt.NDArray[np.intp], known: Bools) -> tuple[Int64s, list[Kernel]]:
    """A number for each distinct kernel. By dictionaries: names are long, and each is there a million times."""
    codes, values = np.zeros(len(rows), np.int64), []
    for name in ("name", "category", "subcategory"):
        column = rows.column(name).cast(pa.string()).fill_null("").combine_chunks().dictionary_encode()
        column = column if isinstance(column, pa.DictionaryArray) else column.combine_chunks()
        values.append(column.dictionary.to_pylist())
        codes = codes * len(values[-1]) + column.indices.to_numpy().astype(np.int64)
    distinct, numbers = np.unique(codes[order] * 2 + known, return_inverse=True)
    kernels = []
    for code in distinct.tolist():
        rest, flag = divmod(code, 2)
        rest, subcategory = divmod(rest, len(values[2]))
        name, category = divmod(rest, len(values[1]))
        kernels.append(Kernel(values[0][name], values[1][category], values[2][subcategory], bool(flag)))
    return numbers.astype(np.int64), kernels
