"""The collector's side of a capture: a socket to which the program's processes connect, and the windows.

Everything here but `start`, `finish` and `abandon` runs in one thread, so nothing is locked. A window that is closed
and settled is handed to `deliver` in a second thread, which converts it while the program goes on.
"""

from __future__ import annotations

import heapq
import itertools
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tracekit.collectors._child import Ended
from tracekit.collectors._controls import Controls
from tracekit.collectors._session_folder import SessionFolder
from tracekit.collectors._windows import OLD_TORCH, WITH_MEMORY, Plan, Process, Window, not_imported
from tracekit.collectors._wire import Peer, peer_of

_GRACE_S = 2.0  # for processes without a step, once another has done all of its steps
_LAGGING_S = 10.0  # and for those that are at it, at least
_PROGRESS_S = 10.0
_ANSWER_S = 15.0  # for a process to say that it records nothing; a start may take some seconds
_EXITING_S = 1.0  # for a process to be gone after its connection
_BACKLOG = 256
_CONVERTER_NICENESS = 10  # while the program runs, it comes first


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of a window: whether a whole trace was written, and what to tell one who waits for it."""

    ok: bool
    text: str


class Session:
    """One capture. deliver: converts a settled window; must not raise. say: prints a line; wake: called at the end.

    processes_record: whether they do so themselves, once they have imported torch.
    """

    processes_record = True

    def __init__(
        self,
        folder: SessionFolder,
        plan: Plan,
        settings: dict[str, Any],
        parts: Path,
        *,
        deliver: Callable[[Window], Delivered],
        say: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        self.plan = plan
        self.processes: dict[Peer, Process] = {}
        self.met: list[Process] = []
        self.windows: list[Window] = []
        self.complaints: list[str] = []
        self._left: set[Peer] = set()  # have said that they record no more
        self._hooked: set[str] = set()
        self.ended = False
        self.outcome: Ended | None = None
        self._abandoned = False
        self.finished = threading.Event()
        self.safe = threading.Event()
        self.failure: BaseException | None = None
        self.folder = folder
        self._settings, self._parts = settings, parts
        self._deliver, self.say, self._wake = deliver, say, wake
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._bell, self._bell_rope = socket.socketpair()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(folder.socket))
        folder.socket.chmod(0o600)
        self._listener.listen(_BACKLOG)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._bell, selectors.EVENT_READ, lambda: self._bell.recv(64))
        self._to_convert: queue.SimpleQueue[Window | None] = queue.SimpleQueue()
        self.controls = Controls(self)
        if plan.delay is None and not plan.paused:
            self.open_window()

    # ---- from the main thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve. The program has been started: no thread may run before."""
        if self.plan.delay is not None:
            self.after(self.plan.delay, self._delay_over)
        threading.Thread(target=self._serve, name="capture", daemon=True).start()
        threading.Thread(target=self._convert, name="convert", daemon=True).start()

    def make_safe(self) -> None:
        """The program is asked to stop: have the processes save while they live."""
        self.safe.clear()
        self._post(self._make_safe)

    def finish(self, outcome: Ended) -> None:
        """The program has ended: have the processes that are left save, deliver, then be `finished`."""
        self.outcome = outcome
        self._post(self._finish)

    def abandon(self) -> None:
        """Kill every process that is connected. Nothing is delivered any more."""
        self._abandoned = True
        for peer in list(self.processes):
            if peer.pid > 1:
                with suppress(OSError):
                    os.kill(peer.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the socket; for a session that was never started."""
        for one in (self._listener, self._bell, self._bell_rope):
            one.close()
        self._selector.close()

    # ---- windows -----------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Window | None:
        """The window that is open, or closed with processes still saving, or being converted."""
        return next((window for window in self.windows if not window.delivered), None)

    @property
    def opened(self) -> Window | None:
        """The window that is open."""
        return next((window for window in self.windows if window.closed is None), None)

    @property
    def settings(self) -> dict[str, Any]:
        """What a process that asks now is told."""
        return {**self._settings, "window": None if self.opened is None else self.opened.as_settings}

    def open_window(self) -> Window:
        """Have all processes record, those to come too."""
        window = Window(len(self.windows) + 1, time.monotonic(), self.plan.warmup, self.plan.steps)
        self.windows.append(window)
        for peer, process in self.processes.items():
            window.join(process)
            peer.send({"do": "open", **window.as_settings})
        return window

    def close_window(self, window: Window, reason: str, *, only: Callable[[Process], bool] = lambda _: True) -> None:
        """Have the processes that `only` admits save; no other joins any more."""
        if window.closed is None:
            window.closed, window.closed_at = reason, time.monotonic()
            self.after(self.plan.timeout, lambda: self._time_is_up(window))
            self.after(min(_ANSWER_S, self.plan.timeout), lambda: self._answers_over(window))
            self.after(_PROGRESS_S, lambda: self._tell_progress(window))
        if reason != "finish":
            for peer, process in self.processes.items():
                attempt = window.attempts.get(process)
                if attempt is not None and not attempt.settled and not attempt.closed and only(process):
                    attempt.closed = True
                    peer.send({"do": "close", "window": window.number, "reason": reason})
        self._settle(window)

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        """Call in the session's thread, later."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), then))

    @property
    def modules(self) -> list[str]:
        """Modules whose import the processes are to hook."""
        return sorted({str(one).partition(":")[0] for one in self._settings.get("step_modules", ())})

    @property
    def unhooked(self) -> list[str]:
        """Targets of --step-module in modules that no process imported."""
        return not_imported(self._settings.get("step_modules", ()), self._hooked, self.met, self.complaints)

    def complain(self, text: str) -> None:
        """Say what could not be done, and remember that it was said; from any thread."""
        self.complaints.append(text)
        self.say(f"tracekit: {text}")

    def _delay_over(self) -> None:
        if not self.windows and not self.ended:
            self.open_window()

    def _settle(self, window: Window) -> None:
        """Deliver the window if nothing more is to come, once."""
        if window.settled and not window.converting and not self._abandoned:
            window.converting = True
            self._to_convert.put(window)
            self.controls.settled()

    def _time_is_up(self, window: Window) -> None:
        window.give_up_waiting()
        self._settle(window)

    def _answers_over(self, window: Window) -> None:
        window.count_silent_as_idle()
        self._settle(window)

    def _tell_progress(self, window: Window) -> None:
        waiting = window.of("asked", "recording", "stopped")
        if not waiting or window.converting:
            return
        names = ", ".join(str(attempt.process) for attempt in waiting)
        seconds = time.monotonic() - window.closed_at
        self.say(f"Waiting for {names} to save: {seconds:.0f} s, at most {self.plan.timeout:.0f} s.")
        self.after(_PROGRESS_S, lambda: self._tell_progress(window))

    def _after_stop(self, window: Window, process: Process) -> None:
        """A process has stopped by itself: see whether the window ends with it."""
        attempt = window.attempts[process]
        if attempt.reason == "steps" and not window.steps_done:
            window.steps_done = True
            self.after(_GRACE_S, lambda: self._steps_over(window))
        began = [one for one in window.attempts.values() if one.began is not None]
        if window.closed is None and attempt.reason == "max_size" and all(one.ended is not None for one in began):
            self.close_window(window, "max_size")

    def _steps_over(self, window: Window) -> None:
        """Do not wait for processes that run no steps, and not for ever for one that has begun with them."""
        stepping = {process for process, attempt in window.attempts.items() if attempt.stepping}
        self.close_window(window, "steps", only=lambda process: process not in stepping)
        lag = max(_LAGGING_S, 2 * (time.monotonic() - window.opened))
        self.after(lag, lambda: self.close_window(window, "steps"))

    # ---- processes ---------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:  # it has left already
            return
        if peer_of(link)[1] not in (os.getuid(), 0):
            link.close()
            return
        peer = Peer(link)
        self._selector.register(peer, selectors.EVENT_READ, lambda: self._read(peer))

    def _read(self, peer: Peer) -> None:
        try:
            for message in peer.read():
                self._hear(peer, message)
        except Exception:  # it has ended, or makes no sense, in whatever way
            self._part_with(peer)

    def _hear(self, peer: Peer, message: dict[str, Any]) -> None:
        said = message["say"]
        if said == "control":
            self.controls.take(peer, str(message["do"]))
        elif said == "hello":
            self._greet(peer, message)
        elif (process := self.processes.get(peer)) is None:
            return
        elif said == "bye":
            self._left.add(peer)
        elif said == "complaint":
            self.complain(f"{process}: {message['text']}")
        elif said == "note":
            self.say(f"{process}: {message['text']}")
        elif said == "hooked":
            self._hooked.add(str(message["module"]))
        else:
            window = next((one for one in self.windows if one.number == message["window"]), None)
            if window is not None and not window.converting:
                self._hear_of(window, process, message)

    def _hear_of(self, window: Window, process: Process, message: dict[str, Any]) -> None:
        first = window.first
        window.hear(process, message, self._parts, time.monotonic())
        if first is None and window.first is not None and self.plan.duration is not None:
            self.after(self.plan.duration, lambda: self._duration_over(window))
        if message["say"] == "failed" and window.closed is None:  # else it is told with the window, soon
            self.say(f"tracekit: the profiler failed in {process}: {window.attempts[process].why}")
        if message["say"] in ("stopped", "saved"):
            self._after_stop(window, process)
        self._see_if_safe()
        self.controls.heard(window)
        self._settle(window)

    def _make_safe(self) -> None:
        if self.opened is not None:
            self.close_window(self.opened, "signal")
        self._see_if_safe()

    def _see_if_safe(self) -> None:
        """Whether no process has anything in its memory that would be lost with it."""
        if not any(window.of("recording") for window in self.windows) and not self.safe.is_set():
            self.safe.set()
            self._wake()

    def _duration_over(self, window: Window) -> None:
        if window.closed is None:
            self.close_window(window, "duration")

    def _greet(self, peer: Peer, message: dict[str, Any]) -> None:
        name = str(message.get("name") or "python")
        one_thread = WITH_MEMORY if self._settings.get("memory") else ""
        process = Process(
            number=len(self.met),
            pid=int(message["pid"]),
            name=f"python {name}" if name.startswith("-") else name,
            python=str(message.get("python", "")),
            torch=str(message.get("torch", "")),
            one_thread=one_thread if message.get("all_threads", True) else OLD_TORCH,
            forked=bool(message.get("forked")),
        )
        self._forget_process(peer)
        self.processes[peer] = process
        self.met.append(process)
        if self.opened is not None:
            self.opened.join(process)
        peer.send({"do": "settings", **self.settings})
        if self.ended:
            peer.send({"do": "finish"})

    def _part_with(self, peer: Peer) -> None:
        self._selector.unregister(peer)
        self.controls.part_with(peer)
        self._forget_process(peer)
        peer.close()

    def _forget_process(self, peer: Peer) -> None:
        process = self.processes.pop(peer, None)
        if process is None:
            return
        if peer not in self._left:
            self.after(_EXITING_S, partial(self._see_if_it_lives, peer.pid, process))
        self._left.discard(peer)
        for window in self.windows:
            if not window.converting:
                window.part_with(process, time.monotonic())
                self._settle(window)
        self._see_if_safe()

    def _see_if_it_lives(self, pid: int, process: Process) -> None:
        """Say that a process goes on that has closed its connection without a word."""
        if _lives(pid) and not any(peer.pid == pid for peer in self.processes):
            self.complain(
                f"{process} has closed its connection, as daemons do with all descriptors, and is not recorded from "
                "there on; it should import torch after that"
            )

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _post(self, action: Callable[[], None]) -> None:
        self._inbox.put(action)
        with suppress(OSError):
            self._bell_rope.send(b"!")

    def _serve(self) -> None:
        try:
            while not (self.ended and self.current is None):
                now = time.monotonic()
                self._turn(max(0.0, self._timers[0][0] - now) if self._timers else None)
        except BaseException as error:
            self.failure = error
        finally:
            self._to_convert.put(None)
            self.controls.end()
            for peer in self.processes:
                peer.close()
            self.close()
            self.finished.set()
            self._wake()

    def _turn(self, timeout: float | None) -> bool:
        """Handle what has come within `timeout`, then what is due; returns whether anything had come."""
        events = self._selector.select(timeout)
        for key, _ in events:
            key.data()
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()
        while not self._inbox.empty():
            self._inbox.get()()
        return bool(events)

    def _finish(self) -> None:
        self.ended = True
        while self._turn(0):  # what the processes said before they ended
            pass
        for peer in self.processes:
            peer.send({"do": "finish"})
        self.controls.program_ended()
        if self.opened is not None:
            self.close_window(self.opened, "finish")

    def _convert(self) -> None:
        if sys.platform == "linux":
            with suppress(OSError):  # of this thread and those it starts
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _CONVERTER_NICENESS)
        while (window := self._to_convert.get()) is not None:
            try:
                delivered = self._deliver(window)
            except Exception as error:  # a full disk, where what was saved was to be kept
                self.failure = error
                delivered = Delivered(False, str(error))
            self._post(partial(self._take, window, delivered))

    def _take(self, window: Window, delivered: Delivered) -> None:
        window.delivered = True
        self.controls.delivered(window, delivered)


def _lives(pid: int) -> bool:
    """Whether a process goes on after its connection has ended. Only where /proc tells."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False
