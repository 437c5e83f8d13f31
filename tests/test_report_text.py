"""The verdict fits one screen, says the numbers of the results, and is safe to print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.event_rows import annotation, kernel, launch, op, write_trace
from tests.simulator import Plant, Run, simulate
from tracekit.convert import convert
from tracekit.report_text import LINES, WIDTH, clean, grid, render, time

US = 1_000


def report(path: Path, rows: Sequence[dict[str, Any]], **options: Any) -> list[str]:
    with tracekit.open(write_trace(path / "trace.parquet", rows)) as trace:
        results = {name: trace.analyze(name) for name in ("attribution", "health", "idle_gaps")}
        lines = [line.plain for line in render(trace, results, **options)]
    assert all(len(line) <= WIDTH for line in lines)
    return lines


def test_the_empty_trace(tmp_path: Path) -> None:
    lines = report(tmp_path, [])
    assert lines[0] == "rank0.json   0 events   1 rank"
    assert any(line.startswith("no device activity in this trace") for line in lines)
    assert lines[-1].endswith("checks fine")


def test_whole_verdict(tmp_path: Path) -> None:
    rows = [
        annotation("step[DECODE bs=4]", 0, 10**6),
        launch(0, 5 * US),
        op(6 * US, 900 * US, parent_id=1),
        launch(392 * US, 5 * US, parent_id=3),
        kernel(10 * US, 90 * US, launch_id=2, name="nvjet_tst_128"),
        kernel(400 * US, 610 * US, launch_id=4, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
    ]
    assert report(tmp_path, rows) == [
        "rank0.json   6 events   1 rank   NVIDIA H100 80GB HBM3",
        "rank 0 device 0   span 1.000 ms   busy 700.000 us (70.0%)   idle 300.000 us (30.0%)",
        "Busy time",
        "  communication          610.000 us   87.1%  █████████████████████",
        "  gemm                    90.000 us   12.9%  ███",
        "  0.0% of it is in no category (other)",
        "  by phase: decode 100.0%",
        "Idle time by cause",
        "  launch_bound           300.000 us   30.0% of span          1 gap",
        "Findings",
        "  critical the host launches too slowly: 0.300 ms idle (30.0% of the span)",
        "           1 gap, the longest 300.0 us; mostly in aten::mm (0.300 ms). The host was still preparing",
        "           or launching when the device ran dry. Tracing slows the host, so the true figure is",
        "           lower.",
        "           do: Replay decode steps as CUDA graphs (vLLM: drop enforce_eager; SGLang: drop",
        "               disable-cuda-graph). Where shapes vary, compile, or fuse to launch fewer and larger",
        "               kernels.",
        "           price: Graph memory, longer start-up, batches padded to captured sizes.",
        "           check: Same load, this one change: idle by cause in a new trace; P50 and P99 of ITL",
        "                  unprofiled.",
        "Health  all 18 checks fine",
    ]


def test_names_are_data(tmp_path: Path) -> None:
    """Neither markup nor terminal escapes of a kernel's name take effect."""
    rows = [kernel(0, 5, name="[bold red]evil[/] <T>\x1b[2J\x07\nnext\u202e"), kernel(9, 5, name="nvjet")]
    text = "\n".join(report(tmp_path, rows))
    assert "[bold red]evil[/] <T>\\x1b[2J\\x07\\nnext\\u202e" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("ranks", [1, 2, 64])
def test_one_screen_for_any_number_of_ranks(tmp_path: Path, ranks: int) -> None:
    rows: list[dict[str, Any]] = []
    for rank in range(ranks):
        base = len(rows)
        rows += [
            launch(0, 5 * US, rank=rank),
            op(6 * US, 10**6, rank=rank),
            launch(290 * US, 5 * US, rank=rank, parent_id=base + 2),
            kernel(10 * US, 90 * US, rank=rank, launch_id=base + 1, name="zqx" * 200),
            kernel(300 * US + rank, 9 * US, rank=rank, launch_id=base + 3, name=f"unknown{rank}"),
            kernel(400 * US, 9 * US, rank=rank, name="nvjet"),
        ]
    lines = report(tmp_path, rows)
    assert len(lines) <= LINES
    text = "\n".join(lines)
    assert "the host launches too slowly" in text
    if ranks == 64:
        assert "     and 56 more devices" in lines
        assert "Busy time, all 64 devices" in lines


def test_one_screen_when_everything_is_wrong(tmp_path: Path) -> None:
    plant = Plant(launch_bound_ns=20_000, syncs_per_step=3, between_steps_ns=900_000, holes_per_step=3, hole_ns=300_000)
    simulate(Run(plant=plant, steps=4, ranks=4), tmp_path / "ranks")
    convert([tmp_path / "ranks"], tmp_path / "trace.parquet")
    with tracekit.open(tmp_path / "trace.parquet") as trace:
        results = {name: trace.analyze(name) for name in trace.analyses()}
        lines = [line.plain for line in render(trace, results)]
        assert len(lines) <= LINES
        assert max(map(len, lines)) <= WIDTH
        text = "\n".join(lines)
        for finding in results["idle_gaps"].findings:
            assert finding.title[:60] in text


def test_without_device_activity(tmp_path: Path) -> None:
    lines = report(tmp_path, [op(0, 70, name="aten::mm"), op(80, 30, name="aten::softmax")])
    assert lines[1].startswith("no device activity in this trace: this is host op time")
    assert "Host op time" in lines
    assert "  gemm                     0.070 us   70.0%  █████████████████" in lines
    assert not [line for line in lines if "idle" in line]


def test_idle_time_that_cannot_be_told(tmp_path: Path) -> None:
    rows = [launch(i * 100, 5, name="cudaGraphLaunch") for i in range(9)]
    rows += [kernel(10, 5, launch_id=1), kernel(900, 5, launch_id=1)]
    text = "\n".join(report(tmp_path, rows))
    assert "idle time cannot be told: 8 of 9 graph replays" in text
    assert "graph_launches_without_work" in text


def test_plain_blocks_where_the_terminal_has_no_others(tmp_path: Path) -> None:
    lines = report(tmp_path, [kernel(0, 5, name="nvjet")], unicode=False)
    assert "  gemm                     0.005 us  100.0%  ########################" in lines


def test_tables_follow_when_analyses_were_named(tmp_path: Path) -> None:
    lines = report(tmp_path, [kernel(0, 5, name="nvjet"), kernel(9, 5, name="nvjet")], named=True)
    start = lines.index("idle_gaps")
    assert lines[start + 1].split()[:5] == ["rank", "device", "ts", "dur", "cause"]
    assert lines[start + 2].split()[:5] == ["0", "0", "5", "4", "unattributed"]
    assert any(line.startswith("  ok   events: 2 read = 2 stored") for line in lines)


@pytest.mark.parametrize(
    ("ns", "shown"), [(0, "0.000 us"), (999_999, "999.999 us"), (10**6, "1.000 ms"), (10**10, "10.000 s")]
)
def test_time(ns: int, shown: str) -> None:
    assert time(ns) == shown


def test_clean_keeps_what_is_printable() -> None:
    assert clean("void f<T>(é, 漢)") == "void f<T>(é, 漢)"
    assert clean("a\tb\\") == "a\\tb\\"


def test_grid() -> None:
    rows: list[dict[str, Any]] = [{"a": 1, "b": "x"}, {"a": 22, "b": None}]
    assert grid(["a", "b"], rows) == [" a  b", " 1  x", "22"]
    assert grid(["a"], []) == ["a"]
