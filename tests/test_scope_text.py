"""Parts of a trace as text: steps and times as a user types them, and how a part is called."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from tracekit.errors import UsageError
from tracekit.scope import in_units, parse_duration, parse_steps, scope_of, slice_text


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("3:8", (3, 8)), ("3:", (3, None)), (":8", (None, 8)), ("-5:", (-5, None)), (":-1", (None, -1)), ("5", (5, 6)),
        ("0", (0, 1)), ("-1", (-1, None)), ("-3", (-3, -2)), (":", (None, None)),
    ],
)  # fmt: skip
def test_steps_as_text(text: str, steps: tuple[int | None, int | None]) -> None:
    assert parse_steps(text) == steps
    assert parse_steps(slice_text(steps)) == steps


@pytest.mark.parametrize("text", ["", " ", "a", "3-8", "3:8:2", "3.5", "1,2", "--3", "3::"])
def test_what_is_no_range_of_steps(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no range of steps; write 3:8 \(8 not included\)"):
        parse_steps(text)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1.2s", 1_200_000_000), ("350ms", 350_000_000), ("20us", 20_000), ("20µs", 20_000), ("5ns", 5), ("0s", 0),
        ("0.1 ms", 100_000), ("9007199254.740993s", 9_007_199_254_740_993_000),
    ],
)  # fmt: skip
def test_times_as_text(text: str, ns: int) -> None:
    assert parse_duration(text) == ns
    assert parse_duration(in_units(ns)) == ns


@pytest.mark.parametrize("text", ["", "5", "s", "1m", "-1s", "1e3s", "1,000us", "nan s", "1.2.3s"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="is no time; write a number and its unit, from the trace's start"):
        parse_duration(text)


def test_finer_than_a_nanosecond() -> None:
    with pytest.raises(UsageError, match=r"'0.5ns' is finer than a nanosecond"):
        parse_duration("0.5ns")


def test_a_scope_says_itself() -> None:
    scope = scope_of(
        phase=("decode", "verify"), steps=(3, 8), rank=0, device=[1, 1], since_ns=1_200_000_000, until_ns=3 * 10**9
    )
    assert str(scope) == "phase decode or verify, steps 3:8, rank 0, device 1, from 1.2s until 3s"
    assert scope.arguments() == (
        shlex.split("--phase decode --phase verify --steps 3:8 --rank 0 --device 1 --since 1.2s --until 3s")
    )
    assert scope.to_json() == {
        "phase": ["decode", "verify"],
        "steps": [3, 8],
        "rank": [0],
        "device": [1],
        "since_ns": 1_200_000_000,
        "until_ns": 3_000_000_000,
    }
    assert scope_of(**scope.to_json()) == scope
    assert str(scope_of(steps=5)) == "step 5"


@pytest.mark.parametrize("steps", [True, range(1, 3)])
def test_what_would_mean_something_else_is_refused(steps: Any) -> None:
    with pytest.raises(UsageError, match=r"^steps are one number, or \(first, end\) of which the end is not included"):
        scope_of(steps=steps)
