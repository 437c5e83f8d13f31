"""idle_gaps against simulated runs that know the cause of every nanosecond: each cause alone, then all of them at once.

The runs share one trace, each the file of a rank of its own: opening dozens of traces would take minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import cycle, product
from pathlib import Path
from typing import Any, get_args

import pytest

import tracekit
from tests.simulator import LLAMA_8B, Plant, Run, Truth, simulate
from tests.simulator_model import Marks, Mode
from tracekit.analysis import Result

US, MS = 1_000, 1_000_000
ALONE = {
    "nothing": Plant(),
    "launch_bound": Plant(launch_bound_ns=40 * US),
    "graph_launch": Plant(graph_launch_ns=150 * US),
    "sync": Plant(syncs_per_step=2, sync_refill_ns=80 * US),
    "pageable_copy": Plant(pageable_copies_per_step=2),
    "allocation": Plant(allocation_ns=120 * US),
    "input_preparation": Plant(input_preparation_ns=200 * US),
    "scheduler": Plant(scheduler_ns=200 * US),
    "scheduler unseen": Plant(between_steps_ns=300 * US),
    "python": Plant(python_ns=700 * US),
    "python in a small gap": Plant(python_ns=60 * US),
    "gc": Plant(gc_ns=300 * US),
    "lazy_load_or_jit": Plant(lazy_load_ns=90 * US),
    "stream_dependency": Plant(dependencies_per_step=2),
    "communication_wait": Plant(communication_wait_ns=250 * US),
    "no_requests": Plant(no_requests_ns=25 * MS),
    "requests soon": Plant(no_requests_ns=5 * MS),
    "profiler": Plant(profiler_ns=180 * US),
    "unattributed": Plant(holes_per_step=2, hole_ns=150 * US),
    "small holes": Plant(holes_per_step=2, hole_ns=50 * US),
    "unattributed launch": Plant(lost_calls_per_step=2),
}
CROWD = Plant(
    launch_bound_ns=5 * US,
    syncs_per_step=1,
    between_steps_ns=50 * US,
    holes_per_step=1,
    hole_ns=120 * US,
    graph_launch_ns=30 * US,
    pageable_copies_per_step=2,
    allocation_ns=70 * US,
    input_preparation_ns=90 * US,
    scheduler_ns=40 * US,
    python_ns=600 * US,
    gc_ns=80 * US,
    lazy_load_ns=90 * US,
    dependencies_per_step=2,
    communication_wait_ns=90 * US,
    no_requests_ns=21 * MS,
    profiler_ns=70 * US,
    slow_first_launch_ns=100 * US,
)
LATE = Plant(between_steps_ns=200 * US, scheduler_ns=100 * US, input_preparation_ns=80 * US)
DEEP = replace(LLAMA_8B, layers=2)  # slower than its host
MODES: tuple[Mode, ...] = get_args(Mode)
MARKS: tuple[Marks, ...] = get_args(Marks)


def _runs() -> Iterator[tuple[str, Run]]:
    settings = cycle(product(MODES, (False, True), (1, 3)))
    for stacks in (False, True):
        for name, plant in ALONE.items():
            mode, asynchronous, streams = next(settings)
            run = Run(mode=mode, plant=plant, streams=streams, asynchronous=asynchronous, with_stack=stacks)
            yield f"{name}{', stacks' if stacks else ''}", run
    for mode, streams, asynchronous, stacks in product(MODES, (1, 3), (False, True), (False, True)):
        run = Run(mode=mode, plant=CROWD, streams=streams, asynchronous=asynchronous, with_stack=stacks)
        name = f"all, {mode}, {streams}{', asynchronous' if asynchronous else ''}{', stacks' if stacks else ''}"
        yield name, replace(run, steps=2, orphans=5, record_syncs=not asynchronous)
    for marks in MARKS:
        yield f"marks of {marks}", Run(marks=marks, steps=5, plant=CROWD, mode="full_graph")
        yield f"marks of {marks}, stacks", Run(marks=marks, steps=4, plant=CROWD, with_stack=True)
    for mode, asynchronous in product(MODES, (False, True)):
        name = f"busy device, {mode}{', asynchronous' if asynchronous else ''}"
        yield name, Run(mode=mode, model=DEEP, batch=16, steps=4, plant=LATE, asynchronous=asynchronous)
    yield "launches queue up", Run(model=DEEP, batch=16, steps=4, final_sync=False)
    yield "mixed steps", Run(prefill_steps=2, steps=5, marks="sglang", plant=LATE)
    yield "device clock early", Run(clock_skew_ns=15 * US, plant=CROWD, streams=3)
    yield "device clock early, stacks", Run(clock_skew_ns=300 * US, plant=CROWD, with_stack=True, orphans=5)


RUNS = dict(_runs())


@dataclass(frozen=True, slots=True)
class Simulated:
    """What is true of each run by its rank, and what was found, with times as the simulator tells them."""

    truths: Mapping[int, Truth]
    rows: Mapping[int, list[tuple[Any, ...]]]
    result: Result


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    folder = tmp_path_factory.mktemp("runs")
    truths = {rank: simulate(run, folder / f"rank{rank}.json") for rank, run in enumerate(RUNS.values())}
    rows: dict[int, list[tuple[Any, ...]]] = {rank: [] for rank in truths}
    with tracekit.open(folder) as trace:
        result = trace.analyze("idle_gaps", finding_share=1.0)  # no findings: they take longer than the causes
        for row in result.table.to_pylist():
            ts = row["ts"] + trace.footer.origin_ns - truths[row["rank"]].base_ns
            rows[row["rank"]].append((row["device"], ts, row["dur"], row["cause"], row["place"], row["step"]))
    return Simulated(truths, rows, result)


@pytest.mark.parametrize("rank", range(len(RUNS)), ids=list(RUNS))
def test_every_nanosecond_has_its_cause(simulated: Simulated, rank: int) -> None:
    [device] = simulated.truths[rank].devices
    assert simulated.rows[rank] == [
        (gap.device, gap.ts, gap.dur, gap.cause, gap.place, gap.step) for gap in device.gaps
    ]
    [summary] = [row for row in simulated.result.summary if row["rank"] == rank]
    assert (summary["span_ns"], summary["busy_ns"], summary["idle_ns"]) == (
        device.span_ns,
        device.busy_ns,
        device.idle_ns,
    )
    assert summary["by_cause"] == device.idle_by_cause


def test_all_causes_are_among_them(simulated: Simulated) -> None:
    """And each takes a share that a mistake would show in."""
    causes = Counter[str]()
    for truth in simulated.truths.values():
        causes.update(truth.devices[0].idle_by_cause)
    assert set(causes) == {
        "allocation", "communication_wait", "gc", "graph_launch", "input_preparation", "launch_bound", "launch_latency",
        "lazy_load_or_jit", "no_requests", "pageable_copy", "profiler", "python", "scheduler", "stream_dependency",
        "sync", "unattributed",
    }  # fmt: skip
    assert min(causes.values()) > MS
    assert {place for rows in simulated.rows.values() for *_, place, _ in rows} == {
        "inside", "between", "outside", "prefix",
    }  # fmt: skip


def test_ranks_of_one_job(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Collectives end together: their waits are busy time, and what follows them idles on each rank for itself."""
    folder = tmp_path_factory.mktemp("job") / "ranks"
    truth = simulate(Run(ranks=3, streams=2, straggler_percent=30, plant=CROWD, with_stack=True), folder)
    with tracekit.open(folder) as trace:
        shift = trace.footer.origin_ns - truth.base_ns
        found = trace.analyze("idle_gaps").table.select(["rank", "device", "ts", "dur", "cause", "place", "step"])
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (gap.rank, gap.device, gap.ts - shift, gap.dur, gap.cause, gap.place, gap.step)
        for device in truth.devices
        for gap in device.gaps
    ]


@pytest.mark.parametrize(
    ("run", "missing"),
    [
        (Run(mode="piecewise_graph", steps=8), 0),
        (Run(mode="piecewise_graph", steps=8, lost_replays_percent=30), 6),
        (Run(mode="piecewise_graph", steps=8, partial_replays_percent=30), 6),
    ],
)
def test_work_that_was_not_recorded_is_not_taken_for_idle(run: Run, missing: int, tmp_path: Path) -> None:
    truth = simulate(run, tmp_path / "trace.json")
    assert truth.lost_replays + truth.partial_replays == missing
    with tracekit.open(tmp_path / "trace.json") as trace:
        result = trace.analyze("idle_gaps")
    refused = f"{missing} of {truth.lost_replays + truth.graph_launches} graph replays" in result.coverage.reason
    assert (refused, bool(result.findings)) == ((True, False) if missing else (False, True))
