"""What binds each kernel: memory, computing, or neither, and how sure is that?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from tracekit.analyses._missing import no_device
from tracekit.analyses._roofline_findings import findings
from tracekit.analysis import Coverage, Result, Row, Scalar
from tracekit.trace import Trace
from tracekit.wording import counted

_KNOWN = frozenset("ABCDEG")  # evidence that says how much work there is


class Roofline:
    """Kernels against the roofs of their device: memory bandwidth and peak of what computes."""

    name = "roofline"
    question = "Which kernels does memory bind, which computing, which neither, and how far are they from it?"
    parameters: Mapping[str, Scalar] = MappingProxyType(
        {
            "memory_compute_ratio": 1.3,  # between the two least times: from here on, the larger alone binds
            "near_roof": 0.6,  # of the achievable roof: from here on, the roof binds (ncu's rule calls 60 % high)
            "far_roof": 0.4,  # below, a kernel that is short or small is bound by latency
            "short_ns": 10_000,  # mean time of a launch
            "above_roof": 1.05,  # of the datasheet's roof: above, something is wrong
            "share": 0.05,  # of the busy time of a device: above, there is a finding
            "covered_share": 0.9,  # of the busy time with evidence: below, there is a finding
        }
    )

    def run(self, trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
        """Measure with the macro roofline; judge what is far from its roof, and what is known at all."""
        table = trace.macro(self.name, parameters)
        rows = table.to_pylist()
        if not rows:
            return Result(self.name, parameters, (), table, (), Coverage(reason=no_device(trace.footer)))
        summary = _summary(trace, rows)
        busy = sum(row["busy_ns"] for row in summary)
        known = sum(ns for row in summary for tier, ns in row["by_evidence"].items() if tier in _KNOWN)
        remarks = trace.sql("FROM lending_remarks ORDER BY source, remark").to_pylist()
        reason = "; ".join([*_bare(summary, busy), *_unused(remarks)])
        formats = {source.format for source in trace.footer.sources}
        tried = {row["source"] for row in remarks}
        found = tuple(findings(rows, summary, parameters, formats, tried))
        return Result(self.name, parameters, summary, table, found, Coverage(known, busy, reason))


def _summary(trace: Trace, rows: Sequence[Row]) -> list[Row]:
    """by_bound, by_evidence: exclusive time, which adds up to busy_ns; peaks and what they are from."""
    busy: Counter[tuple[int, int | None]] = Counter()
    bound: dict[tuple[int, int | None], Counter[str]] = {}
    tiers: dict[tuple[int, int | None], Counter[str]] = {}
    above: Counter[tuple[int, int | None]] = Counter()
    for row in rows:
        key = row["rank"], row["device"]
        busy[key] += row["exclusive_ns"]
        bound.setdefault(key, Counter())[row["bound"]] += row["exclusive_ns"]
        tiers.setdefault(key, Counter())[row["evidence"] or "none"] += row["exclusive_ns"]
        above[key] += row["exclusive_ns"] if row["problem"] else 0
    peaks = trace.peaks()
    return [
        {
            "rank": key[0],
            "device": key[1],
            "name": peaks[key].device,
            "described_by": peaks[key].described_by,
            "spec": peaks[key].spec,
            "peaks": dict(peaks[key].flops),
            "bandwidth": peaks[key].bandwidth,
            "achievable": dict(peaks[key].achievable),
            "sources": dict(peaks[key].sources),
            "problem": peaks[key].problem,
            "remarks": list(peaks[key].remarks),
            "busy_ns": busy[key],
            "by_bound": _ranked(bound[key]),
            "by_evidence": dict(sorted(tiers[key].items())),
            "above_roof_ns": above[key],
        }
        for key in sorted(busy, key=lambda key: (key[0], -1 if key[1] is None else key[1]))
    ]


def _ranked(times: Counter[str]) -> dict[str, int]:
    return dict(sorted(times.items(), key=lambda item: (-item[1], item[0])))


def _bare(summary: Sequence[Row], busy: int) -> Iterator[str]:
    """The part of the busy time without evidence."""
    bare = sum(row["by_evidence"].get("F", 0) for row in summary)
    nothing = sum(row["by_evidence"].get("none", 0) for row in summary)
    parts = {"known by name and geometry alone": bare, "not known at all": nothing}
    if listed := " and ".join(f"{ns / busy:.1%} {words}" for words, ns in parts.items() if ns):
        yield f"of the busy time {listed}"


def _unused(remarks: Sequence[Row]) -> Iterator[str]:
    """What of --model and --capture-trace told nothing, and why."""
    for row in remarks:
        where = f" ({counted(row['steps'], 'step')})" if row["steps"] else ""
        yield f"{row['source']}: {row['remark']}{where}"


ANALYSIS = Roofline()
