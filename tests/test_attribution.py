"""attribution: rows in, table out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracekit
import tracekit.errors
from tests.event_rows import annotation, kernel, launch, op, write_trace
from tracekit.analyses._time_advice import SHARES
from tracekit.analysis import Finding, Result

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
COLUMNS = ("rank", "device", "phase", "category", "subcategory", "count", "total_ns", "exclusive_ns", "share")


def analyze(path: Path, rows: Sequence[dict[str, Any]], **parameters: Any) -> Result:
    with tracekit.open(write_trace(path / "trace.parquet", rows)) as trace:
        return trace.analyze("attribution", **parameters)


def table(result: Result, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns or COLUMNS) for row in result.table.to_pylist()]


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    result = analyze(tmp_path, [])
    assert (table(result), result.summary, result.findings) == ([], [], ())
    assert result.table.column_names == list(COLUMNS)
    assert result.coverage.reason.startswith("nothing was recorded")


def test_categories_of_two_devices_by_phase(tmp_path: Path) -> None:
    result = analyze(
        tmp_path,
        [
            annotation("execute_context_1(60)_generation_0(0)", 0, 100),
            launch(10, 5),
            annotation("execute_context_0(0)_generation_4(4)", 200, 100),
            launch(210, 5),
            kernel(20, 60, name=GEMM, launch_id=2),
            {"kind": "memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "ts": 90, "dur": 10, "launch_id": 2},
            kernel(220, 40, name=GEMM, launch_id=4),
            kernel(220, 40, name=NCCL, device=1),
            {"kind": "memset", "name": "Memset (Device)", "ts": 300, "dur": 0, "device": 1},
            {"kind": "graph", "name": "cudaGraphLaunch", "ts": 300, "dur": 7, "device": 1},
        ],
    )
    assert table(result, "rank", "device", "phase", "category", "count", "total_ns", "exclusive_ns", "share") == [
        (0, 0, "prefill", "gemm", 1, 60, 60, 60 / 110),
        (0, 0, "decode", "gemm", 1, 40, 40, 40 / 110),
        (0, 0, "prefill", "memory", 1, 10, 10, 10 / 110),
        (0, 1, "unknown", "communication", 1, 40, 40, 40 / 47),
        (0, 1, "unknown", "graph", 1, 7, 7, 7 / 47),
        (0, 1, "unknown", "memory", 1, 0, 0, 0.0),
    ]
    assert result.summary == [
        {
            "rank": 0,
            "device": 0,
            "span_ns": 240,
            "busy_ns": 110,
            "idle_ns": 130,
            "sum_ns": 110,
            "kernel_ns": 100,
            "unclassified_ns": 0,
        },
        {
            "rank": 0,
            "device": 1,
            "span_ns": 87,
            "busy_ns": 47,
            "idle_ns": 40,
            "sum_ns": 47,
            "kernel_ns": 47,
            "unclassified_ns": 0,
        },
    ]


def test_overlap_counts_once(tmp_path: Path) -> None:
    """Two streams fully overlapping are 100 % busy, not 200 %; the sum is shown beside."""
    result = analyze(tmp_path, [kernel(0, 100, name=GEMM, stream=7), kernel(0, 100, name=NCCL, stream=8)])
    assert table(result, "category", "total_ns", "exclusive_ns") == [("gemm", 100, 100), ("communication", 100, 0)]
    assert [(row["busy_ns"], row["sum_ns"]) for row in result.summary] == [(100, 200)]


def copy(ts: int, dur: int) -> dict[str, Any]:
    return {"kind": "memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": ts, "dur": dur}


def test_a_device_that_copies_is_busy_and_computes_nothing(tmp_path: Path) -> None:
    """Kernels alone cover 30 ns of the 100 that the device is busy: of the copy's 80, a kernel covers 10."""
    result = analyze(tmp_path, [kernel(0, 10, name=GEMM), copy(10, 80), kernel(80, 20, name=GEMM)])
    (row,) = result.summary
    assert (row["span_ns"], row["busy_ns"], row["idle_ns"], row["kernel_ns"]) == (100, 100, 0, 30)
    assert [finding.title for finding in result.findings] == ["copies and memsets take 80.0% of the busy time"]


def test_programmatic_dependent_launch(tmp_path: Path) -> None:
    """The next kernel of a stream may start before its predecessor ends: both are kept, the tail counts once."""
    result = analyze(tmp_path, [kernel(0, 100, name=GEMM), kernel(90, 90, name=NCCL)])
    assert table(result, "category", "total_ns", "exclusive_ns") == [("gemm", 100, 100), ("communication", 90, 80)]
    assert result.summary[0]["busy_ns"] == result.summary[0]["span_ns"] == 180


def test_kernels_of_one_graph_launch_have_its_phase(tmp_path: Path) -> None:
    rows = [annotation("step[DECODE bs=16]", 0, 50), launch(10, 20, name="cudaGraphLaunch")]
    rows += [kernel(100 + 10 * i, 10, name=GEMM, launch_id=2, stream=7 + i) for i in range(40)]
    result = analyze(tmp_path, rows)
    assert table(result, "phase", "category", "count", "exclusive_ns") == [("decode", "gemm", 40, 400)]


def test_work_launched_after_the_mark_belongs_to_its_step(tmp_path: Path) -> None:
    """Sampling is launched after the mark of the forward pass: the step runs to the next mark of the thread."""
    rows = [
        launch(0, 1),
        annotation("step[DECODE bs=1]", 10, 10),
        launch(30, 1),
        launch(31, 1, tid=2),
        annotation("step[EXTEND bs=1 toks=9]", 40, 10),
        launch(41, 1, tid=2),
        *(kernel(100 * id, 10 * id, name=GEMM, launch_id=id) for id in (1, 3, 4, 6)),
    ]
    assert table(analyze(tmp_path, rows), "phase", "exclusive_ns") == [("prefill", 60), ("unknown", 50), ("decode", 30)]


def test_ranks_that_reuse_everything_stay_apart(tmp_path: Path) -> None:
    rows = [
        {**row, "rank": rank}
        for rank in (0, 1)
        for row in (annotation("ProfilerStep#1", 0, 5), launch(0, 5, correlation=7), kernel(10, 5, name=GEMM))
    ]
    rows[2]["launch_id"], rows[5]["launch_id"] = 2, 5
    assert table(analyze(tmp_path, rows), "rank", "device", "count", "exclusive_ns") == [(0, 0, 1, 5), (1, 0, 1, 5)]


def test_unknown_kernels_are_named(tmp_path: Path) -> None:
    rows = [kernel(0, 70, name=GEMM), *(kernel(100 * i, i, name=f"[bold]zqx{i}<T>") for i in range(1, 9))]
    result = analyze(tmp_path, rows)
    assert [row["unclassified_ns"] for row in result.summary] == [36]
    (finding,) = result.findings
    assert finding.title == "34.0% of the busy time has no category"
    assert finding.detail.startswith("[bold]zqx8<T> (7.5%); [bold]zqx7<T> (6.6%)")
    assert finding.detail.endswith("; and 3 more names")
    assert finding.evidence == (9, 8, 7, 6, 5)
    assert (result.coverage.explained_ns, result.coverage.total_ns) == (70, 106)
    assert analyze(tmp_path, rows, other_share=0.4).findings == ()


COPY = "Memcpy HtoD (Pageable -> Device)"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
NORM = "void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*)"


def test_copies_that_dominate_a_device(tmp_path: Path) -> None:
    rows = [
        kernel(0, 80, name=GEMM),
        kernel(80, 20, kind="memcpy", name=COPY),
        kernel(0, 70, name=GEMM, device=1),
        kernel(60, 30, kind="memcpy", name=COPY, device=1, stream=8),
        kernel(90, 10, kind="memcpy", name=COPY, device=1),
    ]
    (finding,) = analyze(tmp_path, rows).findings
    said = SHARES[-1]
    assert finding == Finding(
        severity="warning",
        title="copies and memsets take 30.0% of the busy time on rank 0 device 1",
        detail=f"Mostly {COPY} (0.030 us). {said.detail}",
        saving_low_ns=0,
        saving_high_ns=30,
        evidence=(4,),
        remedy=said.remedy,
        cost=said.cost,
        verify=said.verify,
        arithmetic=(
            'their time: tracekit sql TRACE "SELECT sum(exclusive_ns) FROM attribution() WHERE rank = 0 AND device = 1 '
            "AND category IN ('memory')\" = 30 ns",
            'busy time: tracekit sql TRACE "SELECT busy_ns FROM device_time() WHERE rank = 0 AND device = 1" = 100 ns',
            "share: 30 ns / 100 ns = 30.0%",
            "saving: at least 0 ns, at most 30 ns",
        ),
    )
    assert analyze(tmp_path, rows, memory_share=0.31).findings == ()


def test_communication_is_for_another_analysis_to_judge(tmp_path: Path) -> None:
    assert analyze(tmp_path, [kernel(0, 60, name=NCCL)]).findings == ()


def test_pointwise_work_that_dominates(tmp_path: Path) -> None:
    rows = [kernel(0, 60, name=GEMM), kernel(60, 30, name=POINTWISE), kernel(90, 10, name=NORM)]
    (finding,) = analyze(tmp_path, rows).findings
    assert finding.title == (
        "unfused pointwise work (elementwise, reduction, index, norm) takes 40.0% of the busy time"
    )
    assert (finding.saving_low_ns, finding.saving_high_ns, finding.evidence) == (0, 0, (2, 3))
    assert "Fusion saves a part of this time" in finding.detail
    assert analyze(tmp_path, rows, pointwise_share=0.41).findings == ()


def test_no_judgement_of_gemm_or_of_a_host_alone(tmp_path: Path) -> None:
    assert analyze(tmp_path, [kernel(0, 60, name=GEMM)]).findings == ()
    assert analyze(tmp_path, [op(0, 60, name="aten::add")]).findings == ()


def test_rules_of_the_user_go_first(tmp_path: Path) -> None:
    rules = tmp_path / "my.toml"
    rules.write_text('[[rule]]\ncategory = "moe"\nsubcategory = "mine"\npattern = "_zqx"\n')
    path = write_trace(tmp_path / "trace.parquet", [kernel(0, 5, name="zqx_kernel")])
    with tracekit.open(path, rules=[rules]) as trace:
        assert table(trace.analyze("attribution"), "category", "subcategory") == [("moe", "mine")]


def test_op_names_classify_generic_kernels(tmp_path: Path) -> None:
    """The same elementwise kernel under two ops may be two categories; op_name is that of op_id."""
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::foo>(int)"
    rows = [op(0, 9, name="aten::mul"), op(10, 9, name="aten::add"), kernel(0, 5, name=name, op_id=1)]
    rows += [kernel(10, 5, name=name, op_id=2)]
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        classes = trace.sql("SELECT kind, op_name FROM kernel_classes ORDER BY op_name").to_pylist()
    assert classes == [{"kind": "kernel", "op_name": "aten::add"}, {"kind": "kernel", "op_name": "aten::mul"}]


def test_without_device_activity_host_ops_are_told(tmp_path: Path) -> None:
    """Own time of an op is its duration without the ops inside it, also through Python frames between them."""
    result = analyze(
        tmp_path,
        [
            annotation("execute_context_0(0)_generation_4(4)", 0, 100),
            op(10, 60, name="vllm::moe_forward", parent_id=1),
            {"kind": "python", "name": "f", "ts": 15, "dur": 50, "parent_id": 2},
            {"kind": "python", "name": "g", "ts": 16, "dur": 45, "parent_id": 3},
            op(20, 25, name="aten::mm", parent_id=4),
            op(20, 5, name="aten::softmax", parent_id=5),
            op(50, 10, name="aten::mm", parent_id=4),
            op(200, 7, name="aten::mm", tid=2),
        ],
    )
    by_category = {(row["phase"], row["category"]): row["exclusive_ns"] for row in result.table.to_pylist()}
    assert by_category[("decode", "moe")] == 60 - 25 - 10
    assert by_category[("decode", "gemm")] == (25 - 5) + 10
    assert by_category[("decode", "softmax")] == 5
    assert by_category[("unknown", "gemm")] == 7
    assert sum(by_category.values()) == 67
    assert {row["device"] for row in result.table.to_pylist()} == {None}
    assert [(row["rank"], row["device"], row["busy_ns"], row["host_op_ns"]) for row in result.summary] == [
        (0, None, None, 67)
    ]
    assert result.coverage.reason.startswith(
        "this is host op time (each op without the ops inside it), not GPU time: no "
    )


# Many small recordings in one file: each (rank, device) is one.
PLACE = st.tuples(st.integers(0, 5), st.integers(0, 1))
ROW = st.tuples(PLACE, st.integers(0, 60), st.integers(0, 12), st.integers(0, 2))


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ROW, max_size=80))
def test_exclusive_time_against_painted_nanoseconds(tmp_path: Path, drawn: list[Any]) -> None:
    names = (GEMM, NCCL, "zqx")
    rows = [
        kernel(ts, dur, name=names[kind], stream=kind, rank=rank, device=device)
        for (rank, device), ts, dur, kind in drawn
    ]
    expected: dict[tuple[int, int, str], int] = {}
    for rank, device in {row[0] for row in drawn}:
        painted: dict[int, str] = {}
        here = [(ts, -dur, id, kind) for id, (place, ts, dur, kind) in enumerate(drawn) if place == (rank, device)]
        for ts, negative, _, kind in sorted(here):
            category = ("gemm", "communication", "other")[kind]
            expected.setdefault((rank, device, category), 0)
            for nanosecond in range(ts, ts - negative):
                painted.setdefault(nanosecond, category)
        for category in painted.values():
            expected[rank, device, category] += 1
    result = analyze(tmp_path, rows)
    assert {row[:3]: row[3] for row in table(result, "rank", "device", "category", "exclusive_ns")} == expected
    for row in result.summary:
        place = (row["rank"], row["device"])
        busy = sum(ns for (rank, device, _), ns in expected.items() if (rank, device) == place)
        assert (row["busy_ns"], row["busy_ns"] + row["idle_ns"]) == (busy, row["span_ns"])


@pytest.mark.parametrize("bad", [{"other_sharee": 0.1}, {"other_share": "0.1"}, {"other_share": True}])
def test_wrong_parameters_are_refused(tmp_path: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(tracekit.errors.UsageError, match="other_share"):
        analyze(tmp_path, [], **bad)
