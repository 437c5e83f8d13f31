"""Counts and times the steps that are marked in this process, and tells the recorder of their boundaries.

A mark is opened and closed by `Watch.begin` and `Watch.end`, on any thread; those inside another on the same thread are
part of it. Nothing is locked here, as a step must not wait for another's: what threads share are dicts and deques,
whose single operations are atomic.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .nvtx_ranges import Nvtx

# Ranges of the engines and of torch that are steps, by how their names begin (tracekit.step_marks has the full rules).
_MARKS = ("tracekit.step[", "execute_", "step[", "ProfilerStep#")
_KEPT = 512  # durations of one kind of step; and kinds
_ENOUGH = 5  # durations for a median
_TRACEKIT = re.compile(r"tracekit\.step\[(\w+)(.*)\]")
_REQUESTS = re.compile(r"(?:prefill|decode)_requests=(\d+)")


class _Thread(threading.local):
    depth = 0
    recorded = False


class Watch:
    """The steps of this process.

    recording: whether the recorder's profiler runs. boundary: whether the recorder wants to hear of step boundaries.
    steps: marked steps that began and ended while the profiler ran. nvtx: makes the ranges that Nsight Systems sees,
    while that is the profiler.
    """

    def __init__(self) -> None:
        self.nvtx: Nvtx | None = None
        self.recording = False
        self.boundary = False
        self.steps = 0
        self.on_begin: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.thread = _Thread()
        self.times: dict[tuple[str, bool], deque[int]] = {}

    def begin(self, name: str) -> tuple[str, int] | None:
        """Open a step. Give what it returns to `end`, on the same thread; None if it is part of another."""
        thread = self.thread
        thread.depth += 1
        if thread.depth > 1:
            return None
        if self.boundary and self.on_begin is not None:
            with contextlib.suppress(Exception):  # whatever goes wrong here, the program's step goes on
                self.on_begin()
        thread.recorded = self.recording
        return name, time.perf_counter_ns()

    def end(self, token: tuple[str, int] | None) -> None:
        """Close a step."""
        thread = self.thread
        thread.depth = max(0, thread.depth - 1)
        if token is None:
            return
        name, began = token
        recorded = self.recording
        if thread.recorded == recorded:  # else the profiler was started or stopped in the middle
            self._count(name, recorded, time.perf_counter_ns() - began)
        if self.boundary and recorded and thread.recorded and self.on_end is not None:
            with contextlib.suppress(Exception):
                self.on_end()

    def begin_recording(self) -> None:
        """Count from here on, and compare with what ran unrecorded before."""
        self.steps = 0
        self.times = {key: kept for key, kept in self.times.items() if not key[1]}
        self.recording = True

    def _count(self, name: str, recorded: bool, duration: int) -> None:
        self.steps += recorded
        kept = self.times.get((name, recorded))
        if kept is None:
            if len(self.times) >= _KEPT:
                return
            kept = self.times[name, recorded] = deque(maxlen=_KEPT)
        kept.append(duration)

    def overhead(self) -> list[dict[str, Any]]:
        """Median duration in ns of steps alike, recorded and not, where there are enough of both."""
        alike: dict[str, tuple[list[int], list[int]]] = {}
        for (name, recorded), durations in list(self.times.items()):
            alike.setdefault(_kind_of(name), ([], []))[not recorded].extend(durations)
        return [
            {
                "step": kind,
                "recorded": [len(recorded), _median(recorded)],
                "plain": [len(plain), _median(plain)],
            }
            for kind, (recorded, plain) in sorted(alike.items())
            if min(len(recorded), len(plain)) >= _ENOUGH
        ]

    def after_fork(self) -> None:
        """Forget the parent's steps."""
        self.recording = self.boundary = False
        self.steps = 0
        self.thread = _Thread()
        self.times = {}

    def install(self, torch: Any) -> None:
        """Have record_function tell of the ranges that are steps by their names."""
        kind = torch.autograd.profiler.record_function
        enter, leave = kind.__enter__, kind.__exit__

        @functools.wraps(enter)  # TorchScript compiles the source that it finds behind this
        def __enter__(self: Any) -> Any:
            if self.name.startswith(_MARKS):
                self._tracekit_step = watch.begin(self.name)
                if watch.nvtx is not None:
                    watch.nvtx.push(self.name)
            return enter(self)

        @functools.wraps(leave)
        def __exit__(self: Any, *error: Any) -> Any:
            left = leave(self, *error)
            if self.name.startswith(_MARKS):
                if watch.nvtx is not None:
                    watch.nvtx.pop()
                watch.end(self.__dict__.pop("_tracekit_step", None))
            return left

        kind.__enter__, kind.__exit__ = __enter__, __exit__


def _median(durations: list[int]) -> int:
    """Not that of `statistics`, which torch has not imported: in the program's folder that may be another."""
    ordered = sorted(durations)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


def _kind_of(name: str) -> str:
    """Steps that take about as long: of one phase and as many requests; `tracekit.step[decode ...]` is `decode 4`."""
    match = _TRACEKIT.match(name)
    if match is None:
        return "step" if name.startswith("ProfilerStep#") else name
    return " ".join([match[1], *_REQUESTS.findall(match[2])])


watch = Watch()
