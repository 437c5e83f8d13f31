"""The commands that ask a trace: analyze, sql."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tracekit.analysis import Result, Row
from tracekit.cli import open_output, write_output
from tracekit.cli_filters import scope_options
from tracekit.cli_gate import FAIL_ON, by_severity, gated, verdicts_of
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
from tracekit.gate import SLOWER, Condition, Measured, Verdict, refuse_words
from tracekit.json_text import json_text, json_value
from tracekit.report_ci import Case, cases_of, github, junit
from tracekit.scope import Scope

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.text import Text

    from tracekit.beside import Given
    from tracekit.trace import Trace

JSON_SCHEMA = 1
_DRAWN = "roofline"
_HTML = (".html", ".htm")
_WIDTHS = (60, 120)  # of text on a terminal


class _WithQuestions(click.Command):
    """Its help ends with the question of each analysis and the meaning of each cause, told once for all texts."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from tracekit.analyses._idle_texts import MEANINGS
        from tracekit.registry import built_in_questions

        with formatter.section("Analyses, and the question that each answers (more: tracekit explain NAME)"):
            formatter.write_dl(list(built_in_questions().items()))
        with formatter.section("Causes of idle time, by gap"):
            formatter.write_dl(list(MEANINGS.items()))


@click.command(cls=_WithQuestions)
@click.argument("trace", type=TRACE)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@scope_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "html", "junit", "github"]),
    help="text, unless FILE ends in .html.",
)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write here instead of to the terminal.")
@click.option("--plot", type=FILE, metavar="FILE", help="Draw the roofline, too: a .png or .svg file.")
@FORCE
@RULES
@beside_options
@FAIL_ON
@PARTIAL
@STEP_RANGE
def analyze(
    *,
    trace: Path,
    names: tuple[str, ...],
    scope: Scope,
    form: Literal["text", "json", "html", "junit", "github"] | None,
    output: Path | None,
    plot: Path | None,
    force: bool,
    rules: tuple[Path, ...],
    beside: Given,
    conditions: tuple[Condition, ...],
    allow_partial: bool,
    step_range: str | None,
) -> None:
    """Say where the time goes, why the GPU idles, and what to do about it.

    \b
    Examples:
      tracekit analyze trace.parquet
      tracekit analyze trace.parquet -o report.html
      tracekit analyze trace.json.gz idle_gaps --format json -o idle.json
      tracekit analyze trace.parquet attribution --phase decode --steps 3:8 --rank 0
      tracekit analyze trace.parquet counters --ncu metrics.csv
      tracekit analyze trace.parquet --fail-on critical --fail-on 'idle_share > 0.2' --format junit -o report.xml
      tracekit analyze trace.parquet roofline --phase decode --model config.json --plot roofline.svg

    TRACE is a Parquet file made by tracekit, a profiler's own file, or a directory of these. NAME is one of the
    analyses below; all of them, on one screen, if none is named. Exit code 1 if the trace fails a health check, or
    what --fail-on says holds.

    Of a part of the trace, busy time counts with the step that launched it, a gap with the step whose work ended it;
    what crosses --since or --until is cut. The health check is always that of the whole trace.
    """
    refuse_words(conditions, (SLOWER,), "slower than what? `tracekit compare` has a base")
    open_output(output, force, inputs=(trace, *rules, *beside.files))
    _check_plot(plot, names, force, inputs=(trace, *rules, *beside.files))
    if files := [name for name in names if Path(name).exists() and not name.isidentifier()]:
        raise UsageError(
            f"one trace is analysed at a time, and {files[0]} is a second; the profilers' files of one run become one: "
            "tracekit convert FILE FILE ... -o trace.parquet"
        )
    with opened_trace(trace, rules, allow_partial, step_range, beside) as whole, part_of(whole, scope) as opened:
        results = {name: opened.analyze(name) for name in names or opened.analyses()}
        verdicts = verdicts_of(conditions, by_severity(results), lambda: _metrics(opened))
        with gated(verdicts, failed=_untrusted(results)):
            _write(opened, results, verdicts, form, output, name=str(trace), named=bool(names))
            if plot is not None:
                _draw(results[_DRAWN], plot)


@click.command()
@click.argument("trace", type=TRACE)
@click.argument("query")
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write here instead of to the terminal.")
@FORCE
@RULES
@beside_options
@PARTIAL
@STEP_RANGE
def sql(
    *,
    trace: Path,
    query: str,
    form: Literal["table", "json", "csv"],
    output: Path | None,
    force: bool,
    rules: tuple[Path, ...],
    beside: Given,
    allow_partial: bool,
    step_range: str | None,
) -> None:
    """Run one SELECT over a trace; it can read this trace and nothing else.

    \b
    Examples:
      tracekit sql trace.parquet "SELECT name, sum(dur) AS ns FROM kernels GROUP BY name ORDER BY ns DESC LIMIT 10"
      tracekit sql trace.parquet "FROM idle_gaps(launch_latency_ns := 20000)" --format csv
      tracekit sql trace.parquet "SELECT phase, sum(k.dur) FROM kernels k JOIN steps USING (rank, step) GROUP BY phase"
      tracekit sql trace.parquet "SHOW TABLES"

    Views: events, device_activity, kernels, memcpys, launches, ops, annotations, python_calls, steps, devices, ranks.
    steps has a row per serving step, by its rank and number; every event has the step it belongs to, or NULL.
    Table functions, called with parentheses: attribution(), communication(), counters(), cuda_graphs(), fusion(),
    idle_gaps(), plan(), roofline() and steps() give the rows of these analyses (their parameters go by name, as above),
    health() the counts that the analysis of that name judges; step_time(), busy_segments(), device_time(),
    idle_gaps_raw(), classified_segments(), launch_calls() and work_rows() are what they are made of; device_peaks has
    the peaks of the devices.
    With --ncu, the view ncu_metrics has what was measured, kernel_counters what of it belongs to which kernel.
    Columns: DESCRIBE FROM idle_gaps(). Times are integer nanoseconds. --format json prints an array of row objects.
    """
    open_output(output, force, inputs=(trace, *rules, *beside.files))
    with opened_trace(trace, rules, allow_partial, step_range, beside) as opened:
        write_output(_WRITERS[form](opened.query_readonly(utf8(query)), output is None), output)


# ---- the picture -----------------------------------------------------------------------------------------------------


def _check_plot(plot: Path | None, names: tuple[str, ...], force: bool, inputs: tuple[Path, ...]) -> None:
    """Refuse a picture that cannot be drawn, before the work is done."""
    if plot is None:
        return
    from tracekit.plot_style import check_suffix

    check_suffix(plot)
    if names and _DRAWN not in names:
        raise UsageError(f"--plot draws the {_DRAWN}, which is not among the analyses named; add it")
    open_output(plot, force, inputs)


def _draw(roofline: Result, path: Path) -> None:
    """Write the picture of all devices."""
    from tracekit.cli_plot import write_figure
    from tracekit.roofline_plot import roofline_figure

    write_figure(roofline_figure(roofline), path)


# ---- what they share -------------------------------------------------------------------------------------------------


def _untrusted(results: Mapping[str, Result]) -> bool:
    """Whether the trace fails a check of its health."""
    return "health" in results and "fail" in results["health"].table["status"].to_pylist()


def _metrics(trace: Trace) -> Mapping[str, Measured]:
    from tracekit.gate_metrics import metrics_of

    return metrics_of(trace)


_FOR_CI: Mapping[str, Callable[[Sequence[Case]], str]] = {"junit": junit, "github": github}


def _write(
    trace: Trace,
    results: Mapping[str, Result],
    verdicts: Sequence[Verdict],
    form: str | None,
    output: Path | None,
    *,
    name: str,
    named: bool,
) -> None:
    """form: None is text, or HTML by the file's name."""
    if form in ("junit", "github"):
        write_output(_FOR_CI[form](cases_of(results, verdicts)), output)
    elif form == "json":
        said = {"schema": JSON_SCHEMA, "trace": describe(trace), "results": _plain(results)}
        write_output(json_text(said, indent=1), output)
    elif form == "html" or (form is None and output is not None and output.suffix.lower() in _HTML):
        from tracekit.report_html import render

        write_output(render(trace, results, name=name, named=named), output)
    else:
        _report(trace, results, output, name=name, named=named)


def _report(trace: Trace, results: Mapping[str, Result], output: Path | None, *, name: str, named: bool) -> None:
    from tracekit.report_text import render

    def lines(width: int, unicode: bool) -> list[Text]:
        return render(trace, results, name=name, width=width, unicode=unicode, named=named)

    write_lines(lines, output)


def write_lines(make: Callable[[int, bool], list[Text]], output: Path | None) -> None:
    """Print lines, or write them to a file. make: the lines of a width, with or without characters beyond ASCII."""
    from rich.console import Console

    from tracekit.report_text import WIDTH

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
    to_file = output is not None
    blocks = to_file or "utf" in console.encoding.lower()
    width = _width() if console.is_terminal and not to_file else _columns_said() or WIDTH
    low, high = _WIDTHS
    lines = make(min(max(width, low), high), blocks)
    if to_file or not console.is_terminal:
        write_output("\n".join(line.plain for line in lines), output)
        return
    for line in lines:
        console.print(line, soft_wrap=True)


def _width() -> int:
    """Columns of the terminal; COLUMNS goes first."""
    return shutil.get_terminal_size().columns


def _columns_said() -> int | None:
    said = os.environ.get("COLUMNS", "")
    return int(said) if said.isdecimal() else None


def describe(trace: Trace) -> Row:
    """What a trace is, for the `trace` key of the JSON output."""
    footer = trace.footer
    return {
        "schema": footer.schema,
        "scope": trace.scope.to_json(),
        "origin_ns": footer.origin_ns,
        "ranks": list(footer.ranks),
        "devices": [{"rank": one.rank, "device": one.device, "name": one.name} for one in footer.devices],
        "sources": [
            {
                "path": one.path,
                "format": one.format,
                "rank": one.rank,
                "world_size": one.world_size,
                "truncated_at": one.truncated_at,
            }
            for one in footer.sources
        ],
        "partial": list(footer.partial),
        "events": {
            "read": footer.ledger.read,
            "stored": footer.ledger.stored,
            "by_kind": footer.ledger.by_kind,
            "skipped": footer.ledger.skipped,
            "repaired": footer.ledger.repaired,
        },
        **({"counters": trace.beside.counters.ledger.to_pylist()} if trace.beside.counters else {}),
    }


def _plain(results: Mapping[str, Result]) -> Row:
    return {name: result.to_json() for name, result in results.items()}


def _as_json(table: pa.Table, _shown: bool) -> str:
    return json_text(_rows(table), indent=1)


def _as_csv(table: pa.Table, _shown: bool) -> str:
    text = io.StringIO()
    rows = _rows(table)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_columns(table))
    for row in rows:
        writer.writerow([json.dumps(one) if isinstance(one, (list, dict)) else one for one in row.values()])
    return text.getvalue().removesuffix("\n")


def _as_table(table: pa.Table, shown: bool) -> str:
    from tracekit.text_grid import grid

    return "\n".join(grid(_columns(table), _rows(table), _width() if shown and sys.stdout.isatty() else None))


def _columns(table: pa.Table) -> list[str]:
    """Column names, told apart where a query gives two the same."""
    names: list[str] = []
    for name in table.column_names:
        unique, number = name, 1
        while unique in names:
            unique, number = f"{name}_{number}", number + 1
        names.append(unique)
    return names


def _rows(table: pa.Table) -> list[Row]:
    renamed = table.rename_columns(_columns(table))
    return [{key: json_value(one) for key, one in row.items()} for row in renamed.to_pylist()]


# shown: the text goes to the screen or a pipe, not to a file.
_WRITERS: Mapping[str, Callable[[pa.Table, bool], str]] = {"table": _as_table, "json": _as_json, "csv": _as_csv}
