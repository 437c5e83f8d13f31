"""tracekit whatif: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import run
from tests.event_rows import kernel, launch, write_trace
from tests.graph_rows import US, Rows, item, put, steps


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("whatif") / "trace.parquet", steps(item))


def test_as_text(trace: Path) -> None:
    result = run("whatif", trace, "--graph", "decode", "--scale-kernel", "nvjet=0.5")
    assert (result.exit_code, result.stderr) == (0, "")
    *head, step, graph, scaled, basis = result.stdout.splitlines()
    assert " ".join(" ".join(head).split()).endswith(" 1 rank NVIDIA H100 80GB HBM3")
    assert step.startswith("decode 3-4: 2.00 ms -> 1.4") and step.endswith("% less")
    assert graph.startswith("  CUDA graph of the forward pass (decode 3-4)  13 launches  saves ")
    assert scaled.split()[:6] == ["kernels", "'nvjet'", "x", "0.5", "6", "kernels"]
    assert basis == "  1 step replayed of 3; unchanged, the replay is 0.0% off"


def test_as_json(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = run("whatif", trace, "--free-launches", "--format", "json", "-o", out)
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (0, "", f"Wrote {out}")
    (group,) = json.loads(out.read_text())["whatif"]["groups"]
    assert (group["phase"], group["before_ns"], group["refusal"]) == ("decode", 2_000 * US, "")
    (change,) = group["changes"]
    assert change["change"] == "launches for free" and change["matched"] == 13
    assert run("whatif", trace, "--free-launches", "-o", out).exit_code == 2  # it overwrites nothing


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing to change: give --graph, --fuse, --scale-kernel, "),
        (("--scale-kernel", "(=1"), "'(' is no regular expression: "),
        (("--scale-kernel", "nvjet"), "--scale-kernel"),
        (("--scale-kernel", "nvjet=0"), "the factor must be more than 0"),
        (("--scale-kernel", "nvjet=x"), "--scale-kernel"),
        (("--scale-kernel", "nvjet=nan"), "and at most 10,000; it is nan"),
        (("--scale-kernel", "nvjet=1e12"), "and at most 10,000; it is 1e12"),
        (("--remove-sync", "["), "'[' is no regular expression: "),
        (("--remove-sync", "nosuch"), "no call that waits for the device matches 'nosuch'"),
        (("--fuse", "nosuch"), "no pattern 'nosuch' in the catalogue"),
        (("--graph", "nosuch"), "no step of phase 'nosuch' to graph"),
    ],
)
def test_what_makes_no_sense(trace: Path, arguments: tuple[str, ...], said: str) -> None:
    result = run("whatif", trace, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr and len(result.stderr.splitlines()) == 1


def test_a_replay_that_is_off_is_refused(tmp_path: Path) -> None:
    rows: Rows = []
    for turn in range(12):
        late = 700 * US if turn == 11 else 0
        put(rows, launch(turn * 50 * US, 4 * US), kernel(turn * 50 * US + 6 * US + late, 5 * US))
    path = write_trace(tmp_path / "trace.parquet", rows)
    result = run("whatif", path, "--free-launches")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("tracekit: no estimate: replayed without any change the step takes 555 us, ")
    assert run("whatif", path, "--free-launches", "--max-error", "60").exit_code == 0
