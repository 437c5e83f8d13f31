"""Read what Nsight Systems exports: SQLite files, folders of Parquet files, and reports where nsys can export them.

Tables are read in batches, side by side; nsys_export.sql says what their rows become. docs/nsys_export.md says which
tables are read and what is left out.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tracekit.arrays import Int64s
from tracekit.collectors import _nsys_facts as facts
from tracekit.collectors._nsys_export_batches import Batch, ColumnType, Export, Part
from tracekit.collectors._nsys_names import Names
from tracekit.collectors._nsys_parquet import ParquetExport, is_parquet_export
from tracekit.collectors._nsys_rows import WORK, Made, RowMaker, key_of_work
from tracekit.collectors._nsys_scheduling import COLUMNS as SCHEDULING_COLUMNS
from tracekit.collectors._nsys_scheduling import off_cpu
from tracekit.collectors._nsys_sqlite import MAGIC as SQLITE
from tracekit.collectors._nsys_sqlite import SqliteExport
from tracekit.collectors._nsys_tables import SCHEDULING, Kind, find_columns, is_called, kind_of, times_of
from tracekit.collectors._nsys_tool import STREAM_HEAD, export_sqlite, import_stream
from tracekit.errors import TracekitError, UnknownFormatError
from tracekit.ranks import rank_in_name
from tracekit.source import Progress, SourceRead
from tracekit.spool import Spool
from tracekit.streams import ByteStream

NAME = "nsys_export"

_REPORT = b"NVIDIA Tegra Profiler Report"
_CHUNK = 1 << 22


def accepts(path: Path, head: bytes) -> bool:
    """SQLite files, Nsight Systems' reports and raw streams, and folders that it exported as Parquet."""
    if path.is_dir():
        return is_parquet_export(path)
    return _is_known(head[:64])


def _is_known(head: bytes) -> bool:
    return head.startswith((SQLITE, _REPORT)) or STREAM_HEAD in head


def read(path: Path, spool: Spool, progress: Progress | None = None) -> SourceRead:
    """Read one export into a spool; a report is exported first.

    Raises UnknownFormatError for a SQLite file of other software and for a report that nsys cannot export here,
    MalformedTraceError for a file that is damaged or being written. The file is not changed, nor left anything beside.
    """
    with _opened(path, spool.directory) as export:
        if not facts.is_export(list(export.tables)):
            found = ", ".join(list(export.tables)[:5]) or "none"
            raise UnknownFormatError(
                f"{path}: a database, but no export of Nsight Systems, which has tables like StringIds, NVTX_EVENTS or "
                f"CUPTI_ACTIVITY_KIND_KERNEL; the tables here are: {found}"
            )
        source = SourceRead(path, NAME, spool)
        source.base_ns = facts.epoch_ns(export)
        source.identity = facts.identity(export)
        source.capture = facts.capture(export)
        source.devices = facts.devices(export)
        _read_rows(export, source, progress)
        return source


@contextmanager
def _opened(path: Path, directory: Path) -> Iterator[Export]:
    """The export that a file is or can be made into; what is made for it is removed. Errors name the file itself."""
    made: list[Path] = []
    try:
        export = ParquetExport(path) if path.is_dir() else SqliteExport(path, _as_sqlite(path, directory, made))
        with closing(export):
            yield export
    except TracekitError as error:
        text = str(error)
        for file in made:
            text = text.replace(str(file), str(path))
        raise type(error)(text) from error
    finally:
        for file in made:
            file.unlink(missing_ok=True)


def _as_sqlite(path: Path, directory: Path, made: list[Path]) -> Path:
    if not _is_known(_head(path)):  # but what it holds, compressed, is
        path = _unpacked(path, directory, made)
    if STREAM_HEAD in _head(path):
        made += [directory / "copied.qdstrm", directory / "imported.nsys-rep"]
        shutil.copyfile(path, made[-2])  # the importer writes into its input
        import_stream(made[-2], made[-1])
        path = made[-1]
    if _head(path).startswith(_REPORT):
        made.append(directory / "exported.sqlite")
        export_sqlite(path, made[-1])
        path = made[-1]
    return path


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)


def _unpacked(path: Path, directory: Path, made: list[Path]) -> Path:
    """A compressed file as it was: a database is read here and there, not from one end to the other."""
    made.append(directory / "unpacked")
    with ByteStream(path) as stream, made[-1].open("wb") as file:
        while chunk := stream.read(_CHUNK):
            file.write(chunk)
    return made[-1]


# ---- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Task:
    """A part of a table to be read as a kind of rows."""

    table: str
    kind: Kind
    part: Part


def _read_rows(export: Export, source: SourceRead, progress: Progress | None) -> None:
    tasks = [
        _Task(table, kind, part)
        for table in export.tables
        if (kind := kind_of(table)) is not None and times_of(export.tables[table])
        for part in export.parts(table)
    ]
    work: dict[int, int] = {}
    maker = RowMaker(source.spool, Names(export), facts.lookups(export))
    try:
        first = [task for task in tasks if not task.kind.once]
        for done, made in enumerate(_all_made(export, maker, first, None)):
            _count_in(source, made, work)
            _tell(progress, source.path, done + 1, len(tasks))
        if len(first) < len(tasks):
            recorded = _recorded_work(source.spool)
            for made in _all_made(export, maker, [task for task in tasks if task.kind.once], recorded):
                _count_in(source, made, work)
        for table, columns in export.tables.items():
            if is_called(table, SCHEDULING):
                _count_in(source, off_cpu(table, _scheduling(export, table), maker), work)
            elif kind_of(table) is None and times_of(columns) and (rows := export.count(table)):
                source.read += rows
                source.skipped[f"{table}: not stored"] += rows
    finally:
        maker.close()
    _assign(export, source, work)


def _all_made(export: Export, maker: RowMaker, tasks: list[_Task], replays: Int64s | None) -> Iterator[Made]:
    """What came of each batch of the tasks, in their order; a few are worked on at a time."""
    workers = max(1, min(os.cpu_count() or 1, 8))
    with ThreadPoolExecutor(workers) as pool:
        ahead: deque[Future[list[Made]]] = deque()
        try:
            for task in tasks:
                ahead.append(pool.submit(_made, export, maker, task, replays))
                if len(ahead) > 2 * workers:
                    yield from ahead.popleft().result()
            while ahead:
                yield from ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _made(export: Export, maker: RowMaker, task: _Task, replays: Int64s | None) -> list[Made]:
    batches = _batches(export, task.table, task.part, task.kind.columns)
    return [maker.make(task.table, task.kind, batch, replays) for batch in batches]


def _batches(export: Export, table: str, part: Part, columns: Mapping[str, ColumnType]) -> Iterator[Batch]:
    """The rows of a part with all of `columns`, by these names, whatever the file calls or lacks."""
    has = find_columns(export.tables[table], list(columns))
    asked = {name: columns[wanted] for wanted, name in has.items()}
    for batch in export.batches(table, part, asked):
        rows = batch.table.num_rows
        arrays = [
            batch.table.column(has[name])
            if name in has
            else pa.nulls(rows, pa.string() if column_type == "text" else pa.int64())
            for name, column_type in columns.items()
        ]
        yield Batch(pa.table(arrays, names=list(columns)), batch.own, batch.wrong)


def _scheduling(export: Export, table: str) -> Iterator[Batch]:
    for part in export.parts(table):
        yield from _batches(export, table, part, SCHEDULING_COLUMNS)


def _recorded_work(spool: Spool) -> Int64s:
    """Keys of all kernels, copies and fills."""
    keys = [np.empty(0, np.int64)]
    for table in spool.each("device", ("kind", "correlation", "process")):
        if table.column("kind").chunk(0).dictionary.to_pylist()[0] in WORK:
            keys.append(np.unique(key_of_work(table)))
    recorded = np.unique(np.concatenate(keys))
    return recorded[recorded >= 0]


def _count_in(source: SourceRead, made: Made, work: dict[int, int]) -> None:
    source.read += made.read
    source.skipped.update(made.skipped)
    source.repaired.update(made.repaired)
    source.dropped_args.update(made.dropped_args)
    for pid in made.pids:
        source.pids[pid] = str(pid)
    for pid, device in made.work.items():
        work[pid] = min(device, work.get(pid, device))
    for row_class, run in made.runs:
        source.spool.accept(row_class, run)


def _tell(progress: Progress | None, path: Path, done: int, tasks: int) -> None:
    if progress is not None:
        size = path.stat().st_size
        progress(size * done // tasks, size)


def _assign(export: Export, source: SourceRead, work: dict[int, int]) -> None:
    """Ranks of processes with device work: those that MPI gave, else in the order of their lowest device."""
    known = facts.mpi_ranks(export)
    order = sorted(work, key=lambda pid: (work[pid], pid))
    if len(work) > 1:
        by_mpi = len({known[pid] for pid in order if pid in known}) == len(order)
        source.label_ranks = {str(pid): known[pid] if by_mpi else place for place, pid in enumerate(order)}
        source.labels = set(source.label_ranks)
        source.rank_from = "MPI" if by_mpi else source.rank_from
    elif len(ranks := {known[pid] for pid in work or known if pid in known}) == 1:
        source.rank, source.rank_from = ranks.pop(), "MPI"
    elif (rank := rank_in_name(source.path.name)) is not None:
        source.rank, source.rank_from = rank, "file name"
