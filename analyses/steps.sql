-- How long do serving steps take, and how busy is the GPU in them? One row per device, kind of step, phase and size of
-- batch, so that unlike steps are never averaged; steps without device work have rows of their own, with times of the
-- host alone.
-- `FROM steps` is the view with one row a step, `FROM steps()` is this. Quantiles are by nearest rank: a time that was
-- measured, the one at position ceil(q * count) in order; so the P99 of fewer than 100 steps is the longest.
-- threshold p99_ratio: P99 of the period to its median, above which steps vary.
-- threshold steady_steps: steps of one phase and bucket that it takes to judge them.
-- threshold outside_share: share of the busy time in no step, above which there is a finding.
-- threshold empty_share: share of a rank's steps without recorded work, above which there is a finding.
-- threshold empty_steps: fewer of these are what profilers leave at the ends of a recording.
-- threshold missing_share: share of launches without device work, or of device rows without an end, above which nothing
--                          is told.
-- column rank INTEGER: rank.
-- column device BIGINT: device, NULL for steps without device work.
-- column kind VARCHAR: steady, first, warm_up, empty, as in step_kinds.
-- column phase VARCHAR: prefill, decode, mixed, verify, draft, unknown.
-- column bucket VARCHAR: size of the batch, as in step_batches.
-- column requests_to BIGINT: upper bound of the bucket in requests, to sort by.
-- column tokens_to BIGINT: upper bound in tokens, with prefill only.
-- column count BIGINT: steps.
-- column p50_ns BIGINT: median of wall_ns: from the first start to the last end of a step's work on the device.
-- column p90_ns BIGINT: its 90th percentile.
-- column p99_ns BIGINT: its 99th.
-- column busy_p50_ns BIGINT: time alone of a step's work.
-- column busy_p90_ns BIGINT: its 90th percentile.
-- column busy_p99_ns BIGINT: its 99th.
-- column idle_p50_ns BIGINT: idle time inside a step.
-- column idle_p90_ns BIGINT: its 90th percentile.
-- column idle_p99_ns BIGINT: its 99th.
-- column gap_next_p50_ns BIGINT: idle time from a step's end to the next step's start.
-- column gap_next_p90_ns BIGINT: its 90th percentile.
-- column gap_next_p99_ns BIGINT: its 99th.
-- column period_p50_ns BIGINT: from a step's start to the next step's start; NULL if no step of the row has a next.
-- column period_p90_ns BIGINT: its 90th percentile.
-- column period_p99_ns BIGINT: its 99th.
-- column host_p50_ns BIGINT: median length of the steps' marks on the host, which device work may outlast.
-- column host_p90_ns BIGINT: its 90th percentile.
-- column host_p99_ns BIGINT: its 99th.
-- column busy_ns BIGINT: sum over the steps.
-- column idle_ns BIGINT: sum over the steps of idle time inside.
-- column gap_before_ns BIGINT: sum over the steps of the gap before.
-- column busy_share DOUBLE: busy_ns as a part of busy_ns + idle_ns, 0 to 1.
-- column idle_share DOUBLE: idle_ns as a part of the same.
CREATE MACRO steps() AS TABLE
WITH grouped AS (
    SELECT
        t.rank,
        t.device,
        t.kind,
        t.phase,
        t.bucket,
        any_value(t.requests_to) AS requests_to,
        any_value(t.tokens_to) AS tokens_to,
        count(*) AS count,
        quantile_disc(t.wall_ns, [0.5, 0.9, 0.99]) AS wall,
        quantile_disc(t.busy_ns, [0.5, 0.9, 0.99]) AS busy,
        quantile_disc(t.idle_ns, [0.5, 0.9, 0.99]) AS idle,
        quantile_disc(t.gap_next_ns, [0.5, 0.9, 0.99]) AS gap_next,
        quantile_disc(t.period_ns, [0.5, 0.9, 0.99]) AS period,
        quantile_disc(s.dur, [0.5, 0.9, 0.99]) AS host,
        sum(t.busy_ns)::BIGINT AS busy_ns,
        sum(t.idle_ns)::BIGINT AS idle_ns,
        sum(t.gap_before_ns)::BIGINT AS gap_before_ns
    FROM step_time() AS t
    JOIN steps AS s ON s.rank = t.rank AND s.step = t.step
    GROUP BY
        t.rank,
        t.device,
        t.kind,
        t.phase,
        t.bucket
    UNION ALL BY NAME
    SELECT
        k.rank,
        k.kind,
        b.phase,
        b.bucket,
        any_value(b.requests_to) AS requests_to,
        any_value(b.tokens_to) AS tokens_to,
        count(*) AS count,
        quantile_disc(s.dur, [0.5, 0.9, 0.99]) AS host
    FROM step_kinds() AS k
    JOIN step_batches() AS b ON b.rank = k.rank AND b.step = k.step
    JOIN steps AS s ON s.rank = k.rank AND s.step = k.step
    WHERE k.kind = 'empty'
        AND in_scope(k.rank, NULL, k.step)
        AND s.ts >= scope_start()
        AND s.ts < scope_end()
    GROUP BY
        k.rank,
        k.kind,
        b.phase,
        b.bucket
)
SELECT
    rank,
    device,
    kind,
    phase,
    bucket,
    requests_to,
    tokens_to,
    count,
    wall[1] AS p50_ns,
    wall[2] AS p90_ns,
    wall[3] AS p99_ns,
    busy[1] AS busy_p50_ns,
    busy[2] AS busy_p90_ns,
    busy[3] AS busy_p99_ns,
    idle[1] AS idle_p50_ns,
    idle[2] AS idle_p90_ns,
    idle[3] AS idle_p99_ns,
    gap_next[1] AS gap_next_p50_ns,
    gap_next[2] AS gap_next_p90_ns,
    gap_next[3] AS gap_next_p99_ns,
    period[1] AS period_p50_ns,
    period[2] AS period_p90_ns,
    period[3] AS period_p99_ns,
    host[1] AS host_p50_ns,
    host[2] AS host_p90_ns,
    host[3] AS host_p99_ns,
    busy_ns,
    idle_ns,
    gap_before_ns,
    busy_ns::DOUBLE / nullif(busy_ns + idle_ns, 0) AS busy_share,
    idle_ns::DOUBLE / nullif(busy_ns + idle_ns, 0) AS idle_share
FROM grouped
ORDER BY
    rank,
    device NULLS LAST,
    list_position(['steady', 'first', 'warm_up', 'empty'], kind),
    list_position(['decode', 'verify', 'draft', 'mixed', 'prefill', 'unknown'], phase),
    requests_to NULLS LAST,
    tokens_to NULLS FIRST;
