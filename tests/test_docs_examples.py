"""The examples of "add an analysis" and "add a format" work as they stand, as plugins of another package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tracekit
from tests.command_line import run
from tests.event_rows import write_trace
from tests.simulator import Plant, Run, simulate
from tests.test_registry import install, site
from tracekit.errors import MalformedTraceError

__all__ = ["site"]  # the fixture
DOCS = Path(__file__).parent.parent / "docs"


def example(page: str, language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    return str(block)


@pytest.fixture
def analysis(site: Path) -> None:
    page = "add_an_analysis.md"
    install(site, "pageable_copies", example(page, "py"), example(page, "sql"))


@pytest.fixture
def reader(site: Path) -> None:
    install(site, "kernel_log", example("add_a_format.md", "py"), group="tracekit.collectors")


@pytest.mark.usefixtures("analysis")
def test_the_analysis_of_nothing(tmp_path: Path) -> None:
    with tracekit.open(write_trace(tmp_path / "trace.parquet", [])) as trace:
        result = trace.analyze("pageable_copies")
    assert (result.table.num_rows, result.findings, result.coverage.explained_ns) == (0, [], 0)
    assert result.coverage.reason == "no device activity in this trace"


@pytest.mark.usefixtures("analysis")
def test_the_analysis(tmp_path: Path) -> None:
    simulate(Run(plant=Plant(pageable_copies_per_step=2), steps=4), tmp_path / "trace.json")
    with tracekit.open(tmp_path / "trace.json") as trace:
        result = trace.analyze("pageable_copies", finding_share=0.01)
        (summary,) = result.summary
        rows = result.table.to_pylist()
        assert sum(row["total_ns"] for row in rows) == summary["copies_ns"] > 0
        assert {row["name"] for row in rows} == {
            "Memcpy HtoD (Pageable -> Device)",
            "Memcpy DtoH (Device -> Pageable)",
        }
        assert [finding.saving_high_ns for finding in result.findings] == [summary["copies_ns"]]
        assert trace.only(phase="decode").analyze("pageable_copies").summary[0]["copies_ns"] < summary["copies_ns"]
    shown = run("analyze", tmp_path / "trace.json", "pageable_copies")
    assert shown.exit_code == 0, shown.output
    assert "DtoH (Device -> Pageable)" in shown.stdout


@pytest.mark.usefixtures("reader")
def test_the_format(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("name,start_us,duration_us,device,stream\nb,20,6.5,0,7\na,10.001,5,0,7\nbroken,,x,0,7\n")
    with tracekit.open(log) as trace:
        rows = trace.sql("SELECT name, ts, dur, device, stream FROM kernels ORDER BY ts").to_pylist()
        ledger = trace.footer.ledger
    assert rows == [
        {"name": "a", "ts": 0, "dur": 5_000, "device": 0, "stream": 7},
        {"name": "b", "ts": 9_999, "dur": 6_500, "device": 0, "stream": 7},
    ]
    assert (ledger.read, ledger.stored, ledger.skipped) == (3, 2, {"line that is no kernel": 1})


@pytest.mark.usefixtures("reader")
def test_the_format_of_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("name,start_us,duration_us,device,stream\n")
    with pytest.raises(MalformedTraceError, match=r"log\.csv: no line is a kernel"):
        tracekit.open(log)
