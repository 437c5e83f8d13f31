"""Is a text that a user typed one query that only reads? What runs it, and what is said where it is not."""

from __future__ import annotations

import re
from collections.abc import Collection

import duckdb
import pyarrow as pa

from tracekit import store
from tracekit.errors import UsageError

_NO_TABLE = re.compile(r"Table with name (\w+) does not exist")


def refuse_all_but_one_select(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """Raises UsageError if the text is not exactly one SELECT (DESCRIBE, SUMMARIZE and SHOW are SELECTs)."""
    try:
        statements = connection.extract_statements(query)
    except duckdb.Error as error:
        raise UsageError(f"not a query: {error}") from error
    is_pragma = query.lstrip()[:6].upper() == "PRAGMA"  # some of which DuckDB 1 takes for a SELECT
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT or is_pragma:
        kinds = ", ".join(statement.type.name for statement in statements) or "nothing"
        raise UsageError(f"one SELECT statement is run here and nothing else; this is: {kinds}")


def read_only(connection: duckdb.DuckDBPyConnection, query: str, macros: Collection[str]) -> pa.Table:
    """Its rows. macros: names of table functions. Raises UsageError with DuckDB's message."""
    cursor = connection.cursor()
    # A WITH clause may hold an INSERT and still count as a SELECT: only the transaction refuses that.
    cursor.execute("BEGIN TRANSACTION READ ONLY")
    try:
        return store.table(cursor, query)
    except duckdb.Error as error:
        raise UsageError(f"the query failed: {error}{_hint(str(error), macros)}") from error
    finally:
        cursor.close()


def _hint(message: str, macros: Collection[str]) -> str:
    """What to do about a table that is none: analyses are functions, which DuckDB does not guess."""
    missing = _NO_TABLE.search(message)
    if missing is None or missing[1].lower() not in macros:
        return ""
    name = missing[1].lower()
    return f"\n{name} is a table function, called with parentheses: FROM {name}()"
