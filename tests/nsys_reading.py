"""An export of Nsight Systems as tracekit reads it: rows with their times as recorded, and the footer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from tracekit.convert import convert
from tracekit.footer import Footer

Rows = list[tuple[Any, ...]]


def read(
    path: Path, columns: str = "e.kind, e.name, e.ts, e.dur", *, where: str = "true", out: Path | None = None
) -> tuple[Rows, Footer]:
    """Convert into `out`, or beside the file, see that every row is accounted for, and select columns of `e`, and of
    `launch`, the call that launched it.
    """
    out = path.with_name(f"{path.name}.parquet") if out is None else out
    footer = convert([path], out, force=True)
    ledger = footer.ledger
    assert ledger.read == ledger.stored + sum(ledger.skipped.values())
    shift = footer.origin_ns - footer.sources[0].base_ns
    query = f"""
        WITH recorded AS (SELECT * REPLACE (ts + $shift AS ts) FROM read_parquet($path))
        SELECT {columns}
        FROM recorded AS e LEFT JOIN recorded AS launch ON launch.id = e.launch_id
        WHERE {where}
        ORDER BY e.id
    """
    with duckdb.connect() as connection:
        return connection.execute(query, {"shift": shift, "path": str(out)}).fetchall(), footer
