"""Numbers of idle_gaps by device, and the traces that cannot tell idle time: refused with the reason, and no figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracekit
from tests.command_line import run as command
from tests.event_rows import kernel, launch, write_trace
from tests.idle_rows import GAP, MS, US, Row, Rows, analyze, put, ranked, step, steps, unmarked
from tests.simulator import Plant, Run, Truth, simulate
from tracekit.analysis import Result

EDGES = (0, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, None)
LOST = "idle time cannot be told: "


def bins(result: Result) -> list[tuple[int, int]]:
    """Gaps and time of each bin of the histogram."""
    (row,) = result.summary
    assert [(one["from_ns"], one["to_ns"]) for one in row["histogram"]] == list(pairwise(EDGES))
    return [(one["gaps"], one["ns"]) for one in row["histogram"]]


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    result = analyze(tmp_path, [])
    assert (result.summary, result.coverage.explained_ns, result.coverage.total_ns) == ((), 0, 0)
    assert result.coverage.reason.startswith("nothing was recorded")


def test_a_device_that_never_idles(tmp_path: Path) -> None:
    result = analyze(tmp_path, [kernel(0, 5), kernel(5, 5)])
    assert (result.summary[0]["idle_ns"], result.summary[0]["by_cause"], bins(result)) == (0, {}, [(0, 0)] * 7)


def test_whole_summary(tmp_path: Path) -> None:
    """Three steps of 600 us, of which two count; each has a gap of 400 us and, but for the first, one of 10 us."""
    (row,) = analyze(tmp_path, steps(count=3)).summary
    empty = {"gaps": 0, "ns": 0}
    assert row == {
        "rank": 0,
        "device": 0,
        "span_ns": 1_790 * US,
        "busy_ns": 570 * US,
        "idle_ns": 1_220 * US,
        "excluded_ns": 0,
        "skew_ns": 0,
        "uncertain_ns": 0,
        "by_cause": {"launch_latency": 25 * US, "launch_bound": 1_195 * US},
        "per_step": [
            {"phase": "decode", "steps": 2, "step_ns": 1_200 * US, "cause": "launch_latency", "ns": 20 * US},
            {"phase": "decode", "steps": 2, "step_ns": 1_200 * US, "cause": "launch_bound", "ns": 800 * US},
        ],
        "histogram": [
            {"from_ns": 0, "to_ns": US} | empty,
            {"from_ns": US, "to_ns": 10 * US} | empty,
            {"from_ns": 10 * US, "to_ns": 100 * US, "gaps": 2, "ns": 20 * US},
            {"from_ns": 100 * US, "to_ns": MS, "gaps": 3, "ns": 1_200 * US},
            {"from_ns": MS, "to_ns": 10 * MS} | empty,
            {"from_ns": 10 * MS, "to_ns": 100 * MS} | empty,
            {"from_ns": 100 * MS, "to_ns": None} | empty,
        ],
    }


def test_phases_in_numbers(tmp_path: Path) -> None:
    rows: Rows = []
    for mark in ("step[DECODE bs=1]", "step[EXTEND bs=1 toks=8]", "step[DECODE bs=1]", "step[MIXED c=1 g=1]"):
        step(rows, mark=mark, gap=GAP + 100 * US * ("EXTEND" in mark))
    (row,) = analyze(tmp_path, rows).summary
    assert [(one["phase"], one["steps"], one["step_ns"], one["cause"], one["ns"]) for one in row["per_step"]] == [
        ("decode", 1, 600 * US, "launch_latency", 10 * US),
        ("decode", 1, 600 * US, "launch_bound", 400 * US),
        ("mixed", 1, 600 * US, "launch_latency", 10 * US),
        ("mixed", 1, 600 * US, "launch_bound", 400 * US),
        ("prefill", 1, 700 * US, "launch_latency", 10 * US),
        ("prefill", 1, 700 * US, "launch_bound", 500 * US),
    ]
    assert analyze(tmp_path, unmarked(rows)).summary[0]["per_step"] == []


def test_gaps_are_counted_whole(tmp_path: Path) -> None:
    """Of which a part has another cause, and at the edges of bins: 999 ns, 1 us, 10 us, 0.1 s."""
    rows: Rows = [kernel(0, 1)]
    at = 1
    for gap in (999, 1_000, 9_999, 10_000, 100 * MS):
        at += gap
        rows.append(kernel(at, 1))
        at += 1
    result = analyze(tmp_path, rows)
    assert bins(result) == [(1, 999), (2, 10_999), (1, 10_000), (0, 0), (0, 0), (0, 0), (1, 100 * MS)]
    assert bins(analyze(tmp_path, steps(count=1))) == [(0, 0)] * 3 + [(1, 400 * US)] + [(0, 0)] * 3


DRAWN = st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 400), st.booleans()), min_size=1, max_size=40)


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DRAWN)
def test_everything_adds_up(tmp_path: Path, drawn: list[tuple[int, int, bool]]) -> None:
    """Causes, bins and gaps of the histogram, and what lies before the first launch, against counting by hand."""
    rows: Rows = []
    for ts, dur, launched in drawn:
        if launched:
            put(rows, launch(max(0, ts - 100), 50), kernel(ts, dur))
        else:
            rows.append(kernel(ts, dur))
    result = analyze(tmp_path, rows)
    (row,) = result.summary
    painted = {nanosecond for ts, dur, _ in drawn for nanosecond in range(ts, ts + dur)}
    span = range(min(ts for ts, _, _ in drawn), max(ts + dur for ts, dur, _ in drawn))
    assert sum(row["by_cause"].values()) == row["idle_ns"] == sum(at not in painted for at in span)
    assert sum(ns for _, ns in bins(result)) == row["idle_ns"]
    assert sum(gaps for gaps, _ in bins(result)) == len({one["after_id"] for one in result.table.to_pylist()})
    first = min((ts for ts, _, launched in drawn if launched), default=0)
    ended_before = [one for one in result.table.to_pylist() if rows[one["after_id"] - 1]["ts"] < first]
    assert row["excluded_ns"] == sum(one["dur"] for one in ended_before)
    assert result.coverage.total_ns == row["idle_ns"]
    assert result.coverage.explained_ns == row["idle_ns"] - row["by_cause"].get("unattributed", 0)


def test_work_launched_before_the_recording_is_no_evidence(tmp_path: Path) -> None:
    """Until the first row of a stream whose launch is recorded; on another stream that is later."""
    rows: Rows = [kernel(0, 10), kernel(30, 10)]
    put(rows, launch(35, 5), kernel(50, 10))
    rows += [kernel(70, 10), kernel(75, 15, stream=9), kernel(95, 5, stream=9)]
    put(rows, launch(96, 2), kernel(110, 10, stream=9))
    result = analyze(tmp_path, rows)
    (row,) = result.summary
    assert (row["idle_ns"], row["excluded_ns"]) == (20 + 10 + 10 + 5 + 10, 20 + 5)
    assert result.coverage.reason.startswith(
        "3 parts of gaps show no cause in the trace; 2 of them (0.025 us) lie before the first work whose launch was"
    )


def test_clocks_that_differ_make_borders_uncertain(tmp_path: Path) -> None:
    """The second kernel starts 3 us before its launch: every border on that device may be off by so much."""
    rows: Rows = []
    put(rows, launch(0, 4 * US), kernel(10 * US, 90 * US))
    put(rows, launch(123 * US, 4 * US), kernel(120 * US, 10 * US))
    put(rows, launch(131 * US, US), kernel(132 * US, 10 * US))
    (row,) = analyze(tmp_path, rows).summary
    assert (row["skew_ns"], row["idle_ns"], row["uncertain_ns"]) == (3 * US, 22 * US, 3 * US + 2 * US)


# ---- what cannot be told ---------------------------------------------------------------------------------------------


def replays(count: int, silent: Sequence[int] = (), short: Sequence[int] = (), call: str = "cudaGraphLaunch") -> Rows:
    """So many replays of a graph of four kernels of 20 us, 95 us apart: silent ones left none, short ones two."""
    rows: Rows = []
    for i in range(count):
        at = i * 95 * US
        rows.append(launch(at, 5 * US, name=call))
        graph = {"launch_id": len(rows), "graph_id": 7}
        left = 0 if i in silent else 2 if i in short else 4
        rows += [kernel(at + 10 * US + k * 20 * US, 20 * US, **graph) for k in range(left)]
    return rows


def launches(count: int, silent: Sequence[int]) -> Rows:
    rows = replays(count, silent, call="cudaLaunchKernel")
    return [{key: value for key, value in row.items() if key != "graph_id"} for row in rows]


def endless(count: int, silent: int) -> Rows:
    """Rows without a recorded end, so many of 4 * count."""
    rows = replays(count)
    for row in [row for row in rows if row["kind"] == "kernel"][:silent]:
        row |= {"dur": 0, "args": '{"finished": false, "x": 1}'}
    return rows


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (replays(32, range(1, 31)), "30 of 32 graph replays left no device work in the trace"),
        (replays(32, (3, 7)), "2 of 32 graph replays left no device work in the trace"),
        (replays(32, short=(3, 7)), "2 of 32 graph replays left fewer rows in the trace than others of their graph"),
        (replays(32, short=range(1, 32)), "31 of 32 graph replays left fewer rows in the trace"),
        (launches(32, (3, 7)), "2 of 32 launch calls left no device work in the trace"),
        (endless(32, 3), "3 of 128 device rows have no recorded end"),
    ],
    ids=["most replays", "two replays", "parts", "most parts", "launches", "ends"],
)
def test_refused(tmp_path: Path, rows: Rows, reason: str) -> None:
    """Replays of a graph with conditional nodes may start fewer rows and lack none; they are refused all the same."""
    result = analyze(tmp_path, rows)
    assert result.coverage.reason.startswith(LOST + reason)
    assert "record again" in result.coverage.reason
    assert (result.coverage.explained_ns, result.coverage.total_ns) == (0, 0)
    assert (result.table.num_rows, result.findings) == (0, ())
    assert result.table.column_names == analyze(tmp_path, []).table.column_names
    (row,) = result.summary
    assert (row["rank"], row["device"], row["span_ns"] > row["busy_ns"] > 0) == (0, 0, True)
    assert [row[key] for key in ("idle_ns", "excluded_ns", "uncertain_ns", "skew_ns")] == [None] * 4
    assert [row[key] for key in ("by_cause", "per_step", "histogram")] == [{}, [], []]


@pytest.mark.parametrize(
    ("rows", "doubt"),
    [
        (replays(32), ""),
        (
            replays(32, (31,)),
            "1 of 32 graph replays left no device work in the trace: some holes may be unrecorded work",
        ),
        (replays(200, (50, 51, 52, 53)), "4 of 200 graph replays left no device work in the trace: some holes may be"),
        (
            replays(200, short=(9,)),
            "1 of 200 graph replays left fewer rows in the trace than others of their graph: some",
        ),
        (
            launches(32, (31,)),
            "1 of 32 launch calls left no device work in the trace: some holes may be unrecorded work",
        ),
        (launches(1, ()), ""),
        (endless(32, 2), "2 of 128 device rows have no recorded end: some holes may be unrecorded work"),
        ([*replays(4), *(launch(at, 5, name="cudaEventRecord") for at in range(30))], ""),
    ],
    ids=["whole", "cut off at the end", "few replays", "few parts", "one launch", "one", "few ends", "no launches"],
)
def test_told_and_doubted(tmp_path: Path, rows: Rows, doubt: str) -> None:
    result = analyze(tmp_path, rows)
    assert result.coverage.reason.startswith(doubt)
    assert bool(result.coverage.reason) == bool(doubt)
    (row,) = result.summary
    assert row["idle_ns"] == sum(row["by_cause"].values()) == row["span_ns"] - row["busy_ns"]


def test_a_single_launch_without_work_is_no_edge(tmp_path: Path) -> None:
    """Of one launch in all it is everything."""
    rows = [launch(0, 5), kernel(10, 10), kernel(40, 10)]
    assert analyze(tmp_path, rows).coverage.reason.startswith(f"{LOST}1 of 1 launch calls left no device work")


def test_how_much_may_be_missing_is_a_parameter(tmp_path: Path) -> None:
    rows = replays(32, (3, 7))
    assert analyze(tmp_path, rows, missing_share=0.07).coverage.reason.startswith("2 of 32 graph replays left no")
    assert analyze(tmp_path, replays(200, (1, 2)), missing_share=0.0).coverage.reason.startswith(f"{LOST}2 of 200")


def test_graphs_are_compared_with_themselves(tmp_path: Path) -> None:
    """Two graphs of unlike length lack nothing, nor do graphs of other ranks with the same number."""
    whole, half = replays(20), replays(20, short=range(20))
    rows = [*whole]
    for row in half:
        moved = {"launch_id": row["launch_id"] + len(whole), "graph_id": 8} if "graph_id" in row else {}
        rows.append({**row, "ts": row["ts"] + 1_900 * US, **moved})
    assert "graph replays" not in analyze(tmp_path, rows).coverage.reason
    assert "graph replays" not in analyze(tmp_path, ranked(whole, half)).coverage.reason


@pytest.mark.parametrize("mode", ["full_graph", "piecewise_graph"])
@pytest.mark.parametrize("loss", ["lost_replays_percent", "partial_replays_percent"])
def test_simulated_losses(tmp_path: Path, mode: Any, loss: str) -> None:
    losses: dict[str, Any] = {loss: 30}
    truth = simulate(Run(mode=mode, steps=8, **losses), tmp_path / "trace.json")
    with tracekit.open(tmp_path / "trace.json") as trace:
        result = trace.analyze("idle_gaps")
    missing = truth.lost_replays + truth.partial_replays
    assert missing > 1
    replayed = truth.graph_launches + truth.lost_replays
    assert result.coverage.reason.startswith(f"{LOST}{missing} of {replayed} graph replays left ")
    assert (result.table.num_rows, result.findings, result.summary[0]["idle_ns"]) == (0, (), None)


# ---- what is printed -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    path = tmp_path_factory.mktemp("lossy") / "trace.json"
    truth = simulate(Run(mode="full_graph", steps=8, lost_replays_percent=30, plant=Plant(scheduler_ns=300 * US)), path)
    return path, truth


WITHOUT_FIGURE = (
    "idle cannot tell",
    "idle time cannot be told",
    "their work, unless its turn came later, looks like idle time",
    "so their time looks idle and is not",
    "idle_gaps",
)


def numbers_of_idle(value: Any, path: str = "") -> list[str]:
    """Where a figure stands under a name with idle in it, thresholds apart."""
    if isinstance(value, dict):
        return [at for key, one in value.items() if key != "parameters" for at in numbers_of_idle(one, f"{path}/{key}")]
    if isinstance(value, list):
        return [at for one in value for at in numbers_of_idle(one, path)]
    return [path] if isinstance(value, int) and "idle" in path.rpartition("/")[2] else []


@pytest.mark.parametrize("names", [(), ("idle_gaps",), ("steps", "idle_gaps", "attribution")], ids=len)
def test_no_figure_of_idle_time_is_printed(lossy: tuple[Path, Truth], names: tuple[str, ...]) -> None:
    path, truth = lossy
    text = command("analyze", path, *names).stdout
    assert "idle cannot tell" in text
    flat = " ".join(text.split())
    assert flat.count(f"{LOST}{truth.lost_replays} of") == 1 + len({"steps", "idle_gaps"} & {*names})
    for said in WITHOUT_FIGURE:
        flat = flat.replace(said, "")
    assert "idle" not in flat.lower()
    assert not [word for word in ("Idle time by cause", "Gaps by length", "outside steps:", "saves") if word in text]
    found = json.loads(command("analyze", path, *names, "--format", "json").stdout)["results"]
    assert numbers_of_idle({name: one for name, one in found.items() if name != "health"}) == []
    assert found["idle_gaps"]["summary"][0]["idle_ns"] is None


def test_a_trace_that_can_tell_prints_figures(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.parquet", steps())
    text = command("analyze", path).stdout
    assert "idle 3.27 ms (68.3%)" in text
    assert "Idle time by cause" in text
    found = json.loads(command("analyze", path, "--format", "json").stdout)["results"]
    assert "/attribution/summary/idle_ns" in numbers_of_idle(found)


def row_of(result: Result, rank: int) -> Row:
    (row,) = [row for row in result.summary if row["rank"] == rank]
    return row


def test_devices_have_rows_of_their_own(tmp_path: Path) -> None:
    result = analyze(tmp_path, ranked(steps(count=2), steps(count=3), [kernel(0, 5), kernel(7, 5, device=1)]))
    assert [(row["rank"], row["device"]) for row in result.summary] == [(0, 0), (1, 0), (2, 0), (2, 1)]
    assert [row_of(result, rank)["idle_ns"] for rank in (0, 1)] == [810 * US, 1_220 * US]
    assert [row["skew_ns"] for row in result.summary] == [0, 0, None, None]


def test_what_was_lost_before_the_first_recorded_work_makes_no_hole(tmp_path: Path) -> None:
    """CUPTI drops the head of a session; what lies between recorded work is told all the same."""
    head = [launch(at * 10, 5) for at in range(19)]
    rows = [*head, launch(200, 5), launch(210, 5), kernel(220, 10, launch_id=20), kernel(240, 10, launch_id=21)]
    assert analyze(tmp_path, rows).summary[0]["idle_ns"] == 10
    late = [*rows, *(launch(300 + at, 1) for at in range(19))]
    assert analyze(tmp_path, late).coverage.reason.startswith(f"{LOST}19 of 40 launch calls left no device work")


def test_work_whose_turn_came_after_the_recording_makes_no_hole(tmp_path: Path) -> None:
    """The device was at older work still when these were launched; after the end of that, nobody knows."""
    rows = [launch(0, 5), launch(10, 5), kernel(20, 10, launch_id=1), kernel(40, 500, launch_id=2)]
    queued = [*rows, *(launch(20 + 10 * at, 1) for at in range(19))]
    result = analyze(tmp_path, queued)
    assert (result.summary[0]["idle_ns"], result.coverage.reason) == (10, "")
    late = [*queued, launch(540, 1), launch(550, 1)]
    assert analyze(tmp_path, late).coverage.reason.startswith(f"{LOST}2 of 23 launch calls left no device work")


@pytest.mark.parametrize(("hole", "refused"), [(100, False), (101, True)])
def test_a_long_hole_inside_a_replay_is_a_lost_kernel(tmp_path: Path, hole: int, refused: bool) -> None:
    """All replays may lack the same kernel, and none have a graph id: then only the hole shows."""
    call = launch(0, 5 * US, name="cudaGraphLaunch")
    rows = [call, kernel(10 * US, 10 * US, launch_id=1), kernel((20 + hole) * US, 10 * US, launch_id=1)]
    result = analyze(tmp_path, rows)
    assert result.coverage.reason.startswith(f"{LOST}101 us of holes lie inside graph replays") == refused
    assert (result.summary[0]["idle_ns"] is None) == refused
    assert analyze(tmp_path, rows, graph_hole_ns=200 * US).summary[0]["idle_ns"] == hole * US
    eager = [launch(0, 5 * US), *rows[1:]]
    assert analyze(tmp_path, eager).summary[0]["idle_ns"] == hole * US


def test_memsets_of_no_bytes_leave_no_row_and_lose_nothing(tmp_path: Path) -> None:
    calls = [launch(at * 10, 5, name="cudaMemsetAsync") for at in range(9)]
    rows = [launch(0, 5), launch(95, 1), *calls, kernel(90, 5, launch_id=1), kernel(100, 10, launch_id=2)]
    assert analyze(tmp_path, rows).summary[0]["idle_ns"] == 5
