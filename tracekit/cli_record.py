"""What `tracekit collect` does: run a program and record it, record a server that runs, talk to a running capture."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

import click

from tracekit.cli import RAW_SUFFIXES, open_output, refuse_raw_name
from tracekit.collectors._nsys_command import NsysSettings
from tracekit.collectors._program import Recording
from tracekit.collectors._windows import Plan
from tracekit.collectors.torch_profiler import Recorder
from tracekit.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from tracekit.capture_files import CaptureFiles, Wanted

__all__ = ["Destination", "NsysSettings", "Plan", "Recorder", "attach_to", "run", "send"]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the results go."""

    output: Path
    force: bool
    keep_raw: Path | None

    def check(self, named: Sequence[Path] = ()) -> None:
        """Refuse what cannot be written, or would overwrite a file that the program names, before it is run."""
        from tracekit.capture_files import same_file

        open_output(self.output, self.force)
        refuse_raw_name(self.output)
        if any(same_file(self.output, other) for other in named):
            raise UsageError(
                f"{self.output} is named in the command to run, and would be overwritten; write to another file"
            )
        if self.keep_raw is None:
            return
        if self.keep_raw.exists() and not self.keep_raw.is_dir():
            raise UsageError(f"--keep-raw {self.keep_raw} is a file; name a folder")
        if not self.keep_raw.absolute().parent.is_dir():
            raise UsageError(f"--keep-raw: {self.keep_raw.parent} is not a folder; make it first")
        if same_file(self.output, self.keep_raw):
            raise UsageError(f"-o and --keep-raw are the same, {self.output}; name two")


def say(text: str) -> None:
    """Print a line of talk. A terminal that has gone must not end a recording."""
    with suppress(OSError, ValueError):
        click.echo(text, err=True)


def run(
    command: Sequence[str],
    destination: Destination,
    plan: Plan,
    recorder: Recorder | NsysSettings,
    *,
    keep_command: bool,
) -> None:
    """Run the command and record it. Ends with the program's exit code; CaptureError if not all was recorded."""
    from tracekit.capture_files import Wanted, keep_parts
    from tracekit.capture_gates import unconverted
    from tracekit.collectors._program import files_of

    named = tuple(files_of(command))
    destination.check(named)
    wanted = Wanted(
        destination.output, destination.force, destination.keep_raw, tuple(command) if keep_command else None, named
    )
    with _temporary_folder(destination.output.absolute().parent) as folder:
        parts = folder / "parts"
        parts.mkdir()
        if isinstance(recorder, Recorder):
            files, recording = _with_torch(command, wanted, plan, recorder, parts)
        else:
            files, recording = _with_nsys(command, wanted, plan, recorder, parts)
        if recording.gave_up is not None:
            _leave_at_once(recording, files, folder, parts)
        if recording.failure is not None:
            kept = keep_parts(_raw_in(parts), destination.output)
            error = CaptureError(unconverted(recording.failure, kept, destination.output))
            if recording.ended is not None:
                error.exit_code = recording.ended.exit_code or error.exit_code
            raise error from recording.failure
        _conclude(recording, files, plan)


def _with_torch(
    command: Sequence[str], wanted: Wanted, plan: Plan, recorder: Recorder, parts: Path
) -> tuple[CaptureFiles, Recording]:
    from tracekit.capture_files import CaptureFiles
    from tracekit.collectors.torch_profiler import record

    files = CaptureFiles(wanted, plan, parts.parent, say)
    return files, record(command, plan, recorder, parts, output=wanted.output, deliver=files.deliver, say=say)


def _with_nsys(
    command: Sequence[str], wanted: Wanted, plan: Plan, settings: NsysSettings, parts: Path
) -> tuple[CaptureFiles, Recording]:
    from tracekit.capture_nsys import NsysFiles
    from tracekit.collectors._nsys_tool import find_nsys
    from tracekit.collectors.nsys import record

    nsys = find_nsys()
    if nsys is None:
        raise UsageError("no nsys is found on PATH: install Nsight Systems, or record with --profiler torch")
    files = NsysFiles(wanted, plan, parts.parent, say, settings=settings, nsys=nsys, reports=parts)
    recording = record(command, plan, settings, nsys, parts, output=wanted.output, deliver=files.deliver, say=say)
    return files, recording


def _raw_in(parts: Path) -> list[Path]:
    """The profiler's own files."""
    return sorted(path for path in parts.iterdir() if path.suffix in RAW_SUFFIXES)


def _conclude(recording: Recording, files: CaptureFiles, plan: Plan) -> None:
    """End as the program did, or with what is wrong with its recording."""
    from tracekit.capture_gates import ended_badly, in_conclusion, not_done, why_no_window

    ended = recording.ended
    assert ended is not None
    problems = [one.text for one in not_done(recording.unhooked, recording.complaints)]
    problems += in_conclusion(files.problems)
    if not recording.windows:
        problems.append(why_no_window(plan, seen=recording.seen, met=len(recording.processes)))
    badly = ended_badly(ended)
    if problems:
        text = "; ".join(problems)
        if badly and not text.startswith(badly):
            text = f"{badly}; {text}"
        error = CaptureError(text)
        error.exit_code = ended.exit_code or CaptureError.exit_code
        raise error
    if badly:
        if ended.stopped_by is None:
            say(f"{badly[0].upper()}{badly[1:]}.")
        sys.exit(ended.exit_code)


def _leave_at_once(recording: Recording, files: CaptureFiles, folder: Path, parts: Path) -> NoReturn:
    """After a second Ctrl-C: keep what was saved, and end though a conversion may be under way."""
    from tracekit.capture_files import keep_parts

    delivered = {path for window in recording.windows if window.delivered for path in files.raw_of(window)}
    saved = [path for path in _raw_in(parts) if path not in delivered]
    output = files.wanted.output
    kept = keep_parts(saved, output)
    say(f"Given up; the program {'was killed' if recording.ended is None else 'had ended'}.")
    if kept is None and not delivered:
        say("Nothing was kept.")
    elif kept is not None:
        say(f"What was saved is in {kept}: tracekit convert {kept} -o {output}")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)  # the conversion may have written meanwhile
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(128 + (recording.gave_up or 0))


@contextmanager
def _temporary_folder(parent: Path) -> Iterator[Path]:
    """A folder for parts and drafts, on the file system of the result, of this user only; gone afterwards."""
    try:
        made = tempfile.TemporaryDirectory(prefix=".tracekit-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise UsageError(f"cannot write to {parent}: {error.strerror or error}; give another -o") from error
    with made as folder:
        yield Path(folder)


def send(do: str, session: int | None, timeout: float) -> None:
    """Have a running capture begin or end a window, or tell its state."""
    from tracekit.collectors._control import Request, control

    text = control(cast("Request", do), session=session, timeout=timeout, say=click.echo if do == "status" else say)
    click.echo(text, err=do != "status")


def attach_to(
    address: str,
    destination: Destination,
    *,
    engine: str,
    duration: float | None,
    steps: int | None,
    profile_dir: Path | None,
    timeout: float,
) -> None:
    """Record a server through its own endpoints."""
    from tracekit.capture_attached import convert_attached
    from tracekit.collectors.attach import attach

    destination.check()
    with _terminated_tidily(), _temporary_folder(destination.output.absolute().parent) as folder:
        raw = folder / "raw"
        raw.mkdir()
        attached = attach(
            address,
            engine=engine,
            duration=duration,
            steps=steps,
            profile_dir=profile_dir,
            timeout=timeout,
            raw=raw,
            say=say,
        )
        partial = convert_attached(attached, destination.output, destination.keep_raw, folder, say)
    if partial:
        raise CaptureError(f"{'; '.join(partial)}. {destination.output} holds what there is")


@contextmanager
def _terminated_tidily() -> Iterator[None]:
    """Have SIGTERM raise, so that temporary files go."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
