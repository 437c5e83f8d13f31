"""The plan as a table: a row for each remedy of each group of steps, in the order in which they add most."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tracekit.analysis import Row
from tracekit.plan_order import DEFAULTS, Bounds, Plan, plans
from tracekit.trace import Trace

SCHEMA = pa.schema(
    [
        ("rank", pa.int32()),
        ("device", pa.int64()),
        ("phase", pa.string()),
        ("bucket", pa.string()),
        ("steps", pa.int64()),
        ("devices", pa.int64()),
        ("step_ns", pa.int64()),
        ("error", pa.float64()),
        ("busy_ns", pa.int64()),
        ("launches_free_ns", pa.int64()),
        ("place", pa.int32()),
        ("remedy", pa.string()),
        ("kind", pa.string()),
        ("source", pa.string()),
        ("saving_low_ns", pa.int64()),
        ("saving_high_ns", pa.int64()),
        ("after_low_ns", pa.int64()),
        ("after_high_ns", pa.int64()),
        ("share", pa.float64()),
        ("price", pa.string()),
        ("reason", pa.string()),
    ]
)


def plan_table(trace: Trace, bounds: Bounds = DEFAULTS) -> pa.Table:
    """Rows of the macro plan, those of one group together, most time first."""
    return pa.Table.from_pylist([row for plan in plans(trace, bounds) for row in _rows(plan)], SCHEMA)


def described(plan: Plan) -> Row:
    """What all rows of a group say of it."""
    group = plan.group
    known = bool(group.chosen)
    return {
        "rank": group.rank,
        "device": group.device,
        "phase": group.phase,
        "bucket": group.bucket,
        "steps": len(group.steps),
        "devices": plan.devices,
        "step_ns": plan.step_ns if known else None,
        "error": group.error if known else None,
        "busy_ns": plan.busy_ns if plan.told else None,
        "launches_free_ns": plan.free_ns if plan.told else None,
    }


def _rows(plan: Plan) -> Iterator[Row]:
    group = described(plan)
    if not plan.remedies:
        yield group | {"reason": plan.reason}
    low = high = 0
    for place, (remedy, added) in enumerate(zip(plan.remedies, plan.added, strict=True), start=1):
        low, high = low + added.saving_low_ns, high + added.saving_high_ns
        yield group | {
            "place": place,
            "remedy": remedy.name,
            "kind": remedy.kind,
            "source": remedy.source,
            "saving_low_ns": added.saving_low_ns,
            "saving_high_ns": added.saving_high_ns,
            "after_low_ns": plan.step_ns - high,
            "after_high_ns": plan.step_ns - low,
            "share": (added.saving_low_ns + added.saving_high_ns) / 2 / plan.step_ns,
            "price": remedy.price,
        }
