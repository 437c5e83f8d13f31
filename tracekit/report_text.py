"""The verdict as text that fits one screen: where the time goes, why the device idles, what to do, what to doubt."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from tracekit.analyses._idle_advice import MEANINGS
from tracekit.analysis import SEVERITIES, Finding, Result, Row, counted, duration
from tracekit.text_grid import clean, cut, grid
from tracekit.trace import Trace

LINES = 40
WIDTH = 100

_BAR = 24
_CATEGORIES = 7
_DEVICES = 8
_ROWS = 20  # longest gaps shown
_PLACEHOLDER = " ..."
_ROOM = (  # lines that the parts of a finding may take
    {"title": 3, "detail": 5, "do": 4, "price": 2, "check": 2},
    {"title": 2, "detail": 3, "do": 3, "price": 1, "check": 1},
    {"title": 2, "detail": 2, "do": 2, "price": 1, "check": 1},
)
_REMEDY = {"do": 2}
_HEALTH_ROOM = ((5, 2), (5, 1), (3, 1))  # warnings shown, lines of each
_FINDINGS_ROOM = 10  # lines that health leaves to findings
_STYLES = {
    "critical": "bold red",
    "warning": "yellow",
    "info": "cyan",
    "fail": "bold red",
    "warn": "yellow",
    "ok": "green",
}


def render(
    trace: Trace,
    results: Mapping[str, Result],
    *,
    name: str = "",
    width: int = WIDTH,
    unicode: bool = True,
    named: bool = False,
) -> list[Text]:
    """The report, a line each, none longer than `width`.

    name: what the user calls the trace. named: the user asked for these analyses by name: everything is said in full,
    their tables follow, and the screen may be left.
    """
    page = _Page(name or trace.path.name, width, "█" if unicode else "#", named)
    head = page.title(trace)
    if idle := results.get("idle_gaps"):
        head += page.devices(idle, results.get("attribution"))
    if attribution := results.get("attribution"):
        head += page.categories(attribution)
    if idle:
        head += page.causes(idle)
    findings = [(one, finding) for one, result in results.items() if one != "health" for finding in result.findings]
    if named:
        lines = head + page.findings(findings, None)
        for one, result in results.items():
            lines += page.table(trace, one, result)
    else:
        left = LINES - len(head)
        tail = page.health(results["health"], left - (_FINDINGS_ROOM if findings else 0)) if "health" in results else []
        lines = head + page.findings(findings, left - len(tail)) + tail
    for line in lines:
        line.rstrip()
    return lines


@dataclass(frozen=True, slots=True)
class _Page:
    """What is written on: the name of the trace, the width, the character of bars, and whether all is said in full."""

    trace: str
    width: int
    block: str
    whole: bool

    # ---- parts -------------------------------------------------------------------------------------------------------

    def title(self, trace: Trace) -> list[Text]:
        footer = trace.footer
        models = sorted({device.name for device in footer.devices if device.name})
        counts = [counted(footer.ledger.stored, "event"), counted(len(footer.ranks), "rank")]
        return self.packed([self.trace, *counts, *models], "bold")

    def devices(self, idle: Result, attribution: Result | None) -> list[Text]:
        if not idle.summary:
            return self.wrapped(idle.coverage.reason, "", "yellow", 3) if attribution is None else []
        lines = []
        if len(idle.summary) == 1:
            (row,) = idle.summary
            span = max(1, row["span_ns"])
            lines += self.packed(
                [
                    f"rank {row['rank']} device {row['device']}",
                    f"span {duration(row['span_ns'])}",
                    f"busy {duration(row['busy_ns'])} ({row['busy_ns'] / span:.1%})",
                    f"idle {duration(row['idle_ns'])} ({row['idle_ns'] / span:.1%})",
                ]
            )
        else:
            lines += self.line((f"{'rank':>4} {'device':>6} {'span':>9} {'busy':>6} {'idle':>6}  most of it", "bold"))
            lines += _device_rows(self, idle.summary, _top_categories(attribution))
        if idle.coverage.total_ns and not idle.coverage.explained_ns and not idle.findings and idle.coverage.reason:
            lines += self.wrapped(idle.coverage.reason, "", "yellow", 3)
        return lines

    def categories(self, attribution: Result) -> list[Text]:
        rows = attribution.table.to_pylist()
        total = sum(row["exclusive_ns"] for row in rows)
        if not total:
            return self.wrapped(attribution.coverage.reason, "", "yellow", 3)
        on_host = rows[0]["device"] is None
        devices = len(attribution.summary)
        lines = self.wrapped(attribution.coverage.reason, "", "yellow", 3) if on_host else []
        where = f", all {devices} devices" if devices > 1 and not on_host else ""
        lines += self.line(("Host op time" if on_host else f"Busy time{where}", "bold underline"))
        by_category: Counter[str] = Counter()
        for row in rows:
            by_category[row["category"]] += row["exclusive_ns"]
        ranked = sorted(by_category.items(), key=lambda item: (-item[1], item[0]))
        shown = ranked if self.whole else ranked[:_CATEGORIES]
        bars = [*shown]
        if rest := ranked[len(shown) :]:
            bars.append((f"{len(rest)} more", sum(ns for _, ns in rest)))
        lines += [line for name, ns in bars for line in self.bar(name, ns, total)]
        if "other" not in dict(shown):
            share = by_category.get("other", 0) / total
            lines += self.line((f"  {share:.1%} of it is in no category (other)", "dim"))
        phases: Counter[str] = Counter()
        for row in rows:
            phases[row["phase"]] += row["exclusive_ns"]
        if set(phases) != {"unknown"}:
            listed = ", ".join(f"{phase} {ns / total:.1%}" for phase, ns in phases.most_common())
            lines += self.line((f"  by phase: {listed}", "dim"))
        return lines

    def bar(self, name: str, ns: int, total: int) -> list[Text]:
        said = f"  {clean(name):<18} {duration(ns):>9} {ns / total:>6.1%}  "
        length = round(ns / total * min(_BAR, self.width - len(said)))
        return self.line((said, ""), (self.block * length, "green"))

    def causes(self, idle: Result) -> list[Text]:
        span = sum(row["span_ns"] for row in idle.summary)
        by_cause: Counter[str] = Counter()
        for row in idle.summary:
            by_cause.update(row["by_cause"])
        if not span or not by_cause:
            return []
        gaps = Counter(idle.table["cause"].to_pylist())
        lines = self.line(("Idle time by cause", "bold underline"))
        for cause, ns in sorted(by_cause.items(), key=lambda item: (-item[1], item[0])):
            count = f"{gaps[cause]:>8,} gap{'s' * (gaps[cause] != 1)}"
            lines += self.line((f"  {cause:<18} {duration(ns):>9} {ns / span:>6.1%} of span  {count}", ""))
            if self.whole:
                lines += self.wrapped(MEANINGS[cause], "    ", "dim", None)
        return lines

    def findings(self, findings: Sequence[tuple[str, Finding]], room: int | None) -> list[Text]:
        """Worst first; in full if there is room for all, else shorter, else titles, and then where to read the rest."""
        if not findings:
            return []
        ranked = sorted(findings, key=lambda one: (-SEVERITIES.index(one[1].severity), -one[1].saving_high_ns))
        head = self.line(("Findings", "bold underline"))
        whole = [*head, *(line for _, finding in ranked for line in self.finding(finding, None))]
        if room is None or len(whole) <= room:
            return whole
        note = self.more(list(dict.fromkeys(name for name, _ in ranked)))
        room -= len(note)
        for most in _ROOM:
            lines = [*head, *(line for _, finding in ranked for line in self.finding(finding, most))]
            if len(lines) <= room:
                return lines + note
        return head + self.titles_first([finding for _, finding in ranked], room - len(head)) + note

    def titles_first(self, ranked: Sequence[Finding], room: int) -> list[Text]:
        """Titles of all, as far as they fit, and more of the first ones: titles matter more than remedies."""
        titles = [self.finding(finding, {}) for finding in ranked]
        left_out = 0
        while sum(map(len, titles)) + (left_out > 0) > room and titles:
            titles.pop()
            left_out += 1
        spare = room - sum(map(len, titles)) - (left_out > 0)
        lines: list[Text] = []
        for finding, title in zip(ranked, titles, strict=False):
            fuller = (self.finding(finding, most) for most in (_ROOM[-1], _REMEDY))
            said = next((one for one in fuller if len(one) - len(title) <= spare), title)
            spare -= len(said) - len(title)
            lines += said
        if left_out:
            lines += self.line((f"  and {counted(left_out, 'more finding')}", "dim"))
        return lines

    def finding(self, finding: Finding, most: Mapping[str, int] | None) -> list[Text]:
        """most: lines of each part; a part that is absent is left out. None: all of all."""
        indent = "  " + " " * len(f"{finding.severity:<8} ")
        saves = f"; saves 0 to {duration(finding.saving_high_ns)}" if finding.saving_high_ns else ""
        if finding.saving_low_ns:
            saves = f"; saves {duration(finding.saving_low_ns)} to {duration(finding.saving_high_ns)}"
        title, *rest = self.wrapped(f"{finding.title}{saves}", indent, "bold", None)
        severity = Text(f"  {finding.severity:<8} ", style=_STYLES[finding.severity], no_wrap=True)
        lines = [severity.append(title.plain[len(indent) :], style="bold"), *rest]
        parts = (("detail", finding.detail), ("do", finding.remedy), ("price", finding.cost), ("check", finding.verify))
        for word, text in parts:
            if text and (most is None or word in most):
                prefix = indent if word == "detail" else f"{indent}{word}: "
                lines += self.wrapped(text, prefix, "", None if most is None else most[word])
        return lines

    def health(self, health: Result, room: int) -> list[Text]:
        rows = health.table.to_pylist()
        bad = [row for status in ("fail", "warn") for row in rows if row["status"] == status]
        if not bad:
            return self.line(("Health ", "bold underline"), (f" all {len(rows)} checks fine", "green"))
        head = self.line(("Health", "bold underline"))
        lines: list[Text] = []
        for most, each in _HEALTH_ROOM:
            shown = [line for row in bad[:most] for line in self.check(row, each)]
            short = len(bad) > most or any(line.plain.endswith(_PLACEHOLDER) for line in shown)
            lines = [*head, *shown, *(self.more(["health"]) if short else [])]
            if len(lines) <= room:
                break
        return lines

    def check(self, row: Row, most: int | None) -> list[Text]:
        first, *more = self.wrapped(f"{row['check']}: {row['detail']}", " " * 7, "", most)
        status = Text(f"  {row['status']:<5}", style=_STYLES[row["status"]], no_wrap=True)
        return [status.append(first.plain[7:], style=""), *more]

    def table(self, trace: Trace, name: str, result: Result) -> list[Text]:
        rows = result.table.to_pylist() if name != "idle_gaps" else []
        head = self.line((name, "bold underline"))
        if name == "health":
            return [*head, *(line for row in rows for line in self.check(row, None))]
        if name == "idle_gaps":
            return [*head, *self.longest_gaps(trace, result)]
        shown = [{_heading(key): _shown(key, one) for key, one in row.items()} for row in rows]
        return [*head, *map(Text, grid([_heading(key) for key in result.table.column_names], shown, self.width))]

    def longest_gaps(self, trace: Trace, idle: Result) -> list[Text]:
        ordered = idle.table.sort_by([("dur", "descending"), ("rank", "ascending"), ("ts", "ascending")])
        gaps = ordered.slice(0, _ROWS).to_pylist()
        names = trace.rows(id for gap in gaps for id in (gap["blame"], gap["after_id"]) if id is not None)
        said = f"longest first, {len(gaps)} of {counted(ordered.num_rows, 'gap')}"
        if len(gaps) < ordered.num_rows:
            said += "; all of them, by time: --format json"
        columns = ["ts", "dur", "cause", "step", "phase"]
        if len(idle.summary) > 1:
            columns = ["rank", "device", *columns]
        header, *lines = grid(columns, [gap | {"dur": duration(gap["dur"])} for gap in gaps], self.width)
        shown = [*self.wrapped(said, "  ", "dim", None), Text(header)]
        for line, gap in zip(lines, gaps, strict=True):
            around = [("ended by", gap["after_id"])] + ([] if gap["blame"] is None else [("blamed on", gap["blame"])])
            room = (self.width - 4 * len(around)) // len(around)
            parts = [_referred(word, id, names[id]["name"], room) for word, id in around]
            shown += [Text(line), Text("    " + "    ".join(parts), style="dim")]
        return shown

    # ---- drawing -----------------------------------------------------------------------------------------------------

    def more(self, names: Sequence[str]) -> list[Text]:
        """Where all of it can be read."""
        command = f"tracekit analyze {shlex.quote(self.trace)} {' '.join(names)}"
        return self.wrapped(f"in full: {command}, or --format json", "  ", "dim", None)

    def line(self, *parts: tuple[str, str], indent: str = "    ") -> list[Text]:
        """One line, or several where it is too long. Text, never markup: names may contain brackets."""
        line = Text(no_wrap=True)
        for text, style in parts:
            line.append(text, style=style)
        line.rstrip()
        if len(line.plain) <= self.width:
            return [line]
        start = line.plain[: len(line.plain) - len(line.plain.lstrip())]
        rest = textwrap.wrap(
            line.plain.lstrip(), self.width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
        )
        return [Text(one, style=parts[0][1], no_wrap=True) for one in rest]

    def packed(self, pieces: Sequence[str], style: str = "") -> list[Text]:
        """Pieces side by side, as many to a line as fit; one that is longer than a line is broken."""
        lines = [""]
        for piece in map(clean, pieces):
            joined = f"{lines[-1]}   {piece}" if lines[-1] else piece
            if len(joined) <= self.width:
                lines[-1] = joined
            else:
                indent = "  " if lines[-1] else ""
                broken = textwrap.wrap(piece, self.width, initial_indent=indent, subsequent_indent="  ")
                lines = [*(line for line in lines if line), *broken]
        return [Text(line, style=style, no_wrap=True) for line in lines]

    def wrapped(self, text: str, indent: str, style: str, most: int | None) -> list[Text]:
        """At most so many lines; the rest is replaced by an ellipsis."""
        lines = textwrap.wrap(
            clean(text),
            self.width,
            initial_indent=indent,
            subsequent_indent=" " * len(indent),
            max_lines=most,
            placeholder=_PLACEHOLDER,
            break_on_hyphens=False,
        )
        return [Text(line, style=style, no_wrap=True) for line in lines]


def _device_rows(page: _Page, summary: Sequence[Row], top: Mapping[tuple[int, int | None], str]) -> list[Text]:
    shown = summary if page.whole else summary[:_DEVICES]
    lines: list[Text] = []
    for row in shown:
        span = max(1, row["span_ns"])
        cause = max(row["by_cause"].items(), key=lambda item: item[1], default=("", 0))[0]
        numbers = (
            f"{row['rank']:>4} {row['device']!s:>6} {duration(row['span_ns']):>9} {row['busy_ns'] / span:>6.1%} "
            f"{row['idle_ns'] / span:>6.1%}  "
        )
        most = clean(top.get((row["rank"], row["device"]), "")) + (f"; idle: {cause}" if cause else "")
        lines += page.line((numbers + most, ""), indent=" " * len(numbers))
    if len(summary) > len(shown):
        lines += page.line((f"     and {len(summary) - len(shown)} more devices", "dim"))
    return lines


def _top_categories(attribution: Result | None) -> dict[tuple[int, int | None], str]:
    time_of: dict[tuple[int, int | None], Counter[str]] = {}
    for row in attribution.table.to_pylist() if attribution else ():
        time_of.setdefault((row["rank"], row["device"]), Counter())[row["category"]] += row["exclusive_ns"]
    return {where: times.most_common(1)[0][0] for where, times in time_of.items()}


def _heading(column: str) -> str:
    return column.removesuffix("_ns")


def _shown(column: str, value: object) -> object:
    return duration(value) if column.endswith("_ns") and isinstance(value, int) else value


def _referred(word: str, id: int, name: str, room: int) -> str:
    """A row by id and name, the name cut to fit."""
    start = f"{word} {id} "
    return start + cut(clean(name), max(8, room - len(start)))
