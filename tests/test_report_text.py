"""The verdict fits one screen, says the numbers of the results, and is safe to print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.event_rows import annotation, footer_of, kernel, launch, op, write_trace
from tests.simulator import Plant, Run, simulate
from tracekit.analyses._idle_advice import MEANINGS
from tracekit.analysis import duration
from tracekit.convert import convert
from tracekit.footer import Footer
from tracekit.report_text import LINES, WIDTH, render
from tracekit.text_grid import clean, grid
from tracekit.wording import counted

US = 1_000


def report(path: Path, rows: Sequence[dict[str, Any]], footer: Footer | None = None, **options: Any) -> list[str]:
    with tracekit.open(write_trace(path / "trace.parquet", rows, footer)) as trace:
        results = {name: trace.analyze(name) for name in ("attribution", "health", "idle_gaps")}
        lines = [line.plain for line in render(trace, results, **options)]
    fitting = lines if not options.get("named") else lines[: lines.index("attribution")]  # tables may be wider
    assert all(len(line) <= options.get("width", WIDTH) for line in fitting)
    assert all(line == line.rstrip() for line in lines)
    return lines


def test_the_empty_trace(tmp_path: Path) -> None:
    lines = report(tmp_path, [])
    assert lines == [
        "trace.parquet   0 events   1 rank",
        "nothing was recorded: this trace has no events; check that the profiler was running",
        "Health",
        "  fail events: 0 read = 0 stored + 0 skipped: nothing was recorded; was the profiler running?",
    ]


VERDICT = [
    annotation("step[DECODE bs=4]", 0, 10**6),
    launch(0, 5 * US),
    *(row for at in range(4) for row in (op((101 + 200 * at) * US, 90 * US), launch((192 + 200 * at) * US, 5 * US))),
    kernel(10 * US, 90 * US, launch_id=2, name="nvjet_tst_128"),
    *(kernel((200 + 200 * at) * US, 100 * US, launch_id=4 + 2 * at, name="ncclDevKernel_AllReduce") for at in range(4)),
]


def test_whole_verdict(tmp_path: Path) -> None:
    assert report(tmp_path, VERDICT, name="../runs/today.parquet") == [
        "../runs/today.parquet   15 events   1 rank   NVIDIA H100 80GB HBM3",
        "rank 0 device 0   span 890 us   busy 490 us (55.1%)   idle 400 us (44.9%)",
        "Busy time",
        "  communication         400 us  81.6%  ████████████████████",
        "  gemm                 90.0 us  18.4%  ████",
        "  by phase: decode 100.0%",
        "Idle time by cause             of span    gaps  /decode step",
        "  launch_bound          365 us   41.0%       4        365 us",
        "  launch_latency       32.0 us    3.6%       4       32.0 us",
        "  unattributed         3.00 us    0.3%       3       3.00 us",
        "Findings",
        "  critical launch_bound: the device waits in a few gaps, 365 us in the only decode step, 41.0% of",
        "           its time [idle_gaps.1]",
        "           4 gaps, the longest 92.0 us, in 1 step; mostly in aten::mm (360 us). So few gaps are",
        "           seldom the price of launching: a first use, or one stretch of host code.",
        "           do: Warm up before recording, so that first uses lie outside; if the gap stays, shorten",
        "               the host code named here or move it off the path of the step.",
        "           price: Longer warm-up.",
        "           check: Record again after warm-up: the gap is gone, or it is real.",
        "  warning  launch_latency: launches arrive at an empty device, 32.0 us in the only decode step, 3.6%",
        "           of its time [idle_gaps.2]",
        "           4 gaps, the longest 8.00 us, in 1 step; mostly in cudaLaunchKernel (32.0 us). The device",
        "           had nothing else to do while these launches were on their way.",
        "           do: Let launches run ahead of the device: shorten the host code between them, or replay",
        "               them as CUDA graphs (SGLang: no --disable-cuda-graph; --cuda-graph-max-bs up to the",
        "               batch).",
        "           price: Graph memory, longer start-up, batches padded to captured sizes.",
        "           check: Same load, this one change: idle by cause in a new trace; P50 and P99 of ITL",
        "                  unprofiled.",
        "Health  all 21 checks fine",
    ]


def test_a_partial_recording_says_so_first_whatever_is_asked(tmp_path: Path) -> None:
    footer = footer_of(VERDICT, capture={"partial": ["process 7 was killed"]})
    for named in (False, True):
        lines = report(tmp_path, VERDICT, footer, named=named)
        assert lines[0] == "trace.parquet   15 events   1 rank   NVIDIA H100 80GB HBM3   partial: see health"
    assert report(tmp_path, VERDICT, footer)[-2:] == [
        "Health",
        "  warn capture: less was recorded than was asked for: process 7 was killed",
    ]


def test_a_narrow_screen_wraps_and_cuts_no_number(tmp_path: Path) -> None:
    lines = report(tmp_path, VERDICT, name="../runs/today.parquet", width=60)
    assert len(lines) <= LINES
    assert lines[:7] == [
        "../runs/today.parquet   15 events   1 rank",
        "  NVIDIA H100 80GB HBM3",
        "rank 0 device 0   span 890 us   busy 490 us (55.1%)",
        "  idle 400 us (44.9%)",
        "Busy time",
        "  communication         400 us  81.6%  █████████████████",
        "  gemm                 90.0 us  18.4%  ████",
    ]
    assert "Idle time by cause             of span    gaps  /decode step" in lines
    assert "  launch_bound          365 us   41.0%       4        365 us" in lines
    assert "  in full: tracekit analyze ../runs/today.parquet idle_gaps" in lines


def test_what_does_not_fit_is_said_to_be_elsewhere_and_is_there(tmp_path: Path) -> None:
    rows = [*VERDICT, *(kernel((1_000 + 100 * at) * US, 10 * US, name="z" * 300) for at in range(9))]
    lines = report(tmp_path, rows, name="a trace.parquet", width=60)
    assert len(lines) <= LINES
    text = " ".join(line.strip() for line in lines)
    assert "in full: tracekit analyze 'a trace.parquet' idle_gaps attribution" in text
    whole = report(tmp_path, rows, width=60, named=True)
    assert len(whole) > LINES
    assert not [line for line in whole if line.endswith(" ...") or "in full" in line]
    with tracekit.open(tmp_path / "trace.parquet") as trace:
        finding = trace.analyze("idle_gaps").findings[0]
    assert finding.remedy in " ".join(line.strip() for line in whole).replace("do: ", "")


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
    assert "launch_bound: the device waits in a few gaps" in text
    if ranks == 64:
        assert "     and 57 more devices" in lines
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
        assert len(results["idle_gaps"].findings) >= 5
        for finding in (one for one in results["idle_gaps"].findings if one.saving_high_ns):
            assert finding.title[:50] in text
        assert "  11 more               521 us  34.6%  ████████" in lines, "categories make room"


def test_without_device_activity(tmp_path: Path) -> None:
    lines = report(tmp_path, [op(0, 70, name="aten::mm"), op(80, 30, name="aten::softmax")])
    assert lines[1].startswith("this is host op time (each op without the ops inside it), not GPU time: no device")
    assert "Host op time" in lines
    assert "  gemm                0.070 us  70.0%  █████████████████" in lines
    assert not [line for line in lines if "idle" in line]


def test_idle_time_that_cannot_be_told(tmp_path: Path) -> None:
    rows = [launch(i * 1000, 5, name="cudaGraphLaunch") for i in range(9)]
    rows += [kernel(10, 5, launch_id=1), kernel(900, 5, launch_id=1)]
    lines = report(tmp_path, rows)
    assert lines[1:3] == [
        "rank 0 device 0   span 0.895 us   busy 0.010 us   idle cannot tell",
        "idle time cannot be told: 8 of 9 graph replays left no device work in the trace, so a hole may be",
    ]
    assert not [line for line in lines if line.startswith("Idle time by cause")]
    assert "graph_launches_without_work" in "\n".join(lines)
    lines = report(tmp_path, [*rows, kernel(10, 50, rank=1)], named=True)
    assert lines[2:5] == [
        "   0      0  0.895 us      ?      ?  other",
        "   1      0  0.050 us      ?      ?  other",
        "idle time cannot be told: 8 of 9 graph replays left no device work in the trace, so a hole may be",
    ]
    assert lines[lines.index("idle_gaps") + 1].startswith("  idle time cannot be told: 8 of 9 graph replays")


def test_plain_blocks_where_the_terminal_has_no_others(tmp_path: Path) -> None:
    lines = report(tmp_path, [kernel(0, 5, name="nvjet")], unicode=False)
    assert "  gemm                0.005 us 100.0%  ########################" in lines


def test_tables_follow_when_analyses_were_named(tmp_path: Path) -> None:
    rows = [
        op(0, 900 * US),
        launch(0, 5 * US, parent_id=1),
        kernel(10 * US, 20 * US, launch_id=2, name="nvjet"),
        kernel(40 * US, 60 * US, name="nvjet"),
        launch(190 * US, 5 * US, parent_id=1),
        kernel(200 * US, 50 * US, launch_id=5, name="nvjet" * 30),
    ]
    lines = report(tmp_path, rows, named=True)
    start = lines.index("idle_gaps")
    assert lines[start + 1 :] == [
        "Gaps by length                 of idle    gaps",
        "  10us to 100us        10.0 us    9.1%       1  ██",
        "  100us to 1ms          100 us   90.9%       1  ██████████████████████",
        "  longest first, 3 of 3 parts of gaps",
        "      ts      dur  cause           step  phase    place",
        "0.100 ms  90.0 us  launch_bound          unknown  outside",
        f"    ended by 6 {('nvjet' * 30)[:32]}...    blamed on 1 aten::mm",
        "0.030 ms  10.0 us  unattributed          unknown  outside",
        "    ended by 4 nvjet",
        "0.190 ms  10.0 us  launch_latency        unknown  outside",
        f"    ended by 6 {('nvjet' * 30)[:32]}...    blamed on 5 cudaLaunchKernel",
    ]
    assert f"    {MEANINGS['unattributed']}" in lines
    assert [line.strip() for line in lines if line.lower().startswith("health")] == ["health"]
    assert any(line.startswith("  ok   events: 6 read = 6 stored") for line in lines)


def test_of_many_gaps_the_longest_are_shown(tmp_path: Path) -> None:
    rows = [kernel(at * 1_000 + at * at, 5, name="nvjet") for at in range(60)]
    lines = report(tmp_path, rows, named=True)
    start = lines.index("idle_gaps")
    assert lines[start + 1 : start + 5] == [
        "Gaps by length                 of idle    gaps",
        "  below 1us            1.99 us    3.2%       2  █",
        "  1us to 10us          60.2 us   96.8%      57  ███████████████████████",
        "  longest first, 20 of 59 parts of gaps; all of them, by time: --format json",
    ]
    assert lines[start + 6].split()[:4] == ["0.061", "ms", "1.11", "us"]


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (0, "0 us"),
        (5, "0.005 us"),
        (999, "0.999 us"),
        (1_000, "1.00 us"),
        (9_994, "9.99 us"),
        (9_995, "10.0 us"),
        (99_950, "100 us"),
        (999_499, "999 us"),
        (999_500, "1.00 ms"),
        (72_890_573, "72.9 ms"),
        (10**9, "1.00 s"),
        (43_458_523_000, "43.5 s"),
        (4 * 10**12, "4,000 s"),
    ],
)
def test_duration(ns: int, shown: str) -> None:
    assert duration(ns) == shown


def test_counted() -> None:
    assert [counted(count, "step") for count in (0, 1, 1_024)] == ["0 steps", "1 step", "1,024 steps"]


def test_clean_keeps_what_is_printable() -> None:
    assert clean("void f<T>(é, 漢)") == "void f<T>(é, 漢)"
    assert clean("a\tb\\") == "a\\tb\\"


def test_grid() -> None:
    rows: list[dict[str, Any]] = [{"a": 1, "b": "x"}, {"a": 22, "b": None}]
    assert grid(["a", "b"], rows) == [" a  b", " 1  x", "22"]
    assert grid(["a"], []) == ["a"]


def test_grid_cuts_text_to_fit_and_never_a_number() -> None:
    rows: list[dict[str, Any]] = [{"a": "x" * 30, "n": 123_456_789, "b": "y" * 12}]
    assert grid(["a", "n", "b"], rows, 40) == [
        "a                        n  b",
        "xxxxxxxxxxxx...  123456789  yyyyyyyyyyyy",
    ]
    assert grid(["a", "n", "b"], rows, 10) == ["a                 n  b", "xxxxx...  123456789  yyyyy..."]
    assert grid(["n"], [{"n": 123_456_789}], 5) == ["        n", "123456789"]
