"""Open a plain, gzip or Zstandard file as one stream of bytes, and say so when it ends early."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tracekit.errors import UsageError

# How a member (gzip) or a frame (Zstandard; the second kind holds no data) begins.
_GZIP = (b"\x1f\x8b",)
_ZSTD = (b"\x28\xb5\x2f\xfd", *(bytes([kind]) + b"\x2a\x4d\x18" for kind in range(0x50, 0x60)))
_RATIO = 14  # of traces as they come
_FEED = 1 << 16  # compressed bytes at a time: output per feed stays small, and a damaged file loses little


class ByteStream:
    """A decompressed file, read forwards.

    `cut` becomes True when the compressed stream ends before its own end mark or is damaged: what was read before
    is good, the rest does not exist. The file objects of gzip, isal and zstandard either hide this or throw away
    what they had decompressed of the last block, hence the decompressor objects here.

    expected_bytes: a guess at the decompressed size, for sharing out the work; nothing may depend on it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = path.stat().st_size
        self.cut = False
        self._raw = path.open("rb")
        head = self._raw.read(4)
        self._magic = next((magic for magic in (_GZIP, _ZSTD) if head.startswith(magic)), ())
        self.expected_bytes = self._expected_bytes()
        self._raw.seek(0)
        self._decompressor = self._new_decompressor() if self._magic else None
        self._fed = False  # whether the current member has had any input
        self._start = b""  # what may be the beginning of the next member, until enough of it is there to tell

    def read(self, size: int) -> bytes:
        """At least one byte and about `size`; empty only at the end."""
        if not self._magic:
            return self._raw.read(size)
        parts: list[bytes] = []
        while size > 0 and (part := self._next()):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def unread(self, size: int) -> bool:
        """Go back, so that the last `size` bytes are read again; False if that is not possible (compressed)."""
        if self._magic:
            return False
        self._raw.seek(-size, os.SEEK_CUR)
        return True

    def progress_bytes(self) -> int:
        """How far the reading is in the file as stored, for a progress bar against `size_bytes`."""
        return self._raw.tell()

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _expected_bytes(self) -> int:
        if not self._magic:
            return self.size_bytes
        expected = _RATIO * self.size_bytes
        if self._magic is _GZIP and self.size_bytes > 18:
            self._raw.seek(-4, os.SEEK_END)  # the size of the last member, modulo 4 GiB; mostly the only one
            stated = int.from_bytes(self._raw.read(4), "little")
            expected = stated if stated > self.size_bytes else expected
        return expected

    def _next(self) -> bytes:
        while self._decompressor is not None:
            data = self._raw.read(_FEED)
            if not data:
                self.cut = self.cut or self._fed or bool(self._start)  # the end mark never came
                self._decompressor = None
                break
            if out := self._feed(data):
                return out
        return b""

    def _feed(self, data: bytes) -> bytes:
        """Decompress one piece of input; members (gzip) and frames (zstd) may follow one another within it."""
        parts: list[bytes] = []
        while self._decompressor is not None:
            if not self._fed:
                data = self._member(data)
            if not data:
                break
            self._fed = True
            try:
                parts.append(self._decompressor.decompress(data))
            except Exception as error:
                if type(error).__name__ not in {"IsalError", "ZstdError"}:
                    raise
                self.cut = True
                self._decompressor = None
                break
            if not self._decompressor.eof:
                break
            data = self._decompressor.unused_data
            self._decompressor = self._new_decompressor()
            self._fed = False
        return b"".join(parts)

    def _member(self, data: bytes) -> bytes:
        """The beginning of a member; empty if there is none, or not enough of it yet."""
        data = (self._start + data).lstrip(b"\0")  # tape padding is no member
        self._start = b""
        if data.startswith(self._magic):
            return data
        if any(magic.startswith(data) for magic in self._magic):
            self._start = data
        else:
            self._decompressor = None  # like gzip: ignore what follows
        return b""

    def _new_decompressor(self) -> Any:
        if self._magic is _ZSTD:
            import zstandard

            return zstandard.ZstdDecompressor().decompressobj()
        from isal import isal_zlib

        return isal_zlib.decompressobj(wbits=31)


def head_of(path: Path, size: int = 65536) -> bytes:
    """The first bytes of a file, decompressed. Raises UsageError when it cannot be opened."""
    try:
        with ByteStream(path) as stream:
            return stream.read(size)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
