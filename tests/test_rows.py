"""Rows of a trace in a notebook: fetched when asked for, and those of the part that is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tracekit
from tests.event_rows import annotation, kernel, launch, op, write_trace
from tracekit.errors import UsageError
from tracekit.rows import Rows
from tracekit.trace import Trace

DECODE, PREFILL = "step[DECODE bs=4]", "step[EXTEND bs=1 toks=8]"


def row(step: int, mark: str, rank: int = 0, device: int = 0) -> list[dict[str, Any]]:
    """A step of 100 ns with an op, a launch and a kernel; rows are numbered by step and rank."""
    ts, first = 1_000 * step, 100 * rank + 10 * step
    rows = [annotation(mark, ts, 100), op(ts + 10, 20), launch(ts + 11, 5), kernel(ts + 20, 50, launch_id=first + 3)]
    rows[3]["device"] = device
    return [{**one, "id": first + at, "rank": rank} for at, one in enumerate(rows, start=1)]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    rows = row(0, PREFILL) + row(1, DECODE) + row(2, DECODE) + row(0, PREFILL, 1, 1) + row(1, DECODE, 1, 1)
    path = write_trace(tmp_path_factory.mktemp("rows") / "trace.parquet", sorted(rows, key=lambda one: one["id"]))
    with tracekit.open(path) as opened:
        yield opened


def test_nothing(tmp_path: Path) -> None:
    with tracekit.open(write_trace(tmp_path / "trace.parquet", [])) as empty:
        assert len(empty.kernels) == 0
        assert not empty.steps
        assert empty.kernels.df().empty
        assert empty.kernels._repr_html_() == "<div><div><b>kernels</b>: 0 rows</div></div>"


def test_rows_and_columns(trace: Trace) -> None:
    kernels = trace.kernels
    assert repr(kernels) == f"<Rows kernels: 5 rows of {len(kernels.columns)} columns>"
    assert kernels.arrow("id", "dur").to_pydict() == {"id": [4, 14, 24, 104, 114], "dur": [50] * 5}
    assert list(kernels.df("step")["step"]) == [0, 1, 2, 0, 1]
    assert kernels.head(2)["id"].to_pylist() == [4, 14]
    assert tuple(kernels.df().columns) == kernels.columns == tuple(trace.sql("FROM kernels LIMIT 0").column_names)


def test_a_column_that_does_not_exist(trace: Trace) -> None:
    with pytest.raises(UsageError, match=r'kernels have no column \'x", 1\'; there are: id, kind, name, '):
        trace.kernels.arrow('x", 1')


def test_nothing_is_fetched_before_it_is_asked_for() -> None:
    """Millions of rows are counted, and shown in part; all of them come once."""
    asked: list[str] = []
    million = pa.table({"id": range(20), "name": ["<k>"] * 20})

    def ask(query: str, _: Mapping[str, Any] | None = None) -> pa.Table:
        asked.append(query)
        if "count(*)" in query:
            return pa.table({"rows": [1_000_000]})
        return million.slice(0, 0 if "LIMIT 0" in query else 10 if "$head" in query else 20)

    rows = Rows(ask, "kernels", "SELECT * FROM kernels", order="id")
    assert asked == []
    assert "10 of 1,000,000 rows" in rows._repr_html_()
    assert repr(rows) == "<Rows kernels: 1,000,000 rows of 2 columns>"
    assert not [query for query in asked if "LIMIT" not in query and "count" not in query]
    assert rows.arrow() is rows.arrow()
    assert rows.df("id").columns.tolist() == ["id"]
    assert sum(query == "SELECT * FROM (SELECT * FROM kernels) ORDER BY id" for query in asked) == 1


@pytest.mark.parametrize(
    ("chosen", "kernels", "ops", "steps"),
    [
        ({}, [4, 14, 24, 104, 114], [2, 12, 22, 102, 112], [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]),
        ({"phase": "decode"}, [14, 24, 114], [12, 22, 112], [(0, 1), (0, 2), (1, 1)]),
        ({"rank": 1}, [104, 114], [102, 112], [(1, 0), (1, 1)]),
        ({"steps": 2}, [24], [22], [(0, 2)]),
        # Rows of the host are of no device: all of them are there.
        ({"device": 1}, [104, 114], [2, 12, 22, 102, 112], [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]),
        ({"since_ns": 1_000, "until_ns": 2_000}, [14, 114], [12, 112], [(0, 1), (1, 1)]),
        ({"rank": 0, "device": 0, "phase": "decode", "until_ns": 1_500}, [14], [12], [(0, 1)]),
    ],
)
def test_of_a_part_there_are_its_rows(
    trace: Trace, chosen: dict[str, Any], kernels: list[int], ops: list[int], steps: list[tuple[int, int]]
) -> None:
    with trace.only(**chosen) as part:
        assert part.kernels.arrow("id")["id"].to_pylist() == kernels
        assert part.device_activity.arrow("id")["id"].to_pylist() == kernels
        assert part.ops.arrow("id")["id"].to_pylist() == ops
        found = part.events.arrow("id", "kind").to_pylist()
        assert [one["id"] for one in found if one["kind"] == "op"] == ops
        assert [(one["rank"], one["step"]) for one in part.steps.arrow().to_pylist()] == steps
        assert part.sql("SELECT count(*) AS n FROM kernels").to_pylist() == [{"n": 5}]  # tables are all of the trace


def test_devices_and_ranks_of_a_part(trace: Trace) -> None:
    with trace.only(rank=1) as part:
        assert part.ranks.arrow("rank")["rank"].to_pylist() == [1]
        assert part.devices.arrow("rank", "device").to_pylist() == [{"rank": 1, "device": 1}]
