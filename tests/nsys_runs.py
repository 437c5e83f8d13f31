"""What the tests with a real nsys share: where it is, the package nvtx that it understands, programs to record."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tracekit.collectors._nsys_tool import find_nsys

needs_nsys = pytest.mark.usefixtures("nsys_records")
NSYS = ("--profiler", "nsys")

# Marks its steps by the package nvtx, and says a line after some of them: what is recorded for a few milliseconds alone
# nsys may lose. Ends after `seconds`, or when there is a file `end`.
MARKED = """
    import os, signal, sys, time
    import nvtx
    seconds, status = float(sys.argv[1]), int(sys.argv[2])
    until, steps = time.monotonic() + seconds, 0
    while time.monotonic() < until and not os.path.exists("end"):
        with nvtx.annotate("tracekit.step[decode decode_requests=4 decode_tokens=4]"):
            time.sleep(0.005)
        steps += 1
        if steps == 50:
            print(os.getpid(), flush=True)
    sys.exit(status)
"""

# As above, in a process that runs torch and knows nothing of NVTX.
STEPPED = """
    import os, sys, time
    import torch
    print(os.getpid(), flush=True)
    until = time.monotonic() + float(sys.argv[1])
    count = 0
    while time.monotonic() < until and not os.path.exists("end"):
        with torch.profiler.record_function("tracekit.step[decode decode_requests=4 decode_tokens=4]"):
            time.sleep(0.02)
        count += 1
    print(count)
"""


def why_it_does_not_record(folder: Path) -> str:
    """Why there is no use in tests with nsys, "" if there is. An nsys that was killed can leave its shared memory in a
    state in which every later one on the machine hangs or fails to launch its agent.
    """
    found = find_nsys()
    if found is None:
        return "no nsys on PATH (Debian: nsight-systems, in non-free)"
    session = f"tracekit-tests-{os.getpid()}"
    options = ["--trace=nvtx", "--sample=none", "--cpuctxsw=none", f"--session-new={session}", "-o", str(folder / "r")]
    for _ in range(3):
        program = subprocess.Popen(
            [found.path, "profile", *options, "sleep", "0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        with suppress(subprocess.TimeoutExpired):
            program.wait(20)
        if any(folder.glob("r.*")):
            return ""
        for pid in [program.pid, *processes_with(session)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        program.wait()
    return f"nsys {found.text} records nothing here: end all that runs of it and remove /dev/shm/NSys-*"


@cache
def nvtx_folder() -> str:
    """A folder with the last nvtx that nsys 2022.4 and 2023.4 understand; skips where there is none to be had."""
    if sys.platform != "linux":
        pytest.skip("nsys records programs on Linux")
    found = subprocess.run(
        [sys.executable, "-c", "import nvtx, importlib.metadata as m; print(m.version('nvtx'), nvtx.__file__)"],
        capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    if found[:1] == ["0.2.11"]:
        return str(Path(found[1]).parent.parent)
    folder = Path(sys.prefix) / "tracekit-tests" / "nvtx-0.2.11"
    if not (folder / "nvtx").is_dir():
        _install(folder)
    return str(folder)


def _install(folder: Path) -> None:
    draft = folder.with_name(f"{folder.name}.{id(folder)}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(draft), "nvtx==0.2.11"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        pytest.skip(f"nvtx 0.2.11 cannot be installed: {done.stderr.strip()[-200:]}")
    if folder.exists():
        shutil.rmtree(draft)
    else:
        draft.rename(folder)


def steps_in(trace: Path) -> int:
    """Distinct steps of the events."""
    return int(rows(trace, "SELECT count(DISTINCT step) FROM read_parquet(?)")[0][0])


def rows(trace: Path, query: str) -> list[Any]:
    return duckdb.execute(query, [str(trace)]).fetchall()


def sessions() -> str:
    """What nsys says of sessions, of whomever."""
    nsys = find_nsys()
    assert nsys is not None
    return subprocess.run([nsys.path, "sessions", "list"], capture_output=True, text=True, check=False).stdout


def nsys(*arguments: str) -> None:
    """Run nsys; again where it fails, as it may while another begins or ends."""
    found = find_nsys()
    assert found is not None
    for _ in range(4):
        done = subprocess.run([found.path, *arguments], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        time.sleep(1)
    raise AssertionError(done.stderr)


def wait_for(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.05)


def processes_with(word: str) -> list[int]:
    """Pids of processes that have a word in their command line."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.encode() in one for one in words):
                found.append(int(path.name))
    return found
