"""What else is different between two sides than their step times? A change can be put down to one thing only if there
was one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tracekit.compare_facts import SWITCHES, YES
from tracekit.compare_measure import WHOLE, GroupSteps, Key, Recording
from tracekit.wording import counted

Side = Sequence[Recording]

_BATCH = 0.05  # of the mean batch of one bucket: below, what requests happened to come
_WAITED = 0.05  # of the time: the same
_PHASES = 0.1  # of the steps
_ONE_SIDED = 4  # kinds of step named in a sentence
_EFFECTS = {
    **dict.fromkeys(SWITCHES.values(), ", which slows the host"),
    SWITCHES["with_stack"]: ", which slows the host and tells python from causes that it is taken for without",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is not alike on both sides. base, candidate: what each has; text: the sentence that says so."""

    name: str
    base: str
    candidate: str
    text: str


def label(key: Key) -> str:
    """A kind of steps as texts name it."""
    phase, bucket = key
    if phase != "unknown":
        return phase if bucket == "unknown" else f"{phase} {bucket}"
    return {"unknown": "steps", WHOLE[1]: WHOLE[1]}.get(bucket, f"batch {bucket}")


def conditions(base: Side, candidate: Side) -> tuple[Condition, ...]:
    """What differs between the sides, most basic first."""
    found = [*_settings(base, candidate), *_batches(base, candidate), *_load(base, candidate)]
    return tuple(found)


def warnings(base: Side, candidate: Side) -> tuple[str, ...]:
    """What is wrong with recordings, or not alike within a side."""
    return tuple(dict.fromkeys([*_of_recordings("base", base), *_of_recordings("candidate", candidate)]))


# ---- between sides ---------------------------------------------------------------------------------------------------


def _settings(base: Side, candidate: Side) -> Iterator[Condition]:
    """What only one side tells of is not known to differ."""
    names = dict.fromkeys(name for side in (base, candidate) for one in side for name in one.facts.settings)
    for name in names:
        was, now = _values(base, name), _values(candidate, name)
        if not was or not now or was == now:
            continue
        before, after = " or ".join(was), " or ".join(now)
        text = f"{name}: {before} in base, {after} in candidate"
        if YES in (before, after) and name in _EFFECTS:
            with_it, without = ("base", "candidate") if before == YES else ("candidate", "base")
            text = f"{name} in {with_it}, not in {without}{_EFFECTS[name]}"
        yield Condition(name, before, after, text)


def _values(side: Side, name: str) -> list[str]:
    return sorted({one.facts.settings[name] for one in side if name in one.facts.settings})


def _batches(base: Side, candidate: Side) -> Iterator[Condition]:
    """Kinds of step that only one side has; of the others, batches that are larger on one side, and other steps."""
    was, now = _by_key(base), _by_key(candidate)
    if only := _listed(was, now):
        yield Condition("kinds of step", only, "none", f"only in base: {only}")
    if only := _listed(now, was):
        yield Condition("kinds of step", "none", only, f"only in candidate: {only}")
    for key in (key for key in was if key in now):
        for what in ("requests", "tokens"):
            yield from _batch(key, was[key], now[key], what)
        steady = [all(one.is_steady for one in groups[key]) for groups in (was, now)]
        if steady[0] != steady[1]:
            before, after = ("steady" if one else "first or warm-up" for one in steady)
            text = f"{label(key)}: {before} steps in base, {after} steps in candidate"
            yield Condition("steadiness", before, after, text)


def _listed(mine: Mapping[Key, Sequence[GroupSteps]], other: Mapping[Key, Sequence[GroupSteps]]) -> str:
    """Kinds of step that the other side lacks, with how many steps they have."""
    texts = [f"{label(key)} ({counted(_steps(groups), 'step')})" for key, groups in mine.items() if key not in other]
    more = f" and {len(texts) - _ONE_SIDED} more" if len(texts) > _ONE_SIDED else ""
    return ", ".join(texts[:_ONE_SIDED]) + more


def _batch(key: Key, base: Sequence[GroupSteps], candidate: Sequence[GroupSteps], what: str) -> Iterator[Condition]:
    was, now = _mean_batch(base, what), _mean_batch(candidate, what)
    if was is None or now is None or abs(now - was) <= _BATCH * max(was, now):
        return
    before, after = f"{was:,.1f}", f"{now:,.1f}"
    text = f"batch of {label(key)}: {before} {what} in base, {after} in candidate"
    yield Condition(f"{what} of {label(key)}", before, after, text)


def _by_key(side: Side) -> dict[Key, list[GroupSteps]]:
    found: dict[Key, list[GroupSteps]] = {}
    for one in side:
        for key, group in one.groups.items():
            found.setdefault(key, []).append(group)
    return found


def _steps(groups: Sequence[GroupSteps]) -> int:
    return sum(len(one.devices) for one in groups)


def _mean_batch(groups: Sequence[GroupSteps], what: str) -> float | None:
    """The mean over all steps."""
    sums = 0.0
    for one in groups:
        mean: float | None = getattr(one, what)
        if mean is None:
            return None
        sums += mean * len(one.devices)
    return sums / _steps(groups)


def _load(base: Side, candidate: Side) -> Iterator[Condition]:
    waited = [_waited(side) for side in (base, candidate)]
    if abs(waited[0] - waited[1]) > _WAITED:
        before, after = (f"{share:.0%}" for share in waited)
        text = f"load: the host waited for requests {before} of the time in base, {after} in candidate"
        yield Condition("load", before, after, f"{text}; that is in no step time")
    shares = [_phases(side) for side in (base, candidate)]
    for phase in dict.fromkeys((*shares[0], *shares[1])):
        was, now = (share.get(phase, 0.0) for share in shares)
        if shares[0] and shares[1] and abs(was - now) > _PHASES:
            text = f"share of steps in {phase}: {was:.0%} in base, {now:.0%} in candidate"
            yield Condition(f"share of {phase}", f"{was:.0%}", f"{now:.0%}", text)


def _waited(side: Side) -> float:
    waited = sum(one.waited_ns for one in side)
    return waited / max(1, waited + sum(int(group.totals.sum()) for one in side for group in one.groups.values()))


def _phases(side: Side) -> dict[str, float]:
    counts = Counter[str]()
    for (phase, _), groups in _by_key(side).items():
        counts[phase] += _steps(groups)
    return {phase: count / counts.total() for phase, count in counts.items()}


# ---- within a side ---------------------------------------------------------------------------------------------------


def _of_recordings(name: str, side: Side) -> Iterator[str]:
    for one in side:
        for text in (*one.facts.warnings, one.losses.refusal, one.losses.doubt):
            if text:
                yield f"{one.name}: {text}"
    for setting in dict.fromkeys(setting for one in side for setting in one.facts.settings):
        if len(values := _values(side, setting)) > 1:
            yield f"recordings of {name} are not alike, {setting}: {', '.join(values)}"
