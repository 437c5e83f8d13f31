"""tracekit explain: what a finding rests on, and what an analysis is, as text and JSON."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.command_line import run
from tests.event_rows import kernel, write_trace
from tests.test_explain import slow_steps
from tracekit.registry import analyses


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("slow") / "trace.parquet", slow_steps())


def test_nothing_to_explain(tmp_path: Path) -> None:
    empty = write_trace(tmp_path / "empty.parquet", [])
    done = run("explain", "idle_gaps", empty)
    assert (done.exit_code, done.stdout) == (0, "idle_gaps has no findings here\n")
    done = run("explain", "idle_gaps.1", empty)
    assert (done.exit_code, done.stderr) == (
        2,
        "tracekit: no finding 'idle_gaps.1'; idle_gaps has no findings here\n",
    )
    said = json.loads(run("explain", "idle_gaps", empty, "--format", "json").stdout)
    assert (said["schema"], said["explained"]) == (1, [])


def test_one_finding_and_all_of_an_analysis(slow: Path) -> None:
    one = run("explain", "idle_gaps.1", slow)
    assert one.exit_code == 0
    lines = one.stdout.splitlines()
    assert (
        lines[0] == "idle_gaps.1: python: host code keeps the device waiting, 940 us per decode step, 47.0% of its time"
    )
    assert "  comes from: vllm/logits.py(57): advance (3 rows)" in lines
    assert lines[-1] == f"  tracekit analyze {slow} idle_gaps"
    every = run("explain", "idle_gaps", slow).stdout
    assert every.startswith(one.stdout.rstrip())
    assert "\n\nidle_gaps.2: " in every


def test_commands_that_it_prints_run(slow: Path) -> None:
    """Those of the arithmetic give the number that they stand for."""
    found = run("explain", "idle_gaps.1", slow).stdout
    commands = re.findall(r'tracekit (sql \S+ "[^"]+") = ([\d,]+) ns', found)
    assert len(commands) == 2
    for command, number in commands:
        done = run(*shlex.split(command), "--format", "csv")
        assert done.stdout.splitlines()[1] == number.replace(",", "")
    (query,) = re.findall(r"tracekit (sql \S+ '[^']+')", found)
    assert len(run(*shlex.split(query), "--format", "csv").stdout.splitlines()) == 1 + 8
    (command,) = re.findall(r"tracekit (analyze .*)", found)
    assert "idle_gaps.1" in run(*shlex.split(command)).stdout


def test_ids_are_those_of_the_part(slow: Path) -> None:
    done = run("explain", "idle_gaps.1", slow, "--steps", "1:3", "--format", "json")
    said = json.loads(done.stdout)
    assert said["trace"]["scope"] == {"steps": [1, 3]}
    (one,) = said["explained"]
    assert one["id"] == "idle_gaps.1"
    assert one["finding"]["saving_high_ns"] == 2 * 940_000
    assert one["commands"][-1] == f"tracekit analyze {slow} idle_gaps --steps 1:3"
    assert "only steps 1:3" in run("explain", "idle_gaps.1", slow, "--steps", "1:3").stdout


def test_help_of_an_analysis() -> None:
    done = run("explain", "idle_gaps")
    assert done.exit_code == 0
    assert done.stdout.startswith("idle_gaps: Why does the GPU idle?\n")
    for words in ("How it decides", "Thresholds", "Columns of FROM idle_gaps()", "More: docs/analyses/idle_gaps.md"):
        assert words in done.stdout
    (said,) = json.loads(run("explain", "idle_gaps", "--format", "json").stdout)["analyses"]
    assert said["parameters"][0][:2] == ["launch_latency_ns", 12_000]


def test_questions_of_all() -> None:
    done = run("explain")
    assert [line.split()[0] for line in done.stdout.splitlines() if line[0] != " "] == list(analyses())
    assert "idle_gaps      Why does the GPU idle?\n" in done.stdout
    every = json.loads(run("explain", "--format", "json").stdout)["analyses"]
    assert [one["name"] for one in every] == list(analyses())


def test_what_makes_no_sense(slow: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (["idle_gaps.1"], "which trace is idle_gaps.1 a finding of? tracekit explain idle_gaps.1 trace.parquet"),
        (["idle"], "no analysis 'idle'; there are: attribution, "),
        ([slow], f"which finding of {slow}? tracekit explain idle_gaps.1 {slow}"),
        (["idle.1", slow], "no finding 'idle.1': a finding is named as idle_gaps.1 is; the analyses are: "),
        (["idle_gaps.7", slow], "no finding 'idle_gaps.7'; there are: idle_gaps.1"),
        (["idle_gaps.1", tmp_path / "none.parquet"], "no such file"),
        ([slow, "idle_gaps.1"], f"the finding goes first: tracekit explain idle_gaps.1 {slow}"),
        (["idle_gaps.1", slow, "-o", slow], "is what is to be read; give another -o"),
    ):
        done = run("explain", *arguments)
        assert (done.exit_code, done.stdout) == (2, ""), arguments
        assert message in done.stderr


def test_output(slow: Path, tmp_path: Path) -> None:
    out = tmp_path / "why.txt"
    assert run("explain", "idle_gaps.1", slow, "-o", out).stderr == f"Wrote {out}\n"
    assert out.read_text() == run("explain", "idle_gaps.1", slow).stdout
    done = run("explain", "idle_gaps.1", slow, "-o", out)
    assert (done.exit_code, f"{out} exists; give another -o, or --force" in done.stderr) == (2, True)
    assert run("explain", "idle_gaps.1", slow, "-o", out, "--force").exit_code == 0


def test_names_are_safe_for_a_terminal(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.parquet", [kernel(0, 90, name="other\x1b[31m$(rm -rf)`x`")])
    done = run("explain", "attribution.1", path)
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    assert "\\x1b[31m$(rm -rf)`x`" in done.stdout
    assert not [line for line in done.stdout.splitlines() if "tracekit sql" in line and "rm -rf" in line]
