"""What did a hardware-counter profiler measure of each kernel? The plain tables that its readers return.

They stand beside the event table, which they are joined to by the kernel's name and launch geometry: see counters.sql.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

_GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
LAUNCHES = pa.schema(
    [
        ("launch", pa.int64()),
        ("file", pa.string()),
        ("kernel", pa.string()),
        *((name, pa.int64()) for name in _GEOMETRY),
        ("device", pa.int64()),
        ("cc", pa.string()),
    ]
)
READINGS = pa.schema(
    [
        ("launch", pa.int64()),
        ("metric", pa.string()),
        ("label", pa.string()),
        ("unit", pa.string()),
        ("value", pa.float64()),
    ]
)
LEDGER = pa.schema([("file", pa.string()), ("entry", pa.string()), ("reason", pa.string()), ("count", pa.int64())])


@dataclass(frozen=True, slots=True)
class Counters:
    """Measured launches, one value per launch and metric, and what was read and left out of which file; columns: see
    the tables ncu_launches, ncu_readings and ncu_ledger in counters.sql.
    """

    launches: pa.Table
    readings: pa.Table
    ledger: pa.Table
