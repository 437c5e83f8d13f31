"""Events in, the whole linked table out: ids, parents, launches and ops, whatever order and windows they come in."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tracekit import assemble
from tracekit.convert import convert
from tracekit.errors import TruncatedTraceError
from tracekit.footer import Footer

Json = dict[str, Any]
LINKS = "id, kind, name, ts, dur, parent_id, launch_id, op_id"


def host(cat: str, name: str, ts: float, dur: float | None, *, tid: int | str = 1, **args: Any) -> Json:
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": args}


def op(name: str, ts: float, dur: float | None, external_id: int | None = None, *, tid: int | str = 1) -> Json:
    return host("cpu_op", name, ts, dur, tid=tid, **({} if external_id is None else {"External id": external_id}))


def launch(name: str, ts: float, dur: float, correlation: int, *, cat: str = "cuda_runtime", tid: int = 1) -> Json:
    return host(cat, name, ts, dur, tid=tid, correlation=correlation)


def kernel(name: str, ts: float, dur: float, correlation: int, external_id: int | None = None, **args: Any) -> Json:
    args = {"device": 0, "stream": 7, "correlation": correlation} | args
    args |= {} if external_id is None else {"External id": external_id}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


class Work:
    """A directory to convert in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.footer: Footer | None = None

    def file(self, name: str, events: list[Json], **around: Any) -> Path:
        path = self.directory / name
        path.write_text(json.dumps({**around, "traceEvents": events}))
        return path

    def table(self, *paths: Path, columns: str = LINKS) -> list[tuple[Any, ...]]:
        out = self.directory / "out.parquet"
        self.footer = convert(paths, out, force=True)
        ledger = self.footer.ledger
        assert ledger.read == ledger.stored + sum(ledger.skipped.values())
        with duckdb.connect() as connection:
            return connection.execute(f"SELECT {columns} FROM read_parquet('{out}') ORDER BY id").fetchall()

    def rows(self, *events: Json, columns: str = LINKS) -> list[tuple[Any, ...]]:
        return self.table(self.file("trace.json", list(events)), columns=columns)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


@pytest.fixture(params=[assemble.WINDOW_ROWS, 7, 1], ids=["one window", "windows of 7", "windows of 1"])
def windows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "WINDOW_ROWS", request.param)


def test_no_events(work: Work) -> None:
    assert work.rows() == []


def test_one_launch_of_many_kernels(work: Work, windows: None) -> None:
    assert work.rows(
        op("graph", 0, 100, 1),
        launch("cudaGraphLaunch", 10, 50, 9),
        *[kernel(f"k{n}", 200 + 10 * n, 12, 9, stream=7 + n) for n in range(3)],
    ) == [
        (0, "op", "graph", 0, 100_000, None, None, None),
        (1, "launch", "cudaGraphLaunch", 10_000, 50_000, 0, None, 0),
        (2, "kernel", "k0", 200_000, 12_000, None, 1, 0),
        (3, "kernel", "k1", 210_000, 12_000, None, 1, 0),
        (4, "kernel", "k2", 220_000, 12_000, None, 1, 0),
    ]


def test_a_driver_call_within_a_runtime_call_of_the_same_correlation(work: Work, windows: None) -> None:
    assert work.rows(
        launch("cuLaunchKernel", 12, 5, 9, cat="cuda_driver"),
        launch("cudaLaunchKernel", 10, 10, 9),
        op("aten::mm", 5, 20, 1),
        kernel("k", 50, 1, 9),
    ) == [
        (0, "op", "aten::mm", 0, 20_000, None, None, None),
        (1, "launch", "cudaLaunchKernel", 5_000, 10_000, 0, None, 0),
        (2, "launch", "cuLaunchKernel", 7_000, 5_000, 1, None, 0),
        (3, "kernel", "k", 45_000, 1_000, None, 1, 0),
    ]
    assert work.footer is not None
    assert work.footer.ledger.notes == {"API calls that share a correlation with an earlier one": 1}


def test_a_kernel_without_its_launch_gets_the_op_of_its_external_id(work: Work, windows: None) -> None:
    assert work.rows(
        op("a", 0, 10, 1), launch("cudaLaunchKernel", 2, 2, 100),
        op("b", 20, 10, 2), launch("cudaLaunchKernel", 22, 2, 200),
        kernel("ka", 30, 1, 100, 1), kernel("kb", 40, 1, 200, 2), kernel("orphan", 50, 1, 300, 2),
        kernel("stranger", 60, 1, 400, 77),
    ) == [
        (0, "op", "a", 0, 10_000, None, None, None),
        (1, "launch", "cudaLaunchKernel", 2_000, 2_000, 0, None, 0),
        (2, "op", "b", 20_000, 10_000, None, None, None),
        (3, "launch", "cudaLaunchKernel", 22_000, 2_000, 2, None, 2),
        (4, "kernel", "ka", 30_000, 1_000, None, 1, 0),
        (5, "kernel", "kb", 40_000, 1_000, None, 3, 2),
        (6, "kernel", "orphan", 50_000, 1_000, None, None, 2),
        (7, "kernel", "stranger", 60_000, 1_000, None, None, None),
    ]  # fmt: skip


def test_an_external_id_that_is_the_correlation_as_before_2024_names_no_op(work: Work, windows: None) -> None:
    assert work.rows(
        op("a", 0, 10, 1), launch("cudaLaunchKernel", 2, 2, 2),
        op("b", 20, 10, 2), launch("cudaLaunchKernel", 22, 2, 1),
        kernel("ka", 30, 1, 2, 2), kernel("kb", 40, 1, 1, 1), kernel("orphan", 50, 1, 3, 2),
    ) == [
        (0, "op", "a", 0, 10_000, None, None, None),
        (1, "launch", "cudaLaunchKernel", 2_000, 2_000, 0, None, 0),
        (2, "op", "b", 20_000, 10_000, None, None, None),
        (3, "launch", "cudaLaunchKernel", 22_000, 2_000, 2, None, 2),
        (4, "kernel", "ka", 30_000, 1_000, None, 1, 0),
        (5, "kernel", "kb", 40_000, 1_000, None, 3, 2),
        (6, "kernel", "orphan", 50_000, 1_000, None, None, None),
    ]  # fmt: skip


def test_threads_are_apart(work: Work, windows: None) -> None:
    assert work.rows(
        op("main", 0, 100, tid=1),
        op("worker", 10, 50, tid="thread 2"),
        launch("cudaLaunchKernel", 20, 5, 1, tid=2),
        launch("cudaLaunchKernel", 70, 5, 2, tid=2),
        kernel("k1", 90, 5, 1),
        kernel("k2", 95, 5, 2),
    ) == [
        (0, "op", "main", 0, 100_000, None, None, None),
        (1, "op", "worker", 10_000, 50_000, None, None, None),
        (2, "launch", "cudaLaunchKernel", 20_000, 5_000, 1, None, 1),
        (3, "launch", "cudaLaunchKernel", 70_000, 5_000, None, None, None),
        (4, "kernel", "k1", 90_000, 5_000, None, 2, 1),
        (5, "kernel", "k2", 95_000, 5_000, None, 3, None),
    ]


def test_a_kernel_that_starts_before_its_launch(work: Work, windows: None) -> None:
    assert work.rows(kernel("k", 998, 3, 1), launch("cudaLaunchKernel", 1000, 5, 1)) == [
        (0, "launch", "cudaLaunchKernel", 2_000, 5_000, None, None, None),
        (1, "kernel", "k", 0, 3_000, None, 0, None),
    ]


@pytest.mark.parametrize("duration", [-1, None, -1714000000000000])
def test_an_unfinished_op_ends_with_the_trace_and_says_so(work: Work, windows: None, duration: int | None) -> None:
    unfinished = host("cpu_op", "b", 5, duration, **{"Sequence number": 3})
    assert work.rows(
        op("a", 0, duration), unfinished, op("c", 10, 10), columns="id, name, ts, dur, parent_id, args"
    ) == [
        (0, "a", 0, 20_000, None, '{"finished": false}'),
        (1, "b", 5_000, 15_000, 0, '{"finished": false, "Sequence number":3}'),
        (2, "c", 10_000, 10_000, 1, None),
    ]
    assert work.footer is not None
    assert work.footer.ledger.repaired == {"no end recorded": 2}


def test_an_op_that_the_profiler_marked_as_unfinished(work: Work) -> None:
    marked = host("cpu_op", "a", 0, -1, finished=False)
    assert work.rows(marked, op("c", 10, 10), columns="name, dur, args") == [
        ("a", 20_000, '{"finished":false}'),
        ("c", 10_000, None),
    ]


def test_two_sources_that_use_the_same_correlations(work: Work, windows: None) -> None:
    paths = [
        work.file(
            f"{name}.json",
            [op(f"op{rank}", 0, 10, 1), launch("l", 1, 1, 5), kernel(f"k{rank}", 20, 1, 5), kernel("orphan", 30, 1, 6)],
            distributedInfo={"rank": rank, "world_size": 2},
            baseTimeNanoseconds=1000 * rank,
        )
        for rank, name in ((1, "a"), (0, "b"))
    ]
    assert work.table(*paths, columns=f"rank, {LINKS}") == [
        (0, 0, "op", "op0", 0, 10_000, None, None, None),
        (0, 1, "launch", "l", 1_000, 1_000, 0, None, 0),
        (0, 2, "kernel", "k0", 20_000, 1_000, None, 1, 0),
        (0, 3, "kernel", "orphan", 30_000, 1_000, None, None, None),
        (1, 4, "op", "op1", 1_000, 10_000, None, None, None),
        (1, 5, "launch", "l", 2_000, 1_000, 4, None, 4),
        (1, 6, "kernel", "k1", 21_000, 1_000, None, 5, 4),
        (1, 7, "kernel", "orphan", 31_000, 1_000, None, None, None),
    ]


def test_a_file_merged_from_two_processes(work: Work, windows: None) -> None:
    merged = [
        event | {"pid": f"[{label}] {event['pid'] + number}"}
        for number, label in enumerate(("TP00", "TP01"))
        for event in (op("op", 0, 10, 1), launch(f"l{number}", 1, 1, 5), kernel(f"k{number}", 20 + number, 1, 5))
    ]
    assert work.rows(*merged, columns=f"rank, pid, device, {LINKS}") == [
        (0, 9, None, 0, "op", "op", 0, 10_000, None, None, None),
        (1, 10, None, 1, "op", "op", 0, 10_000, None, None, None),
        (0, 9, None, 2, "launch", "l0", 1_000, 1_000, 0, None, 0),
        (1, 10, None, 3, "launch", "l1", 1_000, 1_000, 1, None, 1),
        (0, 0, 0, 4, "kernel", "k0", 20_000, 1_000, None, 2, 0),
        (1, 1, 0, 5, "kernel", "k1", 21_000, 1_000, None, 3, 1),
    ]


def random_events(rng: random.Random, count: int) -> list[Json]:
    """Many ties: few instants, few names, few threads; exact duplicates and rows that differ in one argument."""
    events: list[Json] = []
    for _ in range(count):
        ts, dur, number = rng.randrange(12), rng.choice([0, 1, 2, 5, None, -1]), rng.randrange(4)
        thread, name = rng.randrange(2), rng.choice("ab")
        events.append(
            rng.choice(
                [
                    op(name, ts, dur, rng.choice([None, number]), tid=thread),
                    host("cpu_op", name, ts, dur, tid=thread, **{"Input Dims": [[rng.randrange(3)]]}),
                    host("user_annotation", name, ts, dur, tid=thread),
                    host("python_function", name, ts, dur, tid=thread, **{"Python id": number}),
                    host("odd", name, ts, dur, tid=thread),
                    {"ph": "X", "name": name, "pid": 9, "ts": ts, "dur": dur},
                    launch(name, ts, max(dur or 0, 0), number, tid=thread),
                    {"ph": "i", "name": name, "pid": 9, "tid": thread, "ts": ts, "s": "t"},
                    {"ph": "C", "name": name, "pid": 9, "tid": thread, "ts": ts, "args": {"v": rng.randrange(3)}},
                    kernel(name, ts, max(dur or 0, 0), number, rng.choice([None, number]), stream=rng.randrange(2)),
                    kernel(name, ts, max(dur or 0, 0), number, grid=[1, rng.randrange(3), 1], block=[32, 1, 1]),
                    kernel(name, ts, max(dur or 0, 0), number) | {"cat": "gpu_memcpy", "args": {"bytes": number}},
                ]
            )
        )
    return events + rng.sample(events, count // 5)


def test_order_and_windows_change_nothing(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    for _ in range(8):
        events = random_events(rng, 60)
        expected = work.rows(*events, columns="*")
        assert [row[0] for row in expected] == list(range(len(events)))
        for rows in (assemble.WINDOW_ROWS, 7):
            monkeypatch.setattr(assemble, "WINDOW_ROWS", rows)
            rng.shuffle(events)
            assert work.rows(*events, columns="*") == expected
        monkeypatch.undo()


def test_events_without_a_category_are_annotations_like_those_of_an_unknown_one(work: Work, windows: None) -> None:
    bare = {"ph": "X", "name": "bare", "ts": 2, "dur": 1}
    events = [host("user_annotation", "a", 0, 9), bare, host("odd", "b", 3, 1), bare | {"cat": None, "ts": 4}]
    assert work.rows(*events, columns="id, kind, name, pid, tid, parent_id") == [
        (0, "annotation", "a", 9, 1, None),
        (1, "annotation", "bare", None, None, None),
        (2, "annotation", "b", 9, 1, 0),
        (3, "annotation", "bare", None, None, None),
    ]


def test_memory_events_and_garbage_collections_are_kept(work: Work) -> None:
    where = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "pid": 9, "tid": 1}
    freed = {"Bytes": -64, "Total Allocated": 128, "Device Type": 0, "Device Id": -1}
    assert work.rows(
        host("python_function", "Python GC", 0, 9, **{"Ev Idx": 6}),
        {**where, "name": "[memory]", "ts": 3, "args": freed},
        columns="kind, name, ts, dur, bytes, parent_id",
    ) == [("python", "Python GC", 0, 9_000, None, None), ("instant", "[memory]", 3_000, 0, -64, 0)]
    assert work.footer is not None
    assert work.footer.ledger.by_kind == {"python": 1, "instant": 1}


def test_numbers_that_are_none_are_missing(work: Work) -> None:
    path = work.file(
        "trace.json",
        [
            kernel("k", 0, 1, 1, None, **{"est. achieved occupancy %": 37.5}),
            kernel("k", 1, 1, 2, None, **{"est. achieved occupancy %": float("nan")}),
            kernel("k", 2, 1, 3, None, **{"est. achieved occupancy %": float("-inf")}),
            {"ph": "C", "name": "c", "pid": 0, "ts": 3, "args": {"a": float("inf"), "b": 2}},
            kernel("too late", 5e15, 1, 4),
        ],
    )
    assert work.table(path, columns="kind, ts, occupancy, args") == [
        ("counter", 3_000, None, '{"a":null,"b":2.0}'),
        ("kernel", 0, 37.5, None),
        ("kernel", 1_000, None, None),
        ("kernel", 2_000, None, None),
    ]
    assert work.footer is not None
    assert work.footer.ledger.skipped == {"unusable timestamp": 1}


def test_a_rank_that_is_none_is_not_believed(work: Work) -> None:
    for rank in (-1, 2**31, 10**12, "x", None, True):
        path = work.file("trace_rank3.json", [op("a", 0, 1)], distributedInfo={"rank": rank})
        assert work.table(path, columns="rank") == [(3,)]


def test_a_trace_cut_short_is_written_and_refused(work: Work) -> None:
    path = work.directory / "cut.json"
    path.write_text("[" + ", ".join(json.dumps(op(name, 0, 1)) for name in "ab"))
    with pytest.raises(TruncatedTraceError, match="2 events were kept; pass --allow-partial"):
        work.table(path)
    assert sorted(child.name for child in work.directory.iterdir()) == ["cut.json", "out.parquet"]
