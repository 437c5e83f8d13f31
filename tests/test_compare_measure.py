"""What a recording has that can be compared: rows in, the parts of each step out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import tracekit
from tests.event_rows import annotation, footer_of, kernel, launch, op, write_trace
from tests.idle_rows import GAP, MS, OP, US, held, ranked, steps, unmarked
from tests.served_steps import PREFILL, SMALL, served
from tests.simulator import Plant, Run, simulate
from tracekit.compare_kernels import KernelSums, KernelTime
from tracekit.compare_measure import Recording, measure
from tracekit.footer import Footer

Rows = Sequence[Mapping[str, Any]]
Parts = dict[tuple[str, str], dict[tuple[str, str], list[int]]]
DECODE = ("decode", "3-4")
WAITING = held("annotation", "scheduler.recv_requests")


def measured(path: Path, rows: Rows, footer: Footer | None = None, **part: Any) -> Recording:
    file = write_trace(path / "trace.parquet", rows, footer)
    with tracekit.open(file) as whole, whole.only(**part) if part else nullcontext(whole) as trace:
        return measure(trace)


def parts(recording: Recording) -> Parts:
    """ns of each step, by kind of steps and part."""
    return {key: {name: ns.tolist() for name, ns in group.parts.items()} for key, group in recording.groups.items()}


def test_an_empty_trace(tmp_path: Path) -> None:
    found = measured(tmp_path, [])
    assert (found.basis, found.groups, found.waited_ns, found.events) == ("nothing", {}, 0, 0)
    assert found.facts.warnings == ("nothing was recorded",)


def test_steps_are_their_busy_and_their_idle_time(tmp_path: Path) -> None:
    """Of three steps of 600 us, the first is in no figure. Idle are 400 us in each, and 10 us before it."""
    found = measured(tmp_path, steps(OP, count=3))
    assert (found.basis, found.name, found.losses.refusal) == ("device", "trace.parquet", "")
    assert parts(found) == {
        DECODE: {
            ("busy", "other"): [190 * US] * 2,
            ("idle", "launch_bound"): [400 * US] * 2,
            ("idle", "launch_latency"): [10 * US] * 2,
        }
    }
    (group,) = found.groups.values()
    assert group.totals.tolist() == [600 * US] * 2
    assert (group.requests, group.tokens, group.is_steady, group.bounds) == (4.0, 4.0, True, (4, 0))


def test_time_waited_for_requests_is_in_no_step(tmp_path: Path) -> None:
    found = measured(tmp_path, steps(WAITING, count=3, gap=25 * MS))
    (group,) = found.groups.values()
    assert group.totals.tolist() == [25_200 * US - found.waited_ns // 2] * 2
    assert 49 * MS < found.waited_ns < 50 * MS and ("idle", "no_requests") not in group.parts


def test_a_step_on_two_devices_is_one_sample(tmp_path: Path) -> None:
    one, two = measured(tmp_path, steps(OP)), measured(tmp_path, ranked(steps(OP), steps(OP, gap=GAP + 7)))
    alone, together = one.groups[DECODE], two.groups[DECODE]
    assert (alone.devices.tolist(), together.devices.tolist()) == ([1] * 7, [2] * 7)
    assert (together.totals - 2 * alone.totals).tolist() == [7] * 7
    assert (alone.kernels.device_steps, together.kernels.device_steps) == (7, 14)


def test_without_a_steady_step_those_there_are(tmp_path: Path) -> None:
    (group,) = measured(tmp_path, steps(OP, count=2), steps=0).groups.values()
    assert (len(group.devices), group.is_steady) == (1, False)


def test_without_device_work_steps_are_as_long_as_their_marks(tmp_path: Path) -> None:
    rows = [annotation("step[DECODE bs=4]", 100 * US * at, 10 * US + at) for at in range(3)]
    found = measured(tmp_path, [*rows, *({**row, "rank": 1, "dur": 14 * US} for row in rows)])
    assert (found.basis, parts(found)) == ("host", {DECODE: {("host", "host"): [24 * US, 24 * US + 1, 24 * US + 2]}})
    assert found.groups[DECODE].devices.tolist() == [2] * 3


def test_without_steps_the_recording_is_one_sample(tmp_path: Path) -> None:
    found = measured(tmp_path, unmarked(steps(OP, count=2)))
    (group,) = found.groups.values()
    assert (found.basis, group.key, group.devices.tolist()) == ("whole", ("unknown", "whole recording"), [1])
    assert parts(found)[group.key][("busy", "other")] == [380 * US]
    assert int(group.totals[0]) == 1_190 * US  # from 5 us to 1,195 us


def test_idle_time_has_no_causes_where_work_is_missing(tmp_path: Path) -> None:
    lost = [launch(at, 1, name="cudaGraphLaunch") for at in range(9)]
    for rows in (steps(OP, count=3), unmarked(steps(OP, count=3))):
        found = measured(tmp_path, [*rows, *lost])
        assert "graph replays left no device work" in found.losses.refusal
        (group,) = found.groups.values()
        assert [name for name in group.parts if name[0] == "idle"] == [("idle", "idle")]
        assert int(group.totals.sum()) == (1_200 if found.basis == "device" else 1_790) * US


def test_a_part_of_a_trace(tmp_path: Path) -> None:
    """Which is what it is told of, too."""
    found = measured(tmp_path, SMALL, phase="prefill")
    assert list(found.groups) == [("prefill", "1, <=64 tok")]
    assert found.facts.settings["part of the trace"] == "phase prefill"


def test_kernels_by_name_and_shape_and_in_the_order_of_launches(tmp_path: Path) -> None:
    """The copy was launched last and ran first, on another stream."""
    rows = [
        annotation("step[DECODE bs=4]", 0, 100),
        op(1, 20, shapes="[[4,8]]"),
        launch(2, 1, op_id=2),
        launch(4, 1),
        launch(6, 1),
        {"kind": "memcpy", "name": "Memcpy DtoH", "ts": 40, "dur": 5, "stream": 9, "launch_id": 5},
        kernel(50, 30, name="void a::f<(int)4>(int)", launch_id=3, op_id=2, grid_x=8, grid_y=1, grid_z=1)
        | {"block_x": 64, "block_y": 1, "block_z": 1},
        kernel(80, 30, name="g", launch_id=4),
    ]
    (group,) = measured(tmp_path, rows).groups.values()
    assert group.kernels == KernelSums(
        (
            KernelTime("kernel", "g", "other", "", "", 30, 1),
            KernelTime("kernel", "void a::f<(int)4>(int)", "gemm", "grid 8,1,1 block 64,1,1", "[[4,8]]", 30, 1),
            KernelTime("memcpy", "Memcpy DtoH", "memory", "", "", 5, 1),
        ),
        1,
        ("a::f<4>", "g", "Memcpy DtoH"),
    )


def test_the_sequence_is_that_of_the_step_of_median_length(tmp_path: Path) -> None:
    begins = {"first": 0, "short": 10, "long": 20, "median": 110, "end": 140}
    lengths = [end - begin for begin, end in pairwise(begins.values())]
    rows = served(*((PREFILL, [work]) for work in zip(begins.values(), lengths, strict=False)))
    for row, name in zip([row for row in rows if row["kind"] == "kernel"], begins, strict=False):
        row["name"] = name
    (group,) = measured(tmp_path, rows).groups.values()
    assert group.kernels.sequence == ("median",)


def test_settings_that_a_recording_tells(tmp_path: Path) -> None:
    rows = steps(OP, count=2)
    capture = {"cuda_runtime_version": 12_090, "with_stack": 1, "processes": [{"torch": "2.9"}], "command": ["a", "b"]}
    found = measured(tmp_path, rows, footer_of(rows, capture={**capture, "partial": ["it ended early"]}))
    assert dict(found.facts.settings) == {
        "device": "1 x NVIDIA H100 80GB HBM3",
        "ranks": "1",
        "format": "kineto",
        "Python stacks recorded": "yes",
        "input shapes recorded": "no",
        "memory recorded": "no",
        "modules recorded": "no",
        "FLOPs recorded": "no",
        "CUDA": "12.9",
        "torch": "2.9",
        "command": "a b",
        "steps marked by": "step",
        "part of the trace": "all",
    }
    assert found.facts.warnings == ("it ended early",)


def test_parts_of_simulated_steps_add_up_to_what_they_are_charged(tmp_path: Path) -> None:
    plant = Plant(launch_bound_ns=5 * US, syncs_per_step=2, scheduler_ns=50 * US, dependencies_per_step=1)
    simulate(Run(plant=plant, steps=4, ranks=2, streams=2), tmp_path / "ranks")
    with tracekit.open(tmp_path / "ranks") as trace:
        found, rows = measure(trace), trace.macro("compared_steps").to_pylist()
    charged = {(row["phase"], row["bucket"], row["step"]): 0 for row in rows}
    for row in rows:
        charged[row["phase"], row["bucket"], row["step"]] += row["busy_ns"] + row["idle_ns"]
    for key, group in found.groups.items():
        assert group.totals.tolist() == [ns for (*of_step, _), ns in charged.items() if tuple(of_step) == key]
        assert sum(time.ns for time in group.kernels.times) == sum(
            int(ns.sum()) for (kind, _), ns in group.parts.items() if kind == "busy"
        )
    named = {name for group in found.groups.values() for name in group.parts}
    assert named >= {("busy", "communication"), ("idle", "sync"), ("idle", "scheduler")}
