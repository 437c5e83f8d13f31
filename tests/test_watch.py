"""Counting and timing of marked steps inside the recorded program, without a recording."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="steps are marked by torch's ranges")

from tracekit.collectors._in_process.watch import Watch  # noqa: E402  after torch is known to be there

module = sys.modules[Watch.__module__]  # `watch` of the package is the object
DECODE = "tracekit.step[decode decode_requests=4 decode_tokens=4]"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A clock that shows what the test puts there, in ns."""
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    yield now


def run(watch: Watch, clock: list[int], name: str, duration: int) -> None:
    token = watch.begin(name)
    clock[0] += duration
    watch.end(token)


def test_no_step_no_overhead() -> None:
    watch = Watch()
    assert (watch.steps, watch.overhead()) == (0, [])


def test_overhead_compares_steps_alike(clock: list[int]) -> None:
    watch = Watch()
    for duration in (100, 120, 110, 105, 115):
        run(watch, clock, DECODE, duration)
    run(watch, clock, "tracekit.step[prefill prefill_requests=1 prefill_tokens=64]", 900)
    watch.recording = True
    for duration in (150, 160, 130, 140, 145, 135):
        run(watch, clock, DECODE, duration)
    assert watch.steps == 6
    assert watch.overhead() == [{"step": "decode 4", "recorded": [6, 142], "plain": [5, 110]}]


def test_step_that_the_profiler_starts_or_ends_in_is_not_timed(clock: list[int]) -> None:
    watch = Watch()
    outer = watch.begin(DECODE)
    watch.recording = True
    watch.end(outer)
    inner = watch.begin(DECODE)
    watch.recording = False
    watch.end(inner)
    assert (watch.steps, watch.times) == (0, {})


def test_step_within_a_step_is_part_of_it_and_other_threads_have_their_own(clock: list[int]) -> None:
    watch = Watch()
    watch.recording = True
    outer = watch.begin(DECODE)
    assert watch.begin("ProfilerStep#1") is None
    watch.end(None)
    thread = threading.Thread(target=run, args=(watch, clock, "step[DECODE bs=2]", 5))
    thread.start()
    thread.join()
    watch.end(outer)
    assert watch.steps == 2
    assert sorted(watch.times) == [("step[DECODE bs=2]", True), (DECODE, True)]


def test_boundaries_are_told_while_asked_for() -> None:
    watch, told = Watch(), list[str]()

    def start() -> None:
        told.append("begin")
        watch.recording = True

    watch.on_begin, watch.on_end = start, lambda: told.append("end")
    watch.end(watch.begin(DECODE))
    watch.boundary = True
    watch.end(watch.begin(DECODE))
    watch.boundary = False
    watch.end(watch.begin(DECODE))
    assert (told, watch.steps) == (["begin", "end"], 2)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")
def test_ranges_of_torch_count_if_their_names_are_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, kind = Watch(), torch.autograd.profiler.record_function
    monkeypatch.setattr(module, "watch", watch)
    for method in ("__enter__", "__exit__"):
        monkeypatch.setattr(kind, method, getattr(kind, method))  # to be put back
    watch.install(torch)
    watch.recording = True
    names = ["step[DECODE bs=2]", "ProfilerStep#3", "execute_context_0(0)_generation_2(2)", DECODE]
    for name in ["aten::mm", "my range", *names]:
        with torch.profiler.record_function(name):
            pass
    assert (watch.steps, sorted(watch.times)) == (4, sorted((name, True) for name in names))

    # Without a type, which TorchScript takes for a tensor; and it reads comments that begin so, if nothing follows.
    def function(tensor):  # type: ignore[no-untyped-def]
        with torch.autograd.profiler.record_function("step[DECODE bs=2]"):
            return tensor + 1

    assert torch.jit.script(function)(torch.ones(1)).tolist() == [2.0]
