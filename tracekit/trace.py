"""Opens a trace and answers questions about it: SQL over documented views, and named analyses."""

from __future__ import annotations

import re
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import duckdb
import pyarrow as pa

from tracekit import store
from tracekit.analysis import Analysis, Result, Scalar, complete_parameters
from tracekit.beside import Beside, Given
from tracekit.blame import batches, holders
from tracekit.classify import Rules, classify_kernel, read_rules
from tracekit.devices import Peaks
from tracekit.errors import UsageError
from tracekit.hold import Hold
from tracekit.inputs import PathLike, only_parquet, paths_of
from tracekit.kernel_names import forms_table
from tracekit.registry import analyses
from tracekit.restep import needs_steps, restep
from tracekit.roofline_fill import device_peaks, roofline_fillers
from tracekit.scope import Scope, chosen_steps, inventory, refuse_empty, scope_of
from tracekit.step_sources import steps_in_table
from tracekit.steps import step_table
from tracekit.timeline import flatten
from tracekit.wording import counted

_NO_TABLE = re.compile(r"Table with name (\w+) does not exist")
_NOTHING = Beside()
_SMALL = 1_000  # rows of a macro that are kept: several analyses ask for the same few


def open(
    path: PathLike | Sequence[PathLike],
    *,
    rules: Sequence[PathLike] = (),
    allow_partial: bool = False,
    progress: Callable[..., None] | None = None,
    step_range: str | None = None,
    ncu: PathLike | Sequence[PathLike] = (),
    device_spec: PathLike | Sequence[PathLike] = (),
    peaks: Mapping[str, float | str] = MappingProxyType({}),
    capture_trace: PathLike | Sequence[PathLike] = (),
    model: PathLike | None = None,
    tensor_parallel: int | None = None,
) -> Trace:
    """Open a trace: a Parquet file made by tracekit, or raw profiler files (one, several, or a directory of them).

    Raw files are converted first, into a temporary Parquet file that lives as long as the Trace. So is a Parquet file
    whose steps were found by other rules than these, or in which others are asked for.
    rules: TOML files that go before the built-in kernel rules. allow_partial: keep the whole events of a file that
    was cut short. step_range: a regular expression; annotations whose name it matches (`re.search`) are the serving
    steps, instead of the marks of known engines. Left out, steps are as they were when the file was made. ncu: tables
    that Nsight Compute printed with --csv, whose counters are joined to the kernels (view kernel_counters).

    For the roofline: device_spec: TOML files of devices that go before the built-in table (docs/devices.md). peaks:
    figures that go before these, in operations or bytes per second: {"bf16": 989e12, "bandwidth": "3.35TB/s"}.
    capture_trace: traces of the same server, recorded while graphs were captured or without graphs, whose shapes are
    lent to graph replays. model: config.json of the served model, as on Hugging Face. tensor_parallel: devices that
    share a layer; left out, the ranks of the trace's job.

    Raises UnknownFormatError, MalformedTraceError, TruncatedTraceError, RulesError; UsageError for what is not there to
    read, or no regular expression.
    """
    given = Given(
        ncu=tuple(paths_of(ncu)),
        device_spec=tuple(paths_of(device_spec)),
        peaks=peaks,
        capture_trace=tuple(paths_of(capture_trace)),
        model=None if model is None else paths_of(model)[0],
        tensor_parallel=tensor_parallel,
    )
    return open_beside(
        path, given.read(), rules=rules, allow_partial=allow_partial, progress=progress, step_range=step_range
    )


def open_beside(
    path: PathLike | Sequence[PathLike],
    beside: Beside,
    *,
    rules: Sequence[PathLike] = (),
    allow_partial: bool = False,
    progress: Callable[..., None] | None = None,
    step_range: str | None = None,
) -> Trace:
    """`open` with what is given beside the trace read already."""
    paths = paths_of(path)
    parquet = only_parquet(paths)
    if parquet is not None and not needs_steps(store.read_footer(parquet), step_range):
        return Trace(parquet, rules=rules, beside=beside)

    folder = tempfile.TemporaryDirectory(prefix="tracekit-", ignore_cleanup_errors=True)
    try:
        file = Path(folder.name) / "trace.parquet"
        if parquet is not None:
            restep(parquet, file, step_range)
        else:
            from tracekit.convert import convert

            convert(paths, file, allow_partial=allow_partial, progress=progress, step_range=step_range)
        return Trace(file, rules=rules, beside=beside, on_close=folder.cleanup)
    except BaseException:
        folder.cleanup()
        raise


class RulesWarning(UserWarning):
    """A rules file of the user changes nothing."""


class Trace:
    """One trace, open for questions. A context manager; `close` frees the database.

    `footer` is what was read from which file, `path` the Parquet file, `scope` the part of it that analyses see,
    `beside` what was given with it.
    """

    def __init__(
        self,
        path: PathLike,
        rules: Sequence[PathLike] = (),
        *,
        beside: Beside = _NOTHING,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        self.footer = store.read_footer(self.path)
        files = [Path(one) for one in rules]
        self._rules = Rules.load(files) if files else None  # a mistake in them is told at once
        self._rules_of = {file: Rules.of(read_rules(file)) for file in files}
        self.scope = Scope()
        self.beside = beside
        self._whole: Trace | None = None  # of a part
        self._reopened: Trace | None = None
        self._hold = Hold(on_close)
        self._filled: set[str] = set()
        self._small: dict[tuple[object, ...], pa.Table] = {}
        self._once: dict[tuple[object, ...], Any] = {}
        self._results: dict[tuple[object, ...], Result] = {}
        self._connection = store.connect(self.path, self.footer)
        self._finalizer = weakref.finalize(self, _close, self._connection, self._hold.taken())
        self._catalog = store.define(self._connection, analyses())
        if beside.counters is not None:
            self._catalog.definitions.make_for(" ".join(store.COUNTER_TABLES))
            store.put_counters(self._connection, beside.counters)

    def __repr__(self) -> str:
        footer = self.footer
        ranks = ", ".join(map(str, footer.ranks[:8])) + (", ..." if len(footer.ranks) > 8 else "")
        state = "" if self._finalizer.alive else ", closed"
        part = f", only {self.scope}" if self.scope else ""
        return f"<Trace {str(self.path)!r}: {counted(footer.ledger.stored, 'event')}, ranks [{ranks}]{part}{state}>"

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the database and, if the trace was converted on opening, its temporary file unless a part is open."""
        self._finalizer()
        if self._reopened is not None:
            self._reopened.close()

    # ---- parts -------------------------------------------------------------------------------------------------------

    def only(
        self,
        *,
        phase: str | Sequence[str] | None = None,
        steps: int | Sequence[int | None] | None = None,
        rank: int | Sequence[int] | None = None,
        device: int | Sequence[int] | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
    ) -> Trace:
        """A Trace on the same file whose analyses see only this part of it; each of the two is closed by itself.

        Busy time belongs to the step that launched it, a gap to the step whose work ended it. steps: one, or (first,
        end) like a slice, counted in each rank. since_ns, until_ns: from the trace's start; what crosses them is cut.
        Views (events, kernels, ...) and the analysis `health` go on seeing everything.

        Raises UsageError for what the trace does not have, naming what it has.
        """
        return self.within(
            scope_of(phase=phase, steps=steps, rank=rank, device=device, since_ns=since_ns, until_ns=until_ns)
        )

    def within(self, scope: Scope) -> Trace:
        """`only`, with all that is chosen as one value."""
        scope = self.scope.narrowed(scope)
        there = inventory(self.footer.ranks, self.whole.sql)
        steps = chosen_steps(scope, there)
        part = Trace(self.path, beside=self.beside, on_close=self._hold.taken())
        part.scope, part._whole = scope, self.whole
        part._rules, part._rules_of = self._rules, self._rules_of
        try:
            store.choose(part._connection, scope, steps)
            refuse_empty(scope, there, part.sql)
        except BaseException:
            part.close()
            raise
        return part

    def beside_it(self, path: PathLike) -> Trace:
        """Another trace that tells of this one, its kernels named by the same rules. To be closed by itself."""
        other = open(path)
        other._rules = self._rules  # without the files: rules that match nothing there are no mistake
        return other

    @property
    def whole(self) -> Trace:
        """The trace that this is a part of, itself if it is whole: for what one must judge by all of the recording."""
        if self._whole is None:
            return self
        if not self._whole._finalizer.alive:
            self._whole = self._reopened = Trace(self.path, beside=self.beside, on_close=self._hold.taken())
            self._whole._rules, self._whole._rules_of = self._rules, self._rules_of
        return self._whole

    # ---- SQL ---------------------------------------------------------------------------------------------------------

    def sql(self, query: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """Run SQL written in code and return its rows. Values from outside go into `parameters` (`$name`), never into
        the text; text typed by a user goes to `query_readonly`.
        """
        self._fill_what_is_read(query)
        return store.table(self._connection.cursor(), query, parameters)

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection to the database, for code that keeps temporary tables there or takes rows in batches.

        Tables that are filled when first read (step_table, kernel_classes) are so by `sql` only.
        """
        self._catalog.definitions.make_all()
        return self._connection.cursor()

    def macro(self, name: str, parameters: Mapping[str, Scalar] = MappingProxyType({})) -> pa.Table:
        """Rows of a documented table macro, called with those of `parameters` that it has."""
        given = {key: value for key, value in parameters.items() if key in self._catalog.parameters[name]}
        asked = (name, *sorted(given.items()))
        if (known := self._small.get(asked)) is not None:
            return known
        arguments = ", ".join(f"{key} := ${key}" for key in given)
        rows = self.sql(f"FROM {name}({arguments})", given)
        if rows.num_rows <= _SMALL:
            self._small[asked] = rows
        return rows

    def rows(self, ids: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Kind, name, ts and dur of rows by id: what evidence refers to."""
        wanted = sorted(set(ids))
        return {row["id"]: row for row in self.row_table(wanted).to_pylist()} if wanted else {}

    def row_table(self, ids: Sequence[int]) -> pa.Table:
        """The same as a table by id, for many rows. ids: ascending, at least one."""
        query = "SELECT id, kind, name, ts, dur FROM events WHERE id BETWEEN $low AND $high "
        query += "AND id IN (SELECT unnest($ids)) ORDER BY id"
        values: dict[str, Any] = {"low": ids[0], "high": ids[-1], "ids": ids}
        return store.table(self._connection.cursor(), query, values)

    def query_readonly(self, query: str) -> pa.Table:
        """Run one SELECT typed by a user. It can read this trace and nothing else, and change nothing.

        Raises UsageError with DuckDB's message, or if the text is not exactly one SELECT (DESCRIBE, SUMMARIZE and
        SHOW are SELECTs).
        """
        try:
            statements = self._connection.extract_statements(query)
        except duckdb.Error as error:
            raise UsageError(f"not a query: {error}") from error
        is_pragma = query.lstrip()[:6].upper() == "PRAGMA"  # some of which DuckDB 1 takes for a SELECT
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT or is_pragma:
            kinds = ", ".join(statement.type.name for statement in statements) or "nothing"
            raise UsageError(f"one SELECT statement is run here and nothing else; this is: {kinds}")
        self._fill_what_is_read(query)
        cursor = self._connection.cursor()
        # A WITH clause may hold an INSERT and still count as a SELECT: only the transaction refuses that.
        cursor.execute("BEGIN TRANSACTION READ ONLY")
        try:
            return store.table(cursor, query)
        except duckdb.Error as error:
            raise UsageError(f"the query failed: {error}{self._hint(str(error))}") from error
        finally:
            cursor.close()

    def _hint(self, message: str) -> str:
        """What to do about a table that is none: analyses are functions, which DuckDB does not guess."""
        missing = _NO_TABLE.search(message)
        if missing is None or missing[1].lower() not in self._catalog.parameters:
            return ""
        name = missing[1].lower()
        return f"\n{name} is a table function, called with parentheses: FROM {name}()"

    def _fill_what_is_read(self, query: str) -> None:
        """Make the views and macros that a query needs, and fill each lazy table that it is the first to read, directly
        or through these.
        """
        self._catalog.definitions.make_for(query)
        fillers: dict[str, Callable[[], pa.Table | str]] = {
            "step_table": self._steps,
            "kernel_classes": self._classified_names,
            "host_timeline": self._host_timeline,
            "gap_holders": self._gap_holders,
            "kernel_name_forms": self._name_forms,
            "graph_sequence": lambda: "FROM graph_launches()",
            "graph_region_table": self._graph_regions,
            "fusion_table": self._fusions,
            "plan_rows": self._plan,
            **roofline_fillers(self),
        }
        for name, pattern in self._catalog.readers.items():
            if name not in self._filled and pattern.search(query):
                rows = self._known(name) or fillers[name]()
                if isinstance(rows, str):
                    self._fill_what_is_read(rows)
                store.fill(self._connection.cursor(), name, rows)
                self._filled.add(name)

    def _known(self, name: str) -> pa.Table | None:
        """The rows of a lazy table, if the whole trace has them already: they are the same for each part."""
        whole = self._whole if name not in store.SCOPED_TABLES else None
        return whole.sql(f"FROM {name}") if whole and whole._finalizer.alive and name in whole._filled else None

    def _steps(self) -> pa.Table:
        cursor = self._connection.cursor()
        return step_table(steps_in_table(partial(store.table, cursor), self.footer.step_range))

    def _classified_names(self) -> pa.Table:
        classify = classify_kernel if self._rules is None else self._rules.classify
        names = store.table(self._connection.cursor(), "FROM names_to_classify()").to_pylist()
        for file, own in self._rules_of.items():
            if all(own.match(row["name"], row["op_name"] or None) is None for row in names):
                warnings.warn(f"no rule of {file} matches a name in this trace", RulesWarning, stacklevel=6)
        rows = [(row["kind"], row["name"], row["op_name"], *_class_of(row, classify)) for row in names]
        fields = ("kind", "name", "op_name", "category", "subcategory")
        return pa.table({field: pa.array([row[at] for row in rows], pa.string()) for at, field in enumerate(fields)})

    def _host_timeline(self) -> pa.Table:
        return flatten(self.sql("FROM host_spans()"))

    def _gap_holders(self) -> pa.Table:
        pieces = batches(self.sql("FROM gap_pieces()"), self.footer.ledger.stored)
        found = [
            holders(part, self.macro("host_rows", {"from_ts": begin, "to_ts": end})) for part, begin, end in pieces
        ]
        return pa.concat_tables(found)

    def _name_forms(self) -> pa.Table:
        return forms_table(store.table(self._connection.cursor(), "FROM names_to_compare()")["name"].to_pylist())

    def _graph_regions(self) -> pa.Table:
        from tracekit.graph_table import region_table  # which replays steps of a Trace

        return region_table(self)

    def _fusions(self) -> pa.Table:
        from tracekit.fusion_table import fusion_table  # which replays steps of a trace

        return fusion_table(self)

    def _plan(self) -> pa.Table:
        from tracekit.plan_table import plan_table  # which replays steps of a trace

        return plan_table(self)

    def once(self, key: tuple[object, ...], make: Callable[[], Any]) -> Any:
        """What several analyses need and is dear to make: made when first asked for, then kept. key: what it is."""
        if key not in self._once:
            self._once[key] = make()
        return self._once[key]

    def peaks(self) -> Mapping[tuple[int, int | None], Peaks]:
        """Peaks of each device by rank and device: of what computes and of its memory, and where they are from."""
        return device_peaks(self)

    # ---- analyses ----------------------------------------------------------------------------------------------------

    def analyses(self) -> Mapping[str, Analysis]:
        """All analyses by name."""
        return self._catalog.analyses

    def analyze(self, name: str, **parameters: Scalar) -> Result:
        """Run one analysis; `parameters` override its thresholds. Asked again, the same result is returned.

        Raises UsageError for an analysis or a parameter that does not exist, naming those that do.
        """
        if name not in self._catalog.analyses:
            raise UsageError(f"no analysis {name!r}; there are: {', '.join(self._catalog.analyses)}")
        analysis = self._catalog.analyses[name]
        complete = complete_parameters(analysis, parameters)
        key = (name, *sorted(complete.items()))
        if key not in self._results:
            self._results[key] = analysis.run(self, complete)
        return self._results[key]


def _class_of(row: Mapping[str, Any], classify: Callable[[str, str | None], tuple[str, str]]) -> tuple[str, str]:
    match row["kind"]:
        case "memcpy" | "memset":
            return "memory", row["kind"]
        case "graph":
            return "graph", ""
        case _:
            return classify(row["name"], row["op_name"] or None)


def _close(connection: duckdb.DuckDBPyConnection, on_close: Callable[[], None] | None) -> None:
    connection.close()
    if on_close is not None:
        on_close()
