"""What does communication between devices cost, and why?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from tracekit.analyses import _communication_texts as texts
from tracekit.analyses._communication_cases import Case, calls, cases
from tracekit.analyses._communication_findings import Limits, findings
from tracekit.analyses._missing import no_device
from tracekit.analysis import Coverage, Result, Row, Scalar, duration
from tracekit.trace import Trace
from tracekit.wording import counted

_REPLAYS = "SELECT count(*) AS replays FROM device_activity WHERE kind = 'graph' AND in_scope(rank, device, step)"


class Communication:
    """Collectives by kind, group and size: their time, what of it nothing covers, what of it is waiting for ranks."""

    name = "communication"
    question = "What does communication between devices cost, and why?"
    parameters: Mapping[str, Scalar] = MappingProxyType(
        {
            "max_skew_ns": 20_000,  # clocks of ranks that differ by more do not tell waiting from transfer
            # Of the time of steps: exposed communication above is a finding, and a critical one; of its causes alone.
            "exposed_share": 0.1,
            "critical_share": 0.3,
            "finding_share": 0.05,
            "last_share": 0.6,  # of the waiting: a rank that is waited for so long is named
            "small_bytes": 1_048_576,  # messages up to this are not asked for bandwidth, but
            "latency_share": 0.25,  # are bound by latency if they reach less of the peak of the links;
            "bandwidth_share": 0.5,  # larger ones are slow if they reach less
        }
    )

    def run(self, trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
        """Measure with the macro communication; judge steady steps by phase and device."""
        table = trace.macro(self.name, parameters)
        devices = sorted(trace.macro("device_time").to_pylist(), key=lambda row: (row["rank"], row["device"] or 0))
        if not devices:
            return Result(self.name, parameters, (), table, (), Coverage(reason=no_device(trace.footer)))
        rows = calls(trace, int(parameters["max_skew_ns"] or 0)) if table.num_rows else []
        judged = cases(trace, rows, devices, parameters) if rows else []
        links = {place: peaks.link_bandwidth for place, peaks in trace.peaks().items() if peaks.link_bandwidth}
        return Result(
            self.name,
            parameters,
            tuple(_summary(device, table.to_pylist(), judged) for device in devices),
            table,
            tuple(findings(judged, links, _limits(parameters))),
            _coverage(trace, rows),
        )


def _limits(parameters: Mapping[str, Scalar]) -> Limits:
    shares = {name: float(parameters[name] or 0) for name in parameters if name.endswith("_share")}
    return Limits(small_bytes=int(parameters["small_bytes"] or 0), **shares)


def _summary(device: Row, table: Sequence[Row], judged: Sequence[Case]) -> Row:
    """A device: time in which it communicates, what of it is exposed, and, where that can be told, waits."""
    rank, number = device["rank"], device["device"]
    rows = [row for row in table if (row["rank"], row["device"]) == (rank, number)]
    here = [case for case in judged if (case.rank, case.device) == (rank, number) and case.steps]
    return {key: device[key] for key in ("rank", "device", "span_ns", "busy_ns")} | {
        "communication_ns": sum(row["alone_ns"] for row in rows),
        "exposed_ns": sum(row["exposed_ns"] for row in rows),
        "wait_ns": _sum_known(row["wait_ns"] for row in rows),
        "transfer_ns": _sum_known(row["transfer_ns"] for row in rows),
        "by_phase": [_of_phase(case) for case in here],
    }


def _of_phase(case: Case) -> Row:
    return {
        "phase": case.phase,
        "steps": case.steps,
        "step_ns": case.total_ns,
        "communication_ns": sum(one.alone_ns for one in case.messages),
        "exposed_ns": case.exposed_ns,
        "wait_ns": sum(one.wait_ns for one in case.messages) if case.matched else None,
        "share": case.share(case.exposed_ns),
    }


def _sum_known(values: Iterator[int | None]) -> int | None:
    """The sum of those that are known, None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _coverage(trace: Trace, rows: Sequence[Row]) -> Coverage:
    """The time in communication kernels, and of how much of it waiting is told from transfer."""
    (found,) = trace.sql(_REPLAYS).to_pylist()
    opaque = texts.OPAQUE.format(replays=counted(found["replays"], "graph replay")) if found["replays"] else ""
    if not rows:
        return Coverage(reason="; ".join(filter(None, (texts.NONE, opaque))))
    times: Counter[str] = Counter()
    for row in rows:
        times[row["state"]] += row["dur_ns"]
    total, matched = sum(times.values()), times.pop("matched", 0)
    skew = duration(max(row["skew_ns"] for row in rows))
    why = [f"{duration(ns)}: {texts.STATES[state].format(skew=skew)}" for state, ns in times.most_common()]
    told = f"waiting and transfer cannot be told apart of {'; of '.join(why)}" if why else ""
    return Coverage(matched, total, "; ".join(filter(None, (told, opaque))))


ANALYSIS = Communication()
