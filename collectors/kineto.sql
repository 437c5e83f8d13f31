-- How events of a Kineto file become rows: one statement per class of rows, run on each piece of the file.
-- Numbers in `args` are read leniently (a value of the wrong type is NULL): real files hold "6291456" for bytes,
-- "0x0" for a stream and "grid(100,)" for a grid. Times are decimals and never pass through a double.

--
-- Times stay decimals of microseconds with three places; the number behind such a decimal is the nanoseconds. Casting
-- it here would cost as much again as parsing.
--
-- Arguments of many rows are put together as text, in which concat_ws leaves out what is NULL: json_object and a
-- json_merge_patch against the NULLs take as long as all else.

-- name: load
CREATE OR REPLACE TEMP TABLE piece AS
FROM read_json(
    '{piece}',
    format = 'array',
    compression = 'uncompressed',
    maximum_object_size = {object_bytes},
    columns = {{
        ph: 'VARCHAR',
        cat: 'VARCHAR',
        name: 'VARCHAR',
        pid: 'VARCHAR',
        tid: 'VARCHAR',
        ts: 'DECIMAL(22,3)',
        dur: 'DECIMAL(18,3)',
        args: 'JSON'
    }}
);

-- name: counts
SELECT
    ph,
    cat,
    ts IS NULL AS without_ts,
    count(*) AS rows,
    count(*) FILTER (WHERE coalesce(dur, -1) < 0) AS without_end,
FROM piece
GROUP BY ALL;

-- name: python
SELECT
    cat AS kind,
    coalesce(name, '') AS name,
    ts,
    dur,
    pid,
    tid,
    TRY_CAST(args ->> 'Python id' AS BIGINT) AS tie,
FROM piece
WHERE ph = 'X' AND ts IS NOT NULL AND cat IN ({python});

-- name: host
SELECT
    cat AS kind,
    coalesce(name, '') AS name,
    ts,
    dur,
    pid,
    tid,
    a."External id" AS external_id,
    coalesce(a."Ev Idx", a."External id") AS tie,
    coalesce(a."Input Dims", CASE WHEN cat = 'Operator' THEN args ->> 'Input dims' END) AS shapes,
    a."Input type" AS dtypes,
    a."Concrete Inputs" AS scalars,
    a."Collective name" AS collective,
    a."In msg nelems" AS elements_in,
    a."Out msg nelems" AS elements_out,
    CASE WHEN a."Collective name" IS NOT NULL THEN a.dtype END AS comm_dtype,
    a."Process Group Name" AS group_name,
    a."Group size" AS group_size,
    CASE
        WHEN coalesce(
            a."Sequence number",
            a."Fwd thread id",
            a."Input Strides",
            a."Process Group Ranks",
            a.kernel_backend,
            a.finished
        ) IS NOT NULL
        THEN '{{' || concat_ws(',',
            '"Sequence number":' || TRY_CAST(a."Sequence number" AS BIGINT),
            '"Fwd thread id":' || TRY_CAST(a."Fwd thread id" AS BIGINT),
            '"Input Strides":' || to_json(a."Input Strides"),
            '"Process Group Ranks":' || to_json(a."Process Group Ranks"),
            '"In split size":' || to_json(a."In split size"),
            '"Out split size":' || to_json(a."Out split size"),
            '"Src Rank":' || TRY_CAST(a."Src Rank" AS BIGINT),
            '"Dst Rank":' || TRY_CAST(a."Dst Rank" AS BIGINT),
            '"kernel_backend":' || to_json(
                CASE WHEN regexp_full_match(a.kernel_backend, '\w{{1,20}}') THEN a.kernel_backend END
            ),
            '"kernel_kwargs":' || to_json(
                CASE WHEN regexp_full_match(a.kernel_kwargs, '(\w+=\d+(, ?)?)+') THEN a.kernel_kwargs END
            ),
            '"num_warps":' || TRY_CAST(a.num_warps AS BIGINT),
            '"num_stages":' || TRY_CAST(a.num_stages AS BIGINT),
            '"finished":' || TRY_CAST(a.finished AS BOOLEAN)
        ) || '}}'
    END AS args,
FROM (
    SELECT
        *,
        json_transform(
            args,
            '{{
                "External id": "BIGINT",
                "Ev Idx": "BIGINT",
                "Input Dims": "VARCHAR",
                "Input type": "VARCHAR",
                "Concrete Inputs": "VARCHAR",
                "Collective name": "VARCHAR",
                "In msg nelems": "BIGINT",
                "Out msg nelems": "BIGINT",
                "dtype": "VARCHAR",
                "Process Group Name": "VARCHAR",
                "Group size": "BIGINT",
                "Sequence number": "VARCHAR",
                "Fwd thread id": "VARCHAR",
                "Input Strides": "VARCHAR",
                "Process Group Ranks": "VARCHAR",
                "In split size": "VARCHAR",
                "Out split size": "VARCHAR",
                "Src Rank": "VARCHAR",
                "Dst Rank": "VARCHAR",
                "kernel_backend": "VARCHAR",
                "kernel_kwargs": "VARCHAR",
                "num_warps": "VARCHAR",
                "num_stages": "VARCHAR",
                "finished": "VARCHAR"
            }}'
        ) AS a,
    FROM piece
    WHERE ph = 'X' AND ts IS NOT NULL AND (cat IN ({host}) OR cat IS NULL OR cat NOT IN ({known}))
);

-- name: launch
SELECT
    cat AS kind,
    coalesce(name, '') AS name,
    ts,
    dur,
    pid,
    tid,
    a."External id" AS external_id,
    a.correlation AS correlation,
    a.correlation AS tie,
    a.bytes AS bytes,
    CASE
        WHEN a.kernel IS NOT NULL THEN json_object('kernel', a.kernel)
    END AS args,
FROM (
    SELECT
        *,
        json_transform(
            args,
            '{{"External id": "BIGINT", "correlation": "BIGINT", "bytes": "BIGINT", "kernel": "VARCHAR"}}'
        ) AS a,
    FROM piece
    WHERE ph = 'X' AND ts IS NOT NULL AND cat IN ({launch})
);

-- name: device
SELECT
    cat AS kind,
    coalesce(name, '') AS name,
    ts,
    CASE WHEN a.finished = 'false' THEN NULL ELSE dur END AS dur,
    pid,
    tid,
    coalesce(a.device, TRY_CAST(pid AS BIGINT)) AS device,
    coalesce(a.stream, TRY_CAST(tid AS BIGINT)) AS stream,
    a.context AS context,
    a.correlation AS correlation,
    a."External id" AS external_id,
    a.correlation AS tie,
    nullif(a."graph id", 0) AS graph_id,
    nullif(a."graph node id", 0) AS graph_node_id,
    a.grid[1] AS grid_x,
    a.grid[2] AS grid_y,
    a.grid[3] AS grid_z,
    a.block[1] AS block_x,
    a.block[2] AS block_y,
    a.block[3] AS block_z,
    a."registers per thread" AS registers,
    a."shared memory" AS shared_memory,
    a."est. achieved occupancy %" AS occupancy,
    a.bytes AS bytes,
    CASE
        WHEN name ILIKE 'memcpy%' OR a.kind ILIKE '%to%'
        THEN coalesce(nullif(a.kind, ''), nullif(regexp_extract(name, '(?i)^memcpy\s*(\w+to\w+)', 1), ''))
    END AS copy_kind,
    a."Collective name" AS collective,
    a."In msg nelems" AS elements_in,
    a."Out msg nelems" AS elements_out,
    CASE WHEN a."Collective name" IS NOT NULL THEN a.dtype END AS comm_dtype,
    a."Process Group Name" AS group_name,
    a."Group size" AS group_size,
    CASE
        WHEN coalesce(a.fromDevice, a.toDevice, a.priority, a.channel, a.event_id) IS NOT NULL OR a.cuda_sync_kind IS NOT NULL
        THEN json_merge_patch('{{}}', json_object(
            'cuda_sync_kind', a.cuda_sync_kind,
            'wait_on_stream', a.wait_on_stream,
            'wait_on_cuda_event_record_corr_id', a.wait_on_cuda_event_record_corr_id,
            'wait_on_cuda_event_id', a.wait_on_cuda_event_id,
            'event_id', a.event_id,
            'fromDevice', a.fromDevice,
            'inDevice', a.inDevice,
            'toDevice', a.toDevice,
            'priority', a.priority,
            'channel', a.channel
        ))
    END AS args,
FROM (
    SELECT
        *,
        json_transform(
            args,
            '{{
                "device": "BIGINT",
                "stream": "BIGINT",
                "context": "BIGINT",
                "correlation": "BIGINT",
                "External id": "BIGINT",
                "graph id": "BIGINT",
                "graph node id": "BIGINT",
                "grid": ["BIGINT"],
                "block": ["BIGINT"],
                "registers per thread": "BIGINT",
                "shared memory": "BIGINT",
                "est. achieved occupancy %": "DOUBLE",
                "bytes": "BIGINT",
                "kind": "VARCHAR",
                "Collective name": "VARCHAR",
                "In msg nelems": "BIGINT",
                "Out msg nelems": "BIGINT",
                "dtype": "VARCHAR",
                "Process Group Name": "VARCHAR",
                "Group size": "BIGINT",
                "cuda_sync_kind": "VARCHAR",
                "wait_on_stream": "BIGINT",
                "wait_on_cuda_event_record_corr_id": "BIGINT",
                "wait_on_cuda_event_id": "BIGINT",
                "event_id": "BIGINT",
                "fromDevice": "BIGINT",
                "inDevice": "BIGINT",
                "toDevice": "BIGINT",
                "priority": "BIGINT",
                "channel": "BIGINT",
                "finished": "VARCHAR"
            }}'
        ) AS a,
    FROM piece
    WHERE ph = 'X' AND ts IS NOT NULL AND cat IN ({device})
);

-- name: other
SELECT
    CASE WHEN ph = 'C' THEN 'counter' WHEN ph = 'X' THEN cat ELSE 'instant' END AS kind,
    coalesce(name, '') AS name,
    ts,
    CASE WHEN ph = 'X' THEN dur ELSE 0 END AS dur,
    -- Counters of a device have its number where others have their process: samples of CUPTI as "GPU 0 Counters". What
    -- tracekit wrote says it elsewhere, and has a process that tells the rank.
    CASE
        WHEN ph = 'X' AND cat = 'cuda_profiler_range' THEN TRY_CAST(coalesce(args ->> 'device', pid) AS BIGINT)
        WHEN ph = 'C' THEN TRY_CAST(coalesce(
            nullif(regexp_extract(pid, '^GPU (\d+) Counters$', 1), ''),
            regexp_extract(cat, '^GPU (\d+) Counters$', 1)
        ) AS BIGINT)
    END AS device,
    CASE
        WHEN device IS NULL
            OR starts_with(cat, 'GPU ')
            OR (cat = 'cuda_profiler_range' AND args ->> 'device' IS NOT NULL) THEN pid
    END AS pid,
    CASE WHEN device IS NULL THEN tid END AS tid,
    a."Ev Idx" AS tie,
    a."Bytes" AS bytes,
    CASE
        WHEN ph = 'X' AND cat = 'cuda_profiler_range' THEN CAST(map_from_entries([
            entry FOR entry IN map_entries(json_transform(args, '"MAP(VARCHAR, DOUBLE)"'))
            IF isfinite(entry.value) AND regexp_full_match(entry.key, '\w+__[\w.]+')
        ]) AS JSON)
        WHEN ph = 'C' THEN CAST(map_from_entries([
            {{'key': entry.key, 'value': CASE WHEN isfinite(entry.value) THEN entry.value END}}
            FOR entry IN map_entries(json_transform(args, '"MAP(VARCHAR, DOUBLE)"'))
        ]) AS JSON)
        WHEN a.Addr IS NOT NULL THEN '{{' || concat_ws(',',
            '"Total Allocated":' || a."Total Allocated",
            '"Total Reserved":' || a."Total Reserved",
            '"Addr":' || a.Addr,
            '"Device Id":' || a."Device Id",
            '"Device Type":' || a."Device Type"
        ) || '}}'
    END AS args,
FROM (
    SELECT
        *,
        json_transform(
            args,
            '{{
                "Ev Idx": "BIGINT",
                "Bytes": "BIGINT",
                "Total Allocated": "BIGINT",
                "Total Reserved": "BIGINT",
                "Addr": "BIGINT",
                "Device Id": "BIGINT",
                "Device Type": "BIGINT"
            }}'
        ) AS a,
    FROM piece
    WHERE ts IS NOT NULL AND (ph IN ('i', 'I', 'C') OR ph = 'X' AND cat IN ({other}))
);

-- name: argument_names
SELECT
    argument,
    count(*) AS events,
FROM (
    SELECT unnest(json_keys(args)) AS argument
    FROM (
        SELECT args
        FROM piece
        -- Of counters every number is kept.
        WHERE ph IN ('X', 'i', 'I') AND cat IS DISTINCT FROM 'cuda_profiler_range' AND json_type(args) = 'OBJECT'
        USING SAMPLE 2000 ROWS (reservoir, 1)
    )
)
GROUP BY argument;
