"""Can this trace be trusted? What was read, what is missing, and which results suffer from it.

Of the whole trace, whatever part of it the other analyses are to look at: what a part lacks may lie outside of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses import _health_sums as sums
from tracekit.analyses._missing import CANNOT_TELL, cut, no_device
from tracekit.analysis import Coverage, Finding, Result, Row, Scalar, duration
from tracekit.footer import Footer
from tracekit.join import LEFT_APART
from tracekit.trace import Trace
from tracekit.wording import counted

Status = Literal["ok", "warn", "fail"]

_NO_ACTIVITY = (
    "no device activity was recorded though the host launched work. Likely causes: CUDA activities were not asked for; "
    "CUPTI may not profile (ERR_NVGPUCTRPERM: needs root, SYS_ADMIN or a driver setting); another profiler was "
    "attached; the work ran in a child process or outside the recorded window"
)
_CPU_ONLY = "no device activity and no launch: a CPU-only trace, so host op time is all it can tell"
_FEW_ANCHORS = 3  # ranges of one name may be alike by chance
_LOSSES = ("unreadable", "not an object", "unusable")  # beginnings of reasons to skip that mean an event was lost
_HARMLESS = ("process or thread given as text",)  # of repairs: Kineto's own marks are so


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. `example` is an event id to look at."""

    check: str
    status: Status
    count: int
    detail: str
    example: int | None = None


class Health:
    """Checks of the file, the recording and the links between host and device."""

    name = "health"
    question = "Can this trace be trusted?"
    parameters: Mapping[str, Scalar] = MappingProxyType(
        {
            "missing_share": 0.01,  # of launches without device work, of device work without a launch
            "unfinished_share": 0.1,  # of device rows without a recorded end
            "other_share": 0.1,
            "unattributed_share": 0.2,  # of the span: idle time without a cause
            "skew_ns": 1_000,
        }
    )

    def run(self, trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
        """Measure with the macro health and the footer's ledger; each check that is not ok becomes a finding."""
        trace = trace.whole
        measured = {row["check"]: row for row in trace.macro(self.name).to_pylist()}
        by_rank = trace.sql("SELECT rank, count(*) AS steps FROM steps GROUP BY rank ORDER BY rank").to_pylist()
        checks = [
            *_file_checks(trace.footer),
            *_activity_checks(measured, parameters, trace.footer),
            *_link_checks(measured, parameters),
            *_name_checks(measured, parameters),
            *_step_checks(measured, by_rank, trace.footer),
            *_idle_checks(trace, float(parameters["unattributed_share"] or 0)),
        ]
        linked = measured["device_work_without_launch"]
        counts = {status: sum(check.status == status for check in checks) for status in ("ok", "warn", "fail")}
        return Result(
            self.name,
            parameters,
            ({"status": _worst(checks), **counts},),
            _table(checks),
            tuple(_finding(trace, check, measured) for check in checks if check.status != "ok"),
            Coverage(
                (linked["total_ns"] or 0) - (linked["ns"] or 0),
                linked["total_ns"] or 0,
                "" if linked["total"] else _CPU_ONLY,
            ),
        )


def _worst(checks: list[Check]) -> Status:
    found = {check.status for check in checks}
    return "fail" if "fail" in found else "warn" if "warn" in found else "ok"


def _table(checks: list[Check]) -> pa.Table:
    return pa.table(
        {
            "check": pa.array([check.check for check in checks], pa.string()),
            "status": pa.array([check.status for check in checks], pa.string()),
            "count": pa.array([check.count for check in checks], pa.int64()),
            "detail": pa.array([check.detail for check in checks], pa.string()),
        }
    )


def _finding(trace: Trace, check: Check, measured: Mapping[str, Row]) -> Finding:
    is_idle = check.check == "unattributed_idle"
    lines = (
        sums.unattributed(trace.analyze("idle_gaps")) if is_idle else sums.counted(check.check, measured, trace.footer)
    )
    return Finding(
        severity="critical" if check.status == "fail" else "warning",
        title=f"{check.check}: {check.detail}",
        evidence=() if check.example is None else (check.example,),
        arithmetic=tuple(lines),
    )


def _file_checks(footer: Footer) -> Iterator[Check]:
    ledger = footer.ledger
    skipped = sum(ledger.skipped.values())
    read = f"{ledger.read:,} read = {ledger.stored:,} stored + {skipped:,} skipped"
    if ledger.read != ledger.stored + skipped:
        read = (
            f"{ledger.read:,} read, but {ledger.stored:,} stored and {skipped:,} skipped: some were lost on the way, "
            "a mistake of tracekit; convert the file anew"
        )
        yield Check("events", "fail", ledger.read, read)
    elif ledger.stored == 0:
        yield Check("events", "fail", ledger.read, f"{read}: nothing was recorded; was the profiler running?")
    else:
        yield Check("events", "ok", ledger.read, read)
    lost = sum(count for reason, count in ledger.skipped.items() if reason.startswith(_LOSSES))
    gone = "; what was lost is missing from all times" if lost else ""
    yield Check("skipped", "warn" if lost else "ok", skipped, _reasons(ledger.skipped) + gone)
    repaired = sum(ledger.repaired.values())
    altered = any(count for reason, count in ledger.repaired.items() if not reason.startswith(_HARMLESS))
    doubt = "; trust these rows less" if altered else ""
    yield Check("repaired", "warn" if altered else "ok", repaired, _reasons(ledger.repaired) + doubt)
    count = sum(source.truncated_at is not None for source in footer.sources)
    yield Check(
        "truncated",
        "warn" if count else "ok",
        count,
        f"cut short: {cut(footer)}; what came later is missing, get the whole file"
        if count
        else "no file was cut short",
    )
    yield _rank_check(footer)
    yield _capture_check(footer)
    yield from _clock_checks(footer)


def _reasons(counts: Mapping[str, int]) -> str:
    listed = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{reason}: {count:,}" for reason, count in listed if count) or "none"


def _rank_check(footer: Footer) -> Check:
    present = footer.ranks
    world = max((source.world_size or 0 for source in footer.sources), default=0)
    missing = sorted(set(range(world)) - set(present))
    if not missing:
        others = sum(rank >= world for rank in present) if world else 0  # processes outside the job: API servers
        of_job = f"{len(present) - others} present" + (f" of {world}" if world else "")
        return Check("ranks", "ok", len(present), of_job + (f", and {others} outside the job" if others else ""))
    if len(present) == 1:
        alone = f"rank {present[0]} alone of {world}: time waiting for peers cannot be told apart; convert all together"
        return Check("ranks", "warn", 1, alone)
    names = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    return Check(
        "ranks", "warn", len(present), f"{len(present)} of {world} present, missing: {names}; convert all together"
    )


def _capture_check(footer: Footer) -> Check:
    reasons = footer.partial
    return Check(
        "capture",
        "warn" if reasons else "ok",
        len(reasons),
        f"less was recorded than was asked for: {'; '.join(reasons)}" if reasons else "nothing is known to be missing",
    )


def _clock_checks(footer: Footer) -> Iterator[Check]:
    """Of traces made from files of two profilers."""
    apart = footer.ledger.notes.get(LEFT_APART, 0)
    if apart:
        yield Check(
            "left_apart",
            "warn",
            apart,
            f"{counted(apart, 'file')} of torch.profiler could be of the same process as several other files, so none "
            "was joined and each is a rank of its own; convert what belongs together alone, or name files by rank",
        )
    clocks = [one for one in footer.capture.get("clocks") or () if isinstance(one, dict)]
    unknown = [f"{one['file']} and {one['reference']}" for one in clocks if one["anchors"] < _FEW_ANCHORS]
    if unknown:
        yield Check(
            "clocks",
            "warn",
            len(unknown),
            f"hardly a range is in both of {'; '.join(unknown)}, so how far their clocks differ is unknown: calls near "
            "the edge of an op may be linked to its neighbour; mark steps with tracekit.step, which both record",
        )
    elif clocks:
        anchors, spread = sum(one["anchors"] for one in clocks), max(one["spread_ns"] for one in clocks)
        said = f"clocks of two profilers agree to {duration(spread)}, by {counted(anchors, 'range')} in both"
        yield Check("clocks", "ok", anchors, said)


def _activity_checks(measured: Mapping[str, Row], parameters: Mapping[str, Scalar], footer: Footer) -> Iterator[Check]:
    rows = measured["device_work_without_launch"]["total"]
    launches = measured["launches_without_device_work"]
    if rows:
        yield Check("device_activity", "ok", rows, counted(rows, "device row"))
    elif cut(footer):
        yield Check("device_activity", "fail" if launches["total"] else "warn", 0, no_device(footer))
        return
    elif launches["total"]:
        calls = counted(launches["total"], "launch call")
        yield Check("device_activity", "fail", 0, f"{calls}, {_NO_ACTIVITY}", launches["example"])
        return
    else:
        yield Check("device_activity", "ok", 0, _CPU_ONLY)
    yield _end_check(measured["no_end_recorded"], float(parameters["unfinished_share"] or 0))
    silent = measured["ranks_without_device_activity"]
    yield Check(
        "ranks_without_device_activity",
        "fail" if silent["count"] else "ok",
        silent["count"],
        f"launch calls but no device rows: {', '.join(silent['names'])}" if silent["count"] else "none",
        silent["example"],
    )
    zero = measured["zero_duration"]
    yield Check("zero_duration", "ok", zero["count"], f"{counted(zero['count'], 'device row')} of no duration")
    giant = measured["dominating_row"]
    yield Check(
        "dominating_row",
        "warn" if giant["count"] else "ok",
        giant["count"],
        "one row takes more than half of its device's span, which may be a recording error; look at it before the "
        f"shares: {giant['names'][0]}"
        if giant["count"]
        else "none",
        giant["example"],
    )


def _end_check(row: Row, threshold: float) -> Check:
    status: Status = "ok" if not row["count"] else "warn" if row["count"] <= threshold * row["total"] else "fail"
    detail = f"{row['count']:,} of {counted(row['total'], 'device row')} without a recorded end"
    if status != "ok":
        detail += ", counted as if they took no time"
    if status == "fail":
        detail += ": busy and idle time cannot be told; record again and stop the profiler before the program ends"
    return Check("no_end_recorded", status, row["count"], detail, row["example"])


def _link_checks(measured: Mapping[str, Row], parameters: Mapping[str, Scalar]) -> Iterator[Check]:
    rows = measured["device_work_without_launch"]["total"]
    threshold = float(parameters["missing_share"] or 0)
    silent = measured["launches_without_device_work"]
    missing = rows and silent["count"] > threshold * silent["total"]
    yield Check(
        "launches_without_device_work",
        "warn" if missing else "ok",
        silent["count"],
        f"{silent['count']:,} of {counted(silent['total'], 'launch call')}{_named(silent)}"
        + ("; their work, unless its turn came later, looks like idle time" if missing else ""),
        silent["example"],
    )
    graphs = measured["graph_launches_without_work"]
    yield Check(
        "graph_launches_without_work",
        "fail" if graphs["count"] > threshold * graphs["total"] else "ok",
        graphs["count"],
        f"{graphs['count']:,} of {counted(graphs['total'], 'graph replay')}"
        + (": their kernels were not recorded, so their time looks idle and is not" if graphs["count"] else ""),
        graphs["example"],
    )
    orphans, head = measured["device_work_without_launch"], measured["launched_before_recording"]
    yield Check(
        "device_work_without_launch",
        "warn" if orphans["count"] > threshold * orphans["total"] else "ok",
        orphans["count"],
        f"{orphans['count']:,} of {counted(rows, 'device row')}, {head['count']:,} of them queued before the recording "
        "began: counted as busy, but step and cause unknown"
        if orphans["count"]
        else f"0 of {counted(rows, 'device row')}",
        orphans["example"],
    )
    skew = measured["starts_before_launch"]
    yield Check(
        "starts_before_launch",
        "warn" if (skew["ns"] or 0) > float(parameters["skew_ns"] or 0) else "ok",
        skew["count"],
        f"device rows that start before their call, by up to {duration(skew['ns'])}: host and device clocks differ, "
        "so causes of gaps shorter than that are uncertain"
        if skew["count"]
        else "none",
        skew["example"],
    )


def _named(row: Row) -> str:
    return f": {', '.join(row['names'][:3])}" if row["count"] else ""


def _name_checks(measured: Mapping[str, Row], parameters: Mapping[str, Scalar]) -> Iterator[Check]:
    unlinked, other = measured["device_time_without_op"], measured["unclassified_time"]
    busy = unlinked["total_ns"] or 0
    if not busy:
        return
    with_op = 1 - (unlinked["ns"] or 0) / busy
    yield Check(
        "device_time_with_op",
        "ok",
        unlinked["total"] - unlinked["count"],
        f"{with_op:.1%} of the busy time has a host op"
        + ("" if with_op > 0.5 else ": kernels of replayed graphs have none"),
    )
    share = (other["ns"] or 0) / busy
    large = share > float(parameters["other_share"] or 0)
    yield Check(
        "unclassified_time",
        "warn" if large else "ok",
        other["count"],
        f"{share:.1%} of the busy time is in category other{_named(other)}"
        + ("; name them in a rules file (--rules)" if large else ""),
        other["example"],
    )
    replays = measured["opaque_replays"]
    if replays["count"]:
        yield Check(
            "opaque_replays",
            "ok",
            replays["count"],
            f"{(replays['ns'] or 0) / busy:.1%} of the busy time is in graph replays recorded as one block: which "
            "kernels ran in them is unknown; nsys profile --cuda-graph-trace=node records these, at a cost",
            replays["example"],
        )


def _step_checks(measured: Mapping[str, Row], by_rank: list[Row], footer: Footer) -> Iterator[Check]:
    empty = measured["steps_without_device_work"]
    rows = measured["device_work_without_launch"]["total"]
    if not by_rank:
        yield Check("steps", "ok", 0, "no step markers: phases are unknown; totals, categories and gaps still hold")
    else:
        yield Check(
            "steps", "ok", empty["total"], f"{counted(empty['total'], 'step')} in {counted(len(by_rank), 'rank')}"
        )
        unusable = rows and empty["total"] > 1 and 2 * empty["count"] >= empty["total"]
        yield Check(
            "steps_without_device_work",
            "warn" if unusable else "ok",
            empty["count"],
            f"{empty['count']:,} of {counted(empty['total'], 'step')}"
            + (" launched no recorded work: do not judge single steps; sums over the trace hold" if unusable else ""),
            empty["example"],
        )
    memory = measured["memory_events"]["count"]
    asked = bool(footer.capture.get("profile_memory"))
    yield Check(
        "memory_events",
        "warn" if asked and not memory else "ok",
        memory,
        "memory was to be recorded, none was; record again"
        if asked and not memory
        else counted(memory, "memory event"),
    )


def _idle_checks(trace: Trace, threshold: float) -> Iterator[Check]:
    """Causes are not told here, but a user who looks no further should know that many are missing."""
    idle = trace.analyze("idle_gaps")
    shares = [row["by_cause"].get("unattributed", 0) / row["span_ns"] for row in idle.summary if row["span_ns"]]
    if not shares or idle.coverage.reason.startswith(CANNOT_TELL):
        return
    unknown = idle.table.filter(pc.field("cause") == "unattributed")
    large = max(shares) > threshold
    where = "" if len(shares) == 1 else " of the worst device"
    yield Check(
        "unattributed_idle",
        "warn" if large else "ok",
        unknown.num_rows,
        f"{max(shares):.1%} of the span{where} is idle without a cause"
        + ("; record Python stacks (tracekit collect --stacks; torch.profiler: with_stack=True)" if large else ""),
        pc.min(unknown["after_id"]).as_py() if large else None,
    )


ANALYSIS = Health()
