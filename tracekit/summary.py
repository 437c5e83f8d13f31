"""What is the verdict over a trace? All analyses, what they found, and the report of one screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.analysis import SEVERITIES, Finding, Result

if TYPE_CHECKING:
    from tracekit.trace import Trace


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """results: of all analyses, by name. text: the report, as `tracekit analyze` prints it. name: of the trace."""

    name: str
    results: Mapping[str, Result]
    text: str

    @property
    def findings(self) -> dict[str, Finding]:
        """Of all analyses by id, the worst first; ids are what `Trace.explain` takes."""
        named = {key: one for result in self.results.values() for key, one in result.named_findings().items()}
        ranked = sorted(named.items(), key=lambda item: (-SEVERITIES.index(item[1].severity), -item[1].saving_high_ns))
        return dict(ranked)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        """The report: who asks for it at a prompt wants to read it."""
        return self.text

    def _repr_html_(self) -> str:
        from tracekit.html_repr import summary_html

        return summary_html(self)


def summarize(trace: Trace) -> Summary:
    """Run all analyses, of the part of the trace that is looked at."""
    from tracekit.report_text import render

    results = {name: trace.analyze(name) for name in trace.analyses()}
    lines = render(trace, results, name=trace.name)
    return Summary(trace.name, results, "\n".join(line.plain for line in lines))
