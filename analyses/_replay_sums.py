"""How savings that a replay tells come about: of one step, of all steps, and what of it is promised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracekit.analyses import _arithmetic as arithmetic
from tracekit.replay_choice import Group

_MOST_RUNS = 20  # of steps that follow each other: beyond, a query that finds them is shorter


def interval(label: str, parts: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Savings at worst and at best, added up where there are several."""
    if len(parts) > 1:
        for at, word in enumerate(("worst", "best")):
            yield arithmetic.total(f"{label}, at {word}", [one[at] for one in parts])


def replayed(step_ns: int, saved: tuple[int, int]) -> Iterator[str]:
    """The median step as recorded, less what is saved. saved: at worst and at best."""
    yield arithmetic.less("the median step then, at worst", step_ns, saved[0])
    yield arithmetic.less("the median step then, at best", step_ns, saved[1])


def scaled(saved: tuple[int, int], steps: int) -> Iterator[str]:
    """Of all steps, as if each saved what the median one does."""
    yield arithmetic.times("all steps, at worst", saved[0], steps)
    yield arithmetic.times("all steps, at best", saved[1], steps)


def chosen(group: Group) -> str:
    """The condition that chooses the steps of a group, for tables with rank, device and step."""
    here = arithmetic.on(group.rank, group.device)
    numbers = [one for one in group.steps if one is not None]
    if len(numbers) < len(group.steps):
        return here
    runs = _runs(sorted(numbers))
    if len(runs) > _MOST_RUNS:
        kind = f"phase = {group.phase!r} AND bucket = {group.bucket!r} AND kind = 'steady'"
        return f"{here} AND step IN (SELECT step FROM step_time() WHERE {here} AND {kind})"
    parts = [f"step BETWEEN {first} AND {last}" if first < last else f"step = {first}" for first, last in runs]
    return f"{here} AND ({' OR '.join(parts)})" if len(parts) > 1 else f"{here} AND {parts[0]}"


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of those that follow each other."""
    runs: list[tuple[int, int]] = []
    for one in numbers:
        if runs and runs[-1][1] == one - 1:
            runs[-1] = runs[-1][0], one
        else:
            runs.append((one, one))
    return runs
