"""Where rows wait between being read and being linked: sorted runs on disk, mapped into memory slice by slice.

A run holds rows of one class from one piece of one source, sorted by start. Since runs are sorted, any window of time
is a slice of each; reading a window touches only its own pages, whatever order the source had its events in.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import Bools, Int64s, int64_array, integers, one_array

# Classes of rows that share their columns. Order matters: on a tie of start and end, the earlier class encloses.
HOST_CLASSES = ("python", "host", "launch", "other")
DEVICE_CLASSES = ("device",)


@dataclass(frozen=True, slots=True)
class Run:
    """One sorted file. Times are the source's own nanoseconds; `last_end` counts rows that have an end."""

    path: Path
    rows: int
    first_ts: int
    last_ts: int
    last_end: int


class Spool:
    """The runs of one source, by class."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runs: dict[str, list[Run]] = {name: [] for name in HOST_CLASSES + DEVICE_CLASSES}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def write(self, table: pa.Table) -> Run | None:
        """Store a table sorted by `ts`; it counts only after `accept`. None for an empty table. Thread-safe.

        Texts may be plain or dictionary-encoded; what links rows counts on the latter.
        """
        if not table.num_rows:
            return None
        table = _encoded(table)
        with self._lock:
            path = self.directory / f"{next(self._numbers)}.arrow"
        table = table.combine_chunks()
        ts, duration = (integers(one_array(table.column(name))) for name in ("ts", "dur"))
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return Run(path, table.num_rows, int(ts[0]), int(ts[-1]), int((ts + np.maximum(duration, 0)).max()))

    def accept(self, row_class: str, run: Run | None) -> None:
        """Count a run in."""
        if run is not None:
            self.runs[row_class].append(run)

    @staticmethod
    def discard(run: Run | None) -> None:
        """Forget a run that came from a piece cut in the wrong place."""
        if run is not None:
            run.path.unlink()

    def rows(self, classes: Sequence[str]) -> int:
        """How many rows the classes have."""
        return sum(run.rows for name in classes for run in self.runs[name])

    def first_ts(self) -> int | None:
        """Start of the earliest row of all."""
        return min((run.first_ts for runs in self.runs.values() for run in runs), default=None)

    def last_end(self) -> int:
        """End of the row that ends last; 0 without rows."""
        return max((run.last_end for runs in self.runs.values() for run in runs), default=0)

    def column(self, row_class: str, name: str) -> pa.Array:
        """One column of all rows of a class, run by run; NULL where a run has no such column."""
        parts: list[pa.Array] = []
        for run in self.runs[row_class]:
            table = _open(run.path)
            has = name in table.column_names
            parts.append(table.column(name).combine_chunks() if has else pa.nulls(run.rows))
        types = {part.type for part in parts if not pa.types.is_null(part.type)}
        if not types:
            return pa.nulls(sum(map(len, parts)))
        chunks = [pc.cast(part, next(iter(types))) for part in parts]
        return pa.chunked_array(chunks).unify_dictionaries().combine_chunks()

    def each(self, row_class: str, names: Sequence[str]) -> Iterator[pa.Table]:
        """The runs of a class, one by one, with those of the columns that they have."""
        for run in self.runs[row_class]:
            table = _open(run.path)
            yield table.select([name for name in names if name in table.column_names])

    def keep(self, row_class: str, wanted: Callable[[pa.Table], Bools]) -> int:
        """Forget the rows of a class that are not wanted; returns how many they were."""
        before = self.rows((row_class,))
        runs, self.runs[row_class] = self.runs[row_class], []
        for run in runs:
            table = _open(run.path)
            chosen = np.flatnonzero(wanted(table))
            if len(chosen) == run.rows:
                self.accept(row_class, run)
            else:
                self.accept(row_class, self.write(table.take(int64_array(chosen))))
                self.discard(run)
        return before - self.rows((row_class,))

    def take_all(self, row_class: str) -> Iterator[pa.Table]:
        """The runs of a class, one by one; they are no longer in this spool then."""
        runs, self.runs[row_class] = self.runs[row_class], []
        for run in runs:
            yield _open(run.path)
            self.discard(run)

    def windows(self, classes: Sequence[str], rows: int) -> list[tuple[int, int]]:
        """Half-open windows of time with about `rows` rows each, which together hold every row of the classes.

        Rows of one instant stay together, so a window can be larger.
        """
        runs = [run for name in classes for run in self.runs[name]]
        if not runs:
            return []
        total = sum(run.rows for run in runs)
        stride = max(1, rows // 64)
        # Every stride-th start of each run stands for `stride` rows: enough to find quantiles of the whole.
        samples = np.sort(np.concatenate([_starts(run)[::stride] for run in runs]))
        count = max(1, -(-total // rows))
        inner = np.unique(samples[np.arange(1, count) * len(samples) // count])
        first = min(run.first_ts for run in runs)
        edges = [first, *(int(edge) for edge in inner if edge > first), max(run.last_ts for run in runs) + 1]
        return list(itertools.pairwise(edges))

    def read(self, row_class: str, window: tuple[int, int]) -> pa.Table | None:
        """The rows of a class that start within a half-open window; None if there are none."""
        slices: list[pa.Table] = []
        for run in self.runs[row_class]:
            if run.first_ts >= window[1] or run.last_ts < window[0]:
                continue
            table = _open(run.path)
            low, high = np.searchsorted(integers(table.column("ts").chunk(0)), window)
            if high > low:
                slices.append(table.slice(low, high - low))
        if not slices:
            return None
        return pa.concat_tables(slices, promote_options="default").unify_dictionaries().combine_chunks()


def _encoded(table: pa.Table) -> pa.Table:
    for position, column in enumerate(table.schema):
        if pa.types.is_string(column.type):
            table = table.set_column(position, column.name, table.column(position).dictionary_encode())
    return table


def _open(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def _starts(run: Run) -> Int64s:
    return integers(_open(run.path).column("ts").chunk(0))
