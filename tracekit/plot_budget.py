"""The time budget: how long is a step, and of that, what was the device busy with and why was it idle?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracekit.analysis import Row, duration
from tracekit.budget import span_budget, step_budget, why_no_idle_time
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
    write_inside,
)
from tracekit.plot_labels import Box
from tracekit.plot_style import DPI, OTHER_BUSY, OTHER_IDLE, Fill, fill_of, idle_fill, plain
from tracekit.wording import counted

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes

    from tracekit.trace import Trace

_WIDTH = 11.0  # inches
_LEFT, _RIGHT, _BOTTOM = 1.75, 2.0, 0.6
_BAR, _THICK = 0.62, 0.66  # inches of a bar and what is around it, at least; share of it that is bar
_ROOMY = 1.4  # of _BAR, at most
_MOST_BARS = 12
_LEAST = 0.01  # of the longest bar: a part that is never as long has no entry of its own
_MOST_PARTS = {"busy": 9, "idle": 8}
_ENTRY = 0.2  # inches in the legend
_NAME = 26
_UNKNOWN = "unattributed"
_OTHERS = {"busy": ("other busy parts", OTHER_BUSY), "idle": ("other idle parts", OTHER_IDLE)}

Part = tuple[str, str]  # "busy" or "idle", and the category or cause


@dataclass(frozen=True, slots=True)
class Bar:
    """What one bar shows. parts: mean ns by part, which add up to the whole."""

    label: str
    parts: Mapping[Part, float]

    @property
    def total_ns(self) -> float:
        """How long the bar is."""
        return sum(self.parts.values())

    @property
    def busy(self) -> float:
        """Share of the time."""
        return sum(ns for (kind, _), ns in self.parts.items() if kind == "busy") / self.total_ns


@dataclass(frozen=True, slots=True)
class Budget:
    """All bars, what they are called, and what is not among them."""

    title: str
    caption: tuple[str, ...]
    axis: str
    bars: tuple[Bar, ...]


# ---- measuring -------------------------------------------------------------------------------------------------------


def budget_of(trace: Trace) -> Budget:
    """Of the steady steps a bar for each phase and size of batch; without any, of the recording one for each device.

    Raises UsageError where no device did any work.
    """
    steps = step_budget(trace)
    refusal = why_no_idle_time(trace)
    rows = _told(steps if steps.num_rows else span_budget(trace), refusal)
    found = _of_steps(rows) if steps.num_rows else _of_devices(rows)
    return replace(found, caption=(*found.caption, refusal)) if refusal else found


def _told(parts: pa.Table, refusal: str) -> list[Row]:
    """The rows, without causes of what may not be idle time."""
    rows: list[Row] = parts.to_pylist()
    return [row | {"name": _UNKNOWN} if refusal and row["part"] == "idle" else row for row in rows]


def _of_steps(rows: Sequence[Row]) -> Budget:
    by_bucket = _grouped(rows, lambda row: (row["phase"], row["bucket"]))
    by_phase = _grouped(rows, lambda row: (row["phase"],))
    groups = by_bucket if len(by_bucket) <= _MOST_BARS else by_phase
    bars = tuple(_bar_of_steps(name, members) for name, members in groups.items())
    devices = len({(row["rank"], row["device"]) for row in rows})
    caption = ["Mean of the steady steps, each with the gap before it"]
    if devices > 1:
        caption[0] += f", over {counted(devices, 'device')}"
    if groups is by_phase:
        caption.append(f"{len(by_bucket)} sizes of batch are too many to show: one bar for each phase")
    return Budget("Time budget of a step", tuple(caption), "time per step", bars)


def _grouped(rows: Sequence[Row], key: Callable[[Row], tuple[str, ...]]) -> dict[tuple[str, ...], list[Row]]:
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _bar_of_steps(name: tuple[str, ...], rows: Sequence[Row]) -> Bar:
    """Steps of several devices count as many: it is the mean over them."""
    steps = {(row["rank"], row["device"], row["bucket"]): row["steps"] for row in rows}
    count = sum(steps.values())
    known = " ".join(word for word in name if word != "unknown") or "phase unknown"
    return Bar(f"{plain(known, _NAME)}\n{counted(count, 'step')}", _summed(rows, count))


def _of_devices(rows: Sequence[Row]) -> Budget:
    if not rows:
        raise UsageError("nothing to plot: the trace has no work on any device")
    groups = _grouped(rows, lambda row: (f"rank {row['rank']}", _device(row["device"])))
    bars = [Bar("\n".join(name), _summed(members, 1)) for name, members in groups.items()]
    kept = sorted(bars, key=lambda bar: -bar.total_ns)[:_MOST_BARS]
    caption = ["No steady step is marked or found: all of the recording, from the first work of a device to its last"]
    if len(kept) < len(bars):
        caption.append(f"The {len(kept)} of {len(bars)} devices with the longest time")
    shown = tuple(bar for bar in bars if bar in kept)
    return Budget("Time budget of the recording", tuple(caption), "time", shown)


def _device(number: int | None) -> str:
    return "no device" if number is None else f"device {number}"


def _summed(rows: Sequence[Row], count: int) -> dict[Part, float]:
    found: dict[Part, int] = {}
    for row in rows:
        part = (row["part"], row["name"])
        found[part] = found.get(part, 0) + row["ns"]
    return {part: ns / count for part, ns in found.items()}


def together(bars: Sequence[Bar]) -> tuple[tuple[Part, ...], tuple[Bar, ...]]:
    """The parts that are shown, busy ones first, longest first; the bars with all others as one part of each kind."""
    time: dict[Part, float] = {}
    share: dict[Part, float] = {}
    for bar in bars:
        for part, ns in bar.parts.items():
            time[part] = time.get(part, 0.0) + ns
            share[part] = max(share.get(part, 0.0), ns / max(one.total_ns for one in bars))
    shown: list[Part] = []
    others: dict[Part, Part] = {}
    for kind, most in _MOST_PARTS.items():
        ranked = sorted((part for part in time if part[0] == kind), key=lambda part: (-time[part], part))
        large = [part for part in ranked if share[part] >= _LEAST][:most]
        small = [part for part in ranked if part not in large]
        if len(small) > 1:
            others |= dict.fromkeys(small, (kind, _OTHERS[kind][0]))
            shown += [*large, (kind, _OTHERS[kind][0])]
        else:
            shown += ranked
    merged = []
    for bar in bars:
        parts = dict.fromkeys(shown, 0.0)
        for part, ns in bar.parts.items():
            parts[others.get(part, part)] += ns
        merged.append(Bar(bar.label, parts))
    return tuple(shown), tuple(merged)


# ---- drawing ---------------------------------------------------------------------------------------------------------


def draw_budget(budget: Budget, ax: Axes | None) -> Axes:
    """A horizontal bar for each, its parts from busy to idle, its whole written at the end."""
    shown, bars = together(budget.bars)
    head = height_of_head(len(budget.caption))
    height = head + _BOTTOM + max(_BAR * len(bars), _ENTRY * (len(shown) + 3))
    axes = axes_of(ax, _WIDTH, height, Room(_LEFT, _RIGHT, head, _BOTTOM))
    unit = unit_of(max(bar.total_ns for bar in bars))
    spare = max(0.0, (axes.bbox.height / DPI / (_BAR * _ROOMY) - len(bars)) / 2) if ax is None else 0.0
    axes.set_ylim(len(bars) - 0.5 + spare, -0.5 - spare)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars], fontsize=SMALL)
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    say_axis(axes, "x", f"{budget.axis} ({unit.name})")
    _legend(axes, shown)
    entitle(axes, budget.title, budget.caption)
    _widen(axes, bars, unit.ns)
    for at, bar in enumerate(bars):
        _draw_bar(axes, bar, at, unit.ns)
    return axes


def _draw_bar(axes: Axes, bar: Bar, at: int, scale: float) -> None:
    left = 0.0
    for part, ns in bar.parts.items():
        if ns > 0:
            right = left + ns / scale
            fill = _fill(part)
            area = Box(left, at - _THICK / 2, right, at + _THICK / 2)
            fill_area(axes, area, fill)
            name = _label(part)
            write_inside(axes, area, [f"{name}\n{duration(ns)}", f"{ns / bar.total_ns:.0%}"], fill)
            left = right
    text = axes.annotate(
        _total(bar), (left, at), xytext=(4, 0), textcoords="offset points", va="center", fontsize=SMALL, gid="label"
    )
    text.set_parse_math(False)


def _total(bar: Bar) -> str:
    return f"{duration(bar.total_ns)}, {bar.busy:.0%} busy"


def _widen(axes: Axes, bars: Sequence[Bar], scale: float) -> None:
    """So far that the text at the end of each bar lies within the axes."""
    room = float(axes.bbox.width)
    ends = []
    for bar in bars:
        text = size_of(axes, _total(bar), SMALL)
        ends.append(bar.total_ns / scale / max(0.2, 1 - (text.right - text.left + 16) / room))
    axes.set_xlim(0, max(ends))


def _legend(axes: Axes, shown: Sequence[Part]) -> None:
    entries = []
    for kind in _MOST_PARTS:
        parts = [part for part in shown if part[0] == kind]
        if parts:
            entries += [patch(kind, OTHER_IDLE), *(patch(_label(part), _fill(part)) for part in parts)]
    legend(axes, entries, tuple(_MOST_PARTS))


def _fill(part: Part) -> Fill:
    kind, name = part
    others, fill = _OTHERS[kind]
    if name == others:
        return fill
    return fill_of(name) if kind == "busy" else idle_fill(name)


def _label(part: Part) -> str:
    return plain(part[1].replace("_", " "), _NAME)
