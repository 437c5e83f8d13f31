"""Two profilers over one run: whose rows are of one process, by how much do their clocks differ, what is there twice?

torch.profiler knows ops and shapes, Nsight Systems the device and the system. Where files of both hold one process at
one time, its rows are linked as if one profiler had recorded them. Both put their times on the clock of the system, but
not to the microsecond; ranges that both recorded (`tracekit.step` makes such) tell the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tracekit.arrays import Bools, Int64s, int64_array, integers, numbers, one_array, text_array
from tracekit.clocks import SLACK_NS, Starts, agree
from tracekit.ranks import Same
from tracekit.source import SourceRead
from tracekit.spool import DEVICE_CLASSES, HOST_CLASSES

DEVICE_TWICE = "device work and API calls that another profiler recorded too"
RANGES_TWICE = "ranges that another profiler recorded too"
LEFT_APART = "files that may be of the same process as several others, left apart"
_FIRST_PROCESS = 1 << 14  # numbers of processes that a reader has not given


@dataclass(frozen=True, slots=True)
class Clocks:
    """How the clocks of two files compare.

    anchors: ranges that both have. offset_ns: what was added to the times of `file`, the median of what `reference` is
    later by; spread_ns: nine of ten deviate by no more from it. Without anchors both clocks are taken as they are.
    """

    file: str
    reference: str
    anchors: int
    offset_ns: int
    spread_ns: int


def same_processes(sources: Sequence[SourceRead]) -> tuple[list[Same], int]:
    """For each file of one process, the file of another profiler that has it too, at the same time, and its label.

    Also: of how many files that cannot be told. On each machine, and in each container, the same numbers of processes
    come up; where they fit several files, ranks decide, if both files know theirs.
    """
    possible = [
        _Pair(holder, min(common), other)
        for holder in sources
        for other in sources
        if holder.pids and not other.pids and not other.labels and _meet(holder, other, SLACK_NS)
        if (common := _pids(other) & holder.pids.keys())
    ]
    certain = [pair for pair in possible if pair.one_rank or not any(map(pair.denies, possible))]
    chosen: dict[int, _Pair] = {}
    for pair in certain:
        if not any(map(pair.denies, certain)):
            before = chosen.setdefault(id(pair.other), pair)
            if pair.overlap_ns > before.overlap_ns:
                chosen[id(pair.other)] = pair
    left = {id(pair.other) for pair in possible} - chosen.keys()
    return [(pair.holder, pair.holder.pids[pair.pid], pair.other) for pair in chosen.values()], len(left)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A file that may hold the one process of another."""

    holder: SourceRead
    pid: int
    other: SourceRead

    @property
    def one_rank(self) -> bool:
        """Whether both say that they are of the same rank."""
        return self.holder.rank is not None and self.holder.rank == self.other.rank

    @property
    def overlap_ns(self) -> int:
        """How long both were recorded."""
        (first, last), (begin, end) = _extent(self.holder), _extent(self.other)
        return min(last, end) - max(first, begin)

    def denies(self, pair: _Pair) -> bool:
        """Whether not both pairs can be true: a process is on one machine, and torch.profiler records it once."""
        if self.other is pair.other:
            return self.holder is not pair.holder and _meet(self.holder, pair.holder, 0)
        return self.holder is pair.holder and self.pid == pair.pid and _meet(self.other, pair.other, 0)


def merge(same: Same, number: int) -> Clocks:
    """Move the rows of the one process into the spool of the file that has it too, and drop what is there twice.

    number: of this pair. Changes both sources.
    """
    holder, label, other = same
    pids = _pids(other) & holder.pids.keys()
    clocks = _agree_on_time(holder, other, pids)
    _count_device_work_once(holder, label, other, pids)
    shift = other.base_ns - holder.base_ns
    for row_class in HOST_CLASSES + DEVICE_CLASSES:
        for table in other.spool.take_all(row_class):
            moved = _set(table, "ts", int64_array(numbers(table, "ts") + shift))
            if row_class in ("launch", "device"):
                moved = _set(moved, "process", int64_array(np.full(table.num_rows, _FIRST_PROCESS + number)))
            if label is not None:
                moved = _set(moved, "label", text_array([label]).take(int64_array(np.zeros(table.num_rows, np.int64))))
            holder.spool.accept(row_class, holder.spool.write(moved))
    return clocks


def _meet(one: SourceRead, other: SourceRead, slack_ns: int) -> bool:
    """Whether two files overlap in time, so far as they know the time of day."""
    (first, last), (begin, end) = _extent(one), _extent(other)
    return bool(one.base_ns and other.base_ns) and first <= end + slack_ns and begin <= last + slack_ns


def _extent(source: SourceRead) -> tuple[int, int]:
    return (source.spool.first_ts() or 0) + source.base_ns, source.spool.last_end() + source.base_ns


def _pids(source: SourceRead) -> set[int]:
    pids = set(source.pids)
    for row_class in HOST_CLASSES:
        for table in source.spool.each(row_class, ("ts", "pid")):
            pids.update(np.unique(numbers(table, "pid")).tolist())
    return pids


# ---- clocks ----------------------------------------------------------------------------------------------------------


def _agree_on_time(holder: SourceRead, other: SourceRead, pids: set[int]) -> Clocks:
    """Correct the clock of `other` by the ranges that both have, and drop those from `holder`."""
    shift = other.base_ns - holder.base_ns
    theirs = {key: starts + shift for key, starts in _ranges(other, pids).items()}
    found = agree(_ranges(holder, pids), theirs)
    other.base_ns += found.offset_ns
    dropped = holder.spool.keep("host", lambda table: ~_among(table, pids, found.mine))
    if dropped:
        holder.skipped[RANGES_TWICE] += dropped
    return Clocks(other.path.name, holder.path.name, found.anchors, found.offset_ns, found.spread_ns)


def _ranges(source: SourceRead, pids: set[int]) -> dict[tuple[int, str], Int64s]:
    """Starts of the annotations of some processes, ascending, by thread and name."""
    found: dict[tuple[int, str], list[Int64s]] = {}
    for table in source.spool.each("host", ("kind", "name", "ts", "pid", "tid")):
        ts = numbers(table, "ts")
        for key, rows in _annotations(table, pids):
            found.setdefault(key, []).append(ts[rows])
    return {key: np.sort(np.concatenate(parts)) for key, parts in found.items()}


def _annotations(table: pa.Table, pids: set[int]) -> Iterator[tuple[tuple[int, str], Int64s]]:
    """The annotations of some processes in a run, by thread and name."""
    kind, name, tid = one_array(table.column("kind")), one_array(table.column("name")), numbers(table, "tid")
    if "annotation" not in kind.dictionary.to_pylist():
        return
    wanted = integers(kind.indices) == kind.dictionary.to_pylist().index("annotation")
    rows = np.flatnonzero(wanted & np.isin(numbers(table, "pid"), list(pids)))
    code = integers(name.indices)
    rows = rows[np.lexsort((rows, code[rows], tid[rows]))]
    changes = (code[rows][1:] != code[rows][:-1]) | (tid[rows][1:] != tid[rows][:-1])
    for group in np.split(rows, np.flatnonzero(changes) + 1):
        if len(group):
            yield (int(tid[group[0]]), name.dictionary[int(code[group[0]])].as_py()), group


def _among(table: pa.Table, pids: set[int], starts: Starts) -> Bools:
    """Which rows of a run are annotations with one of these starts."""
    found = np.zeros(table.num_rows, np.bool_)
    ts = numbers(table, "ts")
    for key, rows in _annotations(table, pids):
        if key in starts:
            found[rows] = np.isin(ts[rows], starts[key])
    return found


# ---- device work -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Recording:
    """The device work of one process, and its API calls, in one of two files. chosen: its rows, by class."""

    source: SourceRead
    chosen: Mapping[str, Callable[[pa.Table], Bools]]

    def rows(self) -> int:
        """How many device rows there are."""
        each = self.source.spool.each("device", ("ts", "label"))
        return sum(int(self.chosen["device"](table).sum()) for table in each)

    def extent(self) -> tuple[int, int]:
        """When the first of them began and the last one ended, by the time of day."""
        first, last = [], []
        for row_class, chosen in self.chosen.items():
            for table in self.source.spool.each(row_class, ("ts", "dur", "label", "pid")):
                rows = np.flatnonzero(chosen(table))
                if len(rows):
                    ts = numbers(table, "ts")[rows] + self.source.base_ns
                    first.append(int(ts.min()))
                    last.append(int((ts + np.maximum(numbers(table, "dur")[rows], 0)).max()))
        return min(first), max(last)

    def forget(self, extent: tuple[int, int]) -> None:
        """Drop the rows that begin within a time."""
        times = extent[0] - self.source.base_ns, extent[1] - self.source.base_ns
        for row_class, chosen in self.chosen.items():
            dropped = self.source.spool.keep(row_class, _others(chosen, times))
            if dropped:
                self.source.skipped[DEVICE_TWICE] += dropped


def _others(chosen: Callable[[pa.Table], Bools], times: tuple[int, int]) -> Callable[[pa.Table], Bools]:
    """Which rows are not chosen, or begin at another time."""

    def others(table: pa.Table) -> Bools:
        ts = numbers(table, "ts")
        found: Bools = (ts < times[0]) | (ts > times[1]) | ~chosen(table)
        return found

    return others


def _count_device_work_once(holder: SourceRead, label: str | None, other: SourceRead, pids: set[int]) -> None:
    """Of the device work that two files have of one process, keep that of the file with more rows, and its API calls.

    Only while both recorded it: one profiler may have taken turns with the other.
    """
    mine = _Recording(
        holder,
        {
            "device": lambda table: _of_label(table, label),
            "launch": lambda table: np.isin(numbers(table, "pid"), list(pids)),
        },
    )
    theirs = _Recording(other, dict.fromkeys(("device", "launch"), lambda table: np.ones(table.num_rows, np.bool_)))
    if mine.rows() and theirs.rows():
        more, less = (mine, theirs) if mine.rows() >= theirs.rows() else (theirs, mine)
        less.forget(more.extent())


def _of_label(table: pa.Table, label: str | None) -> Bools:
    """Which device rows are of the process with this label; of a file without labels, all."""
    if label is None:
        return np.ones(table.num_rows, np.bool_)
    column = one_array(table.column("label"))
    labels = column.dictionary.to_pylist() if pa.types.is_dictionary(column.type) else []
    if label not in labels:
        return np.zeros(table.num_rows, np.bool_)
    matches: Bools = integers(column.indices, -1) == labels.index(label)
    return matches


def _set(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    if name == "label":
        values = values.dictionary_encode()
    if name in table.column_names:
        return table.set_column(table.schema.get_field_index(name), name, values)
    return table.append_column(name, values)
