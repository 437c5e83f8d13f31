"""Which part of a trace is looked at: steps of some phases, ranks, devices, a window of time.

Rows and gaps are chosen by step (a gap by the step of the row that ended it), rank and device, and cut to the window;
scope.sql does it. Here is what can be asked for, as values and as text, and what is said where it does not exist.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tracekit.analysis import Row, duration
from tracekit.errors import UsageError
from tracekit.ranges import PHASES
from tracekit.wording import counted

if TYPE_CHECKING:
    import pyarrow as pa

Steps = tuple[int | None, int | None]

_ALL: Steps = (None, None)
_OUTSIDE = -1  # in scope_steps: rows outside all steps
_UNITS = (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1))
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(s|ms|us|ns)")
_STEPS = re.compile(r"(-?\d+)?(?:(:)(-?\d+)?)?")
_LISTED = 8  # values named in a message

_EXTENTS = """
    SELECT
        rank,
        device,
        min(ts) AS ts,
        max(ts + dur) AS end_ts
    FROM device_activity
    GROUP BY rank, device
    ORDER BY rank, device
"""
_STEPS_THERE = "SELECT rank, step, phase FROM steps ORDER BY rank, step"
_KEPT = """
    SELECT
        EXISTS (
            FROM device_activity
            WHERE in_scope(rank, device, step)
                AND in_window(ts, dur)
        ) AS rows,
        EXISTS (
            FROM events
            WHERE kind IN ('op', 'annotation')
                AND in_scope(rank, NULL, step)
                AND in_window(ts, dur)
        ) AS host
"""


@dataclass(frozen=True, slots=True)
class Scope:
    """What is looked at; each part empty or None where everything is.

    steps: (first, end), a slice of each rank's steps as in Python, negative from the end. start_ns, end_ns: from the
    trace's start, the end itself not included.
    """

    phases: tuple[str, ...] = ()
    steps: Steps = _ALL
    ranks: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    start_ns: int | None = None
    end_ns: int | None = None

    def __post_init__(self) -> None:
        if wrong := [phase for phase in self.phases if phase not in PHASES]:
            raise UsageError(f"no phase {wrong[0]!r}; phases are: {', '.join(PHASES)}")
        if self.start_ns is not None and self.end_ns is not None and self.start_ns >= self.end_ns:
            raise UsageError(f"no time lies from {in_units(self.start_ns)} until {in_units(self.end_ns)}")

    def __bool__(self) -> bool:
        return self != Scope()

    def __str__(self) -> str:
        """For a reader: "phase decode, steps 3:8, rank 0, from 1.2s until 3s"."""
        return ", ".join(self._words())

    def _words(self) -> Iterator[str]:
        if self.phases:
            yield f"phase {_either(self.phases)}"
        if self.steps != _ALL:
            text = slice_text(self.steps)
            yield f"steps {text}" if ":" in text else f"step {text}"
        if self.ranks:
            yield f"rank {_either(self.ranks)}"
        if self.devices:
            yield f"device {_either(self.devices)}"
        window = [(word, ns) for word, ns in (("from", self.start_ns), ("until", self.end_ns)) if ns is not None]
        if window:
            yield " ".join(f"{word} {in_units(ns)}" for word, ns in window)

    def arguments(self) -> list[str]:
        """As on the command line: ["--phase", "decode", "--steps", "3:8"]."""
        given: list[tuple[str, object]] = [("--phase", phase) for phase in self.phases]
        if self.steps != _ALL:
            given.append(("--steps", slice_text(self.steps)))
        given += [("--rank", rank) for rank in self.ranks]
        given += [("--device", device) for device in self.devices]
        if self.start_ns is not None:
            given.append(("--since", in_units(self.start_ns)))
        if self.end_ns is not None:
            given.append(("--until", in_units(self.end_ns)))
        return [str(word) for pair in given for word in pair]

    def to_json(self) -> Row:
        """What is set, by the names that `Trace.only` takes."""
        named: Row = {
            "phase": list(self.phases),
            "steps": [] if self.steps == _ALL else list(self.steps),
            "rank": list(self.ranks),
            "device": list(self.devices),
            "since_ns": self.start_ns,
            "until_ns": self.end_ns,
        }
        return {key: value for key, value in named.items() if value not in ([], None)}

    def narrowed(self, other: Scope) -> Scope:
        """Both together. Raises UsageError where both choose by the same thing: which one would be meant?"""
        mine, others = (
            {one.name: getattr(scope, one.name) for one in fields(scope) if getattr(scope, one.name) != one.default}
            for scope in (self, other)
        )
        if twice := sorted(mine.keys() & others.keys()):
            raise UsageError(f"{twice[0]} were chosen already ({self}); choose anew from the whole trace")
        return replace(self, **others)


def scope_of(
    *,
    phase: str | Sequence[str] | None = None,
    steps: int | Sequence[int | None] | None = None,
    rank: int | Sequence[int] | None = None,
    device: int | Sequence[int] | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
) -> Scope:
    """A Scope from one value or several of each; steps: one, or (first, end) where None leaves a side open.

    Raises UsageError for what is no whole number, and for an empty list: that nothing was found is no reason to look
    at everything.
    """
    try:
        return Scope(
            phases=_several("phase", [phase] if isinstance(phase, str) else phase, str),
            steps=_ALL if steps is None else _slice(steps),
            ranks=_several("rank", _listed(rank), operator.index),
            devices=_several("device", _listed(device), operator.index),
            start_ns=None if since_ns is None else operator.index(since_ns),
            end_ns=None if until_ns is None else operator.index(until_ns),
        )
    except TypeError as error:
        raise UsageError(f"steps, ranks, devices and nanoseconds are whole numbers: {error}") from error


def _listed(values: int | Sequence[int] | None) -> Sequence[int] | None:
    return values if values is None or isinstance(values, Iterable) else [values]


def _several(what: str, values: Sequence[Any] | None, made: Callable[[Any], Any]) -> tuple[Any, ...]:
    if values is not None and not len(values):
        raise UsageError(f"no {what} at all was chosen; leave it out to look at all of them")
    return tuple(dict.fromkeys(made(value) for value in values or ()))


def _slice(steps: int | Sequence[int | None]) -> Steps:
    if isinstance(steps, (bool, range)):  # steps 1 and 0, or these steps one by one, to whoever writes that
        raise UsageError(f"steps are one number, or (first, end) of which the end is not included: not {steps!r}")
    if not isinstance(steps, Sequence):
        first = operator.index(steps)
        return first, None if first == -1 else first + 1
    if len(steps) != 2:
        raise UsageError(f"steps are one number or (first, end), not {steps!r}")
    first_, end = (None if one is None else operator.index(one) for one in steps)
    return first_, end


# ---- as text ---------------------------------------------------------------------------------------------------------


def parse_steps(text: str) -> Steps:
    """ "3:8" is steps 3 to 7, "3:" all from 3 on, "-5:" the last five, "5" one step."""
    match = _STEPS.fullmatch(text.strip())
    if match is None or not text.strip():
        raise UsageError(f"{text!r} is no range of steps; write 3:8 (8 not included), 3:, :8, -5: (the last five) or 5")
    first, end = (None if match[at] is None else int(match[at]) for at in (1, 3))
    return (first, end) if match[2] or first is None else _slice(first)


def slice_text(steps: Steps) -> str:
    """The reverse of `parse_steps`."""
    first = steps[0]
    if first is not None and _slice(first) == steps:
        return str(first)
    return ":".join("" if one is None else str(one) for one in steps)


def parse_duration(text: str) -> int:
    """Nanoseconds of "1.2s", "350ms", "20us" or "5ns", exactly."""
    match = _DURATION.fullmatch(text.strip().replace("µ", "u").replace("μ", "u"))
    if match is None:
        raise UsageError(
            f"{text!r} is no time; write a number and its unit, from the trace's start: 1.2s, 350ms, 20us, 5ns"
        )
    ns = Decimal(match[1]) * dict(_UNITS)[match[2]]
    if ns != ns.to_integral_value():
        raise UsageError(f"{text!r} is finer than a nanosecond")
    return int(ns)


def in_units(ns: int) -> str:
    """The reverse of `parse_duration`: "1.2s"."""
    unit, size = next(one for one in _UNITS if not ns or abs(ns) >= one[1])
    return f"{(Decimal(ns) / size).normalize():f}{unit}"


def _either(values: Sequence[object]) -> str:
    return " or ".join(map(str, values))


def _some(values: Iterable[object]) -> str:
    named = list(map(str, values))
    return ", ".join(named[:_LISTED]) + (f", ... ({len(named)} in all)" if len(named) > _LISTED else "")


# ---- against a trace -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inventory:
    """What there is to choose from: ranks, extents of each device's work, and steps (rows: rank, step, phase)."""

    ranks: Sequence[int]
    extents: Sequence[Row]
    steps: Sequence[Row]

    def __str__(self) -> str:
        parts = [f"ranks {_some(self.ranks)}"]
        if self.extents:
            parts += [f"devices {_some(self.devices())}", f"device work {self.window()}"]
        if self.steps:
            parts += [f"phases {self.phases()}", f"steps {self.numbers()}"]
        return "; ".join(parts)

    def devices(self) -> list[int]:
        """Devices with work."""
        return sorted({row["device"] for row in self.extents if row["device"] is not None})

    def window(self) -> str:
        """When devices worked."""
        ends = min(row["ts"] for row in self.extents), max(row["end_ts"] for row in self.extents)
        return f"from {duration(ends[0])} to {duration(ends[1])}"

    def phases(self) -> str:
        """Each with its number of steps, summed over ranks."""
        counts = Counter(row["phase"] for row in self.steps)
        return ", ".join(f"{phase} ({counted(count, 'step')})" for phase, count in counts.most_common())

    def numbers(self) -> str:
        """First to last step; by rank where they differ."""
        last: dict[int, int] = {row["rank"]: row["step"] for row in self.steps}
        if len(set(last.values())) == 1:
            return _first_to(next(iter(last.values())))
        return _some(f"{_first_to(step)} of rank {rank}" for rank, step in last.items())


def _first_to(step: int) -> str:
    return f"0 to {step}" if step else "0"


def inventory(ranks: Sequence[int], query: Callable[[str], pa.Table]) -> Inventory:
    """What a trace has to choose from; `query` runs SQL over all of it."""
    return Inventory(ranks, query(_EXTENTS).to_pylist(), query(_STEPS_THERE).to_pylist())


def chosen_steps(scope: Scope, there: Inventory) -> list[tuple[int, int]] | None:
    """The rows of scope_steps: rank and step of what phases and steps choose, None if they do not choose.

    Raises UsageError, naming what exists, for a rank, device, phase, step or time that the trace does not have.
    """
    _check(scope, there)
    if not scope.phases and scope.steps == _ALL:
        return None
    by_rank: dict[int, list[Row]] = {}
    for row in there.steps:
        by_rank.setdefault(row["rank"], []).append(row)
    sliced = [row for rows in by_rank.values() for row in rows[slice(*scope.steps)]]
    if scope.steps != _ALL and not sliced:
        raise UsageError(f"no step lies in {slice_text(scope.steps)}; there are: {there.numbers()}")
    chosen = [(row["rank"], row["step"]) for row in sliced if not scope.phases or row["phase"] in scope.phases]
    if scope.steps == _ALL and "unknown" in scope.phases:
        chosen += [(rank, _OUTSIDE) for rank in there.ranks]
    return chosen


def _check(scope: Scope, there: Inventory) -> None:
    if absent := [rank for rank in scope.ranks if rank not in there.ranks]:
        raise UsageError(f"no rank {absent[0]} in this trace; there are: {_some(there.ranks)}")
    if scope.devices and not there.extents:
        raise UsageError("no device can be chosen: no device activity in this trace")
    if absent := [device for device in scope.devices if device not in there.devices()]:
        raise UsageError(f"no work of device {absent[0]} in this trace; there are: {_some(there.devices())}")
    named = [phase for phase in scope.phases if phase != "unknown"]
    if not there.steps and (named or scope.steps != _ALL):
        raise UsageError(
            "neither step nor phase can be chosen: no serving steps were found in this trace; record one with an "
            "engine's marks, or name its ranges (--step-range)"
        )
    if absent_phases := set(named) - {row["phase"] for row in there.steps}:
        phase = next(one for one in named if one in absent_phases)
        raise UsageError(f"no step is of phase {phase} in this trace; there are: {there.phases()}")


def refuse_empty(scope: Scope, there: Inventory, query: Callable[[str], pa.Table]) -> None:
    """Raise UsageError if nothing is left. `query` runs SQL within the scope."""
    (kept,) = query(_KEPT).to_pylist()
    found = kept["rows"] if there.extents else kept["host"]
    # Part of a gap is something too, but where gaps are only all rows together tell.
    if not found and not query("FROM device_time()").num_rows:
        raise UsageError(f"nothing is left of this trace (only {scope}); there are: {there}")
