"""Opens a trace and answers questions about it: SQL over documented views, and named analyses."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from tracekit import store
from tracekit.analysis import Analysis, Finding, Result, Scalar, complete_parameters
from tracekit.beside import Beside, Given
from tracekit.devices import Peaks
from tracekit.errors import UsageError
from tracekit.hold import Hold
from tracekit.inputs import PathLike, only_parquet, paths_of
from tracekit.own_rules import OwnRules, RulesWarning
from tracekit.questions import Questions
from tracekit.readonly import read_only, refuse_all_but_one_select
from tracekit.registry import analyses
from tracekit.restep import needs_steps, restep
from tracekit.roofline_fill import device_peaks
from tracekit.scope import Scope, chosen_steps, inventory, refuse_empty, scope_of
from tracekit.trace_tables import fillers
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.explain import Explanation
    from tracekit.step_view import Step
    from tracekit.summary import Summary

__all__ = ["RulesWarning", "Trace", "open", "open_beside"]

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
        return Trace(parquet, rules=rules, beside=beside, name=str(paths[0]))

    folder = tempfile.TemporaryDirectory(prefix="tracekit-", ignore_cleanup_errors=True)
    try:
        file = Path(folder.name) / "trace.parquet"
        if parquet is not None:
            restep(parquet, file, step_range)
        else:
            from tracekit.convert import convert

            convert(paths, file, allow_partial=allow_partial, progress=progress, step_range=step_range)
        return Trace(file, rules=rules, beside=beside, on_close=folder.cleanup, name=_called(paths))
    except BaseException:
        folder.cleanup()
        raise


def _called(paths: Sequence[Path]) -> str:
    return str(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


class Trace(Questions):
    """One trace, open for questions. A context manager; `close` frees the database.

    `footer` is what was read from which file, `path` the Parquet file, `name` what it was opened as, `scope` the part
    of it that analyses see, `beside` what was given with it.
    """

    def __init__(
        self,
        path: PathLike,
        rules: Sequence[PathLike] = (),
        *,
        beside: Beside = _NOTHING,
        on_close: Callable[[], None] | None = None,
        name: str = "",
    ) -> None:
        self.path = Path(path).absolute()
        self.name = name or str(path)
        self.footer = store.read_footer(self.path)
        self._rules = OwnRules.load(rules)  # a mistake in them is told at once
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
        return f"<Trace {self.name!r}: {counted(footer.ledger.stored, 'event')}, ranks [{ranks}]{part}{state}>"

    def _repr_html_(self) -> str:
        from tracekit.html_repr import trace_html

        return trace_html(self)

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
        Tables named in SQL (events, kernels, ...) and the analysis `health` go on seeing everything.

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
        part = Trace(self.path, beside=self.beside, on_close=self._hold.taken(), name=self.name)
        part.scope, part._whole = scope, self.whole
        part._rules = self._rules
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
        other._rules = self._rules.elsewhere()
        return other

    @property
    def whole(self) -> Trace:
        """The trace that this is a part of, itself if it is whole: for what one must judge by all of the recording."""
        if self._whole is None:
            return self
        if not self._whole._finalizer.alive:
            self._whole = self._reopened = Trace(
                self.path, beside=self.beside, on_close=self._hold.taken(), name=self.name
            )
            self._whole._rules = self._rules
        return self._whole

    # ---- SQL ---------------------------------------------------------------------------------------------------------

    def sql(self, query: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """Run SQL written in code and return its rows. Values from outside go into `parameters` (`$name`), never into
        the text; text typed by a user goes to `query_readonly`.
        """
        with store.unreadable_told(self.name):
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
        refuse_all_but_one_select(self._connection, query)
        self._fill_what_is_read(query)
        return read_only(self._connection, query, self._catalog.parameters.keys())

    def _fill_what_is_read(self, query: str) -> None:
        """Make the views and macros that a query needs, and fill each lazy table that it is the first to read, directly
        or through these.
        """
        self._catalog.definitions.make_for(query)
        for name, pattern in self._catalog.readers.items():
            if name not in self._filled and pattern.search(query):
                rows = self._known(name) or fillers(self, self._read, self._rules)[name]()
                if isinstance(rows, str):
                    self._fill_what_is_read(rows)
                store.fill(self._connection.cursor(), name, rows)
                self._filled.add(name)

    def _read(self, query: str) -> pa.Table:
        """Rows of a query as it is, whatever tables are still to be filled."""
        return store.table(self._connection.cursor(), query)

    def _known(self, name: str) -> pa.Table | None:
        """The rows of a lazy table, if the whole trace has them already: they are the same for each part."""
        whole = self._whole if name not in store.SCOPED_TABLES else None
        return whole.sql(f"FROM {name}") if whole and whole._finalizer.alive and name in whole._filled else None

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

    # ---- over all of them --------------------------------------------------------------------------------------------

    def summary(self) -> Summary:
        """The verdict: all analyses, their findings by id, and the report of one screen as text."""
        from tracekit.summary import summarize

        return summarize(self)

    def explain(self, finding: Finding | str) -> Explanation:
        """What a finding rests on: rows, arithmetic, and which Python line they come from. finding: it, or its id: as
        "idle_gaps.1" is the first of idle_gaps.

        Raises UsageError for an id that does not exist, naming those that do.
        """
        from tracekit.explain import explain

        return explain(self, finding)

    def step(self, number: int, rank: int | None = None) -> Step:
        """One serving step: its facts, kernels and timeline. number: as in `steps`, a negative one from the end. rank:
        left out, the first that has it.

        Raises UsageError for a step that is not there, naming those that are.
        """
        from tracekit.step_view import step_of

        return step_of(self, number, rank)


def _close(connection: duckdb.DuckDBPyConnection, on_close: Callable[[], None] | None) -> None:
    connection.close()
    if on_close is not None:
        on_close()
