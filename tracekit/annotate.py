"""Mark the serving steps of a program of your own, so that profilers record which work belongs to which step.

`step` opens a range of torch.profiler and an NVTX range of the same text: the first is what torch.profiler writes into
its trace, the second what Nsight Systems sees. It imports no torch: a program without it has no such range.

NVTX ranges are made by the first of these there is:

torch.cuda.nvtx  if the program's torch is built for CUDA (or for ROCm, where these are roctx ranges). It needs no
                 device and initialises none, as torch.cuda.is_available() might, after which no worker may be forked.
nvtx             the PyPI package. From 0.2.12 on it first asks whether a tool listens, and under Nsight Systems 2022.4
                 and 2023.4 takes the answer for no: `nvtx.get_domain("any")` is a DummyDomain, nothing is recorded.
                 nvtx 0.2.11 works with them. Without a tool a DummyDomain is right, and no NVTX is called at all.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable
from numbers import Integral
from types import ModuleType, TracebackType
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

PHASES = ("prefill", "decode", "mixed", "verify", "draft", "unknown")


class step:  # lower case as torch's record_function: it reads as a statement
    """One serving step, as a context manager or a decorator.

        with tracekit.step("decode", decode_requests=4, decode_tokens=4):
            ...

        @tracekit.step("prefill")
        def prefill(batch): ...

    Open it once per step, around all the host does for it. What it launches belongs to the step, whenever the device
    runs it. The range is called `tracekit.step[decode decode_requests=4 decode_tokens=4]`: nothing else goes into it.

    phase: prefill, decode, mixed (both in one batch), verify or draft (speculative decoding), or unknown.
    prefill_requests, decode_requests: requests of the batch in that phase; None if not known.
    prefill_tokens, decode_tokens: tokens computed for them in this step; None if not known.

    One object may be entered many times, nested, and by several threads. A decorated coroutine function is marked from
    its first instruction to its return. Steps that overlap on a thread, as tasks of an event loop do across an `await`,
    overlap in torch.profiler as well. NVTX ranges can only nest: of two that overlap, the second is closed where the
    first ends, and opened again.

    Raises ValueError for another phase or a negative count; TypeError for a count that is no integer, and for
    decorating a generator function, which would be one step from its first value to its last.
    """

    __slots__ = ("_open", "name")

    def __init__(
        self,
        phase: str,
        *,
        prefill_requests: int | None = None,
        prefill_tokens: int | None = None,
        decode_requests: int | None = None,
        decode_tokens: int | None = None,
    ) -> None:
        self.name = _name(phase, prefill_requests, prefill_tokens, decode_requests, decode_tokens)
        self._open: list[_Range] = []

    def __enter__(self) -> step:
        self._open.append(_Range(self.name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Not simply the last one: another thread may have entered this object since.
        here = _THREAD.nvtx
        newest_first = self._open[::-1]
        ended = next((one for one in newest_first if one.thread is here), newest_first[0])
        self._open.remove(ended)
        ended.close()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function with each call of it marked."""
        label = getattr(function, "__qualname__", repr(function))
        if inspect.isclass(function) or not callable(function):
            raise TypeError(f"tracekit.step decorates functions, and {label} is none")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{label} is a generator function: it would be one step from its first value to its last. "
                "Write `with tracekit.step(...):` inside it, around the work of one step"
            )
        name = self.name
        if inspect.iscoroutinefunction(function):
            awaited = cast("Callable[P, Awaitable[Any]]", function)

            @functools.wraps(function)
            async def marked_coroutine(*args: P.args, **kwargs: P.kwargs) -> Any:
                opened = _Range(name)
                try:
                    return await awaited(*args, **kwargs)
                finally:
                    opened.close()

            return cast("Callable[P, R]", marked_coroutine)

        @functools.wraps(function)
        def marked(*args: P.args, **kwargs: P.kwargs) -> R:
            opened = _Range(name)
            try:
                return function(*args, **kwargs)
            finally:
                opened.close()

        return marked


@functools.lru_cache(maxsize=4096, typed=True)  # typed: else True and 4.0 would pass where 1 and 4 had been
def _name(phase: str, *counts: int | None) -> str:
    """Name of the range; counts in the order of step's parameters."""
    if phase not in PHASES:
        raise ValueError(f"phase is {phase!r}; it is one of {', '.join(PHASES)}")
    words = [phase]
    kinds = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")
    for kind, count in zip(kinds, counts, strict=True):
        if count is None:
            continue
        # A tensor would do as an index, but reading it makes the host wait for the device.
        if not isinstance(count, Integral) or isinstance(count, bool):
            raise TypeError(f"{kind} is of type {type(count).__name__}; a count is an int or None")
        if count < 0:
            raise ValueError(f"{kind} is {count}; a count is not negative")
        words.append(f"{kind}={int(count)}")
    return f"tracekit.step[{' '.join(words)}]"


class _Nvtx(NamedTuple):
    push: Callable[[str], object]
    pop: Callable[[], object]


class _Thread(threading.local):
    """The NVTX ranges open on this thread, outermost first; a range knows its thread by the identity of this list."""

    def __init__(self) -> None:
        self.nvtx: list[_Range] = []


_THREAD = _Thread()


class _Range:
    """Both ranges of one step, opened by making it."""

    __slots__ = ("closed", "name", "nvtx", "record", "thread")

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        self.thread = _THREAD.nvtx
        torch = _torch()
        self.record = None if torch is None else torch.profiler.record_function(name)
        if self.record is not None:
            self.record.__enter__()
        self.nvtx = _nvtx(torch)
        if self.nvtx is not None:
            _pop_closed(self.thread)
            self.nvtx.push(name)
            self.thread.append(self)

    def close(self) -> None:
        self.closed = True
        # NVTX closes the innermost range of the calling thread. One that was opened on another (a generator is
        # finished wherever it is collected) is left to that thread's next step.
        if self.nvtx is not None and self.thread is _THREAD.nvtx:
            _pop_closed(self.thread)
        if self.record is not None:
            self.record.__exit__(None, None, None)


def _pop_closed(ranges: list[_Range]) -> None:
    """Close the NVTX ranges of this thread that are marked closed, and with them, for a moment, those inside."""
    outermost = next((at for at, one in enumerate(ranges) if one.closed), len(ranges))
    inside = ranges[outermost:]
    for one in reversed(inside):
        if one.nvtx is not None:
            one.nvtx.pop()
    ranges[outermost:] = [one for one in inside if not one.closed]
    for one in ranges[outermost:]:
        if one.nvtx is not None:
            one.nvtx.push(one.name)


def _torch() -> ModuleType | None:
    """The program's torch, if it has imported one, to the end."""
    torch = sys.modules.get("torch")
    return None if torch is None or getattr(torch.__spec__, "_initializing", False) else torch


@functools.cache  # anew once the program has imported torch
def _nvtx(torch: ModuleType | None) -> _Nvtx | None:
    if torch is not None and (torch.version.cuda is not None or torch.version.hip is not None):
        return _Nvtx(torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop)
    try:
        import nvtx
    except ImportError:
        return None
    if hasattr(nvtx, "get_domain") and type(nvtx.get_domain(None)).__name__ == "DummyDomain":
        return None
    return _Nvtx(nvtx.push_range, nvtx.pop_range)
