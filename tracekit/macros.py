"""Reads the documentation of SQL macros and views: which parameters and columns do they promise?

A header is the block of comment lines right above a `CREATE MACRO`, `VIEW` or `TABLE`; in it, `-- parameter NAME TYPE:
meaning` and `-- column NAME TYPE: meaning` lines are the interface, `-- threshold NAME: meaning` lines what the
analysis compares with, each with the indented lines below it; everything else is prose. A macro that is no table is a
function: it has no columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_ENTRY = re.compile(r"^-- (parameter|column) (\w+) ([A-Z]\w*(?:\[\])?): (.+)$")
_THRESHOLD = re.compile(r"^-- (threshold) (\w+)(): (.+)$")
_CONTINUED = "   "
_CREATE = re.compile(r"^CREATE (MACRO|VIEW|TABLE) (\w+)")


@dataclass(frozen=True, slots=True)
class MacroDoc:
    """One documented object. kind: macro (of a table), function, view, table. `prose` is what the header says besides,
    line by line as it is laid out there, `parameters`, `thresholds` and `columns` map a name to its SQL type (of a
    threshold "") and meaning.
    """

    kind: str
    name: str
    prose: tuple[str, ...]
    parameters: Mapping[str, tuple[str, str]]
    thresholds: Mapping[str, tuple[str, str]]
    columns: Mapping[str, tuple[str, str]]
    body: str

    @property
    def summary(self) -> str:
        """The prose as one paragraph."""
        return " ".join(line.strip() for line in self.prose).strip()


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
    entries: dict[str, dict[str, tuple[str, str]]] = {"parameter": {}, "threshold": {}, "column": {}}
    prose: list[str] = []
    of, last = "", ""
    for line in header:
        text = line.removeprefix("--")
        if match := _ENTRY.match(line) or _THRESHOLD.match(line):
            of, last = match[1], match[2]
            entries[of][last] = (match[3], match[4])
        elif last and text.startswith(_CONTINUED):
            sql_type, meaning = entries[of][last]
            entries[of][last] = (sql_type, f"{meaning} {text.strip()}")
        else:
            prose.append(text.removeprefix(" ").rstrip())
            last = ""
    return MacroDoc(kind, name, tuple(prose), entries["parameter"], entries["threshold"], entries["column"], body)
