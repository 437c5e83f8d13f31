"""What several commands share: options, how a trace is opened, and what shows how far a file is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tracekit.cli import Named
from tracekit.errors import UsageError
from tracekit.scope import Scope

if TYPE_CHECKING:
    from tracekit.beside import Given
    from tracekit.trace import Trace


def utf8(argument: str, what: str = "the query") -> str:
    """An argument as UTF-8, whatever the locale."""
    try:
        return os.fsencode(argument).decode()
    except ValueError as error:
        raise UsageError(f"{what} is not UTF-8: {error}") from error


def _step_range(_context: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    return None if given is None else utf8(given, "the step range")


FILE = Named(dir_okay=False, path_type=Path)
TRACE = Named(path_type=Path)
FORCE = click.option("--force", is_flag=True, help="Overwrite the output file.")
PARTIAL = click.option("--allow-partial", is_flag=True, help="Accept a file that was cut short; keep its whole events.")
RULES = click.option(
    "--rules",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="TOML file of kernel rules that go before the built-in ones.",
)
STEP_RANGE = click.option(
    "--step-range",
    metavar="REGEX",
    callback=_step_range,
    help="Annotations that match are the serving steps, instead of the marks of known engines.",
)


_BESIDE = (
    click.option(
        "--ncu",
        type=FILE,
        multiple=True,
        metavar="FILE",
        help="Table that Nsight Compute printed with --csv: counters of kernels, see the analysis counters. "
        "Repeatable.",
    ),
    click.option(
        "--device-spec",
        type=FILE,
        multiple=True,
        metavar="FILE",
        help="TOML file of devices that goes before the built-in table of peaks (docs/devices.md). Repeatable.",
    ),
    click.option(
        "--peak",
        multiple=True,
        metavar="NAME=VALUE",
        help="A peak of the device, before all tables: bf16=989e12 (per second, dense), bandwidth=3.35e12 (bytes per "
        "second). Repeatable.",
    ),
    click.option(
        "--capture-trace",
        type=TRACE,
        multiple=True,
        metavar="FILE",
        help="Trace of the same server with shapes, recorded while graphs were captured or without graphs: lends work "
        "to graph replays. Repeatable.",
    ),
    click.option(
        "--model",
        type=FILE,
        metavar="FILE",
        help="config.json of the served model, as on Hugging Face: gives work to kernels without shapes.",
    ),
    click.option(
        "--tensor-parallel", type=int, metavar="N", help="Devices that share a layer of it; else the ranks of the job."
    ),
)


def beside_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name what is known beside a trace; it gets them as one parameter `beside`."""

    @wraps(command)
    def with_beside(
        *,
        ncu: tuple[Path, ...],
        device_spec: tuple[Path, ...],
        peak: tuple[str, ...],
        capture_trace: tuple[Path, ...],
        model: Path | None,
        tensor_parallel: int | None,
        **others: object,
    ) -> None:
        from tracekit.beside import Given
        from tracekit.peaks_given import parse_peaks

        given = Given(ncu, device_spec, parse_peaks(peak), capture_trace, model, tensor_parallel)
        command(beside=given, **others)

    decorated: Callable[..., None] = with_beside
    for option in reversed(_BESIDE):
        decorated = option(decorated)
    return decorated


@contextmanager
def opened_trace(
    paths: Path | tuple[Path, ...],
    rules: tuple[Path, ...],
    allow_partial: bool,
    step_range: str | None,
    beside: Given | None = None,
) -> Iterator[Trace]:
    """The trace in a file or in several, with a progress bar while they are read."""
    from tracekit import trace as traces
    from tracekit.beside import Beside

    with progress_bar() as progress:
        trace = traces.open_beside(
            paths,
            beside.read() if beside else Beside(),
            rules=rules,
            allow_partial=allow_partial,
            progress=progress,
            step_range=step_range,
        )
    with trace:
        yield trace


def part_of(trace: Trace, scope: Scope) -> AbstractContextManager[Trace]:
    """The part of a trace that the options chose; all of it without any."""
    return trace.within(scope) if scope else nullcontext(trace)


@contextmanager
def progress_bar(
    doing: str = "Reading", unit: Literal["bytes", "events"] = "bytes"
) -> Iterator[Callable[[Path, int, int], None] | None]:
    """A progress bar on a terminal, to be called with a file, how much of it is done, and all; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tracekit.text_grid import clean

    seen: dict[Path, tuple[int, int]] = {}
    with ExitStack() as stack:

        def advance(path: Path, done: int, size: int) -> None:
            if not seen:  # the bar appears with the first call: a Parquet file needs none
                stack.enter_context(shown)
            seen[path] = (done, size)
            done, size = (sum(numbers) for numbers in zip(*seen.values(), strict=True))
            shown.update(bar, completed=done, total=size or None, description=f"{doing} {clean(path.name)[:40]}")

        shown = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn() if unit == "bytes" else MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        bar = shown.add_task(doing, total=None)
        yield advance
