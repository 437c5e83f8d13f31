"""What becomes of the files that a server wrote itself: they are converted, copied where asked for, and left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bad_server import trace
from tracekit.capture_attached import convert_attached
from tracekit.collectors.attach import Attached

STAY = "stay where the server wrote them: {server}"


@pytest.mark.parametrize(
    ("keep_raw", "said", "copied"),
    [
        (None, [f"The profiler's own files {STAY}"], []),
        (
            "kept",
            [
                "Wrote {kept}: the profiler's own files; they may hold secrets",
                f"The profiler's own files also {STAY}",
            ],
            ["rank0.json.gz"],
        ),
        ("server", [f"The profiler's own files {STAY}"], []),
    ],
)
def test_files_of_the_server(tmp_path: Path, keep_raw: str | None, said: list[str], copied: list[str]) -> None:
    folders = {name: tmp_path / name for name in ("server", "ours", "kept")}
    folders["server"].mkdir()
    folders["ours"].mkdir()
    file = folders["server"] / "rank0.json.gz"
    file.write_bytes(trace())
    lines: list[str] = []
    attached = Attached((file,), (), {}, unfinished=lambda: "All files are whole, though")
    keep = None if keep_raw is None else folders[keep_raw]
    assert convert_attached(attached, tmp_path / "trace.parquet", keep, folders["ours"], lines.append) == []
    assert lines[:2] == ["Recorded 1 rank:", "  rank 0: 2 events, 0 of the device, 1 step"]
    assert lines[3:] == [*(line.format(**folders) for line in said), "All files are whole, though."]
    assert [path.name for path in folders["kept"].glob("*")] == copied
    assert [path.name for path in folders["server"].iterdir()] == ["rank0.json.gz"]
