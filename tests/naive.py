"""Definitions of what the reader and the analyses compute, too naive to be wrong: plain json, Decimal, sorted lists."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

Json = dict[str, Any]
DEVICE_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}


def load(path: Path) -> tuple[list[Json], Json]:
    """Events and the keys around them; numbers with a point as exact decimals."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    document = json.loads(text, parse_float=Decimal)
    return (document, {}) if isinstance(document, list) else (document["traceEvents"], document)


def nanoseconds(value: object) -> int:
    """Microseconds as recorded, as integer nanoseconds; half a nanosecond and more is rounded up, as in the reader."""
    return int((Decimal(str(value)) * 1000).to_integral_value("ROUND_HALF_UP"))


def device_intervals(events: list[Json]) -> dict[int, list[tuple[int, int]]]:
    """Start and end of all device work by device, ns as recorded."""
    intervals: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        if event.get("ph") == "X" and str(event.get("cat", "")).lower() in DEVICE_CATEGORIES:
            start = nanoseconds(event["ts"])
            device = event.get("args", {}).get("device", event["pid"])
            intervals.setdefault(int(device), []).append((start, start + nanoseconds(event["dur"])))
    return intervals


def span_and_busy(intervals: list[tuple[int, int]]) -> tuple[int, int]:
    """From the first start to the last end; and the length of the union."""
    busy = 0
    reach = min(start for start, _ in intervals)
    for start, end in sorted(intervals):
        busy += max(0, end - max(start, reach))
        reach = max(reach, end)
    return reach - min(start for start, _ in intervals), busy
