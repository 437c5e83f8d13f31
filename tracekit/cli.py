"""The command line. Data goes to stdout, talk to stderr; an error is one line and an exit code."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import io
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from tracekit import __version__
from tracekit.errors import TracekitError, UnknownFormatError, UsageError

# Commands load when used, so that `tracekit --help` costs nothing. A command whose module is absent is not offered.
_COMMANDS = {
    "collect": ("tracekit.cli_collect:collect", "Run a program under a profiler and write its trace."),
    "convert": ("tracekit.cli_convert:convert", "Read profiler files into one Parquet file."),
    "analyze": ("tracekit.cli_commands:analyze", "Say where the time goes, why the GPU idles, and what to do."),
    "compare": ("tracekit.cli_compare:compare", "Say what is different between recordings, and what explains it."),
    "explain": ("tracekit.cli_explain:explain", "Show what a finding rests on: rows, arithmetic, remedy."),
    "plot": ("tracekit.cli_plot:plot", "Draw a picture of a trace."),
    "whatif": ("tracekit.cli_whatif:whatif", "Replay steps with changes: how long would they take?"),
    "sql": ("tracekit.cli_commands:sql", "Query a trace with SQL."),
}

EXIT_CODE = "tracekit.exit_code"  # in the context's meta: of a command that is through but for its output

RAW_SUFFIXES = (".json", ".gz", ".zst", ".nsys-rep", ".qdstrm", ".sqlite")
_WHAT_IS_READ = (
    "tracekit reads what torch.profiler writes (JSON, also .gz or .zst), reports of Nsight Systems and their exports, "
    "and Parquet files made by tracekit itself"
)
# The message says it already, or it is not the matter.
_EXPECTED = re.compile(r"torch\.profiler|Nsight|newer tracekit")


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant, as click finds it; where there is none, the one that is spelt most like it."""
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            alike = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            meant = f"did you mean {alike[0]}?" if alike else f"there are: {', '.join(self.list_commands(ctx))}"
            ctx.fail(f"No such command {args[0]!r}; {meant}")
        return super().resolve_command(ctx, args)

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
        except UnknownFormatError as error:
            expected = "" if _EXPECTED.search(str(error)) else f"; {_WHAT_IS_READ}"
            click.echo(f"tracekit: {error}{expected}", err=True)
            ctx.exit(error.exit_code)
        except TracekitError as error:
            click.echo(f"tracekit: {error}", err=True)
            ctx.exit(error.exit_code)
        except BrokenPipeError:  # the reader of our output (head, less) has gone: that is no failure
            _drop_output()
            ctx.exit(ctx.meta.get(EXIT_CODE, 0))
        except OSError as error:
            where = "" if error.filename is None else f"{error.filename}: "
            click.echo(f"tracekit: {where}{error.strerror or error}", err=True)
            _drop_output()
            ctx.exit(1)


def _drop_output() -> None:
    """Let nothing more be written to stdout: Python would try at exit, and complain."""
    with contextlib.suppress(io.UnsupportedOperation):  # raised where no file is behind it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Named(click.Path):
    """A path, which must not be empty: an unset variable of a shell does not mean the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, as click makes it."""
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


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


def open_output(path: Path | None, force: bool, inputs: Sequence[Path] = ()) -> None:
    """Refuse an output that exists, is an input, or cannot be written, before the work is done."""
    if path is None:
        return
    if path.exists() and any(path.samefile(file) for one in inputs for file in _files_of(one)):
        raise UsageError(f"{path} is what is to be read; give another -o")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; give another -o, or --force to overwrite it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder; make it first")


def refuse_raw_name(path: Path, instead: str = "") -> None:
    """Refuse to give a Parquet file the name of a profiler's own file. instead: what else could have been meant."""
    if path.suffix in RAW_SUFFIXES:
        raise UsageError(f"{path} has the name of a raw trace; write a .parquet{instead}")


def _files_of(path: Path) -> Iterator[Path]:
    """A file itself, or the files in a folder."""
    if path.is_dir():
        yield from (child for child in path.rglob("*") if child.is_file())
    elif path.exists():
        yield path


def write_output(text: str, path: Path | None) -> None:
    """Print the text, or write it to a file, whole or not at all."""
    if path is None:
        try:
            click.echo(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            _drop_output()
            raise TracekitError(f"the output cannot be written: {error.strerror or error}") from error
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    click.echo(f"Wrote {path}", err=True)
