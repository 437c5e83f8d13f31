"""Why one gap of 100 us is idle, nanosecond by nanosecond: every cause, and what almost is it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.event_rows import annotation, kernel, launch, op, write_trace

US = 1_000
MS = 1_000_000
Rows = list[dict[str, Any]]
Part = tuple[int, int, str, int | None]

FIRST = [launch(0, 5 * US, name="cudaLaunchKernel"), kernel(10 * US, 90 * US, launch_id=1, name="a")]


def python(name: str, ts: int, dur: int, **columns: Any) -> dict[str, Any]:
    return {"kind": "python", "name": name, "ts": ts, "dur": dur, **columns}


def parts(path: Path, rows: Sequence[dict[str, Any]], **parameters: Any) -> list[Part]:
    """Of the gap from 100 us on: begin and end of each part in us, cause and blame. Rows come after FIRST, so their ids
    begin at 3.
    """
    with tracekit.open(write_trace(path / "trace.parquet", [*FIRST, *rows])) as trace:
        table = trace.macro("idle_gaps", parameters).to_pylist()
    assert all(row["dur"] > 0 for row in table)
    return [(row["ts"] // US, (row["ts"] + row["dur"]) // US, row["cause"], row["blame"]) for row in table]


def ended_at_200(*host: dict[str, Any], call: str = "cudaLaunchKernel", dur: int = 5, **device: Any) -> Rows:
    """Host rows, a call at 190 us, and the work it launched at 200 us."""
    rows = [*host, launch(190 * US, dur * US, name=call)]
    return [*rows, {**kernel(200 * US, 9 * US, name="a"), **device, "launch_id": len(rows) + 2}]


# ---- before the launch: what the host was doing ----------------------------------------------------------------------


def test_an_op_around_all_of_it(tmp_path: Path) -> None:
    assert parts(tmp_path, ended_at_200(op(0, 189 * US))) == [
        (100, 190, "launch_bound", 3),
        (190, 200, "launch_latency", 4),
    ]


def test_a_gap_is_cut_where_the_cause_changes(tmp_path: Path) -> None:
    """Each part is blamed on the row that held the thread for the longest time of it."""
    rows = ended_at_200(
        python("vllm/v1/worker/gpu_model_runner.py(7): execute_model", 0, 300 * US),
        python("vllm/v1/worker/gpu_model_runner.py(9): _prepare_inputs", 90 * US, 40 * US, parent_id=3),
        launch(110 * US, 15 * US, name="cudaMalloc", parent_id=4),
        python("Python GC", 150 * US, 10 * US, parent_id=3),
        {"kind": "overhead", "name": "Buffer Flush", "ts": 170 * US, "dur": 5 * US, "pid": -1, "tid": 0},
    )
    assert parts(tmp_path, rows) == [
        (100, 110, "input_preparation", 4),
        (110, 125, "allocation", 5),
        (125, 130, "input_preparation", 4),
        (130, 150, "launch_bound", 3),
        (150, 160, "gc", 6),
        (160, 170, "launch_bound", 3),
        (170, 175, "profiler", 7),
        (175, 190, "launch_bound", 3),
        (190, 200, "launch_latency", 8),
    ]


NAMED = [
    ("launch", "cudaFree", "allocation"),
    ("launch", "cuModuleLoadData", "lazy_load_or_jit"),
    ("launch", "cudaGraphLaunch", "graph_launch"),
    ("launch", "cudaStreamSynchronize", "sync"),
    ("annotation", "gpu_model_runner: preprocess", "input_preparation"),
    ("annotation", "schedule: allocate_slots", "scheduler"),
    ("annotation", "gloo:broadcast", "communication_wait"),
    ("op", "c10d::barrier", "communication_wait"),
    ("op", "aten::pin_memory", "input_preparation"),
    ("python", "triton/compiler/compiler.py(230): compile", "lazy_load_or_jit"),
    ("python", "torch/profiler/profiler.py(872): start", "profiler"),
    ("python", "sglang/srt/managers/scheduler.py(2485): get_next_batch_to_run", "scheduler"),
    ("overhead", "Lazy Function Loading", "lazy_load_or_jit"),
    ("overhead", "Activity Buffer Request", "profiler"),
]


@pytest.mark.parametrize(("kind", "name", "cause"), NAMED)
def test_rows_whose_name_tells(tmp_path: Path, kind: str, name: str, cause: str) -> None:
    """Around them an op, inside them an op: neither silences them. test_host_causes.py has all names."""
    rows = ended_at_200(
        op(0, 190 * US),
        {"kind": kind, "name": name, "ts": 105 * US, "dur": 70 * US, "parent_id": 3},
        op(110 * US, 5 * US, parent_id=3 if kind == "overhead" else 4),
    )
    assert parts(tmp_path, rows) == [
        (100, 105, "launch_bound", 3),
        (105, 175, cause, 4),
        (175, 190, "launch_bound", 3),
        (190, 200, "launch_latency", 6),
    ]


def test_a_full_command_buffer_is_no_work_of_the_profiler(tmp_path: Path) -> None:
    full = {"kind": "overhead", "name": "Command Buffer Full", "ts": 105 * US, "dur": 70 * US, "pid": -1, "tid": 0}
    assert {cause for _, _, cause, _ in parts(tmp_path, ended_at_200(op(0, 190 * US), full))} == {
        "launch_bound",
        "launch_latency",
    }


def test_what_other_threads_processes_and_ranks_do_does_not_count(tmp_path: Path) -> None:
    rows = ended_at_200(op(0, 300 * US, tid=2), op(0, 300 * US, pid=2), op(0, 300 * US, rank=1))
    assert parts(tmp_path, rows)[0] == (100, 190, "unattributed", None)


def test_garbage_collection_on_any_thread_of_the_process_stops_it(tmp_path: Path) -> None:
    rows = ended_at_200(op(0, 189 * US), python("Python GC", 120 * US, 20 * US, tid=2))
    assert parts(tmp_path, rows)[1] == (120, 140, "gc", 4)
    rows = ended_at_200(op(0, 189 * US), python("Python GC", 120 * US, 20 * US, tid=2, pid=2))
    assert parts(tmp_path, rows)[0] == (100, 190, "launch_bound", 3)


@pytest.mark.parametrize(("hole", "cause"), [(100, "launch_bound"), (101, "unattributed")])
def test_time_without_a_row_is_work_if_it_is_short(tmp_path: Path, hole: int, cause: str) -> None:
    """An annotation is no row of work: the thread may have slept in it."""
    rows = [annotation("generate", 0, 400 * US), op(0, 120 * US, parent_id=3)]
    rows += [op((120 + hole) * US, 5 * US, parent_id=3), launch(290 * US, 5 * US), kernel(300 * US, 9, launch_id=6)]
    assert parts(tmp_path, rows)[1 if cause == "unattributed" else 0][2] == cause


@pytest.mark.parametrize(("end", "cause"), [(600, "launch_bound"), (601, "python")])
def test_python_is_the_price_of_launching_in_small_gaps_only(tmp_path: Path, end: int, cause: str) -> None:
    rows = [python("engine.py(1): work", 0, MS), launch((end - 10) * US, 5 * US, parent_id=3)]
    assert parts(tmp_path, [*rows, kernel(end * US, 9, launch_id=4)]) == [
        (100, end - 10, cause, 3),
        (end - 10, end, "launch_latency", 4),
    ]


def test_the_innermost_function_over_most_of_a_part_is_blamed(tmp_path: Path) -> None:
    rows = ended_at_200(
        python("a.py(1): outer", 0, 189 * US),
        python("a.py(2): prepare", 95 * US, 94 * US, parent_id=3),
        python("a.py(3): copy", 95 * US, 60 * US, parent_id=4),
        python("a.py(4): short", 120 * US, 10 * US, parent_id=5),
    )
    assert parts(tmp_path, rows)[0] == (100, 190, "launch_bound", 5)


# ---- after a wait ----------------------------------------------------------------------------------------------------

SYNC = "cudaStreamSynchronize"


@pytest.mark.parametrize(
    ("name", "begin", "end", "expected"),
    [
        (SYNC, 20, 102, [(100, 190, "sync", 4)]),
        ("hipDeviceSynchronize", 20, 102, [(100, 190, "sync", 4)]),
        ("cudaMemcpy", 20, 102, [(100, 190, "sync", 4)]),
        (SYNC, 20, 99, [(100, 190, "sync", 4)]),  # clocks differ a little
        (SYNC, 20, 97, [(100, 190, "launch_bound", 3)]),  # it ended before the device was done
        (SYNC, 101, 150, [(100, 101, "launch_bound", 3), (101, 150, "sync", 4), (150, 190, "launch_bound", 3)]),
        ("cudaStreamWaitEvent", 20, 102, [(100, 190, "launch_bound", 3)]),  # that is no wait of the host
    ],
)
def test_a_wait_that_drained_the_device_is_the_cause_until_the_next_launch(
    tmp_path: Path, name: str, begin: int, end: int, expected: list[Part]
) -> None:
    rows = ended_at_200(op(0, 189 * US), launch(begin * US, (end - begin) * US, name=name, parent_id=3))
    assert parts(tmp_path, rows) == [*expected, (190, 200, "launch_latency", 5)]


def test_a_wait_of_another_thread_drains_nothing(tmp_path: Path) -> None:
    rows = ended_at_200(op(0, 189 * US), launch(20 * US, 82 * US, name=SYNC, tid=2))
    assert parts(tmp_path, rows)[0] == (100, 190, "launch_bound", 3)


def test_after_a_wait_time_without_a_row_is_not_known_to_be_its_price(tmp_path: Path) -> None:
    rows = [launch(20 * US, 82 * US, name=SYNC), launch(390 * US, 5 * US), kernel(400 * US, 9, launch_id=4)]
    assert parts(tmp_path, rows)[:2] == [(100, 102, "sync", 3), (102, 390, "unattributed", None)]


def test_a_wait_for_queued_work_costs_nothing(tmp_path: Path) -> None:
    """.cpu() from 0 to 9 ms while kernels run from 0 to 8.9 ms: 100 us are idle, and those only."""
    rows = [
        launch(1 * US, 9 * MS, name="cudaMemcpyAsync"),
        kernel(100 * US, 8_800 * US, launch_id=1, name="a"),
        {"kind": "memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "ts": 9 * MS, "dur": 1 * US, "launch_id": 3},
    ]
    assert parts(tmp_path, rows) == [(8900, 9000, "pageable_copy", 3)]


@pytest.mark.parametrize(
    ("copy", "cause", "blame"),
    [
        ("Memcpy DtoH (Device -> Pageable)", "pageable_copy", 4),
        ("Memcpy HtoD (Pageable -> Device)", "pageable_copy", 4),
        ("Memcpy DtoH (Device -> Pinned)", "sync", 4),
        ("Memcpy HtoD (Pinned -> Device)", "launch_bound", 3),
    ],
)
def test_copies_asynchronous_in_name_only_drain_it_too(tmp_path: Path, copy: str, cause: str, blame: int) -> None:
    """.item(): cudaMemcpyAsync returns when the copy is done; cudaStreamSynchronize then has nothing to wait for."""
    rows = ended_at_200(
        op(0, 189 * US),
        launch(20 * US, 90 * US, name="cudaMemcpyAsync", parent_id=3),
        {"kind": "memcpy", "name": copy, "ts": 95 * US, "dur": 10 * US, "launch_id": 4},
    )
    assert parts(tmp_path, rows)[0] == (105, 190, cause, blame)


# ---- outside steps ---------------------------------------------------------------------------------------------------

MARK = "execute_context_0(0)_generation_4(4)"


def between(*host: dict[str, Any], mark: str = MARK, end: int = 200) -> Rows:
    """The gap lies between two steps: from 110 us on, and until 10 us before its end, outside both."""
    mine = [{**row, "step": 0} for row in FIRST]
    rows = [annotation(mark, 0, 110 * US), annotation(mark, (end - 12) * US, 100 * US), *host]
    rows.append(launch((end - 10) * US, 5 * US, step=1))
    return [*mine, *rows, {**kernel(end * US, 9, launch_id=len(rows) + 2, name="a"), "step": 1}]


def parts_between(path: Path, rows: Rows, **parameters: Any) -> list[Part]:
    with tracekit.open(write_trace(path / "trace.parquet", rows)) as trace:
        table = trace.analyze("idle_gaps", **parameters).table.to_pylist()
    return [(row["ts"] // US, (row["ts"] + row["dur"]) // US, row["cause"], row["blame"]) for row in table]


def test_between_steps_an_engine_that_is_not_seen_schedules(tmp_path: Path) -> None:
    rows = between()
    assert parts_between(tmp_path, rows) == [
        (100, 110, "unattributed", None),
        (110, 188, "scheduler", None),
        (188, 190, "unattributed", None),
        (190, 200, "launch_latency", 5),
    ]


def test_between_marks_of_no_engine_nothing_is_known(tmp_path: Path) -> None:
    assert parts_between(tmp_path, between(mark="ProfilerStep#7"))[0] == (100, 190, "unattributed", None)


def test_between_steps_ops_launch_and_functions_are_python(tmp_path: Path) -> None:
    rows = between(python("engine.py(1): post", 100 * US, 87 * US), op(150 * US, 10 * US, parent_id=5))
    assert parts_between(tmp_path, rows)[:4] == [
        (100, 110, "launch_bound", 5),  # in the step still: a small gap
        (110, 150, "python", 5),
        (150, 160, "launch_bound", 6),
        (160, 187, "python", 5),
    ]


@pytest.mark.parametrize(("end", "cause"), [(20_100, "scheduler"), (20_101, "no_requests")])
def test_waiting_for_requests_is_scheduling_unless_it_is_long(tmp_path: Path, end: int, cause: str) -> None:
    poll = python("sglang/srt/managers/scheduler.py(1656): recv_requests", 0, (end - 10) * US)
    found = parts_between(tmp_path, between(poll, end=end))
    assert found == [(100, end - 10, cause, 5), (end - 10, end, "launch_latency", 6)]


def test_an_engine_that_is_not_seen_for_long_may_do_anything(tmp_path: Path) -> None:
    assert {part[2] for part in parts_between(tmp_path, between(end=30_000))} == {"unattributed", "launch_latency"}


def test_after_its_mark_a_step_goes_on(tmp_path: Path) -> None:
    """Sampling comes after the mark of the forward pass; the gap is inside the step."""
    mine = [
        annotation("step[DECODE bs=4]", 0, 50 * US),
        {**FIRST[0], "step": 0},
        {**FIRST[1], "launch_id": 2, "step": 0},
    ]
    rows = [*mine, op(60 * US, 129 * US), launch(190 * US, 5 * US, step=0)]
    rows.append({**kernel(200 * US, 9, launch_id=5, name="a"), "step": 0})
    assert parts_between(tmp_path, rows)[0] == (100, 190, "launch_bound", 4)


# ---- from the launch on ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (40, 45, [(100, 188, "unattributed", None), (188, 200, "launch_latency", 3)]),
        (186, 195, [(100, 186, "x", None), (186, 188, "launch_bound", 3), (188, 200, "launch_latency", 3)]),
        (195, 197, [(100, 195, "x", None), (195, 200, "launch_latency", 3)]),
        (150, 250, [(100, 150, "x", None), (150, 188, "launch_bound", 3), (188, 200, "launch_latency", 3)]),
        (110, 115, [(100, 110, "x", None), (110, 115, "launch_bound", 3), (115, 188, "unattributed", None),
                    (188, 200, "launch_latency", 3)]),
    ],
)  # fmt: skip
def test_a_launch_takes_its_time_and_no_more(tmp_path: Path, begin: int, end: int, expected: list[Part]) -> None:
    """x: the host, which is not looked at here."""
    rows = [launch(begin * US, (end - begin) * US), kernel(200 * US, 9, launch_id=3, name="a")]
    found = [part if part[1] > begin else (*part[:2], "x", None) for part in parts(tmp_path, rows, host_hole_ns=0)]
    assert found == expected


def test_the_time_of_a_launch_is_a_parameter(tmp_path: Path) -> None:
    rows = [launch(100 * US, 5 * US), kernel(200 * US, 9, launch_id=3, name="a")]
    assert parts(tmp_path, rows, launch_latency_ns=40 * US)[-1] == (160, 200, "launch_latency", 3)


def test_all_of_a_graph_launch(tmp_path: Path) -> None:
    rows = [op(0, 109 * US), launch(110 * US, 85 * US, name="cudaGraphLaunch"), kernel(200 * US, 9, launch_id=4)]
    assert parts(tmp_path, rows) == [
        (100, 110, "launch_bound", 3),
        (110, 195, "graph_launch", 4),
        (195, 200, "launch_latency", 4),
    ]


def test_all_of_a_copy_of_pageable_memory(tmp_path: Path) -> None:
    copy = {"kind": "memcpy", "name": "Memcpy HtoD (Pageable -> Device)"}
    rows = ended_at_200(op(0, 189 * US), call="cudaMemcpyAsync", dur=20, **copy)
    assert parts(tmp_path, rows) == [(100, 190, "launch_bound", 3), (190, 200, "pageable_copy", 4)]


@pytest.mark.parametrize(
    ("took", "name", "cause"),
    [(60, "new", "lazy_load_or_jit"), (50, "new", "launch_bound"), (60, "a", "launch_bound")],
)
def test_a_first_launch_that_takes_long_loads_its_kernel(tmp_path: Path, took: int, name: str, cause: str) -> None:
    rows = [op(0, 109 * US), launch(110 * US, took * US), kernel((took + 112) * US, 9, launch_id=4, name=name)]
    assert parts(tmp_path, rows)[-2][2:] == (cause, 4)


def test_the_first_launch_of_a_recording_is_the_profilers(tmp_path: Path) -> None:
    rows = [kernel(0, 10 * US), launch(5 * US, 584 * US), kernel(590 * US, 9 * US, launch_id=2)]
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        table = trace.analyze("idle_gaps").table.to_pylist()
    assert [(row["ts"] // US, row["dur"] // US, row["cause"]) for row in table if row["place"] != "prefix"] == [
        (10, 568, "profiler"),
        (578, 12, "launch_latency"),
    ]


def test_the_profiler_may_hold_a_call(tmp_path: Path) -> None:
    rows = [
        op(0, 109 * US),
        launch(110 * US, 85 * US),
        {"kind": "overhead", "name": "Buffer Flush", "ts": 120 * US, "dur": 50 * US, "pid": -1, "tid": 0},
        kernel(200 * US, 9, launch_id=4, name="a"),
    ]
    assert parts(tmp_path, rows) == [
        (100, 120, "launch_bound", 4),
        (120, 170, "profiler", 5),
        (170, 188, "launch_bound", 4),
        (188, 200, "launch_latency", 4),
    ]


@pytest.mark.parametrize(
    ("before", "blame"),
    [
        ([launch(20 * US, 1 * US, name="cudaStreamWaitEvent")], 3),
        ([launch(20 * US, 1 * US, name="hipStreamWaitEvent"), launch(22 * US, 1 * US, name="hipEventRecord")], 3),
        ([{"kind": "sync", "name": "Stream Wait Event", "ts": 90 * US, "dur": 100 * US}], 3),
        (
            [
                {
                    "kind": "sync",
                    "name": "x",
                    "args": '{"cuda_sync_kind": "Stream Wait Event"}',
                    "ts": 120 * US,
                    "dur": 1,
                }
            ],
            3,
        ),
        (
            [launch(20 * US, 1 * US, name="cudaStreamWaitEvent"), launch(22 * US, US), kernel(60 * US, 9, launch_id=4)],
            None,
        ),
        ([launch(20 * US, 1 * US, name="cudaStreamWaitEvent", tid=2)], None),
        ([{"kind": "sync", "name": "Stream Wait Event", "ts": 90 * US, "dur": 100 * US, "stream": 8}], None),
        ([{"kind": "sync", "name": "Stream Wait Event", "ts": 20 * US, "dur": 10 * US}], None),
    ],
)
def test_a_stream_that_was_told_to_wait(tmp_path: Path, before: Rows, blame: int | None) -> None:
    """Launched in time; what the launch was preceded by, on its thread, or what is recorded of its stream, tells."""
    rows = [*before, launch(30 * US, 5 * US), kernel(200 * US, 9, launch_id=len(before) + 3, name="a")]
    cause = "unattributed" if blame is None else "stream_dependency"
    assert parts(tmp_path, rows) == [(100, 188, cause, blame), (188, 200, "launch_latency", len(before) + 3)]


def test_work_without_a_launch(tmp_path: Path) -> None:
    assert parts(tmp_path, [op(0, 300 * US), kernel(200 * US, 9)]) == [(100, 200, "unattributed", None)]


def test_a_host_that_blocks_after_the_launch_is_not_to_blame(tmp_path: Path) -> None:
    """As SGLang was recorded: a launch behind a wait for an event, then a copy that blocks the host as long."""
    rows = [
        op(0, 600 * MS),
        launch(140 * US, 5 * US, name="hipStreamWaitEvent", parent_id=3),
        launch(146 * US, 5 * US, name="hipLaunchKernel", parent_id=3),
        launch(160 * US, 499 * MS, name="hipMemcpyWithStream", parent_id=3),
        kernel(493 * MS, MS, launch_id=5, name="a"),
    ]
    assert parts(tmp_path, rows) == [
        (100, 151, "launch_bound", 3),
        (151, 492_988, "stream_dependency", 4),
        (492_988, 493_000, "launch_latency", 5),
    ]
