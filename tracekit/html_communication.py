"""What does communication between devices cost? By device what is exposed and what waits; by message what is sent."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.analysis import Result, Row
from tracekit.html_svg import share_bar
from tracekit.html_views import (
    ROWS,
    Block,
    Cell,
    Column,
    Notes,
    Section,
    Table,
    number_cell,
    reason_of,
    share_cell,
    some_of,
    table,
    text_cell,
    time_cell,
)
from tracekit.plot_style import si

_TITLE = "Communication"
_DEVICES = (
    Column("rank", "number"),
    Column("device", "number"),
    Column("communicates", "number"),
    Column("of busy time", "bar"),
    Column("exposed", "number", "nothing else ran on the device meanwhile"),
    Column("of span", "number", "exposed, of the span of the device"),
    Column("waits", "number", "from its start to that of the last rank; empty where that cannot be told"),
    Column("transfers", "number", "the rest of its time"),
)
_MESSAGES = (
    Column("rank", "number"),
    Column("phase"),
    Column("group"),
    Column("ranks", "number", "in the group"),
    Column("collective"),
    Column("kind"),
    Column("type"),
    Column("message", "number", "bytes of the larger side, to the next power of two"),
    Column("count", "number"),
    Column("bytes", "number", "that the rank gave, all together"),
    Column("time", "number", "sum of durations"),
    Column("exposed", "number"),
    Column("waits", "number"),
    Column("transfers", "number"),
    Column("bus bandwidth", "number", "by the convention of nccl-tests"),
)


def section(result: Result, again: str) -> Section:
    """again: the command that prints all of it."""
    rows = result.table.to_pylist()
    if not rows:
        return Section("communication", _TITLE, "", (Notes(reason_of(result, "no communication in this trace")),))
    blocks: list[Block] = [Notes(reason_of(result))] if result.coverage.reason else []
    blocks += [_devices(result.summary), _messages(rows, again)]
    lead = "Exposed is what nothing else on the device covers; waiting is for the last rank to start."
    return Section("communication", _TITLE, lead, tuple(blocks))


def _devices(summary: Sequence[Row]) -> Table:
    cells = []
    for row in summary[:ROWS]:
        of_busy = row["communication_ns"] / row["busy_ns"] if row["busy_ns"] else 0.0
        cells.append(
            (
                number_cell(row["rank"]),
                number_cell(row["device"]),
                time_cell(row["communication_ns"]),
                share_cell(of_busy, share_bar(of_busy)),
                time_cell(row["exposed_ns"]),
                share_cell(row["exposed_ns"] / row["span_ns"] if row["span_ns"] else None),
                time_cell(row["wait_ns"]),
                time_cell(row["transfer_ns"]),
            )
        )
    return table("By device", _DEVICES, cells)


def _messages(rows: Sequence[Row], again: str) -> Table:
    ranked = sorted(rows, key=lambda row: -row["total_ns"])
    cells = [_message(row) for row in ranked[:ROWS]]
    left = some_of(len(cells), len(rows), "those with most time", again)
    lower = any(row["bandwidth_over"] == "total" for row in ranked[:ROWS])
    said = "\u2265: over all of the time, waiting included." if lower else ""
    return table("By collective and size of message", _MESSAGES, cells, f"{said} {left}".strip())


def _message(row: Row) -> list[Cell]:
    return [
        number_cell(row["rank"]),
        text_cell(row["phase"]),
        text_cell(row["group"] or ""),
        number_cell(row["group_size"]),
        text_cell(row["collective"] or ""),
        text_cell(row["subcategory"]),
        text_cell(row["dtype"] or ""),
        _bytes(row["message_to"]),
        number_cell(row["count"]),
        _bytes(row["bytes"]),
        time_cell(row["total_ns"]),
        time_cell(row["exposed_ns"]),
        time_cell(row["wait_ns"]),
        time_cell(row["transfer_ns"]),
        _bandwidth(row),
    ]


def _bytes(size: int | None) -> Cell:
    return Cell("", "") if size is None else Cell(si(size, "B"), size, title=f"{size:,} B")


def _bandwidth(row: Row) -> Cell:
    value = row["bus_bandwidth"]
    if value is None:
        return Cell("", "")
    sign = "\u2265" if row["bandwidth_over"] == "total" else ""
    return Cell(sign + si(value, "B/s"), value)
