"""What runs inside recorded processes keeps its hands off what is the program's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.collecting import environment
from tracekit.collectors._in_process.link import Link

pytest.importorskip("torch", reason="the package is loaded when torch is")


def test_descriptor_that_the_program_has_closed_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As daemons close what they inherit: the number may be that of a connection of the program's by now."""
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        listener.listen()
        link = Link("")
        assert link.connect()
        assert link.socket is not None
        number = link.socket.fileno()
        link.tell("hello")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            os.dup2(ours.fileno(), number)  # closes it, and takes the number
            theirs.sendall(b"for the program")
            link.tell("stopped")
            with pytest.raises(EOFError):
                link.receive(0)
            link.close()
            assert os.read(number, 100) == b"for the program"
            theirs.setblocking(False)
            with pytest.raises(BlockingIOError):
                theirs.recv(100)
            os.close(number)


START = """
import sys, torch
from tracekit.collectors._in_process.torch_facts import prepare
before = set(sys.modules)
profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
prepare(torch, profiler)
profiler.start_trace()
torch.ones(2)
profiler.stop_trace()
profiler.export_chrome_trace(sys.argv[1])
print(sorted(name for name in set(sys.modules) - before if name.startswith("torch")))
"""


def test_start_of_the_profiler_imports_nothing(tmp_path: Path) -> None:
    """torch's own imports torch._inductor: 800 modules, and variables read that the program sets later."""
    trace = tmp_path / "trace.json"
    done = subprocess.run(
        [sys.executable, "-c", START, str(trace)], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n", done.stderr
    assert '"aten::ones"' in trace.read_text()
