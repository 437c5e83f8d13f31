"""A comparison as text: each kind of steps before and after, what explains the difference, and what to doubt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from tracekit.analysis import duration
from tracekit.compare_kernels import KernelChange
from tracekit.compare_measure import WHOLE
from tracekit.compare_result import Comparison, GroupChange, Part, SideInfo
from tracekit.roofline_names import kernel_name
from tracekit.text_grid import clean, cut
from tracekit.text_page import Page
from tracekit.wording import counted

WIDTH = 100

_GROUPS = 6  # kinds of step told of
_NAMES = 3  # recordings named
_PARTS = 6  # of a step
_KERNELS = 6
_KERNEL_SHARE = 0.05  # of the step's change
_TIME = 9  # characters of a time
_ROOMY = 80  # columns in which changes of quantiles are told as times, too
_SHOWN = 3  # kernels of one side named in a line
_STYLES = {"slower": "bold red", "faster": "bold green", "no difference shown": "bold", "cannot tell": "bold yellow"}
_BASIS = {
    "device": "",
    "host": "No device work was recorded: times are those of the steps' marks on the host.",
    "whole": "No steps were found: recordings are compared as a whole. --step-range REGEX names what is a step.",
    "nothing": "There is nothing to compare: neither steps nor device work were recorded.",
}
_ONE_AT_A_TIME = "One change at a time: {count} are not alike, so no difference can be put down to one of them alone"


def render(found: Comparison, *, width: int = WIDTH, unicode: bool = True) -> list[Text]:
    """The report, a line each, none longer than `width`."""
    page = Page("", (), width, "█" if unicode else "#", False)
    lines = [*_side(page, "base", found.base), *_side(page, "candidate", found.candidate)]
    lines += _doubts(page, found)
    ranked = sorted(found.groups, key=_weight, reverse=True)
    for group in ranked[:_GROUPS]:
        lines += _group(page, group)
    if rest := ranked[_GROUPS:]:
        verdicts = ", ".join(f"{one.label} {one.verdict}" for one in rest if one.changed)
        told = f"and {counted(len(rest), 'more kind')} of step{f' ({verdicts})' if verdicts else ''}: --format json"
        lines += page.wrapped(told, "", "dim", None)
    for line in lines:
        line.rstrip()
    return lines


def _weight(group: GroupChange) -> int:
    """The time that it is about."""
    return group.base.mean_ns * group.base.steps + group.candidate.mean_ns * group.candidate.steps


def _side(page: Page, word: str, side: SideInfo) -> list[Text]:
    names = ", ".join(side.names[:_NAMES]) + (", ..." if len(side.names) > _NAMES else "")
    many = [f"{len(side.names)} recordings"] if len(side.names) > 1 else []
    device = side.settings.get("device", "")
    pieces = [f"{word:<9}  {names}", *many, counted(side.events, "event"), *([device] if device else [])]
    return page.packed(pieces, "bold")


def _doubts(page: Page, found: Comparison) -> list[Text]:
    lines = page.wrapped(_BASIS[found.basis], "", "yellow", None) if _BASIS[found.basis] else []
    if len(found.conditions) > 1:
        count = counted(len(found.conditions), "condition")
        lines += page.wrapped(_ONE_AT_A_TIME.format(count=count), "! ", "yellow", None)
    for one in found.conditions:
        lines += page.wrapped(one.text, "! ", "yellow", 3)
    for text in found.warnings:
        lines += page.wrapped(text, "  ", "dim", 3)
    return lines


# ---- a kind of steps -------------------------------------------------------------------------------------------------


def _group(page: Page, group: GroupChange) -> list[Text]:
    lines = page.line(
        (f"{clean(group.label)}: ", "bold"),
        (group.verdict, _STYLES[group.verdict]),
        (f", {mean_told(group)}", ""),
        indent="  ",
    )
    if group.reason:
        lines += page.wrapped(group.reason, "  ", "yellow", None)
    lines += _quantiles(page, group)
    if group.verdict != "no difference shown":
        lines += [*_explained(page, group), *_kernels(page, group)]
    return lines


def mean_told(group: GroupChange) -> str:
    """The mean step before and after: "9.22 ms -> 6.62 ms a step, -2.59 ms -28.1% [-28.5%, -27.8%]; 5 steps each"."""
    was, now = group.base, group.candidate
    each = "" if group.bucket == WHOLE[1] else " a step"
    change = f"{duration(was.mean_ns)} -> {duration(now.mean_ns)}{each}, {signed(group.change_ns)}"
    interval = _interval(group.low_ns, group.high_ns, was.mean_ns)
    return f"{change} {_percent(group.change_ns, was.mean_ns)}{interval}; {_counts(group)}"


def _counts(group: GroupChange) -> str:
    was, now = group.base, group.candidate
    what = "recording" if group.bucket == WHOLE[1] else "step"
    each = f"{counted(was.steps, what)} each"
    steps = each if was.steps == now.steps else f"{was.steps:,} and {now.steps:,} {what}s"
    runs = "" if was.runs == now.runs == 1 or what != "step" else f" of {was.runs} and {now.runs} recordings"
    return steps + runs


def _quantiles(page: Page, group: GroupChange) -> Iterator[Text]:
    """None where steps are too few to tell anything by."""
    if group.reason:
        return
    for one in group.quantiles:
        was, now = (getattr(side, f"{one.quantile}_ns") for side in (group.base, group.candidate))
        change = f"  {signed(one.change_ns):>{_TIME + 1}}" if page.width >= _ROOMY else ""
        told = f"  {one.quantile} {duration(was):>{_TIME}} -> {duration(now):>{_TIME}}{change}"
        interval = _interval(one.low_ns, one.high_ns, was)
        yield from page.line((f"{told} {_percent(one.change_ns, was):>7}{interval}", ""))


def signed(ns: int) -> str:
    """A change of time: "+12.3 us"."""
    return f"{'-' if ns < 0 else '+'}{duration(abs(ns))}"


def _percent(ns: int, of: int) -> str:
    return f"{ns / of:+.1%}" if of else ""


def _interval(low: int | None, high: int | None, of: int) -> str:
    return "" if low is None or high is None or not of else f" [{low / of:+.1%}, {high / of:+.1%}]"


# ---- what explains it ------------------------------------------------------------------------------------------------


def _explained(page: Page, group: GroupChange) -> Iterator[Text]:
    """Parts that do, or without a test the largest; the others in one; the sum."""
    told = [part for part in group.parts if part.significant][:_PARTS]
    title = "what explains it, a step"
    if not told:
        told = [part for part in group.parts if part.change_ns][:_PARTS]
        title = "no part alone explains it; the largest" if group.changed else "where it differs, untested"
    if not told:
        return
    yield from page.line((f"  {title}", "underline"))
    largest = max(abs(part.change_ns) for part in told)
    name = max(len(_name(part)) for part in told)
    wide = min(name, page.width - 2 * _TIME - 22)
    for part in told:
        times = f"{duration(part.base_ns):>{_TIME}} -> {duration(part.candidate_ns):>{_TIME}}"
        text = f"    {cut(_name(part), wide):<{wide}} {times}  {signed(part.change_ns):>{_TIME + 1}}  "
        length = round(abs(part.change_ns) / largest * max(0, min(24, page.width - len(text))))
        yield from page.line((text, ""), (page.block * length, "red" if part.change_ns > 0 else "green"))
    rest = [part for part in group.parts if part not in told]
    room = wide + 2 * _TIME + 5
    others = sum(part.change_ns for part in rest)
    if any(part.change_ns for part in rest):
        yield from page.line((f"    {counted(len(rest), 'other part'):<{room}}  {signed(others):>{_TIME + 1}}", "dim"))
    yield from page.line((f"    {'sum':<{room}}  {signed(group.change_ns):>{_TIME + 1}}", "bold"))


def _name(part: Part) -> str:
    return f"{part.kind} {clean(part.name)}" if part.kind != part.name else part.kind


def _kernels(page: Page, group: GroupChange) -> Iterator[Text]:
    least = _KERNEL_SHARE * abs(group.change_ns)
    replaced = [one for one in group.kernels if one.match == "replaced"]
    others = [one for one in group.kernels if one.match != "replaced" and one.change_ns and abs(one.change_ns) >= least]
    told = [*replaced[:_KERNELS], *others[: max(0, _KERNELS - len(replaced))]]
    if not told:
        return
    yield from page.line(("  kernels, a step", "underline"))
    for one in told:
        times = f"{duration(one.base_ns)} -> {duration(one.candidate_ns)}, {signed(one.change_ns)}"
        yield from page.wrapped(f"{_word(one)} {_names(one)}: {times}{_launches(one)}", "    ", "", 3)
    if left := len(replaced) + len(others) - len(told):
        yield from page.line((f"    and {counted(left, 'more kernel')}: --format json", "dim"))


def _word(one: KernelChange) -> str:
    return "fused" if one.is_fused else one.match


def _names(one: KernelChange) -> str:
    was, now = _listed(one.base), _listed(one.candidate)
    if one.match != "replaced":
        return was or now
    return f"{was} -> {now}"


def _listed(names: Sequence[str]) -> str:
    """Kernels in a row, repeated ones once."""
    short = [kernel_name(name) for name in names]
    counts = {name: short.count(name) for name in short}
    named = [name if count == 1 else f"{count} {name}" for name, count in counts.items()]
    more = [f"{len(named) - _SHOWN} more"] if len(named) > _SHOWN else []
    return " + ".join([*named[:_SHOWN], *more])


def _launches(one: KernelChange) -> str:
    was, now = (f"{count:,.1f}".removesuffix(".0") for count in (one.base_count, one.candidate_count))
    return f"; {was} launches" if was == now else f"; {was} -> {now} launches"
