"""Which kernels make one kind of step take another time: the same ones, other shapes of them, or others in their place?

Kernels are the same by name, spelt one way, and by launch geometry and input shapes, where both sides recorded them. Of
those that only one side has, which stand in for which follows from where they are in a step, in the order of launches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import Literal

from tracekit.kernel_names import name_forms

Match = Literal["same", "other shape", "replaced", "gone", "new"]
Names = tuple[str, ...]

# Kernels at the begin and at the end of a step that are compared in order: layers repeat, and the time that it takes
# grows with more than the square.
_HEAD, _TAIL = 400, 200


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel, of one shape, in all steps of a kind and on all their devices. ns: time that is its alone."""

    kind: str
    name: str
    category: str
    geometry: str
    inputs: str
    ns: int
    count: int


@dataclass(frozen=True, slots=True)
class KernelSums:
    """device_steps: steps, each counted on each of its devices. sequence: names, spelt one way, of the kernels of the
    median step on one device, in the order of their launches.
    """

    times: tuple[KernelTime, ...]
    device_steps: int
    sequence: Names


@dataclass(frozen=True, slots=True)
class KernelChange:
    """Kernels of base, and what they are in candidate; ns and counts are those of a mean step on one device.

    match: "same"; "other shape" of the same kernel; "replaced" by others in the same places; "gone" or "new", which may
    be a shape only. shape: launch geometry and input shapes of "same".
    """

    match: Match
    base: Names
    candidate: Names
    category: str
    shape: str
    base_ns: int
    candidate_ns: int
    base_count: float
    candidate_count: float

    @property
    def change_ns(self) -> int:
        """What the mean step gains or loses by it."""
        return self.candidate_ns - self.base_ns

    @property
    def is_fused(self) -> bool:
        """Fewer kernels do what more did."""
        return self.match == "replaced" and len(self.candidate) < len(self.base)


@cache
def _spelt(name: str) -> str:
    return name_forms(name).signature or name


def spelt(kind: str, name: str) -> str:
    """A device row's name in one spelling. A replay that was recorded as one block is named by a number of the run."""
    if kind == "graph":
        return "graph replay"
    return _spelt(name) if kind == "kernel" else name


@dataclass(frozen=True, slots=True)
class _PerStep:
    ns: float = 0.0
    count: float = 0.0

    def __add__(self, other: _PerStep) -> _PerStep:
        return _PerStep(self.ns + other.ns, self.count + other.count)

    def __mul__(self, share: float) -> _PerStep:
        return _PerStep(self.ns * share, self.count * share)

    @property
    def is_some(self) -> bool:
        """More than what rounding leaves of nothing."""
        return self.count > 1e-6


@dataclass(frozen=True, slots=True)
class _Side:
    """Kernels by spelt name: time and launches of each shape, the name as recorded, the category; their sequence."""

    shapes: dict[str, dict[str, _PerStep]]
    shown: dict[str, str]
    categories: dict[str, str]
    sequence: Names

    def total(self, name: str) -> _PerStep:
        """All shapes together."""
        return sum(self.shapes.get(name, {}).values(), _PerStep())

    def keep(self, name: str, share: float) -> None:
        """So much of a kernel, for the rest is told of elsewhere."""
        self.shapes[name] = {shape: one * share for shape, one in self.shapes[name].items()}

    def as_recorded(self, names: Names) -> Names:
        """Names as the recording has them."""
        return tuple(self.shown[name] for name in names)


def kernel_changes(base: Sequence[KernelSums], candidate: Sequence[KernelSums]) -> tuple[KernelChange, ...]:
    """All kernels of the recordings of two sides, the largest change first. Their changes add up to that of the busy
    time but for rounding.
    """
    told = _with_inputs(base) & _with_inputs(candidate)
    sides = _side(base, told), _side(candidate, told)
    found = [*_replaced(*sides), *_matched(*sides)]
    some = [one for one in found if one.base_ns or one.candidate_ns]
    return tuple(sorted(some, key=lambda one: (-abs(one.change_ns), one.base, one.candidate, one.shape)))


def _with_inputs(recordings: Sequence[KernelSums]) -> set[str]:
    """Kernels whose input shapes are known wherever they are: a graph replay, say, does not tell them."""
    names = [(spelt(time.kind, time.name), bool(time.inputs)) for one in recordings for time in one.times]
    return {name for name, _ in names} - {name for name, known in names if not known}


def _side(recordings: Sequence[KernelSums], with_inputs: set[str]) -> _Side:
    steps = max(1, sum(one.device_steps for one in recordings))
    side = _Side({}, {}, {}, recordings[0].sequence if recordings else ())
    for time in (time for one in recordings for time in one.times):
        name = spelt(time.kind, time.name)
        shape = " ".join(filter(None, (time.geometry, time.inputs if name in with_inputs else "")))
        of_name = side.shapes.setdefault(name, {})
        of_name[shape] = of_name.get(shape, _PerStep()) + _PerStep(time.ns / steps, time.count / steps)
        side.shown.setdefault(name, name if time.kind == "graph" else time.name)
        side.categories.setdefault(name, time.category)
    return side


# ---- replaced --------------------------------------------------------------------------------------------------------


def _replaced(before: _Side, after: _Side) -> Iterator[KernelChange]:
    """Places of a step in which the sides have different kernels, if one of them is nowhere on the other side: kernels
    that both have merely moved. What is told here is taken off the sides.
    """
    one_sided = (before.shapes.keys() ^ after.shapes.keys()) & {*before.sequence, *after.sequence}
    if not one_sided:
        return
    stretches = _stretches(before.sequence, after.sequence)
    seen = [Counter(name for one in stretches for name in one.sides[at]) for at in (0, 1)]
    places = Counter(
        one.sides for one in stretches if one.tag == "replace" and one_sided & {*one.sides[0], *one.sides[1]}
    )
    left = [Counter(counter) for counter in seen]
    for (old, new), times in places.items():
        was = sum((before.total(name) * (times / seen[0][name]) for name in old), _PerStep())
        now = sum((after.total(name) * (times / seen[1][name]) for name in new), _PerStep())
        names = before.as_recorded(old), after.as_recorded(new)
        yield _change("replaced", names, after.categories[new[0]], "", (was, now))
        for counter, told in zip(left, (old, new), strict=True):
            counter.subtract(told * times)
    for side, counts, rest in zip((before, after), seen, left, strict=True):
        for name, count in counts.items():
            side.keep(name, rest[name] / count)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Kernels of both sides in the same place. tag: "equal", "replace", "insert" or "delete"."""

    tag: str
    sides: tuple[Names, Names]


def _stretches(first: Names, second: Names) -> list[_Stretch]:
    """Two sequences side by side; of long ones the begin and the end."""
    if max(len(first), len(second)) <= _HEAD + _TAIL:
        return _opcodes(first, second)
    end = _begin(first[::-1], second[::-1], _TAIL)
    turned = [_Stretch(one.tag, (one.sides[0][::-1], one.sides[1][::-1])) for one in end]
    return [*_begin(first, second, _HEAD), *turned]


def _begin(first: Names, second: Names, most: int) -> list[_Stretch]:
    """As far as each side goes on with what the other has, too: where one is cut, the other may go on alone."""
    found = _opcodes(first[:most], second[:most])
    shared = [at for at, one in enumerate(found) if one.tag == "equal"]
    return found[: shared[-1] + 1] if shared else []


def _opcodes(first: Names, second: Names) -> list[_Stretch]:
    codes = SequenceMatcher(None, first, second, autojunk=False).get_opcodes()
    return [_Stretch(tag, (first[i:k], second[j:m])) for tag, i, k, j, m in codes]


# ---- matched ---------------------------------------------------------------------------------------------------------


def _matched(before: _Side, after: _Side) -> Iterator[KernelChange]:
    """What is left, by name and shape; of a name that both have, what no shape matches is one."""
    for name in dict.fromkeys((*before.shapes, *after.shapes)):
        base, candidate = before.shapes.get(name, {}), after.shapes.get(name, {})
        category = (after if candidate else before).categories[name]
        both = before.shown.get(name, ""), after.shown.get(name, "")
        for shape in base.keys() & candidate.keys():
            yield _change("same", ((both[0],), (both[1],)), category, shape, (base[shape], candidate[shape]))
        was, now = _rest(base, candidate), _rest(candidate, base)
        match: Match = "other shape" if was.is_some and now.is_some else "gone" if was.is_some else "new"
        names = (both[0],) if was.is_some else (), (both[1],) if now.is_some else ()
        yield _change(match, names, category, "", (was, now))


def _rest(side: Mapping[str, _PerStep], other: Mapping[str, _PerStep]) -> _PerStep:
    return sum((one for shape, one in side.items() if shape not in other), _PerStep())


def _change(
    match: Match, names: tuple[Names, Names], category: str, shape: str, times: tuple[_PerStep, _PerStep]
) -> KernelChange:
    was, now = times
    counts = round(was.count, 3), round(now.count, 3)
    return KernelChange(match, *names, category, shape, round(was.ns), round(now.ns), *counts)
