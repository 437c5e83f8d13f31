"""The options of `analyze` that choose a part of the trace."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.command_line import US, run
from tests.event_rows import annotation, kernel, launch, write_trace

PREFILL, DECODE = "step[EXTEND bs=1 toks=60]", "step[DECODE bs=4]"
ROWS = [
    annotation(PREFILL, 0, 15 * US),
    launch(1 * US, US),
    annotation(DECODE, 20 * US, 15 * US),
    launch(21 * US, US),
    kernel(30 * US, 20 * US, launch_id=2, name="nvjet"),
    kernel(60 * US, 40 * US, launch_id=4, name="nvjet"),
    kernel(70 * US, 40 * US, name="nvjet", device=1),
    kernel(70 * US, 50 * US, name="nvjet", rank=1),
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.parquet", ROWS)


def found(*arguments: object) -> dict[str, Any]:
    result = run("analyze", *arguments, "--format", "json")
    assert result.exit_code == 0, result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


@pytest.mark.parametrize(
    ("options", "scope", "busy"),
    [
        ("", {}, {(0, 0): 60, (0, 1): 40, (1, 0): 50}),
        ("--phase decode", {"phase": ["decode"]}, {(0, 0): 40}),
        ("--phase decode --phase prefill", {"phase": ["decode", "prefill"]}, {(0, 0): 60}),
        ("--steps 0", {"steps": [0, 1]}, {(0, 0): 20}),
        ("--steps -1", {"steps": [-1, None]}, {(0, 0): 40}),
        ("--steps -9:1", {"steps": [-9, 1]}, {(0, 0): 20}),
        ("--steps=-1:", {"steps": [-1, None]}, {(0, 0): 40}),
        ("--steps :", {}, {(0, 0): 60, (0, 1): 40, (1, 0): 50}),
        ("--rank 1", {"rank": [1]}, {(1, 0): 50}),
        ("--rank 0 --rank 1 --device 0", {"rank": [0, 1], "device": [0]}, {(0, 0): 60, (1, 0): 50}),
        (
            "--since 0.08ms --until 90us",
            {"since_ns": 80_000, "until_ns": 90_000},
            {(0, 0): 10, (0, 1): 10, (1, 0): 10},
        ),
    ],
)
def test_each_option(trace: Path, options: str, scope: dict[str, Any], busy: dict[tuple[int, int], int]) -> None:
    said = found(trace, "attribution", *options.split())
    assert said["trace"]["scope"] == scope
    summary = said["results"]["attribution"]["summary"]
    assert {(row["rank"], row["device"]): row["busy_ns"] for row in summary} == {
        where: us * US for where, us in busy.items()
    }
    if scope:
        with tracekit.open(trace) as opened, opened.only(**scope) as part:
            assert list(part.analyze("attribution").summary) == summary


def test_the_head_of_the_text_says_what_was_filtered(trace: Path) -> None:
    lines = run("analyze", trace, "--phase", "decode", "--steps", "1:", "--since", "0s").stdout.splitlines()
    start = lines.index("only phase decode, steps 1:, from 0s")
    assert lines[start + 1] == "rank 0 device 0   span 50.0 us   busy 40.0 us (80.0%)   idle 10.0 us (20.0%)"
    assert "Health of the whole trace" in lines
    assert not [line for line in run("analyze", trace).stdout.splitlines() if line.startswith("only")]


def test_where_to_read_more_names_the_same_part(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that the report names shows the same part in full."""
    monkeypatch.chdir(trace.parent)
    monkeypatch.setenv("COLUMNS", "60")
    rows = [*ROWS, *(kernel((200 + 10 * at) * US, 2 * US, launch_id=4, name=f"{at}zqx" * 60) for at in range(9))]
    write_trace(trace, rows)
    text = run("analyze", trace.name, "--device", "0", "--phase", "decode", "--rank", "0").stdout
    more = re.search(r"in full: tracekit (analyze .*? --device 0)", " ".join(map(str.strip, text.splitlines())))
    assert more is not None
    words = more[1].split()
    assert words[-6:] == ["--phase", "decode", "--rank", "0", "--device", "0"]
    assert "only phase decode, rank 0, device 0" in run(*words).stdout.splitlines()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--rank 7", "no rank 7 in this trace; there are: 0, 1"),
        ("--device 7", "no work of device 7 in this trace; there are: 0, 1"),
        ("--phase Decode", "no phase 'Decode'; phases are: prefill, decode, mixed, verify, draft, unknown"),
        ("--phase mixed", "no step is of phase mixed in this trace; there are: prefill (1 step), decode (1 step)"),
        ("--steps 5:", "no step lies in 5:; there are: 0 to 1"),
        ("--steps one", "'one' is no range of steps; write 3:8 (8 not included), 3:, :8, -5: (the last five) or 5"),
        ("--since 3", "'3' is no time; write a number and its unit, from the trace's start: 1.2s, 350ms, 20us, 5ns"),
        ("--since 2s --until 1s", "no time lies from 2s until 1s"),
        (
            "--rank 1 --phase decode",
            "nothing is left of this trace (only phase decode, rank 1); there are: ranks 0, 1; devices 0, 1; "
            "device work from 30.0 us to 120 us; phases prefill (1 step), decode (1 step); steps 0 to 1",
        ),
    ],
)
def test_what_there_is_not(trace: Path, options: str, said: str) -> None:
    result = run("analyze", trace, *options.split())
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"tracekit: {said}\n")


def test_health_fails_for_the_whole_trace(tmp_path: Path) -> None:
    """A part without the fault ends with 1 too."""
    rows = [launch(i, 1, name="cudaGraphLaunch") for i in range(9)]
    rows += [kernel(20, 5, launch_id=1, name="nvjet"), kernel(20, 5, name="nvjet", device=1)]
    path = write_trace(tmp_path / "blind.parquet", rows)
    assert run("analyze", path, "--device", "1").exit_code == 1


def test_help_has_an_example_of_a_part() -> None:
    shown = run("analyze", "-h").output
    assert "tracekit analyze trace.parquet attribution --phase decode --steps 3:8 --rank 0\n" in shown
    for option in ("--phase", "--steps", "--rank", "--device", "--since", "--until"):
        assert f"  {option} " in shown
