"""Text says the numbers that JSON says: each time on the screen stands there, or is a sum of times that do."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import run
from tests.simulator import Plant, Run, simulate
from tracekit.analysis import duration

SAMPLES = Path(__file__).parent.parent / "sample_traces"
_TIME = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)? (?:us|ms|s)\b")


def numbers(value: Any) -> Iterator[float]:
    """All numbers in a document."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers(one)
    elif isinstance(value, int | float):
        yield value


def sums(results: Any) -> Iterator[float]:
    """What the screen adds up: time by category, by cause, that of a step, and "7 more": what the largest leave."""
    by_category: Counter[str] = Counter()
    for row in results["attribution"]["table"]:
        by_category[row["category"]] += row["exclusive_ns"]
    by_cause: Counter[str] = Counter()
    for row in results["idle_gaps"]["summary"]:
        by_cause.update(row["by_cause"])
        yield from (one["ns"] / one["steps"] for one in row["per_step"])
    for parts in (by_category, by_cause):
        yield from parts.values()
        yield from accumulate(sorted(parts.values()))


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    simulate(Run(plant=Plant(launch_bound_ns=20_000, syncs_per_step=2), steps=6, ranks=2), folder / "ranks")
    return folder / "ranks"


@pytest.mark.parametrize("name", ["h100_decode_eager.json.gz", "h100_decode_graph.json.gz", "vllm_cpu.parquet", ""])
def test_times_of_the_screen(name: str, two_ranks: Path) -> None:
    path = SAMPLES / name if name else two_ranks
    results = json.loads(run("analyze", path, "--format", "json").stdout)["results"]
    said = {duration(abs(one)) for one in [*numbers(results), *sums(results)]}
    said |= set(_TIME.findall(json.dumps(results)))  # in the words of findings
    times = [(time, line) for line in run("analyze", path).stdout.splitlines() for time in _TIME.findall(line)]
    assert len(times) > 12
    assert [(time, line) for time, line in times if time not in said] == []
