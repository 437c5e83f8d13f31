"""What --fail-on can ask for, of traces whose every time is known."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import tracekit
from tests.event_rows import annotation, kernel, launch, write_trace
from tracekit.compare import Recording, measure
from tracekit.gate import Measure, Measured
from tracekit.gate_metrics import metrics_of, metrics_of_sides, shares_of

US = 1_000


def steps(lengths: list[int]) -> list[dict[str, Any]]:
    """Decode steps of four requests, one every 100 us, each with one GEMM of so many us that starts with its step."""
    rows: list[dict[str, Any]] = []
    for at, length in enumerate(lengths):
        start = 100 * US * at
        rows += [annotation("step[DECODE bs=4]", start, 50 * US), launch(start, 2 * US)]
        rows.append(kernel(start + 2 * US, length * US, launch_id=3 * at + 2, name="nvjet_tst_128", step=at))
    return rows


def told(path: Path, rows: list[dict[str, Any]]) -> Mapping[str, Measured]:
    with tracekit.open(write_trace(path, rows)) as trace:
        return metrics_of(trace)


def recording(path: Path, lengths: list[int]) -> tuple[Recording, Mapping[str, Measure]]:
    with tracekit.open(write_trace(path, steps(lengths))) as trace:
        return measure(trace), shares_of(trace)


def test_of_nothing(tmp_path: Path) -> None:
    """Every name is known, and of none anything can be told."""
    found = told(tmp_path / "trace.parquet", [])
    assert {"decode.p50", "prefill.p99", "idle_share", "idle.sync", "busy.gemm"} <= found.keys()
    assert [one.value.value for one in found.values()] == [None] * len(found)
    assert found["decode.p50"].value.reason == "there are no decode steps"
    assert found["idle_share"].value.reason.startswith("nothing was recorded")


def test_of_steps(tmp_path: Path) -> None:
    """The first step is left out; each other is charged with the gap before it: 100, 110, 120, 70 us."""
    found = told(tmp_path / "trace.parquet", steps([30, 30, 40, 60, 30]))
    times = {"mean": 100_000, "p50": 100_000, "p90": 120_000, "p99": 120_000}
    assert {name: found[f"decode.{name}"].value for name in times} == {
        name: Measure("time", ns) for name, ns in times.items()
    }
    assert found["decode[3-4].p90"] == found["decode.p90"]
    busy, span = 190, 430
    assert found["busy_share"].value == Measure("share", Fraction(busy, span))
    assert found["idle_share"].value == Measure("share", Fraction(span - busy, span))
    assert found["busy.gemm"].value == Measure("share", Fraction(1))
    assert found["busy.attention"].value == Measure("share", Fraction(0))
    causes = [one.value.value for name, one in found.items() if name.startswith("idle.")]
    assert sum(Fraction(one) for one in causes if one is not None) == Fraction(span - busy, span)


def test_of_two_sides(tmp_path: Path) -> None:
    """Shares are the median of the recordings', times those of all steps; intervals only of what is asked for."""
    base = [recording(tmp_path / f"base{at}.parquet", [30] * 12) for at in range(2)]
    candidate = [recording(tmp_path / f"candidate{at}.parquet", [40 + 10 * at] * 12) for at in range(3)]
    shares = [one for _, one in base], [one for _, one in candidate]
    found = metrics_of_sides([one for one, _ in base], [one for one, _ in candidate], shares, {"decode.mean"})
    assert found["decode.p50"] == Measured(Measure("time", 100_000), Measure("time", 100_000))
    one = found["decode.mean"]
    assert (one.value, one.base) == (Measure("time", 100_000), Measure("time", 100_000))
    assert one.low is not None
    assert one.high is not None
    assert one.low <= 0 <= one.high
    assert found["busy_share"].base == Measure("share", Fraction(12 * 30, 11 * 100 + 30))
    assert found["busy_share"].value == Measure("share", Fraction(12 * 50, 11 * 100 + 50))


def test_a_side_without_such_steps_cannot_tell(tmp_path: Path) -> None:
    with tracekit.open(write_trace(tmp_path / "nothing.parquet", [])) as trace:
        nothing, nothing_shares = measure(trace), shares_of(trace)
    some, some_shares = recording(tmp_path / "some.parquet", [30] * 6)
    found = metrics_of_sides([nothing], [some], ([nothing_shares], [some_shares]), {"decode.p50"})
    assert found["decode.p50"].base == Measure("time", None, "there are no decode steps")
    assert (found["decode.p50"].low, found["decode.p50"].high) == (None, None)
    assert found["idle_share"].base is not None
    assert found["idle_share"].base.value is None
