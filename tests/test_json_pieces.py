"""Pieces of a JSON event array, whatever the text looks like, are together what json.loads makes of the whole."""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracekit import json_pieces
from tracekit.errors import MalformedTraceError, TracekitError, UnknownFormatError
from tracekit.json_pieces import EventArray, Piece, head_object, tail_object
from tracekit.json_repair import UNREADABLE
from tracekit.streams import ByteStream

Json = dict[str, Any]
LOOKAHEAD = 2


class Outcome:
    """What comes out of an array when pieces are parsed as the reader does, but by json.loads."""

    def __init__(self, array: EventArray) -> None:
        self.events: list[Any] = []
        self.skipped: Counter[str] = Counter()
        self.first_unreadable: int | None = None
        self.exact = self.scanned = 0
        self._read(array)
        self.truncated_at = array.truncated_at
        self.closed_properly = array.closed_properly
        self.around = head_object(array.head) | (tail_object(array.tail, array.depth) or {})

    def _read(self, array: EventArray) -> None:
        ahead: deque[Piece] = deque()
        for _ in range(100_000):
            while len(ahead) <= LOOKAHEAD and (piece := array.next_piece()) is not None:
                ahead.append(piece)
            if not ahead:
                return
            piece = ahead.popleft()
            try:
                self.events += events_of(piece)
            except ValueError:
                array.push_back(piece, *ahead)
                ahead.clear()
                self._exactly(array)
        raise AssertionError("does not end")

    def _exactly(self, array: EventArray) -> None:
        piece = array.exact_piece()
        if piece is not None:
            try:
                self.events += events_of(piece)
                self.exact += 1
                return
            except ValueError:
                array.push_back(piece)
        self.scanned += 1
        scan = array.scan_piece()
        self.events += [json.loads(document) for document in scan.documents]
        self.skipped += scan.skipped
        if self.first_unreadable is None:
            self.first_unreadable = scan.first_unreadable


def events_of(piece: Piece) -> list[Any]:
    """As strict as the reader: a list of objects and nothing else."""
    events = json.loads(piece.text)
    if not all(event is None or isinstance(event, dict) for event in events):
        raise ValueError("not a list of events")
    return list(events)


def read(path: Path, text: bytes, piece_bytes: int = 64) -> Outcome:
    path.write_bytes(text)
    with ByteStream(path) as stream:
        return Outcome(EventArray(stream, piece_bytes))


@pytest.fixture
def tiny_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "_READ_BYTES", 13)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


@pytest.mark.parametrize(
    ("text", "events", "around"),
    [
        (b"[]", [], {}),
        (b" [ ] ", [], {}),
        (b'{"traceEvents": []}', [], {"traceEvents": []}),
        (b'{"traceEvents": [], "b": {"c": [1]}}', [], {"traceEvents": [], "b": {"c": [1]}}),
        (b'\xef\xbb\xbf[{"ph": "X"}]', [{"ph": "X"}], {}),
        (b'\xef\xbb\xbf{"a": 1, "traceEvents": [{"ph": "X"}]}', [{"ph": "X"}], {"a": 1, "traceEvents": []}),
        (b'{"traceEvents": {"traceEvents": [{"ph": "X"}]}}', [{"ph": "X"}], {"traceEvents": {"traceEvents": []}}),
        (
            b'{"traceEvents": {"x": [{}], "traceEvents": [{"ph": "X"}], "z": 1}, "y": 2}',
            [{"ph": "X"}],
            {"traceEvents": {"x": [{}], "traceEvents": []}, "y": 2},
        ),
        (b'[null, {"ph": "X"}, null]', [None, {"ph": "X"}, None], {}),
        (
            b'{"a": "\\"traceEvents\\": [", "traceEvents": [{"a": "]}"}], "b": "["}',
            [{"a": "]}"}],
            {"a": '"traceEvents": [', "traceEvents": [], "b": "["},
        ),
        (
            b'{"a": {"traceEvents": [1]}, "b": "traceEvents", "traceEvents": [{}]}',
            [{}],
            {"a": {"traceEvents": [1]}, "b": "traceEvents", "traceEvents": []},
        ),
        (
            b'{"traceEvents": [{}], "devices": [{"id": 0}, {"id": 1}]}',
            [{}],
            {"traceEvents": [], "devices": [{"id": 0}, {"id": 1}]},
        ),
    ],
)
def test_small_documents(path: Path, text: bytes, events: list[Any], around: Json, tiny_reads: None) -> None:
    outcome = read(path, text)
    assert outcome.events == events
    assert outcome.closed_properly
    assert outcome.around == around


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (b"", MalformedTraceError, "the file is empty"),
        (b" \n", MalformedTraceError, "the file is empty"),
        (b'{"a": 1}', UnknownFormatError, "without a list of trace events"),
        (b'{"traceEvents": null}', UnknownFormatError, "without a list of trace events"),
        (b'{"a": 1, "traceEv', MalformedTraceError, "JSON breaks at byte 9"),
        (b"3", UnknownFormatError, "without a list of trace events"),
        (b"hello", UnknownFormatError, "not JSON"),
    ],
)
def test_documents_without_an_array(path: Path, text: bytes, error: type[TracekitError], message: str) -> None:
    with pytest.raises(error, match=message):
        read(path, text)


def test_keys_around_the_array_are_read_though_broken(path: Path) -> None:
    outcome = read(
        path,
        b'{"host": "\xff", "peak": inf, "baseTimeNanoseconds": 5, '
        b'"traceEvents": [{"a": 1}], "traceName": "C:\\Users\\x"}',
    )
    assert outcome.events == [{"a": 1}]
    assert outcome.around == {
        "host": "\N{REPLACEMENT CHARACTER}",
        "peak": None,
        "baseTimeNanoseconds": 5,
        "traceEvents": [],
        "traceName": "C:\\Users\\x",
    }
    assert outcome.closed_properly


def test_one_event_larger_than_any_buffer(path: Path) -> None:
    huge = {"ph": "X", "args": {"list": [{"name": "inner", "ph": "X"}] * 2000}}
    text = json.dumps({"traceEvents": [{"ph": "a"}, huge, {"ph": "b"}]}).encode()
    assert read(path, text, piece_bytes=100).events == [{"ph": "a"}, huge, {"ph": "b"}]


def test_values_that_are_no_objects_are_counted(path: Path) -> None:
    outcome = read(path, b'[1, {"ph": "X"}, [{"a": 1}, {}], "a, {", true, {"ph": "V"}]', piece_bytes=8)
    assert outcome.events == [{"ph": "X"}, {"ph": "V"}]
    assert outcome.skipped == {"not an object": 4}
    assert outcome.closed_properly


TRAPS = (
    "}, {",
    '}, {"ph": "X"}',
    '}],"traceName":"x"}',
    '"traceEvents": [{',
    "]}",
    "\\",
    "\\\\",
    '\\"',
    '"',
    '\\", "',
    "{[",
    "\n},\n{",
    "\u2028é😀",
    "a\tb",
    "",
)
KEYS = ("ph", "name", "tid", "traceEvents", "args", 'a"b', "},{", "")
scalars = st.one_of(st.sampled_from(TRAPS), st.text(max_size=8), st.integers(-9, 10**18), st.booleans(), st.none())
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
        st.lists(st.dictionaries(st.sampled_from(KEYS), inner, max_size=2), max_size=4),
    ),
    max_leaves=8,
)
some_events = st.lists(st.dictionaries(st.sampled_from(KEYS), values, max_size=4), max_size=12)
surroundings = st.dictionaries(st.sampled_from(("a", "b", "}, {", "[", "distributedInfo")), values, max_size=3)
indents = st.sampled_from([None, 0, 1, 4, "\t", "minified"])


def dump(document: object, indent: int | str | None, ascii_only: bool) -> bytes:
    if indent == "minified":
        return json.dumps(document, separators=(",", ":"), ensure_ascii=ascii_only).encode()
    return json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()


@given(
    events=some_events,
    head=surroundings,
    tail=surroundings,
    shape=st.sampled_from(["object", "list", "nested"]),
    indent=indents,
    ascii_only=st.booleans(),
    bom=st.booleans(),
    piece_bytes=st.integers(1, 200),
    read_bytes=st.integers(3, 100),
)
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_pieces_together_are_the_document(
    *,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    events: list[Json],
    head: Json,
    tail: Json,
    shape: str,
    indent: int | str | None,
    ascii_only: bool,
    bom: bool,
    piece_bytes: int,
    read_bytes: int,
) -> None:
    check(
        path,
        monkeypatch,
        events=events,
        head=head,
        tail=tail,
        shape=shape,
        indent=indent,
        ascii_only=ascii_only,
        bom=bom,
        piece_bytes=piece_bytes,
        read_bytes=read_bytes,
    )


def check(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    events: list[Json],
    head: Json,
    tail: Json,
    shape: str,
    indent: int | str | None,
    ascii_only: bool,
    bom: bool,
    piece_bytes: int,
    read_bytes: int,
) -> None:
    monkeypatch.setattr(json_pieces, "_READ_BYTES", read_bytes)
    head = {f"h{key}": value for key, value in head.items()}
    tail = {f"t{key}": value for key, value in tail.items()}
    around = head | {"traceEvents": events} | tail
    document = {"list": events, "object": around, "nested": {"traceEvents": around}}[shape]
    outcome = read(path, b"\xef\xbb\xbf" * bom + dump(document, indent, ascii_only), piece_bytes)
    assert outcome.events == events
    assert outcome.skipped == {}
    assert outcome.closed_properly
    if shape == "object":
        assert outcome.around == head | {"traceEvents": []} | tail


def random_value(rng: random.Random, depth: int) -> Any:
    choice = rng.random()
    if depth == 0 or choice < 0.4:
        return rng.choice([*TRAPS, rng.randrange(-5, 10**17), True, None])
    if choice < 0.6:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if choice < 0.8:
        return [random_object(rng, depth - 1) for _ in range(rng.randrange(4))]
    return random_object(rng, depth - 1)


def random_object(rng: random.Random, depth: int) -> Json:
    return {rng.choice(KEYS): random_value(rng, depth) for _ in range(rng.randrange(5))}


def test_a_thousand_random_documents(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    for _ in range(1200):
        check(
            path,
            monkeypatch,
            events=[random_object(rng, 3) for _ in range(rng.randrange(12))],
            head=random_object(rng, 2),
            tail=random_object(rng, 2),
            shape=rng.choice(["object", "list", "nested"]),
            indent=rng.choice([None, 0, 1, 4, "\t", "minified"]),
            ascii_only=rng.random() < 0.5,
            bom=rng.random() < 0.1,
            piece_bytes=rng.randrange(5, 300),
            read_bytes=rng.randrange(5, 200),
        )


EVENTS: list[Json] = [
    {"ph": "X", "name": "a}, {", "args": {"grid": [1, 1, 1]}},
    {"ph": "X", "name": 'b"], "c', "args": {"list": [{"name": "x"}, {"name": "y"}]}},
    {},
    {"ph": "X", "name": "d", "args": {"k": {"k": [[1], [2]]}}},
]


@pytest.mark.parametrize("indent", [None, 2, "minified"])
@pytest.mark.parametrize("shape", ["list", "object"])
@pytest.mark.parametrize("piece_bytes", [10, 60, 10_000])
def test_of_a_document_cut_anywhere_the_whole_events_survive(
    path: Path, tiny_reads: None, shape: str, indent: int | str | None, piece_bytes: int
) -> None:
    document = EVENTS if shape == "list" else {"a": [1], "traceEvents": EVENTS, "traceName": "x]}", "n": [{"name": 1}]}
    text = dump(document, indent, True)
    starts, ends = event_spans(text)
    for size in range(starts[0], len(text)):
        outcome = read(path, text[:size], piece_bytes)
        whole = sum(end <= size for end in ends)
        assert outcome.events == EVENTS[:whole], text[:size]
        assert outcome.skipped == {}, text[:size]
        assert outcome.truncated_at is not None, text[:size]
        reached = text[: outcome.truncated_at].rstrip(b" \n,]")
        assert reached == text[: ends[whole - 1]] if whole else outcome.truncated_at <= starts[0], text[:size]
    assert read(path, text, piece_bytes).truncated_at is None


def event_spans(text: bytes) -> tuple[list[int], list[int]]:
    """Where the events of EVENTS lie in a document, by decoding one after the other."""
    decoder = json.JSONDecoder()
    string = text.decode()
    position = 0 if string.startswith("[") else string.index('"traceEvents"')
    position = string.index("[", position) + 1
    starts: list[int] = []
    ends: list[int] = []
    for event in EVENTS:
        position += len(string[position:]) - len(string[position:].lstrip(" \n,"))
        value, end = decoder.raw_decode(string, position)
        assert value == event
        starts.append(position)
        ends.append(end)
        position = end
    return starts, ends


@pytest.mark.parametrize("piece_bytes", [10, 60, 10_000])
@pytest.mark.parametrize("broken", range(len(EVENTS)))
@pytest.mark.parametrize("damage", [b'{"ph": "X", "name": "a"b"}', b'{"ph": "X", tid": 7, "args": {"l": [{"ph": 1}]}}'])
def test_an_unreadable_event_is_lost_alone(
    path: Path, tiny_reads: None, damage: bytes, broken: int, piece_bytes: int
) -> None:
    texts = [json.dumps(event | {"ph": "X"}).encode() for event in EVENTS]
    texts[broken] = damage
    head = b'{"traceEvents": ['
    outcome = read(path, head + b", ".join(texts) + b'], "traceName": "x"}', piece_bytes)
    assert outcome.events == [event | {"ph": "X"} for event in EVENTS[:broken] + EVENTS[broken + 1 :]]
    assert outcome.skipped == {UNREADABLE: 1}
    assert outcome.first_unreadable == len(head) + sum(len(text) + 2 for text in texts[:broken])
    assert outcome.closed_properly


def test_damage_of_a_byte_or_two_costs_no_more_than_the_events_it_is_in(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(0)
    for _ in range(800):
        monkeypatch.setattr(json_pieces, "_READ_BYTES", rng.randrange(5, 200))
        events = [random_object(rng, 3) | {"ph": "X", "name": f"event {number}"} for number in range(8)]
        events = [{"ph": "X"} | event for event in events]
        texts = [dump(event, rng.choice([None, 1]), rng.random() < 0.5) for event in events]
        hurt = rng.randrange(len(texts))
        texts[hurt] = damaged(texts[hurt], rng)
        outcome = read(path, b'{"traceEvents": [' + b", ".join(texts) + b"]}", rng.randrange(5, 300))
        found = [event["name"] for event in outcome.events if str(event.get("name")).startswith("event ")]
        neighbours = {hurt - 1, hurt, hurt + 1}
        missing = {number for number in range(8) if f"event {number}" not in found}
        assert missing <= neighbours, b", ".join(texts)


def damaged(text: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(text))
    junk = bytes([rng.choice(b'"{}[],:\\ x0\xff\n')])
    return text[:at] + rng.choice([b"", junk]) + text[at + rng.randrange(2) :]
