"""Hardware counters of kernels as text: what was read, how much of the kernel time it covers, a table per device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from tracekit.analysis import Result, Row, duration
from tracekit.kernel_names import name_forms
from tracekit.text_grid import grid
from tracekit.text_page import Page
from tracekit.trace import Trace
from tracekit.wording import counted

_KERNELS = 40  # shown of a device
_DEVICES = 8
_NOT_JOINED = {"none": "not measured", "ambiguous": "ambiguous", "other_gpu": "other GPU"}
_HEADS = ("kernel", "grid", "block", "count", "time", "SM %", "mem %", "MB", "waves", "class")


def in_full(page: Page, trace: Trace, counters: Result) -> list[Text]:
    """The files, and for each device the classes of its kernel time and its costliest kernels."""
    lines = [line for said in _files(trace) for line in page.wrapped(said, "  ", "dim", None)]
    if counters.coverage.reason:
        lines += page.wrapped(counters.coverage.reason, "  ", "dim", None)
    rows = counters.table.to_pylist()
    for device in counters.summary[:_DEVICES]:
        here = [row for row in rows if (row["rank"], row["device"]) == (device["rank"], device["device"])]
        lines += [*_classes(page, device), *_kernels(page, here)]
    if (left := len(counters.summary) - _DEVICES) > 0:
        lines += page.line((f"  and {counted(left, 'more device')}: choose a rank, or --format json", "dim"))
    return lines


def _files(trace: Trace) -> Iterator[str]:
    """What was read of each file, and what was left out."""
    by_file: dict[str, dict[tuple[str, str], int]] = {}
    for row in trace.sql("FROM ncu_ledger ORDER BY file, entry, reason").to_pylist():
        by_file.setdefault(row["file"], {})[row["entry"], row["reason"]] = row["count"]
    for file, counts in by_file.items():
        skipped = ", ".join(f"{reason} {count:,}" for (entry, reason), count in counts.items() if entry == "skipped")
        launches = counted(counts["launches", ""], "launched kernel")
        kept, read = counts.get(("kept", ""), 0), counts["read", ""]
        yield f"{Path(file).name}: {launches}, {kept:,} of {counted(read, 'value')} kept" + (
            f" (left out: {skipped})" if skipped else ""
        )


def _classes(page: Page, device: Row) -> Iterator[Text]:
    where = f"rank {device['rank']} device {device['device']}"
    covered = f"{device['share']:.1%} of {duration(device['kernel_ns'])} kernel time has counters"
    yield from page.line((f"  {where}: {covered}", "bold"))
    for name, ns in device["by_class"].items():
        share = ns / max(1, device["kernel_ns"])
        yield from page.bar(f"    {name.replace('_', ' '):<15} {duration(ns):>9} {share:>6.1%}  ", share)


def _kernels(page: Page, rows: Sequence[Row]) -> Iterator[Text]:
    shown = [dict(zip(_HEADS, _cells(row), strict=True)) for row in rows[:_KERNELS]]
    heads = [head for head in _HEADS if any(row[head] for row in shown)]  # the names need the room
    for line in grid(heads, shown, page.width - 4):
        yield Text(f"    {line}", no_wrap=True)
    if (left := len(rows) - _KERNELS) > 0:
        yield from page.line((f"    and {counted(left, 'more kernel')}: --format json", "dim"))


def _cells(row: Row) -> tuple[str, ...]:
    """The name without return type and namespaces: what comes first there tells no kernels apart. Bytes in MB of
    1,000,000; for a kernel that was not joined, the reason stands for the class.
    """
    joined = row["launches"] is not None
    megabytes = "" if row["dram_bytes"] is None else f"{row['dram_bytes'] / 1e6:,.2f}"
    return (
        name_forms(row["kernel"]).simplified,
        row["grid"] or "",
        row["block"] or "",
        f"{row['count']:,}",
        duration(row["dur_ns"]),
        _percent(row["sm_throughput_pct"]),
        _percent(row["memory_throughput_pct"]),
        megabytes,
        "" if row["waves_per_sm"] is None else f"{row['waves_per_sm']:.2f}",
        row["ncu_class"].replace("_", " ") if joined else _NOT_JOINED[row["match"]],
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
