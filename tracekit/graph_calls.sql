-- Calls of each step that a CUDA graph could capture, and those that it does not allow.

-- Calls on the thread that launches most of a step's work on a device: those that started work there, and blockers,
-- which a capture does not allow. Blockers, the first that matches:
--   pageable_copy     the copy is from pageable memory, so the call waits
--   readback          a wait for a copy to the host, or in aten::item and its like: the host needs a result
--   synchronous_copy  a copy that is not asynchronous
--   synchronisation   a wait for a stream, a device or an event
--   allocation        of device or pinned memory, or its release
--   loading           of a module, or instantiation of a graph
--   host_callback     a function of the host in a stream
--   legacy_stream     work on the legacy default stream while most of the step is on another one
--   pause             on a rank without steps: nothing was launched for long before this call, so what follows is another
--                     repetition of something; the call itself can be captured
-- parameter pause_ns BIGINT: so long is a pause: eager launches follow each other within a millisecond.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column step INTEGER: step, NULL on a rank none of whose work is in steps: all of it is one then.
-- column id BIGINT: the call.
-- column position BIGINT: its place in the step, from 1.
-- column name VARCHAR: as recorded.
-- column ts BIGINT: start of the call.
-- column end_ts BIGINT: end of its last device row; of the call, if it has none.
-- column rows BIGINT: device rows it started there.
-- column dur_ns BIGINT: sum of their durations.
-- column replay BOOLEAN: a graph replay.
-- column is_layer BOOLEAN: work of a model's layer: GEMM, convolution, experts, or a replay.
-- column is_attention BOOLEAN: work of attention, or what prepares it.
-- column samples BOOLEAN: work of the sampler.
-- column stages BOOLEAN: a copy from the host.
-- column is_aside BOOLEAN: a copy from or to the host on another stream than most of the work.
-- column token UBIGINT: equal for equal work: kind, name, grid and block of a kernel, direction and bytes of a copy. NULL
--                       without work.
-- column role UBIGINT: the same by kind and category alone.
-- column shape UBIGINT: equal for the same rows with the same grids; NULL where grids are not recorded.
-- column blocker VARCHAR: as above, NULL for what can be captured.
CREATE MACRO graph_calls(pause_ns := 2000000) AS TABLE
WITH in_steps AS (
    SELECT DISTINCT rank
    FROM device_activity
    WHERE step IS NOT NULL
),
-- What each call started.
works AS MATERIALIZED (
    SELECT
        d.launch_id AS id,
        d.device,
        count(*) AS rows,
        sum(d.dur)::BIGINT AS dur_ns,
        max(d.ts + d.dur) AS end_ts,
        arg_min(d.stream, d.id) AS stream,
        bool_or(d.kind = 'graph') AS is_block,
        bool_or(coalesce(c.category, '') IN ('gemm', 'moe', 'conv', 'graph')) AS is_layer,
        bool_or(coalesce(c.category, '') IN ('attention', 'linear_attention')) AS is_attention,
        bool_or(c.category = 'sampling') AS samples,
        bool_and(d.kind = 'memcpy' AND (d.copy_kind = 'HtoD' OR contains(d.name, 'HtoD'))) AS stages,
        bool_and(d.kind = 'memcpy' AND (d.copy_kind = 'DtoH' OR contains(d.name, 'DtoH'))) AS reads_back,
        arg_min(
            hash(d.kind, d.name, d.grid_x, d.grid_y, d.grid_z, d.block_x, d.block_y, d.block_z, d.copy_kind, d.bytes),
            d.id
        ) AS token,
        arg_min(hash(d.kind, c.category, c.subcategory), d.id) AS role,
        -- Of a multiset: in replays the order of rows that run side by side is not always the same.
        CASE
            WHEN bool_and(d.kind <> 'kernel' OR d.grid_x IS NOT NULL)
                THEN hash(count(*), sum((hash(d.kind, d.name, d.grid_x, d.grid_y, d.grid_z, d.bytes) >> 16)::BIGINT))
        END AS shape
    FROM device_activity AS d
    LEFT JOIN ops AS o ON o.id = d.op_id
    LEFT JOIN kernel_classes AS c
        ON c.kind = d.kind
        AND c.name = d.name
        AND c.op_name = coalesce(o.name, '')
    WHERE d.launch_id IS NOT NULL
    GROUP BY
        d.launch_id,
        d.device
),
threads AS (
    SELECT
        l.rank,
        w.device,
        l.step,
        l.pid,
        l.tid
    FROM launches AS l
    JOIN works AS w ON w.id = l.id
    WHERE l.step IS NOT NULL
        OR l.rank NOT IN (SELECT rank FROM in_steps)
    GROUP BY
        l.rank,
        w.device,
        l.step,
        l.pid,
        l.tid
    QUALIFY row_number() OVER (PARTITION BY l.rank, w.device, l.step ORDER BY sum(w.rows) DESC, l.pid, l.tid) = 1
),
causes AS (
    SELECT
        c.id,
        bool_or(c.cause = 'pageable_copy') AS is_pageable,
        bool_or(c.cause = 'sync') AS waits,
        bool_or(c.cause = 'allocation') AS allocates,
        bool_or(c.cause = 'lazy_load_or_jit') AS loads,
        bool_or(regexp_matches(o.name, '^aten::(_local_scalar_dense|item|nonzero|is_nonzero|_to_cpu)$')) AS needs_result
    FROM host_causes() AS c
    JOIN launches AS l ON l.id = c.id
    LEFT JOIN ops AS o ON o.id = l.op_id
    WHERE c.kind = 'launch'
        AND c.cause IN ('pageable_copy', 'sync', 'allocation', 'lazy_load_or_jit')
    GROUP BY c.id
),
calls AS MATERIALIZED (
    SELECT
        t.rank,
        t.device,
        t.step,
        l.id,
        l.name,
        l.ts,
        coalesce(w.end_ts, l.ts + l.dur) AS end_ts,
        l.ts + l.dur AS returned_ts,
        coalesce(w.rows, 0) AS rows,
        coalesce(w.dur_ns, 0) AS dur_ns,
        w.stream,
        coalesce(w.is_block OR contains(l.name, 'GraphLaunch'), false) AND w.id IS NOT NULL AS replay,
        coalesce(w.is_layer OR contains(l.name, 'GraphLaunch'), false) AND w.id IS NOT NULL AS is_layer,
        coalesce(w.is_attention, false) AS is_attention,
        coalesce(w.samples, false) AS samples,
        coalesce(w.stages, false) AS stages,
        coalesce(w.reads_back, false) AS reads_back,
        w.token,
        w.role,
        w.shape,
        coalesce(c.is_pageable, false) AS is_pageable,
        coalesce(c.waits, false) AS waits,
        coalesce(c.allocates, false) AS allocates,
        coalesce(c.loads, false) AS loads,
        coalesce(c.needs_result, false) AS needs_result,
        regexp_matches(l.name, '^(cuda|hip|cu)(StreamAddCallback|LaunchHostFunc)') AS calls_back,
        row_number() OVER of_step AS position
    FROM launches AS l
    JOIN threads AS t
        ON t.rank = l.rank
        AND t.pid = l.pid
        AND t.tid = l.tid
        AND t.step IS NOT DISTINCT FROM l.step
    LEFT JOIN works AS w ON w.id = l.id AND w.device IS NOT DISTINCT FROM t.device
    LEFT JOIN causes AS c ON c.id = l.id
    WHERE w.id IS NOT NULL
        OR c.id IS NOT NULL
        OR regexp_matches(l.name, '^(cuda|hip|cu)(StreamAddCallback|LaunchHostFunc)')
    WINDOW of_step AS (PARTITION BY t.rank, t.device, t.step ORDER BY l.ts, l.id)
),
-- The legacy default stream is 0 where a profiler says so; Kineto calls it 7, where there is no 0.
legacy_streams AS (
    SELECT
        rank,
        device,
        CASE WHEN bool_or(stream = 0) OR bool_or(starts_with(name, 'hip')) THEN 0 ELSE 7 END AS legacy
    FROM calls
    WHERE rows > 0
    GROUP BY
        rank,
        device
),
main_streams AS (
    SELECT
        rank,
        device,
        step,
        stream
    FROM calls
    WHERE rows > 0
    GROUP BY
        rank,
        device,
        step,
        stream
    QUALIFY row_number() OVER (PARTITION BY rank, device, step ORDER BY sum(rows) DESC, stream) = 1
)
SELECT
    c.rank,
    c.device,
    c.step,
    c.id,
    c.position,
    c.name,
    c.ts,
    c.end_ts,
    c.rows,
    c.dur_ns,
    c.replay,
    c.is_layer,
    c.is_attention,
    c.samples,
    c.stages,
    (c.stages OR c.reads_back) AND c.stream <> m.stream AS is_aside,
    c.token,
    c.role,
    c.shape,
    CASE
        WHEN c.is_pageable AND NOT c.reads_back THEN 'pageable_copy'
        WHEN c.is_pageable THEN 'readback'
        WHEN c.waits AND (c.reads_back OR c.needs_result OR lag(c.reads_back) OVER of_step) THEN 'readback'
        WHEN c.waits AND contains(c.name, 'Memcpy') THEN 'synchronous_copy'
        WHEN c.waits THEN 'synchronisation'
        WHEN c.allocates THEN 'allocation'
        WHEN c.loads AND NOT contains(c.name, 'Get') THEN 'loading'
        WHEN c.calls_back THEN 'host_callback'
        WHEN c.stream = y.legacy AND m.stream <> y.legacy THEN 'legacy_stream'
        WHEN c.step IS NULL AND c.ts - lag(c.returned_ts) OVER of_step > pause_ns THEN 'pause'
    END AS blocker
FROM calls AS c
LEFT JOIN main_streams AS m
    ON m.rank = c.rank
    AND m.device IS NOT DISTINCT FROM c.device
    AND m.step IS NOT DISTINCT FROM c.step
LEFT JOIN legacy_streams AS y ON y.rank = c.rank AND y.device IS NOT DISTINCT FROM c.device
WINDOW of_step AS (PARTITION BY c.rank, c.device, c.step ORDER BY c.position);
