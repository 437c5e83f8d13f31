"""Labels of a plot: each beside what it names, over nothing else, with a line to it where that is not next to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

SPARE = 1.05  # of the width of a label, for viewers that hint text
_COLOUR = "#888888"
_TOUCHING = 6.0  # pixels

# ---- places ----------------------------------------------------------------------------------------------------------


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
    """A label that wants a place: its size and its marker, all in pixels; anywhere: whether it may lie on lines that
    labels keep off, where there is no other room.
    """

    width: float
    height: float
    x: float
    y: float
    radius: float
    anywhere: bool = True


_DISTANCES = (2, 8, 16, 26, 38, 52, 70, 90, 115, 145, 180, 220, 270, 330, 400, 480, 570)
# The diagonals and sides first, then what lies between.
_DIRECTIONS = tuple(
    (math.cos(at * math.pi / 16), math.sin(at * math.pi / 16))
    for at in (*(2, 30, 14, 18, 0, 16, 8, 24), *(4, 28, 12, 20, 6, 26, 10, 22), *range(1, 32, 2))
)
_MARGIN = 3.0
_ATTEMPTS = 8
Segment = tuple[float, float, float, float]  # x and y of both ends


def place_labels(
    wanted: Sequence[Wanted], area: Box, markers: Sequence[Box], avoided: Sequence[Segment] = ()
) -> list[Box | None]:
    """Where each label goes, nearest to its marker first: inside the area, over no other label and no marker, its
    leader line through no label, no marker of another and across no other leader; None where there is no such place.
    The first ones choose first; one that finds nothing may choose earlier, until no more of them have a place. avoided:
    lines that labels keep off as long as there is room; those that may not go anywhere have none there.
    """
    order = list(range(len(wanted)))
    first: list[int] = []
    best: list[Box | None] = [None] * len(wanted)
    for attempt in range(_ATTEMPTS):
        boxes: list[Box | None] = [None] * len(wanted)
        placed = _placed([wanted[at] for at in order], area, markers, avoided)
        for at, box in zip(order, placed, strict=True):
            boxes[at] = box
        if attempt == 0 or _missing(boxes) < _missing(best):
            best = boxes
        lost = next((at for at, box in enumerate(boxes) if box is None and at not in first), None)
        if lost is None:
            break
        first.append(lost)
        order.remove(lost)
        order.insert(0, lost)
    return best


def _missing(boxes: Sequence[Box | None]) -> list[int]:
    """How many have no place, then which: of as many, rather the last ones."""
    lost = [-at for at, box in enumerate(boxes) if box is None]
    return [len(lost), *lost]


def _placed(
    wanted: Sequence[Wanted], area: Box, markers: Sequence[Box], avoided: Sequence[Segment]
) -> Iterator[Box | None]:
    placed: list[Box] = []
    leaders: list[Segment] = []
    for label in wanted:
        others = [box for box in markers if not _holds(box, label)]
        free = (
            box for box in _candidates(label, area) if _is_free(box, label, markers, others, placed, leaders=leaders)
        )
        box = _first_off(free, avoided, label.anywhere)
        if box is not None:
            placed.append(box)
            leaders.append(leader(box, label))
        yield box


def _first_off(boxes: Iterable[Box], avoided: Sequence[Segment], anywhere: bool) -> Box | None:
    """The first one on no such line, else the first one at all if it may go anywhere."""
    first = None
    for box in boxes:
        if not any(_crosses_box(line, box) for line in avoided):
            return box
        first = first or box
    return first if anywhere else None


def _holds(box: Box, label: Wanted) -> bool:
    """Is what is named inside the box? Markers that lie on it are in its way wherever the label goes."""
    return box.left <= label.x <= box.right and box.bottom <= label.y <= box.top


def _candidates(label: Wanted, area: Box) -> Iterator[Box]:
    for distance in _DISTANCES:
        for x, y in _DIRECTIONS:
            # The point of the box that faces the marker lies at this distance from its edge.
            near_x = label.x + x * (label.radius + distance)
            near_y = label.y + y * (label.radius + distance)
            left = near_x - label.width * (1 - x) / 2
            bottom = near_y - label.height * (1 - y) / 2
            box = Box(left, bottom, left + label.width, bottom + label.height)
            if box.inside(area):
                yield box


def _is_free(
    box: Box,
    label: Wanted,
    markers: Sequence[Box],
    others: Sequence[Box],
    placed: Sequence[Box],
    *,
    leaders: Sequence[Segment],
) -> bool:
    roomy = box.grown(_MARGIN)
    if any(roomy.overlaps(other) for other in placed) or any(box.overlaps(other) for other in markers):
        return False
    line = leader(box, label)
    if any(_crosses_box(line, other) for other in placed) or any(_crosses_marker(line, other) for other in others):
        return False
    return not any(_crosses_box(other, roomy) or _cross(line, other) for other in leaders)


def leader(box: Box, label: Wanted) -> Segment:
    """From the edge of the marker."""
    x, y = box.nearest(label.x, label.y)
    inside = min(1.0, label.radius / (math.hypot(x - label.x, y - label.y) or 1.0))
    return label.x + (x - label.x) * inside, label.y + (y - label.y) * inside, x, y


def _crosses_marker(line: Segment, box: Box) -> bool:
    """Does the line touch the circle inside the box?"""
    x, y, end_x, end_y = line
    across, up = (box.left + box.right) / 2, (box.bottom + box.top) / 2
    dx, dy = end_x - x, end_y - y
    along = ((across - x) * dx + (up - y) * dy) / (dx * dx + dy * dy or 1.0)
    along = min(1.0, max(0.0, along))
    return math.hypot(x + along * dx - across, y + along * dy - up) < (box.right - box.left) / 2


def _crosses_box(line: Segment, box: Box) -> bool:
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


def _cross(one: Segment, two: Segment) -> bool:
    """Do two lines cross within their lengths?"""
    return _sides(one, two) and _sides(two, one)


def _sides(line: Segment, other: Segment) -> bool:
    """Do the ends of the other line lie on two sides of this one?"""
    x, y, dx, dy = line[0], line[1], line[2] - line[0], line[3] - line[1]
    first = dx * (other[1] - y) - dy * (other[0] - x)
    second = dx * (other[3] - y) - dy * (other[2] - x)
    return first * second < 0


# ---- drawing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Label:
    """Text; the place of what it names, in units of the axes; the radius of that in pixels; as in Wanted; colour."""

    text: str
    x: float
    y: float
    radius: float
    anywhere: bool = True
    colour: str = "#000000"


def draw_labels(
    axes: Axes, wanted: Sequence[Label], markers: Sequence[Box], avoided: Sequence[Segment], size: float
) -> None:
    """Each where there is room, with a line to what it names; none where there is no room. size: points."""
    texts = [
        axes.text(
            0, 0, one.text, transform=axes.transAxes, fontsize=size, linespacing=1.1, color=one.colour, parse_math=False
        )
        for one in wanted
    ]
    asked = []
    for text, one in zip(texts, wanted, strict=True):
        room = extent(text)
        x, y = pixel(axes, one.x, one.y)
        width = (room.right - room.left) * SPARE
        asked.append(Wanted(width, room.top - room.bottom, x, y, one.radius, one.anywhere))
    inside = axes.bbox
    area = Box(inside.x0 + 3, inside.y0 + 3, inside.x1 - 3, inside.y1 - 3)
    for text, want, box in zip(texts, asked, place_labels(asked, area, markers, avoided), strict=True):
        if box is None:
            text.remove()
            continue
        text.set_gid("label")
        text.set_verticalalignment("bottom")
        text.set_position(_share_of(axes, box.left, box.bottom))
        _draw_leader(axes, leader(box, want))


def _draw_leader(axes: Axes, line: Segment) -> None:
    """From the edge of the marker to the label, unless they touch; over other markers that it lies on."""
    x, y, end_x, end_y = line
    if math.hypot(end_x - x, end_y - y) > _TOUCHING:
        ends = _share_of(axes, x, y), _share_of(axes, end_x, end_y)
        axes.plot(*zip(*ends, strict=True), transform=axes.transAxes, color=_COLOUR, linewidth=0.6, zorder=5)


def pixel(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Where a point of the axes lies."""
    across, up = axes.transData.transform((x, y))
    return float(across), float(up)


def _share_of(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Pixels as shares of the axes, which hold at any resolution."""
    across, up = axes.transAxes.inverted().transform((x, y))
    return float(across), float(up)


def extent(text: Text) -> Box:
    """The room of a text that is in a figure."""
    found = text.get_window_extent()
    return Box(found.x0, found.y0, found.x1, found.y1)
