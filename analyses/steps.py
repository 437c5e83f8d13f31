"""How long do serving steps take, and how busy is the GPU in them?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from tracekit.analyses import _steps_findings as judge
from tracekit.analyses._idle_summary import lost_records
from tracekit.analyses._missing import no_device
from tracekit.analysis import Coverage, Finding, Result, Row, Scalar
from tracekit.trace import Trace
from tracekit.wording import counted

NO_MARKS = "no step markers: annotate with tracekit.step, or name ranges that are steps with --step-range"
_STEPPED = ("inside_busy_ns", "inside_idle_ns", "between_ns")
_OTHERS = ("outside_busy_ns", "outside_idle_ns", "prefix_busy_ns", "prefix_idle_ns")

_RANKS = """
    WITH kinds AS MATERIALIZED (
        FROM step_kinds()
    ),
    chosen AS (
        SELECT
            s.rank,
            s.step,
            s.id,
            s.source,
            k.kind = 'empty' AS is_empty
        FROM steps AS s
        JOIN kinds AS k ON k.rank = s.rank AND k.step = s.step
        WHERE in_scope(s.rank, NULL, s.step)
            AND s.ts >= scope_start()
            AND s.ts < scope_end()
    ),
    sources AS (
        SELECT
            rank,
            string_agg(DISTINCT source, ', ' ORDER BY source) AS source
        FROM steps
        GROUP BY rank
    ),
    worked AS (
        SELECT
            rank,
            min(step) AS first_step,
            max(step) AS last_step
        FROM kinds
        WHERE kind <> 'empty'
        GROUP BY rank
    )
    SELECT
        s.rank,
        s.source,
        count(c.step) AS steps,
        count(*) FILTER (c.is_empty) AS empty_steps,
        count(*) FILTER (c.is_empty AND c.step < w.first_step) AS empty_before,
        count(*) FILTER (c.is_empty AND c.step > w.last_step) AS empty_after,
        list(c.id ORDER BY c.step) FILTER (c.is_empty AND c.id IS NOT NULL) AS empty_ids
    FROM sources AS s
    LEFT JOIN worked AS w ON w.rank = s.rank
    LEFT JOIN chosen AS c ON c.rank = s.rank
    GROUP BY
        s.rank,
        s.source
    ORDER BY s.rank
"""


class Steps:
    """Quantiles of the steps' times by phase and size of batch, and the span of each device by where it belongs."""

    name = "steps"
    question = "How long do serving steps take, and how busy is the GPU in them?"
    parameters: Mapping[str, Scalar] = MappingProxyType(
        {
            "p99_ratio": 2.0,  # of the period, to its median: above, steps vary
            "steady_steps": 20,  # of one phase and bucket, to be judged
            "outside_share": 0.1,  # of the busy time, in no step
            "empty_share": 0.1,  # of a rank's steps
            "empty_steps": 5,  # fewer are what profilers leave at the ends of a recording
            "missing_share": 0.02,  # of launches without device work, of rows without an end: above, nothing is told
        }
    )

    def run(self, trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
        """Measure with the macros steps and span_by_place; judge how steady the steps are and what they leave out."""
        devices = trace.macro("span_by_place").to_pylist()
        table = trace.macro(self.name)
        if not devices:
            return Result(self.name, parameters, (), table, (), Coverage(reason=no_device(trace.footer)))
        ranks = {row["rank"]: row for row in trace.sql(_RANKS).to_pylist()}
        summary = [_summary(device, ranks.get(device["rank"])) for device in devices]
        span = sum(row["span_ns"] for row in summary)
        losses = lost_records(trace.whole, float(parameters["missing_share"] or 0))
        if losses.refusal:
            summary = [_refused(row) for row in summary]
            return Result(self.name, parameters, summary, table.slice(0, 0), (), Coverage(0, span, losses.refusal))
        stepped = sum(row["in_steps_ns"] for row in summary)
        findings = tuple(_findings(trace, table.to_pylist(), summary, ranks, parameters))
        reasons = [*_reasons(summary), losses.doubt]
        coverage = Coverage(stepped, span, "; ".join(reason for reason in reasons if reason))
        return Result(self.name, parameters, summary, table, findings, coverage)


def _summary(device: Row, rank: Row | None) -> Row:
    """source: dialect of the marks; inferred: guessed from the launches; None: the rank has no steps. in_steps_ns and
    the outside and prefix parts add up to span_ns.
    """
    counts = {key: device[key] for key in ("steps", "cut_steps")}
    return {
        "rank": device["rank"],
        "device": device["device"],
        "source": rank["source"] if rank else None,
        **counts,
        "empty_steps": rank["empty_steps"] if rank else 0,
        "span_ns": device["span_ns"],
        "in_steps_ns": sum(device[part] for part in _STEPPED),
        **{key: device[key] for key in (*_STEPPED, *_OTHERS)},
    }


def _refused(row: Row) -> Row:
    unknown: Row = dict.fromkeys(("in_steps_ns", *_STEPPED, *_OTHERS))
    return row | unknown


def _findings(
    trace: Trace,
    table: Sequence[Row],
    summary: Sequence[Row],
    ranks: Mapping[int, Row],
    parameters: Mapping[str, Scalar],
) -> Iterator[Finding]:
    """Steps that are inferred are a guess: what does not fit may be the guess, so nothing is judged by them."""
    marked = [rank for rank, row in ranks.items() if row["source"] != "inferred"]
    many = len(summary) > 1
    yield from judge.varying(trace, [row for row in table if row["rank"] in marked], many, parameters)
    yield from judge.outside(trace, [row for row in summary if row["rank"] in marked], many, parameters)
    yield from judge.empty([ranks[rank] for rank in marked], parameters)
    yield from judge.inferred([row for row in ranks.values() if row["source"] == "inferred"])


def _reasons(summary: Sequence[Row]) -> Iterator[str]:
    """Why not all of the span is in steps."""
    without = sorted({row["rank"] for row in summary if row["source"] is None})
    if without:
        everywhere = len(without) == len({row["rank"] for row in summary})
        yield NO_MARKS if everywhere else f"rank{'s' * (len(without) > 1)} {', '.join(map(str, without))}: {NO_MARKS}"
        if everywhere:
            return
    span = sum(row["span_ns"] for row in summary) or 1
    left = {
        "busy with work of no step": sum(row["outside_busy_ns"] for row in summary),
        "idle before such work": sum(row["outside_idle_ns"] for row in summary),
        "from before the recording": sum(row["prefix_busy_ns"] + row["prefix_idle_ns"] for row in summary),
    }
    parts = [f"{_share(ns / span)} {words}" for words, ns in left.items() if ns]
    if parts:
        yield f"of the span, {', '.join(parts)}"
    if cut := sum(row["cut_steps"] for row in summary):
        yield f"{counted(cut, 'step')} cut by the window of time, in no quantile"


def _share(part: float) -> str:
    return f"{part:.1%}" if part >= 0.0005 else "<0.1%"


ANALYSIS = Steps()
