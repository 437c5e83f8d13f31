"""The verdict as text that fits one screen: where the time goes, why the device idles, what to do, what to doubt."""

from __future__ import annotations

import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text

from tracekit.analysis import SEVERITIES, Finding, Result, Row
from tracekit.trace import Trace

LINES = 40
WIDTH = 100

_BAR = 24
_CATEGORIES = 7
_DEVICES = 8
_NAME = 44
_WARNINGS = 5
_ROOM = (  # lines that the parts of a finding may take
    {"title": 2, "detail": 4, "do": 3, "price": 2, "check": 2},
    {"title": 1, "detail": 2, "do": 2, "price": 1, "check": 1},
)
_STYLES = {
    "critical": "bold red",
    "warning": "yellow",
    "info": "cyan",
    "fail": "bold red",
    "warn": "yellow",
    "ok": "green",
}


def render(trace: Trace, results: Mapping[str, Result], *, unicode: bool = True, named: bool = False) -> list[Text]:
    """The report, a line each.

    named: the user asked for these analyses by name, so their tables follow, and the screen may be left.
    """
    head = [_title(trace)]
    if idle := results.get("idle_gaps"):
        head += _devices(idle, results.get("attribution"))
    if attribution := results.get("attribution"):
        head += _categories(attribution, "#" if not unicode else "█")
    if idle:
        head += _causes(idle)
    tail = _health(results["health"]) if "health" in results else []
    findings = [finding for name, result in results.items() if name != "health" for finding in result.findings]
    body = _findings(findings, LINES - len(head) - len(tail))
    lines = head + body + tail
    if named:
        for name, result in results.items():
            lines += _table(name, result)
    return lines


def clean(text: object) -> str:
    """Text from a trace, safe for a terminal: control characters are written as escapes."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        char if unicodedata.category(char)[0] != "C" else char.encode("unicode_escape").decode() for char in shown
    )


def time(ns: int | float) -> str:
    """A duration with a fitting unit: "84.487 ms"."""
    if ns >= 10e9:
        return f"{ns / 1e9:,.3f} s"
    return f"{ns / 1e6:,.3f} ms" if ns >= 1e6 else f"{ns / 1e3:,.3f} us"


# ---- parts -----------------------------------------------------------------------------------------------------------


def _title(trace: Trace) -> Text:
    footer = trace.footer
    paths = [source.path for source in footer.sources]
    name = paths[0].replace("\\", "/").rpartition("/")[2] if len(paths) == 1 else f"{len(paths)} files"
    models = sorted({device.name for device in footer.devices if device.name})
    ranks = len(footer.ranks)
    name = name or trace.path.name
    if len(name) > _NAME:
        name = f"{name[: _NAME // 2]}...{name[-_NAME // 2 :]}"
    parts = [name, f"{footer.ledger.stored:,} events", f"{ranks} rank{'s' * (ranks != 1)}", *models]
    return _line((clean("   ".join(parts)), "bold"))


def _devices(idle: Result, attribution: Result | None) -> list[Text]:
    if not idle.summary:
        return [_line((clean(idle.coverage.reason), "yellow"))] if attribution is None else []
    top = _top_categories(attribution)
    lines = []
    if len(idle.summary) == 1:
        (row,) = idle.summary
        span = max(1, row["span_ns"])
        lines.append(
            Text(
                f"rank {row['rank']} device {row['device']}   span {time(row['span_ns'])}   "
                f"busy {time(row['busy_ns'])} ({row['busy_ns'] / span:.1%})   "
                f"idle {time(row['idle_ns'])} ({row['idle_ns'] / span:.1%})"
            )
        )
    else:
        lines.append(_line((f"{'rank':>4} {'device':>6} {'span':>14} {'busy':>7} {'idle':>7}  most of it", "bold")))
        for row in idle.summary[:_DEVICES]:
            span = max(1, row["span_ns"])
            cause = max(row["by_cause"].items(), key=lambda item: item[1], default=("", 0))[0]
            where = (row["rank"], row["device"])
            lines.append(
                Text(
                    f"{row['rank']:>4} {row['device']!s:>6} {time(row['span_ns']):>14} {row['busy_ns'] / span:>7.1%} "
                    f"{row['idle_ns'] / span:>7.1%}  {clean(top.get(where, ''))}"
                    + (f"; idle: {cause}" if cause else "")
                )
            )
        if len(idle.summary) > _DEVICES:
            lines.append(_line((f"     and {len(idle.summary) - _DEVICES} more devices", "dim")))
    if idle.coverage.total_ns and not idle.coverage.explained_ns and not idle.findings and idle.coverage.reason:
        lines += _wrapped(idle.coverage.reason, "", "yellow", 2)
    return lines


def _top_categories(attribution: Result | None) -> dict[tuple[int, int | None], str]:
    time_of: dict[tuple[int, int | None], Counter[str]] = {}
    for row in attribution.table.to_pylist() if attribution else ():
        time_of.setdefault((row["rank"], row["device"]), Counter())[row["category"]] += row["exclusive_ns"]
    return {where: counted.most_common(1)[0][0] for where, counted in time_of.items()}


def _categories(attribution: Result, block: str) -> list[Text]:
    rows = attribution.table.to_pylist()
    total = sum(row["exclusive_ns"] for row in rows)
    if not total:
        return [_line((clean(attribution.coverage.reason), "yellow"))] if attribution.coverage.reason else []
    on_host = rows[0]["device"] is None
    devices = len(attribution.summary)
    lines = _wrapped(attribution.coverage.reason, "", "yellow", 2) if on_host else []
    where = f", all {devices} devices" if devices > 1 and not on_host else ""
    lines.append(_line(("Host op time" if on_host else f"Busy time{where}", "bold underline")))
    by_category: Counter[str] = Counter()
    for row in rows:
        by_category[row["category"]] += row["exclusive_ns"]
    ranked = sorted(by_category.items(), key=lambda item: (-item[1], item[0]))
    shown = ranked[:_CATEGORIES]
    lines += [_bar(name, ns, total, block) for name, ns in shown]
    rest = ranked[_CATEGORIES:]
    if rest:
        lines.append(_bar(f"{len(rest)} more", sum(ns for _, ns in rest), total, block))
    if "other" not in dict(shown):
        share = by_category.get("other", 0) / total
        lines.append(_line((f"  {share:.1%} of it is in no category (other)", "dim")))
    phases: Counter[str] = Counter()
    for row in rows:
        phases[row["phase"]] += row["exclusive_ns"]
    if set(phases) != {"unknown"}:
        listed = ", ".join(f"{phase} {ns / total:.1%}" for phase, ns in phases.most_common())
        lines.append(_line((f"  by phase: {listed}", "dim")))
    return lines


def _bar(name: str, ns: int, total: int, block: str) -> Text:
    share = ns / total
    length = round(share * _BAR)
    return _line((f"  {clean(name):<18} {time(ns):>14} {share:>7.1%}  ", ""), (block * length, "green"))


def _causes(idle: Result) -> list[Text]:
    span = sum(row["span_ns"] for row in idle.summary)
    by_cause: Counter[str] = Counter()
    for row in idle.summary:
        by_cause.update(row["by_cause"])
    if not span or not by_cause:
        return []
    gaps = Counter(idle.table["cause"].to_pylist())
    lines = [_line(("Idle time by cause", "bold underline"))]
    for cause, ns in sorted(by_cause.items(), key=lambda item: (-item[1], item[0])):
        count = f"{gaps[cause]:>9,} gap{'s' * (gaps[cause] != 1)}"
        lines.append(Text(f"  {cause:<18} {time(ns):>14} {ns / span:>7.1%} of span  {count}"))
    return lines


def _findings(findings: Sequence[Finding], room: int) -> list[Text]:
    """Worst first; in full if there is room for all, else shorter, else titles, else a count of what is left."""
    if not findings:
        return []
    ranked = sorted(findings, key=lambda one: (-SEVERITIES.index(one.severity), -one.saving_high_ns))
    head = _line(("Findings", "bold underline"))
    for most in _ROOM:
        lines = [head, *(line for finding in ranked for line in _finding(finding, most))]
        if len(lines) <= room:
            return lines
    lines = [head]
    for position, finding in enumerate(ranked):
        later = len(ranked) - position - 1
        left = room - len(lines) - (later > 0)
        if left < 1:
            return [*lines, _line((f"  and {later + 1} more (--format json)", "dim"))]
        short = _finding(finding, _ROOM[-1])
        # The titles of the others matter more than the remedy of this one.
        lines += short if len(short) + min(later, 3) <= left else short[:1]
    return lines


def _finding(finding: Finding, most: Mapping[str, int]) -> list[Text]:
    indent = "  " + " " * len(f"{finding.severity:<8} ")
    title, *more = _wrapped(finding.title, indent, "bold", most["title"])
    lines = [
        _line((f"  {finding.severity:<8} ", _STYLES[finding.severity]), (title.plain[len(indent) :], "bold")),
        *more,
    ]
    lines += _wrapped(finding.detail, indent, "", most["detail"])
    for word, text in (("do", finding.remedy), ("price", finding.cost), ("check", finding.verify)):
        if text:
            lines += _wrapped(text, f"{indent}{word}: ", "", most[word])
    return lines


def _health(health: Result) -> list[Text]:
    rows = health.table.to_pylist()
    bad = [row for status in ("fail", "warn") for row in rows if row["status"] == status]
    if not bad:
        return [_line(("Health ", "bold underline"), (f" all {len(rows)} checks fine", "green"))]
    lines = [_line(("Health", "bold underline"))]
    lines += [line for row in bad[:_WARNINGS] for line in _check(row)]
    if len(bad) > _WARNINGS:
        lines.append(_line((f"  and {len(bad) - _WARNINGS} more: analyze TRACE health", "dim")))
    return lines


def _check(row: Row) -> list[Text]:
    first, *more = _wrapped(f"{row['check']}: {row['detail']}", "       ", "", 2)
    return [_line((f"  {row['status']:<5}", _STYLES[row["status"]]), (first.plain[7:], "")), *more]


def _table(name: str, result: Result) -> list[Text]:
    if name == "health":
        return [_line((name, "bold underline")), *(line for row in result.table.to_pylist() for line in _check(row))]
    shown = result.table.slice(0, LINES)
    lines = [_line((name, "bold underline")), *map(Text, grid(shown.column_names, shown.to_pylist()))]
    if result.table.num_rows > shown.num_rows:
        lines.append(_line((f"and {result.table.num_rows - shown.num_rows:,} more rows (--format json)", "dim")))
    return lines


# ---- drawing ---------------------------------------------------------------------------------------------------------


def grid(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Aligned columns, numbers to the right; nothing is cut."""
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    numeric = [all(_is_number(row[at]) for row in cells) for at in range(len(columns))]
    widths = [max([len(column), *(len(row[at]) for row in cells)]) for at, column in enumerate(columns)]
    lines = []
    for row in [[clean(column) for column in columns], *cells]:
        padded = [cell.rjust(widths[at]) if numeric[at] else cell.ljust(widths[at]) for at, cell in enumerate(row)]
        lines.append("  ".join(padded).rstrip())
    return lines


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else clean(value)


def _is_number(cell: str) -> bool:
    return not cell or cell.lstrip("-").replace(".", "", 1).isdigit()


def _line(*parts: tuple[str, str]) -> Text:
    """One line, cut to the width. Text, never markup: names may contain brackets."""
    line = Text(no_wrap=True)
    for text, style in parts:
        line.append(text, style=style)
    line.truncate(WIDTH, overflow="ellipsis")
    return line


def _wrapped(text: str, indent: str, style: str, most: int) -> list[Text]:
    """At most so many lines; the rest is replaced by an ellipsis."""
    lines = textwrap.wrap(
        clean(text),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        max_lines=most,
        placeholder=" ...",
        break_on_hyphens=False,
    )
    return [Text(line, style=style, no_wrap=True) for line in lines]
