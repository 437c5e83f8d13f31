"""Save what was recorded before the process ends, forks or becomes another program."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .recorder import Recorder

_FATAL = ("SIGTERM", "SIGHUP")
_PATIENCE_S = 30.0


class Exits:
    """The ways out of this process; each saves first. `forked` is called in each forked child."""

    def __init__(self, recorder: Recorder, forked: Callable[[], None]) -> None:
        self.recorder = recorder
        self.forked = forked
        self.pid = os.getpid()
        self.pending_signal = 0
        recorder.on_rest = self._die_if_asked

    def install(self) -> None:
        """Set all of it up; signals only on the main thread, and only where the program has not."""
        self._patch("_exit")
        self._patch("execv")
        self._patch("execve")
        os.register_at_fork(before=self._before_fork, after_in_parent=self._in_parent, after_in_child=self._in_child)
        if threading.current_thread() is threading.main_thread():
            for name in _FATAL:
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                    signal.signal(number, self.on_fatal_signal)

    def save(self, reason: str = "exit") -> None:
        """Save, once, in the process that recorded. Ctrl-C waits meanwhile; who has no patience kills the collector."""
        recorder = self.recorder
        if os.getpid() != self.pid or recorder.busy == threading.get_ident():
            return
        if not recorder.lock.acquire(timeout=_PATIENCE_S):
            return  # a stop on another thread hangs, with the GPU perhaps: the program is to end nevertheless
        try:
            with _interrupts_ignored():
                recorder.finish(reason)
                recorder.tell("bye")
        finally:
            recorder.lock.release()

    def on_fatal_signal(self, number: int, frame: object) -> None:
        """Save, then die of the signal as the program would have.

        Called by a handler that the program has set since, it only saves: what is to become of the program that one
        decides.
        """
        if sys._getframe(1) is not frame:
            self.save()
            return
        if self.recorder.busy == threading.get_ident() and os.getpid() == self.pid:
            self.pending_signal = number
            return
        self.save()
        _die_of(number)

    def _die_if_asked(self) -> None:
        """Do what a signal that came at a bad moment asked for."""
        if self.pending_signal and os.getpid() == self.pid:
            self.save()
            _die_of(self.pending_signal)

    def _patch(self, name: str) -> None:
        """Save before os._exit, with which forked workers end, and before exec."""
        leave: Any = getattr(os, name, None)
        if leave is None:
            return

        def save_then_leave(*arguments: Any, **keywords: Any) -> Any:
            with contextlib.suppress(Exception):
                if name == "_exit" or _can_run(*arguments, **keywords):
                    self.save()
            return leave(*arguments, **keywords)

        save_then_leave.__name__ = save_then_leave.__qualname__ = name
        setattr(os, name, save_then_leave)

    def _before_fork(self) -> None:
        if not self.recorder.saver.forks_here():
            self.recorder.lock.acquire()

    def _in_parent(self) -> None:
        if not self.recorder.saver.forks_here():
            self.recorder.lock.release()

    def _in_child(self) -> None:
        if self.recorder.saver.forks_here() or sys._getframe(1).f_code.co_name == "_execute_child":
            return  # the second is subprocess with a preexec_fn, before it executes another program
        if self.recorder.ever:
            _leave_without_destructors()
        self.pid = os.getpid()
        self.pending_signal = 0
        self.recorder.after_fork()
        self.forked()


def _can_run(path: Any, *_arguments: Any, **_keywords: Any) -> bool:
    """Whether exec will probably not return: os.execvp tries it with every folder of PATH."""
    return isinstance(path, int) or os.access(path, os.X_OK)


def _die_of(number: int) -> None:
    """End this process by a signal, unhandled."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@contextlib.contextmanager
def _interrupts_ignored() -> Any:
    """Keep a second Ctrl-C from cutting the export short. Handlers belong to the main thread."""
    try:
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous if previous is not None else signal.SIG_DFL)


def _leave_without_destructors() -> None:
    """Let a forked child's exit() end by _exit(): Kineto's destructor waits for a thread that fork did not copy."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(Exception):
        import ctypes

        library = ctypes.CDLL(None)
        library.on_exit(library._exit, None)  # handlers run last in, first out
        library.on_exit(library.fcloseall, None)
