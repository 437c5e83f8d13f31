"""Reads the documentation of SQL macros and views: which parameters and columns do they promise?

A header is the block of comment lines right above a `CREATE MACRO`, `VIEW` or `TABLE`; in it, `-- parameter NAME TYPE:
meaning` and `-- column NAME TYPE: meaning` lines are the interface, everything else is prose. A macro that is no table
is a function: it has no columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_ENTRY = re.compile(r"^-- (parameter|column) (\w+) ([A-Z]\w*(?:\[\])?): (.+)$")
_CREATE = re.compile(r"^CREATE (MACRO|VIEW|TABLE) (\w+)")


@dataclass(frozen=True, slots=True)
class MacroDoc:
    """One documented object. kind: macro (of a table), function, view, table. `parameters` and `columns` map a name to
    its SQL type and meaning.
    """

    kind: str
    name: str
    summary: str
    parameters: Mapping[str, tuple[str, str]]
    columns: Mapping[str, tuple[str, str]]
    body: str


def parse_macros(sql: str) -> tuple[MacroDoc, ...]:
    """All macros, views and tables that an SQL text creates, in order. A statement ends with `;` at a line's end."""
    found: list[MacroDoc] = []
    header: list[str] = []
    lines = iter(sql.splitlines())
    for line in lines:
        if match := _CREATE.match(line):
            body = [line]
            while not body[-1].endswith(";") and (more := next(lines, None)) is not None:
                body.append(more)
            found.append(_document(match[1].lower(), match[2], header, "\n".join(body)))
        if line.startswith("--"):
            header.append(line)
        else:
            header = []
    return tuple(found)


def _document(kind: str, name: str, header: list[str], body: str) -> MacroDoc:
    if kind == "macro" and ") AS TABLE" not in body:
        kind = "function"
    parameters: dict[str, tuple[str, str]] = {}
    columns: dict[str, tuple[str, str]] = {}
    prose: list[str] = []
    for line in header:
        if match := _ENTRY.match(line):
            (parameters if match[1] == "parameter" else columns)[match[2]] = (match[3], match[4])
        else:
            prose.append(line.removeprefix("--").strip())
    return MacroDoc(kind, name, " ".join(prose).strip(), parameters, columns, body)
