"""`tracekit collect --profiler nsys` with a real nsys: whole runs and windows, what is in the file, what is missing."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest

from tests.collecting import capture_of, collect, control, names, start, write
from tests.nsys_runs import MARKED, NSYS, STEPPED, needs_nsys, nvtx_folder, rows, sessions, steps_in, wait_for

pytestmark = needs_nsys


def test_whole_run_passes_everything_through(tmp_path: Path) -> None:
    """The program's streams, its status and its umask are its own; nsys' words, and secrets, are not in the trace."""
    write(
        tmp_path / "app.py",
        """
        import os, subprocess, sys
        print(sys.stdin.read().upper(), oct(os.umask(0)))
        subprocess.run([sys.executable, "marked.py", "0.05", "0"], stdout=subprocess.DEVNULL)
        print("warning", file=sys.stderr)
        sys.exit(3)
        """,
    )
    write(tmp_path / "marked.py", MARKED)
    (tmp_path / "trace.parquet").write_text("before")
    options = [*NSYS, "--force", "--keep-raw", "raw", "--nsys-option=--env-var=PASSWORD=hunter2"]
    command = ["--", sys.executable, "app.py"]
    done = collect(tmp_path, *options, *command, text="read", PYTHONPATH=nvtx_folder(), API_KEY="sk-12ab34cd56ef78")
    mask = os.umask(0)
    os.umask(mask)
    assert (done.returncode, done.stdout) == (3, f"READ {mask:#o}\n"), done.stderr
    *_, warning, recorded, head, marked, other, kinds, cost, wrote, raw, ended = ["", *done.stderr.splitlines()]
    assert warning == "warning"
    assert re.fullmatch(r"Recorded 2 processes for .* m?s: nsys 20\d\d\.\S+, cuda and nvtx and osrt\.", recorded)
    assert head.split() == ["process", "rank", "events", "device", "steps"]
    assert int(marked.split()[-1]) > 1
    assert other == "  1 process with calls into the system alone"
    assert re.fullmatch(r"Rows: .*annotation \d+.*\.", kinds)
    assert cost.startswith("Overhead unknown")
    assert wrote.startswith("Wrote trace.parquet (")
    assert raw == "Wrote raw: the profiler's own files; they may hold secrets"
    assert ended == "The program exited with status 3."
    trace = tmp_path / "trace.parquet"
    assert steps_in(trace) > 1
    assert [path.name for path in (tmp_path / "raw").iterdir()] == ["window-1.nsys-rep"]
    secrets = (b"sk-12ab34cd56ef78", b"hunter2", b"READ")
    assert not any(secret in trace.read_bytes() for secret in secrets)
    capture = capture_of(trace)
    assert (capture["profiler"], capture["trace"], capture["options"], capture["partial"]) == (
        "nsys",
        ["cuda", "nvtx", "osrt"],
        ["--env-var"],
        [],
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app.py", "marked.py", "raw", "trace.parquet"]


def test_steps_are_counted_in_the_program_which_goes_on(tmp_path: Path) -> None:
    write(tmp_path / "serve.py", STEPPED)
    process = start(
        tmp_path, *NSYS, "--trace", "nvtx", "--steps", "5", "--warmup", "6", "--", sys.executable, "serve.py", "30",
        PYTHONPATH=nvtx_folder(),
    )  # fmt: skip
    wait_for((tmp_path / "trace.parquet").exists)
    time.sleep(0.2)
    assert process.poll() is None
    (tmp_path / "end").touch()
    out, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    # The end is asked for after the fifth, and comes a moment later: those that run in it are in the report, too.
    assert 5 <= steps_in(tmp_path / "trace.parquet") < int(out) - 6
    assert re.search(r"^A step took .* recorded: decode 4: .* ms, else .* ms \(5 and 6 steps\)\.$", said, re.M)
    window = capture_of(tmp_path / "trace.parquet")["window"]
    assert window == {"delay_s": None, "steps": 5, "warmup": 6, "ended_by": ["steps"]}


def test_windows_by_hand_one_file_each(tmp_path: Path) -> None:
    """Of a program without torch, and with the profiler chosen by an option that only nsys has."""
    write(tmp_path / "marked.py", MARKED)
    process = start(
        tmp_path, "--paused", "--trace", "nvtx", "--", sys.executable, "marked.py", "60", "0",
        PYTHONPATH=nvtx_folder(),
    )  # fmt: skip
    for _ in range(2):
        code, said = control(tmp_path, "start")
        assert (code, said) == (0, "Recording.")
        code, said = control(tmp_path, "status")
        assert re.match(r"and 1 Python process without torch\nWindow \d has been recording for ", said), said
        code, said = control(tmp_path, "stop")
        assert code == 0, said
    (tmp_path / "end").touch()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    first, second = tmp_path / "trace.parquet", tmp_path / "trace-2.parquet"
    assert min(steps_in(first), steps_in(second)) > 5
    assert rows(first, "SELECT DISTINCT kind FROM read_parquet(?) WHERE kind <> 'overhead'") == [("annotation",)]
    assert f"tracekit-{process.pid}-" not in sessions()


def test_windows_of_steps_again_and_again(tmp_path: Path) -> None:
    """The process that has ended a window by its steps takes part in the next."""
    write(tmp_path / "serve.py", STEPPED)
    process = start(
        tmp_path, *NSYS, "--paused", "--trace", "nvtx", "--steps", "3", "--warmup", "2", "--", sys.executable,
        "serve.py", "60", PYTHONPATH=nvtx_folder(),
    )  # fmt: skip
    for name in ("trace.parquet", "trace-2.parquet"):
        assert control(tmp_path, "start")[0] == 0
        wait_for((tmp_path / name).exists)
        assert capture_of(tmp_path / name)["window"]["ended_by"] == ["steps"]
        assert steps_in(tmp_path / name) >= 3
    (tmp_path / "end").touch()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said


def test_forked_processes_are_named_as_missing(tmp_path: Path) -> None:
    """One that is spawned is in the report."""
    write(
        tmp_path / "forks.py",
        """
        import os, subprocess, sys, time
        import nvtx, torch
        if os.fork() == 0:
            with nvtx.annotate("forked"):
                torch.ones(2) + 1
            os._exit(0)
        with nvtx.annotate("parent"):
            os.wait()
        subprocess.run([sys.executable, "-c", "import nvtx; nvtx.push_range('spawned'); nvtx.pop_range()"])
        """,
    )
    command = ["--trace", "nvtx", "--", sys.executable, "forks.py"]
    done = collect(tmp_path, *NSYS, *command, PYTHONPATH=nvtx_folder())
    assert done.returncode == 5, done.stderr
    assert names(tmp_path / "trace.parquet") == ["parent", "spawned"]
    assert re.search(
        r"tracekit: forks\.py \(\d+\) forked from a process that runs torch, and nsys does not see forked processes: "
        r"have them spawned .*\. trace\.parquet holds what there is\n",
        done.stderr,
    )
    (stored,) = capture_of(tmp_path / "trace.parquet")["partial"]
    assert re.fullmatch(r"process \d+ forked from a process .*", stored)


def test_window_that_no_step_opens_fails(tmp_path: Path) -> None:
    """nsys would end with 0 and write nothing."""
    write(tmp_path / "idle.py", "import torch\ntorch.ones(2)\n")
    done = collect(tmp_path, *NSYS, "--trace", "nvtx", "--steps", "3", "--", sys.executable, "idle.py")
    assert done.returncode == 5
    assert done.stderr.startswith("tracekit: no marked step ran in the window, and --steps and --warmup count those.")
    assert not (tmp_path / "trace.parquet").exists()


def test_nvtx_that_this_nsys_does_not_understand(tmp_path: Path) -> None:
    nvtx = pytest.importorskip("nvtx", reason="the package nvtx, 0.2.12 or newer, is wanted")
    if type(nvtx.get_domain(None)).__name__ != "DummyDomain":
        pytest.skip("the package nvtx is older than 0.2.12")
    write(tmp_path / "serve.py", STEPPED)
    done = collect(tmp_path, *NSYS, "--trace", "nvtx", "--steps", "3", "--", sys.executable, "serve.py", "1")
    if done.returncode == 0:
        pytest.skip("this nsys understands the package nvtx that is installed")
    assert re.search(
        r"serve\.py \(\d+\): steps are marked by NVTX ranges .* the package nvtx 0\.\S+ takes ", done.stderr
    )
    assert "no step in the report: 3 were counted in the program" in done.stderr
    assert (done.returncode, [path.name for path in tmp_path.iterdir()]) == (5, ["serve.py"])


def test_profiler_of_the_program_that_wants_cupti_too(tmp_path: Path) -> None:
    write(
        tmp_path / "both.py",
        """
        import torch
        kinds, backend = torch.profiler.ProfilerActivity, torch.autograd.profiler
        config = torch._C._profiler.ProfilerConfig(
            torch._C._profiler.ProfilerState.KINETO, False, False, False, False, False,
            torch._C._profiler._ExperimentalConfig(),
        )
        try:  # as torch.profiler does where there is a GPU
            backend._prepare_profiler(config, {kinds.CPU, kinds.CUDA})
        except RuntimeError:
            pass
        """,
    )
    done = collect(tmp_path, *NSYS, "--trace", "nvtx", "--paused", "--", sys.executable, "both.py")
    assert "the program starts a torch.profiler that records CUDA while Nsight Systems does" in done.stderr
    assert done.returncode == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*NSYS, "--shapes"], "--shapes cannot go with --profiler nsys, but with --profiler torch"),
        (["--trace", "nvtx", "--stacks"], "--stacks cannot go with --trace, which has Nsight Systems record, but with"),
        (
            ["--profiler", "torch", "--cuda-graph-trace", "node"],
            "--cuda-graph-trace cannot go with --profiler torch, but",
        ),
        ([*NSYS, "--trace", "nvtx,nonsense"], "does not trace 'nonsense'; it traces "),
        ([*NSYS, "--trace", "nvtx", "--cuda-graph-trace", "node"], "add cuda to --trace"),
        ([*NSYS, "--nsys-option=--output=x"], "tracekit sets --output itself; use tracekit's own --keep-raw"),
        ([*NSYS, "--nsys-option=--session-new=x"], "tracekit sets --session-new itself\n"),
        ([*NSYS, "--nsys-option=-b"], "write it in its long form"),
        ([*NSYS, "--nsys-option=--nonsense=1"], "knows no --nonsense; see nsys profile --help"),
        ([*NSYS, "-o", "there.parquet"], "there.parquet exists"),
        ([*NSYS, "-o", "x.nsys-rep"], "x.nsys-rep has the name of a raw trace; write a .parquet"),
    ],
)
def test_wrong_requests_run_nothing(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "there.parquet").touch()
    done = collect(tmp_path, *arguments, "--", "touch", "ran")
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there.parquet"]


def test_command_that_there_is_none(tmp_path: Path) -> None:
    done = collect(tmp_path, *NSYS, "--", "no-such-command")
    assert (done.returncode, done.stderr) == (2, "tracekit: no-such-command: no such command\n")


def test_second_owner_of_cupti_is_refused(tmp_path: Path) -> None:
    for options in (NSYS, ("--profiler", "torch"), ()):
        done = collect(tmp_path, *options, "--", "touch", "ran", NSYS_PROFILING_SESSION_ID="7")
        assert done.returncode == 2
        assert "inside another profiler of the GPU (NSYS_PROFILING_SESSION_ID is set)" in done.stderr
        done = collect(tmp_path, *options, "--", "nsys", "profile", "touch", "ran")
        assert done.returncode == 2
        assert "the command is nsys, another profiler of the GPU" in done.stderr
    assert not list(tmp_path.iterdir())
