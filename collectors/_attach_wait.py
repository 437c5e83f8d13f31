"""Waiting for a server: with news of how it goes, an ear for Ctrl-C, and an eye on whether it is there at all."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from tracekit.collectors._engine_api import Server
from tracekit.collectors._server_process import Identity, is_running

_LONGEST_SILENCE_S = 10.0
_PULSE_S = 0.5
_REFUSALS = 2  # in a row: something between may refuse once


class Interrupts:
    """The first Ctrl-C or SIGTERM is noted; once the server has been told to stop, another one raises."""

    def __init__(self) -> None:
        self._seen = threading.Event()
        self._count = 0
        self._previous: dict[int, Any] = {}
        self.may_raise = False

    @property
    def seen(self) -> bool:
        """Whether there was one."""
        return self._seen.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait, until there is one at most; returns whether there was."""
        return self._seen.wait(max(0.0, seconds))

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
        self._seen.set()
        if self.may_raise and self._count > 1:
            raise KeyboardInterrupt


class News:
    """Says the latest state after 2, 4, 8 and 16 s, then every 10 s."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._begun = time.monotonic()
        self._next = 2.0
        self._pause = 2.0

    def tell(self, state: str, details: str) -> None:
        """Both, and the time since the beginning between them."""
        elapsed = time.monotonic() - self._begun
        if elapsed >= self._next:
            self._say(f"{state}: {elapsed:.0f} s, {details}")
            self._next = elapsed + self._pause
            self._pause = min(2 * self._pause, _LONGEST_SILENCE_S)


class Pulse:
    """Whether a server still is there: its process, where that can be seen, and its port.

    gone: it is not. ended: nor is its process, so that it writes nothing any more.
    """

    def __init__(self, server: Server, process: Identity | None) -> None:
        self._server, self._process = server, process
        self._next = 0.0
        self._refused = 0
        self.gone = False

    @property
    def ended(self) -> bool:
        return self.gone and (self._process is None or not is_running(self._process))

    def look(self) -> bool:
        """Look, but not too often; returns whether the server is gone."""
        now = time.monotonic()
        if not self.gone and now >= self._next:
            self._next = now + _PULSE_S
            self._refused = self._refused + 1 if self._server.refuses() else 0
            died = self._process is not None and not is_running(self._process)
            self.gone = died or self._refused >= _REFUSALS
        return self.gone
