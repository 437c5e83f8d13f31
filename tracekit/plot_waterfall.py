"""The waterfall: from the mean step before to the mean step after, which parts made it longer or shorter?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.analysis import duration
from tracekit.errors import UsageError
from tracekit.plot_axes import (
    SMALL,
    Room,
    axes_of,
    entitle,
    fill_area,
    height_of_head,
    legend,
    patch,
    say_axis,
    size_of,
    unit_of,
)
from tracekit.plot_labels import Box
from tracekit.plot_style import Fill, fill_of, idle_fill, plain
from tracekit.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tracekit.compare_result import Comparison, GroupChange, Part

_WIDTH = 10.5  # inches
_LEFT, _RIGHT, _BOTTOM = 2.2, 1.75, 0.65
_ROW, _THICK = 0.34, 0.62  # inches of a row; share of it that is bar
_MOST = 12  # parts
_LEAST = 0.01  # of the largest change: a smaller one is among the others
_CLOSE = 0.4  # of the axis from zero: where all changes lie within this part, the axis does not begin at zero
_NAME = 24
_TOTAL = Fill("#8A8A8A", "", "#555555")
# Neither is the colour of a category; light and dark to all readers.
_LONGER, _SHORTER = "#C8660E", "#43227A"
_CHANCE = "/////"


@dataclass(frozen=True, slots=True)
class Fall:
    """A row: from where to where it leads. total: the mean step of a side, which begins at zero.

    mark: how its part is drawn in other plots; low_ns, high_ns: interval of its change; is_sure: it explains that of
    the step.
    """

    label: str
    start_ns: int
    end_ns: int
    total: bool
    mark: Fill | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    is_sure: bool = False

    @property
    def change_ns(self) -> int:
        """What it adds."""
        return self.end_ns - self.start_ns


# ---- measuring -------------------------------------------------------------------------------------------------------


def falls_of(group: GroupChange) -> tuple[Fall, ...]:
    """The base, its parts by falling change and those that are not shown as one, and the candidate, where they end.

    From row to row each begins where the one before ended, to the nanosecond.
    """
    moved = sorted((part for part in group.parts if part.change_ns), key=lambda part: -abs(part.change_ns))
    least = _LEAST * abs(moved[0].change_ns) if moved else 0.0
    shown = [part for part in moved if abs(part.change_ns) >= least][:_MOST]
    if len(moved) - len(shown) == 1:
        shown = moved
    falls = [Fall(f"base, {counted(group.base.steps, 'step')}", 0, group.base.mean_ns, True)]
    for part in shown:
        at = falls[-1].end_ns
        falls.append(
            Fall(
                *(_label(part), at, at + part.change_ns, False, _mark(part)),
                low_ns=part.low_ns,
                high_ns=part.high_ns,
                is_sure=part.significant,
            )
        )
    if others := moved[len(shown) :]:
        at = falls[-1].end_ns
        name = counted(len(others), "other part")
        falls.append(Fall(name, at, at + sum(part.change_ns for part in others), False))
    falls.append(Fall(f"candidate, {counted(group.candidate.steps, 'step')}", 0, group.candidate.mean_ns, True))
    return tuple(falls)


def group_of(comparison: Comparison, at: int) -> GroupChange:
    """Raises UsageError where there is none."""
    groups = comparison.groups
    if not groups:
        raise UsageError("nothing to plot: no steps of one phase and size of batch are on both sides")
    if not 0 <= at < len(groups):
        there = ", ".join(f"{number} {one.label}" for number, one in enumerate(groups))
        raise UsageError(f"no group {at} of steps to plot; there are: {there}")
    return groups[at]


def _label(part: Part) -> str:
    name = plain(part.name.replace("_", " "), _NAME)
    return f"idle: {name}" if part.kind == "idle" and part.name != "idle" else name


def _mark(part: Part) -> Fill | None:
    match part.kind:
        case "busy":
            return fill_of(part.name)
        case "idle":
            return idle_fill(part.name)
        case _:
            return None


# ---- drawing ---------------------------------------------------------------------------------------------------------


def draw_waterfall(comparison: Comparison, at: int, ax: Axes | None) -> Axes:
    """A row for each, the change written beside it."""
    group = group_of(comparison, at)
    falls = falls_of(group)
    caption = _caption(comparison, group)
    head = height_of_head(len(caption))
    axes = axes_of(ax, _WIDTH, head + _BOTTOM + _ROW * (len(falls) + 0.4), Room(_LEFT, _RIGHT, head, _BOTTOM))
    unit = unit_of(max(fall.end_ns for fall in falls))
    axes.set_ylim(len(falls) - 0.3, -0.7)
    axes.set_yticks(range(len(falls)), [fall.label for fall in falls], fontsize=SMALL)
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    axes.tick_params(axis="y", length=0, pad=18)
    axes.spines[["top", "right"]].set_visible(False)
    low, high = _span(falls)
    cut = "" if low == 0 else f"; the axis begins at {duration(low)}"
    what = "time" if comparison.basis == "whole" else "mean time of a step"
    say_axis(axes, "x", f"{what} ({unit.name}{cut})")
    if len(falls) > 2:
        _legend(axes, falls)
    entitle(axes, f"What changed: {plain(group.label, 60)}", caption)
    _widen(axes, falls, low / unit.ns, high / unit.ns)
    for row, fall in enumerate(falls):
        _draw_row(axes, row, fall, low, unit.ns)
    for row, fall in enumerate(falls[:-1]):
        end = fall.end_ns / unit.ns
        axes.plot([end, end], [row + _THICK / 2, row + 1 - _THICK / 2], color="#888888", linewidth=0.7, zorder=2)
    return axes


def _caption(comparison: Comparison, group: GroupChange) -> list[str]:
    share = f" ({group.change_ns / group.base.mean_ns:+.1%})" if group.base.mean_ns else ""
    said = f"{group.verdict.capitalize()}: {_signed(group.change_ns)}{share}"
    if group.low_ns is not None and group.high_ns is not None:
        percent = f"{comparison.thresholds.confidence:.0%}"
        said += f", with {percent} confidence {_signed(group.low_ns)} to {_signed(group.high_ns)}"
    lines = [f"{said}. {plain(group.reason, 160)}".removesuffix(". ")]
    if comparison.warnings:
        lines.append(f"{counted(len(comparison.warnings), 'warning')}: tracekit compare says what to doubt")
    return lines


def _signed(ns: int) -> str:
    return f"{'+' if ns > 0 else ''}{duration(ns)}"


def _span(falls: tuple[Fall, ...]) -> tuple[int, int]:
    """From where to where the axis shows, in ns: from zero, unless changes could not be seen then."""
    seen = [ns for fall in falls for ns in ((fall.end_ns,) if fall.total else (*_whiskers(fall), fall.start_ns))]
    seen += [fall.end_ns for fall in falls]
    low, high = min(seen), max(seen)
    if high - low >= _CLOSE * high or low == high:
        return min(0, low), high
    return max(0, low - max((high - low) // 3, high // 50)), high


def _whiskers(fall: Fall) -> tuple[int, ...]:
    """Where it would end at the ends of its interval."""
    if fall.low_ns is None or fall.high_ns is None:
        return ()
    return fall.start_ns + fall.low_ns, fall.start_ns + fall.high_ns


def _words(fall: Fall) -> str:
    return duration(fall.end_ns) if fall.total else _signed(fall.change_ns)


def _reach(fall: Fall) -> int:
    """Where its text may begin."""
    return max(fall.start_ns, fall.end_ns, *_whiskers(fall))


def _widen(axes: Axes, falls: tuple[Fall, ...], low: float, high: float) -> None:
    """So far that all texts lie within the axes. low, high: in the unit of the axis."""
    boxes = [size_of(axes, _words(fall), SMALL, bold=fall.total) for fall in falls]
    share = min(0.5, (max(box.right - box.left for box in boxes) + 16) / float(axes.bbox.width))
    axes.set_xlim(low, low + max(high - low, high / 1e6, 1e-9) / (1 - share))


def _draw_row(axes: Axes, row: int, fall: Fall, low: int, scale: float) -> None:
    start = low if fall.total else fall.start_ns
    left, right = sorted((start / scale, fall.end_ns / scale))
    fill_area(axes, Box(left, row - _THICK / 2, right, row + _THICK / 2), _fill(fall))
    if ends := [ns / scale for ns in _whiskers(fall)]:
        axes.plot(ends, [row, row], color="black", linewidth=1, marker="|", markersize=6, zorder=4)
    weight = "bold" if fall.total else "normal"
    axes.annotate(
        _words(fall), (_reach(fall) / scale, row), xytext=(5, 0), textcoords="offset points", va="center",
        fontsize=SMALL, fontweight=weight, gid="label",
    ).set_parse_math(False)  # fmt: skip
    if fall.mark is not None:
        _draw_mark(axes, row, fall.mark)


def _draw_mark(axes: Axes, row: int, fill: Fill) -> None:
    """Beside the label, as other plots show the part."""
    from matplotlib.offsetbox import AnnotationBbox, DrawingArea
    from matplotlib.patches import Rectangle

    area = DrawingArea(12, 10)
    square = Rectangle((0, 0), 12, 10, facecolor=fill.colour, hatch=fill.hatch or None, edgecolor=fill.line)
    square.set_linewidth(0.5)
    area.add_artist(square)
    where = (0.0, float(row))
    box = AnnotationBbox(
        area, where, xycoords=("axes fraction", "data"), xybox=(-10, 0), boxcoords="offset points", frameon=False,
        pad=0, annotation_clip=False,
    )  # fmt: skip
    axes.add_artist(box)


def _fill(fall: Fall) -> Fill:
    if fall.total:
        return _TOTAL
    return Fill(_LONGER if fall.change_ns > 0 else _SHORTER, "" if fall.is_sure else _CHANCE, "#FFFFFF")


def _legend(axes: Axes, falls: tuple[Fall, ...]) -> None:
    def entries() -> Iterator[tuple[str, Fill]]:
        yield "longer", Fill(_LONGER, "", "#FFFFFF")
        yield "shorter", Fill(_SHORTER, "", "#FFFFFF")
        if any(not fall.total and not fall.is_sure for fall in falls):
            yield "chance, or small", Fill("#555555", _CHANCE, "#FFFFFF")

    legend(axes, [patch(label, fill) for label, fill in entries()])
