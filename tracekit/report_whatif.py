"""The outcome of a what-if as text: each group of steps before and after, and what each change adds."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from tracekit.analysis import duration
from tracekit.report_plan import interval
from tracekit.report_text import WIDTH, Report
from tracekit.text_grid import clean, cut
from tracekit.text_page import Page
from tracekit.trace import Trace
from tracekit.whatif import Outcome, Share, WhatIf
from tracekit.wording import counted

_LITTLE = 0.0005  # a share that is 0.0 % in words


def render(trace: Trace, found: WhatIf, *, name: str = "", width: int = WIDTH) -> list[Text]:
    """A line each, none longer than `width`. name: what the user calls the trace."""
    page = Report(name or trace.path.name, trace.scope.arguments(), width, "", True, trace.beside.given)
    return [*page.title(trace), *_said(page, found)]


def _said(page: Page, found: WhatIf) -> list[Text]:
    """Groups that are changed, most time first; then, in a line, those that are not; then all steps together."""
    several = len({(one.rank, one.device) for one in found.outcomes}) > 1
    said: list[Text] = []
    for one in found.outcomes:
        if one.refusal:
            said += page.wrapped(f"{_title(one, several)}: no estimate, {one.refusal}", "", "yellow", None)
        elif one.is_touched:
            said += _group(page, one, several)
    idle = [one for one in found.outcomes if not one.refusal and not one.is_touched]
    if idle:
        said += page.wrapped(
            f"nothing is changed in: {', '.join(_title(one, several) for one in idle)}", "", "dim", None
        )
    return said + _together(page, [one for one in found.outcomes if not one.refusal])


def _group(page: Page, one: Outcome, several: bool) -> list[Text]:
    after = interval(one.after_low_ns, one.after_high_ns)
    title = f"{_title(one, several)}: {duration(one.before_ns)} -> {after} a step"
    said = page.line((title, "bold"), (f", {_share(one.before_ns, one.after_low_ns, one.after_high_ns)}", ""))
    cells = [_cells(share) for share in one.changes]
    matched, saves = (max(map(len, column)) for column in zip(*((cell[1], cell[2]) for cell in cells), strict=True))
    room = page.width - matched - saves - 6
    wide = min(room, max(len(cell[0]) for cell in cells))
    for name, count, saving in cells:
        said += page.line((f"  {cut(name, wide):<{wide}}  {count:>{matched}}  {saving:>{saves}}", ""))
    played = counted(one.replayed, "step")
    middle = interval(one.spread_low_ns, one.spread_high_ns)
    spread = f", saving {middle} in the middle" if one.replayed > 1 and one.spread_high_ns else ""
    note = f"{played} replayed of {one.steps:,}{spread}; unchanged, the replay is {one.error:.1%} off"
    if one.inferred_edges:
        note += f"; {counted(one.inferred_edges, 'wait')} across streams inferred"
    return said + page.wrapped(note, "  ", "dim", None)


def _cells(share: Share) -> tuple[str, str, str]:
    name = clean(share.change)
    if share.matched == 0:
        return name, "", "nothing here"
    plural = "es" if share.what == "launch" else "s"
    count = "" if share.matched is None else f"{share.matched:,} {share.what}{plural * (share.matched != 1)}"
    low, high = share.saving_low_ns, share.saving_high_ns
    if high <= 0:
        return name, count, f"costs {interval(-high, -low)}" if low else "saves nothing"
    if low < 0:
        return name, count, f"costs {duration(-low)} to saves {duration(high)}"
    return name, count, f"saves {interval(low, high)}"


def _title(one: Outcome, several: bool) -> str:
    return clean(one.label) + (f" on rank {one.rank} device {one.device}" if several else "")


def _share(before: int, low: int, high: int) -> str:
    """How much less that is."""
    least, most = (1 - high / before, 1 - low / before) if before else (0.0, 0.0)
    if least <= -_LITTLE:
        return _more(least, most)
    if most < _LITTLE:
        return "no less"
    return f"{most:.1%} less" if f"{least:.1%}" == f"{most:.1%}" else f"{least:.1%} to {most:.1%} less"


def _more(least: float, most: float) -> str:
    """Of a step that becomes longer, at worst."""
    end = f"{-least:.1%} more"
    if most >= _LITTLE:
        return f"{most:.1%} less to {end}"
    if -most < _LITTLE:
        return f"up to {end}"
    begin = f"{-most:.1%}"
    return end if end.startswith(begin) else f"{begin} to {end}"


def _together(page: Page, told: Sequence[Outcome]) -> list[Text]:
    """Of all steps, as if each of a group saved what its median does."""
    if len(told) < 2 or len({(one.rank, one.device) for one in told}) > 1:
        return []  # devices work side by side: their times do not add up
    before = sum(one.total_ns for one in told)
    low, high = (
        round(sum(one.total_ns * after / max(1, one.before_ns) for one, after in zip(told, each, strict=True)))
        for each in ([one.after_low_ns for one in told], [one.after_high_ns for one in told])
    )
    said = f"all steps: {duration(before)} -> {interval(low, high)}"
    return page.line((said, "bold"), (f", {_share(before, low, high)}", ""))
