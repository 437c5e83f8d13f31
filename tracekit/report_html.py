"""The verdict as one HTML file that needs no network: what `tracekit analyze trace.parquet -o report.html` writes.

    results --html_*.py--> sections of plain values --page/report.html--> text

The same results make the same bytes: there is no date in it. Scripts and styles are in the file, and its policy allows
these by their hashes and nothing else: what slipped through the escaping of a trace's text could not run.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from tracekit import __version__
from tracekit.analysis import Result, duration
from tracekit.html_views import Section, shown
from tracekit.wording import counted

if TYPE_CHECKING:
    from jinja2 import Environment

    from tracekit.trace import Trace

_PAGE = Path(__file__).with_name("page")
_SCRIPTS = ("report.js", "timeline_data.js", "timeline_draw.js", "timeline.js")


@dataclass(frozen=True, slots=True)
class _Head:
    """What the report is of. facts: short texts."""

    name: str
    facts: tuple[str, ...]
    scope: str
    version: str


def render(trace: Trace, results: Mapping[str, Result], *, name: str = "", named: bool = False) -> str:
    """The whole page. name: what the user calls the trace. named: the user asked for these analyses by name."""
    from tracekit.html_svg import definitions

    name = name or trace.path.name
    template = _environment().get_template("report.html")
    style, script = _file("report.css"), _script()
    text: str = template.render(
        head=_head(trace, results, name),
        sections=list(_sections(trace, results, name, named)),
        definitions=definitions(),
        style=Markup(style),
        script=Markup(script),
        policy=(
            f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
            "base-uri 'none'; form-action 'none'"
        ),
    )
    return text


# ---- what is in it ---------------------------------------------------------------------------------------------------


def _head(trace: Trace, results: Mapping[str, Result], name: str) -> _Head:
    footer = trace.footer
    models = Counter(_models(trace))
    facts = [shown(model if count == 1 else f"{count} x {model}", 80) for model, count in sorted(models.items())]
    facts += [counted(len(footer.ranks), "rank"), counted(footer.ledger.stored, "event")]
    spans = [row["span_ns"] for row in results["idle_gaps"].summary] if "idle_gaps" in results else []
    facts += [f"{duration(max(spans))} recorded on the device"] if spans else []
    formats = sorted({source.format for source in footer.sources})
    facts += [shown(", ".join(formats), 80)] if formats else []
    if footer.partial or any(source.truncated_at is not None for source in footer.sources):
        facts.append("partial: see the health of the trace")
    return _Head(shown(name), tuple(facts), shown(str(trace.scope)) if trace.scope else "", __version__)


def _models(trace: Trace) -> Iterator[str]:
    """Names of the devices that worked; without any, of all: each rank lists those of its machine."""
    worked = {(row["rank"], row["device"]) for row in trace.macro("device_time").to_pylist()}
    for one in trace.footer.devices:
        if one.name and (not worked or (one.rank, one.device) in worked):
            yield one.name


def _sections(trace: Trace, results: Mapping[str, Result], name: str, named: bool) -> Iterator[Section]:
    """In reading order; of the analyses that were asked for."""
    from tracekit import html_budget, html_timeline, html_trust, html_verdict

    words = [name, *trace.scope.arguments(), *trace.beside.given]
    own = _own_sections(trace)

    def made(analysis: str) -> Iterator[Section]:
        if analysis in results:
            yield own[analysis](results[analysis], _again(name, analysis))

    yield html_verdict.section(trace, results, words)
    yield from made("plan")
    yield from made("steps")
    if {"attribution", "idle_gaps"} <= results.keys():
        yield html_budget.section(trace, results["idle_gaps"].coverage.reason)
    yield html_timeline.section(trace)
    for one in ("idle_gaps", "attribution", "roofline", "cuda_graphs", "fusion", "communication"):
        yield from made(one)
    for one, result in results.items():
        if one not in own and (named or result.table.num_rows):
            yield html_trust.other(one, result, trace.analyses()[one].question, _again(name, one))
    yield from made("health")
    yield html_trust.coverage(results)
    first = next((id for result in results.values() for id in result.named_findings()), "")
    yield html_trust.repeat(words, list(results) if named else [], first)


def _own_sections(trace: Trace) -> Mapping[str, Callable[[Result, str], Section]]:
    """What makes the section of each analysis that has one of its own, from its result and the command for all rows."""
    from tracekit import html_advice, html_communication, html_idle, html_steps, html_trust, html_work

    return {
        "attribution": html_work.categories,
        "communication": html_communication.section,
        "cuda_graphs": html_advice.graphs,
        "fusion": html_advice.fusion,
        "health": lambda result, _: html_trust.health(result, bool(trace.scope)),
        "idle_gaps": lambda result, again: html_idle.section(trace, result, again),
        "plan": html_advice.plan,
        "roofline": html_work.roofline,
        "steps": lambda result, again: html_steps.section(trace, result, again),
    }


def _again(name: str, analysis: str) -> str:
    return f"tracekit analyze {shown(name, 80)} {analysis} --format json"


# ---- how it is put together ------------------------------------------------------------------------------------------


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(_PAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _script() -> str:
    """All scripts as one, whose names no other page could see."""
    files = "\n".join(_file(name) for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{files}\n}})();\n'


def _file(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """As a policy names the text of an element."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
