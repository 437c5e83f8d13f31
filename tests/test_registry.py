"""Built-in and third-party analyses and readers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tracekit
from tests.event_rows import kernel, write_trace
from tracekit import registry
from tracekit.registry import PluginWarning

MODULE = """
from tracekit.analysis import Result

class Mine:
    name = "{name}"
    question = "How long is the longest?"
    parameters = {{"at_least_ns": 0}}

    def run(self, trace, parameters):
        return Result(self.name, parameters, (), trace.macro(self.name, parameters))

ANALYSIS = Mine()
"""
MACRO = """
-- The longest row.
-- parameter at_least_ns BIGINT: shorter ones do not count.
-- column dur BIGINT: its length.
CREATE MACRO {name}(at_least_ns := 0) AS TABLE
SELECT max(dur) AS dur FROM device_activity WHERE dur >= at_least_ns;
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path where distributions can be installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if name.startswith("plugin_"):
            del sys.modules[name]


def install(
    site: Path, name: str, code: str, sql: str = "", *, group: str = "tracekit.analyses", attribute: str = ""
) -> None:
    """A distribution with one module and one entry point, as pip would leave it."""
    (site / f"plugin_{name}.py").write_text(code)
    if sql:
        (site / f"plugin_{name}.sql").write_text(sql)
    info = site / f"plugin_{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plugin-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = plugin_{name}{attribute}\n")


def test_built_in_ones_are_found_by_walking() -> None:
    assert {"attribution", "health", "idle_gaps"} <= registry.analyses().keys()
    assert "kineto" in registry.readers()
    assert not [name for name in registry.collectors() if name.startswith("_")]


def test_readers_know_their_own_files(tmp_path: Path) -> None:
    reader = registry.readers()["kineto"]
    assert reader.accepts(tmp_path / "a.json", b'{"schemaVersion": 1, "traceEvents": [')


@pytest.mark.parametrize("attribute", ["", ":ANALYSIS"])
def test_an_analysis_of_a_third_party(site: Path, tmp_path: Path, attribute: str) -> None:
    install(site, "longest", MODULE.format(name="longest"), MACRO.format(name="longest"), attribute=attribute)
    with tracekit.open(write_trace(tmp_path / "trace.parquet", [kernel(0, 5), kernel(9, 7)])) as trace:
        assert "longest" in trace.analyses()
        assert trace.analyze("longest").table.to_pylist() == [{"dur": 7}]
        assert trace.analyze("longest", at_least_ns=8).table.to_pylist() == [{"dur": None}]
        assert trace.query_readonly("FROM longest(at_least_ns := 6)").to_pylist() == [{"dur": 7}]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise OSError('no licence')", "OSError: no licence"),
        ("import nothing_of_the_kind", "ModuleNotFoundError"),
        ("x = 1", "AttributeError"),
        ("ANALYSIS = 5", "AttributeError"),
        ("raise SystemError()", "SystemError"),
    ],
)
def test_one_that_fails_is_left_out_and_named(site: Path, tmp_path: Path, code: str, why: str) -> None:
    install(site, "broken", code)
    path = write_trace(tmp_path / "trace.parquet", [kernel(0, 5)])
    with pytest.warns(PluginWarning, match=f"plugin_broken.* was left out: {why}"), tracekit.open(path) as trace:
        assert trace.analyze("attribution").table.num_rows == 1


def test_one_whose_sql_fails_is_left_out_and_named(site: Path, tmp_path: Path) -> None:
    install(site, "wrong", MODULE.format(name="wrong"), "CREATE MACRO wrong() AS TABLE SELECT nothing FROM kernels;")
    path = write_trace(tmp_path / "trace.parquet", [kernel(0, 5)])
    with pytest.warns(PluginWarning, match="wrong of plugin_wrong was left out: its SQL fails"):
        trace = tracekit.open(path)
    assert "wrong" not in trace.analyses()
    trace.close()


def test_a_name_that_is_taken_is_refused(site: Path, tmp_path: Path) -> None:
    install(site, "thief", MODULE.format(name="idle_gaps"))
    path = write_trace(tmp_path / "trace.parquet", [kernel(0, 5)])
    with pytest.warns(PluginWarning, match="plugin_thief of tracekit.analyses was left out: the analysis 'idle_gaps'"):
        trace = tracekit.open(path)
    assert trace.analyses()["idle_gaps"].question == "Why does the GPU idle?"
    trace.close()


def test_a_reader_of_a_third_party(site: Path) -> None:
    install(
        site,
        "vtune",
        "NAME = 'vtune'\ndef accepts(path, head): return False\ndef read(*_): ...",
        group="tracekit.collectors",
    )
    assert "vtune" in registry.readers()
    install(site, "again", "NAME = 'kineto'", group="tracekit.collectors")
    with pytest.warns(PluginWarning, match="plugin_again of tracekit.collectors was left out: 'kineto' exists already"):
        assert registry.collectors()["kineto"].__name__ == "tracekit.collectors.kineto"
