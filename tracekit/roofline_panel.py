"""What the roofline plot of a device shows: which kernel groups where, which roofs, what is left out. No drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracekit.analysis import Row, Scalar, duration
from tracekit.plot_style import plain, si
from tracekit.roofline_names import mark_of_roof, titles, work_name
from tracekit.wording import counted

ABOVE = "above roof"
_NAME = 40  # characters of a name in a label
_TITLED = 60  # groups whose names are told apart: more are never named in a picture
_DEVICE = 60
_PROBLEM = 110
_NO_EVIDENCE = (None, "F")
_FOUND = 0.05  # of the busy time, as the analysis has it
_USUAL = ("bf16", "fp16", "fp32", "fp64")
_ROOM = 3.0  # between the outermost marker and the edge, as a factor
_LEAST_DECADES = 3.0
# From and to what a figure is one: from a broken shape it must not press all others into a corner.
_INTENSITIES = (1e-6, 1e7)
_RATES = (1.0, 1e20)


@dataclass(frozen=True, slots=True)
class Point:
    """A kernel group. x: FLOP per byte, or bytes per second on the strip; y: FLOP/s, 0 on the strip; share: of the busy
    time of its device; is_error: above the roof.
    """

    x: float
    y: float
    share: float
    category: str
    label: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class Roof:
    """A limit at datasheet and achievable figures, the second None if it is not known. name: of the maths it is for."""

    name: str
    datasheet: float
    achievable: float | None


@dataclass(frozen=True, slots=True)
class Panel:
    """All that is drawn of a device. points, strip: longest time first. caption: its lines. span_x, span_y, span_strip:
    what the axes show.
    """

    title: str
    caption: tuple[str, ...]
    points: tuple[Point, ...]
    strip: tuple[Point, ...]
    bandwidth: Roof | None
    roofs: tuple[Roof, ...]
    span_x: tuple[float, float]
    span_y: tuple[float, float]
    span_strip: tuple[float, float]


def panel_of(rows: Sequence[Row], device: Row, found: float = _FOUND, *, strip: bool = True) -> Panel:
    """rows: of the table of roofline, this device's; device: its row of the summary; found: share of the busy time from
    which on what is above a roof is a finding; strip: whether groups without FLOPs have a place.
    """
    busy = device["busy_ns"]
    is_found = device["above_roof_ns"] > 0 and device["above_roof_ns"] >= found * busy
    ranked = sorted(rows, key=lambda row: (-row["exclusive_ns"], row["example_id"]))
    placed = [row for row in ranked if _place(row) == "plot"]
    beside = [row for row in ranked if strip and _place(row) == "strip"]
    names = _names([*placed[:_TITLED], *beside[:_TITLED]])
    points = tuple(_point(row, names, device, is_found) for row in placed)
    apart = tuple(_point(row, names, device, is_found) for row in beside)
    bandwidth = _bandwidth(device)
    roofs = _roofs(placed, device)
    lines = (bandwidth.datasheet,) if bandwidth else ()
    return Panel(
        title=_title(device),
        caption=_caption(ranked, device, is_found, strip),
        points=points,
        strip=apart,
        bandwidth=bandwidth,
        roofs=roofs,
        span_x=_span([point.x for point in points], [roof.datasheet / line for roof in roofs for line in lines]),
        span_y=_span([point.y for point in points], [roof.datasheet for roof in roofs]),
        span_strip=_span([point.x for point in apart], lines),
    )


def _title(device: Row) -> str:
    name = plain(device["name"] or "a device without a name", _DEVICE)
    return f"Roofline of {name}, rank {device['rank']} device {device['device']}"


# ---- groups ----------------------------------------------------------------------------------------------------------


def _place(row: Row) -> str:
    """Where a group goes: "plot", "strip" if it has no FLOPs, or why it is not shown. The bandwidth of communication is
    that of links: it has no place beside the memory's.
    """
    if row["category"] == "communication" or row["bound"] == "communication":
        return "communication"
    if _is_within(row["intensity"], _INTENSITIES) and _is_within(row["achieved_flops"], _RATES):
        return "plot"
    if not row["flops"] and _is_within(row["achieved_bandwidth"], _RATES):
        return "strip"
    return "no evidence" if row["evidence"] in _NO_EVIDENCE else "no figures"


def _is_within(value: float | None, limits: tuple[float, float]) -> bool:
    return value is not None and limits[0] <= value <= limits[1]


def _names(rows: Sequence[Row]) -> Mapping[int, str]:
    """By the longest launch: what these are called, all different."""
    return dict(zip((row["example_id"] for row in rows), titles(rows), strict=True))


def _point(row: Row, names: Mapping[int, str], device: Row, is_found: bool) -> Point:
    busy = device["busy_ns"]
    share = row["exclusive_ns"] / busy if busy else 0.0
    is_error = is_found and row["problem"] == ABOVE
    is_plotted = _place(row) == "plot"
    x = row["intensity"] if is_plotted else row["achieved_bandwidth"]
    name = names.get(row["example_id"]) or work_name(row)
    label = _label(row, name, share, is_error)
    return Point(x, row["achieved_flops"] if is_plotted else 0.0, share, row["category"], label, is_error)


def _label(row: Row, name: str, share: float, is_error: bool) -> str:
    """Two lines: what it works on; its share of the time, how near to the achievable roof it is."""
    said = [f"{share:.1%} of time"]
    if is_error:
        said.append(f"{ABOVE}: error")
    elif row["roof_fraction"] and row["problem"] is None:
        said.append(f"{mark_of_roof(row)}{row['roof_fraction']:.0%} of roof")
    return f"{plain(name, _NAME)}\n{', '.join(said)}"


def _caption(rows: Sequence[Row], device: Row, is_found: bool, strip: bool) -> tuple[str, ...]:
    """How much of the busy time is shown, what is not, and why there are no roofs."""
    busy = device["busy_ns"]
    times: dict[str, int] = {}
    for row in rows:
        place = _place(row)
        times[place] = times.get(place, 0) + row["exclusive_ns"]
    shown = ("plot", "strip") if strip else ("plot",)
    groups = sum(_place(row) in shown for row in rows)
    said = f"{counted(groups, 'kernel group')}, {_share(times.get('plot', 0), busy)} of {duration(busy)} busy time"
    if strip and "strip" in times:
        said += f" + {_share(times['strip'], busy)} without FLOPs (strip below)"
    words = {"strip": "without FLOPs"}
    shares = {words.get(place, place): _share(ns, busy) for place, ns in sorted(times.items()) if place not in shown}
    hidden = [f"{place} {share}" for place, share in shares.items() if share != "0.0%"]
    lines = [said + (f"; not shown: {', '.join(hidden)}" if hidden else "")]
    if is_found:
        lines.append(
            f"{_share(device['above_roof_ns'], busy)} of the time is above a roof, which cannot be: "
            "wrong device, wrong shapes, or caches"
        )
    if device["problem"]:
        lines.append(plain(f"missing roofs: {first_sentence(device['problem'])}", _PROBLEM))
    return tuple(lines)


def share_of_finding(parameters: Mapping[str, Scalar]) -> float:
    """From which share of the busy time on the analysis has a finding."""
    return float(parameters.get("share") or _FOUND)


def first_sentence(text: str) -> str:
    """Of several; how to give peaks comes after it, and is said elsewhere."""
    return text.partition(". ")[0].rstrip(".")


def _share(ns: int, busy: int) -> str:
    return f"{ns / busy if busy else 0:.1%}"


# ---- roofs -----------------------------------------------------------------------------------------------------------


def _bandwidth(device: Row) -> Roof | None:
    if not _is_within(device["bandwidth"], _RATES):
        return None
    return Roof("memory", device["bandwidth"], _achievable(device, "bandwidth", device["bandwidth"]))


def _roofs(rows: Sequence[Row], device: Row) -> tuple[Roof, ...]:
    """One for each kind of arithmetic that the groups use, highest first; those of the same height are one. Without any
    group those that are asked for most.
    """
    time: dict[str, int] = {}
    for row in rows:
        if row["math"]:
            time[row["math"]] = time.get(row["math"], 0) + row["exclusive_ns"]
    peaks: Mapping[str, float] = device["peaks"] or {}
    if not rows:  # then the roofs are all there is to show
        time = dict.fromkeys(_USUAL, 0)
    merged: dict[tuple[float, float | None], list[str]] = {}
    for name in sorted(time, key=lambda one: (-time[one], one)):
        if _is_within(peaks.get(name), _RATES):
            merged.setdefault((peaks[name], _achievable(device, name, peaks[name])), []).append(name)
    roofs = [Roof(", ".join(names), *heights) for heights, names in merged.items()]
    return tuple(sorted(roofs, key=lambda roof: -roof.datasheet))


def _achievable(device: Row, name: str, peak: float) -> float | None:
    fraction = (device["achievable"] or {}).get(name)
    return None if fraction is None else fraction * peak


def words_of(roof: Roof, unit: str) -> str:
    """Two lines that name a roof: "bf16 989 TFLOP/s" and what of it is achievable."""
    first = f"{roof.name} {si(roof.datasheet, unit)}"
    return first if roof.achievable is None else f"{first}\n(achievable {si(roof.achievable, unit)})"


def _span(values: Sequence[float], lines: Sequence[float]) -> tuple[float, float]:
    """What a logarithmic axis shows: all markers and lines with room around, never less than a few decades."""
    shown = [*values, *lines]
    if not shown:
        return 1.0, 10.0**_LEAST_DECADES
    high = math.log10(max(shown) * _ROOM)
    low = math.log10(min(shown) / _ROOM)
    if (missing := _LEAST_DECADES - (high - low)) > 0:
        low -= missing
    return 10.0**low, 10.0**high
