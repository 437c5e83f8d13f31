"""Axes of a plot: given ones or a figure of their own, what stands above and beside them, times with a unit.

All text may come from a trace: it is never read as mathematics. Positions of text are worked out in pixels and kept as
shares of the axes, after the layout of a given figure has settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tracekit.plot_labels import Box, extent
from tracekit.plot_style import Fill, new_figure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.text import Text

SMALL = 8.0  # points, of most of the text
_TITLE, _CAPTION = 12.0, 8.5
_TITLE_DOWN, _CAPTION_DOWN, _LINE = 18.0, 5.0, 12.0  # points above the axes: of the title, of the last line
_QUIET = "#444444"
_POINTS = 72.0
_NARROWEST = 0.27  # of the size: no letter of Matplotlib's own font is narrower


@dataclass(frozen=True, slots=True)
class Room:
    """Inches of a new figure around its axes."""

    left: float
    right: float
    top: float
    bottom: float


def axes_of(ax: Axes | None, width: float, height: float, room: Room) -> Axes:
    """The axes given, else those of a new figure. width, height: inches of the figure."""
    if ax is not None:
        return ax
    figure = new_figure(width, height)
    return figure.add_axes(
        (
            room.left / width,
            room.bottom / height,
            (width - room.left - room.right) / width,
            (height - room.top - room.bottom) / height,
        )
    )


def _figure_of(axes: Axes) -> Figure:
    """The whole one, where the axes are in a part of a figure."""
    return axes.figure.figure


def _settle(axes: Axes) -> None:
    """Let a figure with a layout of its own (constrained, tight) place the axes, before pixels are counted."""
    figure = _figure_of(axes)
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)


def entitle(axes: Axes, title: str, caption: Sequence[str] = ()) -> None:
    """A title and lines under it, above the axes, as far as the figure is wide; longer lines are broken at spaces.

    To be called when all that is beside the axes is there: from then on they stay where they are.
    """
    _settle(axes)
    lines = [part for line in caption for part in _broken(axes, line, _CAPTION)]
    for up, line in enumerate(reversed(lines)):
        _above(axes, line, _CAPTION_DOWN + _LINE * up, _CAPTION, _QUIET)
    size = _TITLE
    while size > SMALL and _width(axes, title, size, bold=True) > _room_for_text(axes):
        size -= 0.5
    text = _above(axes, title, _CAPTION_DOWN + _LINE * len(lines) + 3, size, "black")
    text.set_fontweight("bold")
    _settle(axes)


def height_of_head(lines: int) -> float:
    """Inches that a title and so many lines take above the axes."""
    return (_CAPTION_DOWN + _LINE * lines + 3 + _TITLE * 1.6) / _POINTS


def _above(axes: Axes, line: str, points: float, size: float, colour: str) -> Text:
    text = axes.annotate(
        line, (0, 1), xycoords="axes fraction", xytext=(0, points), textcoords="offset points", fontsize=size,
        color=colour, va="baseline", annotation_clip=False,
    )  # fmt: skip
    text.set_parse_math(False)
    text.set_gid("label")
    return text


def _broken(axes: Axes, line: str, size: float) -> list[str]:
    """The line, in as many as it takes."""
    room, lines = _room_for_text(axes), [""]
    for word in line.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and _width(axes, longer, size) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _room_for_text(axes: Axes) -> float:
    """Pixels from the left edge of the axes to the right edge of the figure."""
    return float(_figure_of(axes).bbox.x1 - axes.bbox.x0 - 6)


def _width(axes: Axes, line: str, size: float, *, bold: bool = False) -> float:
    box = size_of(axes, line, size, bold=bold)
    return box.right - box.left


def size_of(axes: Axes, line: str, size: float, *, bold: bool = False) -> Box:
    """The room that a text would take. size: points."""
    text = axes.text(0, 0, line, fontsize=size, fontweight="bold" if bold else "normal", parse_math=False)
    box = extent(text)
    text.remove()
    return box


# ---- areas -----------------------------------------------------------------------------------------------------------


def fill_area(axes: Axes, area: Box, fill: Fill) -> None:
    """Paint an area, in units of the axes, whose limits do not follow it."""
    from matplotlib.patches import Rectangle

    width, height = area.right - area.left, area.top - area.bottom
    look = _look(fill)
    axes.add_patch(
        Rectangle(
            (area.left, area.bottom),
            width,
            height,
            facecolor=fill.colour,
            hatch=look,
            edgecolor=fill.line,
            linewidth=0.5,
        )
    )


def patch(label: str, fill: Fill) -> Patch:
    """An entry of a legend."""
    from matplotlib.patches import Patch

    return Patch(label=label, facecolor=fill.colour, hatch=_look(fill), edgecolor=fill.line, linewidth=0.5)


def _look(fill: Fill) -> str | None:
    return fill.hatch or None  # an empty one is a mistake to Matplotlib


def legend(axes: Axes, entries: Sequence[Artist], headings: Sequence[str] = (), *, inches: float = 0.1) -> None:
    """To the right of the axes, so far from them. headings: labels of entries that are headings, in bold and without a
    mark.
    """
    from matplotlib.transforms import ScaledTranslation

    shift = ScaledTranslation(inches, 0, _figure_of(axes).dpi_scale_trans)
    box = axes.legend(
        handles=entries, loc="upper left", bbox_to_anchor=(1.0, 1.0), bbox_transform=axes.transAxes + shift,
        fontsize=SMALL, frameon=False, borderaxespad=0, handlelength=2.2, handleheight=1.3, labelspacing=0.45,
    )  # fmt: skip
    for text, mark in zip(box.get_texts(), box.legend_handles, strict=True):
        text.set_parse_math(False)
        if text.get_text() in headings:
            text.set_fontweight("bold")
            if mark is not None:
                mark.set_visible(False)


def write_inside(axes: Axes, area: Box, choices: Iterable[str], fill: Fill) -> None:
    """The first of the texts that fits into an area (in units of the axes), in its middle; none if none does."""
    low, high = axes.transData.transform(((area.left, area.bottom), (area.right, area.top)))
    narrowest = _NARROWEST * (SMALL - 1) * _figure_of(axes).dpi / _POINTS
    for words in choices:
        if narrowest * max(map(len, words.split("\n"))) + 8 > high[0] - low[0]:
            continue  # to measure a text takes long
        room = size_of(axes, words, SMALL - 1)
        if room.right - room.left + 8 <= high[0] - low[0] and room.top - room.bottom + 4 <= abs(high[1] - low[1]):
            middle = (area.left + area.right) / 2, (area.bottom + area.top) / 2
            text = axes.text(*middle, words, fontsize=SMALL - 1, ha="center", va="center", color=_ink(fill))
            text.set_parse_math(False)
            text.set_gid("label")
            if fill.hatch:  # which would run through the letters
                text.set_bbox({"facecolor": fill.colour, "edgecolor": "none", "pad": 1.0})
            return


def _ink(fill: Fill) -> str:
    """Black or white, what can be read on it: by the relative luminance of WCAG 2."""
    channels = [int(fill.colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels)
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#FFFFFF"


# ---- times -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of time: its name, and how many ns it has."""

    name: str
    ns: float


_UNITS = (Unit("ns", 1.0), Unit("us", 1e3), Unit("ms", 1e6), Unit("s", 1e9))


def unit_of(ns: float) -> Unit:
    """The largest unit of which this is at least one and a half: an axis up to it has few figures."""
    return next((unit for unit in reversed(_UNITS[1:]) if ns >= 1.5 * unit.ns), _UNITS[0 if ns < 100 else 1])


def say_axis(axes: Axes, which: Literal["x", "y"], words: str) -> None:
    """Plain numbers at the ticks of an axis, and what they are, with its unit."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_label_text(words, fontsize=SMALL + 1)
    axes.tick_params(axis=which, labelsize=SMALL)
