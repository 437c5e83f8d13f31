"""Why the device idled, one nanosecond at a time: by what the simulator had its host thread do then.

The rules are those of docs/idle_gaps.md, put as a function of a moment. A moment's cause can only change where a row
begins or ends or a rule's limit lies, so one moment between each two such edges speaks for all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import groupby, pairwise

from tests.simulator_host import Rank, Work
from tests.simulator_marks import is_serving
from tests.simulator_text import Row

LAUNCH_LATENCY_NS = 12_000
SYNC_SLACK_NS = 2_000
SMALL_GAP_NS = 500_000
HOST_HOLE_NS = 100_000
NO_REQUESTS_NS = 20_000_000
FIRST_USE_NS = 50_000
FOREVER = 1 << 62


class Scene:
    """What was recorded of one rank's host."""

    def __init__(self, rank: Rank) -> None:
        self.work = rank.work
        self.marks = [mark.ranges[-1] for mark in rank.steps]
        self.serving = is_serving(rank.run.marks)
        self.overheads = rank.overheads
        stacks = rank.run.with_stack
        self.garbage = [row for row in rank.python_rows if stacks and row.cause == "gc"]
        self.syncs = rank.syncs
        self.since = [since for since, _ in rank.painted]
        self.held_by = [
            tuple(row for row in rows if stacks or row.cat != "python_function") for _, rows in rank.painted
        ]
        self.waits = [row for row in rank.calls if row.cause in ("sync", "pageable_copy")]
        launched = {work.call.correlation for work in self.work}
        self.started = [row for row in rank.calls if row.args["correlation"] in launched]
        self.waits_for_event = [row for row in rank.calls if row.name == "cudaStreamWaitEvent"]
        self.first_of_name: dict[str, Work] = {}
        for work in sorted(self.work, key=lambda work: work.ts):
            self.first_of_name.setdefault(work.kernel.name, work)
        self.blanks = list(self._blanks())

    def rows_at(self, moment: int) -> tuple[Row, ...]:
        """Who held the host thread, outermost first."""
        place = bisect_right(self.since, moment) - 1
        return self.held_by[place] if place >= 0 else ()

    def _blanks(self) -> Iterator[tuple[int, int]]:
        """Maximal times in which the thread shows nothing: no op, call or function, nor a stage that says why."""
        begin: int | None = -FOREVER
        for since, rows in zip(self.since, self.held_by, strict=True):
            shows = any(row.cat != "user_annotation" or row.cause for row in rows)
            if shows and begin is not None:
                yield begin, since
                begin = None
            elif not shows and begin is None:
                begin = since
        if begin is not None:
            yield begin, FOREVER

    def unseen_ns(self, moment: int) -> int:
        """For how long in all the thread shows nothing around a moment."""
        return sum(end - begin for begin, end in self.blanks if begin <= moment < end)

    def within_marks(self, moment: int) -> bool:
        """Whether a step's mark is around it; everything is where nothing is marked."""
        return not self.marks or _around(self.marks, moment) is not None

    def between_marks(self, moment: int) -> bool:
        """Whether a serving engine marked steps before and after it."""
        return self.serving and self.marks[0].ts <= moment < self.marks[-1].ts

    def edges(self) -> list[int]:
        """Moments at which something begins or ends."""
        rows = [*self.overheads, *self.garbage, *self.marks]
        return sorted({*self.since, *(row.ts for row in rows), *(row.end for row in rows)})


def _around(rows: list[Row], moment: int) -> Row | None:
    return next((row for row in rows if row.ts <= moment < row.end), None)


class GapScene:
    """One gap: from when on the device idled, and the work that ended it."""

    def __init__(self, scene: Scene, begin: int, work: Work, place: str) -> None:
        self.scene, self.begin, self.end, self.work, self.place = scene, begin, work.ts, work, place
        self.call = work.call.row
        before = [wait for wait in scene.waits if wait.ts <= begin]
        self.drained_by = ""
        if before and begin - SYNC_SLACK_NS <= before[-1].end <= self.call.ts:
            self.drained_by = before[-1].cause

    def slices(self, edges: list[int]) -> Iterator[tuple[int, int, str]]:
        """Start, length and cause of the gap's parts; edges: of the scene, sorted."""
        limits = {self.begin, self.end, self.call.ts, self.call.end, self.end - LAUNCH_LATENCY_NS}
        limits.update(edges[bisect_right(edges, self.begin) : bisect_right(edges, self.end)])
        inside = sorted(limit for limit in limits if self.begin <= limit <= self.end)
        pieces = [(begin, end, self.cause(begin)) for begin, end in pairwise(inside)]
        for cause, group in groupby(pieces, key=lambda piece: piece[2]):
            parts = list(group)
            yield parts[0][0], parts[-1][1] - parts[0][0], cause

    def cause(self, moment: int) -> str:
        """Why the device idled at this moment."""
        if not self.work.call.recorded:
            return "unattributed"
        if moment < self.call.ts:
            return self._before_the_call(moment)
        in_call = moment < self.call.end
        if in_call and self.call.cause in ("graph_launch", "pageable_copy"):
            return self.call.cause
        if moment >= self.end - LAUNCH_LATENCY_NS:
            return "launch_latency"
        return self._in_the_call(moment) if in_call else self._after_the_call()

    def _in_the_call(self, moment: int) -> str:
        if stopped := self._stopped(moment):
            return stopped
        if self.call is self.scene.started[0]:
            return "profiler"
        first = self.scene.first_of_name[self.work.kernel.name] is self.work
        return "lazy_load_or_jit" if first and self.call.dur > FIRST_USE_NS else "launch_bound"

    def _after_the_call(self) -> str:
        waits = [row.ts for row in self.scene.waits_for_event if row.ts < self.call.ts]
        starts = [row.ts for row in self.scene.started if row.ts < self.call.ts]
        told = bool(waits) and max(waits) > max(starts, default=0)
        recorded = any(
            row.ts < self.end and row.end > self.begin
            for row in self.scene.syncs
            if row.name == "Stream Wait Event" and row.tid == self.work.stream
        )
        return "stream_dependency" if told or recorded else "unattributed"

    def _stopped(self, moment: int) -> str:
        """What stopped all threads: the profiler or a loader, then the garbage collector."""
        row = _around(self.scene.overheads, moment) or _around(self.scene.garbage, moment)
        return row.cause if row else ""

    def _before_the_call(self, moment: int) -> str:
        if stopped := self._stopped(moment):
            return stopped
        rows = self.scene.rows_at(moment)
        own = next((row.cause for row in reversed(rows) if row.cause not in ("", "gc")), "")
        if own == "requests":
            return "no_requests" if self.end - self.begin > NO_REQUESTS_NS else "scheduler"
        if own:
            return own
        working = any(row.cat in ("cpu_op", "cuda_runtime", "cuda_driver") for row in rows)
        in_python = any(row.cat == "python_function" for row in rows)
        if self.place != "inside" and not self.scene.within_marks(moment):
            return "launch_bound" if working else "python" if in_python else self._between_steps(moment)
        return self._within_steps(moment, working)

    def _between_steps(self, moment: int) -> str:
        """Where the host shows nothing."""
        served = self.scene.between_marks(moment) and self.scene.unseen_ns(moment) <= NO_REQUESTS_NS
        return "scheduler" if served else "unattributed"

    def _within_steps(self, moment: int, working: bool) -> str:
        """Where no row has a cause of its own."""
        if self.scene.unseen_ns(moment) > HOST_HOLE_NS:
            return "unattributed"
        if self.drained_by:
            return self.drained_by
        return "launch_bound" if working or self.end - self.begin <= SMALL_GAP_NS else "python"
