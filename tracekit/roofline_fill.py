"""Fills the tables that the roofline reads (roofline.sql), each when a query first asks for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit import roofline_tables
from tracekit.devices import Peaks, peaks_of, peaks_table
from tracekit.footer import DeviceInfo
from tracekit.roofline_lend import lent_work

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
_OPS = "SELECT DISTINCT name FROM ops"
_ASKED = "SELECT DISTINCT name, shapes, dtypes, scalars, args, beside, load FROM asked_calls()"


def roofline_fillers(trace: Trace) -> Mapping[str, Callable[[], pa.Table | str]]:
    """What fills each table, by its name: rows, or the query that has them."""
    lent = cache(lambda: lent_work(trace))
    return {
        "op_models": lambda: roofline_tables.op_models(trace.sql(_OPS)["name"].to_pylist()),
        "model_calls": lambda: _model_calls(trace),
        "op_work": lambda: roofline_tables.op_work(trace.sql(_ASKED)),
        "call_work": lambda: "FROM op_kernels()",
        "mapped_work": lambda: lent().mapped,
        "measured_work": lambda: lent().measured,
        "device_peaks": lambda: peaks_table(_devices(trace), specs=trace.beside.specs, given=trace.beside.peaks),
    }


def device_peaks(trace: Trace) -> Mapping[tuple[int, int | None], Peaks]:
    """Peaks of each device of a trace, those that it only names by their work, too."""
    return {
        (one.rank, one.device): peaks_of(one.name, one.properties, specs=trace.beside.specs, given=trace.beside.peaks)
        for one in _devices(trace)
    }


def _devices(trace: Trace) -> list[DeviceInfo]:
    rows = trace.sql("FROM devices ORDER BY rank, device").to_pylist()
    return [
        DeviceInfo(row["rank"], row["device"], row["name"] or "", json.loads(row["properties"] or "{}")) for row in rows
    ]


def _model_calls(trace: Trace) -> pa.Table:
    around = trace.sql("FROM work_around() ORDER BY op_id")
    is_vain = not len(around) or not len(trace.sql("FROM op_models"))
    return roofline_tables.model_calls(around, trace.sql(f"{_PARENTS} LIMIT 0" if is_vain else _PARENTS))
