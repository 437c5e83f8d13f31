"""One step in a notebook: what its mark says, its time on devices, its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.event_rows import op, write_trace
from tests.test_rows import DECODE, PREFILL, row
from tracekit.errors import UsageError
from tracekit.step_view import Step, StepTime
from tracekit.trace import Trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    rows = row(0, PREFILL) + row(1, DECODE) + row(2, DECODE) + row(3, PREFILL, 1, 1) + row(4, DECODE, 1, 1)
    path = write_trace(tmp_path_factory.mktemp("steps") / "trace.parquet", sorted(rows, key=lambda one: one["id"]))
    with tracekit.open(path) as opened:
        yield opened


def test_what_a_step_is(trace: Trace) -> None:
    step = trace.step(1)
    assert (step.number, step.rank, step.phase, step.ts, step.dur, step.source) == (1, 0, "decode", 1000, 100, "step")
    assert (step.prefill_requests, step.decode_requests, step.batch) == (None, 4, "4 requests, 4 tokens in decode")
    assert step.times == (StepTime(0, "steady", "3-4", 1020, 1070, 50, 50, 0, 950, 1000),)
    assert repr(step) == (
        "<Step 1 of rank 0: decode, 4 requests, 4 tokens in decode; device 0: 0.050 us, 0 us of it idle>"
    )
    assert step.kernels.arrow("id")["id"].to_pylist() == [14]
    assert step.trace.kernels.arrow("id")["id"].to_pylist() == [14]
    assert step.trace is step.trace
    assert str(step.trace.scope) == "step 1, rank 0"


def test_steps_by_rank_and_from_the_end(trace: Trace) -> None:
    def place(step: Step) -> tuple[int, int, int]:
        return step.rank, step.number, step.ts

    assert place(trace.step(2)) == (0, 2, 2000)
    assert place(trace.step(-1)) == (0, 2, 2000)
    assert place(trace.step(-3)) == (0, 0, 0)
    assert place(trace.step(1, rank=1)) == (1, 1, 4000)
    with trace.only(rank=1) as part:
        assert place(part.step(0)) == (1, 0, 3000)


@pytest.mark.parametrize(
    ("number", "rank", "message"),
    [
        (3, None, r"no step 3; there are: rank 0: 0 to 2; rank 1: 0 to 1"),
        (-4, None, r"no step -4; there are: rank 0: 0 to 2"),
        (2, 1, r"no step 2 of rank 1; there are: "),
        (0, 7, r"no step is of rank 7; ranks with steps: 0, 1"),
        ("decode", None, r"a step is a number, not 'decode'; those of a phase: trace\.only\(phase=\.\.\.\)"),
    ],
)
def test_steps_that_are_not_there(trace: Trace, number: Any, rank: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trace.step(number, rank)


def test_steps_outside_of_a_part_are_not_there(trace: Trace) -> None:
    with trace.only(phase="decode", rank=0) as part, pytest.raises(UsageError, match="there are: rank 0: 1 to 2"):
        part.step(0)


def test_without_steps_or_devices(tmp_path: Path) -> None:
    with (
        tracekit.open(write_trace(tmp_path / "none.parquet", [op(0, 5)])) as none,
        pytest.raises(UsageError, match=r"no serving steps here; .*step_range"),
    ):
        none.step(0)
    with tracekit.open(write_trace(tmp_path / "host.parquet", row(0, DECODE)[:2])) as host:
        assert host.step(0).times == ()
        assert repr(host.step(0)).endswith("decode, 4 requests, 4 tokens in decode, 0.100 us on the host>")
        assert "Step 0" in host.step(0)._repr_html_()


def test_a_picture(trace: Trace) -> None:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    own = Figure().add_subplot()
    assert trace.step(1).timeline(own) is own
    texts = [one.get_text() for one in own.figure.findobj(Text) if isinstance(one, Text)]
    assert any(text.startswith("Timeline of step 1") for text in texts)
