"""A mark of a serving step: told to the watch, and recorded as a range while a profiler runs, or Nsight Systems.

The ranges have the names that tracekit.step gives them (tracekit/ranges.py), or those that an engine would give.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from .watch import watch

if TYPE_CHECKING:
    from .nvtx_ranges import Nvtx

Counts = Optional[Tuple[int, int]]  # requests, tokens

UNKNOWN = "tracekit.step[unknown]"


def step_name(phase: str, prefill: Counts = None, decode: Counts = None) -> str:
    """Name of the range of a step: its phase and, where they are known, requests and tokens in each phase."""
    name = f"tracekit.step[{phase}"
    if prefill is not None:
        name += f" prefill_requests={prefill[0]} prefill_tokens={prefill[1]}"
    if decode is not None:
        name += f" decode_requests={decode[0]} decode_tokens={decode[1]}"
    return name + "]"


class Mark:
    """A step that has begun. Close it once, on the thread that opened it."""

    __slots__ = ("_nvtx", "_record", "_token")

    def __init__(self, name: str) -> None:
        # Before the range: the watch may start the profiler here, and stop it when it is told of the end.
        self._token = watch.begin(name)
        self._record: Any = None
        self._nvtx: Optional[Nvtx] = None
        if _profiling().get("_is_profiler_enabled", True):  # older torch does not tell
            self._record = sys.modules["torch"].profiler.record_function(name)
            self._record.__enter__()  # which makes the NVTX range, too
        elif watch.nvtx is not None:
            self._nvtx = watch.nvtx
            self._nvtx.push(name)

    def close(self) -> None:
        """End the step."""
        try:
            if self._record is not None:
                self._record.__exit__(None, None, None)
            if self._nvtx is not None:
                self._nvtx.pop()
        finally:
            watch.end(self._token)


open_mark = Mark  # name: as step_name makes it, or in the dialect of an engine


@functools.lru_cache(maxsize=None)
def _profiling() -> Dict[str, Any]:
    """The variables of torch.autograd.profiler."""
    variables: Dict[str, Any] = vars(sys.modules["torch"].autograd.profiler)
    return variables
