-- What graph_launches says, by piece, by step and by blocker.

-- Pieces of each step: runs of calls that could each be one graph.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column step INTEGER: step, as in graph_launches.
-- column piece BIGINT: its number in the step.
-- column structure BIGINT: equal for equal kinds and categories in the same order.
-- column content BIGINT: equal for equal work in the same order.
-- column launches BIGINT: calls.
-- column kernels BIGINT: device rows that they started.
-- column replays BIGINT: calls that replay a graph.
-- column replayed BIGINT: device rows of these.
-- column wall_ns BIGINT: from the start of the first call to the end of the last device row.
CREATE MACRO graph_pieces() AS TABLE
SELECT
    rank,
    device,
    step,
    piece,
    (hash(list(role ORDER BY position)) >> 1)::BIGINT AS structure,
    (hash(list(token ORDER BY position)) >> 1)::BIGINT AS content,
    count(*) AS launches,
    sum(rows)::BIGINT AS kernels,
    count(*) FILTER (replay) AS replays,
    coalesce(sum(rows) FILTER (replay), 0)::BIGINT AS replayed,
    max(end_ts) - min(ts) AS wall_ns
FROM graph_sequence
WHERE piece IS NOT NULL
GROUP BY
    rank,
    device,
    step,
    piece
ORDER BY
    rank,
    device,
    step,
    piece;

-- How much of each step comes from graph replays.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column step INTEGER: step, as in graph_launches.
-- column launches BIGINT: calls that started work, on the thread that launches most of it.
-- column kernels BIGINT: device rows that they started.
-- column dur_ns BIGINT: sum of their durations.
-- column inside BIGINT: device rows that could be captured, or are.
-- column replays BIGINT: graph replays.
-- column replayed BIGINT: device rows of these.
-- column replayed_ns BIGINT: sum of their durations.
-- column shape BIGINT: of the replay with most rows, as in graph_launches.
CREATE MACRO graph_steps() AS TABLE
SELECT
    rank,
    device,
    step,
    count(*) FILTER (rows > 0) AS launches,
    sum(rows)::BIGINT AS kernels,
    sum(dur_ns)::BIGINT AS dur_ns,
    coalesce(sum(rows) FILTER (place = 'inside'), 0)::BIGINT AS inside,
    count(*) FILTER (replay) AS replays,
    coalesce(sum(rows) FILTER (replay), 0)::BIGINT AS replayed,
    coalesce(sum(dur_ns) FILTER (replay), 0)::BIGINT AS replayed_ns,
    arg_max(shape, (rows, -position)) FILTER (replay) AS shape
FROM graph_sequence
GROUP BY
    rank,
    device,
    step
ORDER BY
    rank,
    device,
    step;

-- Blocks of the normalisation kernels of each step. Those of most engines give each token a block: where that is seen to
-- hold in one step, the grid in a graph tells for how many tokens it was captured.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column step INTEGER: step.
-- column name VARCHAR: the kernel.
-- column blocks BIGINT: blocks of the smallest launch of it; norms of each head take more.
CREATE MACRO norm_grids() AS TABLE
SELECT
    k.rank,
    k.device,
    k.step,
    k.name,
    min(k.grid_x) AS blocks
FROM kernels AS k
LEFT JOIN ops AS o ON o.id = k.op_id
JOIN kernel_classes AS c
    ON c.kind = k.kind
    AND c.name = k.name
    AND c.op_name = coalesce(o.name, '')
WHERE c.category = 'norm'
    AND k.step IS NOT NULL
    AND k.grid_x IS NOT NULL
    AND coalesce(k.grid_y, 1) = 1
GROUP BY
    k.rank,
    k.device,
    k.step,
    k.name
ORDER BY
    k.rank,
    k.device,
    k.step,
    k.name;

-- What stands in the way of graphs, by kind, place and the op around it.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column step INTEGER: step, as in graph_launches.
-- column blocker VARCHAR: kind, as in graph_launches.
-- column splits BOOLEAN: it ends a piece.
-- column place VARCHAR: inside, before, after: of what could be captured.
-- column call VARCHAR: name of the call; of a kernel that varies or is on the legacy stream, that of the kernel.
-- column op VARCHAR: name of the op around it, '' without one.
-- column count BIGINT: how many.
-- column first_id BIGINT: the first call.
CREATE MACRO graph_blockers() AS TABLE
SELECT
    g.rank,
    g.device,
    g.step,
    g.blocker,
    g.splits,
    g.place,
    coalesce(d.name, l.name) AS call,
    coalesce(o.name, '') AS op,
    count(*) AS count,
    min(g.id) AS first_id
FROM graph_sequence AS g
JOIN launches AS l ON l.id = g.id
LEFT JOIN ops AS o ON o.id = l.op_id
LEFT JOIN device_activity AS d ON d.launch_id = g.id AND g.blocker IN ('varying_shapes', 'legacy_stream')
WHERE g.blocker IS NOT NULL
GROUP BY ALL
ORDER BY ALL;

-- What the macro cuda_graphs shows. Filled by the Trace when a query first reads it (graph_regions.py).
CREATE TABLE graph_region_table (
    rank INTEGER NOT NULL,
    device BIGINT,
    phase VARCHAR NOT NULL,
    bucket VARCHAR NOT NULL,
    region VARCHAR NOT NULL,
    verdict VARCHAR NOT NULL,
    reason VARCHAR NOT NULL,
    steps BIGINT NOT NULL,
    repeats BIGINT NOT NULL,
    pieces BIGINT NOT NULL,
    launches BIGINT NOT NULL,
    kernels BIGINT NOT NULL,
    replays BIGINT NOT NULL,
    period VARCHAR,
    step_ns BIGINT,
    wall_ns BIGINT,
    gpu_ns BIGINT,
    idle_ns BIGINT,
    saving_low_ns BIGINT,
    saving_high_ns BIGINT,
    error DOUBLE,
    spread_low_ns BIGINT,
    spread_high_ns BIGINT,
    blockers VARCHAR NOT NULL
);
