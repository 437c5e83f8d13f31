"""The database behind a Trace: an in-memory DuckDB with the documented views, which can reach one file only."""

from __future__ import annotations

import json
import re
import secrets
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.analysis import Analysis
from tracekit.counters import Counters
from tracekit.definitions import Definitions
from tracekit.errors import MalformedTraceError, UnknownFormatError, UsageError
from tracekit.footer import KEY, SCHEMA_VERSION, Footer
from tracekit.macros import parse_macros
from tracekit.registry import LoadedAnalysis, PluginWarning
from tracekit.scope import Scope

# Each may read what those before it define. The first few are always there, the others when a query needs them.
_FIRST_FILES = ("scope.sql", "steps.sql", "shared.sql")
_SHARED_FILES = (
    *_FIRST_FILES,
    *("host.sql", "gaps.sql", "step_time.sql", "lanes.sql", "compare.sql"),
    *("counters.sql", "counters_join.sql", "gpu_metrics.sql", "range_counters.sql"),
    *("replay.sql", "graph_calls.sql", "graphs.sql", "graph_steps.sql", "fusion.sql", "plan.sql"),
    *("borrowed.sql", "roofline.sql", "borrowed_work.sql", "roofline_times.sql", "roofline_rows.sql"),
)
_LAST_NS = 2**63 - 1
_FEW_EVENTS = 200_000  # so many are kept in memory
# Tables that are filled when a query first reads them.
LAZY_TABLES = (
    *("step_table", "kernel_classes", "host_timeline", "gap_holders", "kernel_name_forms"),
    *("op_models", "model_calls", "op_work", "call_work", "device_peaks"),
    *("mapped_work", "measured_work", "lending_remarks"),
    *("graph_sequence", "graph_region_table", "fusion_table", "plan_rows"),
)
# Of these, the tables that are those of what is looked at: a part of a trace has other ones than the whole.
SCOPED_TABLES = frozenset({"graph_region_table", "fusion_table", "plan_rows"})
COUNTER_TABLES = ("ncu_launches", "ncu_readings", "ncu_ledger")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Catalog:
    """What a trace offers beyond its first views: analyses, parameter names of each macro, for each of LAZY_TABLES what
    matches a query that reads it, and what makes views and macros before a query needs them.
    """

    analyses: Mapping[str, Analysis]
    parameters: Mapping[str, frozenset[str]]
    readers: Mapping[str, re.Pattern[str]]
    definitions: Definitions


def shared_sql() -> list[str]:
    """The texts that define the documented views and macros, in the order in which they build on each other."""
    return [_text(name) for name in _SHARED_FILES]


@cache
def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def read_footer(path: Path) -> Footer:
    """The footer of a Parquet file made by tracekit.

    Raises UnknownFormatError if it is someone else's or of a newer tracekit, MalformedTraceError if it is broken.
    """
    try:
        metadata = pq.read_metadata(path).metadata or {}
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, pa.ArrowException) as error:
        raise MalformedTraceError(f"{path}: not a whole Parquet file: {error}") from error
    if KEY not in metadata:
        raise UnknownFormatError(
            f"{path}: a Parquet file that tracekit did not make (its footer has no `{KEY.decode()}` key); "
            "give the profiler's own file"
        )
    try:
        version = int(json.loads(metadata[KEY])["schema"])
        if version > SCHEMA_VERSION:
            raise UnknownFormatError(
                f"{path}: written by a newer tracekit (schema {version}, this one reads up to {SCHEMA_VERSION}); "
                "upgrade tracekit"
            )
        return Footer.from_bytes(metadata[KEY])
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedTraceError(f"{path}: its tracekit footer cannot be read: {error!r}") from error


def connect(path: Path, footer: Footer) -> duckdb.DuckDBPyConnection:
    """A database with `events` and the footer's tables, cut off from everything but the file at `path`."""
    connection = duckdb.connect(
        config={
            "python_enable_replacements": False,  # a name in a query never means a Python variable
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            # An ASOF join whose left side DuckDB takes for small compares all with all, and it takes thousands for few.
            "asof_loop_join_threshold": 0,
            "temp_directory": str(Path(tempfile.gettempdir()) / f"tracekit-spill-{secrets.token_hex(8)}"),
        }
    )
    try:
        connection.execute("SET parquet_metadata_cache = true")  # every macro is bound against the file
        # `*`, `?` and `[` in the file's name are patterns to DuckDB; in brackets each stands for itself.
        pattern = re.sub(r"([*?[])", r"[\1]", str(path))
        connection.execute(f"SET allowed_paths = [{_literal(str(path))}, {_literal(pattern)}]")
        with unreadable_told(str(path)):
            connection.execute(f"CREATE VIEW events AS {_events(connection, _literal(pattern))}")
        connection.execute("SET enable_external_access = false")
        _create(connection, "footer_sources", _sources_table(footer))
        _create(connection, "footer_devices", _devices_table(footer))
        _create(connection, "footer_ledger", _ledger_table(footer))
        for name in _FIRST_FILES:
            connection.execute(_text(name))
    except MalformedTraceError:
        connection.close()
        raise
    except duckdb.Error as error:
        connection.close()
        raise MalformedTraceError(f"{path}: its columns are not those of schema {SCHEMA_VERSION}: {error}") from error
    return connection


def _events(connection: duckdb.DuckDBPyConnection, file: str) -> str:
    """What reads the events: the file, or memory where they are few. Queries of views on views are bound for each of
    them, which with a file takes a quarter longer, and is most of what a small trace takes.
    """
    stored = f"SELECT * FROM read_parquet({file})"
    [(count,)] = connection.execute(f"SELECT num_rows FROM parquet_file_metadata({file})").fetchall()
    if count > _FEW_EVENTS:
        return stored
    connection.execute(f"CREATE SCHEMA kept; CREATE TABLE kept.events AS {stored}")
    return "FROM kept.events"


def define(connection: duckdb.DuckDBPyConnection, analyses: Mapping[str, LoadedAnalysis]) -> Catalog:
    """Prepare every analysis's macros, then lock the settings. A third party's are made at once: if its SQL fails, that
    costs the analysis.
    """
    shared = shared_sql()
    texts = [*shared, *(loaded.sql for loaded in analyses.values() if loaded.built_in)]
    definitions = Definitions(connection, texts[len(_FIRST_FILES) :])
    kept: dict[str, Analysis] = {}
    for name, loaded in analyses.items():
        if loaded.built_in:
            kept[name] = loaded.analysis
            continue
        try:
            definitions.make_for(loaded.sql)
            connection.execute(loaded.sql)
        except duckdb.Error as error:
            message = f"{name} of {loaded.origin} was left out: its SQL fails: {error}"
            warnings.warn(message, PluginWarning, stacklevel=4)
            continue
        kept[name] = loaded.analysis
        texts.append(loaded.sql)
    connection.execute("SET lock_configuration = true")
    return Catalog(kept, *_documented(tuple(texts)), definitions)


@cache
def _documented(texts: tuple[str, ...]) -> tuple[Mapping[str, frozenset[str]], Mapping[str, re.Pattern[str]]]:
    """`parameters` and `readers` of a Catalog."""
    docs = [doc for text in texts for doc in parse_macros(text)]
    words = [(doc.name.lower(), set(_WORD.findall(doc.body.lower()))) for doc in docs]
    parameters = {doc.name: frozenset(doc.parameters) for doc in docs}
    return parameters, {name: _readers_of(words, name) for name in LAZY_TABLES}


@contextmanager
def unreadable_told(name: str) -> Iterator[None]:
    """Of a file whose data turn out to be damaged when a query comes to them. Raises MalformedTraceError."""
    try:
        yield
    except duckdb.Error as error:  # of what is damaged, some is told by the base class itself
        if type(error) is duckdb.Error or isinstance(error, (duckdb.InvalidInputException, duckdb.IOException)):
            raise MalformedTraceError(f"{name}: it cannot be read: {error}") from error
        raise


def table(connection: duckdb.DuckDBPyConnection, query: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
    """The rows of one query."""
    rows: pa.Table = connection.sql(query, params=dict(parameters) if parameters else None).to_arrow_table()
    return rows


def fill(cursor: duckdb.DuckDBPyConnection, name: str, rows: pa.Table | str) -> None:
    """Put rows, or those of a query written in code, into one of LAZY_TABLES, or of those that hold what stands beside
    the trace.
    """
    if isinstance(rows, str):
        cursor.execute(f"INSERT INTO {name} BY NAME {rows}")
    else:
        cursor.register("incoming", rows)
        cursor.execute(f"INSERT INTO {name} BY NAME FROM incoming")
        cursor.unregister("incoming")
    cursor.close()


def put_counters(connection: duckdb.DuckDBPyConnection, counters: Counters) -> None:
    """Fill the tables of counters.sql with what was measured."""
    for name, rows in zip(COUNTER_TABLES, (counters.launches, counters.readings, counters.ledger), strict=True):
        fill(connection.cursor(), name, rows)


def choose(connection: duckdb.DuckDBPyConnection, scope: Scope, steps: Sequence[tuple[int, int]] | None) -> None:
    """Fill the tables of scope.sql and let its functions read them. steps: (rank, step) chosen, None if not by step."""
    window = {"start_ns": scope.start_ns, "end_ns": scope.end_ns}
    values: dict[str, Any] = {
        "ranks": list(scope.ranks) or None,
        "devices": list(scope.devices) or None,
        "by_step": steps is not None or None,
        **{name: None if ns is None else max(-_LAST_NS, min(ns, _LAST_NS)) for name, ns in window.items()},
    }
    cursor = connection.cursor()
    cursor.execute(Path(__file__).with_name("scope_chosen.sql").read_text(encoding="utf-8"))
    cursor.execute(f"UPDATE scope SET {', '.join(f'{name} = ${name}' for name in values)}", values)
    ranks, numbers = zip(*steps, strict=True) if steps else ((), ())
    fill(cursor, "scope_steps", pa.table({"rank": pa.array(ranks, pa.int32()), "step": pa.array(numbers, pa.int64())}))


def _readers_of(words: Sequence[tuple[str, set[str]]], target: str) -> re.Pattern[str]:
    """Matches a query that reads a table, by its name or by that of a macro or view that reads it. words: the name
    of each (a view and a macro may share one) and the words that it is made of, in lower case.

    By text and so sometimes in vain: DuckDB's own get_table_names fails on ASOF joins and on bound parameters.
    """
    names = {target}
    while more := {name for name, said in words if said & names} - names:
        names |= more
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b", re.IGNORECASE)


def _literal(text: str) -> str:
    """An SQL string: settings and views take no bound parameters."""
    return "'" + text.replace("'", "''") + "'"


def _create(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    connection.register("incoming", rows)
    connection.execute(f"CREATE TABLE {name} AS FROM incoming")
    connection.unregister("incoming")


def _sources_table(footer: Footer) -> pa.Table:
    sources = footer.sources
    return pa.table(
        {
            "path": pa.array([source.path for source in sources], pa.string()),
            "format": pa.array([source.format for source in sources], pa.string()),
            "rank": pa.array([source.rank for source in sources], pa.int32()),
            "rank_from": pa.array([source.rank_from for source in sources], pa.string()),
            "world_size": pa.array([source.world_size for source in sources], pa.int64()),
            "truncated_at": pa.array([source.truncated_at for source in sources], pa.int64()),
        }
    )


def _devices_table(footer: Footer) -> pa.Table:
    devices = footer.devices
    return pa.table(
        {
            "rank": pa.array([device.rank for device in devices], pa.int32()),
            "device": pa.array([device.device for device in devices], pa.int64()),
            "name": pa.array([device.name or None for device in devices], pa.string()),
            "properties": pa.array([json.dumps(device.properties) for device in devices], pa.string()),
        }
    )


def _ledger_table(footer: Footer) -> pa.Table:
    ledger = footer.ledger
    rows: Sequence[tuple[str, str, int]] = [
        ("read", "", ledger.read),
        ("stored", "", ledger.stored),
        *(("skipped", reason, count) for reason, count in sorted(ledger.skipped.items())),
        *(("repaired", reason, count) for reason, count in sorted(ledger.repaired.items())),
        *(("dropped_args", name, count) for name, count in sorted(ledger.dropped_args.items())),
    ]
    return pa.table(
        {
            "entry": pa.array([row[0] for row in rows], pa.string()),
            "reason": pa.array([row[1] for row in rows], pa.string()),
            "count": pa.array([row[2] for row in rows], pa.int64()),
        }
    )
