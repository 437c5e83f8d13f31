"""What does a comparison say? How steps of each kind changed, by which parts and kernels, and what else is different.

Plain values, made by compare.py; texts and gates read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Literal

from tracekit.analysis import Row
from tracekit.compare_conditions import Condition, label
from tracekit.compare_kernels import KernelChange
from tracekit.compare_measure import Basis
from tracekit.wording import counted

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Verdict = Literal["slower", "faster", "no difference shown", "cannot tell"]

QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
_SCHEMA = 1
_TEXTS = ("phase", "bucket", "verdict", "reason")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """confidence: of intervals, and of all verdicts together. min_change: of the mean step, less is no change.
    min_steps: of a kind on each side, to tell a change from chance. part_share: of the change, less explains nothing.
    resamples, seed: of the bootstrap, which so gives the same intervals each time.
    """

    confidence: float = 0.95
    min_change: float = 0.01
    min_steps: int = 5
    part_share: float = 0.05
    resamples: int = 1_000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Steps of one kind on one side. runs: recordings that have them. Quantiles by nearest rank, over all steps."""

    runs: int
    steps: int
    mean_ns: int
    p50_ns: int
    p90_ns: int
    p99_ns: int


@dataclass(frozen=True, slots=True)
class QuantileChange:
    """Of "p50", "p90" or "p99". low_ns, high_ns: its interval, None where the steps do not tell."""

    quantile: str
    change_ns: int
    low_ns: int | None
    high_ns: int | None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the mean step. kind: "busy" with a category as name, "idle" with a cause, or "host".

    low_ns, high_ns: interval of the change, None where the steps do not tell. significant: it explains the change of
    the step: that is one, and this part's is neither chance nor small.
    """

    kind: str
    name: str
    base_ns: int
    candidate_ns: int
    change_ns: int
    low_ns: int | None
    high_ns: int | None
    significant: bool


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Steps of one phase and bucket. change_ns: of the mean; the changes of the parts add up to it. p_value: how often
    chance changes one of the groups as much or more, None where steps do not tell; reason: why they do not, or "".
    changed: the verdict is slower or faster. kernels: of the mean step on one device, largest change first.
    """

    phase: str
    bucket: str
    base: StepTimes
    candidate: StepTimes
    change_ns: int
    low_ns: int | None
    high_ns: int | None
    p_value: float | None
    verdict: Verdict
    changed: bool
    reason: str
    quantiles: tuple[QuantileChange, ...]
    parts: tuple[Part, ...]
    kernels: tuple[KernelChange, ...]

    @property
    def label(self) -> str:
        """As texts name it."""
        return label((self.phase, self.bucket))


@dataclass(frozen=True, slots=True)
class SideInfo:
    """names: of the recordings, as the user calls them. settings: what they tell of the conditions, where all agree."""

    names: tuple[str, ...]
    events: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """basis: what a step's time is (compare_measure.py). conditions: what else differs. warnings: what to doubt."""

    base: SideInfo
    candidate: SideInfo
    basis: Basis
    groups: tuple[GroupChange, ...]
    conditions: tuple[Condition, ...]
    warnings: tuple[str, ...]
    thresholds: Thresholds

    def __repr__(self) -> str:
        """What there is, not all of it: a notebook shows this."""
        told = ", ".join(f"{one.label} {one.verdict}" for one in self.groups[:4])
        more = ", ..." if len(self.groups) > 4 else ""
        differ = f"; {counted(len(self.conditions), 'condition')} not alike" if self.conditions else ""
        return f"<Comparison: {told or 'nothing to compare'}{more}{differ}>"

    def table(self) -> pa.Table:
        """A row for each group, without its parts and kernels."""
        import pyarrow as pa

        texts, kinds = set(_TEXTS), {"p_value": pa.float64(), "changed": pa.bool_()}
        schema = [(name, pa.string() if name in texts else kinds.get(name, pa.int64())) for name in _columns()]
        return pa.Table.from_pylist([_row(one) for one in self.groups], pa.schema(schema))

    def df(self) -> pd.DataFrame:
        """The table as a pandas frame."""
        return self.table().to_pandas()

    def to_json(self) -> Row:
        """Plain values, as `--format json` prints them."""
        said = asdict(self)
        for group, one in zip(said["groups"], self.groups, strict=True):
            for kernel, change in zip(group["kernels"], one.kernels, strict=True):
                kernel["change_ns"] = change.change_ns
        return {"schema": _SCHEMA, **said}


_SIDES = ("base", "candidate")
_OF_GROUP = ("change_ns", "low_ns", "high_ns", "p_value", "verdict", "changed", "reason")


def _columns() -> Iterator[str]:
    yield from ("phase", "bucket")
    yield from (f"{side}_{one.name}" for side in _SIDES for one in fields(StepTimes))
    yield from _OF_GROUP
    yield from (f"{name}_{what}" for name, _ in QUANTILES for what in ("change_ns", "low_ns", "high_ns"))


def _row(group: GroupChange) -> Row:
    row: Row = {"phase": group.phase, "bucket": group.bucket}
    for side, times in zip(_SIDES, (group.base, group.candidate), strict=True):
        row |= {f"{side}_{name}": value for name, value in asdict(times).items()}
    row |= {name: getattr(group, name) for name in _OF_GROUP}
    for one in group.quantiles:
        row |= {f"{one.quantile}_{what}": getattr(one, what) for what in ("change_ns", "low_ns", "high_ns")}
    return row
