"""Which kernels of a trace could be one, by pattern and kind of step? What analysis, plan and whatif build on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from tracekit.changes import Change, Fuse, FusedRows
from tracekit.fusion_chains import PATTERN as CHAIN
from tracekit.fusion_chains import chains, is_compiled
from tracekit.fusion_estimate import DEFAULTS, Device, Limits, device_of, fused
from tracekit.fusion_evidence import Evidence, Grade, evidence_of
from tracekit.fusion_inputs import inputs_of
from tracekit.fusion_match import Match, Scene
from tracekit.fusion_patterns import Catalogue, Pattern, catalogue
from tracekit.gains import Estimate, applied, joint, worst_and_best
from tracekit.replay_choice import MAX_ERROR, Group, groups
from tracekit.replay_step import Step
from tracekit.roofline_names import kernel_name
from tracekit.trace import Trace

CANDIDATE, PARTLY, ACTIVE, NOT_FUSIBLE = "candidate", "partly active", "active", "not fusible"


@dataclass(frozen=True, slots=True)
class Found:
    """A match with its evidence, and the fused kernel it would be."""

    match: Match
    evidence: Evidence
    fused: FusedRows


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pattern in the steps of a group. grade: that of most of the matches' time. kernels: names of the most frequent
    sequence; others: how many other sequences there are. count: fused kernels there would be, launches: kernels there
    are, time_ns, bytes_removed: in the median step. active: names of fused kernels that run there, and how often.
    example: ids of the rows of one match. found: the matches in each chosen step and the one that leads it in, by the
    id of the Step, for the number alone does not tell these apart.
    """

    group: Group
    pattern: Pattern
    grade: Grade
    state: str
    kernels: tuple[str, ...]
    others: int
    count: int
    launches: int
    time_ns: int
    bytes_removed: int | None
    active: Mapping[str, int]
    example: tuple[int, ...]
    found: Mapping[int, tuple[Found, ...]]

    @property
    def name(self) -> str:
        """As texts name it: "RoPE and KV write (64 -> 32 kernels)"."""
        return f"{self.pattern.title} ({self.launches:,} -> {self.count:,} kernels)"

    @property
    def is_open(self) -> bool:
        """There is something to win."""
        return self.state in (CANDIDATE, PARTLY)

    def rows(self, step: Step) -> list[FusedRows]:
        """The fused kernels of a chosen step or of the one that leads it in; none of any other."""
        return [one.fused for one in self.found.get(id(step), ())]

    @property
    def change(self) -> Fuse:
        """What to replay, to see what it wins."""
        return Fuse(f"fuse {self.name}", self.rows)


def candidates(trace: Trace, limits: Limits = DEFAULTS, *, max_error: float = MAX_ERROR) -> tuple[Candidate, ...]:
    """All patterns found in a trace, or the part of it that is looked at: groups with most time first, in each what is
    open before what is not, and what takes most time first.
    """
    found: tuple[Candidate, ...] = trace.once(
        ("fusion candidates", limits, max_error), lambda: tuple(_candidates(trace, limits, max_error))
    )
    return found


def estimates(group: Group, chosen: Sequence[Candidate], graphs: Sequence[Change]) -> list[Estimate]:
    """What candidates of a group win, each on top of the graphs and of those before it."""
    if not chosen:
        return []
    fusions = [one.change for one in chosen]
    won = joint(group, [*graphs, *fusions])[len(graphs) :]
    least = zip(*(_least(step, graphs, fusions) for step in group.chosen), strict=True)
    return [
        replace(one, saving_low_ns=min(one.saving_low_ns, int(median(of_steps))))
        for one, of_steps in zip(won, least, strict=True)
    ]


def _least(step: Step, graphs: Sequence[Change], fusions: Sequence[Change]) -> list[int]:
    """What each fusion wins in a step at worst where all before it win what they can at best: least is left then."""
    _, schedule = worst_and_best(step)
    for graph in graphs:
        schedule = applied(graph, step, schedule, True)
    before = schedule.times().step_ns
    won = []
    for fusion in fusions:
        won.append(max(0, before - applied(fusion, step, schedule, False).times().step_ns))
        schedule = applied(fusion, step, schedule, True)
        before = schedule.times().step_ns
    return won


def graphs_of(trace: Trace, group: Group) -> list[Change]:
    """The graphs of which cuda_graphs promises something in a group: what they win, fusion cannot win again."""
    from tracekit.graph_regions import MAY_HELP, WORTH, regions

    return [
        one.change
        for one in regions(trace)
        if one.group.key == group.key and one.verdict in (WORTH, MAY_HELP) and one.change is not None
    ]


def _candidates(trace: Trace, limits: Limits, max_error: float) -> list[Candidate]:
    all_groups = groups(trace, max_error=max_error)
    inputs = inputs_of(trace, [step for group in all_groups for step in _with_leads(group)])
    found = []
    for group in all_groups:
        device = device_of(trace, group.rank, group.device, limits)
        scenes = [Scene(step, inputs) for step in _with_leads(group)]
        of_group = [one for pattern in catalogue().patterns if (one := _candidate(group, scenes, pattern, device))]
        found += sorted(of_group, key=lambda one: (not one.is_open, -one.time_ns, one.pattern.name))
    return found


def _with_leads(group: Group) -> list[Step]:
    return [one for step in group.chosen for one in (step.lead, step) if one is not None]


def _candidate(group: Group, scenes: Sequence[Scene], pattern: Pattern, device: Device) -> Candidate | None:
    """A pattern in a group, None where it is nowhere; its rows are taken."""
    found = {id(scene.step): tuple(_found(catalogue(), scene, pattern, device)) for scene in scenes}
    if not scenes:
        return None
    middle = next(scene for scene in scenes if scene.step is group.median)
    active: Counter[str] = Counter()
    for row in middle.fused_rows(pattern).tolist():
        active[kernel_name(middle.step.rows.name[row])] += 1
    here = found[id(middle.step)]
    if not here:
        return _without_matches(group, pattern, active) if active and pattern.sequences else None
    rows = middle.step.rows
    sequences = Counter(tuple(kernel_name(rows.name[row]) for row in one.match.rows) for one in here)
    kernels = max(sequences, key=lambda names: (sequences[names], names))
    example = next(one for one in here if tuple(kernel_name(rows.name[row]) for row in one.match.rows) == kernels)
    sizes = [one.evidence.removed_high for one in here]
    return Candidate(
        group=group,
        pattern=pattern,
        grade=_grade(here, middle.step),
        state=NOT_FUSIBLE if not pattern.fusible else PARTLY if active else CANDIDATE,
        kernels=kernels,
        others=len(sequences) - 1,
        count=len(here),
        launches=sum(len(one.match.rows) for one in here),
        time_ns=_time(here, middle.step),
        bytes_removed=None if any(size is None for size in sizes) else sum(size or 0 for size in sizes),
        active=dict(active.most_common()),
        example=tuple(int(rows.id[row]) for row in example.match.rows),
        found=found,
    )


def _without_matches(group: Group, pattern: Pattern, active: Counter[str]) -> Candidate:
    kernels = tuple(name for name, _ in active.most_common(1))
    return Candidate(group, pattern, "C", ACTIVE, kernels, 0, 0, 0, 0, None, dict(active.most_common()), (), {})


def _found(book: Catalogue, scene: Scene, pattern: Pattern, device: Device) -> list[Found]:
    step, is_chain = scene.step, pattern.name == CHAIN
    times = step.rows.dur, scene.quick_ns, scene.slow_ns
    found = []
    for match in list(chains(scene)) if is_chain else scene.matches(book, pattern):
        evidence = evidence_of(match, step.rows.id, scene.inputs)
        if evidence is None or scene.taken[list(match.rows)].any():
            continue
        if is_chain and is_compiled(scene, match):
            evidence = Evidence("C", evidence.removed_low, evidence.removed_high, evidence.moved)
        scene.take(match)
        moved = [scene.inputs.moved(int(step.rows.id[row])) for row in match.rows]
        # A chain of which nothing was recorded may be none.
        sure = pattern.sure and not (is_chain and evidence.grade == "C")
        found.append(Found(match, evidence, fused(match, evidence, times, device, moved, sure=sure)))
    return found


def _grade(found: Sequence[Found], step: Step) -> Grade:
    """That of most of the time."""
    grades: tuple[Grade, ...] = ("A", "B", "C")
    return max(grades, key=lambda grade: _time([one for one in found if one.evidence.grade == grade], step))


def _time(found: Sequence[Found], step: Step) -> int:
    return sum(int(step.rows.dur[row]) for one in found for row in one.match.rows)
