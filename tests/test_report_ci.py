"""Verdicts as a build server reads them."""

from __future__ import annotations

from xml.etree import ElementTree

import pyarrow as pa

from tracekit.analysis import Finding, Result
from tracekit.gate import Verdict
from tracekit.report_ci import Case, cases_of, github, junit

HEALTH = Result(
    "health",
    {},
    (),
    pa.table(
        {"check": ["events", "ranks"], "status": ["ok", "fail"], "count": [5, 1], "detail": ["", "rank 1 is gone"]}
    ),
)
IDLE = Result(
    "idle_gaps",
    {},
    (),
    pa.table({}),
    (
        Finding("critical", "sync: 10% of <decode>", "long: yes", remedy="Do\nless.", cost="None."),
        Finding("info", "x\x00"),
    ),
)
VERDICTS = (Verdict("decode.p50 > +3%", True, "9.00 ms -> 9.50 ms"), Verdict("idle_share > 0.5", False, "it is 20.0%"))
CASES = [
    Case("gate", "decode.p50 > +3%", "error", "9.00 ms -> 9.50 ms"),
    Case("gate", "idle_share > 0.5", "fine", "it is 20.0%"),
    Case("health", "events", "fine", ""),
    Case("health", "ranks", "error", "rank 1 is gone"),
    Case("idle_gaps", "idle_gaps.1", "warning", "sync: 10% of <decode>", "long: yes\ndo: Do\nless.\nprice: None."),
    Case("idle_gaps", "idle_gaps.2", "notice", "x\x00"),
]
JUNIT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="6" failures="2" errors="0" skipped="0" name="tracekit">
  <testsuite name="gate" tests="2" failures="1" errors="0" skipped="0">
    <testcase classname="tracekit.gate" name="decode.p50 &gt; +3%" time="0">
      <failure message="9.00 ms -&gt; 9.50 ms">decode.p50 &gt; +3%: 9.00 ms -&gt; 9.50 ms</failure>
    </testcase>
    <testcase classname="tracekit.gate" name="idle_share &gt; 0.5" time="0">
      <system-out>it is 20.0%</system-out>
    </testcase>
  </testsuite>
  <testsuite name="health" tests="2" failures="1" errors="0" skipped="0">
    <testcase classname="tracekit.health" name="events" time="0" />
    <testcase classname="tracekit.health" name="ranks" time="0">
      <failure message="rank 1 is gone">ranks: rank 1 is gone</failure>
    </testcase>
  </testsuite>
  <testsuite name="idle_gaps" tests="2" failures="0" errors="0" skipped="0">
    <testcase classname="tracekit.idle_gaps" name="idle_gaps.1" time="0">
      <system-out>sync: 10% of &lt;decode&gt;
long: yes
do: Do
less.
price: None.</system-out>
    </testcase>
    <testcase classname="tracekit.idle_gaps" name="idle_gaps.2" time="0">
      <system-out>x\N{REPLACEMENT CHARACTER}</system-out>
    </testcase>
  </testsuite>
</testsuites>"""
GITHUB = """\
::error title=tracekit gate%3A decode.p50 > +3%25::9.00 ms -> 9.50 ms
::error title=tracekit health%3A ranks::rank 1 is gone
::warning title=tracekit idle_gaps%3A idle_gaps.1::sync: 10%25 of <decode>%0Along: yes%0Ado: Do%0Aless.%0Aprice: None.
::notice title=tracekit idle_gaps%3A idle_gaps.2::x\N{REPLACEMENT CHARACTER}"""


def test_nothing_to_say() -> None:
    assert cases_of({}, ()) == []
    assert github([]) == ""
    assert ElementTree.fromstring(junit([])).attrib == {
        "name": "tracekit", "tests": "0", "failures": "0", "errors": "0", "skipped": "0",
    }  # fmt: skip


def test_cases() -> None:
    assert cases_of({"health": HEALTH, "idle_gaps": IDLE}, VERDICTS) == CASES


def test_junit() -> None:
    assert junit(CASES) == JUNIT
    ElementTree.fromstring(JUNIT)


def test_github() -> None:
    assert github(CASES) == GITHUB
