"""torch.profiler in this process: opened and closed by window, one recording at a time.

The profiler records all threads whichever it is started on, where torch can (2.7 and later, and not allocations, see
pytorch issue 166121). Else it is bound to the thread that starts it, so it is started where the work is: on the thread
that imports torch, or at the beginning of a marked step.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from .quiet import c_stderr_filtered, descriptor_filtered
from .saving import Recording
from .torch_facts import Rank, built_for_gpu, choose_device, knows, own_memory, prepare, wants_gpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from .saving import Saver
    from .watch import Watch

# Another user of CUPTI: Nsight Systems and Compute, or whatever else injects itself into CUDA.
INJECTION = ("CUDAINJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "NV_COMPUTE_PROFILER_PERFWORKS_DIR")


class Window:
    """One window as this process sees it.

    warmup: marked steps to let pass first. steps: marked steps to record, None for no such limit. why: what recording
    waits for, or why there is none.
    """

    def __init__(self, number: int, warmup: int, steps: int | None) -> None:
        self.number = number
        self.warmup = warmup
        self.steps = steps
        self.passed = 0
        self.stepping = False
        self.over = False
        self.why = "no step" if self.by_step else "no torch work"

    @property
    def by_step(self) -> bool:
        """Whether recording begins at a marked step."""
        return self.steps is not None or self.warmup > 0


class Recorder:
    """The profiler of this process.

    lock: held while the profiler starts or stops, and while the process forks. busy: the thread that is inside the
    profiler; on_rest is called when it has come out.
    """

    def __init__(
        self, torch: Any, settings: dict[str, Any], watch: Watch, saver: Saver, tell: Callable[..., None]
    ) -> None:
        self.torch = torch
        self.settings = settings
        self.watch = watch
        self.tell = tell
        self.lock = threading.RLock()
        self.busy: int | None = None
        self.saver = saver
        self.window: Window | None = None
        self.profiler: Any = None
        self.inherited: Any = None
        self.ever = False
        self.theirs = False
        self.ended = False
        self.asked_torch = False
        self.primed = False
        self.memory, self.began = 0, 0.0
        self.rank = Rank(torch)
        self.on_rest: Callable[[], None] = lambda: None
        self.all_threads = knows(torch, "profile_all_threads") and not settings["memory"]
        self.on_gpu = wants_gpu(torch, settings["activities"])
        watch.on_begin, watch.on_end = self.step_begins, self.step_ends
        self._give_way()

    def open(self, window: Window, *, on_work_thread: bool = False) -> None:
        """Begin a window. on_work_thread: called on a thread whose work is to be recorded."""
        with self.lock:
            if self.ended or (self.window is not None and not self.window.over):
                return
            self.window = window
            waits = self.on_gpu and not self.torch.cuda.is_initialized()
            if waits:
                window.why = "GPU not used"
        if not waits:
            self._ready(window, on_work_thread)
        elif not self.asked_torch:  # without our lock: torch calls back with its own held
            self.asked_torch = True
            self.torch.cuda._lazy_call(self.gpu_appears)

    def gpu_appears(self) -> None:
        """Called by torch on the thread that has just initialised the GPU."""
        window = self.window
        if window is not None and not window.over:
            with contextlib.suppress(Exception):  # it would come out of the program's first use of the GPU
                self._ready(window, True)

    def _ready(self, window: Window, on_work_thread: bool) -> None:
        """Begin now, or at the next step if that is asked for, or if it must be on the thread of the work."""
        if not window.by_step and (on_work_thread or self.all_threads):
            with self.lock:
                self._begin(window)
            return
        with self.lock:
            window.why = "no step"
            self.watch.boundary = not window.over

    def step_begins(self) -> None:
        """Called on the thread of a marked step while a window is open."""
        with self.lock:
            window = self.window
            if window is None or window.over or self.profiler is not None:
                return
            if not window.stepping:
                window.stepping = True
                self.tell("stepping", window=window.number)
            if window.passed < window.warmup:
                window.passed += 1
                window.why = "warm-up not over"
            else:
                self._begin(window)

    def step_ends(self) -> None:
        """Called on the thread of a marked step that was recorded."""
        with self.lock:
            window = self.window
            if window is not None and window.steps is not None and self.watch.steps >= window.steps:
                self._end("steps")

    def close(self, reason: str) -> None:
        """End the window, if one is open."""
        with self.lock:
            window = self.window
            if self.profiler is not None:
                self._end(reason)
            elif window is not None and not window.over:
                self.tell("idle", window=window.number, why=window.why, passed=window.passed)
            self.window = None
            self.watch.boundary = False

    def finish(self, reason: str) -> None:
        """End the recording for good and have it saved."""
        with self.lock:
            self.ended = True
            self.close(reason)

    def check_memory(self) -> None:
        """End the recording if the process has grown by more than the limit since it began."""
        limit = self.settings["max_bytes"]
        if limit and self.profiler is not None and own_memory() - self.memory > limit:
            with self.lock:
                if self.profiler is not None:
                    self._end("max_size")

    def _begin(self, window: Window) -> None:
        """Start the profiler. The lock is held."""
        if window.over or self.profiler is not None or self.ended:
            return
        reason = self._hindrance()
        if reason is not None:
            self._fail(window, reason)
            return
        with self._working():
            try:
                activities = self._start()
            except Exception as error:
                self._fail(window, f"the profiler did not start: {type(error).__name__}: {error}")
                return
        self.memory, self.began = own_memory(), time.perf_counter()
        self.watch.begin_recording()
        self.watch.boundary = window.steps is not None
        self.tell("recording", window=window.number, activities=activities)

    def _hindrance(self) -> str | None:
        """Why the profiler must not be started now."""
        if self.theirs:
            return "a torch.profiler of the program's own was running, and only one can"
        tool = next((name for name in INJECTION if os.environ.get(name)), None)
        if self.on_gpu and tool is not None:
            return f"another profiler has CUPTI: {tool} is set, as Nsight Systems and Compute do; run one at a time"
        return None

    def _start(self) -> list[str]:
        torch, settings = self.torch, self.settings
        kinds = torch.profiler.ProfilerActivity
        if settings["activities"] is not None:
            activities = [getattr(kinds, name.upper()) for name in settings["activities"]]
            if not set(activities) <= torch.profiler.supported_activities():
                raise RuntimeError("this torch, or this machine, has no CUDA to record (--activities cpu is there)")
        elif built_for_gpu(torch) and not self.on_gpu:
            activities = [kinds.CPU]
        else:
            activities = sorted(torch.profiler.supported_activities(), key=str)
        profiler = torch.profiler.profile(
            activities=activities,
            record_shapes=settings["shapes"],
            profile_memory=settings["memory"],
            with_stack=settings["stacks"],
            experimental_config=self._config(),
        )
        with contextlib.ExitStack() as filters:
            if not self.ever:
                filters.enter_context(c_stderr_filtered())
            if self.inherited is not None:
                filters.enter_context(descriptor_filtered(b"callback is not found"))
            prepare(torch, profiler)
            profiler.start_trace()
        self.inherited = None
        self.ever = True
        self.profiler = profiler
        return [str(activity).rsplit(".", 1)[-1] for activity in activities]

    def _config(self) -> Any:
        """All threads; no Python object per event at stop, where stacks allow that; or what this torch knows of it."""
        wishes = {"profile_all_threads": self.all_threads, "trace_only": not self.settings["stacks"]}
        known = {name: True for name, wish in wishes.items() if wish and knows(self.torch, name)}
        return self.torch._C._profiler._ExperimentalConfig(**known) if known else None

    def _end(self, reason: str) -> None:
        """Stop, and save what was recorded. The lock is held."""
        window, profiler = self.window, self.profiler
        if window is None:
            return
        window.over = True
        self.profiler = None
        self.watch.recording = self.watch.boundary = False
        with self._working():
            try:
                self._stop_and_save(window, profiler, reason)
            except Exception as error:  # it would come out of the program's step
                self._fail(window, f"its recording was lost: {type(error).__name__}: {error}")

    def _stop_and_save(self, window: Window, profiler: Any, reason: str) -> None:
        steps = self.watch.steps
        began = time.perf_counter()
        recorded = began - self.began
        profiler.stop_trace()
        frozen = time.perf_counter() - began
        if self.on_gpu and not self.primed:
            self._prime()
        name = f"part-{os.getpid()}-{window.number}.json"
        path = os.path.join(self.settings["parts"], name)
        with contextlib.suppress(Exception):
            self.rank.note()

        def done(error: str | None) -> None:
            try:
                facts = self._facts(path, steps, [frozen, time.perf_counter() - began - frozen])
            except Exception as wrong:
                error = error or f"{type(wrong).__name__}: {wrong}"
            if error is None:
                self.tell("saved", window=window.number, file=name, reason=reason, recorded=recorded, **facts)
            else:
                self._fail(window, f"its trace could not be written: {error}")

        def safe() -> None:
            self.tell("stopped", window=window.number, reason=reason, recorded=recorded)

        self.saver.save(Recording(profiler, path, safe, done))

    def _facts(self, path: str, steps: int, seconds: list[float]) -> dict[str, Any]:
        """What the collector is told of a part: bytes, steps, rank, seconds to stop and to save, cost of steps."""
        return {
            "bytes": os.path.getsize(path),
            "steps": steps,
            "rank": self.rank.rank,
            "world_size": self.rank.world_size,
            "seconds": seconds,
            "overhead": self.watch.overhead(),
        }

    def _prime(self) -> None:
        """Write a trace of nothing: Kineto looks up the GPU's properties at its first, and in a fork it could not."""
        draft = os.path.join(self.settings["parts"], f"nothing-{os.getpid()}.tmp")
        with contextlib.suppress(Exception):
            profiler = self.torch.profiler.profile(activities=[self.torch.profiler.ProfilerActivity.CPU])
            prepare(self.torch, profiler)
            profiler.start_trace()
            profiler.stop_trace()
            profiler.export_chrome_trace(draft)
            os.remove(draft)
        self.primed = True

    def _fail(self, window: Window, why: str) -> None:
        window.over = True
        self.watch.boundary = False
        self.tell("failed", window=window.number, why=why)

    @contextlib.contextmanager
    def _working(self) -> Any:
        """Mark this thread as inside the profiler: calls of torch from here are ours, a signal has to wait."""
        self.busy = threading.get_ident()
        if self.on_gpu:
            choose_device(self.torch)
        try:
            yield
        finally:
            self.busy = None
            self.on_rest()

    def _give_way(self) -> None:
        """Finish first when the program starts a profiler of its own: one at a time, a second crashes both."""
        backend = self.torch.autograd.profiler
        prepare, disable = (getattr(backend, name, None) for name in ("_prepare_profiler", "_disable_profiler"))
        if prepare is None or disable is None:
            return

        def finish_then_prepare(*arguments: Any, **keywords: Any) -> Any:
            if self.busy != threading.get_ident():
                with self.lock:
                    if self.profiler is not None:
                        self._end("displaced")
                self.theirs = True
            return prepare(*arguments, **keywords)

        def disable_and_note(*arguments: Any, **keywords: Any) -> Any:
            if self.busy != threading.get_ident():
                self.theirs = False
            return disable(*arguments, **keywords)

        backend._prepare_profiler, backend._disable_profiler = finish_then_prepare, disable_and_note

    def after_fork(self) -> None:
        """Start afresh in a forked child, which has the parent's callbacks and would fill its buffers for ever."""
        self.lock = threading.RLock()
        self.busy = None
        if self.profiler is not None:
            self.torch._C._autograd._clear_callbacks()
            self.inherited = self.profiler
        self.profiler = self.window = None
        self.theirs = self.ended = False
        self.rank.rank = self.rank.world_size = None
