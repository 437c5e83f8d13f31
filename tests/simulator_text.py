"""Rows as torch.profiler's Chrome-trace text, in four layouts; and templates of it whose numbers can be shifted.

Time is integer ns in a row and decimal µs with exactly three decimals in the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.simulator_model import Layout

Value: TypeAlias = "int | str | Number | list[Value] | None"
Args: TypeAlias = dict[str, Value]

#: Numbers that differ between two repetitions of the same steps, by the key they stand under.
SHIFTED = {"External id": "external", "correlation": "correlation", "Ev Idx": "index"}
SHIFTED |= {"Python id": "python", "Python parent id": "python"}


@dataclass(frozen=True, slots=True)
class Number:
    """A number already written out, such as 0.006757."""

    text: str


@dataclass(slots=True)
class Row:
    """One trace event before it is text. ts and dur in ns; dur < 0 means none (instants and flows).

    cause is never written: what the device waited for if it idled because the host was in this row; "" if no more can
    be said than that the host was at work.
    """

    ph: str
    cat: str
    name: str
    pid: int | str
    tid: int | str
    ts: int
    dur: int = -1
    args: Args = field(default_factory=dict)
    step: int = 0
    flow: int = 0
    cause: str = ""

    @property
    def end(self) -> int:
        return self.ts + self.dur


Mark: TypeAlias = Callable[[str, int], str]


def plain(kind: str, value: int) -> str:
    """A number as itself, whatever it counts."""
    return str(value)


def us(ns: int, mark: Mark = plain) -> str:
    """Nanoseconds as µs with three decimals; a shift by whole µs touches only the integer part."""
    return f"{mark('us', ns // 1000)}.{ns % 1000:03d}"


def _encode(value: Value, joint: str = ", ") -> str:
    if isinstance(value, Number):
        return value.text
    if isinstance(value, list):
        return "[" + joint.join([_encode(item, joint) for item in value]) + "]"
    return json.dumps(value)


def _pairs(row: Row, mark: Mark, joint: str = ", ") -> list[tuple[str, str]]:
    """The args as encoded key and value."""
    return [
        (key, mark(SHIFTED[key], value) if key in SHIFTED and isinstance(value, int) else _encode(value, joint))
        for key, value in row.args.items()
    ]


def _fields(row: Row, mark: Mark) -> list[tuple[str, str]]:
    """Every key of the event but args, in the order in which libkineto writes them."""
    ph, name = _encode(row.ph), _encode(row.name)
    place = [("pid", _encode(row.pid)), ("tid", _encode(row.tid))]
    # A template's numbers are filled in by position: they must be marked in the order in which they are written.
    flow = [("id", mark("correlation", row.flow))] if row.flow else []
    ts = ("ts", us(row.ts, mark))
    if row.flow:
        end = [("bp", '"e"')] if row.ph == "f" else []
        return [("ph", ph), *flow, *place, ts, ("cat", _encode(row.cat)), ("name", name), *end]
    if row.ph == "X":
        return [("ph", ph), ("cat", _encode(row.cat)), ("name", name), *place, ts, ("dur", us(row.dur, plain))]
    if row.ph == "i" and not row.cat:
        return [("name", name), ("ph", ph), ("s", '"g"'), *place, ts]
    if row.ph == "i":
        return [("ph", ph), ("cat", _encode(row.cat)), ("s", '"t"'), ("name", name), *place, ts]
    return [("name", name), ("ph", ph), ts, *place]


def _kineto(row: Row, mark: Mark) -> str:
    """The layout of releases up to 2026: some keys share a line."""
    fields = [f'"{key}": {value}' for key, value in _fields(row, mark)]
    if row.flow or row.ph == "X":
        lines = [", ".join(fields[:5]), ", ".join(fields[5:])]
    elif row.ph == "i" and not row.cat:
        lines = [", ".join(fields[:3]), ", ".join(fields[3:])]
    else:
        lines = [", ".join(fields)]
    if row.args:
        pairs = [f'"{key}": {value}' for key, value in _pairs(row, mark)]
        if row.cat in ("cpu_op", "user_annotation") and len(pairs) > 1:
            pairs[:2] = [f"{pairs[0]},{pairs[1]}"]
        joint = ",      " if row.cat == "kernel" else ", "
        lines.append('"args": {\n      ' + joint.join(pairs) + "\n    }")
    return "  {\n    " + ",\n    ".join(lines) + "\n  }"


def _kineto_2026(row: Row, mark: Mark) -> str:
    """The newer layout: a key a line, and a comma at the head of the line with args."""
    text = ",\n    ".join(f'"{key}": {value}' for key, value in _fields(row, mark))
    if row.args:
        pairs = ", ".join(f'"{key}": {value}' for key, value in _pairs(row, mark))
        text += '\n    ,\n    "args": {\n      ' + pairs + "\n    }"
    return "\n  {\n    " + text + "\n  }"


def _minified(row: Row, mark: Mark) -> str:
    fields = [f'"{key}":{value}' for key, value in _fields(row, mark)]
    if row.args:
        pairs = ",".join(f'"{key}":{value}' for key, value in _pairs(row, mark, ","))
        fields.append('"args":{' + pairs + "}")
    return "{" + ",".join(fields) + "}"


def _indent(row: Row, mark: Mark) -> str:
    """As json.dump(..., indent=2) writes it."""
    fields = [f'"{key}": {value}' for key, value in _fields(row, mark)]
    if row.args:
        pairs = (f'"{key}": {_spread(row.args[key], value, 8)}' for key, value in _pairs(row, mark))
        fields.append('"args": {\n        ' + ",\n        ".join(pairs) + "\n      }")
    return "    {\n      " + ",\n      ".join(fields) + "\n    }"


def _spread(value: Value, text: str, depth: int) -> str:
    """A list with an element a line; anything else as it is."""
    if not isinstance(value, list) or not value:
        return text
    inner = " " * (depth + 2)
    return (
        "[\n" + ",\n".join(inner + _spread(item, _encode(item), depth + 2) for item in value) + "\n" + " " * depth + "]"
    )


@dataclass(frozen=True, slots=True)
class _Style:
    row: Callable[[Row, Mark], str]
    between: str
    open_: str
    close: str
    pair: Callable[[str, object], str]


def _own_line(key: str, value: object) -> str:
    return f'  "{key}": {json.dumps(value)}'


def _tight(key: str, value: object) -> str:
    return json.dumps(key) + ":" + json.dumps(value, separators=(",", ":"))


def _deep(key: str, value: object) -> str:
    return f'  "{key}": ' + json.dumps(value, indent=2).replace("\n", "\n  ")


_STYLES: dict[str, _Style] = {
    "kineto": _Style(_kineto, ",\n", '  "traceEvents": [\n', "\n  ]", _own_line),
    "kineto_2026": _Style(_kineto_2026, ",", '    "traceEvents": [\n    ', "\n  ]", _own_line),
    "minified": _Style(_minified, ",", '"traceEvents":[', "]", _tight),
    "indent": _Style(_indent, ",\n", '  "traceEvents": [\n', "\n  ]", _deep),
}


@dataclass(frozen=True, slots=True)
class Document:
    """The text around the events: head, then events joined by `between`, then tail."""

    layout: Layout
    head: Mapping[str, object]
    tail: Mapping[str, object]

    @property
    def between(self) -> str:
        return _STYLES[self.layout].between

    def opening(self) -> str:
        """Everything before the first event."""
        style = _STYLES[self.layout]
        line = "" if self.layout == "minified" else "\n"
        pairs = "".join(style.pair(key, value) + "," + line for key, value in self.head.items())
        return "{" + line + pairs + style.open_

    def closing(self) -> str:
        """Everything after the last event."""
        style = _STYLES[self.layout]
        line = "" if self.layout == "minified" else "\n"
        pairs = "".join("," + line + style.pair(key, value) for key, value in self.tail.items())
        return style.close + pairs + line + "}"

    def row(self, row: Row, mark: Mark = plain) -> str:
        """One event."""
        return _STYLES[self.layout].row(row, mark)


@dataclass(frozen=True, slots=True)
class Template:
    """Rows as %-format text, and the numbers to fill in with what each counts."""

    text: str
    kinds: tuple[str, ...]
    values: tuple[int, ...]
    rows: int


def template(document: Document, rows: list[Row]) -> Template:
    """The rows, joined, with every number that a repetition shifts left open."""
    kinds: list[str] = []
    values: list[int] = []

    def mark(kind: str, value: int) -> str:
        kinds.append(kind)
        values.append(value)
        return "\x00"

    text = document.between.join(document.row(row, mark) for row in rows)
    return Template(text.replace("%", "%%").replace("\x00", "%d"), tuple(kinds), tuple(values), len(rows))
