"""Counters of a whole device: whose are they? Only those of a time in which one kernel had the device to itself."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest

import tracekit
from tests.event_rows import footer_of, kernel, launch, op, write_trace
from tests.nsys_files import NsysFile
from tracekit.convert import convert
from tracekit.footer import SourceInfo
from tracekit.macros import parse_macros
from tracekit.trace import Trace

SQL = Path(tracekit.trace.__file__).with_name("gpu_metrics.sql").read_text(encoding="utf-8")
MACROS = ("metric_samples", "sampled_devices", "covered_samples", "metric_windows", "kernel_metrics", "range_counters")
READ, WRITE = "DRAM Read Bandwidth [Throughput %]", "DRAM Write Bandwidth [Throughput %]"
TENSOR, ACTIVE = "Tensor Active [Throughput %]", "SMs Active [Throughput %]"

Row = dict[str, Any]
Span = tuple[int, int, str]


@contextmanager
def opened(path: Path, rows: Sequence[Row] | None = None, **footer: Any) -> Iterator[Trace]:
    """A trace of these rows, else of a file of a profiler."""
    if rows is not None:
        write_trace(path, rows, replace(footer_of(rows), **footer))
    else:
        convert([path], path.with_suffix(".parquet"))
        path = path.with_suffix(".parquet")
    with tracekit.open(path) as trace:
        yield trace


def sample(ts: int, value: float, name: str = READ, **columns: Any) -> Row:
    """A sample as Nsight Systems' exports give it."""
    where = {"pid": None, "tid": None, "device": 0}
    return {"kind": "counter", "name": name, "ts": ts, "args": json.dumps({"value": value}), **where, **columns}


def values(rows: Sequence[Row], *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[column] for column in columns) for row in rows)


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("dram_read", (READ, "DRAM Read Throughput", "dram read bandwidth [%]", "DRAM Read Bandwidth (%)")),
        ("dram_read", ("dram__read_throughput.avg.pct_of_peak_sustained_elapsed",)),
        ("dram_write", (WRITE, "dramc__write_throughput.avg.pct_of_peak_sustained_elapsed")),
        ("dram", ("DRAM Bandwidth", "dram__throughput.avg.pct_of_peak_sustained_elapsed")),
        ("dram", ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",)),
        ("tensor", (TENSOR, "Tensor Active", "Tensor Active / FP16 Active")),
        ("tensor", ("sm__pipe_tensor_cycles_active_realtime.avg.pct_of_peak_sustained_elapsed",)),
        ("sm", (ACTIVE, "SM Active", "sm__cycles_active.avg.pct_of_peak_sustained_elapsed")),
        (None, ("", "SM Issue [Throughput %]", "SMs Active [Cycles]", "DRAM Read Bandwidth [MB/s]", "GR Active")),
        (None, ("Sync Copy Engine Active [Throughput %]", "Compute Warps in Flight [Throughput %]", "Not SM Active")),
        (None, ("dram__throughput.avg.pct_of_peak_sustained_active", "dram__bytes_read.sum", "sm__cycles_active.avg")),
    ],
)
def test_names_of_metrics(part: str | None, names: Sequence[str]) -> None:
    (macro,) = (one for one in parse_macros(SQL) if one.name == "gpu_metric")
    with duckdb.connect() as connection:
        connection.execute(macro.body)
        for name in names:
            assert connection.execute("SELECT gpu_metric($1)", [name]).fetchone() == (part,)


# ---- samples ---------------------------------------------------------------------------------------------------------


def test_nothing_sampled(tmp_path: Path) -> None:
    with opened(tmp_path / "t.parquet", []) as trace:
        assert [trace.sql(f"FROM {name}()").num_rows for name in MACROS] == [0] * len(MACROS)


def test_a_long_kernel_and_short_ones_one_after_the_other(tmp_path: Path) -> None:
    """A sample each 100 ns, of which only those count whose neighbours are of the same kernel, too."""
    long, short = {"name": "long", "grid_x": 8}, {"name": "short", "grid_x": 4}
    rows = [kernel(0, 560, **long), *(kernel(600 + 50 * at, 48, **short) for at in range(12)), kernel(1210, 435)]
    for ts in range(50, 1700, 100):
        reads = 90 if ts < 600 else 30 if ts < 1200 else 0
        rows += [sample(ts, reads), sample(ts, 5, WRITE), sample(ts, 40, ACTIVE), sample(ts, 7, "SM Issue")]
    rows += [sample(50, 60, TENSOR), sample(250, 60, TENSOR), sample(350, 20, TENSOR), sample(450, -1, TENSOR)]
    with opened(tmp_path / "t.parquet", rows) as trace:
        windows = trace.sql("FROM metric_windows(min_samples := 2)").to_pylist()
        pooled = trace.sql("FROM kernel_metrics()").to_pylist()
        assert trace.sql("FROM kernel_metrics(min_samples := 5)").num_rows == 0
        with trace.only(until_ns=500) as part:
            cut = part.sql("FROM kernel_metrics(min_samples := 1)").to_pylist()
    # 150 to 450 of the long kernel; 750 to 1050 of the short ones, 48 of 50 ns covered; 1350 to 1550 of the
    # last, which ends 5 ns before the last of these times does.
    columns = ("name", "grid_x", "dram_pct", "tensor_pct", "sm_pct", "samples", "time_ns")
    assert values(pooled, *columns) == [
        ("kernel", None, 5, None, 40, 3, 300),
        ("long", 8, 95, (60 + 20) / 2, 40, 4, 400),
        ("short", 4, 35, None, 40, 4, 400),
    ]
    assert values(windows, "id", "dram_pct", "samples") == [(1, 95, 4), (14, 5, 2)]
    assert values(cut, "name", "tensor_pct", "samples") == [("long", 40, 3)]


WRONG: dict[str, list[Row]] = {
    "another at the same time": [kernel(19, 1, name="b", stream=9)],
    "still there when the time begins": [kernel(5, 6, name="b")],
    "a fill": [{"kind": "memset", "ts": 25, "dur": 2}],
    "no multiprocessor has work: another GPU": [sample(ts, 0, ACTIVE) for ts in (10, 20, 30)],
    "not there from the beginning": [kernel(10, 20, grid_x=2)],
}
RIGHT: dict[str, list[Row]] = {
    "nothing else": [],
    "a sample of another device": [sample(20, 11, WRITE, device=1)],
    "ended when the time begins": [kernel(5, 5, name="b")],
    "begins when the time ends": [kernel(30, 1, name="b")],
    "the same kernel": [kernel(11, 1, stream=9)],
    "no work": [{"kind": "sync", "ts": 25, "dur": 2}],
    "a row without an end": [kernel(15, 0, name="b")],
}


def test_what_spoils_a_sample(tmp_path: Path) -> None:
    """Each on a rank of its own."""
    rows: list[Row] = []
    for rank, change in enumerate([*WRONG.values(), *RIGHT.values()]):
        samples = [sample(ts, value, name) for ts in (10, 20, 30) for value, name in ((50, READ), (5, WRITE))]
        rows += [{**row, "rank": rank} for row in (kernel(10, 20), *change, *samples)]
    with opened(tmp_path / "t.parquet", rows) as trace:
        found = trace.sql("SELECT rank, name, dram_pct, samples FROM kernel_metrics(min_samples := 1)").to_pylist()
    expected = [(rank, "kernel", 55, 1) for rank in range(len(WRONG), len(WRONG) + len(RIGHT))]
    assert values(found, "rank", "name", "dram_pct", "samples") == expected


def counts(rows: Sequence[Span], begin: int, end: int) -> bool:
    """Does a time belong to the kernel of the last row? rows: start, end, name, in order, begun before its end."""
    others = [at for at, row in enumerate(rows) if row[2] != rows[-1][2]]
    begun = sum(row[0] <= begin for row in rows)
    if begun == 0 or (others and others[-1] >= begun):
        return False
    if any(row[1] > begin for row in rows[: others[-1] + 1 if others else 0]):
        return False
    covered = sum(any(row[0] <= at < row[1] for row in rows) for at in range(begin, end))
    return 10 * covered >= 9 * (end - begin)


def naive(rows: Sequence[Span], times: Sequence[int]) -> dict[str, tuple[int, float]]:
    """Number and mean value of the samples that count, by name."""
    found: dict[str, list[int]] = defaultdict(list)
    for begin, ts, end in zip(times, times[1:], times[2:], strict=False):
        known = [row for row in rows if row[0] < end]
        if counts(known, begin, end):
            found[known[-1][2]].append(ts % 101)
    return {name: (len(seen), sum(seen) / len(seen)) for name, seen in found.items()}


def random_rows(random: Random) -> list[Span]:
    rows: list[Span] = []
    ts, name = 0, "a"
    for _ in range(300):
        name = random.choice("ab") if random.random() < 0.15 else name
        ts += random.choice([0, 3, 9, 10, 10, 11, 30])
        rows.append((ts, ts + random.choice([1, 9, 10, 12, 60]), name))
    return sorted(rows, key=lambda row: (row[0], -row[1]))


def test_pooled_samples_against_a_count_by_hand(tmp_path: Path) -> None:
    """On each device."""
    random = Random(1)
    events: list[Row] = []
    expected: dict[tuple[int, str], tuple[int, float]] = {}
    for device in range(3):
        rows = random_rows(random)
        times = sorted(random.sample(range(rows[-1][1]), 250))
        events += [kernel(begin, end - begin, name=name, device=device) for begin, end, name in rows]
        events += [sample(at, at % 101, "DRAM Bandwidth", device=device) for at in times]
        expected |= {(device, name): what for name, what in naive(rows, times).items()}
    with opened(tmp_path / "t.parquet", events) as trace:
        found = trace.sql("FROM kernel_metrics(min_samples := 1)").to_pylist()
    assert len(expected) == 6 and min(count for count, _ in expected.values()) > 5
    said = {(row["device"], row["name"]): (row["samples"], row["dram_pct"]) for row in found}
    assert said.keys() == expected.keys()
    for key, what in expected.items():
        assert said[key] == pytest.approx(what)


# ---- whose samples ---------------------------------------------------------------------------------------------------


def test_devices_and_the_ranks_their_samples_are_stored_under(tmp_path: Path) -> None:
    """Ranks 0 and 1 are of one recording, whose samples are rank 0's; 2 and 3 of one, too, but both have a device 0;
    rank 4 is of two recordings, with samples under 5 and under 6.
    """
    paths = {"a": (0, 1), "b": (2, 3), "c": (4, 5), "d": (4, 6)}
    sources = tuple(SourceInfo(path, "nsys_export", rank) for path, ranks in paths.items() for rank in ranks)
    where = [(0, 0), (1, 1), (1, 2), (2, 0), (3, 0), (4, 1)]
    rows = [kernel(0, 1000, rank=rank, device=device) for rank, device in where]
    for ts in range(0, 1000, 100):
        for rank, device, value in [(0, 0, 10), (0, 1, 20), (2, 0, 30), (5, 1, 40), (6, 1, 50)]:
            rows.append(sample(ts, value, "DRAM Bandwidth", rank=rank, device=device))
    with opened(tmp_path / "t.parquet", rows, sources=sources) as trace:
        devices = trace.sql("FROM sampled_devices()").to_pylist()
        found = trace.sql("FROM kernel_metrics()").to_pylist()
    assert values(devices, "rank", "device", "problem") == [
        (0, 0, ""),
        (1, 1, ""),
        (1, 2, "no samples"),
        (2, 0, "several processes"),
        (3, 0, "several processes"),
        (4, 1, "several recordings"),
    ]
    assert values(found, "rank", "device", "dram_pct", "samples") == [(0, 0, 10, 8), (1, 1, 20, 8)]


def test_an_export_of_two_gpus(tmp_path: Path) -> None:
    file = NsysFile()
    for gpu in (0, 1):
        file.kernel(0, 1000, f"k{gpu}", pid=100 + gpu, deviceId=gpu)
        for ts in range(0, 1000, 100):
            for name, value in ((READ, 10 + 50 * gpu), (WRITE, 2), (TENSOR, 70), (ACTIVE, 99)):
                file.metric(ts, value, name, gpu=gpu)
    with opened(file.write(tmp_path / "t.sqlite")) as trace:
        found = trace.sql("FROM kernel_metrics()").to_pylist()
    assert values(found, "rank", "device", "name", "dram_pct", "tensor_pct", "sm_pct", "samples", "time_ns") == [
        (0, 0, "k0", 12, 70, 99, 8, 800),
        (1, 1, "k1", 62, 70, 99, 8, 800),
    ]


# ---- torch.profiler --------------------------------------------------------------------------------------------------

ADD, MUL, FUSED = (f"smsp__sass_thread_inst_executed_op_f{name}_pred_on.sum" for name in ("add", "mul", "fma"))


def test_samples_of_torch_profiler(tmp_path: Path) -> None:
    """A metric a row, its value under no name; the GPU stands where others have their process."""
    where = {"pid": "GPU 3 Counters", "tid": "", "cat": "hardware_counters"}
    args = {"device": 3, "stream": 7, "correlation": 1}
    events: list[Row] = [{"ph": "X", "cat": "kernel", "name": "k", "pid": 3, "tid": 7, "ts": 0, "dur": 9, "args": args}]
    for ts in range(10):
        name = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
        events.append({"ph": "C", "name": name, "ts": ts, "args": {"": 33.5}, **where})
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with opened(path) as trace:
        (counter,) = trace.sql("SELECT DISTINCT pid, tid, device, args FROM events WHERE kind = 'counter'").to_pylist()
        found = trace.sql("FROM kernel_metrics()").to_pylist()
        assert not trace.footer.ledger.dropped_args
    assert counter == {"pid": None, "tid": None, "device": 3, "args": '{"":33.5}'}
    assert values(found, "name", "device", "dram_pct", "samples", "time_ns") == [("k", 3, 33.5, 8, 8000)]


def test_ranges_of_torch_profiler(tmp_path: Path) -> None:
    """Of what they hold only numbers are stored, and of these only metrics."""
    counted = {ADD: 10.0, MUL: 5, FUSED: 1000.0, "dram__bytes_read.sum": 4096.0, "dram__bytes_write.sum": float("nan")}
    events: list[Row] = []
    for at in range(2):
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 1}
        events.append({"ph": "X", "ts": 10 * at, "dur": 5, "args": {"correlation": at}, **call})
        span = {"cat": "cuda_profiler_range", "name": f"k{at}", "pid": 1, "tid": 0, "ts": 50 + 10 * at, "dur": 10}
        events.append({"ph": "X", "args": counted | {"key": "sk-1", "password": 5, "lts__t": "text"}, **span})
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with opened(path) as trace:
        rows = trace.sql("SELECT kind, ts, dur, pid, tid, device FROM events WHERE name = 'k1'").to_pylist()
        found = trace.sql("FROM range_counters()").to_pylist()
        assert not trace.footer.ledger.repaired and not trace.footer.ledger.dropped_args
    assert rows == [{"kind": "counter", "ts": 60_000, "dur": 10_000, "pid": None, "tid": None, "device": 1}]
    assert json.loads(found[0]["metrics"]) == {ADD: 10, MUL: 5, FUSED: 1000, "dram__bytes_read.sum": 4096}
    assert values(found, "name", "launch_id", "fp32_flops", "dram_bytes", "problem") == [
        ("k0", 0, 10 + 5 + 2 * 1000, None, ""),
        ("k1", 1, 10 + 5 + 2 * 1000, None, ""),
    ]


def span(ts: int, name: str, device: int = 0, rank: int = 0, **metrics: float) -> Row:
    args = json.dumps(metrics or {"dram__bytes.sum": 8.0}).replace(" ", "")
    where = {"pid": None, "tid": None, "device": device, "rank": rank}
    return {"kind": "counter", "name": name, "ts": ts, "dur": 10, "args": args, **where}


def test_ranges_and_launches(tmp_path: Path) -> None:
    """Rank 0 has as many launches as ranges, rank 1 more, rank 2 counted on two devices."""
    rows = [
        op(0, 50),
        launch(1, 9, parent_id=1, op_id=1),
        launch(2, 1, name="cuLaunchKernel", parent_id=2, op_id=1),
        launch(12, 1, name="cudaMemcpyAsync"),
        launch(20, 1, name="cudaLaunchKernelExC", step=4),
        span(100, "a", dram__bytes_x=1.0),
        span(110, "b"),
        *(launch(ts, 1, rank=1) for ts in (0, 1)),
        span(100, "c", rank=1),
        *(launch(ts, 1, rank=2) for ts in (0, 1)),
        span(100, "d", rank=2),
        span(100, "e", rank=2, device=1),
        {"kind": "counter", "name": "util", "ts": 1, "args": '{"a__b":1}'},
    ]
    with opened(tmp_path / "t.parquet", rows) as trace:
        found = trace.sql("FROM range_counters()").to_pylist()
    assert values(found, "rank", "device", "name", "launch_id", "op_id", "step", "dram_bytes", "problem") == [
        (0, 0, "a", 2, 1, None, None, ""),
        (0, 0, "b", 5, None, 4, 8, ""),
        (1, 0, "c", None, None, None, 8, "other number of launches"),
        (2, 0, "d", None, None, None, 8, "several devices"),
        (2, 1, "e", None, None, None, 8, "several devices"),
    ]
