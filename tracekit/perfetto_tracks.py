"""Where is each row drawn? Processes and threads of a Chrome trace, on which slices may nest but never cross.

Viewers know a thread by two 31-bit numbers above zero: Perfetto takes thread 0 for the main thread of its process,
drops what does not fit, and drops a slice that begins within another and ends after it. So what has no such number
gets one, a number that two ranks share is one rank's, and rows that cross others go to a second thread.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

Row = Mapping[str, Any]
# No operating system numbers processes and threads so high. A thread of its process's number would be its main thread.
_FREE_PROCESS = 2_000_000_000
_FREE_THREAD = 2_100_000_000
_LIMIT = 1 << 31
_KINDS = ("work", "annotations", "synchronisation", "moments")  # of a device's tracks, as they are drawn


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the output: a process of a rank (device None), or what a device of it did (real_pid None)."""

    pid: int
    name: str
    rank: int
    real_pid: int | None = None
    device: int | None = None


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of the output. of_host: it shows the host thread `real_tid`, None if that is not known."""

    pid: int
    tid: int
    name: str
    of_host: bool = False
    real_tid: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """All processes and threads, in the order in which to show them.

    places: (track, lane) -> thread of the rows. layers: of each, (rank, device, lane) -> thread of its slices.
    """

    processes: Sequence[Process]
    threads: Sequence[Thread]
    places: Mapping[tuple[int, int], Thread]
    layers: Mapping[str, Mapping[tuple[int, int | None, int], Thread]]


# ---- lanes -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Lanes:
    """Gives rows of a track, by start and falling end, to as few lanes as hold them without crossing.

    flat: tracks on which nothing may lie within another either. A row goes where the row that encloses it most closely
    is, else to the first lane that is free. `ids` and `lanes` are the rows that are not on lane 0, `counts` how many
    lanes a track has, if more than one.
    """

    flat: Collection[int] = ()
    ids: list[int] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    _track: int | None = None
    _open: list[list[tuple[int, int]]] = field(default_factory=list)

    def add(self, rows: Iterable[tuple[int, int, int, int]]) -> None:
        """More rows: track, start, end > start, id; those of a track follow each other, also over several calls."""
        for track, start, end, identity in rows:
            if track != self._track:
                self._track, self._open = track, [[]]
            flat = track in self.flat
            opened = self._open[0]
            if len(self._open) == 1:  # as good as always: a loop over lanes would take as long as all else
                while opened and opened[-1][1] <= start:
                    opened.pop()
                if not opened or (end <= opened[-1][1] and not flat):
                    opened.append((start, end))
                    continue
            lane = self._lane_of(start, end, flat)
            self._open[lane].append((start, end))
            if lane:
                self.ids.append(identity)
                self.lanes.append(lane)
                self.counts[track] = len(self._open)

    def _lane_of(self, start: int, end: int, flat: bool) -> int:
        closest, latest, free = -1, -1, -1
        for lane, opened in enumerate(self._open):
            while opened and opened[-1][1] <= start:
                opened.pop()
            if not opened:
                free = lane if free < 0 else free
            elif not flat and end <= opened[-1][1] and opened[-1][0] > latest:
                closest, latest = lane, opened[-1][0]
        if closest >= 0:
            return closest
        if free >= 0:
            return free
        self._open.append([])
        return len(self._open) - 1

    def table(self) -> pa.Table:
        """The rows that are not on lane 0: id and lane."""
        return pa.table({"id": pa.array(self.ids, pa.int64()), "lane": pa.array(self.lanes, pa.int32())})


# ---- numbers and names -----------------------------------------------------------------------------------------------


class _Numbers:
    """Gives each key a number that a viewer takes: the real one, unless it cannot be or is another's already."""

    def __init__(self, real: Iterable[int | None], free_from: int) -> None:
        self._taken = {number for number in real if _fits(number)}
        self._given: set[int] = set()
        self._next = free_from

    def give(self, real: int | None, *, shared: bool = False) -> int:
        """shared: several keys may have this real number."""
        if real is not None and _fits(real) and (shared or real not in self._given):
            self._given.add(real)
            return real
        while self._next in self._taken:
            self._next += 1
        self._next += 1
        return self._next - 1


def _fits(number: int | None) -> bool:
    return number is not None and 0 < number < _LIMIT


def layout(
    tracks: Sequence[Row],
    lanes: Mapping[int, int],
    layers: Mapping[str, Mapping[tuple[int, int | None], int]],
    names: Mapping[tuple[int, int], str],
) -> Layout:
    """Processes and threads for `tracks` (track, rank, track_kind, pid, tid, device, stream).

    lanes: how many a track has, if more than one. layers: how many lanes each has, by (rank, device), in the order in
    which to show them; of device None it is drawn in the first process of the rank. names: of devices.
    """
    pids = _Numbers((row["pid"] for row in tracks), _FREE_PROCESS)
    tids = _Numbers((number for row in tracks for number in (row["tid"], row["stream"])), _FREE_THREAD)
    processes: list[Process] = []
    threads: list[Thread] = []
    places: dict[tuple[int, int], Thread] = {}
    layer_places: dict[str, dict[tuple[int, int | None, int], Thread]] = {name: {} for name in layers}

    def draw_layers(process: Process, device: int | None) -> None:
        for name, count in layers.items():
            for lane in range(count.get((process.rank, device), 0)):
                title = f"tracekit: {name.replace('_', ' ')}"
                thread = Thread(process.pid, tids.give(None), title + _suffix(lane))
                threads.append(thread)
                layer_places[name][process.rank, device, lane] = thread

    drawn: set[int] = set()
    for rank, on_device, number, rows in _by_process(tracks, layers):
        process = _process(rank, on_device, number, pids, names)
        processes.append(process)
        if on_device or rank not in drawn:
            draw_layers(process, number if on_device else None)
            drawn.add(rank)
        for row in rows:
            for lane in range(lanes.get(row["track"], 1)):
                real = row["stream"] if row["track_kind"] == "work" else row["tid"]
                tid = tids.give(None if lane else real, shared=True)
                name = _track_name(row, process) + _suffix(lane)
                thread = Thread(process.pid, tid, name, of_host=not on_device, real_tid=row["tid"])
                threads.append(thread)
                places[row["track"], lane] = thread
    return Layout(processes, threads, places, layer_places)


def _by_process(
    tracks: Sequence[Row], layers: Mapping[str, Mapping[tuple[int, int | None], int]]
) -> Iterator[tuple[int, bool, int | None, list[Row]]]:
    """Rank, whether it is a device, its number, and its tracks: each rank's processes, then its devices."""
    found: dict[tuple[int, bool, int | None], list[Row]] = {}
    for row in tracks:
        on_device = row["track_kind"] != "host"
        found.setdefault((row["rank"], on_device, row["device"] if on_device else row["pid"]), []).append(row)
    for rank, device in (key for counts in layers.values() for key in counts):
        if device is not None or not any(of_rank == rank for of_rank, _, _ in found):
            found.setdefault((rank, device is not None, device), [])
    for key in sorted(found, key=lambda key: (key[0], key[1], _or_last(key[2]))):
        yield *key, sorted(found[key], key=_order)


def _order(row: Row) -> tuple[int, int, int]:
    if row["track_kind"] == "host":
        return 0, _or_last(row["tid"]), 0
    return int(row["stream"] is None), _or_last(row["stream"]), _KINDS.index(row["track_kind"])


def _or_last(number: int | None) -> int:
    return 1 << 63 if number is None else number


def _process(
    rank: int, on_device: bool, number: int | None, pids: _Numbers, names: Mapping[tuple[int, int], str]
) -> Process:
    known = "?" if number is None else str(number)
    if not on_device:
        return Process(pids.give(number), f"rank {rank}: process {known}", rank, real_pid=number)
    title = names.get((rank, number), "") if number is not None else ""
    return Process(pids.give(None), f"rank {rank}: GPU {known} {title}".rstrip(), rank, device=number)


def _track_name(row: Row, process: Process) -> str:
    if row["track_kind"] == "host":
        known = "?" if row["tid"] is None else str(row["tid"])
        is_main = row["tid"] is not None and row["tid"] == process.real_pid
        return f"thread {known}" + (" (main)" if is_main else "")
    stream = "" if row["stream"] is None else f"stream {row['stream']}"
    kind = "" if row["track_kind"] == "work" else f"({row['track_kind']})"
    return f"{stream} {kind}".strip() or "no stream"


def _suffix(lane: int) -> str:
    return "" if lane == 0 else " (overlap)" if lane == 1 else f" (overlap {lane})"


# ---- as text ---------------------------------------------------------------------------------------------------------


def metadata(found: Layout) -> Iterator[str]:
    """The events that name processes and threads, and say in which order to show them."""
    for at, process in enumerate(found.processes):
        yield _metadata("process_name", process.pid, None, {"name": process.name})
        yield _metadata("process_sort_index", process.pid, None, {"sort_index": at})
    for at, thread in enumerate(found.threads):
        yield _metadata("thread_name", thread.pid, thread.tid, {"name": thread.name})
        yield _metadata("thread_sort_index", thread.pid, thread.tid, {"sort_index": at})


def _metadata(name: str, pid: int, tid: int | None, args: Row) -> str:
    thread = {} if tid is None else {"tid": tid}
    return ",\n" + json.dumps({"ph": "M", "name": name, "pid": pid, **thread, "args": args}, separators=(",", ":"))


def renumbered(found: Layout) -> dict[str, dict[str, list[int | None]]]:
    """What a reader needs to undo the numbers given here: of each pid the rank and the real pid, of each tid that is
    not the real one, that.
    """
    return {
        "processes": {str(one.pid): [one.rank, one.real_pid] for one in found.processes},
        "threads": {str(one.tid): [one.real_tid] for one in found.threads if one.of_host and one.tid != one.real_tid},
    }
