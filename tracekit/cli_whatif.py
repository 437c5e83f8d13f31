"""The command that replays steps with changes: whatif."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
    from tracekit.beside import Given
    from tracekit.trace import Trace
    from tracekit.whatif import Asked, WhatIf

_ORDER = "tracekit.whatif.order"
_MAX_ERROR = 5.0  # percent
_MAX_FACTOR = 10_000.0  # beyond, times of a step may be more nanoseconds than 64 bits hold


class _InOrder(click.Command):
    """Keeps in which order options were given: changes go one on top of the other."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[_ORDER] = [one.name for one in order]
        return super().parse_args(ctx, args)


@click.command(cls=_InOrder)
@click.argument("trace", type=TRACE)
@click.option(
    "--graph",
    multiple=True,
    metavar="PHASE",
    help="All that could be captured in steps of this phase (all: of any) is one CUDA graph, whatever blocks it now.",
)
@click.option(
    "--fuse",
    multiple=True,
    metavar="PATTERN",
    help="Fuse kernels by a pattern that the analysis fusion found, e.g. rope_kv; all: by all that are open.",
)
@click.option(
    "--scale-kernel",
    multiple=True,
    metavar="REGEX=FACTOR",
    help="Kernels and copies whose name matches take FACTOR times as long: 0.5 is twice as fast.",
)
@click.option(
    "--remove-sync",
    multiple=True,
    metavar="REGEX",
    help="Calls do not wait for the device any more, if their name or that of the op around them matches.",
)
@click.option("--overlap-communication", is_flag=True, help="Communication hides behind other work, as far as it can.")
@click.option("--free-launches", is_flag=True, help="Launches take the host no time: the least that is left to win.")
@click.option(
    "--max-error",
    type=click.FloatRange(0),
    default=_MAX_ERROR,
    show_default=True,
    metavar="PERCENT",
    help="Say nothing of steps whose replay without any change is off by more.",
)
@scope_options
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write here instead of to the terminal.")
@FORCE
@RULES
@beside_options
@PARTIAL
@STEP_RANGE
def whatif(
    *,
    trace: Path,
    graph: tuple[str, ...],
    fuse: tuple[str, ...],
    scale_kernel: tuple[str, ...],
    remove_sync: tuple[str, ...],
    overlap_communication: bool,
    free_launches: bool,
    max_error: float,
    scope: Scope,
    form: Literal["text", "json"],
    output: Path | None,
    force: bool,
    rules: tuple[Path, ...],
    beside: Given,
    allow_partial: bool,
    step_range: str | None,
) -> None:
    """Replay steps with changes: how long would they take?

    \b
    Examples:
      tracekit whatif trace.parquet --graph decode
      tracekit whatif trace.parquet --graph all --fuse rope_kv --fuse add_rms_norm --phase decode
      tracekit whatif trace.parquet --scale-kernel 'flash_fwd=0.5' --remove-sync aten::item --steps 3:8
      tracekit whatif trace.parquet --free-launches --format json -o limit.json

    Options that name a change may be repeated. Changes go one on top of the other in the order in which they are given,
    and each says what it adds to those before it. Steps of one phase and batch size are one group, of which up to three
    are replayed. A saving is an interval: at worst and at best, by what the trace does not tell. With the error of the
    replay beyond --max-error nothing is said of a group; where that is so for all of them, the exit code is 1.

    TRACE is a Parquet file made by tracekit, a profiler's own file, or a directory of these.
    """
    open_output(output, force, inputs=(trace, *rules, *beside.files))
    given = {
        "graph": graph,
        "fuse": fuse,
        "scale_kernel": scale_kernel,
        "remove_sync": remove_sync,
        "overlap_communication": (overlap_communication,) * overlap_communication,
        "free_launches": (free_launches,) * free_launches,
    }
    changes = list(_changes(click.get_current_context().meta[_ORDER], given))
    if not changes:
        raise UsageError(f"nothing to change: give {', '.join(_option(name) for name in given)}")
    from tracekit.whatif import whatif as replayed

    with opened_trace(trace, rules, allow_partial, step_range, beside) as whole, part_of(whole, scope) as opened:
        if math.isnan(max_error):
            raise UsageError("--max-error: nan is no bound")
        found = replayed(opened, changes, max_error=max_error / 100)
        if form == "json":
            said = {"schema": JSON_SCHEMA, "trace": describe(opened), "whatif": found.to_json()}
            write_output(json_text(said, indent=1), output)
        else:
            _report(opened, found, output, str(trace))


def _report(trace: Trace, found: WhatIf, output: Path | None, name: str) -> None:
    from tracekit.report_whatif import render

    write_lines(lambda width, _unicode: render(trace, found, name=name, width=width), output)


# ---- the options as changes ------------------------------------------------------------------------------------------


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _changes(order: Sequence[str | None], given: dict[str, tuple[Any, ...]]) -> Iterator[Asked]:
    """In the order of the command line. A flag counts once, however often it is given."""
    left = {name: iter(values) for name, values in given.items()}
    for name in order:
        value = next(left[name], None) if name in left else None
        if name is not None and value is not None:
            yield _MAKERS[name](value)


def _graph(phase: str) -> Asked:
    from tracekit.whatif import Graphs

    return Graphs(utf8(phase, "--graph"))


def _fuse(pattern: str) -> Asked:
    from tracekit.whatif import Fusion

    return Fusion(utf8(pattern, "--fuse"))


def _scale(text: str) -> Asked:
    from tracekit.changes import Scale

    expression, equals, factor = utf8(text, "--scale-kernel").rpartition("=")
    if not equals:
        raise UsageError(f"--scale-kernel {text!r}: no factor; give REGEX=FACTOR, e.g. {text + '=0.5'!r}")
    try:
        number = float(factor)
    except ValueError:
        raise UsageError(f"--scale-kernel {text!r}: {factor!r} after the last = is no number") from None
    if not 0 < number <= _MAX_FACTOR:  # as NaN is not, either
        raise UsageError(
            f"--scale-kernel {text!r}: the factor must be more than 0, and at most {_MAX_FACTOR:,.0f}; it is {factor}"
        )
    return Scale(_regex(expression, "--scale-kernel"), number)


def _sync(text: str) -> Asked:
    from tracekit.changes import RemoveSync

    return RemoveSync(_regex(utf8(text, "--remove-sync"), "--remove-sync"))


def _overlap(_: bool) -> Asked:
    from tracekit.changes import OverlapCommunication

    return OverlapCommunication()


def _free(_: bool) -> Asked:
    from tracekit.changes import FreeLaunches

    return FreeLaunches()


_MAKERS: dict[str, Callable[[Any], Asked]] = {
    "graph": _graph,
    "fuse": _fuse,
    "scale_kernel": _scale,
    "remove_sync": _sync,
    "overlap_communication": _overlap,
    "free_launches": _free,
}


def _regex(text: str, option: str) -> re.Pattern[str]:
    if not text:
        raise UsageError(f"{option}: the regular expression is empty, which matches everything; '.' says so")
    try:
        return re.compile(text)
    except re.error as error:
        where = "" if error.pos is None else f" at character {error.pos + 1}"
        raise UsageError(f"{option}: {text!r} is no regular expression: {error.msg}{where}") from error
