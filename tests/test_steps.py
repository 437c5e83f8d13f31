"""steps: rows in, table out; what is said of it, and what is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.event_rows import annotation, kernel, launch, op
from tests.served_steps import DECODE, SMALL, Rows, cells, opened, served
from tracekit.analysis import Result


def analyze(path: Path, rows: Sequence[Mapping[str, Any]], **parameters: Any) -> Result:
    with opened(path, rows) as trace:
        return trace.analyze("steps", **parameters)


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    result = analyze(tmp_path, [])
    assert (result.table.num_rows, result.summary, result.findings) == (0, (), ())
    assert result.coverage.reason.startswith("nothing was recorded")


def test_whole_result(tmp_path: Path) -> None:
    result = analyze(tmp_path, SMALL)
    rows = result.table.to_pylist()
    assert cells(rows, "device", "kind", "phase", "bucket", "requests_to", "tokens_to", "count") == [
        (0, "steady", "decode", "3-4", 4, None, 2),
        (0, "first", "prefill", "1, <=64 tok", 1, 64, 1),
        (None, "empty", "decode", "3-4", 4, None, 1),
    ]
    for name, steady, first in (
        ("", (10, 30, 30), (30, 30, 30)),
        ("busy_", (10, 20, 20), (25, 25, 25)),
        ("idle_", (0, 10, 10), (5, 5, 5)),
        ("gap_next_", (20, 20, 20), (10, 10, 10)),
        ("period_", (30, 30, 30), (40, 40, 40)),
    ):
        columns = [f"{name}{quantile}_ns" for quantile in ("p50", "p90", "p99")]
        assert cells(rows, *columns) == [steady, first, (None, None, None)], name
    assert cells(rows, "host_p50_ns", "host_p90_ns", "host_p99_ns") == 3 * [(9_000, 9_000, 9_000)]
    assert cells(rows, "busy_ns", "idle_ns", "gap_before_ns", "busy_share", "idle_share") == [
        (30, 10, 30, 0.75, 0.25),
        (25, 5, 0, 25 / 30, 5 / 30),
        (None, None, None, None, None),
    ]
    assert result.summary == [
        {
            "rank": 0,
            "device": 0,
            "source": "execute_context",
            "steps": 3,
            "cut_steps": 0,
            "empty_steps": 1,
            "span_ns": 120,
            "in_steps_ns": 100,
            "inside_busy_ns": 55,
            "inside_idle_ns": 15,
            "between_ns": 30,
            "outside_busy_ns": 5,
            "outside_idle_ns": 15,
            "prefix_busy_ns": 0,
            "prefix_idle_ns": 0,
        }
    ]
    assert (result.coverage.explained_ns, result.coverage.total_ns) == (100, 120)
    assert result.coverage.reason == "of the span, 4.2% busy with work of no step, 12.5% idle before such work"


def test_the_view_of_single_steps_keeps_its_name(tmp_path: Path) -> None:
    with opened(tmp_path, SMALL) as trace:
        assert [row["step"] for row in trace.query_readonly("SELECT step FROM steps ORDER BY step").to_pylist()] == [
            0, 1, 2, 3,
        ]  # fmt: skip
        assert trace.query_readonly("SELECT sum(count) AS n FROM steps()").to_pylist() == [{"n": 4}]


def test_a_device_without_a_number(tmp_path: Path) -> None:
    rows = served((DECODE, [(0, 10)]), (DECODE, [(20, 10)]), (DECODE, [(50, 10)]), device=None)
    result = analyze(tmp_path, rows)
    assert cells(result.table.to_pylist(), "device", "kind", "count", "gap_next_p50_ns") == [
        (None, "steady", 2, 20),
        (None, "first", 1, 10),
    ]
    assert cells(result.summary, "device", "steps", "in_steps_ns", "span_ns") == [(None, 3, 60, 60)]


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 99, 100, 101, 150])
def test_quantiles_are_times_that_were_measured(tmp_path: Path, count: int) -> None:
    """Nearest rank: the one at position ceil(q * count)."""
    lengths = [7 * at % count + 1 for at in range(count)]
    works = [[(1_000 * at, length)] for at, length in enumerate([50, *lengths])]
    rows = analyze(tmp_path, served(*((DECODE, work) for work in works))).table.to_pylist()
    ordered = sorted(lengths)
    expected = tuple(ordered[-(-percent * count // 100) - 1] for percent in (50, 90, 99))
    assert cells(rows, "kind", "count", "p50_ns", "p90_ns", "p99_ns") == [
        ("steady", count, *expected),
        ("first", 1, 50, 50, 50),
    ]


def test_rows_are_ordered_by_size(tmp_path: Path) -> None:
    names = [
        *(f"execute_context_0(0)_generation_{count}({count})" for count in (20, 3, 1, 9)),
        "execute_context_9(90)_generation_0(0)",
        "execute_context_9(900)_generation_0(0)",
    ]
    rows = served((DECODE, [(0, 1)]), *((name, [(100 * at, 5)]) for at, name in enumerate(names, start=1)))
    table = analyze(tmp_path, rows).table.to_pylist()
    assert [row["bucket"] for row in table if row["kind"] == "steady"] == [
        "1", "3-4", "9-16", "17-32", "9-16, <=128 tok", "9-16, <=1024 tok",
    ]  # fmt: skip


# ---- what is left out, and why ---------------------------------------------------------------------------------------


def test_without_marks_the_reason_is_said(tmp_path: Path) -> None:
    result = analyze(tmp_path, [launch(0, 1), kernel(5, 5, launch_id=1), kernel(20, 5)])
    assert (result.table.num_rows, result.findings) == (0, ())
    assert cells(result.summary, "source", "steps", "in_steps_ns", "outside_busy_ns", "outside_idle_ns") == [
        (None, 0, 0, 10, 10)
    ]
    assert (result.coverage.explained_ns, result.coverage.total_ns) == (0, 20)
    assert result.coverage.reason == (
        "no step markers: annotate with tracekit.step, or name ranges that are steps with --step-range"
    )


def test_a_rank_without_marks_beside_one_with(tmp_path: Path) -> None:
    rows = [*served((DECODE, [(0, 5)])), launch(0, 1, rank=1), kernel(0, 5, rank=1, launch_id=4)]
    assert analyze(tmp_path, rows).coverage.reason.startswith("rank 1: no step markers: annotate with tracekit.step")


def test_without_device_activity(tmp_path: Path) -> None:
    result = analyze(tmp_path, [annotation(DECODE, 0, 5), op(1, 2)])
    assert cells(result.table.to_pylist(), "kind", "count") == [("empty", 1)]
    assert (result.summary, result.findings) == ((), ())
    assert result.coverage.reason.startswith("no device activity in this trace")


def test_work_from_before_the_recording_is_nobodys(tmp_path: Path) -> None:
    rows = served((DECODE, [(50, 10)]), (DECODE, [(70, 10)]))
    rows += [kernel(0, 10), kernel(20, 10), kernel(0, 5, stream=8), kernel(90, 10)]
    result = analyze(tmp_path, rows)
    assert cells(result.summary, "prefix_busy_ns", "prefix_idle_ns", "outside_busy_ns", "outside_idle_ns") == [
        (20, 10, 10, 10)
    ]
    assert result.coverage.reason == (
        "of the span, 10.0% busy with work of no step, 10.0% idle before such work, 30.0% from before the recording"
    )


def test_idle_time_that_cannot_be_told_is_not_told(tmp_path: Path) -> None:
    rows = served((DECODE, [(0, 10)]), (DECODE, [(20, 10)]))
    rows += [launch(20_500 + at, 1, name="cudaGraphLaunch") for at in range(9)]
    result = analyze(tmp_path, rows)
    assert (result.table.num_rows, result.findings) == (0, ())
    assert cells(result.summary, "source", "steps", "span_ns", "in_steps_ns", "between_ns") == [
        ("execute_context", 2, 30, None, None)
    ]
    assert result.coverage.reason.startswith("idle time cannot be told: 9 of 9 graph replays")


def test_only_a_part(tmp_path: Path) -> None:
    """Kinds, gaps and neighbours are those of the whole trace; a step that the window cuts is counted, not measured."""
    with opened(tmp_path, SMALL) as trace:
        with trace.only(phase="decode") as part:
            result = part.analyze("steps")
        assert cells(result.table.to_pylist(), "kind", "count", "gap_before_ns") == [
            ("steady", 2, 30),
            ("empty", 1, None),
        ]
        assert cells(result.summary, "span_ns", "in_steps_ns", "steps") == [(70, 70, 2)]
        with trace.only(since_ns=30, until_ns=80) as part:
            result = part.analyze("steps")
    assert cells(result.table.to_pylist(), "kind", "count", "period_p50_ns") == [("steady", 1, 30)]
    assert cells(result.summary, "span_ns", "in_steps_ns", "steps", "cut_steps") == [(50, 50, 2, 1)]
    assert result.coverage.reason == "1 step cut by the window of time, in no quantile"


# ---- findings --------------------------------------------------------------------------------------------------------


def loop(*periods: tuple[int, int, int], name: str = DECODE, usual: int = 30) -> Rows:
    """A first step, usual ones, and one for each of (busy, idle inside, idle after); us."""
    works, now = [], 0
    for busy, idle, after in [(100, 10, 10)] * usual + list(periods) + [(100, 10, 10)] * 2:
        works.append([(now * 1_000, busy * 500), (now * 1_000 + busy * 500 + idle * 1_000, busy * 500)])
        now += busy + idle + after
    return served(*((name, work) for work in works))


def test_steady_steps_are_no_finding(tmp_path: Path) -> None:
    assert analyze(tmp_path, loop()).findings == ()
    assert analyze(tmp_path, loop((100, 300, 10), usual=17)).findings == (), "too few of one size"
    assert analyze(tmp_path, loop((100, 100, 10))).findings == (), "below the ratio"
    assert analyze(tmp_path, loop((100, 300, 10)), p99_ratio=4.0).findings == ()


@pytest.mark.parametrize(
    ("slow", "words", "remedy"),
    [
        ((400, 10, 10), "mostly more work on the GPU (300 us)", "Compare the kernels"),
        ((100, 310, 10), "mostly idle time inside the steps (300 us)", "See in idle_gaps what the host did in"),
        ((100, 10, 310), "mostly idle time after the steps (300 us)", "See in idle_gaps what the host did after"),
    ],
)
def test_steps_that_vary(tmp_path: Path, slow: tuple[int, int, int], words: str, remedy: str) -> None:
    rows = loop(slow)
    (finding,) = analyze(tmp_path, rows).findings
    assert finding.title == "decode steps of batch 3-4 vary: the P99 of the period is 3.5 x its P50"
    assert finding.detail == (
        f"1 of 32 steady steps took 300 us more to the next step's start than the median, {words}: step 30 (420 us). "
        "Of fewer than 100 steps the P99 is the longest."
    )
    assert (finding.severity, finding.saving_high_ns) == ("warning", 0)
    assert [rows[id - 1]["ts"] for id in finding.evidence] == [310_000]
    assert finding.remedy.startswith(remedy)


def test_batches_that_are_not_known_are_not_held_against_the_steps(tmp_path: Path) -> None:
    (finding,) = analyze(tmp_path, loop((100, 310, 10), (100, 410, 10), name="ProfilerStep#1")).findings
    assert finding.title == "steps of unknown phase vary: the P99 of the period is 4.3 x its P50"
    assert finding.severity == "info"
    assert "steps 31 (520 us), 30 (420 us)." in finding.detail
    assert finding.detail.endswith("The marks do not tell the batch: these may be different batches.")


def test_busy_time_in_no_step(tmp_path: Path) -> None:
    rows = [*served(*((DECODE, [(100 * at, 50)]) for at in range(4))), launch(0, 1)]
    rows += [kernel(330 + 30 * at, 20, launch_id=len(rows), name=f"other{at}") for at in (1, 2)]
    rows += [kernel(500, 30, name="nobody's")]
    (finding,) = analyze(tmp_path, rows).findings
    assert finding.title == "25.9% of the busy time is in no step"
    assert finding.detail == (
        "Mostly nobody's (0.030 us); other1 (0.020 us); other2 (0.020 us). 0.030 us of it has no recorded launch, so "
        "its step is unknown."
    )
    assert finding.evidence == (16, 14, 15)
    assert analyze(tmp_path, rows, outside_share=0.26).findings == ()


def test_many_empty_steps(tmp_path: Path) -> None:
    works: list[list[tuple[int, int]]] = [[], [(0, 5)], [], [(10, 5)], [(20, 5)], [], [], []]
    rows = served(*((DECODE, work) for work in works))
    (finding,) = analyze(tmp_path, rows).findings
    assert finding.title == "5 of 8 steps launched no recorded work"
    assert finding.detail.startswith(
        "1 before the first work on the GPU, 1 between others, 3 after the last work on the GPU. They are in no "
    )
    assert [rows[id - 1]["ts"] for id in finding.evidence] == [10_000, 30_000, 60_000, 70_000, 80_000]
    assert analyze(tmp_path, rows, empty_share=0.7).findings == ()
    assert analyze(tmp_path, rows, empty_steps=6).findings == ()


def test_nothing_is_judged_by_inferred_steps(tmp_path: Path) -> None:
    rows: Rows = []
    for at, gap in enumerate([0] * 30 + [900_000] + [0] * 5):
        rows.append(launch(10_000 * at, 1_000, name="cudaGraphLaunch"))
        rows.append(kernel(100_000 * at + gap, 20_000, launch_id=len(rows)))
    rows += [kernel(5_000_000, 900_000, launch_id=None)]
    result = analyze(tmp_path, rows)
    assert cells(result.summary, "source", "steps") == [("inferred", 36)]
    (finding,) = result.findings
    assert (finding.severity, finding.title) == ("info", "steps are inferred from the launches, not marked")
    assert finding.detail.startswith("36 steps from what repeats in the sequence of launches.")
