-- What a window of time held, for a drawing of it.

-- Rows that a timeline shows, if they overlap a window of time: steps, host rows of the kinds that nest, device rows. All
-- of them, in the scope or not: what is drawn is what was there. Gaps are not among them (they are judged by idle_gaps),
-- nor what lies over all threads (overhead, os).
-- parameter from_ts BIGINT: start of the window.
-- parameter to_ts BIGINT: its end, itself not included.
-- column kind VARCHAR: step, annotation, python, op, launch, device.
-- column id BIGINT: the row; of a step its mark, NULL if it was inferred.
-- column ts BIGINT: start, as recorded.
-- column dur BIGINT: length, as recorded.
-- column name VARCHAR: as recorded; of a step its number and phase.
-- column label VARCHAR: category of device rows, '' otherwise.
-- column rank INTEGER: rank.
-- column pid BIGINT: process, NULL of device rows and inferred steps.
-- column tid BIGINT: thread, NULL of device rows and inferred steps.
-- column device BIGINT: device, NULL of host rows.
-- column stream BIGINT: stream, NULL of host rows.
-- column launch_id BIGINT: of device rows the API call that started them, else NULL.
-- column step INTEGER: serving step, NULL outside steps.
CREATE MACRO window_rows(from_ts := -9223372036854775808, to_ts := 9223372036854775807) AS TABLE
WITH found AS (
    SELECT
        e.kind,
        e.id,
        e.ts,
        e.dur,
        e.name,
        coalesce(c.category, '') AS label,
        e.rank,
        e.pid,
        e.tid,
        e.device,
        e.stream,
        CASE WHEN e.kind IN ('kernel', 'memcpy', 'memset', 'graph') THEN e.launch_id END AS launch_id,
        e.step
    FROM events AS e
    LEFT JOIN ops AS o ON o.id = e.op_id
    LEFT JOIN kernel_classes AS c
        ON c.kind = e.kind
        AND c.name = e.name
        AND c.op_name = coalesce(o.name, '')
    WHERE e.kind IN ('annotation', 'python', 'op', 'launch', 'kernel', 'memcpy', 'memset', 'graph')
        AND e.ts < to_ts
        AND (e.ts + e.dur > from_ts OR e.ts >= from_ts)
)
SELECT
    CASE WHEN kind IN ('kernel', 'memcpy', 'memset', 'graph') THEN 'device' ELSE kind END AS kind,
    id,
    ts,
    dur,
    name,
    -- kernel_classes has ops where a trace has no device activity.
    CASE WHEN kind IN ('kernel', 'memcpy', 'memset', 'graph') THEN label ELSE '' END AS label,
    rank,
    pid,
    tid,
    device,
    stream,
    launch_id,
    step
FROM found
UNION ALL
SELECT
    'step',
    id,
    ts,
    dur,
    'step ' || step || ' ' || phase,
    '',
    rank,
    pid,
    tid,
    NULL,
    NULL,
    NULL,
    step::INTEGER
FROM steps
WHERE ts < to_ts
    AND (ts + dur > from_ts OR ts >= from_ts);
