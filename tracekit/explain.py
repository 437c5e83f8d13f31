"""What does a finding rest on? Its rows with the code they come from, its arithmetic, and how to look further."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tracekit.analysis import Finding, Row
from tracekit.errors import UsageError
from tracekit.evidence import EvidenceRow, evidence_of

if TYPE_CHECKING:
    from tracekit.trace import Trace

_OF_ALL = "health."  # which is always of the whole trace
_QUERY = "tracekit sql TRACE"  # as arithmetic has it, which does not know what the user calls the trace


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """id: of the finding, "" if the trace has none like it. question: of the analysis. rows: its evidence. arithmetic,
    commands: lines, with the trace by the name that the user has for it. part: which part of the trace they are of.
    """

    id: str
    question: str
    finding: Finding
    rows: tuple[EvidenceRow, ...]
    arithmetic: tuple[str, ...]
    commands: tuple[str, ...]
    part: str = ""

    @property
    def lines(self) -> dict[str, int]:
        """Python functions that the evidence comes from, with file and line, and of how many of its rows. What the host
        did counts; of work on the device, which code launched it, where there is nothing else.
        """
        of_host = [row for row in self.rows if row.is_host]
        named = Counter(row.line for row in of_host or self.rows if row.line)
        return dict(named.most_common())

    def to_json(self) -> Row:
        """Plain values, as `tracekit explain --format json` prints them."""
        return {
            "id": self.id,
            "question": self.question,
            "finding": asdict(self.finding),
            "arithmetic": list(self.arithmetic),
            "evidence": [row.to_json() for row in self.rows],
            "lines": self.lines,
            "commands": list(self.commands),
        }

    def __str__(self) -> str:
        from tracekit.report_explain import as_text

        return as_text(self)

    def __repr__(self) -> str:
        """The text: who asks for it at a prompt wants to read it."""
        return str(self)

    def _repr_html_(self) -> str:
        from tracekit.html_repr import explanation_html

        return explanation_html(self)


def explain(trace: Trace, finding: Finding | str, *, name: str = "") -> Explanation:
    """Explain a finding of a trace, or of the part of it that is looked at. finding: it or its id; name: what the user
    calls the trace.

    Raises UsageError for an id that does not exist, naming those that do.
    """
    called = name or trace.name
    if isinstance(finding, str):
        key, found = finding, _by_id(trace, finding)
    else:
        key, found = _id_of(trace, finding), finding
    analysis = trace.analyses().get(key.partition(".")[0])
    rows = evidence_of(trace, found.evidence)
    command = shlex.join(["tracekit", "sql", called, *trace.beside.given])
    return Explanation(
        id=key,
        question=analysis.question if analysis else "",
        finding=found,
        rows=rows,
        arithmetic=tuple(line.replace(_QUERY, command) for line in found.arithmetic),
        commands=tuple(_commands(trace, key, rows, called)),
        part=str(trace.scope) if trace.scope and not key.startswith(_OF_ALL) else "",
    )


def explain_all(trace: Trace, name: str, *, called: str = "") -> tuple[Explanation, ...]:
    """All findings of an analysis, or the one of an id, explained."""
    if name in trace.analyses():
        return tuple(explain(trace, key, name=called) for key in trace.analyze(name).named_findings())
    return (explain(trace, name, name=called),)


def _by_id(trace: Trace, key: str) -> Finding:
    analysis = key.partition(".")[0]
    if analysis not in trace.analyses():
        known = ", ".join(trace.analyses())
        raise UsageError(f"no finding {key!r}: a finding is named as idle_gaps.1 is; the analyses are: {known}")
    named = trace.analyze(analysis).named_findings()
    if key not in named:
        what = f"{key} is no finding but an analysis" if key == analysis else f"no finding {key!r}"
        there = f"there are: {', '.join(named)}" if named else f"{analysis} has no findings here"
        raise UsageError(f"{what}; {there}")
    return named[key]


def _id_of(trace: Trace, finding: Finding) -> str:
    """Of a finding of this trace, "" for any other."""
    for analysis in trace.analyses():
        for key, one in trace.analyze(analysis).named_findings().items():
            if one == finding:
                return key
    return ""


def _commands(trace: Trace, key: str, rows: tuple[EvidenceRow, ...], called: str) -> Iterator[str]:
    """What to run next: the rows themselves, a picture of the step that most of them belong to, the whole analysis."""
    beside = list(trace.beside.given)
    if rows:
        ids = ", ".join(str(row.id) for row in rows)
        yield shlex.join(["tracekit", "sql", called, f"FROM events WHERE id IN ({ids})", *beside])
    steps = Counter((row.rank, row.step) for row in rows if row.step is not None)
    if steps:
        ((rank, step), _), *_ = steps.most_common()
        of_rank = ["--rank", str(rank)] if len(trace.footer.ranks) > 1 else []
        picture = ["tracekit", "plot", "timeline", called, "--step", str(step), *of_rank, "-o", f"step_{step}.png"]
        yield shlex.join(picture)
    if key:
        analysis = key.partition(".")[0]
        yield shlex.join(["tracekit", "analyze", called, analysis, *trace.scope.arguments(), *beside])
