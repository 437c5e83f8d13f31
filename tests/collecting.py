"""What the tests of `tracekit collect` share: how to run a program with and without it, and what its trace holds."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from tracekit.store import read_footer

COLLECT = [sys.executable, "-c", "from tracekit.cli import main; main()", "collect"]
ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 120
# Captures are met in a folder of their own, so that --control finds only those of the test; short, as sockets must be.
RUNTIME = Path(tempfile.mkdtemp(prefix="tk-", dir="/tmp"))
atexit.register(shutil.rmtree, RUNTIME, ignore_errors=True)


def environment(**variables: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "XDG_RUNTIME_DIR": str(RUNTIME),
        **variables,
    }


def write(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text))
    return path


def run(command: Sequence[str], folder: Path, text: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(**variables),
        input=text,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def collect(folder: Path, *arguments: str, text: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    return run([*COLLECT, *arguments], folder, text, **variables)


def control(folder: Path, do: str, *arguments: str) -> tuple[int, str]:
    """Exit code of `--control`, and what it says."""
    done = collect(folder, "--control", do, *arguments)
    return done.returncode, (done.stdout + done.stderr).strip()


def _heed_signals() -> None:
    """A job in the background, and all it starts, ignores SIGINT; the programs recorded here are to end of it."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Collect in a session of its own, and go on when the program has said a line."""
    process = subprocess.Popen(
        [*COLLECT, *arguments],
        cwd=folder,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_heed_signals,  # noqa: PLW1509  no other thread runs
    )
    assert process.stdout is not None
    if not process.stdout.readline():
        raise AssertionError(process.communicate()[1])
    return process


def stop(process: subprocess.Popen[str], number: signal.Signals, *, group: bool = False) -> tuple[int, str]:
    """Signal the collector or its whole group; its exit code, and what came on stderr."""
    (os.killpg if group else os.kill)(process.pid, number)
    try:
        _, said = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()  # and the program with it: a failure, not a hang
        raise
    return process.returncode, said


def ranges(trace: Path) -> list[tuple[int, str]]:
    """Rank and name of the ranges recorded, in order of time."""
    query = "SELECT rank, name FROM read_parquet(?) WHERE kind = 'annotation' ORDER BY ts"
    return [(rank, name) for rank, name in duckdb.execute(query, [str(trace)]).fetchall()]


def names(trace: Path) -> list[str]:
    """Names of the ranges recorded, in order of time."""
    return [name for _, name in ranges(trace)]


def capture_of(trace: Path) -> dict[str, Any]:
    """What the file says of its recording."""
    capture: dict[str, Any] = json.loads(json.dumps(read_footer(trace).capture))
    return capture


def runs(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
