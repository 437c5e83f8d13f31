"""A server for the tests of `collect --attach` that answers as told, as engines that refuse, hang or die do."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# A function of the request's body: a status, and a body as an object or text.
Answer = Callable[[Any], tuple[int, object]]


def described(properties: dict[str, object] | None) -> dict[str, object]:
    """An /openapi.json with /start_profile; its body in the way FastAPI describes an optional one."""
    reference = {"anyOf": [{"$ref": "#/components/schemas/Start"}, {"type": "null"}]}
    body = {} if properties is None else {"requestBody": {"content": {"application/json": {"schema": reference}}}}
    return {
        "paths": {"/start_profile": {"post": body}, "/stop_profile": {"post": {}}},
        "components": {"schemas": {"Start": {"properties": properties or {}}}},
    }


@dataclass
class Bad:
    """A server, answering as told and 404 otherwise; `asked` are the POSTs it got, with their bodies."""

    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    port: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def vllm(self, properties: dict[str, object] | None = None, stop: Answer = lambda _: (200, "")) -> Bad:
        """Speak as vLLM does."""
        self.answers |= {
            "/version": lambda _: (200, {"version": "0.32.0"}),
            "/openapi.json": lambda _: (200, described(properties)),
            "/start_profile": lambda _: (200, ""),
            "/stop_profile": stop,
        }
        return self


class _Server(ThreadingHTTPServer):
    """Serves a Bad on a free port."""

    def __init__(self, bad: Bad) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bad = bad
        bad.port = self.server_address[1]

    def handle_error(self, *_: object) -> None:  # a client that gave up
        pass


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.answer(None)

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(text) if text else None
        self.server.bad.asked.append((self.path, body))
        self.answer(body)

    def answer(self, body: object) -> None:
        status, said = self.server.bad.answers.get(self.path, lambda _: (404, ""))(body)
        text = said.encode() if isinstance(said, str) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve() -> Iterator[Bad]:
    """A server that answers nothing yet; `ended` is set when it is no longer needed."""
    bad = Bad()
    with _Server(bad) as http:
        threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
        yield bad
        bad.ended.set()
        http.shutdown()


def trace(rank: int = 0, world_size: int = 1, *, steps: int = 1) -> bytes:
    """What torch.profiler writes of a worker that ran some steps."""
    mark = {"ph": "X", "cat": "user_annotation", "name": "execute_context_0(0)_generation_1(1)", "ts": 1, "dur": 5}
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 2, "dur": 1}
    document = {
        "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": world_size},
        "traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "python"}}]
        + [{**event, "pid": 1, "tid": 1} for _ in range(steps) for event in (mark, op)],
    }
    return gzip.compress(json.dumps(document, indent=1).encode())


def writes(folder: Path, **files: bytes) -> Answer:
    """Stopping leaves these files."""

    def stop(_: object) -> tuple[int, object]:
        for name, content in files.items():
            (folder / f"{name}.1.pt.trace.json.gz").write_bytes(content)
        return 200, ""

    return stop


PROGRAM = """
from tests.bad_server import serve
with serve() as bad:
    print(bad.vllm().port, flush=True)
    bad.ended.wait()
"""


@contextmanager
def serve_apart() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server that speaks as vLLM does, in a process of its own that can be killed; and its port."""
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()
