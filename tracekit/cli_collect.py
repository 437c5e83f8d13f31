"""`tracekit collect`: run a program under a profiler, convert what it wrote, and refuse a capture without content."""

from __future__ import annotations

import gzip
import itertools
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli import open_output
from tracekit.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from tracekit.collectors.torch_profiler import Program, Recording
    from tracekit.footer import Footer

_KERNEL_LAUNCHES = """
    SELECT count(*)
    FROM read_parquet(?)
    WHERE kind = 'launch' AND regexp_matches(name, 'launch', 'i') AND NOT regexp_matches(name, 'hostfunc', 'i')
"""
_NO_KERNELS = (
    "the program launched work on the GPU {launches} times and not one kernel was recorded. Likely causes: no "
    "permission to use the GPU's counters (look for INSUFFICIENT_PRIVILEGES above; a container needs SYS_ADMIN or the "
    "driver setting NVreg_RestrictProfilingToAdminUsers=0); another profiler attached (nsys, ncu, DCGM); a CUPTI that "
    "does not fit the driver (LD_LIBRARY_PATH). {output} holds the host side only"
)


# Off by default: shapes made a decode step of the sample script 25 % longer (370 ops in 1.7 ms; 2 % without), and the
# file 1.7 times as large; stacks are dearer still. Timing is what most recordings are for.
@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("trace.parquet"),
    show_default=True,
    help="File to write.",
)
@click.option("--force", is_flag=True, help="Overwrite the files; only once something was recorded.")
@click.option(
    "--shapes/--no-shapes",
    default=False,
    help="Record input shapes of ops; slows the host, so time without them.  [default: off]",
)
@click.option(
    "--stack/--no-stack",
    default=False,
    help="Record Python stacks; slows the host severalfold, so for short runs.  [default: off]",
)
@click.option(
    "--keep-raw",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep the profiler's own file too: .json, or .json.gz. It may hold secrets; the Parquet file does not.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def collect(
    *, output: Path, force: bool, shapes: bool, stack: bool, keep_raw: Path | None, command: tuple[str, ...]
) -> None:
    """Run a Python program under torch.profiler and write its trace.

    \b
    Example:
      tracekit collect -o trace.parquet -- python serve.py --batch 32

    The whole run of the one process is recorded; Ctrl-C ends the program and keeps the trace. The interpreter named
    is the one that runs, with its own torch. Exit code 5 if the program failed or nothing was recorded: what a failing
    program did up to its end is written, and where nothing was recorded no file is touched, --force or not.
    """
    from tracekit.collectors.torch_profiler import files_of, parse_command, record

    program = parse_command(command)
    _check_outputs(output, keep_raw, force, [*files_of(program, command)])  # before a run which may take an hour
    with _terminated_tidily(), tempfile.TemporaryDirectory(prefix=".tracekit-", dir=output.parent) as folder:
        recording = record(program, Path(folder, _raw_name(program)), stacks=stack, shapes=shapes)
        _report_run(program, recording)
        draft = Path(folder, output.name)
        try:
            unseen = _convert(recording.path, draft, f"{program.label} {recording.ended} and")
            draft.replace(output)
        except CaptureError:
            raise
        except BaseException:  # an interrupt too: what took an hour to record is not to be lost to it
            click.echo("The trace could not be converted; the profiler's own file is kept.", err=True)
            _keep(recording.path, keep_raw or _unused(output.with_suffix(".json")))
            raise
        click.echo(f"Wrote {output}", err=True)
        if keep_raw is not None:
            _keep(recording.path, keep_raw)
    if unseen:
        raise CaptureError(_NO_KERNELS.format(launches=unseen, output=output))
    ended = recording.ended
    if ended.status != 0 and ended.stopped_by is None:
        raise CaptureError(f"{program.label} {ended}. The trace up to there is in {output}")


def _check_outputs(output: Path, keep_raw: Path | None, force: bool, named: Sequence[Path]) -> None:
    """Refuse outputs that cannot be written, and ones that would overwrite each other or a file of the program."""
    if keep_raw is not None and not keep_raw.name.lower().endswith((".json", ".json.gz")):
        raise UsageError(f"{keep_raw}: --keep-raw writes .json or .json.gz; give it such a name")
    outputs = [output] if keep_raw is None else [output, keep_raw]
    for path in outputs:
        open_output(path, force)
        if any(_same(path, other) for other in named):
            raise UsageError(f"{path} is named in the command to run, and would be overwritten; write to another file")
    if keep_raw is not None and _same(output, keep_raw):
        raise UsageError(f"-o and --keep-raw are the same file, {output}; name two")


def _same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, which need not exist."""
    try:
        return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))
    except (OSError, RuntimeError, ValueError):  # a word of the command that cannot be a path
        return False


@contextmanager
def _terminated_tidily() -> Iterator[None]:
    """Have SIGTERM raise, so that temporary files go. While the program runs, SIGTERM is the program's."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _raw_name(program: Program) -> str:
    """A file name that reports can show. Without digits, which a reader could take for a rank."""
    letters = re.sub(r"[^A-Za-z]+", "_", Path(program.label).stem).strip("_")
    return f"{letters or 'program'}.json"


def _report_run(program: Program, recording: Recording) -> None:
    """Say what was recorded, and what of the request could not be met."""
    activities = " and ".join(recording.activities)
    click.echo(
        f"Recorded {program.label} for {recording.seconds:.1f} s with torch {recording.torch} ({activities}).", err=True
    )
    if recording.ended.stopped_by is not None:
        click.echo(f"Stopped by {recording.ended.stopped_by}; the program {recording.ended}.", err=True)
    if recording.displaced:
        click.echo(
            "The program started a torch.profiler of its own, and only one can run: this trace ends there.", err=True
        )
    if not recording.all_threads:
        click.echo("This torch records only the thread that imported it; ops of other threads are missing.", err=True)


def _keep(recorded: Path, wanted: Path) -> None:
    """Move the profiler's file to where the user wants it, compressed if the name says so; whole or not at all."""
    draft = wanted.with_name(f".{wanted.name}.{os.getpid()}.tmp")
    try:
        if wanted.suffix.lower() == ".gz":
            with recorded.open("rb") as plain, gzip.open(draft, "wb", compresslevel=6) as packed:
                shutil.copyfileobj(plain, packed, 1 << 20)
        else:
            shutil.move(recorded, draft)
        draft.replace(wanted)
    finally:
        draft.unlink(missing_ok=True)
    click.echo(f"Wrote {wanted}", err=True)


def _unused(path: Path) -> Path:
    """The path, or one like it, that does not exist."""
    tries = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(1))
    return path if not path.exists() else next(other for other in tries if not other.exists())


def _convert(raw: Path, draft: Path, program: str) -> int:
    """Convert; CaptureError if there is nothing in it. Returns how many launches there are if no kernel was seen."""
    from tracekit.convert import convert

    footer = convert([raw], draft)
    kinds = footer.ledger.by_kind
    if not any(kinds.get(kind) for kind in ("op", "kernel", "memcpy", "memset", "graph")):
        raise CaptureError(f"{program} {_nothing(footer)}")
    return _kernel_launches(draft) if kinds.get("launch") and not (kinds.get("kernel") or kinds.get("graph")) else 0


def _nothing(footer: Footer) -> str:
    stored = ", ".join(f"{count} {kind}" for kind, count in sorted(footer.ledger.by_kind.items())) or "no event at all"
    return (
        f"left nothing of use in its trace ({stored}): no op ran in this process after torch was imported. If the "
        "program hands its work to other processes, record the one that does the work; engines that start workers "
        "cannot be recorded yet"
    )


def _kernel_launches(trace: Path) -> int:
    """How many API calls asked for a kernel or a graph."""
    import duckdb

    with duckdb.connect() as connection:
        row = connection.execute(_KERNEL_LAUNCHES, [str(trace)]).fetchone()
    return int(row[0]) if row else 0
