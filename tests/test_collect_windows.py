"""Windows of `tracekit collect`: when they begin and end, what they cost outside, and what the file says of them."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.collecting import capture_of, collect, names, start, stop, write

torch = pytest.importorskip("torch", reason="collect runs programs that import torch")

SERVE = """
    import os, sys, time
    import torch

    def resident():
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

    print("ready", flush=True)
    step = 0
    before = None
    while not os.path.exists("end"):
        with torch.profiler.record_function("tracekit.step[decode decode_requests=4 decode_tokens=4]"):
            with torch.profiler.record_function(f"step {step}"):
                torch.ones(2) + 1
        step += 1
        time.sleep(0.002)
        if os.path.exists("trace.parquet"):
            before = before or (resident(), step)
            for _ in range(200):
                torch.ones(2) + 1
    print(resident() - before[0], step - before[1])
"""


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, f"no {path.name}"
        time.sleep(0.02)


def test_short_window_of_a_long_run(tmp_path: Path) -> None:
    """The file is there while the program goes on, whose memory then stays flat."""
    write(tmp_path / "serve.py", SERVE)
    options = ["--delay", "5", "--duration", "0.5", "--keep-command"]
    process = start(tmp_path, *options, "--", sys.executable, "serve.py", "--api-key=12ab34cd")
    wait_for(tmp_path / "trace.parquet")
    time.sleep(1)
    (tmp_path / "end").touch()
    out, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    growth_kb, steps = map(int, out.split())
    assert steps > 50
    assert growth_kb < 4_000
    capture = capture_of(tmp_path / "trace.parquet")
    assert capture["window"].pop("duration_s") == pytest.approx(0.5, abs=0.4)
    assert capture["window"] == {"delay_s": 5, "steps": None, "warmup": 0, "ended_by": ["duration"]}
    assert [(one["rank"], one["steps"] > 20) for one in capture["processes"]] == [(0, True)]
    assert capture["partial"] == []
    assert capture["command"] == [sys.executable, "serve.py", "--api-key=[redacted]"]
    (overhead,) = capture["overhead"]
    assert overhead["step"] == "decode 4"
    assert overhead["recorded"][0] > 20
    assert re.search(r"^A step took \d+ % (longer|less) recorded: decode 4: .* ms, else .* steps\)\.$", said, re.M)


def test_steps_are_recorded_exactly_after_the_warm_up(tmp_path: Path) -> None:
    """The window does not wait for the child, which runs torch and no step."""
    write(tmp_path / "serve.py", SERVE)
    write(
        tmp_path / "forks.py",
        """
        import os, time
        import torch
        if os.fork():
            import serve
        while not os.path.exists("end"):
            time.sleep(0.05)
        """,
    )
    options = ["--steps", "5", "--warmup", "3", "--keep-raw", "raw", "--no-shapes"]
    process = start(tmp_path, *options, "--", sys.executable, "forks.py")
    wait_for(tmp_path / "trace.parquet")
    (tmp_path / "end").touch()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    assert names(tmp_path / "trace.parquet")[1::2] == [f"step {number}" for number in range(3, 8)]
    assert re.search(r"forks\.py \(\d+\) +0 +\d+ +0 +5 ", said)
    assert re.search(r"^  not recorded: forks\.py \(\d+\): no step$", said, re.M)
    window = capture_of(tmp_path / "trace.parquet")["window"]
    assert (window["steps"], window["warmup"], window["ended_by"]) == (5, 3, ["steps"])
    (raw,) = (tmp_path / "raw").iterdir()
    assert ("aten::add" in raw.read_text(), "Input Dims" in raw.read_text()) == (True, False)


def test_process_that_does_not_save_is_not_waited_for_beyond_the_limit(tmp_path: Path) -> None:
    """The child holds Python's lock in C, so that it cannot answer; it outlives the capture."""
    write(
        tmp_path / "stuck.py",
        """
        import ctypes, os, time
        import torch
        torch.ones(2) + 1
        if os.fork() == 0:
            torch.ones(2) + 1
            print(os.getpid(), flush=True)
            for descriptor in range(3):
                os.close(descriptor)
            ctypes.PyDLL(None).sleep(60)
        time.sleep(1)
        """,
    )
    collected = collect(tmp_path, "--timeout", "1", "--", sys.executable, "stuck.py")
    child = int(collected.stdout)
    os.kill(child, signal.SIGKILL)
    assert collected.returncode == 5
    assert f"tracekit: stuck.py ({child}) had not saved within the 1 s of --timeout; record" in collected.stderr
    assert capture_of(tmp_path / "trace.parquet")["partial"] == [
        f"process {child} had not saved within the 1 s of --timeout"
    ]


def test_memory_limit_ends_the_recording_and_is_told(tmp_path: Path) -> None:
    write(
        tmp_path / "grow.py",
        """
        import time
        import torch
        with torch.profiler.record_function("before"):
            kept = torch.ones(2) + 1
        print("ready", flush=True)
        kept = torch.zeros(30_000_000) + 1
        time.sleep(1)
        with torch.profiler.record_function("after"):
            kept = torch.ones(2) + 1
        """,
    )
    collected = collect(tmp_path, "--max-size", "50M", "--", sys.executable, "grow.py")
    assert collected.returncode == 5
    assert re.search(
        r"^tracekit: grow\.py \(\d+\) grew by the memory of --max-size, and .* trace\.parquet holds what there is$",
        collected.stderr,
        re.M,
    )
    assert names(tmp_path / "trace.parquet") == ["before"]
    assert capture_of(tmp_path / "trace.parquet")["window"]["ended_by"] == ["max_size"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--steps", "5", "--step-module", "nope:Modl.forward"],
            "tracekit: --step-module nope:Modl.forward: no process imported nope; no marked step ran in the window",
        ),
        (["--delay", "60"], "the program ended before the 60 s of --delay were over"),
        (["--paused"], "no window was opened: with --paused"),
    ],
)
def test_window_that_never_came(tmp_path: Path, arguments: list[str], message: str) -> None:
    code = "import torch; torch.ones(2) + 1"
    collected = collect(tmp_path, *arguments, "--", sys.executable, "-c", code)
    assert collected.returncode == 5
    assert message in collected.stderr
    assert not list(tmp_path.iterdir())


def test_profiler_that_cannot_start_is_told_at_once(tmp_path: Path) -> None:
    if torch.version.cuda or torch.version.hip:
        pytest.skip("needs a torch for the CPU")
    write(tmp_path / "idle.py", "import time, torch\nprint('ready', flush=True)\ntime.sleep(100)\n")
    process = start(tmp_path, "--activities", "cuda", "--", sys.executable, "idle.py")
    assert process.stderr is not None
    first = process.stderr.readline()
    assert re.fullmatch(r"tracekit: the profiler failed in idle\.py \(\d+\): .* has no CUDA to record .*\n", first)
    assert stop(process, signal.SIGTERM)[0] == 143


def test_program_that_does_nothing_in_the_window(tmp_path: Path) -> None:
    """It is told at once, and at the end once more in short; the program's own failure counts for more."""
    write(tmp_path / "idle.py", "import time, torch\nprint('ready', flush=True)\ntime.sleep(100)\n")
    process = start(tmp_path, "--duration", "0.3", "--", sys.executable, "idle.py")
    assert process.stderr is not None
    first = process.stderr.readline()
    assert re.fullmatch(r"tracekit: not one op ran in the 0\.\d s of the window\. Send load while .*\n", first)
    code, said = stop(process, signal.SIGTERM)
    assert code == 143
    assert said.splitlines()[1:] == ["tracekit: the program was ended by SIGTERM; 1 window failed, as said above"]
