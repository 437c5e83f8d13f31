"""What all plots share: a figure of their own, colours of what time is spent on, PNG and SVG. Axes: plot_axes.py.

Figures are made with Matplotlib's objects, never with pyplot: the backend, the style and the open figures of the user's
notebook stay as they are. The same result makes the same file: no dates, no random ids, no fonts but Matplotlib's own.
"""

from __future__ import annotations

from collections.abc import Mapping
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
_GREY = "#575757"  # a lighter one is green or purple to some
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


@dataclass(frozen=True, slots=True)
class Fill:
    """How an area is filled: its colour, Matplotlib's hatch over it, and the colour of that. No two are the same."""

    colour: str
    hatch: str
    line: str


_HATCHES = {"o": "", "s": "/////", "^": "...", "D": "xxxxx"}  # an area has no marker
_LINE = "#6A6A6A"
# Idle time is pale and its hatch dark, work the other way round. The colour says whose matter the cause is: grey the
# launching, blue the host's waiting for the device, sand its own work, rose what happens once, green other devices,
# white nobody's. Of one hatch there are two at most, of colours that colour-blind readers can tell apart.
_LAUNCHING, _WAITING, _WORKING, _ONCE, _OTHERS, _NOBODY = (
    "#AFAFAF",
    "#BCD8F2",
    "#F0DFA8",
    "#EFB2CB",
    "#BFE3C6",
    "#FFFFFF",
)
CAUSE_STYLES: Mapping[str, Fill] = MappingProxyType(
    {
        "launch_latency": Fill("#D4D4D4", "", _LINE),
        "launch_bound": Fill(_LAUNCHING, "/////", _LINE),
        "graph_launch": Fill(_LAUNCHING, "\\\\\\\\\\", _LINE),
        "sync": Fill(_WAITING, "xxxxx", _LINE),
        "pageable_copy": Fill(_WAITING, "...", _LINE),
        "allocation": Fill(_WAITING, "+++++", _LINE),
        "input_preparation": Fill(_WORKING, "|||||", _LINE),
        "scheduler": Fill(_WORKING, "-----", _LINE),
        "python": Fill(_WORKING, "\\\\\\\\\\", _LINE),
        "gc": Fill(_WORKING, "ooo", _LINE),
        "lazy_load_or_jit": Fill(_ONCE, "+++++", _LINE),
        "profiler": Fill(_ONCE, "xxxxx", _LINE),
        "stream_dependency": Fill(_OTHERS, "|||||", _LINE),
        "communication_wait": Fill(_OTHERS, "ooo", _LINE),
        "no_requests": Fill(_NOBODY, "", _LINE),
        "unattributed": Fill(_NOBODY, "...", _LINE),
    }
)
OTHER_BUSY = Fill("#111111", "", "#FFFFFF")  # of several small parts together
OTHER_IDLE = Fill(_NOBODY, "-----", _LINE)


def fill_of(category: str) -> Fill:
    """An area of a category, in the colour that its marker has."""
    style = style_of(category)
    return Fill(style.colour, _HATCHES[style.marker], "#FFFFFF")


def idle_fill(cause: str) -> Fill:
    """An area of idle time; of a cause that is not ours that of "unattributed"."""
    return CAUSE_STYLES.get(cause, CAUSE_STYLES["unattributed"])


# ---- figures ---------------------------------------------------------------------------------------------------------


def defaults() -> AbstractContextManager[None]:
    """Matplotlib's own style while something is drawn, whatever the user's is; the backend is left alone. Hinted text
    is up to a tenth wider at one resolution than at another: labels that were apart would touch.
    """
    from matplotlib import style

    return style.context(["default", {"text.hinting": "none", "hatch.linewidth": 0.6}])


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
