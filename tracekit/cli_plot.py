"""The command that draws a picture: plot."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli import open_output
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
)
from tracekit.errors import UsageError
from tracekit.scope import Scope

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracekit.beside import Given
    from tracekit.trace import Trace


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is drawn: one trace, or two to compare; the step or the window of a timeline."""

    traces: tuple[Trace, ...]
    step: int | None
    start_ns: int | None
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class _Plot:
    """A name that can be asked for: what the picture shows, in one line, and how it is drawn."""

    shows: str
    draw: Callable[[_Asked], Axes]


def _time_budget(asked: _Asked) -> Axes:
    from tracekit.plots import time_budget

    return time_budget(asked.traces[0])


def _idle_histogram(asked: _Asked) -> Axes:
    from tracekit.plots import idle_histogram

    return idle_histogram(asked.traces[0])


def _roofline(asked: _Asked) -> Axes:
    from tracekit.plots import roofline

    return roofline(asked.traces[0])


def _step_times(asked: _Asked) -> Axes:
    from tracekit.plots import step_times

    return step_times(asked.traces[0])


def _timeline(asked: _Asked) -> Axes:
    from tracekit.plots import timeline

    return timeline(asked.traces[0], step=asked.step, start_ns=asked.start_ns, end_ns=asked.end_ns)


def _waterfall(asked: _Asked) -> Axes:
    from tracekit.compare import compare
    from tracekit.plots import waterfall

    base, candidate = asked.traces
    return waterfall(compare([base], [candidate]))


_PLOTS = {
    "time_budget": _Plot("of a mean step, what is busy by category and idle by cause", _time_budget),
    "idle_histogram": _Plot("idle time by length of gap: few long ones, or many short ones?", _idle_histogram),
    "roofline": _Plot("kernels under the limits of memory and arithmetic of their device", _roofline),
    "step_times": _Plot("distribution of step times, with P50 and P99", _step_times),
    "timeline": _Plot("a step or a window: streams, idle time, API calls, ops, Python", _timeline),
    "waterfall": _Plot("from BASE to CANDIDATE, what each part of a step adds or takes", _waterfall),
}


class _WithPlots(click.Command):
    """Its help ends with what each picture shows."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Pictures, by NAME"):
            formatter.write_dl([(name, one.shows) for name, one in _PLOTS.items()])


@click.command(cls=_WithPlots)
@click.argument("name")
@click.argument("traces", type=TRACE, nargs=-1, required=True, metavar="TRACE [CANDIDATE]")
@click.option(
    "-o", "--output", type=FILE, required=True, metavar="FILE", help="Write the picture here: a .png or .svg file."
)
@click.option("--step", type=int, metavar="N", help="The step that a timeline shows; else it is a typical one.")
@scope_options
@FORCE
@RULES
@beside_options
@PARTIAL
@STEP_RANGE
def plot(
    *,
    name: str,
    traces: tuple[Path, ...],
    output: Path,
    step: int | None,
    scope: Scope,
    force: bool,
    rules: tuple[Path, ...],
    beside: Given,
    allow_partial: bool,
    step_range: str | None,
) -> None:
    """Draw a picture of a trace.

    \b
    Examples:
      tracekit plot time_budget trace.parquet -o budget.png
      tracekit plot timeline trace.parquet --step 17 -o step.svg
      tracekit plot timeline trace.parquet --since 1.2s --until 1.25s -o window.png
      tracekit plot waterfall before.parquet after.parquet -o change.png

    TRACE is a Parquet file made by tracekit, a profiler's own file, or a directory of these. The options that choose a
    part of a trace mean what they do for analyze; of a timeline, --since and --until are the window. The same trace
    gives the same file. Exit code 2 if there is nothing to draw, with the reason.
    """
    _check(name, len(traces), step, scope)
    from tracekit.plot_style import check_suffix

    check_suffix(output)
    open_output(output, force, inputs=(*traces, *rules, *beside.files))
    is_timeline = name == "timeline"
    part = replace(scope, start_ns=None, end_ns=None) if is_timeline else scope
    with ExitStack() as stack:
        parts = []
        for path in traces:
            whole = stack.enter_context(opened_trace(path, rules, allow_partial, step_range, beside))
            parts.append(stack.enter_context(part_of(whole, part)))
        window = (scope.start_ns, scope.end_ns) if is_timeline else (None, None)
        axes = _PLOTS[name].draw(_Asked(tuple(parts), step, *window))
        write_figure(axes.figure.figure, output)


def _check(name: str, traces: int, step: int | None, scope: Scope) -> None:
    """Refuse what cannot be drawn, before the work is done."""
    if name not in _PLOTS:
        raise UsageError(f"no picture {name!r}; there are: {', '.join(_PLOTS)}")
    wanted = 2 if name == "waterfall" else 1
    if traces != wanted:
        instead = "name two: BASE CANDIDATE" if wanted == 2 else "name one; two are compared by: waterfall"
        raise UsageError(f"{name} shows {'a change' if wanted == 2 else 'one trace'}; {instead}")
    if step is not None and name != "timeline":
        raise UsageError(f"--step is for timeline; {name} shows the steps that --steps {step} chooses")
    if step is not None and (scope.start_ns is not None or scope.end_ns is not None):
        raise UsageError("a timeline is of a step or of a window of time: give --step, or --since and --until")


def write_figure(figure: Figure, path: Path) -> None:
    """Write a picture, whole or not at all."""
    from tracekit.plot_style import save_figure

    draft = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        save_figure(figure, draft)
        draft.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    click.echo(f"Wrote {path}", err=True)
