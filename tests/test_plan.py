"""The plan: remedies in the order in which they add most, and never more than there is to win."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.event_rows import kernel, launch, write_trace
from tests.graph_rows import US, Rows, item, put, steps
from tests.pairs import FULL_GRAPH, GPU_BOUND, LAUNCH_BOUND, record, unfused
from tests.simulator import Plant, Run, simulate
from tracekit.analysis import Result
from tracekit.report_text import render

Row = dict[str, Any]


def analyze(path: Path, rows: Rows, **parameters: Any) -> Result:
    with tracekit.open(write_trace(path / "trace.parquet", rows)) as trace:
        return trace.analyze("plan", **parameters)


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    result = analyze(tmp_path, [])
    assert (result.table.num_rows, list(result.summary), list(result.findings)) == (0, [], [])
    assert result.coverage.reason.startswith("nothing was recorded")


def test_whole_plan(tmp_path: Path) -> None:
    """Twelve launches a step with a readback amid them: two graphs first, then one instead, without the readback."""
    result = analyze(tmp_path, steps(item))
    columns = ("place", "remedy", "kind", "source", "saving_low_ns", "saving_high_ns", "after_low_ns", "after_high_ns")
    first, second = (tuple(row[name] for name in columns) for row in result.table.to_pylist())
    assert first[:4] == (1, "2 CUDA graphs of 13 kernels", "graph", "cuda_graphs")
    assert second[:4] == (2, "one CUDA graph of 13 kernels, with no readback inside", "graph", "cuda_graphs")
    step = 2_000 * US
    assert first[6:] == (step - first[5], step - first[4])
    assert second[6:] == (step - first[5] - second[5], step - first[4] - second[4])
    (finding,) = result.findings
    assert (finding.severity, finding.saving_low_ns, finding.saving_high_ns) == ("info", 0, 0)  # others promise it
    assert finding.title.endswith("first by: 2 CUDA graphs of 13 kernels")


def test_a_replay_that_is_off_is_said_and_not_used(tmp_path: Path) -> None:
    rows: Rows = []
    for turn in range(12):
        late = 700 * US if turn == 11 else 0
        put(rows, launch(turn * 50 * US, 4 * US), kernel(turn * 50 * US + 6 * US + late, 5 * US))
    (row,) = analyze(tmp_path, rows).table.to_pylist()
    assert (row["place"], row["remedy"], row["launches_free_ns"]) == (None, None, None)
    assert row["reason"].endswith("off, more than 5%")


@pytest.mark.parametrize(
    "run",
    [
        replace(LAUNCH_BOUND, plant=Plant(launch_bound_ns=10_000, syncs_per_step=2)),
        unfused(FULL_GRAPH, ["add_rms_norm", "silu_mul"]),
        unfused(GPU_BOUND, ["rms_norm"]),
        Run(steps=5, ranks=2, streams=2, plant=Plant(pageable_copies_per_step=2, allocation_ns=30_000)),
        Run(mode="piecewise_graph", steps=5, marks="none"),
    ],
    ids=["sync", "graph", "gpu", "ranks", "pieces"],
)
def test_no_plan_wins_more_than_there_is(run: Run, tmp_path: Path) -> None:
    simulate(run, tmp_path / "ranks" if run.ranks > 1 else tmp_path / "run.json")
    with tracekit.open(next(tmp_path.iterdir())) as trace:
        result = trace.analyze("plan")
        lines = [line.plain for line in render(trace, {"plan": result}, named=True)]
    assert max(map(len, lines)) <= 100
    by_group: dict[tuple[Any, ...], list[Row]] = {}
    for row in result.table.to_pylist():
        by_group.setdefault((row["rank"], row["device"], row["phase"], row["bucket"]), []).append(row)
    assert by_group
    for rows in by_group.values():
        told = [row for row in rows if row["place"] is not None]
        assert [row["place"] for row in told] == list(range(1, len(told) + 1))
        low = high = 0
        for row in told:
            assert 0 <= row["saving_low_ns"] <= row["saving_high_ns"]
            low, high = low + row["saving_low_ns"], high + row["saving_high_ns"]
            assert (row["after_low_ns"], row["after_high_ns"]) == (row["step_ns"] - high, row["step_ns"] - low)
        assert high <= rows[0]["step_ns"]
        if told and told[0]["kind"] == "graph":
            assert told[0]["after_low_ns"] >= rows[0]["launches_free_ns"]  # "no change of launches gets below"
        middles = [row["saving_low_ns"] + row["saving_high_ns"] for row in told if row["kind"] != "overlap"]
        assert all(one >= 2 * 0.01 * rows[0]["step_ns"] for one in middles)


def test_what_graphs_won_fusion_does_not_win_again(tmp_path: Path) -> None:
    """Alone, eight fused kernels save their host time; after the graph only their time on the device."""
    record(unfused(replace(LAUNCH_BOUND, plant=Plant(launch_bound_ns=10_000)), ["rms_norm"]), tmp_path, "run")
    with tracekit.open(tmp_path / "run.parquet") as trace:
        rows = [row for row in trace.analyze("plan").table.to_pylist() if row["phase"] == "decode"]
        from tracekit.whatif import Fusion, whatif

        (alone,) = [
            one.changes[0].saving_high_ns
            for one in whatif(trace, [Fusion("rms_norm_eager")]).outcomes
            if one.phase == "decode"
        ]
    kinds = [row["kind"] for row in rows]
    assert kinds.index("graph") < kinds.index("fusion")
    after_graph = rows[kinds.index("fusion")]["saving_high_ns"]
    assert after_graph < 0.3 * alone
