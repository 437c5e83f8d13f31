"""Fusion candidates as text: of each kind of steps, which kernels could be one, how often, what it wins, how sure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.text import Text

from tracekit.analysis import Result, Row, duration
from tracekit.report_plan import interval
from tracekit.text_grid import clean, grid
from tracekit.text_page import Page
from tracekit.wording import counted

_GROUP = ("rank", "device", "phase", "bucket")
_HEADINGS = ("pattern", "grade", "times", "kernels", "saves", "bytes")


def in_full(page: Page, fusion: Result) -> list[Text]:
    """All of the table: what is open with its figures, then what is done already."""
    rows = fusion.table.to_pylist()
    if not rows:
        reason = fusion.coverage.reason or "no kernels that are known to be fused elsewhere"
        return page.wrapped(reason, "  ", "dim", None)
    several = len({(row["rank"], row["device"]) for row in rows}) > 1
    return [line for _, same in groupby(rows, key=_where) for line in _group(page, list(same), several)]


def _where(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in _GROUP)


def _group(page: Page, rows: Sequence[Row], several: bool) -> list[Text]:
    head = rows[0]
    named = [row for row in (head["phase"], head["bucket"]) if row != "unknown"]
    where = f" on rank {head['rank']} device {head['device']}" if several else ""
    title = f"{clean(' '.join(named)) or 'the whole recording'}{where}, {counted(head['steps'], 'step')}: per step"
    found = [row for row in rows if row["count"]]
    lines = page.line((title, "bold"))
    if found:
        lines += [Text(line, no_wrap=True) for line in grid(_HEADINGS, [_shown(row) for row in found], page.width)]
    for row in found:
        more = f" ({row['remark']})" if row["remark"] else ""
        lines += page.wrapped(f"{row['pattern']}: {row['kernels']}{more}", "  ", "dim", None)
    done = [f"{row['pattern']} ({row['kernels']})" for row in rows if not row["count"]]
    return lines + (page.wrapped(f"fused already: {', '.join(done)}", "  ", "", None) if done else [])


def _shown(row: Row) -> Row:
    saves = "" if row["saving_high_ns"] is None else interval(row["saving_low_ns"], row["saving_high_ns"])
    return {
        "pattern": row["pattern"],
        "grade": row["grade"],
        "times": row["count"],
        "kernels": duration(row["time_ns"]),
        "saves": saves or row["state"],
        "bytes": "" if row["bytes_removed"] is None else f"-{_bytes(row['bytes_removed'])}",
    }


def _bytes(size: int) -> str:
    unit, scale = ("MB", 1e6) if size >= 1e5 else ("kB", 1e3)
    return f"{size / scale:,.1f} {unit}"
