"""`tracekit collect --control`: windows of a running capture, begun and ended from another terminal."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.collecting import RUNTIME, capture_of, control, start, stop, write
from tracekit.collectors import _control, _session_folder
from tracekit.collectors._controls import Controls
from tracekit.collectors._session import Session
from tracekit.collectors._windows import Process, Window, not_imported
from tracekit.errors import CaptureError, UsageError

pytest.importorskip("torch", reason="collect runs programs that import torch")

LOOP = """
    import time
    import torch
    print("ready", flush=True)
    while True:
        torch.ones(2) + 1
        time.sleep(0.005)
"""


def test_each_start_is_a_window_and_a_file_of_its_own(tmp_path: Path) -> None:
    """A file of the second window's name is there already: the third is taken, and said."""
    write(tmp_path / "loop.py", LOOP)
    (tmp_path / "trace-2.parquet").write_text("mine")
    with start(tmp_path, "--paused", "--", sys.executable, "loop.py") as process:
        code, said = control(tmp_path, "stop")
        assert (code, "nothing is being recorded" in said) == (5, True)
        code, said = control(tmp_path, "start")
        assert (code, re.sub(r"\d+", "N", said)) == (0, "Recording loop.py (N).")
        code, said = control(tmp_path, "start")
        assert (code, "end it first: tracekit collect --control stop" in said) == (5, True)
        code, said = control(tmp_path, "status")
        assert code == 0
        assert re.fullmatch(
            r"loop\.py \(\d+\): torch [\d.]+\S*, recording\nWindow 1 has been recording for [\d.]+ s\.", said
        )
        code, said = control(tmp_path, "stop")
        assert code == 0
        assert re.fullmatch(r"Wrote trace\.parquet \([\d.]+ kB\)", said)
        assert capture_of(tmp_path / "trace.parquet")["window"]["ended_by"] == ["stop"]
        assert control(tmp_path, "start", "--session", str(process.pid))[0] == 0
        code, said = stop(process, signal.SIGTERM)
    assert code == 143
    assert "Window 2: recorded 1 of 1 process" in said
    assert "Wrote trace-3.parquet" in said
    assert (tmp_path / "trace-2.parquet").read_text() == "mine"
    assert not list((RUNTIME / "tracekit").iterdir())


def test_two_captures_are_told_apart(tmp_path: Path) -> None:
    """Neither process imports torch: a start waits for it, and says so. Their folders are the user's alone."""
    write(tmp_path / "wait.py", "import time\nprint('ready', flush=True)\ntime.sleep(100)\n")
    arguments = ["--paused", "--", sys.executable, "wait.py"]
    with start(tmp_path, *arguments) as one, start(tmp_path, *arguments) as other:
        code, said = control(tmp_path, "start")
        assert code == 2
        first, *listed = said.splitlines()
        assert first == "tracekit: 2 captures run; name one by --session PID:"
        since = r"since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d"
        for pid in (one.pid, other.pid):
            assert any(re.fullmatch(rf"  {pid}  {since}  {tmp_path}/trace\.parquet", line) for line in listed)
        code, said = control(tmp_path, "start", "--session", str(other.pid))
        assert (code, said) == (0, "No process has imported torch yet; recording begins when one does.")
        code, said = control(tmp_path, "status", "--session", str(one.pid))
        assert (code, said) == (
            0,
            "and 1 Python process without torch\n"
            "No window is open; 0 before now. Begin one: tracekit collect --control start",
        )
        folder = RUNTIME / "tracekit" / str(one.pid)
        assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder, folder / "socket")] == [
            0o700,
            0o700,
            0o600,
        ]
        code, said = control(tmp_path, "stop", "--session", str(other.pid))
        assert code == 5
        assert said == "tracekit: one Python process ran, and it never imported torch: there was nothing to record"
        for process in (one, other):
            os.kill(process.pid, signal.SIGKILL)  # leaves its folder behind


def test_state_of_a_window_whose_processes_have_ended() -> None:
    window = Window(1, 0.0, 0, None, first=1.0)
    attempt = window.join(Process(0, 1, "serve.py", "3.11.7", "2.13.0", ""))
    controls = Controls(cast("Session", SimpleNamespace()))
    attempt.state = "recording"
    assert controls.state(window).startswith("Window 1 has been recording for ")
    attempt.state = "saved"
    assert controls.state(window) == "Window 1 is open, and what has recorded in it has ended."


def test_modules_that_no_process_imported() -> None:
    """A script never is; one that had no such function was."""
    serve, tool = (Process(0, 1, name, "3.11.7", "2.13.0", "") for name in ("serve.py", "pkg.tool Worker"))
    targets = ["serve:A.f", "pkg.tool:f", "__main__:A.f", "model:f", "model:g", "json:f", "json.tool:f", "modl:f"]
    complaints = ["serve.py (1): --step-module: json:f: json has no f"]
    assert not_imported(targets, {"model"}, [serve, tool], complaints) == ["json.tool:f", "modl:f"]
    assert not_imported(targets, set(), [], []) == []


def test_no_capture_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of one that was killed does not count, and goes when the next one begins."""
    monkeypatch.setattr(_session_folder, "_runtime_folders", lambda: [tmp_path])
    left = tmp_path / "1"
    left.mkdir()
    os.utime(left, (0, 0))
    for session in (None, 1):
        with pytest.raises(CaptureError, match=r"no capture runs; begin one .*: tracekit collect --paused -- COMMAND"):
            _control.control("status", session=session, timeout=1, say=print)
    folder = _session_folder.make_session_folder()
    assert [path.name for path in tmp_path.iterdir()] == [str(os.getpid())]
    folder.remove()
    assert not list(tmp_path.iterdir())


def test_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("mine")
    monkeypatch.setattr(_session_folder, "_runtime_folders", lambda: [tmp_path / "link"])
    with pytest.raises(UsageError, match="link is not a folder of yours; remove it, or set XDG_RUNTIME_DIR"):
        _session_folder.make_session_folder()
