"""Options that several commands have, and what shows how far the reading of a file is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from tracekit.cli import Named
from tracekit.errors import UsageError

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
    help="Annotations that match are the serving steps, instead of the marks of known engines.",
)


def utf8(argument: str, what: str = "the query") -> str:
    """An argument as UTF-8, whatever the locale."""
    try:
        return os.fsencode(argument).decode()
    except ValueError as error:
        raise UsageError(f"{what} is not UTF-8: {error}") from error


@contextmanager
def progress_bar() -> Iterator[Callable[[Path, int, int], None] | None]:
    """A progress bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from tracekit.text_grid import clean

    seen: dict[Path, tuple[int, int]] = {}
    with ExitStack() as stack:

        def advance(path: Path, done: int, size: int) -> None:
            if not seen:  # the bar appears with the first bytes: a Parquet file needs none
                stack.enter_context(shown)
            seen[path] = (done, size)
            done, size = (sum(numbers) for numbers in zip(*seen.values(), strict=True))
            shown.update(bar, completed=done, total=size or None, description=f"Reading {clean(path.name)[:40]}")

        shown = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        bar = shown.add_task("Reading", total=None)
        yield advance
