"""Pictures of a trace with Matplotlib: where the time goes, why the device idles, how far from its limits it works.

Each function takes axes to draw on, or makes a figure of its own without pyplot, and returns the axes:

    from tracekit import plots

    plots.save_figure(plots.time_budget(trace), "budget.png")

A legend lies to the right of the axes: a figure that holds several is best made with `layout="constrained"`. Where
there is nothing to draw each raises UsageError with the reason. Colours of categories and causes are the same in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.errors import UsageError
from tracekit.plot_bands import draw_view
from tracekit.plot_budget import budget_of, draw_budget
from tracekit.plot_idle import draw_histogram, histogram_of
from tracekit.plot_steps import draw_step_times, step_times_of
from tracekit.plot_style import defaults, save_figure
from tracekit.plot_timeline import view_of
from tracekit.plot_waterfall import draw_waterfall
from tracekit.roofline_plot import draw_roofline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tracekit.analysis import Result
    from tracekit.compare_result import Comparison
    from tracekit.trace import Trace

__all__ = ["idle_histogram", "roofline", "save_figure", "step_times", "time_budget", "timeline", "waterfall"]


def time_budget(trace: Trace, *, ax: Axes | None = None) -> Axes:
    """Mean time of a steady step, a bar for each phase and size of batch: busy by category, idle by cause (hatched).

    Parts add up to the whole, which is written at the end; the small ones are together. Without steady steps, all of
    the recording of each device. Raises UsageError where no device did any work.
    """
    budget = budget_of(trace)
    with defaults():
        return draw_budget(budget, ax)


def idle_histogram(source: Trace | Result, *, ax: Axes | None = None) -> Axes:
    """Idle time by the length of the gap (logarithmic), the causes of each length on top of each other; above a bar the
    number of its gaps.

    source: a trace, or a result of its analysis `idle_gaps`. A gap with several causes counts once, by its whole
    length. Raises UsageError where no device was idle, or the trace cannot tell.
    """
    shown = histogram_of(_result(source, "idle_gaps"))
    with defaults():
        return draw_histogram(shown, ax)


def roofline(
    source: Trace | Result,
    *,
    rank: int | None = None,
    device: int | None = None,
    labels: int = 10,
    ax: Axes | None = None,
) -> Axes:
    """FLOP per byte against FLOP/s, a marker for each kernel group, under the roofs of its device (docs/roofline.md).

    source: a trace, or a result of its analysis `roofline`. rank, device: which one; of several the one that works
    longest. labels: groups that are named at most. In a figure of its own, groups without FLOPs are on a strip below.
    For all devices in one figure: `tracekit.roofline_plot.roofline_figure`. Raises UsageError if there is no such
    device, or nothing to draw of it.
    """
    return draw_roofline(_result(source, "roofline"), ax, rank=rank, device=device, labels=labels)


def step_times(trace: Trace, *, ax: Axes | None = None) -> Axes:
    """The empirical distribution of the time of steady steps, a curve for each phase and size of batch, with P50, P99
    as the analysis `steps` has them (by nearest rank; of several devices those of all together).

    Raises UsageError without a steady step.
    """
    shown = step_times_of(trace)
    with defaults():
        return draw_step_times(shown, ax)


def timeline(
    trace: Trace,
    *,
    step: int | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
    rank: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """What devices and host did in a step or in a window of time: streams by category, idle time by cause, API calls,
    ranges, ops and Python by depth, names where they fit.

    step: from its mark on the host to its last work on a device, of the first rank that has it, or of `rank`. start_ns,
    end_ns: ns from the trace origin; one left out is the trace's own. Without any of these: the median steady step of
    the phase with most time, which the title says; without work in steps all of the recording. Raises UsageError for
    a step or window that is not there.
    """
    view = view_of(trace, step, start_ns, end_ns, rank)
    with defaults():
        return draw_view(view, ax)


def waterfall(comparison: Comparison, *, group: int = 0, ax: Axes | None = None) -> Axes:
    """From the mean step of the base to that of the candidate: what each part added or took, largest change first.

    comparison: what `tracekit.compare.compare` returns; group: which of its groups of steps. The whiskers are the
    intervals of the changes; hatched: what may be chance, or is small. All rows add up, to the nanosecond. Raises
    UsageError where there is no such group.
    """
    with defaults():
        return draw_waterfall(comparison, group, ax)


def _result(source: Trace | Result, name: str) -> Result:
    """The result of an analysis, if the source is none. Raises UsageError for that of another analysis."""
    from tracekit.analysis import Result

    result = source if isinstance(source, Result) else source.analyze(name)
    if result.analysis != name:
        raise UsageError(f"this plot shows a result of {name}, not of {result.analysis}")
    return result
