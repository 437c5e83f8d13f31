-- Counters of a whole device beside the trace (docs/gpu_metrics.md): metrics that Nsight Systems or CUPTI's PM sampling
-- took at intervals, in per cent of what the device sustains at most.

-- What a sampled metric says, by its name: dram, or its parts dram_read and dram_write; tensor; sm; NULL for others.
-- Labels of Nsight Systems differ between versions and devices, and newer ones end with the unit; what is not in per
-- cent is none of these. CUPTI's metrics count only in per cent of the elapsed time's peak.
-- parameter metric VARCHAR: name of the metric.
CREATE MACRO gpu_metric(metric) AS CASE
    WHEN regexp_matches(metric, '^(?i)DRAM Read (Bandwidth|Throughput)\s*([\[(][^\])]*%[\])])?$') THEN 'dram_read'
    WHEN regexp_matches(metric, '^(?i)DRAM Write (Bandwidth|Throughput)\s*([\[(][^\])]*%[\])])?$') THEN 'dram_write'
    WHEN regexp_matches(metric, '^(?i)DRAM (Bandwidth|Throughput)\s*([\[(][^\])]*%[\])])?$') THEN 'dram'
    WHEN regexp_matches(metric, '^(?i)Tensor Active( / FP16 Active)?\s*([\[(][^\])]*%[\])])?$') THEN 'tensor'
    WHEN regexp_matches(metric, '^(?i)SMs? Active\s*([\[(][^\])]*%[\])])?$') THEN 'sm'
    WHEN NOT ends_with(metric, '.avg.pct_of_peak_sustained_elapsed') THEN NULL
    WHEN regexp_matches(metric, '^dramc?__read_throughput\.') THEN 'dram_read'
    WHEN regexp_matches(metric, '^dramc?__write_throughput\.') THEN 'dram_write'
    WHEN regexp_matches(metric, '^(dramc?__|gpu__dram_)throughput\.') THEN 'dram'
    WHEN regexp_matches(metric, '^sm__pipe_tensor_cycles_active(_realtime)?\.') THEN 'tensor'
    WHEN regexp_matches(metric, '^sm__cycles_active(_realtime)?\.') THEN 'sm'
END;

-- Counters of the trace that are sampled metrics.
-- column name VARCHAR: as recorded.
-- column part VARCHAR: what it says (gpu_metric).
CREATE MACRO metric_names() AS TABLE
SELECT
    name,
    gpu_metric(name) AS part
FROM (SELECT DISTINCT name FROM events WHERE kind = 'counter')
WHERE part IS NOT NULL;

-- Samples of each device, by time. Whether a sample stands for the time before it (Nsight Systems) or after it (CUPTI)
-- is not promised anywhere: from one neighbour to the other it is true of both. The first and the last of a device
-- have one neighbour, and are left out.
-- column rank INTEGER: rank that the samples are stored under.
-- column device BIGINT: device.
-- column ts BIGINT: time of the sample.
-- column begin_ts BIGINT: time of the sample before.
-- column end_ts BIGINT: time of the sample after.
-- column dram_pct DOUBLE: memory read and written; NULL if one of the two was not sampled.
-- column tensor_pct DOUBLE: tensor pipes active; before Ampere together with half precision.
-- column sm_pct DOUBLE: multiprocessors with work.
CREATE MACRO metric_samples() AS TABLE
WITH names AS MATERIALIZED (
    FROM metric_names()
),
read AS (
    SELECT
        e.rank,
        e.device,
        e.ts,
        n.part,
        TRY_CAST(regexp_extract(e.args, '^\{"(?:value)?": ?([-+.0-9eE]+)\}$', 1) AS DOUBLE) AS value
    FROM events AS e
    JOIN names AS n ON n.name = e.name
    WHERE e.kind = 'counter'
        AND e.dur = 0
        AND e.device IS NOT NULL
)
SELECT *
FROM (
    SELECT
        rank,
        device,
        ts,
        lag(ts) OVER series AS begin_ts,
        lead(ts) OVER series AS end_ts,
        coalesce(
            avg(value) FILTER (part = 'dram'),
            avg(value) FILTER (part = 'dram_read') + avg(value) FILTER (part = 'dram_write')
        ) AS dram_pct,
        avg(value) FILTER (part = 'tensor') AS tensor_pct,
        avg(value) FILTER (part = 'sm') AS sm_pct
    FROM read
    -- A counter that was not ready reads below zero, or far above a hundred.
    WHERE value BETWEEN 0 AND 100
    GROUP BY
        rank,
        device,
        ts
    WINDOW series AS (PARTITION BY rank, device ORDER BY ts)
)
WHERE begin_ts IS NOT NULL
    AND end_ts IS NOT NULL;

-- Devices that worked, and whose samples are theirs. A recording of several processes stores all samples under one of
-- its ranks. Two processes that each call their device 0 may mean one GPU or two: then nobody can tell.
-- column rank INTEGER: rank that worked.
-- column device BIGINT: device.
-- column metric_rank INTEGER: rank that its samples are stored under, NULL if there are none.
-- column problem VARCHAR: why samples are not used: no samples, several processes, several recordings; '' if they are.
CREATE MACRO sampled_devices() AS TABLE
WITH names AS MATERIALIZED (
    SELECT name
    FROM metric_names()
),
sampled AS MATERIALIZED (
    SELECT DISTINCT
        rank,
        device
    FROM events
    WHERE kind = 'counter'
        AND dur = 0
        AND device IS NOT NULL
        AND name IN (FROM names)
),
together AS (
    SELECT DISTINCT
        one.rank,
        other.rank AS metric_rank
    FROM footer_sources AS one
    JOIN footer_sources AS other ON other.path = one.path
),
worked AS (
    SELECT DISTINCT
        rank,
        device
    FROM device_activity
    WHERE device IS NOT NULL
),
paired AS (
    SELECT
        w.rank,
        w.device,
        s.rank AS metric_rank
    FROM worked AS w
    JOIN together AS t ON t.rank = w.rank
    JOIN sampled AS s
        ON s.rank = t.metric_rank
        AND s.device = w.device
),
claims AS (
    SELECT
        metric_rank,
        device,
        count(*) AS ranks
    FROM paired
    GROUP BY
        metric_rank,
        device
)
SELECT
    w.rank,
    w.device,
    min(p.metric_rank) AS metric_rank,
    CASE
        WHEN count(p.metric_rank) = 0 THEN 'no samples'
        WHEN count(p.metric_rank) > 1 THEN 'several recordings'
        WHEN max(c.ranks) > 1 THEN 'several processes'
        ELSE ''
    END AS problem
FROM worked AS w
LEFT JOIN paired AS p
    ON p.rank = w.rank
    AND p.device = w.device
LEFT JOIN claims AS c
    ON c.metric_rank = p.metric_rank
    AND c.device = p.device
GROUP BY
    w.rank,
    w.device;

-- Samples in the scope with the work around them: of those during which rows of one kernel (or one copy, fill, replay),
-- and nothing else on any stream of the device, were running nine tenths of the time.
-- column rank INTEGER: rank that worked.
-- column device BIGINT: device.
-- column ts BIGINT: time of the sample.
-- column id BIGINT: the row that ran when the sample's time began.
-- column alone BOOLEAN: and until it ended.
-- column period_ns BIGINT: time that the sample stands for.
-- column dram_pct DOUBLE: as in metric_samples; so are the next two.
-- column tensor_pct DOUBLE: tensor pipes active.
-- column sm_pct DOUBLE: multiprocessors with work.
CREATE MACRO covered_samples() AS TABLE
WITH used AS MATERIALIZED (
    FROM sampled_devices() WHERE problem = ''
),
samples AS MATERIALIZED (
    SELECT
        m.* REPLACE (u.rank AS rank)
    FROM metric_samples() AS m
    JOIN used AS u
        ON u.metric_rank = m.rank
        AND u.device = m.device
),
rows_of_device AS (
    SELECT
        d.id,
        d.kind,
        d.rank,
        d.device,
        d.ts,
        d.dur,
        d.step,
        hash(d.kind, d.name, d.grid_x, d.grid_y, d.grid_z, d.block_x, d.block_y, d.block_z) AS what,
        max(d.ts + d.dur) OVER (
            PARTITION BY d.rank, d.device
            ORDER BY d.ts, d.dur DESC, d.id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS busy_until
    FROM device_activity AS d
    SEMI JOIN used AS u
        ON u.rank = d.rank
        AND u.device = d.device
    WHERE d.dur > 0
),
marked AS (
    SELECT
        *,
        what IS DISTINCT FROM lag(what) OVER in_order AS begins_run
    FROM rows_of_device
    WINDOW in_order AS (PARTITION BY rank, device ORDER BY ts, dur DESC, id)
),
work AS MATERIALIZED (
    SELECT
        *,
        -- A sum: count with FILTER takes time with the square of the rows.
        sum(begins_run::INTEGER) OVER so_far AS run,
        -- busy_until never falls, so that the largest is that of the row that began the run.
        max(CASE WHEN begins_run THEN busy_until END) OVER so_far AS others_until,
        sum(greatest(0, ts + dur - greatest(ts, coalesce(busy_until, ts)))) OVER so_far AS busy_ns,
        max(ts + dur) OVER so_far AS last_end
    FROM marked
    WINDOW so_far AS (
        PARTITION BY rank, device
        ORDER BY ts, dur DESC, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
    -- Of rows that start together the last knows of all.
    QUALIFY lead(ts) OVER (PARTITION BY rank, device ORDER BY ts, dur DESC, id) IS DISTINCT FROM ts
),
begun AS (
    SELECT
        s.*,
        w.id,
        w.kind,
        w.run,
        w.step,
        w.ts + w.dur AS row_end,
        w.busy_until,
        w.others_until,
        -- From the start of the row to last_end there is no hole: all that ran then had begun.
        w.busy_ns - greatest(0, w.last_end - s.begin_ts) AS busy_ns
    FROM samples AS s
    ASOF JOIN work AS w
        ON w.rank = s.rank
        AND w.device = s.device
        AND s.begin_ts >= w.ts
),
ended AS (
    SELECT
        s.*,
        w.id AS last_id,
        w.run AS last_run,
        w.step AS last_step,
        w.busy_ns - greatest(0, w.last_end - s.end_ts) - s.busy_ns AS covered_ns
    FROM begun AS s
    ASOF JOIN work AS w
        ON w.rank = s.rank
        AND w.device = s.device
        AND s.end_ts > w.ts
),
covered AS (
    SELECT
        *,
        -- Metrics of another GPU, one that idles, look like this: kernels run, and no multiprocessor ever has work.
        max(CASE WHEN kind = 'kernel' THEN sm_pct END) OVER (PARTITION BY rank, device) AS most_sm_pct
    FROM ended
    WHERE run = last_run
        AND coalesce(others_until <= begin_ts, true)
        AND 10 * covered_ns >= 9 * (end_ts - begin_ts)
)
SELECT
    rank,
    device,
    ts,
    id,
    id = last_id
    AND row_end >= end_ts
    AND coalesce(busy_until <= begin_ts, true) AS alone,
    (end_ts - begin_ts) // 2 AS period_ns,
    dram_pct,
    tensor_pct,
    sm_pct
FROM covered
WHERE coalesce(most_sm_pct > 0, true)
    AND in_scope(rank, device, step)
    AND in_scope(rank, device, last_step)
    AND begin_ts >= scope_start()
    AND end_ts <= scope_end();

-- Device rows that were running alone for so long that several samples are theirs, with the average of these. Values
-- are of the whole device, in per cent of what it sustains at most.
-- parameter min_samples BIGINT: samples it takes.
-- column id BIGINT: the row.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column dram_pct DOUBLE: memory read and written, NULL if not sampled.
-- column tensor_pct DOUBLE: tensor pipes active, NULL if not sampled.
-- column sm_pct DOUBLE: multiprocessors with work, NULL if not sampled.
-- column samples BIGINT: samples that count.
-- column time_ns BIGINT: time that they stand for.
CREATE MACRO metric_windows(min_samples := 3) AS TABLE
SELECT *
FROM (
    SELECT
        id,
        rank,
        device,
        avg(dram_pct) AS dram_pct,
        avg(tensor_pct) AS tensor_pct,
        avg(sm_pct) AS sm_pct,
        count(*) AS samples,
        sum(period_ns)::BIGINT AS time_ns
    FROM covered_samples()
    WHERE alone
    GROUP BY
        id,
        rank,
        device
)
WHERE samples >= min_samples;

-- The same of all launches of a kernel together: samples during which one launch followed the other count, too, so that
-- short kernels have some. Idle time between launches lowers the average, by a tenth at most.
-- parameter min_samples BIGINT: samples it takes.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column name VARCHAR: the kernel.
-- column grid_x BIGINT: its geometry, NULL if not recorded; so are the next five.
-- column grid_y BIGINT: blocks.
-- column grid_z BIGINT: blocks.
-- column block_x BIGINT: threads.
-- column block_y BIGINT: threads.
-- column block_z BIGINT: threads.
-- column dram_pct DOUBLE: memory read and written, NULL if not sampled.
-- column tensor_pct DOUBLE: tensor pipes active, NULL if not sampled.
-- column sm_pct DOUBLE: multiprocessors with work, NULL if not sampled.
-- column samples BIGINT: samples that count.
-- column time_ns BIGINT: time that they stand for.
CREATE MACRO kernel_metrics(min_samples := 3) AS TABLE
SELECT *
FROM (
    SELECT
        k.rank,
        k.device,
        k.name,
        k.grid_x,
        k.grid_y,
        k.grid_z,
        k.block_x,
        k.block_y,
        k.block_z,
        avg(s.dram_pct) AS dram_pct,
        avg(s.tensor_pct) AS tensor_pct,
        avg(s.sm_pct) AS sm_pct,
        count(*) AS samples,
        sum(s.period_ns)::BIGINT AS time_ns
    FROM covered_samples() AS s
    JOIN kernels AS k ON k.id = s.id
    GROUP BY ALL
)
WHERE samples >= min_samples;
