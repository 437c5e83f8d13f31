"""The plan as text: what to change first in which steps, what each change adds, and what no change gets below."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.text import Text

from tracekit.analysis import Result, Row, duration
from tracekit.text_grid import clean, cut
from tracekit.text_page import Page
from tracekit.wording import counted

_ROOMS = ((3, 4), (2, 4), (2, 3), (1, 4), (1, 3), (1, 2), (1, 1))  # groups shown, remedies of each
_GROUP = ("rank", "device", "phase", "bucket")
_HEADS = ("saves", "step then")


def overview(page: Page, plan: Result, room: int) -> list[Text]:
    """The groups of steps with most time, as many and with as many remedies as there is room for."""
    groups = _groups(plan)
    lines: list[Text] = []
    for most, remedies in _ROOMS:
        lines = [line for rows in groups[:most] for line in _group(page, rows, plan, remedies)]
        more = page.wrapped(_more(groups[most:]), "  ", "dim", 1)
        if len(lines) + len(more) <= room:
            return lines + more
        if len(lines) <= room:
            break
    return lines


def in_full(page: Page, plan: Result) -> list[Text]:
    """All groups with all their remedies, and what each remedy costs."""
    if plan.coverage.reason and not plan.summary:
        return page.wrapped(plan.coverage.reason, "  ", "dim", None)
    lines = [line for rows in _groups(plan) for line in _group(page, rows, plan, None)]
    checks = list(dict.fromkeys(finding.verify for finding in plan.findings))
    return lines + [line for check in checks for line in page.wrapped(f"check: {check}", "  ", "dim", None)]


def _groups(plan: Result) -> list[list[Row]]:
    rows = plan.table.to_pylist()
    return [list(one) for _, one in groupby(rows, key=lambda row: tuple(row[name] for name in _GROUP))]


def _more(left: Sequence[Sequence[Row]]) -> str:
    if not left:
        return ""
    kinds = [_label(rows[0]) for rows in left]
    return f"and {counted(len(left), 'more kind')} of steps, with less time: {', '.join(kinds)}"


def _label(row: Row) -> str:
    named = [row[name] for name in ("phase", "bucket") if row[name] != "unknown"]
    return " ".join(named) or "the whole recording"


def _group(page: Page, rows: Sequence[Row], plan: Result, most: int | None) -> list[Text]:
    """A head, a line for each remedy, and the limit."""
    head = rows[0]
    several = len({(row["rank"], row["device"]) for row in plan.summary}) > 1 or head["devices"] > 1
    where = f" on rank {head['rank']} device {head['device']}" if several else ""
    title = f"Plan for {clean(_label(head))}{where}"
    if head["launches_free_ns"] is None:
        return page.wrapped(f"{title}: no estimate, {head['reason']}", "", "yellow", most and 2)
    remedies = [row for row in rows if row["place"] is not None]
    if not remedies:
        lines = page.line((title, "bold underline"), (_size(head), "dim"))
        return lines + page.wrapped(f"{head['reason']}; {_limit(head)}", "  ", "", most and 2)
    shown = remedies[:most]
    lines = _remedies(page, (title, _size(head)), shown, in_full=most is None)
    more = len(remedies) - len(shown)
    said = [counted(more, "more change")] if more else []
    said += ["each on top of those before it"] if len(remedies) > 1 else []
    return lines + page.wrapped("; ".join([*said, _limit(head)]), "  ", "dim", 1 if most else None)


def _remedies(page: Page, title: tuple[str, str], rows: Sequence[Row], in_full: bool) -> list[Text]:
    """Names to the left, figures to the right, as long as there is room; in full, what each costs."""
    figures = [_figures(row) for row in rows]
    saves, then = (max(map(len, column)) for column in zip(_HEADS, *figures, strict=True))
    room = page.width - saves - then - 4
    first = "".join(title)
    lines = page.line((title[0], "bold underline"), (title[1], "dim"))
    if len(first) <= room:
        heads = f"{'':{room - len(first)}}  {_HEADS[0]:>{saves}}  {_HEADS[1]:>{then}}"
        lines = page.line((title[0], "bold underline"), (title[1] + heads, "dim"))
    for row, (saving, after) in zip(rows, figures, strict=True):
        name, numbers = f"  {row['place']}. {clean(row['remedy'])}", f"  {saving:>{saves}}  {after:>{then}}"
        if len(name) > room and in_full:
            lines += page.wrapped(name.lstrip(), "  ", "", None)
            name = ""
        lines += page.line((f"{cut(name, room):<{room}}{numbers}", ""))
        if in_full:
            lines += page.wrapped(f"more: the analysis {row['source']}. Price: {row['price']}", "     ", "dim", None)
    return lines


def _size(row: Row) -> str:
    if row["phase"] == "unknown" and row["steps"] == 1:
        steps = duration(row["step_ns"])
    elif row["steps"] == 1:
        steps = f"1 step of {duration(row['step_ns'])}"
    else:
        steps = f"{row['steps']:,} steps, one every {duration(row['step_ns'])}"
    return f" ({steps}; replay error {row['error']:.1%})"


def _limit(row: Row) -> str:
    return f"no change of launches alone gets below {duration(row['launches_free_ns'])}"


def _figures(row: Row) -> tuple[str, str]:
    return (
        interval(row["saving_low_ns"], row["saving_high_ns"]),
        interval(row["after_low_ns"], row["after_high_ns"]),
    )


def interval(low: int, high: int) -> str:
    """Two times as short as can be: "2.31-2.58 ms", "0-41.0 us", "612 us-1.10 ms"."""
    first, last = duration(low), duration(high)
    if first == last:
        return last
    if low == 0:
        return f"0-{last}"
    number, unit = first.split(" ")
    return f"{number}-{last}" if last.endswith(f" {unit}") else f"{first}-{last}"
