"""The Chrome trace: what is in it, and where it is drawn."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.command_line import US, run
from tests.event_rows import annotation, kernel, launch, op, write_trace
from tests.perfetto_files import Event, drawn, exported
from tracekit import perfetto
from tracekit.errors import UsageError
from tracekit.footer import DeviceInfo
from tracekit.perfetto_tracks import Lanes


def only(document: dict[str, Any], phase: str = "X") -> list[Event]:
    return [one for one in document["traceEvents"] if one["ph"] == phase and one.get("cat") != "tracekit"]


def test_nothing(tmp_path: Path) -> None:
    assert exported(tmp_path, []) == {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "deviceProperties": [],
        "otherData": {
            "tracekit": tracekit.__version__,
            "sources": "rank0.json (kineto, rank 0)",
            "origin_ns": "0",
            "part": "all",
            "events": "",
            "renumbered": '{"processes":{},"threads":{}}',
        },
        "traceEvents": [],
    }


def test_a_kernel_and_its_launch(tmp_path: Path) -> None:
    rows = [
        op(0, 9_001, shapes="[[2,3]]", pid=83, tid=84),
        launch(1_000, 2_000, correlation=5, op_id=1, pid=83, tid=84),
        kernel(4_000, 10, name='k<"a">\\\n', launch_id=2, op_id=1, correlation=5, grid_x=2, grid_y=1, grid_z=1, step=3),
    ]
    document = exported(tmp_path, rows, devices=(DeviceInfo(0, 0, "H100"),), origin_ns=1_700_000_000_000_000_001)
    host, gpu = "rank 0: process 83", "rank 0: GPU 0 H100"
    assert drawn(document) == [
        (host, "thread 84", "aten::mm", "0.000", "9.001"),
        (host, "thread 84", "cudaLaunchKernel", "1.000", "2.000"),
        (gpu, "stream 7", 'k<"a">\\\n', "4.000", "0.010"),
        (gpu, "tracekit: categories", "gemm", "4.000", "0.010"),
    ]
    of_op, of_launch, of_kernel = (one["args"] for one in only(document))
    assert of_op == {"External id": 1, "Input Dims": [[2, 3]], "Ev Idx": 1}
    assert of_launch == {"External id": 1, "correlation": 5, "Ev Idx": 2}
    assert of_kernel == {"External id": 1, "device": 0, "stream": 7, "correlation": 5, "grid": [2, 1, 1]} | {
        "Ev Idx": 3,
        "launch id": 2,
        "step": 3,
    }
    (start,), (end,) = only(document, "s"), only(document, "f")
    at = {(one["pid"], one["tid"]) for one in document["traceEvents"] if one["name"] == "thread_name"}
    assert (start["id"], start["ts"], end["id"], end["ts"], end["bp"]) == (3, "1.000", 3, "4.000", "e")
    assert {(start["pid"], start["tid"]), (end["pid"], end["tid"])} <= at
    assert document["baseTimeNanoseconds"] == 1_700_000_000_000_000_001


def test_work_of_a_stream_never_covers_other_work_of_it(tmp_path: Path) -> None:
    """A kernel may start before the one before it ends (programmatic dependent launch)."""
    rows = [
        kernel(0, 10_000, name="a"),
        kernel(9_000, 11_000, name="b"),
        kernel(12_000, 1_000, name="in b"),
        kernel(20_000, 0, name="of no length"),
        kernel(20_000, 5_000, name="c"),
        kernel(9_000, 100, name="elsewhere", stream=8),
        {"kind": "sync", "name": "wait", "ts": 0, "dur": 30_000},
        {"kind": "gpu_annotation", "name": "all", "ts": 0, "dur": 25_000},
    ]
    found = [one[1:] for one in drawn(exported(tmp_path, rows)) if not one[1].startswith("tracekit")]
    assert sorted(found) == [
        ("stream 7", "a", "0.000", "10.000"),
        ("stream 7", "c", "20.000", "5.000"),
        ("stream 7", "in b", "12.000", "1.000"),
        ("stream 7", "of no length", "20.000", "0.000"),
        ("stream 7 (annotations)", "all", "0.000", "25.000"),
        ("stream 7 (overlap)", "b", "9.000", "11.000"),
        ("stream 7 (synchronisation)", "wait", "0.000", "30.000"),
        ("stream 8", "elsewhere", "9.000", "0.100"),
    ]


def test_host_rows_that_cross_are_drawn_apart(tmp_path: Path) -> None:
    """Ranges that start and end where they like do not nest; what lies within one goes where that is."""
    rows = [
        annotation("a", 0, 10),
        annotation("crosses a", 5, 10),
        op(6, 1, name="in both"),
        annotation("crosses both", 9, 20),
        op(30, 5, name="outer"),
        op(30, 5, name="inner"),
    ]
    assert [one[1:] for one in drawn(exported(tmp_path, rows))] == [
        ("thread 1 (main)", "a", "0.000", "0.010"),
        ("thread 1 (main) (overlap)", "crosses a", "0.005", "0.010"),
        ("thread 1 (main) (overlap)", "in both", "0.006", "0.001"),
        ("thread 1 (main) (overlap 2)", "crosses both", "0.009", "0.020"),
        ("thread 1 (main)", "outer", "0.030", "0.005"),
        ("thread 1 (main)", "inner", "0.030", "0.005"),
    ]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_no_two_slices_of_a_lane_cross(seed: int, flat: bool) -> None:
    dice = random.Random(seed)
    spans = [(start := dice.randrange(40), start + dice.randrange(1, 20)) for _ in range(60)]
    spans.sort(key=lambda span: (span[0], -span[1]))
    lanes = Lanes(flat={0} if flat else ())
    lanes.add((0, start, end, at) for at, (start, end) in enumerate(spans[:25]))
    lanes.add((0, start, end, at + 25) for at, (start, end) in enumerate(spans[25:]))
    moved = dict(zip(lanes.ids, lanes.lanes, strict=True))
    by_lane: dict[int, list[tuple[int, int]]] = {}
    for at, span in enumerate(spans):
        by_lane.setdefault(moved.get(at, 0), []).append(span)
    assert sum(map(len, by_lane.values())) == len(spans)
    assert len(by_lane) == lanes.counts.get(0, 1)
    for kept in by_lane.values():
        assert not [(one, other) for one in kept for other in kept if one[0] < other[0] < one[1] < other[1]]
        covered = Counter(ns for start, end in kept for ns in range(start, end))
        assert not flat or max(covered.values()) == 1


def test_nested_rows_need_one_lane() -> None:
    lanes = Lanes()
    lanes.add([(0, 0, 10, 1), (0, 0, 10, 2), (0, 2, 5, 3), (0, 5, 10, 4), (0, 10, 11, 5), (1, 5, 20, 6)])
    assert (lanes.ids, lanes.counts) == ([], {})


def test_numbers_that_viewers_do_not_know(tmp_path: Path) -> None:
    """Thread 0 is the main thread to Perfetto, and what has no place in 31 bits is dropped."""
    rows = [
        op(0, 1, pid=83, tid=140_245_878_327_104),
        op(0, 1, pid=83, tid=0, rank=1),
        op(0, 1, pid=None, tid=None),
        op(0, 1, pid=-1, tid=7),
        kernel(0, 1, device=0, stream=0),
        kernel(0, 1, device=1, stream=0),
        kernel(0, 1, device=1, stream=0, rank=1),
    ]
    document = exported(tmp_path, rows, devices=())
    threads = {
        (one["pid"], one["tid"]): one["args"]["name"] for one in only(document, "M") if one["name"] == "thread_name"
    }
    assert all(0 < number < 1 << 31 for pair in threads for number in pair)
    assert [name for (pid, tid), name in threads.items() if pid == tid] == []  # to viewers, a main thread
    processes = [one["args"]["name"] for one in only(document, "M") if one["name"] == "process_name"]
    assert processes == [
        "rank 0: process -1",
        "rank 0: process 83",
        "rank 0: process ?",
        "rank 0: GPU 0",
        "rank 0: GPU 1",
        "rank 1: process 83",
        "rank 1: GPU 1",
    ]
    assert len({pid for pid, _ in threads}) == len(processes)
    names = [name for name in threads.values() if not name.startswith("tracekit")]
    assert names == ["thread 7", "thread 140245878327104", "thread ?", "stream 0", "stream 0", "thread 0", "stream 0"]


def test_values_that_are_no_json_numbers(tmp_path: Path) -> None:
    rows = [
        kernel(
            0, 1, correlation=2**53, context=2**53 - 1, occupancy=float("nan"), args='{"a": 9007199254740993, "b": 1}'
        ),
        kernel(2, 1, args='{"a": NaN, "b": [1e400], "c\\"/~": "Infinity"}'),
        kernel(4, 1, args="not JSON"),
        op(6, 1, shapes="[[1, 2", scalars='["inf"]', name="a\x00\t\u2028\U0001f600"),
    ]
    properties = {"clock": float("nan"), "memory": [float("inf"), 1]}
    document = exported(tmp_path, rows, devices=(DeviceInfo(0, 0, "H100", properties),))
    assert document["deviceProperties"] == [{"id": 0, "name": "H100", "clock": None, "memory": [None, 1]}]
    large, endless, broken, shapes = only(document)
    assert large["args"] == {"device": 0, "stream": 7, "correlation": "9007199254740992", "context": 2**53 - 1} | {
        "a": "9007199254740993",
        "b": 1,
        "Ev Idx": 1,
    }
    assert (endless["args"]["a"], endless["args"]['c"/~']) == (None, "Infinity")
    assert broken["args"]["args"] == "not JSON"
    assert (shapes["args"]["Input Dims"], shapes["name"]) == ("[[1, 2", "a\x00\t\u2028\U0001f600")


def test_counters_and_moments(tmp_path: Path) -> None:
    rows = [
        {"kind": "counter", "name": "util", "ts": 1, "args": '{"SM": 33.5, "none": null}'},
        {"kind": "counter", "name": "without a value", "ts": 2, "args": '{"SM": null}'},
        {"kind": "counter", "name": "of a device", "ts": 3, "args": '{"W": 7}', "device": 2, "pid": None, "tid": None},
        {"kind": "instant", "name": "moment", "ts": 4},
        {"kind": "instant", "name": "with a length", "ts": 5, "dur": 6},
    ]
    document = exported(tmp_path, rows)
    assert [(one["ph"], one["name"], one["args"]) for one in document["traceEvents"] if one["ph"] != "M"] == [
        ("C", "util", {"SM": "33.5"}),
        ("i", "without a value", {"SM": None, "Ev Idx": 2}),
        ("C", "of a device", {"W": "7.0"}),
        ("i", "moment", {"Ev Idx": 4}),
        ("X", "with a length", {"Ev Idx": 5}),
    ]


def test_a_graph_replay_has_one_arrow_for_each_stream(tmp_path: Path) -> None:
    rows = [
        launch(0, 5, name="cudaGraphLaunch"),
        kernel(10, 1, launch_id=1),
        kernel(12, 1, launch_id=1),
        kernel(11, 1, launch_id=1, stream=8),
        kernel(20, 1, launch_id=99),
    ]
    document = exported(tmp_path, rows)
    assert [(one["id"], one["ts"]) for one in only(document, "s")] == [(2, "0.000"), (4, "0.000")]
    assert [(one["id"], one["ts"]) for one in only(document, "f")] == [(2, "0.010"), (4, "0.011")]


def test_pieces_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = [0, 0, 0, 5, 5, 9, 20, 21, 21, 22] * 5
    rows = [launch(ts, 1) for ts in range(7)]
    rows += [kernel(ts, 1, launch_id=index % 7 + 1) for index, ts in enumerate(times)]
    whole = exported(tmp_path, rows)
    monkeypatch.setattr(perfetto, "_PIECE_ROWS", 4)
    written: list[tuple[int, int]] = []
    with tracekit.open(tmp_path / "t.parquet") as trace:
        perfetto.export(trace, tmp_path / "p.json", progress=lambda done, of: written.append((done, of)))
    assert json.loads((tmp_path / "p.json").read_bytes(), parse_float=str) == whole
    assert written == [(done, len(rows)) for done in (0, 18, 20, 32, 37, 42, 52, 57)]


# ---- tracekit's own tracks -------------------------------------------------------------------------------------------


def own(document: dict[str, Any], title: str) -> list[tuple[str, str, str]]:
    return [(*one[2:4], str(one[4])) for one in drawn(document) if one[1].startswith(f"tracekit: {title}")]


def test_steps_categories_and_gaps(tmp_path: Path) -> None:
    rows = [
        annotation("execute_context_1(16)_generation_0(0)", 0, 40 * US),
        launch(1 * US, 5 * US, parent_id=1),
        annotation("execute_context_0(0)_generation_1(1)", 100 * US, 40 * US),
        launch(101 * US, 5 * US, parent_id=3),
        kernel(10 * US, 10 * US, name="flash_fwd_kernel", launch_id=2),
        kernel(20 * US, 5 * US, name="flash_fwd_kernel", launch_id=2),
        kernel(25 * US, 5 * US, name="nvjet_tst_128x8", launch_id=2),
        kernel(28 * US, 4 * US, name="nvjet_tst_128x8", launch_id=2, stream=8),
        kernel(112 * US, 5 * US, name="nvjet_tst_128x8", launch_id=4),
    ]
    document = exported(tmp_path, rows)
    assert own(document, "steps") == [
        ("0 prefill", "0.000", "40.000"),
        ("1 decode", "100.000", "40.000"),
    ]
    assert own(document, "categories") == [
        ("attention", "10.000", "15.000"),
        ("gemm", "25.000", "7.000"),
        ("gemm", "112.000", "5.000"),
    ]
    gaps = [one for one in document["traceEvents"] if one.get("cat") == "tracekit" and "after id" in one["args"]]
    with tracekit.open(tmp_path / "t.parquet") as trace:
        table = trace.analyze("idle_gaps").table.to_pylist()
    assert [(one["name"], one["args"]["before id"], one["args"]["after id"]) for one in gaps] == [
        (row["cause"], row["before_id"], row["after_id"]) for row in table
    ]
    assert sum(int(one["dur"].replace(".", "")) for one in gaps) == 80 * US == sum(row["dur"] for row in table)


def test_steps_without_a_device_are_on_the_host_and_may_cross(tmp_path: Path) -> None:
    rows = [
        annotation("execute_context_0(0)_generation_1(1)", 0, 10 * US),
        annotation("execute_context_0(0)_generation_1(1)", 5 * US, 10 * US, tid=2),
    ]
    document = exported(tmp_path, rows)
    assert [one for one in drawn(document) if one[1].startswith("tracekit")] == [
        ("rank 0: process 1", "tracekit: steps", "0 decode", "0.000", "10.000"),
        ("rank 0: process 1", "tracekit: steps (overlap)", "1 decode", "5.000", "10.000"),
    ]


def test_gaps_that_cannot_be_trusted_are_left_out(tmp_path: Path) -> None:
    lost = [launch(index * 10 * US, US) for index in range(50)]
    path = write_trace(
        tmp_path / "t.parquet", [*lost, kernel(1 * US, US, launch_id=1), kernel(300 * US, US, launch_id=30)]
    )
    shown = run("convert", path, "--to", "perfetto", "-o", tmp_path / "t.json")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stderr.startswith("No track of idle gaps: ")
    assert "52 events (kernel 2, launch 50), 2 flows; on tracks of tracekit's own (" in shown.stderr
    assert "idle gaps" not in shown.stderr.splitlines()[1]


# ---- parts, and the file ---------------------------------------------------------------------------------------------


def test_a_part_is_cut(tmp_path: Path) -> None:
    rows = [
        op(0, 100 * US),
        launch(1 * US, US),
        launch(50 * US, US),
        kernel(5 * US, 10 * US, name="before", launch_id=2),
        kernel(40 * US, 30 * US, name="across", launch_id=3),
        kernel(80 * US, 10 * US, name="after", device=1),
    ]
    path = write_trace(tmp_path / "t.parquet", rows)
    with tracekit.open(path) as trace, trace.only(since_ns=45 * US, until_ns=60 * US, device=0) as part:
        written = perfetto.export(part, tmp_path / "t.json")
    document = json.loads((tmp_path / "t.json").read_bytes(), parse_float=str)
    assert [(one["name"], one["ts"], one["dur"], one["args"].get("cut")) for one in only(document)] == [
        ("aten::mm", "45.000", "15.000", True),
        ("across", "45.000", "15.000", True),
        ("cudaLaunchKernel", "50.000", "1.000", None),
    ]
    assert (dict(written.by_kind), written.flows) == ({"kernel": 1, "launch": 1, "op": 1}, 1)
    assert document["otherData"]["part"] == "device 0, from 45us until 60us"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize(("suffix", "rows"), [(".json", 20_000), (".json.gz", 1)], ids=["while writing", "at the end"])
def test_a_full_disk_leaves_nothing(suffix: str, rows: int, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.parquet", [kernel(ts, 1) for ts in range(rows)])
    (tmp_path / f".t{suffix}.{os.getpid()}.part").symlink_to("/dev/full")
    with tracekit.open(path) as trace, pytest.raises(UsageError, match="No space left on device"):
        perfetto.export(trace, tmp_path / f"t{suffix}")
    assert [one.name for one in tmp_path.iterdir()] == ["t.parquet"]
