"""The command that shows what a finding rests on: explain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tracekit.cli import open_output, write_output
from tracekit.cli_commands import JSON_SCHEMA, describe, write_lines
from tracekit.cli_filters import scope_options
from tracekit.cli_options import (
    FILE,
    FORCE,
    PARTIAL,
    RULES,
    STEP_RANGE,
    TRACE,
    beside_options,
    opened_trace,
    part_of,
    utf8,
)
from tracekit.errors import UsageError
from tracekit.json_text import json_text
from tracekit.scope import Scope

if TYPE_CHECKING:
    from rich.text import Text

    from tracekit.analysis import Row
    from tracekit.beside import Given
    from tracekit.explain import Explanation
    from tracekit.trace import Trace


@click.command()
@click.argument("finding", required=False)
@click.argument("trace", type=TRACE, required=False)
@scope_options
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write here instead of to the terminal.")
@FORCE
@RULES
@beside_options
@PARTIAL
@STEP_RANGE
def explain(
    *,
    finding: str | None,
    trace: Path | None,
    scope: Scope,
    form: Literal["text", "json"],
    output: Path | None,
    force: bool,
    rules: tuple[Path, ...],
    beside: Given,
    allow_partial: bool,
    step_range: str | None,
) -> None:
    """Show what a finding rests on: its rows, its arithmetic, the Python line, the remedy.

    \b
    Examples:
      tracekit explain idle_gaps.1 trace.parquet
      tracekit explain roofline trace.parquet --phase decode --format json
      tracekit explain idle_gaps

    FINDING is an id as analyze prints it: idle_gaps.1 is the first finding of idle_gaps. The name of an analysis
    stands for all of its findings; without a trace, for its help: which question it answers, how it decides, its
    thresholds and columns. Without anything: the questions of all analyses.

    Ids are those of the same options: a part of the trace has findings of its own. The arithmetic has queries that give
    its numbers, to be run with tracekit sql. Where Python stacks were recorded, each row comes with the functions
    around it, and the innermost line that is not the framework's.
    """
    inputs = (*([] if trace is None else [trace]), *rules, *beside.files)
    open_output(output, force, inputs=inputs)
    asked = None if finding is None else utf8(finding, "the finding")
    if trace is None:
        _help(asked, form, output)
        return
    assert asked is not None  # arguments are filled from the left
    if Path(asked).exists() and not trace.exists():
        raise UsageError(f"the finding goes first: tracekit explain {trace} {asked}")
    with opened_trace(trace, rules, allow_partial, step_range, beside) as whole, part_of(whole, scope) as opened:
        from tracekit.explain import explain_all

        found = explain_all(opened, asked, called=str(trace))
        if form == "json":
            said = {"schema": JSON_SCHEMA, "trace": describe(opened), "explained": [one.to_json() for one in found]}
            write_output(json_text(said, indent=1), output)
        else:
            _report(opened, asked, found, output)


def _report(trace: Trace, asked: str, found: tuple[Explanation, ...], output: Path | None) -> None:
    from rich.text import Text

    from tracekit.report_explain import explained
    from tracekit.report_text import Report

    def lines(width: int, _unicode: bool) -> list[Text]:
        page = Report("", (), width, "", True)
        if not found:
            return page.wrapped(f"{asked} has no findings here", "", "", None)
        told = [explained(page, one) for one in found]
        return [line for at, one in enumerate(told) for line in ([Text("")] * (at > 0) + one)]

    write_lines(lines, output)


def _help(name: str | None, form: Literal["text", "json"], output: Path | None) -> None:
    """Of one analysis, or the questions of all."""
    from tracekit.analysis_help import analysis_help, questions

    if name is not None and name not in dict(questions()):
        if Path(name).exists():
            raise UsageError(f"which finding of {name}? tracekit explain idle_gaps.1 {name}")
        if "." in name:
            raise UsageError(f"which trace is {name} a finding of? tracekit explain {name} trace.parquet")
    if form == "json":
        write_output(json_text(_help_json(name), indent=1), output)
    elif name is None:
        _list_questions(output)
    else:
        from tracekit.report_explain import helped
        from tracekit.report_text import Report

        said = analysis_help(name)
        write_lines(lambda width, _unicode: helped(Report("", (), width, "", True), said), output)


def _list_questions(output: Path | None) -> None:
    from tracekit.analysis_help import questions
    from tracekit.text_page import Page

    wide = max(len(name) for name, _ in questions())

    def lines(width: int, _unicode: bool) -> list[Text]:
        page = Page("", (), width, "", True)
        return [line for name, said in questions() for line in page.wrapped(said, f"{name:<{wide}}  ", "", None)]

    write_lines(lines, output)


def _help_json(name: str | None) -> Row:
    from dataclasses import asdict

    from tracekit.analysis_help import analysis_help, questions

    names = [one for one, _ in questions()] if name is None else [name]
    return {"schema": JSON_SCHEMA, "analyses": [asdict(analysis_help(one)) for one in names]}
