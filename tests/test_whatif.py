"""What if: the engine by hand, against what is true."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import tracekit
from tests.event_rows import write_trace
from tests.graph_rows import US, item, steps
from tests.pairs import FULL_GRAPH, GPU_BOUND, LAUNCH_BOUND, pair, record, unfused
from tests.simulator import Plant
from tracekit.changes import FreeLaunches, OverlapCommunication, RemoveSync, Scale
from tracekit.errors import TracekitError, UsageError
from tracekit.whatif import Fusion, Graphs, Outcome, whatif


def decode(found: tuple[Outcome, ...]) -> Outcome:
    (one,) = (one for one in found if one.phase == "decode")
    return one


def test_nothing_to_replay(tmp_path: Path) -> None:
    with tracekit.open(write_trace(tmp_path / "trace.parquet", [])) as trace, pytest.raises(TracekitError) as raised:
        whatif(trace, [FreeLaunches()])
    assert str(raised.value) == "there is no device activity to replay"


def test_whole_outcome(tmp_path: Path) -> None:
    """Kernels of 5 us, one every 50 us: twice as long they still end long before the next launch."""
    with tracekit.open(write_trace(tmp_path / "trace.parquet", steps())) as trace:
        (slower,) = whatif(trace, [Scale(re.compile("nvjet"), 2.0)]).outcomes
        found = whatif(trace, [FreeLaunches(), Graphs("decode")])
    assert (slower.before_ns, slower.after_low_ns, slower.after_high_ns) == (2_000 * US, 2_000 * US, 2_000 * US)
    assert (slower.changes[0].change, slower.changes[0].matched) == ("kernels 'nvjet' x 2", 6)
    (one,) = found.outcomes
    # Without calls and the host time before them (11 x 50 us, a call, and the 1,450 us before the next step's first),
    # what is left is twelve kernels of 5 us with a pause of 1 us at worst.
    assert one.before_ns - one.after_low_ns >= 1_900 * US
    assert one.after_low_ns >= 60 * US
    assert [share.saving_low_ns <= share.saving_high_ns for share in one.changes] == [True, True]
    assert found.table().num_rows == 2
    assert found.df()["change"].tolist() == ["launches for free", "CUDA graph of the forward pass (decode 3-4)"]


def test_a_step_may_become_longer(tmp_path: Path) -> None:
    """Kernels of 155 us that the host launches far ahead: half of them three times as long."""
    with tracekit.open(
        write_trace(tmp_path / "trace.parquet", steps(every_ns=10 * US, dur=155 * US, waits=True))
    ) as trace:
        (one,) = whatif(trace, [Scale(re.compile("nvjet"), 3.0)]).outcomes
    assert (one.after_low_ns - one.before_ns) == (one.after_high_ns - one.before_ns) == 6 * 2 * 155 * US
    assert (one.changes[0].saving_low_ns, one.changes[0].saving_high_ns) == (-12 * 155 * US, -12 * 155 * US)


def test_what_one_change_wins_another_takes_back(tmp_path: Path) -> None:
    gemms = re.compile("nvjet")
    with tracekit.open(
        write_trace(tmp_path / "trace.parquet", steps(every_ns=10 * US, dur=155 * US, waits=True))
    ) as trace:
        (one,) = whatif(trace, [Scale(gemms, 3.0), Scale(gemms, 1 / 3)], max_error=0.2).outcomes
    assert one.after_low_ns == one.after_high_ns == one.before_ns
    assert [share.saving_high_ns for share in one.changes] == [-12 * 155 * US, 12 * 155 * US]


def test_waits_that_are_removed(tmp_path: Path) -> None:
    """Two readbacks a step, each with 60 us of host work after it: by waiting alone, without that work."""
    plant = Plant(launch_bound_ns=10_000, syncs_per_step=2, sync_refill_ns=0)
    before = replace(LAUNCH_BOUND, plant=plant)
    found = pair(before, replace(before, plant=replace(plant, syncs_per_step=0)), tmp_path)
    with tracekit.open(found.before) as trace:
        one = decode(whatif(trace, [RemoveSync(re.compile("_local_scalar_dense"))]).outcomes)
    saved = (one.before_ns - one.after_high_ns, one.before_ns - one.after_low_ns)
    assert one.changes[0].matched == 2
    # Each wait ends 2.8 us after the copy, which began 2.5 us after its call and took 1 us.
    assert saved == pytest.approx((2 * 6_300, 2 * 6_300), abs=100)
    # In truth the op around the call and its copy go, too.
    assert saved[1] < found.true_saving_ns


def test_kernels_of_another_length(tmp_path: Path) -> None:
    """Where the device is the slower, GEMMs twice as fast save half of their time."""
    record(replace(GPU_BOUND, batch=256), tmp_path, "run")
    with tracekit.open(tmp_path / "run.parquet") as trace:
        one = decode(whatif(trace, [Scale(re.compile("nvjet"), 0.5)]).outcomes)
        (gemms,) = trace.sql(
            "SELECT sum(k.dur) / count(DISTINCT step) AS ns FROM kernels AS k JOIN steps USING (rank, step) "
            "WHERE phase = 'decode' AND contains(k.name, 'nvjet')"
        ).to_pylist()
    assert one.before_ns - one.after_low_ns == pytest.approx(gemms["ns"] / 2, rel=0.05)


def test_communication_hides_at_best(tmp_path: Path) -> None:
    record(replace(FULL_GRAPH, ranks=2), tmp_path, "run")
    with tracekit.open(tmp_path / "run.parquet") as trace:
        found = [one for one in whatif(trace, [OverlapCommunication()]).outcomes if one.phase == "decode"]
    assert [one.after_high_ns == one.before_ns > one.after_low_ns for one in found] == [True, True]


def test_fusion_and_a_faster_kernel_in_any_order(tmp_path: Path) -> None:
    """What is fused is as much faster as its kernels are; and any bound of the error will do."""
    record(unfused(GPU_BOUND, ["silu_mul"]), tmp_path, "run")
    changes: list[Scale | Fusion] = [Scale(re.compile("silu|Mul"), 0.5), Fusion("silu_mul")]
    with tracekit.open(tmp_path / "run.parquet") as trace:
        first, second = (decode(whatif(trace, one, max_error=0.1).outcomes) for one in (changes, changes[::-1]))
    assert first.after_low_ns == pytest.approx(second.after_low_ns, abs=2)
    assert first.after_high_ns == pytest.approx(second.after_high_ns, abs=2_000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Scale(re.compile("nosuch"), 0.5), "no kernel in these steps has a name that matches 'nosuch'; nearest are: "),
        (RemoveSync(re.compile("nosuch")), "no call that waits for the device matches 'nosuch'; nearest are: "),
        (Graphs("prefill"), "no step of phase 'prefill' to graph; phases here: decode; or all"),
        (Fusion("nosuch"), "no pattern 'nosuch' in the catalogue; there are: "),
        (Fusion("rope_kv"), "rope_kv is nowhere open in these steps; open are: "),
        (OverlapCommunication(), "there is no communication in these steps to overlap"),
    ],
)
def test_what_changes_nothing_is_refused(change: Graphs, said: str, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.parquet", steps(item))
    with tracekit.open(path) as trace, pytest.raises(UsageError) as raised:
        whatif(trace, [change])
    assert str(raised.value).startswith(said)
