"""Schedules from the few constraints that a test cares about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.arrays import Int64s
from tracekit.replay import AT_ONCE, Schedule, ordered


@dataclass(frozen=True, slots=True)
class C:
    """A call: gap after the call before (-1: none, then at), cost, and waits: (row, return)."""

    before: int
    gap: int
    cost: int
    at: int = 0
    waits: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class R:
    """A row: its call (-1: none, then at), latency from the call's end (or start), the row before on its stream, the
    gap after that, its length, and edges: (row, gap)."""

    call: int
    latency: int
    before: int
    gap: int
    dur: int
    from_end: bool = True
    at: int = AT_ONCE
    after: tuple[tuple[int, int], ...] = ()
    gone: bool = False


def schedule(calls: Sequence[C], rows: Sequence[R], first: int = 0, last: int = -1) -> Schedule:
    waits = [(call, row, lag) for call, one in enumerate(calls) for row, lag in one.waits]
    edges = [(row, on, gap) for row, one in enumerate(rows) for on, gap in one.after]
    return ordered(
        Schedule(
            ints([one.before for one in calls]), ints([one.gap for one in calls]), ints([one.at for one in calls]),
            ints([one.cost for one in calls]), *columns(waits), ints([one.call for one in rows]),
            ints([one.at for one in rows]), ints([one.latency for one in rows]),
            np.array([one.from_end for one in rows], np.bool_), ints([one.before for one in rows]),
            ints([one.gap for one in rows]), ints([one.dur for one in rows]),
            np.array([one.gone for one in rows], np.bool_), *columns(edges), ints([]), first, last,
        )
    )  # fmt: skip


def ints(values: Sequence[int]) -> Int64s:
    return np.array(values, np.int64)


def columns(edges: Sequence[tuple[int, int, int]]) -> tuple[Int64s, Int64s, Int64s]:
    table = np.array(edges, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]
