"""Communication as text: of each device and phase, which collectives take how long, and what of it nothing covers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.text import Text

from tracekit.analyses._communication_texts import size
from tracekit.analysis import Result, Row, duration
from tracekit.text_grid import grid
from tracekit.text_page import Page
from tracekit.wording import counted

_HEADINGS = ("collective", "group", "message", "times", "time", "exposed", "waiting", "transfer", "GB/s")
_NARROW = 96  # below, there is no room for what is but the rest of the time


def in_full(page: Page, communication: Result) -> list[Text]:
    """All of the table, and of how much of it waiting cannot be told."""
    rows = communication.table.to_pylist()
    lines: list[Text] = []
    for device in communication.summary:
        here = [row for row in rows if (row["rank"], row["device"]) == (device["rank"], device["device"])]
        if here:
            lines += page.line((_device(device), "bold"))
            ordered = sorted(here, key=lambda row: row["phase"])
            for phase, same in groupby(ordered, key=lambda row: str(row["phase"])):
                lines += _phase(page, device, phase, list(same))
    reason = communication.coverage.reason
    lines += page.wrapped("GB/s by the convention of nccl-tests; >= where waiting is in it", "  ", "dim", None) * any(
        row["bus_bandwidth"] for row in rows
    )
    return lines + (page.wrapped(reason, "  ", "dim", None) if reason else [])


def _device(row: Row) -> str:
    said = f"rank {row['rank']} device {row['device']}: communicates for {duration(row['communication_ns'])}"
    said += f", {duration(row['exposed_ns'])} of it exposed"
    if row["wait_ns"] is None:
        return f"{said}; waiting cannot be told"
    return f"{said}; {duration(row['wait_ns'])} waiting, {duration(row['transfer_ns'])} transfer"


def _phase(page: Page, device: Row, phase: str, rows: Sequence[Row]) -> list[Text]:
    title = "all of it" if phase == "unknown" else phase
    steps = next((one for one in device["by_phase"] if one["phase"] == phase), None)
    if steps is not None:
        title = f"{phase if phase != 'unknown' else 'steps'}, {counted(steps['steps'], 'steady step')}: "
        title += f"{duration(steps['exposed_ns'] / steps['steps'])} exposed per step, {steps['share']:.1%} of its time"
    headings = [one for one in _HEADINGS if one != "transfer" or page.width >= _NARROW]
    shown = [dict(_shown(row)) for row in rows]
    return page.line((f"  {title}", "")) + [Text(line, no_wrap=True) for line in grid(headings, shown, page.width)]


def _shown(row: Row) -> Iterator[tuple[str, object]]:
    yield "collective", row["collective"]
    yield "group", _group(row)
    yield "message", "" if row["message_to"] is None else f"<= {size(row['message_to'])}"
    yield "times", row["count"]
    for heading in ("time", "exposed", "waiting", "transfer"):
        ns = row[{"time": "total_ns", "waiting": "wait_ns"}.get(heading, f"{heading}_ns")]
        yield heading, "" if ns is None else duration(ns)
    at_least = ">= " if row["bandwidth_over"] == "total" else ""
    yield "GB/s", "" if row["bus_bandwidth"] is None else f"{at_least}{row['bus_bandwidth'] / 1e9:,.3g}"


def _group(row: Row) -> str:
    """Its name and how many ranks it has; of kernels without a group whose they are."""
    if row["group"] is None:
        return "" if row["subcategory"] == "collective" else row["subcategory"]
    return row["group"] if row["group_size"] is None else f"{row['group']} ({row['group_size']:,} ranks)"
