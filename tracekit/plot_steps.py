"""The distribution of step times: is a step as long as the next, and how much longer are the longest?"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tracekit.analysis import Row, duration
from tracekit.errors import UsageError
from tracekit.plot_axes import SMALL, Room, axes_of, entitle, height_of_head, legend, say_axis, unit_of
from tracekit.plot_labels import Box, Label, Segment, draw_labels, pixel
from tracekit.plot_style import DPI, plain
from tracekit.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tracekit.trace import Trace

_WIDTH, _HEIGHT = 10.5, 5.6  # inches
_LEFT, _RIGHT, _BOTTOM = 0.85, 2.45, 0.65
_MOST = 8  # curves
_SPREAD = 12.0  # longest by shortest time, from which on the axis is logarithmic
_MARKER = 5.0  # points
_MARKS = {50: "o", 99: "D"}  # percent
_NAME = 26
# Not those of the categories: a phase is none. Light to dark, so that they are told apart without their hue.
_LOOKS: tuple[tuple[str, Literal["-", "--"]], ...] = (
    ("#000000", "-"),
    ("#B35806", "-"),
    ("#542788", "-"),
    ("#1B7837", "-"),
    ("#666666", "--"),
    ("#A8651B", "--"),
    ("#7B5AA6", "--"),
    ("#3F8F4A", "--"),
)
_QUERY = """
    SELECT
        rank,
        device,
        phase,
        bucket,
        requests_to,
        tokens_to,
        wall_ns
    FROM step_time()
    WHERE kind = 'steady'
    ORDER BY
        list_position(['decode', 'verify', 'draft', 'mixed', 'prefill', 'unknown'], phase),
        requests_to NULLS LAST,
        tokens_to NULLS FIRST,
        bucket,
        wall_ns
"""


@dataclass(frozen=True, slots=True)
class Curve:
    """Times of steps of one phase and size of batch, ascending, ns."""

    name: str
    times: tuple[int, ...]

    def quantile(self, percent: int) -> int:
        """By nearest rank, as the analysis `steps` has it: a time that was measured."""
        return self.times[-(-percent * len(self.times) // 100) - 1]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """All curves, and what is to be said of them."""

    caption: tuple[str, ...]
    curves: tuple[Curve, ...]


# ---- measuring -------------------------------------------------------------------------------------------------------


def step_times_of(trace: Trace) -> StepTimes:
    """The steady steps of the trace, those of all devices together. Raises UsageError if there are none."""
    rows = trace.sql(_QUERY).to_pylist()
    if not rows:
        raise UsageError(f"nothing to plot: {trace.analyze('steps').coverage.reason or 'no step is steady'}")
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["phase"], row["bucket"]), []).append(row)
    curves = [Curve(_name(*key), tuple(row["wall_ns"] for row in found)) for key, found in groups.items()]
    kept = sorted(curves, key=lambda curve: -sum(curve.times))[:_MOST]
    devices = len({(row["rank"], row["device"]) for row in rows})
    said = "From the first start to the last end of a step's work"
    said += f" on each of {counted(devices, 'device')}" if devices > 1 else " on the device"
    caption = [f"{said}; steady steps. P99 of fewer than 100 steps is the longest"]
    if len(kept) < len(curves):
        share = sum(sum(curve.times) for curve in kept) / sum(sum(curve.times) for curve in curves)
        caption.append(f"{len(kept)} of {len(curves)} groups of phase and batch, {share:.0%} of the time")
    return StepTimes(tuple(caption), tuple(curve for curve in curves if curve in kept))


def _name(phase: str, bucket: str) -> str:
    known = " ".join(word for word in (phase, bucket) if word != "unknown")
    return known or "phase unknown"


# ---- drawing ---------------------------------------------------------------------------------------------------------


def draw_step_times(shown: StepTimes, ax: Axes | None) -> Axes:
    """For each group the share of its steps that take no longer; P50 and P99 are marked, and labelled with the time."""
    head = height_of_head(len(shown.caption))
    axes = axes_of(ax, _WIDTH, _HEIGHT, Room(_LEFT, _RIGHT, head, _BOTTOM))
    longest = max(curve.times[-1] for curve in shown.curves)
    shortest = min(curve.times[0] for curve in shown.curves)
    unit = unit_of(longest)
    logarithmic = longest > _SPREAD * shortest > 0
    _scale(axes, shortest / unit.ns, longest / unit.ns, logarithmic)
    axes.set_ylim(-0.04, 1.06)
    say_axis(axes, "y", "share of steps that take no longer")
    _say_times(axes, unit.name, logarithmic)
    axes.grid(color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    _draw_curves(axes, shown.curves, unit.ns)
    entitle(axes, "Distribution of step times", shown.caption)
    _label(axes, shown.curves, unit.ns)
    return axes


def _scale(axes: Axes, low: float, high: float, logarithmic: bool) -> None:
    """Some room on both sides, never so little that a thousandth looks like much."""
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.3, high * 1.3)
    else:
        room = max(0.08 * (high - low), 0.02 * high)
        axes.set_xlim(max(0.0, low - room), high + room)


def _say_times(axes: Axes, unit: str, logarithmic: bool) -> None:
    words = f"step time ({unit}{', logarithmic' if logarithmic else ''})"
    if not logarithmic:
        say_axis(axes, "x", words)
        return
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(words, fontsize=SMALL + 1)
    axes.tick_params(axis="x", labelsize=SMALL)


def _corners(axes: Axes, curve: Curve, scale: float) -> tuple[list[float], list[float]]:
    """Of the steps of an empirical distribution, from the left edge of the axes to the right one."""
    left, right = axes.get_xlim()
    xs, ys, share = [left], [0.0], 0.0
    for at, ns in enumerate(curve.times, start=1):
        xs += [ns / scale, ns / scale]
        ys += [share, share := at / len(curve.times)]
    return [*xs, right], [*ys, 1.0]


def _draw_curves(axes: Axes, curves: Sequence[Curve], scale: float) -> None:
    from matplotlib.lines import Line2D

    entries = []
    for at, curve in enumerate(curves):
        colour, dashes = _LOOKS[at]
        xs, ys = _corners(axes, curve, scale)
        axes.plot(xs, ys, color=colour, linestyle=dashes, linewidth=1.5, zorder=3)
        for percent, shape in _MARKS.items():
            place = [curve.quantile(percent) / scale], [_share(curve, percent)]
            axes.plot(*place, marker=shape, color=colour, markersize=_MARKER, markeredgecolor="white", zorder=4)
        label = f"{plain(curve.name, _NAME)}\n{counted(len(curve.times), 'step')}"
        entries.append(Line2D([], [], color=colour, linestyle=dashes, linewidth=1.5, label=label))
    for percent, shape in _MARKS.items():
        entries.append(Line2D([], [], color="#444444", marker=shape, linestyle="", markersize=5, label=f"P{percent}"))
    legend(axes, entries)


def _share(curve: Curve, percent: int) -> float:
    """How high the curve's step at that quantile reaches."""
    return bisect_right(curve.times, curve.quantile(percent)) / len(curve.times)


def _label(axes: Axes, curves: Sequence[Curve], scale: float) -> None:
    """Both quantiles of each curve, where there is room; off the curves as far as that goes."""
    radius = (_MARKER / 2) * DPI / 72
    wanted: list[Label] = []
    for curve, (colour, _) in zip(curves, _LOOKS, strict=False):
        named: dict[int, list[str]] = {}
        for percent in _MARKS:
            named.setdefault(curve.quantile(percent), []).append(f"P{percent}")
        for ns, names in named.items():
            words = f"{' = '.join(names)} {duration(ns)}"
            place = ns / scale, bisect_right(curve.times, ns) / len(curve.times)
            wanted.append(Label(words, *place, radius, colour=colour))
    markers = [Box(x, y, x, y).grown(radius) for x, y in (pixel(axes, one.x, one.y) for one in wanted)]
    lines = [line for curve in curves for line in _segments(axes, curve, scale)]
    draw_labels(axes, wanted, markers, lines, SMALL - 0.5)


def _segments(axes: Axes, curve: Curve, scale: float) -> Iterator[Segment]:
    """The curve in pixels, without steps of less than one: of a thousand steps there are as many as can be seen."""
    places = [pixel(axes, x, y) for x, y in zip(*_corners(axes, curve, scale), strict=True)]
    last = places[0]
    for place in places[1:]:
        if place is places[-1] or math.dist(last, place) >= 1:
            yield (*last, *place)
            last = place
