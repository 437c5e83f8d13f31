"""Parts of a trace: what they keep, and that parts add up to the whole, to the nanosecond."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.event_rows import annotation, kernel, launch, op
from tests.scope_rows import DECODE, FIVE, GEMM, PREFILL, Rows, opened, times
from tracekit.errors import UsageError
from tracekit.scope import Scope
from tracekit.trace import Trace


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    with opened(tmp_path, []) as trace:
        assert (trace.scope, bool(trace.scope), str(trace.scope), trace.scope.to_json()) == (Scope(), False, "", {})
        assert trace.whole is trace
        with pytest.raises(UsageError, match=r"^nothing is left of this trace \(only rank 0\); there are: ranks 0$"):
            trace.only(rank=0)


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    with opened(tmp_path_factory.mktemp("five"), FIVE) as trace:
        yield trace


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, {(0, 0): (350, 140, 210), (0, 1): (15, 10, 5)}),
        # The gaps before steps 1 and 3 are theirs, those of step 2 between them are not.
        ({"phase": "decode"}, {(0, 0): (70 + 40 + 90 + 40, 80, 160), (0, 1): (15, 10, 5)}),
        ({"phase": "prefill"}, {(0, 0): (20 + 20 + 40 + 10, 50, 40)}),
        ({"phase": "unknown"}, {(0, 0): (20, 10, 10)}),
        ({"phase": ["unknown", "prefill"]}, {(0, 0): (110, 60, 50)}),
        ({"steps": (1, 3)}, {(0, 0): (70 + 40 + 20 + 40 + 10, 70, 110), (0, 1): (15, 10, 5)}),
        ({"steps": (3, None)}, {(0, 0): (130, 40, 90)}),
        ({"steps": (None, -4)}, {(0, 0): (20, 20, 0)}),
        ({"steps": -2}, {(0, 0): (130, 40, 90)}),
        ({"steps": 2}, {(0, 0): (70, 30, 40)}),
        ({"steps": (2, 99), "phase": "decode"}, {(0, 0): (130, 40, 90)}),
        ({"rank": 0, "device": 1}, {(0, 1): (15, 10, 5)}),
        # A window cuts rows and gaps; one within a gap is idle, one outside of the device's span is nothing.
        ({"since_ns": 120, "until_ns": 205}, {(0, 0): (85, 45, 40), (0, 1): (5, 5, 0)}),
        ({"since_ns": 170, "until_ns": 180}, {(0, 0): (10, 0, 10)}),
        ({"until_ns": 20}, {(0, 0): (10, 10, 0)}),
        ({"since_ns": 355}, {(0, 0): (5, 5, 0)}),
        ({"phase": "decode", "since_ns": 80, "until_ns": 310, "device": 0}, {(0, 0): (60 + 100, 50, 110)}),
    ],
    ids=str,
)
def test_what_is_kept(
    five: Trace, chosen: dict[str, Any], expected: dict[tuple[int, int], tuple[int, int, int]]
) -> None:
    with five.only(**chosen) as part:
        assert times(part) == expected


def test_the_whole_stays_whole(five: Trace) -> None:
    with five.only(device=1) as part:
        assert times(part) == {(0, 1): (15, 10, 5)}
        assert times(five) == {(0, 0): (350, 140, 210), (0, 1): (15, 10, 5)}


def test_rows_filtered_first_would_invent_idle_time(tmp_path: Path) -> None:
    """Decode steps with one of prefill between them: the device was busy all the time."""
    rows: Rows = []
    for at, name in enumerate([DECODE, PREFILL, DECODE]):
        rows += [annotation(name, 100 * at, 90), launch(100 * at + 1, 1)]
        rows.append(kernel(100 * at + 10, 100, launch_id=len(rows), name=GEMM))
    with opened(tmp_path, rows) as trace, trace.only(phase="decode") as part:
        assert times(part) == {(0, 0): (200, 200, 0)}
        (idle,) = part.analyze("idle_gaps").summary
        assert idle["idle_ns"] == 0


def test_attribution_of_a_part(five: Trace) -> None:
    """Time that an earlier row covers stays that row's, also where that row is left out."""
    with five.only(phase="prefill", since_ns=20) as part:
        columns = ("device", "phase", "category", "count", "total_ns", "exclusive_ns")
        table = part.analyze("attribution").table.select(columns).to_pylist()
        assert [tuple(row.values()) for row in table] == [
            (0, "prefill", "communication", 1, 30, 20),
            (0, "prefill", "gemm", 2, 20, 20),
        ]
        assert part.analyze("attribution").coverage.total_ns == 40


# ---- parts add up ----------------------------------------------------------------------------------------------------

WAYS: list[list[dict[str, Any]]] = [
    [{"phase": phase} for phase in ("prefill", "decode", "unknown")],
    [{"phase": ["prefill", "decode", "unknown"]}],
    [{"steps": (None, 2)}, {"steps": 2}, {"steps": (3, None)}, {"phase": "unknown"}],
    [{"device": device} for device in (0, 1)],
    [{"rank": 0}],
    [{"until_ns": 125}, {"since_ns": 125, "until_ns": 204}, {"since_ns": 204}],
    [{"phase": "decode"}, {"phase": ["prefill", "unknown"], "until_ns": 305}, {"phase": "unknown", "since_ns": 305}],
]  # fmt: skip


@pytest.mark.parametrize("parts", WAYS, ids=str)
def test_parts_add_up_to_the_whole(five: Trace, parts: list[dict[str, Any]]) -> None:
    def added(trace: Trace) -> Counter[tuple[Any, ...]]:
        sums: Counter[tuple[Any, ...]] = Counter()
        for row in trace.analyze("attribution").table.to_pylist():
            sums[row["rank"], row["device"], row["phase"], row["category"]] += row["exclusive_ns"]
        for row in trace.analyze("attribution").summary:
            sums.update({(row["rank"], row["device"], key): row[key] for key in ("span_ns", "busy_ns", "idle_ns")})
        for row in trace.analyze("idle_gaps").summary:
            sums.update({(row["rank"], row["device"], cause): ns for cause, ns in row["by_cause"].items()})
        return +sums

    total: Counter[tuple[Any, ...]] = Counter()
    for chosen in parts:
        with five.only(**chosen) as part:
            total += added(part)
    assert total == added(five)


# Four steps of drawn phases in each of two ranks; device rows say their step themselves.
PHASES = {"prefill": PREFILL, "decode": DECODE, "verify": "step[TARGET_VERIFY bs=2]"}
DRAWN_ROW = st.tuples(
    st.integers(0, 1), st.integers(0, 1), st.integers(0, 60), st.integers(0, 9), st.sampled_from([None, 0, 1, 2, 3])
)
BOUND = st.none() | st.integers(-3, 75)
CHOSEN = st.fixed_dictionaries(
    {
        "phase": st.none() | st.lists(st.sampled_from([*PHASES, "unknown"]), min_size=1, max_size=3),
        "steps": st.none() | st.tuples(st.none() | st.integers(-5, 5), st.none() | st.integers(-5, 5)),
        "rank": st.none() | st.integers(0, 1),
        "device": st.none() | st.integers(0, 1),
        "since_ns": BOUND,
        "until_ns": BOUND,
    }
)


def painted(drawn: Sequence[tuple[int, int, int, int, int | None]]) -> list[tuple[int, int, int | None, int, bool]]:
    """Rank, device, step, time and busy or not, of every nanosecond of each device's span."""
    found = []
    for place in {row[:2] for row in drawn}:
        reach: int | None = None
        for ts, negative, _, step in sorted(
            ((ts, -dur, at, step) for at, (*where, ts, dur, step) in enumerate(drawn) if tuple(where) == place),
            key=lambda row: row[:3],
        ):
            reach = ts if reach is None else reach
            found += [(*place, step, moment, False) for moment in range(reach, ts)]
            found += [(*place, step, moment, True) for moment in range(max(ts, reach), ts - negative)]
            reach = max(reach, ts - negative)
    return found


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(DRAWN_ROW, max_size=30), st.lists(st.sampled_from(sorted(PHASES)), min_size=8, max_size=8), CHOSEN)
def test_against_painted_nanoseconds(
    tmp_path: Path, drawn: list[Any], phases: list[str], chosen: dict[str, Any]
) -> None:
    marks = [annotation(PHASES[phase], 9 * (at % 4), 8, rank=at // 4, step=None) for at, phase in enumerate(phases)]
    rows = [kernel(ts, dur, rank=r, device=d, step=step, name=GEMM) for r, d, ts, dur, step in drawn]

    def matches(rank: int, device: int, step: int | None, ts: int) -> bool:
        phase = "unknown" if step is None else phases[4 * rank + step]
        return (
            (chosen["phase"] is None or phase in chosen["phase"])
            and (
                chosen["steps"] is None or chosen["steps"] == (None, None) or step in range(4)[slice(*chosen["steps"])]
            )
            and chosen["rank"] in (None, rank)
            and chosen["device"] in (None, device)
            and (chosen["since_ns"] is None or ts >= chosen["since_ns"])
            and (chosen["until_ns"] is None or ts < chosen["until_ns"])
        )

    expected: dict[tuple[int, int], list[int]] = {}
    for rank, device, step, moment, busy in painted(drawn):
        if matches(rank, device, step, moment):
            expected.setdefault((rank, device), [0, 0])[not busy] += 1
    for rank, device, ts, dur, step in drawn:  # a row of no duration is work too, and one that others cover
        if any(matches(rank, device, step, moment) for moment in range(ts, ts + max(1, dur))):
            expected.setdefault((rank, device), [0, 0])
    with opened(tmp_path, [*marks, *rows]) as trace:
        try:
            part = trace.only(**chosen)
        except UsageError as error:
            assert not expected or "no step is of phase" in str(error)
            return
        with part:
            summary = part.analyze("attribution").summary
        keys = ("span_ns", "busy_ns", "idle_ns")
        told = {(row["rank"], row["device"]): [row[key] for key in keys] for row in summary}
        assert told == {where: [busy + idle, busy, idle] for where, (busy, idle) in expected.items()}


def test_steps_are_sliced_in_each_rank(tmp_path: Path) -> None:
    rows: Rows = []
    for rank, count in ((0, 3), (1, 2)):
        for at in range(count):
            rows += [annotation(DECODE, 100 * at, 90, rank=rank), launch(100 * at + 1, 1, rank=rank)]
            rows.append(kernel(100 * at + 10, 10 + at, launch_id=len(rows), rank=rank, name=GEMM))
    with opened(tmp_path, rows) as trace:
        with trace.only(steps=-1) as part:
            assert {where: row[1] for where, row in times(part).items()} == {(0, 0): 12, (1, 0): 11}
        with trace.only(steps=(2, None)) as part:
            assert {where: row[1] for where, row in times(part).items()} == {(0, 0): 12}
        with pytest.raises(UsageError, match=r"no step lies in 7; there are: 0 to 2 of rank 0, 0 to 1 of rank 1$"):
            trace.only(steps=7)


def test_the_steps_analysis_follows(five: Trace) -> None:
    """Of decode, without prefill; and a step that the window cuts is no measured step."""
    with five.only(phase="decode", device=0) as part:
        (summary,) = part.analyze("steps").summary
        assert summary["span_ns"] == times(part)[0, 0][0]
        assert {row["phase"] for row in part.analyze("steps").table.to_pylist()} == {"decode"}
    with five.only(since_ns=110, device=0) as part:
        (summary,) = part.analyze("steps").summary
        assert (summary["span_ns"], summary["cut_steps"]) == (times(part)[0, 0][0], 1)


def test_host_ops_of_a_part(tmp_path: Path) -> None:
    """Own time is that of all ops first, then of those in the part."""
    rows = [
        annotation(DECODE, 0, 100),
        op(10, 60, name="aten::addmm", parent_id=1),
        op(20, 25, name="aten::softmax", parent_id=2),
        annotation(PREFILL, 200, 100),
        op(210, 7, name="aten::mm", parent_id=4),
    ]
    with opened(tmp_path, rows) as trace:
        for chosen, expected in (
            ({}, {"gemm": 42, "softmax": 25}),
            ({"phase": "decode"}, {"gemm": 35, "softmax": 25}),
            ({"since_ns": 15, "until_ns": 30}, {"gemm": 5, "softmax": 10}),
            ({"until_ns": 15}, {"gemm": 5}),
            ({"steps": 1, "since_ns": 212}, {"gemm": 5}),
        ):
            with trace.only(**chosen) as part:
                sums: Counter[str] = Counter()
                for row in part.analyze("attribution").table.to_pylist():
                    sums[row["category"]] += row["exclusive_ns"]
                assert sums == expected
        with pytest.raises(UsageError, match=r"^no device can be chosen: no device activity in this trace$"):
            trace.only(device=0)
        with pytest.raises(UsageError, match=r"^nothing is left of this trace \(only from 150ns until 160ns\); there"):
            trace.only(since_ns=150, until_ns=160)


def test_marks_alone_are_something(tmp_path: Path) -> None:
    """A recording of Nsight Systems without a GPU has steps, and neither ops nor device work."""
    with opened(tmp_path, [annotation(DECODE, 0, 100), annotation(PREFILL, 200, 100)]) as trace:
        for chosen, expected in (
            ({"steps": 1}, ["prefill"]),
            ({"phase": "decode"}, ["decode"]),
            ({}, ["decode", "prefill"]),
        ):
            with trace.only(**chosen) as part:
                assert [row["phase"] for row in part.analyze("steps").table.to_pylist()] == expected


# ---- what cannot be chosen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"rank": 3}, "no rank 3 in this trace; there are: 0"),
        ({"device": [0, 7]}, "no work of device 7 in this trace; there are: 0, 1"),
        ({"phase": "decod"}, "no phase 'decod'; phases are: prefill, decode, mixed, verify, draft, unknown"),
        ({"phase": "draft"}, "no step is of phase draft in this trace; there are: decode (3 steps), prefill (2 steps)"),
        ({"steps": (9, 12)}, "no step lies in 9:12; there are: 0 to 4"),
        ({"steps": (3, 3)}, "no step lies in 3:3; there are: 0 to 4"),
        ({"steps": (1, 2, 3)}, "steps are one number or (first, end), not (1, 2, 3)"),
        ({"since_ns": 50, "until_ns": 50}, "no time lies from 50ns until 50ns"),
        ({"since_ns": 1e9}, "steps, ranks, devices and nanoseconds are whole numbers: 'float' object cannot be "
                            "interpreted as an integer"),
        ({"rank": []}, "no rank at all was chosen; leave it out to look at all of them"),
        (
            {"steps": -1},
            "nothing is left of this trace (only step -1); there are: ranks 0; devices 0, 1; device work from 0.010 us "
            "to 0.360 us; phases decode (3 steps), prefill (2 steps); steps 0 to 4",
        ),
        (
            {"phase": "prefill", "steps": 1, "until_ns": 10**30},
            "nothing is left of this trace (only phase prefill, step 1, until 1000000000000000000000s); there are: "
            "ranks 0; devices 0, 1; device work from 0.010 us to 0.360 us; phases decode (3 steps), prefill (2 steps); "
            "steps 0 to 4",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value),
)  # fmt: skip
def test_what_does_not_exist_is_answered_with_what_does(five: Trace, chosen: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        five.only(**chosen)
    assert (str(error.value), error.value.exit_code) == (said, 2)


def test_without_steps(tmp_path: Path) -> None:
    with opened(tmp_path, [kernel(5, 10), kernel(20, 10)]) as trace:
        for chosen in ({"phase": "decode"}, {"steps": 0}):
            with pytest.raises(UsageError, match="no serving steps were found in this trace"):
                trace.only(**chosen)
        with trace.only(phase="unknown") as part:
            assert times(part) == times(trace) == {(0, 0): (25, 20, 5)}


def test_of_many_only_some_are_listed(tmp_path: Path) -> None:
    rows = [kernel(5, 10, rank=rank) for rank in range(64)]
    with (
        opened(tmp_path, rows) as trace,
        pytest.raises(UsageError, match=r"there are: 0, 1, 2, 3, 4, 5, 6, 7, ... \(64 in all\)"),
    ):
        trace.only(rank=64)
