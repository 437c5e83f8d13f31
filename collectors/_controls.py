"""The collector's answers to `tracekit collect --control`, given when what was asked for has happened.

client -> collector   {"say": "control", "do": "start" | "stop" | "status"}
collector -> client   {"tell": text}, any number, then {"done": true, "ok": bool, "text": text}
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from tracekit.collectors._windows import Window
from tracekit.collectors._wire import Peer

if TYPE_CHECKING:
    from tracekit.collectors._session import Delivered, Session

_RECORDING_S = 3.0  # for a process that can to say that it records; on a GPU the first start takes a while
_SETTLING_S = 0.3  # other processes that start at the same time are named, too
_PROGRESS_S = 5.0


class Controls:
    """Clients that wait for an answer. Used in the session's thread only."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._starting: dict[Peer, Window | None] = {}  # None: until the window before it has been saved
        self._stopping: dict[Peer, Window] = {}

    def take(self, peer: Peer, do: str) -> None:
        """A client asks."""
        if do == "start":
            self._start(peer)
        elif do == "stop":
            self._stop(peer)
        elif do == "status":
            self._status(peer)
        else:
            _done(peer, False, f"the capture does not know {do!r}; is it run by another version of tracekit?")

    def part_with(self, peer: Peer) -> None:
        """A client has left."""
        self._starting.pop(peer, None)
        self._stopping.pop(peer, None)

    def settled(self) -> None:
        """A window is saved: one that was asked for meanwhile can open."""
        waiting = [peer for peer, window in self._starting.items() if window is None]
        for peer in waiting:
            self._session.after(0, partial(self._start_now, peer))

    def heard(self, window: Window) -> None:
        """A process has said something of a window."""
        for peer in [peer for peer, wanted in self._starting.items() if wanted is window]:
            if window.of("recording", "stopped", "saved"):
                self._session.after(_SETTLING_S, partial(self._started, peer, window))
            elif all(attempt.settled for attempt in window.attempts.values()):
                del self._starting[peer]
                whys = sorted({f"{attempt.process}: {attempt.why}" for attempt in window.of("failed", "idle", "lost")})
                _done(peer, False, "nothing records. " + "; ".join(whys))

    def began(self, window: Window) -> None:
        """What records a window outside the processes has begun."""
        for peer in [peer for peer, wanted in self._starting.items() if wanted is window]:
            self._session.after(_SETTLING_S, partial(self._started, peer, window))

    def delivered(self, window: Window, delivered: Delivered) -> None:
        """A window's file is written, or it is known why not."""
        for peer in [peer for peer, wanted in self._stopping.items() if wanted is window]:
            del self._stopping[peer]
            _done(peer, delivered.ok, delivered.text)
        for peer in [peer for peer, wanted in self._starting.items() if wanted is window]:
            del self._starting[peer]
            _done(peer, delivered.ok, delivered.text)

    def program_ended(self) -> None:
        """Nothing can start any more."""
        for peer in list(self._starting):
            del self._starting[peer]
            _done(peer, False, "the program has ended")

    def end(self) -> None:
        """The capture is over; whoever still waits is told."""
        for peer in [*self._starting, *self._stopping]:
            _done(peer, False, "the capture is over")

    # ---- start -------------------------------------------------------------------------------------------------------

    def _start(self, peer: Peer) -> None:
        session = self._session
        if session.ended:
            _done(peer, False, "the program has ended")
        elif session.opened is not None:
            _done(
                peer,
                False,
                f"a window has been open for {time.monotonic() - session.opened.opened:.0f} s; end it first: "
                "tracekit collect --control stop",
            )
        elif session.current is not None and not session.current.converting:
            _tell(peer, "The processes still save the window before this one; recording begins after that.")
            self._starting[peer] = None
        else:
            self._start_now(peer)

    def _start_now(self, peer: Peer) -> None:
        session = self._session
        if session.ended or session.opened is not None:
            self._starting.pop(peer, None)
            self._start(peer)
            return
        window = session.open_window()
        if not session.processes and session.processes_record:
            self._starting.pop(peer, None)
            _done(peer, True, "No process has imported torch yet; recording begins when one does.")
            return
        self._starting[peer] = window
        session.after(_RECORDING_S, lambda: self._still_starting(peer, window))

    def _started(self, peer: Peer, window: Window) -> None:
        if self._starting.get(peer) is not window:
            return
        del self._starting[peer]
        recording = window.of("recording", "stopped", "saved")
        names = ", ".join(str(attempt.process) for attempt in recording)
        _done(peer, True, f"Recording {names}." if recording else "Recording.")

    def _still_starting(self, peer: Peer, window: Window) -> None:
        if self._starting.get(peer) is window:
            del self._starting[peer]
            _done(peer, True, f"Nothing records yet: {self._waits_for(window)}.")

    def _waits_for(self, window: Window) -> str:
        if window.steps is not None or window.warmup:
            return "recording begins with the next marked step"
        return "recording begins when a process uses the GPU"

    # ---- stop --------------------------------------------------------------------------------------------------------

    def _stop(self, peer: Peer) -> None:
        window = self._session.current
        if window is None:
            _done(peer, False, "nothing is being recorded; begin with: tracekit collect --control start")
            return
        self._stopping[peer] = window
        if window.closed is None:
            self._session.close_window(window, "stop")
        self._session.after(_PROGRESS_S, lambda: self._tell_progress(peer, window))

    def _tell_progress(self, peer: Peer, window: Window) -> None:
        if self._stopping.get(peer) is not window:
            return
        saving = window.of("asked", "recording", "stopped")
        seconds = time.monotonic() - window.closed_at
        what = "Converting" if not saving else "Waiting for " + ", ".join(str(one.process) for one in saving)
        _tell(peer, f"{what}: {seconds:.0f} s")
        self._session.after(_PROGRESS_S, lambda: self._tell_progress(peer, window))

    # ---- status ------------------------------------------------------------------------------------------------------

    def _status(self, peer: Peer) -> None:
        session = self._session
        window = session.current
        for process in session.processes.values():
            attempt = None if window is None else window.attempts.get(process)
            state: str = "not recording" if attempt is None or attempt.state == "asked" else attempt.state
            if attempt is not None and attempt.state == "failed":
                state = f"failed: {attempt.why}"
            _tell(peer, f"{process}: torch {process.torch}, {state}")
        others = session.folder.seen() - len({process.pid for process in session.met})
        if others > 0:
            _tell(peer, f"and {others} Python process{'es' if others > 1 else ''} without torch")
        _done(peer, True, self.state(window))

    def state(self, window: Window | None) -> str:
        """How far a window is, or that there is none."""
        if window is None:
            written = sum(one.delivered for one in self._session.windows)
            return f"No window is open; {written} before now. Begin one: tracekit collect --control start"
        if window.closed is None and window.first is None:
            seconds = time.monotonic() - window.opened
            return f"Window {window.number} is open, and nothing has recorded yet, for {seconds:.1f} s."
        if window.closed is None and (window.outside or window.of("recording")):
            return f"Window {window.number} has been recording for {time.monotonic() - (window.first or 0):.1f} s."
        if window.closed is None:
            return f"Window {window.number} is open, and what has recorded in it has ended."
        return f"Window {window.number} is being {'converted' if window.converting else 'saved'}."


def _tell(peer: Peer, text: str) -> None:
    peer.send({"tell": text})


def _done(peer: Peer, ok: bool, text: str) -> None:
    peer.send({"done": True, "ok": ok, "text": text})
