"""What is planted into a simulated run shows in the file, and the truth knows it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.naive import load, nanoseconds
from tests.simulator import LLAMA_8B, Plant, Run, Truth, simulate
from tests.simulator_model import Marks

Event = dict[str, Any]
US, MS = 1_000, 1_000_000
DEEP = replace(LLAMA_8B, layers=4)  # the device is slower than the host
FUNCTION, RUNTIME = "python_function", "cuda_runtime"


@dataclass(frozen=True, slots=True)
class Case:
    """A plant, the cause it has, and in a run of 3 steps how many rows of such a category and name show it. In all it
    takes the device as long as `least`."""

    plant: Plant
    cause: str
    rows: dict[tuple[str, str], int]
    least: int
    run: Run = field(default_factory=Run)


STACKS = Run(with_stack=True)
GRAPHS = Run(mode="full_graph")
CASES = {
    "launch_bound": Case(Plant(launch_bound_ns=40 * US), "launch_bound", {}, 80 * 40 * US),
    "graph_launch": Case(
        Plant(graph_launch_ns=150 * US), "graph_launch", {(RUNTIME, "cudaGraphLaunch"): 2}, 2 * 150 * US, GRAPHS
    ),
    "sync": Case(
        Plant(syncs_per_step=2, sync_refill_ns=80 * US),
        "sync",
        {("cpu_op", "aten::item"): 6, ("cpu_op", "aten::cumsum"): 6, (RUNTIME, "cudaStreamSynchronize"): 6},
        6 * 80 * US,
        Run(model=DEEP),
    ),
    "pageable_copy": Case(
        Plant(pageable_copies_per_step=2, pageable_copy_ns=90 * US),
        "pageable_copy",
        {
            ("gpu_memcpy", r"Memcpy HtoD \(Pageable -> Device\)"): 3,
            ("gpu_memcpy", r"Memcpy DtoH \(Device -> Pageable\)"): 3,
        },
        6 * 70 * US,
    ),
    "allocation": Case(
        Plant(allocation_ns=120 * US),
        "allocation",
        {(RUNTIME, "cudaMalloc"): 3, (RUNTIME, "cudaFree"): 3},
        3 * 180 * US,
    ),
    "input_preparation": Case(
        Plant(input_preparation_ns=200 * US),
        "input_preparation",
        {("user_annotation", "gpu_model_runner: preprocess"): 3, (FUNCTION, r".*_prepare_inputs"): 12},
        2 * 200 * US,
        STACKS,
    ),
    "scheduler": Case(
        Plant(scheduler_ns=200 * US),
        "scheduler",
        {("user_annotation", r"gpu_model_runner: bookkeep|llm_engine step: .*|schedule: .*"): 3 + 2 + 2},
        5 * 190 * US,
    ),
    "scheduler unseen": Case(Plant(between_steps_ns=300 * US), "scheduler", {}, 2 * 300 * US),
    "python": Case(Plant(python_ns=700 * US), "python", {(FUNCTION, r"serve/.*: advance"): 5}, 5 * 700 * US, STACKS),
    "gc": Case(Plant(gc_ns=300 * US), "gc", {(FUNCTION, "Python GC"): 5}, 5 * 300 * US, STACKS),
    "lazy_load_or_jit": Case(
        Plant(lazy_load_ns=90 * US),
        "lazy_load_or_jit",
        {
            ("overhead", "Lazy Function Loading"): 13,
            (FUNCTION, r"triton/.*: compile"): 2,
            ("cuda_driver", "cuModuleLoadData"): 2,
        },
        15 * 85 * US,
        STACKS,
    ),
    "stream_dependency": Case(
        Plant(dependencies_per_step=2), "stream_dependency", {(RUNTIME, "cudaStreamWaitEvent"): 6}, 6 * 100 * US
    ),
    "stream_dependency aside": Case(
        Plant(dependencies_per_step=2),
        "stream_dependency",
        {("cuda_sync", "Stream Wait Event"): 12},
        6 * 100 * US,
        Run(streams=3, record_syncs=True),
    ),
    "communication_wait": Case(
        Plant(communication_wait_ns=250 * US),
        "communication_wait",
        {("cpu_op", "c10d::barrier"): 3, ("user_annotation", "gloo:broadcast"): 2},
        5 * 240 * US,
    ),
    "no_requests": Case(
        Plant(no_requests_ns=25 * MS), "no_requests", {(FUNCTION, ".*: recv_requests"): 2}, 2 * 25 * MS, STACKS
    ),
    "profiler": Case(
        Plant(profiler_ns=180 * US),
        "profiler",
        {("overhead", "Activity Buffer Request"): 3, ("overhead", "Buffer Flush"): 3},
        6 * 160 * US,
    ),
    "slow first launch": Case(Plant(slow_first_launch_ns=200 * US), "profiler", {}, 180 * US, Run(orphans=4)),
    "unattributed": Case(Plant(holes_per_step=2, hole_ns=200 * US), "unattributed", {}, 6 * 200 * US, Run(model=DEEP)),
    "unattributed launch": Case(Plant(lost_calls_per_step=2), "unattributed", {}, 6 * 4 * US),
}


def recorded(run: Run, folder: Path) -> tuple[Truth, list[Event]]:
    """The truth of a run of one rank and its rows, with ts and end in ns."""
    truth = simulate(run, folder / "trace.json")
    rows = [event for event in load(folder / "trace.json")[0] if event["ph"] == "X"]
    for row in rows:
        row["ts"] = nanoseconds(row["ts"])
        row["end"] = row["ts"] + nanoseconds(row["dur"])
    return truth, rows


def named(rows: list[Event], category: str, name: str) -> list[Event]:
    return [row for row in rows if row["cat"] == category and re.fullmatch(name, row["name"])]


@pytest.mark.parametrize("name", CASES)
def test_what_is_planted_shows(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    plain, before = recorded(case.run, tmp_path)
    truth, rows = recorded(replace(case.run, plant=case.plant), tmp_path)
    for (category, pattern), count in case.rows.items():
        assert len(named(rows, category, pattern)) == count
        assert len(named(before, category, pattern)) < count or pattern == "cudaGraphLaunch"
    grown = truth.devices[0].idle_by_cause[case.cause] - plain.devices[0].idle_by_cause.get(case.cause, 0)
    assert case.least * 15 // 16 <= grown <= case.least * 3 // 2


@pytest.mark.parametrize("name", CASES)
def test_a_seed_decides_a_planted_run(name: str, tmp_path: Path) -> None:
    run = replace(CASES[name].run, plant=CASES[name].plant)
    truths = [simulate(replace(run, seed=seed), tmp_path / file) for file, seed in (("a", 1), ("b", 1), ("c", 2))]
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c
    assert truths[0] == truths[1]


# ---- asynchronous scheduling


def test_the_next_step_is_launched_while_one_runs(tmp_path: Path) -> None:
    """And its tokens are waited for after that: the scheduler's time no longer idles the device."""
    run = Run(model=DEEP, steps=5, mode="full_graph", plant=Plant(scheduler_ns=200 * US), asynchronous=True)
    truth, rows = recorded(run, tmp_path)
    serial, _ = recorded(replace(run, asynchronous=False), tmp_path)
    assert truth.devices[0].idle_ns < serial.devices[0].idle_ns // 3
    copies = sorted(named(rows, "gpu_memcpy", r".*\(Device -> Pinned\)"), key=lambda row: row["ts"])
    waits = sorted(named(rows, RUNTIME, "cudaEventSynchronize"), key=lambda row: row["ts"])
    replays = sorted(named(rows, RUNTIME, "cudaGraphLaunch"), key=lambda row: row["ts"])
    assert len(copies) == 5
    assert len(waits) == len(replays) == 4
    for copy, wait, replay in zip(copies, waits, replays, strict=False):
        assert replay["ts"] < wait["ts"] < copy["end"] < wait["end"]  # one step on, the device still at this one


@pytest.mark.parametrize("asynchronous", [False, True])
def test_time_is_charged_to_one_step(asynchronous: bool, tmp_path: Path) -> None:
    """Busy time to the step of the work, idle time to that of the work which ended it: in all, the span."""
    plant = Plant(between_steps_ns=100 * US)
    run = Run(model=DEEP, steps=4, mode="piecewise_graph", streams=3, plant=plant, asynchronous=asynchronous)
    truth, _ = recorded(run, tmp_path)
    [device] = truth.devices
    charged = Counter({gap.step: 0 for gap in device.gaps})
    for gap in device.gaps:
        charged[gap.step] += gap.dur
    assert set(charged) <= {0, 1, 2, 3}
    assert sum(charged.values()) + device.busy_ns == device.span_ns
    assert {gap.place for gap in device.gaps} <= {"inside", "between"}


# ---- what recordings lack


def test_orphans_have_no_launch(tmp_path: Path) -> None:
    truth, rows = recorded(Run(orphans=7, streams=3), tmp_path)
    plain, _ = recorded(Run(streams=3), tmp_path)
    work = [row for row in rows if row["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    calls = {row["args"]["correlation"] for row in rows if row["cat"] in (RUNTIME, "cuda_driver")}
    orphans = [row for row in work if row["args"]["correlation"] not in calls]
    assert sorted(orphans, key=lambda row: row["ts"]) == sorted(work, key=lambda row: row["ts"])[:7]
    assert {row["args"]["stream"] for row in orphans} == {7, 24}
    assert (truth.orphans, truth.links, truth.launches) == (7, plain.links, plain.launches)
    prefix = [gap for gap in truth.devices[0].gaps if gap.place == "prefix"]
    assert [(gap.dur, gap.cause, gap.step) for gap in prefix] == [(700, "unattributed", None)] * 6


def test_calls_that_were_not_recorded(tmp_path: Path) -> None:
    truth, rows = recorded(Run(plant=Plant(lost_calls_per_step=2)), tmp_path)
    plain, before = recorded(Run(), tmp_path)
    calls = [[row for row in part if row["cat"] in (RUNTIME, "cuda_driver")] for part in (rows, before)]
    assert len(calls[0]) == len(calls[1]) - 6
    assert (truth.lost_calls, truth.links) == (6, plain.links - 6)
    assert {gap.place for gap in truth.devices[0].gaps if gap.step is None} == {"outside"}


def test_a_clock_that_is_early(tmp_path: Path) -> None:
    truth, rows = recorded(Run(clock_skew_ns=20 * US), tmp_path)
    plain, before = recorded(Run(), tmp_path)
    assert truth.clock_skew_ns == 20 * US
    for row, same in zip(rows, before, strict=True):
        early = row["cat"] in ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
        assert (row["name"], row["ts"]) == (same["name"], same["ts"] - 20 * US * early)
    assert (truth.devices[0].busy_ns, truth.devices[0].idle_ns) == (plain.devices[0].busy_ns, plain.devices[0].idle_ns)


def test_graph_replays_without_their_kernels(tmp_path: Path) -> None:
    run = Run(mode="piecewise_graph", steps=6)
    truth, rows = recorded(replace(run, lost_replays_percent=20, partial_replays_percent=40), tmp_path)
    plain, _ = recorded(run, tmp_path)
    replays = {row["args"]["correlation"] for row in named(rows, RUNTIME, "cudaGraphLaunch")}
    in_graphs = Counter(row["args"]["correlation"] for row in rows if "graph id" in row.get("args", {}))
    assert len(replays) == plain.graph_launches == 15
    assert (truth.lost_replays, truth.graph_launches, truth.graph_rows) == (3, 12, in_graphs.total())
    assert set(in_graphs) < replays
    assert truth.partial_replays == 3  # of 6 that are due three are lost altogether
    assert truth.graph_rows < plain.graph_rows
    assert truth.devices[0].busy_ns < plain.devices[0].busy_ns
    assert truth.steps == plain.steps


def test_synchronisations_as_cupti_sees_them(tmp_path: Path) -> None:
    truth, rows = recorded(Run(record_syncs=True, streams=3, plant=Plant(syncs_per_step=1)), tmp_path)
    kinds = Counter(row["name"] for row in rows if row["cat"] == "cuda_sync")
    assert kinds == {"Stream Wait Event": 3, "Stream Sync": 3, "Event Sync": 3, "Context Sync": 1}
    assert truth.events[0]["X cuda_sync"] == kinds.total()
    calls = {row["args"]["correlation"]: row for row in rows if row["cat"] == RUNTIME}
    for row in (row for row in rows if row["cat"] == "cuda_sync"):
        call = calls[row["args"]["correlation"]]
        assert call["ts"] < row["ts"] <= row["end"] <= call["end"]
        assert row["args"]["cuda_sync_kind"] == row["name"]


# ---- marks

MARKS: dict[Marks, list[str]] = {
    "vllm": ["execute_context_2(128)_generation_0(0)", "execute_context_2(128)_generation_2(2)"],
    "vllm_detailed": [
        "execute_128_context_2(sq128sk128sqsq8192sqsk8192)_generation_0(sq0sk0sqsq0sqsk0)",
        "execute_130_context_2(sq128sk128sqsq8192sqsk8192)_generation_2(sq2sk130sqsq2sqsk130)",
    ],
    "sglang": ["step[EXTEND bs=2 toks=128]", "step[MIXED bs=4 toks=130 c=2 g=2]"],
    "sglang_detailed": ["step[EXTEND bs=2 toks=128]", "step[MIXED bs=4 toks=130 c=2 g=2]"],
    "tracekit": [
        "tracekit.step[prefill prefill_requests=2 prefill_tokens=128]",
        "tracekit.step[mixed prefill_requests=2 prefill_tokens=128 decode_requests=2 decode_tokens=2]",
    ],
    "ProfilerStep": ["ProfilerStep#5", "ProfilerStep#6"],
    "none": [],
}


@pytest.mark.parametrize("marks", MARKS)
def test_marks_of_engines(marks: Marks, tmp_path: Path) -> None:
    truth, rows = recorded(Run(marks=marks, steps=2, prefill_steps=2), tmp_path)
    [sampling] = {row["name"] for row in rows if "sampling" in row["name"]}
    ranges = [row for row in rows if row["cat"] == "user_annotation"]
    found = [row for row in ranges if row["name"] in MARKS[marks]]
    assert [row["name"] for row in found] == MARKS[marks]
    assert [(step.ts, step.ts + step.dur) for step in truth.steps] == [(row["ts"], row["end"]) for row in found]
    assert len(ranges) - len(found) == (2 if marks == "sglang_detailed" else 0)
    calls = {row["args"]["correlation"]: row for row in rows if row["cat"] == "cuda_driver"}
    samples = [calls[row["args"]["correlation"]] for row in named(rows, "kernel", sampling)]
    for mark, sample in zip(found, samples, strict=False):
        assert (sample["ts"] < mark["end"]) == (not marks.endswith("detailed"))


def test_without_marks_a_step_is_what_repeats(tmp_path: Path) -> None:
    """Up to the copy of the sampled tokens to the host; the first step, a prefill, is unlike the others."""
    truth, rows = recorded(Run(marks="none", steps=4), tmp_path)
    copies = {row["args"]["correlation"] for row in named(rows, "gpu_memcpy", r"Memcpy DtoH \(Device -> Pinned\)")}
    ends = [row["end"] for row in rows if row["cat"] == RUNTIME and row["args"]["correlation"] in copies]
    assert [step.ts + step.dur for step in truth.steps] == sorted(ends)[1:]
    inputs = {row["args"]["correlation"] for row in named(rows, "gpu_memcpy", r"Memcpy HtoD .*")}
    begins = [row["ts"] for row in rows if row["cat"] == RUNTIME and row["args"]["correlation"] in inputs]
    assert [step.ts for step in truth.steps] == sorted(begins)[2::2]
    assert [step.index for step in truth.steps] == [0, 1, 2]
    steps = [gap.step for gap in truth.devices[0].gaps]
    begin, end = steps.index(0), len(steps) - steps[::-1].index(2)
    assert [step for step in steps if step is not None] == sorted(step for step in steps[begin:end] if step is not None)
    assert {*steps[:begin], *steps[end:]} == {None}
    assert None not in steps[begin:end]
    assert simulate(Run(marks="none", steps=2), tmp_path / "short").steps == ()
