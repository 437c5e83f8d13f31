-- What borrowed_work.py is asked with, as far as no work needs to be known (else: borrowed_work.sql).
-- None is filtered by the scope: a step is matched as a whole.

-- New tokens of a step, NULL where its mark does not say.
-- parameter s STRUCT: a row of steps.
CREATE MACRO step_tokens(s) AS CASE
    WHEN s.phase = 'prefill' THEN s.prefill_tokens + coalesce(s.decode_tokens, 0)
    WHEN s.phase IN ('decode', 'verify', 'draft') THEN coalesce(s.prefill_tokens, 0) + s.decode_tokens
    ELSE s.prefill_tokens + s.decode_tokens
END;

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
