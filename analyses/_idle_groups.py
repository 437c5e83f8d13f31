"""Which gaps may be judged together: those of steady steps of one phase on one device, or of a trace without steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses import _arithmetic as arithmetic
from tracekit.analysis import Row
from tracekit.trace import Trace

_TIMES = """
    SELECT
        rank,
        device,
        phase,
        count(DISTINCT step) AS steps,
        list(DISTINCT step::BIGINT) AS numbers,
        bool_and(kind = 'steady') AS are_steady,
        sum(busy_ns + idle_ns + gap_before_ns)::BIGINT AS total_ns
    FROM step_time()
    WHERE kind = 'steady'
        OR NOT EXISTS (FROM step_kinds() WHERE kind = 'steady')
    GROUP BY
        rank,
        device,
        phase
    ORDER BY
        rank,
        device,
        phase
"""
# Steps that were only inferred are good for a table, not for a verdict.
_MARKED = "SELECT count(*) AS marked FROM steps WHERE source <> 'inferred'"


@dataclass(frozen=True, slots=True)
class Group:
    """Gaps on one device, longest first. total_ns: what is charged to the steps, busy and idle; steps: how many, 0 for
    the whole of a trace without steps. chosen: the condition that chooses the gaps of the table; whole: the query of
    total_ns.
    """

    rank: int
    device: int | None
    phase: str
    steps: int
    total_ns: int
    gaps: pa.Table
    chosen: str = ""
    whole: str = ""

    def of(self, cause: str) -> pa.Table:
        """Those of one cause."""
        return self.gaps.filter(pc.field("cause") == cause)


def groups(trace: Trace, table: pa.Table) -> list[Group]:
    """All groups, by rank, device and phase. First and warm-up steps are in none unless there are no others.

    A device without a steady step that lies whole in what is looked at is one group.
    """
    ordered = table.sort_by([("dur", "descending"), ("after_id", "ascending"), ("ts", "ascending")])
    has_marks = marked(trace)
    by_phase = list(_by_phase(trace, ordered)) if has_marks else []
    seen = {(group.rank, group.device) for group in by_phase}
    places = ["inside", "between"] + ["outside"] * (not has_marks)
    judged = ordered.filter(pc.field("place").isin(places))
    whole = [
        Group(
            rank=row["rank"],
            device=row["device"],
            phase="unknown",
            steps=0,
            total_ns=row["span_ns"],
            gaps=on_device(judged, row),
            chosen=f"{_here(row)} AND place IN {arithmetic.one_of(places)}",
            whole=f"SELECT span_ns FROM device_time() WHERE {_here(row)}",
        )
        for row in trace.macro("device_time").to_pylist()
        if (row["rank"], row["device"]) not in seen
    ]
    return [*by_phase, *whole]


def _by_phase(trace: Trace, table: pa.Table) -> Iterator[Group]:
    for row in trace.sql(_TIMES).to_pylist():
        here = on_device(table, row)
        steps = f"FROM step_time() WHERE {_here(row)} AND phase = {row['phase']!r}"
        steps += " AND kind = 'steady'" if row["are_steady"] else ""
        yield Group(
            rank=row["rank"],
            device=row["device"],
            phase=row["phase"],
            steps=row["steps"],
            total_ns=row["total_ns"],
            gaps=here.filter(pc.field("step").isin(row["numbers"])),
            chosen=f"{_here(row)} AND step IN (SELECT step {steps})",
            whole=f"SELECT sum(busy_ns + idle_ns + gap_before_ns) {steps}",
        )


def _here(row: Row) -> str:
    return arithmetic.on(row["rank"], row["device"])


def marked(trace: Trace) -> bool:
    """Does the trace have steps that something recorded marks?"""
    (row,) = trace.whole.sql(_MARKED).to_pylist()
    return bool(row["marked"])


def outside(trace: Trace, table: pa.Table) -> pa.Table:
    """Gaps ended by work that no step launched, in a trace that has steps."""
    apart = table.filter(pc.field("place") == "outside")
    return apart if marked(trace) else apart.slice(0, 0)


def on_device(table: pa.Table, row: Mapping[str, int] | Row) -> pa.Table:
    """The gaps of one rank and device."""
    here = pc.field("rank") == row["rank"]
    device = pc.field("device")
    return table.filter(here & (device.is_null() if row["device"] is None else device == row["device"]))
