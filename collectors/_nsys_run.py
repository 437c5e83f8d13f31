"""A program that runs under nsys: who is who among the processes, windows begun and ended, what nsys leaves behind.

tracekit -> nsys profile | launch -> nsys-launcher -> the program, in a session (of the system) of its own
            nsys --start-agent, nobody's child: has the events, and outlives the nsys above when that is killed
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tracekit.collectors._nsys_command import NsysCommands, as_program, free_descriptors
from tracekit.errors import CaptureError, UsageError

_SHUTDOWN_S = 20.0
_APPEARS_S = 15.0  # for the session to be there after the program was started
_RETRY_S = 0.05
_LEAVES_S = 3.0  # for the agent to leave by itself when all is over, or when it is asked to
_SHARED = Path("/dev/shm")
_LONGEST = 500
_NO_AGENT = (
    "An nsys that was killed may have left its state behind, in which no other starts: where nobody records, end what "
    "is left of it (pkill -f nsight-systems), and remove /dev/shm/NSys-* and {temporary}/nvidia/nsight_systems"
)


class NsysRun:
    """One program under nsys. at_once: it is recorded from its beginning. timeout: seconds for a report to be written.

    Reports go to `folder`; so does what nsys says, as the program's output is not to be mixed with it.
    """

    def __init__(self, commands: NsysCommands, folder: Path, *, at_once: bool, timeout: float) -> None:
        self.commands = commands
        self.folder = folder
        self.at_once = at_once
        self.timeout = timeout
        self.nsys: int | None = None
        self.program: int | None = None
        self.over = False
        self.killed = self.late = False
        self._born: str | None = None
        self._log, self._pid_file = folder / "nsys.log", folder / "program.pid"
        self._sessions: list[str] = []
        self._left: dict[Path, int] = {}
        self._ours: list[int] = []

    # ---- the program -------------------------------------------------------------------------------------------------

    def command(self, program: Sequence[str]) -> tuple[list[str], dict[int, int]]:
        """The command to run instead of the program's, and what its descriptors are to be: new number, our number.

        Each time in a session of a new name.
        """
        self.commands = replace(self.commands, session=f"tracekit-{os.getpid()}-{secrets.token_hex(2)}")
        self._sessions.append(self.commands.session)
        free = free_descriptors()
        program = as_program(program, free, self._pid_file, _umask())
        whole = self.commands.profile(self._output(1), program) if self.at_once else self.commands.launch(program)
        if not free:
            return whole, {}
        log = _above(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600))
        null = _above(os.open(os.devnull, os.O_RDONLY))
        self._ours = [log, null, *_taken(null, free)]
        return whole, {free[0]: 0, free[1]: 1, free[2]: 2, 0: null, 1: log, 2: log}

    def started(self, pid: int) -> None:
        """nsys runs."""
        self.nsys = pid
        for descriptor in self._ours:
            os.close(descriptor)
        self._ours = []

    def at_once_for(self, number: int) -> bool:
        """Whether a window is the one that begins with the program."""
        return self.at_once and number == 1

    def find_program(self) -> bool:
        """Whether the program has begun, or begun and ended."""
        if self.program is None:
            with suppress(OSError, ValueError):
                self.program = int(self._pid_file.read_text())
                self._born = _born(self.program)
        return self.program is not None

    def program_runs(self) -> bool:
        """Whether the program is there; nsys may have been killed, which does not end it."""
        return self.program is not None and self._born is not None and _born(self.program) == self._born

    def program_ended(self) -> bool:
        """Whether the program has begun and is over."""
        return self.program is not None and not self.program_runs()

    def runs(self) -> bool:
        """Whether there is somebody to signal: the program, or nsys before it is found."""
        if self.program is not None:
            return self.program_runs()
        return self.nsys is not None and _born(self.nsys) is not None

    def send(self, number: int) -> None:
        """Signal the program itself: nsys would not pass on each, and pretend a status of 0 for some."""
        target = self.program if self.program_runs() else self.nsys
        if target is not None:
            with suppress(OSError):
                os.kill(target, number)

    def kill(self) -> None:
        """Kill the program and all below it."""
        if self.program is not None and self.program_runs():
            for pid in [*_descendants(self.program), self.program]:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    # ---- windows -----------------------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Begin to record, for the k-th time; returns when the events that follow are recorded. Raises CaptureError."""
        until = time.monotonic() + _APPEARS_S
        while (failed := self._ask(self.commands.start(self._output(number)), self.timeout)) is not None:
            if time.monotonic() > until or self._has_ended():
                raise CaptureError(f"nsys did not begin to record: {failed}")
            time.sleep(_RETRY_S)

    def stop(self, number: int) -> None:
        """End recording; returns when the report is written. That there is none is seen by `report`.

        Tried again where nsys is not so far: it may be about to end the recording itself, with the program. The report
        may appear only some time after nsys said that it had stopped.
        """
        until = time.monotonic() + _APPEARS_S
        stopped = False
        while not self.over:
            stopped = stopped or self._ask(self.commands.stop(), self.timeout) is None
            if self.report(number) is not None or (self.killed and not stopped) or time.monotonic() > until:
                return
            time.sleep(_RETRY_S)

    def report(self, number: int) -> Path | None:
        """The report of a window, or the raw stream that nsys leaves where it does not find its importer."""
        for suffix in (".nsys-rep", ".qdstrm"):
            found = Path(f"{self._output(number)}{suffix}")
            if found.is_file():
                return found
        return None

    def said(self) -> str:
        """The last that nsys said, on one line, and what to do about it where that is known."""
        text = ""
        with suppress(OSError):
            text = self._log.read_text(encoding="utf-8", errors="replace")
        words = " ".join(text.split()) or "nothing"
        last = words if len(words) <= _LONGEST else f"...{words[-_LONGEST:]}"
        hint = f" {_NO_AGENT.format(temporary=_temporary())}" if "Agent launcher failed" in last else ""
        return last + hint

    # ---- the end -----------------------------------------------------------------------------------------------------

    def ended(self) -> None:
        """The program has ended, and nsys with it: there is nothing to stop any more."""
        self.over = True

    def clean(self) -> None:
        """Leave nothing of ours: agents of our sessions, the streams that they wrote, the program's status.

        An agent whose program has ended leaves by itself; where the capture was given up it is asked to at once.
        """
        if self.over:
            self._await_agents()
        self.end_sessions()
        for path, inode in self._left.items():
            with suppress(OSError):
                if path.stat().st_ino == inode:  # else it has become a report, and the name is another's
                    path.unlink()
        if self.program is not None:
            with suppress(OSError):
                (_temporary() / f"nsys_termination_status_{self.program}").unlink(missing_ok=True)

    def end_sessions(self) -> None:
        """End the agents that are left, of tries before the last, too: they hold the program's streams open.

        One that is killed may leave its state behind, in which no other nsys starts: it is asked, and waited for.
        """
        if not self._agents():
            return
        self.note_files()
        for session in self._sessions:
            self._ask(replace(self.commands, session=session).shutdown(), _SHUTDOWN_S)
        self._await_agents()
        for pid in self._agents():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def note_files(self) -> None:
        """Remember the files that nsys leaves behind when it is killed: streams, and what it tells the program."""
        for path in [*self._streams_open(), *self._told_program(), *self._shared()]:
            with suppress(OSError):
                self._left[path] = path.stat().st_ino

    def _streams_open(self) -> list[Path]:
        paths = [path for pid in self._agents() for path in _open_files(pid)]
        return [path for path in paths if path.name.startswith("nsys-report-") and path.parent != self.folder]

    def _told_program(self) -> list[Path]:
        try:
            words = Path(f"/proc/{self.program}/environ").read_bytes().split(b"\0")
        except OSError:
            return []
        values = [Path(os.fsdecode(word.partition(b"=")[2])) for word in words]
        return [path for path in values if path.name.startswith("injection_config_") and path.parent == _temporary()]

    def _shared(self) -> list[Path]:
        """Shared memory of the agents, and of the program with its agent."""
        return [
            *(_SHARED / f"quadd-agent-instance-{pid}" for pid in self._agents()),
            *([] if self.program is None else [_SHARED / f"sem.nsys_sem_{self.program}"]),
        ]

    def _agents(self) -> list[int]:
        """Agents of our sessions, which nobody else's have the names of."""
        wanted = {f"--session-name={session}".encode() for session in self._sessions}
        return [pid for pid, words in _command_lines() if wanted.intersection(words)]

    def _await_agents(self) -> None:
        until = time.monotonic() + _LEAVES_S
        while self._agents() and time.monotonic() < until:
            time.sleep(_RETRY_S)

    def _has_ended(self) -> bool:
        return self.over or (self.program is not None and not self.program_runs())

    def _output(self, number: int) -> Path:
        return self.folder / f"window-{number}"

    def _ask(self, command: Sequence[str], seconds: float) -> str | None:
        """None if the command ended with 0, else what it said; all of that goes to the log."""
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                errors="replace", timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"no answer within {seconds:.0f} s"
        except OSError as error:
            return f"{command[0]}: {error.strerror or error}"
        self._note(done.stdout)
        return None if done.returncode == 0 else (" ".join(done.stdout.split())[:_LONGEST] or "no reason given")

    def _note(self, text: str) -> None:
        with suppress(OSError), self._log.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


def _above(descriptor: int) -> int:
    """The same file by a number beyond those that are to be others'."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


def _taken(null: int, numbers: Sequence[int]) -> list[int]:
    """Take descriptors that are free: else the pipe may get one by which subprocess hears of a failed exec."""
    taken = []
    for number in numbers:
        try:
            os.fstat(number)
        except OSError:
            taken.append(os.dup2(null, number, inheritable=False))
    return taken


def _umask() -> int:
    """That of this process; no other thread may run meanwhile."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _temporary() -> Path:
    """Where nsys keeps what it writes meanwhile."""
    return Path(os.environ.get("TMPDIR") or "/tmp")


def check_temporary() -> None:
    """Raise UsageError where nsys cannot keep what it writes meanwhile: it would say that no agent can be launched."""
    folder = _temporary()
    if not (folder.is_absolute() and folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise UsageError(f"TMPDIR is {folder}, and nsys needs a folder there that it can write to, by its whole path")


def _born(pid: int) -> str | None:
    """When a process began; None if there is none, or no more than its status. A pid may be another's later."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else words[19]


def _descendants(pid: int) -> list[int]:
    """Processes below this one, those above first."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError, IndexError):
                parent = (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(path.name))
    found = [pid]
    for one in found:
        found += sorted(children.get(one, ()))
    return found[1:]


def _command_lines() -> Iterator[tuple[int, list[bytes]]]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                yield int(path.name), (path / "cmdline").read_bytes().split(b"\0")


def _open_files(pid: int) -> Iterator[Path]:
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                yield path.readlink()
