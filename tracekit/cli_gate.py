"""The option --fail-on: what makes a command exit with 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import click

from tracekit.analysis import Result
from tracekit.cli import EXIT_CODE
from tracekit.cli_options import utf8
from tracekit.gate import Condition, Measured, Verdict, check_severity, check_values, parse


def _parsed(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[Condition, ...]:
    return tuple(parse(utf8(one, "the condition")) for one in given)


FAIL_ON = click.option(
    "--fail-on",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    callback=_parsed,
    help="Exit with 1 if this holds: 'critical', 'idle_share > 0.2', 'decode.p50 > 10ms' (docs/gate.md). Repeatable.",
)


def verdicts_of(
    conditions: Sequence[Condition], words: Mapping[str, Callable[[Condition], Verdict]], metrics: _Metrics
) -> list[Verdict]:
    """What became of each condition. words: how to judge those that are words; metrics: called if there is another."""
    values: Mapping[str, Measured] = metrics() if any(one.metric for one in conditions) else {}
    return [words[one.word](one) if one.word else check_values(one, values) for one in conditions]


_Metrics = Callable[[], Mapping[str, Measured]]


def by_severity(results: Mapping[str, Result]) -> dict[str, Callable[[Condition], Verdict]]:
    """How to judge "warning" and "critical"."""
    judge = partial(check_severity, results=results)
    return {"warning": judge, "critical": judge}


@contextmanager
def gated(verdicts: Sequence[Verdict], *, failed: bool = False) -> Iterator[None]:
    """Exit with 1 after what is done within if a condition holds, named on stderr, or something else failed; also if
    the reader of the output goes away: `| head` hides no failure.
    """
    context = click.get_current_context()
    holding = [one for one in verdicts if one.failed]
    code = int(failed or bool(holding))
    context.meta[EXIT_CODE] = code
    try:
        yield
    finally:
        for one in holding:
            click.echo(f"tracekit: failed: {one.condition}: {one.said}", err=True)
    if code:
        context.exit(code)
