"""step_time, span_by_place, step_kinds, step_batches: rows in, table out; and every nanosecond of the span, painted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.event_rows import annotation, kernel, launch
from tests.served_steps import DECODE, PREFILL, SMALL, Rows, cells, opened, served
from tracekit.errors import UsageError
from tracekit.trace import Trace

PARTS = (
    "inside_busy_ns", "inside_idle_ns", "between_ns", "outside_busy_ns", "outside_idle_ns", "prefix_busy_ns",
    "prefix_idle_ns",
)  # fmt: skip


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    with opened(tmp_path, []) as trace:
        for name in ("step_time", "span_by_place", "step_kinds", "step_batches"):
            assert trace.macro(name).num_rows == 0


def test_time_of_each_step(tmp_path: Path) -> None:
    with opened(tmp_path, SMALL) as trace:
        rows = trace.macro("step_time").to_pylist()
        assert cells(rows, "step", "kind", "phase", "bucket", "requests", "tokens") == [
            (0, "first", "prefill", "1, <=64 tok", 1, 60),
            (1, "steady", "decode", "3-4", 4, 4),
            (2, "steady", "decode", "3-4", 4, 4),
        ]
        assert cells(
            rows, "start_ts", "end_ts", "wall_ns", "busy_ns", "idle_ns", "gap_before_ns", "gap_next_ns", "period_ns"
        ) == [
            (0, 30, 30, 25, 5, 0, 10, 40),
            (40, 50, 10, 10, 0, 10, 20, 30),
            (70, 100, 30, 20, 10, 20, None, None),
        ]
        assert [row["launched_rows"] for row in rows] == [2, 1, 2]


def test_overlapping_steps_share_nothing(tmp_path: Path) -> None:
    """Asynchronous scheduling: the copy that ends a step runs beside the first kernels of the next."""
    rows = served((DECODE, [(0, 10), (8, 12)]), (DECODE, [(10, 20), (40, 5)]), stream=7)
    with opened(tmp_path, rows) as trace:
        found = trace.macro("step_time").to_pylist()
    assert cells(found, "wall_ns", "busy_ns", "idle_ns", "gap_before_ns", "gap_next_ns", "period_ns") == [
        (20, 20, 0, 0, 0, 10),
        (35, 15, 10, 0, None, None),
    ]


# ---- kinds and batches -----------------------------------------------------------------------------------------------


def test_first_and_warm_up_steps_are_told_apart(tmp_path: Path) -> None:
    works: list[list[tuple[int, int]]] = [[], *([(100 * at, 10)] for at in range(6)), []]
    rows = served(*((DECODE, work) for work in works))
    rows += [
        launch(30_005, 1, name="cuModuleLoadData"),
        {"kind": "overhead", "name": "Lazy Function Loading", "ts": 40_005, "dur": 1, "tid": 9},
        launch(50_005, 1, name="cudaGraphInstantiateWithFlags"),
        {"kind": "overhead", "name": "Buffer Flush", "ts": 60_005, "dur": 1, "tid": 9},
        launch(70_005, 1, name="cuModuleGetFunction"),
        launch(80_005, 1, name="hipModuleLoad"),
    ]
    with opened(tmp_path, rows) as trace:
        kinds = trace.sql("FROM step_kinds() ORDER BY step").to_pylist()
    assert [row["kind"] for row in kinds] == [
        "empty", "first", "warm_up", "warm_up", "warm_up", "steady", "steady", "empty",
    ]  # fmt: skip


def test_the_only_step_of_a_rank_is_steady(tmp_path: Path) -> None:
    rows = served((DECODE, [(0, 5)])) + served((DECODE, [(0, 5)]), (DECODE, [(9, 5)]), rank=1, first_id=4)
    with opened(tmp_path, rows) as trace:
        kinds = trace.sql("FROM step_kinds() ORDER BY rank, step").to_pylist()
    assert cells(kinds, "rank", "kind") == [(0, "steady"), (1, "first"), (1, "steady")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (DECODE, (4, 4, 4, None, "3-4")),
        (PREFILL, (1, 60, 1, 64, "1, <=64 tok")),
        ("execute_context_2(300)_generation_3(3)", (5, 303, 8, 512, "5-8, <=512 tok")),
        ("execute_context_0(0)_generation_0(0)", (0, 0, 0, None, "0")),
        ("execute_context_0(0)_generation_2(8)", (2, 8, 2, None, "2")),
        ("step[DECODE bs=16]", (16, 16, 16, None, "9-16")),
        ("step[DECODE bs=17]", (17, 17, 32, None, "17-32")),
        ("step[EXTEND bs=15 toks=1]", (15, 1, 16, 1, "9-16, <=1 tok")),
        ("step[EXTEND toks=1025]", (None, 1025, None, 2048, "<=2048 tok")),
        ("step[MIXED c=2 g=7]", (9, None, 16, None, "9-16")),
        ("step[IDLE]", (None, None, None, None, "unknown")),
        ("tracekit.step[prefill]", (None, None, None, None, "unknown")),
        ("tracekit.step[decode decode_requests=3]", (3, None, 4, None, "3-4")),
        (f"step[DECODE bs={2**40}]", (2**40, 2**40, 2**40, None, f"{2**39 + 1}-{2**40}")),
        (f"step[DECODE bs={2**62}]", (2**62, 2**62, None, None, "unknown")),
    ],
)
def test_batches(tmp_path: Path, name: str, expected: tuple[Any, ...]) -> None:
    with opened(tmp_path, [annotation(name, 0, 5)]) as trace:
        rows = trace.macro("step_batches").to_pylist()
    assert cells(rows, "requests", "tokens", "requests_to", "tokens_to", "bucket") == [expected]


# ---- every nanosecond ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """A device row. step -1: launched outside all steps, -2: before the recording."""

    rank: int
    device: int
    step: int
    stream: int
    ts: int
    dur: int


WORKS = st.lists(
    st.builds(
        Work,
        rank=st.integers(0, 4),
        device=st.integers(0, 1),
        step=st.integers(-2, 4),
        stream=st.integers(0, 2),
        ts=st.integers(0, 60),
        dur=st.integers(0, 9),
    ),
    max_size=90,
)


def recorded(works: Sequence[Work]) -> Rows:
    """Rank by rank the marks, then each row's launch and the row."""
    rows: Rows = [annotation(DECODE, 1_000 * step, 500, rank=rank) for rank in range(5) for step in range(1, 6)]
    for at, work in enumerate(works):
        where = {"rank": work.rank, "device": work.device, "stream": work.stream}
        if work.step >= -1:
            rows.append(launch(1_000 * (work.step + 1) + at, 0, rank=work.rank))
        rows.append(kernel(work.ts, work.dur, launch_id=len(rows) if work.step >= -1 else None, **where))
    return rows


class Painted:
    """One device, nanosecond by nanosecond."""

    def __init__(self, works: Sequence[Work]) -> None:
        self.order = sorted(works, key=lambda work: (work.ts, -work.dur, works.index(work)))
        self.first = self.order[0].ts
        self.last = max(work.ts + work.dur for work in works)
        self.steps = sorted({work.step for work in works if work.step >= 0})
        self.start = {step: min(work.ts for work in works if work.step == step) for step in self.steps}
        self.end = {step: max(work.ts + work.dur for work in works if work.step == step) for step in self.steps}
        self.by_start = sorted(self.steps, key=lambda step: (self.start[step], step))
        owner: dict[int, Work] = {}
        for work in self.order:
            for ns in range(work.ts, work.ts + work.dur):
                owner.setdefault(ns, work)
        self.busy = owner
        self.idle = {
            ns: next(work for work in self.order if work.ts > ns)
            for ns in range(self.first, self.last)
            if ns not in owner
        }

    def in_flight(self, work: Work) -> bool:
        linked = [other.ts for other in self.order if other.stream == work.stream and other.step >= -1]
        return work.step == -2 and bool(linked) and work.ts < min(linked)

    def place(self, ns: int, work: Work) -> str:
        if work.step >= 0:
            return "between" if ns < self.start[work.step] else "inside"
        return "prefix" if self.in_flight(work) else "outside"

    def parts(self, since: int, until: int) -> dict[str, int]:
        window = range(since, until)
        found = Counter(f"{self.place(ns, work)}_idle_ns" for ns, work in self.idle.items() if ns in window)
        found["between_ns"] = found.pop("between_idle_ns", 0)
        for ns, work in self.busy.items():
            place = "inside" if work.step >= 0 else "prefix" if self.in_flight(work) else "outside"
            found[f"{place}_busy_ns"] += ns in window
        covered = sum(ns in window for ns in range(self.first, self.last))
        return {"span_ns": covered, **{part: found[part] for part in PARTS}}

    def times(self, since: int, until: int) -> Iterator[dict[str, Any]]:
        for step, following in zip(self.by_start, [*self.by_start, None][1:], strict=True):
            ended = [ns for ns, work in self.idle.items() if work.step == step]
            if self.end[step] > until or min([self.start[step], *ended]) < since:
                continue
            yield {
                "step": step,
                "wall_ns": self.end[step] - self.start[step],
                "busy_ns": sum(work.step == step for work in self.busy.values()),
                "idle_ns": sum(ns >= self.start[step] for ns in ended),
                "gap_before_ns": sum(ns < self.start[step] for ns in ended),
                "gap_next_ns": None
                if following is None
                else sum(ns in self.idle for ns in range(self.end[step], self.start[following])),
                "period_ns": None if following is None else self.start[following] - self.start[step],
                "launched_rows": sum(work.step == step for work in self.order),
            }


HYPOTHESIS = settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def painted(works: Sequence[Work]) -> dict[tuple[int, int], Painted]:
    places = sorted({(work.rank, work.device) for work in works})
    return {place: Painted([work for work in works if (work.rank, work.device) == place]) for place in places}


def times_of(trace: Trace) -> list[dict[str, Any]]:
    compared = ("rank", "device", "step", "wall_ns", "busy_ns", "idle_ns", "gap_before_ns", "gap_next_ns", "period_ns")
    return [{key: row[key] for key in (*compared, "launched_rows")} for row in trace.macro("step_time").to_pylist()]


@HYPOTHESIS
@given(WORKS)
def test_steps_and_what_is_in_none_against_painted_nanoseconds(tmp_path: Path, works: list[Work]) -> None:
    with opened(tmp_path, recorded(works)) as trace:
        times, spans = times_of(trace), trace.macro("span_by_place").to_pylist()
    assert [{key: value for key, value in row.items() if key != "cut_steps"} for row in spans] == [
        {"rank": rank, "device": device, **one.parts(0, 99), "steps": len(one.steps)}
        for (rank, device), one in painted(works).items()
    ]
    assert times == [
        {"rank": rank, "device": device, **row}
        for (rank, device), one in painted(works).items()
        for row in one.times(0, 99)
    ]
    assert all(sum(row[part] for part in PARTS) == row["span_ns"] for row in spans)


@HYPOTHESIS
@given(WORKS, st.integers(0, 50), st.integers(1, 40))
def test_a_window_of_time_against_painted_nanoseconds(
    tmp_path: Path, works: list[Work], since: int, length: int
) -> None:
    """The parts are cut to the window; steps that it cuts are left out."""
    until = since + length
    expected = {place: one.parts(since, until) for place, one in painted(works).items()}
    with opened(tmp_path, recorded(works)) as trace:
        try:
            part = trace.only(since_ns=since, until_ns=until)
        except UsageError:
            assert not any(parts["span_ns"] for parts in expected.values())
            return
        with part:
            times, spans = times_of(part), part.macro("span_by_place").to_pylist()
    found = {(row.pop("rank"), row.pop("device")): row for row in spans if row.pop("steps") + 1}
    cut = {place: row.pop("cut_steps") for place, row in found.items()}
    assert {place: row for place, row in found.items() if row["span_ns"]} == {
        place: parts for place, parts in expected.items() if parts["span_ns"]
    }
    assert times == [
        {"rank": rank, "device": device, **row}
        for (rank, device), one in painted(works).items()
        for row in one.times(since, until)
    ]
    assert all(count <= len(painted(works)[place].steps) for place, count in cut.items())
