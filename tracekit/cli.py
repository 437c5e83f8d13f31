"""The command line. Data goes to stdout, talk to stderr; an error is one line and an exit code."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import click

from tracekit import __version__
from tracekit.errors import TracekitError, UsageError

# Commands load when used, so that `tracekit --help` costs nothing. A command whose module is absent is not offered.
_COMMANDS = {
    "collect": ("tracekit.cli_collect:collect", "Run a program under a profiler and write its trace."),
    "convert": ("tracekit.cli_commands:convert", "Read profiler files into one Parquet file."),
    "analyze": ("tracekit.cli_commands:analyze", "Say where the time goes, why the GPU idles, and what to do."),
    "sql": ("tracekit.cli_commands:sql", "Query a trace with SQL."),
}


class _Group(click.Group):
    """Lists commands without importing them, and turns every TracekitError into its line and exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, (place, _) in _COMMANDS.items() if importlib.util.find_spec(place.partition(":")[0])]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        warnings.showwarning = _show_warning
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a name may hold what the terminal's encoding lacks
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except TracekitError as error:
            click.echo(f"tracekit: {error}", err=True)
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            # The reader of our output (head, less) has gone: that is no failure. Python would complain at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    click.echo(f"tracekit: warning: {message}", err=True)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tracekit", message="%(prog)s %(version)s")
def main() -> None:
    """Find out why an LLM serving step is slow, from a profiler trace.

    \b
    Example:
      tracekit collect -o trace.parquet -- python serve.py
      tracekit analyze trace.parquet
    """


def open_output(path: Path | None, force: bool) -> None:
    """Refuse an output that exists or cannot be written, before the work is done."""
    if path is None:
        return
    if path.exists() and not force:
        raise UsageError(f"{path} exists; give another -o, or --force to overwrite it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder; make it first")


def write_output(text: str, path: Path | None) -> None:
    """Print the text, or write it to a file, whole or not at all."""
    if path is None:
        click.echo(text)
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    click.echo(f"Wrote {path}", err=True)
