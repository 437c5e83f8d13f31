"""Serving steps as text: one compact table for the overview, or everything that is known of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from tracekit.analysis import Result, Row, duration
from tracekit.text_grid import cut
from tracekit.text_page import Page
from tracekit.wording import counted

_GROUPS = 5  # phases and batches in the overview
_DEVICES = 8  # shown in full
_NUMBER = 9
_PLACES = (
    ("inside_busy_ns", "busy in steps"),
    ("inside_idle_ns", "idle inside steps"),
    ("between_ns", "idle before steps"),
    ("outside_busy_ns", "busy in no step"),
    ("outside_idle_ns", "idle before that"),
    ("prefix_busy_ns", "busy, in flight at start"),
    ("prefix_idle_ns", "idle before that"),
)
_TIMES = (
    ("period_", "start to next start"),
    ("", "first start to last end"),
    ("busy_", "busy"),
    ("idle_", "idle inside"),
    ("gap_next_", "idle to next step"),
)
_QUANTILES = ("p50", "p90", "p99")


# ---- overview --------------------------------------------------------------------------------------------------------


def overview(page: Page, steps: Result) -> list[Text]:
    """The steady steps of the device that spends most time in steps: how long they take, and how busy it is.

    Without any device, the steps of the rank that has most, as the host saw them.
    """
    if not steps.summary:
        return _on_host(page, steps, _GROUPS)
    here = max(steps.summary, key=lambda row: row["in_steps_ns"] or 0, default=None)
    if here is None or here["in_steps_ns"] is None:
        return []
    rows = [row for row in _of_device(steps, here) if row["kind"] != "empty"]
    if not rows:
        return page.wrapped(f"Steps: {steps.coverage.reason}", "", "dim", 2)
    chosen = [row for row in rows if row["kind"] == "steady"] or rows
    shown = sorted(chosen, key=_charged, reverse=True)[:_GROUPS]
    title = _title(here, rows, len(steps.summary) > 1)
    lines = page.line((f"{title}, first start to last end; gap: idle before", "bold underline"))
    lines += _table([row for row in chosen if row in shown], page.width)
    if rest := [row for row in chosen if row not in shown]:
        share = sum(map(_charged, rest)) / max(1, sum(map(_charged, chosen)))
        lines += page.line((f"  and {counted(len(rest), 'more row')}, {share:.1%} of the time of these steps", "dim"))
    return lines


def _on_host(page: Page, steps: Result, most: int | None) -> list[Text]:
    """Steps without any device: a table for each rank; at most so many rows, and then of the rank with most steps."""
    by_rank: dict[int, list[Row]] = {}
    for row in steps.table.to_pylist():
        by_rank.setdefault(row["rank"], []).append(row)
    many, lines = len(by_rank) > 1, list[Text]()
    if most is not None and many:
        fullest = max(by_rank, key=lambda rank: sum(row["count"] for row in by_rank[rank]))
        by_rank = {fullest: by_rank[fullest]}
    for rank, rows in by_rank.items():
        lines += page.line((f"Steps on the host{f' of rank {rank}' if many else ''}, by their marks", "bold underline"))
        shown = rows[:most]
        lines += _fitted([_host_cells(shown, quantiles) for quantiles in (_QUANTILES, ("p50", "p99"))], page.width)
        if len(shown) < len(rows):
            lines += page.line((f"  and {counted(len(rows) - len(shown), 'more row')}", "dim"))
    return lines


def _host_cells(rows: Sequence[Row], quantiles: Sequence[str]) -> list[list[str]]:
    cells = [["phase", "batch", "steps", *quantiles]]
    for row in rows:
        times = [duration(row[f"host_{one}_ns"]) if one == "p50" or row["count"] > 1 else "" for one in quantiles]
        cells.append([row["phase"], row["bucket"], f"{row['count']:,}", *times])
    return cells


def _title(device: Row, rows: Sequence[Row], many: bool) -> str:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["kind"]] = counts.get(row["kind"], 0) + row["count"]
    listed = ", ".join(f"{count:,} {kind.replace('_', '-')}" for kind, count in counts.items())
    title = "Steady steps" if "steady" in counts else f"Steps, none steady ({listed})"
    guessed = ", inferred" if device["source"] == "inferred" else ""
    return title + guessed + (f" on rank {device['rank']} device {device['device']}" if many else "")


def _charged(row: Row) -> int:
    return int(row["busy_ns"] + row["idle_ns"] + row["gap_before_ns"])


def _table(rows: Sequence[Row], width: int) -> list[Text]:
    """One line each. Where the width is short, first the P90 goes, then decimals and the words in the batch."""
    short = ("p50", "p99")
    wide, narrow = (_cells(rows, short, narrow) for narrow in (False, True))
    return _fitted([_cells(rows, _QUANTILES, narrow=False), wide, narrow], width)


def _fitted(tables: Sequence[Sequence[Sequence[str]]], width: int) -> list[Text]:
    """The first of these tables that fits; the last one close together, and cut if need be."""
    for table, between in [*((table, "  ") for table in tables), (tables[-1], " ")]:
        lines = _aligned(table, between)
        if all(len(line) <= width for line in lines):
            break
    return [Text(cut(line, width), style="" if at else "dim", no_wrap=True) for at, line in enumerate(lines)]


def _cells(rows: Sequence[Row], quantiles: Sequence[str], narrow: bool) -> list[list[str]]:
    cells = [["phase", "batch", "steps", *quantiles, "busy", "idle", "gap"]]
    for row in rows:
        total = max(1, _charged(row))
        parts = (row["busy_ns"], row["idle_ns"], row["gap_before_ns"])
        shares = [f"{ns / total:.{0 if narrow else 1}%}" for ns in parts]
        batch = row["bucket"].replace(", ", " ").replace(" tok", "") if narrow else row["bucket"]
        # Of one step there is one time.
        times = [duration(row[f"{one}_ns"]) if one == "p50" or row["count"] > 1 else "" for one in quantiles]
        cells.append([row["phase"], batch, f"{row['count']:,}", *times, *shares])
    return cells


def _aligned(cells: Sequence[Sequence[str]], between: str) -> list[str]:
    """Phase and batch to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        words = [cell.ljust(room) for cell, room in zip(line[:2], widths[:2], strict=True)]
        numbers = [cell.rjust(room) for cell, room in zip(line[2:], widths[2:], strict=True)]
        lines.append("  " + between.join([*words, *numbers]))
    return lines


def _of_device(steps: Result, device: Row) -> list[Row]:
    """Rows of a device, and those of its rank's steps without work."""
    rows = [row for row in steps.table.to_pylist() if row["rank"] == device["rank"]]
    return [row for row in rows if row["kind"] == "empty" or row["device"] == device["device"]]


# ---- in full ---------------------------------------------------------------------------------------------------------


def in_full(page: Page, steps: Result) -> list[Text]:
    """For each device where its span goes, and all quantiles of each kind, phase and batch."""
    lines = page.wrapped(steps.coverage.reason, "  ", "dim", None)
    for device in steps.summary[:_DEVICES]:
        lines += _device(page, device)
        for row in _of_device(steps, device):
            lines += _group(page, row)
    if (left := len(steps.summary) - _DEVICES) > 0:
        lines += page.line((f"  and {counted(left, 'more device')}: choose a rank, or --format json", "dim"))
    return lines if steps.summary else lines + _on_host(page, steps, None)


def _device(page: Page, device: Row) -> Iterator[Text]:
    marks = {None: "", "inferred": ", inferred from the launches"}
    source = marks.get(device["source"], f", marked by {device['source']}")
    cuts = f", {device['cut_steps']:,} of them cut by the window" if device["cut_steps"] else ""
    title = f"  rank {device['rank']} device {device['device']}: {counted(device['steps'], 'step')}{cuts}{source}"
    yield from page.line((title, "bold"))
    label = max((len(words) for key, words in _PLACES if device[key]), default=0)
    for key, words in _PLACES:
        if ns := device[key]:
            share = ns / max(1, device["span_ns"])
            yield from page.bar(f"    {words:<{label}} {duration(ns):>{_NUMBER}} {share:>6.1%}  ", share)


def _group(page: Page, row: Row) -> Iterator[Text]:
    kind = row["kind"].replace("_", "-")
    yield from page.line((f"    {kind} {row['phase']}, batch {row['bucket']}: {counted(row['count'], 'step')}", "bold"))
    if row["kind"] == "empty":
        return
    label = max(len(words) for _, words in _TIMES)
    quantiles = _QUANTILES if row["count"] > 1 else _QUANTILES[:1]
    if row["count"] > 1:
        heads = "".join(f"{quantile:>{_NUMBER}}" for quantile in quantiles)
        yield from page.line((f"      {'':<{label}}{heads}", "dim"))
    for prefix, words in _TIMES:
        times = (row[f"{prefix}{quantile}_ns"] for quantile in quantiles)
        shown = "".join(f"{'-' if ns is None else duration(ns):>{_NUMBER}}" for ns in times)
        yield from page.line((f"      {words:<{label}}{shown}", ""))
