"""Where does the time of a mean step go? A bar for each kind of step: busy by category, idle by cause; all of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from tracekit.analysis import Row, duration
from tracekit.budget import span_budget, step_budget
from tracekit.html_svg import Slice, bar, fill_of_part, swatch
from tracekit.html_views import Block, Figure, Key, Notes, Section, sentence, shown
from tracekit.plot_style import OTHER_BUSY, OTHER_IDLE
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.trace import Trace

_BARS = 8
_NOTHING = "no device activity in this part of the trace"
_LEAST = 0.004  # of a bar: what is smaller goes with the others of its part
_OTHERS = {"busy": OTHER_BUSY, "idle": OTHER_IDLE}
_GROUP = ("rank", "device", "phase", "bucket")


def section(trace: Trace, reason: str) -> Section:
    """reason: why there is no device time, where there is none."""
    rows = step_budget(trace).to_pylist()
    if rows:
        lead = (
            "Each bar is one mean steady step: solid is busy, by category; pale is idle, by cause. Lengths are shares "
            "of the step and add up to all of its time."
        )
        return Section("budget", "Time budget per step", lead, _bars(rows))
    rows = [{**row, "phase": "unknown", "bucket": "unknown", "steps": 1} for row in span_budget(trace).to_pylist()]
    if rows:
        lead = "No steady serving steps were found, so this is all of the recording: solid is busy, pale is idle."
        return Section("budget", "Time budget", lead, _bars(rows))
    return Section("budget", "Time budget", "", (Notes((sentence(reason or _NOTHING),)),))


def _bars(rows: Sequence[Row]) -> tuple[Block, ...]:
    """Of the device that spends most time; the kinds of steps that take most of it first."""
    time: dict[tuple[int, int | None], int] = {}
    for row in rows:
        key = (row["rank"], row["device"])
        time[key] = time.get(key, 0) + row["ns"]
    here = max(time, key=lambda key: time[key])
    of_device = [row for row in rows if (row["rank"], row["device"]) == here]
    groups = [list(one) for _, one in groupby(of_device, key=lambda row: tuple(row[name] for name in _GROUP))]
    groups.sort(key=lambda group: -sum(row["ns"] for row in group))
    blocks: list[Block] = [_bar(group) for group in groups[:_BARS]]
    said = []
    if len(time) > 1:
        said.append(f"rank {here[0]} device {here[1]}, which spends most time; {counted(len(time) - 1, 'more device')}")
    if len(groups) > _BARS:
        said.append(f"{counted(len(groups) - _BARS, 'more kind')} of steps, with less time")
    return (*blocks, Notes((f"Shown: {'; and '.join(said)}.",))) if said else tuple(blocks)


def _bar(rows: Sequence[Row]) -> Figure:
    head, total = rows[0], sum(row["ns"] for row in rows)
    steps = head["steps"]
    parts = _merged(rows, total)
    slices, keys = [], []
    for part, name, ns in parts:
        fill = _OTHERS[part] if name is None else fill_of_part(part, name)
        said = f"{duration(ns / steps)}, {ns / total:.1%}"
        title = f"{part}: {_name(part, name)}, {said}"
        slices.append(Slice(ns / total, fill, title))
        keys.append(Key(swatch(fill), _name(part, name), said, title))
    named = " ".join(shown(head[name], 60) for name in ("phase", "bucket") if head[name] != "unknown")
    times = f"{duration(total / steps)} a step, mean of {counted(steps, 'step')}" if named or steps > 1 else ""
    title = ": ".join(one for one in (named or "whole recording", times or duration(total)) if one)
    busy = sum(ns for part, _, ns in parts if part == "busy") / total
    return Figure(f"{title}; {busy:.1%} busy", bar(slices, title), tuple(keys))


def _merged(rows: Sequence[Row], total: int) -> list[tuple[str, str | None, int]]:
    """Part, name (None: all small ones), time; busy first, the largest first in each."""
    found: list[tuple[str, str | None, int]] = []
    for part in ("busy", "idle"):
        here = sorted((row for row in rows if row["part"] == part), key=lambda row: (-row["ns"], row["name"]))
        found += [(part, row["name"], row["ns"]) for row in here if row["ns"] >= _LEAST * total]
        if rest := sum(row["ns"] for row in here if row["ns"] < _LEAST * total):
            found.append((part, None, rest))
    return found


def _name(part: str, name: str | None) -> str:
    if name is None:
        return f"other {part}"
    return shown(name, 40) if part == "busy" else f"idle: {shown(name, 40)}"
