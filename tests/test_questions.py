"""What can be asked of a trace in a notebook: completed, typed, documented, and the same as the analyses."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.event_rows import kernel, launch, op, write_trace
from tracekit import explain, rows, step_view, summary, whatif
from tracekit.analysis import Result, Scalar
from tracekit.analysis_help import analysis_help, questions
from tracekit.errors import UsageError
from tracekit.questions import Questions
from tracekit.registry import analyses
from tracekit.trace import Trace

ANALYSES = {name: one.analysis for name, one in analyses().items() if one.built_in}
METHODS = {name: "step_times" if name == "steps" else name for name in ANALYSES}
VIEWS = (
    *("events", "device_activity", "kernels", "memcpys", "launches", "ops", "annotations", "python_calls"),
    *("steps", "devices", "ranks"),
)
KINDS = (Trace, Result, rows.Rows, step_view.Step, summary.Summary, explain.Explanation, whatif.WhatIf)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    made = [op(0, 50), launch(1, 5, op_id=1), kernel(10, 30, launch_id=2, op_id=1, name="nvjet_tst")]
    with tracekit.open(write_trace(tmp_path_factory.mktemp("asked") / "trace.parquet", made)) as opened:
        yield opened


# ---- methods ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ANALYSES)
def test_keywords_of_a_method_are_the_thresholds_of_its_analysis(name: str) -> None:
    signature = inspect.signature(getattr(Questions, METHODS[name]))
    keywords = [one for one in signature.parameters.values() if one.name != "self"]
    assert {one.name: one.default for one in keywords} == dict(ANALYSES[name].parameters)
    assert {one.kind for one in keywords} <= {inspect.Parameter.KEYWORD_ONLY}
    assert {one.name: one.annotation for one in keywords} == {one.name: type(one.default).__name__ for one in keywords}


@pytest.mark.parametrize("name", ANALYSES)
def test_a_method_forwards_each_threshold(trace: Trace, name: str) -> None:
    ask = getattr(trace, METHODS[name])
    assert ask() is trace.analyze(name)
    changed: dict[str, Scalar] = {key: type(value)(value + 1) for key, value in _numbers(name).items()}
    assert dict(ask(**changed).parameters) == dict(ANALYSES[name].parameters) | changed


def _numbers(name: str) -> dict[str, Any]:
    return {key: value for key, value in ANALYSES[name].parameters.items() if isinstance(value, (int, float))}


@pytest.mark.parametrize("name", ANALYSES)
def test_a_method_says_which_question_it_answers(name: str) -> None:
    said = inspect.getdoc(getattr(Questions, METHODS[name])) or ""
    words = ANALYSES[name].question.replace(" (`--ncu`)", "").rstrip("?")
    assert said.startswith(words), said


def test_every_view_is_a_property(trace: Trace) -> None:
    there = [row["name"] for row in trace.query_readonly("SHOW TABLES").to_pylist()]
    for name in VIEWS:
        assert name in there
        assert isinstance(getattr(trace, name), rows.Rows)
        assert getattr(trace, name).arrow().schema == trace.sql(f"FROM {name}").schema
        assert inspect.getdoc(getattr(type(trace), name))


# ---- completed and typed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jedi", [True, False])
def test_ipython_completes_what_is_documented(trace: Trace, jedi: bool) -> None:
    from IPython.core.completer import IPCompleter, provisionalcompleter

    names = {"trace": trace, "result": trace.health()}
    completer = IPCompleter(namespace=names, use_jedi=jedi)

    def completed(text: str) -> set[str]:
        with provisionalcompleter():
            return {one.text.lstrip(".") for one in completer.completions(text, len(text))}

    methods = {*METHODS.values(), *VIEWS, "summary", "explain", "step", "only", "sql", "analyze", "close"}
    assert methods <= completed("trace.")
    assert completed("trace.idle_") == {"idle_gaps"}
    assert {"df", "arrow", "findings", "named_findings", "table", "coverage"} <= completed("result.")
    if jedi:  # which reads annotations where there is no object yet
        assert {"df", "arrow", "findings"} <= completed("trace.roofline().")
        assert {"df", "head", "columns"} <= completed("trace.kernels.")
        assert {"timeline", "kernels", "phase"} <= completed("trace.step(3).")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_public_methods_are_typed(kind: type) -> None:
    import duckdb
    import pandas
    import pyarrow

    names = {"pd": pandas, "pa": pyarrow, "duckdb": duckdb, "Trace": Trace, "Step": step_view.Step}
    names |= {"Summary": summary.Summary, "Explanation": explain.Explanation, "Axes": object, "Ask": object}
    checked = 0
    for name, member in inspect.getmembers(kind):
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        hints = typing.get_type_hints(function, localns=names)
        taken = [one for one in inspect.signature(function).parameters if one != "self"]
        assert {*taken, "return"} <= hints.keys(), name
        checked += 1
    assert checked
    assert (Path(tracekit.__file__).parent / "py.typed").is_file()


# ---- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ANALYSES)
def test_help_tells_all_of_an_analysis(name: str) -> None:
    said = analysis_help(name)
    assert said.question == ANALYSES[name].question
    assert {key: default for key, default, _ in said.parameters} == dict(ANALYSES[name].parameters)
    assert all(meaning for _, _, meaning in said.parameters)
    assert all(meaning for _, _, meaning in said.columns)
    assert said.how
    assert (Path(__file__).parent.parent / said.page).is_file()


def test_help_as_text() -> None:
    lines = str(analysis_help("plan")).splitlines()
    assert lines[:2] == [
        "plan: What should be changed first, and what is it worth on top of the rest?",
        "Remedies of all kinds for the same steps, ranked by what each adds to those before it.",
    ]
    assert "How it decides" in lines
    assert "  most = 10: remedies of steps of one phase and batch size, at most." in lines
    assert "  share DOUBLE: the middle of the saving, as a share of the step as recorded." in lines
    assert lines[-1] == "More: docs/analyses/plan.md"
    assert max(map(len, lines)) <= 120


def test_help_of_what_does_not_exist() -> None:
    with pytest.raises(UsageError, match="no analysis 'idle'; there are: attribution, "):
        analysis_help("idle")
    assert dict(questions())["health"] == "Can this trace be trusted?"


def test_results_are_results(trace: Trace) -> None:
    assert isinstance(trace.idle_gaps(), Result)
