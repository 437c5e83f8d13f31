-- What serving steps take on each device. Busy time belongs to the step that launched it, a gap to the step whose work
-- ended it: nothing is counted twice, also where steps overlap (asynchronous scheduling). What a step is compared with
-- is never filtered, only the rows of the result are: by the scope, and to steps that lie wholly in its window of time.

-- What kind of step each is, so that unlike ones are not averaged:
--   first    the first of its rank with device work, if there are more: the profiler starts and first uses are in it
--   warm_up  code was loaded, compiled, or a graph instantiated in it
--   empty    it launched no device work that was recorded
--   steady   all others
-- All steps, in the scope or not.
-- column rank INTEGER: rank.
-- column step INTEGER: step, as in steps.
-- column kind VARCHAR: first, warm_up, empty, steady.
CREATE MACRO step_kinds() AS TABLE
WITH worked AS MATERIALIZED (
    SELECT DISTINCT
        rank,
        step
    FROM device_activity
    WHERE step IS NOT NULL
),
firsts AS (
    SELECT
        rank,
        min(step) AS step
    FROM worked
    GROUP BY rank
    HAVING count(*) > 1
),
loading AS (
    SELECT DISTINCT
        rank,
        step
    FROM events
    WHERE step IS NOT NULL
        AND (
            kind = 'overhead'
            AND name IN ('Lazy Function Loading', 'Runtime Triggered Module Loading', 'Driver Compiler')
            OR kind = 'launch'
            AND regexp_matches(name, '^(cu|cuda|hip)((Module|Library)Load|GraphInstantiate)')
        )
)
SELECT
    s.rank,
    s.step::INTEGER AS step,
    CASE
        WHEN w.step IS NULL THEN 'empty'
        WHEN f.step IS NOT NULL THEN 'first'
        WHEN l.step IS NOT NULL THEN 'warm_up'
        ELSE 'steady'
    END AS kind
FROM steps AS s
LEFT JOIN worked AS w ON w.rank = s.rank AND w.step = s.step
LEFT JOIN firsts AS f ON f.rank = s.rank AND f.step = s.step
LEFT JOIN loading AS l ON l.rank = s.rank AND l.step = s.step;

-- The batch of each step, and a label for batches of about one size: the requests to the next power of two ("1", "2",
-- "3-4", "5-8"), and where there is prefill the tokens too ("1, <=512 tok"). Labels do not sort, the bounds do.
-- All steps, in the scope or not.
-- column rank INTEGER: rank.
-- column step INTEGER: step, as in steps.
-- column phase VARCHAR: its phase.
-- column requests BIGINT: requests of the batch, NULL where the mark does not tell them all.
-- column tokens BIGINT: new tokens of the batch, NULL where the mark does not tell them all.
-- column requests_to BIGINT: requests of the largest batch of the bucket, a power of two or 0; NULL if unknown.
-- column tokens_to BIGINT: the same for tokens; NULL also without prefill.
-- column bucket VARCHAR: label of the two, unknown if both are.
CREATE MACRO step_batches() AS TABLE
WITH batches AS (
    SELECT
        rank,
        step::INTEGER AS step,
        phase,
        CASE
            WHEN phase IN ('prefill', 'mixed') AND prefill_requests IS NULL THEN NULL
            WHEN phase NOT IN ('prefill', 'unknown') AND decode_requests IS NULL THEN NULL
            ELSE coalesce(prefill_requests + coalesce(decode_requests, 0), decode_requests)
        END AS requests,
        CASE
            WHEN phase IN ('prefill', 'mixed') AND prefill_tokens IS NULL THEN NULL
            WHEN phase NOT IN ('prefill', 'unknown') AND decode_tokens IS NULL THEN NULL
            ELSE coalesce(prefill_tokens + coalesce(decode_tokens, 0), decode_tokens)
        END AS tokens
    FROM steps
),
bounded AS (
    SELECT
        *,
        -- bin(n - 1) has as many digits as the next power of two has zeros; a number beyond 2^40 is no batch.
        CASE
            WHEN requests IN (0, 1) THEN requests
            WHEN requests BETWEEN 2 AND 1::BIGINT << 40 THEN 1::BIGINT << length(bin(requests - 1))
        END AS requests_to,
        CASE
            WHEN phase NOT IN ('prefill', 'mixed') THEN NULL
            WHEN tokens IN (0, 1) THEN tokens
            WHEN tokens BETWEEN 2 AND 1::BIGINT << 40 THEN 1::BIGINT << length(bin(tokens - 1))
        END AS tokens_to
    FROM batches
)
SELECT
    rank,
    step,
    phase,
    requests,
    tokens,
    requests_to,
    tokens_to,
    coalesce(
        nullif(
            concat_ws(
                ', ',
                CASE WHEN requests_to > 2 THEN (requests_to // 2 + 1) || '-' ELSE '' END || requests_to,
                '<=' || tokens_to || ' tok'
            ),
            ''
        ),
        'unknown'
    ) AS bucket
FROM bounded;

-- Steps with work on a device, and their time there: those in the scope that its window does not cut.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column step INTEGER: step, as in steps.
-- column kind VARCHAR: first, warm_up, steady, as in step_kinds.
-- column phase VARCHAR: phase of the step.
-- column bucket VARCHAR: label of its batch, as in step_batches.
-- column requests BIGINT: requests of its batch.
-- column tokens BIGINT: new tokens of its batch.
-- column requests_to BIGINT: upper bound of the bucket, as in step_batches.
-- column tokens_to BIGINT: the same for tokens.
-- column start_ts BIGINT: start of its first work on the device.
-- column end_ts BIGINT: end of its last.
-- column wall_ns BIGINT: from one to the other.
-- column busy_ns BIGINT: time alone of its work.
-- column idle_ns BIGINT: gaps that its work ended and that began after its first work had started.
-- column gap_before_ns BIGINT: the gap that its first work ended.
-- column gap_next_ns BIGINT: idle time from its end to the start of the next step with work there, by start_ts; NULL
--                            for the last.
-- column period_ns BIGINT: from its start to that of the next; NULL for the last.
-- column launched_rows BIGINT: device rows of the step.
CREATE MACRO step_time() AS TABLE
WITH segments AS MATERIALIZED (
    SELECT
        rank,
        device,
        step,
        ts,
        ts + dur AS end_ts,
        coalesce(busy_until, ts) AS busy_until
    FROM all_segments()
),
charged AS (
    SELECT
        rank,
        device,
        step,
        min(ts) AS start_ts,
        max(end_ts) AS end_ts,
        sum(greatest(0, end_ts - greatest(ts, busy_until)))::BIGINT AS busy_ns,
        sum(greatest(0, ts - busy_until))::BIGINT AS gaps_ns,
        -- Before its start only the gap that its first work ended.
        min(ts) - min(least(ts, busy_until)) AS gap_before_ns,
        count(*) AS launched_rows
    FROM segments
    WHERE step IS NOT NULL
    GROUP BY
        rank,
        device,
        step
),
ordered AS MATERIALIZED (
    SELECT
        *,
        lead(start_ts) OVER (PARTITION BY rank, device ORDER BY start_ts, step) AS next_ts
    FROM charged
),
-- Gaps that may follow a step: all but those inside a step that ends before the next starts.
later_gaps AS (
    SELECT
        g.rank,
        g.device,
        g.busy_until AS gap_ts,
        g.ts - g.busy_until AS ns
    FROM segments AS g
    LEFT JOIN ordered AS o
        ON o.rank = g.rank
        AND o.device IS NOT DISTINCT FROM g.device
        AND o.step = g.step
        AND o.start_ts <= g.busy_until
        AND o.end_ts <= coalesce(o.next_ts, o.end_ts)
    WHERE g.ts > g.busy_until
        AND o.step IS NULL
),
after_steps AS (
    SELECT
        o.rank,
        o.device,
        o.step,
        sum(g.ns)::BIGINT AS ns
    FROM later_gaps AS g
    -- Of steps that start together the last: nothing lies between the others and the next.
    ASOF JOIN (FROM ordered WHERE next_ts > start_ts) AS o
        ON o.rank = g.rank
        AND o.device IS NOT DISTINCT FROM g.device
        AND o.start_ts <= g.gap_ts
    WHERE g.gap_ts >= o.end_ts
        AND g.gap_ts < o.next_ts
    GROUP BY
        o.rank,
        o.device,
        o.step
)
SELECT
    o.rank,
    o.device,
    o.step,
    k.kind,
    b.phase,
    b.bucket,
    b.requests,
    b.tokens,
    b.requests_to,
    b.tokens_to,
    o.start_ts,
    o.end_ts,
    o.end_ts - o.start_ts AS wall_ns,
    o.busy_ns,
    o.gaps_ns - o.gap_before_ns AS idle_ns,
    o.gap_before_ns,
    CASE WHEN o.next_ts IS NOT NULL THEN coalesce(a.ns, 0) END AS gap_next_ns,
    o.next_ts - o.start_ts AS period_ns,
    o.launched_rows
FROM ordered AS o
LEFT JOIN step_kinds() AS k ON k.rank = o.rank AND k.step = o.step
LEFT JOIN step_batches() AS b ON b.rank = o.rank AND b.step = o.step
LEFT JOIN after_steps AS a
    ON a.rank = o.rank
    AND a.device IS NOT DISTINCT FROM o.device
    AND a.step = o.step
WHERE in_scope(o.rank, o.device, o.step)
    AND o.start_ts - o.gap_before_ns >= scope_start()
    AND o.end_ts <= scope_end()
ORDER BY
    o.rank,
    o.device,
    o.start_ts,
    o.step;

-- Every nanosecond of each device's span in the scope, by where it belongs:
--   inside   busy time of steps, and gaps that a step's work ended after its first had started
--   between  gaps that the first work of a step ended
--   prefix   work launched before the recording began (rows without an API call before the first row with one on their
--            stream), and the gaps that it ended
--   outside  work of no step, and the gaps that it ended
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column span_ns BIGINT: the seven times that follow together.
-- column inside_busy_ns BIGINT: time alone of rows of steps.
-- column inside_idle_ns BIGINT: gaps inside.
-- column between_ns BIGINT: gaps between.
-- column outside_busy_ns BIGINT: time alone of rows of no step.
-- column outside_idle_ns BIGINT: gaps that they ended.
-- column prefix_busy_ns BIGINT: time alone of rows launched before the recording.
-- column prefix_idle_ns BIGINT: gaps that they ended.
-- column steps BIGINT: steps with work in the scope.
-- column cut_steps BIGINT: of these, steps that the window cuts: step_time leaves them out.
CREATE MACRO span_by_place() AS TABLE
WITH segments AS MATERIALIZED (
    SELECT
        rank,
        device,
        stream,
        step,
        ts,
        ts + dur AS end_ts,
        launch_id IS NOT NULL AS linked,
        coalesce(busy_until, ts) AS busy_until
    FROM all_segments()
),
streams AS (
    SELECT
        rank,
        device,
        stream,
        min(ts) AS linked_ts
    FROM segments
    WHERE linked
    GROUP BY
        rank,
        device,
        stream
),
placed AS (
    SELECT
        *,
        CASE WHEN step IS NULL THEN 'outside' ELSE 'inside' END AS place
    FROM segments
    WHERE step IS NOT NULL OR linked
    UNION ALL BY NAME
    SELECT
        s.*,
        CASE WHEN s.ts < l.linked_ts THEN 'prefix' ELSE 'outside' END AS place
    FROM segments AS s
    LEFT JOIN streams AS l
        ON l.rank = s.rank
        AND l.device IS NOT DISTINCT FROM s.device
        AND l.stream IS NOT DISTINCT FROM s.stream
    WHERE s.step IS NULL
        AND NOT s.linked
),
grouped AS (
    SELECT
        rank,
        device,
        step,
        place,
        min(ts) AS start_ts,
        min(least(ts, busy_until)) AS charged_from_ts,
        max(end_ts) AS charged_to_ts,
        sum(greatest(0, least(end_ts, scope_end()) - greatest(ts, busy_until, scope_start()))) AS busy_ns,
        sum(greatest(0, least(ts, scope_end()) - greatest(busy_until, scope_start()))) AS idle_ns,
        bool_or(least(ts, busy_until) < scope_end() AND (end_ts > scope_start() OR ts >= scope_start())) AS in_window
    FROM placed
    GROUP BY
        rank,
        device,
        step,
        place
),
split AS (
    SELECT
        *,
        -- Before the start of a step only the gap that its first work ended.
        CASE
            WHEN step IS NULL THEN 0
            ELSE greatest(0, least(start_ts, scope_end()) - greatest(charged_from_ts, scope_start()))
        END AS between_ns
    FROM grouped
    WHERE in_window
        AND in_scope(rank, device, step)
)
SELECT
    rank,
    device,
    sum(busy_ns + idle_ns)::BIGINT AS span_ns,
    coalesce(sum(busy_ns) FILTER (place = 'inside'), 0)::BIGINT AS inside_busy_ns,
    coalesce(sum(idle_ns - between_ns) FILTER (place = 'inside'), 0)::BIGINT AS inside_idle_ns,
    sum(between_ns)::BIGINT AS between_ns,
    coalesce(sum(busy_ns) FILTER (place = 'outside'), 0)::BIGINT AS outside_busy_ns,
    coalesce(sum(idle_ns) FILTER (place = 'outside'), 0)::BIGINT AS outside_idle_ns,
    coalesce(sum(busy_ns) FILTER (place = 'prefix'), 0)::BIGINT AS prefix_busy_ns,
    coalesce(sum(idle_ns) FILTER (place = 'prefix'), 0)::BIGINT AS prefix_idle_ns,
    count(step) AS steps,
    count(step) FILTER (charged_from_ts < scope_start() OR charged_to_ts > scope_end()) AS cut_steps
FROM split
GROUP BY
    rank,
    device
ORDER BY
    rank,
    device;
