"""Documented views: devices, ranks, rows without an end. (The steps have tests of their own.)"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tracekit
from tests.event_rows import footer_of, kernel, write_trace


def test_devices_and_ranks(tmp_path: Path) -> None:
    rows = [kernel(0, 1, device=9), kernel(0, 1, rank=1)]
    footer = footer_of(rows)
    with tracekit.open(
        write_trace(tmp_path / "trace.parquet", rows, replace(footer, devices=footer.devices[1:]))
    ) as trace:
        found = trace.sql("SELECT rank, device, name FROM devices ORDER BY ALL").to_pylist()
        ranks = trace.sql("FROM ranks ORDER BY rank").to_pylist()
    assert [tuple(row.values()) for row in found] == [(0, 9, None), (1, 0, "NVIDIA H100 80GB HBM3")]
    assert [tuple(row.values()) for row in ranks] == [(0, None, "default", 1), (1, None, "default", 1)]


def test_rows_without_an_end(tmp_path: Path) -> None:
    rows = [kernel(0, 0, args='{"finished": false}'), kernel(1, 0), kernel(2, 5, args='{"finished": false}')]
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        assert trace.sql("SELECT id FROM unfinished").to_pylist() == [{"id": 1}]
