"""What does a step look like, row by row? The data of the interactive timeline: a few steps, compact, limited in size.

Columns instead of rows, times as differences, each name once; a column of one value is that value. What it says is
data: it goes into a script element that is never run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from tracekit.analysis import Row, duration
from tracekit.html_svg import hatch_of, swatch
from tracekit.html_views import Key, Notes, Section, TimelineView, sentence, shown
from tracekit.lanes import Lane, Window, step_extent, window_of
from tracekit.plot_style import Fill, fill_of, idle_fill
from tracekit.text_grid import from_package

if TYPE_CHECKING:
    from tracekit.trace import Trace

ROWS = 48_000  # of all windows together: some two megabytes
_MOST = 16_000  # of one window
_CHOICES = 6
_NAME = 400  # characters
_MARGIN = 0.01  # of a window, to either side of the step
# What a script element must not hold, and what JSON may but JavaScript of old does not.
_UNSAFE = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}

_EXTENT = """
    SELECT
        min(ts) AS start_ns,
        max(ts + dur) AS end_ts
    FROM events
    WHERE kind IN ('kernel', 'memcpy', 'memset', 'graph', 'op', 'launch', 'annotation', 'python')
        AND (len($ranks) = 0 OR list_contains($ranks, rank))
"""


@dataclass(frozen=True, slots=True)
class _Choice:
    """A window to look at. rank None: of all ranks."""

    title: str
    start_ns: int
    end_ns: int
    rank: int | None


def section(trace: Trace) -> Section:
    """The steps that say most, or all of the recording where there are none."""
    choices = _choices(trace)
    if not choices:
        return Section("timeline", "Timeline", "", (Notes((sentence("there is nothing to draw: no row has a time"),)),))
    most = min(_MOST, ROWS // len(choices))
    windows = [window_of(trace, one.start_ns, one.end_ns, most=most, rank=one.rank) for one in choices]
    view = TimelineView(
        choices=tuple(one.title for one in choices),
        data=safe_json(_data(choices, windows)),
        keys=tuple(_keys(windows)),
        note=_note(windows, most, len(choices)),
    )
    lead = (
        "The wheel zooms, dragging pans, a double click shows all. With the keyboard: left and right pan, + and - "
        "zoom, 0 shows all, [ and ] go from row to row, up and down from lane to lane, f finds a name."
    )
    return Section("timeline", "Timeline", lead, (view,))


def safe_json(value: object) -> Markup:
    """JSON that no text within can end a script element with, or begin one."""
    return Markup(json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_UNSAFE))


# ---- which windows ---------------------------------------------------------------------------------------------------


def _choices(trace: Trace) -> list[_Choice]:
    """Of the device with most time in steps: of each phase the median steady step, the slowest of all, and the one that
    idles most. Without a device, of the rank with most time in steps. Without steps, all there is.
    """
    steps = trace.macro("step_time").to_pylist()
    named = list(_named(_busiest(steps))) if steps else list(_on_host(trace))
    if not named:
        return _whole(trace)
    found: dict[int, tuple[list[str], Row]] = {}
    for said, step in named:
        found.setdefault(step["step"], ([], step))[0].append(said)
    return [_choice(trace, said, step) for said, step in list(found.values())[:_CHOICES]]


def _busiest(steps: Sequence[Row]) -> list[Row]:
    time: dict[tuple[int, int | None], int] = {}
    for step in steps:
        key = (step["rank"], step["device"])
        time[key] = time.get(key, 0) + _charged(step)
    here = max(time, key=lambda key: time[key])
    return [step for step in steps if (step["rank"], step["device"]) == here]


def _charged(step: Row) -> int:
    return int(step["busy_ns"] + step["idle_ns"] + step["gap_before_ns"])


def _named(steps: Sequence[Row]) -> Iterator[tuple[str, Row]]:
    """Steps with why they are worth a look."""
    steady = [step for step in steps if step["kind"] == "steady"] or list(steps)
    phases: dict[str, list[Row]] = {}
    for step in steady:
        phases.setdefault(step["phase"], []).append(step)
    ranked = sorted(phases.items(), key=lambda item: (-sum(map(_charged, item[1])), item[0]))
    for phase, rows in ranked[: _CHOICES - 2]:
        ordered = sorted(rows, key=lambda step: (step["wall_ns"], step["step"]))
        yield f"median {'' if phase == 'unknown' else f'{phase} '}step", ordered[(len(ordered) - 1) // 2]
    yield "slowest step", max(steps, key=lambda step: (step["wall_ns"], -step["step"]))
    yield "most idle step", max(steps, key=lambda step: (step["idle_ns"] + step["gap_before_ns"], -step["step"]))


def _choice(trace: Trace, said: Sequence[str], step: Row) -> _Choice:
    """From its mark, or the gap before its work, to the end of its work, with a little room."""
    start, end = step_extent(trace, step["step"], step["rank"])
    if step.get("start_ts") is not None:
        start = min(start, step["start_ts"] - step["gap_before_ns"])
    room = max(1, round(_MARGIN * (end - start)))
    size = duration(step["wall_ns"])
    words = f"step {step['step']}, {size}: {', '.join(said)}"
    if len(trace.footer.ranks) > 1:
        words += f" (rank {step['rank']})"
    return _Choice(words, start - room, end + room, step["rank"])


def _on_host(trace: Trace) -> Iterator[tuple[str, Row]]:
    """The same of steps without device work, by their marks."""
    rows = trace.sql("SELECT rank, step, phase, dur AS wall_ns FROM steps WHERE in_scope(rank, NULL, step)").to_pylist()
    if not rows:
        return
    for row in rows:
        row |= {"kind": "steady", "device": None, "busy_ns": row["wall_ns"], "idle_ns": 0, "gap_before_ns": 0}
    yield from (one for one in _named(_busiest(rows)) if one[0] != "most idle step")


def _whole(trace: Trace) -> list[_Choice]:
    scope = trace.scope
    (found,) = trace.sql(_EXTENT, {"ranks": list(scope.ranks)}).to_pylist()
    if found["start_ns"] is None:
        return []
    start = found["start_ns"] if scope.start_ns is None else max(scope.start_ns, found["start_ns"])
    end = max(start + 1, found["end_ts"] if scope.end_ns is None else min(scope.end_ns, found["end_ts"]))
    return [_Choice(f"the whole recording, {duration(end - start)}", start, end, None)]


# ---- data ------------------------------------------------------------------------------------------------------------


def _data(choices: Sequence[_Choice], windows: Sequence[Window]) -> dict[str, object]:
    """names: each once; fills: of categories and causes (colour, path of the hatch, its colour); windows: lanes of
    columns. t, d: start since the end of... the start of the row before, and length, ns; n, l: places of name and
    label; p: depth; s: step; i: id, as difference; u: id of the launch less that of the row.
    """
    names: dict[str, int] = {}
    fills: dict[str, list[str]] = {}
    said = []
    for choice, window in zip(choices, windows, strict=True):
        lanes = [_lane(lane, window.start_ns, names, fills) for lane in window.lanes]
        said.append(
            {
                "title": choice.title,
                "start": window.start_ns,
                "dur": window.end_ns - window.start_ns,
                "lanes": lanes,
                "left": dict(window.left_out),
            }
        )
    return {"names": list(names), "fills": fills, "windows": said}


def _lane(lane: Lane, start: int, names: dict[str, int], fills: dict[str, list[str]]) -> dict[str, object]:
    columns: Mapping[str, list[Any]] = lane.rows.to_pydict()
    is_idle = lane.kind == "idle"
    for label in set(columns["label"]):
        key = f"{lane.kind}:{label}"
        if label and key not in fills:
            fills[key] = _fill(idle_fill(label) if is_idle else fill_of(label))
    place = names.setdefault
    ids = [0 if id is None else id for id in columns["id"]]
    launches = [None if one is None else one - id for one, id in zip(columns["launch_id"], ids, strict=True)]
    return {
        "name": shown(lane.name, 80),
        "kind": lane.kind,
        "count": len(ids),
        "t": _differences([ts - start for ts in columns["ts"]]),
        "d": _short(columns["dur"]),
        "n": _short([place(shown(from_package(name), _NAME), len(names)) for name in columns["name"]]),
        "l": _short([place(shown(label, 60), len(names)) for label in columns["label"]]),
        "p": _short(columns["depth"]),
        "s": _short([-1 if step is None else step for step in columns["step"]]),
        "i": _differences(ids),
        "u": _short(launches),
    }


def _fill(fill: Fill) -> list[str]:
    return [fill.colour, hatch_of(fill), fill.line]


def _differences(values: Sequence[int]) -> list[int]:
    return [value - before for before, value in zip([0, *values], values, strict=False)]


def _short(values: Sequence[Any]) -> Any:
    """A column, or its only value."""
    return values[0] if len(set(values)) == 1 else list(values)


# ---- words -----------------------------------------------------------------------------------------------------------


def _keys(windows: Sequence[Window]) -> Iterator[Key]:
    """The categories and causes that are drawn, those with most time first."""
    time: dict[tuple[str, str], int] = {}
    for window in windows:
        for lane in window.lanes:
            if lane.kind in ("device", "idle"):
                for label, dur in zip(lane.rows["label"].to_pylist(), lane.rows["dur"].to_pylist(), strict=True):
                    key = (lane.kind, label)
                    time[key] = time.get(key, 0) + dur
    for kind, label in sorted(time, key=lambda key: (key[0], -time[key], key[1])):
        is_idle = kind == "idle"
        fill = idle_fill(label) if is_idle else fill_of(label)
        yield Key(swatch(fill), f"idle: {shown(label, 40)}" if is_idle else shown(label, 40))


def _note(windows: Sequence[Window], most: int, count: int) -> str:
    """The limit, and what it leaves out."""
    each = "it holds" if count == 1 else "each holds"
    said = f"Limit: {each} at most {most:,} rows; of a kind that has more, the shortest are left out."
    left: dict[str, int] = {}
    for window in windows:
        for kind, rows in window.left_out.items():
            left[kind] = left.get(kind, 0) + rows
    if not left:
        return f"{said} Here none is."
    listed = ", ".join(f"{rows:,} {kind}" for kind, rows in left.items())
    return f"{said} Left out here{'' if count == 1 else f', of {count} windows together'}: {listed}."
