"""Marks in, the whole table of steps out; and the step of each row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit
from tests.event_rows import annotation, kernel, launch, op, write_trace
from tests.naive_steps import marks_of_rank, naive_column
from tracekit.convert import convert
from tracekit.step_marks import Composition, Dialects, composition_of
from tracekit.steps import NO_STEPS, Marks, Membership, Ranges, marked_steps

VLLM = "execute_context_0(0)_generation_1(1)"
WRAPPER = "execute_1_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq1sk9sqsq1sqsk9)"
STEP = "step[DECODE bs=1]"
RANGE = "SELECT step, rank, ts, dur, until_ts, source, id, pid, tid FROM steps ORDER BY rank, step"


def steps(folder: Path, *rows: dict[str, Any], query: str = RANGE) -> list[tuple[Any, ...]]:
    with tracekit.open(write_trace(folder / "trace.parquet", rows)) as trace:
        return [tuple(row.values()) for row in trace.sql(query).to_pylist()]


def column(folder: Path, *rows: dict[str, Any]) -> list[int | None]:
    """The step of each row that is no annotation, in order."""
    query = "SELECT step FROM events WHERE kind <> 'annotation' ORDER BY id"
    return [step for (step,) in steps(folder, *rows, query=query)]


# ---- names -----------------------------------------------------------------------------------------------------------

DETAILED = "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)"


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        # phase, prefill: requests, tokens; decode: requests, tokens; prefill: kv, sqsq, sqsk; decode: kv, sqsq, sqsk
        (DETAILED, "execute_context", ("mixed", 9, 8155, 37, 37, 8430, 7475785, 7671310, 34489, 37, 34489)),
        ("execute_context_1(60)_generation_0(0)", "execute_context", ("prefill", 1, 60, 0, 0)),
        ("execute_context_0(0)_generation_0(0) of nothing", "execute_context", ("unknown", 0, 0, 0, 0)),
        ("execute_context_1(888_788544)_generation_0(0)", "execute_context", ("prefill", 1, 888, 0, 0)),
        ("execute_9_context_1(sk5?sq)_generation_2()", "execute_context", ("mixed", 1, None, 2, None, 5)),
        (f"execute_context_1({'9' * 30})_generation_0(0)", "execute_context", ("prefill", 1, None, 0, 0)),
        (f"execute_context_{2**63}(1)_generation_{2**63 - 1}(1)", "execute_context", ("decode", None, 1, 2**63 - 1, 1)),
        ("step[DECODE bs=16]", "step", ("decode", None, None, 16, 16)),
        ("step[DECODE bs=2 g_sq=8 g_sqsq=32 g_sqsk=120 g_sk=30]", "step",
         ("decode", None, None, 2, 8, None, None, None, 30, 32, 120)),
        ("step[EXTEND bs=15 toks=15360]", "step", ("prefill", 15, 15360)),
        ("step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]", "step", ("prefill", 2, 12, None, None, 20, 80, 120)),
        ("step[SPLIT_PREFILL bs=2]", "step", ("prefill", 2)),
        ("step[MIXED bs=9]", "step", ("mixed",)),
        ("step[MIXED c=2 g=7]", "step", ("mixed", 2, None, 7)),
        ("step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]", "step",
         ("mixed", 1, 5, 1, 1, 8, 25, 40, 12, 1, 12)),
        ("step[TARGET_VERIFY bs=4 g_sq=20 g_sk=99 forward_id=7]", "step",
         ("verify", None, None, 4, 20, None, None, None, 99)),
        ("step[VERIFY bs=4]", "step", ("verify", None, None, 4)),
        ("step[DRAFT_EXTEND bs=4 toks=8]", "step", ("draft", None, None, 4, 8)),
        ("step[DRAFT bs=4]", "step", ("draft", None, None, 4)),
        ("step[IDLE]", "step", ("unknown",)),
        ("step[DECODE", "step", ("decode",)),
        ("tracekit.step[decode decode_requests=4 decode_tokens=4]", "tracekit", ("decode", None, None, 4, 4)),
        ("tracekit.step[prefill_requests=1 decode_requests=2]", "tracekit", ("mixed", 1, None, 2)),
        ("tracekit.step[draft]", "tracekit", ("draft",)),
        ("tracekit.step[]", "tracekit", ("unknown",)),
        ("gpu_model_runner: forward", "stage", ("unknown",)),
        ("gpu_model_runner: preprocess", "stage", ("unknown",)),
        ("scheduler.run_batch", "stage", ("unknown",)),
        ("ProfilerStep#12", "ProfilerStep", ("unknown",)),
    ],
)  # fmt: skip
def test_what_marks_say(tmp_path: Path, name: str, source: str, expected: tuple[Any, ...]) -> None:
    padded = (*expected, *[None] * (11 - len(expected)))
    assert composition_of(name) == Composition(*padded)
    query = """
        SELECT
            source, phase, prefill_requests, prefill_tokens, decode_requests, decode_tokens,
            prefill_kv_tokens, prefill_sqsq, prefill_sqsk, decode_kv_tokens, decode_sqsq, decode_sqsk
        FROM steps
    """
    assert steps(tmp_path, annotation(name, 5, 10), query=query) == [(source, *padded)]


@pytest.mark.parametrize(
    "name",
    ["", "step", "my step[DECODE bs=1]", "step[decode]", "execute_diffusion_1_512x512", "execute_context_1(1)",
     "ProfilerStep", "tracekit.step", "gpu_model_runner: forward pass", "scheduler.run_batches", "x" * 9999],
)  # fmt: skip
def test_other_annotations_are_no_marks(tmp_path: Path, name: str) -> None:
    assert steps(tmp_path, annotation(name, 5, 10), launch(6, 1)) == []
    assert column(tmp_path, annotation(name, 5, 10), launch(6, 1)) == [None]


def test_no_rows(tmp_path: Path) -> None:
    assert steps(tmp_path) == []
    assert marked_steps(Marks(NO_STEPS.ranges, ()), Dialects()) is NO_STEPS
    assert Membership(NO_STEPS).of(NO_STEPS.ranges).tolist() == []


# ---- which marks are steps -------------------------------------------------------------------------------------------


def test_the_best_dialect_of_each_rank(tmp_path: Path) -> None:
    names = ["ProfilerStep#1", "scheduler.run_batch", "gpu_model_runner: preprocess", "gpu_model_runner: forward",
             "tracekit.step[decode]", STEP, VLLM]  # fmt: skip
    rows = [
        annotation(name, 10 * at, 5, rank=rank)
        for rank in range(len(names))
        for at, name in enumerate(names[: rank + 1])
    ]
    found = steps(tmp_path, *rows, query="SELECT rank, ts, source FROM steps ORDER BY rank")
    assert found == [
        (0, 0, "ProfilerStep"),
        (1, 10, "stage"),
        (2, 20, "stage"),
        (3, 30, "stage"),
        (4, 40, "tracekit"),
        (5, 50, "step"),
        (6, 60, "execute_context"),
    ]


def test_a_mark_inside_another_is_part_of_that_step(tmp_path: Path) -> None:
    rows = [
        annotation("step[VERIFY bs=1]", 0, 100),
        annotation("step[DRAFT bs=1]", 10, 20),
        annotation("step[DRAFT bs=1]", 40, 60),
        annotation("step[DRAFT bs=1]", 100, 0),
        annotation("step[DECODE bs=1]", 100, 10),
        annotation("step[DECODE bs=1]", 50, 10, tid=2),
        annotation("step[DECODE bs=1]", 50, 10, pid=2),
    ]
    assert steps(tmp_path, *rows) == [
        (0, 0, 0, 100, 100, "step", 1, 1, 1),
        (1, 0, 50, 10, 70, "step", 6, 1, 2),
        (2, 0, 50, 10, 70, "step", 7, 2, 1),
        (3, 0, 100, 10, 120, "step", 5, 1, 1),
    ]


def test_the_inner_of_two_dialects_is_the_step(tmp_path: Path) -> None:
    """What it leaves open the outer one tells. Two within one are parts of it; one of another thread is not within."""
    rows = [
        annotation(WRAPPER, 0, 100),
        annotation(STEP, 50, 30),
        annotation(WRAPPER, 100, 80),
        annotation("step[VERIFY bs=1]", 110, 20),
        annotation("step[DRAFT bs=1]", 140, 20),
        annotation(VLLM, 200, 40),
        annotation(STEP, 210, 5, tid=2),
        annotation(STEP, 250, 5),
    ]
    assert steps(tmp_path, *rows) == [
        (0, 0, 50, 30, 100, "step", 2, 1, 1),
        (1, 0, 100, 80, 200, "execute_context", 3, 1, 1),
        (2, 0, 200, 40, 280, "execute_context", 6, 1, 1),
    ]
    query = "SELECT phase, prefill_requests, decode_requests, decode_tokens, decode_kv_tokens, decode_sqsk FROM steps"
    assert steps(tmp_path, *rows[:2], query=query) == [("decode", 0, 1, 1, 9, 9)]
    unsaid = [annotation(WRAPPER, 0, 100), annotation("step[IDLE]", 50, 30)]
    assert steps(tmp_path, *unsaid, query=query) == [("decode", 0, 1, 1, 9, 9)]


def test_steps_are_numbered_over_all_files_of_a_rank(tmp_path: Path) -> None:
    """Whatever their order; and each row is in a step of its own rank, though numbers of threads are the same."""
    paths = []
    for name, rank, starts in (("b", 0, (30, 10)), ("a", 0, (20, 40)), ("c", 1, (15,))):
        events = [
            {"ph": "X", "cat": cat, "name": text, "pid": 1, "tid": 1, "ts": ts, "dur": 2}
            for start in starts
            for cat, text, ts in (("user_annotation", STEP, start), ("cpu_op", "aten::mm", start + 1))
        ]
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events}))
    convert(paths, tmp_path / "out.parquet")
    with tracekit.open(tmp_path / "out.parquet") as trace:
        query = "SELECT rank, step, e.ts, s.ts AS mark FROM ops AS e JOIN steps AS s USING (rank, step) ORDER BY ALL"
        found = [tuple(row.values()) for row in trace.sql(query).to_pylist()]
    assert found == [
        (0, 0, 1_000, 0),
        (0, 1, 11_000, 10_000),
        (0, 2, 21_000, 20_000),
        (0, 3, 31_000, 30_000),
        (1, 0, 6_000, 5_000),
    ]


# ---- which rows are in a step ----------------------------------------------------------------------------------------


def test_a_step_lasts_until_the_next_on_its_thread_and_the_last_twice_its_mark(tmp_path: Path) -> None:
    rows = [
        op(9, 1),
        annotation(STEP, 10, 20),
        op(10, 1),
        op(45, 1),
        annotation(STEP, 50, 20),
        op(50, 1),
        op(89, 100),
        op(90, 1),
    ]
    assert column(tmp_path, *rows) == [None, 0, 0, 1, 1, None]


def test_another_thread_is_in_a_step_while_a_mark_lasts(tmp_path: Path) -> None:
    """The one that started last, though an earlier one of another thread still runs; none after that."""
    rows = [annotation(STEP, 10, 50), annotation(STEP, 20, 10, tid=2)]
    rows += [op(ts, 1, tid=3) for ts in (9, 10, 19, 20, 29, 30, 59)]
    rows += [launch(15, 1, tid=3, kind=kind) for kind in ("overhead", "counter", "instant", "python", "launch")]
    rows += [op(15, 1, pid=2, tid=1), op(15, 1, pid=None, tid=None), op(15, 1, rank=1)]
    assert column(tmp_path, *rows) == [None, 0, 0, 1, 1, None, None, *[0] * 5, 0, 0, None]


def test_a_wrapped_step_lasts_as_long_as_what_wraps_it(tmp_path: Path) -> None:
    rows = [
        annotation(WRAPPER, 0, 40),
        op(5, 1),
        annotation(STEP, 10, 20),
        op(39, 1),
        op(40, 1),
        annotation(WRAPPER, 50, 30),
        op(55, 1),
        annotation(STEP, 60, 20),
        op(79, 1),
        op(80, 1),
    ]
    assert column(tmp_path, *rows) == [None, 0, None, None, 1, None]


def test_device_rows_are_in_the_step_that_launched_them(tmp_path: Path) -> None:
    """Asynchronous scheduling: the next mark begins, and ends, while the work before it still runs."""
    rows = [
        annotation(STEP, 0, 10),
        launch(1, 1),
        launch(12, 1),
        annotation(STEP, 20, 10),
        launch(21, 1, name="cudaGraphLaunch"),
        kernel(15, 100, launch_id=2),
        kernel(115, 5, launch_id=3, kind="memcpy"),
        kernel(120, 5, launch_id=5, kind="graph"),
        kernel(125, 5, launch_id=5, kind="gpu_annotation"),
        kernel(125, 5, launch_id=5, kind="sync"),
        kernel(5, 5),
        kernel(6, 5, launch_id=99),
    ]
    assert column(tmp_path, *rows) == [0, 0, 1, 0, 0, 1, 1, 1, None, None]


NAMES = [VLLM, WRAPPER, STEP, "step[IDLE]", "ProfilerStep#1", "scheduler.run_batch", "range", "else"]
ROW = st.builds(
    lambda kind, name, rank, tid, ts, dur: {
        "kind": kind, "name": name, "rank": rank, "pid": 1, "tid": tid, "ts": ts, "dur": dur,
    },
    st.sampled_from(["annotation", "op"]),
    st.sampled_from(NAMES),
    st.integers(0, 1),
    st.sampled_from([1, 1, 2, 3]),
    st.integers(0, 30),
    st.integers(0, 12),
)  # fmt: skip


@settings(deadline=None, max_examples=500)
@given(st.lists(ROW, max_size=25), st.sampled_from([None, "range", "IDLE|rang", r"\)"]))
def test_against_the_rules_row_by_row(drawn: list[dict[str, Any]], step_range: str | None) -> None:
    rows = [row | {"id": number} for number, row in enumerate(drawn, start=1)]

    def ranges(chosen: list[dict[str, Any]]) -> Ranges:
        names = ("id", "rank", "pid", "tid", "ts", "dur")
        return Ranges(*(np.array([row[name] for row in chosen], np.int64) for name in names))

    marks = [row for row in rows if row["kind"] == "annotation"]
    found = marked_steps(Marks(ranges(marks), [row["name"] for row in marks]), Dialects.of(step_range))
    expected = [(rank, mark["id"]) for rank in (0, 1) for mark, _ in marks_of_rank(rows, rank, step_range)]
    assert list(zip(found.ranges.rank.tolist(), found.ranges.id.tolist(), strict=True)) == expected
    step = Membership(found).of(ranges(rows)).tolist()
    assert dict(enumerate((None if one == -1 else one for one in step), start=1)) == naive_column(rows, step_range)
