"""Signals sent to `tracekit collect`: the program gets them and ends in its own way, and the trace is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.collecting import COLLECT, DEADLINE_S, environment, names, runs, start, stop, write

pytest.importorskip("torch", reason="collect runs programs that import torch")

LOOP = """
    import os, signal, sys, time
    import torch
    for number in signal.SIGINT, signal.SIGTERM:
        if number.name in sys.argv[1:]:
            before = signal.getsignal(number) if "chained" in sys.argv[1:] else None
            def end(got, frame):
                if callable(before):
                    before(got, frame)
                sys.exit(signal.Signals(got).name + " handled")
            signal.signal(number, end)
    with torch.profiler.record_function("worked"):
        torch.ones(2) + 1
    print(os.getpid(), flush=True)
    while True:
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("number", "arguments", "code", "ending"),
    [
        (signal.SIGINT, [], 130, "the program was ended by SIGINT"),
        (signal.SIGTERM, [], 143, "the program was ended by SIGTERM"),
        (signal.SIGTERM, ["SIGTERM"], 1, "the program exited with status 1"),
        (signal.SIGTERM, ["SIGTERM", "chained"], 1, "the program exited with status 1"),
    ],
    ids=["Ctrl-C", "kill", "handler of its own", "handler that calls the one before"],
)
def test_stopped_by_signal_keeps_the_trace(
    tmp_path: Path, number: signal.Signals, arguments: list[str], code: int, ending: str
) -> None:
    """Ctrl-C goes to the whole group of a session without a terminal, `kill` to the collector alone."""
    write(tmp_path / "loop.py", LOOP)
    ended, said = stop(
        start(tmp_path, "--", sys.executable, "loop.py", *arguments), number, group=number == signal.SIGINT
    )
    assert ended == code, said
    assert said.count("KeyboardInterrupt\n") == (number == signal.SIGINT)
    assert said.count("SIGTERM handled\n") == arguments.count("SIGTERM")
    assert f"Stopped by {number.name}; {ending}.\n" in said
    assert said.count("Wrote trace.parquet (") == 1
    assert "tracekit" not in said.replace("trace.parquet", "")
    assert names(tmp_path / "trace.parquet") == ["worked"]


ON_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def test_terminal_interrupt_reaches_the_program_once(tmp_path: Path) -> None:
    write(tmp_path / "loop.py", LOOP)
    with subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, *COLLECT, "--", sys.executable, "loop.py"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit()
        process.stdin.write(b"\x03")
        process.stdin.flush()
        said = process.stdout.read().decode()
    assert process.returncode == 130, said
    assert said.count("KeyboardInterrupt") == 1
    assert "Stopped by SIGINT; the program was ended by SIGINT." in said


SERVER = """
    import multiprocessing, os, signal, sys, time
    import torch

    def work(ready):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with torch.profiler.record_function("worked"):
            torch.ones(2) + 1
        ready.set()
        time.sleep(1000)

    def end(number, frame):
        worker.kill()
        worker.join()
        sys.exit(0)

    if __name__ == "__main__":
        context = multiprocessing.get_context("fork")
        ready = context.Event()
        worker = context.Process(target=work, args=(ready,))
        worker.start()
        signal.signal(signal.SIGTERM, end)
        ready.wait()
        print("ready", flush=True)
        while True:
            time.sleep(1)
"""


def test_worker_that_its_engine_kills_has_saved_before(tmp_path: Path) -> None:
    """As vLLM ends: by SIGKILL to its workers and their descendants, as soon as it is asked to stop."""
    write(tmp_path / "server.py", SERVER)
    code, said = stop(start(tmp_path, "--", sys.executable, "server.py"), signal.SIGTERM)
    assert code == 0, said
    assert "Stopped by SIGTERM; the program exited with status 0.\n" in said
    assert names(tmp_path / "trace.parquet") == ["worked"]


def test_second_interrupt_gives_up_at_once(tmp_path: Path) -> None:
    """What was saved before, by a process that has ended, is kept; one that does not answer is killed."""
    write(tmp_path / "loop.py", LOOP.replace("time.sleep(0.01)", "os.kill(os.getpid(), signal.SIGSTOP)"))
    write(tmp_path / "before.py", "import torch\ntorch.ones(2) + 1\n")
    write(tmp_path / "all.sh", f"{sys.executable} before.py\nexec {sys.executable} loop.py\n")
    process = start(tmp_path, "--", "/bin/sh", "all.sh")
    (program,) = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    while Path(f"/proc/{program}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)  # until then it would answer
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.6)  # two signals together are one wish
    began = time.monotonic()
    code, said = stop(process, signal.SIGINT)
    assert time.monotonic() - began < 3
    assert code == 130
    assert not runs(program)
    assert said == (
        "Given up; the program was killed.\n"
        "What was saved is in trace.parts: tracekit convert trace.parts -o trace.parquet\n"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"loop.py", "before.py", "all.sh", "trace.parts"}
    assert len(list((tmp_path / "trace.parts").iterdir())) == 1


def test_killed_collector_takes_the_program_with_it(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("needs prctl")
    write(tmp_path / "loop.py", "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(1000)\n")
    with subprocess.Popen(
        [*COLLECT, "--", sys.executable, "loop.py"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        program = int(process.stdout.readline())
        process.kill()
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until and runs(program):
        time.sleep(0.05)
    assert not runs(program)
