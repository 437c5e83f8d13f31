"""Which views and macros must there be before a query can run? They are made when a query first needs them.

DuckDB binds a macro against the file when it is made, and binding all of them takes longer than most questions do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tracekit.macros import parse_macros

if TYPE_CHECKING:
    import duckdb

_WORD = re.compile(r"\w+")
_SAID = re.compile(r"--[^\n]*|'(?:[^']|'')*'")  # comments and strings; the one that begins first
# Words of queries that ask what there is: then all of it must be.
_INVENTORY = frozenset({"show", "information_schema", "sqlite_master", "pg_catalog"})


@dataclass(frozen=True, slots=True)
class _Text:
    """An SQL text, the names that it defines, and all words in it but those of comments and strings, in lower case."""

    sql: str
    names: frozenset[str]
    words: frozenset[str]


class Definitions:
    """Texts of SQL that build on each other, each made on the connection before the first query that needs it.

    By text, and so sometimes in vain: the name of a column may be that of a view.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, texts: Sequence[str]) -> None:
        """texts: in the order in which they may be made."""
        self._connection = connection
        self._left = dict(enumerate(map(_read, texts)))

    def make_for(self, query: str) -> None:
        """Make what a query needs, directly or through what it needs, if that is not made yet."""
        if not self._left:
            return
        words = _words(query)
        if words & _INVENTORY or any(word.startswith("duckdb_") for word in words):
            wanted = set(self._left)
        else:
            wanted = set(self._needed(words))
        for place in sorted(wanted):
            self._connection.execute(self._left.pop(place).sql)

    def make_all(self) -> None:
        """Make all that is left: for code that queries by itself."""
        self.make_for("SHOW")

    def _needed(self, words: frozenset[str]) -> Iterator[int]:
        asked = [words]
        found: set[int] = set()
        while asked:
            said = asked.pop()
            for place, text in self._left.items():
                if place not in found and text.names & said:
                    found.add(place)
                    asked.append(text.words)
        yield from found


@cache
def _read(sql: str) -> _Text:
    return _Text(sql, frozenset(doc.name.lower() for doc in parse_macros(sql)), _words(_SAID.sub(" ", sql)))


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))
