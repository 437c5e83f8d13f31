"""The verdict as text that fits one screen: where the time goes, why the device idles, what to do, what to doubt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rich.text import Text

from tracekit import (
    report_communication,
    report_counters,
    report_fusion,
    report_graphs,
    report_idle,
    report_plan,
    report_roofline,
    report_steps,
)
from tracekit.analysis import SEVERITIES, Finding, Result, Row, duration
from tracekit.text_grid import grid
from tracekit.text_page import PLACEHOLDER, Page
from tracekit.trace import Trace
from tracekit.wording import counted

LINES = 40
WIDTH = 100

_HEAD_ROOM = (7, 5, 3)  # categories, causes and devices shown
_ROOM = (  # lines that the parts of a finding may take
    {"detail": 5, "do": 4, "price": 2, "check": 2},
    {"detail": 3, "do": 3, "price": 1, "check": 1},
    {"detail": 2, "do": 2, "price": 1, "check": 1},
)
_REMEDY = {"do": 2}
_ONE_LINE = {"title": 1}  # where not even all titles have room
_HEALTH_ROOM = ((5, 2), (5, 1), (3, 1))  # warnings shown, lines of each
_FINDINGS_ROOM = 10  # lines that health leaves to findings
_TOLD = 0.0005  # of the busy time in no category: less reads 0.0%
_PLAN_ROOM = {7: 9, 5: 7, 3: 4}  # lines of the plan, by the room of the head
_SAID_ELSEWHERE = ("health", "plan")  # not among the findings
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
    chosen, beside = trace.scope.arguments(), trace.beside.given
    page = Report(name or trace.path.name, chosen, width, "█" if unicode else "#", named, beside)
    told = {one: result for one, result in results.items() if one not in _SAID_ELSEWHERE}
    findings = [one for result in told.values() for one in result.named_findings().items()]
    if named:
        lines = page.head(trace, results, None) + page.findings(findings, None)
        for one, result in results.items():
            lines += page.table(trace, one, result)
    else:
        lines = _screen(page, trace, results, findings)
    for line in lines:
        line.rstrip()
    return lines


def _screen(
    page: Report, trace: Trace, results: Mapping[str, Result], findings: Sequence[tuple[str, Finding]]
) -> list[Text]:
    """All of it in LINES; what comes first is shortened where not even the titles of the findings have room."""
    lines: list[Text] = []
    for most in _HEAD_ROOM:
        head = page.head(trace, results, most)
        left = LINES - len(head)
        tail = page.health(results["health"], left - (_FINDINGS_ROOM if findings else 0)) if "health" in results else []
        if "plan" in results:
            tail = report_plan.overview(page, results["plan"], _PLAN_ROOM[most]) + tail
        left = LINES - len(head) - len(tail)
        lines = head + page.findings(findings, left) + tail
        if page.titles(findings) <= left:
            break
    return lines


# What tables look like that say more than a grid does.
_IN_FULL: Mapping[str, Callable[[Page, Trace, Result], list[Text]]] = {
    "communication": lambda page, _, result: report_communication.in_full(page, result),
    "counters": report_counters.in_full,
    "cuda_graphs": lambda page, _, result: report_graphs.in_full(page, result),
    "fusion": lambda page, _, result: report_fusion.in_full(page, result),
    "idle_gaps": report_idle.in_full,
    "plan": lambda page, _, result: report_plan.in_full(page, result),
    "roofline": lambda page, _, result: report_roofline.in_full(page, result),
    "steps": lambda page, _, result: report_steps.in_full(page, result),
}


class Report(Page):
    """The parts of the report."""

    def head(self, trace: Trace, results: Mapping[str, Result], most: int | None) -> list[Text]:
        """What the numbers are. most: entries of each list; None: all of all."""
        lines = self.title(trace)
        attribution, idle = results.get("attribution"), results.get("idle_gaps")
        if idle:
            lines += report_idle.devices(self, idle, attribution, most)
        if (steps := results.get("steps")) and most is not None:
            lines += report_steps.overview(self, steps)
        if attribution:
            lines += self.categories(attribution, most)
        lines += report_idle.causes(self, idle, most) if idle else []
        roofline = results.get("roofline")
        return lines + (report_roofline.overview(self, roofline, most) if roofline and most is not None else [])

    def title(self, trace: Trace) -> list[Text]:
        """What the trace is, and which part of it is looked at."""
        footer = trace.footer
        models = sorted({device.name for device in footer.devices if device.name})
        counts = [counted(footer.ledger.stored, "event"), counted(len(footer.ranks), "rank")]
        cut = footer.partial or any(source.truncated_at is not None for source in footer.sources)
        partial = ["partial: see health"] if cut else []
        lines = self.packed([self.trace, *counts, *models, *partial], "bold")
        return lines + (self.wrapped(f"only {trace.scope}", "", "cyan", None) if trace.scope else [])

    def categories(self, attribution: Result, most: int | None) -> list[Text]:
        """Where the busy time goes."""
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
        shown = ranked[:most]
        bars = [*shown]
        if rest := ranked[len(shown) :]:
            bars.append((f"{len(rest)} more", sum(ns for _, ns in rest)))
        lines += [line for name, ns in bars for line in self.timed_bar(name, ns, total)]
        if "other" not in dict(shown):
            share = by_category.get("other", 0) / total
            lines += [] if share < _TOLD else self.line((f"  {share:.1%} of it is in no category (other)", "dim"))
        phases: Counter[str] = Counter()
        for row in rows:
            phases[row["phase"]] += row["exclusive_ns"]
        if set(phases) != {"unknown"}:
            listed = ", ".join(f"{phase} {ns / total:.1%}" for phase, ns in phases.most_common())
            lines += self.line((f"  by phase: {listed}", "dim"))
        return lines

    def titles(self, findings: Sequence[tuple[str, Finding]]) -> int:
        """Lines that the titles take, and where to read the rest."""
        more = self.more(_analyses(findings))
        return sum((len(self.finding(*one, {})) for one in findings), 1 + len(more)) if findings else 0

    def findings(self, findings: Sequence[tuple[str, Finding]], room: int | None) -> list[Text]:
        """Worst first; in full if there is room for all, else shorter, else titles, and then where to read the rest."""
        if not findings:
            return []
        ranked = sorted(findings, key=lambda one: (-SEVERITIES.index(one[1].severity), -one[1].saving_high_ns))
        head = self.line(("Findings", "bold underline"))
        whole = [*head, *(line for one in ranked for line in self.finding(*one, None))]
        if room is None or len(whole) <= room:
            return whole
        note = self.more(_analyses(ranked))
        room -= len(note)
        for most in _ROOM:
            lines = [*head, *(line for one in ranked for line in self.finding(*one, most))]
            if len(lines) <= room:
                return lines + note
        return head + self.titles_first(ranked, room - len(head)) + note

    def titles_first(self, ranked: Sequence[tuple[str, Finding]], room: int) -> list[Text]:
        """Titles of all, as far as they fit, and more of the first ones: titles matter more than remedies."""
        titles = [self.finding(*one, {}) for one in ranked]
        if sum(map(len, titles)) > room:
            titles = [self.finding(*one, _ONE_LINE) for one in ranked]
        left_out = 0
        while sum(map(len, titles)) + (left_out > 0) > room and titles:
            titles.pop()
            left_out += 1
        spare = room - sum(map(len, titles)) - (left_out > 0)
        lines: list[Text] = []
        for one, title in zip(ranked, titles, strict=False):
            fuller = (self.finding(*one, most) for most in (_ROOM[-1], _REMEDY))
            said = next((lines for lines in fuller if len(lines) - len(title) <= spare), title)
            spare -= len(said) - len(title)
            lines += said
        if left_out:
            lines += self.line((f"  and {counted(left_out, 'more finding')}", "dim"))
        return lines

    def finding(self, name: str, finding: Finding, most: Mapping[str, int] | None) -> list[Text]:
        """With the name that `tracekit explain` takes at the end of the title.

        most: lines of each part; a part that is absent is left out, but for the title. None: all of all.
        """
        indent = "  " + " " * len(f"{finding.severity:<8} ")
        saves = f"; saves 0 to {duration(finding.saving_high_ns)} in all" if finding.saving_high_ns else ""
        if finding.saving_low_ns:
            saves = f"; saves {duration(finding.saving_low_ns)} to {duration(finding.saving_high_ns)}"
        title, *rest = self.named(f"{finding.title}{saves}", name, indent, (most or {}).get("title"))
        severity = Text(f"  {finding.severity:<8} ", style=_STYLES[finding.severity], no_wrap=True)
        lines = [severity.append(title.plain[len(indent) :], style="bold"), *rest]
        parts = (("detail", finding.detail), ("do", finding.remedy), ("price", finding.cost), ("check", finding.verify))
        for word, text in parts:
            if text and (most is None or word in most):
                prefix = indent if word == "detail" else f"{indent}{word}: "
                lines += self.wrapped(text, prefix, "", None if most is None else most[word])
        return lines

    def named(self, text: str, name: str, indent: str, most: int | None) -> list[Text]:
        """Text and a name after it, which is never cut."""
        lines = self.wrapped(f"{text} [{name}]", indent, "bold", None)
        if most is None or len(lines) <= most:
            return lines
        narrow = replace(self, width=self.width - len(name) - 3)
        cut = narrow.wrapped(text, indent, "bold", most)
        return [*cut[:-1], cut[-1].append(f" [{name}]")]

    def health(self, health: Result, room: int) -> list[Text]:
        """What is wrong with the trace, in so many lines."""
        name = "Health of the whole trace" if self.chosen else "Health"
        rows = health.table.to_pylist()
        bad = [row for status in ("fail", "warn") for row in rows if row["status"] == status]
        if not bad:
            return self.line((f"{name} ", "bold underline"), (f" all {len(rows)} checks fine", "green"))
        head = self.line((name, "bold underline"))
        lines: list[Text] = []
        for most, each in _HEALTH_ROOM:
            shown = [line for row in bad[:most] for line in self.check(row, each)]
            short = len(bad) > most or any(line.plain.endswith(PLACEHOLDER) for line in shown)
            lines = [*head, *shown, *(self.more(["health"]) if short else [])]
            if len(lines) <= room:
                break
        return lines

    def check(self, row: Row, most: int | None) -> list[Text]:
        """One check, in at most so many lines."""
        first, *more = self.wrapped(f"{row['check']}: {row['detail']}", " " * 7, "", most)
        status = Text(f"  {row['status']:<5}", style=_STYLES[row["status"]], no_wrap=True)
        return [status.append(first.plain[7:], style=""), *more]

    def table(self, trace: Trace, name: str, result: Result) -> list[Text]:
        """All rows of an analysis."""
        head = self.line((name, "bold underline"))
        if name in _IN_FULL:
            return [*head, *_IN_FULL[name](self, trace, result)]
        rows = result.table.to_pylist()
        if name == "health":
            return [*head, *(line for row in rows for line in self.check(row, None))]
        shown = [{_heading(key): _shown(key, one) for key, one in row.items()} for row in rows]
        return [*head, *map(Text, grid([_heading(key) for key in result.table.column_names], shown, self.width))]


def _analyses(findings: Sequence[tuple[str, Finding]]) -> list[str]:
    return list(dict.fromkeys(name.rpartition(".")[0] for name, _ in findings))


def _heading(column: str) -> str:
    return column.removesuffix("_ns")


def _shown(column: str, value: object) -> object:
    return duration(value) if column.endswith("_ns") and isinstance(value, int) else value
