"""Read events out of broken JSON, one by one: slowly, exactly, and saying what was mended.

Only pieces that a strict parser has refused come here. Nothing is guessed beyond the mends listed in `Repair`; an event
that is still unreadable is counted with its byte.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

INVALID_UTF8 = "invalid UTF-8 replaced"
CONTROL = "control character in a string"
BACKSLASH = "raw backslash in a string"
NON_FINITE = "non-finite number read as missing"
DUPLICATE = "duplicate key, last one kept"
SURROGATE = "lone surrogate replaced"
STRAY = "stray ] passed over"

UNREADABLE = "unreadable JSON"
NOT_OBJECT = "not an object"
BAD_TIME = "unusable timestamp"

# A whole string, or one structural byte. A lone quote matches only where the string has no end in the buffer.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
NEXT_EVENT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|s|bp)"\s*:)')
_AFTER_EVENT = re.compile(rb"\s*(?:,|\]|$)")
_VALUE = re.compile(rb"[^\s,]")
_SCALAR = re.compile(rb"[^\s,\]{]+|.")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BARE_NON_FINITE = re.compile(r"(?<=[:,\[\s])[-+]?(?:inf(?:inity)?|nan)(?=[\s,}\]])", re.IGNORECASE)
_LONE_BACKSLASH = re.compile(r'\\\\|\\"|\\')
_ILLEGAL_ESCAPE = re.compile(r'(?<!\\)(?:\\\\)*\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CONTROLS = re.compile(r"[\x00-\x1f]")
_ATOMS = rb"(?:[\s:,\d.+\-eE]|true|false|null|(?i:inf(?:inity)?|nan))*"
# What can stand between two tokens, by whether the first opens a bracket and whether the second closes one.
_BETWEEN = {
    (True, True): re.compile(rb"\s*(?![,:])" + _ATOMS),
    (True, False): re.compile(rb"\s*(?![,:])" + _ATOMS),
    (False, True): re.compile(rb"\s*(?:[,:]" + _ATOMS + rb")?"),
    (False, False): re.compile(rb"\s*[,:]" + _ATOMS),
}
_NEAR = 1 << 16  # an event is mostly shorter: the next one is looked for so far ahead before brackets are counted
_BRACE, _BRACKET, _CLOSING_BRACKET = b"{[]"
_NANOSECOND = Decimal("0.001")
MAX_TIME_US = 4 * 10**15  # until 2096; sums and differences of two such times fit 64-bit nanoseconds
_MAX_DURATION_US = 10**15  # what the SQL of the readers keeps


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


def scan_events(
    buffer: bytes, start: int, limit: int, *, final: bool, closes: Callable[[int], bool] = lambda _: True
) -> Scan:
    """Read events from `start`, where the array expects a value, until one ends beyond `limit` or the array closes.

    With `final` there is no more input: an event cut by the end of the buffer is looked at again for a place to go on.
    closes: whether the `]` at a position can close the array; one that cannot is left over from an unreadable event.
    """
    scan = Scan(end=start)
    position = start
    while position < limit:
        opening, closed = _next_value(buffer, position, scan, final=final)
        if closed is not None:
            if closes(closed):
                scan.closed_at = scan.end = closed
                return scan
            scan.repaired[STRAY] += 1
            position = scan.end = closed + 1
            continue
        if opening is None:
            scan.end = len(buffer)
            return scan
        end = _read_event(buffer, opening, scan, final=final) if buffer[opening] == _BRACE else None
        if end is None:
            scan.incomplete = True
            scan.end = opening
            return scan
        position = scan.end = end
    return scan


def _next_value(buffer: bytes, position: int, scan: Scan, *, final: bool) -> tuple[int | None, int | None]:
    """The next `{`, or the closing `]`. Values that are no objects are counted and passed over.

    A list or a string that goes on behind the buffer is returned like a `{`.
    """
    while True:
        match = _VALUE.search(buffer, position)
        if match is None:
            return None, None
        at = match.start()
        token = buffer[at]
        if token == _BRACE:
            return at, None
        if token == _CLOSING_BRACKET:
            return None, at
        end = _walk(buffer, at).end if token == _BRACKET else None
        if end is None or NEXT_EVENT.search(buffer, at, end):  # of a list of events only the bracket is passed over
            string = _TOKEN.match(buffer, at)
            if end is None and string is not None and string.end() - at == 1 and token in b'["' and not final:
                return at, None
            scalar = string or _SCALAR.match(buffer, at)
            assert scalar is not None
            end = scalar.end()
            if end == len(buffer) and not final:
                return at, None
        scan.skip(NOT_OBJECT, at)
        position = end


@dataclass(frozen=True, slots=True)
class _Walk:
    """A value as the quotes have it. end: behind its last bracket, None if it is not in the buffer.

    damage: first place that no JSON value can have. inside: from where to where outermost lists within it go, and a
    string without an end.
    """

    end: int | None
    damage: int | None
    inside: tuple[tuple[int, int], ...]


def _walk(buffer: bytes, opening: int) -> _Walk:
    inside: list[tuple[int, int]] = []
    brackets = bytearray()
    list_start = last = opening
    opened = True
    for match in _TOKEN.finditer(buffer, opening):
        at = match.start()
        token = buffer[at]
        if _BETWEEN[opened, token in b"}]"].fullmatch(buffer, last, at) is None:
            return _Walk(None, last, tuple(inside))
        opened = token in b"{["
        last = match.end()
        if token == 0x22:
            if last - at == 1:
                inside.append((at, len(buffer)))
                break
        elif token in b"{[":
            if token == _BRACKET and _BRACKET not in brackets[1:]:
                list_start = at
            brackets.append(token)
        elif brackets[-1] != token - 2:  # in ASCII a closing bracket is two behind its opening one
            return _Walk(None, at, tuple(inside))
        else:
            brackets.pop()
            if not brackets:
                return _Walk(last, None, tuple(inside))
            if token == _CLOSING_BRACKET and _BRACKET not in brackets[1:]:
                inside.append((list_start, last))
    if _BRACKET in brackets[1:]:
        inside.append((list_start, len(buffer)))
    return _Walk(None, None, tuple(inside))


def _following(buffer: bytes, opening: int, walk: _Walk) -> int | None:
    """End of the event where the next one visibly begins. Lists in an event can hold what looks like events, too."""
    for match in NEXT_EVENT.finditer(buffer, opening):
        at = match.start()
        damaged = walk.damage is not None and at >= walk.damage
        if damaged or not any(low <= at < high for low, high in walk.inside):
            return at + 1
    return None


def goes_on_inside(buffer: bytes, opening: int, position: int) -> bool:
    """Whether `position` is inside a list or a string of the event that opens there, without a sign of damage."""
    walk = _walk(buffer, opening)
    return walk.damage is None and any(low <= position < high for low, high in walk.inside)


def _read_event(buffer: bytes, opening: int, scan: Scan, *, final: bool) -> int | None:
    """Read an event, mended if need be; or pass over it. Returns its end; None: the buffer ends before that is told."""
    near = NEXT_EVENT.search(buffer, opening, opening + _NEAR)
    if near is not None and _take(buffer, opening, near.start() + 1, scan):
        return near.start() + 1
    walk = _walk(buffer, opening)
    if walk.end is not None and _take(buffer, opening, walk.end, scan):
        return walk.end
    end = walk.end
    following = _following(buffer, opening, walk)
    if end is None or not _AFTER_EVENT.match(buffer, end):
        end = following
    elif following is not None:
        end = min(end, following)
    if end is None or (following is None and not final):
        return None
    if not _take(buffer, opening, end, scan):
        scan.skip(UNREADABLE, opening)
    return end


def _take(buffer: bytes, opening: int, end: int, scan: Scan) -> bool:
    """Count and keep an event, if what is there is one."""
    document = _mend(buffer[opening:end], scan)
    if document is None:
        return False
    _keep(document, opening, scan)
    return True


def _keep(document: dict[str, Any], opening: int, scan: Scan) -> None:
    """Store the event as strict JSON, unless it has a time that cannot be one."""
    for key, limit in (("ts", MAX_TIME_US), ("dur", _MAX_DURATION_US)):
        if document.get(key) is None:
            continue
        value = _time(document[key], limit)
        if value is None and key == "ts":
            scan.skip(BAD_TIME, opening)
            return
        document[key] = value
    try:
        scan.documents.append(json.dumps(document, ensure_ascii=False))
        scan.read += 1
    except RecursionError:
        scan.skip(UNREADABLE, opening)


def _time(value: object, limit: int) -> str | None:
    """Microseconds with three places, or None for what cannot be a time (a duration of minus 54 years, say)."""
    if isinstance(value, bool):
        return None
    try:
        time = Decimal(str(value))
        if not time.is_finite() or abs(time) >= limit:
            return None
        rounded = time.quantize(_NANOSECOND, ROUND_HALF_UP)
    except (ArithmeticError, ValueError):
        return None
    return f"{rounded:f}" if abs(rounded) < limit else None


def _mend(raw: bytes, scan: Scan) -> dict[str, Any] | None:
    """The event as a dictionary, numbers with a point as text so that no digit is lost; None if beyond mending."""
    repairs: Counter[str] = Counter()
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode(errors="replace")
        repairs[INVALID_UTF8] += 1
    document: object = loads_mended(text, repairs)
    if not isinstance(document, dict):
        return None
    if "\\u" in text and _has_surrogate(document):
        document = dict(json.loads(json.dumps(document, ensure_ascii=False).encode(errors="replace")))
        repairs[SURROGATE] += 1
    scan.repaired.update(repairs)
    return document


def _has_surrogate(document: dict[str, Any]) -> bool:
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except RecursionError:
        pass  # `_keep` refuses it
    return False


def loads_mended(text: str, repairs: Counter[str], parse_float: Callable[[str], Any] = str) -> Any:
    """json.loads with each mend tried in turn, the later ones on top of the earlier; None if that is not enough."""
    strict = True
    for _ in range(4):
        found: Counter[str] = Counter()
        try:
            value = _decode(text, strict, found, parse_float)
        except (ValueError, RecursionError) as error:
            message = str(error)
            if "control character" in message and strict:
                strict = False
                repairs[CONTROL] += 1
            elif "escape" in message and BACKSLASH not in repairs:
                text = _STRING.sub(lambda match: _double_backslashes(match.group()), text)
                repairs[BACKSLASH] += 1
            elif "Expecting value" in message and NON_FINITE not in repairs:
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


def _decode(text: str, strict: bool, found: Counter[str], parse_float: Callable[[str], Any]) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(items)
        if len(value) < len(items):
            found[DUPLICATE] = 1
        return value

    def constant(_: str) -> None:
        found[NON_FINITE] = 1

    decoder = json.JSONDecoder(strict=strict, parse_float=parse_float, parse_constant=constant, object_pairs_hook=pairs)
    return decoder.decode(text)


def _double_backslashes(string: str) -> str:
    """A string with one illegal escape holds raw Windows paths: its legal-looking escapes are meant raw as well."""
    if not _ILLEGAL_ESCAPE.search(string):
        return string
    return _LONE_BACKSLASH.sub(lambda match: match.group() if len(match.group()) == 2 else "\\\\", string)


def _outside_strings(text: str) -> str:
    parts: list[str] = []
    last = 0
    for match in _STRING.finditer(text):
        parts += [_BARE_NON_FINITE.sub("null", text[last : match.start()] + " "), match.group()]
        last = match.end()
    parts.append(_BARE_NON_FINITE.sub("null", text[last:]))
    return "".join(parts)
