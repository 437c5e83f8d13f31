-- Views and macros that every analysis, and `tracekit sql`, may rely on. `events` is the Parquet file (schema.sql).
-- Here and in analyses/*.sql a header documents what follows it: one `-- column NAME TYPE: meaning` a column, one
-- `-- parameter NAME TYPE: meaning` a parameter. Times are integer nanoseconds, ts from the trace origin.

-- What was counted as a whole number, NULL if that cannot be.
-- parameter number DOUBLE: what was counted.
CREATE MACRO whole_number(number) AS CASE WHEN number BETWEEN 0 AND 9e18 THEN round(number)::BIGINT END;

-- Work on a device: what counts as busy.
CREATE VIEW device_activity AS
SELECT * FROM events WHERE kind IN ('kernel', 'memcpy', 'memset', 'graph');

-- Device rows whose end was not recorded; they are stored with no duration.
CREATE VIEW unfinished AS
SELECT * FROM device_activity WHERE dur = 0 AND contains(args, '"finished": false');

CREATE VIEW kernels AS
SELECT * FROM events WHERE kind = 'kernel';

CREATE VIEW memcpys AS
SELECT * FROM events WHERE kind = 'memcpy';

-- Runtime and driver API calls, whether or not they started device work.
CREATE VIEW launches AS
SELECT * FROM events WHERE kind = 'launch';

CREATE VIEW ops AS
SELECT * FROM events WHERE kind = 'op';

CREATE VIEW annotations AS
SELECT * FROM events WHERE kind = 'annotation';

CREATE VIEW python_calls AS
SELECT * FROM events WHERE kind = 'python';

-- Devices: those the profiled process saw, and any other that did work.
-- column rank INTEGER: rank.
-- column device BIGINT: index as recorded.
-- column name VARCHAR: as recorded, NULL if the trace does not say.
-- column properties VARCHAR: JSON object as recorded.
CREATE VIEW devices AS
SELECT
    rank,
    device,
    any_value(name) AS name,
    any_value(properties) AS properties
FROM (
    SELECT rank, device, name, properties FROM footer_devices
    UNION ALL
    SELECT DISTINCT rank, device, NULL, NULL FROM device_activity
)
GROUP BY ALL;

-- Devices with what the trace says of them, or of the one that they must be. A process that sees one device alone may
-- describe it as device 0 and record its work as that of device 9, say: where a rank describes exactly one, a device that
-- it does not describe is taken as that.
-- column rank INTEGER: rank.
-- column device BIGINT: index as recorded, NULL of work without one.
-- column name VARCHAR: as recorded, NULL if the trace does not say.
-- column properties VARCHAR: JSON object as recorded, NULL or {} if the trace does not say.
-- column described_by BIGINT: the device that it is taken as, NULL where it is described itself, or nobody knows.
CREATE MACRO device_descriptions() AS TABLE
WITH said AS (
    SELECT
        *,
        name IS NOT NULL OR properties <> '{}' AS described
    FROM devices
),
alone AS (
    FROM said
    WHERE described
    QUALIFY count(*) OVER (PARTITION BY rank) = 1
)
SELECT
    s.rank,
    s.device,
    coalesce(s.name, a.name) AS name,
    CASE WHEN a.device IS NULL THEN s.properties ELSE a.properties END AS properties,
    a.device AS described_by
FROM said AS s
LEFT JOIN alone AS a
    ON a.rank = s.rank
    AND s.described IS NOT true;

-- Ranks read, one row each.
-- column rank INTEGER: rank.
-- column world_size BIGINT: ranks of the job, NULL if the trace does not say.
-- column rank_from VARCHAR: who said so: distributedInfo, file name, process label, collector, default, assigned.
-- column sources BIGINT: files read for it.
CREATE VIEW ranks AS
SELECT
    rank,
    max(world_size) AS world_size,
    min(rank_from) AS rank_from,
    count(*) AS sources
FROM footer_sources
GROUP BY rank;

-- All device rows with the end of the work before them: what comes after it is theirs alone. Not filtered by the scope:
-- gaps and the union over streams are those of all rows.
-- column id BIGINT: the row.
-- column kind VARCHAR: kernel, memcpy, memset, graph.
-- column name VARCHAR: as recorded.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column ts BIGINT: start.
-- column dur BIGINT: length.
-- column launch_id BIGINT: the API call that started it.
-- column op_id BIGINT: the op around that call.
-- column stream BIGINT: stream.
-- column step INTEGER: serving step that launched it, NULL outside steps.
-- column busy_until BIGINT: end of all earlier work on the device, NULL for the first row.
CREATE MACRO all_segments() AS TABLE
SELECT
    id,
    kind,
    name,
    rank,
    device,
    ts,
    dur,
    launch_id,
    op_id,
    stream,
    step,
    max(ts + dur) OVER (
        PARTITION BY rank, device
        ORDER BY ts, dur DESC, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS busy_until
FROM device_activity;

-- Device rows in the scope, with the time that is theirs alone, so that parts add up to the union over all streams: a
-- nanosecond that several rows cover belongs to the one that started first (of equal starts the longest).
-- column id BIGINT: the row.
-- column kind VARCHAR: kernel, memcpy, memset, graph.
-- column name VARCHAR: as recorded.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column ts BIGINT: start, not before that of the scope.
-- column dur BIGINT: length, up to the end of the scope.
-- column launch_id BIGINT: the API call that started it.
-- column op_id BIGINT: the op around that call.
-- column stream BIGINT: stream.
-- column step INTEGER: serving step that launched it, NULL outside steps.
-- column busy_until BIGINT: end of all earlier work on the device, NULL for the first row.
-- column exclusive_ns BIGINT: length of the part after busy_until.
CREATE MACRO busy_segments() AS TABLE
SELECT
    id,
    kind,
    name,
    rank,
    device,
    ts,
    dur,
    launch_id,
    op_id,
    stream,
    step,
    busy_until,
    greatest(0, ts + dur - greatest(ts, coalesce(busy_until, ts))) AS exclusive_ns
FROM (
    SELECT
        * REPLACE (
            scope_clip(ts) AS ts,
            scope_clip(ts + dur) - scope_clip(ts) AS dur
        )
    FROM all_segments()
    WHERE in_scope(rank, device, step)
        AND in_window(ts, dur)
);

-- Span, busy and idle time of each device in the scope: busy is the union over its streams, idle the gaps, span both
-- together; of all of a trace, the time from the first start to the last end.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column start_ts BIGINT: start of its first row, or of the gap before it.
-- column span_ns BIGINT: busy_ns + idle_ns.
-- column busy_ns BIGINT: covered by at least one row.
-- column idle_ns BIGINT: covered by none; of the gaps that rows in the scope ended.
-- column sum_ns BIGINT: sum of durations; above busy_ns where work overlaps.
-- column count BIGINT: rows.
CREATE MACRO device_time() AS TABLE
SELECT
    rank,
    device,
    min(scope_clip(gap_ts)) AS start_ts,
    sum(busy_ns + idle_ns)::BIGINT AS span_ns,
    sum(busy_ns)::BIGINT AS busy_ns,
    sum(idle_ns)::BIGINT AS idle_ns,
    sum(scope_clip(ts + dur) - scope_clip(ts))::BIGINT AS sum_ns,
    count(*) FILTER (in_window(ts, dur)) AS count
FROM (
    SELECT
        *,
        greatest(0, scope_clip(ts + dur) - scope_clip(greatest(ts, coalesce(busy_until, ts)))) AS busy_ns,
        scope_clip(ts) - scope_clip(gap_ts) AS idle_ns
    -- Up to its start each row has the gap that it ended, if there is one.
    FROM (SELECT *, least(ts, coalesce(busy_until, ts)) AS gap_ts FROM all_segments())
    WHERE in_scope(rank, device, step)
        AND (in_window(ts, dur) OR in_window(gap_ts, ts - gap_ts))
)
GROUP BY rank, device;

-- How long each device computed, in the scope: the union of its kernels and graph replays alone. A device that only copies
-- is busy all the same, hence not idle time's complement.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column kernel_ns BIGINT: covered by at least one kernel or graph replay.
CREATE MACRO kernel_time() AS TABLE
SELECT
    rank,
    device,
    sum(
        greatest(0, scope_clip(ts + dur) - scope_clip(greatest(ts, coalesce(computed_until, ts))))
    )::BIGINT AS kernel_ns
FROM (
    SELECT
        rank,
        device,
        ts,
        dur,
        step,
        max(ts + dur) OVER (
            PARTITION BY rank, device
            ORDER BY ts, dur DESC, id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS computed_until
    FROM device_activity
    WHERE kind IN ('kernel', 'graph')
)
WHERE in_scope(rank, device, step)
    AND in_window(ts, dur)
GROUP BY rank, device;

-- Maximal holes in the device's work over all streams, the tiniest included, in the scope or not: of a whole trace they
-- add up to idle_ns of device_time. A row of no duration covers no time but is work: the hole around it is two. What is
-- made from them is chosen at the end, by in_scope(rank, device, step) and in_window(ts, dur), and cut by scope_clip.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column ts BIGINT: start of the gap.
-- column dur BIGINT: length, > 0.
-- column before_id BIGINT: the row whose end began the gap.
-- column after_id BIGINT: the row whose start ended it.
-- column launch_id BIGINT: the API call that started the row after.
-- column step INTEGER: serving step of the row after, NULL outside steps.
CREATE MACRO idle_gaps_raw() AS TABLE
SELECT
    rank,
    device,
    busy_until AS ts,
    ts - busy_until AS dur,
    before_id,
    id AS after_id,
    launch_id,
    step
FROM (
    SELECT
        *,
        -- Only rows that move the end of the work forward are here: the previous one is the one that ended last.
        lag(id) OVER (PARTITION BY rank, device ORDER BY ts, dur DESC, id) AS before_id
    FROM all_segments()
    WHERE busy_until IS NULL OR ts + dur > busy_until
)
WHERE ts > busy_until;

-- Category of each distinct device row by kind, name and name of the op around its launch. Filled by the Trace when a
-- query first reads it, from kernel_rules.toml and the user's rules. On a trace without device activity: of each op.
-- column kind VARCHAR: kernel, memcpy, memset, graph; op where the trace has no device activity.
-- column name VARCHAR: as recorded.
-- column op_name VARCHAR: name of the op, '' without one.
-- column category VARCHAR: category.
-- column subcategory VARCHAR: subcategory, '' without one.
CREATE TABLE kernel_classes (
    kind VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    op_name VARCHAR NOT NULL,
    category VARCHAR NOT NULL,
    subcategory VARCHAR NOT NULL
);

-- What kernel_classes is made from.
-- column kind VARCHAR: as there.
-- column name VARCHAR: as there.
-- column op_name VARCHAR: as there.
CREATE MACRO names_to_classify() AS TABLE
SELECT DISTINCT
    d.kind,
    d.name,
    coalesce(o.name, '') AS op_name
FROM device_activity AS d
LEFT JOIN ops AS o ON o.id = d.op_id
UNION ALL
SELECT DISTINCT
    'op',
    name,
    name
FROM ops
WHERE NOT EXISTS (FROM device_activity);

-- busy_segments with their category.
-- column id BIGINT: the row.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column name VARCHAR: as recorded.
-- column launch_id BIGINT: the API call that started it.
-- column op_id BIGINT: the op around that call.
-- column step INTEGER: serving step that launched it, NULL outside steps.
-- column category VARCHAR: category.
-- column subcategory VARCHAR: subcategory, '' without one.
-- column dur BIGINT: length.
-- column exclusive_ns BIGINT: time that is its alone.
CREATE MACRO classified_segments() AS TABLE
SELECT
    b.id,
    b.rank,
    b.device,
    b.name,
    b.launch_id,
    b.op_id,
    b.step,
    coalesce(c.category, 'other') AS category,
    coalesce(c.subcategory, '') AS subcategory,
    b.dur,
    b.exclusive_ns
FROM busy_segments() AS b
LEFT JOIN ops AS o ON o.id = b.op_id
LEFT JOIN kernel_classes AS c
    ON c.kind = b.kind
    AND c.name = b.name
    AND c.op_name = coalesce(o.name, '');

-- API calls, and whether they should have started device work and did. Expected are calls of a known kind (kernel and
-- graph launches, copies, sets) and those of a name that started work anywhere in the trace, whatever it is.
-- column id BIGINT: the call.
-- column name VARCHAR: as recorded.
-- column rank INTEGER: rank.
-- column ts BIGINT: start.
-- column worked BOOLEAN: has device rows.
-- column expected BOOLEAN: should have.
-- column is_graph BOOLEAN: expected, and a graph replay.
CREATE MACRO launch_calls() AS TABLE
WITH calls AS MATERIALIZED (
    SELECT
        id,
        name,
        rank,
        ts,
        id IN (SELECT launch_id FROM device_activity WHERE launch_id IS NOT NULL) AS worked
    FROM launches
),
names AS (
    SELECT
        name,
        bool_or(worked)
        OR regexp_matches(name, '^(cuda|hip|cu)(Ext)?(Module)?(Launch(Cooperative)?Kernel|GraphLaunch|Memcpy|Memset)')
            AS expected
    FROM calls
    GROUP BY name
)
SELECT
    c.id,
    c.name,
    c.rank,
    c.ts,
    c.worked,
    n.expected,
    n.expected AND contains(c.name, 'GraphLaunch') AS is_graph
FROM calls AS c
JOIN names AS n ON n.name = c.name;
