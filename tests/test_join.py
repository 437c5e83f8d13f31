"""One run in a file of torch.profiler and in one of Nsight Systems: linked as one, and nothing counted twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.nsys_files import EPOCH_NS, PID, TID, NsysFile
from tracekit.convert import convert
from tracekit.errors import UsageError
from tracekit.footer import Footer
from tracekit.join import DEVICE_TWICE, LEFT_APART, RANGES_TWICE

Json = dict[str, Any]
Rows = list[tuple[Any, ...]]
ALL = "id, kind, name, ts, dur, rank, parent_id, op_id, launch_id, step"
STEP = "tracekit.step[decode decode_requests=4]"


def host(cat: str, name: str, ts: float, dur: float, **args: Any) -> Json:
    return {"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": TID, "ts": ts, "dur": dur, "args": args}


def kernel(name: str, ts: float, dur: float, correlation: int) -> Json:
    args = {"device": 0, "stream": 7, "correlation": correlation}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


def torch_file(folder: Path, *events: Json, name: str = "torch.json", base_ns: int = EPOCH_NS) -> Path:
    path = folder / name
    path.write_text(json.dumps({"baseTimeNanoseconds": base_ns, "traceEvents": events}))
    return path


def table(folder: Path, *paths: Path, columns: str = ALL) -> tuple[Footer, Rows]:
    out = folder / "out.parquet"
    footer = convert(paths, out, force=True)
    assert footer.ledger.read == footer.ledger.stored + sum(footer.ledger.skipped.values())
    with duckdb.connect() as connection:
        rows = connection.execute(f"SELECT {columns} FROM read_parquet('{out}') ORDER BY id").fetchall()
    return footer, rows


def test_no_rows_in_either(tmp_path: Path) -> None:
    NsysFile().write(tmp_path / "run.sqlite")
    footer, rows = table(tmp_path, torch_file(tmp_path, host("cpu_op", "a", 0, 1)), tmp_path / "run.sqlite")
    assert [row[1:5] for row in rows] == [("op", "a", 0, 1000)]
    assert "clocks" not in footer.capture


def test_kernels_of_one_file_get_ops_and_steps_of_the_other(tmp_path: Path) -> None:
    """The session began 1 ms before the time to which torch.profiler's are added."""
    nsys = NsysFile()
    nsys.runtime(1_012_000, 1_015_000, correlationId=3)
    nsys.kernel(1_020_000, 1_050_000, correlationId=3)
    ops = torch_file(
        tmp_path, host("user_annotation", STEP, 5, 40), host("cpu_op", "aten::mm", 10, 8), base_ns=EPOCH_NS + 1_000_000
    )
    footer, rows = table(tmp_path, ops, nsys.write(tmp_path / "run.sqlite"))
    assert rows == [
        (0, "annotation", STEP, 0, 40_000, 0, None, None, None, 0),
        (1, "op", "aten::mm", 5_000, 8_000, 0, 0, None, None, 0),
        (2, "launch", "cudaLaunchKernel", 7_000, 3_000, 0, 1, 1, None, 0),
        (3, "kernel", "gemm", 15_000, 30_000, 0, None, 1, 2, 0),
    ]
    assert [(one.path, one.rank, one.rank_from) for one in footer.sources] == [
        ("run.sqlite", 0, "process id"),
        ("torch.json", 0, "assigned"),
    ]
    (clocks,) = footer.capture["clocks"]
    assert clocks == {"file": "torch.json", "reference": "run.sqlite", "anchors": 0, "offset_ns": 0, "spread_ns": 0}


@pytest.mark.parametrize("late_us", [-300, 0, 250])
def test_ranges_of_both_set_the_clock(tmp_path: Path, late_us: int) -> None:
    """torch.profiler's clock is late by so much, and 2 us more at one of the three steps: the median counts."""
    nsys = NsysFile()
    steps = []
    for number in range(3):
        at = 1_000_000 + 100_000 * number
        nsys.nvtx(at, at + 60_000, STEP)
        nsys.runtime(at + 12_000, at + 15_000, correlationId=number + 1)
        nsys.kernel(at + 20_000, at + 50_000, correlationId=number + 1)
        late = at / 1000 + late_us + (2 if number == 1 else 0)
        steps += [host("user_annotation", STEP, late, 60), host("cpu_op", "aten::mm", late + 10, 8)]
    footer, rows = table(
        tmp_path,
        torch_file(tmp_path, *steps),
        nsys.write(tmp_path / "run.sqlite"),
        columns="kind, ts, op_id, step",
    )
    assert [row for row in rows if row[0] == "kernel"] == [
        ("kernel", 20_000, 1, 0),
        ("kernel", 120_000, 4, 1),
        ("kernel", 220_000, 7, 2),
    ]
    assert sum(row[0] == "annotation" for row in rows) == 3
    assert footer.ledger.skipped == {RANGES_TWICE: 3}
    (clocks,) = footer.capture["clocks"]
    assert (clocks["anchors"], clocks["offset_ns"], clocks["spread_ns"]) == (3, -1000 * late_us, 2000)


@pytest.mark.parametrize("of_torch", [1, 3])
def test_device_work_of_both_counts_once(tmp_path: Path, of_torch: int) -> None:
    """Two kernels by Nsight Systems; the file with more kernels is believed, with its API calls."""
    nsys = NsysFile()
    events = []
    for number in range(2):
        nsys.runtime(1000 * number, 1000 * number + 500, correlationId=number + 1)
        nsys.kernel(10_000 + 1000 * number, 10_800 + 1000 * number, "of nsys", correlationId=number + 1)
    for number in range(of_torch):
        events += [
            host("cuda_runtime", "cudaLaunchKernel", number, 0.5, correlation=number + 1),
            kernel("of torch", 10 + number, 0.8, number + 1),
        ]
    footer, rows = table(
        tmp_path, torch_file(tmp_path, *events), nsys.write(tmp_path / "run.sqlite"), columns="kind, name, launch_id"
    )
    count, name = max((2, "of nsys"), (of_torch, "of torch"))
    assert rows == [("launch", "cudaLaunchKernel", None)] * count + [
        ("kernel", name, number) for number in range(count)
    ]
    assert footer.ledger.skipped == {DEVICE_TWICE: 2 * min(2, of_torch)}


def test_each_process_finds_its_file(tmp_path: Path) -> None:
    """Two workers in one report, with the same correlations; for each a file of torch.profiler, which has its rank."""
    nsys = NsysFile()
    for pid, device in ((PID, 0), (PID + 1, 1)):
        nsys.runtime(12_000, 15_000, correlationId=3, pid=pid)
        nsys.kernel(20_000, 50_000, f"of device {device}", correlationId=3, pid=pid, deviceId=device)
    report = nsys.write(tmp_path / "run.sqlite")
    first = torch_file(tmp_path, host("cpu_op", "first", 10, 8), name="rank1.json")
    second = torch_file(tmp_path, host("cpu_op", "second", 10, 8) | {"pid": PID + 1}, name="rank0.json")
    _, rows = table(tmp_path, first, second, report, columns="id, kind, name, rank, device, op_id, launch_id")
    assert rows == [
        (0, "op", "second", 0, None, None, None),
        (1, "op", "first", 1, None, None, None),
        (2, "launch", "cudaLaunchKernel", 0, None, 0, None),
        (3, "launch", "cudaLaunchKernel", 1, None, 1, None),
        (4, "kernel", "of device 0", 1, 0, 1, 3),
        (5, "kernel", "of device 1", 0, 1, 0, 2),
    ]


@pytest.mark.parametrize(
    ("pid", "base_ns"), [(PID + 1, EPOCH_NS), (PID, EPOCH_NS + 10**12), (PID, 0)], ids=["process", "time", "no clock"]
)
def test_files_of_different_runs_stay_apart(tmp_path: Path, pid: int, base_ns: int) -> None:
    nsys = NsysFile()
    nsys.kernel(20_000, 50_000)
    op = host("cpu_op", "a", 10, 8) | {"pid": pid}
    footer, _ = table(tmp_path, torch_file(tmp_path, op, base_ns=base_ns), nsys.write(tmp_path / "run.sqlite"))
    assert [(one.path, one.rank) for one in footer.sources] == [("run.sqlite", 0), ("torch.json", 1)]
    assert "clocks" not in footer.capture


def test_one_recording_in_two_files(tmp_path: Path) -> None:
    nsys = NsysFile()
    nsys.kernel(0, 10)
    folder = tmp_path / "reports"
    folder.mkdir()
    first, second = (nsys.write(folder / name) for name in ("a.sqlite", "b.sqlite"))
    with pytest.raises(UsageError, match=r"b\.sqlite and .*a\.sqlite are the same recording, in two files; give one"):
        convert([first, second], tmp_path / "out.parquet")
    footer: Footer = convert([folder], tmp_path / "out.parquet")
    assert (footer.ledger.stored, len(footer.ledger.ignored_files)) == (1, 1)


@pytest.mark.parametrize(("names", "joined"), [(("{}", "t{}"), False), (("nsys-rank{}", "torch-rank{}"), True)])
def test_equal_numbers_of_processes_on_two_machines(tmp_path: Path, names: tuple[str, str], joined: bool) -> None:
    """In containers the first process is number 1 everywhere. Without ranks nobody knows whose ops these are."""
    files = []
    for machine in range(2):
        nsys = NsysFile()
        nsys.runtime(12_000, 15_000, correlationId=3)
        nsys.kernel(20_000, 50_000, f"of machine {machine}", correlationId=3)
        files.append(nsys.write(tmp_path / f"{names[0].format(machine)}.sqlite", epoch_ns=EPOCH_NS + machine))
        op = host("cpu_op", f"of machine {machine}", 10, 8)
        files.append(torch_file(tmp_path, op, name=f"{names[1].format(machine)}.json"))
    footer, rows = table(tmp_path, *files)
    names_of = {row[0]: row[2] for row in rows}
    ops = [(row[2], names_of.get(row[7]), row[5]) for row in rows if row[1] == "kernel"]
    assert ops == [(f"of machine {rank}", f"of machine {rank}" if joined else None, rank) for rank in range(2)]
    assert footer.ledger.notes == ({} if joined else {LEFT_APART: 2})


def test_profilers_that_took_turns(tmp_path: Path) -> None:
    """torch.profiler was on for a while after nsys was: no work is in both."""
    nsys = NsysFile()
    for number in range(3):
        nsys.runtime(1000 * number, 1000 * number + 500, correlationId=number + 1)
        nsys.kernel(1000 * number + 600, 1000 * number + 900, "of nsys", correlationId=number + 1)
    launch = host("cuda_runtime", "cudaLaunchKernel", 5, 0.5, correlation=1)
    torch = torch_file(tmp_path, launch, kernel("of torch", 5.6, 0.3, 1))
    footer, rows = table(tmp_path, torch, nsys.write(tmp_path / "run.sqlite"), columns="kind, name, ts, launch_id")
    assert [row for row in rows if row[0] == "kernel"] == [
        ("kernel", "of nsys", 600, 0),
        ("kernel", "of nsys", 1600, 1),
        ("kernel", "of nsys", 2600, 2),
        ("kernel", "of torch", 5600, 3),
    ]
    assert footer.ledger.skipped == {}


def test_as_many_steps_are_not_the_same_steps(tmp_path: Path) -> None:
    """nsys saw the steps 0 to 4 and torch.profiler the steps 2 to 6, of 10.0, 10.2, ... 11.2 ms."""
    at = [1_000_000 + 10_000_000 * number + 100_000 * number * (number - 1) for number in range(7)]
    nsys = NsysFile()
    for start in at[:5]:
        nsys.nvtx(start, start + 9_000_000, STEP)
    steps = [host("user_annotation", STEP, start / 1000 + 40, 9_000) for start in at[2:]]
    footer, rows = table(
        tmp_path, torch_file(tmp_path, *steps), nsys.write(tmp_path / "run.sqlite"), columns="ts, step"
    )
    assert rows == [(start - at[0], number) for number, start in enumerate(at)]
    assert (footer.capture["clocks"][0]["offset_ns"], footer.ledger.skipped) == (-40_000, {RANGES_TWICE: 3})


def test_two_processes_of_which_one_has_device_work(tmp_path: Path) -> None:
    """Each is of the rank that its file of torch.profiler says."""
    nsys = NsysFile()
    nsys.kernel(20_000, 50_000)
    nsys.nvtx(0, 1_000, "server", pid=PID + 1)
    worker = torch_file(tmp_path, host("cpu_op", "worker", 10, 8), name="rank0.json")
    server = torch_file(tmp_path, host("cpu_op", "server", 10, 8) | {"pid": PID + 1}, name="rank1.json")
    _, rows = table(tmp_path, worker, server, nsys.write(tmp_path / "run.sqlite"), columns="kind, name, rank")
    assert sorted(rows) == [
        ("annotation", "server", 1),
        ("kernel", "gemm", 0),
        ("op", "server", 1),
        ("op", "worker", 0),
    ]
