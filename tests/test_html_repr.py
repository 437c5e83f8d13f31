"""What a notebook shows: escaped, without scripts or backgrounds, and no more than a few rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

import tracekit
from tests.event_rows import annotation, kernel, launch, op, write_trace
from tracekit.analysis import Finding, Result
from tracekit.changes import FreeLaunches
from tracekit.trace import Trace
from tracekit.whatif import whatif

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e"
MS = 1_000_000
VOID = ("br", "img")

SHOWN: dict[str, Callable[[Trace], Any]] = {
    "trace": lambda trace: trace,
    "part": lambda trace: trace.only(phase="decode"),
    "rows": lambda trace: trace.kernels,
    "steps": lambda trace: trace.steps,
    "result": lambda trace: trace.idle_gaps(),
    "empty result": lambda trace: trace.counters(),
    "summary": lambda trace: trace.summary(),
    "step": lambda trace: trace.step(0),
    "explanation": lambda trace: trace.explain("idle_gaps.1"),
    "finding": lambda trace: Finding("critical", EVIL, EVIL, 0, 5, (1, 2), EVIL, EVIL, EVIL, (EVIL,)),
    "whatif": lambda trace: whatif(trace, [FreeLaunches()]),
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    rows = []
    for at in range(0, 60 * MS, 5 * MS):
        rows += [annotation("step[DECODE bs=4]", at, 4 * MS), {"kind": "python", "name": EVIL, "ts": at, "dur": 3 * MS}]
        rows += [op(at + 3 * MS, MS, name=EVIL), launch(at + 3 * MS, 9_000), kernel(at + 3_010_000, MS, name=EVIL)]
        rows[-1]["launch_id"] = len(rows) - 1
        for child in rows[-4:-1]:
            child["parent_id"] = len(rows) - 4
    with tracekit.open(write_trace(tmp_path_factory.mktemp("html") / "<t>.parquet", rows)) as opened:
        yield opened


class Tags(HTMLParser):
    """Tags and attributes, each closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", SHOWN)
def test_names_stay_text(trace: Trace, name: str) -> None:
    html = SHOWN[name](trace)._repr_html_()
    found = Tags(html)
    assert found.open == []
    allowed = {"div", "b", "i", "code", "pre", "details", "summary", "table", "thead", "tbody", "tr", "th", "td"}
    assert found.tags <= allowed
    assert found.attributes <= {"style"}
    assert not re.search(r"background|[^-]color:", html), "it has to stand on any ground"
    assert "\u202e" not in found.text
    assert len(html) < 40_000


def test_rows_are_shown_in_part_and_said_to_be(trace: Trace) -> None:
    found = Tags(trace.kernels._repr_html_()).text
    assert found.startswith("kernels: 12 rows")
    assert "10 of 12 rows; " in found
    assert "columns without a value here not shown" in found
    assert found.count("\\u202e") == 10


def test_what_is_shown_of_a_result(trace: Trace) -> None:
    found = Tags(trace.idle_gaps()._repr_html_()).text
    assert found.startswith("idle_gaps: 33 rows, 2 findings")
    assert "idle_gaps.1" in found
    assert "saving: at least 0 ns" in found
    refused = Tags(trace.counters()._repr_html_()).text
    assert refused.startswith("counters: 0 rows, 0 findingsno counters given; ")


def test_plain_reprs(trace: Trace) -> None:
    assert repr(whatif(trace, [FreeLaunches()])).startswith("<WhatIf decode 3-4: 5.00 ms -> ")
    assert whatif(trace, [FreeLaunches()]).arrow().num_rows == 1
    summary = trace.summary()
    assert str(summary) == repr(summary) == summary.text
    assert "[idle_gaps.1]" in summary.text
    assert next(iter(summary.findings)) == "idle_gaps.1"
    assert isinstance(summary.results["health"], Result)
