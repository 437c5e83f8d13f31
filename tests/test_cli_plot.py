"""`tracekit plot`: each picture by its name, what is refused, files that are written whole and never over others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import run
from tests.event_rows import op, write_trace
from tests.served_steps import DECODE, served
from tracekit.plot_style import check_suffix

NAMES = ("time_budget", "idle_histogram", "roofline", "step_times", "timeline", "waterfall")
WORKS = [(DECODE, [(40_000 * at, 9_000), (40_000 * at + 20_000, 5_000)]) for at in range(8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plot")
    write_trace(path / "trace.parquet", served(*WORKS))
    write_trace(path / "cpu.parquet", [op(0, 10)])
    (path / "there.png").write_text("mine")
    return path


@pytest.fixture
def files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, which is where the command runs."""
    monkeypatch.chdir(folder)
    return folder


def test_help_says_what_each_shows() -> None:
    result = run("plot", "--help")
    assert result.exit_code == 0
    section = result.output.partition("Pictures, by NAME:\n")[2]
    assert [line.split()[0] for line in section.splitlines() if line[2:3].strip()] == list(NAMES)
    assert "plot" in run("--help").output


@pytest.mark.parametrize("name", NAMES)
def test_each_is_drawn(files: Path, name: str) -> None:
    traces = ["trace.parquet"] * (2 if name == "waterfall" else 1)
    peaks = ("--peak", "bf16=989e12", "--peak", "bandwidth=3.35e12")
    result = run("plot", name, *traces, *peaks, "-o", f"{name}.svg")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"Wrote {name}.svg\n")
    assert (files / f"{name}.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("budget trace.parquet -o x.png", "no picture 'budget'; there are: time_budget, idle_histogram, roofline, "),
        ("waterfall trace.parquet -o x.png", "waterfall shows a change; name two: BASE CANDIDATE"),
        ("timeline trace.parquet cpu.parquet -o x.png", "timeline shows one trace; name one"),
        ("time_budget trace.parquet", "Missing option '-o'"),
        ("time_budget trace.parquet -o x.pdf", "x.pdf: a plot is written as .png or .svg"),
        ("time_budget trace.parquet -o there.png", "there.png exists; give another -o, or --force"),
        ("time_budget trace.parquet -o absent/x.png", "absent is not a folder"),
        ("time_budget trace.parquet --step 3 -o x.png", "--step is for timeline; time_budget shows the steps that"),
        ("timeline trace.parquet --step 3 --since 1us -o x.png", "of a step or of a window of time"),
        ("timeline trace.parquet --step 99 -o x.png", "no step 99; steps are 0 to 7"),
        ("timeline trace.parquet --since 5s -o x.png", "nothing to plot: no time lies from 5.00 s"),
        ("time_budget cpu.parquet -o x.png", "nothing to plot: the trace has no work on any device"),
        ("roofline cpu.parquet -o x.png", "nothing to plot: no device activity in this trace"),
        ("time_budget trace.parquet --phase prefill -o x.png", "phase"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(files: Path, arguments: str, said: str) -> None:
    before = sorted(path.name for path in files.iterdir())
    result = run("plot", *arguments.split())
    assert result.exit_code == 2, result.output
    assert said in result.stderr and "Traceback" not in result.output
    assert sorted(path.name for path in files.iterdir()) == before
    assert (files / "there.png").read_text() == "mine"


def test_of_a_part_and_over_an_old_file(files: Path) -> None:
    old = files / "old.png"
    old.write_text("old")
    result = run("plot", "timeline", "trace.parquet", "--since", "30us", "--until", "60us", "-o", old, "--force")
    assert result.exit_code == 0, result.output
    first = old.read_bytes()
    assert first.startswith(b"\x89PNG")
    run("plot", "timeline", "trace.parquet", "--since", "30us", "--until", "60us", "-o", old, "--force")
    assert old.read_bytes() == first
    run("plot", "time_budget", "trace.parquet", "--steps", "2:4", "-o", old, "--force")
    assert old.read_bytes() != first
    check_suffix(old)
