"""The command line: what it prints where, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tracekit
from tests.event_rows import footer_of, kernel, launch, op, write_trace
from tracekit.cli import main
from tracekit.footer import SourceInfo

ROOT = Path(__file__).parent.parent
US = 1_000
ROWS = [
    launch(0, 5 * US),
    op(6 * US, 900 * US),
    launch(392 * US, 5 * US, parent_id=2),
    kernel(10 * US, 90 * US, launch_id=1, name='nvjet<"a">'),
    kernel(400 * US, 610 * US, launch_id=3, name="nvjet"),
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.parquet", ROWS)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def kineto(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"device": 0}}


# ---- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["-h"], ["--help"], []])
def test_help_names_the_commands(arguments: list[str]) -> None:
    shown = run(*arguments).output
    assert [word for word in ("convert", "analyze", "sql") if f"\n  {word}" not in shown] == []
    assert "tracekit analyze trace.parquet" in shown


@pytest.mark.parametrize("command", ["convert", "analyze", "sql"])
def test_help_of_a_command_is_one_line_then_an_example(command: str) -> None:
    lines = [line.strip() for line in run(command, "-h").output.splitlines() if line.strip()]
    assert lines[0].startswith(f"Usage: main {command}")
    assert lines[1].endswith(".")
    assert lines[2] in ("Example:", "Examples:")
    assert lines[3].startswith(f"tracekit {command} ")


def test_help_is_quick() -> None:
    """Below 0.3 s, the best of five: neither DuckDB nor Arrow is loaded for it."""
    command = [sys.executable, "-m", "tracekit", "--help"]
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.3


def test_version() -> None:
    assert run("--version").output == f"tracekit {tracekit.__version__}\n"


def test_the_module_runs_too() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "tracekit", "-h"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert shown.stdout.startswith("Usage: tracekit [OPTIONS] COMMAND")


# ---- analyze ---------------------------------------------------------------------------------------------------------


def test_verdict_as_text(trace: Path) -> None:
    result = run("analyze", trace)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "the host launches too slowly: 0.300 ms idle (30.0% of the span)" in result.stdout
    assert len(result.stdout.splitlines()) <= 40
    assert "\x1b" not in result.stdout


def test_verdict_as_json(trace: Path) -> None:
    result = run("analyze", trace, "--format", "json")
    found = json.loads(result.stdout)
    assert found.keys() == {"schema", "trace", "results"}
    assert found["schema"] == 1
    assert found["trace"]["events"]["read"] == 5
    assert {"attribution", "health", "idle_gaps"} <= found["results"].keys()
    for one in found["results"].values():
        assert one.keys() == {"parameters", "summary", "table", "findings", "coverage"}
    assert found["results"]["idle_gaps"]["summary"] == [
        {
            "rank": 0,
            "device": 0,
            "span_ns": 1000 * US,
            "busy_ns": 700 * US,
            "idle_ns": 300 * US,
            "by_cause": {"launch_bound": 300 * US},
        }
    ]
    assert found["results"]["idle_gaps"]["parameters"]["launch_latency_ns"] == 12000


def test_only_what_is_named(trace: Path) -> None:
    assert json.loads(run("analyze", trace, "idle_gaps", "--format", "json").stdout)["results"].keys() == {"idle_gaps"}
    shown = run("analyze", trace, "health").stdout
    assert "events: 5 read = 5 stored + 0 skipped" in shown
    assert "Busy time" not in shown


def test_no_such_analysis(trace: Path) -> None:
    result = run("analyze", trace, "idle")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("tracekit: no analysis 'idle'; there are: attribution, health, idle_gaps")


@pytest.mark.parametrize(("severity", "code"), [(None, 0), ("critical", 1), ("warning", 1)])
def test_fail_on(trace: Path, severity: str | None, code: int) -> None:
    assert run("analyze", trace, *(("--fail-on", severity) if severity else ())).exit_code == code


def test_fail_on_of_a_trace_without_faults(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "good.parquet", [launch(0, 5), kernel(10, 90, launch_id=1, name="nvjet")])
    assert run("analyze", path, "--fail-on", "warning").exit_code == 0


def test_a_gate_that_is_not_met_ends_with_1(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "blind.parquet", [launch(i, 1, name="cudaGraphLaunch") for i in range(9)])
    result = run("analyze", path)
    assert result.exit_code == 1
    assert "no device activity was recorded" in result.stdout


def test_raw_files_and_directories(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in (0, 1):
        kineto(folder / f"rank{rank}.json", KERNEL)
    found = json.loads(run("analyze", folder, "--format", "json").stdout)
    assert found["trace"]["ranks"] == [0, 1]
    assert json.loads(run("analyze", folder / "rank1.json", "--format", "json").stdout)["trace"]["ranks"] == [1]


def test_output_file(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = run("analyze", trace, "--format", "json", "-o", out)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"Wrote {out}\n")
    assert json.loads(out.read_text())["schema"] == 1
    again = run("analyze", trace, "-o", out)
    assert (again.exit_code, again.stderr) == (
        2,
        f"tracekit: {out} exists; give another -o, or --force to overwrite it\n",
    )
    assert json.loads(out.read_text())["schema"] == 1
    assert run("analyze", trace, "-o", out, "--force").exit_code == 0
    assert out.read_text().startswith("rank0.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "trace.parquet"]


def test_output_that_cannot_be_written(trace: Path, tmp_path: Path) -> None:
    result = run("analyze", trace, "-o", tmp_path / "none" / "out.json")
    assert result.exit_code == 2
    assert "is not a folder; make it first" in result.stderr


def test_rules_of_the_user(trace: Path, tmp_path: Path) -> None:
    rules = tmp_path / "my.toml"
    rules.write_text('[[rule]]\ncategory = "moe"\npattern = "nvjet"\n')
    found = json.loads(run("analyze", trace, "attribution", "--rules", rules, "--format", "json").stdout)
    assert {row["category"] for row in found["results"]["attribution"]["table"]} == {"moe"}
    rules.write_text("rule = 5")
    assert run("analyze", trace, "--rules", rules).exit_code == 2


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_exit_codes(tmp_path: Path) -> None:
    none, noise, cut = tmp_path / "none.json", tmp_path / "noise.json", tmp_path / "cut.json"
    noise.write_text('{"a": 1}')
    kineto(cut, KERNEL, KERNEL)
    cut.write_text(cut.read_text()[:-40])
    for path, code in ((none, 2), (noise, 3), (cut, 4)):
        result = run("analyze", path)
        assert (result.exit_code, result.stdout) == (code, ""), result.stderr
        assert result.stderr.startswith("tracekit: ")
        assert path.name in result.stderr
        assert result.stderr.count("\n") == 1
    assert run("analyze", cut, "--allow-partial").exit_code == 0
    assert "cut short" in run("analyze", cut, "--allow-partial").stdout


def test_a_warning_is_one_line(tmp_path: Path) -> None:
    code = "import warnings, tracekit.cli as c; warnings.showwarning = c._show_warning; warnings.warn('left out')"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert shown.stderr == "tracekit: warning: left out\n"


def test_a_reader_that_goes_away_is_no_failure(trace: Path) -> None:
    """tracekit sql ... | head -1"""
    command = [
        sys.executable,
        "-m",
        "tracekit",
        "sql",
        str(trace),
        "SELECT i FROM range(200000) t(i)",
        "--format",
        "csv",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"i\n"
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 0)


# ---- sql -------------------------------------------------------------------------------------------------------------

QUERY = "SELECT name, dur, NULL AS nothing, op_id FROM kernels ORDER BY id"


def test_sql_as_table(trace: Path) -> None:
    assert run("sql", trace, QUERY).stdout == (
        'name           dur  nothing  op_id\nnvjet<"a">   90000\nnvjet       610000\n'
    )


def test_sql_as_json_is_an_array_of_rows(trace: Path) -> None:
    assert json.loads(run("sql", trace, QUERY, "--format", "json").stdout) == [
        {"name": 'nvjet<"a">', "dur": 90000, "nothing": None, "op_id": None},
        {"name": "nvjet", "dur": 610000, "nothing": None, "op_id": None},
    ]
    assert run("sql", trace, "SELECT 1 AS a WHERE false", "--format", "json").stdout == "[]\n"


def test_sql_as_csv(trace: Path) -> None:
    rows = list(csv.reader(io.StringIO(run("sql", trace, QUERY, "--format", "csv").stdout)))
    assert rows == [["name", "dur", "nothing", "op_id"], ['nvjet<"a">', "90000", "", ""], ["nvjet", "610000", "", ""]]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("sum(9007199254740993)", 9007199254740993),
        ("1.5", 1.5),
        ("'NaN'::DOUBLE", None),
        ("[1, NULL, 2]", [1, None, 2]),
        ("{'a': [sum(1)]}", {"a": [1]}),
        ("'\\xFF'::BLOB", "ff"),
        ("DATE '2026-01-02'", "2026-01-02"),
        ("true", True),
        ("'\u00e9\"'", 'é"'),
    ],
)
def test_values_in_json(trace: Path, expression: str, value: object) -> None:
    assert json.loads(run("sql", trace, f"SELECT {expression} AS v", "--format", "json").stdout) == [{"v": value}]


def test_columns_of_one_name_are_told_apart(trace: Path) -> None:
    query = "SELECT 1 AS a, 2 AS a, 3 AS a"
    assert run("sql", trace, query, "--format", "csv").stdout.splitlines()[1] == "1,2,3"
    assert list(json.loads(run("sql", trace, query, "--format", "json").stdout)[0].values()) == [1, 2, 3]


def test_analyses_are_table_functions(trace: Path) -> None:
    result = run("sql", trace, "SELECT cause, dur FROM idle_gaps(launch_latency_ns := 500000)", "--format", "json")
    assert json.loads(result.stdout) == [{"cause": "launch_bound", "dur": 300000}]
    assert "gemm" in run("sql", trace, "FROM attribution()").stdout


@pytest.mark.parametrize(
    "query", ["DROP VIEW events", "FROM read_csv('/etc/passwd')", "SELECT nothing", "SELECT 1; SELECT 2"]
)
def test_sql_that_is_refused(trace: Path, query: str) -> None:
    result = run("sql", trace, query)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("tracekit: ")


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_names_beyond_the_terminals_encoding(tmp_path: Path, form: str) -> None:
    path = write_trace(tmp_path / "t.parquet", [kernel(0, 1, name="é漢")])
    query = "SELECT name FROM kernels WHERE name = 'é漢'"
    command = [sys.executable, "-m", "tracekit", "sql", str(path), query, "--format", form]
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    shown = subprocess.run(command, capture_output=True, check=True, env={**os.environ, **locale})
    if form == "json":
        assert json.loads(shown.stdout) == [{"name": "é漢"}]
    else:  # click writes UTF-8 where the locale says ASCII; other encodings get escapes
        assert "é漢".encode() in shown.stdout or rb"\xe9\u6f22" in shown.stdout


# ---- convert ---------------------------------------------------------------------------------------------------------


def test_convert(tmp_path: Path) -> None:
    raw, out = kineto(tmp_path / "a.json", KERNEL), tmp_path / "trace.parquet"
    result = run("convert", raw, "-o", out)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"1 events read, 1 stored, 0 skipped, 1 rank(s)\nWrote {out}\n"
    assert run("convert", raw, "-o", out).exit_code == 2
    assert run("convert", raw, "-o", out, "--force").exit_code == 0
    assert run("sql", out, "SELECT count(*) AS n FROM kernels", "--format", "csv").stdout == "n\n1\n"


def test_convert_a_cut_file(tmp_path: Path) -> None:
    raw, out = kineto(tmp_path / "a.json", KERNEL, KERNEL), tmp_path / "trace.parquet"
    raw.write_text(raw.read_text()[:-40])
    assert run("convert", raw, "-o", out).exit_code == 4
    assert run("convert", raw, "-o", out, "--allow-partial", "--force").exit_code == 0
    footer = tracekit.open(out).footer
    assert footer.sources[0].truncated_at is not None


def test_the_json_of_a_cut_file_says_so(tmp_path: Path) -> None:
    source = SourceInfo(path="a.json", format="kineto", rank=0, truncated_at=77)
    path = write_trace(tmp_path / "t.parquet", ROWS, footer_of(ROWS, sources=(source,)))
    found = json.loads(run("analyze", path, "--format", "json").stdout)
    assert found["trace"]["sources"][0]["truncated_at"] == 77
