"""Write what a profiler recorded to a file, in a process of its own while the program goes on, or is gone.

`export_chrome_trace` holds the interpreter's lock for about 2 us an event: seconds in which a server would answer
nobody. A forked process has a copy of the events for the price of the page tables, and a lock of its own. It is forked
twice, so that it is nobody's child: engines kill their workers with all descendants when they shut down, at once.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_NICENESS = 10  # the program comes first
_LONGEST_S = 3600  # to save; what takes longer hangs
_leave = os._exit  # exits.py puts another in its place


class Recording:
    """What is to be saved, and where.

    safe is called when it no longer goes with this process, if that is killed; done(error), with None for fine, in
    whatever process has written the file.
    """

    def __init__(self, profiler: Any, path: str, safe: Callable[[], None], done: Callable[[str | None], None]) -> None:
        self.profiler = profiler
        self.path = path
        self.safe = safe
        self.done = done

    def write(self) -> None:
        """Write it, here and now; under another name first, as a file of the right name is whole."""
        draft = f"{self.path}.{os.getpid()}.tmp"
        try:
            self.profiler.export_chrome_trace(draft)
            if not os.path.getsize(draft):
                raise OSError("the profiler wrote an empty file; is the disk full?")
            os.replace(draft, self.path)
        except Exception as error:
            self.done(f"{type(error).__name__}: {error}")
        else:
            self.done(None)

    def forget(self) -> None:
        """Give the memory of the events back to the system: the C library would keep hundreds of MB."""
        vars(self.profiler).clear()  # it is part of cycles, which the garbage collector would come to some day
        self.profiler = None
        with contextlib.suppress(Exception):
            import ctypes

            ctypes.CDLL(None).malloc_trim(0)


class Saver:
    """Saves recordings.

    forking: the thread that forks for us, if one does: in that child nothing is to be set up. in_child: called in the
    process that saves; returns the descriptor that it tells through, -1 if there is none.
    """

    def __init__(self, in_child: Callable[[], int]) -> None:
        self.forking: int | None = None
        self.in_child = in_child

    def save(self, recording: Recording) -> None:
        """Write the file; elsewhere where that is possible."""
        waiting = self._fork(recording) if sys.platform == "linux" else None
        if waiting is None:
            recording.write()
            recording.safe()
            return
        child, pipe = waiting
        thread = threading.Thread(target=_attend, args=(child, pipe, recording), name="tracekit-save", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends, and starts no threads any more
            _wait_for(child)
            recording.safe()

    def forks_here(self) -> bool:
        """Whether the fork that calls its handlers on this thread is ours."""
        return self.forking == threading.get_ident()

    def _fork(self, recording: Recording) -> tuple[int, int] | None:
        """Fork a process that saves; a child that is about to end, and a pipe that tells of the end of the other.

        None if that cannot be. The recorder's lock is held: no other fork gets the pipe.
        """
        try:
            pipe, answer = os.pipe()
        except OSError:  # no descriptors left
            return None
        self.forking = threading.get_ident()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there are threads: the child uses none
                child = os.fork()
                if child == 0:
                    self._in_child(recording, answer)
        except Exception:  # no memory; or Python 3.12 at its end; or gevent's fork
            os.close(pipe)
            return None
        finally:
            self.forking = None
            os.close(answer)
        return child, pipe

    def _in_child(self, recording: Recording, answer: int) -> None:
        """Leave a process behind that saves. Does not return."""
        try:
            if os.fork() == 0:
                _stand_alone({answer, self.in_child()})
                signal.alarm(_LONGEST_S)
                recording.write()
                os.write(answer, b"!")
        finally:
            _leave(0)


def _stand_alone(kept: set[int]) -> None:
    """Share nothing with the program but its memory: no signals, no descriptors that others wait for to be closed."""
    gc.disable()  # objects of the program would close descriptors that are ours by then
    os.setsid()  # a terminal's Ctrl-C is for the program
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.nice(_NICENESS)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # if memory runs out, it is we who go
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)


def _wait_for(child: int) -> None:
    """Wait until the process that saves is nobody's child."""
    with contextlib.suppress(OSError):  # the program may have reaped this one, as it may any child
        os.waitpid(child, 0)


def _attend(child: int, pipe: int, recording: Recording) -> None:
    """Wait for the process that saves; do its work if it was killed, for want of memory."""
    _wait_for(child)
    recording.safe()
    answered = os.read(pipe, 1)
    os.close(pipe)
    if not answered:
        recording.write()
    recording.forget()
