"""All pictures: nothing to draw is said, nothing lies over anything, units, given axes, same file, names as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import tracekit
from tests.event_rows import kernel, write_trace
from tests.pictures import flaws, planted
from tests.served_steps import opened
from tracekit import plots
from tracekit.compare import compare
from tracekit.compare_result import Comparison
from tracekit.errors import UsageError
from tracekit.trace import Trace

Draw = Callable[[Trace, Axes | None], Axes]


def _waterfall(trace: Trace, ax: Axes | None) -> Axes:
    return plots.waterfall(trace.once(("in tests",), lambda: _comparison(trace)), ax=ax)


def _comparison(trace: Trace) -> Comparison:
    """Of some of its steps with others, if it has any."""
    if not trace.macro("step_time").num_rows:
        return compare([trace], [trace])
    with trace.only(steps=(1, 4)) as base, trace.only(steps=(4, 7)) as candidate:
        return compare([base], [candidate])


DRAWN: dict[str, Draw] = {
    "time_budget": lambda trace, ax: plots.time_budget(trace, ax=ax),
    "idle_histogram": lambda trace, ax: plots.idle_histogram(trace, ax=ax),
    "roofline": lambda trace, ax: plots.roofline(trace, ax=ax),
    "step_times": lambda trace, ax: plots.step_times(trace, ax=ax),
    "timeline": lambda trace, ax: plots.timeline(trace, ax=ax),
    "waterfall": _waterfall,
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    with tracekit.open(planted(tmp_path_factory.mktemp("planted"), steps=10)) as trace:
        yield trace


@pytest.mark.parametrize("name", DRAWN)
def test_where_there_is_nothing_there_is_no_picture(tmp_path: Path, name: str) -> None:
    with opened(tmp_path, []) as trace, pytest.raises(UsageError, match=r"nothing to plot|the trace has no|no step"):
        DRAWN[name](trace, None)


@pytest.mark.parametrize("name", DRAWN)
def test_nothing_lies_over_anything(trace: Trace, name: str) -> None:
    axes = DRAWN[name](trace, None)
    assert isinstance(axes.figure, Figure)
    assert flaws(axes.figure) == []


@pytest.mark.parametrize("name", DRAWN)
def test_axes_have_units(trace: Trace, name: str) -> None:
    axes = DRAWN[name](trace, None)
    said = {
        "roofline": r"FLOP per byte.*achieved FLOP/s",
        "step_times": r"step time \((us|ms)\).*share of steps",
        "idle_histogram": r"length of the gap.*idle time \((us|ms)\)",
    }.get(name, r"time.*\((us|ms)[);]")
    assert re.search(said, f"{axes.get_xlabel()}|{axes.get_ylabel()}")


def test_several_in_one_figure(trace: Trace) -> None:
    """The layout makes room for what is beside the axes; each is drawn on those given, and on nothing else."""
    figure = Figure(figsize=(22, 18), layout="constrained")
    given = figure.subplots(3, 2).flat
    for axes, draw in zip(given, DRAWN.values(), strict=True):
        assert draw(trace, axes) is axes
    assert len(figure.axes) == 6
    assert flaws(figure) == []


def test_in_a_part_of_a_figure(trace: Trace) -> None:
    figure = Figure(figsize=(20, 6), layout="constrained")
    grid = figure.add_gridspec(1, 2)
    plots.time_budget(trace, ax=figure.add_subfigure(grid[0, 0]).add_subplot())
    plots.step_times(trace, ax=figure.add_subfigure(grid[0, 1]).add_subplot())
    assert flaws(figure) == []


@pytest.mark.parametrize(("name", "suffix"), [("time_budget", "png"), ("timeline", "svg"), ("waterfall", "svg")])
def test_the_same_trace_is_the_same_file(trace: Trace, tmp_path: Path, name: str, suffix: str) -> None:
    """Whatever the user's style is, which is as it was."""
    path, again = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    plots.save_figure(DRAWN[name](trace, None).figure.figure, path)
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "black", "hatch.linewidth": 9, "svg.id": "x"}):
        plots.save_figure(DRAWN[name](trace, None).figure.figure, again)
        assert matplotlib.rcParams["font.size"] == 20
    assert path.read_bytes() == again.read_bytes()


def test_names_are_no_mathematics(tmp_path: Path) -> None:
    rows = [kernel(at * 20_000, 15_000, name="$\\frac_\x1b31m$") for at in range(3)]
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        axes = plots.timeline(trace)
    shown = [text.get_text() for text in axes.texts]
    assert "$\\frac_\\x1b31m$" in shown
    axes.figure.canvas.draw()


def test_a_result_is_as_good_as_its_trace(trace: Trace) -> None:
    for name, draw in (("idle_histogram", plots.idle_histogram), ("roofline", plots.roofline)):
        analysis = {"idle_histogram": "idle_gaps"}.get(name, name)
        of_result = draw(trace.analyze(analysis))
        of_trace = draw(trace)
        assert [one.get_text() for one in of_result.texts] == [one.get_text() for one in of_trace.texts]
    with pytest.raises(UsageError, match="shows a result of idle_gaps, not of steps"):
        plots.idle_histogram(trace.analyze("steps"))
