"""health: what is wrong with a trace is said, and nothing is said of one that is fine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.event_rows import annotation, footer_of, kernel, launch, op, write_trace
from tracekit.analysis import Result
from tracekit.footer import Footer, Ledger, SourceInfo
from tracekit.join import LEFT_APART

US = 1_000


def analyze(path: Path, rows: Sequence[dict[str, Any]], footer: Footer | None = None, **parameters: Any) -> Result:
    with tracekit.open(write_trace(path / "trace.parquet", rows, footer)) as trace:
        return trace.analyze("health", **parameters)


def check(result: Result, name: str) -> tuple[str, int, str]:
    (row,) = [row for row in result.table.to_pylist() if row["check"] == name]
    return row["status"], row["count"], row["detail"]


def statuses(result: Result) -> Mapping[str, str]:
    """Checks that are not ok."""
    return {row["check"]: row["status"] for row in result.table.to_pylist() if row["status"] != "ok"}


GOOD = [op(0, 100), launch(1, 5, op_id=1), kernel(20, 30, launch_id=2, op_id=1, name="nvjet_tst_128x128")]


def test_the_empty_trace_is_not_fine(tmp_path: Path) -> None:
    result = analyze(tmp_path, [])
    assert (statuses(result), result.summary[0]["status"]) == ({"events": "fail"}, "fail")
    assert check(result, "events")[2] == (
        "0 read = 0 stored + 0 skipped: nothing was recorded; was the profiler running?"
    )


def test_a_trace_of_the_host_alone_is_fine(tmp_path: Path) -> None:
    result = analyze(tmp_path, [op(0, 100)])
    assert (statuses(result), result.findings) == ({}, ())
    assert check(result, "device_activity")[2].startswith("no device activity and no launch")


def test_a_good_trace_is_fine(tmp_path: Path) -> None:
    result = analyze(tmp_path, GOOD)
    assert (statuses(result), result.findings) == ({}, ())
    assert check(result, "events") == ("ok", 3, "3 read = 3 stored + 0 skipped")
    assert check(result, "device_time_with_op") == ("ok", 1, "100.0% of the busy time has a host op")
    assert check(result, "steps")[2].startswith("no step markers: phases are unknown")
    assert (result.coverage.explained_ns, result.coverage.total_ns) == (30, 30)


def test_launches_without_any_device_row_fail(tmp_path: Path) -> None:
    """CPU ops and 32 graph launches, no kernel: no normal report."""
    result = analyze(tmp_path, [op(0, 900), *(launch(i, 1, name="cudaGraphLaunch") for i in range(32))])
    status, _, detail = check(result, "device_activity")
    assert status == "fail"
    assert detail.startswith("32 launch calls, no device activity was recorded")
    assert "CUPTI" in detail
    assert {finding.severity for finding in result.findings} == {"critical"}
    assert (result.summary[0]["status"], result.summary[0]["fail"]) == ("fail", 2)


def test_a_rank_that_recorded_nothing_fails(tmp_path: Path) -> None:
    result = analyze(tmp_path, [*GOOD, launch(0, 5, rank=3)])
    assert check(result, "ranks_without_device_activity") == ("fail", 1, "launch calls but no device rows: rank 3")


def test_replays_without_kernels_fail(tmp_path: Path) -> None:
    rows = [launch(i * 10, 5, name="hipGraphLaunch") for i in range(32)]
    rows += [kernel(400 + i, 1, launch_id=1, name="nvjet") for i in range(100)]
    status, count, detail = check(analyze(tmp_path, rows), "graph_launches_without_work")
    assert (status, count) == ("fail", 31)
    assert detail.startswith("31 of 32 graph replays: their kernels were not recorded")


def test_calls_are_expected_to_work_by_kind_or_by_evidence(tmp_path: Path) -> None:
    """fancyLaunch is unknown, but one of its calls has a kernel: the other should. cudaMalloc never has any."""
    rows = [
        launch(0, 5, name="fancyLaunch"),
        launch(10, 5, name="fancyLaunch"),
        launch(20, 5, name="cudaMalloc"),
        launch(30, 5, name="cudaLaunchKernelExC"),
        launch(40, 5, name="cudaLaunchHostFunc"),
        kernel(50, 9, launch_id=1, name="nvjet"),
    ]
    assert check(analyze(tmp_path, rows), "launches_without_device_work") == (
        "warn",
        2,
        "2 of 3 launch calls: cudaLaunchKernelExC, fancyLaunch; their work, unless its turn came later, looks like "
        "idle time",
    )
    assert check(analyze(tmp_path, rows, missing_share=0.7), "launches_without_device_work")[0] == "ok"


def test_work_queued_before_the_recording(tmp_path: Path) -> None:
    """Rows before the first linked one of their stream began life before the window; a later one is a lost call."""
    rows = [launch(100, 5), kernel(0, 5), kernel(10, 5), kernel(110, 5, launch_id=1), kernel(120, 5)]
    rows.append(kernel(0, 5, stream=9))
    status, count, detail = check(analyze(tmp_path, rows), "device_work_without_launch")
    assert (status, count) == ("warn", 4)
    assert detail.startswith("4 of 5 device rows, 2 of them queued before the recording began")


def test_clocks_that_differ(tmp_path: Path) -> None:
    rows = [launch(10 * US, 5 * US), kernel(8 * US, 9 * US, launch_id=1, name="nvjet")]
    status, count, detail = check(analyze(tmp_path, rows), "starts_before_launch")
    assert (status, count) == ("warn", 1)
    assert "by up to 2.00 us" in detail
    assert check(analyze(tmp_path, rows, skew_ns=5 * US), "starts_before_launch")[0] == "ok"


def test_the_ledger_must_add_up(tmp_path: Path) -> None:
    lost = footer_of(GOOD, ledger=Ledger(read=10, stored=3, skipped={"flow": 5}))
    status, _, detail = check(analyze(tmp_path, GOOD, lost), "events")
    assert status == "fail"
    assert detail == (
        "10 read, but 3 stored and 5 skipped: some were lost on the way, a mistake of tracekit; convert the file anew"
    )


def test_what_was_skipped_and_repaired(tmp_path: Path) -> None:
    ledger = Ledger(
        read=9,
        stored=3,
        skipped={"flow": 4, "unreadable JSON": 2},
        repaired={"raw backslash in a string": 1, "process or thread given as text": 4},
    )
    result = analyze(tmp_path, GOOD, footer_of(GOOD, ledger=ledger))
    assert check(result, "skipped") == (
        "warn",
        6,
        "flow: 4; unreadable JSON: 2; what was lost is missing from all times",
    )
    assert check(result, "repaired")[0] == "warn"
    usual = footer_of(
        GOOD, ledger=Ledger(read=7, stored=3, skipped={"flow": 4}, repaired={"process or thread given": 0})
    )
    assert statuses(analyze(tmp_path, GOOD, usual)) == {}


def test_a_file_cut_short(tmp_path: Path) -> None:
    source = SourceInfo(path="a.json", format="kineto", rank=0, truncated_at=12345)
    result = analyze(tmp_path, GOOD, footer_of(GOOD, sources=(source,)))
    assert check(result, "truncated") == (
        "warn",
        1,
        "cut short: a.json at byte 12,345; what came later is missing, get the whole file",
    )


def test_ranks_that_are_missing(tmp_path: Path) -> None:
    def ranks(*present: int) -> Footer:
        sources = tuple(SourceInfo(path=f"{rank}", format="kineto", rank=rank, world_size=4) for rank in present)
        return footer_of(GOOD, sources=sources)

    assert check(analyze(tmp_path, GOOD, ranks(0, 1, 2, 3)), "ranks") == ("ok", 4, "4 present of 4")
    assert check(analyze(tmp_path, GOOD, ranks(0, 2)), "ranks") == (
        "warn",
        2,
        "2 of 4 present, missing: 1, 3; convert all together",
    )
    assert check(analyze(tmp_path, GOOD, ranks(2)), "ranks") == (
        "warn",
        1,
        "rank 2 alone of 4: time waiting for peers cannot be told apart; convert all together",
    )


def test_processes_beside_the_job(tmp_path: Path) -> None:
    """Two ranks and an API server, which the collector gave a rank of its own."""
    job = [SourceInfo(path=f"{rank}", format="kineto", rank=rank, world_size=2) for rank in (0, 1)]
    server = SourceInfo(path="2", format="kineto", rank=2, rank_from="collector")
    footer = footer_of(GOOD, sources=(*job, server))
    assert check(analyze(tmp_path, GOOD, footer), "ranks") == ("ok", 3, "2 present of 2, and 1 outside the job")


def test_a_capture_that_is_not_whole(tmp_path: Path) -> None:
    whole = ("ok", 0, "nothing is known to be missing")
    assert check(analyze(tmp_path, []), "capture") == whole
    assert check(analyze(tmp_path, GOOD, footer_of(GOOD, capture={"partial": []})), "capture") == whole
    lost = ["process 7 was killed", "no step in process 8"]
    result = analyze(tmp_path, GOOD, footer_of(GOOD, capture={"partial": lost}))
    said = "less was recorded than was asked for: process 7 was killed; no step in process 8"
    assert check(result, "capture") == ("warn", 2, said)
    assert [finding.title for finding in result.findings] == [f"capture: {said}"]


def test_files_that_may_be_of_several_processes(tmp_path: Path) -> None:
    assert "left_apart" not in statuses(analyze(tmp_path, GOOD))
    footer = footer_of(GOOD)
    result = analyze(tmp_path, GOOD, replace(footer, ledger=replace(footer.ledger, notes={LEFT_APART: 2})))
    status, count, detail = check(result, "left_apart")
    assert (status, count) == ("warn", 2)
    assert detail.startswith("2 files of torch.profiler could be of the same process as several other files")


def test_clocks_of_two_profilers(tmp_path: Path) -> None:
    known = {"file": "a.json", "reference": "b.sqlite", "anchors": 3, "offset_ns": -40, "spread_ns": 2_000}
    result = analyze(tmp_path, GOOD, footer_of(GOOD, capture={"clocks": [known]}))
    assert check(result, "clocks") == ("ok", 3, "clocks of two profilers agree to 2.00 us, by 3 ranges in both")
    result = analyze(tmp_path, GOOD, footer_of(GOOD, capture={"clocks": [known, {**known, "anchors": 2}]}))
    assert check(result, "clocks") == (
        "warn",
        1,
        "hardly a range is in both of a.json and b.sqlite, so how far their clocks differ is unknown: calls near the "
        "edge of an op may be linked to its neighbour; mark steps with tracekit.step, which both record",
    )


def test_replays_recorded_as_one_block(tmp_path: Path) -> None:
    """30 of 60 ns: those that a kernel covers too are the kernel's."""
    block = {"kind": "graph", "name": "CUDA graph replay", "ts": 40, "dur": 40, "launch_id": 1}
    result = analyze(tmp_path, [*GOOD, block])
    status, count, detail = check(result, "opaque_replays")
    assert (status, count) == ("ok", 1)
    assert detail.startswith("50.0% of the busy time is in graph replays recorded as one block: which kernels ran in")


def test_steps_behind_a_good_average(tmp_path: Path) -> None:
    """32 step marks, kernels in two of them."""
    rows = [
        row
        for step in range(32)
        for row in (annotation("step[DECODE bs=1]", step * 100, 50), launch(step * 100 + 1, 5, name="cudaMalloc"))
    ]
    rows += [kernel(3_300, 5, launch_id=2, name="nvjet"), kernel(3_310, 5, launch_id=4, name="nvjet")]
    status, count, detail = check(analyze(tmp_path, rows), "steps_without_device_work")
    assert (status, count) == ("warn", 30)
    assert detail == "30 of 32 steps launched no recorded work: do not judge single steps; sums over the trace hold"


def test_one_row_that_dwarfs_the_rest(tmp_path: Path) -> None:
    rows = [kernel(i * 10, 5, name="nvjet") for i in range(100)]
    assert check(analyze(tmp_path, rows), "dominating_row")[0] == "ok"
    result = analyze(tmp_path, [*rows, kernel(2_000, 10_000, name="stuck")])
    assert check(result, "dominating_row")[:2] == ("warn", 1)
    assert check(result, "dominating_row")[2].endswith("stuck")


def test_time_without_a_category(tmp_path: Path) -> None:
    rows = [kernel(0, 80, name="nvjet"), kernel(100, 20, name="zqx")]
    assert check(analyze(tmp_path, rows), "unclassified_time") == (
        "warn",
        1,
        "20.0% of the busy time is in category other: zqx; name them in a rules file (--rules)",
    )


def test_rows_of_no_duration_are_counted(tmp_path: Path) -> None:
    assert check(analyze(tmp_path, [*GOOD, kernel(5, 0)]), "zero_duration")[:2] == ("ok", 1)


def test_memory_asked_for_and_not_recorded(tmp_path: Path) -> None:
    asked = footer_of(GOOD, capture={"profile_memory": 1})
    assert check(analyze(tmp_path, GOOD, asked), "memory_events")[0] == "warn"
    rows = [*GOOD, {"kind": "instant", "name": "[memory]", "ts": 5}]
    assert check(analyze(tmp_path, rows, footer_of(rows, capture={"profile_memory": 1})), "memory_events")[0] == "ok"


@pytest.mark.parametrize(("unfinished", "status"), [(0, "ok"), (1, "warn"), (2, "fail")])
def test_device_rows_without_an_end(tmp_path: Path, unfinished: int, status: str) -> None:
    """Of ten; a row of no duration that says nothing of its end has one."""
    rows = [launch(0, 5), *(kernel(20 + 10 * at, 9, launch_id=1, name="nvjet") for at in range(9))]
    rows.append(kernel(200, 0, launch_id=1, name="nvjet"))
    for row in rows[1 : 1 + unfinished]:
        row |= {"dur": 0, "args": '{"finished": false}'}
    result = analyze(tmp_path, rows)
    assert check(result, "no_end_recorded")[:2] == (status, unfinished)
    if status == "fail":
        assert check(result, "no_end_recorded")[2] == (
            "2 of 10 device rows without a recorded end, counted as if they took no time: busy and idle time cannot be "
            "told; record again and stop the profiler before the program ends"
        )


def test_idle_time_without_a_cause(tmp_path: Path) -> None:
    rows = [launch(0, 89 * US), *(kernel(at * US, 50 * US, launch_id=1, name="nvjet") for at in (20, 100))]
    assert check(analyze(tmp_path, rows), "unattributed_idle")[:2] == ("ok", 0)
    rows[0]["dur"] = 5 * US  # the second kernel waited on the device, for nothing that is recorded
    assert check(analyze(tmp_path, rows, unattributed_share=0.1), "unattributed_idle")[:2] == ("warn", 1)
    del rows[2]["launch_id"]
    result = analyze(tmp_path, rows, missing_share=0.9)
    assert check(result, "unattributed_idle") == (
        "warn",
        1,
        "23.1% of the span is idle without a cause; record Python stacks (tracekit collect --stacks; torch.profiler: "
        "with_stack=True)",
    )
    assert statuses(result) == {"unattributed_idle": "warn"}
    assert statuses(analyze(tmp_path, rows, missing_share=0.9, unattributed_share=0.3)) == {}


def test_a_file_cut_before_its_device_rows(tmp_path: Path) -> None:
    """The cut explains it; neither CUPTI nor the activities asked for do."""
    source = SourceInfo(path="a.json", format="kineto", rank=0, truncated_at=777)
    for rows, status in (([op(0, 9)], "warn"), ([op(0, 9), launch(1, 5)], "fail")):
        result = analyze(tmp_path, rows, footer_of(rows, sources=(source,)))
        assert check(result, "device_activity") == (
            status,
            0,
            "the file was cut (a.json at byte 777) before any device activity, which comes last; get the whole file",
        )
