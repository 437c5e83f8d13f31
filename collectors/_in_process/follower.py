"""This process while Nsight Systems records it: its steps are counted, and say when recording is to begin and end.

nsys is begun and ended by the collector. With --steps the first process that reaches the window asks for it, and holds
its step back until nsys records; N steps later it says so, and the program goes on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from .nvtx_ranges import find_nvtx
from .torch_facts import Rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from .recorder import Window
    from .watch import Watch

_HELD_S = 60.0  # a step, at most, while nsys begins to record
_UNSEEN = "steps are marked by NVTX ranges in an Nsight Systems report, and there are none of this process: {why}"
_TWO = (
    "the program starts a torch.profiler that records CUDA while Nsight Systems does, and CUPTI has one owner: one of "
    "the two lacks the device. Run it without its own profiler, or record with --profiler torch"
)


class Follower:
    """Takes the place of the recorder. lock: as there."""

    def __init__(self, torch: Any, settings: dict[str, Any], watch: Watch, tell: Callable[..., None]) -> None:
        self.torch = torch
        self.settings = settings
        self.watch = watch
        self.tell = tell
        self.lock = threading.RLock()
        self.window: Window | None = None
        self.ended = False
        self.began: float | None = None
        self.go = threading.Event()
        self.rank = Rank(torch)
        watch.nvtx, self.why_none = find_nvtx(torch)
        watch.boundary = bool(self.why_none)
        watch.on_begin, watch.on_end = self.step_begins, self.step_ends
        self._see_profilers()

    def open(self, window: Window, *, on_work_thread: bool = False) -> None:
        """Take part in a window; `begin` follows when nsys records. on_work_thread: of no matter here."""
        with self.lock:
            if not self.ended and self.window is None:
                self.window = window
                self.go.clear()
                self.watch.boundary = window.by_step or bool(self.why_none)

    def begin(self, number: int) -> None:
        """nsys records: let go of the steps held back."""
        with self.lock:
            window = self.window
            if window is not None and window.number == number and self.began is None and not window.over:
                self.began = time.perf_counter()
                self.watch.begin_recording()
                self.watch.boundary = window.steps is not None or bool(self.why_none)
                self.tell("recording", window=number, activities=[])
        self.go.set()

    def step_begins(self) -> None:
        """Called on the thread of a marked step."""
        if not self._ready():
            return
        # Without the lock, which `begin` needs; with a limit, as a program must not hang on its profiler.
        self.go.wait(_HELD_S)

    def step_ends(self) -> None:
        """Called on the thread of a marked step that was recorded."""
        with self.lock:
            window = self.window
            if window is not None and window.steps is not None and self.watch.steps >= window.steps:
                self._count(window, "steps")
                self.window = self.began = None  # no `close` follows: the collector knows that this one is done

    def close(self, reason: str) -> None:
        """The window is over."""
        with self.lock:
            window, self.window = self.window, None
            if window is not None and not window.over:
                if self.began is not None:
                    self._count(window, reason)
                else:
                    self.tell("idle", window=window.number, why=window.why, passed=window.passed)
            self.began = None
            self.watch.boundary = bool(self.why_none)
        self.go.set()

    def finish(self, reason: str) -> None:
        """The process ends, or the capture."""
        with self.lock:
            self.ended = True
            self.close(reason)

    def check_memory(self) -> None:
        """nsys has the events, not this process."""

    def after_fork(self) -> None:
        """Start afresh in a forked child, of which nsys sees nothing."""
        self.lock = threading.RLock()
        self.go = threading.Event()
        self.window = self.began = None
        self.ended = False
        self.rank.rank = self.rank.world_size = None

    def _ready(self) -> bool:
        """Whether this step is to be held back: it is the first to be recorded."""
        with self.lock:
            self._say_if_unseen()
            window = self.window
            if window is None or window.over or self.began is not None or not window.by_step:
                return False
            if not window.stepping:
                window.stepping = True
                self.tell("stepping", window=window.number)
            if window.passed < window.warmup:
                window.passed += 1
                window.why = "warm-up not over"
                return False
            self.tell("ready", window=window.number)
            return True

    def _say_if_unseen(self) -> None:
        """Tell, once, why the steps of this process cannot be in the report."""
        if self.why_none:
            self.tell("note", text=_UNSEEN.format(why=self.why_none))
            self.why_none = ""

    def _count(self, window: Window, reason: str) -> None:
        """Tell of the steps that ran in this window. The lock is held."""
        window.over = True
        self.watch.recording = False
        self.watch.boundary = bool(self.why_none)
        with contextlib.suppress(Exception):
            self.rank.note()
        self.tell(
            "counted",
            window=window.number,
            reason=reason,
            steps=self.watch.steps,
            rank=self.rank.rank,
            world_size=self.rank.world_size,
            recorded=time.perf_counter() - (self.began or 0.0),
            overhead=self.watch.overhead(),
        )

    def _see_profilers(self) -> None:
        """Say so when the program starts a profiler of its own that wants CUPTI, too."""
        backend = self.torch.autograd.profiler
        prepare = getattr(backend, "_prepare_profiler", None)
        if prepare is None:
            return

        def say_then_prepare(*arguments: Any, **keywords: Any) -> Any:
            if any(
                "CUDA" in str(one) for each in (*arguments, *keywords.values()) if isinstance(each, set) for one in each
            ):
                self.tell("complaint", text=_TWO)
            return prepare(*arguments, **keywords)

        backend._prepare_profiler = say_then_prepare
