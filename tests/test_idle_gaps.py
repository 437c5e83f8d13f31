"""idle_gaps: rows in, table out. What is idle, and whose; test_idle_causes.py tells why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracekit
from tests.event_rows import annotation, kernel, launch, op, write_trace
from tracekit.analysis import Result

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
            "dur": 50 * US,
            "cause": "launch_bound",
            "step": 0,
            "phase": "decode",
            "place": "inside",
            "before_id": 5,
            "after_id": 7,
            "blame": 2,
            "launch_lead_ns": -50 * US,
            "uncertain_ns": 0,
        },
        {
            "rank": 0,
            "device": 0,
            "ts": 90 * US,
            "dur": 10 * US,
            "cause": "launch_latency",
            "step": 0,
            "phase": "decode",
            "place": "inside",
            "before_id": 5,
            "after_id": 7,
            "blame": 4,
            "launch_lead_ns": -50 * US,
            "uncertain_ns": 0,
        },
        {
            "rank": 0,
            "device": 0,
            "ts": 110 * US,
            "dur": 1 * US,
            "cause": "unattributed",
            "step": None,
            "phase": "unknown",
            "place": "outside",
            "before_id": 7,
            "after_id": 8,
            "blame": None,
            "launch_lead_ns": None,
            "uncertain_ns": 0,
        },
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


# ---- whose idle time it is -------------------------------------------------------------------------------------------


def test_place(tmp_path: Path) -> None:
    """Before the recording began; in a step; between two; and ended by work of none."""
    rows = [
        kernel(0, 1 * US),  # launched before the recording began, as is the next
        kernel(2 * US, 1 * US),
        annotation("step[DECODE bs=1]", 3 * US, 20 * US),
        launch(4 * US, 1 * US, step=0),
        launch(5 * US, 1 * US, step=0),
        kernel(10 * US, 1 * US, launch_id=4, step=0),
        kernel(12 * US, 1 * US, launch_id=5, step=0),
        annotation("step[DECODE bs=1]", 24 * US, 20 * US),
        launch(25 * US, 1 * US, step=1),
        kernel(30 * US, 1 * US, launch_id=9, step=1),
        launch(90 * US, 1 * US),
        kernel(95 * US, 1 * US, launch_id=11),
        kernel(97 * US, 1 * US),  # its launch is lost: no sign that it was queued before the recording
    ]
    result = analyze(tmp_path, rows)
    begins = [1 * US, 3 * US, 11 * US, 13 * US, 31 * US, 96 * US]
    found = [(ts // US, place, step) for ts, place, step in gaps(result, "ts", "place", "step") if ts in begins]
    assert found == [
        (1, "prefix", None),
        (3, "between", 0),
        (11, "inside", 0),
        (13, "between", 1),
        (31, "outside", None),
        (96, "outside", None),
    ]
    assert result.summary[0]["excluded_ns"] == 1 * US


def test_the_next_step_may_be_launched_while_this_one_runs(tmp_path: Path) -> None:
    """Asynchronous scheduling: a gap belongs to the step of the work that ended it, and to no other."""
    rows = [
        annotation("step[DECODE bs=1]", 0, 10 * US),
        launch(1 * US, 1 * US, step=0),
        annotation("step[DECODE bs=1]", 11 * US, 10 * US),
        launch(12 * US, 1 * US, step=1),
        kernel(20 * US, 10 * US, launch_id=2, step=0),
        kernel(31 * US, 10 * US, launch_id=4, step=1),
        kernel(43 * US, 10 * US, launch_id=2, step=0),
        kernel(54 * US, 10 * US, launch_id=4, step=1),
    ]
    assert gaps(analyze(tmp_path, rows), "ts", "dur", "place", "step") == [
        (30 * US, 1 * US, "between", 1),
        (41 * US, 2 * US, "inside", 0),
        (53 * US, 1 * US, "inside", 1),
    ]


def test_clocks_that_differ_are_told_and_not_hidden(tmp_path: Path) -> None:
    """A kernel recorded 3 us before its call: the gap ends where it begins, and its causes are that uncertain."""
    rows = [launch(0, 5 * US), kernel(10 * US, 90 * US, launch_id=1)]
    rows += [op(50 * US, 200 * US), launch(203 * US, 5 * US, parent_id=3), kernel(200 * US, 9 * US, launch_id=4)]
    rows += [kernel(210 * US, 9 * US, launch_id=4)]
    result = analyze(tmp_path, rows)
    assert gaps(result, "ts", "dur", "cause", "uncertain_ns") == [
        (100 * US, 100 * US, "launch_bound", 3 * US),
        (209 * US, 1 * US, "launch_latency", 1 * US),
    ]
    assert (result.summary[0]["skew_ns"], result.summary[0]["uncertain_ns"]) == (3 * US, 4 * US)
