"""The file of a Chrome trace: plain or gzip, and there only when it is whole."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from isal import isal_zlib

from tracekit.errors import UsageError

SUFFIXES = (".json", ".json.gz")
_GZIP_LEVEL = 1  # of isal's 0 to 3: larger by some per cent than zlib's best, many times as fast


def check_suffix(path: Path) -> None:
    """Raise UsageError unless viewers open a file of this name."""
    if not path.name.endswith(SUFFIXES):
        raise UsageError(f"{path}: viewers tell a trace by its name; let it end in {' or '.join(SUFFIXES)}")


class TraceFile:
    """Takes the members before the events, then events; a context manager that removes what was not finished.

    Each event begins with a comma and a line break: the first loses its comma.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._first = True
        self._compressor = isal_zlib.compressobj(_GZIP_LEVEL, wbits=31) if path.name.endswith(".gz") else None
        try:
            self._file = self._draft.open("wb")
        except OSError as error:
            raise UsageError(f"{path}: cannot write there: {error.strerror or error}") from error

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._write(b"\n]}\n")
                self._file.write(b"" if self._compressor is None else self._compressor.flush())
            self._file.close()
            if kind is None:
                self._draft.replace(self._path)
        except OSError as failure:
            raise self._unwritten(failure) from failure
        finally:
            self._draft.unlink(missing_ok=True)

    def head(self, members: str) -> None:
        """The beginning: a JSON object whose members come before the events."""
        self._write(members.rstrip().removesuffix("}").encode() + b',"traceEvents":[')

    def add(self, events: bytes | memoryview) -> None:
        """Events as text, each after a comma."""
        if self._first and len(events):
            events = memoryview(events)[1:]
            self._first = False
        self._write(events)

    def _write(self, data: bytes | memoryview) -> None:
        try:
            self._file.write(data if self._compressor is None else self._compressor.compress(data))
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> UsageError:
        return UsageError(f"{self._path} cannot be written: {error.strerror or error}")
