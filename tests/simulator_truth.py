"""What is true of a simulated run, told by the simulator from what it did (never read back from the trace)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from tests.simulator_causes import GapScene, Scene
from tests.simulator_host import Rank, Work
from tests.simulator_model import Run
from tests.simulator_rows import BASE_NS, SECRETS, Sections
from tests.simulator_steps import Step, first_work, place_of, recorded_steps, step_of


@dataclass(frozen=True, slots=True)
class Gap:
    """A part of a time in which nothing ran on a device, between its first and last work; where the cause changes a
    new one begins. step is that of the work that ended the whole."""

    rank: int
    device: int
    ts: int
    dur: int
    cause: str
    place: str
    step: int | None


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
    """Everything known of a run, as it was recorded. Times are ns: after base_ns if that is not 0, else Unix time.

    events counts rows by rank and "ph cat"; launches are API calls that started device work, links the rows they
    started. Device rows are clock_skew_ns too early. orphans have no call; nor have the kernels of lost_calls calls.
    planted counts what was planted within steps, by its kind (simulator_instructions.Stall).
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
    lost_replays: int
    partial_replays: int
    orphans: int
    lost_calls: int
    clock_skew_ns: int
    secrets: tuple[str, ...]
    planted: dict[str, int]

    def to_json(self) -> dict[str, object]:
        """Plain lists and dictionaries."""
        return asdict(self)


def truth_of(run: Run, ranks: Sequence[Rank], parts: Sequence[Sections]) -> Truth:
    """The truth of a run that was played."""
    linked = [work for rank in ranks for work in rank.work if work.call.recorded]
    kept, partial = _replays(ranks)
    return Truth(
        base_ns=BASE_NS if run.time_unit == "relative" else 0,
        devices=tuple(_device(rank) for rank in ranks),
        steps=tuple(step for rank in ranks for step in recorded_steps(rank)),
        collectives=_collectives(ranks),
        events=tuple(
            dict(Counter(f"{row.ph} {row.cat}".strip() for row in [*part.host, *part.python, *part.device, *part.last]))
            for part in parts
        ),
        launches=sum(len({work.call.correlation for work in rank.work if work.call.recorded}) for rank in ranks),
        links=len(linked),
        graph_launches=kept,
        graph_rows=sum(work.graph[0] > 0 for work in linked),
        lost_replays=sum(rank.replays for rank in ranks) - kept,
        partial_replays=partial,
        orphans=run.orphans * len(ranks),
        lost_calls=sum(not work.call.recorded for rank in ranks for work in rank.work) - run.orphans * len(ranks),
        clock_skew_ns=run.clock_skew_ns,
        secrets=tuple(SECRETS.values()) if run.secrets else (),
        planted=dict(sum((rank.planted for rank in ranks), Counter())),
    )


def _replays(ranks: Sequence[Rank]) -> tuple[int, int]:
    """How many graph replays left kernels in the recording, and how many of these not all."""
    kept = partial = 0
    for rank in ranks:
        whole = Counter(work.call.correlation for work in rank.played if work.graph[0])
        recorded = Counter(work.call.correlation for work in rank.work if work.graph[0])
        kept += len(recorded)
        partial += sum(whole[correlation] > count for correlation, count in recorded.items())
    return kept, partial


def _device(rank: Rank) -> DeviceTruth:
    order = sorted(rank.work, key=lambda work: (work.ts, -work.dur, work.stream, work.call.correlation))
    first = furthest = order[0].ts if order else 0
    rows, exclusive, total = Counter[str](), Counter[str](), Counter[str]()
    flops, moved, idle = Counter[str](), Counter[str](), Counter[str]()
    scene = Scene(rank)
    edges, begun = scene.edges(), first_work(rank)
    gaps = []
    for work in order:
        category = work.kernel.category
        if work.ts > furthest:
            step, place = step_of(rank, work), place_of(rank, work, furthest, begun)
            for ts, dur, cause in GapScene(scene, furthest, work, place).slices(edges):
                gaps.append(Gap(rank.rank, rank.rank, ts, dur, cause, place, step))
                idle[cause] += dur
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
