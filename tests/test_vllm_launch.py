"""Launch mode on a real vLLM, recorded under requests: its steps are what was sent, prefill and decode to the token."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tracekit
from tests.collecting import capture_of, control
from tests.launched_vllm import DECODE, END_S, Launched, launched, prefill
from tests.marked_steps import steps_of
from tests.vllm_server import Sent

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]
BLOCK = 128  # tokens of the CPU's KV cache that are kept together, and found again


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with launched(tmp_path_factory.mktemp("vllm")) as server:
        yield server


def sums(trace: Path) -> tuple[int, ...]:
    """Requests and tokens of prefill, and of decode, over all steps."""
    return tuple(sum(int(step[at] or 0) for step in steps_of(trace)) for at in range(1, 5))


def test_number_of_steps_after_some_that_pass(tmp_path: Path) -> None:
    """A window that ends by itself, on the boundary of a step; and the server, by the signal that ends it.

    The first test: with the server of the others up, two would need twice the memory.
    """
    with launched(tmp_path, "--steps", "4", "--warmup", "2") as vllm:
        session = str(vllm.collector.pid)
        assert control(tmp_path, "start", "--session", session)[0] == 0
        assert vllm.server.ask("S" * 40, 12) == Sent(40, 12)
        trace = tmp_path / "trace.parquet"
        deadline = time.monotonic() + END_S
        while not trace.exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert steps_of(trace) == [DECODE] * 4
        assert capture_of(trace)["window"]["ended_by"] == ["steps"]
    assert vllm.collector.returncode == 0


def test_steps_are_what_was_sent(vllm: Launched) -> None:
    requests = [("A" * 20, 5), ("B" * 33, 9), ("C" * 100, 3)]
    sent: list[Sent] = []
    trace = vllm.window(lambda: sent.extend(vllm.server.ask_all(requests, at_once=False)))
    assert sent == [Sent(20, 5), Sent(33, 9), Sent(100, 3)]
    # The first token of an answer comes out of the prefill.
    expected = [prefill(20), *[DECODE] * 4, prefill(33), *[DECODE] * 8, prefill(100), *[DECODE] * 2]
    assert steps_of(trace) == expected
    assert [process["steps"] for process in capture_of(trace)["processes"] if process["steps"]] == [17]
    with tracekit.open(trace) as opened:
        assert {row["phase"] for row in opened.analyze("steps").table.to_pylist()} == {"prefill", "decode"}
        # Sampling is in the step, as well as the forward pass.
        sampled = opened.sql("SELECT step FROM ops WHERE name = 'aten::argmax' ORDER BY ts")["step"].to_pylist()
    assert sampled == list(range(17))


def test_requests_at_once(vllm: Launched) -> None:
    requests = [(chr(ord("F") + number) * (10 + 7 * number), 4 + number) for number in range(6)]
    trace = vllm.window(lambda: vllm.server.ask_all(requests, at_once=True))
    assert sums(trace) == (6, 165, 33, 33)


def test_cached_tokens_of_a_prompt_are_not_computed(vllm: Launched) -> None:
    trace = vllm.window(lambda: vllm.server.ask_all([("Z" * 300, 3)] * 3, at_once=False))
    assert steps_of(trace) == [
        step for tokens in (300, 300 - 2 * BLOCK, 300 - 2 * BLOCK) for step in (prefill(tokens), DECODE, DECODE)
    ]
