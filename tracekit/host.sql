-- What host threads were doing, as far as it bears on the work they launch.

-- Host rows whose name tells why they hold the thread up. Names are those of CUDA and HIP, PyTorch, vLLM and SGLang;
-- of Python functions "file.py(line): name" is recorded.
-- column id BIGINT: the row.
-- column kind VARCHAR: launch, op, annotation, python, os.
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
    FROM (SELECT DISTINCT kind, name FROM events WHERE kind IN ('launch', 'op', 'annotation', 'python', 'os'))
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
            -- Not the waits for locks and conditions: Python waits so for its own global lock.
            WHEN 'os' THEN CASE
                WHEN regexp_matches(name, '^(p?poll|p?select|epoll_p?wait|recv(from|m?msg)?|accept4?|(clock_)?nanosleep|u?sleep)$')
                    THEN 'requests'
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
    -- How an API call waits is its own business.
    AND NOT (e.kind = 'os' AND e.parent_id IS NOT NULL AND e.parent_id IN (SELECT id FROM launches))
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
-- A full command buffer is no work of the profiler: the host is as far ahead as the driver lets it be.
WHERE kind = 'overhead'
    AND name <> 'Command Buffer Full'
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
