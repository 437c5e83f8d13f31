"""What a notebook shows of a trace, a result, a finding: small HTML that inherits the notebook's colours.

Everything goes through `Markup.format`, which escapes: names in a trace are full of `<` and quotes. No scripts, no
backgrounds, no style sheet: the same output stands in light and dark notebooks, and in many cells of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from tracekit.analysis import Finding, Result, Row, duration
from tracekit.text_grid import clean, cut, from_package
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.evidence import EvidenceRow
    from tracekit.explain import Explanation
    from tracekit.rows import Rows
    from tracekit.step_view import Step, StepTime
    from tracekit.summary import Summary
    from tracekit.trace import Trace
    from tracekit.whatif import WhatIf

_ROWS = 10  # of a table
_CELL = 80  # characters of a cell
_FRAMES = 8  # around a row
_EDGES = {"critical": "#d55e00", "warning": "#e69f00", "info": "#56b4e9"}  # readable on white and on black
_NAMES = frozenset(  # whole numbers that are names, not amounts
    (
        "id",
        "blame",
        "rank",
        "step",
        "pid",
        "tid",
        "device",
        "stream",
        "context",
        "correlation",
        "graph_id",
        "graph_node_id",
    )
)
_CELL_STYLE = "padding:1px 8px;white-space:nowrap"


# ---- pieces ----------------------------------------------------------------------------------------------------------


def _line(text: str, *parts: object) -> Markup:
    return Markup("<div>{}</div>").format(Markup(text).format(*map(_said, parts)))


def _said(part: object) -> object:
    """Safe to show, too: no control characters, which could turn text around."""
    return part if isinstance(part, Markup) else clean(part)


def _joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], note: str = "") -> Markup:
    """Numbers to the right. note: a line below."""
    head = _joined(Markup('<th style="text-align:left;{}">{}</th>').format(_CELL_STYLE, clean(one)) for one in columns)
    body = _joined(Markup("<tr>{}</tr>").format(_joined(_cell(one, row[one]) for one in columns)) for row in rows)
    table = Markup('<div style="overflow-x:auto"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>')
    said = Markup('<div style="opacity:.7">{}</div>').format(clean(note)) if note else Markup("")
    return table.format(head, body) + said


def _cell(column: str, value: object) -> Markup:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    side = "right" if is_number else "left"
    return Markup('<td style="text-align:{};{}">{}</td>').format(side, _CELL_STYLE, _shown(column, value))


def _shown(column: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, int) and not isinstance(value, bool) and column not in _NAMES and not column.endswith("_id"):
        return f"{value:,}"
    return cut(clean(value), _CELL)


def _folded(head: str, body: Markup) -> Markup:
    return Markup("<details><summary>{}</summary>{}</details>").format(clean(head), body)


def _boxed(severity: str, body: Markup) -> Markup:
    """With an edge in the colour of a severity, which the text names as well."""
    style = f"border-left:4px solid {_EDGES[severity]};padding-left:8px;margin:4px 0"
    return Markup('<div style="{}">{}</div>').format(style, body)


# ---- findings and results --------------------------------------------------------------------------------------------


def finding_html(finding: Finding, key: str = "") -> str:
    """A finding: title and saving, the rest folded. key: its id."""
    parts = [
        _line("<b>{}</b> {}<b>{}</b>{}", finding.severity, f"{key} " if key else "", finding.title, _saving(finding))
    ]
    texts = (("", finding.detail), ("do: ", finding.remedy), ("price: ", finding.cost), ("check: ", finding.verify))
    said = [_line("{}{}", word, text) for word, text in texts if text]
    said += [_line("<code>{}</code>", line) for line in finding.arithmetic]
    if finding.evidence:
        said.append(_line("evidence: events {}", ", ".join(map(str, finding.evidence))))
    return str(_boxed(finding.severity, _joined([*parts, _folded("remedy, evidence, arithmetic", _joined(said))])))


def _saving(finding: Finding) -> str:
    if not finding.saving_high_ns:
        return ""
    low = duration(finding.saving_low_ns) if finding.saving_low_ns else "0"
    return f"; saves {low} to {duration(finding.saving_high_ns)} in all"


def result_html(result: Result) -> str:
    """A result: its findings, the first rows of its table, and what it could not tell."""
    rows, found = counted(result.table.num_rows, "row"), counted(len(result.findings), "finding")
    parts = [_line("<b>{}</b>: {}, {}", result.analysis, rows, found)]
    if result.coverage.reason:
        parts.append(_line("<i>{}</i>", result.coverage.reason))
    parts += [Markup(finding_html(one, key)) for key, one in result.named_findings().items()]
    parts.append(_first(result.table.column_names, result.table.slice(0, _ROWS).to_pylist(), result.table.num_rows))
    return str(Markup("<div>{}</div>").format(_joined(parts)))


def _first(columns: Sequence[str], rows: Sequence[Row], there: int) -> Markup:
    """The first rows of a table, without the columns that are empty in all of them."""
    if not rows:
        return Markup("")
    kept = [one for one in columns if any(row[one] is not None for row in rows)]
    note = f"{len(rows):,} of {counted(there, 'row')}" if there > len(rows) else ""
    if left := len(columns) - len(kept):
        note = "; ".join(filter(None, (note, f"{counted(left, 'column')} without a value here not shown")))
    return _table(kept, rows, note)


# ---- a trace and its parts -------------------------------------------------------------------------------------------


def trace_html(trace: Trace) -> str:
    """What the trace is, by its footer alone, and what to ask."""
    footer = trace.footer
    devices = sorted({one.name for one in footer.devices if one.name})
    facts = [counted(footer.ledger.stored, "event"), counted(len(footer.ranks), "rank"), *devices]
    lines = [_line("<b>Trace</b> {}", trace.name), _line("{}", ", ".join(facts))]
    if trace.scope:
        lines.append(_line("only {}", trace.scope))
    if footer.partial or any(source.truncated_at is not None for source in footer.sources):
        lines.append(_line("<i>partial: see health()</i>"))
    lines.append(
        _line("Ask <code>.summary()</code>, <code>.idle_gaps()</code>, <code>.steps</code>, <code>.step(0)</code>")
    )
    return str(Markup("<div>{}</div>").format(_joined(lines)))


def rows_html(rows: Rows) -> str:
    """How many rows there are, and the first of them."""
    first = rows.head(_ROWS)
    head = _line("<b>{}</b>: {}", rows.name, counted(len(rows), "row"))
    return str(Markup("<div>{}</div>").format(head + _first(first.column_names, first.to_pylist(), len(rows))))


def step_html(step: Step) -> str:
    """What the mark of a step says, and its time on each device."""
    head = _line(
        "<b>Step {}</b> of rank {}: {}{}", step.number, step.rank, step.phase, step.batch and f", {step.batch}"
    )
    marked = _line("marked by {}, {} on the host", step.source, duration(step.dur))
    rows = [{name: say(one) for name, say in _TIMES.items()} for one in step.times]
    return str(Markup("<div>{}</div>").format(head + marked + (_table(list(_TIMES), rows) if rows else Markup(""))))


_TIMES: Mapping[str, Callable[[StepTime], object]] = {
    "device": lambda one: one.device,
    "from first to last work": lambda one: duration(one.wall_ns),
    "busy": lambda one: duration(one.busy_ns),
    "idle within": lambda one: duration(one.idle_ns),
    "idle before": lambda one: duration(one.gap_before_ns),
}


def summary_html(summary: Summary) -> str:
    """Findings, the worst first, and the report folded."""
    found = summary.findings
    head = _line("<b>{}</b>: {}", summary.name, counted(len(found), "finding"))
    report = _folded("report", Markup('<pre style="white-space:pre;overflow-x:auto">{}</pre>').format(summary.text))
    listed = _joined(Markup(finding_html(one, key)) for key, one in found.items())
    return str(Markup("<div>{}</div>").format(head + listed + report))


# ---- explanations and estimates --------------------------------------------------------------------------------------


def explanation_html(one: Explanation) -> str:
    """A finding with its rows, where these come from, its arithmetic, and what to run next."""
    finding = one.finding
    key = f"{one.id} " if one.id else ""
    parts = [_line("<b>{}</b> {}<b>{}</b>{}", finding.severity, key, finding.title, _saving(finding))]
    parts += [_line("<i>{}</i>", one.question)] if one.question else []
    parts += [_line("only {}", one.part)] if one.part else []
    parts += [_line("{}", finding.detail)] if finding.detail else []
    parts += [_line("comes from <code>{}</code> ({})", name, counted(of, "row")) for name, of in one.lines.items()]
    parts += [_line("<code>{}</code>", line) for line in one.arithmetic]
    if one.rows:
        parts.append(_table(list(_EVIDENCE), [{name: say(row) for name, say in _EVIDENCE.items()} for row in one.rows]))
    texts = (("do", finding.remedy), ("price", finding.cost), ("check", finding.verify))
    parts += [_line("{}: {}", word, text) for word, text in texts if text]
    parts += [_line("<code>{}</code>", command) for command in one.commands]
    return str(_boxed(finding.severity, _joined(parts)))


_EVIDENCE: Mapping[str, Callable[[EvidenceRow], object]] = {
    "id": lambda row: row.id,
    "kind": lambda row: row.kind,
    "name": lambda row: from_package(row.name),
    "start": lambda row: duration(row.ts),
    "takes": lambda row: duration(row.dur),
    "step": lambda row: row.step,
    "where": lambda row: row.place,
    "lies in": lambda row: " < ".join(from_package(one.name) for one in row.around[:_FRAMES]),
}


def whatif_html(found: WhatIf) -> str:
    """Each group of steps before and after."""
    columns = ("steps", "before", "at best", "at worst", "replay off by", "no estimate")
    rows = [
        {
            "steps": one.label,
            "before": duration(one.before_ns),
            "at best": "" if one.refusal else duration(one.after_low_ns),
            "at worst": "" if one.refusal else duration(one.after_high_ns),
            "replay off by": f"{one.error:.1%}",
            "no estimate": one.refusal,
        }
        for one in found.outcomes
    ]
    shares = [
        _line(
            "{}: {}, {} to {} of a step", one.label, each.change, _time(each.saving_low_ns), _time(each.saving_high_ns)
        )
        for one in found.outcomes
        for each in one.changes
    ]
    return str(Markup("<div>{}</div>").format(_table(columns, rows) + _joined(shares)))


def _time(ns: int) -> str:
    return duration(ns) if ns else "0"
