"""Rows of the table and the summary of roofline, made by hand: what it says of kernel groups and of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tracekit.analysis import Coverage, Result
from tracekit.devices import HOW_TO_GIVE

Row = dict[str, Any]
US = 1_000
MS = 1_000_000
# fmt: off
_TYPES = {
    "rank": pa.int32(), "device": pa.int64(), "kernel": pa.string(), "op": pa.string(), "shapes": pa.string(),
    "dtypes": pa.string(), "launch": pa.string(), "category": pa.string(), "subcategory": pa.string(),
    "count": pa.int64(),
    "steps": pa.int64(), "dur_ns": pa.int64(), "alone_ns": pa.int64(), "exclusive_ns": pa.int64(), "math": pa.string(),
    "flops": pa.float64(), "flops_low": pa.float64(), "flops_high": pa.float64(), "bytes": pa.float64(),
    "bytes_low": pa.float64(), "bytes_high": pa.float64(),
    "weight_bytes": pa.float64(), "weight_bits": pa.int64(), "kv_bytes": pa.float64(), "link_bytes": pa.float64(),
    "intensity": pa.float64(), "achieved_flops": pa.float64(), "achieved_bandwidth": pa.float64(),
    "memory_ns": pa.float64(), "compute_ns": pa.float64(), "roof_ns": pa.float64(), "roof_fraction": pa.float64(),
    "datasheet_fraction": pa.float64(), "bound": pa.string(), "leaning": pa.string(), "evidence": pa.string(),
    "how": pa.string(), "notes": pa.string(), "waves": pa.float64(), "problem": pa.string(), "example_id": pa.int64(),
}
# fmt: on
SCHEMA = pa.schema(list(_TYPES.items()))


def group(**said: Any) -> Row:
    """A kernel group; what is not said is NULL. Times default to dur_ns, rates to FLOPs and bytes by alone_ns."""
    row: Row = dict.fromkeys(_TYPES)
    row |= {"rank": 0, "device": 0, "kernel": "k", "category": "gemm", "subcategory": "", "count": 1, "steps": 0}
    row |= {"dur_ns": 1 * MS, "bound": "unknown", "example_id": 1, **said}
    row["alone_ns"] = said.get("alone_ns", row["dur_ns"])
    row["exclusive_ns"] = said.get("exclusive_ns", row["dur_ns"])
    seconds = row["alone_ns"] / 1e9
    if row["flops"] and row["bytes"]:
        row["intensity"] = row["flops"] / row["bytes"]
    for rate, amount in (("achieved_flops", "flops"), ("achieved_bandwidth", "bytes")):
        if row[rate] is None and row[amount] and seconds:
            row[rate] = row[amount] / seconds
    return row


def h100(**said: Any) -> Row:
    """A row of the summary: the datasheet's figures of an H100 SXM, and of them what is achievable."""
    return {
        "rank": 0,
        "device": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "spec": "H100 SXM5 80 GB",
        "peaks": {"bf16": 989e12, "fp16": 989e12, "fp8": 1979e12, "fp32": 67e12},
        "bandwidth": 3.35e12,
        "achievable": {"bf16": 0.8, "fp16": 0.8, "fp8": 0.8, "fp32": 0.9, "bandwidth": 0.9},
        "sources": {"bf16": "datasheet", "fp8": "datasheet", "fp32": "datasheet", "bandwidth": "datasheet"},
        "problem": "",
        "busy_ns": 10 * MS,
        "by_bound": {},
        "by_evidence": {},
        "above_roof_ns": 0,
        **said,
    }


def unknown(**said: Any) -> Row:
    """A device without a name."""
    nothing: Row = {
        "name": "",
        "spec": None,
        "peaks": {},
        "bandwidth": None,
        "achievable": {},
        "sources": {},
    }
    return h100(
        **{
            **nothing,
            "sources": {},
            "problem": f"The trace has no device name. No peaks are assumed. {HOW_TO_GIVE}",
            **said,
        }
    )


def result(rows: Sequence[Row], summary: Sequence[Row], reason: str = "") -> Result:
    """What the analysis returns of them."""
    explained = sum(row["exclusive_ns"] for row in rows if row["evidence"] not in (None, "F"))
    total = sum(row["busy_ns"] for row in summary)
    table = pa.Table.from_pylist(list(rows), SCHEMA)
    return Result("roofline", {}, summary, table, (), Coverage(explained, total, reason))
