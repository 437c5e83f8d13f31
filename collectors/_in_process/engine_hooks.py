"""Marks the steps of engines that do not mark them themselves while a profiler of ours runs.

Nothing here may fail an engine: what is not as expected becomes a step of unknown phase, or none.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, Optional

from .marks import UNKNOWN, Mark, open_mark, step_name

if TYPE_CHECKING:
    from types import ModuleType, TracebackType

# ---- vLLM ------------------------------------------------------------------------------------------------------------


def hook_vllm(module: ModuleType) -> None:
    """vllm.v1.worker.gpu_worker: its worker annotates steps while vLLM's own profiler runs, and never else.

    A step is a call of `execute_model`, and with it `sample_tokens` where the former returns None: sampling is then
    still to come. Batches without tokens, and those of the warm-up, are no steps.
    """
    worker = getattr(module, "Worker", None)
    if worker is None or not hasattr(worker, "execute_model"):
        return
    execute, sample = worker.execute_model, getattr(worker, "sample_tokens", None)
    here = _VllmThread()

    @functools.wraps(execute)
    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        here.close()  # of a step that was given up
        name = None if here.warming_up else _vllm_name(self, next(iter((*args, *kwargs.values())), None))
        if name is not None:
            here.mark = open_mark(name)
        pending = False
        try:
            output = execute(self, *args, **kwargs)
            pending = output is None and sample is not None
            return output
        finally:
            if not pending:
                here.close()

    worker.execute_model = execute_model
    if sample is not None:

        @functools.wraps(sample)
        def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return sample(self, *args, **kwargs)
            finally:
                here.close()

        worker.sample_tokens = sample_tokens
    warm_up = getattr(worker, "compile_or_warm_up_model", None)
    if warm_up is not None:

        @functools.wraps(warm_up)
        def compile_or_warm_up_model(self: Any, *args: Any, **kwargs: Any) -> Any:
            here.warming_up = True
            try:
                return warm_up(self, *args, **kwargs)
            finally:
                here.warming_up = False

        worker.compile_or_warm_up_model = compile_or_warm_up_model


class _Thread(threading.local):
    """The step that is open on this thread."""

    mark: Optional[Mark] = None

    def close(self) -> None:
        mark, self.mark = self.mark, None
        if mark is not None:
            mark.close()


class _VllmThread(_Thread):
    warming_up = False


def _vllm_name(worker: Any, batch: Any) -> Optional[str]:
    """Name of the step of a SchedulerOutput. None if there is nothing to mark, or vLLM does."""
    try:
        if not batch.total_num_scheduled_tokens:
            return None
        if getattr(getattr(worker, "profiler", None), "should_annotate", False):
            return None
        return _vllm_phases(batch)
    except Exception:  # another version: a step nevertheless
        return UNKNOWN


def _vllm_phases(batch: Any) -> str:
    """A request is in prefill until it has put out a token, so also with the later chunks of its prompt."""
    new = {request.req_id for request in batch.scheduled_new_reqs}
    in_prefill = batch.scheduled_cached_reqs.is_context_phase
    counts = [[0, 0], [0, 0]]  # of prefill and decode: requests, tokens
    for request, tokens in batch.num_scheduled_tokens.items():
        count = counts[0 if request in new or in_prefill(request) else 1]
        count[0] += 1
        count[1] += int(tokens)
    (prefills, prefill_tokens), (decodes, decode_tokens) = counts
    phase = ("mixed" if decodes else "prefill") if prefills else "decode"
    return step_name(
        phase,
        (prefills, prefill_tokens) if prefills else None,
        (decodes, decode_tokens) if decodes else None,
    )


# ---- SGLang ----------------------------------------------------------------------------------------------------------


def hook_sglang(module: ModuleType) -> None:
    """sglang.srt.model_executor.model_runner: its `profile_range` makes the ranges of steps, `step[DECODE bs=4]`.

    It makes them only where torch says that the thread is recorded, which it does not of a profiler of all threads.
    Written for SGLang 0.5.23 from its source; it has not been run in SGLang, which needs a GPU.
    """
    profile_range = getattr(module, "profile_range", None)
    if profile_range is None:
        return

    @functools.wraps(profile_range)
    def marked_range(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and str(args[0]).startswith("step["):
            return _Step(args[0])
        return profile_range(*args, **kwargs)

    vars(module)["profile_range"] = marked_range


class _Step:
    """A mark as a context manager."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self.mark = open_mark(self.name)

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.mark.close()
