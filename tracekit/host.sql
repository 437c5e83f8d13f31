-- What host threads were doing, as far as it bears on the work they launch.

-- Host rows whose name tells why they hold the thread up. Names are those of CUDA and HIP, PyTorch, vLLM and SGLang;
-- of Python functions "file.py(line): name" is recorded.
-- column id BIGINT: the row.
-- column kind VARCHAR: launch, op, annotation, python.
-- column rank INTEGER: rank.
-- column pid BIGINT: process.
-- column tid BIGINT: thread.
-- column ts BIGINT: start.
-- column end_ts BIGINT: end.
-- column cause VARCHAR: sync, pageable_copy, allocation, lazy_load_or_jit, graph_launch, input_preparation, scheduler,
--                       requests (waiting for some), communication_wait, gc, profiler.
CREATE MACRO host_causes() AS TABLE
WITH names AS (
    SELECT
        kind,
        name,
        -- The function of a Python row, without file and line.
        CASE WHEN kind = 'python' THEN regexp_extract(name, '\(\d+\): (.*)$', 1) ELSE '' END AS function
    FROM (SELECT DISTINCT kind, name FROM events WHERE kind IN ('launch', 'op', 'annotation', 'python'))
),
named AS (
    SELECT
        kind,
        name,
        CASE kind
            WHEN 'launch' THEN CASE
                WHEN regexp_matches(name, '^(cuda|hip)(Device|Stream|Event)Synchronize|^cu(Ctx|Stream|Event)Synchronize')
                    THEN 'sync'
                WHEN regexp_matches(name, '^(cuda|hip|cu)Memcpy') AND NOT contains(name, 'Async') THEN 'sync'
                WHEN regexp_matches(name, '^(cuda|hip)(Ext)?(Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|MemPool)')
                    OR regexp_matches(name, '^cuMem(Alloc|Free|Create|Release|Map|Unmap|SetAccess|Address|Host|Pool)')
                    THEN 'allocation'
                WHEN regexp_matches(name, '^(cu|hip|cuda)(Module|Library)(Load|Get)|^(cuda|cu|hip)GraphInstantiate|^cuLink')
                    THEN 'lazy_load_or_jit'
                WHEN contains(name, 'GraphLaunch') THEN 'graph_launch'
            END
            WHEN 'annotation' THEN CASE
                WHEN regexp_matches(name, '^gpu_model_runner: preprocess|DataLoader') THEN 'input_preparation'
                WHEN regexp_matches(name, '^scheduler\.(recv_requests|idle)') THEN 'requests'
                WHEN regexp_matches(
                    name,
                    '^scheduler\.(process|get_next|sanity|self_check)|^(schedule|llm_engine step): '
                    '|^gpu_model_runner: (postprocess|bookkeep|eplb|ModelRunnerOutput)'
                )
                    THEN 'scheduler'
                WHEN regexp_matches(name, '^gloo:') THEN 'communication_wait'
            END
            WHEN 'op' THEN CASE
                WHEN regexp_matches(name, '^aten::_?pin_memory$|DataLoader') THEN 'input_preparation'
                WHEN regexp_matches(name, '^c10d::(monitored_)?(barrier|recv)|^gloo:') THEN 'communication_wait'
            END
            ELSE CASE
                WHEN name = 'Python GC' THEN 'gc'
                WHEN regexp_matches(name, 'torch/(autograd|profiler)/\w*profiler\w*\.py|scheduler_profiler_mixin')
                    OR regexp_matches(function, '^(start|stop)_profile')
                    THEN 'profiler'
                WHEN regexp_matches(name, 'cpp_extension|\bnvrtc|\bninja\b|subprocess\.py|torch/_dynamo/convert_frame\.py')
                    OR (
                        regexp_matches(name, 'triton/|torch/_inductor/')
                        AND regexp_matches(
                            function, '^(_?compile(_fx\w*|_to_\w+|_module_from_src)?|_do_compile|make_\w*(ir|ptx|cubin)|do_bench|codegen)$'
                        )
                    )
                    OR (contains(name, 'importlib') AND regexp_matches(function, '^(_load_unlocked|exec_module|create_module)$'))
                    THEN 'lazy_load_or_jit'
                WHEN regexp_matches(name, 'shm_broadcast\.py.*: (dequeue|acquire_read)|zmq/.*: (recv|poll)')
                    OR regexp_matches(name, '(queue|selectors|multiprocessing/connection)\.py.*: (_?recv|get|select|poll|wait)')
                    OR regexp_matches(name, 'method (poll|select|epoll_wait) of|^<built-in method sleep')
                    OR function IN ('recv_requests', 'recv_pyobj')
                    THEN 'requests'
                WHEN regexp_matches(
                    name, 'distributed_c10d\.py.*: (monitored_)?(barrier|recv|\w+_object(_list)?|broadcast_object_list)$'
                )
                    OR function = 'broadcast_pyobj'
                    THEN 'communication_wait'
                WHEN regexp_matches(
                    function,
                    '^(_prepare_\w*inputs?(_ids)?|_preprocess|_build_attention_metadata|prepare_for_(decode|extend|verify)'
                    '|get_model_worker_batch|init_forward_metadata\w*|replay_prepare|_update_states'
                    '|(_MultiProcessingDataLoaderIter|_SingleProcessDataLoaderIter|_next_data|_process_data))$'
                )
                    OR regexp_matches(name, 'forward_batch_info\.py.*: init_new$|dataloader\.py.*: __next__$')
                    THEN 'input_preparation'
                WHEN regexp_matches(name, 'sched/scheduler\.py.*: (schedule|update_from_output)$')
                    OR regexp_matches(
                        function,
                        '^(get_next_batch_to_run|update_running_batch|process_batch_result\w*|process_input_requests'
                        '|pop_and_process|stream_output\w*|_bookkeeping_sync|_bookkeep|process_outputs)$'
                    )
                    THEN 'scheduler'
            END
        END AS cause
    FROM names
),
-- A copy from or to pageable memory, or back to the host, is asynchronous in name only: its call returns when the copy
-- is done.
copies AS (
    SELECT
        m.launch_id AS id,
        CASE WHEN bool_or(contains(m.name, 'Pageable')) THEN 'pageable_copy' ELSE 'sync' END AS cause
    FROM memcpys AS m
    JOIN launches AS l ON l.id = m.launch_id
    WHERE contains(m.name, 'Pageable')
        OR (l.ts + l.dur >= m.ts + m.dur AND (m.copy_kind = 'DtoH' OR contains(m.name, 'DtoH')))
    GROUP BY m.launch_id
)
SELECT
    e.id,
    e.kind,
    e.rank,
    e.pid,
    e.tid,
    e.ts,
    e.ts + e.dur AS end_ts,
    n.cause
FROM events AS e
JOIN named AS n ON n.kind = e.kind AND n.name = e.name
WHERE n.cause IS NOT NULL
    AND e.id NOT IN (SELECT id FROM copies)
UNION ALL
SELECT
    l.id,
    l.kind,
    l.rank,
    l.pid,
    l.tid,
    l.ts,
    l.ts + l.dur,
    c.cause
FROM copies AS c
JOIN launches AS l ON l.id = c.id;

-- What host_timeline is made from, of threads that launched device work: rows with a cause of their own; ops, and API
-- calls outside ops (`op`); outermost Python functions (`python`). And what lies over all threads of a rank or process:
-- the profiler's own work and garbage collection (layer 1); serving steps (layer 2), with `step` where an engine's marks
-- say so and `range` where not.
-- column layer INTEGER: 0, 1, 2.
-- column rank INTEGER: rank.
-- column pid BIGINT: process; NULL for all of the rank.
-- column tid BIGINT: thread; NULL for all of the process.
-- column ts BIGINT: start.
-- column end_ts BIGINT: end.
-- column cause VARCHAR: as in host_causes, or op, python, step, range.
-- column id BIGINT: the row.
CREATE MACRO host_spans() AS TABLE
WITH threads AS (
    SELECT DISTINCT
        rank,
        pid,
        tid
    FROM launches
    WHERE id IN (SELECT launch_id FROM device_activity)
),
caused AS MATERIALIZED (
    FROM host_causes()
),
spans AS (
    SELECT
        rank,
        pid,
        tid,
        ts,
        end_ts,
        cause,
        id
    FROM caused
    WHERE cause <> 'gc'
    UNION ALL
    SELECT
        rank,
        pid,
        tid,
        ts,
        ts + dur,
        'op',
        id
    FROM events
    -- A row within an op covers nothing new.
    WHERE (kind = 'op' AND (parent_id IS NULL OR parent_id NOT IN (SELECT id FROM ops)))
        OR (kind = 'launch' AND op_id IS NULL)
    UNION ALL
    SELECT
        rank,
        pid,
        tid,
        ts,
        ts + dur,
        'python',
        id
    FROM python_calls
    WHERE parent_id IS NULL
        OR parent_id IN (SELECT id FROM annotations)
)
SELECT
    0 AS layer,
    s.rank,
    s.pid,
    s.tid,
    s.ts,
    s.end_ts,
    s.cause,
    s.id
FROM spans AS s
SEMI JOIN threads AS t ON t.rank = s.rank AND t.pid = s.pid AND t.tid = s.tid
UNION ALL
SELECT
    1,
    rank,
    pid,
    NULL,
    ts,
    end_ts,
    cause,
    id
FROM caused
WHERE cause = 'gc'
UNION ALL
SELECT
    1,
    rank,
    NULL,
    NULL,
    ts,
    ts + dur,
    CASE
        WHEN name IN ('Lazy Function Loading', 'Runtime Triggered Module Loading', 'Driver Compiler') THEN 'lazy_load_or_jit'
        ELSE 'profiler'
    END,
    id
FROM events
WHERE kind = 'overhead'
UNION ALL
SELECT
    2,
    rank,
    NULL,
    NULL,
    ts,
    ts + dur,
    CASE WHEN source IN ('execute_context', 'step', 'tracekit', 'stage') THEN 'step' ELSE 'range' END,
    coalesce(id, -1)
FROM steps
WHERE source <> 'inferred';

-- The time of each thread that launched device work, in disjoint pieces without holes, from long before the trace to long
-- after it. Filled by the Trace when a query first reads it (timeline.py says how).
-- column position BIGINT: place in the table; pieces of a thread are neighbours, by time.
-- column rank INTEGER: rank.
-- column pid BIGINT: process.
-- column tid BIGINT: thread.
-- column ts BIGINT: start.
-- column end_ts BIGINT: end.
-- column cause VARCHAR: as in host_causes; else op, python; NULL where the thread shows nothing.
-- column id BIGINT: the row that gave the cause, NULL for op, python and nothing.
-- column over BOOLEAN: the cause lies over the whole process: the profiler's work, garbage collection.
-- column place VARCHAR: in (a step, or a rank without steps), between (steps that an engine marked), out.
-- column unseen_ns BIGINT: where the thread shows nothing: for how long in all, steps or not; else 0.
CREATE TABLE host_timeline (
    position BIGINT NOT NULL,
    rank INTEGER NOT NULL,
    pid BIGINT,
    tid BIGINT,
    ts BIGINT NOT NULL,
    end_ts BIGINT NOT NULL,
    cause VARCHAR,
    id BIGINT,
    over BOOLEAN NOT NULL,
    place VARCHAR NOT NULL,
    unseen_ns BIGINT NOT NULL
);

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
-- column step BIGINT: step of that row, NULL outside steps.
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

-- Host rows that may have held one of these threads, by id: one file has them by start, then falling end.
-- column id BIGINT: the row.
-- column rank INTEGER: rank.
-- column pid BIGINT: process.
-- column tid BIGINT: thread.
-- column ts BIGINT: start.
-- column end_ts BIGINT: end.
-- column parent_id BIGINT: the row around it.
CREATE MACRO host_rows() AS TABLE
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
