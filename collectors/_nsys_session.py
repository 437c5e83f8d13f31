"""The collector's side of a capture by Nsight Systems: windows that nsys records, steps that the processes count.

    process -> collector   ready      its step is held back: nsys is to begin
    collector -> process   go         nsys records
    process -> collector   counted    its steps, at the end of the window; of --steps, the end

nsys is begun and ended in a thread of its own, one request after the other: a report takes seconds to write.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tracekit.collectors._nsys_run import NsysRun
from tracekit.collectors._session import Delivered, Session
from tracekit.collectors._session_folder import SessionFolder
from tracekit.collectors._windows import Plan, Process, Window
from tracekit.collectors._wire import Peer
from tracekit.errors import CaptureError


class NsysSession(Session):
    """A capture that nsys records. troubles: why it did not begin, by the number of the window."""

    processes_record = False

    def __init__(
        self,
        folder: SessionFolder,
        plan: Plan,
        step_modules: tuple[str, ...],
        run: NsysRun,
        *,
        deliver: Callable[[Window], Delivered],
        say: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        self.troubles: dict[int, str] = {}
        self.run = run
        self._begun: set[int] = set()
        self._tool = ThreadPoolExecutor(1, "nsys")
        settings: dict[str, Any] = {"profiler": "nsys", "step_modules": list(step_modules)}
        super().__init__(folder, plan, settings, Path(), deliver=deliver, say=say, wake=wake)

    def start(self) -> None:
        """Begin to serve. The program has begun, and with it the window that is at once."""
        if self.run.at_once:
            self._begun.add(1)
            self._records(self.windows[0])
        super().start()

    def close(self) -> None:
        """Let go of all; for a session that was never started, too."""
        self._tool.shutdown(wait=False, cancel_futures=True)
        super().close()

    def open_window(self) -> Window:
        """Have nsys record now, or, with --steps, when a process is there."""
        window = super().open_window()
        window.outside = True
        if not self._by_step(window) and not self.run.at_once_for(window.number):
            self._begin(window)
        return window

    def close_window(self, window: Window, reason: str, *, only: Callable[[Process], bool] = lambda _: True) -> None:
        """End recording, and have the processes tell what they counted."""
        was_open = window.closed is None
        super().close_window(window, reason, only=only)
        if was_open and window.number in self._begun:
            self._tool.submit(self._stop_tool, window)
        elif was_open:
            self._delivers(window)

    def _hear_of(self, window: Window, process: Process, message: dict[str, Any]) -> None:
        super()._hear_of(window, process, message)
        if message["say"] == "ready" and window.closed is None:
            self._begin(window)
        elif message["say"] == "counted" and message["reason"] == "steps":
            self.close_window(window, "steps")

    def _greet(self, peer: Peer, message: dict[str, Any]) -> None:
        super()._greet(peer, message)
        if self.opened is not None and self.opened.first is not None:
            peer.send({"do": "go", "window": self.opened.number})

    def _make_safe(self) -> None:
        if self.opened is not None and self.opened.number in self._begun:
            self.say("The report is written first; then the program is asked to stop.")
        super()._make_safe()

    def _see_if_safe(self) -> None:
        """What nsys has recorded is safe when its report is written."""
        if not any(one.outside and one.number in self._begun for one in self.windows) and not self.safe.is_set():
            self.safe.set()
            self._wake()

    @staticmethod
    def _by_step(window: Window) -> bool:
        return window.steps is not None or window.warmup > 0

    # ---- begin and end of nsys ---------------------------------------------------------------------------------------

    def _begin(self, window: Window) -> None:
        if window.number not in self._begun:
            self._begun.add(window.number)
            self._tool.submit(self._start_tool, window)

    def _start_tool(self, window: Window) -> None:
        """In the thread of nsys."""
        try:
            self.run.start(window.number)
        except CaptureError as error:
            self._post(partial(self._fails, window, str(error)))
        else:
            self._post(partial(self._records, window))

    def _stop_tool(self, window: Window) -> None:
        """In the thread of nsys."""
        if window.number not in self.troubles:
            self.run.stop(window.number)
        self._post(partial(self._delivers, window))

    def _records(self, window: Window) -> None:
        """nsys has begun: the time of the window counts from here, and steps held back go on."""
        window.first = time.monotonic()
        self._tool.submit(self.run.note_files)
        for peer in self.processes:
            peer.send({"do": "go", "window": window.number})
        if self.plan.duration is not None:
            self.after(self.plan.duration, lambda: self._duration_over(window))
        self.controls.began(window)

    def _fails(self, window: Window, why: str) -> None:
        self.troubles[window.number] = why
        self.close_window(window, "failed")

    def _delivers(self, window: Window) -> None:
        window.outside = False
        self._see_if_safe()
        self._settle(window)
