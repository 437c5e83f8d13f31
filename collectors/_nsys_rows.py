"""How does a batch of an export become runs in the spool? SQL maps it, and what SQL does badly is done here."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from tracekit.arrays import Bools, Int64s, int32_array, int64_array, integers, is_null, one_array, text_array
from tracekit.collectors._nsys_export_batches import Batch
from tracekit.collectors._nsys_names import Names, tidy_names, tidy_texts
from tracekit.collectors._nsys_tables import Kind
from tracekit.spool import Run, Spool

NO_END = "no end recorded"
BACKWARDS = "end before start, taken as no duration"
WRONG_TYPE = "value of the wrong type, taken as missing"
REPLAYED = "replay whose kernels are recorded one by one"

WORK = ("kernel", "memcpy", "memset", "graph")

_CLASSES = {
    "kernel": "device",
    "memcpy": "device",
    "memset": "device",
    "graph": "device",
    "sync": "device",
    "launch": "launch",
    "annotation": "host",
    "op": "host",
}  # every other kind is in the class "other"
TO_DATE = 1 << 61  # ns: what is further from 0 is no time, and would not fit once it is moved to the epoch
_LONGEST = 1 << 50  # ns, 13 days: no event lasts longer, and sums of what does would not fit
_PID = (1 << 24) - 1
_PROCESSES = 1 << 15
_NOWHERE = np.iinfo(np.int64).max
_STATEMENT = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_SQL = Path(__file__).with_name("nsys_export.sql")
# Texts of the SQL's own making.
_CHECKED = frozenset({"kind", "copy_kind", "shapes"})


@dataclass(slots=True)
class Made:
    """What came of some rows of one table. work: lowest device that each process worked on; None if not recorded."""

    read: int = 0
    runs: list[tuple[str, Run | None]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    dropped_args: Counter[str] = field(default_factory=Counter)
    work: dict[int, int] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)


class Processes:
    """Small numbers for processes, in which correlations are unique. Thread-safe."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._lock = threading.Lock()

    def numbers(self, processes: Int64s) -> Int64s:
        """For each process its number."""
        distinct, place = np.unique(processes, return_inverse=True)
        with self._lock:
            found = [self._numbers.setdefault(process, len(self._numbers) + 1) for process in distinct.tolist()]
        return np.array(found, np.int64)[place] % _PROCESSES


class RowMaker:
    """Batches in, sorted runs out. lookups: small tables that the SQL joins. Thread-safe."""

    def __init__(self, spool: Spool, names: Names, lookups: Mapping[str, pa.Table]) -> None:
        text = _SQL.read_text(encoding="utf-8")
        self._statements = dict(zip(_STATEMENT.findall(text), _STATEMENT.split(text)[2::2], strict=True))
        self._spool = spool
        self._names = names
        self._processes = Processes()
        self._local = threading.local()
        self._database = duckdb.connect(":memory:", config={"threads": 1})
        for name, table in lookups.items():
            self._database.register("lookup", table)
            self._database.execute(f"CREATE TABLE {name} AS FROM lookup")
            self._database.unregister("lookup")

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def make(self, table: str, kind: Kind, batch: Batch, replays: Int64s | None = None) -> Made:
        """Rows of one batch. replays: keys (`key_of_work`) of work that other rows hold, so that it is not doubled."""
        made = Made(read=batch.table.num_rows)
        if batch.wrong:
            made.repaired[WRONG_TYPE] += batch.wrong
        rows = self._mapped(kind, batch)
        kept = self._kept(table, rows, made)
        if not kept.any():
            return made
        tidy = pa.table(self._columns(_those(rows, kept), batch.own, kind, made))
        if replays is not None:
            again = np.isin(key_of_work(tidy), replays)
            made.skipped[f"{table}: {REPLAYED}"] += int(again.sum())
            tidy = _those(tidy, ~again)
        self._note_work(tidy, made)
        for row_class, part in _by_class(tidy):
            made.runs.append((row_class, self._spool.write(_sorted(part))))
        return made

    def write(self, row_class: str, columns: Mapping[str, pa.Array], global_tid: Int64s, made: Made) -> None:
        """Store rows that no statement makes; `name` and `kind` in dictionaries, times as in the spool."""
        of_thread = self._of_process(int64_array(global_tid), is_thread=True, made=made)
        made.runs.append((row_class, self._spool.write(_sorted(pa.table({**columns, **of_thread})))))

    def _mapped(self, kind: Kind, batch: Batch) -> pa.Table:
        if not hasattr(self._local, "cursor"):
            self._local.cursor = self._database.cursor()
        cursor: duckdb.DuckDBPyConnection = self._local.cursor
        table = batch.table
        if kind.statement == "nvtx":
            table = self._names.with_texts(batch, {"textId": "text", "jsonTextId": "jsonText"})
        if kind.library is not None:
            every_row = int32_array(np.zeros(table.num_rows, np.int32))
            library = pa.DictionaryArray.from_arrays(every_row, text_array([kind.library]))
            table = table.append_column("library", library)
        cursor.register("batch", table)
        try:
            return cursor.sql(self._statements[kind.statement]).to_arrow_table().combine_chunks()
        finally:
            cursor.unregister("batch")

    def _kept(self, table: str, rows: pa.Table, made: Made) -> Bools:
        """Which rows are stored; the others are counted."""
        kept = np.ones(rows.num_rows, np.bool_)
        if "skip" in rows.column_names:
            reasons = rows.column("skip")
            for counted in reasons.drop_null().value_counts().to_pylist():
                made.skipped[f"{table}: {counted['values']}"] += counted["counts"]
            kept = is_null(one_array(reasons))
        start, end = (one_array(rows.column(name)) for name in ("start_ns", "end_ns"))
        at = integers(start)
        unusable = is_null(start) | (at >= TO_DATE) | (at <= -TO_DATE)
        if "stream" in rows.column_names:  # CUPTI's word for times that it could not get
            unusable |= (at == 0) & (integers(end, 1) == 0)
        unusable &= kept
        if unusable.any():
            made.skipped[f"unusable time in {table}"] += int(unusable.sum())
        kept &= ~unusable
        return kept

    def _columns(self, rows: pa.Table, own: list[str], kind: Kind, made: Made) -> dict[str, pa.Array]:
        """Columns of the spool, those without a value left out."""
        start, end = (one_array(rows.column(name)) for name in ("start_ns", "end_ns"))
        columns = {"ts": start, "dur": _durations(start, end, made.repaired)}
        for name in ("global_tid", "global_pid"):
            if name in rows.column_names:
                columns |= self._of_process(one_array(rows.column(name)), is_thread=name == "global_tid", made=made)
        if "dropped" in rows.column_names:
            dropped = rows.column("dropped").drop_null().value_counts().to_pylist()
            made.dropped_args.update({counted["values"]: counted["counts"] for counted in dropped})
        for name in rows.column_names:
            if name in {"start_ns", "end_ns", "global_tid", "global_pid", "skip", "dropped"}:
                continue
            column = one_array(rows.column(name))
            if name == "name":
                are_ids = pa.types.is_integer(column.type)
                texts = self._names.texts(column, own) if are_ids else column.dictionary_encode()
                columns[name] = tidy_names(texts, made.repaired, of_calls=kind.statement == "launch")
            elif column.null_count == len(column):
                continue
            elif pa.types.is_string(column.type):
                encoded = column.dictionary_encode()
                columns[name] = encoded if name in _CHECKED else tidy_texts(encoded, made.repaired)
            else:
                columns[name] = column
        return columns

    def _of_process(self, identity: pa.Array, *, is_thread: bool, made: Made) -> dict[str, pa.Array]:
        """What a globalTid or globalPid says: the process in bits 24 to 47, the thread in those below."""
        null = is_null(identity)
        values = integers(identity)
        process = values >> 24
        pid = process & _PID
        absent = null if null.any() else None
        encoded = int64_array(pid, absent).dictionary_encode()
        labels = list(map(str, encoded.dictionary.to_pylist()))
        columns = {
            "process": int64_array(self._processes.numbers(process), absent),
            "label": pa.DictionaryArray.from_arrays(encoded.indices, text_array(labels)),
        }
        if is_thread:
            columns |= {"pid": int64_array(pid, absent), "tid": int64_array(values & _PID, absent)}
        made.pids.update(encoded.dictionary.to_pylist())
        return columns

    @staticmethod
    def _note_work(tidy: pa.Table, made: Made) -> None:
        if "label" not in tidy.column_names or "device" not in tidy.column_names:
            return
        kinds, labels = (one_array(tidy.column(name)) for name in ("kind", "label"))
        is_work = np.array([kind in WORK for kind in kinds.dictionary.to_pylist()], np.bool_)
        device = integers(one_array(tidy.column("device")), _NOWHERE)
        rows = is_work[integers(kinds.indices)] & (device < _NOWHERE) & ~is_null(labels.indices)
        process = integers(labels.indices)
        for code in np.unique(process[rows]).tolist():
            made.work[int(labels.dictionary[code].as_py())] = int(device[rows & (process == code)].min())


def key_of_work(rows: pa.Table) -> Int64s:
    """What device rows of one launch share: correlation and process; -1 where there is no correlation."""
    absent = pa.nulls(rows.num_rows, pa.int64())
    correlation, process = (
        one_array(rows.column(name)) if name in rows.column_names else absent for name in ("correlation", "process")
    )
    key = integers(correlation) << 15 | integers(process)
    return np.where(is_null(correlation) | (integers(correlation) == 0), -1, key)


def _durations(start: pa.Array, end: pa.Array, repaired: Counter[str]) -> pa.Array:
    first, last = integers(start), integers(end)
    # An event that was still open has no end, or 0 for it.
    unknown = is_null(end) | (last >= TO_DATE) | (last <= -TO_DATE) | ((last == 0) & (first > 0))
    unknown |= last - first > _LONGEST
    backwards = ~unknown & (last < first)
    for reason, rows in ((NO_END, unknown), (BACKWARDS, backwards)):
        if rows.any():
            repaired[reason] += int(rows.sum())
    return int64_array(np.where(unknown, 0, np.maximum(last, first) - first), unknown if unknown.any() else None)


def _by_class(rows: pa.Table) -> list[tuple[str, pa.Table]]:
    kinds = one_array(rows.column("kind"))
    classes = [_CLASSES.get(kind, "other") for kind in kinds.dictionary.to_pylist()]
    if len(set(classes)) == 1:
        return [(classes[0], rows)]
    of_row = np.array(classes)[integers(kinds.indices)] if classes else np.array([], np.str_)
    return [(name, _those(rows, of_row == name)) for name in sorted(set(classes))]


def _those(rows: pa.Table, chosen: Bools) -> pa.Table:
    return rows if chosen.all() else rows.take(int64_array(np.flatnonzero(chosen)))


def _sorted(rows: pa.Table) -> pa.Table:
    ts = integers(one_array(rows.column("ts")))
    return rows if np.all(ts[1:] >= ts[:-1]) else rows.take(int64_array(np.argsort(ts, kind="stable")))
