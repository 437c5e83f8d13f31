"""A real vLLM under Nsight Systems: window after window while it serves, its spawned workers in them, to its end."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from tests.collecting import capture_of, control, runs
from tests.launched_vllm import DECODE, END_S, launched, prefill
from tests.marked_steps import steps_of
from tests.nsys_runs import NSYS, needs_nsys, nvtx_folder, processes_with, rows
from tests.vllm_server import Sent

pytestmark = [pytest.mark.slow, needs_nsys, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def nvtx_alone(folder: Path) -> str:
    """A folder with nothing but the package nvtx, for another Python's path."""
    (folder / "nvtx").symlink_to(Path(nvtx_folder()) / "nvtx")
    return str(folder)


def test_windows_while_it_serves(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = nvtx_alone(tmp_path_factory.mktemp("nvtx"))
    with launched(tmp_path, *NSYS, PYTHONPATH=path) as vllm:
        session = str(vllm.collector.pid)
        for prompt, tokens in (("A", 20), ("B", 33)):
            trace = vllm.window(partial(vllm.server.ask, prompt * tokens, 6))
            assert steps_of(trace) == [prefill(tokens), *[DECODE] * 5]
            seen = capture_of(trace)["processes"]
            assert sorted(process["steps"] for process in seen) == [0, 0, 6]  # API server, engine, worker
            pids = [pid for (pid,) in rows(trace, "SELECT DISTINCT pid FROM read_parquet(?) WHERE pid IS NOT NULL")]
            assert sorted(pids) == sorted(process["pid"] for process in seen)
            assert vllm.server.ask("between", 3) == Sent(7, 3)
        assert control(tmp_path, "start", "--session", session)[0] == 0
        vllm.server.ask("C" * 40, 4)
        vllm.collector.send_signal(signal.SIGTERM)
        assert vllm.collector.wait(END_S) == 0
    assert steps_of(tmp_path / "trace-3.parquet") == [prefill(40), *[DECODE] * 3]
    assert not any(map(runs, pids))
    assert not processes_with(f"--session-name=tracekit-{session}-")
