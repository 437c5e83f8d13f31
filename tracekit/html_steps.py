"""How long does a step take, and how evenly? A table of all kinds of steps and the distribution of the steady ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from tracekit.analysis import Result, Row, duration
from tracekit.html_svg import Axis, element, line, svg, text
from tracekit.html_views import (
    ROWS,
    Block,
    Cell,
    Column,
    Figure,
    Key,
    Notes,
    Section,
    Table,
    number_cell,
    reason_of,
    share_cell,
    shown,
    some_of,
    table,
    text_cell,
    time_cell,
)
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.trace import Trace

_FEWEST = 3  # steps that make a distribution
_WIDE = 20  # longest by shortest step from which on the axis is logarithmic
_CURVES = 4  # more cannot be told apart by their lines
_WIDTH, _HEIGHT = 760, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 24, 12, 44
_COLUMNS = (
    Column("phase"),
    Column("batch", title="requests, and new tokens where there is prefill, to the next power of two"),
    Column("kind", title="steady; first of its rank; warm-up (code was loaded or compiled); empty (no device work)"),
    Column("steps", "number"),
    Column("P50", "number", "from the start of its first work on the device to the end of its last"),
    Column("P90", "number"),
    Column("P99", "number"),
    Column("period P50", "number", "from the start of a step to the start of the next"),
    Column("busy", "number", "of the time charged to these steps"),
    Column("idle", "number", "inside the steps, of the time charged to them"),
    Column("gap", "number", "idle before the first work of the steps, of the time charged to them"),
)
_HOST_COLUMNS = (
    *_COLUMNS[:2],
    _COLUMNS[3],
    Column("P50", "number", "the mark on the host"),
    Column("P90", "number"),
    Column("P99", "number"),
)
_WHERE = (Column("rank", "number"), Column("device", "number"))


def section(trace: Trace, steps: Result, again: str) -> Section:
    """again: the command that prints all of it."""
    rows = steps.table.to_pylist()
    if not rows:
        said = reason_of(steps, "no serving steps in this part of the trace")
        return Section("steps", "Steps", "", (Notes(said),))
    blocks: list[Block] = [_table(rows, steps, again)]
    if figure := _distribution(trace):
        blocks.append(figure)
    lead = "Kinds of serving steps, by phase and size of batch: what was alike is together."
    return Section("steps", "Steps", lead, tuple(blocks))


def _table(rows: Sequence[Row], steps: Result, again: str) -> Table:
    on_device = any(row["p50_ns"] is not None for row in rows)
    several = len({(row["rank"], row["device"]) for row in rows}) > 1
    ranked = sorted(rows, key=lambda row: (row["kind"] != "steady", -_charged(row)))
    cells = [_cells(row, on_device, several) for row in ranked[:ROWS]]
    columns = _COLUMNS if on_device else _HOST_COLUMNS
    sources = {row["source"] for row in steps.summary}
    said = ["Steps are inferred from launches that repeat: no engine marked them." if sources == {"inferred"} else ""]
    said += [] if on_device else ["No device activity: these are the marks on the host."]
    said += [some_of(len(cells), len(rows), "those with most time", again)]
    note = " ".join(one for one in said if one)
    return table("Times of steps", (*_WHERE, *columns) if several else columns, cells, note)


def _cells(row: Row, on_device: bool, several: bool) -> list[Cell]:
    kind = "" if on_device else "host_"
    times = [row[f"{kind}{quantile}_ns"] for quantile in ("p50", "p90", "p99")]
    if row["count"] == 1:  # of one step there is one time
        times[1:] = [None, None]
    cells = [
        text_cell(row["phase"]),
        text_cell(row["bucket"]),
        *((text_cell(row["kind"].replace("_", "-")),) if on_device else ()),
        number_cell(row["count"]),
        *map(time_cell, times),
    ]
    if several:
        cells = [number_cell(row["rank"]), number_cell(row["device"]), *cells]
    if on_device:
        total = _charged(row)
        parts = (row["busy_ns"], row["idle_ns"], row["gap_before_ns"])
        cells.append(time_cell(row["period_p50_ns"]))
        cells += [share_cell(None if ns is None or not total else ns / total) for ns in parts]
    return cells


def _charged(row: Row) -> int:
    return int((row["busy_ns"] or 0) + (row["idle_ns"] or 0) + (row["gap_before_ns"] or 0))


# ---- distribution ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Curve:
    """Times of alike steps, shortest first."""

    name: str
    times: tuple[int, ...]

    def quantile(self, share: float) -> int:
        """The time that this share of the steps does not exceed."""
        return self.times[max(0, math.ceil(share * len(self.times)) - 1)]


def _distribution(trace: Trace) -> Figure | None:
    """The share of steps that took no longer than a time, of the device with most steps; None for a few steps."""
    curves = [curve for curve in _curves(trace) if len(curve.times) >= _FEWEST][:_CURVES]
    if not curves:
        return None
    across = _axis([time for curve in curves for time in curve.times])
    up = Axis(0.0, 1.0, _HEIGHT - _BOTTOM, _TOP)
    drawn = [*_grid(across, up)]
    keys = []
    for at, curve in enumerate(curves):
        drawn += _drawn(curve, at, across, up)
        said = f"P50 {duration(curve.quantile(0.5))}, P99 {duration(curve.quantile(0.99))}"
        keys.append(Key(_sample(at), f"{curve.name} ({counted(len(curve.times), 'step')})", said))
    label = "Share of steady steps that took no longer than a time"
    drawing = svg(_WIDTH, _HEIGHT, drawn, label, f"0 0 {_WIDTH} {_HEIGHT}")
    note = "Dots are P50 and P99, as nearest ranks." + (" The time axis is logarithmic." if across.is_log else "")
    return Figure(label, drawing, tuple(keys), note, wide=True)


def _curves(trace: Trace) -> list[_Curve]:
    found: dict[tuple[int, int | None], dict[str, list[int]]] = {}
    for row in trace.macro("step_time").to_pylist():
        if row["kind"] == "steady":
            named = " ".join(shown(row[name], 40) for name in ("phase", "bucket") if row[name] != "unknown")
            groups = found.setdefault((row["rank"], row["device"]), {})
            groups.setdefault(named or "steps", []).append(row["wall_ns"])
    most = max(found.values(), key=lambda groups: sum(map(len, groups.values())), default={})
    ranked = sorted(most.items(), key=lambda item: (-len(item[1]), item[0]))
    return [_Curve(name, tuple(sorted(times))) for name, times in ranked]


def _axis(times: Sequence[int]) -> Axis:
    low, high = max(1, min(times)), max(1, *times)
    if high > _WIDE * low:
        return Axis(low / 1.3, high * 1.3, _LEFT, _WIDTH - _RIGHT, is_log=True)
    room = max((high - low) * 0.06, high * 0.01)
    return Axis(max(0.0, low - room), high + room, _LEFT, _WIDTH - _RIGHT)


def _grid(across: Axis, up: Axis) -> Iterator[Markup]:
    ticks = list(across.ticks())
    if across.is_log and len(ticks) < 2:
        ticks = [across.low * 1.3, across.high / 1.3]
    for tick in ticks:
        x = across.at(tick)
        yield line(x, up.start, x, up.end, "grid")
        yield text(x, up.start + 16, duration(tick), anchor="middle", kind="tick")
    for tick in (0.0, 0.5, 0.9, 1.0):
        y = up.at(tick)
        yield line(across.start, y, across.end, y, "grid")
        yield text(across.start - 6, y + 4, f"{tick:.0%}", anchor="end", kind="tick")
    yield text((across.start + across.end) / 2, up.start + 36, "step time on the device", anchor="middle")


def _drawn(curve: _Curve, at: int, across: Axis, up: Axis) -> Iterator[Markup]:
    count = len(curve.times)
    points = [f"M{across.at(curve.times[0]):.1f},{up.at(0):.1f}"]
    for rank, time in enumerate(curve.times, start=1):
        points.append(f"H{across.at(time):.1f}V{up.at(rank / count):.1f}")
    points.append(f"H{across.end:.1f}")
    yield element("path", {"d": "".join(points), "class": f"curve curve-{at}"}, element("title", {}, curve.name))
    for share, name in ((0.5, "P50"), (0.99, "P99")):
        time = curve.quantile(share)
        rank = max(1, math.ceil(share * count))
        said = f"{curve.name}: {name} {duration(time)}"
        where = {"cx": across.at(time), "cy": up.at(rank / count), "r": 4.5}
        yield element("circle", {**where, "class": f"dot dot-{at}"}, element("title", {}, said))


def _sample(at: int) -> Markup:
    inside = element("path", {"d": "M1,7H27", "class": f"curve curve-{at}"})
    return element("svg", {"width": 28, "height": 14, "class": "swatch", "aria-hidden": "true"}, inside)
