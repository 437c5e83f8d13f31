"""Broken events: each mend with its whole outcome, and what is beyond mending is counted and costs no neighbour."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.json_repair import (
    BACKSLASH,
    BAD_TIME,
    CONTROL,
    DUPLICATE,
    INVALID_UTF8,
    NON_FINITE,
    NOT_OBJECT,
    STRAY,
    SURROGATE,
    UNREADABLE,
    Scan,
    event_boundary,
    goes_on_inside,
    scan_events,
)

A = b'{"ph": "X", "name": "a"}'
Z = b'{"ph": "X", "name": "z"}'


def scan(text: bytes, *, final: bool = True) -> Scan:
    return scan_events(text, 0, len(text), final=final)


def outcome(text: bytes) -> tuple[list[Any], dict[str, int], dict[str, int]]:
    """Events, what was skipped, what was mended; the books must balance."""
    found = scan(text)
    assert found.read == len(found.documents) + found.skipped.total()
    return [json.loads(document) for document in found.documents], dict(found.skipped), dict(found.repaired)


def test_nothing() -> None:
    assert scan(b"") == Scan(end=0)
    assert scan(b" , ") == Scan(end=3)
    assert scan(b" ]}") == Scan(end=1, closed_at=1)


@pytest.mark.parametrize(
    ("broken", "mended", "repairs"),
    [
        (b'{"a": 1}', {"a": 1}, {}),
        (b'{"a": 1.50}', {"a": "1.50"}, {}),
        (b'{"a": 18446744073709551616}', {"a": 18446744073709551616}, {}),
        (b'{"ts": 1714000000000001.0015}', {"ts": "1714000000000001.002"}, {}),
        (b'{"ts": "12", "dur": 1e3}', {"ts": "12.000", "dur": "1000.000"}, {}),
        (b'{"ts": 1, "dur": -1714000000000000}', {"ts": "1.000", "dur": None}, {}),
        (b'{"ts": 1, "dur": 1e999999999}', {"ts": "1.000", "dur": None}, {}),
        (b'{"ts": 1, "dur": 1e-999999999}', {"ts": "1.000", "dur": "0.000"}, {}),
        (b'{"ts": 1, "dur": "soon"}', {"ts": "1.000", "dur": None}, {}),
        (b'{"a": "x\xff\xfe\x80y"}', {"a": "x\ufffd\ufffd\ufffdy"}, {INVALID_UTF8: 1}),
        (b'{"a": "x\x01\ty"}', {"a": "x\x01\ty"}, {CONTROL: 1}),
        (rb'{"a": "torch\cuda\__init__.py(219): f"}', {"a": r"torch\cuda\__init__.py(219): f"}, {BACKSLASH: 1}),
        # One illegal escape, so the legal-looking ones of the same text are meant raw; another text is left alone.
        (rb'{"a": "C:\torch\nn\q.py", "b": "x\ny\u00e9"}', {"a": r"C:\torch\nn\q.py", "b": "x\nyé"}, {BACKSLASH: 1}),
        (rb'{"a": "C:\\dir\x", "b": "\"q\""}', {"a": r"C:\dir\x", "b": '"q"'}, {BACKSLASH: 1}),
        (rb'{"a": "\user"}', {"a": r"\user"}, {BACKSLASH: 1}),
        (b'{"a": inf, "b": -inf, "c": [nan,NaN], "d": "inf, nan"}',
         {"a": None, "b": None, "c": [None, None], "d": "inf, nan"}, {NON_FINITE: 1}),
        (b'{"a": Infinity, "b": -Infinity}', {"a": None, "b": None}, {NON_FINITE: 1}),
        (b'{"a": 1, "b": 2, "a": 3}', {"a": 3, "b": 2}, {DUPLICATE: 1}),
        (rb'{"a": "x\ud800y", "b": "\ud83d\ude00"}', {"a": "x?y", "b": "😀"}, {SURROGATE: 1}),
        (b'{"a": "\xff\x01\\q", "b": inf, "b": 1}', {"a": "\ufffd\x01\\q", "b": 1},
         {INVALID_UTF8: 1, CONTROL: 1, BACKSLASH: 1, NON_FINITE: 1, DUPLICATE: 1}),
    ],
)  # fmt: skip
def test_mends(broken: bytes, mended: dict[str, Any], repairs: dict[str, int]) -> None:
    assert outcome(broken) == ([mended], {}, repairs)
    neighbours = [json.loads(A), mended, json.loads(Z)]
    assert outcome(b", ".join([A, broken, Z]) + b"]") == (neighbours, {}, repairs)


@pytest.mark.parametrize(
    "broken",
    [
        b'{"name": "a"b"}',
        b'{"name": "a"b"c"}',
        b'{"name": "a", tid": 7}',
        b'{"name": "a", "args": {"x": 1}',
        b'{"name": "a", "args": {"list": [{"name": 1}, {"name": 2}]}, tid": 7}',
        b'{"name": "a", "args": {"list": [1, 2}}',
        b'{"name" "a"}',
        b'{"name": "a" "b": 1}',
        b'{"name": 01}',
        b'{"name": tru}',
        b'{"name": "a",, "b": 1}',
        b'{"a": 5e}',
    ],
)
def test_beyond_mending(broken: bytes) -> None:
    expected = [json.loads(A), json.loads(Z)]
    for text, at in (
        (b", ".join([A, broken, Z]) + b"]", len(A) + 2),
        (b",\n".join([broken, A, Z]) + b"]", 0),
        (b",".join([A, Z, broken, A]) + b"]", len(A + Z) + 2),
    ):
        events, skipped, _ = outcome(text)
        assert (events[:2], skipped) == (expected, {UNREADABLE: 1})
        assert scan(text).first_unreadable == at
        assert scan(text).closed_at == len(text) - 1


@pytest.mark.parametrize("time", [b"NaN", b"true", b'"soon"', b'""', b"9e15", b"-9e15", b"1e999", b"{}", b"[1]"])
def test_a_time_that_is_none(time: bytes) -> None:
    missing: dict[bytes, tuple[list[Any], dict[str, int], dict[str, int]]] = {
        b"NaN": ([json.loads(A), {"ts": None}, json.loads(Z)], {}, {NON_FINITE: 1})
    }
    expected = missing.get(time, ([json.loads(A), json.loads(Z)], {BAD_TIME: 1}, {}))
    assert outcome(b", ".join([A, b'{"ts": ' + time + b"}", Z])) == expected


def test_values_that_are_no_objects() -> None:
    text = b'1, {"a": 1}, null, "x, {", [1, {}], true, -1.5e3, {"b": 2}]'
    assert outcome(text) == ([{"a": 1}, {"b": 2}], {NOT_OBJECT: 6}, {})


def test_events_in_a_list_of_their_own_are_read() -> None:
    text = b"[" + A + b", " + Z + b"]"
    assert outcome(text) == ([json.loads(A), json.loads(Z)], {NOT_OBJECT: 1}, {})


def test_a_bracket_that_cannot_close_the_array_is_passed_over() -> None:
    text = A + b"], " + Z + b"]"
    found = scan_events(text, 0, len(text), final=True, closes=lambda at: at == len(text) - 1)
    assert (found.documents, found.repaired) == ([A.decode(), Z.decode()], {STRAY: 1})


def test_too_deep_for_a_parser_that_recurses() -> None:
    deep = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert outcome(b", ".join([A, deep, Z])) == ([json.loads(A), json.loads(Z)], {UNREADABLE: 1}, {})


@pytest.mark.parametrize("final", [True, False])
def test_an_event_cut_by_the_end_is_left_for_more_input(final: bool) -> None:
    for size in range(1, len(Z)):
        text = A + b", " + Z[:size]
        found = scan(text, final=final)
        assert (found.documents, found.end, found.incomplete) == ([A.decode()], len(A) + 2, True)
        assert found.skipped == {}


def test_objects_in_a_list_are_no_next_events_even_if_the_end_is_not_there_yet() -> None:
    text = b'{"name": "a", "args": {"list": [{"name": 1}, {"name": 2}, {"name'
    for final in (True, False):
        found = scan(text, final=final)
        assert (found.documents, found.skipped, found.end, found.incomplete) == ([], {}, 0, True)
    assert goes_on_inside(text, 0, 40)
    assert goes_on_inside(text, 0, len(text) - 1)
    assert not goes_on_inside(text, 0, 10)


def test_boundary_honours_quotes_and_brackets() -> None:
    text = b'{"a": "}, {"}, {"b": [{}, {}]}, {"c": 1}] , "tail": 1}'
    ends = [13, 30, 40]
    for limit in range(len(text)):
        whole = [end for end in ends if end <= limit]
        expected = (whole[-1] if whole else 0, 40 if limit >= 40 else None)
        assert event_boundary(text, 0, limit) == expected


keys = st.sampled_from(["ph", "name", "tid", "args", "a", ""])
values = st.recursive(
    st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.sampled_from(["}, {", '"', "\\", "]"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=10,
)
events = st.lists(st.dictionaries(keys, values, max_size=4), max_size=6)


@given(events, st.sampled_from([None, 0, 2]), st.booleans())
@settings(max_examples=300, deadline=None)
def test_valid_events_come_out_as_they_are(events: list[Any], indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(events, indent=indent, ensure_ascii=ascii_only)[1:].encode(errors="replace")
    found, skipped, repairs = outcome(text)
    assert found == json.loads("[" + text.decode())
    assert (skipped, repairs) == ({}, {})
    assert scan(text).closed_at == len(text) - 1


json_like = st.lists(
    st.one_of(st.sampled_from([b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"inf", b"1", A, Z, b" "]), st.binary())
).map(b"".join)


@given(st.one_of(st.binary(), json_like), st.booleans())
@settings(max_examples=600, deadline=None)
def test_any_bytes_are_got_through(text: bytes, final: bool) -> None:
    position = 0
    while position < len(text):
        found = scan_events(text, position, position + 1, final=final)
        assert found.read == len(found.documents) + found.skipped.total()
        assert all(isinstance(json.loads(document.encode()), dict) for document in found.documents)
        if found.closed_at is not None or found.incomplete:
            assert position <= found.end <= len(text)
            return
        assert found.end > position
        position = found.end
