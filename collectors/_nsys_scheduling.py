"""When was a thread off the CPU? From the moments at which the scheduler took it off and put it back.

The export has a row for each moment, in any order; a time off the CPU is made of two that follow on one thread. The
moments of one table are held in memory at once, 24 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from tracekit.arrays import int32_array, int64_array, integers, is_null, one_array, text_array
from tracekit.collectors._nsys_export_batches import Batch, ColumnType
from tracekit.collectors._nsys_rows import TO_DATE, Made, RowMaker

COLUMNS: dict[str, ColumnType] = dict.fromkeys(("start", "isSchedIn", "globalTid"), "integer")
OFF_CPU = "off CPU"


def off_cpu(table: str, batches: Iterable[Batch], maker: RowMaker) -> Made:
    """Store the times off the CPU of all rows of a table. The last of a thread lasts until the recording ends."""
    made = Made()
    parts: list[pa.Table] = []
    for batch in batches:
        made.read += batch.table.num_rows
        whole = ~np.any([is_null(one_array(batch.table.column(name))) for name in COLUMNS], axis=0)
        start = integers(one_array(batch.table.column("start")))
        whole &= (start > -TO_DATE) & (start < TO_DATE)
        made.skipped[f"unusable time in {table}"] += int((~whole).sum())
        parts.append(batch.table.take(int64_array(np.flatnonzero(whole))))
    if not parts:
        return made
    moments = pa.concat_tables(parts).combine_chunks()
    del parts
    start, is_in, thread = (integers(one_array(moments.column(name))) for name in COLUMNS)
    order = np.lexsort((is_in, start, thread))
    start, is_in, thread = start[order], is_in[order] != 0, thread[order]
    last = np.ones(len(thread), np.bool_)
    last[:-1] = thread[1:] != thread[:-1]
    returns = np.zeros(len(thread), np.bool_)  # whether the next row puts the same thread back
    returns[:-1] = is_in[1:] & ~last[:-1]
    begun = ~is_in & (returns | last)
    made.skipped[f"{table}: end of a time off the CPU, joined with its beginning"] += int(is_in.sum())
    made.skipped[f"{table}: beginning of a time off the CPU whose end is not recorded"] += int((~is_in & ~begun).sum())
    unended = (last & ~is_in)[begun]
    end = np.roll(start, -1)
    if begun.any():
        columns = {
            "ts": int64_array(start[begun]),
            "dur": int64_array(np.where(unended, 0, end[begun] - start[begun]), unended if unended.any() else None),
            "kind": _constant("os", int(begun.sum())),
            "name": _constant(OFF_CPU, int(begun.sum())),
        }
        maker.write("other", columns, thread[begun], made)
    return made


def _constant(text: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(int32_array(np.zeros(rows, np.int32)), text_array([text]))
