"""tracekit compare: what it prints, what it takes for a recording, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.command_line import run
from tests.event_rows import write_trace
from tests.idle_rows import GAP, OP, US, steps
from tests.simulator import Run, simulate
from tracekit.cli_compare import recordings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """a/ and b/ hold two recordings a side: of 600 us a step, and of 660 us."""
    folder = tmp_path_factory.mktemp("compare")
    for side, gap in (("a", GAP), ("b", GAP + 60 * US)):
        (folder / side).mkdir()
        write_trace(folder / side / "1.parquet", steps(OP, gap=gap))
        shutil.copy(folder / side / "1.parquet", folder / side / "2.parquet")
    return folder


def test_as_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    result = run("compare", "a/1.parquet", "b/1.parquet")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "base       a/1.parquet   56 events   1 x NVIDIA H100 80GB HBM3",
        "candidate  b/1.parquet   56 events   1 x NVIDIA H100 80GB HBM3",
        "  one recording a side: how much one differs from the next is not known and counted as nothing;",
        "  record three or more",
        "decode 3-4: slower, 600 us -> 660 us a step, +60.0 us +10.0% [+10.0%, +10.0%]; 7 steps each",
        "  p50    600 us ->    660 us    +60.0 us  +10.0% [+10.0%, +10.0%]",
        "  p90    600 us ->    660 us    +60.0 us  +10.0%",
        "  p99    600 us ->    660 us    +60.0 us  +10.0%",
        "  what explains it, a step",
        "    idle launch_bound    400 us ->    460 us    +60.0 us  ████████████████████████",
        "    sum                                         +60.0 us",
    ]


def test_as_json_of_several_recordings_a_side(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    a, b = folder / "a", folder / "b"
    arguments = ("compare", a, b / "1.parquet", "--candidate", b / "2.parquet", "--format", "json", "-o", out)
    result = run(*arguments)
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (0, "", f"Wrote {out}")
    said = json.loads(out.read_text())
    assert (said["schema"], said["basis"], said["conditions"], said["warnings"]) == (1, "device", [], [])
    assert said["base"]["names"] == [str(a / "1.parquet"), str(a / "2.parquet")]
    (group,) = said["groups"]
    assert (group["base"]["runs"], group["candidate"]["steps"], group["verdict"]) == (2, 14, "slower")
    assert sum(part["change_ns"] for part in group["parts"]) == group["change_ns"] == 60 * US
    assert run(*arguments).exit_code == 2  # it overwrites nothing
    assert run(*arguments, "--force").exit_code == 0


def test_a_part_of_each(folder: Path) -> None:
    a, b = folder / "a" / "1.parquet", folder / "b" / "1.parquet"
    result = run("compare", a, b, "--phase", "decode", "--steps", "1:4", "--format", "json")
    (group,) = json.loads(result.stdout)["groups"]
    assert (group["verdict"], group["base"]["steps"]) == ("cannot tell", 3)
    result = run("compare", a, b, "--phase", "prefill")
    assert (result.exit_code, result.stdout) == (2, "") and "prefill" in result.stderr


def test_what_is_one_recording_and_what_several(folder: Path, tmp_path: Path) -> None:
    both = [folder / "a" / "1.parquet", folder / "a" / "2.parquet"]
    assert recordings(folder / "a") == both
    assert recordings(both[0]) == [both[0]]
    shutil.copytree(folder / "a", tmp_path / "beside_raw_files")
    simulate(Run(steps=1), tmp_path / "beside_raw_files" / "rank0.json")
    (tmp_path / "empty").mkdir()
    for one in ("beside_raw_files", "empty", "none"):
        assert recordings(tmp_path / one) == [tmp_path / one]


def test_raw_files_of_the_ranks_of_one_run(tmp_path: Path) -> None:
    simulate(Run(ranks=2, steps=3), tmp_path / "ranks")
    result = run("compare", tmp_path / "ranks", tmp_path / "ranks", "--format", "json")
    said = json.loads(result.stdout)
    assert (said["base"]["settings"]["ranks"], len(said["base"]["names"])) == ("2", 1)
    assert {(one["verdict"], one["change_ns"]) for one in said["groups"]} == {("cannot tell", 0)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a", "nosuch.parquet"), "nosuch.parquet"),
        (("a",), "Missing argument 'CANDIDATE'"),
        (("a", "b", "-o", "a/1.parquet", "--force"), "a/1.parquet is what is to be read; give another -o"),
        (("a", "b", "--steps", "90:"), "a/1.parquet: no step lies in 90:; there are: 0 to 7"),
    ],
)
def test_what_makes_no_sense(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(folder)
    result = run("compare", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
