"""Reports and raw streams of a real nsys through its own exporter and importer, and what is said where that fails."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nsys_runs import needs_nsys, nsys
from tracekit.collectors._nsys_tool import Nsys, export_sqlite, find_nsys, import_stream
from tracekit.errors import MalformedTraceError, TracekitError, UnknownFormatError, UsageError

pytestmark = needs_nsys


@pytest.fixture(scope="module")
def installed() -> Nsys:
    found = find_nsys()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report, and beside it, where this nsys does not find its importer, the stream that it was made of."""
    folder = tmp_path_factory.mktemp("nsys")
    options = ["--trace=nvtx", "--sample=none", "--cpuctxsw=none", f"--output={folder / 'r'}"]
    nsys("profile", *options, "sleep", "0.1")
    report = folder / "r.nsys-rep"
    if not report.exists():
        import_stream(folder / "r.qdstrm", report)
    return report


def stream_of(report: Path) -> Path:
    stream = report.with_suffix(".qdstrm")
    if not stream.exists():
        pytest.skip("this nsys makes reports of its streams by itself")
    return stream


def test_the_version_is_what_it_says(installed: Nsys) -> None:
    assert installed.version >= (2020,)
    assert installed.text.startswith(".".join(map(str, installed.version)))


def test_report_is_exported_over_what_was_there(tmp_path: Path, recorded: Path) -> None:
    out = tmp_path / "-f 100%.sqlite"
    out.write_text("before")
    export_sqlite(recorded, out)
    connection = sqlite3.connect(out)
    assert connection.execute("SELECT count(*) FROM StringIds").fetchone()[0] > 0
    connection.close()
    assert list(tmp_path.iterdir()) == [out]


def test_stream_is_imported(tmp_path: Path, recorded: Path) -> None:
    out = tmp_path / "out.nsys-rep"
    import_stream(stream_of(recorded), out)
    export_sqlite(out, tmp_path / "out.sqlite")
    assert (tmp_path / "out.sqlite").stat().st_size > 0


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def of_a_later_nsys(content: bytes) -> bytes:
    """Without its middle, and with the version of one that is to come."""
    return re.sub(rb"20\d\d(\.\d+\.\d+\.\d+-)", rb"2099\1", content[:200] + content[-2000:])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda _: b"", MalformedTraceError, r"broken.nsys-rep cannot be read by nsys export 20"),
        (lambda _: b"text\n", MalformedTraceError, r"broken.nsys-rep cannot be read by nsys export 20"),
        (cut, MalformedTraceError, r"broken.nsys-rep cannot be read by nsys export 20"),
        (of_a_later_nsys, UnknownFormatError, r"written by Nsight Systems 2099\.\S+, newer than 20\S+, which is found"),
    ],
    ids=["empty", "text", "cut", "later"],
)
def test_report_that_cannot_be_read(
    tmp_path: Path, recorded: Path, change: Callable[[bytes], bytes], error: type[TracekitError], message: str
) -> None:
    (tmp_path / "broken.nsys-rep").write_bytes(change(recorded.read_bytes()))
    with pytest.raises(error, match=message):
        export_sqlite(tmp_path / "broken.nsys-rep", tmp_path / "out.sqlite")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.nsys-rep"]


def test_stream_that_cannot_be_read(tmp_path: Path, recorded: Path) -> None:
    (tmp_path / "broken.qdstrm").write_bytes(cut(stream_of(recorded).read_bytes()))
    with pytest.raises(
        MalformedTraceError, match=r"broken\.qdstrm written by Nsight Systems 20\S+ cannot be read by Qd"
    ):
        import_stream(tmp_path / "broken.qdstrm", tmp_path / "out.nsys-rep")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.qdstrm"]


def test_without_nsys_it_is_said_what_wrote_the_file(
    tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UnknownFormatError, match=r"written by Nsight Systems 20\d\d\.\S+ is exported by nsys, which is not"
    ):
        export_sqlite(recorded, tmp_path / "out.sqlite")
    with pytest.raises(UnknownFormatError, match=r"r\.qdstrm: a raw stream.*, and nsys is not found on PATH"):
        import_stream(recorded.with_suffix(".qdstrm"), tmp_path / "out.nsys-rep")


def test_installation_without_its_importer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Nsys) -> None:
    """As where only the command line was copied to a machine."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nsys").write_text(f'#!/bin/sh\nexec "{installed.path}" "$@"\n')
    (tmp_path / "bin" / "nsys").chmod(0o755)
    (tmp_path / "r.qdstrm").write_bytes(b"U3w[END]NVIDIA Nsight Systems Stream 2022.4.2.1-df9881f!\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{Path(shutil.which('sh') or '/bin/sh').parent}")
    with pytest.raises(
        UnknownFormatError, match=r"stream written by Nsight Systems 2022\.4\.2\.1-df9881f, .* has none\. "
    ):
        import_stream(tmp_path / "r.qdstrm", tmp_path / "out.nsys-rep")


def test_place_that_cannot_be_written(tmp_path: Path, recorded: Path) -> None:
    with pytest.raises(UsageError, match=r"is no folder; make it first"):
        export_sqlite(recorded, tmp_path / "none" / "out.sqlite")
