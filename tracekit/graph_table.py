"""The regions of a trace as a table: what the macro cuda_graphs shows."""

from __future__ import annotations

import json

import pyarrow as pa

from tracekit.graph_regions import ALREADY, CANNOT_TELL, DEFAULTS, Limits, Region, regions
from tracekit.trace import Trace

SCHEMA = pa.schema(
    [
        ("rank", pa.int32()), ("device", pa.int64()), ("phase", pa.string()), ("bucket", pa.string()),
        ("region", pa.string()), ("verdict", pa.string()), ("reason", pa.string()), ("steps", pa.int64()),
        ("repeats", pa.int64()), ("pieces", pa.int64()), ("launches", pa.int64()), ("kernels", pa.int64()),
        ("replays", pa.int64()), ("period", pa.string()), ("step_ns", pa.int64()), ("wall_ns", pa.int64()),
        ("gpu_ns", pa.int64()), ("idle_ns", pa.int64()), ("saving_low_ns", pa.int64()), ("saving_high_ns", pa.int64()),
        ("error", pa.float64()), ("spread_low_ns", pa.int64()), ("spread_high_ns", pa.int64()),
        ("blockers", pa.string()),
    ]
)  # fmt: skip


def region_table(trace: Trace, limits: Limits = DEFAULTS) -> pa.Table:
    """Regions as the macro cuda_graphs shows them, one row each."""
    rows = [_row(one) for one in regions(trace, limits)]
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in SCHEMA]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _row(region: Region) -> dict[str, object]:
    group, found = region.group, region.estimate
    steps = len(group.steps)
    return {
        "rank": group.rank,
        "device": group.device,
        "phase": group.phase,
        "bucket": group.bucket,
        "region": region.label,
        "verdict": region.verdict,
        "reason": region.reason,
        "steps": steps,
        "repeats": region.repeats,
        "pieces": region.pieces,
        "launches": region.launches,
        "kernels": region.kernels,
        "replays": region.replays,
        "period": str(region.period) if region.period else None,
        "step_ns": group.median.measured_ns if group.chosen else None,
        "wall_ns": None if region.verdict == CANNOT_TELL else region.wall_ns,
        "gpu_ns": None if region.verdict == CANNOT_TELL else region.gpu_ns,
        "idle_ns": None if region.verdict == CANNOT_TELL else region.idle_ns,
        "saving_low_ns": found.saving_low_ns if found else 0 if region.verdict == ALREADY else None,
        "saving_high_ns": found.saving_high_ns if found else 0 if region.verdict == ALREADY else None,
        "error": group.error if group.chosen else None,
        "spread_low_ns": found.spread_low_ns if found else None,
        "spread_high_ns": found.spread_high_ns if found else None,
        "blockers": json.dumps([one.to_json(steps) for one in region.blockers]),
    }
