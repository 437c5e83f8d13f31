"""Attach mode on a real vLLM: what comes out is what was sent."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tracekit
from tests.vllm_server import Sent, Vllm, served, vllm_home
from tracekit.collectors.attach import Attached, attach
from tracekit.convert import convert
from tracekit.errors import CaptureError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]
BLOCK = 128  # tokens of the CPU's KV cache that are kept together, and found again


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    vllm_home()
    # Relative, which is how people write it: the server's working folder is looked up.
    profiler = {"profiler": "torch", "torch_profiler_dir": "profiles", "torch_profiler_with_stack": False}
    folder = tmp_path_factory.mktemp("vllm")
    with served(folder, "--profiler-config", json.dumps(profiler)) as server:
        yield server


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was sent during a window, what attach returned, and the trace."""

    sent: list[Sent]
    attached: Attached
    trace: Path

    def sums(self) -> dict[str, int]:
        """Over all steps."""
        columns = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")
        query = f"SELECT {', '.join(f'sum({column})::BIGINT AS {column}' for column in columns)} FROM steps"
        with tracekit.open(self.trace) as trace:
            return dict(trace.sql(query).to_pylist()[0])

    def phases(self) -> dict[str, int]:
        """Number of steps by phase. vLLM runs one on no request when a request has ended; that is left out."""
        counts: Counter[str] = Counter()
        with tracekit.open(self.trace) as trace:
            for row in trace.analyze("steps").table.to_pylist():
                counts[row["phase"]] += row["count"] if row["bucket"] != "0" else 0
        return dict(+counts)


def record(
    vllm: Vllm, folder: Path, work: Callable[[], list[Sent]], *, duration: float | None = 3, steps: int | None = None
) -> Recorded:
    """Attach, have the work done within the window, convert."""
    sent: list[Sent] = []
    workers: list[threading.Thread] = []

    def say(text: str) -> None:
        if "send it requests" in text:
            workers.append(threading.Thread(target=lambda: sent.extend(work())))
            workers[0].start()

    attached = attach(
        str(vllm.port),
        engine="auto",
        duration=duration,
        steps=steps,
        profile_dir=None,
        timeout=60,
        raw=folder,
        say=say,
    )
    for worker in workers:
        worker.join()
    trace = folder / "trace.parquet"
    convert(attached.files, trace)
    return Recorded(sent, attached, trace)


def test_one_request_after_the_other(vllm: Vllm, tmp_path: Path) -> None:
    requests = [("A" * 20, 5), ("B" * 33, 9), ("C" * 100, 3)]
    recorded = record(vllm, tmp_path, lambda: vllm.ask_all(requests, at_once=False))
    assert recorded.sent == [Sent(20, 5), Sent(33, 9), Sent(100, 3)]
    # The first token of an answer comes out of the prefill.
    assert recorded.sums() == {
        "prefill_requests": 3,
        "prefill_tokens": 153,
        "decode_requests": 14,
        "decode_tokens": 14,
    }
    assert recorded.phases() == {"prefill": 3, "decode": 14}
    assert (recorded.attached.partial, len(recorded.attached.files)) == ((), 1)
    assert recorded.attached.capture["engine_version"] == "0.32.0"
    assert recorded.attached.capture["processes"] == [{"rank": 0, "steps": 17}]


def test_requests_at_once(vllm: Vllm, tmp_path: Path) -> None:
    requests = [(chr(ord("F") + number) * (10 + 7 * number), 4 + number) for number in range(6)]
    recorded = record(vllm, tmp_path, lambda: vllm.ask_all(requests, at_once=True))
    assert sum(sent.prompt for sent in recorded.sent) == 165
    assert recorded.sums() == {
        "prefill_requests": 6,
        "prefill_tokens": 165,
        "decode_requests": 33,
        "decode_tokens": 33,
    }


def test_cached_tokens_of_a_prompt_are_not_computed(vllm: Vllm, tmp_path: Path) -> None:
    requests = [("Z" * 300, 3)] * 3
    recorded = record(vllm, tmp_path, lambda: vllm.ask_all(requests, at_once=False))
    assert recorded.sums() == {
        "prefill_requests": 3,
        "prefill_tokens": 3 * 300 - 2 * (2 * BLOCK),
        "decode_requests": 6,
        "decode_tokens": 6,
    }


def test_number_of_steps(vllm: Vllm, tmp_path: Path) -> None:
    recorded = record(vllm, tmp_path, lambda: [vllm.ask("S" * 40, 12)], duration=None, steps=5)
    assert recorded.phases() == {"prefill": 1, "decode": 4}
    assert recorded.sums()["prefill_tokens"] == 40
    assert recorded.attached.partial == ()


def test_nobody_sends_a_request(vllm: Vllm, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"empty window: no step ran in the 1\.0 s that"):
        record(vllm, tmp_path, list, duration=1)
    # The server is not left recording.
    assert record(vllm, tmp_path, lambda: [vllm.ask("T" * 10, 2)], duration=1).phases() == {"prefill": 1, "decode": 1}


def test_server_started_without_profiling(tmp_path: Path) -> None:
    with served(tmp_path) as server, pytest.raises(CaptureError, match="was not started with profiling enabled"):
        record(server, tmp_path, list)
