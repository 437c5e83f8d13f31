"""What happened in one serving step? Its mark, its time on each device, its kernels, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

from tracekit.analysis import Row, duration
from tracekit.errors import UsageError
from tracekit.rows import Rows
from tracekit.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tracekit.trace import Trace


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step on one device, in ns, as in the macro step_time. busy_ns: time alone of its work; idle_ns: gaps within;
    gap_before_ns: the gap that its first work ended; period_ns: to the start of the next step there, None of the last.
    """

    device: int | None
    kind: str
    bucket: str
    start_ts: int
    end_ts: int
    wall_ns: int
    busy_ns: int
    idle_ns: int
    gap_before_ns: int
    period_ns: int | None


class Step:
    """One step of one rank. What its mark says (None where it says nothing), `times` on each device that worked for
    it, `kernels`, `trace`: the part of the trace that is this step, for any analysis.
    """

    def __init__(self, trace: Trace, mark: Row, times: Sequence[StepTime]) -> None:
        """mark: its row of the view steps."""
        self._trace = trace
        self.number: int = mark["step"]
        self.rank: int = mark["rank"]
        self.phase: str = mark["phase"]
        self.ts: int = mark["ts"]
        self.dur: int = mark["dur"]
        self.prefill_requests: int | None = mark["prefill_requests"]
        self.prefill_tokens: int | None = mark["prefill_tokens"]
        self.decode_requests: int | None = mark["decode_requests"]
        self.decode_tokens: int | None = mark["decode_tokens"]
        self.source: str = mark["source"]
        self.times = tuple(times)

    @cached_property
    def trace(self) -> Trace:
        """The trace, of which analyses see this step alone."""
        return self._trace.whole.only(steps=self.number, rank=self.rank)

    @property
    def kernels(self) -> Rows:
        """Its kernels."""
        chosen = "SELECT * FROM kernels WHERE rank = $rank AND step = $step"
        parameters = {"rank": self.rank, "step": self.number}
        return Rows(self._trace.sql, f"kernels of step {self.number}", chosen, order="id", parameters=parameters)

    def timeline(self, ax: Axes | None = None) -> Axes:
        """Draw what host and devices did, gaps by cause. ax: where to draw; left out, a figure of its own.

        Raises UsageError if the step has no work on a device.
        """
        from tracekit.plots import timeline

        return timeline(self._trace.whole, step=self.number, rank=self.rank, ax=ax)

    @property
    def batch(self) -> str:
        """As its mark tells it: "8 requests decode"; "" if it does not."""
        parts = (
            ("prefill", self.prefill_requests, self.prefill_tokens),
            ("decode", self.decode_requests, self.decode_tokens),
        )
        said = []
        for phase, requests, tokens in parts:
            known = [counted(one, word) for one, word in ((requests, "request"), (tokens, "token")) if one]
            said += [f"{', '.join(known)} in {phase}"] if known else []
        return "; ".join(said)

    def __repr__(self) -> str:
        batch = f", {self.batch}" if self.batch else ""
        if not self.times:
            return f"<Step {self.number} of rank {self.rank}: {self.phase}{batch}, {duration(self.dur)} on the host>"
        busy = "; ".join(
            f"device {one.device}: {duration(one.wall_ns)}, {duration(one.idle_ns)} of it idle" for one in self.times
        )
        return f"<Step {self.number} of rank {self.rank}: {self.phase}{batch}; {busy}>"

    def _repr_html_(self) -> str:
        from tracekit.html_repr import step_html

        return step_html(self)


def step_of(trace: Trace, number: int, rank: int | None) -> Step:
    """A step of what is looked at. rank: None for the first that has it.

    Raises UsageError for one that is not there, naming those that are.
    """
    if not isinstance(number, int):
        raise UsageError(f"a step is a number, not {number!r}; those of a phase: trace.only(phase=...)")
    there: dict[int, dict[int, Row]] = {}
    for row in trace.steps.arrow().to_pylist():
        there.setdefault(row["rank"], {})[row["step"]] = row
    if not there:
        raise UsageError(
            "there are no serving steps here; name the ranges that are: tracekit.open(path, step_range=...)"
        )
    if rank is not None and rank not in there:
        raise UsageError(f"no step is of rank {rank}; ranks with steps: {', '.join(map(str, there))}")
    for one in there if rank is None else [rank]:
        numbers = list(there[one])
        found = numbers[number] if -len(numbers) <= number < 0 else number
        if found in there[one]:
            return Step(trace, there[one][found], _times(trace, one, found))
    listed = "; ".join(f"rank {one}: {_ranges(list(of_rank))}" for one, of_rank in list(there.items())[:8])
    raise UsageError(f"no step {number}{'' if rank is None else f' of rank {rank}'}; there are: {listed}")


def _times(trace: Trace, rank: int, step: int) -> list[StepTime]:
    chosen = "FROM step_time() WHERE rank = $rank AND step = $step ORDER BY device"
    names = [one.name for one in fields(StepTime)]
    rows = trace.sql(chosen, {"rank": rank, "step": step}).to_pylist()
    return [StepTime(**{name: row[name] for name in names}) for row in rows]


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers that follow each other as one: "0 to 5, 7"."""
    runs: list[list[int]] = []
    for one in sorted(numbers):
        if runs and one == runs[-1][-1] + 1:
            runs[-1][1:] = [one]
        else:
            runs.append([one])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
