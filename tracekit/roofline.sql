-- How much each piece of device work computes and moves at least, from whatever evidence there is: docs/roofline.md.
-- None of this is chosen by the scope: work belongs to a row, whoever asks.

-- Ops that have a model (work.py), by name without overload. Filled by the Trace when a query first reads it.
-- column name VARCHAR: the op.
-- column by_load BOOLEAN: the model needs to know what the step works on.
CREATE TABLE op_models (
    name VARCHAR NOT NULL,
    by_load BOOLEAN NOT NULL
);

-- The op that stands for the work of a launch: the innermost op around it, or the next one outside that has a model.
-- Filled by the Trace when a query first reads it, from work_around() and the parents of all host rows.
-- column op_id BIGINT: the innermost op.
-- column call_id BIGINT: the op with the model.
-- column encloses BOOLEAN: within that op are others that have work of their own, beyond copies and fills.
CREATE TABLE model_calls (
    op_id BIGINT NOT NULL,
    call_id BIGINT NOT NULL,
    encloses BOOLEAN NOT NULL
);

-- What model_calls is made from: innermost ops around launches of device work, and around those that have no row of
-- their own: what a graph captured, and what CUPTI counted in the place of recording it.
-- column op_id BIGINT: the op.
CREATE MACRO work_around() AS TABLE
SELECT o.id AS op_id
FROM ops AS o
WHERE o.id IN (SELECT op_id FROM device_activity WHERE op_id IS NOT NULL)
    OR o.id IN (SELECT op_id FROM capture_calls() WHERE starts AND op_id IS NOT NULL)
    OR o.id IN (SELECT op_id FROM range_counters() WHERE op_id IS NOT NULL);

-- A number of a step's mark that is 0 where the phase leaves no room for another, if the mark does not say it.
-- parameter value BIGINT: as the mark says it.
-- parameter phase VARCHAR: of the step.
-- parameter absent VARCHAR[]: phases without such requests.
CREATE MACRO told_by_phase(value, phase, absent) AS
    CASE WHEN value IS NULL AND list_contains(absent, phase) THEN 0 ELSE value END;

-- What a step works on, as one value.
-- parameter s STRUCT: a row of steps.
CREATE MACRO step_load(s) AS [
    told_by_phase(s.prefill_requests, s.phase, ['decode', 'verify', 'draft']),
    told_by_phase(s.prefill_tokens, s.phase, ['decode', 'verify', 'draft']),
    told_by_phase(s.decode_requests, s.phase, ['prefill']),
    told_by_phase(s.decode_tokens, s.phase, ['prefill']),
    told_by_phase(s.prefill_kv_tokens, s.phase, ['decode', 'verify', 'draft']),
    told_by_phase(s.prefill_sqsq, s.phase, ['decode', 'verify', 'draft']),
    told_by_phase(s.prefill_sqsk, s.phase, ['decode', 'verify', 'draft']),
    told_by_phase(s.decode_kv_tokens, s.phase, ['prefill']),
    told_by_phase(s.decode_sqsq, s.phase, ['prefill']),
    told_by_phase(s.decode_sqsk, s.phase, ['prefill'])
];

-- The calls in model_calls with what their model is asked by.
-- column call_id BIGINT: the op.
-- column name VARCHAR: its name.
-- column shapes VARCHAR: as recorded, '' where not, as the next three.
-- column dtypes VARCHAR: types.
-- column scalars VARCHAR: scalars.
-- column args VARCHAR: strides, and what else was recorded.
-- column beside VARCHAR: what no argument tells: of a join of tensors the name of its kernel, of a collective its message.
-- column load BIGINT[]: what its step works on (step_load), [] where the model does not ask, or nobody knows.
CREATE MACRO asked_calls() AS TABLE
WITH joins AS (
    SELECT
        op_id,
        min(name) AS kernel
    FROM kernels
    WHERE op_id IN (SELECT id FROM ops WHERE name IN ('aten::cat', 'aten::concat', 'aten::_cat', 'aten::stack'))
    GROUP BY op_id
)
SELECT
    o.id AS call_id,
    o.name,
    coalesce(o.shapes, '') AS shapes,
    coalesce(o.dtypes, '') AS dtypes,
    coalesce(o.scalars, '') AS scalars,
    coalesce(o.args, '') AS args,
    coalesce(
        j.kernel,
        CASE
            WHEN o.collective IS NOT NULL
                THEN json_array(o.collective, o.comm_dtype, o.elements_in, o.elements_out, o.group_size)::VARCHAR
        END,
        ''
    ) AS beside,
    CASE WHEN m.by_load AND s.step IS NOT NULL THEN step_load(s) ELSE [] END AS load
FROM ops AS o
JOIN op_models AS m ON m.name = o.name
LEFT JOIN joins AS j ON j.op_id = o.id
LEFT JOIN steps AS s
    ON s.rank = o.rank
    AND s.step = o.step
WHERE o.id IN (SELECT call_id FROM model_calls);

-- Work of calls, by all that it depends on: computed once for all that are alike. Filled by the Trace when a query first
-- reads it, from asked_calls(), without those that their model could not tell.
-- column name VARCHAR: name of the op.
-- column shapes VARCHAR: as in asked_calls, as the next five.
-- column dtypes VARCHAR: types.
-- column scalars VARCHAR: scalars.
-- column args VARCHAR: other arguments.
-- column beside VARCHAR: what no argument tells.
-- column load BIGINT[]: what the step works on.
-- column family VARCHAR: what kind of work, as Work in work.py, as all that follows.
-- column math VARCHAR: what computes; '' without operations.
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
-- column part_categories VARCHAR[]: categories of its kernels, in order, [] unless they do different things.
-- column part_flops BIGINT[]: their operations.
-- column part_bytes BIGINT[]: their bytes.
-- column by_load BOOLEAN: the work depends on what the step works on.
-- column notes VARCHAR: what was assumed.
CREATE TABLE op_work (
    name VARCHAR NOT NULL,
    shapes VARCHAR NOT NULL,
    dtypes VARCHAR NOT NULL,
    scalars VARCHAR NOT NULL,
    args VARCHAR NOT NULL,
    beside VARCHAR NOT NULL,
    load BIGINT[] NOT NULL,
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
    part_categories VARCHAR[] NOT NULL,
    part_flops BIGINT[] NOT NULL,
    part_bytes BIGINT[] NOT NULL,
    by_load BOOLEAN NOT NULL,
    notes VARCHAR NOT NULL
);

-- A kernel that only prepares or finishes what another one does: it has no part in the work of their call.
-- parameter subcategory VARCHAR: as kernels are classified.
CREATE MACRO is_beside(subcategory) AS
    subcategory IN ('splitk_reduce', 'merge', 'metadata', 'sparse_index', 'repack', 'align_sort');

-- The part of a whole number that a share of it is, rounded down; NULL without a share.
-- parameter whole BIGINT: number.
-- parameter share DOUBLE: 0 to 1.
CREATE MACRO part_of(whole, share) AS CASE WHEN share = 1 THEN whole ELSE floor(whole * share)::BIGINT END;

-- Kernels with the work of the op that they run for. An op with one kernel gives it all of its work. Of several, those of
-- the category that does the work get it: each its part where the model tells parts and as many ran, else by their time.
-- A kernel that gets nothing is not here: what it does is not known.
-- column id BIGINT: the kernel.
-- column call_id BIGINT: the op.
-- column kernels BIGINT: kernels of that op.
-- column family VARCHAR: as in op_work, as what follows; numbers are those of this kernel.
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
-- column by_load BOOLEAN: the work depends on what the step works on.
-- column notes VARCHAR: what was assumed.
CREATE MACRO op_kernels() AS TABLE
WITH called AS (
    SELECT
        k.id,
        k.name,
        k.ts,
        k.dur,
        m.call_id,
        m.encloses,
        coalesce(c.category, 'other') AS category,
        coalesce(c.subcategory, '') AS subcategory,
        w.* EXCLUDE (name, shapes, dtypes, scalars, args, beside, load)
    FROM kernels AS k
    JOIN model_calls AS m ON m.op_id = k.op_id
    JOIN asked_calls() AS a ON a.call_id = m.call_id
    JOIN op_work AS w
        ON w.name = a.name
        AND w.shapes = a.shapes
        AND w.dtypes = a.dtypes
        AND w.scalars = a.scalars
        AND w.args = a.args
        AND w.beside = a.beside
        AND w.load = a.load
    JOIN ops AS o ON o.id = k.op_id
    LEFT JOIN kernel_classes AS c
        ON c.kind = 'kernel'
        AND c.name = k.name
        AND c.op_name = o.name
),
cast_by_role AS (
    SELECT
        *,
        count(*) OVER call AS kernels,
        CASE
            WHEN is_beside(subcategory) THEN false
            WHEN len(part_categories) > 0 THEN list_contains(part_categories, category)
            -- A convolution may be a matrix product of what another kernel has laid out for it.
            ELSE category = family OR (family = 'conv' AND category = 'gemm')
        END AS is_of_family
    FROM called
    WINDOW call AS (PARTITION BY call_id)
),
chosen AS (
    SELECT
        *,
        count(*) FILTER (is_of_family) OVER (PARTITION BY call_id) AS of_family
    FROM cast_by_role
    -- Without a kernel of the family (its name may be in no rule), all share it that do not stand beside; but where ops
    -- within the call do its work, nothing is left for what else it launches. Where a model counts all keys as it knows
    -- of no window, a kernel that says it has one gets nothing.
    QUALIFY (is_of_family OR (of_family = 0 AND NOT encloses AND NOT is_beside(subcategory)))
        AND NOT (contains(notes, 'window not recorded') AND regexp_matches(name, 'Sliding|sliding|_swa_|Window'))
),
placed AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY call_id ORDER BY ts, id) AS place,
        count(*) OVER (PARTITION BY call_id) AS takers,
        coalesce(dur / nullif(sum(dur) OVER (PARTITION BY call_id), 0), 1 / count(*) OVER (PARTITION BY call_id)) AS share
    FROM chosen
),
parted AS (
    SELECT
        *,
        CASE WHEN len(part_flops) = takers AND takers > 1 THEN part_flops[place] END AS own_flops,
        CASE WHEN len(part_bytes) = takers AND takers > 1 THEN part_bytes[place] END AS own_bytes,
        -- Bytes of the parts have what they pass on among them, and so are more than those of the op.
        coalesce(own_flops / nullif(list_sum(part_flops), 0), share)::DOUBLE AS of_flops,
        coalesce(own_bytes / nullif(list_sum(part_bytes), 0), share)::DOUBLE AS of_bytes
    FROM placed
)
SELECT
    id,
    call_id,
    kernels,
    family,
    math,
    coalesce(own_flops, part_of(flops, share)) AS flops,
    coalesce(own_flops + part_of(flops_expected - flops, of_flops), part_of(flops_expected, share)) AS flops_expected,
    coalesce(own_flops + part_of(flops_high - flops, of_flops), part_of(flops_high, share)) AS flops_high,
    coalesce(own_bytes, part_of(bytes, share)) AS bytes,
    coalesce(own_bytes + part_of(bytes_expected - bytes, of_bytes), part_of(bytes_expected, share)) AS bytes_expected,
    coalesce(own_bytes + part_of(bytes_high - bytes, of_bytes), part_of(bytes_high, share)) AS bytes_high,
    part_of(weight_bytes, of_bytes) AS weight_bytes,
    weight_bits,
    part_of(kv_bytes, of_bytes) AS kv_bytes,
    part_of(link_bytes, share) AS link_bytes,
    by_load,
    notes
FROM parted;

-- What op_kernels() has, computed once. Filled by the Trace when a query first reads it. The columns are those.
CREATE TABLE call_work (
    id BIGINT NOT NULL,
    call_id BIGINT NOT NULL,
    kernels BIGINT NOT NULL,
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
    by_load BOOLEAN NOT NULL,
    notes VARCHAR NOT NULL
);
