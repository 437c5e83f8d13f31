"""What becomes of a window that is over: its file, its summary, and what is said where something is missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.collecting import capture_of
from tracekit.capture_attached import convert_attached
from tracekit.capture_files import CaptureFiles, Wanted, ranks_of, redacted_command
from tracekit.capture_gates import Problem, in_conclusion, what_is_missing, why_empty
from tracekit.capture_summary import size
from tracekit.collectors._child import Ended
from tracekit.collectors._session import Session
from tracekit.collectors._windows import WITH_MEMORY, Part, Plan, Process, StepTimes, Window
from tracekit.collectors.attach import Attached

WORKER = Process(1, 4242, "serve.py Worker", "3.11.7", "2.13.0", "")
API = Process(0, 4240, "serve.py", "3.11.7", "2.13.0", "")
OP = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
KERNEL = {**OP, "cat": "kernel", "name": "k", "ts": 5, "args": {"device": 0, "stream": 7, "correlation": 1}}


def call(name: str, correlation: int) -> dict[str, Any]:
    return {**OP, "cat": "cuda_runtime", "name": name, "ts": 2 + correlation, "args": {"correlation": correlation}}


LAUNCHES = [call(name, 1 + i) for i, name in enumerate(["cudaLaunchKernel", "cudaGraphLaunch", "cudaLaunchHostFunc"])]


def part_of(folder: Path, process: Process, events: Sequence[dict[str, Any]], **facts: Any) -> Part:
    path = folder / f"process-{process.number}.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
    part = Part(process, path, path.stat().st_size, "duration", 0, None, None, 0.0, ())
    return replace(part, **facts)


def window_of(*parts: Part) -> Window:
    """A closed window of two seconds in which these were saved, and the API server did nothing."""
    window = Window(1, 0.0, 0, None, closed="duration")
    window.join(API).state = "idle"
    window.attempts[API].why = "no torch work"
    for part in parts:
        attempt = window.join(part.process)
        attempt.state, attempt.part, attempt.activities = "saved", part, ("CPU", "CUDA")
        attempt.began, attempt.ended = 1.0, 3.0
    return window


def deliver(folder: Path, window: Window, *, unhooked: Sequence[str] = ()) -> tuple[CaptureFiles, list[str]]:
    """Deliver after the program has ended well; what was said."""
    said: list[str] = []
    wanted = Wanted(folder / "trace.parquet", False, None, None)
    drafts = folder / "drafts"
    drafts.mkdir()
    files = CaptureFiles(wanted, Plan(duration=2.0), drafts, said.append)
    facts = {"ended": True, "outcome": Ended(0, None), "met": [API, WORKER], "unhooked": unhooked, "complaints": []}
    files.deliver(window, cast("Session", SimpleNamespace(folder=SimpleNamespace(seen=lambda: 3), **facts)))
    return files, [line.replace(str(folder), ".") for line in said]


def test_summary_of_a_whole_recording(tmp_path: Path) -> None:
    mark = {**OP, "cat": "user_annotation", "name": "tracekit.step[decode decode_requests=4]"}
    times = (StepTimes("decode 4", 24, 8_100_000, 31, 7_500_000), StepTimes("prefill 1", 1, 1, 1, 1))
    events = [OP, mark, LAUNCHES[0], KERNEL]
    files, said = deliver(tmp_path, window_of(part_of(tmp_path, WORKER, events, stop=0.123, overhead=times, rank=3)))
    assert said[:5] == [
        "Recorded 1 of 2 processes for 2.0 s: torch 2.13.0, CPU and CUDA.",
        "  process                   rank  events  device   steps    size",
        "  serve.py Worker (4242)       3       4       1       1   522 B",
        "  not recorded: serve.py (4240): no torch work in the window",
        "Recording stopped the program for 0.12 s at the end of the window.",
    ]
    assert said[5] == "A step took 8 % longer recorded: decode 4: 8.1 ms, else 7.5 ms (24 and 31 steps)."
    assert said[6].startswith("Wrote ./trace.parquet (")
    assert (files.problems, len(said)) == ([], 7)


def test_launches_without_kernels_are_told_and_marked(tmp_path: Path) -> None:
    files, _ = deliver(tmp_path, window_of(part_of(tmp_path, WORKER, [OP, *LAUNCHES])))
    (problem,) = files.problems
    assert "the program launched work on the GPU 2 times and not one kernel was recorded" in problem.text
    assert (problem.said, problem.written) == (False, True)
    assert capture_of(tmp_path / "trace.parquet")["partial"] == ["launches, and no device activity"]


def test_what_is_missing_is_told_with_names_and_stored_without(tmp_path: Path) -> None:
    window = window_of(part_of(tmp_path, WORKER, [OP], rank=1, world_size=4, reason="max_size"))
    states = [("lost", ""), ("late", ""), ("failed", "the profiler did not start: /home/me: no")]
    for number, (state, why) in enumerate(states, start=2):
        attempt = window.join(replace(WORKER, number=number, pid=number, name="secret.py"))
        attempt.state, attempt.why = cast("Any", state), why
    files, _ = deliver(tmp_path, window, unhooked=["nope:f"])
    (problem,) = files.problems
    for text in ("secret.py (2) ended before", "secret.py (3) had not saved", "failed in secret.py (4): the profiler"):
        assert text in problem.text
    assert capture_of(tmp_path / "trace.parquet")["partial"] == [
        "the profiler failed in process 4",
        "process 2 ended before the trace was saved",
        "process 3 had not saved within the 300 s of --timeout",
        "process 4242 grew by the memory of --max-size, and recording ended there",
        "no trace of rank 0, 2, 3 of 4",
        "no process imported a module of --step-module",
    ]


@pytest.mark.parametrize(
    ("closed", "reason", "plan", "message"),
    [
        ("finish", "exit", Plan(steps=100), "60 of 100 steps in serve.py Worker (4242), which ended first"),
        ("signal", "signal", Plan(steps=100, duration=9), "60 of 100 steps in serve.py Worker (4242), which was asked"),
        ("steps", "steps", Plan(steps=100), "60 of 100 steps in serve.py Worker (4242), which made no more"),
        ("duration", "duration", Plan(steps=100, duration=2), None),
        ("stop", "stop", Plan(steps=100), None),
        ("finish", "exit", Plan(steps=60, duration=9), None),
        ("finish", "exit", Plan(duration=100), "2 of 100 s: the program ended first"),
        ("signal", "exit", Plan(duration=100), "2 of 100 s: the program was asked to stop first"),
        ("duration", "exit", Plan(duration=2), None),
        ("duration", "exit", Plan(duration=9), "2 of 9 s: the program ended first"),
        ("stop", "stop", Plan(duration=100), None),
        ("finish", "displaced", Plan(), "the trace of serve.py Worker (4242) ends where the program started a torch"),
    ],
)
def test_less_than_was_asked_for(tmp_path: Path, closed: str, reason: str, plan: Plan, message: str | None) -> None:
    """Unless another limit that was given, too, or --control ended it."""
    part = part_of(tmp_path, WORKER, [OP], steps=60, reason=reason)
    window = window_of(part)
    window.steps, window.closed, window.first, window.closed_at = plan.steps, closed, 1.0, 3.5
    assert [one.text[: len(message or "")] for one in what_is_missing(window, [part], plan)] == [message] * bool(
        message
    )


@pytest.mark.parametrize(
    ("closed", "ended", "message"),
    [
        ("signal", 9.9, "its parent killed it when asked to stop. Close the window first: --duration, --control stop"),
        ("signal", 3.0, "it crashed, or was killed, by its parent or by the system"),
        ("finish", 9.9, "it crashed, or was killed, by its parent or by the system"),
    ],
)
def test_lost_process_is_explained_by_when_it_ended(closed: str, ended: float, message: str) -> None:
    window = Window(1, 0.0, 0, None)
    window.join(WORKER).state = "recording"
    window.closed, window.closed_at = closed, 10.0
    window.part_with(WORKER, ended)
    (lost,) = what_is_missing(window, [], Plan())
    assert lost.text.startswith(f"serve.py Worker (4242) ended before the trace was saved: {message}")


def test_what_was_said_is_said_in_short_at_the_end() -> None:
    problems = [Problem("a", False, True), *[Problem("b", True, True)] * 2, Problem("c", True, False)]
    assert in_conclusion(problems) == [
        "a",
        "1 window failed, as said above",
        "2 windows are incomplete, as said above",
    ]


def test_parts_that_cannot_be_converted_are_kept(tmp_path: Path) -> None:
    part = part_of(tmp_path, WORKER, [OP])
    part.path.write_text('"cat": "cpu_op" but no trace')
    (tmp_path / "trace.parts").mkdir()
    files, said = deliver(tmp_path, window_of(part))
    (problem,) = files.problems
    assert said == []
    kept = tmp_path / "trace-2.parts"
    assert f"What was recorded is in {kept}: tracekit convert {kept} -o {tmp_path / 'trace.parquet'}" in problem.text
    assert [path.name for path in kept.iterdir()] == ["process-1.json"]


def test_no_file_is_overwritten_unless_asked(tmp_path: Path) -> None:
    """Nor one that the program names, even then."""
    for name in ("trace.parquet", "trace-2.parquet", "trace-4.parquet"):
        (tmp_path / name).touch()
    plain = CaptureFiles(Wanted(tmp_path / "trace.parquet", False, None, None), Plan(), tmp_path, print)
    assert [plain.output_of(number).name for number in (1, 2, 4)] == ["trace-3.parquet"] * 2 + ["trace-5.parquet"]
    named = (tmp_path / "trace-2.parquet",)
    forced = CaptureFiles(Wanted(tmp_path / "trace.parquet", True, None, None, named), Plan(), tmp_path, print)
    assert [forced.output_of(number).name for number in (1, 2)] == ["trace.parquet", "trace-3.parquet"]


def test_ranks_are_one_for_each_part(tmp_path: Path) -> None:
    """Two data-parallel groups count from 0 each; processes without a rank come after those with one."""
    parts = [
        part_of(tmp_path, replace(WORKER, number=number), [OP], rank=rank)
        for number, rank in enumerate([None, 0, 1, 0, None])
    ]
    assert [ranks_of(parts)[part.path] for part in parts] == [2, 0, 1, 3, 4]


@pytest.mark.parametrize(
    ("why", "options", "seen", "met", "message"),
    [
        ("", {}, 0, 0, "no Python process of the program found the capture"),
        ("", {}, 2, 0, "2 Python processes ran, and none imported torch: there was nothing to record"),
        ("no step", {"steps": 3}, 1, 1, "--step-module pkg.mod:Class.forward"),
        ("GPU not used", {}, 1, 1, "no process used the GPU while recording was on"),
        ("own profiler", {}, 1, 1, "a torch.profiler of the program's own ran all the time"),
        ("no torch work", {"duration": 1}, 1, 1, "not one op ran in the window. Send load while it is recorded"),
        ("no torch work", {}, 1, 2, "not one op was recorded after torch was imported; with --memory only the thread"),
        ("warm-up not over", {"warmup": 100}, 1, 1, "60 marked steps ran in the window, and the --warmup of 100 was"),
        ("warm-up not over", {"steps": 1, "warmup": 9}, 1, 1, "60 marked steps ran in the window, and the --warmup of"),
    ],
)
def test_empty_window_names_its_cause(why: str, options: dict[str, Any], seen: int, met: int, message: str) -> None:
    """The second of two processes is recorded with --memory."""
    plan = Plan(**options)
    empty = Window(1, 0.0, plan.warmup, plan.steps, closed="duration")
    for process in [WORKER, replace(WORKER, one_thread=WITH_MEMORY)][:met]:
        idle = {"say": "idle", "why": why, "passed": 60}
        empty.join(process).stepping = why == "warm-up not over"
        empty.hear(process, idle, Path(), 0.0)
    assert message in why_empty(empty, seen=seen, met=met, plan=plan, named="")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["serve.py", "--api-key", "12ab34cd"], ["serve.py", "--api-key", "[redacted]"]),
        (["serve.py", "--api-key=12ab34cd", "x"], ["serve.py", "--api-key=[redacted]", "x"]),
        (["env", "HF_TOKEN=hf_0123456789abcdef0123", "a b"], ["env", "HF_TOKEN=[redacted]", "a b"]),
        (["serve.py", "--port", "8000", "--model", "a/b"], ["serve.py", "--port", "8000", "--model", "a/b"]),
    ],
)
def test_command_is_stored_without_credentials(words: list[str], expected: list[str]) -> None:
    assert redacted_command(words) == expected


def test_sizes() -> None:
    counts = [0, 999, 9_400, 210_499, 999_600, 1_240_000, 25_000_000_000]
    assert [size(count) for count in counts] == ["0 B", "999 B", "9.4 kB", "210 kB", "1.0 MB", "1.2 MB", "25.0 GB"]


def test_server_that_recorded_launches_without_kernels(tmp_path: Path) -> None:
    """As a server does whose CUPTI another profiler has."""
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [OP, *LAUNCHES]}))
    attached = Attached((file,), ("no trace of rank 1 of 2",), {"engine": "vllm"})
    said: list[str] = []
    partial = convert_attached(attached, tmp_path / "trace.parquet", None, tmp_path, said.append)
    assert [text.partition(" and not one kernel")[0] for text in partial] == [
        "no trace of rank 1 of 2",
        "the program launched work on the GPU 2 times",
    ]
    stored = ["no trace of rank 1 of 2", "launches, and no device activity"]
    assert capture_of(tmp_path / "trace.parquet")["partial"] == stored
    assert said[:2] == ["Recorded 1 rank:", "  rank 0: 4 events, 0 of the device, 0 steps"]
