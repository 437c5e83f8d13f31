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

-- What kernels do that have the work of one op call to themselves, for borrowed_work.lendable: alike ones once.
-- column name VARCHAR: kernel.
-- column grid_x BIGINT: its geometry, as the next five.
-- column grid_y BIGINT: blocks.
-- column grid_z BIGINT: blocks.
-- column block_x BIGINT: threads.
-- column block_y BIGINT: threads.
-- column block_z BIGINT: threads.
-- column tokens BIGINT: new tokens of the step, NULL where not known.
-- column by_load BOOLEAN: the work depends on what the step works on.
-- column work BIGINT: number of the work, the same for equal work of ops of one name.
-- column part VARCHAR: the op.
-- column family VARCHAR: as in op_work, as all that follows.
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
    SELECT DISTINCT
        k.name,
        k.grid_x,
        k.grid_y,
        k.grid_z,
        k.block_x,
        k.block_y,
        k.block_z,
        step_tokens(s) AS tokens,
        w.by_load,
        o.name AS part,
        w.* EXCLUDE (id, call_id, kernels, by_load)
    FROM call_work AS w
    JOIN kernels AS k ON k.id = w.id
    JOIN ops AS o ON o.id = w.call_id
    LEFT JOIN steps AS s
        ON s.rank = k.rank
        AND s.step = k.step
    WHERE w.kernels = 1
        AND k.grid_x IS NOT NULL
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
    by_load,
    dense_rank() OVER (
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
    ) AS work,
    * EXCLUDE (name, grid_x, grid_y, grid_z, block_x, block_y, block_z, tokens, by_load)
FROM seen;

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
    step_tokens(s) AS tokens
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
-- instructions, not operations; so where one ran, or nobody looked, nothing is said.
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
