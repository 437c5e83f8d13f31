-- What borrowed_work.py and config_work.py are asked with, as far as no work needs to be known (else: borrowed_work.sql).
-- None is filtered by the scope: a step is matched as a whole.

-- New tokens of a step, NULL where its mark does not say.
-- parameter s STRUCT: a row of steps.
CREATE MACRO step_tokens(s) AS CASE
    WHEN s.phase = 'prefill' THEN s.prefill_tokens + coalesce(s.decode_tokens, 0)
    WHEN s.phase IN ('decode', 'verify', 'draft') THEN coalesce(s.prefill_tokens, 0) + s.decode_tokens
    ELSE s.prefill_tokens + s.decode_tokens
END;

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
-- column known BOOLEAN: an op with shapes launched it, and nothing else with the same call: a replay is no one op's.
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
    coalesce(o.shapes, '') <> '' AND count(*) OVER (PARTITION BY k.launch_id) = 1 AS known,
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
LEFT JOIN ops AS o ON o.id = k.op_id
LEFT JOIN kernel_classes AS c
    ON c.kind = k.kind
    AND c.name = k.name
    AND c.op_name = coalesce(o.name, '');

-- API calls for captured_sequences, but for `work` and `tokens`: where captures begin and end, and what lies in them.
-- column id BIGINT: the call.
-- column rank INTEGER: rank.
-- column pid BIGINT: process.
-- column tid BIGINT: thread.
-- column ts BIGINT: start.
-- column name VARCHAR: as recorded.
-- column op_id BIGINT: the op around it.
-- column starts BOOLEAN: it starts one piece of device work, or adds it to the graph that is captured.
-- column kernel VARCHAR: what it launches, NULL where the profiler does not say.
CREATE MACRO capture_calls() AS TABLE
WITH marked AS (
    SELECT
        l.id,
        l.rank,
        l.pid,
        l.tid,
        l.ts,
        l.name,
        l.op_id,
        l.args,
        l.parent_id,
        CASE
            WHEN contains(l.name, 'StreamBeginCapture') THEN true
            WHEN contains(l.name, 'StreamEndCapture') THEN false
        END AS begins
    FROM launches AS l
    WHERE (l.rank, l.pid, l.tid) IN (
        SELECT (rank, pid, tid) FROM launches WHERE contains(name, 'StreamBeginCapture')
    )
)
SELECT
    m.id,
    m.rank,
    m.pid,
    m.tid,
    m.ts,
    m.name,
    m.op_id,
    regexp_matches(m.name, '^(cuda|hip|cu)(Ext)?(Module)?(Launch(Cooperative)?Kernel|Memcpy|Memset)')
    -- A driver call within a runtime call starts nothing of its own.
    AND around.id IS NULL AS starts,
    CASE WHEN json_valid(m.args) THEN json_extract_string(m.args, '$.kernel') END AS kernel
FROM marked AS m
LEFT JOIN marked AS around ON around.id = m.parent_id
-- A thread may have launched millions of kernels outside its captures.
QUALIFY m.begins IS NOT NULL
    OR last_value(m.begins IGNORE NULLS) OVER (
        PARTITION BY m.rank, m.pid, m.tid
        ORDER BY m.ts, m.id
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    );
