"""The roofline on the command line: what is given beside a trace, and the picture."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import ROWS, run
from tests.event_rows import write_trace
from tests.model_configs import TINY

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace, and what can be given beside it."""
    path = tmp_path_factory.mktemp("roofline")
    write_trace(path / "trace.parquet", ROWS)
    (path / "config.json").write_text(json.dumps(TINY))
    (path / "config of another.json").write_text('{"model_type": "llama"}')
    (path / "broken.json").write_text('{\n "a": }')
    (path / "mine.toml").write_text('[[device]]\nnames = ["Mine"]\nsms = 5\nbandwidth_gbs = -1\n')
    (path / "text.txt").write_text("no trace")
    return path


@pytest.fixture
def files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, which is where the command runs."""
    (folder / "there.svg").write_text("mine")
    monkeypatch.chdir(folder)
    return folder


# ---- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("--peak bf16", 2, ["--peak bf16: give NAME=VALUE", "bandwidth"]),
        ("--peak speed=1e12", 2, ["--peak speed=1e12", "NAME is one of", "bandwidth"]),
        ("--peak bf16=fast", 2, ["--peak bf16=fast", "989e12"]),
        ("--peak bandwidth=3.35TFLOP/s", 2, ["bandwidth is in B/s, not FLOP/s"]),
        ("--peak bandwidth=3.35", 2, ["--peak bandwidth=3.35", "is the unit another?"]),
        ("--peak bf16=nan", 2, ["--peak bf16=nan"]),
        ("--device-spec mine.toml", 2, ["mine.toml: device 1: bandwidth_gbs must be more than 0"]),
        ("--device-spec absent.toml", 2, ["absent.toml"]),
        ("--device-spec broken.json", 2, ["broken.json", "not a TOML file", "line 1"]),
        ("--model absent.json", 2, ["absent.json"]),
        ("--model broken.json", 2, ["broken.json:2:7", "not JSON"]),
        ("--model text.txt", 2, ["text.txt:1:1", "not JSON"]),
        ("--model 'config of another.json'", 2, ["config of another.json", "num_hidden_layers"]),
        ("--model config.json --tensor-parallel 0", 2, ["tensor parallelism of 0"]),
        ("--model config.json --tensor-parallel half", 2, ["half"]),
        ("--capture-trace absent.json", 2, ["absent.json"]),
        ("--capture-trace text.txt", 3, ["text.txt"]),
        ("--plot roofline.pdf", 2, ["roofline.pdf", ".png or .svg"]),
        ("--plot there.svg", 2, ["there.svg exists", "--force"]),
        ("--plot absent/roofline.svg", 2, ["absent is not a folder"]),
        ("--plot trace.parquet", 2, ["trace.parquet", ".png or .svg"]),
    ],
)
def test_mistakes_are_told_with_their_place(files: Path, arguments: str, code: int, said: list[str]) -> None:
    result = run("analyze", "trace.parquet", "roofline", *shlex.split(arguments))
    assert result.exit_code == code, result.output
    assert [word for word in said if word not in result.output] == []
    assert len(result.output.strip().splitlines()) <= 5 and "Traceback" not in result.output
    assert (files / "there.svg").read_text() == "mine"


def test_a_picture_of_what_is_not_asked(files: Path) -> None:
    result = run("analyze", "trace.parquet", "health", "--plot", "roofline.svg")
    assert result.exit_code == 2 and "roofline, which is not among the analyses named" in result.output
    assert not (files / "roofline.svg").exists()


# ---- what can --------------------------------------------------------------------------------------------------------


def test_what_has_no_room_on_the_screen_is_told_how_to_see(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same options; the picture is drawn in passing."""
    monkeypatch.setattr("tracekit.report_text.LINES", 25)
    beside = "--peak bf16=1e+14 --peak bandwidth=1e+12 --capture-trace trace.parquet --model config.json"
    beside += " --tensor-parallel 2"
    result = run("analyze", "trace.parquet", *beside.split(), "--plot", "there.svg", "--force")
    said = " ".join(result.output.split())
    assert f"in full: tracekit analyze trace.parquet idle_gaps roofline {beside}" in said, result.output
    assert "Wrote there.svg" in result.stderr
    assert (files / "there.svg").read_text().startswith("<?xml")


def test_a_picture_in_pixels(files: Path) -> None:
    result = run("analyze", "trace.parquet", "roofline", "--plot", "roofline.PNG", "--format", "json")
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.stdout)
    assert list(found["results"]) == ["roofline"]
    assert (files / "roofline.PNG").read_bytes().startswith(PNG)
    assert sorted(path.name for path in files.glob("*roofline*")) == ["roofline.PNG"]
