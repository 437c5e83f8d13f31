"""A trace and parts of it, open side by side on one file."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import tracekit
from tests.event_rows import write_trace
from tests.scope_rows import FIVE, opened, times
from tracekit.errors import UsageError
from tracekit.scope import scope_of
from tracekit.trace import Trace


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    with opened(tmp_path_factory.mktemp("five"), FIVE) as trace:
        yield trace


def test_either_may_be_closed_first(tmp_path: Path) -> None:
    trace = opened(tmp_path, FIVE)
    part = trace.only(device=1)
    trace.close()
    assert times(part) == {(0, 1): (15, 10, 5)}
    part.close()
    trace = opened(tmp_path, FIVE)
    trace.only(device=1).close()
    assert times(trace)[0, 1] == (15, 10, 5)
    trace.close()


@pytest.mark.parametrize("first", ["whole", "part"])
def test_the_temporary_file_of_a_raw_trace_lives_as_long_as_either(tmp_path: Path, first: str) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"device": 0}}
    (tmp_path / "a.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    whole = tracekit.open(tmp_path / "a.json")
    part = whole.only(rank=0)
    one, other = (whole, part) if first == "whole" else (part, whole)
    one.close()
    one.close()
    assert times(other) == {(0, 0): (2000, 2000, 0)}
    assert other.analyze("health").table.num_rows
    other.close()
    assert not whole.path.exists()


def test_parts_without_a_name_leave_nothing_behind(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"device": 0}}
    (tmp_path / "a.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    part = tracekit.open(tmp_path / "a.json").only(rank=0)
    file = part.path
    assert file.exists()
    del part
    gc.collect()
    assert not file.exists()


def test_health_is_that_of_the_whole_trace(tmp_path: Path) -> None:
    trace = opened(tmp_path, FIVE)
    expected = trace.analyze("health").to_json()
    part = trace.only(device=1)
    assert part.whole is trace
    assert part.analyze("health").to_json() == expected
    trace.close()
    assert part.analyze("health").to_json() == expected
    assert part.whole is not part
    assert part.only(steps=1).analyze("health").to_json() == expected
    part.close()


def test_without_a_scope_none_is_looked_up(five: Trace) -> None:
    """Not even a table of one row is joined where nothing is filtered."""
    with five.only(device=1) as part:
        plans = [str(trace.sql("EXPLAIN FROM device_time()").to_pylist()) for trace in (five, part)]
    assert ["scope" in plan for plan in plans] == [False, True]


def test_views_show_everything(five: Trace) -> None:
    with five.only(device=1) as part:
        assert part.sql("SELECT count(*) AS n FROM kernels").to_pylist() == [{"n": 8}]
        assert part.sql("SELECT count(*) AS n FROM busy_segments()").to_pylist() == [{"n": 2}]
        assert part.rows([12]).keys() == {12}


def test_rules_of_the_user_hold_in_parts(tmp_path: Path) -> None:
    """Read once: the file may change, or go, while the trace is open."""
    rules = tmp_path / "my.toml"
    rules.write_text('[[rule]]\ncategory = "moe"\npattern = "nvjet"\n')
    with tracekit.open(write_trace(tmp_path / "trace.parquet", FIVE), rules=[rules]) as trace:
        rules.unlink()
        for _ in range(2):  # before and after the whole trace has classified its kernels
            with trace.only(device=1) as part:
                assert part.analyze("attribution").table["category"].to_pylist() == ["moe"]
            trace.analyze("attribution")


def test_parts_of_parts(five: Trace) -> None:
    with five.only(phase="decode") as part:
        with part.only(steps=(2, None), since_ns=320) as smaller:
            assert times(smaller) == {(0, 0): (20, 20, 0)}
            assert smaller.scope == scope_of(phase="decode", steps=(2, None), since_ns=320)
            assert smaller.whole is five
            assert repr(smaller).endswith("19 events, ranks [0], only phase decode, steps 2:, from 320ns>")
        with pytest.raises(
            UsageError, match=r"^phases were chosen already \(phase decode\); choose anew from the whole"
        ):
            part.only(phase="prefill")
