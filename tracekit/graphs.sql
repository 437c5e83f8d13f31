-- Which launches of a step could be one CUDA graph each.

-- graph_calls, cut into pieces. Captured could be what lies between the first layer of the model, with what directly leads
-- to it, and the last; docs/cuda_graphs.md has the rules. A further blocker:
--   varying_shapes    a kernel whose name or grid differs between steps of one batch, at the same place
-- parameter blocker_share DOUBLE: blockers in a smaller share of the steps of a phase and bucket do not split.
-- parameter equal_share DOUBLE: a kernel varies if less than this share of the steps have the same one at its place.
-- parameter pause_ns BIGINT: as in graph_calls.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column step INTEGER: step, NULL on a rank none of whose work is in steps: all of it is one then.
-- column id BIGINT: the call.
-- column position BIGINT: its place in the step, from 1.
-- column ts BIGINT: start of the call.
-- column end_ts BIGINT: end of its last device row; of the call, if it has none.
-- column rows BIGINT: device rows it started there.
-- column dur_ns BIGINT: sum of their durations.
-- column replay BOOLEAN: a graph replay.
-- column token BIGINT: equal for equal work: kind, name, grid and block of a kernel, direction and bytes of a copy; all
--                       replays are equal. NULL without work.
-- column role BIGINT: the same by kind and category alone.
-- column shape BIGINT: of a replay: equal for the same kernels with the same grids; NULL where grids are not recorded.
-- column blocker VARCHAR: as in graph_calls or above, NULL for what can be captured.
-- column splits BOOLEAN: it ends a piece.
-- column place VARCHAR: where in the step: inside, of what could be captured; before, after it; aside: a copy from or to
--                       the host on another stream than most of the work.
-- column piece BIGINT: number of the piece that it is in: a maximal run of calls inside between blockers; NULL if none.
CREATE MACRO graph_launches(blocker_share := 0.5, equal_share := 0.9, pause_ns := 2000000) AS TABLE
WITH
-- What the engine says is the forward pass: its own mark, or the mark of the step, where work lies outside.
forwards AS (
    SELECT
        rank,
        step,
        min(ts) AS from_ts,
        max(ts + dur) AS to_ts
    FROM annotations
    WHERE step IS NOT NULL
        AND regexp_matches(name, '^gpu_model_runner: forward')
    GROUP BY
        rank,
        step
),
bounds AS (
    SELECT
        s.rank,
        s.step::INTEGER AS step,
        coalesce(f.from_ts, s.ts) AS from_ts,
        coalesce(f.to_ts, s.ts + s.dur) AS to_ts
    FROM steps AS s
    LEFT JOIN forwards AS f ON f.rank = s.rank AND f.step = s.step
    WHERE f.step IS NOT NULL
        OR s.source IN ('execute_context', 'step')
),
batches AS (
    SELECT
        b.rank,
        b.step,
        b.phase,
        b.bucket,
        b.requests,
        b.tokens,
        k.kind IN ('first', 'warm_up') AS warms_up
    FROM step_batches() AS b
    LEFT JOIN step_kinds() AS k ON k.rank = b.rank AND k.step = b.step
),
named AS MATERIALIZED (
    SELECT
        c.*,
        coalesce(b.phase, 'unknown') AS phase,
        coalesce(b.bucket, 'unknown') AS bucket,
        b.requests,
        b.tokens,
        coalesce(b.warms_up, false) AS warms_up,
        coalesce(c.ts >= f.from_ts AND c.ts < f.to_ts, true) AS in_bounds
    FROM graph_calls(pause_ns := pause_ns) AS c
    LEFT JOIN bounds AS f ON f.rank = c.rank AND f.step = c.step
    LEFT JOIN batches AS b ON b.rank = c.rank AND b.step = c.step
),
sizes AS (
    SELECT
        rank,
        device,
        phase,
        bucket,
        count(DISTINCT coalesce(step, -1)) AS steps
    FROM named
    GROUP BY ALL
),
votes AS (
    SELECT
        rank,
        device,
        phase,
        bucket,
        blocker,
        name,
        count(DISTINCT coalesce(step, -1)) AS steps
    FROM named
    WHERE blocker IS NOT NULL
    GROUP BY ALL
),
judged AS MATERIALIZED (
    SELECT
        n.*,
        n.blocker <> 'pause'
        AND NOT (n.warms_up AND n.blocker IN ('loading', 'allocation'))
        -- Capture turns a host function into a node.
        AND NOT contains(n.name, 'LaunchHostFunc')
        AND v.steps >= blocker_share * s.steps AS splits
    FROM named AS n
    LEFT JOIN votes AS v
        ON v.rank = n.rank
        AND v.device IS NOT DISTINCT FROM n.device
        AND v.phase = n.phase
        AND v.bucket = n.bucket
        AND v.blocker = n.blocker
        AND v.name = n.name
    LEFT JOIN sizes AS s
        ON s.rank = n.rank
        AND s.device IS NOT DISTINCT FROM n.device
        AND s.phase = n.phase
        AND s.bucket = n.bucket
),
-- From the first layer, and what directly leads to it, to the last. Kernels that prepare attention count as attention, so
-- that is no beginning where there are others.
heavy AS (
    SELECT
        rank,
        device,
        step,
        coalesce(
            min(position) FILTER (is_layer AND in_bounds),
            min(position) FILTER (is_attention AND in_bounds),
            min(position) FILTER (rows > 0 AND NOT stages AND in_bounds)
        ) AS first_heavy,
        max(position) FILTER ((is_layer OR is_attention) AND in_bounds) AS last_heavy
    FROM judged
    GROUP BY ALL
),
edges AS (
    SELECT
        j.rank,
        j.device,
        j.step,
        coalesce(
            max(j.position) FILTER (j.position < h.first_heavy AND ((j.stages AND NOT j.is_aside) OR coalesce(j.splits, false))),
            0
        ) + 1 AS first_position,
        coalesce(
            any_value(h.last_heavy),
            min(j.position) FILTER (j.samples AND j.position > h.first_heavy) - 1,
            max(j.position) FILTER (j.rows > 0 AND j.in_bounds)
        ) AS last_position
    FROM judged AS j
    JOIN heavy AS h
        ON h.rank = j.rank
        AND h.device IS NOT DISTINCT FROM j.device
        AND h.step IS NOT DISTINCT FROM j.step
    GROUP BY
        j.rank,
        j.device,
        j.step
),
placed AS MATERIALIZED (
    SELECT
        j.*,
        CASE
            WHEN j.is_aside AND j.blocker IS NULL THEN 'aside'
            WHEN j.position < e.first_position THEN 'before'
            WHEN j.position > e.last_position THEN 'after'
            WHEN j.in_bounds THEN 'inside'
            WHEN j.ts < f.from_ts THEN 'before'
            ELSE 'after'
        END AS place,
        -- Numbers of runs between blockers; blockers that split are in none.
        sum((coalesce(j.splits, false) OR coalesce(j.blocker = 'pause', false))::INTEGER) OVER of_step AS run
    FROM judged AS j
    JOIN edges AS e
        ON e.rank = j.rank
        AND e.device IS NOT DISTINCT FROM j.device
        AND e.step IS NOT DISTINCT FROM j.step
    LEFT JOIN bounds AS f ON f.rank = j.rank AND f.step = j.step
    WINDOW of_step AS (PARTITION BY j.rank, j.device, j.step ORDER BY j.position)
),
-- Runs with the same roles in the same order are the same run of different steps: the first such of a step is that of
-- the others, and so on.
runs AS (
    SELECT
        rank,
        device,
        step,
        run,
        phase,
        requests,
        tokens,
        min(position) AS first_position,
        count(*) AS calls,
        hash(list(role ORDER BY position)) AS structure
    FROM placed
    WHERE place = 'inside'
        AND NOT coalesce(splits, false)
        AND rows > 0
    GROUP BY ALL
),
compared AS MATERIALIZED (
    SELECT
        p.rank,
        p.device,
        p.step,
        p.id,
        p.phase,
        p.requests,
        p.tokens,
        p.token,
        p.replay,
        r.structure,
        r.calls,
        r.nth,
        row_number() OVER (PARTITION BY p.rank, p.device, p.step, p.run ORDER BY p.position) AS place_in_run
    FROM placed AS p
    JOIN (
        SELECT
            *,
            row_number() OVER (PARTITION BY rank, device, step, structure ORDER BY run) AS nth
        FROM runs
    ) AS r
        ON r.rank = p.rank
        AND r.device IS NOT DISTINCT FROM p.device
        AND r.step IS NOT DISTINCT FROM p.step
        AND r.run = p.run
    WHERE p.place = 'inside'
        AND NOT coalesce(p.splits, false)
        AND p.rows > 0
),
same_places AS (
    SELECT
        rank,
        device,
        phase,
        requests,
        tokens,
        structure,
        nth,
        place_in_run,
        any_value(calls) AS calls,
        max(count) < equal_share * sum(count) AS varies
    FROM (
        SELECT
            rank,
            device,
            phase,
            requests,
            tokens,
            structure,
            nth,
            place_in_run,
            CASE WHEN NOT replay THEN token END AS token,
            any_value(calls) AS calls,
            count(*) AS count
        FROM compared
        WHERE step IS NOT NULL
        GROUP BY ALL
    )
    GROUP BY ALL
),
-- Where most of a run differs the batch is another one in each step: no kernel stands out.
varying AS (
    FROM same_places
    QUALIFY varies
        AND 2 * count(*) FILTER (varies) OVER (PARTITION BY rank, device, phase, requests, tokens, structure, nth) <= calls
),
varying_calls AS (
    SELECT
        c.rank,
        c.device,
        c.id
    FROM compared AS c
    JOIN varying AS v
        ON v.rank = c.rank
        AND v.device IS NOT DISTINCT FROM c.device
        AND v.phase = c.phase
        AND v.requests IS NOT DISTINCT FROM c.requests
        AND v.tokens IS NOT DISTINCT FROM c.tokens
        AND v.structure = c.structure
        AND v.nth = c.nth
        AND v.place_in_run = c.place_in_run
),
split AS (
    SELECT
        p.*,
        v.id IS NOT NULL AS differs
    FROM placed AS p
    LEFT JOIN varying_calls AS v
        ON v.rank = p.rank
        AND v.device IS NOT DISTINCT FROM p.device
        AND v.id = p.id
)
SELECT
    rank,
    device,
    step,
    id,
    position,
    ts,
    end_ts,
    rows,
    dur_ns,
    replay,
    CASE WHEN replay THEN 0 ELSE (token >> 1)::BIGINT END AS token,
    CASE WHEN replay THEN 0 ELSE (role >> 1)::BIGINT END AS role,
    CASE WHEN replay THEN (shape >> 1)::BIGINT END AS shape,
    CASE WHEN differs THEN 'varying_shapes' ELSE blocker END AS blocker,
    coalesce(splits, false) OR differs AS splits,
    place,
    CASE
        WHEN place = 'inside' AND rows > 0 AND NOT coalesce(splits, false) AND NOT differs
            THEN sum((coalesce(splits, false) OR differs OR coalesce(blocker = 'pause', false))::INTEGER) OVER (
                PARTITION BY rank, device, step
                ORDER BY position
            )::BIGINT
    END AS piece
FROM split
ORDER BY
    rank,
    device,
    step,
    position;

-- The same with the default shares. Filled by the Trace when a query first reads it.
CREATE TABLE graph_sequence (
    rank INTEGER NOT NULL,
    device BIGINT,
    step INTEGER,
    id BIGINT NOT NULL,
    position BIGINT NOT NULL,
    ts BIGINT NOT NULL,
    end_ts BIGINT NOT NULL,
    rows BIGINT NOT NULL,
    dur_ns BIGINT NOT NULL,
    replay BOOLEAN NOT NULL,
    token BIGINT,
    role BIGINT,
    shape BIGINT,
    blocker VARCHAR,
    splits BOOLEAN NOT NULL,
    place VARCHAR NOT NULL,
    piece BIGINT
);
