-- How tables of an Nsight Systems export become rows: one statement per kind of table, run on batches of it.
--
-- A batch is the table `batch`: columns as Nsight Systems names them, integers as BIGINT, NULL where the export lacks
-- them; and `library`, where the rows are calls into one. Names (demangledName, nameId, textId) are ids here and become texts afterwards; NVTX texts are texts already.
-- Each statement returns what the spool has, but start_ns and end_ns for its times; global_pid or global_tid for its
-- process and thread; and, where some rows are not to be stored, the reason in `skip`.
-- Stream and event ids of 4294967295 mean none.

-- name: kernel
SELECT
    'kernel' AS kind,
    coalesce(demangledName, shortName, mangledName) AS name,
    start AS start_ns,
    "end" AS end_ns,
    globalPid AS global_pid,
    deviceId AS device,
    contextId AS context,
    nullif(streamId, 4294967295) AS stream,
    correlationId AS correlation,
    -- A node's id has its graph's id in the upper half.
    coalesce(nullif(graphId, 0), nullif(graphNodeId >> 32, 0)) AS graph_id,
    nullif(graphNodeId, 0) AS graph_node_id,
    gridX AS grid_x,
    gridY AS grid_y,
    gridZ AS grid_z,
    blockX AS block_x,
    blockY AS block_y,
    blockZ AS block_z,
    registersPerThread AS registers,
    CASE
        WHEN coalesce(staticSharedMemory, dynamicSharedMemory) IS NOT NULL
        THEN TRY_CAST(coalesce(staticSharedMemory, 0)::HUGEINT + coalesce(dynamicSharedMemory, 0) AS BIGINT)
    END AS shared_memory,
    CASE
        WHEN clusterX > 1 OR clusterY > 1 OR clusterZ > 1 OR localMemoryPerThread > 0
        THEN '{' || concat_ws(', ',
            CASE
                WHEN clusterX > 1 OR clusterY > 1 OR clusterZ > 1
                THEN '"cluster": [' || concat_ws(', ', clusterX, clusterY, clusterZ) || ']'
            END,
            CASE WHEN localMemoryPerThread > 0 THEN '"local memory per thread": ' || localMemoryPerThread END
        ) || '}'
    END AS args,
FROM batch;

-- name: memcpy
SELECT
    'memcpy' AS kind,
    'Memcpy ' || coalesce(c.direction, 'Unknown') || ' (' || coalesce(s.memory, 'Unknown') || ' -> '
    || coalesce(d.memory, 'Unknown') || ')' AS name,
    start AS start_ns,
    "end" AS end_ns,
    globalPid AS global_pid,
    deviceId AS device,
    contextId AS context,
    nullif(streamId, 4294967295) AS stream,
    correlationId AS correlation,
    coalesce(nullif(graphId, 0), nullif(graphNodeId >> 32, 0)) AS graph_id,
    nullif(graphNodeId, 0) AS graph_node_id,
    bytes,
    coalesce(c.direction, 'Unknown') AS copy_kind,
    CASE
        WHEN srcDeviceId <> dstDeviceId
        THEN '{"fromDevice": ' || srcDeviceId || ', "toDevice": ' || dstDeviceId || '}'
    END AS args,
FROM batch
LEFT JOIN copy_kinds AS c ON c.id = copyKind
LEFT JOIN memory_kinds AS s ON s.id = srcKind
LEFT JOIN memory_kinds AS d ON d.id = dstKind;

-- name: memset
SELECT
    'memset' AS kind,
    'Memset (' || coalesce(m.memory, 'Unknown') || ')' AS name,
    start AS start_ns,
    "end" AS end_ns,
    globalPid AS global_pid,
    deviceId AS device,
    contextId AS context,
    nullif(streamId, 4294967295) AS stream,
    correlationId AS correlation,
    coalesce(nullif(graphId, 0), nullif(graphNodeId >> 32, 0)) AS graph_id,
    nullif(graphNodeId, 0) AS graph_node_id,
    bytes,
FROM batch
LEFT JOIN memory_kinds AS m ON m.id = memKind;

-- name: graph
SELECT
    'graph' AS kind,
    'CUDA graph replay' AS name,
    start AS start_ns,
    "end" AS end_ns,
    globalPid AS global_pid,
    deviceId AS device,
    contextId AS context,
    nullif(streamId, 4294967295) AS stream,
    correlationId AS correlation,
    coalesce(nullif(graphId, 0), nullif(graphExecId, 0)) AS graph_id,
FROM batch;

-- name: launch
SELECT
    'launch' AS kind,
    nameId AS name,
    start AS start_ns,
    "end" AS end_ns,
    globalTid AS global_tid,
    correlationId AS correlation,
    correlationId AS tie,
    CASE WHEN returnValue <> 0 THEN '{"returnValue": ' || returnValue || '}' END AS args,
FROM batch;

-- name: sync
SELECT
    'sync' AS kind,
    word AS name,
    start AS start_ns,
    "end" AS end_ns,
    globalPid AS global_pid,
    deviceId AS device,
    contextId AS context,
    nullif(streamId, 4294967295) AS stream,
    correlationId AS correlation,
    '{' || concat_ws(', ',
        '"cuda_sync_kind": "' || word || '"',
        '"wait_on_cuda_event_id": ' || nullif(eventId, 4294967295)
    ) || '}' AS args,
FROM (
    SELECT
        *,
        CASE syncType
            WHEN 1 THEN 'Event Sync'
            WHEN 2 THEN 'Stream Wait Event'
            WHEN 3 THEN 'Stream Sync'
            WHEN 4 THEN 'Context Sync'
            ELSE 'Unknown Sync'
        END AS word,
    FROM batch
);

-- name: cuda_event
SELECT
    'sync' AS kind,
    'cudaEvent' AS name,
    "timestamp" AS start_ns,
    "timestamp" AS end_ns,
    globalPid AS global_pid,
    deviceId AS device,
    contextId AS context,
    nullif(streamId, 4294967295) AS stream,
    correlationId AS correlation,
    '{"event_id": ' || eventId || '}' AS args,
    CASE WHEN coalesce("timestamp", 0) = 0 THEN 'no time on the device was recorded' END AS skip,
FROM batch;

-- name: overhead
SELECT
    'overhead' AS kind,
    nameId AS name,
    start AS start_ns,
    "end" AS end_ns,
    globalTid AS global_tid,
FROM batch;

-- name: library
SELECT
    'annotation' AS kind,
    coalesce(nameId, textId) AS name,
    start AS start_ns,
    "end" AS end_ns,
    globalTid AS global_tid,
    '{"library": "' || library || '"}' AS args,
FROM batch;

-- name: osrt
SELECT
    'os' AS kind,
    nameId AS name,
    start AS start_ns,
    "end" AS end_ns,
    globalTid AS global_tid,
    -- Classes 31 and 32 are the profiler's marks of its own beginning and end.
    CASE WHEN eventClass IN (31, 32) THEN 'beginning and end of the tracing' END AS skip,
FROM batch;

-- name: gpu_metric
SELECT
    'counter' AS kind,
    coalesce(m.metric, 'GPU metric ' || b.metricId, 'GPU metric') AS name,
    coalesce(b."timestamp", b.rawTimestamp) AS start_ns,
    coalesce(b."timestamp", b.rawTimestamp) AS end_ns,
    coalesce(g.device, b.typeId & 255) AS device,
    '{"value": ' || b.value || '}' AS args,
FROM batch AS b
LEFT JOIN metrics AS m ON m.type = b.typeId AND m.id = b.metricId
LEFT JOIN gpus AS g ON g.id = b.typeId & 255;

-- name: memory
SELECT
    'instant' AS kind,
    CASE memoryOperationType WHEN 0 THEN 'GPU memory allocation' WHEN 1 THEN 'GPU memory release' ELSE 'GPU memory' END
        AS name,
    start AS start_ns,
    start AS end_ns,
    globalPid AS global_pid,
    deviceId AS device,
    contextId AS context,
    bytes,
    '{' || concat_ws(', ', '"Addr": ' || address, '"memory": "' || m.memory || '"') || '}' AS args,
FROM batch
LEFT JOIN memory_kinds AS m ON m.id = memKind;

-- name: nvtx
-- PyTorch's ranges (emit_nvtx, nsys --pytorch) carry their arguments in the text: "aten::mul, seq = 3, op_id = 7,
-- sizes = [[2, 3], []], input_op_ids = [[5, 0]]", each but the name only where there is one.
WITH split AS (
    SELECT
        *,
        least(
            nullif(strpos(text, ', seq = '), 0),
            nullif(strpos(text, ', op_id = '), 0),
            nullif(strpos(text, ', sizes = '), 0)
        ) AS place,
        substr(text, place) AS told,
        CASE
            WHEN contains(told, ', sizes = ') THEN regexp_extract(told, ', sizes = (.*?)(, input_op_ids.*)?$', 1)
        END AS sizes,
    FROM batch
),
sorted_out AS (
    SELECT
        *,
        coalesce(
            place > 1 AND regexp_full_match(
                told,
                '(, seq = \d+)?(, op_id = \d+)?(, sizes = \[[\[\]\d, -]*\])?(, input_op_ids = \[[\[\]\(\)\d, -]*\])?'
            ),
            false
        ) AND coalesce(json_valid(sizes), true) AS is_torch,
        CASE WHEN is_torch THEN left(text, place - 1) ELSE coalesce(text, '') END AS name,
        CASE WHEN is_torch AND starts_with(told, ', seq') THEN regexp_extract(told, '\d+') END AS sequence,
        CASE WHEN is_torch THEN sizes END AS shapes,
        eventType IN (59, 60, 70, 71) AS is_range,
    FROM split
)
SELECT
    CASE
        WHEN NOT is_range THEN 'instant'
        -- record_function of user code gives the same text; operators have a namespace in lower case, or a sequence.
        WHEN is_torch AND (sequence IS NOT NULL OR regexp_full_match(name, '[a-z_]\w*::[\w.:~]+')) THEN 'op'
        ELSE 'annotation'
    END AS kind,
    name,
    start AS start_ns,
    CASE WHEN is_range THEN "end" ELSE start END AS end_ns,
    s.globalTid AS global_tid,
    shapes,
    CASE
        WHEN d.domain IS NOT NULL OR s.category <> 0 OR payload IS NOT NULL OR ends_elsewhere
            OR sequence IS NOT NULL
        THEN '{' || concat_ws(', ',
            '"Sequence number": ' || sequence,
            '"domain": ' || to_json(d.domain)::VARCHAR,
            '"category": ' || coalesce(to_json(c.label)::VARCHAR, nullif(s.category, 0)::VARCHAR),
            '"payload": ' || payload,
            '"end_tid": ' || CASE WHEN ends_elsewhere THEN endGlobalTid & 16777215 END
        ) || '}'
    END AS args,
    CASE
        WHEN eventType IN (33, 39, 64, 72, 73, 74, 75, 76, 97, 98, 99) THEN 'names of domains, categories and threads'
        WHEN eventType IS NULL OR eventType NOT IN (34, 59, 60, 65, 70, 71) THEN 'of no known type'
    END AS skip,
    CASE WHEN is_torch AND contains(told, ', op_id') THEN 'op_id' END AS dropped,
FROM (
    SELECT
        *,
        coalesce(
            CASE WHEN uint64Value < 0 THEN uint64Value::HUGEINT + 18446744073709551616 ELSE uint64Value END::VARCHAR,
            int64Value::VARCHAR,
            uint32Value::VARCHAR,
            int32Value::VARCHAR,
            CASE WHEN isfinite(TRY_CAST(coalesce(doubleValue, floatValue) AS DOUBLE)) THEN coalesce(doubleValue, floatValue) END,
            CASE WHEN json_valid(jsonText) THEN jsonText ELSE to_json(jsonText)::VARCHAR END
        ) AS payload,
        coalesce(nullif(endGlobalTid, 0) <> globalTid, false) AS ends_elsewhere,
    FROM sorted_out
) AS s
LEFT JOIN domains AS d ON d.process = s.globalTid >> 24 AND d.id = s.domainId
LEFT JOIN categories AS c
    ON c.process = s.globalTid >> 24 AND c.domain_id IS NOT DISTINCT FROM s.domainId AND c.id = s.category;
