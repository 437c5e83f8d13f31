"""Gives the rows of a Parquet file their steps again: by newer rules, or by what the user calls a step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit import store
from tracekit.arrays import ABSENT, TEXT, Int64s, int32_array, integers, numbers, one_array
from tracekit.event_table import EventWriter, event_schema
from tracekit.footer import Footer
from tracekit.step_sources import Query, steps_in_table
from tracekit.steps import NONE, RULES, Membership, Ranges

_LAUNCHES = "SELECT id, rank, pid, tid, ts, dur FROM events WHERE kind = 'launch' ORDER BY id"
_DEVICE_KINDS = frozenset({"kernel", "memcpy", "memset", "graph", "sync", "gpu_annotation"})


def needs_steps(footer: Footer, step_range: str | None) -> bool:
    """Whether a file has other steps than these rules give. step_range: None for that of the file."""
    return footer.step_rules != RULES or step_range not in {None, footer.step_range}


def restep(path: Path, out: Path, step_range: str | None) -> Footer:
    """Write the Parquet file `path` with its steps found anew to `out`, all else as it is; returns the footer.

    step_range: None for that of the file. Raises UsageError if it is no regular expression.
    """
    footer = store.read_footer(path)
    wanted = footer.step_range if step_range is None else step_range
    connection = store.connect(path, footer)
    try:
        column = StepColumn(partial(store.table, connection), wanted)
    finally:
        connection.close()
    schema = event_schema()
    file = pq.ParquetFile(path, read_dictionary=[one.name for one in schema if one.type == TEXT])
    writer = EventWriter(out, force=True)
    try:
        with file:
            for group in range(file.num_row_groups):
                writer.write(column.put(file.read_row_group(group).select(schema.names)))
        restepped = replace(footer, step_rules=RULES, step_range=wanted)
        writer.finish(restepped)
    finally:
        writer.abandon()
    return restepped


class StepColumn:
    """The column `step` of an event table. query: runs SQL over the table as `events`."""

    def __init__(self, query: Query, step_range: str | None) -> None:
        self._membership = Membership(steps_in_table(query, step_range, strict=True))
        launches = query(_LAUNCHES) if self._membership else None
        self._launch_id: Int64s = np.empty(0, np.int64)
        self._launch_step: Int64s = np.empty(0, np.int64)
        if launches is not None:
            self._launch_id = numbers(launches, "id")
            self._launch_step = self._membership.of(_ranges(launches))

    def put(self, rows: pa.Table) -> pa.Table:
        """Rows of the table with their column filled."""
        kind = one_array(rows.column("kind")).dictionary_encode() if rows.num_rows else None
        if kind is None:
            return rows
        on_device = np.array([name in _DEVICE_KINDS for name in kind.dictionary.to_pylist()], np.bool_)
        device = on_device[integers(kind.indices)]
        step = np.where(device, self._of_launches(numbers(rows, "launch_id", NONE)), self._membership.of(_ranges(rows)))
        place = rows.schema.get_field_index("step")
        return rows.set_column(place, rows.schema.field(place), int32_array(step, step == NONE))

    def _of_launches(self, launch_id: Int64s) -> Int64s:
        if not len(self._launch_id):
            return np.full(len(launch_id), NONE)
        place = np.minimum(np.searchsorted(self._launch_id, launch_id), len(self._launch_id) - 1)
        return np.where(self._launch_id[place] == launch_id, self._launch_step[place], NONE)


def _ranges(rows: pa.Table) -> Ranges:
    return Ranges(*(numbers(rows, name, ABSENT) for name in ("id", "rank", "pid", "tid", "ts", "dur")))
