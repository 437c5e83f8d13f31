-- Serving steps. They are found by tracekit/steps.py, which also says to which step a row belongs: the column `step`.

-- What the view `steps` shows. Filled by the Trace when a query first reads it.
CREATE TABLE step_table (
    rank INTEGER NOT NULL,
    step BIGINT NOT NULL,
    ts BIGINT NOT NULL,
    dur BIGINT NOT NULL,
    phase VARCHAR NOT NULL,
    prefill_requests BIGINT,
    prefill_tokens BIGINT,
    decode_requests BIGINT,
    decode_tokens BIGINT,
    prefill_kv_tokens BIGINT,
    prefill_sqsq BIGINT,
    prefill_sqsk BIGINT,
    decode_kv_tokens BIGINT,
    decode_sqsq BIGINT,
    decode_sqsk BIGINT,
    source VARCHAR NOT NULL,
    id BIGINT,
    pid BIGINT,
    tid BIGINT,
    until_ts BIGINT NOT NULL
);

-- Serving steps, from the marks that engines put on the host. Of several dialects in a rank the one that tells most is
-- taken: what the user called a step, `execute_context_1(60)_generation_4(4)`, `step[DECODE bs=16]`,
-- `tracekit.step[decode]`, stages of the engine, `ProfilerStep#7`. A mark inside another of its dialect on the same
-- thread is part of that step, not a step of its own. Without any mark, steps are those that the launches repeat.
-- A host row belongs to the last step before it on its thread, up to until_ts; on a thread without marks, to the one
-- that started last, while its mark lasts. Device rows belong to the step of their launch. That is the column `step`.
-- column step BIGINT: index in its rank, by time, from 0.
-- column rank INTEGER: rank.
-- column ts BIGINT: start on the host.
-- column dur BIGINT: length of the mark on the host; the device may work on for longer.
-- column phase VARCHAR: prefill, decode, mixed, verify, draft, or unknown.
-- column prefill_requests BIGINT: requests in prefill, NULL if the mark does not say.
-- column prefill_tokens BIGINT: their new tokens.
-- column decode_requests BIGINT: requests in decode.
-- column decode_tokens BIGINT: their tokens; more than decode_requests under speculative decoding.
-- column prefill_kv_tokens BIGINT: sum of the key lengths of the requests in prefill; these sums only from detailed marks.
-- column prefill_sqsq BIGINT: sum of the squares of their new tokens.
-- column prefill_sqsk BIGINT: sum of new tokens times key length.
-- column decode_kv_tokens BIGINT: the same sums for requests in decode: key lengths,
-- column decode_sqsq BIGINT: squares of tokens,
-- column decode_sqsk BIGINT: tokens times key length.
-- column source VARCHAR: dialect of the mark: range, execute_context, step, tracekit, stage, ProfilerStep; or inferred.
-- column id BIGINT: event id of the mark, NULL if inferred.
-- column pid BIGINT: process of the mark.
-- column tid BIGINT: thread of the mark.
-- column until_ts BIGINT: what starts on that thread from here on is not in this step.
CREATE VIEW steps AS
SELECT
    step,
    rank,
    ts,
    dur,
    phase,
    prefill_requests,
    prefill_tokens,
    decode_requests,
    decode_tokens,
    prefill_kv_tokens,
    prefill_sqsq,
    prefill_sqsk,
    decode_kv_tokens,
    decode_sqsq,
    decode_sqsk,
    source,
    id,
    pid,
    tid,
    until_ts
FROM step_table;
