"""Write what a profiler recorded to a file, in a process of its own while the program goes on, or is gone.

`export_chrome_trace` holds the interpreter's lock for about 2 us an event: seconds in which a server would answer
nobody. A forked process has a copy of the events for the price of the page tables, and a lock of its own. It is forked
twice, so that it is nobody's child: engines kill their workers with all descendants when they shut down, at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_NICENESS = 10  # the program comes first
_leave = os._exit  # exits.py puts another in its place


class Saver:
    """Saves recordings; says how each went: `done(error)`, with None for fine, in whatever process has written.

    forking: the thread that forks for us, if one does: in that child nothing is to be set up. in_child: called there.
    """

    def __init__(self, in_child: Callable[[], None]) -> None:
        self.forking: int | None = None
        self.in_child = in_child

    def save(self, profiler: Any, path: str, done: Callable[[str | None], None]) -> None:
        """Write the file; elsewhere where that is possible."""
        waiting = self._fork(profiler, path, done) if sys.platform == "linux" else None
        if waiting is None:
            done(write(profiler, path))
            return
        thread = threading.Thread(
            target=_attend, name="tracekit-save", args=(*waiting, [profiler], path, done), daemon=True
        )
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no threads any more
            thread.start()

    def forks_here(self) -> bool:
        """Whether the fork that calls its handlers on this thread is ours."""
        return self.forking == threading.get_ident()

    def _fork(self, profiler: Any, path: str, done: Callable[[str | None], None]) -> tuple[int, int] | None:
        """Fork a process that saves; a child that is about to end, and a pipe that tells of the end of the other.

        None if there is no memory for the page tables. The recorder's lock is held: no other fork gets the pipe.
        """
        pipe, answer = os.pipe()
        self.forking = threading.get_ident()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there are threads: the child uses none
                child = os.fork()
                if child == 0:
                    self._in_child(profiler, path, done, answer)
        except OSError:
            os.close(pipe)
            return None
        finally:
            self.forking = None
            os.close(answer)
        return child, pipe

    def _in_child(self, profiler: Any, path: str, done: Callable[[str | None], None], answer: int) -> None:
        """Leave a process behind that saves. Does not return."""
        try:
            if os.fork() == 0:
                os.setsid()  # a terminal's Ctrl-C is for the program
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                os.nice(_NICENESS)
                null = os.open(os.devnull, os.O_RDWR)
                for standard in range(3):  # who reads the program's output is not to wait for us
                    os.dup2(null, standard)
                self.in_child()
                done(write(profiler, path))
                os.write(answer, b"!")
        finally:
            _leave(0)


def _attend(child: int, pipe: int, last: list[Any], path: str, done: Callable[[str | None], None]) -> None:
    """Wait for the process that saves; then free the events, of which `last` holds the last reference."""
    with contextlib.suppress(OSError):  # the program may have reaped it, as it may any child
        os.waitpid(child, 0)
    answered = os.read(pipe, 1)
    os.close(pipe)
    if not answered:  # killed, for want of memory
        done(write(last[0], path))
    vars(last.pop()).clear()  # it is part of cycles, which the garbage collector would come to some day
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)  # the C library would keep the hundreds of MB that the events took


def write(profiler: Any, path: str) -> str | None:
    """Write under another name first: a file of the right name is whole. Returns what went wrong."""
    draft = f"{path}.{os.getpid()}.tmp"
    try:
        profiler.export_chrome_trace(draft)
        if not os.path.getsize(draft):
            return "the profiler wrote an empty file; is the disk full?"
        os.replace(draft, path)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
