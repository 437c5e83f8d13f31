"""idle_gaps: rows in, table out; every cause with a trace that shows it and one that almost does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracekit
from tests.event_rows import annotation, kernel, launch, op, write_trace
from tests.simulator import Plant, Run, simulate
from tracekit.analysis import Result
from tracekit.convert import convert

US = 1_000
MS = 1_000_000


def analyze(path: Path, rows: Sequence[dict[str, Any]], **parameters: Any) -> Result:
    with tracekit.open(write_trace(path / "trace.parquet", rows)) as trace:
        return trace.analyze("idle_gaps", **parameters)


def gaps(result: Result, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in result.table.to_pylist()]


def python(ts: int, dur: int, **columns: Any) -> dict[str, Any]:
    return {"kind": "python", "name": "schedule", "ts": ts, "dur": dur, **columns}


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    result = analyze(tmp_path, [])
    assert (gaps(result, "ts"), result.summary, result.findings) == ([], (), ())
    assert result.coverage.reason.startswith("nothing was recorded")


# ---- what is idle ----------------------------------------------------------------------------------------------------


def test_whole_table(tmp_path: Path) -> None:
    result = analyze(
        tmp_path,
        [
            annotation("execute_context_0(0)_generation_4(4)", 0, 200 * US),
            op(0, 200 * US, parent_id=1),
            launch(0, 5 * US, parent_id=2),
            launch(90 * US, 5 * US, parent_id=2),
            kernel(10 * US, 30 * US, launch_id=3, stream=7),
            kernel(20 * US, 10 * US, launch_id=3, stream=8),
            kernel(100 * US, 10 * US, launch_id=4),
            kernel(111 * US, 10 * US),
        ],
    )
    assert result.table.to_pylist() == [
        {
            "rank": 0,
            "device": 0,
            "ts": 40 * US,
            "dur": 60 * US,
            "cause": "launch_bound",
            "step": 0,
            "phase": "decode",
            "before_id": 5,
            "after_id": 7,
            "blame": 2,
            "launch_lead_ns": -50 * US,
        },
        {
            "rank": 0,
            "device": 0,
            "ts": 110 * US,
            "dur": 1 * US,
            "cause": "unattributed",
            "step": None,
            "phase": "unknown",
            "before_id": 7,
            "after_id": 8,
            "blame": None,
            "launch_lead_ns": None,
        },
    ]
    assert result.summary == [
        {
            "rank": 0,
            "device": 0,
            "span_ns": 111 * US,
            "busy_ns": 50 * US,
            "idle_ns": 61 * US,
            "by_cause": {"launch_bound": 60 * US, "unattributed": 1 * US},
        }
    ]
    assert (result.coverage.explained_ns, result.coverage.total_ns) == (60 * US, 61 * US)
    assert result.parameters == tracekit.open(tmp_path / "trace.parquet").analyses()["idle_gaps"].parameters


def test_a_stream_that_works_keeps_the_device_busy(tmp_path: Path) -> None:
    assert gaps(analyze(tmp_path, [kernel(0, 1), kernel(50, 1), kernel(0, 51, stream=8)]), "ts") == []


def test_three_streams_are_one_device(tmp_path: Path) -> None:
    """10 ms at 0, 100, 200 and 300 on each of three streams: 270 of 310 ms idle, not three times that."""
    rows = [kernel(at * MS, 10 * MS, stream=stream) for at in (0, 100, 200, 300) for stream in (7, 8, 9)]
    (row,) = analyze(tmp_path, rows).summary
    assert (row["span_ns"], row["busy_ns"], row["idle_ns"]) == (310 * MS, 40 * MS, 270 * MS)


def test_copies_are_work(tmp_path: Path) -> None:
    copy = {"kind": "memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": 10, "dur": 80}
    assert gaps(analyze(tmp_path, [kernel(0, 10), copy, kernel(90, 10)]), "ts") == []


def test_device_side_annotations_and_waits_are_not_work(tmp_path: Path) -> None:
    rows = [kernel(0, 10), kernel(90, 10), {"kind": "gpu_annotation", "ts": 0, "dur": 100}]
    rows.append({"kind": "sync", "name": "Stream Sync", "ts": 10, "dur": 80})
    assert gaps(analyze(tmp_path, rows), "ts", "dur") == [(10, 80)]


def test_devices_need_not_begin_at_0(tmp_path: Path) -> None:
    rows = [kernel(ts, 5, device=device) for device in (1, 2) for ts in (0, 10 * device)]
    assert gaps(analyze(tmp_path, rows), "device", "ts", "dur") == [(1, 5, 5), (2, 5, 15)]


def test_overlap_on_one_stream_is_no_gap(tmp_path: Path) -> None:
    assert gaps(analyze(tmp_path, [kernel(0, 100), kernel(90, 90), kernel(180, 5)]), "ts") == []


def test_rows_of_no_duration(tmp_path: Path) -> None:
    """They are work that takes no time: one inside a kernel changes nothing, one inside a hole makes two of it."""
    rows = [kernel(0, 10), kernel(0, 0), kernel(5, 0), kernel(10, 0), kernel(15, 0), kernel(20, 1), kernel(21, 0)]
    result = analyze(tmp_path, rows)
    assert gaps(result, "ts", "dur", "before_id", "after_id") == [(10, 5, 1, 5), (15, 5, 5, 6)]
    assert result.summary[0]["idle_ns"] == 10


def test_one_nanosecond_counts(tmp_path: Path) -> None:
    rows = [kernel(at * 3, 2) for at in range(100)]
    assert analyze(tmp_path, rows).summary[0]["by_cause"] == {"unattributed": 99}


def test_ranks_are_never_merged(tmp_path: Path) -> None:
    rows = [kernel(ts, 5, rank=rank) for rank, starts in ((0, (0, 10)), (1, (5, 40))) for ts in starts]
    assert gaps(analyze(tmp_path, rows), "rank", "ts", "dur") == [(0, 5, 5), (1, 10, 30)]


ROW = st.tuples(st.tuples(st.integers(0, 5), st.integers(0, 1)), st.integers(0, 80), st.integers(0, 9))


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ROW, max_size=80))
def test_gaps_against_painted_nanoseconds(tmp_path: Path, drawn: list[Any]) -> None:
    rows = [kernel(ts, dur, rank=rank, device=device, stream=ts % 3) for (rank, device), ts, dur in drawn]
    result = analyze(tmp_path, rows)
    idle: set[tuple[tuple[int, int], int]] = set()
    for rank, device, ts, dur in gaps(result, "rank", "device", "ts", "dur"):
        assert dur > 0
        idle |= {((rank, device), nanosecond) for nanosecond in range(ts, ts + dur)}
    expected: set[tuple[tuple[int, int], int]] = set()
    for place in {row[0] for row in drawn}:
        here = [(ts, ts + dur) for where, ts, dur in drawn if where == place]
        span = range(min(ts for ts, _ in here), max(end for _, end in here))
        painted = {nanosecond for ts, end in here for nanosecond in range(ts, end)}
        expected |= {(place, nanosecond) for nanosecond in span if nanosecond not in painted}
    assert idle == expected
    assert sum(row["idle_ns"] for row in result.summary) == len(expected)


# ---- causes ----------------------------------------------------------------------------------------------------------

FIRST = [launch(0, 5 * US), kernel(10 * US, 90 * US, launch_id=1)]  # the gap begins at 100 us


def cause(path: Path, rows: Sequence[dict[str, Any]], **parameters: Any) -> tuple[str, int | None]:
    """Cause and blame of the one gap; rows come after FIRST, so their ids begin at 3."""
    ((found, blame),) = gaps(analyze(path, [*FIRST, *rows], **parameters), "cause", "blame")
    return found, blame


@pytest.mark.parametrize(
    ("called_at", "returned_at", "expected"),
    [
        (40, 45, "queued"),
        (88, 250, "queued"),  # 12 us before the gap, the default launch latency, is in time
        (89, 250, "launch_bound"),
        (89, 94, "queued"),  # it came late, but had returned before most of the gap
        (100, 137, "queued"),
        (100, 138, "launch_bound"),  # with the launch latency half of the gap
        (190, 195, "launch_bound"),
    ],
)
def test_a_call_comes_late_or_in_time(tmp_path: Path, called_at: int, returned_at: int, expected: str) -> None:
    rows = [op(0, 300 * US), launch(called_at * US, (returned_at - called_at) * US, parent_id=3)]
    assert cause(tmp_path, [*rows, kernel(200 * US, 9, launch_id=4)])[0] == expected


def test_what_comes_after_the_launch_is_not_the_hosts(tmp_path: Path) -> None:
    """As SGLang was recorded: a launch behind a wait for an event; then the host blocks in a copy, for as long as the
    device waits.
    """
    rows = [
        op(0, 600 * MS),
        launch(140 * US, 5 * US, name="hipStreamWaitEvent", parent_id=3),
        launch(146 * US, 5 * US, name="hipLaunchKernel", parent_id=3),
        launch(160 * US, 499 * MS, name="hipMemcpyWithStream", parent_id=3),
        kernel(493 * MS, MS, launch_id=5),
    ]
    result = analyze(tmp_path, [*FIRST, *rows])
    assert gaps(result, "dur", "cause", "blame") == [(493 * MS - 100 * US, "queued", None)]


def test_after_the_launch_neither_scheduler_nor_wait_is_to_blame(tmp_path: Path) -> None:
    rows = [
        annotation("step[DECODE bs=4]", 0, 99 * US),
        launch(20 * US, 82 * US, name=SYNC),
        launch(110 * US, 5 * US),
        kernel(200 * US, 9, launch_id=5),
    ]
    assert cause(tmp_path, rows)[0] == "queued"


def test_launch_latency_is_a_parameter(tmp_path: Path) -> None:
    rows = [op(0, 300 * US), launch(70 * US, 50 * US, parent_id=3), kernel(200 * US, 9, launch_id=4)]
    assert cause(tmp_path, rows)[0] == "queued"
    assert cause(tmp_path, rows, launch_latency_ns=40 * US)[0] == "launch_bound"


@pytest.mark.parametrize(("worked", "expected"), [(51, "launch_bound"), (49, "unattributed")])
def test_the_host_must_be_at_work_for_half_of_the_gap(tmp_path: Path, worked: int, expected: str) -> None:
    """An annotation alone is no work: the thread may have slept in it."""
    rows = [annotation("generate", 0, 300 * US), op(110 * US, (worked - 5) * US, parent_id=3)]
    rows += [launch(190 * US, 5 * US, parent_id=3), kernel(200 * US, 9, launch_id=5)]
    assert cause(tmp_path, rows)[0] == expected


def test_work_of_another_thread_or_rank_does_not_count(tmp_path: Path) -> None:
    rows = [op(0, 300 * US, tid=2), op(0, 300 * US, pid=2), op(0, 300 * US, rank=1)]
    rows += [launch(190 * US, 5 * US), kernel(200 * US, 9, launch_id=6)]
    assert cause(tmp_path, rows) == ("unattributed", None)


def test_blame_is_the_innermost_row_over_half_of_the_gap(tmp_path: Path) -> None:
    rows = [
        python(0, 400 * US),
        python(95 * US, 100 * US, parent_id=3, name="prepare_inputs"),  # 95 of the gap's 100 us
        python(95 * US, 60 * US, parent_id=4, name="copy"),  # 55
        op(120 * US, 20 * US, parent_id=5),
        launch(196 * US, 4 * US, parent_id=3),
        kernel(200 * US, 9, launch_id=7),
    ]
    assert cause(tmp_path, rows) == ("launch_bound", 5)


def test_of_rows_that_start_together_the_inner_one_is_blamed(tmp_path: Path) -> None:
    rows = [python(100 * US, 95 * US), python(100 * US, 90 * US, parent_id=3), op(100 * US, 80 * US, parent_id=4)]
    rows += [op(100 * US, 40 * US, parent_id=5), launch(196 * US, 4 * US), kernel(200 * US, 9, launch_id=7)]
    assert cause(tmp_path, rows) == ("launch_bound", 5)


def test_no_row_over_half_of_the_gap_no_blame(tmp_path: Path) -> None:
    rows = [op(100 * US + i * 20 * US, 19 * US) for i in range(5)]
    rows += [launch(199 * US, US), kernel(200 * US, 9, launch_id=8)]
    assert cause(tmp_path, rows) == ("launch_bound", None)


SYNC = "cudaStreamSynchronize"


@pytest.mark.parametrize(
    ("name", "begin", "end", "expected"),
    [
        (SYNC, 20, 102, "sync"),
        ("cudaDeviceSynchronize", 20, 102, "sync"),
        ("cudaEventSynchronize", 20, 102, "sync"),
        ("cuCtxSynchronize", 20, 102, "sync"),
        ("hipStreamSynchronize", 20, 102, "sync"),
        ("cudaMemcpy", 20, 102, "sync"),
        (SYNC, 20, 99, "sync"),  # clocks differ a little
        (SYNC, 20, 90, "launch_bound"),  # it ended long before the device was done
        (SYNC, 101, 150, "launch_bound"),  # the device was idle already
        ("cudaMemcpyAsync", 20, 102, "launch_bound"),
        ("cudaStreamWaitEvent", 20, 102, "launch_bound"),
    ],
)
def test_waits_that_drain_the_device(tmp_path: Path, name: str, begin: int, end: int, expected: str) -> None:
    rows = [op(0, 300 * US), launch(begin * US, (end - begin) * US, name=name, parent_id=3)]
    rows += [launch(190 * US, 5 * US, parent_id=3), kernel(200 * US, 9, launch_id=5)]
    assert cause(tmp_path, rows)[0] == expected
    if expected == "sync":
        assert cause(tmp_path, rows)[1] == 4


def test_a_wait_of_another_thread_does_not_count(tmp_path: Path) -> None:
    rows = [op(0, 300 * US), launch(20 * US, 82 * US, name=SYNC, tid=2)]
    rows += [launch(190 * US, 5 * US, parent_id=3), kernel(200 * US, 9, launch_id=5)]
    assert cause(tmp_path, rows)[0] == "launch_bound"


@pytest.mark.parametrize(
    ("copy", "expected"),
    [
        ("Memcpy DtoH (Device -> Pageable)", "sync"),
        ("Memcpy HtoD (Pageable -> Device)", "sync"),
        ("Memcpy HtoD (Pinned -> Device)", "launch_bound"),
    ],
)
def test_copies_asynchronous_in_name_only(tmp_path: Path, copy: str, expected: str) -> None:
    """.item(): cudaMemcpyAsync returns when the copy is done; cudaStreamSynchronize then has nothing to wait for."""
    rows = [
        op(0, 300 * US),
        launch(20 * US, 90 * US, name="cudaMemcpyAsync", parent_id=3),
        {"kind": "memcpy", "name": copy, "ts": 100 * US, "dur": 5 * US, "launch_id": 4},
        launch(111 * US, 1 * US, name=SYNC, parent_id=3),
        launch(190 * US, 5 * US, parent_id=3),
        kernel(200 * US, 9, launch_id=7),
    ]
    assert cause(tmp_path, rows) == (expected, 4 if expected == "sync" else 3)


@pytest.mark.parametrize(("step_ends", "expected"), [(149, "between_steps"), (151, "launch_bound")])
def test_most_of_the_gap_outside_steps(tmp_path: Path, step_ends: int, expected: str) -> None:
    rows = [
        python(0, 300 * US, name="engine loop"),
        annotation("step[DECODE bs=4]", 0, step_ends * US, parent_id=3),
        annotation("step[DECODE bs=4]", 200 * US, 50 * US, parent_id=3),
        launch(201 * US, 5 * US, parent_id=5),
        kernel(200 * US, 9, launch_id=6),
    ]
    assert cause(tmp_path, rows)[0] == expected


def test_work_queued_ahead_does_not_wait_for_the_scheduler(tmp_path: Path) -> None:
    """Kernels of a graph that run after the mark of their step has ended: the host is not in the way."""
    rows = [annotation("step[DECODE bs=4]", 0, 50 * US), kernel(200 * US, 9, launch_id=1)]
    assert cause(tmp_path, rows)[0] == "queued"


# ---- against the simulator's truth -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run",
    [
        Run(mode="eager"),
        Run(mode="eager", streams=3, with_stack=True, steps=4),
        Run(mode="eager", plant=Plant(launch_bound_ns=30_000)),
        Run(mode="eager", plant=Plant(syncs_per_step=2), with_stack=True),
        Run(mode="full_graph", plant=Plant(between_steps_ns=2_000_000), steps=5, with_stack=True),
        Run(mode="eager", plant=Plant(holes_per_step=2, hole_ns=400_000)),
        Run(mode="full_graph", pdl_overlap_ns=700),
        Run(mode="piecewise_graph", ranks=2),
    ],
    ids=lambda run: f"{run.mode}-{run.streams}-{run.ranks}-{'planted' if run.plant != Plant() else ''}",
)
def test_simulated_steps(tmp_path: Path, run: Run) -> None:
    """Span, busy and idle to the nanosecond; causes to 2 % of the span."""
    raw = tmp_path / ("trace.json" if run.ranks == 1 else "ranks")
    truth = simulate(run, raw)
    convert([raw], tmp_path / "trace.parquet")
    with tracekit.open(tmp_path / "trace.parquet") as trace:
        result = trace.analyze("idle_gaps")
    for device, row in zip(truth.devices, result.summary, strict=True):
        assert (row["rank"], row["device"], row["span_ns"], row["busy_ns"], row["idle_ns"]) == (
            (device.rank, device.device, device.span_ns, device.busy_ns, device.idle_ns)
        )
        for name in {*device.idle_by_cause, *row["by_cause"]}:
            difference = abs(device.idle_by_cause.get(name, 0) - row["by_cause"].get(name, 0))
            assert difference <= 0.02 * device.span_ns, (name, device.idle_by_cause, row["by_cause"])
