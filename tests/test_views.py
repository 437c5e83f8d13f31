"""Documented views: steps from the marks of engines, devices, ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.event_rows import annotation, footer_of, kernel, write_trace

STEPS = (
    "SELECT step, rank, ts, phase, prefill_requests, prefill_tokens, decode_requests, decode_tokens, source FROM steps"
)


def steps(path: Path, *marks: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """marks: (name, ts, dur) or (name, ts, dur, other columns)."""
    rows = [annotation(*mark[:3], **(mark[3] if len(mark) > 3 else {})) for mark in marks]
    with tracekit.open(write_trace(path / "steps.parquet", rows)) as trace:
        return [tuple(row.values()) for row in trace.sql(f"{STEPS} ORDER BY rank, step").to_pylist()]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("execute_context_1(60)_generation_0(0)", ("prefill", 1, 60, 0, 0, "execute_context")),
        ("execute_context_0(0)_generation_4(8)", ("decode", 0, 0, 4, 8, "execute_context")),
        ("execute_context_2(99)_generation_3(3)", ("mixed", 2, 99, 3, 3, "execute_context")),
        ("execute_context_0(0)_generation_0(0)", ("unknown", 0, 0, 0, 0, "execute_context")),
        ("execute_context_1(888_788544)_generation_0(0)", ("prefill", 1, 888, 0, 0, "execute_context")),
        (
            "execute_16_context_0(sq0sk0sqsq0sqsk0)_generation_16(sq16sk8209sqsq16sqsk8209)",
            ("decode", 0, 0, 16, 16, "execute_context"),
        ),
        (f"execute_context_1({'9' * 30})_generation_0(0)", ("prefill", 1, None, 0, 0, "execute_context")),
        ("step[DECODE bs=32]", ("decode", None, None, 32, 32, "step")),
        ("step[EXTEND bs=15 toks=15360]", ("prefill", 15, 15360, None, None, "step")),
        ("step[TARGET_VERIFY bs=4 toks=20]", ("verify", None, None, 4, 20, "step")),
        ("step[DRAFT bs=4]", ("draft", None, None, 4, None, "step")),
        ("step[MIXED c=2 g=7]", ("mixed", 2, None, 7, None, "step")),
        ("step[IDLE]", ("unknown", None, None, None, None, "step")),
        ("ProfilerStep#12", ("unknown", None, None, None, None, "ProfilerStep")),
    ],
)
def test_marks_of_the_engines(tmp_path: Path, name: str, expected: tuple[Any, ...]) -> None:
    assert steps(tmp_path, (name, 5, 10)) == [(0, 0, 5, *expected)]


@pytest.mark.parametrize(
    "name",
    ["execute_diffusion_1_512x512", "step", "ProfilerStep", "my step[DECODE bs=1]", "execute_context", "x" * 9999],
)
def test_other_annotations_are_no_steps(tmp_path: Path, name: str) -> None:
    assert steps(tmp_path, (name, 5, 10)) == []


def test_the_dialect_that_tells_most_wins_in_each_rank(tmp_path: Path) -> None:
    found = steps(
        tmp_path,
        ("ProfilerStep#1", 0, 100),
        ("execute_context_0(0)_generation_1(1)", 10, 50),
        ("step[DECODE bs=1]", 70, 30),
        ("ProfilerStep#1", 0, 100, {"rank": 1}),
        ("step[DECODE bs=1]", 20, 30, {"rank": 1}),
        ("ProfilerStep#1", 0, 100, {"rank": 2}),
    )
    assert [(row[1], row[2], row[-1]) for row in found] == [
        (0, 10, "execute_context"),
        (1, 20, "step"),
        (2, 0, "ProfilerStep"),
    ]


def test_a_mark_inside_another_is_not_a_second_step(tmp_path: Path) -> None:
    found = steps(
        tmp_path,
        ("step[VERIFY bs=1]", 0, 100),
        ("step[DRAFT bs=1]", 10, 20),
        ("step[DRAFT bs=1]", 40, 60),
        ("step[DECODE bs=1]", 100, 10),
        ("step[DECODE bs=1]", 50, 10, {"tid": 2}),
    )
    assert [(row[0], row[2], row[3]) for row in found] == [(0, 0, "verify"), (1, 50, "decode"), (2, 100, "decode")]


def test_devices_and_ranks(tmp_path: Path) -> None:
    rows = [kernel(0, 1, device=9), kernel(0, 1, rank=1)]
    footer = footer_of(rows)
    with tracekit.open(
        write_trace(tmp_path / "trace.parquet", rows, replace(footer, devices=footer.devices[1:]))
    ) as trace:
        found = trace.sql("SELECT rank, device, name FROM devices ORDER BY ALL").to_pylist()
        ranks = trace.sql("FROM ranks ORDER BY rank").to_pylist()
    assert [tuple(row.values()) for row in found] == [(0, 9, None), (1, 0, "NVIDIA H100 80GB HBM3")]
    assert [tuple(row.values()) for row in ranks] == [(0, None, "default", 1), (1, None, "default", 1)]


def test_rows_without_an_end(tmp_path: Path) -> None:
    rows = [kernel(0, 0, args='{"finished": false}'), kernel(1, 0), kernel(2, 5, args='{"finished": false}')]
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        assert trace.sql("SELECT id FROM unfinished").to_pylist() == [{"id": 1}]
