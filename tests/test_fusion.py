"""The analysis: what is found in hand-made steps, public traces and simulated runs, and what it is said to win."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tracekit
from tests.event_rows import launch
from tests.fusion_rows import (
    ADD_ROW,
    ATTENTION,
    CACHE_ROW,
    EXP_ROW,
    FUSED_NORM,
    GEMM,
    GEMM_ROW,
    MUL_ROW,
    NORM_ROW,
    QUANT_ROW,
    ROPE_ROW,
    SGLANG_BOTH,
    SGLANG_ROPE,
    SGLANG_STORE,
    SILU_ROW,
    US,
    Done,
    Row,
    add_steps,
    bare,
    fused,
    opened,
    rows_of,
)
from tests.pairs import FULL_GRAPH, LAUNCH_BOUND, MANY_REQUESTS, fusion, pair
from tests.real_traces import trace as public
from tests.simulator import Plant, Run
from tests.simulator_model import Fusion
from tracekit.analysis import Finding
from tracekit.fusion_candidates import Candidate, candidates
from tracekit.gains import estimate

WIDTH = 0.25  # of the true saving, where the host is what is slow
Found = dict[str, tuple[str, int, str]]


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    with opened(tmp_path, []) as trace:
        result = trace.analyze("fusion")
    assert result.table.num_rows == 0
    assert (result.findings, list(result.summary), result.coverage.total_ns) == ((), [], 0)
    assert "no events" in result.coverage.reason


def test_whole_row_and_finding(tmp_path: Path) -> None:
    """Two kernels launched 10 us apart, 4 us long: of a step of 40 us one launch goes, at worst not all of its time."""
    with opened(tmp_path, rows_of((GEMM_ROW, SILU_ROW, MUL_ROW))) as trace:
        result = trace.analyze("fusion")
        assert trace.analyze("fusion", finding_share=0.3).findings == ()
        assert [one.severity for one in trace.analyze("fusion", warning_share=0.3).findings] == ["info"]
        assert trace.analyze("fusion", kernel_floor_ns=10).table.schema == result.table.schema
    (row,) = result.table.to_pylist()
    low, high = row.pop("saving_low_ns"), row.pop("saving_high_ns")
    assert 6 * US < low < 0.9 * high
    assert high == 10 * US
    assert row == {
        "rank": 0,
        "device": 0,
        "phase": "decode",
        "bucket": "3-4",
        "steps": 3,
        "pattern": "silu_mul",
        "kernels": "vectorized_elementwise_kernel (silu) -> vectorized_elementwise_kernel (Mul)",
        "count": 1,
        "time_ns": 8 * US,
        "bytes_removed": 2 * 2 * 4 * 64,
        "error": 0.0,
        "grade": "B",
        "state": "candidate",
        "remark": "",
        "example_id": 17,
    }
    (finding,) = result.findings
    assert replace(finding, title="", saving_low_ns=0) == Finding(
        severity="warning",
        title="",
        detail="Gated activation: vectorized_elementwise_kernel (silu) -> vectorized_elementwise_kernel (Mul), 8.00 us "
        "of a step. Shapes and types fit: what one op makes is what the next one takes. What goes: the gate's "
        "activation, written and read (1.02 KB of a step). The replay of an unchanged step is 0.0% off.",
        saving_low_ns=0,
        saving_high_ns=3 * high,
        evidence=(17, 20),
        remedy="SGLang: the model must call SiluAndMul.",
        cost="None but the change: gate and up projection in one GEMM is the usual layout for it.",
        verify="Same load, this one change: fewer kernels in their place in a new trace, and P50 and P99 of ITL "
        "unprofiled.",
        arithmetic=(
            f"the median step then, at worst: 40,000 ns - {low:,} ns = {40 * US - low:,} ns",
            "the median step then, at best: 40,000 ns - 10,000 ns = 30,000 ns",
            f"all steps, at worst: {low:,} ns * 3 steps = {3 * low:,} ns",
            "all steps, at best: 10,000 ns * 3 steps = 30,000 ns",
            f"of the median step, at worst: {low:,} ns / 40,000 ns = {low / (40 * US):.1%}",
            "of the median step, at best: 10,000 ns / 40,000 ns = 25.0%",
            f"saving: at least {3 * low:,} ns, at most 30,000 ns",
        ),
    )
    assert finding.title.startswith("silu_mul: 2 kernels could be 1: ")
    assert finding.title.endswith(" to 10.0 us less per decode step, " + finding.title.rpartition("step, ")[2])
    assert finding.saving_low_ns == 3 * low
    (summary,) = result.summary
    assert (summary["fusible_ns"], summary["busy_ns"], summary["patterns"]) == (24 * US, 56 * US, 1)


# ---- what fires, and what does not -----------------------------------------------------------------------------------

# Works of a step, whether a graph launches them, and state, count and grade of each pattern expected.
CASES: tuple[tuple[tuple[Done, ...], bool, Found], ...] = (
    ((GEMM_ROW, ADD_ROW, NORM_ROW, GEMM_ROW), False, {"add_rms_norm": ("candidate", 1, "B")}),
    ((GEMM_ROW, ROPE_ROW, CACHE_ROW), False, {"rope_kv": ("candidate", 1, "A")}),
    ((GEMM_ROW, NORM_ROW, QUANT_ROW), False, {"norm_quant": ("candidate", 1, "A")}),
    ((GEMM_ROW, EXP_ROW, EXP_ROW, MUL_ROW), False, {"pointwise_chain": ("candidate", 1, "B")}),
    # A dense model of SGLang on one device, as it is in a graph; and its MoE models, which do both in one kernel.
    (tuple(map(bare, (GEMM, SGLANG_ROPE, SGLANG_STORE, ATTENTION))), True, {"rope_kv": ("candidate", 1, "C")}),
    (tuple(map(bare, (GEMM, SGLANG_BOTH, ATTENTION))), True, {"rope_kv": ("active", 0, "")}),
    # In most layers it is done, in one it is not.
    (
        tuple(map(bare, (GEMM, SGLANG_BOTH, ATTENTION, SGLANG_BOTH, GEMM, SGLANG_ROPE, SGLANG_STORE, ATTENTION))),
        True,
        {"rope_kv": ("partly active", 1, "C")},
    ),
    # Never of what stands apart, is on another stream, or does not fit.
    ((ROPE_ROW, GEMM_ROW, CACHE_ROW), False, {}),
    ((ROPE_ROW, replace(CACHE_ROW, stream=9)), False, {}),
    ((ADD_ROW, replace(NORM_ROW, shapes="[9,64],[9,64],[64],[]")), False, {}),
    ((EXP_ROW, replace(EXP_ROW, shapes="[8,64]")), False, {}),
    ((GEMM_ROW, bare(FUSED_NORM)), False, {"add_rms_norm": ("active", 0, "")}),
)


@pytest.fixture(scope="module")
def by_batch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """What is found in the cases, each with a batch size of its own in one trace."""
    rows: list[Row] = []
    for place, (works, graph, _) in enumerate(CASES):
        add_steps(rows, works, 4, graph=graph, mark=f"step[DECODE bs={2**place}]")
    with opened(tmp_path_factory.mktemp("cases"), rows) as trace:
        table = trace.analyze("fusion").table.to_pylist()
    found: dict[str, Found] = {}
    for row in table:
        # That RoPE and norms are not run op by op is of no interest here.
        if row["state"] != "active" or row["pattern"] not in ("rope_eager", "rms_norm_eager"):
            of_batch = found.setdefault(row["bucket"].rpartition("-")[2], {})
            of_batch[row["pattern"]] = row["state"], row["count"], row["grade"]
    return found


@pytest.mark.parametrize("place", range(len(CASES)))
def test_patterns(by_batch: dict[str, Found], place: int) -> None:
    assert by_batch.get(str(2**place), {}) == CASES[place][2]


def test_partly_active_is_said(tmp_path: Path) -> None:
    works = (GEMM, SGLANG_BOTH, ATTENTION, GEMM, SGLANG_ROPE, SGLANG_STORE, ATTENTION)
    result = fused(tmp_path, tuple(map(bare, works)), graph=True)
    (row,) = (row for row in result.table.to_pylist() if row["pattern"] == "rope_kv")
    assert row["remark"] == "fused elsewhere: fused_rope_store_kernel x 1"
    (finding,) = result.findings
    assert finding.title.startswith("rope_kv: possibly, 2 kernels could be 1: ")
    assert "The fused kernel runs already in other places: fused_rope_store_kernel x 1" in finding.detail
    assert finding.severity == "info"
    assert finding.verify.startswith("Same load, this one change: fused_rope_store_kernel in place of these kernels")


def test_no_fusion_across_a_wait(tmp_path: Path) -> None:
    """The host waits for the first kernel before it launches the second."""
    rows = rows_of((GEMM_ROW, ROPE_ROW, CACHE_ROW))
    waits = [
        launch(row["ts"] + 6 * US, 5 * US, name="cudaStreamSynchronize")
        for row in rows
        if row.get("name") == ROPE_ROW.op
    ]
    with opened(tmp_path, [*rows, *waits]) as trace:
        assert "rope_kv" not in trace.analyze("fusion").table["pattern"].to_pylist()


def test_no_nanosecond_is_promised_twice(tmp_path: Path) -> None:
    """Of several in one step each is counted on top of those before it, and of the graphs that are advised."""
    works = (GEMM_ROW, ADD_ROW, NORM_ROW, GEMM_ROW, SILU_ROW, MUL_ROW, GEMM_ROW, ROPE_ROW, CACHE_ROW)
    with opened(tmp_path, rows_of(works)) as trace:
        result = trace.analyze("fusion")
        graphs = trace.analyze("cuda_graphs")
    rows = [row for row in result.table.to_pylist() if row["saving_high_ns"] is not None]
    assert len(rows) == 3
    assert all(row["remark"] == "on top of CUDA graphs" for row in rows)
    total = sum(one.saving_high_ns for one in (*result.findings, *graphs.findings))
    assert total <= graphs.coverage.total_ns


def test_a_refused_group_gets_no_estimate(tmp_path: Path) -> None:
    """Launches without work: what looks like a hole may be lost."""
    rows = rows_of((GEMM_ROW, SILU_ROW, MUL_ROW))
    lost = [launch(row["ts"] + 8 * US, US) for row in rows if row.get("name") == "aten::mm"]
    with opened(tmp_path, [*rows, *lost]) as trace:
        result = trace.analyze("fusion")
    (row,) = result.table.to_pylist()
    assert (row["state"], row["saving_high_ns"]) == ("candidate", None)
    assert row["remark"].startswith("no estimate: 4 of ")
    assert result.findings == ()
    assert result.coverage.explained_ns == 0
    assert "left no device work" in result.coverage.reason


# ---- against the truth -----------------------------------------------------------------------------------------------


def predicted(path: Path, pattern: str) -> tuple[int, int]:
    """The saving of the fusion alone, in steady decode steps."""
    with tracekit.open(path) as trace:
        found = [one for one in candidates(trace) if one.pattern.name == pattern and one.group.phase == "decode"]
        largest = max(found, key=lambda one: len(one.group.steps))
        won = estimate(largest.group, [largest.change])
    return won.saving_low_ns, won.saving_high_ns


SLOW_HOST = replace(LAUNCH_BOUND, plant=Plant(launch_bound_ns=10_000))


@pytest.mark.parametrize(
    ("run", "name", "pattern", "width"),
    [
        (LAUNCH_BOUND, "add_rms_norm", "add_rms_norm", WIDTH),
        (SLOW_HOST, "rms_norm", "rms_norm_eager", WIDTH),
        (FULL_GRAPH, "rope_kv", "rope_kv", None),
        (MANY_REQUESTS, "silu_mul", "silu_mul", 0.25),
    ],
)
def test_the_true_saving_lies_within(tmp_path: Path, run: Run, name: Fusion, pattern: str, width: float | None) -> None:
    both = pair(*fusion(name, run), tmp_path)
    low, high = predicted(both.before, pattern)
    assert low <= both.true_saving_ns <= high
    assert width is None or high - low <= width * both.true_saving_ns


# ---- public traces ---------------------------------------------------------------------------------------------------


def of_public(name: str) -> dict[str, Candidate]:
    with tracekit.open(public(name)) as trace:
        return {one.pattern.name: one for one in candidates(trace)}


def test_sglang_rotates_and_stores_apart_in_a_dense_model() -> None:
    found = of_public("tracelens__sglang_deepseek-r1_b300")
    assert found["rope_kv"].kernels == ("fused_rope_kernel", "store_kvcache")
    assert (found["rope_kv"].count, found["rope_kv"].grade) == (32, "C")
    assert found["rope_kv"].time_ns == pytest.approx((98.6 + 54.7) * US, abs=100)
    assert {name: one.state for name, one in found.items() if one.pattern.name in ("add_rms_norm", "silu_mul")} == {
        "add_rms_norm": "active",
        "silu_mul": "active",
    }


def test_a_model_of_hugging_face_run_op_by_op() -> None:
    found = of_public("tracelens__h100_qwen1.5")
    counts = {name: (one.launches, one.count, one.grade) for name, one in found.items()}
    assert counts["rms_norm_eager"] == (440, 49, "B")  # 8 launches each, and most have the residual's add before them
    assert counts["rope_eager"] == (240, 48, "B")
    assert counts["silu_mul"] == (48, 24, "B")  # the up projection runs between


def test_vllm_eager_on_two_devices() -> None:
    found = of_public("tracelens__b200_eager")
    assert found["all_reduce_norm"].kernels == (
        "Memcpy DtoD", "multimem_all_reduce_kernel", "Memcpy DtoD", "fused_add_rms_norm_kernel",
    )  # fmt: skip
    opened_ones = {name: (one.count, one.grade) for name, one in found.items() if one.is_open}
    assert opened_ones == {"all_reduce_norm": (37, "A"), "rope_kv": (36, "A")}
