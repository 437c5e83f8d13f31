"""counters: what was measured of the kernels of a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.command_line import run
from tests.event_rows import annotation, kernel, launch, write_trace
from tests.ncu_tables import (
    BLOCK,
    DURATION,
    GRID,
    MEMORY,
    SHAPE,
    SM,
    UNITS,
    VALUES,
    WAVES,
    analyze,
    details,
    measured,
    opened,
    raw,
    work,
    write,
)
from tracekit.errors import UnknownFormatError
from tracekit.text_page import Page
from tracekit.trace import Trace

# ---- nothing ---------------------------------------------------------------------------------------------------------


def test_nothing_recorded(tmp_path: Path) -> None:
    result = analyze(tmp_path, [], raw(UNITS, measured("k")))
    assert (result.table.num_rows, result.summary, result.findings) == (0, (), ())
    assert result.coverage.reason.startswith("nothing was recorded")


def test_nothing_measured(tmp_path: Path) -> None:
    """Then it says how to measure, and stands in nobody's way: no table, no finding."""
    result = analyze(tmp_path, [work(0, 40, "k"), work(50, 10, "k")], None)
    assert (result.table.num_rows, result.summary, result.findings) == (0, (), ())
    assert (result.coverage.explained_ns, result.coverage.total_ns) == (0, 50)
    assert result.coverage.reason.startswith("no counters given; record them with: ncu --target-processes all --csv")
    assert result.coverage.reason.endswith("; and pass --ncu metrics.csv")


# ---- rows in, table out ----------------------------------------------------------------------------------------------


def test_counters_of_a_trace(tmp_path: Path) -> None:
    rows = [work(0, 700, "ns::a<int>(int)"), work(700, 300, "ns::a<int>(int)"), work(1000, 250, "b", grid_x=9)]
    page = raw(
        UNITS,
        measured("ns::a<int>(int)", "1000", "600", "400", "70", "50", "2.5", id=0),
        measured("ns::a<int>(int)", "3000", "700", "500", "72", "54", "2.5", id=1, device="1"),
        measured("b", id=2),
    )
    result = analyze(tmp_path, rows, page)
    assert result.table.to_pylist() == [
        {
            **{"rank": 0, "device": 0, "kernel": "ns::a<int>(int)", "grid": GRID, "block": BLOCK},
            **{"count": 2, "dur_ns": 1000, "match": "exact", "launches": 2, "dram_bytes": 1100},
            **{"sm_throughput_pct": 71.0, "memory_throughput_pct": 52.0, "dram_throughput_pct": None},
            **{"achieved_occupancy_pct": None, "waves_per_sm": 2.5, "ncu_class": "compute", "duration_ratio": 4.0},
            "example_id": 1,
        },
        {
            **{"rank": 0, "device": 0, "kernel": "b", "grid": "(9, 1, 1)", "block": BLOCK},
            **{"count": 1, "dur_ns": 250, "match": "none", "launches": None, "dram_bytes": None},
            **{"sm_throughput_pct": None, "memory_throughput_pct": None, "dram_throughput_pct": None},
            **{"achieved_occupancy_pct": None, "waves_per_sm": None, "ncu_class": "unknown", "duration_ratio": None},
            "example_id": 3,
        },
    ]
    assert result.summary == [
        {
            **{"rank": 0, "device": 0, "kernels": 2, "kernel_ns": 1250, "counted_ns": 1000, "share": 0.8},
            **{"ambiguous_ns": 0, "other_gpu_ns": 0, "unmeasured_ns": 250, "by_class": {"compute": 1000}},
        }
    ]
    assert (result.coverage.explained_ns, result.coverage.total_ns) == (1000, 1250)
    assert result.coverage.reason == (
        "of the kernel time, 20.0% not measured; 1 measured kernel not in this trace by name and geometry"
    )


def test_metrics_of_each_device(tmp_path: Path) -> None:
    page = raw({SM: "%"}, *(measured("k", value, id=at, device="3") for at, value in enumerate(("1", "5", "2"))))
    with opened(tmp_path, [], page) as trace:
        (row,) = trace.sql("FROM ncu_metrics").to_pylist()
    assert row == {
        **{"kernel": "k", **SHAPE, "device": 3, "cc": "9.0", "metric": SM, "label": None, "unit": "%"},
        **{"value": 2.0, "launches": 3, "low": 1.0, "high": 5.0},
    }


def test_classes_are_those_of_ncu(tmp_path: Path) -> None:
    classes = {
        ("80", "10", "2"): "high_throughput",
        ("10", "80", "0.5"): "high_throughput",
        ("79.9", "60", "2"): "compute",
        ("60", "70", "2"): "memory",
        ("60", "69.9", "0.5"): "balanced",
        ("59.9", "59.9", "1"): "latency",
        ("59.9", "59.9", "0.99"): "small_grid",
        ("59.9", "59.9", "n/a"): "underused",
        ("90", "n/a", "2"): "unknown",
    }
    names = "abcdefghi"
    page = raw(
        {SM: "%", MEMORY: "%", WAVES: ""},
        *(measured(name, *values, id=at) for at, (name, values) in enumerate(zip(names, classes, strict=True))),
    )
    result = analyze(tmp_path, [work(at, 1, name) for at, name in enumerate(names)], page)
    assert result.table["kernel"].to_pylist() == list(names)
    assert result.table["ncu_class"].to_pylist() == list(classes.values())


def wide(path: Path, page: str) -> dict[str, Any]:
    with opened(path, [work(0, 9, "k")], page) as trace:
        (row,) = trace.sql("FROM kernel_counters").to_pylist()
    return {key: value for key, value in row.items() if value is not None and key not in SHAPE}


def test_bytes_from_bandwidth_and_duration(tmp_path: Path) -> None:
    """A details page has no bytes, but Memory Throughput in byte/s and Duration."""
    one, _ = measured("k")
    page = details((one, "Memory Workload Analysis", "Memory Throughput", "Gbyte/s", "345.14"))
    page += details((one, "GPU Speed Of Light Throughput", "Duration", "us", "6.75"))
    assert wide(tmp_path, page)["dram_bytes"] == 2_329_695


def test_what_no_counter_can_have_counted_is_not_known(tmp_path: Path) -> None:
    """Beyond all whole numbers, and below none."""
    found = wide(tmp_path, raw(UNITS, measured("k", "1e30", "-600", "4e300", "70", "50", "2.5")))
    assert not found.keys() & {"duration_ns", "dram_bytes", "dram_read_bytes", "dram_write_bytes"}
    assert (found["sm_throughput_pct"], found["memory_throughput_pct"]) == (70, 50)


def test_flops_from_counts_or_from_what_rooflines_have(tmp_path: Path) -> None:
    count, rate = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum", "{}.per_cycle_elapsed"
    single = {count.format(op): "inst" for op in ("fadd", "fmul", "ffma")}
    half = {rate.format(count.format(op)): "inst/cycle" for op in ("hadd", "hmul", "hfma")}
    tensor = {f"sm__ops_path_tensor_src_{types}.sum": "" for types in ("bf16_dst_fp32", "fp8_dst_fp32", "bf16")}
    units = {**single, **half, **tensor, "smsp__cycles_elapsed.avg.per_second": "cycle/nsecond", DURATION: "us"}
    values = (*map(str, (1, 2, 3)), *map(str, (10, 20, 30)), *map(str, (5, 6, 7)), "2", "1")
    found = wide(tmp_path, raw(units, measured("k", *values)))
    assert (found["fp32_flops"], found["fp16_flops"], found["tensor_ops"]) == (9.0, 90 * 2000.0, 11.0)
    assert "fp64_flops" not in found
    assert found["sm_frequency_hz"] == 2e9


# ---- parts, findings -------------------------------------------------------------------------------------------------


def test_only_the_kernels_in_the_scope(tmp_path: Path) -> None:
    rows = [
        annotation("step[DECODE bs=1]", 0, 50),
        launch(10, 5),
        work(20, 10, "k", launch_id=2),
        work(40, 30, "k"),
        work(0, 5, "k", rank=1),
    ]

    def times(part: Trace) -> list[int]:
        return [row["dur_ns"] for row in part.analyze("counters").table.to_pylist()]

    with opened(tmp_path, rows, raw(UNITS, measured("k"))) as trace:
        assert times(trace) == [40, 5]
        assert times(trace.only(phase="decode")) == [10]
        assert times(trace.only(rank=0, until_ns=50)) == [20]


def test_the_costliest_kernels_without_counters(tmp_path: Path) -> None:
    rows = [
        work(0, 60, "void ns::f<int>(int)"),
        work(60, 10, "ns::f<float>(int)"),
        work(80, 20, "g.1"),
        work(200, 10, "k"),
    ]
    result = analyze(tmp_path, rows, raw(UNITS, measured("k", "10", "1", "1", "90", "90", "2")))
    (finding,) = result.findings
    assert (finding.severity, finding.title) == ("info", "90.0% of the kernel time has no counters")
    assert finding.detail.startswith(
        "Mostly void ns::f<int>(int) (0.060 us); g.1 (0.020 us); ns::f<float>(int) (0.010 us)"
    )
    assert finding.evidence == (1, 3, 2)
    assert " --kernel-name 'regex:^(f|g\\.1)$' --launch-count 3 --log-file metrics.csv COMMAND" in finding.remedy
    assert (
        analyze(tmp_path, rows, raw(UNITS, measured("k", "10", "1", "1", "90", "90", "2")), covered_share=0.1).findings
        == ()
    )


def test_kernels_under_both_roofs(tmp_path: Path) -> None:
    rows = [work(0, 60, "slow"), work(60, 30, "tiny"), work(90, 10, "fine")]
    page = raw(
        UNITS,
        measured("slow", "60", "1", "1", "20", "40", "3"),
        measured("tiny", "30", "1", "1", "1", "2", "0.1", id=1),
        measured("fine", "10", "1", "1", "90", "40", "3", id=2),
    )
    first, second = analyze(tmp_path, rows, page).findings
    assert first.title == "kernels under 60 % of both compute and memory throughput take 60.0% of the kernel time"
    assert first.detail.startswith("Mostly slow (compute 20 %, memory 40 %). Neither roof binds them")
    assert second.title == "kernels under 60 % of both roofs with a grid below one wave take 30.0% of the kernel time"
    assert {(one.severity, one.saving_high_ns) for one in (first, second)} == {("warning", 0)}
    assert (first.evidence, second.evidence) == ((1,), (2,))
    assert analyze(tmp_path, rows, page, under_share=0.7).findings == ()
    assert analyze(tmp_path, rows, page, low_pct=15).findings[0].evidence == (2,)


def test_measured_in_another_situation(tmp_path: Path) -> None:
    names = {"short": "99", "half": "100", "twice": "400", "long": "401"}
    rows = [work(at, 200, name) for at, name in enumerate(names)]
    page = raw(UNITS, *(measured(name, ns, *VALUES[1:], id=at) for at, (name, ns) in enumerate(names.items())))
    (finding,) = analyze(tmp_path, rows, page).findings
    assert finding.title == "2 kernels took a time under Nsight Compute that is off by more than a factor of 2"
    assert finding.detail.startswith("Mostly long (2 times as long); short (0.495 times as long).")
    assert finding.evidence == (4, 1)


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    rows = [work(0, 900, "k"), kernel(1000, 100, name="[bold]other")]
    page = details((measured("k")[0], "GPU Speed Of Light Throughput", "Duration", "us", "1"))
    return write_trace(tmp_path / "trace.parquet", rows), write(tmp_path / "metrics.csv", page)


def test_analyze_with_counters_as_json(files: tuple[Path, Path]) -> None:
    trace, page = files
    shown = run("analyze", trace, "counters", "--ncu", page, "--format", "json")
    assert (shown.exit_code, shown.stderr) == (0, "")
    found = json.loads(shown.stdout)
    result = found["results"]["counters"]
    assert [(row["kernel"], row["match"]) for row in result["table"]] == [("k", "exact"), ("[bold]other", "none")]
    assert result["coverage"]["explained_ns"] == 900
    counts = {"kept": 1, "launches": 1, "read": 1}
    assert found["trace"]["counters"] == [
        {"file": str(page), "entry": entry, "reason": "", "count": count} for entry, count in counts.items()
    ]


def test_analyze_with_counters_as_text(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    trace, page = files
    monkeypatch.setenv("COLUMNS", "100")
    lines = run("analyze", trace, "counters", "--ncu", page).stdout.replace("█", "#").splitlines()  # by the encoding
    assert lines[lines.index("counters") + 1 :] == [
        "  metrics.csv: 1 launched kernel, 1 of 1 value kept",
        "  of the kernel time, 10.0% not measured",
        "  rank 0 device 0: 90.0% of 1.00 us kernel time has counters",
        "    unknown          0.900 us  90.0%  ######################",
        "    kernel       grid       block       count      time  class",
        "    k            (8, 1, 1)  (32, 4, 1)      1  0.900 us  unknown",
        "    [bold]other                             1  0.100 us  not measured",
    ]


def test_without_counters_the_text_says_how_to_get_them(files: tuple[Path, Path]) -> None:
    shown = run("analyze", files[0], "counters")
    assert shown.exit_code == 0
    assert "no counters given; record them with: ncu" in " ".join(shown.stdout.split())


def test_sql_over_counters(files: tuple[Path, Path]) -> None:
    trace, page = files
    query = "SELECT metric, value, unit FROM ncu_metrics"
    shown = run("sql", trace, query, "--ncu", page, "--ncu", page, "--format", "csv")
    assert shown.stdout == f"metric,value,unit\n{DURATION},1000.0,ns\n"


def test_where_to_read_more_names_the_files(files: tuple[Path, Path]) -> None:
    path, page = files
    with tracekit.open(path, ncu=[page]) as trace:
        beside = list(trace.beside.given)
    assert beside == ["--ncu", str(page)]
    (line,) = Page("t.parquet", (), 200, "#", False, [beside[0], "m.csv"]).more(["counters"])
    assert line.plain == "  in full: tracekit analyze t.parquet counters --ncu m.csv"


def test_bad_tables_on_the_command_line(files: tuple[Path, Path]) -> None:
    trace, page = files
    write(page, page.read_text()[:-9])
    shown = run("analyze", trace, "--ncu", page)
    assert (shown.exit_code, shown.stdout) == (4, "")
    assert "metrics.csv: line 2 is cut short" in shown.stderr
    assert run("analyze", trace, "--ncu", trace).exit_code == 3
    assert run("analyze", trace, "--ncu", "none.csv").exit_code == 2
    assert run("analyze", trace, "--ncu", page, "-o", page, "--force").exit_code == 2
    with pytest.raises(UnknownFormatError, match="none of its lines has the columns"):
        tracekit.open(trace, ncu=trace)
