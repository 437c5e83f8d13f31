"""What every way to record a program needs: its environment, the files it names, and how the capture went."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tracekit.collectors._child import Ended
from tracekit.collectors._in_process.recorder import INJECTION
from tracekit.collectors._session import Session
from tracekit.collectors._session_folder import SessionFolder, make_session_folder
from tracekit.collectors._windows import Process, Window
from tracekit.errors import UsageError

_SITE = Path(__file__).resolve().with_name("_in_process") / "site"


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

    @classmethod
    def of(cls, session: Session, ended: Ended | None, gave_up: int | None) -> Recording:
        """What a session knows at its end."""
        return cls(
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
def session_folder() -> Iterator[SessionFolder]:
    """The folder of this process's capture, gone afterwards."""
    folder = make_session_folder()
    try:
        yield folder
    finally:
        folder.remove()


def environment(given: Mapping[str, str], folder: SessionFolder) -> dict[str, str]:
    """The program's environment: our own, and what leads its Python processes to this capture."""
    paths = [str(_SITE), *([given["PYTHONPATH"]] if given.get("PYTHONPATH") else [])]
    return {
        **given,
        "PYTHONPATH": os.pathsep.join(paths),
        "TRACEKIT_CAPTURE": str(folder.path),
    }


def owner_of_cupti(given: Mapping[str, str]) -> str | None:
    """The variable that shows that we are run inside a profiler of the GPU, if one does."""
    return next((name for name in INJECTION if given.get(name)), None)


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
