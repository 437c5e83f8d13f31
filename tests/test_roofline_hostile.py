"""roofline against what a trace may hold: junk, overlap, and an answer worked out another way."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tracekit
from tests.event_rows import annotation, footer_of, kernel, launch, op, write_trace
from tracekit import Trace
from tracekit.analysis import Result
from tracekit.footer import DeviceInfo
from tracekit.json_text import json_text
from tracekit.report_roofline import in_full, overview
from tracekit.roofline_tables import model_calls
from tracekit.text_page import Page

Row = dict[str, Any]
GEMM = "nvjet_tst_128x8_64x12_2x1_v_bz_TNT"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
GRID = {"grid_x": 256, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}
H100 = {"numSms": 132, "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536, "l2CacheSize": 52428800}
A100 = {"numSms": 108, "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536}
PEAKS = {"bandwidth": 1e12, "bf16": 100e12, "fp32": 10e12, "achievable.bandwidth": 1.0, "achievable.compute": 1.0}
# A byte takes 1 ps. Of 8 rows with weights of 1000 x 1000: (8 * 1000 + 1000 * 1000 + 8 * 1000) * 2 B = 2,032 ns.
DECODE = ([8, 1000], [1000, 1000])
# Of 1000 rows: 2 * 1000 * 1000 * 1000 FLOP at 100 TFLOP/s = 20 us.
PREFILL = ([1000, 1000], [1000, 1000])


def call(id: int, name: str, *shapes: Sequence[int], dtype: str = "c10::BFloat16", **columns: Any) -> list[Row]:
    """An op, and in it a launch; their ids are id and id + 1, and so are their times in units of 10 ns."""
    said = {"shapes": json.dumps(shapes), "dtypes": json.dumps([dtype] * len(shapes)), **columns}
    rank = said.get("rank", 0)
    return [
        op(10 * id, 10, id=id, name=name, **said),
        launch(10 * id + 1, 5, id=id + 1, parent_id=id, op_id=id, rank=rank),
    ]


def work(id: int, ts: int, dur: int, by: int | None = None, name: str = GEMM, **columns: Any) -> Row:
    linked = {} if by is None else {"op_id": by, "launch_id": by + 1}
    return kernel(ts, dur, id=id, name=name, **{**GRID, **linked, **columns})


def opened(folder: Path, rows: Sequence[Row], devices: Sequence[DeviceInfo], peaks: Mapping[str, float]) -> Trace:
    footer = footer_of([row for row in rows if row.get("device", 0) is not None], devices=tuple(devices))
    return tracekit.open(write_trace(folder / "trace.parquet", rows, footer), peaks=peaks)


# ---- what holds of every answer --------------------------------------------------------------------------------------


def assert_sound(trace: Trace) -> Result:
    """All rows once, times that add up, numbers that are numbers, and nothing promised that is not there."""
    result = trace.analyze("roofline")
    rows: list[Row] = result.table.to_pylist()
    json_text(result.to_json())  # refuses what is not a number
    times = trace.sql("FROM device_time()").to_pylist()
    busy = {(row["rank"], row["device"]): row["busy_ns"] for row in times}
    assert sum(row["count"] for row in times) == sum(row["count"] for row in rows)
    by_device: Counter[tuple[int, int | None]] = Counter()
    for row in rows:
        by_device[row["rank"], row["device"]] += row["exclusive_ns"]
        assert_row(row)
    assert +by_device == +Counter(busy)
    assert {(one["rank"], one["device"]): one["busy_ns"] for one in result.summary} == dict(by_device)
    for one in result.summary:
        parts = (one["by_bound"], one["by_evidence"])
        assert [sum(part.values()) for part in parts] == [one["busy_ns"]] * 2
    assert all(finding.saving_high_ns >= 0 for finding in result.findings)
    assert sum(finding.saving_high_ns for finding in result.findings) <= sum(busy.values())
    return result


def assert_row(row: Row) -> None:
    assert all(math.isfinite(value) for value in row.values() if isinstance(value, float)), row
    assert 0 <= row["exclusive_ns"] <= row["alone_ns"] <= row["dur_ns"]
    for name in ("flops", "bytes"):
        if row[name] is not None:
            assert 0 <= row[f"{name}_low"] <= row[name] <= row[f"{name}_high"], row
    assert row["bound"] in ("unknown", "communication") or row["problem"] is None
    assert row["bound"] not in ("memory", "compute", "latency") or row["evidence"] in tuple("ABCDEG")


# ---- junk ------------------------------------------------------------------------------------------------------------

NUMBERS = (None, 0, -1, 1, 7, 2**31, 2**62, 2**63 - 1, -(2**63))
TEXTS = (
    *(None, "", "[]", "[[]]", "{", "null", '"x"', "NaN", "[NaN,Infinity]", "[[-1,4],[4,8]]", "[[1e400],[true,null]]"),
    *("[[99999999999999999999999,4],[4,4]]", "[[2147483648,2147483648,2147483648],[4611686018427387904,1]]"),
    *("[[[8,8],[8,8]],[8,8]]", '["c10::BFloat16","c10::BFloat16"]', '["float","TensorList","Scalar"]'),
    *('{"Input Strides": "[[0,1],[1,8]]"}', '{"Input Strides": [[1,1],[1]]}', '{"finished": false}', "[" * 5000),
)
NAMES = (GEMM, ADD, "ncclDevKernel_AllReduce", "splitKreduce_kernel", "", "x\x1b[31m $\\alpha$\n\u202e" + "y" * 300)
OPS = ("aten::mm", "aten::cat", "aten::_scaled_mm", "record_param_comms", "vllm::unified_attention", "who::knows", "")


HOST: dict[str, Sequence[Any]] = {
    **{"name": OPS, **dict.fromkeys(("shapes", "dtypes", "scalars", "args"), TEXTS)},
    **dict.fromkeys(("elements_in", "elements_out", "group_size"), NUMBERS),
    **{"collective": (None, "allreduce", ""), "comm_dtype": (None, "Half"), "parent_id": (None, 1, 41, 99, 10**6)},
}
DEVICE: dict[str, Sequence[Any]] = {
    **{"kind": ("kernel", "kernel", "memcpy", "memset", "graph", "sync"), "name": NAMES, "args": TEXTS},
    **{"dur": (0, 1, 100, 9_999, 30_000), "op_id": (None, *range(1, 160, 2), 77_777), "rank": (0, 1)},
    **{"device": (0, 1, None, -3, 2**62), "stream": (7, 8, None), "step": (None, 0, 1)},
    **{"copy_kind": (None, "DtoD", "HtoD", "?"), "occupancy": (None, math.nan, math.inf, -5.0)},
    **dict.fromkeys(("bytes", "registers", "shared_memory"), NUMBERS),
    **dict.fromkeys((f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"), NUMBERS),
}


def junk(chance: random.Random) -> Iterator[Row]:
    """Host rows in circles, and device rows with whatever the columns can hold."""
    for id in range(1, 160, 2):
        said = {name: chance.choice(values) for name, values in HOST.items()}
        yield {"kind": "op", "id": id, "ts": 10 * id, "dur": 10, **said}
        yield launch(10 * id + 1, 5, id=id + 1, parent_id=id, op_id=id)
    ts = 10_000
    for id in range(1_000, 1_400):
        ts += chance.choice((0, 1, 50, 20_000))
        yield {"id": id, "ts": ts, **{name: chance.choice(values) for name, values in DEVICE.items()}}


def test_junk_raises_nothing_and_adds_up(tmp_path: Path) -> None:
    odd: dict[str, Any] = {
        "numSms": "132 SMs",
        "maxThreadsPerMultiprocessor": 0,
        "regsPerMultiprocessor": 1e300,
        "l2CacheSize": -1,
    }
    devices = [
        DeviceInfo(0, 0, "NVIDIA H100 80GB HBM3", H100),
        *(DeviceInfo(rank, 1, f"\x1b[31m$x_{rank}$", odd | {"numSms": sms}) for rank, sms in ((0, True), (1, 1e30))),
    ]
    with opened(tmp_path, list(junk(random.Random(1))), devices, {}) as trace:
        result = assert_sound(trace)
        page = Page("trace.parquet", [], 60, "#", True)
        for line in (*in_full(page, result), *overview(page, result, None)):
            assert len(line.plain) <= 60
            assert line.plain.isprintable(), line.plain
        with trace.only(rank=0, since_ns=500_000) as part:
            assert_sound(part)


def test_rows_that_claim_to_be_in_each_other() -> None:
    """A file of someone else's making may say so: it costs the answer, not forever."""
    parents = pa.table({"id": [1, 2, 3, 4], "parent_id": [2, 1, 3, 1], "has_model": [False, False, True, False]})
    parents = parents.append_column("prepares", pa.array(np.zeros(4, np.bool_)))
    found = model_calls(pa.table({"op_id": [1, 2, 3, 4, 9]}), parents)
    assert found.to_pylist() == [{"op_id": 3, "call_id": 3, "encloses": False}]


# ---- verdicts that are tempting and wrong ----------------------------------------------------------------------------


Case = tuple[str, str, Sequence[Sequence[int]], tuple[int, int], list[Row], tuple[Any, ...]]
OTHER = {"name": "beside", "stream": 9}
ATTENTION = "vllm::unified_attention_with_output"
NO_KEYS = "key lengths not recorded: taken as if nothing was cached, cache type and window not recorded"
CASES: tuple[Case, ...] = (
    # why, op, shapes, (start, length), what else ran, (bound, problem, notes)
    ("2.032 us of bytes in 9 us: slow", "aten::mm", DECODE, (0, 9_000), [], ("latency", None, None)),
    (
        *("beside another stream's work, which began after it", "aten::mm", DECODE, (0, 9_000)),
        *([kernel(1_000, 5_000, **OTHER)], ("unknown", None, "beside other streams")),
    ),
    (
        *("before another stream's work", "aten::mm", DECODE, (0, 9_000)),
        *([kernel(9_000, 5_000, **OTHER)], ("latency", None, None)),
    ),
    ("2.032 us of bytes in 1.9 us", "aten::mm", DECODE, (0, 1_900), [], ("unknown", "above roof", None)),
    ("its end was not recorded", "aten::mm", DECODE, (0, 0), [], ("unknown", None, None)),
    ("no bytes at least says nothing", "aten::mm", ([0, 8], [8, 0]), (0, 9_000), [], ("unknown", None, None)),
    # 20 us of operations on a stream with work before it:
    (
        *("in 25 us of 60 us: at its roof, as far as one can see", "aten::mm", PREFILL, (5_000, 60_000)),
        *([kernel(0, 40_000)], ("compute", None, None)),
    ),
    (
        *("in 25 us of 100 us: it may have begun long before", "aten::mm", PREFILL, (5_000, 100_000)),
        *([kernel(0, 80_000)], ("unknown", None, None)),
    ),
    (
        *("in 5 us of 40 us: it has begun before, and that is no error", "aten::mm", PREFILL, (5_000, 40_000)),
        *([kernel(0, 40_000)], ("unknown", None, "worked while the one before ran")),
    ),
    # Known are 4 tokens; before them may be a hundred thousand.
    (
        *("attention to who knows how much", ATTENTION, ([4, 8, 64], [4, 1, 64], [4, 1, 64], [4, 8, 64]), (0, 9_000)),
        *([], ("unknown", None, NO_KEYS)),
    ),
    # aten::addmm within it does the product, not what it launches itself
    ("a call around the call", "aten::linear", PREFILL, (0, 25_000), [], ("unknown", None, None)),
)


def test_verdicts(tmp_path: Path) -> None:
    """Each in a millisecond of its own, with a call of its own; the kernel's name says which."""
    rows = call(5, "aten::addmm", [1000], *PREFILL, parent_id=3)
    rows.append(work(7, 500_000, 25_000, 5, "of addmm"))
    for place, (why, name, shapes, (start, length), others, _) in enumerate(CASES, start=1):
        at, id = 1_000_000 * place, 3 if name == "aten::linear" else 20 * place
        step = {"step": 0} if name == ATTENTION else {}
        if step:
            rows.append(annotation("execute_context_2(4)_generation_0(0)", 10 * id - 1, 20, id=id + 5, **step))
        rows += [{**row, **step} for row in call(id, name, *shapes)]
        ended = {} if length else {"args": '{"finished": false}'}
        rows.append(work(20 * place + 2, at + start, length, id, why, **ended, **step))
        rows += [{**other, "ts": at + other["ts"], "id": 20 * place + 3} for other in others]
    with opened(tmp_path, rows, [DeviceInfo(0, 0, "some device", {"numSms": 100})], PEAKS) as trace:
        result = assert_sound(trace)
    found = {row["kernel"]: (row["bound"], row["problem"], row["notes"]) for row in result.table.to_pylist()}
    assert {why: found[why] for why, *_ in CASES} == {why: expected for why, *_, expected in CASES}
    moved = {row["kernel"]: row["bytes"] for row in result.table.to_pylist()}
    assert [moved[why] for why in ("its end was not recorded", "a call around the call", "of addmm")] == [
        *(0, None, 3 * 1000 * 1000 * 2 + 1000 * 2),
    ]


# ---- worked out another way ------------------------------------------------------------------------------------------


def products(chance: random.Random) -> tuple[list[Row], dict[int, tuple[str, int, int]]]:
    """Kernels on two streams of two devices of two ranks, each with a call of its own; of each math, FLOPs, bytes."""
    rows: list[Row] = []
    told: dict[int, tuple[str, int, int]] = {}
    free: Counter[tuple[int, int, int]] = Counter()
    for id in range(1, 900, 3):
        rank, device, stream = chance.randrange(2), chance.randrange(2), chance.choice((7, 7, 7, 8))
        m, k, n = (chance.choice((1, 16, 250, 1_024, 4_096)) for _ in "mkn")
        if chance.random() < 0.7:
            rows += call(id, "aten::mm", [m, k], [k, n], rank=rank)
            told[id + 2] = "bf16", 2 * m * k * n, 2 * (m * k + k * n + m * n)
        else:
            rows += call(id, "aten::add", [m, n], [m, n], dtype="float", rank=rank)
            told[id + 2] = "fp32", m * n, 4 * 3 * m * n
        math, flops, size = told[id + 2]
        least = max(size / 3.35e12, flops / (989e12 if math == "bf16" else 67e12)) * 1e9
        lane = free[rank, device, stream]
        start = max(12_000, lane + chance.choice((0, 0, 3, 2_000)) - chance.choice((0, 0, 0, 400)))
        dur = int(least * chance.choice((0.5, 1.2, 1.6, 2.2, 4, 30))) + 1
        grid = chance.choice((20, 20_000))
        rows.append(work(id + 2, start, dur, id, f"kernel {id}", rank=rank, device=device, stream=stream, grid_x=grid))
        free[rank, device, stream] = max(lane, start + dur)
    return rows, told


def differ(one: Row, other: Row) -> bool:
    return bool(one["stream"] != other["stream"])


def naive(rows: Sequence[Row], told: Mapping[int, tuple[str, int, int]], peaks: Mapping[Any, Any]) -> dict[int, Any]:
    """Of each kernel: exclusive and alone time, and the verdict, from what docs/roofline.md says."""
    found: dict[int, Any] = {}
    on_device = [row for row in rows if row["kind"] == "kernel"]
    on_device.sort(key=lambda row: (row["ts"], -row["dur"], row["id"]))
    for row in on_device:
        here = [one for one in on_device if (one["rank"], one["device"]) == (row["rank"], row["device"])]
        before = here[: here.index(row)]
        end = row["ts"] + row["dur"]
        own = max([row["ts"], *(one["ts"] + one["dur"] for one in before if one["stream"] == row["stream"])])
        first = max([row["ts"], *(one["ts"] + one["dur"] for one in before)])
        alone, exclusive = max(0, end - own), max(0, end - first)
        others = [range(max(own, one["ts"]), min(end, one["ts"] + one["dur"])) for one in here if differ(one, row)]
        beside = len({ns for other in others for ns in other})
        said = verdict(row, alone, beside, told[row["id"]], peaks[row["rank"], row["device"]])
        found[row["id"]] = exclusive, alone, said
    return found


def verdict(row: Row, alone: int, beside: int, told: tuple[str, int, int], peaks: Any) -> str:
    math, flops, size = told
    memory = 1e9 * size / (peaks.bandwidth * peaks.achievable["bandwidth"])
    compute = 1e9 * flops / (peaks.flops[math] * peaks.achievable[math])
    sheet = 1e9 * max(size / peaks.bandwidth, flops / peaks.flops[math])
    if not alone or sheet > 1.05 * alone:
        return "above roof" if sheet > 1.05 * row["dur"] else "unknown"
    roof = max(memory, compute)
    if roof >= 0.6 * max(alone, row["dur"] / 2):
        return "memory" if memory >= compute else "compute"
    # 16 blocks of 128 threads fit on a multiprocessor: a grid of 20 leaves it nearly empty.
    is_small = row["grid_x"] == 20 or row["dur"] < 10_000
    return "latency" if roof < 0.4 * alone and is_small and beside <= 0.1 * alone else "unknown"


def test_as_worked_out_naively(tmp_path: Path) -> None:
    rows, told = products(random.Random(7))
    devices = [
        DeviceInfo(rank, device, *(("NVIDIA H100 80GB HBM3", H100), ("NVIDIA A100-SXM4-80GB", A100))[rank ^ device])
        for rank in (0, 1)
        for device in (0, 1)
    ]
    with opened(tmp_path, rows, devices, {}) as trace:
        result = assert_sound(trace)
        expected = naive(rows, told, trace.peaks())
        with trace.only(since_ns=40_000, until_ns=90_000, rank=1) as part:
            assert_sound(part)
    table = {row["example_id"]: row for row in result.table.to_pylist()}
    assert {row["evidence"] for row in table.values()} == {"B"}
    assert {id: (row["math"], row["flops"], row["bytes"]) for id, row in table.items()} == told
    shown = {id: (row["exclusive_ns"], row["alone_ns"], row["problem"] or row["bound"]) for id, row in table.items()}
    assert shown == expected
    assert {bound for *_, bound in expected.values()} == {"memory", "compute", "latency", "unknown", "above roof"}
