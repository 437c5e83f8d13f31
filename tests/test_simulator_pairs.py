"""What simulated engines fuse and capture, what keeps them from it, and pairs of runs before and after a change."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

import tracekit
from tests.naive import load
from tests.pairs import FULL_GRAPH, GPU_BOUND, LAUNCH_BOUND, MANY_REQUESTS, PADDED, PIECEWISE, fusion, pair
from tests.simulator import TINY, Plant, Run, main, play, simulate
from tests.simulator_host import Work
from tests.simulator_model import Fusion
from tracekit.classify import classify_kernel

TOKENS, KV = 8, 4 * 32  # of the step below
HIDDEN, MLP = 256 * TOKENS * 2, 688 * TOKENS * 2  # bytes of its tensors
STEP = Run(model=replace(TINY, layers=1), batch=TOKENS, steps=2)


def decode(run: Run) -> list[Work]:
    """The device work of the run's second step."""
    return [work for work in play(run)[0].played if work.step == 1]


def short(work: Work) -> str:
    """The word of a kernel's name that tells what it does."""
    word = re.search(
        r"fused_add_rms_norm|rms_norm|rotary|fused_rope_store|reshape_and_cache|act_and_mul|silu|CUDAFunctor(OnSelf)?_add|"
        r"MulFunctor|pow|Mean|rsqrt|bfloat16_copy|direct_copy",
        work.kernel.name,
    )
    return word[0] if word else ""


EAGER_NORM = [
    ("direct_copy", 3 * HIDDEN), ("pow", 4 * HIDDEN), ("Mean", 2 * HIDDEN + 4 * TOKENS), ("CUDAFunctorOnSelf_add", 64),
    ("rsqrt", 64), ("MulFunctor", 4 * HIDDEN + 4 * TOKENS), ("bfloat16_copy", 3 * HIDDEN),
    ("MulFunctor", 2 * HIDDEN + 2 * 256),
]  # fmt: skip
ADD = ("CUDAFunctor_add", 3 * HIDDEN)
QUERIES, KEYS = HIDDEN, KV * TOKENS * 2
PLANS: dict[Fusion, tuple[list[tuple[str, int]], list[tuple[str, int]]]] = {
    "add_rms_norm": ([ADD, ("rms_norm", 2 * HIDDEN)] * 2, [("fused_add_rms_norm", 4 * HIDDEN)] * 2),
    "silu_mul": ([("silu", 2 * MLP), ("MulFunctor", 3 * MLP)], [("act_and_mul", 3 * MLP)]),
    "rms_norm": (
        [*EAGER_NORM, *[ADD, *EAGER_NORM] * 2],
        [("rms_norm", 2 * HIDDEN), *[ADD, ("rms_norm", 2 * HIDDEN)] * 2],
    ),
    "rope_kv": (
        [("rotary", 2 * (QUERIES + KEYS)), ("reshape_and_cache", 4 * KEYS)],
        [("fused_rope_store", 2 * (QUERIES + 2 * KEYS))],
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_kernels_and_bytes_with_and_without_a_fusion(name: Fusion) -> None:
    """Nothing else changes; and the kernels are called what they do."""
    plans = [Counter((short(work), work.kernel.bytes) for work in decode(run)) for run in fusion(name, STEP)]
    apart, together = (Counter(plan) for plan in PLANS[name])
    assert (plans[0] - plans[1], plans[1] - plans[0]) == (apart - together, together - apart)
    works = decode(fusion(name, STEP)[0])
    assert all(work.kernel.category == classify_kernel(work.kernel.name)[0] for work in works if short(work))


def test_fusions_are_the_same_in_graphs() -> None:
    for name in get_args(Fusion):
        for run in fusion(name, STEP):
            eager, graph = (decode(replace(run, mode=mode)) for mode in ("eager", "full_graph"))
            assert [work.kernel for work in graph] == [work.kernel for work in eager]


def test_a_decode_step_replays_the_smallest_graph_that_holds_it() -> None:
    """Its kernels are those of the padded batch, its inputs and its head of the true one."""
    rank = play(replace(PADDED, steps=6))[0]
    found = []
    for mark in rank.steps[1:]:
        works = [work for work in rank.played if work.step == mark.shape.index]
        ids = {work.graph[0] for work in works} - {0}
        embedded = next(work.kernel.grid[0] for work in works if work.kernel.category == "embedding")
        sampled = next(work.kernel.grid[0] for work in works if work.kernel.category == "sampling")
        found.append((mark.ranges[-1].name, ids, embedded, sampled))
    assert found == [
        ("execute_context_0(0)_generation_4(4)", {1}, 4, 4),
        ("execute_context_0(0)_generation_9(9)", {2001}, 16, 9),
        ("execute_context_0(0)_generation_9(9)", {2001}, 16, 9),
        ("execute_context_0(0)_generation_17(17)", set(), 17, 17),
        ("execute_context_0(0)_generation_4(4)", {1}, 4, 4),
    ]


def test_what_keeps_a_step_from_being_captured(tmp_path: Path) -> None:
    plant = Plant(legacy_stream_per_step=2, varying_shapes=1, syncs_per_step=1, pageable_copies_per_step=1)
    truth = simulate(Run(plant=replace(plant, allocation_ns=1_000)), tmp_path / "trace.json")
    assert truth.planted == {
        "legacy_stream": 6, "varying_shape": 3, "item": 3, "pageable_input": 3, "allocation": 3,
    }  # fmt: skip
    rows = [row for row in load(tmp_path / "trace.json")[0] if row.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    on_legacy = [row for row in rows if row["args"]["stream"] == 0]
    assert {row["name"].partition("<")[0] for row in on_legacy} == {"void (anonymous namespace)::apply_mask_kernel"}
    assert len(on_legacy) == 6
    for row in on_legacy:  # no other kernel runs meanwhile
        others = [one for one in rows if one is not row]
        assert all(one["ts"] + one["dur"] <= row["ts"] or row["ts"] + row["dur"] <= one["ts"] for one in others)
    grids = [row["args"]["grid"] for row in rows if "arange" in row["name"]]
    assert grids == [[1, 1, 1], [2, 1, 1], [3, 1, 1]]


def test_a_pair_without_a_decode_step_after_another(tmp_path: Path) -> None:
    run = replace(LAUNCH_BOUND, steps=2)
    assert pair(run, run, tmp_path).steps == ()


def test_true_periods_are_those_in_the_file(tmp_path: Path) -> None:
    both = pair(LAUNCH_BOUND, FULL_GRAPH, tmp_path)
    assert both.steps == (2, 3, 4, 5, 6, 7, 8)
    for path, expected in ((both.before, both.before_ns), (both.after, both.after_ns)):
        with tracekit.open(path) as trace:
            begins = trace.sql("SELECT min(ts) AS ts FROM device_activity GROUP BY step ORDER BY step").to_pylist()
        ts = [row["ts"] for row in begins]
        assert tuple(ts[step + 1] - ts[step] for step in both.steps) == expected
    assert both.true_saving_ns == pytest.approx(both.true_before_ns - both.true_after_ns, rel=0.02)


def test_what_ready_runs_are_named_for() -> None:
    """For how much of a decode step the device is busy."""
    runs = (LAUNCH_BOUND, PIECEWISE, FULL_GRAPH, GPU_BOUND, MANY_REQUESTS)
    shares = []
    for run in runs:
        works = [work for work in play(replace(run, steps=4))[0].played if work.step == 2]
        begin, end = min(work.ts for work in works), max(work.end for work in works)
        shares.append(round(sum(work.dur for work in works) / (end - begin), 1))
    assert shares == [0.3, 0.7, 0.8, 1.0, 1.0]


def test_kernels_of_matched_runs_take_as_long_as_each_other() -> None:
    eager, graph = (decode(replace(STEP, matched=True, mode=mode)) for mode in ("eager", "full_graph"))
    assert [work.dur for work in eager] == [work.dur for work in graph]
    assert [work.dur for work in decode(replace(STEP, matched=True, seed=1))] != [work.dur for work in eager]


def test_options_of_the_command_line(tmp_path: Path) -> None:
    options = "--mode full_graph --fused rms_norm rope_kv --batches 3 5 --capture-sizes 4 --varying-shapes 1"
    main(["trace", str(tmp_path / "a.json"), *options.split()])
    run = Run(
        mode="full_graph", fused=frozenset({"rms_norm", "rope_kv"}), batches=(3, 5), capture_sizes=(4,),
        plant=Plant(varying_shapes=1),
    )  # fmt: skip
    truth = simulate(run, tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert json.loads((tmp_path / "a.json.truth.json").read_text())["planted"] == truth.planted == {"varying_shape": 3}
