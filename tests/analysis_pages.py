"""docs/analyses: a page for each analysis, from its question, its parameters and the header of its SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tracekit.analysis import Analysis
from tracekit.macros import MacroDoc, parse_macros
from tracekit.registry import analyses

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "analyses"
_MADE = "<!-- Made by `python -m tests.test_docs` from analyses/{name}.sql; change it there. -->"


def pages() -> dict[Path, str]:
    """Each page by its path, and the list of them."""
    built_in = {name: one for name, one in analyses().items() if one.built_in}
    made = {FOLDER / f"{name}.md": _page(one.analysis, one.sql) for name, one in built_in.items()}
    rows = [f"| [{name}]({name}.md) | {one.analysis.question} |" for name, one in built_in.items()]
    index = ["# Analyses", "", _MADE.replace("{name}", "*"), "", "| analysis | question |", "|---|---|", *rows]
    return {FOLDER / "README.md": "\n".join(index) + "\n", **made}


def _page(analysis: Analysis, sql: str) -> str:
    (doc,) = (one for one in parse_macros(sql) if one.name == analysis.name)
    lines = [f"# {analysis.name}", "", _MADE.replace("{name}", analysis.name), "", f"**{analysis.question}**", ""]
    lines += [(type(analysis).__doc__ or "").strip(), "", *_how_to_ask(analysis.name)]
    lines += ["## How it measures", "", "```text", *doc.prose, "```", ""]
    lines += ["## Parameters", "", *_parameters(analysis.parameters, doc)]
    lines += ["## Columns", "", f"The table of the result, and of `FROM {analysis.name}()`.", ""]
    lines += _table(("column", "type", "meaning"), ((name, *one) for name, one in doc.columns.items()))
    return "\n".join(lines)


def _how_to_ask(name: str) -> Iterator[str]:
    yield from ("```text", f"tracekit analyze trace.parquet {name}", f"tracekit explain {name}.1 trace.parquet")
    yield from (f'tracekit sql trace.parquet "FROM {name}()"', "```", "")
    sql, py = (f"[analyses/{name}.{end}](../../analyses/{name}.{end})" for end in ("sql", "py"))
    yield f"{sql} measures, {py} judges."
    if (ROOT / "docs" / f"{name}.md").is_file():
        yield f"More: [docs/{name}.md](../{name}.md)."
    yield ""


def _parameters(parameters: Mapping[str, object], doc: MacroDoc) -> list[str]:
    if not parameters:
        return ["None.", ""]
    said = (
        (name, repr(default), (doc.parameters.get(name) or doc.thresholds[name])[1])
        for name, default in parameters.items()
    )
    return _table(("parameter", "default", "meaning"), said)


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> list[str]:
    lines = [" | ".join(head), "|".join(["---"] * len(head))]
    lines += [" | ".join((f"`{first}`", *map(_cell, rest))) for first, *rest in rows]
    return [*(f"| {lines[0]} |", f"|{lines[1]}|"), *(f"| {line} |" for line in lines[2:]), ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
