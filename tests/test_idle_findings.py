"""Findings of idle_gaps: what each costs a step, of which steps, and that no nanosecond is promised twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.event_rows import annotation, footer_of, kernel, launch, op, write_trace
from tests.idle_rows import (
    DECODE,
    GAP,
    MS,
    US,
    Rows,
    analyze,
    by_cause,
    causes,
    end_of,
    held,
    put,
    ranked,
    step,
    steps,
    unmarked,
)
from tests.real_traces import DISTINCT, parameters
from tests.simulator import Plant, Run, simulate
from tracekit.analysis import Finding
from tracekit.footer import SourceInfo

PREFILL = "step[EXTEND bs=1 toks=8]"
IN_VAIN = ("no_requests", "profiler", "unattributed")  # causes that no change of the engine ends
STEADY = "FROM step_time() WHERE rank = 0 AND device = 0 AND phase = 'decode' AND kind = 'steady'"
BY_GRAPHS = ("launch_bound", "launch_latency", "graph_launch")  # what they could save cuda_graphs says


def titles(path: Path, rows: Rows, **options: Any) -> list[str]:
    return [finding.title for finding in analyze(path, rows, **options).findings]


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    assert titles(tmp_path, []) == []


def test_whole_finding(tmp_path: Path) -> None:
    (finding,) = analyze(tmp_path, steps()).findings
    assert finding == Finding(
        severity="critical",
        title="launch_bound: the host launches too slowly, 400 us per decode step, 66.7% of its time",
        detail="14 gaps, the longest 395 us, in 7 steps; mostly in aten::mm (2.77 ms). The host was still preparing or "
        "launching when the device ran dry. Tracing slows the host, so the true figure is lower.",
        saving_low_ns=0,
        saving_high_ns=0,
        evidence=(13, 20, 27, 34, 41, 11, 18, 25, 32, 39),
        remedy="Replay decode steps as CUDA graphs (SGLang: no --disable-cuda-graph; --cuda-graph-max-bs up to the "
        "batch). Where shapes vary, compile, or fuse to launch fewer and larger kernels.",
        cost="Graph memory, longer start-up, batches padded to captured sizes.",
        verify="Same load, this one change: idle by cause in a new trace; P50 and P99 of ITL unprofiled.",
        arithmetic=(
            "idle: tracekit sql TRACE \"SELECT sum(dur) FROM idle_gaps() WHERE cause = 'launch_bound' AND rank = 0 AND "
            f'device = 0 AND step IN (SELECT step {STEADY})" = 2,800,000 ns',
            "of each step: 2,800,000 ns / 7 steps = 400,000 ns",
            'time of the steps: tracekit sql TRACE "SELECT sum(busy_ns + idle_ns + gap_before_ns) '
            f'{STEADY}" = 4,200,000 ns',
            "share: 2,800,000 ns / 4,200,000 ns = 66.7%",
        ),
    )


# ---- per step --------------------------------------------------------------------------------------------------------


def test_steady_steps_alone_count(tmp_path: Path) -> None:
    """Neither the first, nor one in which a graph is made, nor one without work: they idle for other reasons."""
    rows: Rows = []
    step(rows, gap=2 * MS)
    hold = held("annotation", "gpu_model_runner: bookkeep")
    step(rows, hold)
    step(rows, held("launch", "cudaGraphInstantiate"), gap=3 * MS)
    step(rows, hold)
    step(rows, hold)
    rows.append(annotation(DECODE, end_of(rows), 50 * US, tid=1))
    (finding,) = analyze(tmp_path, rows).findings
    assert finding.title.endswith(", 395 us per decode step, 65.8% of its time")
    assert finding.detail.startswith("3 gaps, the longest 395 us, in 3 steps; ")
    assert finding.saving_high_ns == 3 * 395 * US


def test_where_no_step_is_steady_all_count(tmp_path: Path) -> None:
    rows: Rows = []
    step(rows, gap=2 * MS)
    step(rows, held("launch", "cudaGraphInstantiate"), gap=3 * MS)
    assert titles(tmp_path, rows) == [
        "lazy_load_or_jit: the device waits for compilation or loading, 1.50 ms per decode step, 55.6% of its time",
        "launch_bound: the device waits in a few gaps, 1.00 ms per decode step, 37.1% of its time",
    ]


def test_phases_are_judged_apart(tmp_path: Path) -> None:
    rows: Rows = []
    step(rows)
    for gap, mark in ((900 * US, PREFILL), (GAP, DECODE), (700 * US, PREFILL), (GAP, DECODE), (GAP, DECODE)):
        step(rows, held("annotation", "gpu_model_runner: bookkeep"), gap=gap, mark=mark)
    found = analyze(tmp_path, rows).findings
    assert [(one.title.partition("scheduler, ")[2], one.saving_high_ns) for one in found] == [
        ("795 us per prefill step, 79.5% of its time", 2 * 795 * US),
        ("395 us per decode step, 65.8% of its time", 3 * 395 * US),
    ]


def test_a_scope_is_judged_by_its_own_steps(tmp_path: Path) -> None:
    rows: Rows = []
    for gap in (GAP, GAP, GAP, 4 * MS, 4 * MS):
        step(rows, held("annotation", "gpu_model_runner: bookkeep"), gap=gap)
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        (finding,) = trace.only(steps=(3, 4)).analyze("idle_gaps").findings
    assert (
        finding.title
        == "scheduler: the device waits for the scheduler, 4.00 ms in the only decode step, 95.1% of its time"
    )


def test_a_window_within_a_step_is_judged_as_one(tmp_path: Path) -> None:
    """50 us of work, then 300 us of a gap that lasts 400: no step lies whole in it."""
    rows = steps(held("annotation", "gpu_model_runner: bookkeep"))
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        (finding,) = trace.only(since_ns=650 * US, until_ns=1_000 * US).analyze("idle_gaps").findings
    assert finding.title == "scheduler: the device waits for the scheduler, 85.7% of the span"
    assert finding.saving_high_ns == 300 * US


# ---- quiet -----------------------------------------------------------------------------------------------------------


def test_quiet_where_the_device_idles_little(tmp_path: Path) -> None:
    """3.3 of 303 ms, though all of it in decode steps, which are in a hurry."""
    rows = steps()
    step(rows, mark=PREFILL, gap=5 * US, work={"dur": 300 * MS})
    assert titles(tmp_path, rows) == []
    assert len(titles(tmp_path, rows, idle_share=0.01)) == 1


def test_quiet_where_a_cause_takes_little_of_the_steps(tmp_path: Path) -> None:
    """launch_latency takes 10 us of 600: with 1.7 % it is below 2 %."""
    assert [title.partition(":")[0] for title in titles(tmp_path, steps())] == ["launch_bound"]
    assert [title.partition(":")[0] for title in titles(tmp_path, steps(), finding_share=0.016)] == [
        "launch_bound",
        "launch_latency",
    ]
    assert titles(tmp_path, steps(), finding_share=0.67) == []


def test_waiting_for_queued_work_costs_nothing(tmp_path: Path) -> None:
    """.item() of a result, 9 ms on the host. Of these the device worked 8.9; only the 0.1 ms is idle time."""
    rows = [
        launch(0, 5 * US),
        kernel(10 * US, 8_890 * US, launch_id=1),  # ends at 8.9 ms
        op(20 * US, 8_980 * US, name="aten::item"),
        launch(25 * US, 8_975 * US, name="cudaMemcpyAsync"),  # returns at 9 ms
        {"kind": "memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "ts": 8_900 * US, "dur": 0, "launch_id": 4},
        launch(9_000 * US, 5 * US),
        kernel(9_000 * US, 100 * US, launch_id=6),
    ]
    result = analyze(tmp_path, rows)
    assert result.findings == ()
    assert result.summary[0]["by_cause"] == {"pageable_copy": 100 * US}
    found = analyze(tmp_path, rows, idle_share=0.01, finding_share=0.01).findings
    assert [one.saving_high_ns for one in found] == [100 * US]


# ---- severity --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "severities"),
    [
        ("scheduler", ["critical", "critical", "warning"]),
        ("stream_dependency", ["warning", "warning", "warning"]),  # what the work waited for is not shown
        ("launch_latency", ["warning", "warning", "warning"]),  # nor what could hide it
        ("unattributed", ["info", "info", "info"]),
    ],
)
def test_severity(tmp_path: Path, cause: str, severities: list[str]) -> None:
    rows = causes(DECODE)[cause]
    shares = (0.1, 0.2, 0.7)
    assert [by_cause(analyze(tmp_path, rows, critical_share=share))[cause].severity for share in shares] == severities


# ---- without steps ---------------------------------------------------------------------------------------------------


def test_idle_time_outside_steps_is_told_once_and_apart(tmp_path: Path) -> None:
    """Work of a thread that runs no steps; the cause of the wait before it is not seen."""
    rows = steps()
    expected = titles(tmp_path, rows)
    for end in (9_800 * US, 11_805 * US):
        put(rows, launch(end, 4 * US, tid=9), kernel(end + 5 * US, 95 * US))
    first, apart = analyze(tmp_path, rows).findings
    assert [first.title] == expected
    assert apart == Finding(
        severity="info",
        title="outside steps: 6.92 ms of idle time, 58.2% of the span",
        detail="2 gaps, the longest 5.01 ms (unattributed 6.91 ms, launch_latency 10.0 us), ended by work that no step "
        "launched. They are in no figure per step.",
        evidence=(58, 60),
        remedy="It was launched before the first marked step, between two, or after the last: record more steps and "
        "see whether it comes again. A wait at the very start may be for work that began before the recording.",
        cost="None.",
        verify="The idle time outside steps in the next trace.",
        arithmetic=(
            'idle: tracekit sql TRACE "SELECT sum(dur) FROM idle_gaps() WHERE rank = 0 AND device = 0 AND place = '
            "'outside'\" = 6,920,000 ns",
            'span: tracekit sql TRACE "SELECT span_ns FROM device_time() WHERE rank = 0 AND device = 0" = '
            "11,900,000 ns",
            "share: 6,920,000 ns / 11,900,000 ns = 58.2%",
        ),
    )


def test_little_idle_time_outside_steps_is_not_worth_a_word(tmp_path: Path) -> None:
    rows = steps(count=12)
    expected = titles(tmp_path, rows)
    put(rows, launch(end_of(rows) + 20 * US, 4 * US, tid=9), kernel(end_of(rows) + 25 * US, 95 * US))
    assert titles(tmp_path, rows) == expected
    assert len(titles(tmp_path, rows, finding_share=0.001)) > 1


def test_traces_without_steps_get_shares_of_the_span(tmp_path: Path) -> None:
    (title,) = titles(tmp_path, unmarked(steps()))
    assert title == "launch_bound: the host launches too slowly, 66.7% of the span"


def test_steps_that_were_inferred_are_not_judged(tmp_path: Path) -> None:
    """A table may show them; a verdict on them would stand on a guess."""
    rows = unmarked(steps(work={"name": "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024>"}))
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        assert {row["source"] for row in trace.sql("FROM steps").to_pylist()} == {"inferred"}
        result = trace.analyze("idle_gaps")
    assert [one.title for one in result.findings] == ["launch_bound: the host launches too slowly, 66.7% of the span"]
    assert result.summary[0]["per_step"] == []


# ---- how much --------------------------------------------------------------------------------------------------------


def test_devices_idle_side_by_side(tmp_path: Path) -> None:
    """A finding promises what the worst of them could win, not the sum."""
    hold = held("annotation", "gpu_model_runner: bookkeep")
    rows = ranked(*(steps(hold, gap=GAP - 20 * US * abs(rank - 2)) for rank in range(4)))
    (finding,) = analyze(tmp_path, rows).findings
    assert finding.title.endswith("395 us per decode step, 65.8% of its time on rank 2 device 0, the worst of 4")
    assert finding.saving_high_ns == 7 * 395 * US


@pytest.mark.parametrize(
    "run",
    [
        Run(steps=5, plant=Plant(launch_bound_ns=20 * US, syncs_per_step=1, gc_ns=80 * US, no_requests_ns=21 * MS)),
        Run(mode="full_graph", asynchronous=True, steps=5, plant=Plant(scheduler_ns=90 * US, profiler_ns=70 * US)),
        Run(marks="sglang", prefill_steps=2, steps=6, streams=3, orphans=5, plant=Plant(holes_per_step=1, hole_ns=MS)),
        Run(marks="none", steps=5, orphans=5, plant=Plant(pageable_copies_per_step=2, input_preparation_ns=90 * US)),
    ],
    ids=lambda run: f"{run.mode}-{run.marks}",
)
def test_no_nanosecond_is_promised_twice(tmp_path: Path, run: Run) -> None:
    """With findings of everything, they promise all that could be won in steady steps, once."""
    simulate(run, tmp_path / "trace.json")
    with tracekit.open(tmp_path / "trace.json") as trace:
        result = trace.analyze("idle_gaps", idle_share=0.0, finding_share=0.0)
    (row,) = result.summary
    if run.marks == "none":
        apart = {one["cause"]: 0 for one in result.table.to_pylist()}
        for one in result.table.to_pylist():
            apart[one["cause"]] += one["dur"] * (one["place"] != "prefix")
        to_win = sum(ns for cause, ns in apart.items() if cause not in (*IN_VAIN, *BY_GRAPHS))
    else:
        to_win = sum(one["ns"] for one in row["per_step"] if one["cause"] not in (*IN_VAIN, *BY_GRAPHS))
    assert sum(one.saving_high_ns for one in result.findings) == to_win > 0
    assert to_win <= row["idle_ns"] - row["excluded_ns"]


@pytest.mark.parametrize("path", parameters(DISTINCT))
def test_real_traces_add_up_and_promise_no_nanosecond_twice(path: Path) -> None:
    with tracekit.open(path, allow_partial=True) as trace:
        idle, busy = trace.analyze("idle_gaps"), trace.analyze("attribution")
    for row in idle.summary:
        if row["idle_ns"] is not None:
            assert sum(row["by_cause"].values()) == row["idle_ns"] == row["span_ns"] - row["busy_ns"]
    assert not idle.findings or not any(row["idle_ns"] is None for row in idle.summary)
    assert sum(one.saving_high_ns for one in idle.findings) <= sum(row["idle_ns"] or 0 for row in idle.summary)
    for finding in (*idle.findings, *busy.findings):
        assert all(part == part.strip() and "{" not in part for part in (finding.title, finding.remedy, finding.verify))


def test_a_cut_file_without_device_rows_was_cut(tmp_path: Path) -> None:
    rows = [op(0, 50)]
    source = SourceInfo(path="a.json", format="kineto", rank=0, truncated_at=777)
    path = write_trace(tmp_path / "trace.parquet", rows, footer_of(rows, sources=(source,)))
    with tracekit.open(path) as trace:
        for name in ("idle_gaps", "attribution"):
            reason = trace.analyze(name).coverage.reason
            assert "the file was cut (a.json at byte 777) before any device activity" in reason
            assert "CUDA activities" not in reason
