"""Run a program in the foreground as a shell would, and pass on the signals that it would have received.

A terminal sends Ctrl-C to the whole foreground process group, so a program in that group has had it already, and a
second copy would cut its clean-up short. A signal sent with `kill` reaches only the process named. The kernel says
which of the two it was. Without a terminal the program gets a process group of its own: a supervisor that signals
its whole group then reaches the program once, through us.

Signals are blocked and waited for in the main thread, so that one is passed on at once, whatever other threads do. But
one that asks the program to stop is passed on when what was recorded is safe: engines end by killing their workers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tracekit.errors import CaptureError, UsageError

_FORWARDED = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]
_STOPPING = {"SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"}
_INSISTENT = {"SIGINT", "SIGTERM"}  # the first of these ends recording, the second gives up
_ONE_REQUEST_S = 0.5  # `timeout` and some supervisors signal the process and then its group: one wish, not two
_SAFE_S = 30.0  # longest wait for what is recorded before a request to stop is passed on
_WAKE_S = 0.5  # in case SIGCHLD is lost
_POLL_S = 0.02
_PR_SET_PDEATHSIG = 1


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

    @property
    def exit_code(self) -> int:
        """What a shell would call it: 128 and the signal's number."""
        return self.status if self.status >= 0 else 128 - self.status


class GaveUp(Exception):
    """A second Ctrl-C or SIGTERM: leave at once."""

    def __init__(self, number: int) -> None:
        super().__init__(f"a second {signal.Signals(number).name}")
        self.number = number


class Foreground:
    """A program in the foreground, and the signals held back from this process while it runs and after.

    Made by `foreground()`, in the main thread.
    """

    def __init__(self, waited: set[signal.Signals], previous: set[int], own_group: bool) -> None:
        self._waited = waited
        self._previous = previous
        self._ignored = {number for number in waited if signal.getsignal(number) == signal.SIG_IGN}
        self._own_group = own_group or not _in_foreground()
        self._child: subprocess.Popen[bytes] | None = None
        self._stopped_by: str | None = None
        self._insisted: tuple[int, float] | None = None  # the last signal that counts for giving up, and when it came
        self._held: tuple[signal.Signals, float] | None = None  # a signal to pass on, at the latest by this time
        self._make_safe: Callable[[], None] = lambda: None
        self._is_safe: Callable[[], bool] = lambda: True
        self._send: Callable[[int], object] = self._send_to_child
        self._runs: Callable[[], bool] = self.child_runs

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], descriptors: Mapping[int, int] | None = None
    ) -> int:
        """Start the command with our standard streams; returns its pid. CaptureError if it cannot be run.

        descriptors: those of the child that are others than ours, in this order: its number, ours.
        No other thread may run yet: what prepares the child runs between fork and exec.
        """
        library, parent = _c_library(), os.getpid()

        def prepare() -> None:
            if self._own_group:
                os.setpgid(0, 0)
            if library is not None:  # should we be killed, no server stays behind on the GPUs
                library.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
                if os.getppid() != parent:
                    os.kill(os.getpid(), signal.SIGTERM)
            for theirs, ours in (descriptors or {}).items():
                os.dup2(ours, theirs)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._previous)

        try:
            # close_fds: the program gets what it would get from a shell, such as the /dev/fd/63 of `<(command)`
            self._child = subprocess.Popen(command, env=environment, preexec_fn=prepare, close_fds=False)  # noqa: PLW1509
        except OSError as error:
            raise CaptureError(f"cannot run {command[0]}: {error.strerror or error}") from error
        return self._child.pid

    def before_stopping(self, make_safe: Callable[[], None], is_safe: Callable[[], bool]) -> None:
        """Call make_safe when the program is asked to stop, and pass that on when is_safe, asked after each `wake`.

        At once where it has been asked already, and that is held back.
        """
        self._make_safe, self._is_safe = make_safe, is_safe
        if self._held is not None:
            make_safe()

    def aim(self, send: Callable[[int], object], runs: Callable[[], bool]) -> None:
        """The program is not the child, but below it: how to signal it, and whether it runs."""
        self._send, self._runs = send, runs

    @property
    def stopped_by(self) -> str | None:
        """The last signal that asked the program to stop."""
        return self._stopped_by

    def wait(self) -> Ended:
        """Wait for the program, however long it takes, and pass signals on. Raises GaveUp."""
        child = self._child
        assert child is not None
        self.wait_for(lambda: child.poll() is not None)
        return Ended(child.returncode, self._stopped_by)

    def wait_for(self, done: Callable[[], bool], at_most: float = _WAKE_S) -> None:
        """Wait until `done`, which is asked after each `wake`, and after so many seconds. Raises GaveUp."""
        while not done():
            number, by_process = _next_signal(self._waited, at_most)
            if number in _FORWARDED:
                self._receive(signal.Signals(number), by_process)
            self._pass_on_what_is_held()

    def kill(self) -> None:
        """Kill the program, and its process group if it has its own."""
        if self._child is None:
            return
        with suppress(OSError):
            if self._own_group:
                os.killpg(self._child.pid, signal.SIGKILL)
            elif self._child.poll() is None:
                self._child.kill()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(_WAKE_S)

    @staticmethod
    def wake() -> None:
        """Have `wait_for` ask again; from any thread."""
        os.kill(os.getpid(), signal.SIGCHLD)

    def _receive(self, number: signal.Signals, by_process: bool) -> None:
        now = time.monotonic()
        if number.name in _INSISTENT and number not in self._ignored:
            if self._insisted is not None:
                before, at = self._insisted
                if number == before and now - at < _ONE_REQUEST_S:
                    return
                raise GaveUp(number)
            self._insisted = (number, now)
        if not self._runs():
            if number.name in _INSISTENT and number not in self._ignored:
                raise GaveUp(number)  # nobody is left to pass it on to: it is meant for us
            return
        if number.name in _STOPPING:
            self._stopped_by = number.name
        if number.name in _INSISTENT:
            self._make_safe()
            if self._own_group or by_process:
                self._held = number, now + _SAFE_S
        elif self._own_group or by_process:
            self._send(number)

    def _pass_on_what_is_held(self) -> None:
        if self._held is not None and self._child is not None:
            number, latest = self._held
            if self._is_safe() or time.monotonic() > latest:
                self._held = None
                self._send(number)

    def _send_to_child(self, number: int) -> None:
        if self._child is not None:
            self._child.send_signal(number)

    def child_runs(self) -> bool:
        """Whether what was started has not ended."""
        return self._child is not None and self._child.poll() is None


@contextmanager
def foreground(*, own_group: bool = False) -> Iterator[Foreground]:
    """Hold signals back, and forget those that came too late to be passed on.

    own_group: on a terminal, too, the child is not to get its Ctrl-C but what we pass on.
    Raises UsageError on a system without its signals.
    """
    if os.name != "posix":
        raise UsageError("programs can be recorded on Linux and macOS; trace files are read everywhere")
    waited = {*_FORWARDED, signal.SIGCHLD}
    previous: set[int] = set(signal.pthread_sigmask(signal.SIG_BLOCK, waited))
    try:
        yield Foreground(waited, previous, own_group)
    finally:
        while pending := signal.sigpending() & waited:
            signal.sigwait(pending)
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _c_library() -> Any:
    """The C library where it is Linux's, else None."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        return ctypes.CDLL(None)
    except (ImportError, OSError):
        return None


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


def _next_signal(numbers: set[signal.Signals], at_most: float) -> tuple[int, bool]:
    """The next signal (0 after a while without one), and whether a process sent it rather than the kernel."""
    if not hasattr(signal, "sigtimedwait"):  # macOS: all signals count as the terminal's
        time.sleep(_POLL_S)
        pending = signal.sigpending() & set(numbers)
        return (int(signal.sigwait(pending)) if pending else 0), False
    info = signal.sigtimedwait(numbers, at_most)
    return (info.si_signo, info.si_code <= 0) if info is not None else (0, False)
