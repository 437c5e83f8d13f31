"""What is true of a simulated run, told by the simulator from what it did (never read back from the trace)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from tests.simulator_host import Rank, Work
from tests.simulator_model import Run
from tests.simulator_rows import BASE_NS, SECRETS, Sections

Cause = Literal["launch_bound", "sync", "between_steps", "unattributed", "queued"]


@dataclass(frozen=True, slots=True)
class Gap:
    """A maximal time in which nothing ran on a device, between its first and last work."""

    rank: int
    device: int
    ts: int
    dur: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class DeviceTruth:
    """Times of one device. Categories sum to busy_ns: each row counts what it adds beyond the furthest end so far,
    walking by (ts, -dur, stream, correlation)."""

    rank: int
    device: int
    ts: int
    span_ns: int
    busy_ns: int
    idle_ns: int
    rows: dict[str, int]
    exclusive_ns: dict[str, int]
    total_ns: dict[str, int]
    flops: dict[str, int]
    bytes: dict[str, int]
    idle_by_cause: dict[str, int]
    gaps: tuple[Gap, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A serving step: its annotation on the host and its batch."""

    rank: int
    index: int
    ts: int
    dur: int
    phase: str
    prefill_requests: int
    prefill_tokens: int
    decode_requests: int
    decode_tokens: int


@dataclass(frozen=True, slots=True)
class CollectiveTruth:
    """The collectives of one rank: wait is own start to the last rank's, transfer the rest, exposed the time in which
    nothing else ran on the device."""

    rank: int
    count: int
    bytes: int
    total_ns: int
    wait_ns: int
    transfer_ns: int
    exposed_ns: int


@dataclass(frozen=True, slots=True)
class Truth:
    """Everything known of a run. Times are ns as recorded: after base_ns if that is not 0, else Unix time.

    events counts rows by rank and "ph cat"; launches are API calls that started device work, links the rows they
    started.
    """

    base_ns: int
    devices: tuple[DeviceTruth, ...]
    steps: tuple[Step, ...]
    collectives: tuple[CollectiveTruth, ...]
    events: tuple[dict[str, int], ...]
    launches: int
    links: int
    graph_launches: int
    graph_rows: int
    secrets: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Plain lists and dictionaries."""
        return asdict(self)


def truth_of(run: Run, ranks: Sequence[Rank], parts: Sequence[Sections]) -> Truth:
    """The truth of a run that was played."""
    works = [work for rank in ranks for work in rank.work]
    return Truth(
        base_ns=BASE_NS if run.time_unit == "relative" else 0,
        devices=tuple(_device(rank) for rank in ranks),
        steps=tuple(
            Step(
                rank.rank, shape.index, row.ts, row.dur, shape.phase,
                shape.prefill_requests, shape.prefill_tokens, shape.decode_requests, shape.decode_requests,
            )
            for rank in ranks
            for shape, row in rank.steps
        ),
        collectives=_collectives(ranks),
        events=tuple(
            dict(Counter(f"{row.ph} {row.cat}".strip() for row in [*part.host, *part.python, *part.device, *part.last]))
            for part in parts
        ),
        launches=sum(len({work.call.correlation for work in rank.work}) for rank in ranks),
        links=len(works),
        graph_launches=sum(len({work.call.correlation for work in rank.work if work.graph[0]}) for rank in ranks),
        graph_rows=sum(work.graph[0] > 0 for work in works),
        secrets=tuple(SECRETS.values()) if run.secrets else (),
    )  # fmt: skip


def _device(rank: Rank) -> DeviceTruth:
    order = sorted(rank.work, key=lambda work: (work.ts, -work.dur, work.stream, work.call.correlation))
    first = furthest = order[0].ts if order else 0
    rows, exclusive, total = Counter[str](), Counter[str](), Counter[str]()
    flops, moved, idle = Counter[str](), Counter[str](), Counter[str]()
    gaps = []
    for work in order:
        category = work.kernel.category
        if work.ts > furthest:
            gap = Gap(rank.rank, rank.rank, furthest, work.ts - furthest, cause(rank, work, furthest))
            idle[gap.cause] += gap.dur
            gaps.append(gap)
        rows[category] += 1
        exclusive[category] += max(0, work.end - max(work.ts, furthest))
        total[category] += work.dur
        flops[category] += work.kernel.flops
        moved[category] += work.kernel.bytes
        furthest = max(furthest, work.end)
    return DeviceTruth(
        rank.rank, rank.rank, first, furthest - first, sum(exclusive.values()), sum(idle.values()), dict(rows),
        dict(exclusive), dict(total), dict(flops), dict(moved), dict(idle), tuple(gaps),
    )  # fmt: skip


def cause(rank: Rank, work: Work, since: int) -> Cause:
    """Why the device idled from `since` until the work began.

    The work came from an API call; the simulator knows what the host had been made to do since its previous launch.

    queued: the launch had reached the device before the gap: the device itself took that long (kernel_gap_ns).
    Otherwise the gap is split into host time between two steps' annotations, planted holes, and the rest, and goes
    whole to the largest. Is it the rest: sync if the host had waited for the device (a synchronising call) since its
    previous launch, so that nothing was queued when it went dry; launch_bound if not: the host was merely slower.
    """
    if work.arrival <= since:
        return "queued"
    outside = _overlap(rank.outside, since, work.ts)
    hole = _overlap(rank.holes, since, work.ts)
    rest = work.ts - since - outside - hole
    if outside >= max(hole, rest):
        return "between_steps"
    if hole >= rest:
        return "unattributed"
    return "sync" if work.call.waited else "launch_bound"


def _overlap(spans: Sequence[tuple[int, int]], begin: int, end: int) -> int:
    return sum(max(0, min(end, stop) - max(begin, start)) for start, stop in spans)


def _collectives(ranks: Sequence[Rank]) -> tuple[CollectiveTruth, ...]:
    calls = [[work for work in rank.work if work.kernel.collective is not None] for rank in ranks]
    last = [max(works, key=lambda work: work.ts).ts for works in zip(*calls, strict=True)]
    truths = []
    for rank, works in zip(ranks, calls, strict=True):
        if not works:
            continue
        total = sum(work.dur for work in works)
        wait = sum(entered - work.ts for entered, work in zip(last, works, strict=True))
        others = _union(work for work in rank.work if work.kernel.collective is None)
        exposed = _union(rank.work) - others
        moved = sum(work.kernel.bytes for work in works)
        truths.append(CollectiveTruth(rank.rank, len(works), moved, total, wait, total - wait, exposed))
    return tuple(truths)


def _union(works: Iterable[Work]) -> int:
    covered = furthest = 0
    for work in sorted(works, key=lambda work: work.ts):
        covered += max(0, work.end - max(work.ts, furthest))
        furthest = max(furthest, work.end)
    return covered
