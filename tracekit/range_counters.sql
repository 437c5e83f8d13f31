-- What the range profiler of CUPTI counted, and which launches that is of: docs/gpu_metrics.md.

-- A value of a range, NULL if it was not counted.
-- parameter args VARCHAR: the row's arguments.
-- parameter metric VARCHAR: name of the metric.
CREATE MACRO range_value(args, metric) AS TRY_CAST(TRY_CAST(args AS JSON) ->> ('$."' || metric || '"') AS DOUBLE);

-- Floating-point operations of a range outside the tensor pipes: additions + multiplications + 2 times fused, as the
-- instruction counters of NVIDIA's profilers give them; NULL if one of the three was not counted.
-- parameter args VARCHAR: the row's arguments.
-- parameter letter VARCHAR: h, f, d: of half, single, double precision.
CREATE MACRO range_flops(args, letter) AS
    range_value(args, 'smsp__sass_thread_inst_executed_op_' || letter || 'add_pred_on.sum')
    + range_value(args, 'smsp__sass_thread_inst_executed_op_' || letter || 'mul_pred_on.sum')
    + 2 * range_value(args, 'smsp__sass_thread_inst_executed_op_' || letter || 'fma_pred_on.sum');

-- What CUPTI's range profiler counted, in torch.profiler's files up to 2.12: one row a kernel, or a range of the user.
-- Their times are made up and no device row is recorded beside them: a range belongs to a launch by its place in the
-- order alone, which holds only where a rank counted on one device and has as many kernel launches as ranges.
-- column id BIGINT: the range's row.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column name VARCHAR: the kernel, else the range.
-- column launch_id BIGINT: the API call that launched it, NULL where nobody can tell.
-- column op_id BIGINT: the op around that call.
-- column step INTEGER: serving step of that call, NULL outside steps.
-- column dram_bytes BIGINT: memory read and written.
-- column fp16_flops DOUBLE: half precision, outside the tensor pipes; so are the next two.
-- column fp32_flops DOUBLE: single precision.
-- column fp64_flops DOUBLE: double precision.
-- column tensor_instructions DOUBLE: instructions of the tensor pipes.
-- column metrics VARCHAR: JSON object of all that was counted.
-- column problem VARCHAR: why the launch is unknown: several devices, other number of launches; '' if it is known.
CREATE MACRO range_counters() AS TABLE
WITH ranges AS (
    SELECT
        id,
        rank,
        device,
        name,
        args,
        row_number() OVER (PARTITION BY rank ORDER BY ts, id) AS place
    FROM events
    WHERE kind = 'counter'
        AND dur > 0
        AND device IS NOT NULL
        AND regexp_matches(args, '^\{"\w+__[\w.]+":')
),
calls AS (
    SELECT
        l.id,
        l.rank,
        l.op_id,
        l.step,
        row_number() OVER (PARTITION BY l.rank ORDER BY l.ts, l.id) AS place
    FROM launches AS l
    -- A driver call within a runtime call launches nothing of its own.
    ANTI JOIN launches AS around ON around.id = l.parent_id
    WHERE regexp_matches(l.name, '^(cuda|cu)Launch(Cooperative)?Kernel')
        AND l.rank IN (SELECT rank FROM ranges)
),
counts AS (
    SELECT
        r.rank,
        CASE
            WHEN count(DISTINCT r.device) > 1 THEN 'several devices'
            WHEN count(*) <> (SELECT count(*) FROM calls AS c WHERE c.rank = r.rank) THEN 'other number of launches'
            ELSE ''
        END AS problem
    FROM ranges AS r
    GROUP BY r.rank
)
SELECT
    r.id,
    r.rank,
    r.device,
    r.name,
    c.id AS launch_id,
    c.op_id,
    c.step,
    whole_number(coalesce(
        range_value(r.args, 'dram__bytes.sum'),
        range_value(r.args, 'dram__bytes_read.sum') + range_value(r.args, 'dram__bytes_write.sum')
    )) AS dram_bytes,
    range_flops(r.args, 'h') AS fp16_flops,
    range_flops(r.args, 'f') AS fp32_flops,
    range_flops(r.args, 'd') AS fp64_flops,
    range_value(r.args, 'sm__inst_executed_pipe_tensor.sum') AS tensor_instructions,
    r.args AS metrics,
    n.problem
FROM ranges AS r
JOIN counts AS n ON n.rank = r.rank
LEFT JOIN calls AS c
    ON c.rank = r.rank
    AND c.place = r.place
    AND n.problem = '';
