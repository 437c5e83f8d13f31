"""A real vLLM that `tracekit collect` has started, for the tests that record one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.collecting import COLLECT, RUNTIME, control
from tests.marked_steps import Step
from tests.vllm_server import ENVIRONMENT, Vllm, free_port, serve_command, vllm_home, wait_until_up

END_S = 120
DECODE: Step = ("decode", None, None, 1, 1)


@dataclass(frozen=True, slots=True)
class Launched:
    """A server that `collect` started, and the collector."""

    folder: Path
    server: Vllm
    collector: subprocess.Popen[bytes]

    def window(self, work: Callable[[], object]) -> Path:
        """Record while the work is done; the trace of it."""
        code, said = control(self.folder, "start", "--session", str(self.collector.pid))
        assert (code, said[:9]) == (0, "Recording")
        work()
        code, said = control(self.folder, "stop", "--session", str(self.collector.pid))
        assert code == 0, said
        return self.written(said)

    def written(self, said: str) -> Path:
        found = re.search(r"Wrote (\S+)", said)
        assert found is not None, said
        return self.folder / found[1]


@contextmanager
def launched(folder: Path, *arguments: str, **variables: str) -> Iterator[Launched]:
    """A server under `collect --paused`, up, to the end of both."""
    vllm_home()
    port, log = free_port(), folder / "log"
    with log.open("wb") as out:
        collector = subprocess.Popen(
            [*COLLECT, "--paused", *arguments, "--", *serve_command(folder, port)],
            cwd=folder,
            env={**os.environ, **ENVIRONMENT, "XDG_RUNTIME_DIR": str(RUNTIME), **variables},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until_up(port, collector, log)
            yield Launched(folder, Vllm(port, str(vllm_home() / "tiny-llama")), collector)
        finally:
            collector.send_signal(signal.SIGTERM)
            try:
                collector.wait(END_S)
            except subprocess.TimeoutExpired:
                for process in [*psutil.Process(collector.pid).children(recursive=True), collector]:
                    process.kill()
                collector.wait()
                raise


def prefill(tokens: int) -> Step:
    return "prefill", 1, tokens, None, None
