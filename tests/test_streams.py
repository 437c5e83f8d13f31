"""Plain, gzip and Zstandard files as one stream, up to where they are whole."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tracekit import streams
from tracekit.errors import UsageError
from tracekit.streams import ByteStream, head_of

TEXT = b"".join(b'{"name": "kernel %d", "ts": %d},\n' % (n, n * 977) for n in range(6000))
NOISE = random.Random(0).randbytes(150_000)  # does not compress, so that several feeds are needed


def identity(data: bytes) -> bytes:
    return data


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def read(path: Path, data: bytes, size: int = 10_000) -> tuple[bytes, bool]:
    """All that the stream gives, and whether it says that it was cut."""
    path.write_bytes(data)
    with ByteStream(path) as stream:
        parts = []
        while part := stream.read(size):
            parts.append(part)
        assert stream.read(size) == b""
        assert stream.progress_bytes() <= stream.size_bytes == len(data)
        return b"".join(parts), stream.cut


def gzip_prefix(data: bytes) -> bytes:
    return zlib.decompressobj(wbits=31).decompress(data)


def zstd_prefix(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def test_empty_file(path: Path) -> None:
    assert read(path, b"") == (b"", False)
    assert head_of(path) == b""


@pytest.mark.parametrize("compress", [identity, gzip.compress, zstd])
@pytest.mark.parametrize("content", [b"", b"x", TEXT, NOISE, b"\0" * 3_000_000])
@pytest.mark.parametrize("size", [1 << 14, 1 << 22])
def test_whole_files(path: Path, compress: Callable[[bytes], bytes], content: bytes, size: int) -> None:
    assert read(path, compress(content), size) == (content, False)
    assert head_of(path, 100)[:100] == content[:100]


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
@pytest.mark.parametrize("feed", [1, 2, 3, 1000, 1 << 16])
def test_members_follow_one_another(
    path: Path, monkeypatch: pytest.MonkeyPatch, compress: Callable[[bytes], bytes], feed: int
) -> None:
    monkeypatch.setattr(streams, "_FEED", feed)
    parts = [b"a" * 50, b"", TEXT[:3000], b"z"]
    assert read(path, b"".join(map(compress, parts))) == (b"".join(parts), False)


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
@pytest.mark.parametrize("feed", [1, 7, 1 << 16])
@pytest.mark.parametrize("junk", [b"\0" * 100, b"\0", b"junk", b"\0\0junk", b"\n"])
def test_what_follows_the_last_member_is_ignored(
    path: Path, monkeypatch: pytest.MonkeyPatch, compress: Callable[[bytes], bytes], feed: int, junk: bytes
) -> None:
    monkeypatch.setattr(streams, "_FEED", feed)
    assert read(path, compress(TEXT[:500]) + junk) == (TEXT[:500], False)


def test_padding_to_a_tape_block_does_not_hide_the_next_member(path: Path) -> None:
    assert read(path, gzip.compress(b"a") + b"\0" * 200_000 + gzip.compress(b"b")) == (b"ab", False)


@pytest.mark.parametrize(
    ("compress", "prefix"), [(gzip.compress, gzip_prefix), (zstd, zstd_prefix)], ids=["gzip", "zstd"]
)
@pytest.mark.parametrize("feed", [100, 1 << 16])
def test_a_file_cut_anywhere_gives_all_that_can_be_decompressed(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compress: Callable[[bytes], bytes],
    prefix: Callable[[bytes], bytes],
    feed: int,
) -> None:
    monkeypatch.setattr(streams, "_FEED", feed)
    whole = compress(TEXT[:20_000])
    for size in range(4, len(whole), 7):
        content, cut = read(path, whole[:size])
        expected = prefix(whole[:size])
        # ISA-L decodes literals by twos and threes, and keeps the last of them back.
        assert expected.startswith(content), size
        assert len(expected) - len(content) <= 2, size
        assert cut, size


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_a_second_member_cut_keeps_the_first(path: Path, compress: Callable[[bytes], bytes]) -> None:
    first, second = compress(b"first"), compress(TEXT)
    for size in (1, 2, 3, 5, 10, len(second) // 2, len(second) - 1):
        content, cut = read(path, first + second[:size])
        assert content.startswith(b"first")
        assert (b"first" + TEXT).startswith(content)
        assert cut, size


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_a_damaged_file_is_good_up_to_the_feed_with_the_damage(path: Path, compress: Callable[[bytes], bytes]) -> None:
    whole = bytearray(compress(NOISE))
    at = 140_000
    whole[at : at + 400] = b"\xff" * 400
    content, cut = read(path, bytes(whole))
    assert cut
    assert len(content) >= (at // streams._FEED - 1) * streams._FEED
    assert NOISE.startswith(content[: len(content) // streams._FEED * streams._FEED - streams._FEED])


def test_a_frame_to_skip_is_no_data(path: Path) -> None:
    skipped = b"\x50\x2a\x4d\x18" + (8).to_bytes(4, "little") + b"12345678"
    assert read(path, skipped + zstd(b"a") + skipped + zstd(b"b")) == (b"ab", False)


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        head_of(tmp_path / "absent.json")
    with pytest.raises(UsageError, match="Is a directory"):
        head_of(tmp_path)


def test_a_plain_file_can_be_read_again(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"abcdef")
    (tmp_path / "zipped.gz").write_bytes(gzip.compress(b"abcdef"))
    with ByteStream(tmp_path / "plain") as stream:
        assert (stream.read(4), stream.unread(3), stream.read(9), stream.read(9)) == (b"abcd", True, b"bcdef", b"")
    with ByteStream(tmp_path / "zipped.gz") as stream:
        assert (stream.read(9), stream.unread(3)) == (b"abcdef", False)
