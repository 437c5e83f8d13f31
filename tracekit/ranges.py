"""Name what a program does, so that profilers record it: `step` for a serving step, `annotate` for anything else.

Each opens a range of torch.profiler and an NVTX range of the same text: the first is what torch.profiler writes into
its trace, the second what Nsight Systems sees. They import no torch: a program without it has no such range.

While nothing records, neither is opened. Something does where torch.profiler or emit_nvtx runs on any thread, where
there are NVTX ranges to make, and for steps under `tracekit collect`, which counts them.

NVTX ranges are made by the first of these there is:

torch.cuda.nvtx  if the program's torch is built for CUDA (or for ROCm, where these are roctx ranges). It needs no
                 device and initialises none, as torch.cuda.is_available() might, after which no worker may be forked.
                 It is called whether or not a tool listens: asking for one is no cheaper.
nvtx             the PyPI package. From 0.2.12 on it first asks whether a tool listens, and under Nsight Systems 2022.4
                 and 2023.4 takes the answer for no: `nvtx.get_domain("any")` is a DummyDomain, nothing is recorded.
                 nvtx 0.2.11 works with them, and costs some 4 us a range also without a tool. Without one a DummyDomain
                 is right, and no NVTX is called at all.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from numbers import Integral
from types import ModuleType, TracebackType
from typing import Any, ClassVar, NamedTuple, ParamSpec, TypeVar, cast

from tracekit.step_marks import Dialects

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self", bound="_Marks")

PHASES = ("prefill", "decode", "mixed", "verify", "draft", "unknown")


class _Marks:
    """Opens a range of its name each time it is entered, and around each call of what it decorates."""

    __slots__ = ("_open", "name")
    _is_step: ClassVar[bool]

    def __init__(self, name: str) -> None:
        self.name = name
        self._open: list[_Range | None] = []  # None for one that nothing recorded

    def __enter__(self: Self) -> Self:
        self._open.append(_open(self.name, self._is_step))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ended = self._open[-1]
        if ended is not None or len(self._open) > 1:
            ended = self._ended()
        self._open.remove(ended)
        if ended is not None:
            ended.close()

    def _ended(self) -> _Range | None:
        """Not simply the last one: another thread may have entered this object since."""
        newest_first = self._open[::-1]
        here = _THREAD.nvtx
        if (mine := next((one for one in newest_first if one is not None and one.thread is here), None)) is not None:
            return mine
        return None if None in newest_first else newest_first[0]

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function with each call of it marked."""
        label = getattr(function, "__qualname__", repr(function))
        if inspect.isclass(function) or not callable(function):
            raise TypeError(f"tracekit.{type(self).__name__} decorates functions, and {label} is none")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{label} is a generator function: it would be one range from its first value to its last. "
                f"Write `with tracekit.{type(self).__name__}(...):` inside it, around what the range is to cover"
            )
        name, is_step = self.name, self._is_step
        if inspect.iscoroutinefunction(function):
            awaited = cast("Callable[P, Awaitable[Any]]", function)

            @functools.wraps(function)
            async def marked_coroutine(*args: P.args, **kwargs: P.kwargs) -> Any:
                opened = _open(name, is_step)
                try:
                    return await awaited(*args, **kwargs)
                finally:
                    if opened is not None:
                        opened.close()

            return cast("Callable[P, R]", marked_coroutine)

        @functools.wraps(function)
        def marked(*args: P.args, **kwargs: P.kwargs) -> R:
            opened = _open(name, is_step)
            try:
                return function(*args, **kwargs)
            finally:
                if opened is not None:
                    opened.close()

        return marked


class step(_Marks):  # lower case as torch's record_function: it reads as a statement
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

    __slots__ = ()
    _is_step = True

    def __init__(
        self,
        phase: str,
        *,
        prefill_requests: int | None = None,
        prefill_tokens: int | None = None,
        decode_requests: int | None = None,
        decode_tokens: int | None = None,
    ) -> None:
        # Not through super(): it would be a tenth of the cost of a step that nothing records.
        self.name = _name(phase, prefill_requests, prefill_tokens, decode_requests, decode_tokens)
        self._open = []


class annotate(_Marks):
    """Any other range of the host's time, as a context manager or a decorator.

        with tracekit.annotate("detokenize"):
            ...

        @tracekit.annotate("load weights")
        def load(path): ...

    It is recorded under this very text, may be entered as `step` may, and is part of the step around it, if there is
    one. Name no range after a request or its contents: the trace holds every name.

    Raises TypeError for a text that is no str, and for decorating a generator function; ValueError for one that reads
    as the mark of a step ("ProfilerStep#1", "step[DECODE bs=1]", "tracekit.step[decode]"): it would be taken for one.
    """

    __slots__ = ()
    _is_step = False

    def __init__(self, text: str) -> None:
        self.name = _text(text)
        self._open = []


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


@functools.lru_cache(maxsize=4096)
def _text(text: str) -> str:
    """The text, if it is one that an annotation may have."""
    if not isinstance(text, str):
        raise TypeError(f"the text is of type {type(text).__name__}; a range has a str for a name")
    if Dialects().is_mark(text):
        raise ValueError(f"{text!r} reads as the mark of a serving step: use tracekit.step, or another text")
    return text


class _Nvtx(NamedTuple):
    push: Callable[[str], object]
    pop: Callable[[], object]


class _Thread(threading.local):
    """The NVTX ranges open on this thread, outermost first; a range knows its thread by the identity of this list."""

    def __init__(self) -> None:
        self.nvtx: list[_Range] = []


_THREAD = _Thread()


class _Seers(NamedTuple):
    """Who may record, as far as the program's imports decide it.

    profiling: the variables of torch.autograd.profiler, whose `_is_profiler_enabled` is true while a profiler runs on
    any thread. always: what is assumed where there is no such variable.
    """

    torch: ModuleType | None
    profiling: Mapping[str, object]
    always: bool
    nvtx: _Nvtx | None

    def profiler(self) -> bool:
        return bool(self.profiling.get("_is_profiler_enabled", self.always))


_seers: _Seers | None = None


def _look() -> _Seers:
    """Look again: the program has imported torch since, or is importing it."""
    global _seers  # noqa: PLW0603
    torch = _torch()
    profiling: Mapping[str, object] = {} if torch is None else vars(torch.autograd.profiler)
    # The daemon's profiler is started from outside, and Python's variable does not tell.
    if "KINETO_USE_DAEMON" in os.environ:
        profiling = {}
    _seers = _Seers(torch, profiling, torch is not None, _nvtx(torch))
    return _seers


def _open(name: str, is_step: bool) -> _Range | None:
    """A range, if anything records it."""
    seers = _seers
    if seers is None or sys.modules.get("torch") is not seers.torch:
        seers = _look()
    watch = None
    if is_step and (capture := sys.modules.get("_tracekit_capture")) is not None:
        watch = getattr(capture, "watch", None)
    # As seers.profiler() says: a call more would be a tenth of the cost.
    if watch is None and seers.nvtx is None and not seers.profiling.get("_is_profiler_enabled", seers.always):
        return None
    return _Range(name, seers, watch)


class _Range:
    """Both ranges of one name, opened by making it."""

    __slots__ = ("closed", "name", "nvtx", "record", "thread", "token", "watch")

    def __init__(self, name: str, seers: _Seers, watch: Any) -> None:
        self.name = name
        self.closed = False
        self.thread = _THREAD.nvtx
        # First: `tracekit collect` starts its profiler at the beginning of a step, and this is where it learns of it.
        self.watch = watch
        self.token = None if watch is None else watch.begin(name)
        self.record = None
        if seers.torch is not None and seers.profiler():
            self.record = seers.torch.profiler.record_function(name)
            self.record.__enter__()
        self.nvtx = seers.nvtx
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
        if self.watch is not None:
            self.watch.end(self.token)


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
