"""Which rows does a view have? A query that is kept, and run when someone asks for what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tracekit.errors import UsageError
from tracekit.wording import counted

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    Ask = Callable[[str, Mapping[str, Any] | None], pa.Table]


class Rows:
    """Rows of a trace, not fetched yet: there may be millions. `len` counts them, `head` shows some, `arrow` and `df`
    fetch them, once. `name` is what they are.
    """

    def __init__(
        self, ask: Ask, name: str, query: str, *, order: str, parameters: Mapping[str, Any] | None = None
    ) -> None:
        """ask: runs SQL with parameters. query: a SELECT without an order; order: columns by which they are sorted."""
        self.name = name
        self._ask = ask
        self._query, self._order = query, order
        self._parameters = parameters
        self._columns: tuple[str, ...] | None = None
        self._count: int | None = None
        self._table: pa.Table | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        if self._columns is None:
            self._columns = tuple(self._ask(f"FROM ({self._query}) LIMIT 0", self._parameters).column_names)
        return self._columns

    def __len__(self) -> int:
        if self._count is None:
            (row,) = self._ask(f"SELECT count(*) AS rows FROM ({self._query})", self._parameters).to_pylist()
            self._count = int(row["rows"])
        return self._count

    def head(self, count: int = 10) -> pa.Table:
        """The first rows as an Arrow table."""
        limit = {"head": int(count), **(self._parameters or {})}
        return self._ask(f"FROM ({self._query}) ORDER BY {self._order} LIMIT $head", limit)

    def arrow(self, *columns: str) -> pa.Table:
        """All rows as an Arrow table, or of them these columns. Raises UsageError for one that does not exist."""
        if unknown := [one for one in columns if one not in self.columns]:
            raise UsageError(f"{self.name} have no column {unknown[0]!r}; there are: {', '.join(self.columns)}")
        if self._table is not None:
            return self._table.select(columns) if columns else self._table
        chosen = ", ".join(f'"{one}"' for one in columns) or "*"
        rows = self._ask(f"SELECT {chosen} FROM ({self._query}) ORDER BY {self._order}", self._parameters)
        if not columns:
            self._table = rows
        return rows

    def df(self, *columns: str) -> pd.DataFrame:
        """All rows as a pandas frame, or of them these columns. Raises UsageError for one that does not exist."""
        return self.arrow(*columns).to_pandas()

    def __repr__(self) -> str:
        return f"<Rows {self.name}: {counted(len(self), 'row')} of {counted(len(self.columns), 'column')}>"

    def _repr_html_(self) -> str:
        from tracekit.html_repr import rows_html

        return rows_html(self)
