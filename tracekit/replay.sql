-- What a step is replayed from: its calls and device rows, how long a launch takes to reach the device, and how long a
-- device pauses between two rows of a stream.

-- API calls of a rank in a time, and which of them may wait for the device.
-- parameter of_rank INTEGER: the rank.
-- parameter from_ts BIGINT: start of the time.
-- parameter to_ts BIGINT: its end; calls that start then are in it.
-- column id BIGINT: the call.
-- column name VARCHAR: as recorded.
-- column ts BIGINT: start.
-- column dur BIGINT: length.
-- column pid BIGINT: process.
-- column tid BIGINT: thread.
-- column wait VARCHAR: what it may wait for: device, stream, event; own: the copy that it started; else ''.
-- column op VARCHAR: name of the op around it, '' without one.
CREATE MACRO replay_calls(of_rank := 0, from_ts := 0, to_ts := 9223372036854775807) AS TABLE
SELECT
    c.id,
    c.name,
    c.ts,
    c.dur,
    c.pid,
    c.tid,
    CASE
        WHEN regexp_matches(c.name, '^(cuda|hip)DeviceSynchronize|^cuCtxSynchronize') THEN 'device'
        WHEN regexp_matches(c.name, '^(cuda|hip|cu)StreamSynchronize') THEN 'stream'
        WHEN regexp_matches(c.name, '^(cuda|hip|cu)EventSynchronize') THEN 'event'
        WHEN regexp_matches(c.name, '^(cuda|hip|cu)Memcpy') THEN 'own'
        ELSE ''
    END AS wait,
    coalesce(o.name, '') AS op
FROM launches AS c
LEFT JOIN (FROM ops WHERE ts <= to_ts AND ts + dur >= from_ts) AS o ON o.id = c.op_id
WHERE c.rank = of_rank
    AND c.ts BETWEEN from_ts AND to_ts
ORDER BY
    c.ts,
    c.id;

-- Device rows that a time touches, or that calls of that time started.
-- parameter of_rank INTEGER: the rank.
-- parameter of_device BIGINT: the device.
-- parameter from_ts BIGINT: start of the time.
-- parameter to_ts BIGINT: its end; rows that start then are in it.
-- column id BIGINT: the row.
-- column kind VARCHAR: kernel, memcpy, memset, graph.
-- column name VARCHAR: as recorded.
-- column ts BIGINT: start.
-- column dur BIGINT: length.
-- column stream BIGINT: stream.
-- column launch_id BIGINT: the call that started it.
-- column op_id BIGINT: the op around that call.
-- column step INTEGER: its step.
-- column category VARCHAR: category.
-- column subcategory VARCHAR: subcategory, '' without one.
-- column elements_in BIGINT: elements that a collective is given, where recorded.
CREATE MACRO replay_rows(of_rank := 0, of_device := 0, from_ts := 0, to_ts := 9223372036854775807) AS TABLE
SELECT
    d.id,
    d.kind,
    d.name,
    d.ts,
    d.dur,
    d.stream,
    d.launch_id,
    d.op_id,
    d.step,
    coalesce(c.category, 'other') AS category,
    coalesce(c.subcategory, '') AS subcategory,
    d.elements_in
FROM device_activity AS d
LEFT JOIN ops AS o ON o.id = d.op_id
LEFT JOIN kernel_classes AS c
    ON c.kind = d.kind
    AND c.name = d.name
    AND c.op_name = coalesce(o.name, '')
WHERE d.rank = of_rank
    AND d.device IS NOT DISTINCT FROM of_device
    AND d.ts <= to_ts
    AND d.ts + d.dur >= from_ts
ORDER BY
    d.ts,
    d.dur DESC,
    d.id;

-- Device rows that follow another on their stream, with the call that started each.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column kind VARCHAR: kernel, memcpy, memset, graph.
-- column name VARCHAR: as recorded.
-- column ts BIGINT: start.
-- column free_ts BIGINT: end of the row before it on its stream.
-- column call_name VARCHAR: name of its call.
-- column call_ts BIGINT: start of that.
-- column call_end_ts BIGINT: its end.
-- column same_call BOOLEAN: the row before was started by the same call: both are of one graph replay.
CREATE MACRO followed_rows() AS TABLE
SELECT
    d.rank,
    d.device,
    d.kind,
    d.name,
    d.ts,
    d.free_ts,
    l.name AS call_name,
    l.ts AS call_ts,
    l.ts + l.dur AS call_end_ts,
    d.launch_id IS NOT DISTINCT FROM d.launch_before AS same_call
FROM (
    SELECT
        rank,
        device,
        kind,
        name,
        ts,
        launch_id,
        lag(ts + dur) OVER of_stream AS free_ts,
        lag(launch_id) OVER of_stream AS launch_before
    FROM device_activity
    WINDOW of_stream AS (PARTITION BY rank, device, stream ORDER BY ts, dur DESC, id)
) AS d
JOIN launches AS l ON l.id = d.launch_id
WHERE d.free_ts IS NOT NULL;

-- How long launches take to reach a device whose stream is empty, by the call.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column call_name VARCHAR: name of the call.
-- column count BIGINT: rows measured: those whose stream was empty when their call began, the first of each call.
-- column from_start_ns DOUBLE: median from the start of the call to the start of the row.
-- column from_end_ns DOUBLE: the same from the call's end.
-- column start_spread_ns DOUBLE: range of the middle half of the first.
-- column end_spread_ns DOUBLE: of the second.
CREATE MACRO launch_latencies() AS TABLE
SELECT
    rank,
    device,
    call_name,
    count(*) AS count,
    median(ts - call_ts) AS from_start_ns,
    median(ts - call_end_ts) AS from_end_ns,
    quantile_cont(ts - call_ts, 0.75) - quantile_cont(ts - call_ts, 0.25) AS start_spread_ns,
    quantile_cont(ts - call_end_ts, 0.75) - quantile_cont(ts - call_end_ts, 0.25) AS end_spread_ns
FROM followed_rows()
WHERE free_ts <= call_ts
    AND NOT same_call
GROUP BY
    rank,
    device,
    call_name
ORDER BY
    rank,
    device,
    call_name;

-- How long a stream pauses before a row that was waiting for it already, without a graph (launched by a call of its own
-- that ended before the row before did) and in one. Pauses beyond the middle nine tenths are left out of the mean: what
-- makes them long is something else, and what counts in a step is their sum.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column in_graph BOOLEAN: both rows are of one graph replay.
-- column name VARCHAR: name of the row; NULL: of all rows together.
-- column count BIGINT: rows measured.
-- column gap_ns DOUBLE: mean pause; negative where rows overlap.
CREATE MACRO stream_gaps() AS TABLE
WITH gaps AS MATERIALIZED (
    SELECT
        rank,
        device,
        same_call AS in_graph,
        name,
        ts - free_ts AS ns
    FROM followed_rows()
    WHERE same_call
        -- Well before: a launch takes some microseconds to get there.
        OR call_end_ts + 10000 <= free_ts
),
bounds AS (
    SELECT
        rank,
        device,
        in_graph,
        quantile_cont(ns, 0.05) AS low,
        quantile_cont(ns, 0.95) AS high
    FROM gaps
    GROUP BY ALL
)
SELECT
    g.rank,
    g.device,
    g.in_graph,
    g.name,
    count(*) AS count,
    avg(g.ns) AS gap_ns
FROM gaps AS g
JOIN bounds AS b
    ON b.rank = g.rank
    AND b.device IS NOT DISTINCT FROM g.device
    AND b.in_graph = g.in_graph
WHERE g.ns BETWEEN b.low AND b.high
GROUP BY GROUPING SETS ((g.rank, g.device, g.in_graph, g.name), (g.rank, g.device, g.in_graph))
ORDER BY ALL;

-- The least that collectives took, on any rank. What they take beyond is waiting for ranks that came late.
-- column name VARCHAR: of the kernel.
-- column elements_in BIGINT: elements that it is given, where recorded.
-- column dur BIGINT: ns.
CREATE MACRO shortest_collectives() AS TABLE
SELECT
    d.name,
    d.elements_in,
    min(d.dur) AS dur
FROM device_activity AS d
WHERE d.kind = 'kernel'
    AND d.name IN (SELECT name FROM kernel_classes WHERE category = 'communication')
GROUP BY
    d.name,
    d.elements_in
ORDER BY ALL;

-- Waits of streams for events, where the profiler recorded them.
-- parameter of_rank INTEGER: the rank.
-- parameter of_device BIGINT: the device.
-- parameter from_ts BIGINT: start of the time.
-- parameter to_ts BIGINT: its end.
-- column stream BIGINT: the stream that waits.
-- column call_ts BIGINT: when it was told to: what is launched to it from then on waits.
-- column on_stream BIGINT: the stream it waits for.
-- column record_ts BIGINT: when the event was recorded: it waits for what was launched to the other stream before.
CREATE MACRO recorded_waits(of_rank := 0, of_device := 0, from_ts := 0, to_ts := 9223372036854775807) AS TABLE
SELECT
    s.stream,
    w.ts AS call_ts,
    (s.args ->> 'wait_on_stream')::BIGINT AS on_stream,
    r.ts AS record_ts
FROM events AS s
JOIN launches AS w ON w.rank = s.rank AND w.correlation = s.correlation
JOIN launches AS r
    ON r.rank = s.rank
    AND r.correlation = (s.args ->> 'wait_on_cuda_event_record_corr_id')::BIGINT
WHERE s.kind = 'sync'
    AND s.rank = of_rank
    AND s.device IS NOT DISTINCT FROM of_device
    AND (s.args ->> 'cuda_sync_kind') = 'Stream Wait Event'
    AND w.ts BETWEEN from_ts AND to_ts
ORDER BY
    w.ts,
    s.stream;
