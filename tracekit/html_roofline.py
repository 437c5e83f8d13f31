"""The roofline as SVG: roofs, kernel groups by intensity and rate, and below them those without FLOPs by bandwidth.

What is drawn is said by roofline_panel.py, as for the plot. Markers carry numbers, those of the table below: names of
kernels are too long to lie beside each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tracekit.analysis import Row, Scalar
from tracekit.html_svg import Axis, element, line, svg, swatch, text
from tracekit.html_views import Key, shown
from tracekit.plot_style import fill_of, si, style_of
from tracekit.roofline_panel import Panel, Point, Roof, panel_of, share_of_finding

Numbered = dict[int, int]  # number in the drawing by example_id
_WIDTH, _HEIGHT, _STRIP = 860, 430, 74
_LEFT, _RIGHT, _TOP, _BOTTOM = 92, 190, 14, 46
_BETWEEN = 18  # from the axis of the plot to the strip
_NUMBERED = 24  # markers with a number
_AREA = 900.0  # square pixels of a marker that takes all of the busy time
_LEAST_RADIUS, _MOST_STRIP_RADIUS = 3.0, 13.0
_DIGIT, _LINE = 6.6, 13.0  # room of a digit and of a line of text
_LANES = 5  # of the strip


@dataclass(frozen=True, slots=True)
class Drawing:
    """markup: the SVG; numbers: of the markers; keys: the legend; note: what it shows and what not."""

    markup: Markup
    numbers: Numbered
    keys: tuple[Key, ...]
    note: str


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def touches(self, other: _Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def within(self, other: _Box) -> bool:
        return (
            other.left <= self.left
            and self.right <= other.right
            and other.top <= self.top
            and self.bottom <= other.bottom
        )


@dataclass(frozen=True, slots=True)
class _Marker:
    point: Point
    x: float
    y: float
    radius: float

    @property
    def box(self) -> _Box:
        return _Box(self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius)


def drawing(rows: Sequence[Row], device: Row, parameters: Mapping[str, Scalar]) -> Drawing | None:
    """rows: of this device, longest time first. None where there is nothing to place and no roof."""
    panel = panel_of(rows, device, share_of_finding(parameters))
    if not panel.points and not panel.strip:
        return None
    markers, strip = _markers(panel), _strip_markers(panel)
    numbers = {id(one.point): at for at, one in enumerate(_worth([*markers, *strip]), start=1)}
    drawn = [*_plot(panel, markers, numbers)] if panel.points or panel.roofs else []
    top = _HEIGHT + _BETWEEN if drawn else 8
    if panel.strip:
        drawn.append(element("g", {"transform": f"translate(0,{top})"}, *_strip(panel, strip, numbers)))
    height = top + _STRIP + 44 if panel.strip else _HEIGHT + 8
    label = f"{panel.title}: {'; '.join(panel.caption)}"
    markup = svg(_WIDTH, height, drawn, label, f"0 0 {_WIDTH} {height}")
    by_row = {row["example_id"]: numbers[id(point)] for row, point in _rows_of(rows, panel) if id(point) in numbers}
    return Drawing(markup, by_row, tuple(_keys(panel)), "; ".join(shown(one, 400) for one in panel.caption) + ".")


def _rows_of(rows: Sequence[Row], panel: Panel) -> Iterator[tuple[Row, Point]]:
    """Which point is whose: points keep the order of rows, but say nothing of them."""
    for points in (panel.points, panel.strip):
        at = 0
        for row in rows:
            if at < len(points) and _is_of(points[at], row):
                yield row, points[at]
                at += 1


def _is_of(point: Point, row: Row) -> bool:
    if point.y:
        return (point.x, point.y) == (row["intensity"], row["achieved_flops"])
    return not row["flops"] and point.x == row["achieved_bandwidth"] and point.category == row["category"]


def _worth(markers: Sequence[_Marker]) -> list[_Marker]:
    """Those that are numbered, longest time first."""
    return sorted(markers, key=lambda one: -one.point.share)[:_NUMBERED]


# ---- markers ---------------------------------------------------------------------------------------------------------


def _radius(share: float) -> float:
    return max(_LEAST_RADIUS, math.sqrt(_AREA * share))


def _axes(panel: Panel) -> tuple[Axis, Axis]:
    across = Axis(*panel.span_x, _LEFT, _WIDTH - _RIGHT, is_log=True)
    return across, Axis(*panel.span_y, _HEIGHT - _BOTTOM, _TOP, is_log=True)


def _markers(panel: Panel) -> list[_Marker]:
    across, up = _axes(panel)
    return [_Marker(one, across.at(one.x), up.at(one.y), _radius(one.share)) for one in panel.points]


def _strip_markers(panel: Panel) -> list[_Marker]:
    """On the first lane where a marker touches none; the height means nothing."""
    if not panel.strip:
        return []
    across = _strip_axis(panel)
    placed: list[_Marker] = []
    for one in panel.strip:
        radius = min(_MOST_STRIP_RADIUS, _radius(one.share))
        lanes = [_STRIP * (2 * lane + 1) / (2 * _LANES) for lane in (2, 1, 3, 0, 4)]
        tried = [_Marker(one, across.at(one.x), y, radius) for y in lanes]
        free = (this for this in tried if not any(this.box.touches(other.box) for other in placed))
        placed.append(next(free, tried[0]))
    return placed


def _shape(marker: _Marker) -> Markup:
    """A marker of its category; its border says where it is above the roof."""
    x, y, r = marker.x, marker.y, marker.radius
    style = style_of(marker.point.category)
    kind = "marker error" if marker.point.is_error else "marker"
    common: Mapping[str, object] = {"fill": style.colour, "class": kind}
    title = element("title", {}, shown(marker.point.label.replace("\n", ": ")))
    match style.marker:
        case "o":
            return element("circle", {"cx": x, "cy": y, "r": r, **common}, title)
        case "s":
            side = 1.77 * r
            where = {"x": x - side / 2, "y": y - side / 2, "width": side, "height": side}
            return element("rect", {**where, **common}, title)
        case "^":
            path = f"M{x:.1f},{y - 1.35 * r:.1f}l{1.2 * r:.1f},{2.2 * r:.1f}h{-2.4 * r:.1f}z"
        case _:
            path = f"M{x:.1f},{y - 1.3 * r:.1f}l{1.3 * r:.1f},{1.3 * r:.1f}l{-1.3 * r:.1f},{1.3 * r:.1f}"
            path += f"l{-1.3 * r:.1f},{-1.3 * r:.1f}z"
    return element("path", {"d": path, **common}, title)


def _numbers(
    markers: Sequence[_Marker], numbers: Mapping[int, int], taken: Sequence[_Box], room: _Box
) -> Iterator[Markup]:
    """Beside each marker, where no other number and none of the words is; else not at all: the table has them."""
    boxes = list(taken)
    for marker in sorted(markers, key=lambda one: -one.point.share):
        number = numbers.get(id(marker.point))
        if number is None:
            continue
        width = _DIGIT * len(str(number)) + 2
        gap = marker.radius + 3
        places = (
            (marker.x + gap, marker.y - _LINE / 2),
            (marker.x - gap - width, marker.y - _LINE / 2),
            (marker.x - width / 2, marker.y - gap - _LINE),
            (marker.x - width / 2, marker.y + gap),
            (marker.x + gap, marker.y - gap - _LINE / 2),
            (marker.x - gap - width, marker.y + gap - _LINE / 2),
        )
        tried = [_Box(left, top, left + width, top + _LINE) for left, top in places]
        free = [box for box in tried if box.within(room) and not any(box.touches(other) for other in boxes)]
        clear = (box for box in free if not any(box.touches(other.box) for other in markers))
        if free:  # on another marker rather than nowhere
            box = next(clear, free[0])
            boxes.append(box)
            yield text(box.left + 1, box.bottom - 3, str(number), kind="number")


# ---- the plot --------------------------------------------------------------------------------------------------------


def _plot(panel: Panel, markers: Sequence[_Marker], numbers: Mapping[int, int]) -> Iterator[Markup]:
    across, up = _axes(panel)
    yield from _frame(across, up, "arithmetic intensity (FLOP per byte of device memory)", "")
    for tick in up.ticks():
        y = up.at(tick)
        yield line(across.start, y, across.end, y, "grid")
        yield text(across.start - 8, y + 4, si(tick, "FLOP/s"), anchor="end", kind="tick")
    yield from _roofs(panel, across, up)
    taken = []
    if named := _name_of_slope(panel, across, up):
        words, box = named
        taken.append(box)
        yield words
    for marker in markers:
        yield _shape(marker)
    room = _Box(across.start, up.end, across.end, up.start)
    yield from _numbers(markers, numbers, taken, room)


def _frame(across: Axis, up: Axis, name: str, unit: str) -> Iterator[Markup]:
    ticks = list(across.ticks())
    every = max(1, -(-len(ticks) // 9))
    for tick in ticks[::every]:
        x = across.at(tick)
        yield line(x, up.start, x, up.end, "grid")
        yield text(x, up.start + 17, si(tick, unit) if unit else _plain(tick), anchor="middle", kind="tick")
    yield line(across.start, up.start, across.end, up.start, "axis")
    yield text((across.start + across.end) / 2, up.start + 37, name, anchor="middle")


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:.6f}".rstrip("0")


def _roofs(panel: Panel, across: Axis, up: Axis) -> Iterator[Markup]:
    """Lines at datasheet and, dashed, at achievable figures; names in the margin, pushed apart."""
    for achievable in (False, True):
        slope = _height(panel.bandwidth, achievable)
        heights = [height for roof in panel.roofs if (height := _height(roof, achievable)) is not None]
        kind = "roof achievable" if achievable else "roof"
        if slope is not None:
            end = min(across.high, max(heights) / slope) if heights else across.high
            yield from _clipped(across, up, (across.low, slope * across.low), (end, slope * end), kind)
        for height in heights:
            start = across.low if slope is None else max(across.low, height / slope)
            if start < across.high and up.low <= height <= up.high:
                yield line(across.at(start), up.at(height), across.end, up.at(height), kind)
    lowest = -math.inf
    for roof in panel.roofs:
        y = max(up.at(roof.datasheet) + 4, lowest + _LINE + 2)
        lowest = y
        yield text(across.end + 8, y, _named(roof, "FLOP/s"), kind="roof-name")


def _name_of_slope(panel: Panel, across: Axis, up: Axis) -> tuple[Markup, _Box] | None:
    """Left of the sloped line, where nothing can be that is not an error; to its right where there is no room."""
    if panel.bandwidth is None:
        return None
    words = _named(panel.bandwidth, "B/s")
    width = 1.05 * _DIGIT * len(words)
    slope = panel.bandwidth.datasheet
    heights = [roof.datasheet for roof in panel.roofs]
    low = max(up.low, slope * across.low)
    high = min([up.high, slope * across.high, *heights])
    if low >= high:
        return None
    value = math.exp(0.35 * math.log(low) + 0.65 * math.log(high))
    x, y = across.at(value / slope), up.at(value)
    left = x - 10 - width if x - 10 - width > across.start + 4 else x + 14
    return text(left, y, words, kind="roof-name"), _Box(left, y - _LINE + 3, left + width, y + 3)


def _clipped(
    across: Axis, up: Axis, start: tuple[float, float], end: tuple[float, float], kind: str
) -> Iterator[Markup]:
    """A sloped line, as far as it lies in the picture."""
    slope = start[1] / start[0]
    low = max(start[0], up.low / slope)
    high = min(end[0], up.high / slope)
    if low < high:
        yield line(across.at(low), up.at(low * slope), across.at(high), up.at(high * slope), kind)


def _height(roof: Roof | None, achievable: bool) -> float | None:
    if roof is None:
        return None
    return roof.achievable if achievable else roof.datasheet


def _named(roof: Roof, unit: str) -> str:
    """ "bf16 989 TFLOP/s (80%)": the share is what is achievable."""
    reach = "" if roof.achievable is None else f" ({roof.achievable / roof.datasheet:.0%})"
    return f"{shown(roof.name, 16)} {si(roof.datasheet, unit)}{reach}"


# ---- the strip -------------------------------------------------------------------------------------------------------


def _strip_axis(panel: Panel) -> Axis:
    return Axis(*panel.span_strip, _LEFT, _WIDTH - _RIGHT, is_log=True)


def _strip(panel: Panel, markers: Sequence[_Marker], numbers: Mapping[int, int]) -> Iterator[Markup]:
    across, up = _strip_axis(panel), Axis(0.0, 1.0, _STRIP, 0)
    yield from _frame(across, up, "bandwidth of groups without FLOPs (height means nothing)", "B/s")
    for achievable in (False, True):
        limit = _height(panel.bandwidth, achievable)
        if limit is not None and across.low <= limit <= across.high:
            x = across.at(limit)
            yield line(x, up.start, x, up.end, "roof achievable" if achievable else "roof")
    for marker in markers:
        yield _shape(marker)
    yield from _numbers(markers, numbers, [], _Box(across.start, 0, across.end, _STRIP))


def _keys(panel: Panel) -> Iterator[Key]:
    time: dict[str, float] = {}
    for point in (*panel.points, *panel.strip):
        time[point.category] = time.get(point.category, 0.0) + point.share
    for name in sorted(time, key=lambda one: (-time[one], one)):
        yield Key(swatch(fill_of(name)), shown(name, 40), f"{time[name]:.1%}", "of the busy time")
    if panel.bandwidth or panel.roofs:
        yield Key(_sample("roof"), "datasheet")
    if any(roof and roof.achievable for roof in (panel.bandwidth, *panel.roofs)):
        yield Key(_sample("roof achievable"), "achievable")


def _sample(kind: str) -> Markup:
    inside = line(1, 7, 27, 7, kind)
    return element("svg", {"width": 28, "height": 14, "class": "swatch", "aria-hidden": "true"}, inside)
