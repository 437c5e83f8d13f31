"""How long would steps take if something were changed? The replay of the plan, with the changes that are asked for.

    from tracekit.changes import FreeLaunches
    from tracekit.whatif import Fusion, Graphs, whatif

    whatif(trace, [Graphs("decode"), Fusion("rope_kv"), FreeLaunches()]).df()

Changes go one on top of the other, in their order. Savings are intervals, of one step each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit import fusion_candidates, graph_regions
from tracekit.analysis import Row, duration
from tracekit.changes import Change, FreeLaunches, Fuse, Graph, OverlapCommunication, RemoveSync, Scale
from tracekit.errors import TracekitError, UsageError
from tracekit.fusion_patterns import catalogue
from tracekit.gains import estimate, gains
from tracekit.graph_regions import OneGraph
from tracekit.remedies import Remaining
from tracekit.remedy_waits import own_calls
from tracekit.replay_choice import MAX_ERROR, Group, groups
from tracekit.replay_step import Step
from tracekit.trace import Trace
from tracekit.whatif_names import nothing_matches

if TYPE_CHECKING:
    import pandas as pd

ALL = "all"


@dataclass(frozen=True, slots=True)
class Graphs:
    """All that could be captured in the steps of a phase ("all": of any) becomes one CUDA graph, whatever blocks it."""

    phase: str = ALL

    def of(self, trace: Trace, group: Group) -> Sequence[Change]:
        """One graph, if the group is of the phase."""
        return [graph_regions.decode_graph(trace, group)] if self.phase in (ALL, group.phase) else []


@dataclass(frozen=True, slots=True)
class Fusion:
    """Kernels are fused by a pattern of the catalogue, or by all that the analysis fusion finds open ("all")."""

    pattern: str = ALL

    def of(self, trace: Trace, group: Group) -> Sequence[Change]:
        """One for each pattern found in the group."""
        return [
            Remaining(one.change)
            for one in fusion_candidates.candidates(trace, max_error=group.max_error)
            if one.group.key == group.key and (one.is_open if self.pattern == ALL else one.pattern.name == self.pattern)
        ]


Asked = Change | Graphs | Fusion


@dataclass(frozen=True, slots=True)
class Share:
    """What one change adds to those before it, in one step; negative if that becomes longer. matched: how many
    calls or kernels of the median step it changes, None if it does not say; what: "launch", "kernel" or "call".
    """

    change: str
    matched: int | None
    what: str
    saving_low_ns: int
    saving_high_ns: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Steps of one phase and batch size on one device, changed. before_ns: the median step as recorded, after_low_ns
    and after_high_ns: with all changes, at best and at worst. error: of the replay without any change, as a share.
    spread: lowest and highest middle of the saving over the steps replayed. inferred_edges: waits across streams that
    the replay takes for granted and nothing recorded. refusal: why nothing is said, or "".
    """

    rank: int
    device: int | None
    phase: str
    bucket: str
    steps: int
    replayed: int
    total_ns: int
    before_ns: int
    after_low_ns: int
    after_high_ns: int
    error: float
    spread_low_ns: int
    spread_high_ns: int
    changes: tuple[Share, ...]
    inferred_edges: int = 0
    refusal: str = ""

    @property
    def is_touched(self) -> bool:
        """Something in it is changed."""
        return any(one.matched != 0 for one in self.changes)

    @property
    def label(self) -> str:
        """As texts name it."""
        named = [one for one in (self.phase, self.bucket) if one != "unknown"]
        return " ".join(named) or "the whole recording"


_COLUMNS = (
    *("rank", "device", "phase", "bucket", "steps", "replayed", "total_ns", "before_ns", "after_low_ns"),
    *("after_high_ns", "error", "spread_low_ns", "spread_high_ns", "inferred_edges", "refusal"),
)


@dataclass(frozen=True, slots=True, repr=False)
class WhatIf:
    """The groups of steps that take most time first. max_error: of the replay, beyond which nothing is said."""

    outcomes: tuple[Outcome, ...]
    max_error: float

    def table(self) -> pa.Table:
        """A row for each change of each group; one with place NULL for a group that nothing is said of."""
        return pa.Table.from_pylist(list(self._rows()), _schema())

    def arrow(self) -> pa.Table:
        """The same as `table`, by the name that results have it."""
        return self.table()

    def df(self) -> pd.DataFrame:
        """The table as a pandas frame."""
        return self.table().to_pandas()

    def __repr__(self) -> str:
        """The groups and what becomes of them, not every field: a notebook shows this."""
        said = [
            f"{one.label}: no estimate"
            if one.refusal
            else f"{one.label}: {duration(one.before_ns)} -> "
            f"{duration(one.after_low_ns)} to {duration(one.after_high_ns)}"
            for one in self.outcomes
        ]
        return f"<WhatIf {'; '.join(said)}>"

    def _repr_html_(self) -> str:
        from tracekit.html_repr import whatif_html

        return whatif_html(self)

    def to_json(self) -> Row:
        """Plain values, as `--format json` prints them."""
        return {"max_error": self.max_error, "groups": [asdict(one) for one in self.outcomes]}

    def _rows(self) -> Iterator[Row]:
        for one in self.outcomes:
            group = {name: getattr(one, name) for name in _COLUMNS}
            if not one.changes:
                yield group
            for place, share in enumerate(one.changes, start=1):
                yield group | {"place": place} | asdict(share)


def _schema() -> pa.Schema:
    texts, shares = {"phase", "bucket", "refusal", "change", "what"}, {"error"}
    names = [*_COLUMNS, "place", "change", "matched", "what", "saving_low_ns", "saving_high_ns"]
    return pa.schema(
        [(name, pa.string() if name in texts else pa.float64() if name in shares else pa.int64()) for name in names]
    )


def whatif(trace: Trace, changes: Sequence[Asked], *, max_error: float = MAX_ERROR) -> WhatIf:
    """Replay the steps of a trace, or of the part of it that is looked at, with these changes.

    Raises UsageError for a change that matches nothing in any of the steps, naming what there is; TracekitError where
    there is no step to replay, or none that the replay gets right: that the time of a step is off by more than
    max_error without any change.
    """
    found = groups(trace, max_error=max_error)
    if not found:
        raise TracekitError(_why_nothing(trace))
    bound = [[_bound(trace, group, one) for one in changes] for group in found]
    if all(group.refusal for group in found):
        named = "; ".join(dict.fromkeys(": ".join(filter(None, (group.label, group.refusal))) for group in found))
        raise TracekitError(f"no estimate: {named}")
    _refuse_strangers(trace, found, changes, bound)
    outcomes = [_outcome(group, [one for of in each for one in of]) for group, each in zip(found, bound, strict=True)]
    return WhatIf(tuple(outcomes), max_error)


def _bound(trace: Trace, group: Group, change: Asked) -> list[Change]:
    if group.refusal or not group.chosen:
        return []
    return list(change.of(trace, group)) if isinstance(change, (Graphs, Fusion)) else [change]


def _why_nothing(trace: Trace) -> str:
    if not trace.macro("device_time").num_rows:
        return "there is no device activity to replay"
    return "the part of the trace that is chosen has no steps: choose whole steps, or the whole trace"


def _outcome(group: Group, changes: Sequence[Change]) -> Outcome:
    place = (*group.key, len(group.steps), len(group.chosen), group.total_ns)
    if group.refusal or not group.chosen:
        before = group.median.measured_ns if group.chosen else 0
        return Outcome(*place, before, before, before, group.error, 0, 0, (), 0, group.refusal or "no step to replay")
    before, error = group.median.measured_ns, group.error
    if not changes:
        return Outcome(*place, before, before, before, error, 0, 0, ())
    won, together = gains(group, changes), estimate(group, changes)
    steps = zip(changes, [(0, 0), *won[:-1]], won, strict=True)
    shares = tuple(_share(change, earlier, later, group.median) for change, earlier, later in steps)
    low, high = won[-1]
    spread = together.spread_low_ns, together.spread_high_ns
    return Outcome(*place, before, before - high, before - low, error, *spread, shares, group.median.inferred_edges)


def _share(change: Change, earlier: tuple[int, int], later: tuple[int, int], step: Step) -> Share:
    """earlier, later: what all changes win without this one and those after it, and with it."""
    matched, what = matches(change, step)
    low, high = sorted(after - before for before, after in zip(earlier, later, strict=True))
    return Share(change.name, matched, what, low, high)


def matches(change: Change, step: Step) -> tuple[int | None, str]:
    """How many of what a change changes in a step; None, "" where it does not say."""
    own = own_calls(step)
    found: tuple[int | None, str] = None, ""
    match change:
        case Graph() | OneGraph():
            found = sum(len(one) for one in change.calls(step)), "launch"
        case Fuse() | Remaining():
            found = sum(len(one.rows) for one in change.groups(step)), "kernel"
        case Scale() | OverlapCommunication():
            found = len(change.rows(step)), "kernel"
        case RemoveSync():
            found = int(np.count_nonzero(own[change.calls(step)])), "call"
        case FreeLaunches():
            found = int(np.count_nonzero(own & (step.calls.rows > 0))), "launch"
    return found


def _refuse_strangers(
    trace: Trace, found: Sequence[Group], changes: Sequence[Asked], bound: Sequence[Sequence[Sequence[Change]]]
) -> None:
    """Raise UsageError for a change that changes nothing in any group."""
    phases, patterns = {group.phase for group in found}, [one.name for one in catalogue().patterns]
    for place, change in enumerate(changes):
        if isinstance(change, Graphs) and change.phase not in (ALL, *phases):
            known = ", ".join(sorted(phases - {"unknown"})) or "none: no steps are marked"
            raise UsageError(f"no step of phase {change.phase!r} to graph; phases here: {known}; or {ALL}")
        if isinstance(change, Fusion) and change.pattern not in (ALL, *patterns):
            raise UsageError(f"no pattern {change.pattern!r} in the catalogue; there are: {', '.join(patterns)}")
        told = [(group, each[place]) for group, each in zip(found, bound, strict=True) if not group.refusal]
        counts = [matches(one, group.median)[0] for group, of in told for one in of]
        if all(count == 0 for count in counts):
            raise UsageError(_nothing(trace, change, [group.median for group, _ in told]))


def _nothing(trace: Trace, change: Asked, steps: Sequence[Step]) -> str:
    if isinstance(change, Fusion):
        here = sorted({one.pattern.name for one in fusion_candidates.candidates(trace) if one.is_open})
        asked = "a pattern" if change.pattern == ALL else change.pattern
        return f"{asked} is nowhere open in these steps; open are: {', '.join(here) or 'none'}"
    if isinstance(change, Graphs):
        return "nothing in these steps could be captured into a CUDA graph: no launches were recorded"
    return nothing_matches(change, steps)
