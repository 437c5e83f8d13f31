"""The part of the report that explains: what a finding rests on, or what an analysis is and how it decides."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from tracekit.analysis import duration
from tracekit.analysis_help import AnalysisHelp
from tracekit.evidence import EvidenceRow
from tracekit.explain import Explanation
from tracekit.report_text import WIDTH, Report
from tracekit.text_grid import clean, from_package, grid
from tracekit.text_page import Page
from tracekit.wording import counted

_FRAMES, _STACKS = 8, 4  # shown around a row, the innermost; and of rows with different ones
_PARTS = (("do", "remedy"), ("price", "cost"), ("check", "verify"))


def as_text(one: Explanation, width: int = WIDTH) -> str:
    """One explanation by itself."""
    return "\n".join(line.plain.rstrip() for line in explained(Report("", (), width, "", True), one))


def explained(page: Report, one: Explanation) -> list[Text]:
    """All of it, none of the lines longer than the page is wide but for queries, which are to be copied."""
    finding = one.finding
    title = f"{one.id}: " if one.id else ""
    lines = page.wrapped(f"{title}{finding.title}", "", "bold", None)
    lines += page.line((f"{finding.severity}, {_saving(one)}", ""))
    if one.question:
        lines += page.wrapped(one.question, "question: ", "dim", None)
    if one.part:
        lines += page.wrapped(f"only {one.part}", "", "cyan", None)
    if finding.detail:
        lines += page.wrapped(finding.detail, "", "", None)
    if one.arithmetic:
        lines += _heading("Arithmetic")
        lines += [Text(f"  {clean(line)}", no_wrap=True) for line in one.arithmetic]
        if one.part:
            lines += page.wrapped(
                "These queries are of this part: run them with Trace.only(...).sql(...) in Python.", "  ", "dim", None
            )
    lines += _evidence(page, one)
    for word, part in _PARTS:
        if text := getattr(finding, part):
            lines += [*_heading(word.capitalize()), *page.wrapped(text, "  ", "", None)]
    if one.commands:
        lines += _heading("Look further")
        lines += [Text(f"  {clean(command)}", no_wrap=True) for command in one.commands]
    return lines


def _heading(text: str) -> list[Text]:
    return [Text(text, style="bold underline", no_wrap=True)]


def _saving(one: Explanation) -> str:
    low, high = one.finding.saving_low_ns, one.finding.saving_high_ns
    if not high:
        return "promises no saving of its own"
    return f"saves {duration(low) if low else '0'} to {duration(high)} in all"


def _evidence(page: Report, one: Explanation) -> list[Text]:
    if not one.rows:
        return []
    cells = [_cells(row) for row in one.rows]
    lines = _heading(f"Evidence ({counted(len(one.rows), 'row')})")
    lines += [Text(f"  {line}", no_wrap=True) for line in grid(list(cells[0]), cells, page.width - 2)]
    for name, count in one.lines.items():
        lines += page.wrapped(f"{name} ({counted(count, 'row')})", "  comes from: ", "bold yellow", None)
    return lines + _stacks(page, one.rows)


def _cells(row: EvidenceRow) -> dict[str, object]:
    return {
        "id": row.id,
        "kind": row.kind,
        "start": duration(row.ts),
        "takes": duration(row.dur),
        "step": row.step,
        "where": row.place,
        "launch": row.launch_id,
        "name": from_package(row.name),
    }


def _stacks(page: Page, rows: Sequence[EvidenceRow]) -> list[Text]:
    """What each row lies in, the innermost first; rows with the same around them together."""
    together: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        frames = [one for one in row.around if not one.is_between]
        if frames:
            names = tuple(f"{one.kind} {from_package(one.name)}" for one in frames[:_FRAMES])
            together.setdefault(names, []).append(row.id)
    lines: list[Text] = []
    for names, ids in list(together.items())[:_STACKS]:
        lines += page.wrapped(", ".join(map(str, ids)), "  around ", "dim", None)
        lines += [line for name in names for line in page.wrapped(name, "    ", "", 1)]
    if left := len(together) - _STACKS:
        lines += page.line((f"  around the others: {counted(left, 'more stack')}, in --format json", "dim")) * (
            left > 0
        )
    return lines


# ---- what an analysis is ---------------------------------------------------------------------------------------------


def help_text(one: AnalysisHelp, width: int = WIDTH) -> str:
    """The help of an analysis by itself."""
    return "\n".join(line.plain.rstrip() for line in helped(Report("", (), width, "", True), one))


def helped(page: Page, one: AnalysisHelp) -> list[Text]:
    """Question, how it decides, thresholds, columns. The header of the SQL stands as it is: it is laid out there."""
    lines = page.wrapped(f"{one.name}: {one.question}", "", "bold", None)
    lines += page.wrapped(one.about, "", "", None)
    if one.how:
        lines += [*_heading("How it decides"), *(Text(f"  {clean(line)}".rstrip(), no_wrap=True) for line in one.how)]
    lines += _heading("Thresholds")
    for name, default, meaning in one.parameters:
        lines += page.wrapped(f"{name} = {default}: {meaning}" if meaning else f"{name} = {default}", "  ", "", None)
    if not one.parameters:
        lines += page.line(("  none", ""))
    if one.columns:
        lines += _heading(f"Columns of FROM {one.name}()")
        for name, kind, meaning in one.columns:
            lines += page.wrapped(f"{name} {kind}: {meaning}", "  ", "", None)
    return lines + (page.line((f"More: {one.page}", "dim")) if one.page else [])
