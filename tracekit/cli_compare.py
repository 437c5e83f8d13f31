"""The command that compares recordings: compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.analysis import SEVERITIES
from tracekit.cli import open_output, write_output
from tracekit.cli_commands import write_lines
from tracekit.cli_filters import scope_options
from tracekit.cli_gate import FAIL_ON, gated, verdicts_of
from tracekit.cli_options import FILE, FORCE, PARTIAL, RULES, STEP_RANGE, TRACE, opened_trace, part_of
from tracekit.errors import UsageError
from tracekit.gate import SLOWER, Condition, Measure, Measured, Verdict, refuse_words
from tracekit.json_text import json_text
from tracekit.scope import Scope

if TYPE_CHECKING:
    from tracekit.compare import Comparison, Recording

FORMATS = ("text", "json", "junit", "github")


@click.command()
@click.argument("base", type=TRACE)
@click.argument("candidate", type=TRACE)
@click.option("--base", "more_base", type=TRACE, multiple=True, metavar="FILE", help="Another recording like BASE.")
@click.option(
    "--candidate", "more_candidate", type=TRACE, multiple=True, metavar="FILE", help="Another recording like CANDIDATE."
)
@scope_options
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write here instead of to the terminal.")
@FORCE
@FAIL_ON
@RULES
@PARTIAL
@STEP_RANGE
def compare(
    *,
    base: Path,
    candidate: Path,
    more_base: tuple[Path, ...],
    more_candidate: tuple[Path, ...],
    scope: Scope,
    form: str,
    output: Path | None,
    force: bool,
    conditions: tuple[Condition, ...],
    rules: tuple[Path, ...],
    allow_partial: bool,
    step_range: str | None,
) -> None:
    """Say what is different between recordings, and what explains it.

    \b
    Examples:
      tracekit compare before.parquet after.parquet
      tracekit compare before/ after/ --phase decode
      tracekit compare before/ after/ --fail-on 'decode.p50 > +3%' --fail-on slower --format junit -o compare.xml
      tracekit compare a1.parquet b1.parquet --base a2.parquet --candidate b2.parquet --format json

    BASE and CANDIDATE are each a Parquet file made by tracekit, a profiler's own file, a directory of the profilers'
    files of one run, or a directory of Parquet files, each of which is a recording of its own. Record each side three
    times or more: how much one recording differs from the next, a single one does not tell.

    Steps of one phase and batch size are compared. They are slower or faster where the mean step changed by more than
    chance and by 1 % at least; what explains it are parts of the step (busy time by category, idle time by cause)
    whose changes add up to its change. Conditions that are not alike, such as batches, load, versions and what the
    profiler recorded, are told first: change one thing at a time.
    """
    refuse_words(conditions, SEVERITIES, "findings are of one trace: tracekit analyze")
    open_output(output, force, inputs=(base, *more_base, candidate, *more_candidate, *rules))
    with_shares = any(one.metric for one in conditions)

    def measured(paths: Sequence[Path]) -> _Side:
        read = [
            _measured(
                one,
                scope=scope,
                rules=rules,
                allow_partial=allow_partial,
                step_range=step_range,
                with_shares=with_shares,
            )
            for path in paths
            for one in recordings(path)
        ]
        return _Side([one for one, _ in read], [one for _, one in read])

    from tracekit.compare import compared

    before, after = measured((base, *more_base)), measured((candidate, *more_candidate))
    found = compared(before.recordings, after.recordings)
    verdicts = _verdicts(conditions, found, before, after)
    with gated(verdicts):
        _write(found, verdicts, form, output)


@dataclass(frozen=True, slots=True)
class _Side:
    """What was measured of each recording; shares are empty where no condition asks for a metric."""

    recordings: Sequence[Recording]
    shares: Sequence[Mapping[str, Measure]]


def recordings(path: Path) -> list[Path]:
    """The files in a folder of nothing but Parquet files made by tracekit; else what is given is one recording."""
    if not path.is_dir():
        return [path]
    files = sorted(child for child in path.rglob("*") if child.is_file() and not child.name.startswith("."))
    return files if files and all(map(_is_trace, files)) else [path]


def _is_trace(path: Path) -> bool:
    from tracekit.errors import UnknownFormatError
    from tracekit.inputs import is_parquet
    from tracekit.store import read_footer

    try:
        return is_parquet(path) and bool(read_footer(path))
    except UnknownFormatError:  # a table of an export, say
        return False


def _measured(
    path: Path,
    *,
    scope: Scope,
    rules: tuple[Path, ...],
    allow_partial: bool,
    step_range: str | None,
    with_shares: bool,
) -> tuple[Recording, Mapping[str, Measure]]:
    """One after the other: open traces would add up."""
    from tracekit.compare import measure
    from tracekit.gate_metrics import shares_of

    with ExitStack() as stack:
        whole = stack.enter_context(opened_trace(path, rules, allow_partial, step_range))
        try:
            opened = stack.enter_context(part_of(whole, scope))
        except UsageError as error:  # of several traces, which one has no such part?
            raise UsageError(f"{path}: {error}") from None
        return measure(opened, str(path)), shares_of(opened) if with_shares else {}


def _verdicts(conditions: Sequence[Condition], found: Comparison, before: _Side, after: _Side) -> list[Verdict]:
    def metrics() -> Mapping[str, Measured]:
        from tracekit.gate_metrics import metrics_of_sides

        wanted = {one.metric for one in conditions}
        return metrics_of_sides(before.recordings, after.recordings, (before.shares, after.shares), wanted)

    return verdicts_of(conditions, {SLOWER: lambda one: _slower(one, found)}, metrics)


def _slower(condition: Condition, found: Comparison) -> Verdict:
    """Not met where nothing can be told of any step: that is no proof of speed."""
    slower = [one.label for one in found.groups if one.verdict == "slower"]
    if not any(one.p_value is not None for one in found.groups):
        reasons = dict.fromkeys(one.reason for one in found.groups if one.reason)
        return Verdict(condition.text, True, f"cannot tell: {'; '.join(reasons) or 'no steps to compare'}")
    return Verdict(condition.text, bool(slower), ", ".join(slower) if slower else "no kind of step is")


def _write(found: Comparison, verdicts: Sequence[Verdict], form: str, output: Path | None) -> None:
    from tracekit.report_ci import github, junit
    from tracekit.report_compare import render
    from tracekit.report_compare_ci import cases_of_comparison

    match form:
        case "json":
            write_output(json_text(found.to_json(), indent=1), output)
        case "junit":
            write_output(junit(cases_of_comparison(found, verdicts)), output)
        case "github":
            write_output(github(cases_of_comparison(found, verdicts)), output)
        case _:
            write_lines(lambda width, unicode: render(found, width=width, unicode=unicode), output)
