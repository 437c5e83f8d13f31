"""Which Nsight Systems is installed here, and how do its reports become SQLite files?

Facts about `nsys` that this rests on, seen with 2022.4.2: `nsys export` and `QdstrmImporter` tell of failure by their
exit code, `nsys profile` does not. Debian's package puts the importer where its own `nsys` does not look for it, and
leaves a raw stream (.qdstrm) instead of a report (.nsys-rep).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tracekit.errors import MalformedTraceError, TracekitError, UnknownFormatError, UsageError

STREAM_HEAD = b"NVIDIA Nsight Systems Stream"  # after "QU3w[END]" or the like; then a space and the version

_VERSION = re.compile(r"\d{4}(?:\.\d+)+")
_WRITTEN_BY = re.compile(rb"(?<![\d.])20\d\d\.\d+\.\d+(?:\.\d+)*-[0-9a-z]+")
_TOO_NEW = re.compile(r"created in Nsight Systems version \(([^)]*)\),?\s*newer than")
_ANSWER_S = 60.0
_TAIL = 1 << 16  # bytes at the end of a report within which it says what wrote it
_LONGEST_REASON = 300
_INSTALL = "install a newer Nsight Systems, or export the report where it was recorded"


@dataclass(frozen=True, slots=True)
class Nsys:
    """An installed nsys. version: 2022.4.2 is (2022, 4, 2); text: with build and hash, as it says itself."""

    path: Path
    version: tuple[int, ...]
    text: str

    @property
    def importer(self) -> Path | None:
        """The QdstrmImporter of the same installation."""
        for place in _places(self.path):
            for found in sorted(place.glob("host-*/QdstrmImporter")):
                if os.access(found, os.X_OK):
                    return found
        return None


def find_nsys() -> Nsys | None:
    """The first nsys on PATH, if it runs and says its version."""
    found = shutil.which("nsys")
    return None if found is None else _ask(Path(found))


def export_sqlite(report: Path, out: Path) -> None:
    """Export a .nsys-rep to a SQLite file, overwriting `out`.

    Raises UnknownFormatError where no nsys is installed or a newer one wrote the report, MalformedTraceError for a
    report that nsys cannot read, UsageError where `out` cannot be written.
    """
    nsys = find_nsys()
    if nsys is None:
        raise UnknownFormatError(
            f"{report}: a report{_by(_writer(report))} is exported by nsys, which is not found on PATH; install Nsight "
            f"Systems, or run where it is: nsys export --type=sqlite {report.name}"
        )
    _check_can_write(out)
    command = [str(nsys.path), "export", "--type=sqlite", "--force-overwrite=true", "--quiet=true"]
    failed = _run([*command, f"--output={out.absolute()}", str(report.absolute())])
    if failed is not None or not out.is_file():
        out.unlink(missing_ok=True)
        raise _cannot_read(report, nsys, _writer(report), "nsys export", failed)


def import_stream(stream: Path, out: Path) -> None:
    """Make the report (.nsys-rep) of a raw stream (.qdstrm), overwriting `out`.

    Raises UnknownFormatError where no importer is installed or a newer nsys wrote the stream, MalformedTraceError for
    a stream that cannot be imported, UsageError where `out` cannot be written.
    """
    nsys = find_nsys()
    importer = None if nsys is None else nsys.importer
    if nsys is None or importer is None:
        lacks = "nsys is not found on PATH" if nsys is None else f"the installation of {nsys.path} has none"
        raise UnknownFormatError(
            f"{stream}: a raw stream{_by(_stream_writer(stream))}, which Nsight Systems' QdstrmImporter makes into a "
            f"report, and {lacks}. Install the whole of Nsight Systems (its host-* folder has the importer)"
        )
    _check_can_write(out)
    command = [str(importer), "--force-overwrite", "--input-file", str(stream.absolute())]
    failed = _run([*command, "--output-file", str(out.absolute())])
    if failed is not None or not out.is_file():
        out.unlink(missing_ok=True)
        raise _cannot_read(stream, nsys, _stream_writer(stream), "QdstrmImporter", failed)


@cache
def _ask(path: Path) -> Nsys | None:
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_ANSWER_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stdout)
    if match is None:
        return None
    return Nsys(path, _numbers(match[0]), done.stdout.strip().rpartition("version ")[2])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


def _places(path: Path) -> Iterator[Path]:
    """Folders that may be the installation: two above nsys, by each link on the way to it, the nearest last."""
    while True:
        yield path.parent.parent
        if not path.is_symlink():
            break
        path = Path(os.path.normpath(path.parent / path.readlink()))
    yield path.resolve().parent.parent


def _check_can_write(out: Path) -> None:
    if not out.absolute().parent.is_dir():
        raise UsageError(f"{out}: {out.absolute().parent} is no folder; make it first")
    if not os.access(out.absolute().parent, os.W_OK):
        raise UsageError(f"{out}: {out.absolute().parent} cannot be written")


def _run(command: Sequence[str]) -> str | None:
    """None if it ended with 0, else what it said."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror or error}"
    return None if done.returncode == 0 else f"{done.stderr}\n{done.stdout}"


def _cannot_read(path: Path, nsys: Nsys, writer: str | None, tool: str, said: str | None) -> TracekitError:
    """The error for a file that nsys cannot read: another version's, or broken."""
    text = " ".join((said or "").split())
    newer = _TOO_NEW.search(text)
    if newer is not None:
        writer = newer[1]
    match = _VERSION.search(writer or "")
    if newer is not None or (match is not None and _numbers(match[0])[:3] > nsys.version[:3]):
        return UnknownFormatError(
            f"{path}: written by Nsight Systems {writer}, newer than {nsys.text}, which is found here ({nsys.path}); "
            f"{_INSTALL}"
        )
    why = _reason(text) or "it wrote nothing and gave no reason"
    return MalformedTraceError(f"{path}{_by(writer)} cannot be read by {tool} {nsys.text}: {why}")


def _reason(text: str) -> str:
    """The part of what a tool said that tells why, without the C++ around it."""
    known = re.search(r"Exportation error: .*|std::exception::what: [^\[]*\w", text)
    reason = re.sub(r"^(Exportation error|std::exception::what): ", "", known[0] if known else text)
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."


def _by(writer: str | None) -> str:
    return "" if writer is None else f" written by Nsight Systems {writer}"


def _writer(report: Path) -> str | None:
    """The version of nsys that wrote a report: it is among the last things in it."""
    try:
        with report.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            found = _WRITTEN_BY.findall(file.read())
    except OSError:
        return None
    return found[-1].decode() if found else None


def _stream_writer(stream: Path) -> str | None:
    """The version of nsys that wrote a stream: it is in its first line."""
    try:
        with stream.open("rb") as file:
            head = file.read(200)
    except OSError:
        return None
    found = _WRITTEN_BY.search(head) if STREAM_HEAD in head else None
    return None if found is None else found[0].decode()
