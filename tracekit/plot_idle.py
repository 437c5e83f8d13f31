"""The idle histogram: do few long gaps cost the time, or many short ones, and why?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tracekit.analysis import Result, duration
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
from tracekit.plot_style import idle_fill, plain, si
from tracekit.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 10.5, 5.2  # inches
_LEFT, _RIGHT, _BOTTOM = 0.9, 2.0, 0.7
# Edges of the bars: 1, 2, 5, 10, ... from 100 ns to 1000 s; what lies beyond is in the outermost.
_EDGES = tuple(step * 10**power for power in range(2, 13) for step in (1, 2, 5))
_MARGIN = 1.25  # a factor, beside the outermost bars
_FEW = 15  # edges: each has a label
_LENGTHS = (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1))
_NAME = 24


@dataclass(frozen=True, slots=True)
class Histogram:
    """Gaps by their whole length: for each bar from which to which length in ns it is, how many gaps it has, and their
    time in ns by cause. causes: longest time first. devices, span_ns: of which they are.
    """

    edges: tuple[int, ...]
    counts: tuple[int, ...]
    time: tuple[Mapping[str, int], ...]
    causes: tuple[str, ...]
    devices: int
    span_ns: int

    @property
    def idle_ns(self) -> int:
        """Of all gaps."""
        return sum(sum(one.values()) for one in self.time)


def histogram_of(result: Result) -> Histogram:
    """The gaps of a result of `idle_gaps`: a gap with several causes counts once, by its whole length.

    Raises UsageError where there are none.
    """
    table = result.table
    if not table.num_rows:
        raise UsageError(f"nothing to plot: {result.coverage.reason or 'no device was idle between its work'}")
    _, gaps = np.unique(table["after_id"].to_numpy(), return_inverse=True)
    ns = table["dur"].to_numpy()
    whole = np.zeros(int(gaps.max()) + 1, dtype=np.int64)
    np.add.at(whole, gaps, ns)  # bincount would add doubles
    places = np.clip(np.searchsorted(_EDGES, whole, side="right"), 1, len(_EDGES) - 1) - 1
    first, last = int(places.min()), int(places.max())
    names = table["cause"].to_pylist()
    causes = sorted(set(names))
    time = np.zeros((last - first + 1, len(causes)), dtype=np.int64)
    known = {cause: at for at, cause in enumerate(causes)}
    np.add.at(time, (places[gaps] - first, np.array([known[name] for name in names])), ns)
    total = time.sum(axis=0).tolist()
    return Histogram(
        edges=_EDGES[first : last + 2],
        counts=tuple(np.bincount(places - first, minlength=last - first + 1).tolist()),
        time=tuple({cause: part for cause, part in zip(causes, row, strict=True) if part} for row in time.tolist()),
        causes=tuple(sorted(causes, key=lambda cause: (-total[known[cause]], cause))),
        devices=len(result.summary),
        span_ns=sum(row["span_ns"] for row in result.summary),
    )


# ---- drawing ---------------------------------------------------------------------------------------------------------


def draw_histogram(shown: Histogram, ax: Axes | None) -> Axes:
    """Bars of time by length of gap, the causes of each on top of each other, how many gaps it has written above."""
    caption = _caption(shown)
    head = height_of_head(len(caption))
    axes = axes_of(ax, _WIDTH, _HEIGHT, Room(_LEFT, _RIGHT, head, _BOTTOM))
    tops = [sum(one.values()) for one in shown.time]
    unit = unit_of(max(tops))
    _draw_bars(axes, shown, unit.ns)
    axes.set_xlim(shown.edges[0] / _MARGIN, shown.edges[-1] * _MARGIN)
    axes.set_xscale("log")
    _say_lengths(axes, shown.edges)
    say_axis(axes, "y", f"idle time ({unit.name})")
    axes.spines[["top", "right"]].set_visible(False)
    legend(axes, [patch(_label(cause), idle_fill(cause)) for cause in shown.causes])
    entitle(axes, "Idle time by length of gap", caption)
    _write_counts(axes, shown, [top / unit.ns for top in tops])
    return axes


def _caption(shown: Histogram) -> list[str]:
    share = f"{shown.idle_ns / shown.span_ns:.1%} of {duration(shown.span_ns)}"
    where = f" on {counted(shown.devices, 'device')} together" if shown.devices > 1 else ""
    said = f"{counted(sum(shown.counts), 'gap')}, {duration(shown.idle_ns)} idle: {share}{where}"
    return [f"{said}. The number above a bar: gaps of that length"]


def _draw_bars(axes: Axes, shown: Histogram, scale: float) -> None:
    bottoms = [0.0] * len(shown.time)
    for cause in shown.causes:
        for at, (low, high) in enumerate(pairwise(shown.edges)):
            if height := shown.time[at].get(cause, 0) / scale:
                fill_area(axes, Box(low, bottoms[at], high, bottoms[at] + height), idle_fill(cause))
                bottoms[at] += height


def _say_lengths(axes: Axes, edges: Sequence[int]) -> None:
    """The edges of the bars, each with its unit; of many only the powers of ten."""
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    ticks = [edge for edge in edges if len(edges) <= _FEW or str(edge).startswith("1")]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.set_xticks(ticks, [_length(edge) for edge in ticks], fontsize=SMALL)
    axes.xaxis.set_minor_locator(NullLocator() if len(edges) <= _FEW else FixedLocator(list(edges)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("length of the gap, logarithmic", fontsize=SMALL + 1)


def _length(ns: int) -> str:
    unit, scale = next((unit, scale) for unit, scale in _LENGTHS if ns >= scale)
    return f"{ns // scale} {unit}"


def _write_counts(axes: Axes, shown: Histogram, tops: Sequence[float]) -> None:
    """Above each bar; the axis ends so far above the highest that its number lies within."""
    axes.set_ylim(0, max(tops) * 1.1)
    for count, top, (low, high) in zip(shown.counts, tops, pairwise(shown.edges), strict=True):
        if not count:
            continue
        room = axes.transData.transform((high, 0))[0] - axes.transData.transform((low, 0))[0]
        words = next((one for one in (f"{count:,}", si(count, "")) if _fits(axes, one, room)), si(count, ""))
        text = axes.annotate(
            words.replace(" ", ""), (math.sqrt(low * high), top), xytext=(0, 2), textcoords="offset points",
            ha="center", va="bottom", fontsize=SMALL - 1, gid="label",
        )  # fmt: skip
        text.set_parse_math(False)


def _fits(axes: Axes, words: str, room: float) -> bool:
    box = size_of(axes, words, SMALL - 1)
    return box.right - box.left <= room


def _label(cause: str) -> str:
    return plain(cause.replace("_", " "), _NAME)
