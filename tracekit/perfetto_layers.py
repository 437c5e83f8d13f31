"""What does tracekit add to the picture? For each device the serving steps, what its work was, what it waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from tracekit.perfetto_tracks import Lanes
from tracekit.trace import Trace


@dataclass(frozen=True, slots=True)
class Layer:
    """Slices of one kind: rows has rank, device, ts, dur, name, args, colour, lane. missing: why there are none."""

    rows: pa.Table
    missing: str = ""

    def lane_counts(self) -> dict[tuple[int, int | None], int]:
        """How many lanes the slices of each rank and device need."""
        highest = self.rows.group_by(["rank", "device"]).aggregate([("lane", "max")]).to_pylist()
        return {(row["rank"], row["device"]): row["lane_max"] + 1 for row in highest}


def layers(trace: Trace, cursor: duckdb.DuckDBPyConnection, statements: Mapping[str, str]) -> dict[str, Layer]:
    """All of them by name; statements: those of perfetto.sql, in which each layer has one of its name."""
    idle = trace.analyze("idle_gaps")
    cursor.register("idle_rows", idle.table)
    gaps = cursor.sql(statements["idle_gaps"]).to_arrow_table()
    cursor.unregister("idle_rows")
    return {
        "steps": Layer(_in_lanes(trace.sql(statements["steps"]))),
        "categories": Layer(_in_lanes(trace.sql(statements["categories"]))),
        # Without any time to account for, the reason is why: no device, or holes that cannot be taken for gaps.
        "idle_gaps": Layer(_in_lanes(gaps), "" if idle.coverage.total_ns else idle.coverage.reason),
    }


def _in_lanes(rows: pa.Table) -> pa.Table:
    """The slices, by rank, device and time, with a column `lane`: two steps may cross, and would not be drawn."""
    lanes = Lanes()
    numbers: dict[tuple[int, int | None], int] = {}
    tracks = [
        numbers.setdefault(key, len(numbers))
        for key in zip(rows.column("rank").to_pylist(), rows.column("device").to_pylist(), strict=True)
    ]
    spans = zip(rows.column("ts").to_pylist(), rows.column("dur").to_pylist(), strict=True)
    lanes.add((track, ts, ts + dur, at) for at, (track, (ts, dur)) in enumerate(zip(tracks, spans, strict=True)) if dur)
    lane = [0] * rows.num_rows
    for at, number in zip(lanes.ids, lanes.lanes, strict=True):
        lane[at] = number
    return rows.append_column("lane", pa.array(lane, pa.int32()))
