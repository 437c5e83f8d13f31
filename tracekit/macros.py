"""Reads the documentation of SQL macros and views: which parameters and columns do they promise?

A header is the block of comment lines right above a `CREATE MACRO` or `CREATE VIEW`; in it, `-- parameter NAME TYPE:
meaning` and `-- column NAME TYPE: meaning` lines are the interface, everything else is prose.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_ENTRY = re.compile(r"^-- (parameter|column) (\w+) ([A-Z]\w*(?:\[\])?): (.+)$")
_CREATE = re.compile(r"^CREATE (MACRO|VIEW) (\w+)")


@dataclass(frozen=True, slots=True)
class MacroDoc:
    """One documented macro or view. `parameters` and `columns` map a name to its SQL type and meaning."""

    kind: str
    name: str
    summary: str
    parameters: Mapping[str, tuple[str, str]]
    columns: Mapping[str, tuple[str, str]]


def parse_macros(sql: str) -> tuple[MacroDoc, ...]:
    """All documented macros and views of an SQL text, in order."""
    found: list[MacroDoc] = []
    header: list[str] = []
    for line in sql.splitlines():
        if line.startswith("--"):
            header.append(line)
            continue
        if match := _CREATE.match(line):
            found.append(_document(match[1].lower(), match[2], header))
        header = []
    return tuple(found)


def _document(kind: str, name: str, header: list[str]) -> MacroDoc:
    parameters: dict[str, tuple[str, str]] = {}
    columns: dict[str, tuple[str, str]] = {}
    prose: list[str] = []
    for line in header:
        if match := _ENTRY.match(line):
            (parameters if match[1] == "parameter" else columns)[match[2]] = (match[3], match[4])
        else:
            prose.append(line.removeprefix("--").strip())
    return MacroDoc(kind, name, " ".join(prose).strip(), parameters, columns)
