"""How the figures of what CUDA graphs would win come about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracekit.analyses import _arithmetic as arithmetic
from tracekit.analyses import _replay_sums as replay
from tracekit.gains import Estimate
from tracekit.graph_sizes import FallBack, Padding
from tracekit.replay_choice import Group


def worth(
    group: Group,
    won: Sequence[Estimate],
    promised: tuple[int, int],
    idle: tuple[Sequence[str], int] | None,
) -> Iterator[str]:
    """won: of one step, by region. promised: of all steps, at worst and at best. idle: causes of the idle time that is
    for graphs to promise, and how much there is of it; None if that is not known.
    """
    step, steps = group.median.measured_ns, len(group.steps)
    parts = [(one.saving_low_ns, one.saving_high_ns) for one in won]
    saved = sum(low for low, _ in parts), sum(high for _, high in parts)
    yield from replay.interval("saved of a step", parts)
    yield from replay.replayed(step, saved)
    yield from replay.scaled(saved, steps)
    if idle is not None:
        causes, most = idle
        yield arithmetic.queried(
            "idle time that launching causes",
            f"SELECT coalesce(sum(dur), 0) FROM idle_gaps() WHERE {replay.chosen(group)} AND cause IN "
            f"{arithmetic.one_of(causes)}",
            most,
        )
        for ns, kept, word in zip(saved, promised, ("worst", "best"), strict=True):
            all_steps, limit = arithmetic.amount(ns * steps), arithmetic.amount(most)
            if word == "best" or kept < ns * steps:
                yield f"no more than that, at {word}: min({all_steps}, {limit}) = {arithmetic.amount(kept)}"
    for ns, kept, word in zip(saved, promised, ("worst", "best"), strict=True):
        if kept < ns * steps:
            yield arithmetic.each(f"of each step, at {word}", kept, steps)
        yield arithmetic.share(f"of its time, at {word}", kept // steps, step)
    if promised[1]:
        yield arithmetic.saving(*promised)


def blocked(group: Group, won: Estimate) -> Iterator[str]:
    """What one graph would win of a step on top of the pieces."""
    yield from replay.replayed(group.median.measured_ns, (won.saving_low_ns, won.saving_high_ns))


def nothing(group: Group, won: Estimate) -> Iterator[str]:
    """What graphs of a region would win of a step at best."""
    label = f"of a step of {group.label or 'the trace'}, at best"
    yield arithmetic.share(label, won.saving_high_ns, won.before_ns)


def fall_back(one: FallBack) -> Iterator[str]:
    """Medians of both kinds of steps."""
    yield arithmetic.less("an eager step less a replayed one, medians", one.eager_ns, one.graphed_ns)


def padding(one: Padding) -> Iterator[str]:
    """Rows that no request filled."""
    held = one.padded_to * one.steps
    filled = round(held * (1 - one.wasted))
    yield f"rows computed: {one.padded_to:,} rows * {one.steps:,} steps = {held:,} rows"
    yield f"share of them that is padding: ({held:,} rows - {filled:,} rows) / {held:,} rows = {one.wasted:.1%}"
