"""What did a hardware-counter profiler measure of each kernel? The plain tables that its readers return.

They stand beside the event table, which they are joined to by the kernel's name and launch geometry: see counters.sql.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

LAUNCHES = pa.schema(
    [
        pa.field("launch", pa.int64()),
        pa.field("file", pa.string()),
        pa.field("kernel", pa.string()),
        *(pa.field(name, pa.int64()) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")),
        pa.field("device", pa.int64()),
        pa.field("cc", pa.string()),
    ]
)
READINGS = pa.schema(
    [
        pa.field("launch", pa.int64()),
        pa.field("metric", pa.string()),
        pa.field("label", pa.string()),
        pa.field("unit", pa.string()),
        pa.field("value", pa.float64()),
    ]
)
LEDGER = pa.schema(
    [
        pa.field("file", pa.string()),
        pa.field("entry", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("count", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Counters:
    """Measured launches, one value per launch and metric, and what was read and left out of which file; columns: see
    the tables ncu_launches, ncu_readings and ncu_ledger in counters.sql.
    """

    launches: pa.Table
    readings: pa.Table
    ledger: pa.Table
