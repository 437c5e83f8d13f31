"""What every analysis, every macro and every module promises, checked for each that exists."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tracekit
from tests.event_rows import write_trace
from tests.simulator import Plant, Run, simulate
from tracekit import store
from tracekit.convert import convert
from tracekit.definitions import Definitions
from tracekit.macros import MacroDoc, parse_macros
from tracekit.registry import analyses, built_in_questions
from tracekit.trace import Trace

ROOT = Path(__file__).parent.parent
ANALYSES = analyses()
SHARED = parse_macros("\n".join(store.shared_sql()))
DOCUMENTED = [*SHARED, *(doc for one in ANALYSES.values() for doc in parse_macros(one.sql))]
DOCS = {doc.name: doc for doc in DOCUMENTED}  # of steps the macro, not the view


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    with tracekit.open(write_trace(tmp_path_factory.mktemp("empty") / "trace.parquet", [])) as trace:
        yield trace


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    """A simulated trace with something to find for everyone."""
    folder = tmp_path_factory.mktemp("busy")
    plant = Plant(launch_bound_ns=20_000, syncs_per_step=2, between_steps_ns=500_000, holes_per_step=1, hole_ns=300_000)
    simulate(Run(plant=plant, steps=4, ranks=2, with_stack=True), folder / "ranks")
    convert([folder / "ranks"], folder / "trace.parquet")
    with tracekit.open(folder / "trace.parquet") as trace:
        yield trace


# ---- analyses --------------------------------------------------------------------------------------------------------


def test_the_three_first_ones_exist() -> None:
    assert {"attribution", "health", "idle_gaps"} <= ANALYSES.keys()


@pytest.mark.parametrize("name", ANALYSES)
def test_module_macro_and_test_have_the_name_the_user_types(name: str) -> None:
    loaded = ANALYSES[name]
    assert loaded.origin == f"tracekit.analyses.{name}"
    assert loaded.analysis.name == name
    assert loaded.analysis.question.endswith("?") and loaded.analysis.question == built_in_questions()[name]
    assert name in [doc.name for doc in parse_macros(loaded.sql)]
    assert (ROOT / "tests" / f"test_{name}.py").is_file()


@pytest.mark.parametrize("name", ANALYSES)
def test_an_empty_trace_has_no_findings(empty: Trace, name: str) -> None:
    """But that nothing was recorded."""
    result = empty.analyze(name)
    assert [finding.title.partition(":")[0] for finding in result.findings] == ["events"] * (name == "health")
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["coverage"]["explained_ns"] == 0


@pytest.mark.parametrize("name", ANALYSES)
def test_results_can_be_repeated_and_traced_back(busy: Trace, name: str) -> None:
    result = busy.analyze(name)
    assert dict(result.parameters) == dict(ANALYSES[name].analysis.parameters)
    assert ANALYSES[name].analysis.run(busy, result.parameters).to_json() == result.to_json()
    assert 0 <= result.coverage.explained_ns <= result.coverage.total_ns
    json.dumps(result.to_json(), allow_nan=False)
    for finding in result.findings:
        assert busy.rows(finding.evidence).keys() == set(finding.evidence)


def test_findings_promise_no_more_than_the_idle_time(busy: Trace) -> None:
    result = busy.analyze("idle_gaps")
    assert result.findings
    for finding in result.findings:
        assert finding.saving_high_ns <= max(row["idle_ns"] for row in result.summary)
    assert sum(finding.saving_high_ns for finding in result.findings) <= sum(row["idle_ns"] for row in result.summary)


@pytest.mark.parametrize("name", ANALYSES)
def test_the_table_is_that_of_the_macro(busy: Trace, name: str) -> None:
    """health judges what its macro counts; every other table is its macro's as it is."""
    if name != "health":
        assert busy.analyze(name).table.schema == busy.macro(name).schema


@pytest.mark.parametrize("name", ANALYSES)
def test_macros_read_what_shared_sql_offers_and_nothing_else(empty: Trace, name: str) -> None:
    """DuckDB binds a macro when it is made, so one that reads another analysis's macro would fail here."""
    connection = store.connect(empty.path, empty.footer)
    definitions = Definitions(connection, store.shared_sql()[3:])
    definitions.make_for(ANALYSES[name].sql)
    connection.execute(ANALYSES[name].sql)
    connection.close()
    assert not re.search(r"\b(read_\w+|footer_\w+|parquet_\w+|pragma_\w+|COPY|ATTACH|LIMIT)\b", ANALYSES[name].sql)


# ---- macros and views ------------------------------------------------------------------------------------------------


def call(doc: MacroDoc) -> str:
    return f"{doc.name}()" if doc.kind == "macro" else doc.name


def test_what_follows_an_entry_belongs_to_it() -> None:
    """A line that is not indented would cut its meaning short and end up among the prose."""
    entry = re.compile(r"-- (parameter|column|threshold) \w+[ :]")
    for path in sorted((ROOT / "tracekit").rglob("*.sql")) + sorted((ROOT / "analyses").glob("*.sql")):
        within = False
        for line in path.read_text(encoding="utf-8").splitlines():
            within = line.startswith("--") and (within or entry.match(line) is not None)
            assert not within or entry.match(line) or line.startswith("--   "), f"{path}: {line}"


@pytest.mark.parametrize("doc", [doc for doc in DOCUMENTED if doc.columns], ids=lambda doc: f"{doc.kind} {doc.name}")
def test_header_columns_are_duckdbs(empty: Trace, doc: MacroDoc) -> None:
    rows = empty.sql(f"DESCRIBE FROM {call(doc)}").to_pylist()
    documented = {column: kind for column, (kind, _) in doc.columns.items()}
    assert documented == {row["column_name"]: row["column_type"] for row in rows}
    assert list(documented) == [row["column_name"] for row in rows]


@pytest.mark.parametrize("name", [name for name, doc in DOCS.items() if doc.kind in ("macro", "function")])
def test_header_parameters_are_the_macros(empty: Trace, name: str) -> None:
    (row,) = empty.sql(f"SELECT parameters FROM duckdb_functions() WHERE function_name = '{name}'").to_pylist()
    assert list(DOCS[name].parameters) == row["parameters"]
    assert bool(DOCS[name].columns) == (DOCS[name].kind == "macro"), "each macro documents its columns"
    assert DOCS[name].summary


@pytest.mark.parametrize("name", ANALYSES)
def test_parameters_of_macro_and_analysis_agree(name: str) -> None:
    defaults = dict(re.findall(r"(\w+) := ([\d.]+)", DOCS[name].body.partition(" AS TABLE")[0]))
    assert defaults.keys() == DOCS[name].parameters.keys()
    for parameter, default in defaults.items():
        assert ANALYSES[name].analysis.parameters[parameter] == float(default)


@pytest.mark.parametrize("name", ANALYSES)
def test_parameters_of_the_analysis_alone_are_documented_as_thresholds(name: str) -> None:
    doc = DOCS[name]
    assert [*doc.thresholds] == [one for one in ANALYSES[name].analysis.parameters if one not in doc.parameters]


def test_views_of_the_design_exist(empty: Trace) -> None:
    found = {row["name"] for row in empty.query_readonly("SHOW TABLES").to_pylist()}
    views = "events device_activity kernels memcpys launches ops annotations python_calls steps devices ranks"
    assert set(views.split()) <= found


# ---- modules ---------------------------------------------------------------------------------------------------------


def imports(path: Path) -> set[str]:
    """Modules of tracekit that a file imports when it runs (not those for types only)."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def python_files(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).glob("*.py"))


@pytest.mark.parametrize("path", python_files("collectors"), ids=lambda path: path.name)
def test_collectors_know_nothing_of_analyses(path: Path) -> None:
    barred = ("tracekit.analyses", "tracekit.analysis", "tracekit.trace", "tracekit.store", "tracekit.report", "click")
    assert not [name for name in imports(path) if name.startswith(barred)]


@pytest.mark.parametrize("path", python_files("analyses"), ids=lambda path: path.name)
def test_analyses_know_nothing_of_collectors_and_reports(path: Path) -> None:
    barred = ("tracekit.collectors", "tracekit.convert", "tracekit.report", "tracekit.cli", "duckdb", "click", "rich")
    assert not [name for name in imports(path) if name.startswith(barred)]


FLOORS = (  # lowest first; a module imports from its own floor and those below
    ("errors", "footer", "macros", "classify", "analysis", "op_call", "work", "device_spec", "devices"),
    ("registry", "scope"),
    ("store",),
    ("trace",),
    ("analyses",),
    ("text_grid",),
    ("report_text",),
    ("cli", "cli_commands", "cli_convert", "cli_collect", "cli_filters", "cli_options"),
)


@pytest.mark.parametrize("path", python_files("tracekit"), ids=lambda path: path.name)
def test_lower_floors_know_nothing_of_higher_ones(path: Path) -> None:
    floor = next((at for at, modules in enumerate(FLOORS) if path.stem in modules), None)
    used = {name.split(".")[1] for name in imports(path) if name.startswith("tracekit.")}
    if floor is not None:
        higher = {module for modules in FLOORS[floor + 1 :] for module in modules}
        assert not used & higher
    if not path.stem.startswith(("cli", "__main__")):
        assert "click" not in imports(path), "errors carry their exit codes; click stays in the command line"
        assert not used & {"cli", "cli_commands", "cli_collect"}


@pytest.mark.parametrize("folder", ["tracekit", "collectors", "analyses"])
def test_what_a_trace_says_is_never_run(folder: str) -> None:
    for path in python_files(folder):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        run = {name.id for name in calls if isinstance(name, ast.Name)} & {"eval", "exec", "compile", "__import__"}
        assert not run, path
        assert not imports(path) & {"pickle", "marshal", "shelve", "dill"}, path


def test_importing_tracekit_loads_nothing() -> None:
    code = (
        "import sys, tracekit; print([m for m in ('duckdb', 'pyarrow', 'pandas', 'numpy', 'rich') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert shown.stdout.strip() == "[]"


def test_public_names() -> None:
    for name in tracekit.__all__:
        assert getattr(tracekit, name) is not None
        assert name in dir(tracekit)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tracekit.nothing
