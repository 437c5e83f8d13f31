"""What tests of the Chrome trace share: how one is made from rows, and how it reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tracekit
from tests.event_rows import footer_of, write_trace
from tracekit import perfetto

SAMPLES = Path(__file__).resolve().parents[1] / "sample_traces"
Event = dict[str, Any]


def exported(path: Path, rows: Sequence[Event], **footer: Any) -> dict[str, Any]:
    """The document made from rows; times in it as text."""
    trace = write_trace(path / "t.parquet", rows, footer_of(rows, **footer))
    with tracekit.open(trace) as opened:
        perfetto.export(opened, path / "t.json", force=True)
    document: dict[str, Any] = json.loads((path / "t.json").read_bytes(), parse_float=str, parse_constant=refuse)
    return document


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def drawn(document: dict[str, Any]) -> list[tuple[str, str, str, str, str | None]]:
    """Process, thread, name, ts and dur of each event that is no metadata and no arrow."""
    names = {
        (one["pid"], one.get("tid"), one["name"]): one["args"].get("name")
        for one in document["traceEvents"]
        if one["ph"] == "M"
    }
    return [
        (
            names[one["pid"], None, "process_name"],
            names[one["pid"], one["tid"], "thread_name"],
            one["name"],
            one["ts"],
            one.get("dur"),
        )
        for one in document["traceEvents"]
        if one["ph"] in "XiC"
    ]
