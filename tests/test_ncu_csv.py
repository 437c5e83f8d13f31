"""Tables of Nsight Compute: text in, readings out."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ncu_tables import ABOUT, DETAILS, DURATION, RULES, SM, Launch, details, quoted, raw, write
from tests.real_traces import DIRECTORY
from tracekit.collectors import ncu_csv
from tracekit.collectors._ncu_values import base_unit, decimal_mark, metric_id, number
from tracekit.collectors.ncu_csv import read_counters
from tracekit.counters import LAUNCHES, LEDGER, READINGS, Counters
from tracekit.errors import MalformedTraceError, UnknownFormatError, UsageError
from tracekit.registry import collectors, readers

GEMM = Launch("gemm<float>(float*)", id=3, grid="(224, 2, 1)", block="(32, 4, 1)", cc="12.0")
SPEED = "GPU Speed Of Light Throughput"
PAGE = details(
    (GEMM, SPEED, "Duration", "us", "6.75"),
    (GEMM, SPEED, "Elapsed Cycles", "cycle", "13,485"),
    (GEMM, "Command line profiler metrics", "flop_count_hp.sum", "", "12"),
)


def read(tmp_path: Path, *texts: str) -> Counters:
    return read_counters([write(tmp_path / f"{at}.csv", text) for at, text in enumerate(texts)])


def readings(found: Counters) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in found.readings.to_pylist()]


def ledger(found: Counters) -> dict[str, int]:
    """Counts by entry and reason, of all files."""
    counts: dict[str, int] = {}
    for row in found.ledger.to_pylist():
        name = f"{row['entry']} {row['reason']}".strip()
        counts[name] = counts.get(name, 0) + row["count"]
    return counts


# ---- whole tables ----------------------------------------------------------------------------------------------------


def test_no_file_no_rows() -> None:
    found = read_counters([])
    assert (found.launches, found.readings, found.ledger) == (
        LAUNCHES.empty_table(),
        READINGS.empty_table(),
        LEDGER.empty_table(),
    )


def test_details_page(tmp_path: Path) -> None:
    found = read(tmp_path, PAGE)
    assert found.launches.to_pylist() == [
        {
            "launch": 0,
            "file": str(tmp_path / "0.csv"),
            "kernel": "gemm<float>(float*)",
            **{"grid_x": 224, "grid_y": 2, "grid_z": 1, "block_x": 32, "block_y": 4, "block_z": 1},
            **{"device": 0, "cc": "12.0"},
        }
    ]
    assert readings(found) == [
        (0, "gpu__time_duration.sum", "Duration", "ns", 6750.0),
        (0, "gpc__cycles_elapsed.max", "Elapsed Cycles", "cycle", 13485.0),
        (0, "flop_count_hp.sum", "flop_count_hp.sum", "", 12.0),
    ]
    assert ledger(found) == {"launches": 1, "read": 3, "kept": 3}


def test_raw_page(tmp_path: Path) -> None:
    second = Launch("gemm<float>(float*)", id=4, process="8", device="NVIDIA H100", cc="")
    units = {DURATION: "nsecond", "dram__bytes.sum": "Kbyte", "launch__func_cache_config": ""}
    found = read(
        tmp_path, raw(units, (GEMM, ["6,752", "32.77", "CachePreferNone"]), (second, ["7000", "n/a", "CachePreferL1"]))
    )
    assert [(row["launch"], row["device"], row["cc"]) for row in found.launches.to_pylist()] == [
        (0, 0, "12.0"),
        (1, None, None),
    ]
    assert readings(found) == [
        (0, DURATION, None, "ns", 6752.0),
        (0, "dram__bytes.sum", None, "byte", 32770.0),
        (1, DURATION, None, "ns", 7000.0),
    ]
    assert ledger(found) == {"launches": 2, "read": 6, "kept": 3, "skipped no value": 1, "skipped text": 2}


def test_both_pages_of_one_report_are_one_launch(tmp_path: Path) -> None:
    other = raw({DURATION: "nsecond", SM: "%"}, (GEMM, ["9", "50"]))
    found = read(tmp_path, PAGE, other)
    assert found.launches.num_rows == 1
    assert [(metric, value) for _, metric, _, _, value in readings(found)][-1] == (SM, 50.0)
    assert ledger(found) == {"launches": 1, "read": 5, "kept": 4, "skipped repeated": 1}


def test_processes_count_their_launches_by_themselves(tmp_path: Path) -> None:
    launches = [Launch("k", id=0, process=process, device=process) for process in ("1", "2")]
    found = read(tmp_path, raw({SM: "%"}, *((launch, ["1.5"]) for launch in launches)))
    assert [row["device"] for row in found.launches.to_pylist()] == [1, 2]


# ---- what stands around and in them ----------------------------------------------------------------------------------


def test_lines_of_ncu_and_of_the_program_are_counted(tmp_path: Path) -> None:
    head, first, *rest = PAGE.splitlines()
    lines = ["==PROF== Connected to process 7", 'step 1 of "gemm', head, first, "==WARNING== clocks", "loss 0.3"]
    lines += ['"hello", said the program', *rest, "", "==PROF== Disconnected"]
    found = read(tmp_path, "\r\n".join(lines))
    assert readings(found) == readings(read(tmp_path, PAGE))
    assert ledger(found) == {"launches": 1, "read": 3, "kept": 3, "other lines ncu": 3, "other lines program": 3}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_redirected_on_windows(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "page.csv").write_text(PAGE, encoding=encoding)
    assert readings(read_counters([tmp_path / "page.csv"])) == readings(read(tmp_path, PAGE))


def test_rules_and_cells_without_a_value(tmp_path: Path) -> None:
    rule = [*GEMM.cells(), "SpeedOfLight", "", "", "", "SOLBottleneck", "OPT", 'A "grid"\nof 2 lines', "", ""]
    cells = [(GEMM, "Occupancy", f"Metric {at}", "%", text) for at, text in enumerate(("n/a", "", "nan", "-nan(ind)"))]
    page = details(*cells, (GEMM, "Occupancy", "", "", ""), (GEMM, "Occupancy", "Config", "", "PreferL1"))
    found = read(tmp_path, page + quoted([rule]) + PAGE)
    assert readings(found) == readings(read(tmp_path, PAGE))
    skipped = {"skipped no value": 4, "skipped no metric": 1, "skipped text": 1, "skipped rule": 1}
    assert ledger(found) == {"launches": 1, "read": 10, "kept": 3, **skipped}


def test_old_versions_print_no_geometry(tmp_path: Path) -> None:
    columns = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream")
    row = ("0", "7", "app", "127.0.0.1", "k", "2021-Nov-13 18:14:36", "1", "7")
    text = quoted([(*columns, *DETAILS[-4:]), (*row, SPEED, "Duration", "nsecond", "152192")])
    found = read(tmp_path, text)
    assert {found.launches[name][0].as_py() for name in LAUNCHES.names[3:]} == {None}
    assert readings(found) == [(0, DURATION, "Duration", "ns", 152192.0)]


def test_columns_of_nvtx_are_no_metrics(tmp_path: Path) -> None:
    text = raw({"thread Domain:Push/Pop_Range:PL_Type:PL_Value": "", SM: "%"}, (GEMM, ["decode:none", "12.5"]))
    assert readings(read(tmp_path, text)) == [(0, SM, None, "%", 12.5)]


def test_instances_follow_the_value_of_the_whole_gpu(tmp_path: Path) -> None:
    text = raw({"sm__cycles_active.avg": "cycle"}, (GEMM, ["1,234.5 (1,200; 1,269)"]))
    assert readings(read(tmp_path, text))[0][-1] == 1234.5


@pytest.mark.parametrize(
    ("section", "label", "metric"),
    [
        (SPEED, "Memory Throughput", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"),
        ("Memory Workload Analysis", "Memory Throughput", "dram__bytes.sum.per_second"),
        ("Occupancy", "Achieved Occupancy", "sm__warps_active.avg.pct_of_peak_sustained_active"),
        (SPEED, SM, SM),  # --print-metric-name name
        (SPEED, f"Compute (SM) Throughput {SM}", SM),  # label-name
        ("PM Sampling", "Passes", "PM Sampling/Passes"),
    ],
)
def test_labels(section: str, label: str, metric: str) -> None:
    assert metric_id(section, label) == metric


# ---- numbers and units -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "base", "factor"),
    [
        ("", "", 1),
        ("%", "%", 1),
        ("byte", "byte", 1),
        ("Kbyte", "byte", 1000),
        ("MB", "byte", 10**6),
        ("MiB", "byte", 2**20),
        ("Gbyte/s", "byte/s", 10**9),
        ("Tbyte/second", "byte/s", 10**12),
        ("Kbyte/block", "byte/block", 1000),
        ("nsecond", "ns", 1),
        ("us", "ns", 1000),
        ("msecond", "ns", 10**6),
        ("s", "ns", 10**9),
        ("hz", "Hz", 1),
        ("Ghz", "Hz", 10**9),
        ("cycle/nsecond", "Hz", 10**9),
        ("cycle/second", "Hz", 1),
        ("inst/cycle", "inst/cycle", 1),
        ("register/thread", "register/thread", 1),
        ("Minst", "inst", 10**6),
    ],
)
def test_units(unit: str, base: str, factor: int) -> None:
    assert base_unit(unit) == (base, Decimal(factor))


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["13,485", "9,495.42"], ["13485", "9495.42"]),
        (["13.485", "9.495,42"], ["13485", "9495.42"]),
        (["9,00", "13.485"], ["9.00", "13485"]),
        (["13 485", "9\u202f495,42"], ["13485", "9495.42"]),
        (["13'485", "9'495.42"], ["13485", "9495.42"]),
        (["13,485"], ["13485"]),  # nothing tells: the point is the mark
        (["1,234,567", "1.234"], ["1234567", "1.234"]),
        (["1.5e-05", "-2"], ["0.000015", "-2"]),
    ],
)
def test_numbers_in_the_locale_of_the_file(texts: list[str], values: list[str]) -> None:
    mark = decimal_mark(enumerate(texts), "file")
    assert [number(text, mark) for text in texts] == list(map(Decimal, values))


@pytest.mark.parametrize("text", ["570.86.10", "1,2,3", "1234,567,890.5", "abc", "0x10", "1.2.3,4"])
def test_what_is_no_number_is_text(text: str) -> None:
    assert number(text, ".") is None


@given(
    st.lists(st.decimals(-(10**9), 10**9, places=2), min_size=1),
    st.sampled_from([(",", "."), (".", ","), ("\u00a0", ","), ("", "."), ("'", ".")]),
)
def test_numbers_printed_in_any_locale(values: list[Decimal], locale: tuple[str, str]) -> None:
    group, point = locale
    texts = [f"{value:,.2f}".replace(".", "!").replace(",", group).replace("!", point) for value in values]
    mark = decimal_mark(enumerate(texts), "file")
    assert [number(text, mark) for text in texts] == values


def test_two_locales_in_one_file(tmp_path: Path) -> None:
    page = details((GEMM, SPEED, "Duration", "us", "6.75"), (GEMM, SPEED, "DRAM Throughput", "%", "19,66"))
    with pytest.raises(MalformedTraceError, match=r"0\.csv: line 2 has '6\.75' .* point, line 3 has '19,66' .* comma"):
        read(tmp_path, page)


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "==PROF== nothing\n", quoted([("ID", "Kernel Name")])])
def test_what_is_no_table_of_ncu(tmp_path: Path, text: str) -> None:
    looked_for = '"ID" and "Kernel Name" with "Metric Name" and "Metric Value"'
    with pytest.raises(UnknownFormatError, match=rf"0\.csv: no table of Nsight Compute: .*{looked_for}"):
        read(tmp_path, text)


def test_what_ncu_itself_complains_of_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match="itself said: ==ERROR== ERR_NVGPUCTRPERM - The user"):
        read(tmp_path, "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user has no permission\n")


def test_summaries_have_no_launches(tmp_path: Path) -> None:
    columns = (*ABOUT[1:], "Invocations", *DETAILS[-4:-1], "Minimum", "Maximum", "Average")
    with pytest.raises(UnknownFormatError, match="export without --print-summary"):
        read(tmp_path, quoted([columns]))


def test_a_table_without_kernels(tmp_path: Path) -> None:
    with pytest.raises(MalformedTraceError, match="without a single kernel"):
        read(tmp_path, quoted([(*DETAILS, *RULES)]))


def test_a_raw_page_without_its_units(tmp_path: Path) -> None:
    lines = raw({SM: "%"}, (GEMM, ["12.5"])).splitlines()
    with pytest.raises(MalformedTraceError, match="line 2 should have the units"):
        read(tmp_path, "\n".join([lines[0], lines[2]]))


def test_geometry_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(MalformedTraceError, match=r"line 2: Grid Size is '\(1, x\)', not three numbers"):
        read(tmp_path, details((Launch("k", grid="(1, x)"), SPEED, "Duration", "us", "1")))


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.csv: cannot be read: No such file"):
        read_counters([tmp_path / "none.csv"])


@pytest.mark.parametrize("page", [PAGE, raw({DURATION: "ns", SM: "%"}, (GEMM, ["6", "50"]), (GEMM, ["7", "5"]))])
def test_a_file_cut_anywhere_gives_an_error_or_whole_values(tmp_path: Path, page: str) -> None:
    whole = readings(read(tmp_path, page))
    outcomes = []
    for end in range(0, len(page), 5):
        try:
            kept = readings(read(tmp_path, page[:end]))
        except UnknownFormatError:
            outcomes.append("no table")
        except MalformedTraceError as error:
            outcomes.append("cut" if "is cut short" in str(error) else "no kernel")
        else:
            outcomes.append("whole")
            assert kept == whole[: len(kept)]
    assert set(outcomes) == {"no table", "no kernel", "cut", "whole"}
    assert outcomes[-4] == "cut"


# ---- what it is, and real files --------------------------------------------------------------------------------------


def test_it_is_no_reader_of_traces() -> None:
    assert collectors()[ncu_csv.NAME] is ncu_csv
    assert ncu_csv.NAME not in readers()


def test_real_details_pages() -> None:
    files = sorted(DIRECTORY.glob("llm-perf-opt__ncu_details_*.csv"))
    if not files:
        pytest.skip("no public tables beside this checkout")
    found = read_counters(files)
    assert ledger(found) == {
        **{"launches": 3, "read": 144, "kept": 117},
        **{"skipped no value": 9, "skipped repeated": 6, "skipped rule": 12},
    }
    values = {(launch, metric): (value, unit) for launch, metric, _, unit, value in readings(found)}
    assert values[0, DURATION] == (6750.0, "ns")
    assert values[1, "dram__bytes_read.sum"] == (17_570_000.0, "byte")
    assert values[1, "dram__bytes.sum.per_second"] == (958_090_000_000.0, "byte/s")
    assert values[2, "gpc__cycles_elapsed.avg.per_second"] == (1_990_000_000.0, "Hz")
    assert values[2, "sm__warps_active.avg.pct_of_peak_sustained_active"] == (8.31, "%")
    assert not [metric for _, metric in values if "/" in metric]  # each label is known
