"""Which question does an analysis answer, how does it decide, and which thresholds does it have?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.analysis import Scalar
from tracekit.errors import UsageError
from tracekit.macros import MacroDoc, parse_macros
from tracekit.registry import LoadedAnalysis, analyses

_NOTHING = MacroDoc("macro", "", (), {}, {}, {}, "")


@dataclass(frozen=True, slots=True)
class AnalysisHelp:
    """about: one sentence. how: lines as the header of its SQL has them. parameters: name, default and meaning. columns
    of its table: name, type and meaning. page: where more is written, in the source of tracekit; "" of third parties'.
    """

    name: str
    question: str
    about: str
    how: tuple[str, ...]
    parameters: tuple[tuple[str, Scalar, str], ...]
    columns: tuple[tuple[str, str, str], ...]
    page: str

    def __str__(self) -> str:
        from tracekit.report_explain import help_text

        return help_text(self)


def analysis_help(name: str) -> AnalysisHelp:
    """Of one analysis. Raises UsageError for one that does not exist, naming those that do."""
    there = analyses()
    if name not in there:
        raise UsageError(f"no analysis {name!r}; there are: {', '.join(there)}")
    return _help(name, there[name])


def questions() -> Sequence[tuple[str, str]]:
    """Each analysis with its question."""
    return [(name, one.analysis.question) for name, one in analyses().items()]


def _help(name: str, loaded: LoadedAnalysis) -> AnalysisHelp:
    analysis = loaded.analysis
    doc = next((one for one in parse_macros(loaded.sql) if one.name == name), _NOTHING)
    meanings = {key: meaning for key, (_, meaning) in {**doc.parameters, **doc.thresholds}.items()}
    return AnalysisHelp(
        name=name,
        question=analysis.question,
        about=(type(analysis).__doc__ or "").strip().partition("\n")[0],
        how=doc.prose,
        parameters=tuple((key, default, meanings.get(key, "")) for key, default in analysis.parameters.items()),
        columns=tuple((key, kind, meaning) for key, (kind, meaning) in doc.columns.items()),
        page=f"docs/analyses/{name}.md" if loaded.built_in else "",
    )
