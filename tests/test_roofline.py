"""roofline: the work of device rows, the least time it takes, and what binds them."""

from __future__ import annotations

import csv
import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests import real_traces
from tests.event_rows import annotation, footer_of, kernel, launch, op, write_trace
from tests.ncu_tables import UNITS, measured, opened, raw
from tests.ncu_tables import work as ncu_work
from tests.roofline_rows import SCHEMA
from tracekit.analysis import Result
from tracekit.footer import DeviceInfo
from tracekit.step_marks import Composition

PEAKS = {"bandwidth": 1e12, "bf16": 100e12, "fp32": 10e12, "achievable.bandwidth": 1.0, "achievable.compute": 1.0}
GEMM = "nvjet_tst_128x8_64x12_2x1_v_bz_TNT"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
GRID = {"grid_x": 256, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}
SMS = {"numSms": 100}
LOAD = [field.name for field in fields(Composition) if field.name != "phase"]


def tensors(*shapes: Sequence[int], dtype: str = "c10::BFloat16") -> dict[str, str]:
    """Columns of an op whose inputs are these."""
    return {"shapes": json.dumps(shapes), "dtypes": json.dumps([dtype] * len(shapes))}


def call(id: int, at: int, name: str, *shapes: Sequence[int], dtype: str = "c10::BFloat16") -> list[dict[str, Any]]:
    """An op, and in it a launch; their ids are id and id + 1."""
    said = tensors(*shapes, dtype=dtype)
    return [op(at, 10, id=id, name=name, **said), launch(at + 1, 5, id=id + 1, parent_id=id, op_id=id)]


def work(id: int, ts: int, dur: int, name: str, by: int | None = None, **columns: Any) -> dict[str, Any]:
    """A kernel, launched in the op `by`."""
    linked = {} if by is None else {"op_id": by, "launch_id": by + 1}
    return kernel(ts, dur, id=id, name=name, **{**GRID, **linked, **columns})


def copy(id: int, ts: int, dur: int, kind: str, size: int) -> dict[str, Any]:
    return {
        "kind": "memcpy",
        "name": f"Memcpy {kind}",
        "copy_kind": kind,
        "bytes": size,
        "ts": ts,
        "dur": dur,
        "id": id,
    }


def analyze(folder: Path, rows: Sequence[Mapping[str, Any]], peaks: Mapping[str, float] = PEAKS) -> Result:
    footer = footer_of(rows, devices=(DeviceInfo(0, 0, "some device", SMS),))
    with tracekit.open(write_trace(folder / "trace.parquet", rows, footer), peaks=peaks) as trace:
        return trace.analyze("roofline")


def shown(result: Result, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(_rounded(row[column]) for column in columns) for row in rows(result)]


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def rows(result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result.table.to_pylist()
    return found


# ---- nothing ---------------------------------------------------------------------------------------------------------


def test_nothing_recorded(tmp_path: Path) -> None:
    result = analyze(tmp_path, [])
    assert (result.table.num_rows, result.summary, result.findings) == (0, (), ())
    assert result.table.schema.equals(SCHEMA)  # those that other tests make by hand
    assert result.coverage.reason.startswith("nothing was recorded")


# ---- rows in, table out ----------------------------------------------------------------------------------------------


def test_what_binds_each_kernel(tmp_path: Path) -> None:
    """On a device of 1 TB/s and 100 TFLOP/s in bf16: a byte takes 1 ps, a FLOP 0.01 ps."""
    events = [
        # 2 * 1000 * 1000 * 1000 FLOP = 20 us; 3 * 1000 * 1000 * 2 B = 6 us
        *call(1, 0, "aten::mm", [1000, 1000], [1000, 1000]),
        # 2 * 8 * 1000 * 1000 FLOP = 160 ns; (8 * 1000 + 1000 * 1000 + 8 * 1000) * 2 B = 2,032 ns
        *call(3, 20, "aten::mm", [8, 1000], [1000, 1000]),
        *call(5, 40, "aten::mm", [8, 1000], [1000, 1000]),
        # 3 * 1,000,000 * 4 B = 12 us; 1,000,000 FLOP of fp32 = 100 ns
        *call(7, 60, "aten::add", [1000, 1000], [1000, 1000], dtype="float"),
        *call(9, 80, "custom::op", [8]),
        work(11, 100_000, 25_000, GEMM, 1),
        work(12, 200_000, 2_500, "gemv2T", 3),
        work(13, 300_000, 9_000, "gemm_slow", 5),
        work(14, 400_000, 24_000, ADD, 7),
        work(15, 500_000, 1_000, GEMM, 9, grid_x=5),
        copy(16, 600_000, 4_000, "DtoD", 1_500_000),
        copy(17, 700_000, 4_000, "HtoD", 40_000),
        work(18, 800_000, 3_000, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        kernel(900_000, 500, id=19, name="who knows"),
    ]
    result = analyze(tmp_path, events)
    columns = ("kernel", "flops", "bytes", "memory_ns", "compute_ns", "roof_fraction", "bound", "leaning", "evidence")
    assert shown(result, *columns) == [
        (GEMM, 2e9, 6e6, 6_000, 20_000, 0.8, "compute", None, "B"),
        (ADD, 1e6, 12e6, 12_000, 100, 0.5, "unknown", "memory", "B"),
        ("gemm_slow", 16e6, 2_032e3, 2_032, 160, 0.226, "latency", "memory", "B"),
        ("Memcpy DtoD", 0, 3e6, 3_000, 0, 0.75, "memory", None, "G"),
        ("Memcpy HtoD", 0, 40e3, 40, 0, None, "communication", None, "G"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", None, None, None, None, None, "communication", None, "F"),
        ("gemv2T", 16e6, 2_032e3, 2_032, 160, 0.813, "memory", None, "B"),
        (GEMM, None, None, None, None, None, "unknown", None, "F"),
        ("who knows", None, None, None, None, None, "unknown", None, None),
    ]
    (device,) = result.summary
    assert (device["busy_ns"], device["by_bound"], device["by_evidence"]) == (
        73_000,
        {"unknown": 25_500, "compute": 25_000, "latency": 9_000, "communication": 7_000, "memory": 6_500},
        {"B": 60_500, "F": 4_000, "G": 8_000, "none": 500},
    )
    assert (result.coverage.explained_ns, result.coverage.total_ns) == (68_500, 73_000)


def test_whose_work_a_kernel_does(tmp_path: Path) -> None:
    """Two kernels of an op that multiply share its work by their time; one that adds up what split-K left gets nothing.

    A kernel outside all ops, such as one that was queued before the recording began, or in a graph, has that of one of
    its name and geometry. Where nobody knows the innermost op, the next one outside tells, through a Python frame, too.
    That an fp32 product was one of tf32 is told by the kernel.
    """
    split_k = "void cublasLt::splitKreduce_kernel<32, 16, int, float>"
    events = [
        *call(1, 0, "aten::mm", [1000, 1000], [1000, 1000]),
        work(3, 100_000, 30_000, "gemm a", 1),
        work(4, 130_000, 10_000, "gemm b", 1),
        work(5, 140_000, 5_000, split_k, 1),
        *call(11, 100, "aten::mm", [1000, 1000], [1000, 1000]),
        work(13, 200_000, 25_000, GEMM, 11),
        work(14, 300_000, 26_000, GEMM),
        work(15, 400_000, 24_000, GEMM, grid_x=99),
        op(200, 20, id=21, **tensors([8, 1000], [1000, 1000])),
        {"kind": "python", "name": "f.py(1): f", "ts": 201, "dur": 15, "id": 22, "parent_id": 21},
        op(202, 10, id=23, name="custom::inner", parent_id=22),
        launch(203, 5, id=24, parent_id=23, op_id=23),
        kernel(500_000, 20_000, id=25, name="gemm within", op_id=23, launch_id=24, **GRID),
        *call(31, 300, "aten::mm", [1000, 1000], [1000, 1000], dtype="float"),
        work(33, 600_000, 50_000, "ampere_sgemm_128x64_nn", 31),
        *call(35, 400, "aten::mm", [1000, 1000], [1000, 1000], dtype="float"),
        work(37, 700_000, 4_000, "cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4", 35),
    ]
    how = "same kernel elsewhere in the trace"
    assert shown(analyze(tmp_path, events), "kernel", "op", "flops", "bytes", "math", "evidence", "how") == [
        ("ampere_sgemm_128x64_nn", "aten::mm", 2e9, 12e6, "fp32", "B", "op shapes"),
        ("gemm a", "aten::mm", 1.5e9, 4.5e6, "bf16", "C", "op shapes, several kernels"),
        (GEMM, "aten::mm", 2e9, 6e6, "bf16", "D", how),
        (GEMM, "aten::mm", 2e9, 6e6, "bf16", "B", "op shapes"),
        (GEMM, None, None, None, None, "F", "name and geometry"),
        ("gemm within", "aten::mm", 16e6, 2_032e3, "bf16", "B", "op shapes"),
        ("gemm b", "aten::mm", 0.5e9, 1.5e6, "bf16", "C", "op shapes, several kernels"),
        (split_k, "aten::mm", None, None, None, "F", "name and geometry"),
        ("cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4", "aten::mm", 2e9, 12e6, "tf32", "B", "op shapes"),
    ]


def test_launched_before_the_one_before_had_ended(tmp_path: Path) -> None:
    """Programmatic dependent launch: what it waited is not its time. On another stream, it is."""
    events = [
        *call(1, 0, "aten::mm", [8, 1000], [1000, 1000]),
        *call(3, 20, "aten::mm", [8, 1000], [1000, 1000]),
        work(5, 100_000, 4_000, GEMM, 1),
        work(6, 101_000, 6_000, "gemv2T", 3),
        work(7, 101_000, 2_000, "other_gemm", stream=8),
    ]
    result = analyze(tmp_path, events)
    assert shown(result, "kernel", "dur_ns", "alone_ns", "exclusive_ns", "roof_fraction", "achieved_bandwidth") == [
        (GEMM, 4_000, 4_000, 4_000, 0.508, 508e9),
        ("gemv2T", 6_000, 3_000, 3_000, 0.677, round(2_032e3 / 3e-6, 3)),
        ("other_gemm", 2_000, 2_000, 0, None, None),
    ]


def test_more_than_the_roof_is_an_error_and_no_verdict(tmp_path: Path) -> None:
    events = [*call(1, 0, "aten::mm", [1000, 1000], [1000, 1000]), work(3, 100_000, 15_000, GEMM, 1)]
    result = analyze(tmp_path, events)
    assert shown(result, "datasheet_fraction", "bound", "leaning", "problem") == [
        (1.333, "unknown", None, "above roof")
    ]
    assert [finding.severity for finding in result.findings] == ["warning"]
    assert result.summary[0]["above_roof_ns"] == 15_000


def test_without_peaks_times_are_shown_and_nothing_is_judged(tmp_path: Path) -> None:
    events = [*call(1, 0, "aten::mm", [1000, 1000], [1000, 1000]), work(3, 100_000, 25_000, GEMM, 1)]
    result = analyze(tmp_path, events, {})
    assert shown(result, "achieved_flops", "memory_ns", "roof_fraction", "bound", "leaning") == [
        (80e12, None, None, "unknown", None)
    ]
    assert "--peak" in result.summary[0]["problem"]
    assert any("--peak" in finding.remedy + finding.detail for finding in result.findings)


def test_with_bandwidth_alone_only_what_is_near_it_is_judged(tmp_path: Path) -> None:
    events = [
        *call(1, 0, "aten::mm", [8, 1000], [1000, 1000]),
        *call(3, 20, "aten::mm", [1000, 1000], [1000, 1000]),
        work(5, 100_000, 2_500, "gemv2T", 1),
        work(6, 200_000, 25_000, GEMM, 3),
    ]
    result = analyze(tmp_path, events, {"bandwidth": 1e12, "achievable.bandwidth": 1.0})
    assert shown(result, "kernel", "compute_ns", "bound") == [(GEMM, None, "unknown"), ("gemv2T", None, "memory")]


def test_part_of_a_trace_has_its_part_of_the_work(tmp_path: Path) -> None:
    events = [
        *call(1, 0, "aten::mm", [1000, 1000], [1000, 1000]),
        work(3, 100_000, 20_000, GEMM, 1),
        work(4, 120_000, 5_000, "who knows"),
    ]
    footer = footer_of(events, devices=(DeviceInfo(0, 0, "some device", SMS),))
    with (
        tracekit.open(write_trace(tmp_path / "trace.parquet", events, footer), peaks=PEAKS) as trace,
        trace.only(since_ns=110_000) as part,
    ):
        assert shown(part.analyze("roofline"), "dur_ns", "flops", "roof_fraction") == [
            (10_000, 1e9, 1.0),
            (5_000, None, None),
        ]


def test_attention_is_asked_by_what_its_step_works_on(tmp_path: Path) -> None:
    """Decode of 2 requests with 3,000 tokens of keys: the same op in two steps, once of them, once of 30,000."""
    said = tensors([2, 8, 64], [2, 1, 64], [2, 1, 64], [2, 8, 64])
    events: list[dict[str, Any]] = []
    for step, tokens in enumerate((3_000, 30_000)):
        at, first = 1_000_000 * step, 10 * step + 1
        mark = f"execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk{tokens}sqsq2sqsk{tokens})"
        events += [
            annotation(mark, at, 500_000, id=first, step=step),
            op(at + 1, 20, id=first + 1, name="vllm::unified_attention_with_output", step=step, **said),
            launch(at + 2, 5, id=first + 2, parent_id=first + 1, op_id=first + 1, step=step),
            work(first + 3, at + 100, 50_000, "kernel_unified_attention_3d", first + 1, step=step),
        ]
    footer = footer_of(events, devices=(DeviceInfo(0, 0, "some device", SMS),))
    with tracekit.open(write_trace(tmp_path / "trace.parquet", events, footer), peaks=PEAKS) as trace:
        found = trace.sql("SELECT flops, kv_bytes FROM work_rows() ORDER BY step").to_pylist()
        numbered = {name: at + 1 for at, name in enumerate(LOAD)} | {"phase": "decode"}
        (load,) = trace.sql(f"SELECT step_load({numbered}) AS load").to_pylist()
        blank = ", ".join(f"NULL::BIGINT AS {name}" for name in LOAD)
        (empty,) = trace.sql(f"SELECT step_load(s) AS load FROM (SELECT 'decode' AS phase, {blank}) AS s").to_pylist()
    assert load["load"] == list(range(1, len(LOAD) + 1))
    assert empty["load"] == [0 if name.startswith("prefill") else None for name in LOAD]
    # 2 * 8 heads * (64 + 64) per key; (64 + 64) * 2 bytes per key
    assert [row["flops"] for row in found] == [2 * 8 * 128 * 3_000, 2 * 8 * 128 * 30_000]
    assert [row["kv_bytes"] for row in found] == [128 * 2 * 3_000, 128 * 2 * 30_000]


# ---- properties ------------------------------------------------------------------------------------------------------


def test_no_work_is_lost_or_made_up(tmp_path: Path) -> None:
    """Each op's kernels together have its work, but for what is lost in rounding; all rows are there once."""
    chance = random.Random(1)
    size, calls = 64, 40
    events = [event for k in range(calls) for event in call(1_000 + 2 * k, 10 * k, "aten::mm", [size] * 2, [size] * 2)]
    takers = [chance.randrange(calls) for _ in range(150)]
    events += [
        work(k, 1_000 + 60 * k, chance.randrange(200), GEMM, 1_000 + 2 * by, stream=chance.randrange(3))
        for k, by in enumerate(takers)
    ]
    footer = footer_of(events, devices=(DeviceInfo(0, 0, "some device", SMS),))
    with tracekit.open(write_trace(tmp_path / "trace.parquet", events, footer), peaks=PEAKS) as trace:
        split = trace.sql("SELECT call_id, sum(flops)::BIGINT AS flops, count(*) AS n FROM call_work GROUP BY ALL")
        rows = trace.sql(
            "SELECT count(*) AS n, count(DISTINCT id) AS ids, sum(exclusive_ns)::BIGINT AS ns FROM work_rows()"
        )
        busy = trace.sql("SELECT sum(busy_ns)::BIGINT AS ns FROM device_time()").to_pylist()[0]["ns"]
    whole = 2 * size**3
    assert {row["call_id"]: row["n"] for row in split.to_pylist()} == Counter(1_000 + 2 * by for by in takers)
    assert all(whole - row["n"] < row["flops"] <= whole for row in split.to_pylist())
    assert rows.to_pylist() == [{"n": len(takers), "ids": len(takers), "ns": busy}]


# ---- real traces -----------------------------------------------------------------------------------------------------


def test_h100_reaches_what_others_measured() -> None:
    """Qwen 0.5B in eager mode: GEMMs of 596 to 682 TFLOP/s, contiguous elementwise kernels of 2.6 to 3.1 TB/s."""
    with tracekit.open(real_traces.trace("tracelens__h100_qwen")) as trace:
        result = trace.analyze("roofline")
    known = [row for row in rows(result) if row["evidence"] == "B"]
    gemms = {row["shapes"]: round(row["achieved_flops"] / 1e12) for row in known if row["op"] == "aten::mm"}
    assert [gemms[f"[[8944,{k}],[{k},{n}]]"] for k, n in ((1024, 1024), (1024, 2816), (2816, 1024))] == [594, 617, 682]
    flat = {
        (row["op"], row["shapes"]): round(row["achieved_bandwidth"] / 1e12, 2)
        for row in known
        if "vectorized_elementwise" in row["kernel"] and row["bytes"] > 40e6 * row["count"]
    }
    assert len(flat) == 5
    assert all(2.6 <= bandwidth <= 3.1 for bandwidth in flat.values()), flat
    assert result.summary[0]["spec"] == "NVIDIA H100 80GB HBM3"
    assert not result.summary[0]["above_roof_ns"]


def test_b200_gets_its_own_peaks_and_says_what_is_not_modelled() -> None:
    with tracekit.open(real_traces.trace("tracelens__b200")) as trace:
        result = trace.analyze("roofline")
    (device,) = result.summary
    assert (device["spec"], device["peaks"]["bf16"], device["bandwidth"]) == ("NVIDIA B200", 2250e12, 8e12)
    bare = device["by_evidence"]["F"] + device["by_evidence"].get("none", 0)
    assert bare == result.coverage.total_ns - result.coverage.explained_ns
    assert f"{bare / device['busy_ns']:.1%}" in result.coverage.reason
    assert not device["above_roof_ns"]


@pytest.mark.parametrize("name", ["tracelens__vllm_decode_full", "hta__amd_trace"])
def test_device_without_a_name_is_refused(name: str) -> None:
    with tracekit.open(real_traces.trace(name)) as trace:
        result = trace.analyze("roofline")
    assert {row["bound"] for row in rows(result)} <= {"unknown", "communication"}
    assert all("--peak" in device["problem"] and device["peaks"] == {} for device in result.summary)


def test_counters_outrank_shapes(tmp_path: Path) -> None:
    """By ncu's rule: the higher throughput binds from 60 % on, both do where they are near each other."""
    percent = {"compute": "70 50", "memory": "50 70", "both": "65 62", "high": "95 81", "neither": "30 20"}
    events = [ncu_work(10 * at, 5, name) for at, name in enumerate(percent)]
    page = raw(UNITS, *(measured(name, "5", "600", "400", *said.split(), "2.5") for name, said in percent.items()))
    with opened(tmp_path, events, page) as trace:
        found = rows(trace.analyze("roofline"))
    assert {row["kernel"]: (row["bound"], row["leaning"], row["bytes"], row["evidence"]) for row in found} == {
        "compute": ("compute", None, 1_000, "A"),
        "memory": ("memory", None, 1_000, "A"),
        "both": ("compute", "balanced", 1_000, "A"),
        "high": ("compute", None, 1_000, "A"),
        "neither": ("latency", "compute", 1_000, "A"),
    }


def test_counters_say_what_ncu_says(tmp_path: Path) -> None:
    """Three kernels of an RTX 5090: the classes are those that ncu's own rule prints beside the counters."""
    tables = sorted(real_traces.DIRECTORY.glob("llm-perf-opt__ncu_details_*.csv"))
    if not tables:
        pytest.skip("no public tables beside this checkout")
    said: dict[str, str] = {}
    events: list[dict[str, Any]] = []
    for number, table in enumerate(tables):
        with table.open(newline="") as file:
            (rule,) = [row for row in csv.DictReader(file) if row["Rule Name"] == "SOLBottleneck"]
        grid, block = (json.loads(f"[{rule[one].strip('()')}]") for one in ("Grid Size", "Block Size"))
        shape = dict(zip(GRID, (*grid, *block), strict=True))
        events.append(kernel(10_000 * number, 5_000, name=rule["Kernel Name"], **shape))
        is_latency = re.search("grid is too small|latency", rule["Rule Description"])
        said[rule["Kernel Name"]] = "latency" if is_latency else "other"
    with tracekit.open(write_trace(tmp_path / "trace.parquet", events), ncu=tables) as trace:
        found = rows(trace.analyze("roofline"))
    assert {row["kernel"]: row["bound"] for row in found} == said
    assert {(row["evidence"], row["how"]) for row in found} == {("A", "Nsight Compute")}
    assert set(said.values()) == {"latency"}
