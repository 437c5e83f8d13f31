"""Where a running capture is met: a folder of this user's with a socket in it, one per collector.

    <runtime>/<pid of the collector>/socket     Unix stream socket
                                     output     the file that the first window goes to
                                     modules    dotted names of modules whose import is to be hooked, one a line
                                     seen/      an empty file per Python process, named by its pid

<runtime> is $XDG_RUNTIME_DIR/tracekit, else /tmp/tracekit-<uid>. A capture controls what a program does, so nobody
else may enter or own it.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tracekit.errors import CaptureError, UsageError

_LONGEST_SOCKET = 100  # bytes; the system's limit is 104 or 108
_YOUNG_S = 10  # a folder without a socket may be one that is being made
_TRIES = 100
_CONNECT_S = 2.0


@dataclass(frozen=True, slots=True)
class SessionFolder:
    """The folder of one capture."""

    path: Path

    @property
    def socket(self) -> Path:
        """Address of the collector."""
        return self.path / "socket"

    def seen(self) -> int:
        """How many Python processes of the program found the capture."""
        try:
            return sum(1 for _ in (self.path / "seen").iterdir())
        except OSError:
            return 0

    def complaints(self) -> list[str]:
        """What went wrong in Python processes before they could connect: the last line of each."""
        found = []
        with suppress(OSError):
            for path in sorted((self.path / "seen").iterdir()):
                if lines := path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]:
                    found.append(f"process {path.name} could not be recorded: {lines[-1]}")
        return found

    def write(self, modules: Sequence[str], output: Path) -> None:
        """Leave modules whose import a process is to hook, read before it talks; and what this capture writes."""
        (self.path / "modules").write_text("".join(f"{one}\n" for one in modules), encoding="utf-8")
        (self.path / "output").write_bytes(os.fsencode(output.absolute()))

    @property
    def output(self) -> str:
        """The file that this capture writes."""
        try:
            return os.fsdecode((self.path / "output").read_bytes())
        except OSError:
            return "unknown"

    @property
    def since(self) -> str:
        """When it began, in local time."""
        try:
            return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.socket.stat().st_mtime))
        except OSError:
            return "unknown"

    def remove(self) -> None:
        """Leave nothing."""
        shutil.rmtree(self.path, ignore_errors=True)


def make_session_folder() -> SessionFolder:
    """Make the folder of this process's capture, and remove those of captures that were killed."""
    place = runtime_folder()
    _sweep(place)
    pid = os.getpid()
    for number in range(_TRIES):  # a folder of that name: a capture in another container that shares the place
        path = place / (str(pid) if number == 0 else f"{pid}-{number}")
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        (path / "seen").mkdir(mode=0o700)
        return SessionFolder(path)
    raise CaptureError(f"{place} is full of folders of other captures; remove it")


def runtime_folder() -> Path:
    """The place for new captures, made if need be. Raises UsageError if it is somebody else's."""
    place = _runtime_folders()[0]
    place.mkdir(mode=0o700, exist_ok=True)
    _check_owner(place)
    return place


def running_sessions() -> list[SessionFolder]:
    """Captures of this user that answer, by name."""
    for place in _runtime_folders():  # a service that records may have no XDG_RUNTIME_DIR, a terminal has one
        if place.is_dir():
            _check_owner(place)
            folders = [SessionFolder(path) for path in sorted(place.iterdir()) if path.is_dir()]
            if found := [folder for folder in folders if _answers(folder)]:
                return found
    return []


def connect(folder: SessionFolder) -> socket.socket:
    """A connection to the collector. OSError if it is gone."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.settimeout(_CONNECT_S)
        link.connect(str(folder.socket))
    except BaseException:
        link.close()
        raise
    return link


def _runtime_folders() -> list[Path]:
    """Where captures may be, the place for a new one first."""
    places: list[Path] = []
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given.startswith("/") and os.access(given, os.W_OK | os.X_OK) and Path(given).stat().st_uid == os.getuid():
        place = Path(given) / "tracekit"
        if len(os.fsencode(place / "4194304-99/socket")) < _LONGEST_SOCKET:
            places.append(place)
    common = Path("/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir())
    return [*places, common / f"tracekit-{os.getuid()}"]


def _check_owner(place: Path) -> None:
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UsageError(f"{place} is not a folder of yours; remove it, or set XDG_RUNTIME_DIR to a folder of yours")
    if found.st_mode & 0o077:
        place.chmod(0o700)


def _sweep(place: Path) -> None:
    for path in place.iterdir():
        folder = SessionFolder(path)
        if path.is_dir() and not _answers(folder) and time.time() - path.stat().st_mtime > _YOUNG_S:
            folder.remove()


def _answers(folder: SessionFolder) -> bool:
    try:
        connect(folder).close()
    except OSError:
        return False
    return True
