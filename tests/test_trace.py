"""Opening a trace, and what SQL may and may not do."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tracekit
from tests.event_rows import footer_of, kernel, launch, op, write_trace
from tests.simulator import Plant, Run, simulate
from tracekit import store
from tracekit.convert import convert
from tracekit.errors import (
    MalformedTraceError,
    RulesError,
    TruncatedTraceError,
    UnknownFormatError,
    UsageError,
)
from tracekit.trace import Trace

ROWS = [op(0, 50), launch(1, 5, op_id=1), kernel(10, 30, launch_id=2, op_id=1, name="nvjet_tst")]


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[Trace]:
    with tracekit.open(write_trace(tmp_path / "trace.parquet", ROWS)) as opened:
        yield opened


def raw_trace(path: Path) -> Path:
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"device": 0}}
    text = json.dumps({"schemaVersion": 1, "traceEvents": [event]})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


# ---- opening ---------------------------------------------------------------------------------------------------------


def test_raw_files_are_converted_for_as_long_as_they_are_open(tmp_path: Path) -> None:
    raw = raw_trace(tmp_path / "a.json.gz")
    for given in (raw, str(raw), [raw], tmp_path):
        with tracekit.open(given) as trace:
            assert trace.sql("SELECT name, dur FROM kernels").to_pylist() == [{"name": "k", "dur": 2000}]
            assert trace.path.is_file()
        assert not trace.path.parent.exists()


def test_a_trace_that_is_dropped_cleans_up_too(tmp_path: Path) -> None:
    trace = tracekit.open(raw_trace(tmp_path / "a.json"))
    path = trace.path
    del trace
    assert not path.exists()


def test_a_cut_file_is_refused_unless_allowed(tmp_path: Path) -> None:
    raw = raw_trace(tmp_path / "a.json")
    raw.write_bytes(raw.read_bytes()[:-2])
    with pytest.raises(TruncatedTraceError, match=r"a\.json"):
        tracekit.open(raw)
    with tracekit.open(raw, allow_partial=True) as trace:
        assert trace.footer.sources[0].truncated_at is not None


def test_parquet_of_someone_else(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(
        UnknownFormatError, match=r"other\.parquet: a Parquet file that tracekit did not make"
    ) as caught:
        tracekit.open(tmp_path / "other.parquet")
    assert caught.value.exit_code == 3


def test_parquet_of_a_newer_tracekit(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "new.parquet", ROWS, replace(footer_of(ROWS), schema=2))
    with pytest.raises(UnknownFormatError, match="schema 2, this one reads up to 1"):
        tracekit.open(path)


@pytest.mark.parametrize("data", [b"{}", b'{"schema": "x"}', b"not json", b"[]"])
def test_a_footer_that_is_broken(tmp_path: Path, data: bytes) -> None:
    table = pq.read_table(write_trace(tmp_path / "trace.parquet", ROWS))
    pq.write_table(table.replace_schema_metadata({b"tracekit": data}), tmp_path / "bad.parquet")
    with pytest.raises(MalformedTraceError, match=r"bad\.parquet: its tracekit footer cannot be read"):
        tracekit.open(tmp_path / "bad.parquet")


def test_columns_that_are_missing(tmp_path: Path) -> None:
    table = pq.read_table(write_trace(tmp_path / "trace.parquet", ROWS))
    pq.write_table(table.drop(["launch_id"]), tmp_path / "bad.parquet")
    with pytest.raises(MalformedTraceError, match="its columns are not those of schema 1"):
        tracekit.open(tmp_path / "bad.parquet")


def test_parquet_cut_short(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.parquet", ROWS)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(MalformedTraceError, match="not a whole Parquet file"):
        tracekit.open(path)


@pytest.mark.parametrize("few", [0, 100], ids=["from the file", "in memory"])
def test_parquet_with_damaged_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(store, "_FEW_EVENTS", few)
    path = write_trace(tmp_path / "trace.parquet", ROWS)
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes(byte ^ 0x5A for byte in data[4:400]) + data[400:])
    with pytest.raises(MalformedTraceError, match=r"trace\.parquet: it cannot be read: "):
        tracekit.open(path).analyze("attribution")


def test_many_events_stay_in_the_file_and_answers_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(Run(plant=Plant(syncs_per_step=1)), tmp_path / "trace.json")
    convert([tmp_path / "trace.json"], tmp_path / "trace.parquet")

    def answers() -> dict[str, Any]:
        with tracekit.open(tmp_path / "trace.parquet") as trace:
            return {name: trace.analyze(name).to_json() for name in trace.analyses()}

    in_memory = answers()
    monkeypatch.setattr(store, "_FEW_EVENTS", 0)
    assert answers() == in_memory


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        tracekit.open(tmp_path / "none.parquet")
    with pytest.raises(UsageError, match="no such file"):
        Trace(tmp_path / "none.parquet")


@pytest.mark.parametrize(
    "name", ["a b.parquet", "it's.parquet", "a[1].parquet", "*.parquet", "a?.parquet", "é$1.parquet"]
)
def test_any_file_name(tmp_path: Path, name: str) -> None:
    write_trace(tmp_path / "a1.parquet", [kernel(0, 1)] * 3)
    with tracekit.open(write_trace(tmp_path / name, ROWS)) as trace:
        assert trace.sql("SELECT count(*) AS n FROM events").to_pylist() == [{"n": 3}]


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_trace(tmp_path / "trace.parquet", ROWS)
    monkeypatch.chdir(tmp_path)
    with tracekit.open("trace.parquet") as trace:
        monkeypatch.chdir("/")
        assert trace.query_readonly("FROM kernels").num_rows == 1


def test_rules_that_are_wrong_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[[rule]]\n")
    with pytest.raises(RulesError, match=r"bad\.toml: rule 1"):
        tracekit.open(write_trace(tmp_path / "trace.parquet", ROWS), rules=[tmp_path / "bad.toml"])


# ---- analyses --------------------------------------------------------------------------------------------------------


def test_an_analysis_that_does_not_exist(trace: Trace) -> None:
    with pytest.raises(UsageError, match=r"no analysis 'idle'; there are: .*health.*idle_gaps"):
        trace.analyze("idle")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"min_ns": 1}, "has no parameter 'min_ns'; there are: launch_latency_ns=12000, "),
        ({"launch_latency_ns": "1; DROP TABLE x"}, "launch_latency_ns is of type int"),
        ({"launch_latency_ns": 1.5}, "launch_latency_ns is of type int"),
        ({"launch_latency_ns": True}, "launch_latency_ns is of type int"),
    ],
)
def test_parameters_that_do_not_fit(trace: Trace, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trace.analyze("idle_gaps", **parameters)


def test_a_whole_number_is_a_share_too(trace: Trace) -> None:
    assert trace.analyze("idle_gaps", finding_share=1).parameters["finding_share"] == 1


# ---- SQL -------------------------------------------------------------------------------------------------------------


def test_rows_by_id(trace: Trace) -> None:
    assert trace.rows([3, 1, 1, 99]) == {
        1: {"id": 1, "kind": "op", "name": "aten::mm", "ts": 0, "dur": 50},
        3: {"id": 3, "kind": "kernel", "name": "nvjet_tst", "ts": 10, "dur": 30},
    }
    assert trace.rows([]) == {}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM kernel_classes",
        'select COUNT(*) from "Kernel_Classes"',
        "WITH a AS (FROM attribution()) SELECT count(*) FROM a WHERE category = 'gemm'",
        "SELECT count(*) FROM classified_segments() AS c ASOF JOIN steps AS s ON c.rank = s.rank AND c.id >= s.ts",
    ],
)
def test_classes_are_there_whenever_they_are_read(trace: Trace, query: str) -> None:
    trace.query_readonly(query)
    assert trace.sql("SELECT category FROM kernel_classes").to_pylist() == [{"category": "gemm"}]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 AS a",
        "FROM kernels",
        "VALUES (1)",
        "DESCRIBE events",
        "SHOW TABLES",
        "SUMMARIZE kernels",
        "FROM health();",
    ],
)
def test_queries_that_are_fine(trace: Trace, query: str) -> None:
    assert trace.query_readonly(query).num_rows >= 1


@pytest.mark.parametrize(
    "query",
    [
        "",
        ";",
        "-- nothing",
        "SELEKT 1",
        "SELECT nothing FROM kernels",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP VIEW events",
        "SET threads = 1",
        "RESET threads",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "PRAGMA database_list",
        "CALL pragma_version()",
        "COPY (SELECT 1) TO '{folder}/out.csv'",
        "COPY events TO '{trace}' (FORMAT parquet, USE_TMP_FILE false)",
        "EXPORT DATABASE '{folder}/out'",
        "ATTACH '{folder}/out.db'",
        "DETACH memory",
        "USE memory",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CREATE TABLE t (a INTEGER)",
        "CREATE OR REPLACE VIEW events AS SELECT 1",
        "DROP TABLE kernel_classes",
        "DELETE FROM kernel_classes",
        "INSERT INTO kernel_classes VALUES ('a', 'b', 'c', 'd', 'e')",
        "WITH a AS (INSERT INTO kernel_classes VALUES ('a', 'b', 'c', 'd', 'e') RETURNING *) FROM a",
        "WITH a AS (DELETE FROM footer_sources RETURNING *) FROM a",
        "FROM query('DELETE FROM footer_sources')",
        "EXPLAIN ANALYZE DELETE FROM footer_sources",
        "PREPARE a AS SELECT 1",
        "BEGIN",
        "CHECKPOINT",
        "VACUUM",
        "IMPORT DATABASE '{folder}'",
        "SELECT getenv('HOME')",
        "FROM read_csv('/etc/passwd')",
        "FROM read_text('/etc/passwd')",
        "FROM read_blob('/etc/passwd')",
        "FROM read_json('/etc/passwd')",
        "FROM read_parquet('{folder}/other.parquet')",
        "FROM read_parquet('{folder}/*.parquet')",
        "FROM parquet_metadata('{folder}/other.parquet')",
        "FROM sniff_csv('/etc/passwd')",
        "FROM glob('/etc/*')",
        "FROM '/etc/passwd'",
        "FROM '{folder}/other.parquet'",
        "FROM read_csv('https://example.com/a.csv')",
        "FROM read_text('{trace}/../other.parquet')",
        "FROM query('FROM read_text(''/etc/passwd'')')",
        "FROM duckdb_secrets()",
        "FROM table_of_python",
    ],
)
def test_queries_that_are_refused(tmp_path: Path, trace: Trace, query: str) -> None:
    write_trace(tmp_path / "other.parquet", [kernel(0, 1)])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    table_of_python = pa.table({"secret": [1]})
    with pytest.raises(UsageError):
        trace.query_readonly(query.format(folder=tmp_path, trace=trace.path))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert trace.query_readonly("SELECT count(*) AS n FROM kernel_classes").to_pylist() == [{"n": 1}]
    assert trace.query_readonly("FROM footer_sources").num_rows == 1
    assert table_of_python.num_rows == 1


def test_no_table_function_reads_another_file(tmp_path: Path, trace: Trace) -> None:
    """Whatever functions this DuckDB has: given a path, none may bring its content."""
    secret = tmp_path / "secret.csv"
    secret.write_text("canary_4711\ncanary_4711\n")
    functions = trace.query_readonly(
        "SELECT DISTINCT function_name FROM duckdb_functions() "
        "WHERE internal AND function_type IN ('table', 'table_macro')"
    )
    for name in functions["function_name"].to_pylist():
        try:
            rows = trace.query_readonly(f"FROM \"{name}\"('{secret}')").to_pylist()
        except UsageError:
            continue
        assert "canary_4711" not in str(rows), name


def test_work_larger_than_memory_spills_and_leaves_nothing(trace: Trace) -> None:
    (row,) = trace.sql("SELECT current_setting('temp_directory') AS folder").to_pylist()
    query = "SELECT count(*) AS n FROM (SELECT a FROM range(3000000) t(a) ORDER BY hash(a))"
    assert trace.query_readonly(query).to_pylist() == [{"n": 3_000_000}]
    trace.close()
    assert not Path(row["folder"]).exists()


def test_a_closed_trace_answers_no_more(trace: Trace) -> None:
    trace.close()
    trace.close()
    with pytest.raises(duckdb.Error):
        trace.sql("SELECT 1")


def test_a_trace_says_what_it_is(tmp_path: Path) -> None:
    trace = tracekit.open(write_trace(tmp_path / "t.parquet", [kernel(0, 1, rank=rank) for rank in range(9)]))
    path = str(tmp_path / "t.parquet")
    assert repr(trace) == f"<Trace {path!r}: 9 events, ranks [0, 1, 2, 3, 4, 5, 6, 7, ...]>"
    trace.close()
    assert repr(trace).endswith(", closed>")


def test_a_trace_has_the_name_it_was_opened_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    raw_trace(Path("a.json"))
    write_trace(Path("b.parquet"), [kernel(0, 1)])
    for given, name in (("a.json", "a.json"), ("b.parquet", "b.parquet"), (["a.json"], "a.json")):
        with tracekit.open(given) as trace, trace.only(device=0) as part:
            assert (trace.name, part.name) == (name, name)
            assert repr(trace) == f"<Trace {name!r}: 1 event, ranks [0]>"
    with Trace("b.parquet") as trace:
        assert str(trace.summary()).startswith("b.parquet   1 event   1 rank")


def test_an_analysis_runs_once(trace: Trace) -> None:
    assert trace.analyze("health") is trace.analyze("health")
    assert trace.analyze("idle_gaps", finding_share=0.5) is not trace.analyze("idle_gaps")


def test_two_traces_side_by_side(tmp_path: Path) -> None:
    paths = [write_trace(tmp_path / f"{n}.parquet", [kernel(0, n)]) for n in (1, 2)]
    with tracekit.open(paths[0]) as one, tracekit.open(paths[1]) as two:
        assert [t.sql("SELECT dur FROM kernels").to_pylist() for t in (one, two)] == [[{"dur": 1}], [{"dur": 2}]]
