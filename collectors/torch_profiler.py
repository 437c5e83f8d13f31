"""Record a program's Python processes with torch.profiler, each from inside, by windows of time.

The program is run as it is. Its environment makes every Python process in it load `_in_process/site/sitecustomize.py`,
which waits for `import torch` and then connects to this collector. The program needs no tracekit where it runs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tracekit.collectors._child import Ended, Foreground, GaveUp, foreground
from tracekit.collectors._session import Delivered, Session
from tracekit.collectors._session_folder import SessionFolder, make_session_folder
from tracekit.collectors._windows import Plan, Process, Window
from tracekit.errors import UsageError

Activity = Literal["cpu", "cuda"]

_SITE = Path(__file__).resolve().with_name("_in_process") / "site"
_SILENT = "99"  # of KINETO_LOG_LEVEL: its bookkeeping is not the program's output


@dataclass(frozen=True, slots=True)
class Recorder:
    """What each process records. activities: None for all there are; max_bytes: growth of memory at which it stops."""

    shapes: bool = True
    stacks: bool = False
    memory: bool = False
    activities: tuple[Activity, ...] | None = None
    max_bytes: int | None = None
    step_modules: tuple[str, ...] = ()

    def as_settings(self, parts: Path) -> dict[str, Any]:
        """What the processes are told."""
        return {
            "parts": str(parts.absolute()),
            "shapes": self.shapes,
            "stacks": self.stacks,
            "memory": self.memory,
            "activities": None if self.activities is None else list(self.activities),
            "max_bytes": self.max_bytes,
            "step_modules": list(self.step_modules),
        }


@dataclass(frozen=True, slots=True)
class Recording:
    """How a capture went.

    seen: Python processes that found it. unhooked: targets of --step-module that no process had. complaints: how many
    were said meanwhile. gave_up: number of the second signal, if one came. failure: a mistake of ours, after which
    nothing was taken in any more.
    """

    ended: Ended | None
    processes: tuple[Process, ...]
    windows: tuple[Window, ...]
    seen: int
    unhooked: tuple[str, ...] = ()
    complaints: int = 0
    gave_up: int | None = None
    failure: BaseException | None = None


def record(
    command: Sequence[str],
    plan: Plan,
    recorder: Recorder,
    parts: Path,
    *,
    output: Path,
    deliver: Callable[[Window, Session], Delivered],
    say: Callable[[str], None],
) -> Recording:
    """Run the command to its end with our standard streams; its processes write Kineto files to the folder `parts`.

    output: what `--control` calls this capture by, where several run. deliver is called, in another thread, with each
    window that is over. Raises CaptureError if the command cannot be
    run, UsageError on a system without processes and signals as we need them.
    """
    with foreground() as program, _session_folder() as folder:
        session = Session(
            folder,
            plan,
            recorder.as_settings(parts),
            parts,
            deliver=lambda window: deliver(window, session),
            say=say,
            wake=program.wake,
        )
        folder.write(session.modules, output)
        try:
            program.start(command, _environment(os.environ, folder))
        except BaseException:
            session.close()
            raise
        session.start()
        program.before_stopping(session.make_safe, session.safe.is_set)
        return _attend(program, session, say)


def _attend(program: Foreground, session: Session, say: Callable[[str], None]) -> Recording:
    """Wait for the program, then for its trace; at a second Ctrl-C for neither."""
    ended: Ended | None = None
    gave_up: int | None = None
    try:
        ended = program.wait()
        if ended.stopped_by is not None:
            say(f"Stopped by {ended.stopped_by}; the program {ended}.")
        for complaint in session.folder.complaints():
            session.complain(complaint)
        session.finish(ended)
        program.wait_for(session.finished.is_set)
    except GaveUp as insisted:
        gave_up = insisted.number
        session.abandon()
        program.kill()
    return Recording(
        ended,
        tuple(session.met),
        tuple(session.windows),
        session.folder.seen(),
        tuple(session.unhooked),
        len(session.complaints),
        gave_up,
        session.failure,
    )


@contextmanager
def _session_folder() -> Iterator[SessionFolder]:
    folder = make_session_folder()
    try:
        yield folder
    finally:
        folder.remove()


def _environment(given: Mapping[str, str], folder: SessionFolder) -> dict[str, str]:
    """The program's environment: our own, and what leads its Python processes to this capture."""
    paths = [str(_SITE), *([given["PYTHONPATH"]] if given.get("PYTHONPATH") else [])]
    return {
        "KINETO_LOG_LEVEL": _SILENT,
        **given,
        "PYTHONPATH": os.pathsep.join(paths),
        "TRACEKIT_CAPTURE": str(folder.path),
    }


def find_command(command: Sequence[str]) -> str:
    """The file that a command runs. Raises UsageError if there is none."""
    found = shutil.which(command[0])
    if found is None and Path(command[0]).is_file():
        raise UsageError(f"{command[0]} is not a command; a Python script is run by `python {command[0]}`")
    if found is None:
        raise UsageError(f"{command[0]}: no such command")
    return found


def files_of(command: Sequence[str]) -> Iterator[Path]:
    """Files that a command names, or that its arguments may name, whether or not they exist."""
    for word in (find_command(command), *command, *(word.partition("=")[2] for word in command)):
        if word:
            yield Path(word)
            yield Path(word) / "__main__.py"
            if all(part.isidentifier() for part in word.split(".")):  # `-m package.module`
                place = Path(*word.split("."))
                yield from (Path(f"{place}.py"), place / "__init__.py", place / "__main__.py")
