"""Where does the time of a step, or of a recording, go: busy by category, idle by cause, to the last nanosecond?

A shared macro cannot say it: DuckDB binds macros when they are made, and that of an analysis (idle_gaps) is made after
all shared ones. So it is a query here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.trace import Trace

_PARTS = """
    SELECT
        rank,
        device,
        step,
        'busy' AS part,
        category AS name,
        exclusive_ns AS ns
    FROM classified_segments()
    UNION ALL
    SELECT
        rank,
        device,
        step,
        'idle' AS part,
        cause AS name,
        dur AS ns
    FROM idle_gaps()
"""
_OF_STEPS = f"""
WITH steady AS MATERIALIZED (
    SELECT
        *,
        count(*) OVER (PARTITION BY rank, device, phase, bucket) AS steps
    FROM step_time()
    WHERE kind = 'steady'
),
parts AS ({_PARTS})
SELECT
    s.rank,
    s.device,
    s.phase,
    s.bucket,
    any_value(s.requests_to) AS requests_to,
    any_value(s.tokens_to) AS tokens_to,
    any_value(s.steps) AS steps,
    p.part,
    p.name,
    sum(p.ns)::BIGINT AS ns
FROM steady AS s
JOIN parts AS p
    ON p.rank = s.rank
    AND p.device IS NOT DISTINCT FROM s.device
    AND p.step = s.step
GROUP BY
    s.rank,
    s.device,
    s.phase,
    s.bucket,
    p.part,
    p.name
HAVING sum(p.ns) > 0
ORDER BY
    s.rank,
    s.device,
    list_position(['decode', 'verify', 'draft', 'mixed', 'prefill', 'unknown'], s.phase),
    requests_to NULLS LAST,
    tokens_to NULLS FIRST,
    p.part,
    ns DESC,
    p.name
"""
_OF_SPAN = f"""
WITH parts AS ({_PARTS})
SELECT
    rank,
    device,
    part,
    name,
    sum(ns)::BIGINT AS ns
FROM parts
GROUP BY
    rank,
    device,
    part,
    name
HAVING sum(ns) > 0
ORDER BY
    rank,
    device,
    part,
    ns DESC,
    name
"""


def step_budget(trace: Trace) -> pa.Table:
    """Time charged to the steady steps in the scope, by device, phase and size of batch: per part one row.

    Columns: rank INTEGER, device BIGINT, phase VARCHAR, bucket VARCHAR, requests_to BIGINT, tokens_to BIGINT (these as
    in step_time), steps BIGINT (of the group), part VARCHAR ("busy" or "idle"), name VARCHAR (of a busy part the
    category, of an idle one the cause), ns BIGINT (> 0, summed over the steps). Of each group the parts add up to the
    busy_ns + idle_ns + gap_before_ns of its steps in step_time. No row where no step is steady.
    """
    rows: pa.Table = trace.once(("step_budget",), lambda: trace.sql(_OF_STEPS))
    return rows


def span_budget(trace: Trace) -> pa.Table:
    """All time of each device in the scope, in steps or not: per part one row.

    Columns: rank INTEGER, device BIGINT, part, name, ns as in step_budget. Of each device the parts add up to span_ns
    of device_time.
    """
    rows: pa.Table = trace.once(("span_budget",), lambda: trace.sql(_OF_SPAN))
    return rows


def why_no_idle_time(trace: Trace) -> str:
    """Why holes in the recorded work may be work that was not recorded, "" if they are idle time: then causes mean
    nothing.
    """
    gaps = trace.analyze("idle_gaps")
    return gaps.coverage.reason if any(row["idle_ns"] is None for row in gaps.summary) else ""
