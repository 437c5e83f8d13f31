"""Draws a timeline: bands of rows over a common time, devices coloured by category, idle time by cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from tracekit.plot_axes import (
    SMALL,
    Room,
    axes_of,
    entitle,
    height_of_head,
    legend,
    patch,
    say_axis,
    unit_of,
    write_inside,
)
from tracekit.plot_labels import Box
from tracekit.plot_style import Fill, fill_of, idle_fill, plain
from tracekit.plot_timeline import Band, Piece, View

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_WIDTH = 13.0  # inches
_RIGHT, _BOTTOM = 2.0, 0.6
_LETTER, _ENTRY = 0.071, 0.2  # inches of a letter beside the axes, at most, and of a line of the legend
_LEVEL, _BETWEEN = 0.2, 0.45  # inches of a level of a band; what lies between bands, in levels
_BAR = 0.86  # of a level
_LEAST_WIDTH = 1 / 2_500  # of the window: what is shorter would not be seen
_LEAST_HEIGHT = 0.2  # of a bar
_NARROW = 1 / 350  # of the window: no room for a hatch or an edge
_NAMED = 400  # pieces: the longest have their names in them
_LANE = 30
_LISTED = 12  # entries of a legend, of each kind
_SHADE = 0.5  # how much of the colour of an idle time lies under the streams
# The host has no categories: greys, which the lane's name explains.
_HOST = {
    "step": Fill("#E4E4E4", "", "#555555"),
    "launch": Fill("#9A9A9A", "", "#555555"),
    "annotation": Fill("#D2D2D2", "", "#777777"),
    "op": Fill("#E0E0E0", "", "#8A8A8A"),
    "python": Fill("#EFEFEF", "", "#9A9A9A"),
}


def draw_view(view: View, ax: Axes | None) -> Axes:
    """The bands from top to bottom, a level for each depth; a name where it fits."""
    names = [plain(band.name, _LANE) for band in view.bands]
    left = 0.3 + _LETTER * max(map(len, names))
    entries, headings = _entries(view.bands)
    head = height_of_head(len(view.caption))
    levels = sum(band.levels for band in view.bands) + _BETWEEN * (len(view.bands) + 1)
    height = head + _BOTTOM + max(_LEVEL * levels, _ENTRY * (len(entries) + 1))
    axes = axes_of(ax, _WIDTH, height, Room(left, _RIGHT, head, _BOTTOM))
    unit = unit_of(view.end_ns - view.start_ns)
    places = list(_places(view.bands))
    axes.set_ylim(levels, 0)
    axes.set_xlim((view.start_ns - view.origin_ns) / unit.ns, (view.end_ns - view.origin_ns) / unit.ns)
    middles = [top + band.levels / 2 for band, top in zip(view.bands, places, strict=True)]
    axes.set_yticks(middles, names, fontsize=SMALL)
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    say_axis(axes, "x", f"time {view.origin} ({unit.name})")
    axes.grid(axis="x", color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)
    legend(axes, entries, headings)
    entitle(axes, view.title, view.caption)
    _shade(axes, view, places, unit.ns)
    for band, top in zip(view.bands, places, strict=True):
        _draw_band(axes, band, top, view, unit.ns)
    _write_names(axes, view, places, unit.ns)
    return axes


def _places(bands: Sequence[Band]) -> Iterator[float]:
    """The upper edge of each, in levels from the top."""
    top = _BETWEEN
    for band in bands:
        yield top
        top += band.levels + _BETWEEN


def _fill(band: Band, label: str) -> Fill:
    match band.kind:
        case "device":
            return fill_of(label)
        case "idle":
            return idle_fill(label)
        case _:
            return _HOST[band.kind]


def _area(piece: Piece, top: float, view: View, scale: float) -> Box:
    """Where it is drawn: at least so wide that it is seen, as high as what it covers; y goes down."""
    left, right = (piece.start_ns - view.origin_ns) / scale, (piece.end_ns - view.origin_ns) / scale
    right = max(right, left + (view.end_ns - view.start_ns) / scale * _LEAST_WIDTH)
    bottom = top + piece.level + (1 + _BAR) / 2
    return Box(left, bottom - _BAR * max(_LEAST_HEIGHT, piece.covered), right, bottom)


def _draw_band(axes: Axes, band: Band, top: float, view: View, scale: float) -> None:
    narrow = (view.end_ns - view.start_ns) / scale * _NARROW
    by_label = sorted(band.pieces, key=lambda piece: piece.label)
    for label, pieces in groupby(by_label, key=lambda piece: piece.label):
        fill = _fill(band, label)
        boxes = [_area(piece, top, view, scale) for piece in pieces]
        _paint(axes, [box for box in boxes if box.right - box.left > narrow], fill)
        # No room for a hatch or an edge; what is pale would be lost.
        is_pale = band.kind in _HOST or fill.colour == "#FFFFFF"
        plain_fill = Fill(fill.line if is_pale else fill.colour, "", "none")
        _paint(axes, [box for box in boxes if box.right - box.left <= narrow], plain_fill)


def _paint(axes: Axes, boxes: Sequence[Box], fill: Fill, alpha: float | None = None, zorder: float = 3) -> None:
    """In one collection: an artist for each would take minutes."""
    from matplotlib.collections import PolyCollection

    if boxes:
        corners = [
            [(box.left, box.bottom), (box.right, box.bottom), (box.right, box.top), (box.left, box.top)]
            for box in boxes
        ]
        drawn = PolyCollection(
            corners, facecolors=fill.colour, edgecolors=fill.line, linewidths=0.5 if fill.line != "none" else 0.0,
            hatch=fill.hatch or None, alpha=alpha, zorder=zorder,
        )  # fmt: skip
        axes.add_collection(drawn, autolim=False)


def _shade(axes: Axes, view: View, places: Sequence[float], scale: float) -> None:
    """Under the streams below an idle band, the colours of its causes."""
    for at, band in enumerate(view.bands):
        if band.kind != "idle":
            continue
        last = at
        while last + 1 < len(view.bands) and view.bands[last + 1].kind == "device":
            last += 1
        bottom = places[last] + view.bands[last].levels
        wide = [piece for piece in band.pieces if piece.covered == 1]
        for label in sorted({piece.label for piece in wide}):
            areas = [_area(piece, places[at], view, scale) for piece in wide if piece.label == label]
            boxes = [Box(area.left, area.top, area.right, bottom) for area in areas]
            _paint(axes, boxes, Fill(idle_fill(label).colour, "", "none"), _SHADE, 1)


def _write_names(axes: Axes, view: View, places: Sequence[float], scale: float) -> None:
    """In the longest pieces, whole where they fit, else as much as does."""
    wanted = [
        (piece.end_ns - piece.start_ns, band, top, piece)
        for band, top in zip(view.bands, places, strict=True)
        for piece in band.pieces
        if piece.name
    ]
    wanted.sort(key=lambda one: -one[0])  # stable
    for _, band, top, piece in wanted[:_NAMED]:
        fill = _fill(band, piece.label)
        write_inside(axes, _area(piece, top, view, scale), _shorter(piece.name), fill)


def _shorter(name: str) -> Iterator[str]:
    """The name, and what of it can stand for it."""
    yield name
    for letters in (40, 28, 20, 14, 10):
        if letters < len(name):
            yield f"{name[: letters - 2]}.."


def _entries(bands: Sequence[Band]) -> tuple[list[Artist], tuple[str, ...]]:
    """Categories and causes that are seen, longest time first, under their headings."""
    entries: list[Artist] = []
    headings = {"device": "busy", "idle": "idle"}
    for kind, heading in headings.items():
        time: dict[str, int] = {}
        for band in bands:
            for piece in band.pieces if band.kind == kind else ():
                time[piece.label] = time.get(piece.label, 0) + piece.end_ns - piece.start_ns
        ranked = sorted(time, key=lambda label: (-time[label], label))
        if ranked:
            fills = {label: fill_of(label) if kind == "device" else idle_fill(label) for label in ranked}
            entries.append(patch(heading, fills[ranked[0]]))
            entries += [patch(plain(label.replace("_", " "), 24), fills[label]) for label in ranked[:_LISTED]]
    return entries, tuple(headings.values())
