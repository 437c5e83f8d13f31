"""What a comparison says: exact sums, no alarm where nothing changed, and of a planted change that and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit
from tests.compare_recordings import DECODE, GEMM, LAUNCH, noise, recording, steps
from tests.event_rows import write_trace
from tests.pairs import FULL_GRAPH, LAUNCH_BOUND, fusion
from tests.served_steps import Rows, served
from tests.simulator import Plant, Run, simulate
from tracekit.analyses._idle_summary import Losses
from tracekit.compare import Comparison, GroupChange, Recording, StepTimes, Thresholds, compare, compared, measure
from tracekit.compare_measure import PartName
from tracekit.errors import UsageError

US = 1_000
SAMPLE = Path(__file__).parent.parent / "sample_traces" / "h100_decode_graph.json.gz"
QUICK = Thresholds(resamples=50)


def pair(base: Recording, candidate: Recording) -> GroupChange:
    """Of recordings with one kind of steps."""
    (group,) = compared([base], [candidate], QUICK).groups
    return group


def constant(**parts: int) -> Recording:
    """Ten steps, each alike."""
    return recording(steps({("busy", name): [ns] * 10 for name, ns in parts.items()}))


def named(group: GroupChange) -> list[PartName]:
    """What explains it, the most first."""
    return [(part.kind, part.name) for part in group.parts if part.significant]


# ---- nothing changed -------------------------------------------------------------------------------------------------


def test_empty_traces(tmp_path: Path) -> None:
    with tracekit.open(write_trace(tmp_path / "empty.parquet", [])) as trace:
        found = compare([trace], [trace])
    assert (found.basis, found.groups, found.conditions) == ("nothing", (), ())
    assert found.warnings == ("empty.parquet: nothing was recorded",)
    assert found.table().num_rows == len(found.df()) == 0
    assert repr(found) == "<Comparison: nothing to compare>"


def test_a_side_without_recordings_is_refused() -> None:
    with pytest.raises(UsageError, match="no recording of candidate"):
        compared([recording()], [])


def test_a_trace_is_no_different_from_itself() -> None:
    with tracekit.open(SAMPLE) as trace:
        found = compare([trace], [trace])
        assert trace.sql("SELECT count(*) AS n FROM steps").num_rows == 1  # it stays open
    assert found.groups and found.conditions == ()
    for group in found.groups:
        assert (group.change_ns, group.changed, group.p_value) == (0, False, 1.0)
        assert {one.change_ns for one in group.parts} == {one.change_ns for one in group.kernels} == {0}
        assert {one.change_ns for one in group.quantiles} == {0}
        assert group.verdict == "no difference shown"


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_steps_that_are_all_alike() -> None:
    """Nothing else than exactly this can be said of them."""
    group = pair(constant(gemm=900, norm=100), constant(gemm=900, norm=150))
    same = {"runs": 1, "steps": 10}
    assert group.base == StepTimes(**same, mean_ns=1_000, p50_ns=1_000, p90_ns=1_000, p99_ns=1_000)
    assert group.candidate == StepTimes(**same, mean_ns=1_050, p50_ns=1_050, p90_ns=1_050, p99_ns=1_050)
    assert (group.change_ns, group.low_ns, group.high_ns, group.p_value) == (50, 50, 50, 0.0)
    assert (group.verdict, named(group)) == ("slower", [("busy", "norm")])
    assert [(one.quantile, one.change_ns, one.low_ns, one.high_ns) for one in group.quantiles] == [
        ("p50", 50, 50, 50), ("p90", 50, 50, 50), ("p99", 50, None, None),
    ]  # fmt: skip


def test_a_step_on_several_devices_counts_as_their_mean() -> None:
    base = recording(steps({GEMM: [10, 10, 31], LAUNCH: [0, 1, 0]}, devices=[1, 1, 3]))
    group = pair(base, base)
    assert (group.base.mean_ns, group.base.p50_ns, group.base.p99_ns) == (10, 10, 11)  # (10 + 11 + 31 / 3) / 3
    assert {part.name: part.base_ns for part in group.parts} == {"gemm": 10, "launch_bound": 0}


PARTS = st.sampled_from([("busy", "gemm"), ("busy", "norm"), ("idle", "sync"), ("idle", "python"), ("idle", "gc")])
STEPS = st.integers(1, 9).flatmap(
    lambda count: st.tuples(
        st.dictionaries(PARTS, st.lists(st.integers(0, 10**7), min_size=count, max_size=count), min_size=1),
        st.lists(st.integers(1, 4), min_size=count, max_size=count),
    )
)
SIDES = st.lists(STEPS, min_size=1, max_size=3)


@given(SIDES, SIDES)
@settings(max_examples=60, deadline=None)
def test_parts_add_up_to_the_change_exactly(
    base: list[tuple[dict[PartName, list[int]], list[int]]],
    candidate: list[tuple[dict[PartName, list[int]], list[int]]],
) -> None:
    sides = [[recording(steps(parts, devices=devices)) for parts, devices in side] for side in (base, candidate)]
    (group,) = compared(sides[0], sides[1], QUICK).groups
    assert sum(part.change_ns for part in group.parts) == group.change_ns
    assert sum(part.base_ns for part in group.parts) == group.base.mean_ns
    assert sum(part.candidate_ns for part in group.parts) == group.candidate.mean_ns
    for part in group.parts:
        assert part.candidate_ns - part.base_ns == part.change_ns
        for side, told in ((base, part.base_ns), (candidate, part.candidate_ns)):
            values = [
                (parts.get((part.kind, part.name)) or [0] * len(devices))[at] / devices[at]
                for parts, devices in side
                for at in range(len(devices))
            ]
            assert abs(told - sum(values) / len(values)) < 1.001
    assert json.loads(json.dumps(group.base.steps)) == sum(len(devices) for _, devices in base)


def test_groups_are_of_what_both_sides_have_and_in_the_order_of_steps() -> None:
    kinds = [("prefill", "1"), ("decode", "5-8"), ("verify", "1"), ("unknown", "unknown")]
    base = recording(*(steps({GEMM: [5] * 6}, key=key) for key in kinds))
    candidate = recording(*(steps({GEMM: [5] * 6}, key=key) for key in kinds[1:]))
    found = compared([base], [candidate], QUICK)
    assert [(one.phase, one.bucket) for one in found.groups] == kinds[1:]
    assert found.table().column("phase").to_pylist() == ["decode", "verify", "unknown"]


# ---- verdicts --------------------------------------------------------------------------------------------------------


def test_too_few_steps_have_figures_and_no_verdict() -> None:
    few = recording(steps({GEMM: [100] * 4}))
    group = pair(few, constant(gemm=200))
    assert (group.verdict, group.change_ns, group.p_value, group.low_ns) == ("cannot tell", 100, None, None)
    assert group.reason == "4 steps in base; it takes 5 to tell a change from chance"
    assert not named(group) and all(part.low_ns is None for part in group.parts)


def test_a_trifle_is_no_change_however_sure_it_is() -> None:
    assert pair(constant(gemm=10_000), constant(gemm=10_099)).verdict == "no difference shown"
    assert pair(constant(gemm=10_000), constant(gemm=10_100)).verdict == "slower"
    assert pair(constant(gemm=10_000), constant(gemm=9_000)).verdict == "faster"


def test_a_part_that_makes_up_little_of_the_change_explains_nothing() -> None:
    group = pair(constant(gemm=1_000, norm=1_000, rope=1_000), constant(gemm=2_000, norm=1_040, rope=1_060))
    assert named(group) == [("busy", "gemm"), ("busy", "rope")]


def test_many_kinds_of_steps_share_one_rate_of_false_alarms() -> None:
    """Of 100 kinds that did not change, some are below 5 % each for itself."""
    random = np.random.default_rng(8)

    keys = [("decode", str(batch)) for batch in range(100)]
    sides = [[steps({GEMM: (1e6 * noise(random, 20)).tolist()}, key=key) for key in keys] for _ in range(2)]
    groups = compared([recording(*sides[0])], [recording(*sides[1])], QUICK).groups
    assert not any(one.changed for one in groups)
    assert any(pair(recording(one), recording(other)).changed for one, other in zip(*sides, strict=True))


def test_sides_whose_times_mean_different_things_are_refused() -> None:
    host = recording(steps({("host", "host"): [5] * 6}), basis="host", name="cpu.parquet")
    with pytest.raises(UsageError, match=r"cpu\.parquet: steps on the host, as no device work was recorded"):
        compared([constant(gemm=1)], [host])
    assert compared([constant(gemm=1)], [recording(basis="nothing")]).groups == ()


def test_where_a_side_cannot_tell_causes_idle_time_is_compared_as_one() -> None:
    base = recording(steps({GEMM: [50] * 9, LAUNCH: [7] * 9, ("idle", "sync"): [3] * 9}))
    lossy = recording(steps({GEMM: [50] * 9, ("idle", "idle"): [30] * 9}), losses=Losses("lost", ""))
    for sides in ((base, lossy), (lossy, base)):
        assert {(part.name, abs(part.change_ns)) for part in pair(*sides).parts} == {("idle", 20), ("gemm", 0)}


def test_a_side_is_a_list_of_traces(tmp_path: Path) -> None:
    with tracekit.open(write_trace(tmp_path / "trace.parquet", [])) as trace:
        wrong: list[Any] = [trace, ["trace.parquet"], "trace.parquet"]
        for side in wrong:
            with pytest.raises(UsageError, match="a side is a list of open traces"):
                compare([trace], side)


# ---- planted changes -------------------------------------------------------------------------------------------------

RUN = replace(LAUNCH_BOUND, steps=10)
GRAPH = replace(FULL_GRAPH, steps=10)
# A run before and after a change, by what is planted.
CAUSES: Mapping[str, tuple[Run, Run]] = {
    cause: (run, replace(run, plant=plant))
    for cause, run, plant in (
        ("allocation", RUN, Plant(allocation_ns=200 * US)),
        ("scheduler", RUN, Plant(scheduler_ns=200 * US)),
        ("communication_wait", RUN, Plant(communication_wait_ns=250 * US)),
        ("graph_launch", GRAPH, Plant(graph_launch_ns=150 * US)),
    )
}
PAIRS: Mapping[str, tuple[Run, Run]] = {
    **CAUSES,
    "nothing": (RUN, RUN),
    "launches": (RUN, replace(RUN, plant=Plant(launch_bound_ns=5 * US))),
    "waits": (RUN, replace(RUN, plant=Plant(syncs_per_step=2))),
    "fusion": fusion("silu_mul", RUN),
}


@dataclass(frozen=True, slots=True)
class Planted:
    """What was found of each pair, by its name."""

    found: Comparison
    groups: Mapping[str, GroupChange]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """All pairs in two traces, for opening so many would take minutes: each run is a rank with a batch of its own, so
    that its steps are a kind of their own. No two have the same luck.
    """
    folders = [tmp_path_factory.mktemp(side) for side in ("base", "candidate")]
    for number, pair_of_runs in enumerate(PAIRS.values()):
        for side, (folder, run) in enumerate(zip(folders, pair_of_runs, strict=True)):
            own = replace(run, batch=2**number, prompt=4, seed=2 * number + side)
            simulate(own, folder / f"rank{number}.json")
    with tracekit.open(folders[0]) as base, tracekit.open(folders[1]) as candidate:
        found = compare([base], [candidate], thresholds=QUICK)
    assert len(found.groups) == len(PAIRS)
    return Planted(found, dict(zip(PAIRS, found.groups, strict=True)))


# By pair, in the order of how much each explains.
NAMED = {
    "allocation": ("slower", [("idle", "allocation")]),
    "scheduler": ("slower", [("idle", "scheduler")]),
    "communication_wait": ("slower", [("idle", "communication_wait")]),
    "graph_launch": ("slower", [("idle", "graph_launch")]),
    "nothing": ("no difference shown", []),
    # A launch that comes later is waited for longer: as much more of it as was hidden before.
    "launches": ("slower", [("idle", "launch_bound"), ("idle", "launch_latency")]),
    "waits": ("slower", [("idle", "sync"), ("idle", "launch_latency")]),
    "fusion": ("faster", [("busy", "elementwise"), ("idle", "launch_latency")]),
}


def test_what_was_planted_is_named_and_nothing_else(planted: Planted) -> None:
    """In one test, for processes that share tests would each make the pairs again."""
    assert {name: (group.verdict, named(group)) for name, group in planted.groups.items()} == NAMED
    assert planted.groups["nothing"].change_ns != 0
    assert (planted.found.basis, planted.found.conditions) == ("device", ())
    assert {(one.phase, one.base.steps, one.candidate.steps) for one in planted.found.groups} == {("decode", 9, 9)}
    for group in planted.found.groups:
        busy = sum(part.change_ns for part in group.parts if part.kind == "busy")
        assert abs(sum(one.change_ns for one in group.kernels) - busy) <= len(group.kernels)
    fused_kernel_is_named_with_those_that_it_replaces(planted.groups["fusion"])


def fused_kernel_is_named_with_those_that_it_replaces(group: GroupChange) -> None:
    (replaced,) = [one for one in group.kernels if one.match != "same"]
    assert group.kernels[0] == replaced and replaced.is_fused
    assert [len(replaced.base), *("act_and_mul" in name for name in replaced.candidate)] == [2, True]
    assert (replaced.match, replaced.base_count, replaced.candidate_count) == ("replaced", 8.0, 4.0)


# ---- noise -----------------------------------------------------------------------------------------------------------


def noisy_rows(random: np.random.Generator, kinds: int, count: int, slower: float = 1.0) -> Rows:
    """Steps of batches 1, 2, 4, ...: so many of each kind, as rows of a trace. Each has three kernels and idle time
    before them, which vary from step to step, and drift.
    """
    marks: list[tuple[str, list[tuple[int, int]]]] = []
    end = 0
    for kind in range(kinds):
        factors = [noise(random, count, size=size) for size in (0.04, 0.02, 0.02, 0.03)]
        for at in range(count):
            end += int(20_000 * factors[0][at])
            work = []
            for length, factor in zip((60_000, 30_000, 10_000), factors[1:], strict=True):
                work.append((end, int(length * factor[at] * slower)))
                end += work[-1][1]
            marks.append((f"execute_context_0(0)_generation_{2**kind}({2**kind})", work))
    return served(*marks)


def kinds_of(folder: Path, rows: Rows) -> list[Recording]:
    """Each kind of steps of a trace as if it had been recorded alone."""
    with tracekit.open(write_trace(folder / "noisy.parquet", rows)) as trace:
        whole = measure(trace)
    return [replace(whole, groups={key: group}) for key, group in whole.groups.items()]


def test_of_twenty_noisy_pairs_one_at_most_raises_an_alarm_and_a_change_does(tmp_path: Path) -> None:
    random = np.random.default_rng(2026)
    base, again = (kinds_of(tmp_path, noisy_rows(random, 20, 30)) for _ in range(2))
    slower = kinds_of(tmp_path, noisy_rows(random, 20, 30, slower=1.08))
    assert len(base) == len(again) == len(slower) == 20
    assert sum(pair(*sides).changed for sides in zip(base, again, strict=True)) <= 1
    found = [pair(*sides) for sides in zip(base, slower, strict=True)]
    assert sum(one.verdict == "slower" for one in found) >= 18
    assert {name for one in found for name in named(one)} == {("busy", "other")}


def test_a_slowdown_of_5_percent_in_40_steps_that_vary_by_2_percent_is_found() -> None:
    random = np.random.default_rng(11)

    def side(mean: float) -> Recording:
        return recording(steps({GEMM: (mean * noise(random, 40, alike=0.0)).tolist(), LAUNCH: [10**5] * 40}))

    found = [pair(side(1e6), side(1.055e6)) for _ in range(20)]  # of the step, not of this part of it
    assert [one.verdict for one in found] == ["slower"] * 20
    assert {*map(tuple, map(named, found))} == {(GEMM,)}


# ---- as values -------------------------------------------------------------------------------------------------------


def test_as_json_and_as_a_table() -> None:
    found = compared([constant(gemm=100)], [constant(gemm=150)], QUICK)
    said = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert list(said) == [
        "schema", "base", "candidate", "basis", "groups", "conditions", "warnings", "thresholds",
    ]  # fmt: skip
    (group,) = said["groups"]
    assert (said["schema"], said["thresholds"]["min_change"], group["verdict"]) == (1, 0.01, "slower")
    assert group["parts"] == [
        {"kind": "busy", "name": "gemm", "base_ns": 100, "candidate_ns": 150, "change_ns": 50}
        | {"low_ns": 50, "high_ns": 50, "significant": True}
    ]
    (row,) = found.df().to_dict("records")
    assert (row["base_mean_ns"], row["candidate_p50_ns"], row["p50_change_ns"], row["verdict"]) == (
        100,
        150,
        50,
        "slower",
    )
    assert repr(found) == "<Comparison: decode 5-8 slower>"
    assert found.warnings == (
        "one recording a side: how much one differs from the next is not known and counted as nothing; "
        "record three or more",
    )


def test_it_is_the_same_each_time() -> None:
    random = np.random.default_rng(1)
    sides = [recording(steps({GEMM: (1e6 * noise(random, 30)).tolist()}, key=DECODE)) for _ in range(2)]
    assert pair(*sides) == pair(*sides)
