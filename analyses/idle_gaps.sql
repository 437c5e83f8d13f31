-- Why does the GPU idle? Every nanosecond of every hole in a device's work over all streams has one cause; a hole is
-- cut where the cause changes. docs/idle_gaps.md tells the evidence for each.
--
-- n is the row that ended the gap, L the call that launched it, T the thread of L. Until L began, the device waited for
-- T: the cause is what host_timeline says of T. From then on it waited for the launch, and from the return of L on for
-- something else. First match:
--   until L began
--     profiler, lazy_load_or_jit, gc   the profiler, a loader or the garbage collector held all threads
--     sync, pageable_copy, allocation, lazy_load_or_jit, graph_launch, input_preparation, scheduler,
--     communication_wait, profiler     T was in a call, stage or function of that name (macro host_causes)
--     no_requests, scheduler           T waited for requests: the gap is longer than no_requests_ns, or not
--     launch_bound, python, scheduler  the gap is not within a step, and the time lies outside all steps: T was in an op
--                                      or API call, in a Python function, or was not seen between two steps of an engine
--     sync, pageable_copy              a call of T had waited for the device to run dry, and T was refilling it
--     launch_bound                     T was in an op or API call; or in Python, in a gap no longer than small_gap_ns
--     python                           T was in Python for longer than that
--     unattributed                     T was not seen for more than host_hole_ns
--   then
--     graph_launch, pageable_copy      all of L, if it is a graph launch, or a copy of pageable memory
--     launch_latency                   the last launch_latency_ns at most
--     profiler                         L before that, if it is the first call that started work in its rank
--     lazy_load_or_jit                 L before that, if n is the first of its name and L took longer than first_use_ns
--     launch_bound                     L before that
--     stream_dependency                after L, if T had told a stream to wait right before, or a wait of n's stream is
--                                      recorded
--     unattributed                     after L; and all of a gap whose n has no recorded launch
-- parameter launch_latency_ns BIGINT: from the start of a launch call to the start of its work on an idle device, at most.
-- parameter sync_slack_ns BIGINT: a wait that ended up to this long before the gap began still counts as ended by it
--                                 (host and device clocks differ by some microseconds).
-- parameter small_gap_ns BIGINT: gaps up to this may be the price of launching, not of one thing on the host.
-- parameter host_hole_ns BIGINT: host time without any row, up to this between two rows of the thread, is taken for work
--                                (Python between ops).
-- parameter no_requests_ns BIGINT: the host waits longer than this for requests only if there are none.
-- parameter first_use_ns BIGINT: a call with the first work of a name that takes longer loads its code.
-- threshold idle_share: share of the span: devices that idle less are left in peace.
-- threshold finding_share: share of the step time: causes below stay quiet.
-- threshold critical_share: share from which on a finding is critical.
-- threshold missing_share: share of launches without device work, or of device rows without an end, above which holes
--                          are not taken for idle time.
-- threshold graph_hole_ns: a longer hole between rows of one graph replay is taken for a lost kernel.
-- column rank INTEGER: rank.
-- column device BIGINT: the device that was idle.
-- column ts BIGINT: start of this part of the gap.
-- column dur BIGINT: its length.
-- column cause VARCHAR: as above.
-- column step INTEGER: serving step of the work that ended the gap, NULL outside steps or without a launch.
-- column phase VARCHAR: phase of that step, else unknown.
-- column place VARCHAR: inside (that step had worked on the device before), between (steps: it ended by a step's first
--                       work), outside (by work of no step), prefix (by work launched before the recording began).
-- column before_id BIGINT: the row whose end began the gap.
-- column after_id BIGINT: the row that ended it.
-- column blame BIGINT: the host row that held T, or the device up, for the longest time of this part; NULL if none.
-- column launch_lead_ns BIGINT: from the start of L to the start of the gap, negative if L came after that; NULL
--                               without a launch.
-- column uncertain_ns BIGINT: its borders may be off by so much: the clock skew seen on the device, at most dur.
CREATE MACRO idle_gaps(
    launch_latency_ns := 12000,
    sync_slack_ns := 2000,
    small_gap_ns := 500000,
    host_hole_ns := 100000,
    no_requests_ns := 20000000,
    first_use_ns := 50000
) AS TABLE
WITH gaps AS MATERIALIZED (
    FROM launched_gaps()
),
-- The parts of a gap that are one stretch of T's time, or of L's, or of the device's.
stretches AS (
    SELECT
        *,
        least(end_ts, greatest(ts, launch_ts)) AS launch_at,
        least(end_ts, greatest(ts, launch_end_ts)) AS returned_at,
        least(end_ts, greatest(ts, launch_ts, end_ts - launch_latency_ns)) AS latency_at
    FROM gaps
    WHERE launch_ts IS NOT NULL
),
parts AS MATERIALIZED (
    SELECT after_id, 'host' AS part, ts, launch_at AS end_ts FROM stretches
    UNION ALL
    SELECT after_id, 'call', launch_at, CASE WHEN call_cause IS NULL THEN least(returned_at, latency_at) ELSE returned_at END
    FROM stretches
    UNION ALL
    SELECT after_id, 'device', returned_at, latency_at FROM stretches
    UNION ALL
    SELECT
        after_id,
        'latency',
        CASE WHEN call_cause IS NULL THEN latency_at ELSE greatest(returned_at, latency_at) END,
        end_ts
    FROM stretches
    UNION ALL
    SELECT after_id, 'orphan', ts, end_ts FROM gaps WHERE launch_ts IS NULL
),
-- Those that T's time has to tell of, each with the pieces of it that it overlaps.
asked AS (
    SELECT
        p.*,
        g.rank,
        g.pid,
        g.tid,
        p.end_ts - 1 AS last_ts
    FROM parts AS p
    JOIN gaps AS g ON g.after_id = p.after_id
    WHERE p.ts < p.end_ts
        AND (p.part = 'host' OR (p.part = 'call' AND g.call_cause IS NULL))
),
reached AS (
    SELECT
        a.after_id,
        a.part,
        a.ts,
        a.end_ts,
        unnest(range(f.position, l.position + 1)) AS position
    FROM asked AS a
    ASOF JOIN host_timeline AS f ON a.rank = f.rank AND a.pid = f.pid AND a.tid = f.tid AND a.ts >= f.ts
    ASOF JOIN host_timeline AS l ON a.rank = l.rank AND a.pid = l.pid AND a.tid = l.tid AND a.last_ts >= l.ts
),
cut AS (
    SELECT
        r.after_id,
        r.part,
        greatest(r.ts, t.ts) AS ts,
        least(r.end_ts, t.end_ts) AS end_ts,
        t.cause,
        coalesce(t.id, CASE WHEN r.part = 'host' THEN h.id END) AS id,
        t.over,
        t.place,
        t.unseen_ns
    FROM reached AS r
    JOIN host_timeline AS t ON t.position = r.position
    LEFT JOIN gap_holders AS h ON h.after_id = r.after_id AND h.position = r.position
    UNION ALL
    SELECT
        p.after_id,
        p.part,
        p.ts,
        p.end_ts,
        NULL,
        NULL,
        false,
        NULL,
        0
    FROM parts AS p
    JOIN gaps AS g ON g.after_id = p.after_id
    WHERE p.ts < p.end_ts
        AND (p.part IN ('device', 'latency', 'orphan') OR (p.part = 'call' AND g.call_cause IS NOT NULL))
),
waits AS (
    SELECT
        l.id,
        l.rank,
        l.pid,
        l.tid,
        l.ts,
        l.ts + l.dur AS end_ts,
        w.cause
    FROM launches AS l
    JOIN (SELECT DISTINCT id, cause FROM host_timeline WHERE cause IN ('sync', 'pageable_copy') AND NOT over) AS w
        ON w.id = l.id
),
-- Calls that waited until the device had run dry: the last of T before the gap, if T launched no work in between.
drained AS (
    SELECT
        g.after_id,
        w.id AS wait_id,
        w.cause AS wait_cause
    FROM (SELECT * FROM gaps WHERE launch_ts > ts) AS g
    ASOF JOIN waits AS w ON g.rank = w.rank AND g.pid = w.pid AND g.tid = w.tid AND g.ts >= w.ts
    WHERE w.end_ts >= g.ts - sync_slack_ns
        AND w.end_ts <= g.launch_ts
),
-- What the device waited for after L: the call that told a stream to, or the recorded wait of its stream.
waiting AS MATERIALIZED (
    SELECT g.*
    FROM parts AS p
    JOIN gaps AS g ON g.after_id = p.after_id
    WHERE p.part = 'device' AND p.ts < p.end_ts
),
waited AS (
    SELECT
        after_id,
        min(wait_id) AS wait_id
    FROM (
        SELECT
            g.after_id,
            w.id AS wait_id
        FROM waiting AS g
        ASOF JOIN (SELECT * FROM launches WHERE regexp_matches(name, '^(cuda|cu|hip)StreamWaitEvent')) AS w
            ON g.rank = w.rank AND g.pid = w.pid AND g.tid = w.tid AND g.launch_ts > w.ts
        ASOF LEFT JOIN (SELECT * FROM launches WHERE id IN (SELECT launch_id FROM device_activity)) AS p
            ON g.rank = p.rank AND g.pid = p.pid AND g.tid = p.tid AND g.launch_ts > p.ts
        WHERE p.ts IS NULL OR w.ts > p.ts
        UNION ALL
        SELECT
            g.after_id,
            w.id
        FROM waiting AS g
        JOIN events AS w
            ON w.kind = 'sync'
            AND w.rank = g.rank
            AND w.device IS NOT DISTINCT FROM g.device
            AND w.stream = g.stream
            AND w.ts < g.end_ts
            AND w.ts + w.dur > g.ts
        WHERE w.name = 'Stream Wait Event' OR contains(w.args, 'Stream Wait Event')
    )
    GROUP BY after_id
),
judged AS (
    SELECT
        c.after_id,
        c.ts,
        c.end_ts,
        CASE
            WHEN c.part = 'orphan' THEN 'unattributed'
            WHEN c.part = 'latency' THEN 'launch_latency'
            WHEN c.part = 'device' THEN CASE WHEN s.after_id IS NOT NULL THEN 'stream_dependency' ELSE 'unattributed' END
            WHEN c.over THEN c.cause
            WHEN c.part = 'call' THEN CASE
                WHEN g.call_cause IS NOT NULL THEN g.call_cause
                WHEN g.first_call THEN 'profiler'
                WHEN g.first_use AND g.launch_end_ts - g.launch_ts > first_use_ns THEN 'lazy_load_or_jit'
                ELSE 'launch_bound'
            END
            WHEN c.cause = 'requests' THEN
                CASE WHEN g.end_ts - g.ts > no_requests_ns THEN 'no_requests' ELSE 'scheduler' END
            WHEN c.cause NOT IN ('op', 'python') THEN c.cause
            WHEN g.place <> 'inside' AND c.place <> 'in' THEN CASE
                WHEN c.cause = 'op' THEN 'launch_bound'
                WHEN c.cause = 'python' THEN 'python'
                WHEN c.place = 'between' AND c.unseen_ns <= no_requests_ns THEN 'scheduler'
                ELSE 'unattributed'
            END
            WHEN c.unseen_ns > host_hole_ns THEN 'unattributed'
            WHEN d.wait_id IS NOT NULL THEN d.wait_cause
            WHEN c.cause = 'op' OR g.end_ts - g.ts <= small_gap_ns THEN 'launch_bound'
            ELSE 'python'
        END AS cause,
        CASE
            WHEN c.part = 'device' THEN s.wait_id
            WHEN c.part = 'latency' OR (c.part = 'call' AND NOT c.over) THEN g.launch_id
            WHEN c.cause NOT IN ('op', 'python') THEN c.id
            WHEN (g.place = 'inside' OR c.place = 'in') AND c.unseen_ns <= host_hole_ns THEN coalesce(d.wait_id, c.id)
            ELSE c.id
        END AS held_by
    FROM cut AS c
    JOIN gaps AS g ON g.after_id = c.after_id
    LEFT JOIN drained AS d ON d.after_id = c.after_id
    LEFT JOIN waited AS s ON s.after_id = c.after_id
),
-- Neighbours with one cause are one part; the row that held it up for the longest speaks for it.
numbered AS (
    SELECT
        *,
        sum(changes) OVER (PARTITION BY after_id ORDER BY ts) AS number
    FROM (
        SELECT
            *,
            (cause IS DISTINCT FROM lag(cause) OVER (PARTITION BY after_id ORDER BY ts))::INTEGER AS changes
        FROM judged
    )
),
merged AS (
    SELECT
        after_id,
        number,
        cause,
        min(ts) AS ts,
        max(end_ts) AS end_ts,
        arg_max(held_by, (held_ns, -held_by)) AS held_by
    FROM (
        SELECT
            after_id,
            number,
            cause,
            held_by,
            min(ts) AS ts,
            max(end_ts) AS end_ts,
            sum(end_ts - ts) AS held_ns
        FROM numbered
        GROUP BY ALL
    )
    GROUP BY
        after_id,
        number,
        cause
)
SELECT
    g.rank,
    g.device,
    greatest(m.ts, scope_start()) AS ts,
    least(m.end_ts, scope_end()) - greatest(m.ts, scope_start()) AS dur,
    m.cause,
    g.step,
    g.phase,
    g.place,
    g.before_id,
    g.after_id,
    m.held_by AS blame,
    g.ts - g.launch_ts AS launch_lead_ns,
    least(least(m.end_ts, scope_end()) - greatest(m.ts, scope_start()), g.skew_ns) AS uncertain_ns
FROM merged AS m
JOIN gaps AS g ON g.after_id = m.after_id
WHERE in_scope(g.rank, g.device, g.step)
    AND m.ts < scope_end()
    AND m.end_ts > scope_start()
ORDER BY
    g.rank,
    g.device,
    m.ts;
