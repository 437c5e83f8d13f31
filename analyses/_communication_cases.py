"""Which communication may be judged together: that of steady steps of one phase on one device, message by message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tracekit.analyses import _arithmetic as arithmetic
from tracekit.analyses._idle_groups import marked
from tracekit.analysis import Row, Scalar
from tracekit.trace import Trace

_TIMES = """
    SELECT
        rank,
        device,
        phase,
        count(DISTINCT step) AS steps,
        bool_and(kind = 'steady') AS are_steady,
        sum(busy_ns + idle_ns + gap_before_ns)::BIGINT AS total_ns
    FROM step_time()
    WHERE $marked AND (kind = 'steady' OR NOT EXISTS (FROM step_kinds() WHERE kind = 'steady'))
    GROUP BY
        rank,
        device,
        phase
    ORDER BY ALL
"""
# Calls of other steps, or of none, have no phase here: they are judged only where a device has nothing else.
_CALLS = """
    WITH judged AS (
        SELECT
            rank,
            device,
            step,
            phase
        FROM step_time()
        WHERE $marked AND (kind = 'steady' OR NOT EXISTS (FROM step_kinds() WHERE kind = 'steady'))
    )
    SELECT
        c.rank,
        c.device,
        j.phase,
        c.group_name,
        c.group_size,
        c.collective,
        c.subcategory,
        c.dtype,
        c.message,
        c.state,
        c.last_rank,
        count(*) AS count,
        sum(c.dur)::BIGINT AS dur_ns,
        sum(c.alone_ns)::BIGINT AS alone_ns,
        sum(c.exposed_ns)::BIGINT AS exposed_ns,
        coalesce(sum(c.wait_ns), 0)::BIGINT AS wait_ns,
        coalesce(sum(c.exposed_wait_ns), 0)::BIGINT AS exposed_wait_ns,
        coalesce(TRY_CAST(sum(c.link_bytes) AS BIGINT), 0) AS link_bytes,
        coalesce(sum(c.dur - c.wait_ns) FILTER (c.link_bytes IS NOT NULL), 0)::BIGINT AS carrying_ns,
        coalesce(max(c.skew_ns), 0) AS skew_ns,
        arg_max(c.id, (c.exposed_ns, c.dur, -c.id)) AS example_id
    FROM collective_calls(max_skew_ns := $max_skew_ns) AS c
    LEFT JOIN judged AS j
        ON j.rank = c.rank
        AND j.device IS NOT DISTINCT FROM c.device
        AND j.step = c.step
    GROUP BY ALL
    ORDER BY ALL
"""
_SAME = ("group_name", "group_size", "collective", "subcategory", "dtype", "message")


@dataclass(frozen=True, slots=True)
class Messages:
    """Collectives of one kind and size in a Case. Times, counts and link_bytes are sums.

    message: bytes of the larger side, None where not recorded. matched: of so many all ranks are in the trace; waits
    and transfers are those of these. waits: exposed_wait_ns by the rank that came last. carrying_ns: transfer of those
    whose link_bytes are known. examples: ids, the most exposed first.
    """

    group: str | None
    collective: str
    subcategory: str
    dtype: str | None
    message: int | None
    count: int
    matched: int
    alone_ns: int
    exposed_ns: int
    exposed_wait_ns: int
    wait_ns: int
    transfer_ns: int
    link_bytes: int
    carrying_ns: int
    waits: Mapping[int, int]
    examples: tuple[int, ...]

    @property
    def exposed_transfer_ns(self) -> int:
        """Exposed time that is no waiting, as far as one can tell."""
        return self.exposed_ns - self.exposed_wait_ns


@dataclass(frozen=True, slots=True)
class Case:
    """Communication of the steady steps of one phase on one device, the most exposed first. steps: 0 for all of a trace
    without marked steps; total_ns: what is charged to them, busy and idle, or the span. source: what queries of its
    calls are from; whole: the query of total_ns.
    """

    rank: int
    device: int | None
    phase: str
    steps: int
    total_ns: int
    messages: tuple[Messages, ...]
    source: str
    whole: str

    @property
    def exposed_ns(self) -> int:
        """Time in which it communicates and does nothing else."""
        return sum(one.exposed_ns for one in self.messages)

    @property
    def exposed_wait_ns(self) -> int:
        """What of it is waiting for other ranks, as far as that can be told."""
        return sum(one.exposed_wait_ns for one in self.messages)

    @property
    def matched(self) -> int:
        """Collectives of which waiting can be told."""
        return sum(one.matched for one in self.messages)

    def share(self, ns: int) -> float:
        """A time as a part of that of the steps."""
        return ns / self.total_ns if self.total_ns else 0.0


def calls(trace: Trace, max_skew_ns: int) -> list[Row]:
    """All communication in the scope, added up by all that tells it apart. phase is None of what no steady step of a
    marked phase launched.
    """
    found: list[Row] = trace.sql(_CALLS, {"marked": marked(trace), "max_skew_ns": max_skew_ns}).to_pylist()
    return found


def cases(trace: Trace, rows: Iterable[Row], devices: Iterable[Row], parameters: Mapping[str, Scalar]) -> list[Case]:
    """By rank, device and phase. A device without a steady step that lies whole in what is looked at is one case.

    rows: of `calls`. devices: rows of device_time. parameters: those of the analysis.
    """
    source = arithmetic.called("communication", parameters).replace("communication", "collective_calls")
    by_phase: dict[tuple[int, int | None, str | None], list[Row]] = {}
    whole: dict[tuple[int, int | None], list[Row]] = {}
    for row in rows:
        by_phase.setdefault((row["rank"], row["device"], row["phase"]), []).append(row)
        whole.setdefault((row["rank"], row["device"]), []).append(row)
    found = []
    for time in trace.sql(_TIMES, {"marked": marked(trace)}).to_pylist():
        place = (time["rank"], time["device"])
        here = arithmetic.on(*place)
        steps = f"FROM step_time() WHERE {here} AND phase = {time['phase']!r}"
        steps += " AND kind = 'steady'" if time["are_steady"] else ""
        found.append(
            Case(
                *place,
                phase=time["phase"],
                steps=time["steps"],
                total_ns=time["total_ns"],
                messages=_messages(by_phase.get((*place, time["phase"]), [])),
                source=f"{source} WHERE {here} AND step IN (SELECT step {steps})",
                whole=f"SELECT sum(busy_ns + idle_ns + gap_before_ns) {steps}",
            )
        )
    seen = {(case.rank, case.device) for case in found}
    return found + [_whole(row, whole, source) for row in devices if (row["rank"], row["device"]) not in seen]


def _whole(device: Row, rows: Mapping[tuple[int, int | None], Sequence[Row]], source: str) -> Case:
    """All communication of a device, whatever step it is of."""
    place = (device["rank"], device["device"])
    here = arithmetic.on(*place)
    return Case(
        *place,
        phase="unknown",
        steps=0,
        total_ns=device["span_ns"],
        messages=_messages(rows.get(place, [])),
        source=f"{source} WHERE {here}",
        whole=f"SELECT span_ns FROM device_time() WHERE {here}",
    )


def _messages(rows: Iterable[Row]) -> tuple[Messages, ...]:
    """Most exposed first."""
    alike: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        alike.setdefault(tuple(row[name] for name in _SAME), []).append(row)
    found = map(_added, alike.values())
    return tuple(sorted(found, key=lambda one: (-one.exposed_ns, -one.alone_ns, one.examples)))


def _added(rows: Sequence[Row]) -> Messages:
    """Rows that differ in their state and in who came last."""
    first, matched = rows[0], [row for row in rows if row["state"] == "matched"]
    waits: Counter[int] = Counter()
    for row in matched:
        waits[row["last_rank"]] += row["exposed_wait_ns"]
    return Messages(
        group=first["group_name"],
        collective=first["collective"],
        subcategory=first["subcategory"],
        dtype=first["dtype"],
        message=first["message"],
        count=_sum(rows, "count"),
        matched=_sum(matched, "count"),
        alone_ns=_sum(rows, "alone_ns"),
        exposed_ns=_sum(rows, "exposed_ns"),
        exposed_wait_ns=_sum(matched, "exposed_wait_ns"),
        wait_ns=_sum(matched, "wait_ns"),
        transfer_ns=_sum(matched, "dur_ns") - _sum(matched, "wait_ns"),
        link_bytes=_sum(matched, "link_bytes"),
        carrying_ns=_sum(matched, "carrying_ns"),
        waits=dict(waits),
        examples=tuple(row["example_id"] for row in sorted(rows, key=lambda row: -row["exposed_ns"])),
    )


def _sum(rows: Iterable[Row], column: str) -> int:
    return sum(row[column] for row in rows)
