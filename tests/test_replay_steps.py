"""Steps as recorded, replayed: what is read from a trace, and how far the replay is off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracekit
from tests.event_rows import annotation, kernel, launch, write_trace
from tests.real_traces import trace as public
from tests.simulator import Run, simulate
from tracekit.changes import FreeLaunches, Graph
from tracekit.gains import estimate, joint
from tracekit.replay_choice import Group, groups
from tracekit.replay_step import Step
from tracekit.trace import Trace

US = 1_000
Row = dict[str, Any]


def only_group(path: Path, rows: Sequence[Row]) -> Group:
    with tracekit.open(write_trace(path / "trace.parquet", rows)) as trace:
        (found,) = groups(trace)
        return found


def pairs(*launches: tuple[int, int], **columns: Any) -> list[Row]:
    """Calls of 3 us that begin then, each with a kernel that begins then and lasts 10 us."""
    rows: list[Row] = []
    for number, (called, began) in enumerate(launches, start=1):
        rows.append(launch(called * US, 3 * US, id=2 * number, correlation=number))
        rows.append(kernel(began * US, 10 * US, id=2 * number + 1, launch_id=2 * number, **columns))
    return rows


def test_an_empty_trace_has_nothing_to_replay(tmp_path: Path) -> None:
    with tracekit.open(write_trace(tmp_path / "trace.parquet", [])) as trace:
        assert groups(trace) == ()


def test_a_trace_without_steps_is_replayed_whole(tmp_path: Path) -> None:
    """Calls 20 us apart, kernels 2 us after them: all as it was, to the ns."""
    found = only_group(tmp_path, pairs((0, 5), (20, 25), (40, 45), (60, 65), (80, 85), (100, 105), (120, 125)))
    assert (found.steps, found.label, found.refusal) == ((None,), "", "")
    assert (found.median.measured_ns, found.median.replayed_ns, found.error) == (130 * US, 130 * US, 0.0)
    # One graph at best: a call of 5 us instead of six intervals of 20, but 7 x 10 us of kernels stay.
    graph = Graph("all", lambda step: [np.flatnonzero(step.calls.rows > 0)])
    assert estimate(found, [graph]).saving_high_ns == (130 - 70) * US
    assert estimate(found, [FreeLaunches()]).saving_high_ns == (130 - 70) * US


def test_savings_on_top_of_each_other_are_no_more_than_those_together(tmp_path: Path) -> None:
    found = only_group(tmp_path, pairs((0, 5), (20, 25), (40, 45), (60, 65), (80, 85), (100, 105), (120, 125)))
    first, second = joint(found, [FreeLaunches(), Graph("all", lambda step: [np.flatnonzero(step.calls.rows > 0)])])
    both = estimate(found, [FreeLaunches(), Graph("all", lambda step: [np.flatnonzero(step.calls.rows > 0)])])
    assert (first.saving_high_ns, second.saving_high_ns) == (60 * US, 0)
    assert first.saving_high_ns + second.saving_high_ns == both.saving_high_ns


def test_work_launched_before_the_recording_seeds_the_step(tmp_path: Path) -> None:
    """Three kernels without a call; then one that was launched at 0 and waited for them. The pauses of 1 us between
    them are too few to be measured, and taken for 1.3."""
    early = [kernel((10 + 11 * number) * US, 10 * US, id=100 + number) for number in range(3)]
    found = only_group(tmp_path, [*early, *pairs((0, 43), (45, 54))])
    assert (found.median.measured_ns, found.median.replayed_ns) == (54 * US, 54 * US + 4 * 300)


def test_a_device_busy_with_what_nobody_recorded_begins_when_it_did(tmp_path: Path) -> None:
    """The first kernel began 500 us after its call: before it something ran that the recording does not have."""
    found = only_group(tmp_path, pairs((0, 500), (20, 511), (40, 522)))
    assert found.error < 0.02 and found.median.measured_ns == 32 * US


def test_a_replay_that_is_far_off_is_refused(tmp_path: Path) -> None:
    """The last kernel was launched at once and on an empty stream, and began half a millisecond later: why?"""
    found = only_group(tmp_path, pairs((0, 5), (20, 25), (40, 45), (60, 65), (80, 85), (100, 105), (120, 625)))
    assert found.refusal == (
        "replayed without any change the step takes 130 us, recorded 630 us: 79.4% off, more than 5%"
    )
    with pytest.raises(ValueError, match=r"79\.4% off"):
        estimate(found, [])


def test_launches_without_work_are_lost_records(tmp_path: Path) -> None:
    silent = [launch((5 + 20 * number) * US, 3 * US, id=50 + number) for number in range(3)]
    found = only_group(tmp_path, [*pairs((0, 4), (20, 24), (40, 44), (60, 64), (80, 84)), *silent])
    assert found.refusal == "3 of 8 launch calls left no device work in the trace: its holes may be lost records"


def test_a_wait_holds_the_host_until_the_device_is_done(tmp_path: Path) -> None:
    """Launched at 0, done at 105; the wait returns at 107, the next launch comes 13 us later. Were the kernel 50 us
    shorter, so would be all."""
    rows = [
        launch(0, 3 * US, id=1),
        kernel(5 * US, 100 * US, id=2, launch_id=1),
        launch(10 * US, 97 * US, id=3, name="cudaStreamSynchronize"),
        launch(120 * US, 3 * US, id=4),
        kernel(125 * US, 10 * US, id=5, launch_id=4),
    ]
    step = only_group(tmp_path, rows).median
    assert (step.schedule.wait_call.tolist(), step.schedule.wait_row.tolist()) == ([1], [0])
    assert (step.calls.cause, step.measured_ns, step.error < 0.02) == (["", "sync", ""], 130 * US, True)
    step.schedule.row_dur[0] -= 50 * US
    assert step.replayed_ns - step.schedule.times().step_ns == 50 * US


def test_the_autograd_thread_follows_the_one_that_handed_over(tmp_path: Path) -> None:
    """Thread 2 makes its first call 10 us after the last of thread 1: what comes earlier there, comes earlier here."""
    rows = pairs((0, 5), (100, 105))
    other = [launch(113 * US, 3 * US, id=20, tid=2), kernel(118 * US, 10 * US, id=21, launch_id=20)]
    step = only_group(tmp_path, [*rows, *other]).median
    assert (step.schedule.call_before.tolist(), step.schedule.call_gap.tolist()) == ([-1, 0, 1], [0, 97 * US, 10 * US])


def test_a_stream_that_waits_for_another(tmp_path: Path) -> None:
    """The kernel of stream 8 was launched at 20 and began at 106, right after that of stream 7: inferred. The third one
    began as soon as its launch came."""
    rows = [
        launch(0, 3 * US, id=1),
        kernel(5 * US, 100 * US, id=2, launch_id=1),
        launch(20 * US, 3 * US, id=3),
        kernel(106 * US, 10 * US, id=4, launch_id=3, stream=8),
        launch(200 * US, 3 * US, id=5),
        kernel(205 * US, 10 * US, id=6, launch_id=5, stream=9),
    ]
    step = only_group(tmp_path, rows).median
    edges = (step.schedule.after_row.tolist(), step.schedule.after_on.tolist(), step.schedule.after_gap.tolist())
    assert (edges, step.inferred_edges) == (([1], [0], [1 * US]), 1)


def test_a_recorded_wait_goes_before_what_can_be_inferred(tmp_path: Path) -> None:
    """Stream 8 waits for an event recorded on stream 7 after its first kernel, though the second ended just before."""
    wait = {"cuda_sync_kind": "Stream Wait Event", "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 30}
    rows = [
        launch(0, 3 * US, id=1),
        kernel(5 * US, 50 * US, id=2, launch_id=1),
        launch(4 * US, 1 * US, id=3, correlation=30, name="cudaEventRecord"),
        launch(6 * US, 3 * US, id=4),
        kernel(56 * US, 40 * US, id=5, launch_id=4),
        launch(10 * US, 1 * US, id=6, correlation=31, name="cudaStreamWaitEvent"),
        {
            "kind": "sync", "name": "Stream Wait Event", "ts": 10 * US, "dur": 0, "id": 7, "stream": 8,
            "correlation": 31, "args": str(wait).replace("'", '"'),
        },
        launch(20 * US, 3 * US, id=8),
        kernel(97 * US, 10 * US, id=9, launch_id=8, stream=8),
    ]  # fmt: skip
    step = only_group(tmp_path, rows).median
    assert (step.schedule.after_row.tolist(), step.schedule.after_on.tolist(), step.inferred_edges) == ([2], [0], 0)


def test_of_steps_the_middle_one_and_two_others_stand_for_all(tmp_path: Path) -> None:
    """Eight decode steps, each longer than the one before by 10 us; the first is warm-up, the last has no next one."""
    rows: list[Row] = []
    begin = 0
    for step in range(9):
        rows.append(annotation("step[DECODE bs=4]", begin * US, 50 * US, id=100 * step + 1))
        for number in range(5):
            called, row = begin + 9 * number, 100 * step + 10 * (number + 1)
            rows.append(launch(called * US, 3 * US, id=row))
            rows.append(kernel((called + 5) * US, 2 * US, id=row + 1, launch_id=row))
        begin += 100 + 10 * step
    found = only_group(tmp_path, rows)
    assert (found.label, len(found.steps), [step.step for step in found.chosen]) == ("decode 3-4", 8, [2, 4, 6])
    assert [step.measured_ns // US for step in found.chosen] == [120, 140, 160]
    assert [step.lead is not None and step.lead.step for step in found.chosen] == [1, 3, 5]
    won = estimate(found, [FreeLaunches()])
    assert (won.before_ns, won.spread_low_ns < won.spread_high_ns) == (140 * US, True)


# ---- simulated and real ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "most"),
    [
        (Run(), 0),
        (Run(streams=3), 0.002),
        (Run(mode="piecewise_graph", ranks=2, streams=2), 0.02),
        (Run(mode="full_graph", asynchronous=True, steps=5), 0.01),
        (Run(orphans=12), 0.045),  # 7 us: pauses of 0.7 us between these, which the others do not have
    ],
    ids=["eager", "streams", "piecewise", "asynchronous", "backlog"],
)
def test_simulated_steps_are_replayed_nearly_as_they_were(run: Run, most: float, tmp_path: Path) -> None:
    simulate(run, tmp_path / "run.json" if run.ranks == 1 else tmp_path / "ranks")
    with tracekit.open(next(tmp_path.iterdir())) as trace:
        found = groups(trace)
        assert found and {one.refusal for one in found} == {""}
        assert max(step.error for one in found for step in one.chosen) <= most


def errors(trace: Trace) -> list[tuple[Step, str]]:
    return [(step, one.refusal) for one in groups(trace) for step in one.chosen]


@pytest.mark.parametrize(
    "name",
    [
        "tracelens__b200", "tracelens__h100", "tracelens__sglang_deepseek", "tracelens__vllm_decode_full", "pipit",
    ],
)  # fmt: skip
def test_a_real_step_is_replayed_within_one_per_cent(name: str) -> None:
    """All public traces: docs/replay.md."""
    with tracekit.open(public(name)) as trace:
        found = errors(trace)
    assert found
    assert all(step.error < 0.01 and not refusal for step, refusal in found)


def test_what_cannot_be_replayed_is_refused() -> None:
    """A pipelined training job of which the recording has one of sixteen ranks."""
    with tracekit.open(public("hta__negative_queue")) as trace:
        ((_, refusal),) = errors(trace)
    assert "off, more than 5%" in refusal
