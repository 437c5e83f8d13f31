"""Reads the tables that Nsight Compute prints with `--csv`: what did the hardware counters say of each kernel?

    ncu --csv --page raw ... > metrics.csv           one row per launch, a column per metric, a second line of units
    ncu --csv --page details ... > metrics.csv       one row per launch and metric, and the results of ncu's rules

Of any version since 2019, in either unit mode, with what ncu and the program printed around the table. This is no
reader of traces: it has counters of kernels, but no times at which they ran.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from tracekit.collectors._ncu_values import base_unit, decimal_mark, is_nothing, metric_id, number
from tracekit.counters import LAUNCHES, LEDGER, READINGS, Counters
from tracekit.errors import MalformedTraceError, UnknownFormatError, UsageError

NAME = "ncu_csv"

_ID, _KERNEL, _METRIC, _VALUE = "ID", "Kernel Name", "Metric Name", "Metric Value"
_LOOKED_FOR = (
    f'the columns "{_ID}" and "{_KERNEL}" with "{_METRIC}" and "{_VALUE}" (details page) or with a column per metric '
    "(raw page)"
)
_SUMMARY = {"Minimum", "Maximum", "Average"}
_ABOUT = {  # columns of a raw page that are no metrics
    *(_ID, "Process ID", "Process Name", "Host Name", _KERNEL, "Kernel Time", "Context", "Stream", "Block Size"),
    *("Grid Size", "Device", "CC", "Section Name", "Invocations"),
}
_ENCODINGS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb\xbf": "utf-8-sig"}  # redirected by PowerShell
_THREE = re.compile(r"\(?\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)?")


def read_counters(paths: Sequence[Path]) -> Counters:
    """All launches measured in some files; a launch that is in several of them (raw and details page of one report) is
    one launch, of whose metrics each is taken where it is first met.

    Raises UsageError for what cannot be opened, UnknownFormatError for what is no table of Nsight Compute,
    MalformedTraceError for one that is cut or damaged, with the line.
    """
    found = _Found()
    for path in paths:
        try:
            with path.open("rb") as file:
                encoding = next((name for mark, name in _ENCODINGS.items() if file.peek(3).startswith(mark)), "utf-8")
                with io.TextIOWrapper(file, encoding, errors="replace") as text:
                    _read(text, str(path), found)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    return found.tables()


@dataclass(slots=True)
class _Found:
    """What has been read so far, of all files."""

    launches: dict[tuple[str, ...], int] = field(default_factory=dict)  # identity -> number
    launch_rows: list[tuple[object, ...]] = field(default_factory=list)
    metrics_of: list[set[str]] = field(default_factory=list)  # of each launch
    readings: list[tuple[object, ...]] = field(default_factory=list)
    ledger: list[tuple[str, str, str, int]] = field(default_factory=list)

    def tables(self) -> Counters:
        return Counters(
            _table(self.launch_rows, LAUNCHES), _table(self.readings, READINGS), _table(self.ledger, LEDGER)
        )


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of a table: name -> position, and of a raw page the metrics with their units (from its second line)."""

    at: dict[str, int]
    is_raw: bool
    is_quoted: bool
    width: int  # fields that a whole row has
    metrics: tuple[tuple[int, str], ...]
    units: dict[str, str] = field(default_factory=dict)

    def get(self, fields: Sequence[str], name: str) -> str:
        at = self.at.get(name)
        return fields[at] if at is not None and at < len(fields) else ""


@dataclass(frozen=True, slots=True)
class _Cell:
    """One value as printed."""

    line: int
    launch: int
    metric: str
    label: str | None
    unit: str
    text: str


def _table(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(column, one.type) for column, one in zip(columns, schema, strict=True)], schema=schema)


# ---- one file --------------------------------------------------------------------------------------------------------


def _read(lines: TextIO, file: str, found: _Found) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    cells: list[_Cell] = []
    before = len(found.launches)
    rows = 0
    for line, header, fields in _records(lines, file, counts):
        rows += 1
        launch = _launch(header, fields, file, line, found)
        cells += (
            _raw_cells(header, fields, line, launch) if header.is_raw else _detail(header, fields, line, launch, counts)
        )
    if not rows:
        raise MalformedTraceError(f"{file}: a table of Nsight Compute without a single kernel; was one profiled?")
    _keep(cells, file, found, counts)
    counts["launches", ""] = len(found.launches) - before
    counts["read", ""] = counts["kept", ""] + sum(n for (entry, _), n in counts.items() if entry == "skipped")
    found.ledger += [(file, entry, reason, count) for (entry, reason), count in sorted(counts.items())]


def _keep(cells: Sequence[_Cell], file: str, found: _Found, counts: Counter[tuple[str, str]]) -> None:
    """Bring values to base units; each metric of a launch once."""
    mark = decimal_mark(((cell.line, cell.text) for cell in cells), file)
    for cell in cells:
        value = number(cell.text, mark)
        if value is None:
            counts["skipped", "no value" if is_nothing(cell.text) else "text"] += 1
        elif cell.metric in found.metrics_of[cell.launch]:
            counts["skipped", "repeated"] += 1
        else:
            unit, factor = base_unit(cell.unit)
            found.metrics_of[cell.launch].add(cell.metric)
            found.readings.append((cell.launch, cell.metric, cell.label, unit, float(value * factor)))
            counts["kept", ""] += 1


def _launch(header: _Columns, fields: Sequence[str], file: str, line: int, found: _Found) -> int:
    """The number of the launch that a row is about."""
    identity = tuple(header.get(fields, name) for name in ("Host Name", "Process ID", _ID, _KERNEL))
    if (known := found.launches.get(identity)) is not None:
        return known
    device = header.get(fields, "Device").strip()
    geometry = [
        size for name in ("Grid Size", "Block Size") for size in _three(header.get(fields, name), name, file, line)
    ]
    launch = len(found.launch_rows)
    cc = header.get(fields, "CC").strip() or None
    found.launch_rows.append((launch, file, identity[-1], *geometry, int(device) if device.isdecimal() else None, cc))
    found.launches[identity] = launch
    found.metrics_of.append(set())
    return launch


def _three(text: str, name: str, file: str, line: int) -> tuple[int | None, int | None, int | None]:
    if not text.strip():
        return (None, None, None)  # old versions print none
    match = _THREE.fullmatch(text.strip())
    if match is None:
        raise MalformedTraceError(
            f"{file}: line {line}: {name} is {text[:40]!r}, not three numbers such as (224, 1, 1)"
        )
    return (int(match[1]), int(match[2]), int(match[3]))


def _raw_cells(header: _Columns, fields: Sequence[str], line: int, launch: int) -> Iterator[_Cell]:
    for at, metric in header.metrics:
        yield _Cell(line, launch, metric, None, header.units.get(metric, ""), fields[at])


def _detail(
    header: _Columns, fields: Sequence[str], line: int, launch: int, counts: Counter[tuple[str, str]]
) -> Iterator[_Cell]:
    label = header.get(fields, _METRIC).strip()
    if not label:
        counts["skipped", "rule" if header.get(fields, "Rule Name") else "no metric"] += 1
        return
    metric = metric_id(header.get(fields, "Section Name").strip(), label)
    yield _Cell(line, launch, metric, label, header.get(fields, "Metric Unit"), header.get(fields, _VALUE))


# ---- rows among other lines ------------------------------------------------------------------------------------------


def _records(lines: TextIO, file: str, counts: Counter[tuple[str, str]]) -> Iterator[tuple[int, _Columns, list[str]]]:
    """Rows of the tables in a file, with their first line and header; what is between them is counted."""
    header: _Columns | None = None
    needs_units = False
    complaint = ""
    numbered = enumerate(lines, start=1)
    for line, text in numbered:
        if (new := _header(text, file)) is not None:
            header, needs_units = new, new.is_raw
            continue
        if header is None or not text.strip() or header.is_quoted != text.startswith('"'):
            counts["other lines", "ncu" if text.startswith("==") else "program"] += bool(text.strip())
            complaint = complaint or (text.strip() if text.startswith("==ERROR==") else "")
            continue
        fields = _fields(text, numbered, file, line)
        if needs_units:
            header, needs_units = _with_units(header, fields, file, line), False
        elif header.get(fields, _ID).strip().isdecimal():
            if len(fields) < header.width:
                raise _cut(file, line)
            yield line, header, fields
        else:
            counts["other lines", "program"] += 1
    if header is None:
        said = f" Nsight Compute itself said: {complaint}" if complaint else ""
        raise UnknownFormatError(
            f"{file}: no table of Nsight Compute: none of its lines has {_LOOKED_FOR}.{said} "
            "Make one with: ncu --csv --page raw --import REPORT.ncu-rep > metrics.csv"
        )


def _fields(text: str, following: Iterator[tuple[int, str]], file: str, line: int) -> list[str]:
    """The fields of a row; one that is quoted may go on in the lines that follow."""
    whole = [text]
    quotes = text.count('"')
    while quotes % 2:
        _, more = next(following, (0, None))
        if more is None:
            raise _cut(file, line)
        whole.append(more)
        quotes += more.count('"')
    try:
        return next(csv.reader(["".join(whole)]))
    except csv.Error as error:
        raise MalformedTraceError(f"{file}: line {line} is no row of a table: {error}") from error


def _header(text: str, file: str) -> _Columns | None:
    """The columns that a line names, None if it is no header."""
    if _KERNEL not in text or text.count('"') % 2:
        return None
    names = [name.strip() for name in next(csv.reader([text]))]
    if _KERNEL in names and set(names) >= _SUMMARY:
        raise UnknownFormatError(
            f"{file}: a summary of Nsight Compute, which has no single launches; export without --print-summary"
        )
    if not {_ID, _KERNEL} <= set(names):
        return None
    at = {name: position for position, name in reversed(list(enumerate(names)))}
    quoted = text.lstrip("\ufeff").startswith('"')
    if {_METRIC, _VALUE} <= at.keys():
        return _Columns(at, False, quoted, at[_VALUE] + 1, ())
    metrics = tuple(
        (position, name) for position, name in enumerate(names) if name and name not in _ABOUT and "Domain:" not in name
    )
    return _Columns(at, True, quoted, len(names), metrics) if metrics else None


def _with_units(header: _Columns, fields: Sequence[str], file: str, line: int) -> _Columns:
    if header.get(fields, _ID).strip() or header.get(fields, _KERNEL).strip():
        raise MalformedTraceError(
            f"{file}: line {line} should have the units of the raw page's metrics, below their names"
        )
    if len(fields) < header.width:
        raise _cut(file, line)
    units = {name: fields[at].strip() for at, name in header.metrics}
    return _Columns(header.at, True, header.is_quoted, header.width, header.metrics, units)


def _cut(file: str, line: int) -> MalformedTraceError:
    return MalformedTraceError(f"{file}: line {line} is cut short; export it again, whole")
