"""Verdicts for a build server: JUnit's XML, and the annotations of GitHub's workflow commands.

A case fails a JUnit report only where a gate or a health check fails it: what is merely worth knowing is told in its
output, so that the report is red exactly when the exit code is 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from tracekit.analysis import Finding, Result
from tracekit.gate import Verdict

Level = Literal["error", "warning", "notice", "fine"]  # an error is what exits with 1

_LEVELS: Mapping[str, Level] = {"critical": "warning", "warning": "warning", "info": "notice"}
_HEALTH: Mapping[str, Level] = {"fail": "error", "warn": "warning", "ok": "fine"}
_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'  # the library's own names the encoding of the locale
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what XML 1.0 has no way to write


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that was checked. suite: gate, health, or the analysis that found it."""

    suite: str
    name: str
    level: Level
    title: str
    detail: str = ""


def cases_of(results: Mapping[str, Result], verdicts: Sequence[Verdict]) -> list[Case]:
    """Gates first, then health, then findings."""
    cases = [gate_case(verdict) for verdict in verdicts]
    if "health" in results:
        rows = results["health"].table.to_pylist()
        cases += [Case("health", row["check"], _HEALTH[row["status"]], row["detail"]) for row in rows]
    for name, result in results.items():
        if name != "health":
            named = result.named_findings().items()
            cases += [
                Case(name, one, _LEVELS[finding.severity], finding.title, _told(finding)) for one, finding in named
            ]
    return cases


def gate_case(verdict: Verdict) -> Case:
    """A condition of --fail-on."""
    return Case("gate", verdict.condition, "error" if verdict.failed else "fine", verdict.said)


def _told(finding: Finding) -> str:
    parts = (("", finding.detail), ("do: ", finding.remedy), ("price: ", finding.cost), ("check: ", finding.verify))
    return "\n".join(word + text for word, text in parts if text)


# ---- JUnit -----------------------------------------------------------------------------------------------------------


def junit(cases: Sequence[Case]) -> str:
    """A `testsuites` document: a suite for each of the cases' suites, in order."""
    root = ElementTree.Element("testsuites", _counts(cases) | {"name": "tracekit"})
    for suite in dict.fromkeys(case.suite for case in cases):
        of_suite = [case for case in cases if case.suite == suite]
        parent = ElementTree.SubElement(root, "testsuite", {"name": suite, **_counts(of_suite)})
        for case in of_suite:
            _add_case(parent, case)
    ElementTree.indent(root)
    return _DECLARATION + ElementTree.tostring(root, encoding="unicode")


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    failed = sum(case.level == "error" for case in cases)
    return {"tests": str(len(cases)), "failures": str(failed), "errors": "0", "skipped": "0"}


def _add_case(parent: ElementTree.Element, case: Case) -> None:
    one = ElementTree.SubElement(
        parent, "testcase", {"classname": f"tracekit.{case.suite}", "name": _xml(case.name), "time": "0"}
    )
    said = "\n".join(text for text in (case.title, case.detail) if text)
    if case.level == "error":
        failure = ElementTree.SubElement(one, "failure", {"message": _xml(case.title)})
        failure.text = _xml(f"{case.name}: {said}")
    elif said:
        ElementTree.SubElement(one, "system-out").text = _xml(said)


def _xml(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)  # what is left is escaped when it is written


# ---- GitHub ----------------------------------------------------------------------------------------------------------


def github(cases: Sequence[Case]) -> str:
    """A line for each case that is not fine, errors first: GitHub shows ten of each level of a step."""
    order: tuple[Level, ...] = ("error", "warning", "notice")
    return "\n".join(line for level in order for line in _annotations(cases, level))


def _annotations(cases: Sequence[Case], level: Level) -> Iterator[str]:
    for case in cases:
        if case.level == level:
            title = _property(f"tracekit {case.suite}: {case.name}" if case.suite != case.name else case.name)
            said = "\n".join(text for text in (case.title, case.detail) if text)
            yield f"::{level} title={title}::{_data(said)}"


def _data(text: str) -> str:
    """What follows the second "::" of a workflow command: newlines would end it."""
    return _xml(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
