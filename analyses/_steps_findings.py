"""What is worth saying of steps: where they vary, what lies outside them, which are empty, which are a guess."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses import _arithmetic as arithmetic
from tracekit.analysis import Finding, Row, Scalar, duration
from tracekit.trace import Trace
from tracekit.wording import counted

_SHOWN = 5  # steps shown as evidence, kernels named
_NAME = 60  # characters of a name in a sentence

_LOOKED_AT = "in_scope(rank, NULL, step) AND in_window(ts, 0)"  # steps that begin in what is looked at
_MARKS = """
    SELECT
        step,
        id
    FROM steps
    WHERE rank = $rank
        AND step IN (SELECT unnest($steps))
        AND id IS NOT NULL
"""
_OUTSIDE = """
    WITH streams AS (
        SELECT
            stream,
            min(ts) AS linked_ts
        FROM device_activity
        WHERE rank = $rank
            AND device IS NOT DISTINCT FROM $device
            AND launch_id IS NOT NULL
        GROUP BY stream
    )
    SELECT
        b.name,
        sum(b.exclusive_ns)::BIGINT AS ns,
        coalesce(sum(b.exclusive_ns) FILTER (b.launch_id IS NULL), 0)::BIGINT AS unlinked_ns,
        arg_max(b.id, (b.exclusive_ns, -b.id)) AS example
    FROM busy_segments() AS b
    LEFT JOIN streams AS s ON s.stream IS NOT DISTINCT FROM b.stream
    WHERE b.rank = $rank
        AND b.device IS NOT DISTINCT FROM $device
        AND b.step IS NULL
        -- Not what was in flight when the recording began.
        AND (b.launch_id IS NOT NULL OR b.ts >= coalesce(s.linked_ts, b.ts))
    GROUP BY b.name
    ORDER BY
        ns DESC,
        b.name
"""


@dataclass(frozen=True, slots=True)
class _Part:
    """Where the time goes that slow steps take longer. column: of step_time."""

    column: str
    words: str
    remedy: str
    cost: str


_PARTS = (
    _Part(
        "busy_ns",
        "more work on the GPU",
        "Compare the kernels of a slow step with those of a usual one (events.step). More kernels or longer attention: "
        "the batch differs within the bucket (longer contexts, larger chunks). The same kernels at a lower speed: "
        "clocks, another job on the GPU or, in collectives, a slower rank.",
        "Nothing to look; smaller chunks delay the first token.",
    ),
    _Part(
        "idle_ns",
        "idle time inside the steps",
        "See in idle_gaps what the host did in these steps: garbage collection, allocation, a wait for the GPU, or the "
        "compilation of a new shape. Freeze the collector after warm-up, warm up all shapes, or replay a CUDA graph.",
        "A longer start; memory of the graphs.",
    ),
    _Part(
        "gap_next_ns",
        "idle time after the steps",
        "See in idle_gaps what the host did after these steps. Scheduling, sampling or detokenising: overlap it with "
        "the step (asynchronous scheduling), or move it to another process. Waiting for requests is no fault.",
        "Asynchronous scheduling excludes some features of the engines.",
    ),
)


# ---- steps that vary -------------------------------------------------------------------------------------------------


def varying(trace: Trace, table: Sequence[Row], many: bool, parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    """One for each phase and bucket whose periods spread, on the device where they do most."""
    least, ratio = int(parameters["steady_steps"] or 0), float(parameters["p99_ratio"] or 0)
    spread: dict[tuple[str, str], list[Row]] = {}
    for row in table:
        if row["kind"] == "steady" and row["count"] >= least and row["period_p50_ns"] and _ratio(row) > ratio:
            spread.setdefault((row["phase"], row["bucket"]), []).append(row)
    times = trace.macro("step_time") if spread else None
    for rows in spread.values():
        worst = max(rows, key=_ratio)
        where = f" on rank {worst['rank']} device {worst['device']}" if many else ""
        where += f", the worst of {len(rows)} devices" if len(rows) > 1 else ""
        assert times is not None
        yield _varying(trace, worst, _slow(times, worst, ratio), where)


def _ratio(row: Row) -> float:
    return float(row["period_p99_ns"] / row["period_p50_ns"])


def _slow(times: pa.Table, group: Row, ratio: float) -> list[Row]:
    """Steps of the group whose period is so many times its median, slowest first."""
    chosen = (pc.field("period_ns") > ratio * group["period_p50_ns"]) & (pc.field("kind") == "steady")
    for key in ("rank", "phase", "bucket"):
        chosen &= pc.field(key) == group[key]
    chosen &= pc.field("device").is_null() if group["device"] is None else pc.field("device") == group["device"]
    slow: list[Row] = times.filter(chosen).sort_by([("period_ns", "descending"), ("step", "ascending")]).to_pylist()
    return slow


def _varying(trace: Trace, group: Row, slow: Sequence[Row], where: str) -> Finding:
    usual = {part: group[f"{part.column.removesuffix('_ns')}_p50_ns"] for part in _PARTS}
    more = {part: sum(max(0, step[part.column] - usual[part]) for step in slow) for part in _PARTS}
    part = max(_PARTS, key=lambda one: more[one])
    extra = sum(step["period_ns"] - group["period_p50_ns"] for step in slow)
    listed = ", ".join(f"{step['step']} ({duration(step['period_ns'])})" for step in slow[:_SHOWN])
    listed = f"step{'s' * (len(slow) > 1)} {listed}{', ...' if len(slow) > _SHOWN else ''}"
    known = group["bucket"] != "unknown"
    detail = (
        f"{len(slow)} of {counted(group['count'], 'steady step')} took {duration(extra)} more to the next step's start "
        f"than the median, mostly {part.words} ({duration(more[part])}): {listed}."
    )
    if group["count"] < 100:
        detail += " Of fewer than 100 steps the P99 is the longest."
    if not known:
        detail += " The marks do not tell the batch: these may be different batches."
    name = f"{group['phase']} steps" if group["phase"] != "unknown" else "steps of unknown phase"
    batch = f" of batch {group['bucket']}" if known else ""
    return Finding(
        severity="warning" if known else "info",
        title=f"{name}{batch} vary: the P99 of the period is {_ratio(group):.1f} x its P50{where}",
        detail=detail,
        evidence=_marks(trace, group["rank"], [step["step"] for step in slow[:_SHOWN]]),
        remedy=part.remedy,
        cost=part.cost,
        verify="Same load, this one change: P50 and P99 of the period, same phase and batch.",
        arithmetic=tuple(_spread(group, part, [step[part.column] for step in slow], usual[part], extra)),
    )


def _spread(group: Row, part: _Part, slow: Sequence[int], usual: int, extra: int) -> Iterator[str]:
    """slow: of each slow step the part that most of what it took more is in. extra: what all took more in all."""
    here = f"kind = 'steady' AND phase = {group['phase']!r} AND bucket = {group['bucket']!r}"
    chosen = f"FROM steps() WHERE {arithmetic.on(group['rank'], group['device'])} AND {here}"
    median, p99 = group["period_p50_ns"], group["period_p99_ns"]
    yield arithmetic.queried("P50 of the period", f"SELECT period_p50_ns {chosen}", median)
    yield arithmetic.queried("P99 of the period", f"SELECT period_p99_ns {chosen}", p99)
    yield f"ratio: {arithmetic.amount(p99)} / {arithmetic.amount(median)} = {p99 / median:.1f}"
    count, took = len(slow), median * len(slow) + extra
    median_of_all = f"{arithmetic.amount(median)} * {count:,} steps"
    yield f"the slow steps more than so many medians: {arithmetic.amount(took)} - {median_of_all} = " + (
        arithmetic.amount(extra)
    )
    above = [ns - usual for ns in slow if ns > usual]
    if above:
        yield (
            f"of that {part.words}: {arithmetic.amount(sum(above) + usual * len(above))} - "
            f"{arithmetic.amount(usual)} * {len(above):,} steps = {arithmetic.amount(sum(above))}"
        )


def _marks(trace: Trace, rank: int, steps: Sequence[int]) -> tuple[int, ...]:
    """Event ids of the marks of these steps, in their order."""
    found = {row["step"]: row["id"] for row in trace.sql(_MARKS, {"rank": rank, "steps": list(steps)}).to_pylist()}
    return tuple(found[step] for step in steps if step in found)


# ---- what is in no step, and steps without work ----------------------------------------------------------------------


def outside(trace: Trace, summary: Sequence[Row], many: bool, parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    """One for the device where most of the busy time is in no step."""
    shares = [(row["outside_busy_ns"] / busy, row) for row in summary if row["steps"] and (busy := _busy(row))]
    share, worst = max(shares, key=lambda one: one[0], default=(0.0, None))
    if worst is None or share <= float(parameters["outside_share"] or 0):
        return
    names = trace.sql(_OUTSIDE, {"rank": worst["rank"], "device": worst["device"]}).to_pylist()
    listed = "; ".join(f"{_short(row['name'])} ({duration(row['ns'])})" for row in names[:_SHOWN])
    unlinked = sum(row["unlinked_ns"] for row in names)
    where = f" on rank {worst['rank']} device {worst['device']}" if many else ""
    yield Finding(
        severity="warning",
        title=f"{share:.1%} of the busy time is in no step{where}",
        detail=f"Mostly {listed}."
        + (f" {duration(unlinked)} of it has no recorded launch, so its step is unknown." if unlinked else ""),
        evidence=tuple(row["example"] for row in names[:_SHOWN]),
        remedy="Put marks around the code that launches it (tracekit.step), or say which ranges are steps "
        "(--step-range). Work of another thread or engine on the same GPU is in no step, yet delays them all.",
        cost="A few lines; a range costs microseconds on the host.",
        verify="Record again: outside_busy_ns in the summary of steps.",
        arithmetic=tuple(_outside_sums(worst)),
    )


def _outside_sums(device: Row) -> Iterator[str]:
    chosen = f"FROM span_by_place() WHERE {arithmetic.on(device['rank'], device['device'])}"
    busy = _busy(device)
    yield arithmetic.queried("busy, in no step", f"SELECT outside_busy_ns {chosen}", device["outside_busy_ns"])
    parts = "inside_busy_ns + outside_busy_ns + prefix_busy_ns"
    yield arithmetic.queried("busy", f"SELECT {parts} {chosen}", busy)
    yield arithmetic.share("share", device["outside_busy_ns"], busy)


def _busy(row: Row) -> int:
    return int(row["inside_busy_ns"] + row["outside_busy_ns"] + row["prefix_busy_ns"])


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."


def empty(ranks: Sequence[Row], parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    """One for the rank with the largest share of empty steps; none where no step of a rank has work."""
    hit = [row for row in ranks if 0 < row["empty_steps"] < row["steps"]]
    worst = max(hit, key=lambda row: row["empty_steps"] / row["steps"], default=None)
    if worst is None or worst["empty_steps"] < int(parameters["empty_steps"] or 0):
        return
    if worst["empty_steps"] / worst["steps"] <= float(parameters["empty_share"] or 0):
        return
    where = f" on rank {worst['rank']}" if len(ranks) > 1 else ""
    before, after = worst["empty_before"], worst["empty_after"]
    amid = worst["empty_steps"] - before - after
    parts = [
        f"{count:,} {words}"
        for count, words in (
            (before, "before the first work on the GPU"),
            (amid, "between others"),
            (after, "after the last work on the GPU"),
        )
        if count
    ]
    yield Finding(
        severity="info",
        title=f"{worst['empty_steps']:,} of {counted(worst['steps'], 'step')} launched no recorded work{where}",
        detail=f"{', '.join(parts)}. They are in no quantile. Before and after, the GPU was not recorded; between "
        "others, the engine went through a step with nothing to run.",
        evidence=tuple((worst["empty_ids"] or ())[:_SHOWN]),
        remedy="At the ends: start and stop the GPU's recording with the host's (more warm-up steps in the profiler's "
        "schedule, a longer flush). Between others: see why the scheduler had nothing to run (no requests, no free "
        "KV-cache blocks, another rank's turn).",
        cost="Nothing while it is only the recording.",
        verify="Record again: empty_steps in the summary of steps.",
        arithmetic=(
            arithmetic.queried(
                "steps without work",
                f"SELECT count(*) FROM step_kinds() AS k JOIN steps AS s USING (rank, step) WHERE {_LOOKED_AT} AND "
                f"rank = {worst['rank']} AND kind = 'empty'",
                worst["empty_steps"],
                "steps",
            ),
            arithmetic.share("share", worst["empty_steps"], worst["steps"], "steps"),
        ),
    )


def inferred(ranks: Sequence[Row]) -> Iterator[Finding]:
    """One for all ranks whose steps are a guess."""
    if not ranks:
        return
    where = "" if len(ranks) == 1 else f" in {len(ranks)} ranks"
    yield Finding(
        severity="info",
        title=f"steps are inferred from the launches, not marked{where}",
        detail=f"{counted(sum(row['steps'] for row in ranks), 'step')} from what repeats in the sequence of launches. "
        "Phase and batch are unknown; nothing is judged by them.",
        remedy="Mark steps: tracekit.step in your own loop, --step-range for ranges that are there already, or the "
        "engine's own annotations.",
        cost="A few lines; a range costs microseconds on the host.",
        verify="Record again: source in the summary of steps.",
        arithmetic=tuple(_counts([row["steps"] for row in ranks])),
    )


def _counts(steps: Sequence[int]) -> Iterator[str]:
    query = f"SELECT count(*) FROM steps WHERE {_LOOKED_AT} AND source = 'inferred'"
    yield arithmetic.queried("steps", query, sum(steps), "steps")
    if len(steps) > 1:
        yield arithmetic.total("of all ranks", steps, "steps")
