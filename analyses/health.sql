-- Can this trace be trusted? One row per check, with what was counted, to be read without a scope; judging is left to
-- health.py.
--   launches_without_device_work  calls that should have started device work and have none: calls of a known kind, or of
--                                 a name that did start work elsewhere in the trace (total: all such calls)
--   graph_launches_without_work   of these, graph replays (total: all graph replays)
--   device_work_without_launch    device rows without an API call (total: all device rows; ns: their time)
--   launched_before_recording     of these, rows before the first row with a call on their stream: queued before the
--                                 recording began
--   starts_before_launch          device rows that start before their call: clocks differ (ns: by how much at most)
--   ranks_without_device_activity ranks that made launch calls and have no device rows (total: ranks with such calls)
--   device_time_without_op        device rows without an op (total: all; ns: their exclusive time; total_ns: busy time)
--   unclassified_time             device rows of category other (the same)
--   opaque_replays                graph replays recorded as one block (the same)
--   steps_without_device_work     serving steps that launched no recorded work (total: all steps)
--   dominating_row                rows that take more than half of their device's span, of devices with 100 rows or more
--   zero_duration                 device rows of no duration (total: all device rows)
--   no_end_recorded               device rows whose end was not recorded (total: all device rows)
--   memory_events                 memory instants, asked for by profile_memory
-- threshold missing_share: share of launches without device work, or of device work without a launch, above which a
--                          check warns.
-- threshold unfinished_share: the same of device rows without a recorded end.
-- threshold other_share: the same of busy time in no category.
-- threshold unattributed_share: the same of the span that is idle without a cause.
-- threshold skew_ns: skew of the clocks of host and device above which a check warns.
-- column check VARCHAR: which check.
-- column count BIGINT: rows that it is about.
-- column total BIGINT: of how many.
-- column ns BIGINT: time that it is about, NULL where that says nothing.
-- column total_ns BIGINT: of how much.
-- column names VARCHAR[]: the most frequent names among them (for time: the costliest), ten at most.
-- column example BIGINT: id of one of the rows, NULL if there is none.
CREATE MACRO health() AS TABLE
WITH classified AS MATERIALIZED (
    FROM classified_segments()
),
activity AS MATERIALIZED (
    SELECT
        d.id,
        d.name,
        d.rank,
        d.device,
        d.stream,
        d.ts,
        d.dur,
        d.launch_id,
        d.step,
        min(CASE WHEN d.launch_id IS NOT NULL THEN d.ts END) OVER (PARTITION BY d.rank, d.device, d.stream)
            AS first_linked_ts
    FROM device_activity AS d
),
calls AS MATERIALIZED (
    FROM launch_calls()
),
launching AS MATERIALIZED (
    SELECT * FROM calls WHERE expected
),
rank_calls AS (
    SELECT
        rank,
        count(*) AS calls,
        min(id) AS example,
        rank IN (SELECT rank FROM activity) AS active
    FROM launching
    GROUP BY rank
),
step_work AS (
    SELECT
        s.id,
        s.phase AS name,
        w.step IS NOT NULL AS worked
    FROM steps AS s
    LEFT JOIN (SELECT DISTINCT rank, step FROM activity) AS w
        ON w.rank = s.rank
        AND w.step = s.step
),
dominating AS (
    SELECT
        a.id,
        a.name,
        a.dur,
        t.span_ns
    FROM activity AS a
    JOIN device_time() AS t
        ON t.rank = a.rank
        AND t.device IS NOT DISTINCT FROM a.device
    WHERE t.count >= 100
        AND 2 * a.dur > t.span_ns
),
found AS (
    SELECT 'launches_without_device_work' AS "check", id, name, NULL::BIGINT AS ns FROM launching WHERE NOT worked
    UNION ALL
    SELECT 'graph_launches_without_work', id, name, NULL FROM launching WHERE is_graph AND NOT worked
    UNION ALL
    SELECT 'device_work_without_launch', id, name, dur FROM activity WHERE launch_id IS NULL
    UNION ALL
    SELECT 'launched_before_recording', id, name, dur FROM activity WHERE launch_id IS NULL AND ts < first_linked_ts
    UNION ALL
    SELECT 'device_time_without_op', id, name, exclusive_ns FROM classified WHERE op_id IS NULL
    UNION ALL
    SELECT 'unclassified_time', id, name, exclusive_ns FROM classified WHERE category = 'other'
    UNION ALL
    SELECT 'opaque_replays', id, name, exclusive_ns FROM classified WHERE category = 'graph'
    UNION ALL
    SELECT 'steps_without_device_work', id, name, NULL FROM step_work WHERE NOT worked
    UNION ALL
    SELECT 'dominating_row', id, name, dur FROM dominating
    UNION ALL
    SELECT 'zero_duration', id, name, NULL FROM activity WHERE dur = 0
    UNION ALL
    SELECT 'no_end_recorded', id, name, NULL FROM unfinished
    UNION ALL
    SELECT 'memory_events', id, name, NULL FROM events WHERE kind = 'instant' AND name = '[memory]'
),
by_name AS (
    SELECT
        "check",
        name,
        count(*) AS count,
        sum(ns) AS ns,
        min(id) AS example
    FROM found
    GROUP BY "check", name
),
counted AS (
    SELECT
        "check",
        sum(count)::BIGINT AS count,
        sum(ns)::BIGINT AS ns,
        list(name ORDER BY ns DESC NULLS LAST, count DESC, name)[:10] AS names,
        min(example) AS example
    FROM by_name
    GROUP BY "check"
    UNION ALL
    SELECT
        'starts_before_launch',
        count(*),
        max(c.ts - a.ts),
        list(DISTINCT a.name ORDER BY a.name)[:10],
        arg_max(a.id, (c.ts - a.ts, -a.id))
    FROM activity AS a
    JOIN calls AS c ON c.id = a.launch_id
    WHERE a.ts < c.ts
    UNION ALL
    SELECT
        'ranks_without_device_activity',
        count(*),
        NULL,
        list('rank ' || rank ORDER BY rank)[:10],
        min(example)
    FROM rank_calls
    WHERE NOT active
),
totals AS (
    SELECT
        unnest([
            {'check': 'launches_without_device_work', 'total': (SELECT count(*) FROM launching), 'total_ns': NULL::BIGINT},
            {'check': 'graph_launches_without_work', 'total': (SELECT count(*) FROM launching WHERE is_graph),
             'total_ns': NULL},
            {'check': 'device_work_without_launch', 'total': (SELECT count(*) FROM activity),
             'total_ns': (SELECT sum(dur) FROM activity)},
            {'check': 'launched_before_recording', 'total': (SELECT count(*) FROM activity),
             'total_ns': (SELECT sum(dur) FROM activity)},
            {'check': 'starts_before_launch', 'total': (SELECT count(*) FROM activity), 'total_ns': NULL},
            {'check': 'ranks_without_device_activity', 'total': (SELECT count(*) FROM rank_calls), 'total_ns': NULL},
            {'check': 'device_time_without_op', 'total': (SELECT count(*) FROM activity),
             'total_ns': (SELECT sum(exclusive_ns) FROM classified)},
            {'check': 'unclassified_time', 'total': (SELECT count(*) FROM activity),
             'total_ns': (SELECT sum(exclusive_ns) FROM classified)},
            {'check': 'opaque_replays', 'total': (SELECT count(*) FROM activity),
             'total_ns': (SELECT sum(exclusive_ns) FROM classified)},
            {'check': 'steps_without_device_work', 'total': (SELECT count(*) FROM steps), 'total_ns': NULL},
            {'check': 'dominating_row', 'total': (SELECT count(*) FROM activity), 'total_ns': NULL},
            {'check': 'zero_duration', 'total': (SELECT count(*) FROM activity), 'total_ns': NULL},
            {'check': 'no_end_recorded', 'total': (SELECT count(*) FROM activity), 'total_ns': NULL},
            {'check': 'memory_events', 'total': (SELECT count(*) FROM events WHERE kind = 'instant'),
             'total_ns': NULL}
        ], recursive := true)
)
SELECT
    t."check",
    coalesce(c.count, 0) AS count,
    t.total,
    c.ns,
    t.total_ns::BIGINT AS total_ns,
    coalesce(c.names, []::VARCHAR[]) AS names,
    c.example
FROM totals AS t
LEFT JOIN counted AS c ON c."check" = t."check"
ORDER BY t."check";
