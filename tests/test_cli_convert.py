"""convert on the command line, where it draws: what it says, what it refuses, and how far it is."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

import tracekit
from tests.command_line import run
from tests.event_rows import kernel, write_trace
from tests.perfetto_files import SAMPLES
from tracekit import perfetto
from tracekit.cli_options import progress_bar
from tracekit.errors import UsageError


def test_convert_to_perfetto(tmp_path: Path) -> None:
    source, out = SAMPLES / "h100_decode_graph.json.gz", tmp_path / "look.json.gz"
    shown = run("convert", source, "--to", "perfetto", "--steps", "3", "-o", out)
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert shown.stderr == (
        f"Wrote {out}: 381 events (annotation 1, kernel 328, launch 24, memcpy 4, memset 1, op 23), 12 flows; on "
        "tracks of tracekit's own (steps 1, categories 333, idle gaps 12)\n"
    )
    assert json.loads(gzip.decompress(out.read_bytes()))["otherData"]["part"] == "step 3"
    assert [one.name for one in tmp_path.iterdir()] == ["look.json.gz"]


def test_what_convert_refuses(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.parquet", [kernel(0, 1)])
    raw = tmp_path / "raw.json"
    (tmp_path / "old.json").write_text("old")
    with tracekit.open(path) as trace:
        perfetto.export(trace, raw)
        with pytest.raises(UsageError, match="exists"):
            perfetto.export(trace, raw)
    before = raw.read_bytes()
    for arguments, message in (
        ([path, "--to", "perfetto", "-o", tmp_path / "t.html"], "let it end in .json or .json.gz"),
        ([path, "--to", "perfetto", "-o", tmp_path / "old.json"], "exists"),
        ([raw, "--to", "perfetto", "-o", raw, "--force"], "is what is to be read"),
        ([path, "--to", "perfetto", "-o", tmp_path / "no" / "t.json"], "is not a folder"),
        ([path, "--to", "perfetto", "-o", tmp_path / "t.json", "--rank", "7"], "no rank 7 in this trace"),
        ([raw, "-o", tmp_path / "new.parquet", "--steps", "1"], "--steps is for --to perfetto"),
        ([raw, "-o", tmp_path / "new.json"], "new.json has the name of a raw trace; write a .parquet, or give --to"),
        ([tmp_path / "none.json", "--to", "perfetto", "-o", tmp_path / "t.json"], "no such file"),
    ):
        shown = run("convert", *arguments)
        assert (shown.exit_code, shown.stdout) == (2, ""), shown.output
        assert message in shown.stderr
    assert raw.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["old.json", "raw.json", "t.parquet"]


class Terminal(io.StringIO):
    """Takes what is shown."""

    def isatty(self) -> bool:
        return True


def test_a_bar_says_how_far_it_is_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with progress_bar() as advance:
        assert advance is None
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "100")
    with progress_bar("Writing", "events") as advance:
        assert advance is not None
        advance(Path("folder/look.json"), 5, 10)
    assert "Writing look.json" in terminal.getvalue()
    assert "5/10" in terminal.getvalue()
