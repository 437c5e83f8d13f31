-- Gaps of the devices, and who kept them waiting.

-- By how much host and device clocks differ at least: work cannot begin before its launch does.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column skew_ns BIGINT: the most that a row of the device is recorded before the start of its call, 0 if none is.
CREATE MACRO clock_skew() AS TABLE
SELECT
    d.rank,
    d.device,
    greatest(0, max(l.ts - d.ts)) AS skew_ns
FROM device_activity AS d
JOIN launches AS l ON l.id = d.launch_id
GROUP BY d.rank, d.device;

-- idle_gaps_raw with what is known of the row that ended each gap, and of the call that launched it.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column ts BIGINT: start of the gap.
-- column end_ts BIGINT: its end.
-- column before_id BIGINT: the row whose end began it.
-- column after_id BIGINT: the row that ended it.
-- column stream BIGINT: stream of that row.
-- column step INTEGER: step of that row, NULL outside steps.
-- column phase VARCHAR: phase of the step, else unknown.
-- column place VARCHAR: inside, between, outside, prefix: as in idle_gaps.
-- column launch_id BIGINT: the call, NULL if none is recorded; so are the next six.
-- column launch_ts BIGINT: its start.
-- column launch_end_ts BIGINT: its end.
-- column pid BIGINT: its process.
-- column tid BIGINT: its thread.
-- column call_cause VARCHAR: graph_launch, pageable_copy (a copy from or to pageable memory), NULL for other calls.
-- column first_call BOOLEAN: the first call of its rank that started device work.
-- column first_use BOOLEAN: the row is the first of its name in its rank.
-- column skew_ns BIGINT: skew of the device's clock, as in clock_skew.
CREATE MACRO launched_gaps() AS TABLE
WITH linked AS MATERIALIZED (
    SELECT
        d.id,
        d.kind,
        d.name,
        d.rank,
        d.device,
        d.stream,
        d.ts,
        d.step,
        l.id AS launch_id,
        l.name AS launch_name,
        l.ts AS launch_ts,
        l.ts + l.dur AS launch_end_ts,
        l.pid,
        l.tid
    FROM device_activity AS d
    LEFT JOIN launches AS l ON l.id = d.launch_id
),
first_of_stream AS (
    SELECT
        rank,
        device,
        stream,
        min(ts) AS ts
    FROM linked
    WHERE launch_id IS NOT NULL
    GROUP BY rank, device, stream
),
first_of_step AS (
    SELECT
        rank,
        device,
        step,
        min(ts) AS ts
    FROM linked
    WHERE step IS NOT NULL
    GROUP BY rank, device, step
),
first_of_name AS (
    SELECT arg_min(id, (ts, id)) AS id
    FROM linked
    GROUP BY rank, kind, name
),
first_of_rank AS (
    SELECT
        rank,
        arg_min(launch_id, (launch_ts, launch_id)) AS launch_id
    FROM linked
    WHERE launch_id IS NOT NULL
    GROUP BY rank
)
SELECT
    g.rank,
    g.device,
    g.ts,
    g.ts + g.dur AS end_ts,
    g.before_id,
    g.after_id,
    n.stream,
    n.step,
    coalesce(s.phase, 'unknown') AS phase,
    CASE
        WHEN n.launch_id IS NULL AND n.ts < fs.ts THEN 'prefix'
        WHEN n.step IS NULL THEN 'outside'
        WHEN g.ts < ft.ts THEN 'between'
        ELSE 'inside'
    END AS place,
    n.launch_id,
    n.launch_ts,
    n.launch_end_ts,
    n.pid,
    n.tid,
    CASE
        WHEN contains(n.launch_name, 'GraphLaunch') THEN 'graph_launch'
        WHEN n.kind = 'memcpy' AND contains(n.name, 'Pageable') THEN 'pageable_copy'
    END AS call_cause,
    n.launch_id = fr.launch_id AS first_call,
    n.id IN (SELECT id FROM first_of_name) AS first_use,
    coalesce(k.skew_ns, 0) AS skew_ns
FROM idle_gaps_raw() AS g
JOIN linked AS n ON n.id = g.after_id
LEFT JOIN first_of_stream AS fs
    ON fs.rank = n.rank AND fs.device IS NOT DISTINCT FROM n.device AND fs.stream IS NOT DISTINCT FROM n.stream
LEFT JOIN first_of_step AS ft ON ft.rank = n.rank AND ft.device IS NOT DISTINCT FROM n.device AND ft.step = n.step
LEFT JOIN first_of_rank AS fr ON fr.rank = n.rank
LEFT JOIN clock_skew() AS k ON k.rank = n.rank AND k.device IS NOT DISTINCT FROM n.device
LEFT JOIN steps AS s ON s.rank = n.rank AND s.step = n.step;

-- Pieces of host_timeline, cut to gaps in which the device waited for them, where the thread was in an op, an API call or
-- Python: which row held it there is not in host_timeline.
-- column after_id BIGINT: the row that ended the gap.
-- column position BIGINT: the piece.
-- column rank INTEGER: rank.
-- column pid BIGINT: process.
-- column tid BIGINT: thread.
-- column ts BIGINT: start of the piece, or of the gap if that is later.
-- column end_ts BIGINT: end of the piece, or start of the call that launched the work after the gap.
CREATE MACRO gap_pieces() AS TABLE
WITH waits AS MATERIALIZED (
    SELECT
        after_id,
        rank,
        pid,
        tid,
        ts,
        least(end_ts, launch_ts) AS end_ts,
        least(end_ts, launch_ts) - 1 AS last_ts
    FROM launched_gaps()
    WHERE launch_ts > ts
)
SELECT
    w.after_id,
    t.position,
    t.rank,
    t.pid,
    t.tid,
    greatest(w.ts, t.ts) AS ts,
    least(w.end_ts, t.end_ts) AS end_ts
FROM (
    SELECT
        w.*,
        unnest(range(f.position, l.position + 1)) AS position
    FROM waits AS w
    ASOF JOIN host_timeline AS f ON w.rank = f.rank AND w.pid = f.pid AND w.tid = f.tid AND w.ts >= f.ts
    ASOF JOIN host_timeline AS l ON w.rank = l.rank AND w.pid = l.pid AND w.tid = l.tid AND w.last_ts >= l.ts
) AS w
JOIN host_timeline AS t ON t.position = w.position
WHERE t.cause IN ('op', 'python');

-- Host rows that may have held one of these threads in a time, by id: one file has them by start, then falling end.
-- parameter from_ts BIGINT: start of the time.
-- parameter to_ts BIGINT: its end.
-- column id BIGINT: the row.
-- column rank INTEGER: rank.
-- column pid BIGINT: process.
-- column tid BIGINT: thread.
-- column ts BIGINT: start.
-- column end_ts BIGINT: end.
-- column parent_id BIGINT: the row around it.
CREATE MACRO host_rows(from_ts := -9223372036854775808, to_ts := 9223372036854775807) AS TABLE
SELECT
    e.id,
    e.rank,
    e.pid,
    e.tid,
    e.ts,
    e.ts + e.dur AS end_ts,
    e.parent_id
FROM events AS e
SEMI JOIN (
    SELECT
        rank,
        pid,
        tid
    FROM host_timeline
) AS t ON t.rank = e.rank AND t.pid = e.pid AND t.tid = e.tid
WHERE e.kind IN ('op', 'launch', 'python', 'annotation')
    AND e.ts <= to_ts
    AND e.ts + e.dur >= from_ts
ORDER BY e.id;

-- Who held the thread in each of gap_pieces. Filled by the Trace when a query first reads it (blame.py says how).
-- column after_id BIGINT: the row that ended the gap.
-- column position BIGINT: the piece.
-- column id BIGINT: the innermost host row over more than half of it.
CREATE TABLE gap_holders (
    after_id BIGINT NOT NULL,
    position BIGINT NOT NULL,
    id BIGINT NOT NULL
);

-- How much of the device's work was not recorded: what is missing looks like idle time.
-- What was launched before the first recorded work makes no hole in it: the head of a recording is often lost. Nor does
-- what was launched after the last, but a recording that stops in the middle has lost more: only while the device was
-- still at older recorded work is it clear that such a call's turn came later. A memset of no bytes leaves no row. Replays of one graph start the same rows, but for graphs with conditional nodes, which are rare. Kernels of
-- one replay follow each other in microseconds and need no host: a long hole between them is a lost kernel.
-- parameter graph_hole_ns BIGINT: holes between rows of one replay longer than this are counted.
-- column rows BIGINT: device rows.
-- column unfinished BIGINT: of these, rows without a recorded end.
-- column graphs BIGINT: graph replays that were launched.
-- column graphs_silent BIGINT: of these, replays without device work, but for those whose turn came later.
-- column graphs_last BIGINT: of these, those launched after all recorded work of their rank.
-- column replays BIGINT: graph replays of which rows with a graph id are recorded.
-- column replays_short BIGINT: of these, replays with fewer rows than others of their graph.
-- column calls BIGINT: other calls that should have started device work.
-- column calls_silent BIGINT: of these, calls without, but for those before the first recorded work, those whose turn
--                             came later, and memsets.
-- column calls_last BIGINT: calls without device work that were launched after all recorded work of their rank.
-- column span_ns BIGINT: span of all devices.
-- column replay_holes_ns BIGINT: holes between rows of one graph replay.
CREATE MACRO recording_losses(graph_hole_ns := 100000) AS TABLE
WITH calls AS (
    SELECT
        count(*) FILTER (WHERE is_graph) AS graphs,
        count(*) FILTER (WHERE is_graph AND NOT worked AND NOT queued) AS graphs_silent,
        count(*) FILTER (WHERE is_graph AND NOT worked AND ts > last_ts) AS graphs_last,
        count(*) FILTER (WHERE NOT is_graph) AS calls,
        count(*) FILTER (
            WHERE NOT is_graph
                AND NOT worked
                AND NOT queued
                AND coalesce(ts > first_ts, true)
                AND NOT contains(name, 'Memset')
        ) AS calls_silent,
        count(*) FILTER (WHERE NOT is_graph AND NOT worked AND ts > last_ts) AS calls_last
    FROM (
        SELECT
            c.*,
            -- After all that worked, and before the end of that.
            coalesce(ts > last_ts AND ts < end_ts, false) AS queued
        FROM (
            SELECT
                *,
                min(ts) FILTER (WHERE worked) OVER (PARTITION BY rank) AS first_ts,
                max(ts) FILTER (WHERE worked) OVER (PARTITION BY rank) AS last_ts
            FROM launch_calls()
            WHERE expected
        ) AS c
        LEFT JOIN (SELECT rank, max(ts + dur) AS end_ts FROM device_activity GROUP BY rank) AS d ON d.rank = c.rank
    )
),
replays AS (
    SELECT
        count(*) AS replays,
        count(*) FILTER (WHERE rows < whole) AS replays_short
    FROM (
        SELECT
            count(*) AS rows,
            max(count(*)) OVER (PARTITION BY l.rank, l.pid, d.graph_id) AS whole
        FROM device_activity AS d
        JOIN launches AS l ON l.id = d.launch_id
        WHERE d.graph_id IS NOT NULL
        GROUP BY l.rank, l.pid, d.graph_id, d.launch_id
    )
),
holes AS (
    SELECT coalesce(sum(g.dur), 0)::BIGINT AS replay_holes_ns
    FROM idle_gaps_raw() AS g
    JOIN device_activity AS b ON b.id = g.before_id
    JOIN launches AS l ON l.id = g.launch_id
    WHERE b.launch_id = g.launch_id
        AND contains(l.name, 'GraphLaunch')
        AND g.dur > graph_hole_ns
)
SELECT
    (SELECT count(*) FROM device_activity) AS rows,
    (SELECT count(*) FROM unfinished) AS unfinished,
    graphs,
    graphs_silent,
    graphs_last,
    replays,
    replays_short,
    calls,
    calls_silent,
    calls_last,
    (SELECT coalesce(sum(span_ns), 0)::BIGINT FROM device_time()) AS span_ns,
    replay_holes_ns
FROM calls, replays, holes;
