-- Work of kernels that their own op does not tell: from elsewhere in the trace, from other traces, from the model.

-- Work of kernels that no op around them tells: lent by the same kernels elsewhere in the trace, or by another trace
-- (`--capture-trace`), or from the sizes of the model and the load of the step (`--model`). Filled by the Trace when a
-- query first reads it.
-- column id BIGINT: the kernel.
-- column part VARCHAR: the op that lent it, or the part of the model that it is.
-- column family VARCHAR: as in op_work, as what follows.
-- column math VARCHAR: what computes.
-- column flops BIGINT: operations, at least.
-- column flops_expected BIGINT: if routing is even and sequences are equally long.
-- column flops_high BIGINT: at most.
-- column bytes BIGINT: bytes, at least.
-- column bytes_expected BIGINT: if routing is even and sequences are equally long.
-- column bytes_high BIGINT: at most.
-- column weight_bytes BIGINT: those of weights.
-- column weight_bits BIGINT: bits of a weight.
-- column kv_bytes BIGINT: those of keys and values of earlier tokens.
-- column link_bytes BIGINT: what a collective moves over its links.
-- column how VARCHAR: where it is from, a few words.
-- column notes VARCHAR: what was assumed.
CREATE TABLE mapped_work (
    id BIGINT NOT NULL,
    part VARCHAR NOT NULL,
    family VARCHAR NOT NULL,
    math VARCHAR NOT NULL,
    flops BIGINT NOT NULL,
    flops_expected BIGINT NOT NULL,
    flops_high BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    bytes_expected BIGINT NOT NULL,
    bytes_high BIGINT NOT NULL,
    weight_bytes BIGINT NOT NULL,
    weight_bits BIGINT NOT NULL,
    kv_bytes BIGINT NOT NULL,
    link_bytes BIGINT NOT NULL,
    how VARCHAR NOT NULL,
    notes VARCHAR NOT NULL
);

-- What was given to tell the work of kernels and told nothing, or not all: why. Filled as mapped_work is.
-- column source VARCHAR: model, tensor parallel, or the file of a capture trace.
-- column remark VARCHAR: why, and what became of it.
-- column steps BIGINT: steps that it holds for; NULL where it holds for all, or is not about steps.
CREATE TABLE lending_remarks (
    source VARCHAR NOT NULL,
    remark VARCHAR NOT NULL,
    steps BIGINT
);

-- What kernels do that have the work of one op call to themselves, for borrowed_work.lendable: alike ones once. And those
-- that an op with shapes launched of which nobody knows that: where one is there, the kernel may do several things.
-- column name VARCHAR: kernel.
-- column grid_x BIGINT: its geometry, as the next five.
-- column grid_y BIGINT: blocks.
-- column grid_z BIGINT: blocks.
-- column block_x BIGINT: threads.
-- column block_y BIGINT: threads.
-- column block_z BIGINT: threads.
-- column tokens BIGINT: new tokens of the step, NULL where not known.
-- column dur BIGINT: how long they mostly take: the median.
-- column by_load BOOLEAN: the work depends on what the step works on.
-- column work BIGINT: number of the work, the same for equal work of ops of one name; NULL where not known.
-- column part VARCHAR: the op.
-- column family VARCHAR: as in op_work, as all that follows; NULL where not known.
-- column math VARCHAR: what computes.
-- column flops BIGINT: operations, at least.
-- column flops_expected BIGINT: expected.
-- column flops_high BIGINT: at most.
-- column bytes BIGINT: bytes, at least.
-- column bytes_expected BIGINT: expected.
-- column bytes_high BIGINT: at most.
-- column weight_bytes BIGINT: those of weights.
-- column weight_bits BIGINT: bits of a weight.
-- column kv_bytes BIGINT: those of keys and values of earlier tokens.
-- column link_bytes BIGINT: what a collective moves over its links.
-- column notes VARCHAR: what was assumed.
CREATE MACRO lending_kernels() AS TABLE
WITH seen AS (
    SELECT
        k.name,
        k.grid_x,
        k.grid_y,
        k.grid_z,
        k.block_x,
        k.block_y,
        k.block_z,
        step_tokens(s) AS tokens,
        quantile_disc(k.dur, 0.5) AS dur,
        w.by_load,
        o.name AS part,
        w.* EXCLUDE (id, call_id, kernels, by_load)
    FROM kernels AS k
    LEFT JOIN call_work AS w
        ON w.id = k.id
        AND w.kernels = 1
    JOIN ops AS o ON o.id = coalesce(w.call_id, k.op_id)
    LEFT JOIN steps AS s
        ON s.rank = k.rank
        AND s.step = k.step
    WHERE k.grid_x IS NOT NULL
        AND (w.id IS NOT NULL OR coalesce(o.shapes, '') NOT IN ('', '[]'))
    GROUP BY ALL
)
SELECT
    name,
    grid_x,
    grid_y,
    grid_z,
    block_x,
    block_y,
    block_z,
    tokens,
    dur,
    by_load,
    CASE WHEN family IS NOT NULL THEN dense_rank() OVER (
        ORDER BY
            part,
            family,
            math,
            flops,
            flops_expected,
            flops_high,
            bytes,
            bytes_expected,
            bytes_high,
            weight_bytes,
            weight_bits,
            kv_bytes,
            link_bytes,
            notes
    ) END AS work,
    * EXCLUDE (name, grid_x, grid_y, grid_z, block_x, block_y, block_z, tokens, dur, by_load)
FROM seen;

-- Kernels of steps with what the step works on, for config_work.
-- column id BIGINT: the row.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column step INTEGER: step.
-- column ts BIGINT: start.
-- column dur BIGINT: length.
-- column name VARCHAR: as recorded.
-- column category VARCHAR: category.
-- column subcategory VARCHAR: subcategory, '' without one.
-- column known BOOLEAN: the op that launched it tells its work, or that of the kernel that it stands beside; of all but
--   products and attention, also if it has shapes alone.
-- column unsure BOOLEAN: that op tells the work of attention, but not whether it has a window.
-- column phase VARCHAR: of the step, as are all below.
-- column prefill_requests BIGINT: as in steps.
-- column prefill_tokens BIGINT: as in steps.
-- column decode_requests BIGINT: as in steps.
-- column decode_tokens BIGINT: as in steps.
-- column prefill_kv_tokens BIGINT: as in steps.
-- column prefill_sqsq BIGINT: as in steps.
-- column prefill_sqsk BIGINT: as in steps.
-- column decode_kv_tokens BIGINT: as in steps.
-- column decode_sqsq BIGINT: as in steps.
-- column decode_sqsk BIGINT: as in steps.
CREATE MACRO config_rows() AS TABLE
SELECT
    k.id,
    k.rank,
    k.device,
    k.step,
    k.ts,
    k.dur,
    k.name,
    coalesce(c.category, 'other') AS category,
    coalesce(c.subcategory, '') AS subcategory,
    m.call_id IS NOT NULL
    -- Between products, a kernel of some op is no part of the layer that others could be counted with.
    OR (coalesce(o.shapes, '') <> '' AND coalesce(c.category, 'other') NOT IN ('gemm', 'attention')) AS known,
    coalesce(contains(w.notes, 'window not recorded'), false) AS unsure,
    s.phase,
    s.prefill_requests,
    s.prefill_tokens,
    s.decode_requests,
    s.decode_tokens,
    s.prefill_kv_tokens,
    s.prefill_sqsq,
    s.prefill_sqsk,
    s.decode_kv_tokens,
    s.decode_sqsq,
    s.decode_sqsk
FROM kernels AS k
JOIN steps AS s
    ON s.rank = k.rank
    AND s.step = k.step
LEFT JOIN call_work AS w ON w.id = k.id
LEFT JOIN model_calls AS m
    ON m.op_id = k.op_id
    AND m.call_id IN (SELECT call_id FROM call_work)
LEFT JOIN ops AS o ON o.id = k.op_id
LEFT JOIN kernel_classes AS c
    ON c.kind = k.kind
    AND c.name = k.name
    AND c.op_name = coalesce(o.name, '');

-- Ops whose shapes say which model runs, for config_check: of its vocabulary, and of attention.
-- column name VARCHAR: the op.
-- column shapes VARCHAR: dimensions of its inputs.
CREATE MACRO telling_ops() AS TABLE
SELECT DISTINCT
    name,
    shapes
FROM ops
WHERE shapes <> ''
    AND regexp_matches(
        name,
        '::(_?(log_)?softmax|argmax|topk|embedding|mm|addmm|linear|unified_attention(_with_output)?|.*sampling_from_.*)$'
    );

-- Kernels without an op that tells their work, for borrowed_work.borrowed.
-- column id BIGINT: the kernel.
-- column name VARCHAR: its name.
-- column grid_x BIGINT: its geometry, as the next five.
-- column grid_y BIGINT: blocks.
-- column grid_z BIGINT: blocks.
-- column block_x BIGINT: threads.
-- column block_y BIGINT: threads.
-- column block_z BIGINT: threads.
-- column tokens BIGINT: new tokens of the step, NULL where not known.
-- column dur BIGINT: its length.
CREATE MACRO bare_kernels() AS TABLE
SELECT
    k.id,
    k.name,
    k.grid_x,
    k.grid_y,
    k.grid_z,
    k.block_x,
    k.block_y,
    k.block_z,
    step_tokens(s) AS tokens,
    k.dur
FROM kernels AS k
LEFT JOIN steps AS s
    ON s.rank = k.rank
    AND s.step = k.step
WHERE k.grid_x IS NOT NULL
    AND k.id NOT IN (SELECT id FROM call_work);

-- Launches that graphs captured, with the op that tells the work of each.
-- column id BIGINT: the call, as in capture_calls, as the next eight.
-- column rank INTEGER: rank.
-- column pid BIGINT: process.
-- column tid BIGINT: thread.
-- column ts BIGINT: start.
-- column name VARCHAR: as recorded.
-- column op_id BIGINT: the op around it.
-- column starts BOOLEAN: it starts one piece of device work.
-- column kernel VARCHAR: what it launches, NULL where not recorded.
-- column op_name VARCHAR: the op that tells, NULL if none does; with the next five as in asked_calls.
-- column shapes VARCHAR: dimensions.
-- column dtypes VARCHAR: types.
-- column scalars VARCHAR: scalars.
-- column args VARCHAR: other arguments.
-- column beside VARCHAR: what no argument tells.
-- column call_id BIGINT: that op.
CREATE MACRO captured_calls() AS TABLE
SELECT
    c.*,
    a.name AS op_name,
    a.shapes,
    a.dtypes,
    a.scalars,
    a.args,
    a.beside,
    a.call_id
FROM capture_calls() AS c
LEFT JOIN model_calls AS m
    ON m.op_id = c.op_id
    AND NOT m.encloses
LEFT JOIN asked_calls() AS a ON a.call_id = m.call_id;

-- Device rows of replayed graphs, for match_replay.
-- column id BIGINT: the row.
-- column rank INTEGER: rank.
-- column step INTEGER: step, NULL outside steps.
-- column launch_id BIGINT: the call that started the replay.
-- column ts BIGINT: start.
-- column graph_node_id BIGINT: node, NULL where not recorded.
-- column name VARCHAR: as recorded.
-- column is_kernel BOOLEAN: it is no copy or fill.
-- column is_beside BOOLEAN: it only prepares or finishes what another kernel of its op does.
-- column tokens BIGINT: new tokens of the step, NULL outside steps and where its mark does not say.
CREATE MACRO replayed_rows() AS TABLE
SELECT
    d.id,
    d.rank,
    d.step,
    d.launch_id,
    d.ts,
    d.graph_node_id,
    d.name,
    d.kind = 'kernel' AS is_kernel,
    coalesce(is_beside(c.subcategory), false) AS is_beside,
    step_tokens(s) AS tokens
FROM device_activity AS d
JOIN launches AS l ON l.id = d.launch_id
LEFT JOIN steps AS s
    ON s.rank = d.rank
    AND s.step = d.step
LEFT JOIN ops AS o ON o.id = d.op_id
LEFT JOIN kernel_classes AS c
    ON c.kind = d.kind
    AND c.name = d.name
    AND c.op_name = coalesce(o.name, '')
WHERE contains(l.name, 'GraphLaunch') AND d.kind <> 'graph';

-- What each step works on.
-- column rank INTEGER: rank.
-- column step BIGINT: step.
-- column load BIGINT[]: step_load.
CREATE MACRO step_loads() AS TABLE
SELECT
    s.rank,
    s.step,
    step_load(s) AS load
FROM steps AS s;

-- What the ranges measured, by kernel and call: the median of all launches that are alike in both. Calls are the innermost
-- op and the one that stands for the work (model_calls): nobody knows which of the two a kernel elsewhere goes by. Left
-- out are those without shapes, and where the work depends on what the step works on: elsewhere it is another.
-- column kernel VARCHAR: name as recorded.
-- column op VARCHAR: the op.
-- column shapes VARCHAR: dimensions of its inputs.
-- column dtypes VARCHAR: their types, '' where not recorded.
-- column bytes BIGINT: memory read and written by a launch, NULL if not counted.
-- column flops BIGINT: operations of a launch, NULL unless all that it can have was counted. Tensor pipes count
--   instructions, not operations; so where one ran, or nobody looked, nothing is said.
-- column launches BIGINT: launches that were measured.
CREATE MACRO range_work() AS TABLE
WITH called AS (
    SELECT
        r.name AS kernel,
        o.name AS op,
        o.shapes,
        coalesce(o.dtypes, '') AS dtypes,
        r.dram_bytes,
        CASE
            WHEN r.tensor_instructions = 0
                THEN r.fp32_flops + coalesce(r.fp64_flops, 0) + coalesce(
                    r.fp16_flops,
                    CASE WHEN NOT regexp_matches(coalesce(o.dtypes, 'half'), '(?i)half|float16|float8') THEN 0 END
                )
        END AS flops
    FROM (
        SELECT
            c.*,
            unnest(list_distinct([c.op_id, m.call_id])) AS caller,
            m.call_id
        FROM range_counters() AS c
        LEFT JOIN model_calls AS m ON m.op_id = c.op_id
    ) AS r
    JOIN ops AS o ON o.id = r.caller
    WHERE o.shapes <> ''
        AND coalesce(
            r.call_id NOT IN (SELECT id FROM ops WHERE name IN (SELECT name FROM op_models WHERE by_load)),
            true
        )
)
SELECT *
FROM (
    SELECT
        kernel,
        op,
        shapes,
        dtypes,
        whole_number(median(dram_bytes)) AS bytes,
        whole_number(median(flops)) AS flops,
        count(*) AS launches
    FROM called
    GROUP BY
        kernel,
        op,
        shapes,
        dtypes
)
WHERE bytes IS NOT NULL
    OR flops IS NOT NULL;

-- What the ranges of other traces (`--capture-trace`) measured: range_work() of these. Of several, the first that has a
-- kernel and call. Filled by the Trace when a query first reads it.
-- column kernel VARCHAR: name as recorded.
-- column op VARCHAR: the op that it runs for.
-- column shapes VARCHAR: dimensions of its inputs.
-- column dtypes VARCHAR: their types, '' where not recorded.
-- column bytes BIGINT: memory read and written by a launch, NULL if not counted.
-- column flops BIGINT: operations of a launch, NULL if not known.
CREATE TABLE measured_work (
    kernel VARCHAR NOT NULL,
    op VARCHAR NOT NULL,
    shapes VARCHAR NOT NULL,
    dtypes VARCHAR NOT NULL,
    bytes BIGINT,
    flops BIGINT
);
