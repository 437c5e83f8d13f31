"""What did a window of time hold? Its rows on lanes, one a thread, stream or device, ready to be drawn.

macro window_rows, idle_gaps -> the longest rows of each kind -> lanes, with the level of each row in its lane
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.arrays import int64_array, numbers
from tracekit.errors import UsageError
from tracekit.trace import Trace

KINDS = ("step", "idle", "device", "launch", "annotation", "op", "python")  # from top to bottom
_TITLES = {"step": "steps", "launch": "API calls", "annotation": "ranges", "op": "ops", "python": "Python"}
_ROW_COLUMNS = {
    "id": pa.int64(),
    "ts": pa.int64(),
    "dur": pa.int64(),
    "name": pa.string(),
    "label": pa.string(),
    "depth": pa.int32(),
    "launch_id": pa.int64(),
    "step": pa.int32(),
}
_Place = tuple[int, int, int | None, int | None]  # rank, kind in KINDS, process or device, thread or stream
_Row = dict[str, Any]

# The longest rows of each kind, and how many there are of it.
_LONGEST = """
    SELECT
        *,
        count(*) OVER (PARTITION BY kind) AS there
    FROM window_rows(from_ts := $start, to_ts := $end)
    WHERE (len($ranks) = 0 OR list_contains($ranks, rank))
        AND (len($devices) = 0 OR device IS NULL OR list_contains($devices, device))
    QUALIFY row_number() OVER (PARTITION BY kind ORDER BY dur DESC, ts, id) <= $most
"""
_EXTENT = """
    WITH worked AS (
        SELECT
            rank,
            max(ts + dur) AS end_ts
        FROM device_activity
        WHERE step = $step
        GROUP BY rank
    )
    SELECT
        min(s.ts) AS start_ns,
        max(greatest(s.ts + s.dur, coalesce(w.end_ts, s.ts))) AS end_ns
    FROM steps AS s
    LEFT JOIN worked AS w ON w.rank = s.rank
    WHERE s.step = $step
        AND ($rank IS NULL OR s.rank = $rank)
"""


@dataclass(frozen=True, slots=True)
class Lane:
    """Rows of one kind (one of KINDS) of one thread, stream or, if idle, device; `name` says which.

    rows, by ts: id BIGINT (idle: of the row that ended the gap; step: of its mark, NULL if inferred), ts and dur (ns,
    as recorded, not cut to the window), name (idle: of the row that is blamed, '' without one), label (category of
    device rows, cause of idle rows, else ''), depth INTEGER (0 outermost; rows of one depth do not overlap), launch_id
    BIGINT (device rows; NULL if not recorded), step INTEGER (NULL outside steps).
    """

    name: str
    kind: str
    rank: int
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class Window:
    """What [start_ns, end_ns) held; ns from the trace origin. left_out: rows that are not in it, by kind."""

    start_ns: int
    end_ns: int
    lanes: tuple[Lane, ...]
    left_out: Mapping[str, int]


def window_of(trace: Trace, start_ns: int, end_ns: int, *, most: int = 20_000, rank: int | None = None) -> Window:
    """The rows that overlap a window of time, at most `most` of them, by lane: steps, idle, devices, then the host.

    Each kind has an equal share of `most`, and what others leave of theirs; of a kind, the shortest rows go first.
    Ranks and devices are those that the trace looks at, or `rank`; phases and steps chosen do not matter, neighbours
    are drawn too. Raises UsageError for a window without time, or `most` below 1.
    """
    if start_ns >= end_ns:
        raise UsageError(f"no time lies from {start_ns} until {end_ns} ns")
    if most < 1:
        raise UsageError(f"at most {most} rows is no timeline; ask for 1 or more")
    asked: dict[str, Any] = {
        "start": start_ns,
        "end": end_ns,
        "most": most,
        "ranks": list(trace.scope.ranks) if rank is None else [rank],
        "devices": list(trace.scope.devices),
    }
    rows = [*trace.sql(_LONGEST, asked).to_pylist(), *_gaps(trace, start_ns, end_ns, asked["ranks"])]
    there = {row["kind"]: row["there"] for row in rows}
    shares = _shares(there, most)
    kept = list(_longest(rows, shares))
    several = len({row["rank"] for row in kept}) > 1
    return Window(
        start_ns,
        end_ns,
        tuple(_lane(place, of_lane, several) for place, of_lane in _by_place(kept)),
        {kind: there[kind] - shares[kind] for kind in KINDS if there.get(kind, 0) > shares.get(kind, 0)},
    )


def step_extent(trace: Trace, step: int, rank: int | None = None) -> tuple[int, int]:
    """From the mark of a step on the host to the end of its last work on a device, in ns; of all ranks, or of one.

    Raises UsageError if there is no such step.
    """
    (found,) = trace.sql(_EXTENT, {"step": step, "rank": rank}).to_pylist()
    if found["start_ns"] is None:
        (there,) = trace.sql("SELECT count(*) AS n, min(step) AS low, max(step) AS high FROM steps").to_pylist()
        steps = f"steps are {there['low']} to {there['high']}" if there["n"] else "the trace has no steps"
        raise UsageError(f"no step {step}{'' if rank is None else f' of rank {rank}'}; {steps}")
    return found["start_ns"], found["end_ns"]


# ---- which rows ------------------------------------------------------------------------------------------------------


def _gaps(trace: Trace, start_ns: int, end_ns: int, ranks: Sequence[int]) -> list[_Row]:
    """Parts of gaps that overlap the window, the longest first; none where the analysis refuses to call holes gaps.

    Gaps that no chosen step ended are gaps all the same, hence those of the whole trace.
    """
    gaps = trace.whole.analyze("idle_gaps").table
    ts, dur = (numbers(gaps, name) for name in ("ts", "dur"))
    here = gaps.take(int64_array(np.flatnonzero((ts < end_ns) & (ts + dur > start_ns)))).to_pylist()
    devices = trace.scope.devices
    rows = [row for row in here if (not ranks or row["rank"] in ranks) and (not devices or row["device"] in devices)]
    names = trace.rows(row["blame"] for row in rows if row["blame"] is not None)
    for row in rows:
        blamed = names.get(row["blame"])
        row |= {"kind": "idle", "id": row["after_id"], "label": row["cause"], "stream": None}
        row |= {"name": "" if blamed is None else blamed["name"], "there": len(rows)}
    return sorted(rows, key=lambda row: (-row["dur"], row["ts"]))


def _shares(there: Mapping[str, int], most: int) -> dict[str, int]:
    """How many rows of each kind are kept: an equal part of `most`, and what those with fewer rows leave."""
    shares: dict[str, int] = {}
    left = most
    for at, kind in enumerate(sorted(there, key=lambda kind: (there[kind], KINDS.index(kind)))):
        shares[kind] = min(there[kind], left // (len(there) - at))
        left -= shares[kind]
    return shares


def _longest(rows: Iterable[_Row], shares: Mapping[str, int]) -> Iterator[_Row]:
    taken = dict.fromkeys(shares, 0)
    for row in sorted(rows, key=lambda row: -row["dur"]):  # stable, as SQL ordered rows of one length
        if taken[row["kind"]] < shares[row["kind"]]:
            taken[row["kind"]] += 1
            yield row


# ---- where they are drawn --------------------------------------------------------------------------------------------


def _by_place(rows: Iterable[_Row]) -> list[tuple[_Place, list[_Row]]]:
    """Rows of each lane by time, lanes in the order in which they are drawn."""
    found: dict[_Place, list[_Row]] = {}
    for row in rows:
        found.setdefault(_place(row), []).append(row)
    for of_lane in found.values():
        of_lane.sort(key=lambda row: (row["ts"], -row["dur"], -1 if row["id"] is None else row["id"]))
    return sorted(found.items(), key=lambda item: _order(item[0]))


def _place(row: _Row) -> _Place:
    kind = KINDS.index(row["kind"])
    on_device = row["kind"] in ("idle", "device")
    where = (row["device"], row["stream"]) if on_device else (row["pid"], row["tid"])
    return row["rank"], kind, *where


def _order(place: _Place) -> tuple[int, ...]:
    rank, kind, outer, inner = place
    first, second = (1 << 63 if number is None else number for number in (outer, inner))
    name = KINDS[kind]
    if name in ("idle", "device"):  # each device's gaps above its streams
        return rank, KINDS.index("idle"), first, kind, second
    if name == "step":
        return rank, kind, first, second, 0
    return rank, KINDS.index("launch"), first, second, kind  # a thread's kinds together


def _lane(place: _Place, rows: Sequence[_Row], several: bool) -> Lane:
    rank, kind, outer, inner = place
    columns = {**{name: [row.get(name) for row in rows] for name in _ROW_COLUMNS}, "depth": _depths(rows)}
    table = pa.table({name: pa.array(columns[name], type_) for name, type_ in _ROW_COLUMNS.items()})
    name = _name(KINDS[kind], outer, inner)
    return Lane(f"rank {rank} {name}" if several else name, KINDS[kind], rank, table)


def _name(kind: str, outer: int | None, inner: int | None) -> str:
    gpu = "GPU" if outer is None else f"GPU {outer}"
    match kind:
        case "idle":
            return f"{gpu} idle"
        case "device":
            return f"{gpu} stream {'?' if inner is None else inner}"
        case "step":
            return _TITLES[kind]
        case _:
            return f"thread {'?' if inner is None else inner} {_TITLES[kind]}"


def _depths(rows: Sequence[_Row]) -> list[int]:
    """The level of each row, by start and falling end: below the innermost one around it, on the first that is free.

    Rows may cross: kernels of one stream overlap where one is launched before the last is done, and so may what several
    tasks put on one thread. Counting the open rows would let such a chain sink ever deeper.
    """
    depths: list[int] = []
    busy: list[int] = []  # end of the last row on each level
    for row in rows:
        start, end = row["ts"], row["ts"] + row["dur"]
        around = max((level for level, until in enumerate(busy) if until > start and until >= end), default=-1)
        level = next((one for one in range(around + 1, len(busy)) if busy[one] <= start), len(busy))
        if level == len(busy):
            busy.append(end)
        busy[level] = end
        depths.append(level)
    return depths
