"""Steps as constraints: played, and played with something changed. Times here are plain numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedules import C, R, ints, schedule
from tracekit.replay import AT_ONCE, Schedule
from tracekit.replay_edits import (
    GraphCost,
    as_graph,
    deflated,
    free_launches,
    overlapped,
    with_durations,
    without_rows,
    without_waits,
)

# Three launches of 3 with 10 of host time between, to one stream; the last call waits for the last kernel.
CALLS = (C(-1, 0, 3, at=100), C(0, 10, 3), C(1, 10, 3), C(2, 10, 2, waits=((2, 4),)))
HOST_BOUND = schedule(CALLS, (R(0, 2, -1, 0, 5), R(1, 2, 0, 1, 5), R(2, 2, 1, 1, 5)))
DEVICE_BOUND = schedule(CALLS, (R(0, 2, -1, 0, 50), R(1, 2, 0, 1, 50), R(2, 2, 1, 1, 50)))


def played(plan: Schedule) -> dict[str, list[int] | int]:
    times = plan.times()
    return {
        "calls": times.call_start.tolist(),
        "returns": times.call_end.tolist(),
        "rows": times.row_start.tolist(),
        "step": times.step_ns,
    }


def test_nothing_takes_no_time() -> None:
    assert played(schedule((), (), first=0)) == {"calls": [], "returns": [], "rows": [], "step": 0}


def test_a_host_that_is_slower_than_the_device() -> None:
    assert played(HOST_BOUND) == {
        "calls": [100, 113, 126, 139], "returns": [103, 116, 129, 141], "rows": [105, 118, 131], "step": 31,
    }  # fmt: skip


def test_a_device_that_is_slower_than_the_host() -> None:
    assert played(DEVICE_BOUND) == {
        "calls": [100, 113, 126, 139], "returns": [103, 116, 129, 261], "rows": [105, 156, 207], "step": 152,
    }  # fmt: skip


def test_a_step_lasts_until_the_next_ones_first_row() -> None:
    """Row 3 is of the next step: its call comes 20 after the wait returned."""
    rows = (R(0, 2, -1, 0, 5), R(1, 2, 0, 1, 5), R(2, 2, 1, 1, 5), R(4, 2, 2, 1, 5))
    plan = schedule((*CALLS, C(3, 20, 3)), rows, last=3)
    assert played(plan)["step"] == (141 + 20 + 3 + 2) - 105


def test_rows_of_another_stream_and_rows_launched_before() -> None:
    """Row 0 was launched earlier and is at work until 150; row 1 has a stream of its own, but waits for row 0."""
    plan = schedule((C(-1, 0, 3, at=100),), (R(-1, 0, -1, 0, 60, at=90), R(0, 2, -1, 0, 5, after=((0, 3),))), first=1)
    assert played(plan) == {"calls": [100], "returns": [103], "rows": [90, 153], "step": 5}


def test_a_copy_that_its_own_call_waits_for() -> None:
    plan = schedule((C(-1, 0, 5, at=100, waits=((0, 6),)),), (R(0, 4, -1, 0, 30, from_end=False),))
    assert played(plan) == {"calls": [100], "returns": [140], "rows": [104], "step": 30}


def test_a_circle_costs_the_wait_that_makes_it() -> None:
    """Row 0 comes after the end of the call that waits for it, as it may where clocks differ."""
    plan = schedule((C(-1, 0, 5, at=100, waits=((0, 6),)),), (R(0, 4, -1, 0, 30),))
    assert played(plan) == {"calls": [100], "returns": [105], "rows": [109], "step": 30}


# ---- edits -----------------------------------------------------------------------------------------------------------

COST = GraphCost(base_ns=6, node_ns=0.5, latency_ns=2, gap_ns=0)


@pytest.mark.parametrize(
    ("plan", "graph", "free"),
    # Launched by one call of 6 + 3 x 0.5, the kernels follow each other without the gap of 1; without launches at all
    # the last kernel still comes 2 x 5 + 2 x 1 after the first.
    [(HOST_BOUND, 15, 17), (DEVICE_BOUND, 150, 152)],
    ids=["host-bound", "device-bound"],
)
def test_launches_as_one_graph_and_for_nothing(plan: Schedule, graph: int, free: int) -> None:
    assert as_graph(plan, ints([0, 1, 2]), COST).times().step_ns == graph
    assert free_launches(plan, ints([0, 1, 2])).times().step_ns == free


def test_a_graph_costs_its_call_and_its_nodes() -> None:
    times = as_graph(HOST_BOUND, ints([0, 1, 2]), COST).times()
    assert times.call_end.tolist() == [108, 108, 108, 129]  # 6 + 3 x 0.5 rounds to 8; the wait ends 4 after the rows
    assert times.row_start.tolist() == [110, 115, 120]


def test_a_graph_of_some_launches_leaves_the_others() -> None:
    """The third launch comes 10 after the graph of the first two: at 107 + 10."""
    times = as_graph(HOST_BOUND, ints([0, 1]), COST).times()
    assert times.call_start.tolist()[2:] == [117, 130] and times.row_start.tolist() == [109, 114, 122]


def test_a_removed_row_takes_its_host_time_along_as_far_as_asked() -> None:
    assert without_rows(HOST_BOUND, ints([1]), 0.0).times().step_ns == 31
    assert without_rows(HOST_BOUND, ints([1]), 1.0).times().step_ns == 31 - 13
    assert without_rows(DEVICE_BOUND, ints([1]), 1.0).times().step_ns == 152 - 51


def test_rows_of_another_length() -> None:
    assert with_durations(DEVICE_BOUND, ints([0, 2]), ints([20, 80])).times().step_ns == 152 - 30 + 30


def test_a_wait_that_is_not_made() -> None:
    """The host goes on; nothing in this step depends on it."""
    plan = schedule((*CALLS, C(3, 20, 3)), (*[R(n, 2, n - 1, 1, 50) for n in range(3)], R(4, 2, 2, 1, 5)), last=3)
    assert (plan.times().step_ns, without_waits(plan, ints([3])).times().step_ns) == (181, 153)


def test_rows_aside_are_waited_for_at_the_end_only() -> None:
    """Row 1 (say, an all-reduce) takes 80: the others need 50 + 1 + 50; the next step's row waits for both."""
    rows = (R(0, 2, -1, 0, 50), R(1, 2, 0, 1, 80), R(2, 2, 1, 1, 50), R(3, 2, 2, 1, 5))
    plan = schedule((C(-1, 0, 3, at=100), C(0, 1, 3), C(1, 1, 3), C(2, 1, 3)), rows, last=3)
    assert plan.times().step_ns == 50 + 1 + 80 + 1 + 50 + 1
    assert overlapped(plan, ints([1])).times().step_ns == 50 + 1 + 50 + 1
    long = replace(plan, row_dur=ints([50, 200, 50, 5]))
    assert overlapped(long, ints([1])).times().step_ns == 4 + 200  # its launch comes 4 after the first


def test_without_what_recording_adds() -> None:
    """1 less in each launch, a tenth less between: the third launch comes 2 x (1 + 1) earlier."""
    assert deflated(HOST_BOUND, 1, 0.1).times().row_start.tolist() == [104, 115, 126]


# ---- any schedule against the plainest way to say what it means ------------------------------------------------------


def earlier(row: int) -> st.SearchStrategy[set[int]]:
    return st.sets(st.integers(0, row - 1), max_size=2) if row else st.just(set())


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Calls of one or two threads, rows of one or two streams, waits and edges to what is earlier."""
    small = st.integers(0, 20)
    count = draw(st.integers(1, 6))
    calls = []
    for call in range(count):
        before = draw(st.integers(-1, call - 1))
        waits = [(draw(st.integers(0, call - 1)), draw(small))] if call and draw(st.booleans()) else []
        calls.append(C(before, draw(small), draw(small), at=draw(small), waits=tuple(waits)))
    rows = [
        R(
            row, draw(small), draw(st.integers(-1, row - 1)), draw(st.integers(-3, 5)), draw(small),
            draw(st.booleans()), after=tuple((one, draw(small)) for one in draw(earlier(row))),
        )
        for row in range(count)
    ]  # fmt: skip
    return schedule(calls, rows, last=draw(st.sampled_from([-1, count - 1])))


def settled(plan: Schedule) -> tuple[list[int], list[int], list[int]]:
    """Every time as late as what it waits for says, until nothing changes any more."""
    start, end = [AT_ONCE] * plan.calls, [AT_ONCE] * plan.calls
    begin, done = [AT_ONCE] * plan.rows, [AT_ONCE] * plan.rows
    for _ in range(3 * (plan.calls + plan.rows) + 1):
        for call in range(plan.calls):
            before = plan.call_before[call]
            start[call] = int(plan.call_at[call] if before < 0 else end[before] + plan.call_gap[call])
            end[call] = start[call] + int(plan.call_cost[call])
            for one in np.flatnonzero(plan.wait_call == call):
                end[call] = max(end[call], done[plan.wait_row[one]] + int(plan.wait_return[one]))
        for row in range(plan.rows):
            call, before = plan.row_call[row], plan.row_before[row]
            anchor = end[call] if plan.row_from_end[row] else start[call]
            since = [int(plan.row_at[row]), anchor + int(plan.row_latency[row])]
            since += [done[before] + int(plan.row_gap[row])] if before >= 0 else []
            since += [
                done[plan.after_on[one]] + int(plan.after_gap[one]) for one in np.flatnonzero(plan.after_row == row)
            ]
            begin[row] = max(since)
            done[row] = begin[row] + int(plan.row_dur[row])
    return start, end, begin


@given(schedules())
@settings(max_examples=80, deadline=None)
def test_every_time_is_the_latest_of_what_it_waits_for(plan: Schedule) -> None:
    times = plan.times()
    assert (times.call_start.tolist(), times.call_end.tolist(), times.row_start.tolist()) == settled(plan)


@given(schedules(), st.integers(0, 30))
@settings(max_examples=80, deadline=None)
def test_what_costs_less_never_ends_later(plan: Schedule, ns: int) -> None:
    """Of all rows, that is: the step is the time between two of them."""
    every = np.arange(plan.calls)
    ends = plan.times().row_end
    cheaper = (
        free_launches(plan, every),
        with_durations(plan, every, np.maximum(0, plan.row_dur - ns)),
        without_waits(plan, every),
        deflated(plan, ns, 0.5),
    )
    for changed in cheaper:
        assert (changed.times().row_end <= ends).all()
