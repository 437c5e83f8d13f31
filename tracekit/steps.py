"""Which serving step does a row belong to? From the marks that engines put on the host.

A mark is a host annotation whose name is of a known dialect; of several dialects in a rank the best one counts. A step
lasts on its mark's thread until the next one there, since sampling and logits come after the mark. Device rows belong
to the step of the call that launched them, however late they run.

Arrays have one element a row; times are integer nanoseconds since the trace origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from tracekit.arrays import ABSENT, Int64s, int32_array, int64_array, text_array
from tracekit.step_marks import EXECUTE_CONTEXT, NO_MARK, SOURCES, STEP_MARK, Composition, Dialects, composition_of

RULES = 1  # version of what is computed here; the footer of a file says by which its column `step` was filled
NONE = -1  # in no step; no event id
_EMPTY = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Ranges:
    """Stretches of time on host threads. id: of the row, NONE if it is none; pid, tid: may be ABSENT."""

    id: Int64s
    rank: Int64s
    pid: Int64s
    tid: Int64s
    ts: Int64s
    dur: Int64s

    def __len__(self) -> int:
        return len(self.ts)

    @property
    def end(self) -> Int64s:
        """Where each ends."""
        return self.ts + self.dur

    def take(self, rows: Int64s) -> Ranges:
        """Some of them, in that order."""
        return Ranges(self.id[rows], self.rank[rows], self.pid[rows], self.tid[rows], self.ts[rows], self.dur[rows])

    def by_start(self) -> Int64s:
        """Their order: by start, then falling end, then id, so that what encloses comes first."""
        return np.lexsort((self.id, -self.dur, self.ts))

    def threads(self) -> list[Int64s]:
        """Rows of each thread, in the order they have."""
        order = np.lexsort((self.tid, self.pid, self.rank))
        thread = np.stack([values[order] for values in (self.rank, self.pid, self.tid)])
        changes = (thread[:, 1:] != thread[:, :-1]).any(axis=0)
        return np.split(order, np.flatnonzero(changes) + 1) if len(order) else []

    def thread(self, row: int) -> tuple[int, int, int]:
        """Rank, process and thread of one."""
        return int(self.rank[row]), int(self.pid[row]), int(self.tid[row])


NO_RANGES = Ranges(_EMPTY, _EMPTY, _EMPTY, _EMPTY, _EMPTY, _EMPTY)


@dataclass(frozen=True, slots=True)
class Marks:
    """Annotations that may be steps, in any order. Their ids rise in the order of the file."""

    ranges: Ranges
    name: Sequence[str]


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps, numbered by start in each rank. `until`: what starts on the mark's thread from here on is not in it."""

    ranges: Ranges
    number: Int64s
    until: Int64s
    source: Sequence[str]
    composition: Sequence[Composition]

    def __len__(self) -> int:
        return len(self.number)


NO_STEPS = Steps(NO_RANGES, _EMPTY, _EMPTY, (), ())


def joined(parts: Iterable[Steps]) -> Steps:
    """Steps of different ranks in one."""
    found = [part for part in parts if len(part)]
    if not found:
        return NO_STEPS
    ranges = [part.ranges for part in found]
    return Steps(
        Ranges(
            np.concatenate([part.id for part in ranges]),
            np.concatenate([part.rank for part in ranges]),
            np.concatenate([part.pid for part in ranges]),
            np.concatenate([part.tid for part in ranges]),
            np.concatenate([part.ts for part in ranges]),
            np.concatenate([part.dur for part in ranges]),
        ),
        np.concatenate([part.number for part in found]),
        np.concatenate([part.until for part in found]),
        [source for part in found for source in part.source],
        [composition for part in found for composition in part.composition],
    )


def step_table(steps: Steps) -> pa.Table:
    """As the rows of the view `steps`, which documents the columns."""
    ranges = steps.ranges
    said = {
        field.name: pa.array([getattr(one, field.name) for one in steps.composition], pa.int64())
        for field in fields(Composition)
        if field.name != "phase"
    }
    return pa.table(
        {
            "rank": int32_array(ranges.rank),
            "step": int64_array(steps.number),
            "ts": int64_array(ranges.ts),
            "dur": int64_array(ranges.dur),
            "phase": text_array([one.phase for one in steps.composition]),
            **said,
            "source": text_array(steps.source),
            "id": int64_array(ranges.id, ranges.id == NONE),
            "pid": int64_array(ranges.pid, ranges.pid == ABSENT),
            "tid": int64_array(ranges.tid, ranges.tid == ABSENT),
            "until_ts": int64_array(steps.until),
        }
    )


# ---- marks become steps ----------------------------------------------------------------------------------------------


def marked_steps(marks: Marks, dialects: Dialects) -> Steps:
    """The steps of each rank that has marks, ranks ascending."""
    numbers = {name: dialects.number(name) for name in set(marks.name)}
    dialect = np.array([numbers[name] for name in marks.name], np.int64)
    order = marks.ranges.by_start()
    rank = marks.ranges.rank[order]
    return joined(_of_rank(marks, dialect, order[rank == one]) for one in np.unique(rank))


def _of_rank(marks: Marks, dialect: Int64s, rows: Int64s) -> Steps:
    """rows: those of one rank, by start."""
    best = dialect[rows].min(initial=NO_MARK)
    if best == NO_MARK:
        return NO_STEPS
    chosen = _outermost(marks.ranges, rows[dialect[rows] == best])
    wrapper_of: dict[int, int] = {}
    if best == EXECUTE_CONTEXT:
        wrapper_of = _wrapped(marks.ranges, chosen, _outermost(marks.ranges, rows[dialect[rows] == STEP_MARK]))
        inner = {outer: row for row, outer in wrapper_of.items()}
        chosen = np.array([inner.get(row, row) for row in chosen.tolist()], np.int64)
        chosen = chosen[marks.ranges.take(chosen).by_start()]
    ranges = marks.ranges.take(chosen)
    wrapper = [wrapper_of.get(row) for row in chosen.tolist()]
    ends = marks.ranges.end
    limit = np.array([NONE if outer is None else ends[outer] for outer in wrapper], np.int64)
    said = {name: composition_of(name) for name in {marks.name[row] for row in chosen}}
    return Steps(
        ranges,
        np.arange(len(chosen)),
        _until(ranges, limit),
        [SOURCES[best if outer is None else STEP_MARK] for outer in wrapper],
        [
            said[marks.name[row]]
            if outer is None
            else said[marks.name[row]].completed_by(composition_of(marks.name[outer]))
            for row, outer in zip(chosen, wrapper, strict=True)
        ],
    )


def _outermost(ranges: Ranges, rows: Int64s) -> Int64s:
    """Without those inside another one of their thread. rows: by start, and so the result."""
    taken = ranges.take(rows)
    kept = np.zeros(len(rows), np.bool_)
    for thread in taken.threads():
        end = taken.end[thread]
        kept[thread] = np.append(True, end[1:] > np.maximum.accumulate(end)[:-1])
    return rows[kept]


def _wrapped(ranges: Ranges, outer: Int64s, inner: Int64s) -> dict[int, int]:
    """Each of `inner` that is the only one within one of `outer`, and which that is. Both outermost.

    The detailed annotations of SGLang put both around a step, the outer one also around what comes before it.
    """
    wrappers: dict[int, int] = {}
    taken = ranges.take(inner)
    inner_of = {taken.thread(int(thread[0])): inner[thread] for thread in taken.threads()}
    for row in outer.tolist():
        candidates = inner_of.get(ranges.thread(row), _EMPTY)
        # Outermost ranges of one thread are sorted by start and by end alike.
        first = int(np.searchsorted(ranges.ts[candidates], ranges.ts[row]))
        after = int(np.searchsorted(ranges.end[candidates], ranges.end[row], side="right"))
        if after - first == 1:
            wrappers[int(candidates[first])] = row
    return wrappers


def _until(ranges: Ranges, limit: Int64s) -> Int64s:
    """Where steps of one rank end on their thread: at the next one there, or at `limit` (NONE: without one) if that
    is earlier, but not within the mark.

    After the last one on its thread nobody knows: it gets as long again as its mark, not all that was recorded then.
    """
    until = np.empty(len(ranges), np.int64)
    for thread in ranges.threads():
        end = ranges.end[thread]
        wrapped = np.maximum(limit[thread], end)
        following = np.append(ranges.ts[thread][1:], np.iinfo(np.int64).max)
        open_end = following.copy()
        open_end[-1] = end[-1] + ranges.dur[thread[-1]]
        until[thread] = np.where(limit[thread] == NONE, open_end, np.minimum(following, wrapped))
    return until


# ---- membership ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timeline:
    """The step at each moment: before edges[0] it is steps[0], from edges[i] on steps[i + 1]."""

    edges: Int64s
    steps: Int64s

    @classmethod
    def of(cls, ts: Int64s, until: Int64s, number: Int64s) -> Timeline:
        """By stretches [ts, until) in order, of which none overlap."""
        edges = np.stack([ts, until], axis=1).ravel()
        steps = np.stack([np.full(len(number), NONE), number], axis=1).ravel()
        return cls(edges, np.append(steps, NONE))

    def at(self, ts: Int64s) -> Int64s:
        """The step of rows that start at these times, NONE for none."""
        return self.steps[np.searchsorted(self.edges, ts, side="right")]


class Membership:
    """To which step a host row belongs: by its thread and its start."""

    def __init__(self, steps: Steps) -> None:
        ranges = steps.ranges
        self._threads = {
            ranges.thread(rows[0]): Timeline.of(ranges.ts[rows], steps.until[rows], steps.number[rows])
            for rows in ranges.threads()
        }
        self._ranks: dict[int, Timeline] = {}
        for rank in np.unique(ranges.rank):
            rows = np.flatnonzero(ranges.rank == rank)
            following = np.append(ranges.ts[rows][1:], np.iinfo(np.int64).max)
            end = np.minimum(ranges.end[rows], following)
            self._ranks[int(rank)] = Timeline.of(ranges.ts[rows], end, steps.number[rows])

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def timeline(self, rank: int, pid: int, tid: int) -> Timeline | None:
        """Of a thread with marks: theirs; of another: while a mark of its rank lasts, the one that started last.

        None: the rank has no steps.
        """
        return self._threads.get((rank, pid, tid), self._ranks.get(rank))

    def of(self, rows: Ranges) -> Int64s:
        """The step of each host row, NONE for none."""
        step = np.full(len(rows), NONE)
        for thread in rows.threads() if self else []:
            timeline = self.timeline(*rows.thread(int(thread[0])))
            if timeline is not None:
                step[thread] = timeline.at(rows.ts[thread])
        return step
