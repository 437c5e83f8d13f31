"""Traces that lend work in, the work of kernels without shapes out: captures, like kernels, the model, ranges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.event_rows import annotation, footer_of, kernel, launch, op, write_trace
from tests.model_configs import TINY
from tracekit.footer import SourceInfo
from tracekit.roofline_lend import lent_work
from tracekit.trace import Trace

Row = dict[str, Any]
BEGIN, END, LAUNCH = "cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaLaunchKernel"
GRID: Row = {"grid_x": 8, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}
ATTENTION = "vllm::unified_attention_with_output"
IN_ORDER, SAME, OWN = "capture trace, in order", "capture trace, same kernel", "same kernel elsewhere in the trace"
HERE = "captured in the trace, in order"
UNSIZED = "batch at which it was seen not known"


def opened(folder: Path, rows: Sequence[Row], *lenders: Sequence[Row] | Path, **more: Any) -> Trace:
    paths = [
        one if isinstance(one, Path) else write_trace(folder / f"lender{at}.parquet", one)
        for at, one in enumerate(lenders)
    ]
    footer = footer_of(rows, **({"sources": more.pop("sources")} if "sources" in more else {}))
    return tracekit.open(write_trace(folder / "trace.parquet", rows, footer), capture_trace=paths, **more)


def mapped(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    """Rows of mapped_work by id."""
    with closing(trace):
        rows = trace.sql("FROM mapped_work ORDER BY id").to_pylist()
    return [tuple(row[column] for column in ("id", *columns)) for row in rows]


# ---- what is captured, and what is replayed --------------------------------------------------------------------------


def said(*shapes: Sequence[int]) -> Row:
    return {"shapes": json.dumps(shapes), "dtypes": json.dumps(["c10::BFloat16"] * len(shapes))}


def product(rows: int) -> tuple[str, Row]:
    return "aten::mm", said([rows, 1000], [1000, 1000])


def attention(rows: int) -> tuple[str, Row]:
    return ATTENTION, said([rows, 8, 64], [rows, 1, 64], [rows, 1, 64], [rows, 8, 64])


def captured(first: int, at: int, *ops: tuple[str, Row], end: bool = True, launches: int = 1) -> list[Row]:
    """A capture, its ids from `first` on: a launch (or several) for each op, a copy at last."""
    found: list[Row] = [launch(at, 1, name=BEGIN, id=first)]
    for number, (name, columns) in enumerate(ops, start=1):
        ts, id = at + 100 * number, first + 10 * number
        found.append(op(ts, 50, id=id, name=name, **columns))
        found += [launch(ts + 10 * k, 5, id=id + k, parent_id=id, op_id=id) for k in range(1, launches + 1)]
    last = at + 100 * len(ops) + 100
    found.append(launch(last, 5, name="cudaMemcpyAsync", id=first + 8))
    return [*found, launch(last + 10, 5, name=END, id=first + 9)] if end else found


def replayed(step: int, requests: int, keys: int, kernels: int = 2, odd: str = "", **columns: Any) -> list[Row]:
    """A step of decode that launches a graph of kernels and a copy; the ids of its rows from 100 * step on. odd: name
    of every second kernel.
    """
    at, first = 100_000 * (step + 1), 100 * step + 50_000
    mark = "execute_0_context_0(sq0sk0sqsq0sqsk0)_generation_"
    mark += f"{requests}(sq{requests}sk{keys}sqsq{requests}sqsk{keys})"
    by = {"launch_id": first + 51}
    return [
        annotation(mark, at, 90_000, id=first + 50),
        launch(at + 1, 5, name="cudaGraphLaunch", id=first + 51),
        # Nodes in the order of the capture, whatever ran first.
        *(
            kernel(
                at + 100 * (9 - k),
                90,
                id=first + k,
                name=odd if odd and k % 2 else f"k{k}",
                graph_node_id=k,
                **by,
                **columns,
            )
            for k in range(kernels)
        ),
        {"kind": "memcpy", "ts": at + 5_000, "dur": 9, "id": first + 20, "graph_node_id": 20, "bytes": 8, **by},
    ]


def test_replays_do_what_was_captured(tmp_path: Path) -> None:
    """Graphs of 8 and of 16 requests with two kernels and a copy, beside those that tell nothing: whose op launches
    three kernels that do the same, that has no end, that another thread filled. Each would fit a replay by its length.
    Steps of 2 requests, which the graph of 8 holds; of 12, which that of 16 holds; of 20, which none holds.
    """
    within = {"name": "cuLaunchKernel", "parent_id": 1_011, "op_id": 1_010}  # launches nothing of its own
    graphs = [
        *captured(1_000, 0, product(8), attention(8)),
        launch(112, 1, id=7, **within),
        *captured(2_000, 10_000, product(16), attention(16)),
        *captured(6_000, 60_000, *[product(8)] * 3, launches=2),
    ]
    filled = captured(5_000, 50_000, *[product(8)] * 5)
    useless = [
        *captured(3_000, 20_000, product(8), launches=3),
        *captured(4_000, 30_000, *[product(8)] * 4, end=False),
        *(row if row["kind"] == "op" or row["name"] in (BEGIN, END) else {**row, "tid": 2} for row in filled),
    ]
    rows = [*replayed(0, 2, 3_000), *replayed(1, 12, 40_000), *replayed(2, 20, 60_000)]
    rows += [row for kernels in (1, 3, 4, 5) for row in replayed(kernels + 2, 2, 500, kernels=kernels)]
    rows += replayed(8, 2, 500, kernels=6, odd="splitKreduce_kernel")
    found = mapped(opened(tmp_path, rows, [*graphs, *useless]), "part", "flops_expected", "bytes", "kv_bytes", "how")
    # Keys and values of a token: (64 + 64) * 2 bytes. What is attended to is the step's, not the capture's.
    assert [row[:3] for row in found[:4]] == [
        (50_000, "aten::mm", 2 * 8 * 1000 * 1000),
        (50_001, ATTENTION, 2 * 3_000 * 8 * (64 + 64)),
        (50_100, "aten::mm", 2 * 16 * 1000 * 1000),
        (50_101, ATTENTION, 2 * 40_000 * 8 * (64 + 64)),
    ]
    assert [row[4] for row in found[:4]] == [0, 3_000 * (64 + 64) * 2, 0, 40_000 * (64 + 64) * 2]
    assert [row[3] for row in found[:3:2]] == [2 * (rows * 1000 + 1000 * 1000 + rows * 1000) for rows in (8, 16)]
    # Each product ran in two kernels, of which the second adds up what the first has left.
    assert [row[:3] for row in found[4:]] == [(50_800 + at, "aten::mm", 2 * 8 * 1000 * 1000) for at in (0, 2, 4)]
    assert {row[5] for row in found} == {IN_ORDER}


# ---- the same kernel -------------------------------------------------------------------------------------------------


def eager(name: str, id: int, size: int, tokens: int | None) -> list[Row]:
    """A kernel of a product in a step of so many tokens, or outside all, on a thread without any."""
    at = 10 * id
    caller, columns = product(size)
    host = {"tid": 2 if tokens is None else 1}
    return [
        *([annotation(f"execute_context_0(0)_generation_{tokens}({tokens})", at, 500, id=id)] if tokens else []),
        op(at + 1, 20, id=id + 1, name=caller, **host, **columns),
        launch(at + 2, 5, id=id + 2, parent_id=id + 1, op_id=id + 1, **host),
        kernel(at + 600, 50, id=id + 3, name=name, launch_id=id + 2, op_id=id + 1, **GRID),
    ]


def test_the_same_kernel_elsewhere(tmp_path: Path) -> None:
    """Kernels in a step of 8 tokens, named for what the other trace has seen each do; it goes before the trace itself.
    A graph that was captured in the trace goes before what is seen there.
    """
    seen = [
        ("sized", 16, 8),
        ("of another size", 16, 9),
        ("unsized", 16, None),
        ("two works", 16, None),
        ("two works", 32, None),
        ("also of others", 16, 8),
    ]
    lender = [row for at, one in enumerate(seen, start=1) for row in eager(one[0], 100 * at, *one[1:])]
    strange = eager("also of others", 90_000, 16, 8)
    lender += [{**row, "name": "custom::op"} if row["kind"] == "op" else row for row in strange]
    names = ["sized", "of another size", "unsized", "two works", "also of others", "seen here"]
    rows = [
        annotation("execute_context_0(0)_generation_8(8)", 0, 90_000, id=2),
        launch(1, 5, name="cudaLaunchKernel", id=1),
        *(kernel(90_000 + at, 9, id=90_000 + at, name=name, launch_id=1, **GRID) for at, name in enumerate(names)),
        *eager("seen here", 80_000, 64, 8),
        *eager("sized", 81_000, 32, 8),
        *eager("k0", 82_000, 64, 8),
        *({**row, "ts": row["ts"] + 5_000_000} for row in captured(1_000, 0, product(8), product(8))),
        *({**row, "ts": row["ts"] + 6_000_000} for row in replayed(0, 8, 9, **GRID)),
    ]
    assert mapped(opened(tmp_path, rows, lender), "flops", "notes", "how") == [
        (50_000, 2 * 8 * 1000 * 1000, "", HERE),
        (50_001, 2 * 8 * 1000 * 1000, "", HERE),
        (90_000, 2 * 16 * 1000 * 1000, "", SAME),
        (90_002, 2 * 16 * 1000 * 1000, UNSIZED, SAME),
        (90_005, 2 * 64 * 1000 * 1000, "", OWN),
    ]


def test_rules_of_the_user_hold_in_the_lender_too(tmp_path: Path) -> None:
    """They match nothing in one of the two: that is no mistake, and no warning."""
    files = [write_trace(tmp_path / f"{name}.parquet", [kernel(9, 9, name=name)]) for name in ("mine", "other")]
    rules = tmp_path / "own.toml"
    rules.write_text('[[rule]]\ncategory = "gemm"\nsubcategory = "splitk_reduce"\npattern = "_mine_"\n')
    query = "SELECT category FROM kernel_classes"
    with (
        tracekit.open(files[0], rules=[rules]) as trace,
        trace.beside_it(files[0]) as same,
        trace.beside_it(files[1]) as other,
    ):
        assert [one.sql(query).to_pylist()[0]["category"] for one in (same, other)] == ["gemm", "other"]


# ---- the model -------------------------------------------------------------------------------------------------------

_LAYER = ["nvjet_qkv", "flash_fwd_splitkv_kernel", "nvjet_o", "nvjet_gate_up", "act_and_mul_kernel", "nvjet_down"]


@pytest.mark.parametrize(("asked", "devices", "note"), [(None, 2, ", tensor parallel over 2 assumed"), (1, 1, "")])
def test_the_model_is_split_over_the_ranks(tmp_path: Path, asked: int | None, devices: int, note: str) -> None:
    """A step of 3 requests of a model of two layers, in one of two ranks."""
    names = [*_LAYER, *_LAYER, "nvjet_head"]
    rows = [
        annotation("execute_context_0(0)_generation_3(3)", 0, 900, id=1, step=0),
        launch(1, 5, name="cudaGraphLaunch", id=2, step=0),
        *(kernel(100 * at, 90, id=at, name=name, launch_id=2, step=0) for at, name in enumerate(names, start=10)),
    ]
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    sources = (SourceInfo("a.json", "kineto", 0, "assigned", world_size=2),)
    trace = opened(tmp_path, rows, model=tmp_path / "config.json", tensor_parallel=asked, sources=sources)
    found = {part: rest for _, part, *rest in mapped(trace, "part", "flops", "notes")}
    # 3 tokens, hidden size 8, width 16; a vocabulary of 32
    assert found["down"] == [2 * 3 * 16 * 8 // devices, f"padding not counted{note}"]
    assert found["lm_head"][0] == 2 * 3 * 8 * 32 // devices


def told(trace: Trace) -> tuple[bool, list[tuple[Any, ...]]]:
    """Whether anything is lent, and rows of lending_remarks."""
    with closing(trace):
        lent = lent_work(trace)
    return len(lent.mapped) > 0, [tuple(row.values()) for row in lent.remarks.to_pylist()]


def modelled(folder: Path, said: Row, *more: Row, layers: int = 2) -> tuple[list[Row], Path]:
    """A step of so many layers in a graph, with other rows, and a config.json."""
    names = [*_LAYER * layers, "nvjet_head"]
    rows = [
        annotation("execute_context_0(0)_generation_3(3)", 0, 900, id=1, step=0),
        launch(1, 5, name="cudaGraphLaunch", id=2, step=0),
        *(kernel(100 * at, 90, id=at, name=name, launch_id=2, step=0) for at, name in enumerate(names, start=10)),
        *more,
    ]
    file = folder / "config.json"
    file.write_text(json.dumps(TINY | said))
    return rows, file


ARGMAX = {"name": "aten::argmax", "shapes": "[[3, 2048], [], []]", "step": 0}
AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 8}}
NOT_NAMED = "weights of 4 bits (awq), but no kernel of a product is named for such in the trace: not used"


@pytest.mark.parametrize(
    ("said", "more", "layers", "remarks"),
    [
        ({}, (), 3, [("model", "2 layers, but 3 attention kernels in a step: not used", 1)]),
        (
            {},
            (op(3, 1, id=3, **ARGMAX),),
            2,
            [("model", "a vocabulary of 32, but logits of 2048 in the trace: not used", None)],
        ),
        (AWQ, (), 2, [("model", NOT_NAMED, None)]),
    ],
)
def test_why_a_model_tells_nothing(
    tmp_path: Path, said: Row, more: tuple[Row, ...], layers: int, remarks: list[Any]
) -> None:
    rows, file = modelled(tmp_path, said, *more, layers=layers)
    assert told(opened(tmp_path, rows, model=file)) == (False, remarks)


def test_why_other_things_given_tell_nothing(tmp_path: Path) -> None:
    """A capture of three products where a graph of two replays; a kernel that takes twice as long as there."""
    rows = [*replayed(0, 2, 3_000, **GRID), launch(5, 1, name=LAUNCH, id=7)]
    rows.append(kernel(90_000, 20_000, id=8, name="slow", launch_id=7, **GRID))
    lender = [*captured(1_000, 0, *[product(8)] * 3), *eager("slow", 300, 16, None)]
    lender[-1] |= {"dur": 10_000}
    trace = opened(tmp_path, rows, lender, [kernel(9, 9)], tensor_parallel=2)
    nothing = "no kernel or graph in it tells of any here that is without work"
    assert told(trace)[1] == [
        (str(tmp_path / "lender0.parquet"), "1 replay of graphs not told: no capture has as many kernels", None),
        (str(tmp_path / "lender0.parquet"), "1 kind of kernels took another time there: not lent", None),
        (str(tmp_path / "lender0.parquet"), nothing, None),
        (str(tmp_path / "lender1.parquet"), nothing, None),
        ("tensor parallel", "it divides the sizes of a model, and no --model was given: not used", None),
    ]


def test_a_model_knows_of_windows(tmp_path: Path) -> None:
    """Attention outside the graphs, by an op that tells of no window; every other layer of the model has one of 4."""
    mark = "execute_0_context_0(sq0sk0sqsq0sqsk0)_generation_3(sq3sk60sqsq3sqsk60)"
    rows = [annotation(mark, 0, 900, id=1, step=0), launch(1, 5, name="cudaGraphLaunch", id=2, step=0)]
    for at, name in enumerate([*_LAYER * 2, "nvjet_head"], start=10):
        by: Row = {"launch_id": 2}
        if name.startswith("flash"):
            heads = said([3, 4, 2], [3, 2, 2], [3, 2, 2], [3, 4, 2])
            rows.append(op(10 * at, 9, id=100 * at, name=ATTENTION, step=0, **heads))
            rows.append(launch(10 * at + 1, 1, name=LAUNCH, id=100 * at + 1, op_id=100 * at, step=0))
            by = {"launch_id": 100 * at + 1, "op_id": 100 * at}
        rows.append(kernel(1_000 * at, 90, id=at, name=name, step=0, **by))
    windows = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
    (tmp_path / "windows.json").write_text(json.dumps(TINY | windows))
    (tmp_path / "plain.json").write_text(json.dumps(TINY))
    found = [
        {part: counts for _, part, *counts in mapped(opened(tmp_path, rows, model=tmp_path / file), *columns)}
        for file in ("windows.json", "plain.json")
        for columns in [("part", "flops", "flops_expected", "flops_high")]
    ]
    pairs = 2 * 4 * (2 + 2)
    attention = {part: counts for part, counts in found[0].items() if "attention" in part}
    # 3 requests of 60 keys: at least one has 58, of which it sees 4, and the others their own.
    assert attention == {"attention, window 4": [6 * pairs, 12 * pairs, 12 * pairs], "attention": [60 * pairs] * 3}
    assert found[1].keys() == found[0].keys() - attention.keys()


# ---- raw files -------------------------------------------------------------------------------------------------------


def raw(path: Path, events: Sequence[Row]) -> Path:
    path.write_text(
        json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "X", "pid": 9, "tid": 1, **one} for one in events]})
    )
    return path


def call(ts: float, name: str, correlation: int) -> Row:
    return {"cat": "cuda_runtime", "name": name, "ts": ts, "dur": 0.5, "args": {"correlation": correlation}}


def cpu_op(ts: float, name: str, shapes: list[list[int]], dtype: str = "c10::BFloat16") -> Row:
    args = {"External id": int(ts), "Input Dims": shapes, "Input type": [dtype] * len(shapes)}
    return {"cat": "cpu_op", "name": name, "ts": ts, "dur": 5, "args": args}


def device_row(ts: float, name: str, correlation: int, **more: Any) -> Row:
    args = {"device": 0, "stream": 7, "correlation": correlation, "grid": [8, 1, 1], "block": [128, 1, 1], **more}
    return {"cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 5, "args": args}


# ---- ranges ----------------------------------------------------------------------------------------------------------

READ, WRITE, TENSOR = "dram__bytes_read.sum", "dram__bytes_write.sum", "sm__inst_executed_pipe_tensor.sum"
FLOPS = {f"smsp__sass_thread_inst_executed_op_f{name}_pred_on.sum": 10.0 for name in ("add", "mul", "fma")}
ADDED = [[1000, 1000], [1000, 1000]]


def ranges(*kernels: tuple[str, str, list[list[int]], str, dict[str, float]]) -> list[Row]:
    """What torch.profiler wrote of kernels, ops, shapes, type and counters: a call and a range for each."""
    events: list[Row] = []
    for at, (name, caller, shapes, dtype, counted) in enumerate(kernels):
        place = {"cat": "cuda_profiler_range", "pid": 0, "tid": 0, "ts": 5_000 + 10 * at, "dur": 10}
        events += [
            cpu_op(10 * at + 1, caller, shapes, dtype),
            call(10 * at + 2, LAUNCH, at),
            {"name": name, "args": counted, **place},
        ]
    return events


def eager_and_replayed(kernels: Sequence[tuple[str, str, list[list[int]], str]]) -> list[Row]:
    """Kernels of ops of these shapes and types, and then a graph of two that no op tells of."""
    events: list[Row] = []
    for at, (name, caller, shapes, dtype) in enumerate(kernels):
        events += [cpu_op(10 * at + 1, caller, shapes, dtype), call(10 * at + 2, LAUNCH, at)]
        events.append(device_row(9_000 + 10 * at, name, at))
    events.append(call(100, "cudaGraphLaunch", 99))
    return events + [device_row(9_100 + 10 * at, f"k{at}", 99, **{"graph node id": at}) for at in (1, 2)]


# A graph that is captured while nothing runs on the device.
START = [
    call(1, BEGIN, 1),
    cpu_op(10, "aten::mm", [[8, 1000], [1000, 1000]]),
    call(11, LAUNCH, 2),
    cpu_op(20, "aten::add", [[8, 1000], [8, 1000]]),
    call(21, LAUNCH, 3),
    call(30, END, 4),
]


def test_files_of_the_profiler(tmp_path: Path) -> None:
    """What ranges measured is evidence for the same kernel, op, shapes and types alone: the median of three launches. A
    server's start, profiled without device rows, tells what the replay of a graph does.
    """
    bytes_of = [{READ: 100.0 * at, WRITE: 11.0} for at in (1, 2, 9)]
    heads = [[2, 8, 64], [2, 1, 64], [2, 1, 64], [2, 8, 64]]
    lender = ranges(
        *(("add", "aten::add", ADDED, "float", {**one, **FLOPS, TENSOR: 0.0}) for one in bytes_of),
        ("mm", "aten::mm", ADDED, "c10::BFloat16", {READ: 64.0, WRITE: 64.0, TENSOR: 5.0}),
        ("half", "aten::add", ADDED, "c10::BFloat16", {**FLOPS, TENSOR: 0.0}),  # half precision was not counted
        ("attention", ATTENTION, heads, "c10::BFloat16", {READ: 64.0, WRITE: 64.0}),  # elsewhere it attends to others
        ("huge", "aten::add", ADDED, "float", {READ: 1e300, WRITE: 0.0}),
        ("blind", "aten::add", [], "float", {READ: 64.0, WRITE: 64.0}),
    )
    del lender[-3]["args"]["Input Dims"]
    events = eager_and_replayed(
        [
            ("add", "aten::add", ADDED, "float"),
            ("add", "aten::add", [[1000, 1000], [1000, 1]], "float"),
            ("add2", "aten::add", ADDED, "float"),
            ("mm", "aten::mm", ADDED, "c10::BFloat16"),
            ("half", "aten::add", ADDED, "c10::BFloat16"),
        ]
    )
    beside = [raw(tmp_path / "start.json", START), raw(tmp_path / "ranges.json", lender)]
    with tracekit.open(raw(tmp_path / "trace.json", events), capture_trace=beside) as trace:
        measured = trace.sql("SELECT kernel, op, bytes, flops FROM measured_work ORDER BY ALL").to_pylist()
        query = "SELECT flops, bytes, bytes_low, bytes_high, evidence, how FROM work_rows() ORDER BY id"
        found = [tuple(row.values()) for row in trace.sql(query).to_pylist()]
    assert [tuple(row.values()) for row in measured] == [
        ("add", "aten::add", 211, 10 + 10 + 2 * 10),
        ("mm", "aten::mm", 128, None),
    ]
    sums, by_shapes = 1_000_000, ("B", "op shapes")
    moved, less = 3 * sums * 4, 2 * sums * 4 + 1000 * 4
    product_bytes, sum_bytes = 2 * (8_000 + sums + 8_000), 2 * 3 * 8_000
    assert found == [
        (40, 211, 211, 211, "A", "CUPTI ranges"),
        (sums, less, less, less, *by_shapes),
        (sums, moved, moved, moved, *by_shapes),
        (2 * 1000 * sums, 128, 128, 128, "A", "CUPTI ranges"),
        (sums, moved // 2, moved // 2, moved // 2, *by_shapes),
        (2 * 8 * sums, *[product_bytes] * 3, "D", IN_ORDER),
        (8_000, *[sum_bytes] * 3, "D", IN_ORDER),
    ]
