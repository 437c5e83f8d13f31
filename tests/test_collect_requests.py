"""Requests that make no sense are refused before anything is run, with what to do instead; and the help."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tracekit.cli import main
from tracekit.cli_collect import _GROUPS, collect

PROGRAM = ["--", sys.executable, "there.py", "--config=there.yaml", "-m"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no command given: tracekit collect [options] -- python serve.py"),
        (["--", "no-such-command"], "no-such-command: no such command"),
        (["-o", "there.parquet", *PROGRAM], "there.parquet exists"),
        (["-o", "no/folder/x.parquet", *PROGRAM], "is not a folder; make it first"),
        (["-o", "x.json.gz", *PROGRAM], "x.json.gz has the name of a raw trace; write a .parquet"),
        (["-o", "/proc/x.parquet", *PROGRAM], "cannot write to /proc: "),
        (["--keep-raw", "no/folder/raw", *PROGRAM], "is not a folder; make it first"),
        (["--keep-raw", "log.json", *PROGRAM], "'log.json' is a file"),
        (["-o", "new", "--keep-raw", "./new", *PROGRAM], "-o and --keep-raw are the same"),
        (["--force", "-o", "there.py", *PROGRAM], "there.py is named in the command"),
        (["--force", "-o", "link.py", *PROGRAM], "link.py is named in the command"),
        (["--force", "-o", "./there.yaml", *PROGRAM], "there.yaml is named in the command"),
        (["-o", "new.parquet", *PROGRAM, "new.parquet"], "new.parquet is named in the command"),
        (["--force", "-o", "there.py", "--", sys.executable, "-m", "there"], "there.py is named in the command"),
        (["--force", "-o", "app/__main__.py", "--", sys.executable, "app"], "__main__.py is named in the command"),
        (["--paused", "--delay", "3", *PROGRAM], "--paused begins by hand, --delay by the clock; give one"),
        (["--memory", "--delay", "3", *PROGRAM], "add --steps N"),
        (["--memory", "--paused", *PROGRAM], "or leave --paused away"),
        (["--session", "1", *PROGRAM], "--session cannot go with a command, but with --control"),
        (["--profile-dir", "app", *PROGRAM], "--profile-dir cannot go with a command, but with --attach"),
        (["--activities", "gpu", *PROGRAM], "no activity 'gpu'; there are cpu and cuda"),
        (["--step-module", "pkg.mod.f", *PROGRAM], "write it as package.module:Class.method"),
        (["--max-size", "4X", *PROGRAM], "'4X' is no size; write 500M or 4G"),
        (["--duration", "0", *PROGRAM], "'0' should be more than 0"),
        (["--steps", "0", *PROGRAM], "0 is not in the range x>=1"),
        (["--control", "start", *PROGRAM], "leave the command away"),
        (["--control", "start", "--attach", "http://localhost:1"], "give one"),
        (["--control", "start", "--duration", "3"], "--duration cannot go with --control, but with the command"),
        (["--attach", "http://localhost:1", *PROGRAM], "leave the command away, or --attach"),
        (["--attach", ":1", "--stacks"], "--stacks cannot go with --attach: there the server's own settings say what"),
        (["--attach", ":1", "--paused", "--stacks"], "--paused cannot go with --attach, whose window begins at once"),
    ],
)
def test_wrong_requests_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    def record(*_: object, **__: object) -> None:
        raise AssertionError("the program was run")

    monkeypatch.setattr("tracekit.collectors.torch_profiler.record", record)
    monkeypatch.setattr("tracekit.collectors._control.control", record)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app").mkdir()
    for name in ("there.py", "there.yaml", "there.parquet", "log.json", "app/__main__.py"):
        (tmp_path / name).touch()
    (tmp_path / "link.py").symlink_to("there.py")
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(main, ["collect", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_help_lists_every_option_by_subject_in_a_narrow_page() -> None:
    shown = CliRunner().invoke(main, ["collect", "--help"], terminal_width=100).output
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    assert lines[1:4] == [
        "Run a program under torch.profiler or Nsight Systems and write its trace.",
        "Examples:",
        "tracekit collect -o trace.parquet -- python serve.py --batch 32",
    ]
    assert max(map(len, shown.splitlines())) <= 100
    options = {parameter.name for parameter in collect.params} - {"command"}
    assert options == {name for group in _GROUPS.values() for name in group}
    assert [f"{title}:" for title in _GROUPS if f"\n{title}:\n" not in shown] == []
