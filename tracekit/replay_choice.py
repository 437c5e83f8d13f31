"""Which steps stand for all? Of each phase and batch size on each device, some along the range of step times.

A step whose replay is off by too much stands for nothing; where the middle one is, no estimate is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracekit.analysis import duration
from tracekit.replay_pace import Pace, pace_of
from tracekit.replay_step import Step, load_step
from tracekit.scope import Scope
from tracekit.trace import Trace
from tracekit.wording import counted

MAX_ERROR = 0.05  # of the step time: an estimate by a replay that is further off is refused
MISSING_SHARE = 0.02  # of launches without device work: beyond, holes in the work are lost records
_QUANTILES = (0.1, 0.5, 0.9)
_LONGEST = 100_000  # rows of a trace without steps that is replayed as one


@dataclass(frozen=True, slots=True)
class Group:
    """Steps of one phase and batch size on one device. steps: their numbers; (None,) for a trace without steps, as
    a whole. max_error: of a replay, beyond which it stands for nothing. chosen: those replayed, by step time, the
    middle one the median. total_ns: their time in all. refusal: why nothing can be said of them, "" if something
    can.
    """

    rank: int
    device: int | None
    phase: str
    bucket: str
    steps: tuple[int | None, ...]
    chosen: tuple[Step, ...]
    total_ns: int
    refusal: str = ""
    max_error: float = MAX_ERROR

    @property
    def median(self) -> Step:
        """The step of median time."""
        return self.chosen[len(self.chosen) // 2]

    @property
    def key(self) -> tuple[int, int | None, str, str]:
        """What tells its steps, whatever the bound of the error."""
        return self.rank, self.device, self.phase, self.bucket

    @property
    def error(self) -> float:
        """Of the replay of the median step, as a share of its time."""
        return self.median.error if self.chosen else 0.0

    @property
    def label(self) -> str:
        """As texts name them: "decode 5-8"; "" for a trace without steps."""
        named = [self.phase if self.phase != "unknown" else "", self.bucket if self.bucket != "unknown" else ""]
        return " ".join(one for one in named if one)


def groups(trace: Trace, *, max_error: float = MAX_ERROR, missing_share: float = MISSING_SHARE) -> tuple[Group, ...]:
    """All groups of a trace or of the part of it that is looked at, those that take most time first; asked again, the
    same.
    """
    found: tuple[Group, ...] = trace.once(
        ("replay groups", max_error, missing_share), lambda: tuple(_groups(trace, max_error, missing_share))
    )
    return found


def _groups(trace: Trace, max_error: float, missing_share: float) -> list[Group]:
    times = trace.macro("step_time").to_pylist()
    losses = _losses(trace, missing_share)
    paces: dict[tuple[int, int | None], Pace] = {}
    found = []
    for (rank, device, phase, bucket), of_group in _grouped(times).items():
        pace = paces.setdefault((rank, device), pace_of(trace, rank, device))
        steps = tuple(one["step"] for one in of_group)
        total = sum(_time(one) for one in of_group)
        chosen = _chosen(of_group)
        loaded = [_loaded(trace, pace, step, (rank, device, phase, bucket), lead=step - 1 in steps) for step in chosen]
        empty = Group(rank, device, phase, bucket, steps, (), total, losses)
        found.append(_filled(empty, loaded, max_error))
    if not times and not _is_part_of_time(trace.scope):
        found += _whole(trace, losses, max_error)
    return sorted(found, key=lambda one: (-one.total_ns, one.rank, one.device or 0, one.phase, one.bucket))


def _is_part_of_time(scope: Scope) -> bool:
    """Whether more than ranks and devices is chosen: without steps, a part of the time cannot be replayed."""
    return bool(replace(scope, ranks=(), devices=()))


def _loaded(
    trace: Trace, pace: Pace, step: int | None, of: tuple[int, int | None, str, str], *, lead: bool = False
) -> Step | None:
    """The step, the same object each time it is asked for, whatever the bounds."""
    rank, device, phase, bucket = of
    found: Step | None = trace.once(
        ("replay step", rank, device, step, lead),
        lambda: load_step(trace, pace, rank, device, step, phase=phase, bucket=bucket, lead=lead),
    )
    return found


def _grouped(times: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int | None, str, str], list[Mapping[str, Any]]]:
    """Steady steps by device, phase and batch; of what has none, the others."""
    found: dict[tuple[int, int | None, str, str], list[Mapping[str, Any]]] = {}
    for one in times:
        found.setdefault((one["rank"], one["device"], one["phase"], one["bucket"]), []).append(one)
    return {key: [one for one in rows if one["kind"] == "steady"] or rows for key, rows in found.items()}


def _time(step: Mapping[str, Any]) -> int:
    return int(step["wall_ns"] if step["period_ns"] is None else step["period_ns"])


def _chosen(steps: Sequence[Mapping[str, Any]]) -> list[int]:
    """Steps along the range of times. Those that a next one follows go first: where a step ends is then known."""
    followed = [one for one in steps if one["period_ns"] is not None] or list(steps)
    by_time = sorted(followed, key=lambda one: (_time(one), one["step"]))
    places = sorted({round(share * (len(by_time) - 1)) for share in _QUANTILES})
    if len(places) == 2:
        places = places[:1]  # of two no one is in the middle
    return [by_time[place]["step"] for place in places]


def _filled(group: Group, loaded: Sequence[Step | None], max_error: float) -> Group:
    """The group with its steps, but for those whose replay is too far off."""
    known = [one for one in loaded if one is not None]
    if not known:
        return replace(group, refusal=group.refusal or "its work on the device was not recorded")
    middle = known[len(known) // 2]
    refusal = group.refusal or ("" if middle.measured_ns else "its work on the device took no time")
    if middle.error > max_error:
        refusal = refusal or (
            f"replayed without any change the step takes {duration(middle.replayed_ns)}, recorded "
            f"{duration(middle.measured_ns)}: {middle.error:.1%} off, more than {max_error:.0%}"
        )
    kept = [one for one in known if one is middle or one.error <= max_error]
    if kept[len(kept) // 2] is not middle:
        kept = [middle]
    return replace(group, chosen=tuple(kept), refusal=refusal, max_error=max_error)


def _whole(trace: Trace, losses: str, max_error: float) -> list[Group]:
    """A trace without steps, each device as one."""
    found = []
    for one in trace.macro("device_time").to_pylist():
        rank, device = one["rank"], one["device"]
        if one["count"] > _LONGEST:
            refusal = (
                f"no steps are marked, and {counted(one['count'], 'device row')} are too many to replay as one: mark "
                "them (--step-range REGEX)"
            )
            found.append(Group(rank, device, "unknown", "unknown", (None,), (), one["span_ns"], refusal))
            continue
        loaded = _loaded(trace, pace_of(trace, rank, device), None, (rank, device, "unknown", "unknown"))
        empty = Group(rank, device, "unknown", "unknown", (None,), (), one["span_ns"], losses)
        found.append(_filled(empty, [loaded], max_error))
    return found


def _losses(trace: Trace, missing_share: float) -> str:
    """Why holes in the work of the device are no idle time, "" if they are."""
    # With the parameter that idle_gaps gives: so it is measured once.
    (found,) = trace.whole.macro("recording_losses", {"graph_hole_ns": 100_000}).to_pylist()
    for silent, of, what in (
        (found["graphs_silent"], found["graphs"], "graph replay"),
        (found["calls_silent"], found["calls"], "launch call"),
    ):
        if silent > 1 and silent > missing_share * of:
            return f"{silent:,} of {counted(of, what)} left no device work in the trace: its holes may be lost records"
    return ""
