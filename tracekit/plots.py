"""What all plots share: a figure of their own, colours of the time categories, labels that never overlap, PNG and SVG.

Figures are made with Matplotlib's objects, never with pyplot: the backend, the style and the open figures of the user's
notebook stay as they are. The same result makes the same file: no dates, no random ids, no fonts but Matplotlib's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from tracekit.errors import UsageError
from tracekit.inputs import PathLike
from tracekit.text_grid import clean, cut

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 100  # in which positions are worked out; they are kept as shares, so that any other resolution looks the same
_SUFFIXES = (".png", ".svg")
_PNG_DPI = 150


# ---- colours ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Style:
    """Colour and marker of a category. No two categories have both the same."""

    colour: str
    marker: str


# The palette of Okabe and Ito ("Color Universal Design", 2008), which colour-blind readers can tell apart. There are
# more categories than colours that anyone can: the marker tells those of one colour apart.
_BLUE, _VERMILION, _GREEN, _ORANGE, _PURPLE, _SKY, _YELLOW = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#E69F00",
    "#CC79A7",
    "#56B4E9",
    "#F0E442",
)
_GREY = "#7F7F7F"
ERROR = "#B00020"
STYLES: Mapping[str, Style] = MappingProxyType(
    {
        "gemm": Style(_BLUE, "o"),
        "attention": Style(_VERMILION, "o"),
        "moe": Style(_PURPLE, "o"),
        "norm": Style(_GREEN, "o"),
        "elementwise": Style(_ORANGE, "o"),
        "communication": Style(_SKY, "o"),
        "activation": Style(_YELLOW, "o"),
        "other": Style(_GREY, "o"),
        "conv": Style(_BLUE, "s"),
        "linear_attention": Style(_VERMILION, "s"),
        "quant": Style(_PURPLE, "s"),
        "reduction": Style(_GREEN, "s"),
        "fused_pointwise": Style(_ORANGE, "s"),
        "memory": Style(_SKY, "s"),
        "embedding": Style(_YELLOW, "s"),
        "engine_metadata": Style(_GREY, "s"),
        "fft": Style(_BLUE, "^"),
        "kv_cache": Style(_VERMILION, "^"),
        "dequant": Style(_PURPLE, "^"),
        "softmax": Style(_GREEN, "^"),
        "rope": Style(_ORANGE, "^"),
        "index": Style(_SKY, "^"),
        "sampling": Style(_YELLOW, "^"),
        "graph": Style(_GREY, "^"),
        "pooling_interp": Style(_BLUE, "D"),
        "optimizer": Style(_PURPLE, "D"),
        "loss": Style(_GREEN, "D"),
        "random": Style(_ORANGE, "D"),
    }
)


def style_of(category: str) -> Style:
    """The same in every plot and every run; of a category from a user's rules that of "other"."""
    return STYLES.get(category, STYLES["other"])


# ---- figures ---------------------------------------------------------------------------------------------------------


def defaults() -> AbstractContextManager[None]:
    """Matplotlib's own style while something is drawn, whatever the user's is; the backend is left alone. Hinted text
    is up to a tenth wider at one resolution than at another: labels that were apart would touch.
    """
    from matplotlib import style

    return style.context(["default", {"text.hinting": "none"}])


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that no window knows. width, height: inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def check_suffix(path: Path) -> None:
    """Raises UsageError unless the name ends with .png or .svg."""
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"{path}: a plot is written as {' or '.join(_SUFFIXES)}; name it so")


def save_figure(figure: Figure, path: PathLike) -> None:
    """Write as the suffix says. The same figure gives the same bytes. Raises UsageError for any other suffix."""
    import matplotlib

    path = Path(path)
    check_suffix(path)
    is_svg = path.suffix.lower() == ".svg"
    metadata = {"Date": None, "Creator": "tracekit"} if is_svg else {"Software": "tracekit"}
    # Without a salt, ids in an SVG are random; text as paths needs no font on the reader's machine.
    with defaults(), matplotlib.rc_context({"svg.hashsalt": "tracekit", "svg.fonttype": "path"}):
        figure.savefig(path, format=path.suffix[1:].lower(), dpi=_PNG_DPI, metadata=metadata)


def plain(text: object, most: int) -> str:
    """Text from a trace for a plot: so many characters at most, of those that the plot's font has."""
    return cut(clean(text).encode("ascii", "backslashreplace").decode(), most)


def si(value: float, unit: str) -> str:
    """A number with the prefix that fits: "989 TFLOP/s", "0.5 GB/s"."""
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


# ---- labels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in pixels, y upwards."""

    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: Box) -> bool:
        """Do they share more than an edge?"""
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )

    def inside(self, other: Box) -> bool:
        """Is no part of it outside the other?"""
        return (
            other.left <= self.left
            and self.right <= other.right
            and other.bottom <= self.bottom
            and self.top <= other.top
        )

    def grown(self, by: float) -> Box:
        """With a margin on all sides."""
        return Box(self.left - by, self.bottom - by, self.right + by, self.top + by)

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """The point of it that is nearest to this one."""
        return min(max(x, self.left), self.right), min(max(y, self.bottom), self.top)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A label that wants a place: its size, and the marker it belongs to, all in pixels."""

    width: float
    height: float
    x: float
    y: float
    radius: float


_DISTANCES = (2, 8, 16, 26, 38, 52, 70, 90, 115, 145, 180, 220, 270, 330, 400)
_DIRECTIONS = tuple((math.cos(at * math.pi / 8), math.sin(at * math.pi / 8)) for at in (1, 15, 7, 9, 0, 8, 4, 12))
_FURTHER = tuple((math.cos(at * math.pi / 8), math.sin(at * math.pi / 8)) for at in (2, 3, 5, 6, 10, 11, 13, 14))
_MARGIN = 3.0


def place_labels(
    wanted: Sequence[Wanted], area: Box, markers: Sequence[Box], avoided: Sequence[Box] = ()
) -> list[Box | None]:
    """Where each label goes, nearest to its marker first: inside the area, over no other label and no marker, its
    leader line through no label and across no other leader; None where there is no such place. The first ones choose
    first. avoided: what labels keep off as long as there is room.
    """
    placed: list[Box] = []
    leaders: list[_Segment] = []
    found: list[Box | None] = []
    for label in wanted:
        for obstacles in ((*markers, *avoided), tuple(markers)):
            box = next(
                (one for one in _candidates(label, area) if _is_free(one, label, obstacles, placed, leaders)), None
            )
            if box is not None:
                placed.append(box)
                leaders.append(_leader(box, label))
                break
        found.append(box)
    return found


_Segment = tuple[float, float, float, float]


def _candidates(label: Wanted, area: Box) -> Iterator[Box]:
    for distance in _DISTANCES:
        for x, y in (*_DIRECTIONS, *_FURTHER):
            # The point of the box that faces the marker lies at this distance from its edge.
            near_x = label.x + x * (label.radius + distance)
            near_y = label.y + y * (label.radius + distance)
            left = near_x - label.width * (1 - x) / 2
            bottom = near_y - label.height * (1 - y) / 2
            box = Box(left, bottom, left + label.width, bottom + label.height)
            if box.inside(area):
                yield box


def _is_free(
    box: Box, label: Wanted, obstacles: Iterable[Box], placed: Sequence[Box], leaders: Sequence[_Segment]
) -> bool:
    roomy = box.grown(_MARGIN)
    if any(roomy.overlaps(other) for other in placed) or any(box.overlaps(other) for other in obstacles):
        return False
    line = _leader(box, label)
    if any(_crosses_box(line, other) for other in placed):
        return False
    return not any(_crosses_box(other, roomy) or _cross(line, other) for other in leaders)


def _leader(box: Box, label: Wanted) -> _Segment:
    return (label.x, label.y, *box.nearest(label.x, label.y))


def _crosses_box(line: _Segment, box: Box) -> bool:
    """Does the line run through the box? Cut to the box side by side (Liang and Barsky)."""
    x, y, end_x, end_y = line
    low, high = 0.0, 1.0
    for start, delta, least, most in ((x, end_x - x, box.left, box.right), (y, end_y - y, box.bottom, box.top)):
        if delta == 0:
            if not least <= start <= most:
                return False
            continue
        one, two = sorted(((least - start) / delta, (most - start) / delta))
        low, high = max(low, one), min(high, two)
    return low <= high


def _cross(one: _Segment, two: _Segment) -> bool:
    """Do two lines cross within their lengths?"""
    return _sides(one, two) and _sides(two, one)


def _sides(line: _Segment, other: _Segment) -> bool:
    """Do the ends of the other line lie on two sides of this one?"""
    x, y, dx, dy = line[0], line[1], line[2] - line[0], line[3] - line[1]
    first = dx * (other[1] - y) - dy * (other[0] - x)
    second = dx * (other[3] - y) - dy * (other[2] - x)
    return first * second < 0
