"""What tests of pictures share: a simulated trace with something of everything, and what must hold of any picture."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulator import Plant, Run, simulate
from tracekit.convert import convert

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text
    from matplotlib.transforms import BboxBase

#: All that can be planted on one rank, at once.
EVERYTHING = Plant(
    launch_bound_ns=20_000, syncs_per_step=2, between_steps_ns=500_000, holes_per_step=1, hole_ns=300_000,
    pageable_copies_per_step=2, allocation_ns=100_000, input_preparation_ns=80_000, scheduler_ns=60_000,
    python_ns=700_000, gc_ns=60_000, lazy_load_ns=20_000, dependencies_per_step=1, communication_wait_ns=40_000,
    profiler_ns=50_000,
)  # fmt: skip


def planted(folder: Path, *, steps: int = 8, ranks: int = 1, batches: tuple[int, ...] = (4, 9)) -> Path:
    """A Parquet file of a run with all of it, with stacks and shapes."""
    run = Run(plant=EVERYTHING, steps=steps, ranks=ranks, batches=batches, with_stack=True, record_shapes=True)
    raw = folder / f"raw{ranks}{'' if ranks > 1 else '.json'}"
    simulate(run, raw)
    convert([raw], folder / f"ranks{ranks}.parquet")
    return folder / f"ranks{ranks}.parquet"


def flaws(figure: Figure) -> list[str]:
    """Texts that lie over each other, or not wholly in the picture."""
    figure.draw_without_rendering()  # a figure of the user may have no canvas that draws
    boxes = [(text, text.get_window_extent()) for text in _texts(figure)]
    found = [
        f"{one.get_text()!r} is over {other.get_text()!r}"
        for (one, box), (other, again) in combinations(boxes, 2)
        if box.overlaps(again)
    ]
    return found + [f"{text.get_text()!r} is cut off" for text, box in boxes if not _inside(box, figure.bbox)]


def _inside(box: BboxBase, whole: BboxBase) -> bool:
    """Half a pixel outside is none."""
    around = whole.x0 - 0.5, whole.y0 - 0.5, whole.x1 + 0.5, whole.y1 + 0.5
    return bool(around[0] <= box.x0 and around[1] <= box.y0 and box.x1 <= around[2] and box.y1 <= around[3])


def _texts(figure: Figure) -> Iterator[Text]:
    """All that are drawn: labels of ticks beyond the ends of an axis are not."""
    from matplotlib.text import Text

    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low - 1e-9 <= tick.get_loc() <= high + 1e-9:
                    hidden |= {id(tick.label1), id(tick.label2)}
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text.get_visible() and text.get_text().strip() and id(text) not in hidden:
            yield text


def labels(figure: Figure) -> list[str]:
    """What is written on it that no axis or legend writes."""
    return [text.get_text() for text in _texts(figure) if text.get_gid() == "label"]
