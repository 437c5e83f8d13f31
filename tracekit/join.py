"""Two profilers over one run: whose rows are of one process, by how much do their clocks differ, what is there twice?

torch.profiler knows ops and shapes, Nsight Systems the device and the system. Where files of both hold one process at
one time, its rows are linked as if one profiler had recorded them. Both put their times on the clock of the system, but
not to the microsecond; ranges that both recorded (`tracekit.step` makes such) tell the difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tracekit.arrays import Bools, Int64s, int64_array, integers, numbers, one_array, text_array
from tracekit.ranks import Same
from tracekit.source import SourceRead
from tracekit.spool import DEVICE_CLASSES, HOST_CLASSES

DEVICE_TWICE = "device work and API calls that another profiler recorded too"
RANGES_TWICE = "ranges that another profiler recorded too"
_SAME_RANGE_NS = 1_000_000  # how far the starts of one range may differ, once the clocks agree
_SLACK_NS = 1_000_000_000  # how far the clocks of one machine may be apart, at most
_FIRST_PROCESS = 1 << 14  # numbers of processes that a reader has not given


@dataclass(frozen=True, slots=True)
class Clocks:
    """How the clocks of two files compare.

    anchors: ranges that both have. offset_ns: what was added to the times of `file`, the median of what `reference` is
    later by; spread_ns: the largest deviation from it. Without anchors both clocks are taken as they are.
    """

    file: str
    reference: str
    anchors: int
    offset_ns: int
    spread_ns: int


def same_processes(sources: Sequence[SourceRead]) -> list[Same]:
    """For each file of one process, the file of another profiler that has it too, at the same time, and its label."""
    found: list[Same] = []
    for holder, other in itertools.permutations(sources, 2):
        if not holder.pids or other.pids or other.labels or not _meet(holder, other):
            continue
        common = sorted(_pids(other) & holder.pids.keys())
        if common and not any(one is other for _, _, one in found):
            found.append((holder, holder.pids[common[0]], other))
    return found


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


def _meet(one: SourceRead, other: SourceRead) -> bool:
    """Whether two files are of different profilers, know the time of day, and overlap in it."""
    if one.format == other.format or not (one.base_ns and other.base_ns):
        return False
    (first, last), (begin, end) = _extent(one), _extent(other)
    return first <= end + _SLACK_NS and begin <= last + _SLACK_NS


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
    mine, theirs = _ranges(holder, pids), _ranges(other, pids)
    pairs = [_paired(mine[key], theirs[key]) for key in sorted(mine.keys() & theirs.keys())]
    starts = np.concatenate([np.empty((2, 0), np.int64), *pairs], axis=1)
    late = starts[0] - starts[1] + holder.base_ns - other.base_ns
    offset = int(np.sort(late)[len(late) // 2]) if len(late) else 0
    close = np.abs(late - offset) <= _SAME_RANGE_NS
    anchors = int(close.sum())
    other.base_ns += offset
    twice = {key: np.intersect1d(mine[key], starts[0, close]) for key in mine.keys() & theirs.keys()}
    dropped = holder.spool.keep("host", lambda table: ~_among(table, pids, twice))
    if dropped:
        holder.skipped[RANGES_TWICE] += dropped
    spread = int(np.abs(late - offset)[close].max()) if anchors else 0
    return Clocks(other.path.name, holder.path.name, anchors, offset, spread)


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


def _paired(mine: Int64s, theirs: Int64s) -> Int64s:
    """Starts of ranges that are the same one, as two rows: in order if there are as many, else each other's nearest."""
    if len(mine) == len(theirs):
        return np.stack([mine, theirs])
    there, back = _nearest(mine, theirs), _nearest(theirs, mine)
    mutual = back[there] == np.arange(len(mine))
    return np.stack([mine[mutual], theirs[there[mutual]]])


def _nearest(values: Int64s, among: Int64s) -> Int64s:
    after = np.minimum(np.searchsorted(among, values), len(among) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(np.abs(among[before] - values) <= np.abs(among[after] - values), before, after)


def _among(table: pa.Table, pids: set[int], starts: dict[tuple[int, str], Int64s]) -> Bools:
    """Which rows of a run are annotations with one of these starts."""
    found = np.zeros(table.num_rows, np.bool_)
    ts = numbers(table, "ts")
    for key, rows in _annotations(table, pids):
        if key in starts:
            found[rows] = np.isin(ts[rows], starts[key])
    return found


# ---- device work -----------------------------------------------------------------------------------------------------


def _count_device_work_once(holder: SourceRead, label: str | None, other: SourceRead, pids: set[int]) -> None:
    """Of two recordings of the device work of one process keep the one with more rows, and its API calls."""
    if holder.labels and label is None:  # it has no device work of this process
        return
    mine = sum(int(_of_label(table, label).sum()) for table in holder.spool.each("device", ("ts", "label")))
    theirs = other.spool.rows(DEVICE_CLASSES)
    if not mine or not theirs:
        return
    if mine < theirs:
        dropped = holder.spool.keep("device", lambda table: ~_of_label(table, label))
        dropped += holder.spool.keep("launch", lambda table: ~np.isin(numbers(table, "pid"), list(pids)))
        holder.skipped[DEVICE_TWICE] += dropped
    else:
        for row_class in ("device", "launch"):
            other.skipped[DEVICE_TWICE] += other.spool.keep(row_class, lambda table: np.zeros(table.num_rows, np.bool_))


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
