"""Fills the tables that the roofline reads (roofline.sql), each when a query first asks for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pyarrow as pa

from tracekit import roofline_tables
from tracekit.analysis import Row
from tracekit.device_spec import vendor_of
from tracekit.devices import Peaks, described_as, peaks_of, peaks_table
from tracekit.roofline_lend import Lent, lent_work

if TYPE_CHECKING:
    from tracekit.trace import Trace

_PARENTS = """
    SELECT
        e.id,
        e.parent_id,
        e.kind = 'op' AND m.name IS NOT NULL AS has_model,
        e.name IN ('aten::copy_', 'aten::fill_', 'aten::zero_') AS prepares
    FROM events AS e
    LEFT JOIN op_models AS m ON m.name = e.name
    WHERE e.pid IS NOT NULL
    ORDER BY e.id
"""
_RUNTIMES = """
    SELECT
        rank,
        bool_or(starts_with(name, 'hip')) AS amd,
        bool_or(regexp_matches(name, '^(cuda|cu[A-Z])')) AS nvidia
    FROM launches
    GROUP BY rank
"""
_LENT: WeakKeyDictionary[Trace, Lent] = WeakKeyDictionary()
_OPS = "SELECT DISTINCT name FROM ops"
_ASKED = "SELECT DISTINCT name, shapes, dtypes, scalars, args, beside, load FROM asked_calls()"


def roofline_fillers(trace: Trace) -> Mapping[str, Callable[[], pa.Table | str]]:
    """What fills each table, by its name: rows, or the query that has them."""
    return {
        "op_models": lambda: roofline_tables.op_models(trace.sql(_OPS)["name"].to_pylist()),
        "model_calls": lambda: _model_calls(trace),
        "op_work": lambda: roofline_tables.op_work(trace.sql(_ASKED)),
        "call_work": lambda: "FROM op_kernels()",
        "mapped_work": lambda: _lent(trace).mapped,
        "measured_work": lambda: _lent(trace).measured,
        "lending_remarks": lambda: _lent(trace).remarks,
        "device_peaks": lambda: peaks_table(device_peaks(trace)),
    }


def _lent(trace: Trace) -> Lent:
    """Read once: several tables are filled from it, and given traces are long to read."""
    if trace not in _LENT:
        _LENT[trace] = lent_work(trace)
    return _LENT[trace]


def device_peaks(trace: Trace) -> Mapping[tuple[int, int | None], Peaks]:
    """Peaks of each device of a trace, those that it only names by their work, too."""
    rows = trace.sql("FROM device_descriptions() ORDER BY rank, device").to_pylist()
    vendors = _vendors(trace) if any(not vendor_of(row["name"] or "") for row in rows) else {}
    found: dict[tuple[int, int | None], Peaks] = {}
    for row in rows:
        peaks = peaks_of(
            row["name"] or "",
            json.loads(row["properties"] or "{}"),
            specs=trace.beside.specs,
            given=trace.beside.peaks,
            vendor=vendors.get(row["rank"], ""),
            nameless="" if _is_described(row) else _undescribed(row, rows),
        )
        other = row["described_by"]
        found[row["rank"], row["device"]] = peaks if other is None else described_as(peaks, row["device"], other)
    return found


def _is_described(row: Row) -> bool:
    return bool(row["name"]) or row["properties"] not in (None, "{}")


def _undescribed(row: Row, rows: Sequence[Row]) -> str:
    """What to say of a device of which the trace says nothing, where it does of others of the rank."""
    names: dict[str, list[str]] = {}
    for other in rows:
        if other["rank"] == row["rank"] and _is_described(other):
            names.setdefault(other["name"] or "no name", []).append(str(other["device"]))
    if not names:
        return ""
    listed = " and ".join(f"{', '.join(devices)} ({name})" for name, devices in names.items())
    which = "which device this work ran on" if row["device"] is None else f"device {row['device']}"
    return f"The trace does not describe {which}, only {listed}: it may be any of them."


def _vendors(trace: Trace) -> Mapping[int, str]:
    """Whose devices each rank uses, by the calls that it makes of a vendor's runtime."""
    found = trace.sql(_RUNTIMES).to_pylist()
    return {row["rank"]: "AMD" if row["amd"] else "NVIDIA" for row in found if row["amd"] != row["nvidia"]}


def _model_calls(trace: Trace) -> pa.Table:
    around = trace.sql("FROM work_around() ORDER BY op_id")
    is_vain = not len(around) or not len(trace.sql("FROM op_models"))
    return roofline_tables.model_calls(around, trace.sql(f"{_PARENTS} LIMIT 0" if is_vain else _PARENTS))
