"""What would CUDA graphs win in a step, region by region, and what stands between the regions?

A region is what could be captured: one graph, or several alike. Its saving comes from replaying the step with it as a
graph. The regions of a group go one on top of the other, so their savings add up; what removing the blockers between
them would add is a region of its own, the last. The rules are in docs/cuda_graphs.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tracekit.analysis import duration
from tracekit.arrays import Int64s
from tracekit.changes import Change, Graph, captured
from tracekit.gains import Estimate, joint
from tracekit.graph_blockers import Blocker, blockers_of
from tracekit.graph_pieces import Period, Pieces, alike, period_of, pieces_of, same_places
from tracekit.graph_times import Calls, indexes, repeats, times
from tracekit.replay import Schedule
from tracekit.replay_choice import MAX_ERROR, Group, groups
from tracekit.replay_edits import without_waits
from tracekit.replay_step import Step
from tracekit.trace import Trace
from tracekit.wording import counted

WORTH, MAY_HELP, GPU_BOUND = "worth it", "may help", "GPU-bound, will not help"
ALREADY, ONCE, CANNOT_TELL, BLOCKED = "already a graph", "seen once", "cannot tell", "blocked by "
TOO_FEW = "too few launches"
_MUCH_IDLE = 0.1  # of a region's time: where so much is idle, it is its shortness that leaves nothing to win
_MOST_PARTS = 8  # regions of one kind named apart in a step; pieces of further kinds are told together


@dataclass(frozen=True, slots=True)
class Limits:
    """Thresholds. min_launches: of a graph. gpu_bound_share: of the step; where the saving is below it even at best,
    graphs do not help. graphed_share: of what could be captured, that comes from one replay where it is a graph.
    """

    min_launches: int = 5
    gpu_bound_share: float = 0.02
    graphed_share: float = 0.9


DEFAULTS = Limits()


@dataclass(frozen=True, slots=True)
class OneGraph:
    """All that could be captured in a step becomes one graph; calls that a capture does not allow are gone."""

    name: str
    of: Calls
    blocking: Calls

    def calls(self, step: Step) -> list[Int64s]:
        """Indexes of the calls that are captured."""
        return indexes(self.of, step)

    def apply(self, step: Step, schedule: Schedule, optimistic: bool) -> Schedule:
        """As a Change does."""
        for waiting in indexes(self.blocking, step):
            schedule = without_waits(schedule, waiting)
        for calls in self.calls(step):
            schedule = captured(step, schedule, calls, optimistic)
        return schedule


@dataclass(frozen=True, slots=True)
class Region:
    """What could be captured in the steps of a group. pieces: graphs in a step; launches, kernels, replays: of all of
    them. repeats: steps of the group in which the same kinds of work come in the same order. wall_ns: from its
    first launch (or the start of the step's work) to the end of its work, gpu_ns: of that busy; by the median of the
    chosen steps. estimate: None where nothing
    is promised. change: what to replay, to see what it wins.
    """

    group: Group
    label: str
    pieces: int
    launches: int
    kernels: int
    replays: int
    repeats: int
    period: Period | None
    wall_ns: int
    gpu_ns: int
    change: Graph | OneGraph | None = None
    blockers: tuple[Blocker, ...] = ()
    estimate: Estimate | None = None
    verdict: str = CANNOT_TELL
    reason: str = ""

    @property
    def idle_ns(self) -> int:
        """Of wall_ns, the time in which the device did nothing."""
        return self.wall_ns - self.gpu_ns

    @property
    def is_whole(self) -> bool:
        """It is all of a step that could be captured, with what stands between taken away."""
        return isinstance(self.change, OneGraph)

    def calls(self, step: Step) -> list[Int64s]:
        """Indexes of the calls of each graph in a chosen step."""
        return [] if self.change is None else list(self.change.calls(step))


def regions(trace: Trace, limits: Limits = DEFAULTS, *, max_error: float = MAX_ERROR) -> tuple[Region, ...]:
    """All regions of a trace or of the part of it that is looked at, groups with most time first."""
    found: tuple[Region, ...] = trace.once(
        ("graph regions", limits, max_error),
        lambda: tuple(one for group in groups(trace, max_error=max_error) for one in _regions(trace, group, limits)),
    )
    return found


def decode_graph(trace: Trace, group: Group) -> OneGraph:
    """Everything of a group's steps that could be captured as one graph, blockers assumed gone."""
    found = _pieces(trace, group)
    return _one_graph(group, found)


def _one_graph(group: Group, found: Mapping[int | None, Pieces]) -> OneGraph:
    name = f"CUDA graph of {_whole_name(group)}" + (f" ({group.label})" if group.label else "")
    return OneGraph(
        name,
        {step: (one.whole,) for step, one in found.items()},
        {step: (one.blocking,) for step, one in found.items()},
    )


def _pieces(trace: Trace, group: Group) -> dict[int | None, Pieces]:
    """Of the chosen steps and of those that lead them in."""
    steps = [one for step in group.chosen for one in (step.lead, step) if one is not None]
    return {step.step: pieces_of(trace, group, step) for step in steps}


def _whole_name(group: Group) -> str:
    return "the step" if group.phase == "unknown" else "the forward pass"


def _regions(trace: Trace, group: Group, limits: Limits) -> list[Region]:
    if group.refusal or not group.chosen:
        return [
            Region(group, _whole_name(group), 0, 0, 0, 0, 0, None, 0, 0, reason=group.refusal or "no step to replay")
        ]
    found = _pieces(trace, group)
    reference = found[group.median.step]
    if not len(reference.whole):
        why = "no launch of the step was recorded on the thread that launches, so nothing can be captured"
        return [Region(group, _whole_name(group), 0, 0, 0, 0, 0, None, 0, 0, reason=why)]
    blockers = blockers_of(trace, group)
    whole = _whole(group, found, blockers, repeats(trace, group, range(len(reference.pieces))))
    if reference.replays == 1 and reference.replayed >= limits.graphed_share * reference.rows:
        few = counted(reference.rows - reference.replayed, "kernel")
        said = f"one replay brings {counted(reference.replayed, 'kernel')}; launched beside it: {few}; nothing to win"
        return [replace(whole, verdict=ALREADY, reason=said, change=None)]
    if whole.launches < limits.min_launches:
        return [replace(whole, verdict=TOO_FEW, reason=f"{launches(whole.launches)} in a step", change=None)]
    parts = [replace(_part(trace, group, found, places), blockers=blockers) for places in _grouped(reference, limits)]
    if len(reference.pieces) == 1 and len(parts) == 1:
        candidates = [replace(parts[0], label=whole.label)]
    elif reference.paused:
        candidates = parts
    else:
        candidates = [*parts, replace(whole, label=f"{whole.label} as one graph")]
    if not candidates:
        return [
            replace(whole, verdict=TOO_FEW, reason="each piece between two pauses is shorter than a graph", change=None)
        ]
    changes: list[Change] = [one.change for one in candidates if one.change is not None]
    estimates = joint(group, changes)
    judged = [
        _judged(replace(one, estimate=estimated), limits) for one, estimated in zip(candidates, estimates, strict=True)
    ]
    return [one for one in judged if not (one.is_whole and parts and one.verdict == GPU_BOUND)]


def _grouped(reference: Pieces, limits: Limits) -> list[tuple[int, ...]]:
    """Places of the pieces of each region, by what they do; those of many kinds in the last one."""
    kinds = alike(reference.pieces, limits.min_launches)
    if len(kinds) <= _MOST_PARTS:
        return kinds
    rest = tuple(sorted(place for places in kinds[_MOST_PARTS - 1 :] for place in places))
    return [*kinds[: _MOST_PARTS - 1], rest]


def _part(trace: Trace, group: Group, found: Mapping[int | None, Pieces], places: tuple[int, ...]) -> Region:
    reference = found[group.median.step]
    chosen = [reference.pieces[place] for place in places]
    ids = {step: tuple(piece.ids for piece in same_places(reference, one, places)) for step, one in found.items()}
    longest = max(chosen, key=len)
    sizes = sorted({len(piece) for piece in chosen})
    size = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]}-{sizes[-1]}"
    count = len(places)
    label = f"{count} pieces of {size} launches" if count > 1 else f"piece {places[0] + 1} of {len(reference.pieces)}"
    wall, gpu = times(group, ids)
    return Region(
        group=group,
        label=label,
        pieces=count,
        launches=sum(map(len, chosen)),
        kernels=sum(piece.rows for piece in chosen),
        replays=sum(piece.replays for piece in chosen),
        repeats=repeats(trace, group, places),
        period=period_of(longest.token),
        wall_ns=wall,
        gpu_ns=gpu,
        change=Graph(f"CUDA graph: {label}", _Chosen(ids)),
    )


def _whole(group: Group, found: Mapping[int | None, Pieces], blockers: tuple[Blocker, ...], repeats: int) -> Region:
    reference = found[group.median.step]
    change = _one_graph(group, found)
    wall, gpu = times(group, change.of)
    launches = np.concatenate([piece.token for piece in reference.pieces] or [np.zeros(0, np.int64)])
    return Region(
        group=group,
        label=_whole_name(group),
        pieces=1,
        launches=len(reference.whole),
        kernels=reference.rows,
        replays=reference.replays,
        repeats=repeats,
        period=period_of(launches),
        wall_ns=wall,
        gpu_ns=gpu,
        change=change,
        blockers=blockers,
    )


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Calls by the step: what Graph asks for."""

    of: Calls = field(repr=False)

    def __call__(self, step: Step) -> list[Int64s]:
        return indexes(self.of, step)


# ---- verdicts --------------------------------------------------------------------------------------------------------


def _judged(region: Region, limits: Limits) -> Region:
    found = region.estimate
    assert found is not None
    share = limits.gpu_bound_share * found.before_ns
    steps = len(region.group.steps)
    repeated = region.period is not None or region.pieces > 1
    if found.saving_high_ns < share:
        verdict, reason = GPU_BOUND, _gpu_bound(region, found)
    elif region.repeats < 2 and not repeated:
        return replace(region, estimate=None, change=None, verdict=ONCE, reason=_once(steps))
    elif region.is_whole:
        verdict, reason = BLOCKED + _first_kind(region), _blocked(region)
    else:
        verdict, reason = WORTH if found.saving_low_ns >= share else MAY_HELP, _worth(region)
    return replace(region, verdict=verdict, reason=reason)


def launches(count: int) -> str:
    """So many launches in words."""
    return f"{count:,} launch{'es' * (count != 1)}"


def _first_kind(region: Region) -> str:
    inside = [one for one in region.blockers if one.place == "inside" and one.splits]
    return inside[0].kind if inside else "what lies between"


def _gpu_bound(region: Region, found: Estimate) -> str:
    if region.idle_ns > _MUCH_IDLE * region.wall_ns:
        whole = f"it takes {duration(region.wall_ns)} of {duration(found.before_ns)}"
        return f"{launches(region.launches)}; {whole}, at most {duration(found.saving_high_ns)} of that are to be won"
    idle = f"the device idles {duration(region.idle_ns)} of the {duration(region.wall_ns)} that their work takes"
    return f"{launches(region.launches)}, but {idle}"


def _worth(region: Region) -> str:
    steps = len(region.group.steps)
    seen = f"the same in {region.repeats:,} of {steps:,} steps" if steps > 1 else ""
    if region.replays:
        eager = launches(region.launches - region.replays)
        pieces = f"{counted(region.replays, 'replay')} and {eager} between them"
        return "; ".join(filter(None, (f"{pieces}: a full graph leaves none of the pauses between", seen)))
    repeated = f"launches repeat {region.period}" if region.period is not None else ""
    several = f"{region.pieces} alike in a step" if region.pieces > 1 else ""
    return "; ".join(filter(None, (repeated, several, seen)))


def _blocked(region: Region) -> str:
    inside = [one for one in region.blockers if one.place == "inside" and one.splits]
    kinds = list(dict.fromkeys(one.kind for one in inside))
    return f"{', '.join(kinds) or 'calls'} between the pieces: what one graph would win on top if nothing stood between"


def _once(steps: int) -> str:
    if steps > 1:
        return "no other step launches the same sequence, and nothing repeats within it: pad to a few sizes, or compile"
    return "one step was recorded and nothing repeats within it: record more steps of this size"
