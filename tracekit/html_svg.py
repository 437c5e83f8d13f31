"""How does the HTML report draw? SVG text made here, all of it escaped; fills of categories and causes; axes.

No charting library: a report is one file that people mail around, and these drawings need rectangles, lines and a few
words. Colours of lines and words are classes of report.css, so that one drawing fits light, dark and paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from tracekit.plot_style import CAUSE_STYLES, OTHER_BUSY, OTHER_IDLE, STYLES, Fill, fill_of, idle_fill

_EDGE = "#6A6A6A"
_TILE = 8  # pixels after which a hatch repeats
# A sign of Matplotlib's hatches as a path on a tile of 8 x 8 that continues into its neighbours.
_HATCHES = {
    "/": "M-2,2l4,-4M0,8l8,-8M6,10l4,-4",
    "\\": "M-2,6l4,4M0,0l8,8M6,-2l4,4",
    "x": "M0,8l8,-8M0,0l8,8",
    "+": "M4,0v8M0,4h8",
    "|": "M4,0v8",
    "-": "M0,4h8",
    ".": "M3,4a1,1 0 1,0 2,0a1,1 0 1,0 -2,0",
    "o": "M2,4a2,2 0 1,0 4,0a2,2 0 1,0 -4,0",
}
_FILLS: Mapping[Fill, str] = {
    fill: f"f{at}"
    for at, fill in enumerate(dict.fromkeys([*map(fill_of, STYLES), *CAUSE_STYLES.values(), OTHER_BUSY, OTHER_IDLE]))
}


# ---- elements --------------------------------------------------------------------------------------------------------


def element(name: str, attributes: Mapping[str, object], *inside: str | Markup) -> Markup:
    """An element; attributes and text inside are escaped, what is Markup already is not."""
    said = Markup("").join(
        Markup(' {}="{}"').format(key, _number(value) if isinstance(value, float) else value)
        for key, value in attributes.items()
        if value is not None
    )
    body = Markup("").join(escape(one) for one in inside)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), said, body)


def _number(value: float) -> str:
    return f"{value:.4f}".rstrip("0").rstrip(".")


def svg(width: object, height: float, inside: Iterable[Markup], label: str, box: str | None = None) -> Markup:
    """A drawing; label: what it shows, for those who cannot see it."""
    attributes = {
        "class": "chart",
        "width": width,
        "height": height,
        "viewBox": box,
        "role": "img",
        "aria-label": label,
    }
    return element("svg", attributes, *inside)


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "label") -> Markup:
    """Words at a place. kind: a class of report.css."""
    return element("text", {"x": x, "y": y, "text-anchor": anchor, "class": kind}, words)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """A line of a class of report.css."""
    return element("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "class": kind})


# ---- fills -----------------------------------------------------------------------------------------------------------


def paint(fill: Fill) -> str:
    """The value of a `fill` attribute; hatched ones are patterns of `definitions`."""
    return f"url(#{_FILLS[fill]})" if fill.hatch else fill.colour


def definitions() -> Markup:
    """All hatched fills, once for a page."""
    patterns = [_pattern(name, fill) for fill, name in _FILLS.items() if fill.hatch]
    attributes = {"width": 0, "height": 0, "class": "defs", "aria-hidden": "true"}
    return element("svg", attributes, element("defs", {}, *patterns))


def _pattern(name: str, fill: Fill) -> Markup:
    size = {"width": _TILE, "height": _TILE}
    dots = fill.hatch[0] == "."
    hatch = {
        "d": _HATCHES[fill.hatch[0]],
        "stroke": None if dots else fill.line,
        "fill": fill.line if dots else "none",
        "stroke-width": None if dots else 1.2,
    }
    return element(
        "pattern",
        {"id": name, "patternUnits": "userSpaceOnUse", **size},
        element("rect", {**size, "fill": fill.colour}),
        element("path", hatch),
    )


def hatch_of(fill: Fill) -> str:
    """The path of its hatch, "" without one: for the canvas of the timeline."""
    return _HATCHES[fill.hatch[0]] if fill.hatch else ""


def swatch(fill: Fill) -> Markup:
    """A small square of a fill, for legends."""
    square = element(
        "rect", {"x": 0.5, "y": 0.5, "width": 13, "height": 13, "rx": 2, "fill": paint(fill), "stroke": _EDGE}
    )
    return element("svg", {"width": 14, "height": 14, "class": "swatch", "aria-hidden": "true"}, square)


def fill_of_part(part: str, name: str) -> Fill:
    """Of a part of a budget: "busy" with a category, "idle" with a cause."""
    return fill_of(name) if part == "busy" else idle_fill(name)


# ---- bars ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of a bar. share: of the whole bar, 0 to 1; title: what it says where the pointer rests."""

    share: float
    fill: Fill
    title: str


def bar(slices: Sequence[Slice], label: str, height: float = 30) -> Markup:
    """Slices side by side, in per cent of the room there is: the bar is as wide as the page allows."""
    at, drawn = 0.0, []
    for one in slices:
        where = {"x": f"{_number(at * 100)}%", "y": 0, "width": f"{_number(one.share * 100)}%", "height": height}
        drawn.append(
            element("rect", {**where, "fill": paint(one.fill), "class": "slice"}, element("title", {}, one.title))
        )
        at += one.share
    return svg("100%", height, drawn, label)


def share_bar(share: float, kind: str = "share") -> Markup:
    """A bar of one colour for a share, 0 to 1, in a cell."""
    width = f"{_number(max(0.0, min(1.0, share)) * 100)}%"
    inside = element("rect", {"width": width, "height": 10, "class": kind})
    return element("svg", {"width": "100%", "height": 10, "class": "inline-bar", "aria-hidden": "true"}, inside)


def span_bar(low: float, high: float) -> Markup:
    """What is sure, 0 to low, and what is not, low to high; shares of the whole bar."""
    low, high = (max(0.0, min(1.0, one)) for one in (low, high))
    pieces = [("0", low, "share"), (f"{_number(low * 100)}%", max(0.0, high - low), "unsure")]
    inside = [
        element("rect", {"x": start, "width": f"{_number(share * 100)}%", "height": 10, "class": kind})
        for start, share, kind in pieces
    ]
    return element("svg", {"width": "100%", "height": 10, "class": "inline-bar", "aria-hidden": "true"}, *inside)


# ---- axes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """From values to pixels. start, end: pixels of the values low and high."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high, here = (math.log10(one) if self.is_log else one for one in (self.low, self.high, value))
        return self.start + (here - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> Iterator[float]:
        """Round values on it: of a logarithmic one the powers of ten, else steps of 1, 2 or 5, some five of them."""
        if self.is_log:
            for power in range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1):
                yield 10.0**power
            return
        rough = (self.high - self.low) / 5
        scale = 10.0 ** math.floor(math.log10(rough))
        step = next(one * scale for one in (1, 2, 5, 10) if one * scale >= rough * 0.999)
        for number in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1):
            yield number * step
