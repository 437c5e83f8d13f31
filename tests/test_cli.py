"""The command line: what it prints where, and how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tracekit
from tests.command_line import ROWS, US, run
from tests.event_rows import footer_of, kernel, launch, write_trace
from tracekit.analyses._idle_advice import MEANINGS
from tracekit.cli import main
from tracekit.errors import UsageError
from tracekit.footer import SourceInfo

ROOT = Path(__file__).parent.parent


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.parquet", ROWS)


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


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("analyse", "did you mean analyze?"),
        ("x", "there are: collect, convert, analyze, compare, explain, plot, whatif, sql"),
    ],
)
def test_a_command_that_does_not_exist(typed: str, said: str) -> None:
    result = run(typed, "trace.parquet")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith(f"Error: No such command '{typed}'; {said}\n")


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
    said = " ".join(result.stdout.split())  # lines break where the path is long
    assert "launch_bound: the device waits in a few gaps, 29.2% of the span" in said
    assert said.startswith(f"{trace} 5 events 1 rank")
    assert not [line for line in result.stdout.splitlines() if line != line.rstrip()]
    assert len(result.stdout.splitlines()) <= 40
    assert "\x1b" not in result.stdout


def test_verdict_as_json(trace: Path) -> None:
    result = run("analyze", trace, "--format", "json")
    found = json.loads(result.stdout)
    assert found.keys() == {"schema", "trace", "results"}
    assert found["schema"] == 1
    assert found["trace"]["events"]["read"] == 5
    assert found["trace"]["scope"] == {}
    assert {"attribution", "health", "idle_gaps"} <= found["results"].keys()
    for one in found["results"].values():
        assert one.keys() == {"parameters", "summary", "table", "findings", "coverage"}
    (idle,) = found["results"]["idle_gaps"]["summary"]
    assert {key: idle[key] for key in ("rank", "device", "span_ns", "busy_ns", "idle_ns", "by_cause")} == {
        "rank": 0,
        "device": 0,
        "span_ns": 1000 * US,
        "busy_ns": 700 * US,
        "idle_ns": 300 * US,
        "by_cause": {"launch_latency": 8 * US, "launch_bound": 292 * US},
    }
    assert found["results"]["idle_gaps"]["parameters"]["launch_latency_ns"] == 12000


def test_only_what_is_named(trace: Path) -> None:
    assert json.loads(run("analyze", trace, "idle_gaps", "--format", "json").stdout)["results"].keys() == {"idle_gaps"}
    shown = run("analyze", trace, "health").stdout
    assert "events: 5 read = 5 stored + 0 skipped" in shown
    assert "Busy time" not in shown


def test_no_such_analysis(trace: Path) -> None:
    result = run("analyze", trace, "idle")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("tracekit: no analysis 'idle'; there are: attribution, communication, counters, ")


@pytest.mark.parametrize(("severity", "code"), [(None, 0), ("critical", 1), ("warning", 1)])
def test_fail_on(trace: Path, severity: str | None, code: int) -> None:
    arguments = ("--fail-on", severity) if severity else ()
    assert run("analyze", trace, "idle_gaps", *arguments).exit_code == code


def test_fail_on_of_a_trace_without_faults(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "good.parquet", [launch(0, 5), kernel(10, 90, launch_id=1, name="nvjet")])
    assert run("analyze", path, "--fail-on", "warning").exit_code == 0


def test_a_gate_that_is_not_met_ends_with_1(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "blind.parquet", [launch(i, 1, name="cudaGraphLaunch") for i in range(9)])
    result = run("analyze", path, "health")
    assert result.exit_code == 1
    assert "no device activity was recorded" in result.stdout


def test_raw_files_and_directories(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in (0, 1):
        kineto(folder / f"rank{rank}.json", KERNEL)
    for path, ranks in ((folder, [0, 1]), (folder / "rank1.json", [1])):
        found = json.loads(run("analyze", path, "health", "--format", "json").stdout)
        assert found["trace"]["ranks"] == ranks


def test_output_file(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = run("analyze", trace, "health", "--format", "json", "-o", out)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"Wrote {out}\n")
    assert json.loads(out.read_text())["schema"] == 1
    again = run("analyze", trace, "health", "-o", out)
    assert (again.exit_code, again.stderr) == (
        2,
        f"tracekit: {out} exists; give another -o, or --force to overwrite it\n",
    )
    assert json.loads(out.read_text())["schema"] == 1
    assert run("analyze", trace, "health", "-o", out, "--force").exit_code == 0
    assert out.read_text().startswith(str(trace))
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


def test_rules_that_match_nothing_are_told(trace: Path, tmp_path: Path) -> None:
    rules = tmp_path / "my.toml"
    rules.write_text('[[rule]]\ncategory = "moe"\npattern = "absent"\n')
    (tmp_path / "empty.toml").write_text("")
    command = [sys.executable, "-m", "tracekit", "analyze", str(trace), "attribution", "--rules"]
    for file in (rules, tmp_path / "empty.toml"):
        shown = subprocess.run([*command, str(file)], capture_output=True, text=True, check=True, cwd=ROOT)
        assert shown.stderr == f"tracekit: warning: no rule of {file} matches a name in this trace\n"


def test_help_explains_each_cause() -> None:
    shown = " ".join(run("analyze", "-h").output.split())
    assert [cause for cause, meaning in MEANINGS.items() if f"{cause} {meaning}" not in shown] == []


@pytest.mark.parametrize(("columns", "widest"), [("", 100), ("70", 70), ("20", 60), ("500", 120), ("x", 100)])
def test_text_fits_the_columns_asked_for(trace: Path, columns: str, widest: int) -> None:
    lines = (
        CliRunner()
        .invoke(main, ["analyze", str(trace), "idle_gaps", "health"], env={"COLUMNS": columns})
        .stdout.splitlines()
    )
    assert widest - 15 < max(map(len, lines)) <= widest


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
    result = run("analyze", cut, "health", "--allow-partial")
    assert result.exit_code == 0 and "cut short" in result.stdout


@pytest.mark.parametrize("arguments", [["analyze", ""], ["sql", "", "SELECT 1"], ["convert", "", "-o", "t.parquet"]])
def test_an_empty_path_is_not_the_current_directory(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kineto(tmp_path / "a.json", KERNEL)
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the path is empty" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_no_input_is_overwritten(trace: Path, tmp_path: Path) -> None:
    link, rules, folder = tmp_path / "link.parquet", tmp_path / "my.toml", tmp_path / "ranks"
    link.hardlink_to(trace)
    rules.write_text('[[rule]]\ncategory = "moe"\npattern = "nvjet"\n')
    folder.mkdir()
    raw = kineto(folder / "a.json", KERNEL)
    before = {path: path.read_bytes() for path in (trace, rules, raw)}
    for arguments in (
        ["analyze", trace, "-o", trace],
        ["analyze", trace, "-o", link],
        ["analyze", trace, "--rules", rules, "-o", rules],
        ["analyze", folder, "-o", raw],
        ["sql", trace, "FROM kernels", "-o", link],
    ):
        result = run(*arguments, "--force")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"tracekit: {arguments[-1]} is what is to be read; give another -o\n"
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize(
    "arguments", [["analyze", "health"], ["analyze", "health", "--format", "json"], ["sql", "FROM kernels"]]
)
def test_a_full_disk_is_one_line(trace: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "tracekit", arguments[0], str(trace), *arguments[1:]]
    with Path("/dev/full").open("w") as full:
        shown = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    assert (shown.returncode, shown.stderr) == (
        1,
        "tracekit: the output cannot be written: No space left on device\n",
    )


def test_parquet_files_are_analysed_one_at_a_time(trace: Path, tmp_path: Path) -> None:
    assert run("analyze", tmp_path, "health").exit_code == 0  # the only one of its folder
    write_trace(tmp_path / "second.parquet", ROWS)
    result = run("analyze", tmp_path)
    assert (result.exit_code, result.stderr) == (
        2,
        f"tracekit: {tmp_path} holds 2 Parquet files (second.parquet, trace.parquet), which are analysed one at a "
        "time; name one. To see several ranks together, convert the profiler's own files into one\n",
    )
    with pytest.raises(UsageError, match="Parquet files are analysed one at a time"):
        tracekit.open([trace, tmp_path / "second.parquet"])
    kineto(tmp_path / "a.json", KERNEL)
    assert (
        run("analyze", tmp_path, "health").exit_code == 0
    )  # beside raw files, Parquet is taken for what was made from them


def test_a_second_trace_is_no_name_of_an_analysis(trace: Path, tmp_path: Path) -> None:
    kineto(tmp_path / "a.json", KERNEL)
    result = run("analyze", trace, tmp_path / "a.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"tracekit: one trace is analysed at a time, and {tmp_path / 'a.json'} is a second; the profilers' files of "
        "one run become one: tracekit convert FILE FILE ... -o trace.parquet\n"
    )


def test_a_trace_is_not_converted_again(trace: Path, tmp_path: Path) -> None:
    result = run("convert", trace, "-o", tmp_path / "again.parquet")
    assert (result.exit_code, result.stderr) == (
        2,
        f"tracekit: {trace} is already a tracekit trace; give it to analyze or sql as it is\n",
    )


def test_unknown_formats_say_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    result = run("analyze", tmp_path / "a.json")
    assert result.exit_code == 3
    assert len(re.findall(r"torch\.profiler.*JSON|JSON.*torch\.profiler", result.stderr)) == 1
    assert "Nsight Systems" in result.stderr


def test_what_nsight_compute_printed_is_no_trace(trace: Path, tmp_path: Path) -> None:
    table = tmp_path / "metrics.csv"
    table.write_text('"ID","Kernel Name"\n')
    result = run("analyze", table)
    assert (result.exit_code, result.stderr) == (
        3,
        f"tracekit: {table}: no trace; what Nsight Compute measured goes beside one, as a table: tracekit analyze "
        "TRACE --ncu metrics.csv\n",
    )
    result = run("analyze", trace, "--ncu", trace)
    assert result.exit_code == 3
    assert "tracekit reads" not in result.stderr  # what a trace may be is not the matter


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


def test_a_reader_that_goes_away_hides_no_gate_that_fails(trace: Path) -> None:
    command = [sys.executable, "-m", "tracekit", "analyze", str(trace), "idle_gaps", "--fail-on", "critical"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read().startswith(b"tracekit: failed: critical: idle_gaps.1")
        assert process.wait(60) == 1


# ---- convert ---------------------------------------------------------------------------------------------------------


def test_convert(tmp_path: Path) -> None:
    raw, out = kineto(tmp_path / "a.json", KERNEL), tmp_path / "trace.parquet"
    result = run("convert", raw, "-o", out)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"1 event read, 1 stored, 0 skipped, 1 rank\nWrote {out}\n"
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


def test_the_json_of_a_partial_recording_says_so(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.parquet", ROWS, footer_of(ROWS, capture={"partial": ["process 7 was killed"]}))
    assert json.loads(run("analyze", path, "--format", "json").stdout)["trace"]["partial"] == ["process 7 was killed"]
