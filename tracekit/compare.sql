-- What one recording has that can be compared with another: its steps, and what is in them.

-- Steps whose time is compared: steady ones, or those there are where none is. Those in the scope that its window does
-- not cut.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column step INTEGER: step, as in steps.
-- column steady BOOLEAN: of kind steady, as in step_kinds.
-- column phase VARCHAR: phase of the step.
-- column bucket VARCHAR: label of its batch, as in step_batches.
-- column requests BIGINT: requests of its batch, NULL where the mark does not tell.
-- column tokens BIGINT: new tokens of its batch, NULL where the mark does not tell.
-- column requests_to BIGINT: upper bound of the bucket, to sort by.
-- column tokens_to BIGINT: the same for tokens.
-- column start_ts BIGINT: start of its first work on the device.
-- column busy_ns BIGINT: time alone of its work.
-- column idle_ns BIGINT: gaps that its work ended, the one before its first work included.
CREATE MACRO compared_steps() AS TABLE
SELECT
    rank,
    device,
    step,
    kind = 'steady' AS steady,
    phase,
    bucket,
    requests,
    tokens,
    requests_to,
    tokens_to,
    start_ts,
    busy_ns,
    idle_ns + gap_before_ns AS idle_ns
FROM step_time()
QUALIFY kind = 'steady' OR NOT bool_or(kind = 'steady') OVER ();

-- The busy time of these steps by category, over all devices that a step is on.
-- column phase VARCHAR: phase of the step.
-- column bucket VARCHAR: label of its batch.
-- column step INTEGER: step.
-- column name VARCHAR: category.
-- column ns BIGINT: time alone.
CREATE MACRO compared_busy() AS TABLE
SELECT
    c.phase,
    c.bucket,
    c.step,
    s.category AS name,
    sum(s.exclusive_ns)::BIGINT AS ns
FROM classified_segments() AS s
JOIN compared_steps() AS c
    ON c.rank = s.rank
    AND c.device IS NOT DISTINCT FROM s.device
    AND c.step = s.step
GROUP BY
    c.phase,
    c.bucket,
    c.step,
    s.category;

-- Device rows of these steps by kind of step, name and shape.
-- column phase VARCHAR: phase of the steps.
-- column bucket VARCHAR: label of their batch.
-- column kind VARCHAR: kernel, memcpy, memset, graph.
-- column name VARCHAR: as recorded.
-- column category VARCHAR: category.
-- column geometry VARCHAR: blocks and threads of the launch, '' where none are recorded.
-- column inputs VARCHAR: shapes of the inputs of the op around the launch, '' where none are recorded.
-- column ns BIGINT: time alone, over all steps and devices.
-- column count BIGINT: rows.
CREATE MACRO compared_kernels() AS TABLE
SELECT
    c.phase,
    c.bucket,
    d.kind,
    s.name,
    s.category,
    CASE
        WHEN d.grid_x IS NULL THEN ''
        ELSE concat(
            'grid ', concat_ws(',', d.grid_x, d.grid_y, d.grid_z),
            ' block ', concat_ws(',', d.block_x, d.block_y, d.block_z)
        )
    END AS geometry,
    coalesce(o.shapes, '') AS inputs,
    sum(s.exclusive_ns)::BIGINT AS ns,
    count(*) AS count
FROM classified_segments() AS s
JOIN compared_steps() AS c
    ON c.rank = s.rank
    AND c.device IS NOT DISTINCT FROM s.device
    AND c.step = s.step
JOIN device_activity AS d ON d.id = s.id
LEFT JOIN ops AS o ON o.id = s.op_id
GROUP BY ALL;

-- Steps as the host saw them, for traces without device work: by the length of their marks.
-- column rank INTEGER: rank.
-- column step INTEGER: step, as in steps.
-- column phase VARCHAR: phase of the step.
-- column bucket VARCHAR: label of its batch.
-- column requests BIGINT: requests of its batch, NULL where the mark does not tell.
-- column tokens BIGINT: new tokens of its batch, NULL where the mark does not tell.
-- column requests_to BIGINT: upper bound of the bucket, to sort by.
-- column tokens_to BIGINT: the same for tokens.
-- column start_ts BIGINT: start of its mark.
-- column host_ns BIGINT: length of its mark.
CREATE MACRO compared_host_steps() AS TABLE
SELECT
    b.rank,
    b.step,
    b.phase,
    b.bucket,
    b.requests,
    b.tokens,
    b.requests_to,
    b.tokens_to,
    s.ts AS start_ts,
    s.dur AS host_ns
FROM step_batches() AS b
JOIN steps AS s ON s.rank = b.rank AND s.step = b.step
WHERE in_scope(b.rank, NULL, b.step)
    AND s.ts >= scope_start()
    AND s.ts < scope_end();
