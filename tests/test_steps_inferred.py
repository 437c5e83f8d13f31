"""Launches in, steps out: what the host repeats, and nothing where it repeats nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import tracekit
from tests.event_rows import annotation, kernel, launch, op, write_trace
from tests.simulator import simulate
from tests.simulator_model import Mode, Run
from tracekit.convert import convert
from tracekit.restep import restep
from tracekit.steps import NONE, Ranges
from tracekit.steps_inferred import Launches, inferred_steps

ARGMAX = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>"
TOP_P = "void flashinfer::sampling::TopPSamplingFromProbKernel<1024u>"
TO_HOST = "Memcpy DtoH (Device -> Pinned)"
Call = str | tuple[str, int]  # name of the kernel that it starts; or of one in a graph that it replays, and its id
DECODE = ["embed", "gemm", "gemm", ARGMAX]
PREFILL = ["embed", "gemm", "big gemm", ARGMAX]


def calls(names: Sequence[Call], at: int = 0, **columns: Any) -> list[dict[str, Any]]:
    """A call of 5 ns every 10 ns. A graph of id 0 is one whose id was not recorded."""
    rows: list[dict[str, Any]] = []
    for number, one in enumerate(names):
        name, graph = one if isinstance(one, tuple) else (one, None)
        ts, identity = at + 10 * number, 2 * (at + number) + 1
        api = "cudaLaunchKernel" if graph is None else "cudaGraphLaunch"
        rows.append(launch(ts, 5, id=identity, name=api, **columns))
        place = {"rank": columns["rank"]} if "rank" in columns else {}
        rows.append(kernel(ts + 20, 1, id=identity + 1, name=name, launch_id=identity, graph_id=graph or None, **place))
    return rows


def steps(folder: Path, *rows: dict[str, Any]) -> list[tuple[Any, ...]]:
    """First and last launch by place, and where the step ends."""
    with tracekit.open(write_trace(folder / "trace.parquet", rows)) as trace:
        found = trace.sql("SELECT ts // 10, (ts + dur - 5) // 10, until_ts FROM steps ORDER BY rank, step")
        return [tuple(row.values()) for row in found.to_pylist()]


@pytest.mark.parametrize("rows", [[], calls(["gemm"]), [launch(0, 5)], [kernel(0, 5)]], ids=len)
def test_nothing_repeats(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    assert steps(tmp_path, *rows) == []


def test_steps_end_with_the_sampling_of_tokens(tmp_path: Path) -> None:
    """The stretch before the first, which is none of them, is no step, nor is what comes after the last."""
    rows = [
        *calls([ARGMAX, *DECODE, *PREFILL, *DECODE, "gemm", "gemm"]),
        op(131, 1),
        op(21, 1, tid=2),
        op(48, 1, tid=2),
    ]
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        found = trace.sql("FROM steps").to_pylist()
        column = trace.sql("SELECT step FROM kernels ORDER BY ts").column("step").to_pylist()
        host = trace.sql("SELECT step FROM ops ORDER BY id").column("step").to_pylist()
    unknown = dict.fromkeys([name for name in found[0] if name.startswith(("prefill_", "decode_"))])
    label = {"rank": 0, "phase": "unknown", "source": "inferred", "id": None, "pid": 1, "tid": 1} | unknown
    assert found == [
        label | {"step": 0, "ts": 10, "dur": 35, "until_ts": 50},
        label | {"step": 1, "ts": 50, "dur": 35, "until_ts": 90},
        label | {"step": 2, "ts": 90, "dur": 35, "until_ts": 125},
    ]
    assert column == [None, *[0] * 4, *[1] * 4, *[2] * 4, None, None]
    assert host == [None, 0, None]


def test_the_first_stretch_is_a_step_if_it_is_like_the_others(tmp_path: Path) -> None:
    assert steps(tmp_path, *calls(DECODE * 3)) == [(0, 3, 40), (4, 7, 80), (8, 11, 115)]


def test_copies_of_the_tokens_to_the_host_are_part_of_the_step(tmp_path: Path) -> None:
    step = [*DECODE, TO_HOST, TO_HOST]
    assert steps(tmp_path, *calls(step * 3)) == [(0, 5, 60), (6, 11, 120), (12, 17, 175)]


def test_of_several_sampling_kernels_the_last(tmp_path: Path) -> None:
    step = ["gemm", "gemm", "gemm", TOP_P, "scale", ARGMAX]
    assert steps(tmp_path, *calls(step[4:] + step * 3)) == [(2, 7, 80), (8, 13, 140), (14, 19, 195)]


def test_a_kernel_that_samples_twice_in_a_step_ends_none(tmp_path: Path) -> None:
    """If there is another that does so once."""
    step = ["gemm", ARGMAX, "gemm", "gemm", ARGMAX, TOP_P, "copy"]
    assert steps(tmp_path, *calls(step * 4)) == [(6, 12, 130), (13, 19, 200), (20, 26, 265)]


@pytest.mark.parametrize("graph", [0, 9], ids=["no id", "id"])
def test_a_whole_step_in_a_graph(tmp_path: Path, graph: int) -> None:
    replay = ("gemm", graph)
    assert steps(tmp_path, *calls([replay] * 3)) == [(0, 0, 10), (1, 1, 20), (2, 2, 25)]
    step: list[Call] = ["copy", replay, "scale"]
    assert steps(tmp_path, *calls(step * 4)) == [(2, 4, 50), (5, 7, 80), (8, 10, 105)]


def test_a_graph_for_each_layer(tmp_path: Path) -> None:
    """A step is no layer: with ids one sees which graph is the last, without them there is no telling."""
    graphs: list[Call] = [("gemm", 11), ("gemm", 12), ("gemm", 13)]
    step: list[Call] = ["embed", graphs[0], "attention", graphs[1], "attention", graphs[2], "scale"]
    assert steps(tmp_path, *calls(step * 4)) == [(6, 12, 130), (13, 19, 200), (20, 26, 265)]
    unknown: list[Call] = [("gemm", 0) if one in graphs else one for one in step]
    assert steps(tmp_path, *calls(unknown * 4)) == []


def test_one_kernel_in_a_loop_makes_no_steps(tmp_path: Path) -> None:
    assert steps(tmp_path, *calls([TOP_P] * 30)) == []


def test_ranks_with_marks_are_left_alone_and_threads_with_few_launches(tmp_path: Path) -> None:
    rows = [
        *calls(DECODE * 4),
        *calls([*DECODE * 3, "a", "b", "c"], 1_000, rank=1),
        *calls(DECODE * 3, 2_000, rank=1, tid=2),
        annotation("ProfilerStep#1", 0, 500),
    ]
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        found = trace.sql(
            "SELECT rank, source, tid, count(*) AS count FROM steps GROUP BY ALL ORDER BY ALL"
        ).to_pylist()
    assert [tuple(row.values()) for row in found] == [(0, "ProfilerStep", 1, 1), (1, "inferred", 1, 3)]


@pytest.mark.parametrize("seed", range(300))
def test_random_work_has_no_steps(seed: int) -> None:
    draw = random.Random(seed)
    names = [TOP_P, ARGMAX, "gemm", "norm", "copy", "a graph", "another", "and another"][: draw.randint(3, 8)]
    name = np.array(draw.choices(range(len(names)), k=draw.randint(60, 400)))
    place = np.arange(len(name))
    same = np.zeros(len(name), np.int64)
    replays = np.array(["a" in names[one].split() or "another" in names[one] for one in name])
    graph_id = np.where(replays, name, NONE) if seed % 2 else same + NONE
    launches = Launches.of(
        Ranges(place, same, same, same, 10 * place, same + 5), replays, names, (place, name, graph_id)
    )
    assert len(inferred_steps(launches)) == 0


@pytest.mark.parametrize("mode", ["eager", "full_graph", "piecewise_graph"])
def test_simulated_steps_are_found_again(tmp_path: Path, mode: Mode) -> None:
    """And the column is the same however it is filled."""
    truth = simulate(Run(mode=mode, marks="none", steps=8, ranks=2, streams=2), tmp_path / "ranks")
    with tracekit.open(converted_alike(tmp_path, tmp_path / "ranks")) as trace:
        shift = trace.footer.origin_ns - truth.base_ns
        found = trace.sql("SELECT rank, step, ts, dur, source FROM steps ORDER BY rank, step").to_pylist()
    expected = [(step.rank, step.index, step.ts - shift, step.dur, "inferred") for step in truth.steps]
    assert [tuple(row.values()) for row in found] == expected
    assert len(expected) == 2 * 7, "all but the prefill at the start"


def converted_alike(folder: Path, *sources: Path) -> Path:
    """A file whose column is the same after filling it again."""
    convert(sources, folder / "trace.parquet")
    restep(folder / "trace.parquet", folder / "again.parquet", None)
    assert pq.read_table(folder / "again.parquet").equals(pq.read_table(folder / "trace.parquet"))
    return folder / "trace.parquet"


def events(label: str, start: int) -> list[dict[str, Any]]:
    """Three steps, 40 us apart, as one of the processes in a merged file has them; all use the same correlations."""
    found: list[dict[str, Any]] = []
    for place, name in enumerate(DECODE * 3):
        row = {"ph": "X", "dur": 5, "args": {"correlation": 500 + place}, "ts": start + 10 * place}
        found.append(row | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": f"[{label}] 7", "tid": 1})
        found.append(row | {"cat": "kernel", "name": name, "pid": f"[{label}] 0", "tid": 7})
    return found


def test_two_files_of_a_rank_and_two_ranks_in_a_file(tmp_path: Path) -> None:
    paths = [tmp_path / "0.json", tmp_path / "1.json"]
    paths[0].write_text(json.dumps({"traceEvents": [*events("TP00", 0), *events("TP01", 5)]}))
    paths[1].write_text(json.dumps({"traceEvents": events("TP00", 300)}))
    with tracekit.open(converted_alike(tmp_path, *paths)) as trace:
        found = trace.sql("SELECT rank, step, ts // 1000 FROM steps ORDER BY ALL").to_pylist()
        kernels = trace.sql("SELECT rank, step, count(*) FROM kernels GROUP BY ALL ORDER BY ALL").to_pylist()
    starts = [(0, 0), (0, 40), (0, 80), (0, 300), (0, 340), (0, 380), (1, 5), (1, 45), (1, 85)]
    numbers = [*range(6), *range(3)]
    expected = [(rank, number, ts) for (rank, ts), number in zip(starts, numbers, strict=True)]
    assert [tuple(row.values()) for row in found] == expected
    assert [tuple(row.values()) for row in kernels] == [(rank, number, 4) for rank, number, _ in expected]


def test_marks_of_one_rank_do_not_serve_the_others(tmp_path: Path) -> None:
    mark = {
        "ph": "X",
        "cat": "user_annotation",
        "name": "ProfilerStep#1",
        "pid": "[TP01] 7",
        "tid": 1,
        "ts": 0,
        "dur": 50,
    }
    path = tmp_path / "merged.json"
    path.write_text(json.dumps({"traceEvents": [*events("TP00", 0), *events("TP01", 5), mark]}))
    with tracekit.open(converted_alike(tmp_path, path)) as trace:
        found = trace.sql("SELECT rank, step, source FROM steps ORDER BY ALL").to_pylist()
    assert [tuple(row.values()) for row in found] == [
        (0, 0, "inferred"),
        (0, 1, "inferred"),
        (0, 2, "inferred"),
        (1, 0, "ProfilerStep"),
    ]
