"""step_budget, span_budget: rows in, whole table out; parts add up to the time charged, to the nanosecond."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracekit
from tests.pictures import planted
from tests.served_steps import DECODE, PREFILL, SMALL, cells, opened, served
from tests.test_idle_summary import endless
from tracekit.budget import span_budget, step_budget, why_no_idle_time
from tracekit.trace import Trace


def add_up(trace: Trace) -> None:
    """Each group is what step_time charges to its steps, each device what device_time says."""
    charged: Counter[tuple[object, ...]] = Counter()
    steps: Counter[tuple[object, ...]] = Counter()
    for row in trace.macro("step_time").to_pylist():
        if row["kind"] == "steady":
            key = row["rank"], row["device"], row["phase"], row["bucket"], row["requests_to"], row["tokens_to"]
            charged[key] += row["busy_ns"] + row["idle_ns"] + row["gap_before_ns"]
            steps[key] += 1
    found: Counter[tuple[object, ...]] = Counter()
    for row in step_budget(trace).to_pylist():
        key = row["rank"], row["device"], row["phase"], row["bucket"], row["requests_to"], row["tokens_to"]
        assert row["steps"] == steps[key] and row["ns"] > 0
        found[key] += row["ns"]
    assert found == +charged
    spans = {(row["rank"], row["device"]): row["span_ns"] for row in trace.macro("device_time").to_pylist()}
    whole: Counter[tuple[object, object]] = Counter()
    for row in span_budget(trace).to_pylist():
        whole[row["rank"], row["device"]] += row["ns"]
    assert whole == +Counter(spans)


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    with opened(tmp_path, []) as trace:
        assert (step_budget(trace).num_rows, span_budget(trace).num_rows, why_no_idle_time(trace)) == (0, 0, "")
        assert {field.name: str(field.type) for field in step_budget(trace).schema} == {
            "rank": "int32", "device": "int64", "phase": "string", "bucket": "string", "requests_to": "int64",
            "tokens_to": "int64", "steps": "int64", "part": "string", "name": "string", "ns": "int64",
        }  # fmt: skip


def test_parts_of_steady_steps(tmp_path: Path) -> None:
    """The first step is not among them; the gaps before the others and inside the last are theirs."""
    with opened(tmp_path, SMALL) as trace:
        assert cells(step_budget(trace).to_pylist(), "phase", "bucket", "steps", "part", "name", "ns") == [
            ("decode", "3-4", 2, "busy", "other", 30),
            ("decode", "3-4", 2, "idle", "unattributed", 30),
            ("decode", "3-4", 2, "idle", "launch_bound", 10),
        ]
        assert cells(span_budget(trace).to_pylist(), "rank", "device", "part", "name", "ns") == [
            (0, 0, "busy", "other", 60),
            (0, 0, "idle", "unattributed", 30),
            (0, 0, "idle", "launch_bound", 15),
            (0, 0, "idle", "launch_latency", 15),
        ]


def test_steps_of_unlike_kind_and_devices_are_apart(tmp_path: Path) -> None:
    work = [(DECODE, [(0, 10)]), (DECODE, [(20, 10)]), (PREFILL, [(40, 30)])]
    rows = served(*work)
    rows += served(*work, rank=1, first_id=len(rows) + 1)
    with opened(tmp_path, rows) as trace:
        add_up(trace)
        found = step_budget(trace).to_pylist()
    assert cells(found, "rank", "phase", "bucket", "part", "ns") == [
        (rank, phase, bucket, part, ns)
        for rank in (0, 1)
        for phase, bucket, busy in (("decode", "3-4", 10), ("prefill", "1, <=64 tok", 30))
        for part, ns in (("busy", busy), ("idle", 10))
    ]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 400), st.integers(0, 40)), max_size=4), min_size=1, max_size=4
    )
)  # fmt: skip
def test_parts_add_up_whatever_overlaps(tmp_path: Path, works: list[list[tuple[int, int]]]) -> None:
    with opened(tmp_path, served(*((DECODE, work) for work in works))) as trace:
        add_up(trace)


@pytest.mark.parametrize("ranks", [1, 2])
def test_of_a_part_too(tmp_path: Path, ranks: int) -> None:
    with tracekit.open(planted(tmp_path, ranks=ranks)) as trace:
        add_up(trace)
        (row,) = trace.sql("SELECT min(ts)::BIGINT AS low, max(ts + dur)::BIGINT AS high FROM kernels").to_pylist()
        third = (row["high"] - row["low"]) // 3
        for part in (
            trace.only(phase="decode", steps=(2, 6)),
            trace.only(rank=ranks - 1, since_ns=row["low"] + third, until_ns=row["high"] - third),
        ):
            with part:
                assert step_budget(part).num_rows
                add_up(part)


def test_where_holes_may_be_lost_work(tmp_path: Path) -> None:
    with opened(tmp_path, endless(32, 3)) as trace:
        assert "3 of 128 device rows have no recorded end" in why_no_idle_time(trace)
