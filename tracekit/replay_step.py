"""One step as recorded, with the step before it: what replay.py plays.

The step before leads in: where the host runs ahead of the device, what a change wins shows only once the device works
without a pause, and a step alone begins with an empty device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from tracekit.arrays import ABSENT, Bools, Int64s, numbers
from tracekit.replay import Schedule
from tracekit.replay_build import build
from tracekit.replay_pace import Pace
from tracekit.trace import Trace

_CAUSES = {"device": "sync", "stream": "sync", "event": "sync"}


@dataclass(frozen=True, slots=True)
class Calls:
    """API calls in the order of their starts; times in ns. thread: numbers. cause: sync, pageable_copy, graph_launch or
    "". wait, op: as in the macro replay_calls. rows: how many device rows each started."""

    id: Int64s
    ts: Int64s
    dur: Int64s
    thread: Int64s
    name: list[str]
    wait: list[str]
    cause: list[str]
    op: list[str]
    rows: Int64s

    @property
    def end(self) -> Int64s:
        """Ends, ns."""
        return self.ts + self.dur

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True, slots=True)
class Rows:
    """Device rows in the order of their starts; times in ns. call: index of the call, -1 if launched before the window
    or by nobody knows whom. own: whether it is of the step; else of one before, or the head of the next one."""

    id: Int64s
    ts: Int64s
    dur: Int64s
    stream: Int64s
    call: Int64s
    op_id: Int64s
    own: Bools
    linked: Bools
    kind: list[str]
    name: list[str]
    category: list[str]
    subcategory: list[str]
    elements_in: Int64s

    @property
    def end(self) -> Int64s:
        """Ends, ns."""
        return self.ts + self.dur

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True)
class Step:
    """A recorded step. step: its number, None for a whole trace without steps. measured_ns: from the start of its first
    device work to the start of the next step's, or to the end of its last if none follows. inferred_edges: waits
    across streams that nothing recorded. pace: of its device. lead: the step before in the same schedule, where it is
    of the same kind: what is changed in one is changed in both.
    """

    rank: int
    device: int | None
    step: int | None
    phase: str
    bucket: str
    calls: Calls
    rows: Rows
    schedule: Schedule
    measured_ns: int
    pace: Pace
    inferred_edges: int = 0
    lead: Step | None = None

    @cached_property
    def replayed_ns(self) -> int:
        """The time of the step, played without any change."""
        return self.schedule.times().step_ns

    @property
    def error(self) -> float:
        """How far the replay is off, as a share of the measured time."""
        return abs(self.replayed_ns - self.measured_ns) / self.measured_ns if self.measured_ns else 0.0


def load_step(
    trace: Trace,
    pace: Pace,
    rank: int,
    device: int | None,
    step: int | None,
    *,
    phase: str = "",
    bucket: str = "",
    lead: bool = False,
) -> Step | None:
    """A step with its work on a device, None if it has none there. lead: let the step before it lead in."""
    whole = trace.whole
    extent = _extent(whole, rank, device, step)
    if extent is None:
        return None
    before = _extent(whole, rank, device, step - 1) if lead and step is not None else None
    from_ts = extent.from_ts if before is None else min(extent.from_ts, before.from_ts)
    to_ts, calls_to_ts = _until(whole, rank, device, step, extent)
    time = "(of_rank := $of_rank, from_ts := $from_ts, to_ts := $to_ts)"
    on_device = time.replace("(", "(of_device := $of_device, ")
    place = {"of_rank": rank, "from_ts": from_ts}
    rows_table = whole.sql(f"FROM replay_rows{on_device}", {**place, "of_device": device, "to_ts": to_ts})
    calls_table = whole.sql(f"FROM replay_calls{time}", {**place, "to_ts": calls_to_ts})
    recorded = whole.sql(f"FROM recorded_waits{on_device}", {**place, "of_device": device, "to_ts": calls_to_ts})
    calls, rows = _arrays(calls_table, rows_table, step)
    own = np.flatnonzero(rows.own)
    follows = step is not None and rows.ts[-1] == to_ts and not rows.own[-1]
    last = len(rows) - 1 if follows else -1
    measured = (int(rows.ts[last]) if follows else int(rows.end[own].max())) - int(rows.ts[own[0]])
    schedule, inferred = build(calls, rows, pace, recorded, first_row=int(own[0]), last_row=last)
    found = Step(rank, device, step, phase, bucket, calls, rows, schedule, measured, pace, inferred)
    if before is None or step is None:
        return found
    earlier = replace(found, step=step - 1, rows=replace(rows, own=numbers(rows_table, "step") == step - 1))
    return replace(found, lead=earlier)


@dataclass(frozen=True, slots=True)
class _Extent:
    """Of a step's work, ns. from_ts: its first row, or the first of its calls if that is earlier."""

    from_ts: int
    first_ts: int
    end_ts: int
    calls_end_ts: int


def _extent(trace: Trace, rank: int, device: int | None, step: int | None) -> _Extent | None:
    """None if the device did no work in the step."""
    (found,) = trace.sql(
        """
        SELECT
            min(d.ts) AS first_ts,
            max(d.ts + d.dur) AS end_ts,
            min(l.ts) AS call_ts,
            max(l.ts + l.dur) AS call_end_ts
        FROM device_activity AS d
        LEFT JOIN launches AS l ON l.id = d.launch_id
        WHERE d.rank = $rank
            AND d.device IS NOT DISTINCT FROM $device
            AND ($step IS NULL OR d.step = $step)
        """,
        {"rank": rank, "device": device, "step": step},
    ).to_pylist()
    first, end, called = found["first_ts"], found["end_ts"], found["call_ts"]
    if first is None:
        return None
    calls_end = end if step is None or called is None else found["call_end_ts"]
    return _Extent(first if called is None else min(first, called), first, end, calls_end)


def _until(trace: Trace, rank: int, device: int | None, step: int | None, extent: _Extent) -> tuple[int, int]:
    """To when rows of the window begin, and to when calls: those of the first work of the next step, if one follows."""
    if step is None:
        return extent.end_ts, extent.calls_end_ts
    (after,) = trace.sql(
        """
        SELECT
            min(d.ts) AS ts,
            arg_min(l.ts, d.ts) AS call_ts
        FROM device_activity AS d
        LEFT JOIN launches AS l ON l.id = d.launch_id
        WHERE d.rank = $rank
            AND d.device IS NOT DISTINCT FROM $device
            AND d.step = $step + 1
            AND d.ts > $first_ts
        """,
        {"rank": rank, "device": device, "step": step, "first_ts": extent.first_ts},
    ).to_pylist()
    if after["ts"] is None:
        return extent.end_ts, extent.calls_end_ts
    return after["ts"], after["ts"] if after["call_ts"] is None else after["call_ts"]


def _arrays(calls: pa.Table, rows: pa.Table, step: int | None) -> tuple[Calls, Rows]:
    """Both as arrays. Calls that neither started one of the rows nor may wait are host time like any other."""
    launch_ids = numbers(rows, "launch_id")
    waits = np.array([wait not in ("", "own") for wait in calls["wait"].to_pylist()], np.bool_)
    calls = calls.take(pa.array(np.flatnonzero(waits | np.isin(numbers(calls, "id"), launch_ids))))
    call_ids = numbers(calls, "id")
    by_id = np.argsort(call_ids, kind="stable")
    at = np.minimum(np.searchsorted(call_ids[by_id], launch_ids), max(0, len(call_ids) - 1))
    known = call_ids[by_id][at] == launch_ids if len(call_ids) else np.zeros(len(launch_ids), np.bool_)
    call_of = np.where(known, by_id[at] if len(call_ids) else 0, -1)
    own = np.ones(len(launch_ids), np.bool_) if step is None else numbers(rows, "step") == step
    threads = list(zip(calls["pid"].to_pylist(), calls["tid"].to_pylist(), strict=True))
    thread_numbers = {one: number for number, one in enumerate(dict.fromkeys(threads))}
    found_rows = Rows(
        numbers(rows, "id"), numbers(rows, "ts"), numbers(rows, "dur"), numbers(rows, "stream"), call_of,
        numbers(rows, "op_id"), own, launch_ids != ABSENT, rows["kind"].to_pylist(), rows["name"].to_pylist(),
        rows["category"].to_pylist(), rows["subcategory"].to_pylist(),
        numbers(rows, "elements_in"),
    )  # fmt: skip
    names, kinds = calls["name"].to_pylist(), calls["wait"].to_pylist()
    ts, dur = numbers(calls, "ts"), numbers(calls, "dur")
    causes = [
        _CAUSES.get(wait, "graph_launch" if "GraphLaunch" in name else "")
        for name, wait in zip(names, kinds, strict=True)
    ]
    for row in np.flatnonzero(call_of >= 0).tolist():
        if "Pageable" in found_rows.name[row]:
            causes[call_of[row]] = "pageable_copy"
    started = np.bincount(call_of[call_of >= 0], minlength=len(call_ids)).astype(np.int64)
    thread = np.array([thread_numbers[one] for one in threads], np.int64)
    return Calls(call_ids, ts, dur, thread, names, kinds, causes, calls["op"].to_pylist(), started), found_rows
