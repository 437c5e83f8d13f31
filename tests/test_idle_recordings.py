"""What idle_gaps says of public recordings of serving engines, of which people know why they idle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tracekit
from tests.real_traces import trace as recording
from tracekit.analysis import Result
from tracekit.trace import Trace


@contextmanager
def idle(name: str) -> Iterator[tuple[Trace, Result]]:
    with tracekit.open(recording(name)) as opened:
        yield opened, opened.analyze("idle_gaps")


def share(result: Result, cause: str) -> float:
    (row,) = result.summary
    part: float = 100 * row["by_cause"].get(cause, 0) / row["idle_ns"]
    return round(part, 1)


def test_vllm_eager_is_launch_bound_in_its_own_functions() -> None:
    with idle("tracelens__b200_eager") as (opened, result):
        assert (share(result, "launch_bound"), share(result, "launch_latency")) == (84.2, 10.7)
        assert result.table["place"].unique().to_pylist() == ["inside"]
        finding = result.findings[0]
        assert finding.title == (
            "launch_bound: the host launches too slowly, 61.3 ms in the only prefill step, 72.6% of its time"
        )
        assert "aten::addmm (10.6 ms, the longest called by vllm/model_executor/layers/utils.py" in finding.detail
        assert "no --enforce-eager" in finding.remedy
        blamed = opened.rows(id for id in result.table["blame"].to_pylist() if id is not None).values()
        assert sum(row["name"].startswith("vllm/") for row in blamed) > 100


def test_transformers_with_kernels_from_before_the_recording() -> None:
    with idle("tracelens__h100_qwen1.5") as (_, result):
        (row,) = result.summary
        assert round(100 * row["idle_ns"] / row["span_ns"], 1) == 8.1
        assert row["excluded_ns"] == row["by_cause"]["unattributed"] == 727_643
        assert {place for place in result.table["place"].to_pylist() if place != "inside"} == {"prefix", "between"}
        assert "left out of the findings" in result.coverage.reason


def test_a_gap_outside_steps_is_in_no_figure_of_one() -> None:
    with idle("tracelens__sglang_qwen3-8b") as (_, result):
        (finding,) = result.findings
        assert finding.title == "outside steps: 494 ms of idle time, 50.0% of the span"
        assert "the longest 493 ms" in finding.detail
        assert sum(row["ns"] for row in result.summary[0]["per_step"]) < 1_000_000


def test_a_full_graph_decode_step_is_busy_and_nothing_is_said() -> None:
    with idle("tracelens__vllm_decode_full") as (_, result):
        (row,) = result.summary
        assert round(100 * row["busy_ns"] / row["span_ns"], 1) == 99.8
        assert result.findings == ()


def test_a_graph_launch_on_an_empty_device_is_recognised() -> None:
    with idle("tracelens__sglang_deepseek-r1_b300") as (_, result):
        assert result.summary[0]["by_cause"]["graph_launch"] == 616_345
        (found,) = [one.title for one in result.findings if one.title.startswith("graph_launch")]
        assert found.endswith(
            "the device idles while a graph is launched, 616 us in the only decode step, 12.1% of its time"
        )
