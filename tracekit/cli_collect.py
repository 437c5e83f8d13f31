"""`tracekit collect`: run a program under a profiler, convert what it wrote, and refuse a capture without content."""

from __future__ import annotations

import gzip
import itertools
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli import open_output
from tracekit.errors import CaptureError

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
@click.option("--force", is_flag=True, help="Overwrite the file.")
@click.option(
    "--shapes/--no-shapes",
    default=False,
    help="Record op input shapes, which the roofline needs; slows the host, so time without them.  [default: off]",
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
    is the one that runs, with its own torch. Exit code 5 if the program failed or nothing was recorded.
    """
    from tracekit.collectors.torch_profiler import parse_command, record

    program = parse_command(command)
    for path in [output] if keep_raw is None else [output, keep_raw]:
        open_output(path, force)  # before the program runs, which may take an hour
    with _terminated_tidily(), tempfile.TemporaryDirectory(prefix=".tracekit-", dir=output.parent) as folder:
        recording = record(program, Path(folder, _raw_name(program)), stacks=stack, shapes=shapes)
        _report_run(program, recording)
        raw = recording.path if keep_raw is None else _keep(recording.path, keep_raw)
        try:
            _write_trace(raw, output, Path(folder, output.name), f"{program.label} {recording.ended} and")
        except CaptureError:
            raise
        except BaseException:  # an interrupt too: what took an hour to record is not to be lost to it
            if keep_raw is None:
                click.echo("The trace could not be converted; the profiler's own file is kept.", err=True)
                _keep(recording.path, _unused(output.with_suffix(".json")))
            raise
    ended = recording.ended
    if ended.status != 0 and ended.stopped_by is None:
        raise CaptureError(f"{program.label} {ended}. The trace up to there is in {output}")
    if not shapes:
        click.echo("Shapes were not recorded; for the roofline, record once more with --shapes.", err=True)


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


def _keep(recorded: Path, wanted: Path) -> Path:
    """Move the profiler's file to where the user wants it, compressed if the name says so."""
    if wanted.suffix == ".gz":
        with recorded.open("rb") as plain, gzip.open(wanted, "wb", compresslevel=6) as packed:
            shutil.copyfileobj(plain, packed, 1 << 20)
    else:
        shutil.move(recorded, wanted)
    click.echo(f"Wrote {wanted}", err=True)
    return wanted


def _unused(path: Path) -> Path:
    """The path, or one like it, that does not exist."""
    tries = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(1))
    return path if not path.exists() else next(other for other in tries if not other.exists())


def _write_trace(raw: Path, output: Path, draft: Path, program: str) -> None:
    """Convert, and let the result out only if there is something in it."""
    from tracekit.convert import convert

    footer = convert([raw], draft)
    kinds = footer.ledger.by_kind
    if not any(kinds.get(kind) for kind in ("op", "kernel", "memcpy", "memset", "graph")):
        raise CaptureError(f"{program} {_nothing(footer)}")
    launches = _kernel_launches(draft) if kinds.get("launch") else 0
    draft.replace(output)
    click.echo(f"Wrote {output}", err=True)
    if launches and not (kinds.get("kernel") or kinds.get("graph")):
        raise CaptureError(_NO_KERNELS.format(launches=launches, output=output))


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
