"""Run a program in the foreground as a shell would, and pass on the signals that it would have received.

A terminal sends Ctrl-C to the whole foreground process group, so a program in that group has had it already, and a
second copy would cut its clean-up short. A signal sent with `kill` reaches only the process named. The kernel says
which of the two it was. Without a terminal the program gets a process group of its own: a supervisor that signals
its whole group then reaches the program once, through us.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tracekit.errors import CaptureError, UsageError

_FORWARDED = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]
_STOPPING = {"SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"}
_WAKE_S = 0.5  # in case SIGCHLD is lost
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its exit status, negative if a signal killed it; the last signal that asked it to stop."""

    status: int
    stopped_by: str | None

    def __str__(self) -> str:
        if self.status < 0:
            known = -self.status in set(signal.Signals)
            return f"was ended by {signal.Signals(-self.status).name if known else f'signal {-self.status}'}"
        return f"exited with status {self.status}"


def run_child(command: Sequence[str]) -> Ended:
    """Run a command with our standard streams and environment, and wait for it, however long it takes.

    Raises CaptureError if it cannot be started, UsageError on a system without its signals.
    """
    if os.name != "posix":
        raise UsageError("programs can be recorded on Linux and macOS; trace files are read everywhere")
    own_group = not _in_foreground()
    waited = {*_FORWARDED, signal.SIGCHLD}
    stopped_by: str | None = None
    with _blocked(waited) as previous:

        def prepare() -> None:
            if own_group:
                os.setpgid(0, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)

        try:
            child = subprocess.Popen(command, preexec_fn=prepare)  # noqa: PLW1509  no other thread runs yet
        except OSError as error:
            raise CaptureError(f"cannot run {command[0]}: {error.strerror or error}") from error
        while child.poll() is None:
            number, by_process = _next_signal(waited)
            if number not in _FORWARDED:
                continue
            name = signal.Signals(number).name
            stopped_by = name if name in _STOPPING else stopped_by
            if own_group or by_process:
                child.send_signal(number)
        return Ended(child.returncode, stopped_by)


def _in_foreground() -> bool:
    """Whether a terminal's Ctrl-C goes to our process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


@contextmanager
def _blocked(numbers: set[signal.Signals]) -> Iterator[set[int]]:
    """Hold signals back for `_next_signal`, and forget those that came too late to be passed on."""
    previous: set[int] = set(signal.pthread_sigmask(signal.SIG_BLOCK, numbers))
    try:
        yield previous
    finally:
        while pending := signal.sigpending() & set(numbers):
            signal.sigwait(pending)
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _next_signal(numbers: set[signal.Signals]) -> tuple[int, bool]:
    """The next signal (0 after a while without one), and whether a process sent it rather than the kernel."""
    if not hasattr(signal, "sigtimedwait"):  # macOS: all signals count as the terminal's
        time.sleep(_POLL_S)
        pending = signal.sigpending() & set(numbers)
        return (int(signal.sigwait(pending)) if pending else 0), False
    info = signal.sigtimedwait(numbers, _WAKE_S)
    return (info.si_signo, info.si_code <= 0) if info is not None else (0, False)
