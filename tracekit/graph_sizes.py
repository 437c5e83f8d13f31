"""Which batch sizes run eagerly although others are replayed as graphs, and which are padded to a larger one?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from tracekit.trace import Trace

_PHASES = ("decode", "verify", "draft")  # of the others the number of tokens differs from step to step
_SHOWN = 3  # steps named as evidence
_GRAPHED = 0.5  # of the device rows that could be captured: a step of which so many come from replays is graphed
_STEPS = """
    SELECT
        t.rank,
        t.device,
        t.step,
        t.kind,
        t.phase,
        t.requests,
        t.tokens,
        coalesce(t.period_ns, t.wall_ns) AS ns,
        s.id AS mark,
        g.inside,
        g.replays,
        g.replayed,
        g.shape
    FROM step_time() AS t
    JOIN steps AS s ON s.rank = t.rank AND s.step = t.step
    JOIN graph_steps() AS g
        ON g.rank = t.rank
        AND g.device IS NOT DISTINCT FROM t.device
        AND g.step = t.step
    ORDER BY
        t.rank,
        t.device,
        t.phase,
        t.step
"""
# Blocks of norms are those of all tokens, by name of the kernel, where that holds in a step of more than one token.
_CAPTURED_FOR = """
    WITH told AS (
        SELECT
            n.rank,
            n.device,
            n.step,
            n.name,
            n.blocks,
            b.tokens
        FROM norm_grids() AS n
        JOIN step_batches() AS b ON b.rank = n.rank AND b.step = n.step
    )
    SELECT
        rank,
        device,
        step,
        min(blocks) AS tokens
    FROM told
    WHERE name IN (SELECT name FROM told WHERE blocks = tokens AND tokens > 1)
    GROUP BY
        rank,
        device,
        step
"""


@dataclass(frozen=True, slots=True)
class FallBack:
    """Steps of one phase on one device that launch kernel by kernel, though others are replayed as graphs.

    eager: batch sizes of these, ascending; largest: the largest graph seen; is_capacity: that is what it was captured
    for, else the largest batch in it; steps: how many are eager; eager_ns, graphed_ns: median step time of both kinds;
    marks: event ids of the first eager steps.
    """

    rank: int
    device: int | None
    phase: str
    eager: tuple[int, ...]
    largest: int
    is_capacity: bool
    steps: int
    eager_ns: int
    graphed_ns: int
    marks: tuple[int, ...]

    @property
    def beyond(self) -> tuple[int, ...]:
        """Those larger than all that are replayed."""
        return tuple(size for size in self.eager if size > self.largest)


@dataclass(frozen=True, slots=True)
class Padding:
    """Batches that replay a graph captured for a larger one.

    sizes: of the batches, ascending; padded_to: what they are padded to, at_least: or more; steps: with such a batch;
    wasted: the share of the rows computed in these that is padding; ns: their median time; marks: event ids of the
    first of them.
    """

    rank: int
    device: int | None
    phase: str
    sizes: tuple[int, ...]
    padded_to: int
    at_least: bool
    steps: int
    wasted: float
    ns: int
    marks: tuple[int, ...]


def step_graphs(trace: Trace) -> list[dict[str, Any]]:
    """Each step with how much of it comes from replays, by rank, device, phase and step. captured_for: tokens that its
    replays were captured for, where grids tell; None if not.
    """

    def read() -> list[dict[str, Any]]:
        steps = trace.sql(_STEPS).to_pylist()
        told = trace.sql(_CAPTURED_FOR).to_pylist() if any(one["replays"] for one in steps) else []
        tokens = {(one["rank"], one["device"], one["step"]): one["tokens"] for one in told}
        return [{**one, "captured_for": tokens.get((one["rank"], one["device"], one["step"]))} for one in steps]

    found: list[dict[str, Any]] = trace.once(("graph steps",), read)
    return found


def is_graphed(step: dict[str, Any]) -> bool:
    """Does most of a step come from graph replays?"""
    return bool(step["replays"]) and step["replayed"] >= _GRAPHED * step["inside"]


def fall_backs(trace: Trace) -> list[FallBack]:
    """Of each phase on each device, eager steps beside graphed ones."""
    found = []
    for (rank, device, phase), steps in _by_phase(trace):
        graphed = [one for one in steps if is_graphed(one)]
        eager = [one for one in steps if not is_graphed(one) and one["kind"] == "steady"]
        if not graphed or not eager:
            continue
        sizes = tuple(sorted({one["requests"] for one in eager}))
        held = [_held(one) for one in graphed]
        largest = max(size for size, _ in held)
        exact = all(told for size, told in held if size == largest)
        times = _median(eager), _median(graphed)
        found.append(FallBack(rank, device, phase, sizes, largest, exact, len(eager), *times, _marks(eager)))
    return found


def _held(step: dict[str, Any]) -> tuple[int, bool]:
    """How many requests a graph holds, and whether that is what it was captured for: else it may be more."""
    if step["captured_for"] is None or step["tokens"] != step["requests"]:
        return step["requests"], False
    return max(step["captured_for"], step["requests"]), True


def paddings(trace: Trace) -> list[Padding]:
    """Of each phase on each device, graphs that are replayed for smaller batches than they hold: told by the grids, or
    by a larger batch that replays the same kernels with the same grids.
    """
    found = []
    for (rank, device, phase), steps in _by_phase(trace):
        graphs: dict[tuple[bool, int], list[dict[str, Any]]] = {}
        for one in steps:
            size, told = _held(one)
            if is_graphed(one) and (told or one["shape"] is not None):
                graphs.setdefault((told, size if told else one["shape"]), []).append(one)
        for (told, size), same in graphs.items():
            held = size if told else max(one["requests"] for one in same)
            padded = [one for one in same if one["requests"] < held]
            if padded:
                sizes = tuple(sorted({one["requests"] for one in padded}))
                wasted = 1 - sum(one["requests"] for one in padded) / (held * len(padded))
                known = (len(padded), wasted, _median(padded), _marks(padded))
                found.append(Padding(rank, device, phase, sizes, held, not told, *known))
    return found


def _marks(steps: Sequence[dict[str, Any]]) -> tuple[int, ...]:
    return tuple(one["mark"] for one in steps if one["mark"] is not None)[:_SHOWN]


def _by_phase(trace: Trace) -> Iterator[tuple[tuple[int, int | None, str], list[dict[str, Any]]]]:
    known = [one for one in step_graphs(trace) if one["phase"] in _PHASES and one["requests"]]
    for key, steps in groupby(known, key=lambda one: (one["rank"], one["device"], one["phase"])):
        yield key, list(steps)


def _median(steps: Sequence[dict[str, Any]]) -> int:
    return int(median(one["ns"] for one in steps))


def ranges(sizes: Sequence[int]) -> str:
    """Sizes as text: "9-12, 17"."""
    texts: list[str] = []
    for _, run in groupby(enumerate(sizes), key=lambda one: one[1] - one[0]):
        values = [size for _, size in run]
        texts.append(f"{values[0]}-{values[-1]}" if len(values) > 1 else f"{values[0]}")
    return ", ".join(texts)
