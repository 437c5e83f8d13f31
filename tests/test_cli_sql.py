"""tracekit sql: what it prints, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import ROWS, run
from tests.event_rows import kernel, write_trace

ROOT = Path(__file__).parent.parent


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.parquet", ROWS)


QUERY = "SELECT name, dur, NULL AS nothing, op_id FROM kernels ORDER BY id"


def test_sql_as_table(trace: Path) -> None:
    assert run("sql", trace, QUERY).stdout == (
        'name           dur  nothing  op_id\nnvjet<"a">   90000\nnvjet       610000\n'
    )


def test_sql_as_json_is_an_array_of_rows(trace: Path) -> None:
    assert json.loads(run("sql", trace, QUERY, "--format", "json").stdout) == [
        {"name": 'nvjet<"a">', "dur": 90000, "nothing": None, "op_id": None},
        {"name": "nvjet", "dur": 610000, "nothing": None, "op_id": None},
    ]
    assert run("sql", trace, "SELECT 1 AS a WHERE false", "--format", "json").stdout == "[]\n"


def test_sql_as_csv(trace: Path) -> None:
    rows = list(csv.reader(io.StringIO(run("sql", trace, QUERY, "--format", "csv").stdout)))
    assert rows == [["name", "dur", "nothing", "op_id"], ['nvjet<"a">', "90000", "", ""], ["nvjet", "610000", "", ""]]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("sum(9007199254740993)", 9007199254740993),
        ("1.5", 1.5),
        ("'NaN'::DOUBLE", None),
        ("[1, NULL, 2]", [1, None, 2]),
        ("{'a': [sum(1)]}", {"a": [1]}),
        ("'\\xFF'::BLOB", "ff"),
        ("DATE '2026-01-02'", "2026-01-02"),
        ("true", True),
        ("'\u00e9\"'", 'é"'),
    ],
)
def test_values_in_json(trace: Path, expression: str, value: object) -> None:
    assert json.loads(run("sql", trace, f"SELECT {expression} AS v", "--format", "json").stdout) == [{"v": value}]


def test_columns_of_one_name_are_told_apart(trace: Path) -> None:
    query = "SELECT 1 AS a, 2 AS a, 3 AS a"
    assert run("sql", trace, query, "--format", "csv").stdout.splitlines()[1] == "1,2,3"
    assert list(json.loads(run("sql", trace, query, "--format", "json").stdout)[0].values()) == [1, 2, 3]


def test_analyses_are_table_functions(trace: Path) -> None:
    result = run("sql", trace, "SELECT cause, dur FROM idle_gaps(launch_latency_ns := 500000)", "--format", "json")
    assert json.loads(result.stdout) == [
        {"cause": "launch_bound", "dur": 292000},
        {"cause": "launch_latency", "dur": 8000},
    ]
    assert "gemm" in run("sql", trace, "FROM attribution()").stdout


@pytest.mark.parametrize(
    "query", ["DROP VIEW events", "FROM read_csv('/etc/passwd')", "SELECT nothing", "SELECT 1; SELECT 2"]
)
def test_sql_that_is_refused(trace: Path, query: str) -> None:
    result = run("sql", trace, query)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("tracekit: ")


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_names_beyond_the_terminals_encoding(tmp_path: Path, form: str) -> None:
    path = write_trace(tmp_path / "t.parquet", [kernel(0, 1, name="é漢")])
    query = "SELECT name FROM kernels WHERE name = 'é漢'"
    command = [sys.executable, "-m", "tracekit", "sql", str(path), query, "--format", form]
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    shown = subprocess.run(command, capture_output=True, check=True, env={**os.environ, **locale})
    if form == "json":
        assert json.loads(shown.stdout) == [{"name": "é漢"}]
    else:  # click writes UTF-8 where the locale says ASCII; other encodings get escapes
        assert "é漢".encode() in shown.stdout or rb"\xe9\u6f22" in shown.stdout


def test_a_table_function_without_parentheses_is_explained(trace: Path) -> None:
    result = run("sql", trace, "SELECT * FROM Attribution")
    assert result.exit_code == 2
    assert result.stderr.endswith("\nattribution is a table function, called with parentheses: FROM attribution()\n")
    assert "parentheses" not in run("sql", trace, "FROM nothing").stderr


def test_queries_in_the_help_run(trace: Path) -> None:
    shown = run("sql", "-h").output
    queries = [*re.findall(r'trace\.parquet "(.*)"', shown), "DESCRIBE FROM idle_gaps()"]
    assert len(queries) == 5
    named = set(re.findall(r"\b(\w+)\(\)", shown))
    assert {"attribution", "health", "idle_gaps", "busy_segments", "launch_calls"} <= named
    for query in [*queries, *(f"FROM {name}()" for name in named)]:
        assert run("sql", trace, query).exit_code == 0, query


def test_a_table_on_a_terminal_fits_it(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.parquet", [kernel(0, 123_456, name="x" * 300)])
    primary, secondary = pty.openpty()
    command = [sys.executable, "-m", "tracekit", "sql", str(path), "SELECT name, dur FROM kernels"]
    environment = {**os.environ, "COLUMNS": "40", "PYTHONPATH": str(ROOT)}
    subprocess.run(command, stdout=secondary, check=True, env=environment)
    os.close(secondary)
    shown = os.read(primary, 10_000).decode().splitlines()
    os.close(primary)
    assert shown == [f"name{' ' * 33}dur", "x" * 29 + "...  123456"]
