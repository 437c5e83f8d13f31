"""The timeline: which window of time is shown, and which rows of it, on which bands? No drawing (plot_bands.py)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.analysis import Row, duration
from tracekit.budget import why_no_idle_time
from tracekit.errors import UsageError
from tracekit.lanes import Lane, step_extent, window_of
from tracekit.plot_style import plain
from tracekit.roofline_names import kernel_name
from tracekit.text_grid import from_package
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.trace import Trace

_RESOLUTION = 2_000  # cells of a window: what is shorter than one is drawn together with its neighbours
_NEARLY = 20  # a row that lacks less than this part of the window at each end fills it
_MARGIN = 50  # of this part of a step there is more on both sides
_MOST_ROWS = 40_000
_MOST_BANDS = {"step": 2, "idle": 4, "device": 8, "host": 8}
_MOST_LEVELS = {"step": 1, "idle": 1, "device": 3, "launch": 2, "annotation": 3, "op": 6, "python": 10}
_NAME = 80
_PYTHON = re.compile(r"^(\S+\(\d+\)): (.+)$")
_STEADY = """
    SELECT
        rank,
        step,
        phase,
        bucket,
        kind,
        wall_ns,
        sum(busy_ns + idle_ns + gap_before_ns) OVER (PARTITION BY phase) AS phase_ns
    FROM step_time()
    ORDER BY
        kind = 'steady' DESC,
        phase_ns DESC,
        phase,
        rank,
        wall_ns,
        step
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """A row; or several, too short to be told apart, of which covered is the share of the time (label: of the most).

    level: 0 is the uppermost; label: category of device rows, cause of idle ones, else "".
    """

    start_ns: int
    end_ns: int
    level: int
    label: str
    name: str
    covered: float = 1.0


@dataclass(frozen=True, slots=True)
class Band:
    """A lane as it is drawn. kind: as in lanes.KINDS; deeper: rows of levels that are not drawn."""

    name: str
    kind: str
    levels: int
    pieces: tuple[Piece, ...]
    deeper: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """All that is drawn. start_ns, end_ns: the window; origin_ns: what counts as zero, and `origin` what that is."""

    title: str
    caption: tuple[str, ...]
    start_ns: int
    end_ns: int
    origin_ns: int
    origin: str
    bands: tuple[Band, ...]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A window, and why it is this one."""

    title: str
    why: str
    start_ns: int
    end_ns: int
    origin_ns: int
    origin: str
    rank: int | None


# ---- which window ----------------------------------------------------------------------------------------------------


def view_of(trace: Trace, step: int | None, start_ns: int | None, end_ns: int | None, rank: int | None) -> View:
    """Of a step, of a window of time, or of the median steady step of the phase with most time (see plots.timeline)."""
    if step is not None and (start_ns is not None or end_ns is not None):
        raise UsageError("a timeline is of a step or of a window of time; give one of them")
    if step is not None:
        chosen = _of_step(trace, step, rank, "")
    elif start_ns is not None or end_ns is not None:
        chosen = _of_window(trace, start_ns, end_ns, rank)
    else:
        chosen = _typical(trace, rank)
    window = window_of(trace, chosen.start_ns, chosen.end_ns, most=_MOST_ROWS, rank=chosen.rank)
    if not window.lanes:
        raise UsageError(f"nothing to plot: the trace has no row {chosen.why or 'in this window of time'}")
    every = [_band(lane, chosen.start_ns, chosen.end_ns) for lane in window.lanes]
    bands = _kept(every)
    said = [chosen.why] if chosen.why else []
    said += [refusal] if (refusal := why_no_idle_time(trace)) else []
    said += _left_out(window.left_out, sum(band.deeper for band in bands), len(every) - len(bands))
    return View(
        chosen.title, tuple(said), chosen.start_ns, chosen.end_ns, chosen.origin_ns, chosen.origin, tuple(bands)
    )


def _of_step(trace: Trace, step: int, rank: int | None, why: str) -> _Chosen:
    """rank: None means the first that has it."""
    query = "SELECT rank, phase FROM steps WHERE step = $step ORDER BY rank"
    there: list[Row] = trace.sql(query, {"step": step}).to_pylist()
    seen = [row for row in there if not trace.scope.ranks or row["rank"] in trace.scope.ranks]
    where = rank if rank is not None else min((row["rank"] for row in seen), default=None)
    start, end = step_extent(trace, step, where)
    phase = next((row["phase"] for row in there if row["rank"] == where), "unknown")
    title = f"Timeline of step {step}" + (f", {plain(phase, _NAME)}" if phase != "unknown" else "")
    title += f", rank {where}" if len(there) > 1 else ""
    room = max(1, (end - start) // _MARGIN)
    said = f"{why}{duration(end - start)} from its mark on the host to the end of its work"
    return _Chosen(title, said, start - room, end + room, start, f"from the start of step {step}", where)


def _of_window(trace: Trace, start_ns: int | None, end_ns: int | None, rank: int | None) -> _Chosen:
    """What is not given is the start or the end of the trace."""
    low, high = _extent(trace)
    start = low if start_ns is None else start_ns
    end = high if end_ns is None else end_ns
    if start >= end:
        raise UsageError(f"nothing to plot: no time lies from {duration(start)} until {duration(end)}, the trace's end")
    title = f"Timeline of {duration(end - start)}, from {duration(start)} on"
    return _Chosen(title, "", start, end, start, f"from {duration(start)} on", rank)


def _extent(trace: Trace) -> tuple[int, int]:
    (row,) = trace.sql("SELECT min(ts) AS low, max(ts + dur) AS high FROM events").to_pylist()
    if row["low"] is None:
        raise UsageError("nothing to plot: the trace has no events")
    return row["low"], max(row["high"], row["low"] + 1)


def _typical(trace: Trace, rank: int | None) -> _Chosen:
    """The median step of the phase with most time; of a trace without work in steps all of it."""
    rows = [row for row in trace.sql(_STEADY).to_pylist() if rank is None or row["rank"] == rank]
    if not rows:
        low, high = _extent(trace)
        why = "No step with work on a device is marked or found: all of the recording"
        return _Chosen("Timeline of the recording", why, low, high, low, "from the start of the recording", rank)
    first = rows[0]
    alike = [row for row in rows if all(row[key] == first[key] for key in ("kind", "phase", "rank"))]
    median = alike[(len(alike) - 1) // 2]
    if len(alike) == 1:
        why = f"The only {'steady ' if first['kind'] == 'steady' else ''}step of the phase with most time: "
    else:
        why = f"The median of {counted(len(alike), 'steady step')} of the phase with most time: "
    return _of_step(trace, median["step"], median["rank"], why)


# ---- what is in it ---------------------------------------------------------------------------------------------------


def _kept(bands: Sequence[Band]) -> list[Band]:
    """Those with most time of each kind, in their order."""
    kept: list[Band] = []
    for kind, most in _MOST_BANDS.items():
        here = [band for band in bands if (band.kind if band.kind in _MOST_BANDS else "host") == kind]
        kept += sorted(here, key=lambda band: -sum(piece.end_ns - piece.start_ns for piece in band.pieces))[:most]
    return [band for band in bands if any(band is one for one in kept)]


def _left_out(rows: Mapping[str, int], deeper: int, bands: int) -> list[str]:
    said = [f"the {counted(count, f'shortest {kind} row')}" for kind, count in rows.items()]
    said += [counted(deeper, "row") + " of deeper levels"] if deeper else []
    said += [counted(bands, "lane") + " with the least time"] if bands else []
    return [f"Not drawn: {', '.join(said)}"] if said else []


def _band(lane: Lane, start_ns: int, end_ns: int) -> Band:
    """Its rows, cut to the window."""
    rows = lane.rows.to_pylist()
    first, most = _outermost(rows, lane.kind, start_ns, end_ns), _MOST_LEVELS[lane.kind]
    by_level: dict[int, list[Row]] = {}
    for row in rows:
        if first <= row["depth"] < first + most:
            by_level.setdefault(row["depth"] - first, []).append(row)
    cell = max(1, (end_ns - start_ns) // _RESOLUTION)
    pieces = [
        piece
        for level, here in sorted(by_level.items())
        for piece in _together(_pieces(here, level, lane.kind, (start_ns, end_ns)), cell)
    ]
    deeper = sum(row["depth"] >= first + most for row in rows)
    return Band(lane.name, lane.kind, max(by_level, default=0) + 1, tuple(pieces), deeper)


def _outermost(rows: Sequence[Row], kind: str, start_ns: int, end_ns: int) -> int:
    """The level to begin with: of those that one host row fills, only the last says where all of it happens."""
    if kind not in ("python", "op", "annotation"):
        return 0
    room = (end_ns - start_ns) // _NEARLY
    full = {row["depth"] for row in rows if row["ts"] <= start_ns + room and row["ts"] + row["dur"] >= end_ns - room}
    return max(0, next(level for level in range(len(full) + 1) if level not in full) - 1)


def _pieces(rows: Iterable[Row], level: int, kind: str, window: tuple[int, int]) -> Iterator[Piece]:
    for row in rows:
        start, end = max(row["ts"], window[0]), min(row["ts"] + row["dur"], window[1])
        if start <= end:
            yield Piece(start, end, level, row["label"], _name(row, kind))


def _together(pieces: Iterable[Piece], cell: int) -> Iterator[Piece]:
    """Pieces by start, those shorter than a cell of so many ns as one for each cell: a long row of them, drawn as wide
    as can be seen, would hide what lies between.
    """
    short: list[Piece] = []
    for piece in pieces:
        is_short = piece.end_ns - piece.start_ns < cell
        if short and not (is_short and piece.start_ns - short[0].start_ns < cell):
            yield _merged(short, cell)
            short = []
        if is_short:
            short.append(piece)
        else:
            yield piece
    if short:
        yield _merged(short, cell)


def _merged(short: Sequence[Piece], cell: int) -> Piece:
    time: dict[str, int] = {}
    for piece in short:
        time[piece.label] = time.get(piece.label, 0) + piece.end_ns - piece.start_ns
    start, end = short[0].start_ns, max(piece.end_ns for piece in short)
    label = max(time, key=lambda one: (time[one], one))
    return Piece(start, end, short[0].level, label, "", min(1.0, sum(time.values()) / max(cell, end - start)))


def _name(row: Row, kind: str) -> str:
    """What stands in it, if it fits."""
    match kind:
        case "device":
            name = kernel_name(row["name"])
        case "idle":
            name = row["label"].replace("_", " ")
        case "python":
            name = _PYTHON.sub(r"\2, \1", from_package(row["name"]).rpartition("/")[2])  # what is cut off is the file
        case _:
            name = row["name"]
    return plain(name, _NAME)
