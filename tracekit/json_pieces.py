"""Cut the event array of a large JSON document into pieces that can be parsed apart, exactly.

JSON is LL(1): if a piece starts where the array expects a value, and `[` + piece + `]` parses as a whole, then the
piece ends between two events. So a likely cut is taken from a look at the bytes, and the parse that the piece needs
anyway is the proof. When the proof fails, `push_back` returns the pieces and `exact_piece` finds a cut by honouring
every quote.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from dataclasses import dataclass

from tracekit.errors import MalformedTraceError, UnknownFormatError
from tracekit.json_repair import (
    NEXT_EVENT,
    UNREADABLE,
    Scan,
    event_boundary,
    goes_on_inside,
    loads_mended,
    scan_events,
)
from tracekit.streams import ByteStream

PIECE_BYTES = 16 << 20
_READ_BYTES = 4 << 20
_LEAST_READ = 1 << 16
_HEAD_LIMIT = 256 << 20
_TAIL_LIMIT = 64 << 20
_LIKELY_TAIL = 4 << 20  # a longer one is found by honouring every quote
_EVENT_LIMIT = 256 << 20  # an event that is still open after so much is taken for damage

_CUT = re.compile(rb"\}\s*,\s*(?=\{)")
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_COLON_OPEN = re.compile(rb"\s*:\s*([\[{])")
_CLOSING = re.compile(rb"\](?=\s*(?:\}\s*$|,\s*\"|$))")
_LEADING = re.compile(rb"[\s,]*")


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive events: `raw[:cut]` holds them, the rest of `raw` is what separates them from the next piece.

    offset: byte in the decompressed document. tail: what follows the array's `]`, for the last piece, else None.
    """

    offset: int
    raw: bytes | memoryview
    cut: int
    tail: bytes | None = None

    @property
    def text(self) -> bytes:
        """The piece as a JSON array."""
        return b"".join([b"[", self.raw[: self.cut], b"]"])


class EventArray:
    """The `traceEvents` array of a document, or the document itself if it is a bare list.

    `head` and, once the last piece is out, `tail` are the object around the array, `depth` the number of objects open
    there. `offset` is the byte reached. `truncated_at` is the byte up to which events are whole if the document ends
    early.
    """

    def __init__(self, stream: ByteStream, piece_bytes: int = PIECE_BYTES) -> None:
        self._stream = stream
        self._piece_bytes = piece_bytes
        self._buffer = b""
        self.offset = 0
        self._ended = False
        self._closed = False
        self.truncated_at: int | None = None
        self.head, self.depth = self._read_head()
        self.tail = b""

    def next_piece(self) -> Piece | None:
        """The next piece by a likely cut, None after the last one."""
        if self._closed:
            return None
        while True:
            self._fill(self._piece_bytes)
            self._skip_separator()
            cut = self._last_cut()
            if cut is not None and not self._ended:
                return self._take(cut)
            if self._ended and not self._buffer:  # the array ends without its `]`
                self._cut_short(0)
                return None
            if self._ended:
                return self._last_piece(cut)
            if len(self._buffer) > _EVENT_LIMIT:
                return self._take(len(self._buffer))  # fails to parse, and then is looked at exactly
            self._fill(len(self._buffer) + self._piece_bytes)

    def push_back(self, *pieces: Piece) -> None:
        """Return pieces, in order and consecutive, whose proof failed or that come after one that failed."""
        parts: list[bytes | memoryview] = []
        for piece in pieces:
            parts.append(piece.raw)
            if piece.tail is not None:
                parts += [b"]", piece.tail]
        self._buffer = b"".join(parts) + self._buffer
        self.offset = pieces[0].offset
        self._closed = False
        self.truncated_at = None

    @property
    def exhausted(self) -> bool:
        """Whether there are no more events."""
        return self._closed

    def exact_piece(self, size: int | None = None) -> Piece | None:
        """A piece of about `size` bytes whose cut honours every quote; None if the text is too broken for that."""
        size = self._piece_bytes if size is None else size
        self._skip_separator()
        self._fill(2 * size)
        boundary, closed = event_boundary(self._buffer, 0, size)
        if closed is not None:
            return self._close(closed) if self._ends_at(closed) else None
        return self._take(boundary) if boundary else None

    def scan_piece(self, size: int | None = None) -> Scan:
        """Read the next events, about `size` bytes, leniently, one by one."""
        size = self._piece_bytes if size is None else size
        self._skip_separator()
        self._fill(2 * size)
        while True:
            ended = self._ended  # which may change while `closes` looks ahead
            final = ended or len(self._buffer) > _EVENT_LIMIT
            scan = scan_events(self._buffer, 0, size, final=final, closes=self._ends_at)
            if scan.closed_at is not None or scan.end or final:
                break
            self._fill(2 * len(self._buffer))
        if ended and scan.incomplete:
            self._end_within_unreadable(scan)
        if scan.first_unreadable is not None:
            scan.first_unreadable += self.offset
        if scan.closed_at is not None:
            self._close(scan.closed_at)
        elif ended and (scan.incomplete or scan.end >= len(self._buffer.rstrip(b", \t\r\n"))):
            self._cut_short(scan.end)
        elif not scan.end:  # no event begins anywhere in _EVENT_LIMIT bytes
            scan.skip(UNREADABLE, 0)
            scan.first_unreadable = self.offset
            self._take(len(self._buffer))
        else:
            self._take(scan.end)
        return scan

    def _end_within_unreadable(self, scan: Scan) -> None:
        """The last event of all is unreadable if the document ends properly behind it, and cut short otherwise."""
        closing = self._proper_closing()
        if closing is not None and closing > scan.end and not goes_on_inside(self._buffer, scan.end, closing):
            scan.skip(UNREADABLE, scan.end)
            scan.closed_at = closing

    def _ends_at(self, closing: int) -> bool:
        """Whether a `]` can be the array's, and is not just one where a broken event has led to."""
        self._fill(closing + _TAIL_LIMIT)
        return self._is_tail(self._buffer[closing + 1 :]) or NEXT_EVENT.search(self._buffer, closing) is None

    def _cut_short(self, end: int) -> None:
        self.truncated_at = self.offset + end
        self._closed = True
        self._buffer = b""

    def _fill(self, size: int) -> None:
        parts = [self._buffer] if self._buffer else []
        have = len(self._buffer)
        while have < size and not self._ended:
            # No more than asked for: pieces of one size are shared out evenly.
            data = self._stream.read(max(_LEAST_READ, size - have))
            self._ended = not data
            parts.append(data)
            have += len(data)
        self._buffer = parts[0] if len(parts) == 1 else b"".join(parts)

    def _skip_separator(self) -> None:
        self._fill(_READ_BYTES if not self._buffer else 0)
        match = _LEADING.match(self._buffer)
        assert match is not None
        self.offset += match.end()
        self._buffer = self._buffer[match.end() :]

    def _last_cut(self) -> int | None:
        """End of the last event that visibly has a successor, searched from the right."""
        window = 1 << 16
        size = len(self._buffer)
        while True:
            start = max(0, size - window)
            last = deque(_CUT.finditer(self._buffer, start), maxlen=1)
            if last:
                return last[0].start() + 1
            if start == 0:
                return None
            window *= 8

    def _take(self, cut: int) -> Piece:
        while True:
            separator = _LEADING.match(self._buffer, cut)
            assert separator is not None
            end = separator.end()
            if end < len(self._buffer) or self._ended:
                break
            self._fill(end + 1)  # what is pushed back must be whole
        piece = Piece(self.offset, memoryview(self._buffer)[:end], cut)  # no copy: it would be the dearest step here
        rest = len(self._buffer) - end
        # Reading the rest again costs less than joining it with what follows.
        again = 0 < rest < _LEAST_READ and not self._ended and self._stream.unread(rest)
        self._buffer = b"" if again else self._buffer[end:]
        self.offset += end
        return piece

    def _last_piece(self, cut: int | None) -> Piece:
        """The rest, up to a `]` after which the document closes properly; searched from the right."""
        if len(self._buffer) > 2 * self._piece_bytes and cut is not None:
            return self._take(cut)
        closing = self._proper_closing()
        # Without one the rest fails to parse, and then is looked at exactly.
        return self._take(len(self._buffer)) if closing is None else self._close(closing)

    def _proper_closing(self) -> int | None:
        """The last `]` after which the document closes properly."""
        position = len(self._buffer)
        for _ in range(1000):
            position = self._buffer.rfind(b"]", 0, position)
            if position < 0 or len(self._buffer) - position > _LIKELY_TAIL:
                break
            if _CLOSING.match(self._buffer, position) and self._is_tail(self._buffer[position + 1 :]):
                return position
        return None

    @property
    def closed_properly(self) -> bool:
        """Whether the array and the object around it have been read to their ends."""
        return self._closed and self.truncated_at is None

    def _close(self, closing: int) -> Piece:
        self._fill(closing + _TAIL_LIMIT)
        self.tail = self._buffer[closing + 1 :]
        if not self._is_tail(self.tail):
            self.truncated_at = self.offset + closing
        piece = Piece(self.offset, self._buffer[:closing], closing, self.tail)
        self._buffer = b""
        self._closed = True
        return piece

    def _is_tail(self, tail: bytes) -> bool:
        return tail_object(tail, self.depth) is not None

    def _read_head(self) -> tuple[bytes, int]:
        """Everything before the array's first value, and how many objects are open around the array."""
        while True:
            self._fill(len(self._buffer) + 1)
            found = _find_array(self._buffer)
            if found is not None:
                break
            if self._ended or len(self._buffer) > _HEAD_LIMIT:
                raise self._no_array()
        start, depth = found
        head = self._buffer[:start]
        self._buffer = self._buffer[start:]
        self.offset = start
        return head, depth

    def _no_array(self) -> Exception:
        path = self._stream.path
        if not self._buffer.strip():
            return MalformedTraceError(f"{path}: the file is empty (0 bytes of content); was the profiler stopped?")
        try:
            json.loads(self._buffer)
        except (ValueError, RecursionError) as error:
            at = error.pos if isinstance(error, json.JSONDecodeError) else 0
            if self._buffer.lstrip()[:1] in {b"{", b"["}:
                return MalformedTraceError(f"{path}: JSON breaks at byte {at} before any event was found: {error}")
            return UnknownFormatError(f"{path}: not JSON, so not a torch.profiler trace")
        return UnknownFormatError(f"{path}: JSON without a list of trace events (`traceEvents`)")


def tail_object(tail: bytes, depth: int) -> dict[str, object] | None:
    """The keys after the array as a dictionary, given how many objects were open around it; None if not proper."""
    text = tail.strip()
    if depth == 0:
        return {} if not text else None
    around = b'{"":' * (depth - 1) + b"{"
    value = _object(around + (b'"":0' + text if text.startswith(b",") else text))
    return None if value is None else {key: kept for key, kept in value.items() if key}


def head_object(head: bytes) -> dict[str, object]:
    """The keys before the array as a dictionary (empty for a bare list or if they cannot be read)."""
    depth = 0
    for match in _TOKEN.finditer(head):
        token = head[match.start()]
        depth += (token in b"{[") - (token in b"}]")
    return _object(head + b"]" + b"}" * (depth - 1)) or {}


def _object(text: bytes) -> dict[str, object] | None:
    value = loads_mended(text.decode("utf-8-sig", errors="replace"), Counter(), parse_float=float)
    return value if isinstance(value, dict) else None


def _find_array(buffer: bytes) -> tuple[int, int] | None:
    """Position after the `[` of the events, and the number of objects around it.

    A bare list counts, and so does `traceEvents` inside `traceEvents`, which one exporter wrote.
    """
    start = 3 if buffer.startswith(b"\xef\xbb\xbf") else 0
    if buffer[start:].lstrip()[:1] == b"[":
        return buffer.index(b"[", start) + 1, 0
    depth = 0
    wanted = 1
    for match in _TOKEN.finditer(buffer, start):
        token = buffer[match.start()]
        if token == 0x22:
            if depth == wanted and match.group() == b'"traceEvents"':
                value = _COLON_OPEN.match(buffer, match.end())
                if value is not None and value.group(1) == b"[":
                    return value.end(), depth
                wanted += value is not None
        elif token in b"{[":
            depth += 1
        else:
            depth -= 1
    return None
