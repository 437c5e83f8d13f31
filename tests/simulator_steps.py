"""To which step each row of device work belongs, as far as the recording can tell; and where a gap lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.simulator_host import Mark, Rank, Work
from tests.simulator_marks import SOURCES
from tests.simulator_model import step_shapes


@dataclass(frozen=True, slots=True)
class Step:
    """A serving step: its mark on the host, or the launches that make it if none is marked. The batch is what was
    served, whether or not the mark tells of it."""

    rank: int
    index: int
    ts: int
    dur: int
    phase: str
    prefill_requests: int
    prefill_tokens: int
    decode_requests: int
    decode_tokens: int
    source: str


def recorded_steps(rank: Rank) -> list[Step]:
    """The steps of a rank."""
    if rank.run.marks == "none":
        return [_inferred(rank, period) for period in range(1, _periods(rank))]
    return [_marked(rank, mark) for mark in rank.steps]


def _marked(rank: Rank, mark: Mark) -> Step:
    shape, row = mark.shape, mark.ranges[-1]
    return Step(
        rank.rank, shape.index, row.ts, row.dur, shape.phase, shape.prefill_requests, shape.prefill_tokens,
        shape.decode_requests, shape.decode_requests, SOURCES[rank.run.marks],
    )  # fmt: skip


def _periods(rank: Rank) -> int:
    """How often the engine sampled, if that is often enough to see a period in it. (Steps are nearly all decode.)"""
    return rank.period if rank.period >= 3 else 0


def _inferred(rank: Rank, period: int) -> Step:
    """From the launch after one step to the copy of its own tokens: a decode step."""
    calls = [work.call.row for work in rank.work if work.period == period and work.call.recorded]
    shapes, last = list(step_shapes(rank.run)), calls[-1]
    batch = shapes[period].decode_requests if rank.run.batches else rank.run.batch
    return Step(rank.rank, period - 1, calls[0].ts, last.end - calls[0].ts, "decode", 0, 0, batch, batch, "inferred")


def step_of(rank: Rank, work: Work) -> int | None:
    """The step of a row, None outside all or if its call was not recorded."""
    if not work.call.recorded:
        return None
    if rank.run.marks == "none":
        return work.period - 1 if 0 < work.period < _periods(rank) else None
    return work.step if work.call.row.ts < _until(rank, rank.steps[work.step]) else None


def _until(rank: Rank, mark: Mark) -> int:
    """When a step is over: at the end of what is around its mark, or when the next begins; the last one lasts as long
    again as its mark."""
    row = mark.ranges[-1]
    if len(mark.ranges) > 1:
        return mark.ranges[0].end
    if mark is rank.steps[-1]:
        return row.end + row.dur
    return rank.steps[mark.shape.index + 1].ranges[-1].ts


def first_work(rank: Rank) -> dict[int, int]:
    """When each step's first work on the device began."""
    first: dict[int, int] = {}
    for work in rank.work:
        step = step_of(rank, work)
        if step is not None:
            first[step] = min(work.ts, first.get(step, work.ts))
    return first


def place_of(rank: Rank, work: Work, begin: int, first: Mapping[int, int]) -> str:
    """Where the gap lies that began then and that the work ended."""
    if not work.call.recorded:
        linked = (other.ts for other in rank.work if other.call.recorded and other.stream == work.stream)
        return "prefix" if work.ts < min(linked, default=work.ts) else "outside"
    step = step_of(rank, work)
    if step is None:
        return "outside"
    return "between" if begin < first[step] else "inside"
