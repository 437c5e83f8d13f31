"""The roofline plot: FLOP per byte against FLOP/s, a marker for each kernel group, under the roofs of the device.

After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model" (CACM, 2009): attainable
FLOP/s are the least of the peak and of intensity times bandwidth; the two meet at the ridge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tracekit.analysis import Result, Row
from tracekit.errors import UsageError
from tracekit.plot_axes import entitle, legend, size_of
from tracekit.plot_labels import Box, Label, Segment, draw_labels, extent, pixel
from tracekit.plot_style import DPI, ERROR, defaults, new_figure, plain, si, style_of
from tracekit.roofline_panel import Panel, Point, Roof, panel_of, share_of_finding, words_of

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches. The room to the right holds the names of the roofs, and beyond these the legend.
_WIDTH, _HEIGHT = 12.5, 8.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 1.2, 3.55, 0.52, 0.65
_STRIP, _BETWEEN = 1.15, 0.75
_LINE = 0.17
_MOST_PANELS = 8
_SMALL = 8.0  # points, of most of the text
_LABELLED_STRIP = 3
_LEAST_NAMED = 0.003  # of the busy time
_LARGE = 0.05  # of the busy time: such a group is named even where only a roof's line is free
_AREA = 2_500.0  # square points of a group that takes all of the time
_LEAST_AREA = 14.0
_MOST_STRIP_AREA = 130.0
_LANES = (0.5, 0.72, 0.28, 0.9, 0.1)
_NOTHING = "No kernel group has FLOPs and bytes: nothing to compare with these roofs."
_NOTHING_AT_ALL = "no kernel group has FLOPs and bytes, and the peaks of the device are not known"
_DATASHEET, _ACHIEVABLE, _RIDGE = "#222222", "#777777", "#BBBBBB"
_KINDS = ((True, _DATASHEET, "-"), (False, _ACHIEVABLE, "--"))  # of a limit: is it the datasheet's, and how it is drawn


def roofline_figure(result: Result, *, rank: int | None = None, device: int | None = None, labels: int = 10) -> Figure:
    """The plot of a result of `roofline`, a panel for each device, or for those of one rank or device number.

    labels: groups that are named, those that take most time. Raises UsageError if no device did any work, if there is
    no such device, or if there are more than fit one figure.
    """
    panels = [_panel(result, one) for one in _chosen(result, rank, device)]
    if len(panels) > _MOST_PANELS:
        raise UsageError(f"{len(panels)} devices are too many for one plot: choose a rank (--rank 0)")
    with defaults():
        top = sum(map(_height_of, panels))
        figure = new_figure(_WIDTH, top)
        for panel in panels:
            _draw(figure, panel, top, labels)
            top -= _height_of(panel)
    return figure


def draw_roofline(
    result: Result, ax: Axes | None, *, rank: int | None = None, device: int | None = None, labels: int = 10
) -> Axes:
    """The plot of one device, on axes or in a figure of its own: of several that fit, the one that works longest.

    Axes that are given have no strip of groups without FLOPs below them; how much time these take is said. Raises
    UsageError if there is no such device, or nothing to draw of it.
    """
    one = max(_chosen(result, rank, device), key=lambda row: row["busy_ns"])
    panel = _panel(result, one, strip=ax is None)
    drawn = ax
    with defaults():
        if ax is None:
            height = _height_of(panel)
            drawn = _draw(new_figure(_WIDTH, height), panel, height, labels)
        elif _has_axes(panel):
            _draw_main(ax, panel, labels, titled=True)
    if drawn is None or not (_has_axes(panel) or panel.strip):
        raise UsageError(f"nothing to plot: {_NOTHING_AT_ALL}")
    return drawn


def _chosen(result: Result, rank: int | None, device: int | None) -> list[Row]:
    """The rows of the summary that are asked for, at least one."""
    if not result.summary:
        raise UsageError(f"nothing to plot: {result.coverage.reason or 'no device did any work'}")
    chosen = [
        row
        for row in result.summary
        if (rank is None or row["rank"] == rank) and (device is None or row["device"] == device)
    ]
    if not chosen:
        known = ", ".join(f"rank {row['rank']} device {row['device']}" for row in result.summary)
        raise UsageError(f"no such device to plot; there are: {known}")
    return chosen


def _panel(result: Result, one: Row, *, strip: bool = True) -> Panel:
    where = one["rank"], one["device"]
    rows = [row for row in result.table.to_pylist() if (row["rank"], row["device"]) == where]
    return panel_of(rows, one, share_of_finding(result.parameters), strip=strip)


# ---- a panel ---------------------------------------------------------------------------------------------------------


def _has_axes(panel: Panel) -> bool:
    """Axes without a marker or a line would show nothing that is true."""
    return bool(panel.points or (panel.bandwidth and panel.roofs))


def _height_of(panel: Panel) -> float:
    """Inches."""
    if _has_axes(panel):
        return _HEIGHT
    return _TOP + _LINE * (len(panel.caption) + 1) + _BOTTOM + (_STRIP if panel.strip else 0.0)


def _draw(figure: Figure, panel: Panel, top: float, labels: int) -> Axes | None:
    """The axes of the plot, else of its strip, if there are any. top: inches from the lower edge of the figure."""
    whole = figure.get_figheight()
    bottom = top - _height_of(panel) + _BOTTOM
    said = [(0.28, panel.title, 12.0, "bold", "black")]
    caption = panel.caption if _has_axes(panel) else (*panel.caption, f"{_NOTHING.partition(':')[0]}.")
    said += [(_TOP + _LINE * at, line, 8.5, "normal", "#444444") for at, line in enumerate(caption)]
    for down, line, size, weight, colour in said:
        text = figure.text(_LEFT / _WIDTH, (top - down) / whole, line, fontsize=size, fontweight=weight, color=colour)
        text.set_parse_math(False)
        text.set_verticalalignment("center")
    width = _WIDTH - _LEFT - _RIGHT
    strip = None
    if panel.strip:
        strip = _axes(figure, (_LEFT, bottom, width, _STRIP))
        _draw_strip(strip, panel)
    if not _has_axes(panel):
        return strip
    above = _TOP + _LINE * len(caption)
    below = _STRIP + _BETWEEN if panel.strip else 0.0
    main = _axes(figure, (_LEFT, bottom + below, width, _HEIGHT - _BOTTOM - above - below))
    _draw_main(main, panel, labels)
    return main


def _axes(figure: Figure, inches: tuple[float, float, float, float]) -> Axes:
    left, bottom, width, height = inches
    whole = figure.get_figheight()
    return figure.add_axes((left / _WIDTH, bottom / whole, width / _WIDTH, height / whole))


def _scale(axes: Axes, span: tuple[float, float]) -> None:
    axes.set_xscale("log")
    axes.set_xlim(*span)
    axes.tick_params(labelsize=_SMALL)
    axes.set_axisbelow(True)


def _draw_main(axes: Axes, panel: Panel, labels: int, *, titled: bool = False) -> None:
    """titled: with the words that stand above the panels of a figure of its own."""
    _scale(axes, panel.span_x)
    axes.set_yscale("log")
    axes.set_ylim(*panel.span_y)
    axes.grid(which="major", color="#EEEEEE", linewidth=0.8)
    axes.set_xlabel("arithmetic intensity (FLOP per byte of memory)", fontsize=_SMALL + 1)
    axes.set_ylabel("achieved FLOP/s", fontsize=_SMALL + 1)
    _say_ticks(axes, "x", "")
    _say_ticks(axes, "y", "FLOP/s")
    _draw_roofs(axes, panel)
    _legend(axes, panel)
    if titled:
        entitle(axes, panel.title, panel.caption)
    _name_roofs(axes, panel)
    _scatter(axes, panel.points, [point.y for point in panel.points], [_area(point) for point in panel.points])
    wanted = [
        Label(point.label, point.x, point.y, _radius(_area(point)), point.share >= _LARGE)
        for point in _named(panel.points, labels)
    ]
    wanted += _names_of_lines(panel)
    if not panel.points:
        axes.text(0.98, 0.03, _NOTHING, transform=axes.transAxes, ha="right", color="#555555", fontsize=_SMALL + 1)
    lines = [_in_pixels(axes, line) for datasheet in (True, False) for line in _roof_lines(panel, datasheet)]
    markers = [_around(axes, point.x, point.y, _area(point)) for point in panel.points]
    draw_labels(axes, wanted, markers, lines, _SMALL - 0.5)


def _say_ticks(axes: Axes, which: str, unit: str) -> None:
    """Powers of ten in plain words: Matplotlib's own would be mathematical text."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(base=10, numticks=14))
    axis.set_major_formatter(FuncFormatter(lambda value, _: si(value, unit) if unit else f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


# ---- roofs -----------------------------------------------------------------------------------------------------------


def _draw_roofs(axes: Axes, panel: Panel) -> None:
    """The lines and their ridges."""
    for datasheet, colour, dashes in _KINDS:
        for xs, ys in _roof_lines(panel, datasheet):
            axes.plot(xs, ys, color=colour, linestyle=dashes, linewidth=1.3, zorder=2, gid="roof")
    for roof, ridge in _ridges(panel):
        axes.plot([ridge, ridge], [panel.span_y[0], roof.datasheet], color=_RIDGE, linestyle=":", linewidth=1, zorder=1)
        axes.plot([ridge], [roof.datasheet], color=_DATASHEET, marker="d", markersize=5, zorder=3, gid="ridge")


def _ridges(panel: Panel) -> Iterator[tuple[Roof, float]]:
    """Where each roof meets the memory's: below that intensity, memory is the limit."""
    if panel.bandwidth is not None:
        for roof in panel.roofs:
            yield roof, roof.datasheet / panel.bandwidth.datasheet


def _names_of_lines(panel: Panel) -> Iterator[Label]:
    """Labels of the sloped line and of the ridges."""
    if panel.bandwidth is None:
        return
    slope = panel.bandwidth.datasheet
    # Where the sloped line has run through most of the height that it has inside the picture.
    low = max(panel.span_y[0], slope * panel.span_x[0])
    high = min([slope * panel.span_x[1], panel.span_y[1], *(roof.datasheet for roof in panel.roofs)])
    at = math.exp(0.35 * math.log(low) + 0.65 * math.log(high)) if low < high else high
    yield Label(words_of(panel.bandwidth, "B/s"), at / slope, at, 0.0)
    for roof, ridge in _ridges(panel):
        yield Label(f"ridge {ridge:.3g} FLOP/B", ridge, roof.datasheet, 6.0, anywhere=False)


def _roof_lines(panel: Panel, datasheet: bool) -> Iterator[tuple[list[float], list[float]]]:
    """The points of each line: one slope up to the highest ridge; a horizontal for each roof from its own ridge on."""
    start, end = panel.span_x
    slope = _height(panel.bandwidth, datasheet)
    heights = [height for roof in panel.roofs if (height := _height(roof, datasheet)) is not None]
    if slope is not None:
        reach = max(heights) / slope if heights else end
        yield [start, reach], [slope * start, slope * reach]
    for height in heights:
        yield [start if slope is None else height / slope, end], [height, height]


def _height(roof: Roof | None, datasheet: bool) -> float | None:
    if roof is None:
        return None
    return roof.datasheet if datasheet else roof.achievable


def _name_roofs(axes: Axes, panel: Panel) -> None:
    """In the margin, each at its line, pushed down where two would touch."""
    lowest = math.inf
    for roof in panel.roofs:
        text = axes.text(1.01, 0.0, words_of(roof, "FLOP/s"), transform=axes.transAxes, fontsize=_SMALL, va="center")
        text.set_gid("label")
        height = extent(text).top - extent(text).bottom
        middle = min(pixel(axes, panel.span_x[1], roof.datasheet)[1], lowest - height / 2)
        lowest = middle - height / 2 - 2
        text.set_position((1.01, axes.transAxes.inverted().transform((0, middle))[1]))


def _in_pixels(axes: Axes, line: tuple[list[float], list[float]]) -> Segment:
    """A line that is straight on logarithmic axes."""
    (start, end), (low, high) = line
    return (*pixel(axes, start, low), *pixel(axes, end, high))


# ---- markers ---------------------------------------------------------------------------------------------------------


def _area(point: Point) -> float:
    return max(_LEAST_AREA, _AREA * point.share)


def _radius(area: float) -> float:
    """Pixels, of a marker of so many square points."""
    return math.sqrt(area) / 2 * DPI / 72


def _around(axes: Axes, x: float, y: float, area: float) -> Box:
    """The room of a marker."""
    across, up = pixel(axes, x, y)
    radius = _radius(area)
    return Box(across - radius, up - radius, across + radius, up + radius)


def _scatter(axes: Axes, points: Sequence[Point], heights: Sequence[float], areas: Sequence[float]) -> None:
    """Large ones first, so that they hide nothing of their category."""
    for category in dict.fromkeys(point.category for point in points):
        style = style_of(category)
        here = [at for at, point in enumerate(points) if point.category == category]
        drawn = axes.scatter(
            [points[at].x for at in here],
            [heights[at] for at in here],
            s=[areas[at] for at in here],
            c=style.colour,
            marker=style.marker,
            alpha=0.8,
            edgecolors=[ERROR if points[at].is_error else "#333333" for at in here],
            linewidths=[2.0 if points[at].is_error else 0.6 for at in here],
            zorder=4,
        )
        drawn.set_gid(f"category-{category}")


def _draw_strip(axes: Axes, panel: Panel) -> None:
    """Groups without FLOPs by bandwidth alone; the height means nothing, it keeps markers apart."""
    _scale(axes, panel.span_strip)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.grid(which="major", axis="x", color="#EEEEEE", linewidth=0.8)
    axes.set_xlabel("achieved bandwidth of groups without FLOPs", fontsize=_SMALL + 1)
    _say_ticks(axes, "x", "B/s")
    lines: list[Segment] = []
    for datasheet, colour, dashes in _KINDS:
        if (limit := _height(panel.bandwidth, datasheet)) is not None:
            axes.axvline(limit, color=colour, linestyle=dashes, linewidth=1.3, zorder=2)
            across = pixel(axes, limit, 0)[0]
            lines.append((across, axes.bbox.y0, across, axes.bbox.y1))
    areas = [min(_MOST_STRIP_AREA, _area(point)) for point in panel.strip]
    heights = _lanes(axes, panel.strip, areas)
    _scatter(axes, panel.strip, heights, areas)
    where = list(zip(panel.strip, heights, areas, strict=True))
    wanted = [
        Label(point.label, point.x, height, _radius(area), point.share >= _LARGE)
        for point, height, area in where[: len(_named(panel.strip, _LABELLED_STRIP))]
    ]
    markers = [_around(axes, point.x, height, area) for point, height, area in where]
    draw_labels(axes, wanted, markers, lines, _SMALL - 0.5)
    if not _has_axes(panel):
        _legend(axes, panel)


def _lanes(axes: Axes, points: Sequence[Point], areas: Sequence[float]) -> list[float]:
    """For each the first lane where it touches none; the middle one if there is none."""
    taken: list[Box] = []
    heights = []
    for point, area in zip(points, areas, strict=True):
        boxes = {lane: _around(axes, point.x, lane, area) for lane in _LANES}
        lane = next((one for one in _LANES if not any(boxes[one].overlaps(other) for other in taken)), _LANES[0])
        taken.append(boxes[lane])
        heights.append(lane)
    return heights


# ---- labels, legend --------------------------------------------------------------------------------------------------


def _named(points: Sequence[Point], most: int) -> Sequence[Point]:
    """The first ones that are worth a label."""
    return [point for point in points[: max(0, most)] if point.share >= _LEAST_NAMED]


def _legend(axes: Axes, panel: Panel) -> None:
    from matplotlib.lines import Line2D

    def marker(label: str, shape: str, colour: str, area: float, edge: str = "#333333") -> Line2D:
        size = math.sqrt(area)
        return Line2D(
            [], [], linestyle="", marker=shape, color=colour, markeredgecolor=edge, markersize=size, label=label
        )

    time: dict[str, float] = {}
    for point in (*panel.points, *panel.strip):
        time[point.category] = time.get(point.category, 0.0) + point.share
    handles: list[Artist] = [
        marker(plain(name.replace("_", " "), 20), style_of(name).marker, style_of(name).colour, 50)
        for name in sorted(time, key=lambda one: (-time[one], one))
    ]
    handles += [marker(f"{share:.0%} of busy time", "o", "#FFFFFF", _AREA * share) for share in (0.01, 0.05)]
    if any(point.is_error for point in (*panel.points, *panel.strip)):
        handles.append(marker("above the roof: error", "o", "#FFFFFF", 50, ERROR))
    if panel.bandwidth or panel.roofs:
        handles.append(Line2D([], [], color=_DATASHEET, linewidth=1.3, label="datasheet"))
    if any(roof and roof.achievable for roof in (panel.bandwidth, *panel.roofs)):
        handles.append(Line2D([], [], color=_ACHIEVABLE, linestyle="--", linewidth=1.3, label="achievable"))
    names = [size_of(axes, words_of(roof, "FLOP/s"), _SMALL) for roof in panel.roofs]
    legend(axes, handles, inches=max((box.right - box.left for box in names), default=0.0) / DPI + 0.2)
