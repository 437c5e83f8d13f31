-- The event table as text of Chrome's trace event format, for tracekit/perfetto.py, which runs the statements by name.
-- Categories and arguments are named as torch.profiler names them, so that whoever reads its files reads these.
--
-- Numbers in a viewer are doubles: a larger integer is written as text, and times as decimals of microseconds that are
-- put together from integers. concat_ws leaves out what is NULL.

-- name: prepare
CREATE TEMP MACRO quoted(content) AS to_json(content)::VARCHAR;

CREATE TEMP MACRO whole(number) AS
    CASE WHEN number BETWEEN -9007199254740991 AND 9007199254740991 THEN number::VARCHAR ELSE '"' || number || '"' END;

CREATE TEMP MACRO micros(ns) AS
    CASE WHEN ns < 0 THEN '-' ELSE '' END || (abs(ns) // 1000) || '.' || lpad((abs(ns) % 1000)::VARCHAR, 3, '0');

-- JSON that is stored as text; as a string if it is no JSON, or has in it what JSON does not know.
CREATE TEMP MACRO stored(content) AS
    CASE
        WHEN content IS NULL THEN NULL
        WHEN json_valid(content) AND NOT regexp_matches(content, '(?i)nan|inf|\d{16}') THEN json(content)::VARCHAR
        ELSE quoted(content)
    END;

-- The members of a JSON object, without its braces; NULL if there are none.
CREATE TEMP MACRO members(content) AS
    CASE
        WHEN content IS NULL THEN NULL
        WHEN NOT json_valid(content) OR json_type(content) <> 'OBJECT' THEN '"args":' || quoted(content)
        WHEN regexp_matches(content, '(?i)nan|inf|\d{16}') THEN nullif(array_to_string([
            quoted(key)
                || ':'
                || number_or_text(json_extract(content, '/' || replace(replace(key, '~', '~0'), '/', '~1')))
            FOR key IN json_keys(content)
        ], ','), '')
        ELSE nullif((json(content)::VARCHAR)[2:-2], '')
    END;

CREATE TEMP MACRO number_or_text(content) AS
    CASE json_type(content)
        WHEN 'BIGINT' THEN whole((json_extract_string(content, '$'))::HUGEINT)
        WHEN 'UBIGINT' THEN whole((json_extract_string(content, '$'))::HUGEINT)
        WHEN 'DOUBLE' THEN
            CASE WHEN isfinite((json_extract_string(content, '$'))::DOUBLE) THEN content::VARCHAR ELSE 'null' END
        WHEN 'VARCHAR' THEN content::VARCHAR
        ELSE stored(content::VARCHAR)
    END;

-- Where a row is drawn: the kind of its track. Only work of a device is drawn on the streams themselves.
CREATE TEMP MACRO track_kind(kind, device) AS
    CASE
        WHEN kind IN ('kernel', 'memcpy', 'memset', 'graph') THEN 'work'
        WHEN kind = 'gpu_annotation' THEN 'annotations'
        WHEN kind = 'sync' THEN 'synchronisation'
        WHEN kind IN ('counter', 'instant') AND device IS NOT NULL THEN 'moments'
        ELSE 'host'
    END;

-- Host rows are of no device: where devices are chosen, they stay.
CREATE TEMP MACRO is_chosen(of_rank, of_device, of_step) AS
    in_scope(of_rank, coalesce(of_device, (SELECT devices[1] FROM scope)), of_step);

CREATE TEMP VIEW exported AS
SELECT
    * REPLACE (
        scope_clip(ts) AS ts,
        scope_clip(ts + dur) - scope_clip(ts) AS dur
    ),
    scope_clip(ts) <> ts OR scope_clip(ts + dur) <> ts + dur AS is_cut,
    track_kind(kind, device) AS track_kind
FROM events
WHERE is_chosen(rank, device, step)
    AND in_window(ts, dur);

-- name: tracks
CREATE TEMP TABLE tracks AS
SELECT
    (row_number() OVER (ORDER BY rank, track_kind, pid, tid, device, stream) - 1)::INTEGER AS track,
    *
FROM (
    SELECT DISTINCT
        rank,
        track_kind,
        CASE WHEN track_kind = 'host' THEN pid END AS pid,
        CASE WHEN track_kind = 'host' THEN tid END AS tid,
        CASE WHEN track_kind <> 'host' THEN device END AS device,
        CASE WHEN track_kind <> 'host' THEN stream END AS stream
    FROM exported
);

CREATE TEMP VIEW drawn AS
SELECT
    e.*,
    t.track
FROM exported AS e
JOIN tracks AS t
    ON t.rank = e.rank
    AND t.track_kind = e.track_kind
    AND t.pid IS NOT DISTINCT FROM CASE WHEN e.track_kind = 'host' THEN e.pid END
    AND t.tid IS NOT DISTINCT FROM CASE WHEN e.track_kind = 'host' THEN e.tid END
    AND t.device IS NOT DISTINCT FROM CASE WHEN e.track_kind <> 'host' THEN e.device END
    AND t.stream IS NOT DISTINCT FROM CASE WHEN e.track_kind <> 'host' THEN e.stream END;

-- name: spans
SELECT
    track,
    ts,
    ts + dur AS end_ts,
    id
FROM drawn
WHERE dur > 0
ORDER BY track, ts, dur DESC, id;

-- name: flows
-- One arrow from a launch to the first row that it started on each stream: a graph replay has thousands.
CREATE TEMP TABLE flows AS
SELECT
    l.id AS launch_id,
    l.ts AS launch_ts,
    d.target,
    d.target_ts
FROM (
    SELECT
        launch_id,
        arg_min(id, (ts, id)) AS target,
        min(ts) AS target_ts
    FROM exported
    WHERE track_kind = 'work'
        AND launch_id IS NOT NULL
    GROUP BY launch_id, device, stream
) AS d
JOIN (SELECT id, ts FROM exported WHERE kind = 'launch') AS l ON l.id = d.launch_id
ORDER BY launch_ts;

-- name: pieces
-- Starts that cut the rows into about $pieces parts of equal size.
SELECT unnest(list_distinct(quantile_disc(ts, [i / $pieces FOR i IN range(1, $pieces)]))) AS ts
FROM exported
ORDER BY ts;

-- name: kinds
SELECT
    kind,
    count(*) AS count
FROM exported
GROUP BY kind
ORDER BY kind;

-- name: piece
SELECT
    kind,
    E',\n{"ph":"' || CASE
        WHEN samples IS NOT NULL THEN 'C","cat":"' || coalesce('GPU ' || device || ' Counters', 'hardware_counters')
        WHEN kind IN ('counter', 'instant') AND dur = 0 THEN 'i","s":"t'
        ELSE 'X","dur":' || micros(dur) || ',"cat":"' || CASE kind
            WHEN 'kernel' THEN 'kernel'
            WHEN 'memcpy' THEN 'gpu_memcpy'
            WHEN 'memset' THEN 'gpu_memset'
            WHEN 'sync' THEN 'cuda_sync'
            WHEN 'gpu_annotation' THEN 'gpu_user_annotation'
            WHEN 'launch' THEN CASE WHEN regexp_matches(name, '^cu[A-Z]') THEN 'cuda_driver' ELSE 'cuda_runtime' END
            WHEN 'op' THEN 'cpu_op'
            WHEN 'annotation' THEN 'user_annotation'
            WHEN 'python' THEN 'python_function'
            WHEN 'instant' THEN 'cpu_instant_event'
            WHEN 'counter' THEN CASE WHEN device IS NULL THEN 'hardware_counters' ELSE 'cuda_profiler_range' END
            ELSE kind
        END
    END || '","name":' || quoted(name) || place || ',"args":{' || CASE
        WHEN samples IS NOT NULL THEN samples
        ELSE concat_ws(',',
            '"External id":' || CASE WHEN kind IN ('op', 'annotation') THEN id ELSE op_id END,
            '"device":' || whole(device),
            '"context":' || whole(context),
            '"stream":' || whole(stream),
            '"correlation":' || whole(correlation),
            '"registers per thread":' || whole(registers),
            '"shared memory":' || whole(shared_memory),
            '"grid":[' || whole(grid_x) || ',' || whole(grid_y) || ',' || whole(grid_z) || ']',
            '"block":[' || whole(block_x) || ',' || whole(block_y) || ',' || whole(block_z) || ']',
            '"est. achieved occupancy %":' || CASE WHEN isfinite(occupancy) THEN occupancy END,
            '"graph id":' || whole(graph_id),
            '"graph node id":' || whole(graph_node_id),
            CASE WHEN kind IN ('instant', 'counter') THEN '"Bytes":' ELSE '"bytes":' END || whole(bytes),
            '"kind":' || quoted(copy_kind),
            '"Input Dims":' || stored(shapes),
            '"Input type":' || stored(dtypes),
            '"Concrete Inputs":' || stored(scalars),
            '"Collective name":' || quoted(collective),
            '"In msg nelems":' || whole(elements_in),
            '"Out msg nelems":' || whole(elements_out),
            '"dtype":' || quoted(comm_dtype),
            '"Process Group Name":' || quoted(group_name),
            '"Group size":' || whole(group_size),
            members(args),
            '"Ev Idx":' || id,
            '"launch id":' || launch_id,
            '"step":' || step,
            CASE WHEN is_cut THEN '"cut":true' END
        )
    END || '}}' || coalesce(
        E',\n{"ph":"f","bp":"e","id":' || target || ',"cat":"ac2g","name":"ac2g"' || place || '}', ''
    ) || coalesce(array_to_string([
        E',\n{"ph":"s","id":' || one || ',"cat":"ac2g","name":"ac2g"' || place || '}' FOR one IN targets
    ], ''), '') AS content
FROM (
    SELECT
        d.*,
        ',"pid":' || p.pid || ',"tid":' || p.tid || ',"ts":' || micros(d.ts) AS place,
        f.target,
        s.targets,
        -- A counter's values, without those that are no number. Without any, it is a mere moment: viewers drop it.
        -- What was counted from one time to another is a span, with the counts as its arguments.
        CASE WHEN d.kind = 'counter' AND d.dur = 0 THEN nullif(array_to_string([
            quoted(entry.key) || ':' || entry.value
            FOR entry IN map_entries(try_cast(d.args::JSON AS MAP(VARCHAR, DOUBLE)))
            IF isfinite(entry.value)
        ], ','), '') END AS samples
    FROM drawn AS d
    LEFT JOIN overlapping AS o ON o.id = d.id
    JOIN places AS p
        ON p.track = d.track
        AND p.lane = coalesce(o.lane, 0)
    LEFT JOIN (FROM flows WHERE target_ts >= $start AND target_ts < $end) AS f ON f.target = d.id
    LEFT JOIN (
        SELECT
            launch_id,
            list(target ORDER BY target) AS targets
        FROM flows
        WHERE launch_ts >= $start
            AND launch_ts < $end
        GROUP BY launch_id
    ) AS s ON s.launch_id = d.id
    WHERE d.ts >= $start
        AND d.ts < $end
)
ORDER BY ts, dur DESC, id;

-- name: steps
SELECT
    s.rank,
    d.device,
    scope_clip(s.ts) AS ts,
    scope_clip(s.ts + s.dur) - scope_clip(s.ts) AS dur,
    s.step || ' ' || s.phase AS name,
    json_merge_patch('{}', json_object(
        'step', s.step,
        'phase', s.phase,
        'prefill requests', s.prefill_requests,
        'prefill tokens', s.prefill_tokens,
        'decode requests', s.decode_requests,
        'decode tokens', s.decode_tokens,
        'found by', s.source,
        'id', s.id
    ))::VARCHAR AS args,
    NULL::VARCHAR AS colour
FROM steps AS s
LEFT JOIN (
    SELECT DISTINCT
        rank,
        device
    FROM device_activity
    WHERE in_scope(rank, device, step)
) AS d ON d.rank = s.rank
WHERE in_scope(s.rank, coalesce(d.device, (SELECT devices[1] FROM scope)), s.step)
    AND in_window(s.ts, s.dur)
ORDER BY s.rank, d.device, ts, dur DESC, s.step;

-- name: categories
-- Work of one category that goes on without a pause is one slice: the slices of a category add up to the time that is
-- its alone.
WITH parts AS (
    SELECT
        b.id,
        b.rank,
        b.device,
        b.ts + b.dur - b.exclusive_ns AS ts,
        b.ts + b.dur AS end_ts,
        c.category,
        c.subcategory
    FROM busy_segments() AS b
    JOIN classified_segments() AS c ON c.id = b.id
    WHERE b.exclusive_ns > 0
),
runs AS (
    SELECT
        *,
        sum(begins::INTEGER) OVER (PARTITION BY rank, device ORDER BY ts) AS run
    FROM (
        SELECT
            *,
            ts IS DISTINCT FROM lag(end_ts) OVER by_time
            OR category <> lag(category) OVER by_time
            OR subcategory <> lag(subcategory) OVER by_time AS begins
        FROM parts
        WINDOW by_time AS (PARTITION BY rank, device ORDER BY ts)
    )
)
SELECT
    rank,
    device,
    min(ts) AS ts,
    max(end_ts) - min(ts) AS dur,
    category AS name,
    json_merge_patch('{}', json_object(
        'subcategory', nullif(subcategory, ''),
        'rows', count(*),
        'first id', arg_min(id, ts)
    ))::VARCHAR AS args,
    NULL::VARCHAR AS colour
FROM runs
GROUP BY rank, device, run, category, subcategory
ORDER BY rank, device, ts;

-- name: idle_gaps
SELECT
    g.rank,
    g.device,
    g.ts,
    g.dur,
    g.cause AS name,
    json_merge_patch('{}', json_object(
        'step', g.step,
        'phase', g.phase,
        'place', g.place,
        'before id', g.before_id,
        'after id', g.after_id,
        'blame id', g.blame,
        'blame', e.name
    ))::VARCHAR AS args,
    -- Red is what the engine could change.
    CASE
        WHEN g.cause = 'unattributed' THEN 'grey'
        WHEN g.cause = 'no_requests' THEN 'white'
        WHEN g.cause IN ('launch_latency', 'stream_dependency', 'profiler') THEN 'yellow'
        ELSE 'terrible'
    END AS colour
FROM idle_rows AS g
LEFT JOIN events AS e ON e.id = g.blame
ORDER BY g.rank, g.device, g.ts;

-- name: layer
SELECT
    E',\n{"ph":"X","cat":"tracekit","name":' || quoted(r.name)
    || ',"pid":' || p.pid || ',"tid":' || p.tid || ',"ts":' || micros(r.ts) || ',"dur":' || micros(r.dur)
    || coalesce(',"cname":' || quoted(r.colour), '')
    || ',"args":' || r.args || '}' AS content
FROM layer_rows AS r
JOIN layer_places AS p
    ON p.rank = r.rank
    AND p.device IS NOT DISTINCT FROM r.device
    AND p.lane = r.lane
ORDER BY r.rank, r.device, r.ts, r.dur DESC, r.name;
