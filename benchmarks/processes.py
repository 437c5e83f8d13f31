"""Run one command in a fresh process and see what it takes: seconds, and memory of the process and its children."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

# Looking for children reads all of /proc: more often than this, it takes from a program that uses all cores what it
# does not take from one that uses one. The peak of the process itself is the kernel's, and exact.
_SAMPLE_SECONDS = 0.25
_KERNEL_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds from before the start to after the end, and of all cores; largest resident memory; what was printed."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    output: str


def python(*arguments: str) -> Usage:
    """Run this Python with these arguments. Raises RuntimeError, with what it said, if it fails."""
    return run([sys.executable, *arguments])


def run(command: Sequence[str]) -> Usage:
    """Run a command; its standard output is returned."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as talk:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=talk)
        over = threading.Event()
        peak = [0]
        sampler = threading.Thread(target=_sample, args=(process.pid, over, peak))
        sampler.start()
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        over.set()
        sampler.join()
        code = process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        talk.seek(0)
        if code:
            raise RuntimeError(
                f"{' '.join(command)} failed with {code}: {talk.read().decode(errors='replace')[-2000:]}"
            )
        return Usage(
            seconds, used.ru_utime + used.ru_stime, max(peak[0], used.ru_maxrss * _KERNEL_UNIT), output.read().decode()
        )


def _sample(pid: int, over: threading.Event, peak: list[int]) -> None:
    """Keep the largest sum of the resident memory of a process and its descendants in `peak[0]`."""
    try:
        process = psutil.Process(pid)
    except psutil.Error:
        return
    while not over.wait(_SAMPLE_SECONDS):
        try:
            children = process.children(recursive=True)
        except psutil.Error:
            return
        peak[0] = max(peak[0], sum(map(_resident, [process, *children])))


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
