"""Simulated serving runs, whose truth is known, through the whole way: file, event table, analyses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

import tracekit
from tests.simulator import simulate
from tests.simulator_model import Plant, Run
from tests.simulator_truth import Truth
from tracekit.trace import Trace

EVERYTHING = Plant(
    launch_bound_ns=30_000, syncs_per_step=1, between_steps_ns=400_000, holes_per_step=1, hole_ns=150_000
)
RUNS = {
    "plain": Run(),
    "everything": Run(plant=EVERYTHING, with_stack=True, record_shapes=True, secrets=True),
    "full graph": Run(mode="full_graph", plant=EVERYTHING, pdl_overlap_ns=700),
    "piecewise graph": Run(mode="piecewise_graph", plant=EVERYTHING, with_stack=True),
    "three streams": Run(streams=3, plant=EVERYTHING),
    "mixed steps": Run(steps=5, prefill_steps=2, plant=replace(EVERYTHING, holes_per_step=0)),
    "ranks": Run(ranks=4, streams=2, straggler_percent=20),
    "absolute times": Run(time_unit="absolute", plant=EVERYTHING),
    "memory, minified": Run(profile_memory=True, layout="minified", plant=EVERYTHING),
}


@dataclass(frozen=True, slots=True)
class Simulated:
    """A trace, what is true of it, and the Parquet file's bytes."""

    trace: Trace
    truth: Truth
    content: bytes


@pytest.fixture(scope="module", params=list(RUNS.values()), ids=list(RUNS))
def simulated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulated]:
    run: Run = request.param
    folder = tmp_path_factory.mktemp("simulated")
    path = folder / ("ranks" if run.ranks > 1 else "trace.json")
    truth = simulate(run, path)
    with tracekit.open(path) as trace:
        yield Simulated(trace, truth, trace.path.read_bytes())


def test_every_event_is_accounted_for(simulated: Simulated) -> None:
    ledger = simulated.trace.footer.ledger
    kinds = {"X kernel": "kernel", "X cpu_op": "op", "X python_function": "python", "X user_annotation": "annotation"}
    for recorded, kind in kinds.items():
        assert ledger.by_kind.get(kind, 0) == sum(events.get(recorded, 0) for events in simulated.truth.events), kind
    assert ledger.read == ledger.stored + sum(ledger.skipped.values())
    assert ledger.repaired.keys() <= {"process or thread given as text"} | (
        {"text with the shape of a credential, blanked (distinct values)"} if simulated.truth.secrets else set()
    )


def test_device_work_is_linked_to_its_launch(simulated: Simulated) -> None:
    counts = simulated.trace.sql("""
        SELECT
            count(DISTINCT d.launch_id) AS launches,
            count(d.launch_id) AS links,
            count(DISTINCT d.launch_id) FILTER (l.name = 'cudaGraphLaunch') AS graph_launches,
            count(*) FILTER (l.name = 'cudaGraphLaunch') AS graph_rows,
        FROM device_activity AS d JOIN launches AS l ON l.id = d.launch_id
    """).to_pylist()
    truth = simulated.truth
    assert counts == [
        {
            "launches": truth.launches,
            "links": truth.links,
            "graph_launches": truth.graph_launches,
            "graph_rows": truth.graph_rows,
        }
    ]


def test_time_is_right_to_the_nanosecond_and_categories_sum_to_busy(simulated: Simulated) -> None:
    result = simulated.trace.analyze("attribution")
    measured = {
        (row["rank"], row["device"]): (row["span_ns"], row["busy_ns"], row["idle_ns"]) for row in result.summary
    }
    devices = simulated.truth.devices
    assert measured == {(true.rank, true.device): (true.span_ns, true.busy_ns, true.idle_ns) for true in devices}
    found: dict[tuple[int, int], dict[str, int]] = {(true.rank, true.device): {} for true in devices}
    for row in result.table.to_pylist():
        categories = found[row["rank"], row["device"]]
        categories[row["category"]] = categories.get(row["category"], 0) + row["exclusive_ns"]
    assert found == {(true.rank, true.device): true.exclusive_ns for true in devices}


def test_gaps_are_the_holes_of_each_device(simulated: Simulated) -> None:
    gaps = simulated.trace.analyze("idle_gaps").table.select(["rank", "device", "ts", "dur"]).to_pylist()
    shift = simulated.trace.footer.origin_ns - simulated.truth.base_ns
    expected = [
        (gap.rank, gap.device, gap.ts - shift, gap.dur) for true in simulated.truth.devices for gap in true.gaps
    ]
    assert [tuple(gap.values()) for gap in gaps] == sorted(expected)


def test_steps_are_those_that_were_served(simulated: Simulated) -> None:
    steps = simulated.trace.sql("""
        SELECT rank, step, dur, phase, prefill_requests, prefill_tokens, decode_requests, decode_tokens
        FROM steps ORDER BY rank, step
    """)
    assert [tuple(row.values()) for row in steps.to_pylist()] == [
        (
            step.rank,
            step.index,
            step.dur,
            step.phase,
            step.prefill_requests,
            step.prefill_tokens,
            step.decode_requests,
            step.decode_tokens,
        )
        for step in simulated.truth.steps
    ]


def test_secrets_in_the_recording_are_not_in_the_file(simulated: Simulated) -> None:
    text = "\n".join(map(str, simulated.trace.sql("FROM events").to_pylist())) + str(simulated.trace.footer)
    assert [
        secret for secret in simulated.truth.secrets if secret in text or secret.encode() in simulated.content
    ] == []
