"""What does one recording have that can be compared? Its steps, each with the parts of its time, and their kernels.

A step's time is all that is charged to it: the busy time of its work, and the gaps that this work ended, the one before
its first work included. So it is what the plan calls "one every", and its parts add up to it. Time in which the host
waited for requests is no part of it: that tells of the load.

A step that several devices work on is one sample, the mean over them: they wait for each other, so that counting each
would make one step look like several that are independent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tracekit.analyses._idle_summary import Losses, lost_records
from tracekit.analysis import Row
from tracekit.arrays import Int64s
from tracekit.compare_facts import Facts, facts_of
from tracekit.compare_kernels import KernelSums, KernelTime, spelt
from tracekit.trace import Trace

# What a step's time is: that on the device; on the host, where there is no device; that of the whole recording, where
# no steps were found.
Basis = Literal["device", "host", "whole", "nothing"]
PartName = tuple[str, str]  # "busy" and a category, "idle" and a cause, or HOST
Key = tuple[str, str]  # phase and bucket
Cells = Mapping[Key, Mapping[int, Mapping[PartName, int]]]  # ns by kind of step, step and part

HOST: PartName = ("host", "host")
IDLE: PartName = ("idle", "idle")  # where causes cannot be told
WHOLE: Key = ("unknown", "whole recording")
_WAITED: PartName = ("idle", "no_requests")
_MISSING_SHARE = 0.02  # as the analysis idle_gaps has it

_GAPS = """
    SELECT
        c.phase,
        c.bucket,
        c.step,
        g.cause AS name,
        sum(g.dur)::BIGINT AS ns
    FROM idle_gaps() AS g
    JOIN compared_steps() AS c
        ON c.rank = g.rank
        AND c.device IS NOT DISTINCT FROM g.device
        AND c.step = g.step
    GROUP BY ALL
    ORDER BY ALL
"""
_WHOLE_BUSY = (
    "SELECT category AS name, sum(exclusive_ns)::BIGINT AS ns FROM classified_segments() GROUP BY ALL ORDER BY ALL"
)
_WHOLE_GAPS = "SELECT cause AS name, sum(dur)::BIGINT AS ns FROM idle_gaps() GROUP BY ALL"
# Places are those of the steps in the lists given.
_SEQUENCES = """
    SELECT
        w.place,
        list(d.kind ORDER BY coalesce(l.ts, d.ts), d.ts, d.id) AS kinds,
        list(d.name ORDER BY coalesce(l.ts, d.ts), d.ts, d.id) AS names
    FROM (
        SELECT
            unnest($places) AS place,
            unnest($ranks) AS rank,
            unnest($devices) AS device,
            unnest($steps) AS step
    ) AS w
    JOIN device_activity AS d
        ON d.rank = w.rank
        AND coalesce(d.device, -1) = w.device
        AND d.step = w.step
    LEFT JOIN launches AS l ON l.id = d.launch_id
    GROUP BY w.place
    ORDER BY w.place
"""


@dataclass(frozen=True, slots=True)
class GroupSteps:
    """Steps of one phase and bucket in one recording, by time. Arrays have a value for each step.

    devices: how many the step was on. parts: ns of each part, summed over them. requests, tokens: of the mean batch,
    None where the marks do not tell. is_steady: all of them are.
    """

    key: Key
    bounds: tuple[int, int]  # of the bucket, to sort by
    devices: Int64s
    parts: Mapping[PartName, Int64s]
    requests: float | None
    tokens: float | None
    is_steady: bool
    kernels: KernelSums

    @property
    def totals(self) -> Int64s:
        """The time of each step, summed over its devices."""
        zeros = np.zeros(len(self.devices), np.int64)
        return sum(self.parts.values(), zeros)


@dataclass(frozen=True, slots=True)
class Recording:
    """One side has one or several. waited_ns: time of all devices in which the host waited for requests before steps.
    losses: of records, because of which causes of idle time, or all figures, are in doubt.
    """

    name: str
    events: int
    basis: Basis
    groups: Mapping[Key, GroupSteps]
    waited_ns: int
    losses: Losses
    facts: Facts


def measure(trace: Trace, name: str = "") -> Recording:
    """What there is to compare in a trace, or in the part of it that is looked at. name: what the user calls it."""
    named, events, facts = name or trace.path.name, trace.footer.ledger.stored, facts_of(trace)
    steps = trace.macro("compared_steps").to_pylist()
    if not steps and trace.macro("device_time").num_rows == 0:
        groups = _on_host(trace.macro("compared_host_steps").to_pylist())
        return Recording(named, events, "host" if groups else "nothing", groups, 0, Losses(), facts)
    losses = lost_records(trace.whole, _MISSING_SHARE)
    basis: Basis = "device" if steps else "whole"
    groups, waited = _by_step(trace, steps, losses) if steps else _whole(trace, losses)
    return Recording(named, events, basis, groups, waited, losses, facts)


# ---- steps -----------------------------------------------------------------------------------------------------------


def _by_step(trace: Trace, rows: Sequence[Row], losses: Losses) -> tuple[dict[Key, GroupSteps], int]:
    samples = _samples(rows)
    found = [("busy", row) for row in trace.macro("compared_busy").to_pylist()]
    if losses.refusal:
        found += [("idle", row | {"name": IDLE[1], "ns": row["idle_ns"]}) for row in rows]
    else:
        found += [("idle", row) for row in trace.sql(_GAPS).to_pylist()]
    cells, waited = _cells(found)
    kernels = _kernels(trace, samples, cells)
    return {key: _group(key, of_key, cells.get(key, {}), kernels.get(key)) for key, of_key in samples.items()}, waited


def _samples(rows: Iterable[Row]) -> dict[Key, dict[int, list[Row]]]:
    """Rows of each step, a row a device (or rank), by kind of step; steps in the order of their first."""
    found: dict[Key, dict[int, list[Row]]] = defaultdict(dict)
    for row in sorted(rows, key=lambda one: (one["start_ts"], one["step"], one["rank"], one.get("device") or 0)):
        found[row["phase"], row["bucket"]].setdefault(row["step"], []).append(row)
    return found


def _cells(found: Iterable[tuple[str, Row]]) -> tuple[Cells, int]:
    """ns by kind of step, step and part, without the time waited for requests; and all of that."""
    cells: dict[Key, dict[int, dict[PartName, int]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    waited = 0
    for kind, row in found:
        part = kind, row["name"]
        if part == _WAITED:
            waited += row["ns"]
        else:
            cells[row["phase"], row["bucket"]][row["step"]][part] += row["ns"]
    return cells, waited


def _group(
    key: Key,
    samples: Mapping[int, Sequence[Row]],
    cells: Mapping[int, Mapping[PartName, int]],
    kernels: KernelSums | None = None,
) -> GroupSteps:
    rows = [row for of_step in samples.values() for row in of_step]
    names = sorted({name for step in samples for name in cells.get(step, {})})
    return GroupSteps(
        key,
        (rows[0]["requests_to"] or 0, rows[0]["tokens_to"] or 0),
        np.array([len(of_step) for of_step in samples.values()], np.int64),
        {name: np.array([cells.get(step, {}).get(name, 0) for step in samples], np.int64) for name in names},
        _mean(row["requests"] for row in rows),
        _mean(row["tokens"] for row in rows),
        all(row.get("steady", True) for row in rows),
        kernels or KernelSums((), len(rows), ()),
    )


def _mean(values: Iterable[int | None]) -> float | None:
    told = list(values)
    known = [one for one in told if one is not None]
    return sum(known) / len(known) if known and len(known) == len(told) else None


def _on_host(rows: Sequence[Row]) -> dict[Key, GroupSteps]:
    cells, _ = _cells((HOST[0], row | {"name": HOST[1], "ns": row["host_ns"]}) for row in rows)
    return {key: _group(key, samples, cells[key]) for key, samples in _samples(rows).items()}


def _whole(trace: Trace, losses: Losses) -> tuple[dict[Key, GroupSteps], int]:
    """All of a trace without steps is one sample."""
    devices = trace.macro("device_time").to_pylist()
    row: Row = {"phase": WHOLE[0], "bucket": WHOLE[1], "step": 0}
    found = [("busy", row | one) for one in trace.sql(_WHOLE_BUSY).to_pylist()]
    if losses.refusal:
        found += [("idle", row | {"name": IDLE[1], "ns": one["idle_ns"]}) for one in devices]
    else:
        found += [("idle", row | one) for one in trace.sql(_WHOLE_GAPS).to_pylist()]
    cells, waited = _cells(found)
    unknown: Row = dict.fromkeys(("requests", "tokens", "requests_to", "tokens_to"))
    samples = {0: [row | unknown for _ in devices]}
    return {WHOLE: _group(WHOLE, samples, cells[WHOLE])}, waited


# ---- kernels ---------------------------------------------------------------------------------------------------------


def _kernels(trace: Trace, samples: Mapping[Key, Mapping[int, Sequence[Row]]], cells: Cells) -> dict[Key, KernelSums]:
    times: dict[Key, list[KernelTime]] = defaultdict(list)
    for row in trace.macro("compared_kernels").to_pylist():
        told = (row[name] for name in ("kind", "name", "category", "geometry", "inputs", "ns", "count"))
        times[row["phase"], row["bucket"]].append(KernelTime(*told))
    chosen = [_median(of_key, cells.get(key, {})) for key, of_key in samples.items()]
    sequences = dict(_sequences(trace, chosen))
    return {
        key: KernelSums(tuple(sorted(times[key], key=_order)), sum(map(len, of_key.values())), sequences.get(place, ()))
        for place, (key, of_key) in enumerate(samples.items())
    }


def _order(time: KernelTime) -> tuple[int, str, str, str, str]:
    return -time.ns, time.kind, time.name, time.geometry, time.inputs


def _median(samples: Mapping[int, Sequence[Row]], cells: Mapping[int, Mapping[PartName, int]]) -> Row:
    """Its first device's row of the step that takes the median time."""
    ranked = sorted(samples, key=lambda step: (sum(cells.get(step, {}).values()) / len(samples[step]), step))
    return samples[ranked[(len(ranked) - 1) // 2]][0]


def _sequences(trace: Trace, chosen: Sequence[Row]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Kernels of steps in the order of their launches, by the place of the step."""
    wanted = {
        "places": list(range(len(chosen))),
        "ranks": [row["rank"] for row in chosen],
        "devices": [-1 if row["device"] is None else row["device"] for row in chosen],
        "steps": [row["step"] for row in chosen],
    }
    for row in trace.sql(_SEQUENCES, wanted).to_pylist():
        yield row["place"], tuple(map(spelt, row["kinds"], row["names"]))
