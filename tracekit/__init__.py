"""Why is this LLM serving step slow? Profiler traces to one Parquet file to a verdict.

    import tracekit

    trace = tracekit.open("trace.parquet")      # or raw profiler files: these are converted first
    trace.summary()                             # the verdict: a report of one screen, findings by id
    trace.idle_gaps().df()                      # a table; .findings judge it, .coverage says what it could not tell
    trace.explain("idle_gaps.1")                # rows, arithmetic, the Python line, the remedy
    trace.step(3).timeline()                    # a picture; others are in tracekit.plots
    trace.sql("SELECT name, count(*) FROM kernels GROUP BY name")

Importing this costs nothing: the parts load when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracekit import plots
    from tracekit.analysis import Coverage, Finding, Result
    from tracekit.classify import classify_kernel
    from tracekit.explain import Explanation
    from tracekit.ranges import annotate, step
    from tracekit.rows import Rows
    from tracekit.summary import Summary
    from tracekit.trace import Trace, open

__version__ = "0.1.0"

__all__ = [
    "Coverage",
    "Explanation",
    "Finding",
    "Result",
    "Rows",
    "Summary",
    "Trace",
    "__version__",
    "annotate",
    "classify_kernel",
    "open",
    "plots",
    "step",
]

_HOMES = {
    "Coverage": "tracekit.analysis",
    "Explanation": "tracekit.explain",
    "Finding": "tracekit.analysis",
    "Result": "tracekit.analysis",
    "Rows": "tracekit.rows",
    "Summary": "tracekit.summary",
    "Trace": "tracekit.trace",
    "annotate": "tracekit.ranges",
    "classify_kernel": "tracekit.classify",
    "open": "tracekit.trace",
    "step": "tracekit.ranges",
}


_MODULES = ("plots",)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tracekit.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
