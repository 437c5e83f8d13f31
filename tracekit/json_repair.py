"""Read events out of broken JSON, one by one: slowly, exactly, and saying what was mended.

Only pieces that a strict parser has refused come here. Nothing is guessed beyond the mends listed in `Repair`; an event
that is still unreadable is counted with its byte.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

INVALID_UTF8 = "invalid UTF-8 replaced"
CONTROL = "control character in a string"
BACKSLASH = "raw backslash in a string"
NON_FINITE = "non-finite number read as missing"
DUPLICATE = "duplicate key, last one kept"
SURROGATE = "lone surrogate replaced"

UNREADABLE = "unreadable JSON"
NOT_OBJECT = "not an object"
BAD_TIME = "unusable timestamp"

# A whole string, or one structural byte. A lone quote matches only where the string has no end in the buffer.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_NEXT_EVENT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|s|bp)"\s*:)')
_AFTER_EVENT = re.compile(rb"\s*(?:,|\]|$)")
_VALUE = re.compile(rb"[^\s,]")
_SCALAR = re.compile(rb"[^\s,\]{]+|.")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BARE_NON_FINITE = re.compile(r"(?<=[:,\[\s])[-+]?(?:inf(?:inity)?|nan)(?=[\s,}\]])", re.IGNORECASE)
_LONE_BACKSLASH = re.compile(r'\\\\|\\"|\\')
_CONTROLS = re.compile(r"[\x00-\x1f]")
_MAX_TIME = Decimal(10) ** 15 * 9  # microseconds: more than this does not fit 64-bit nanoseconds


@dataclass(slots=True)
class Scan:
    """What `scan_events` found from `start` on.

    documents: events as strict JSON. end: where the scan stopped; the array goes on there.
    closed_at: position of the array's `]`, or None. incomplete: the buffer ends inside an event that starts at `end`.
    """

    documents: list[str] = field(default_factory=list)
    read: int = 0
    end: int = 0
    closed_at: int | None = None
    incomplete: bool = False
    skipped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    first_unreadable: int | None = None

    def skip(self, reason: str, position: int) -> None:
        """Count an event that cannot be kept."""
        self.read += 1
        self.skipped[reason] += 1
        if reason == UNREADABLE and self.first_unreadable is None:
            self.first_unreadable = position


def event_boundary(buffer: bytes, start: int, limit: int) -> tuple[int, int | None]:
    """Where the last whole event ends that ends before `limit`, and where the array closes if it does before that.

    `start` is a place where the array expects a value. Quotes are honoured, values are not checked.
    """
    depth = 0
    boundary = start
    for match in _TOKEN.finditer(buffer, start):
        at = match.start()
        token = buffer[at]
        if token == 0x22:
            if match.end() - at == 1:
                break
            continue
        if token in b"{[":
            depth += 1
            continue
        depth -= 1
        if depth < 0:
            return boundary, at
        if depth == 0:
            if match.end() > limit:
                break
            boundary = match.end()
    return boundary, None


def scan_events(buffer: bytes, start: int, limit: int, *, final: bool) -> Scan:
    """Read events from `start`, where the array expects a value, until one ends beyond `limit` or the array closes.

    With `final` there is no more input: an event cut by the end of the buffer is looked at again for a place to go on.
    """
    scan = Scan(end=start)
    position = start
    while position < limit:
        opening, closed = _next_value(buffer, position, scan)
        if closed is not None or opening is None:
            scan.closed_at = closed
            scan.end = len(buffer) if closed is None else closed
            return scan
        end = _object_end(buffer, opening)
        document = None if end is None else _mend(buffer[opening:end], scan)
        if document is None:
            end = _recover(buffer, opening, scan, final=final)
            if end is None:
                scan.incomplete = True
                scan.end = opening
                return scan
        else:
            scan.read += 1
            _keep(document, scan)
        assert end is not None
        position = scan.end = end
    return scan


def _next_value(buffer: bytes, position: int, scan: Scan) -> tuple[int | None, int | None]:
    """The next `{`, or the closing `]`. Values that are no objects are counted and passed over."""
    while True:
        match = _VALUE.search(buffer, position)
        if match is None:
            return None, None
        at = match.start()
        token = buffer[at : at + 1]
        if token == b"{":
            return at, None
        if token == b"]":
            return None, at
        if token == b"[":
            end = _object_end(buffer, at)
            scan.skip(NOT_OBJECT, at)
            position = len(buffer) if end is None else end
            continue
        string = _TOKEN.match(buffer, at)
        scalar = string or _SCALAR.match(buffer, at)
        assert scalar is not None
        scan.skip(NOT_OBJECT, at)
        position = scalar.end()


def _object_end(buffer: bytes, opening: int) -> int | None:
    depth = 0
    for match in _TOKEN.finditer(buffer, opening):
        token = buffer[match.start()]
        if token == 0x22:
            if match.end() - match.start() == 1:
                return None
        elif token in b"{[":
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return match.end()
    return None


def _recover(buffer: bytes, opening: int, scan: Scan, *, final: bool) -> int | None:
    """Pass over an event that cannot be read as it stands, or end it where the next one visibly begins.

    None: the buffer ends before that can be told.
    """
    end = _object_end(buffer, opening)
    following = _NEXT_EVENT.search(buffer, opening)
    if end is None or not _AFTER_EVENT.match(buffer, end):
        end = None if following is None else following.start() + 1
    elif following is not None:
        end = min(end, following.start() + 1)
    if end is None or (following is None and not final):
        return None
    document = _mend(buffer[opening:end], scan)
    if document is None:
        scan.skip(UNREADABLE, opening)
    else:
        scan.read += 1
        _keep(document, scan)
    return end


def _keep(document: dict[str, Any], scan: Scan) -> None:
    """Store the event as strict JSON, unless it has a time that cannot be one."""
    for key in ("ts", "dur"):
        if key not in document or document[key] is None:
            continue
        value = _time(document[key])
        if value is None and key == "ts":
            scan.skipped[BAD_TIME] += 1
            return
        document[key] = value
    scan.documents.append(json.dumps(document, ensure_ascii=False))


def _time(value: object) -> str | None:
    try:
        time = Decimal(str(value))
    except InvalidOperation:
        return None
    if not time.is_finite() or abs(time) > _MAX_TIME or isinstance(value, bool):
        return None
    return f"{time:f}"


def _mend(raw: bytes, scan: Scan) -> dict[str, Any] | None:
    """The event as a dictionary, numbers with a point as text so that no digit is lost; None if beyond mending."""
    repairs: Counter[str] = Counter()
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode(errors="replace")
        repairs[INVALID_UTF8] += 1
    document = _loads(text, repairs)
    if not isinstance(document, dict):
        return None
    if _has_surrogate(text, document):
        document = json.loads(json.dumps(document, ensure_ascii=False).encode(errors="replace"))
        repairs[SURROGATE] += 1
    scan.repaired.update(repairs)
    return document


def _has_surrogate(text: str, document: dict[str, Any]) -> bool:
    if "\\u" not in text:
        return False
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _loads(text: str, repairs: Counter[str]) -> Any:
    """json.loads with each mend tried in turn, the later ones on top of the earlier."""
    strict = True
    for _ in range(4):
        found: Counter[str] = Counter()
        try:
            value = _decode(text, strict, found)
        except (ValueError, RecursionError) as error:
            message = str(error)
            if "control character" in message and strict:
                strict = False
                repairs[CONTROL] += 1
            elif "escape" in message and BACKSLASH not in repairs:
                text = _STRING.sub(lambda match: _double_backslashes(match.group()), text)
                repairs[BACKSLASH] += 1
            elif NON_FINITE not in repairs:
                mended = _outside_strings(text)
                if mended == text:
                    return None
                text = mended
                repairs[NON_FINITE] += 1
            else:
                return None
            continue
        repairs.update(found)
        return value
    return None


def _decode(text: str, strict: bool, found: Counter[str]) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(items)
        if len(value) < len(items):
            found[DUPLICATE] = 1
        return value

    def constant(_: str) -> None:
        found[NON_FINITE] = 1

    decoder = json.JSONDecoder(strict=strict, parse_float=str, parse_constant=constant, object_pairs_hook=pairs)
    return decoder.decode(text)


def _double_backslashes(string: str) -> str:
    """A string with one illegal escape holds raw Windows paths: its legal-looking escapes are meant raw as well."""
    return _LONE_BACKSLASH.sub(lambda match: match.group() if len(match.group()) == 2 else "\\\\", string)


def _outside_strings(text: str) -> str:
    parts: list[str] = []
    last = 0
    for match in _STRING.finditer(text):
        parts += [_BARE_NON_FINITE.sub("null", text[last : match.start()] + " "), match.group()]
        last = match.end()
    parts.append(_BARE_NON_FINITE.sub("null", text[last:]))
    return "".join(parts)
