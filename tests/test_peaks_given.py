"""Peaks as the user gives them, on the command line and in Python."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tracekit.errors import UsageError
from tracekit.peaks_given import check_given, parse_peak, parse_peaks, peaks_given
from tracekit.work import MATHS


def test_nothing_given() -> None:
    assert parse_peaks([]) == peaks_given({}) == {}
    check_given({})


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("bf16=989e12", "bf16", 989e12),
        (" BF16 = 989T ", "bf16", 989e12),
        ("fp8=1.9789 PFLOPS", "fp8", 1978.9e12),
        ("int8=624TOPS", "int8", 624e12),
        ("fp64_matrix=66.9TFLOP/s", "fp64_matrix", 66.9e12),
        ("bandwidth=3.35TB/s", "bandwidth", 3.35e12),
        ("bandwidth=3.35E+12", "bandwidth", 3.35e12),
        ("link=450GB/s", "link", 450e9),
        ("pcie=63G", "pcie", 63e9),
        ("l2=50MiB", "l2", 50 * 1024**2),
        ("l2=50MB", "l2", 50e6),
        ("achievable.bf16=.8", "achievable.bf16", 0.8),
        ("achievable.compute=1", "achievable.compute", 1),
        ("achievable.bandwidth=0.92", "achievable.bandwidth", 0.92),
    ],
)
def test_peaks_as_given(text: str, name: str, value: float) -> None:
    found = parse_peak(text)
    assert found[0] == name
    assert found[1] == pytest.approx(value)


NAMES = f"{', '.join(MATHS)}, bandwidth, l2, link, pcie, achievable.bf16 and so on, achievable.compute, "
NUMBER = "the value must be a number like 989e12, 989T, 3.35TB/s or 50MiB"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"give NAME=VALUE; NAME is one of {NAMES}"),
        ("bf16", f"give NAME=VALUE; NAME is one of {NAMES}"),
        ("half=1e15", f"give NAME=VALUE; NAME is one of {NAMES}"),
        ("bf61", "no such name; did you mean bf16?"),
        ("Bandwith=1e12", "no such name; did you mean bandwidth?"),
        ("achievable.bf61=0.8", "no such name; did you mean achievable.bf16?"),
        ("bf16=", NUMBER),
        ("bf16=fast", NUMBER),
        ("bf16=nan", NUMBER),
        ("bf16=inf", NUMBER),
        ("bf16=1_000e12", NUMBER),
        ("bf16=1e999", "bf16 must be from 1e+09 to 1e+18 FLOP/s, not inf; is the unit another?"),
        ("bf16=-1e12", "bf16 must be from 1e+09 to 1e+18 FLOP/s, not -1e+12; is the unit another?"),
        ("bf16=0", "bf16 must be from 1e+09 to 1e+18 FLOP/s, not 0; is the unit another?"),
        ("bf16=989", "bf16 must be from 1e+09 to 1e+18 FLOP/s, not 989; is the unit another?"),
        ("bandwidth=3350", "bandwidth must be from 1e+09 to 1e+15 B/s, not 3350; is the unit another?"),
        ("bandwidth=3.35Tb/s", "bandwidth is in B/s, not b/s"),
        ("bf16=989TB/s", "bf16 is in FLOP/s or FLOPS or OP/s or OPS, not B/s"),
        ("achievable.bf16=80", "achievable.bf16 must be from 1e-06 to 1, not 80; is the unit another?"),
        ("achievable.bf16=0.8B/s", "achievable.bf16 is in no unit, a share, not B/s"),
    ],
)
def test_peaks_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_peak(text)
    assert str(raised.value).startswith(f"--peak {text}: {message}")


def test_a_peak_is_given_once() -> None:
    assert parse_peaks(["bf16=989T", "fp8=1979T"]) == {"bf16": 989e12, "fp8": 1979e12}
    with pytest.raises(UsageError, match="--peak BF16=1e15: bf16 is given twice"):
        parse_peaks(["bf16=989T", "BF16=1e15"])


def test_a_mapping_may_hold_texts() -> None:
    given: dict[str, float | str] = {"bf16": "989T", "bandwidth": 3350000000000, "achievable.bf16": 0.8}
    assert peaks_given(given) == {"bf16": 989e12, "bandwidth": 3.35e12, "achievable.bf16": 0.8}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bf16": None}, "peak bf16: must be a number, or a text like 989T, not None"),
        ({"bf16": True}, "peak bf16: must be a number, or a text like 989T, not True"),
        ({"bf16": [1e15]}, "peak bf16: must be a number, or a text like 989T, not [1000000000000000.0]"),
        ({"bf16": "fast"}, "peak bf16=fast: the value must be a number like 989e12, 989T, 3.35TB/s or 50MiB"),
        ({"bf16": "989TB/s"}, "peak bf16=989TB/s: bf16 is in FLOP/s or FLOPS or OP/s or OPS, not B/s"),
        ({"bf61": "989T"}, "unknown peak 'bf61'; did you mean bf16?"),
        ({"speed": 1e12}, "unknown peak 'speed'; known are fp64, "),
        ({3: 1e12}, "unknown peak 3; known are fp64, "),
        ({"bf16": math.nan}, "bf16 must be from 1e+09 to 1e+18 FLOP/s, not nan; is the unit another?"),
        ({"bf16": 10**400}, "bf16 must be from 1e+09 to 1e+18 FLOP/s, not inf; is the unit another?"),
    ],
)
def test_mappings_that_cannot_be(given: dict[Any, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        peaks_given(given)
    assert str(raised.value).startswith(message)
