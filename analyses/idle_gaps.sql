-- Why does each device idle? Every hole in its work over all streams, with the cause that the host's side of the trace
-- shows. n is the row that ended the gap, L the call that launched it, T the thread of L. L came late if the device was
-- empty by then, or about to be, and if at least half of the gap was over one launch latency after L had returned: what
-- comes later than that is not the host's, which had done its part. A gap has one cause, that of its larger part.
-- First match:
--   between_steps  L came late, and most of the gap lies outside all serving steps of the rank
--   sync           T was waiting for the device when the gap began and called L only after that wait
--   launch_bound   L came late, and T was in ops, calls or Python functions for at least half of the gap
--   queued         L came in time: n itself waited, for another stream, another rank or the device's front end
--   unattributed   n has no recorded launch, or L came late and T was not seen at work
-- parameter launch_latency_ns BIGINT: a call that starts less than this before the gap comes late; and so long after a
--                                     call has returned may its work start without having waited.
-- parameter sync_slack_ns BIGINT: a wait that ended up to this long before the gap began still counts as ended by it
--                                 (host and device clocks differ by some microseconds).
-- column rank INTEGER: rank.
-- column device BIGINT: the device that was idle.
-- column ts BIGINT: start of the gap.
-- column dur BIGINT: its length.
-- column cause VARCHAR: between_steps, sync, launch_bound, queued, unattributed.
-- column step BIGINT: serving step of the work that ended the gap, NULL outside steps or without a launch.
-- column phase VARCHAR: phase of that step, else unknown.
-- column before_id BIGINT: the row whose end began the gap.
-- column after_id BIGINT: the row that ended it.
-- column blame BIGINT: the wait, or the innermost host row of T that covers more than half of the gap; NULL if none.
-- column launch_lead_ns BIGINT: from the start of L to the start of the gap, negative if L came after that; NULL
--                               without a launch.
CREATE MACRO idle_gaps(launch_latency_ns := 12000, sync_slack_ns := 2000) AS TABLE
WITH RECURSIVE gaps AS MATERIALIZED (
    SELECT
        g.*,
        g.ts + g.dur AS end_ts,
        l.pid,
        l.tid,
        l.ts AS launch_ts,
        l.ts + l.dur AS launch_end_ts
    FROM idle_gaps_raw() AS g
    LEFT JOIN launches AS l ON l.id = g.launch_id
),
waits AS MATERIALIZED (
    SELECT
        id,
        rank,
        pid,
        tid,
        ts,
        ts + dur AS end_ts
    FROM launches
    WHERE regexp_matches(name, '^(cuda|hip)(Device|Stream|Event)Synchronize|^cu(Ctx|Stream|Event)Synchronize')
        OR (regexp_matches(name, '^(cuda|hip|cu)Memcpy') AND NOT contains(name, 'Async'))
        -- A copy from or to pageable memory, or back to the host, is asynchronous in name only: its call returns
        -- when the copy is done.
        OR id IN (
            SELECT m.launch_id
            FROM memcpys AS m
            JOIN launches AS c ON c.id = m.launch_id
            WHERE c.ts + c.dur >= m.ts + m.dur
                AND (contains(m.name, 'Pageable') OR m.copy_kind = 'DtoH' OR contains(m.name, 'DtoH'))
        )
),
covered AS MATERIALIZED (
    FROM thread_cover()
),
marks AS MATERIALIZED (
    FROM steps
),
measured AS MATERIALIZED (
    SELECT
        g.*,
        coalesce(own.step, CASE WHEN g.launch_ts < other.ts + other.dur THEN other.step END) AS step,
        coalesce(own.phase, CASE WHEN g.launch_ts < other.ts + other.dur THEN other.phase END, 'unknown') AS phase,
        w.id AS wait_id,
        w.end_ts AS wait_end_ts,
        coalesce(s2.covered_before + least(g.end_ts, s2.end_ts) - s2.ts, 0)
        - coalesce(s1.covered_before + least(g.ts, s1.end_ts) - s1.ts, 0) AS in_steps_ns,
        coalesce(h2.covered_before + least(g.end_ts, h2.end_ts) - h2.ts, 0)
        - coalesce(h1.covered_before + least(g.ts, h1.end_ts) - h1.ts, 0) AS host_busy_ns
    FROM gaps AS g
    ASOF LEFT JOIN waits AS w
        ON g.rank = w.rank AND g.pid = w.pid AND g.tid = w.tid AND g.ts >= w.ts
    ASOF LEFT JOIN step_cover() AS s1
        ON g.rank = s1.rank AND g.ts >= s1.ts
    ASOF LEFT JOIN step_cover() AS s2
        ON g.rank = s2.rank AND g.end_ts >= s2.ts
    ASOF LEFT JOIN covered AS h1
        ON g.rank = h1.rank AND g.pid = h1.pid AND g.tid = h1.tid AND g.ts >= h1.ts
    ASOF LEFT JOIN covered AS h2
        ON g.rank = h2.rank AND g.pid = h2.pid AND g.tid = h2.tid AND g.end_ts >= h2.ts
    -- As in launch_steps: the last mark on the thread, else one of another thread around the call.
    ASOF LEFT JOIN marks AS own
        ON g.rank = own.rank AND g.pid = own.pid AND g.tid = own.tid AND g.launch_ts >= own.ts
    ASOF LEFT JOIN marks AS other
        ON g.rank = other.rank AND g.launch_ts >= other.ts
),
judged AS MATERIALIZED (
    SELECT
        m.*,
        CASE
            WHEN m.launch_ts IS NULL THEN 'unattributed'
            WHEN m.launch_ts <= m.ts - launch_latency_ns THEN 'queued'
            WHEN 2 * (m.end_ts - (m.launch_end_ts + launch_latency_ns)) > m.dur THEN 'queued'
            WHEN m.rank IN (SELECT rank FROM marks) AND 2 * m.in_steps_ns < m.dur THEN 'between_steps'
            WHEN m.wait_end_ts > m.ts - sync_slack_ns AND m.wait_end_ts <= least(m.end_ts, m.launch_ts) THEN 'sync'
            WHEN 2 * m.host_busy_ns >= m.dur THEN 'launch_bound'
            ELSE 'unattributed'
        END AS cause
    FROM measured AS m
),
host AS MATERIALIZED (
    SELECT
        id,
        rank,
        pid,
        tid,
        ts,
        ts + dur AS end_ts,
        parent_id
    FROM events
    WHERE kind IN ('op', 'launch', 'python', 'annotation')
),
-- A row that covers more than half of a gap covers its middle. So: the last row to start before the middle (of several
-- at one time the shortest), then outwards until one covers enough.
nearest AS (
    SELECT
        j.after_id,
        j.ts,
        j.end_ts,
        j.rank,
        j.pid,
        j.tid,
        h.ts AS near_ts
    FROM judged AS j
    ASOF JOIN host AS h
        ON j.rank = h.rank AND j.pid = h.pid AND j.tid = h.tid AND j.ts + j.dur // 2 >= h.ts
    WHERE j.cause IN ('between_steps', 'launch_bound')
),
climb AS (
    SELECT
        n.after_id,
        n.ts AS gap_ts,
        n.end_ts AS gap_end_ts,
        h.*
    FROM nearest AS n
    JOIN host AS h ON h.rank = n.rank AND h.pid = n.pid AND h.tid = n.tid AND h.ts = n.near_ts
    QUALIFY row_number() OVER (PARTITION BY n.after_id ORDER BY h.end_ts, h.id DESC) = 1
    UNION ALL
    SELECT
        c.after_id,
        c.gap_ts,
        c.gap_end_ts,
        p.*
    FROM climb AS c
    JOIN host AS p ON p.id = c.parent_id
    WHERE 2 * (least(c.end_ts, c.gap_end_ts) - greatest(c.ts, c.gap_ts)) <= c.gap_end_ts - c.gap_ts
)
SELECT
    j.rank,
    j.device,
    j.ts,
    j.dur,
    j.cause,
    j.step,
    j.phase,
    j.before_id,
    j.after_id,
    CASE j.cause WHEN 'sync' THEN j.wait_id ELSE b.id END AS blame,
    j.ts - j.launch_ts AS launch_lead_ns
FROM judged AS j
LEFT JOIN (
    SELECT
        after_id,
        id
    FROM climb
    WHERE 2 * (least(end_ts, gap_end_ts) - greatest(ts, gap_ts)) > gap_end_ts - gap_ts
) AS b ON b.after_id = j.after_id
ORDER BY
    j.rank,
    j.device,
    j.ts;
