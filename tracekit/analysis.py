"""What an analysis is, and what it returns: a measured table, and findings that judge it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tracekit.errors import UsageError
from tracekit.wording import counted

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from tracekit.trace import Trace

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
Scalar = str | int | float | bool | None
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgement, with the rows that prove it.

    A saving is an interval in nanoseconds over the traced span, 0 <= low <= high, never more than the time
    attributed to its cause. `evidence` holds ids of the event table. `arithmetic` says how the figures of the title
    and the saving come about: lines like "9,822,776 ns / 5 steps = 1,964,555 ns a step" that a reader can check.
    """

    severity: Severity
    title: str
    detail: str = ""
    saving_low_ns: int = 0
    saving_high_ns: int = 0
    evidence: tuple[int, ...] = ()
    remedy: str = ""
    cost: str = ""
    verify: str = ""
    arithmetic: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.saving_low_ns <= self.saving_high_ns:
            raise ValueError(f"not an interval: [{self.saving_low_ns}, {self.saving_high_ns}]")

    def _repr_html_(self) -> str:
        from tracekit.html_repr import finding_html

        return finding_html(self)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the time an analysis could account for, and why not more.

    `total_ns` 0 means that there was nothing to account for; `reason` then says what to record.
    """

    explained_ns: int = 0
    total_ns: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """Everything one analysis says of one trace. `parameters` holds all thresholds, so that it can be repeated."""

    analysis: str
    parameters: Mapping[str, Scalar]
    summary: Sequence[Row]
    table: pa.Table
    findings: Sequence[Finding] = ()
    coverage: Coverage = field(default_factory=Coverage)

    def __repr__(self) -> str:
        """What there is, not all of it: a notebook shows this."""
        rows, found = counted(self.table.num_rows, "row"), counted(len(self.findings), "finding")
        return f"<Result {self.analysis}: {rows}, {found}>"

    def _repr_html_(self) -> str:
        from tracekit.html_repr import result_html

        return result_html(self)

    def df(self) -> pd.DataFrame:
        """The table as a pandas frame."""
        return self.table.to_pandas()

    def arrow(self) -> pa.Table:
        """The table as it is."""
        return self.table

    def named_findings(self) -> dict[str, Finding]:
        """Findings by the id that `tracekit explain` takes: "idle_gaps.1" is the first of idle_gaps."""
        return {f"{self.analysis}.{number}": finding for number, finding in enumerate(self.findings, start=1)}

    def to_json(self) -> Row:
        """Plain values, as `--format json` prints them."""
        return {
            "parameters": dict(self.parameters),
            "summary": [dict(row) for row in self.summary],
            "table": self.table.to_pylist(),
            "findings": [{"id": name, **asdict(finding)} for name, finding in self.named_findings().items()],
            "coverage": asdict(self.coverage),
        }


def duration(ns: int | float) -> str:
    """A time in three figures with a fitting unit, as all texts say it: "72.9 ms"; below 1 us to the nanosecond."""
    if ns == 0:
        return "0 us"
    unit, scale = next((one for one in _UNITS if abs(ns) < one[1] * 999.5), _UNITS[-1])
    value = ns / scale
    return f"{value:,.{_decimals(abs(value))}f} {unit}"


_UNITS = (("us", 1e3), ("ms", 1e6), ("s", 1e9))


def _decimals(value: float) -> int:
    limits = (0.9995, 9.995, 99.95)  # what is rounded up to the next figure has one decimal less
    return 3 - sum(value >= limit for limit in limits)


class Analysis(Protocol):
    """What a module of `tracekit.analyses` exposes as `ANALYSIS`.

    `name` is the module, the SQL macro, the test and the word the user types; `question` is one line for the
    help; `parameters` are all thresholds with their defaults.
    """

    name: str
    question: str
    parameters: Mapping[str, Scalar]

    def run(self, trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
        """Measure with SQL, judge in Python."""
        ...


def complete_parameters(analysis: Analysis, given: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
    """All parameters of an analysis: its defaults, overridden by what is given, which must fit them in type.

    Raises UsageError for one that does not, or that the analysis does not have, naming those that it has.
    """
    valid = ", ".join(f"{key}={value!r}" for key, value in analysis.parameters.items()) or "none"
    for key, value in given.items():
        if key not in analysis.parameters:
            raise UsageError(f"{analysis.name} has no parameter {key!r}; there are: {valid}")
        default = type(analysis.parameters[key])
        if type(value) is not default and not (default is float and type(value) is int):
            raise UsageError(f"{analysis.name}: {key} is of type {default.__name__}, not {value!r}")
    return {**analysis.parameters, **given}
