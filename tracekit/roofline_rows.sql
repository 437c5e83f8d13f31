-- Each row of device work with its time, its work by the best evidence, and the least time that this takes on the device.

-- Peaks of the devices. One row for each kind of computing that a device has, and one of math ''. Filled by the Trace
-- when a query first reads it, from devices.toml, what the trace recorded, and what the user gave.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column spec VARCHAR: row of the device table that it is, NULL if none.
-- column math VARCHAR: as in op_work; '' for the row with what does not depend on it.
-- column flops DOUBLE: operations per second at most, by the datasheet.
-- column achievable_flops DOUBLE: what good kernels reach of it.
-- column bandwidth DOUBLE: bytes per second of the device's memory, by the datasheet or as recorded.
-- column achievable_bandwidth DOUBLE: what good kernels reach of it.
-- column l2_bytes BIGINT: size of its last cache.
-- column link_bandwidth DOUBLE: bytes per second of its links to other devices.
-- column pcie_bandwidth DOUBLE: bytes per second to the host, one way.
-- column sms BIGINT: multiprocessors.
-- column problem VARCHAR: why there are no peaks, '' if there are.
CREATE TABLE device_peaks (
    rank INTEGER NOT NULL,
    device BIGINT,
    spec VARCHAR,
    math VARCHAR NOT NULL,
    flops DOUBLE,
    achievable_flops DOUBLE,
    bandwidth DOUBLE,
    achievable_bandwidth DOUBLE,
    l2_bytes BIGINT,
    link_bandwidth DOUBLE,
    pcie_bandwidth DOUBLE,
    sms BIGINT,
    problem VARCHAR NOT NULL
);

-- The work of device rows by the best evidence there is for each, at most one row each.
-- column id BIGINT: the row.
-- column call_id BIGINT: the op that it runs for, NULL if that is not where its work is from.
-- column family VARCHAR: kind of work, as in op_work, as what follows up to the notes.
-- column math VARCHAR: what computes.
-- column flops BIGINT: operations, at least.
-- column flops_expected BIGINT: as in op_work.
-- column flops_high BIGINT: at most.
-- column bytes BIGINT: bytes, at least.
-- column bytes_expected BIGINT: as in op_work.
-- column bytes_high BIGINT: at most.
-- column weight_bytes BIGINT: those of weights.
-- column weight_bits BIGINT: bits of a weight.
-- column kv_bytes BIGINT: those of keys and values of earlier tokens.
-- column link_bytes BIGINT: what a collective, or a copy from or to elsewhere, moves over links.
-- column notes VARCHAR: what was assumed.
-- column evidence VARCHAR: B shapes of its op, C shapes of an op with several kernels, D from elsewhere, G bytes of a copy.
-- column how VARCHAR: the same in words.
-- column part VARCHAR: the op, or the part of the model, that its work is from if not its own op's; NULL otherwise.
CREATE MACRO row_work() AS TABLE
SELECT
    * EXCLUDE (kernels, by_load),
    CASE WHEN kernels = 1 THEN 'B' ELSE 'C' END AS evidence,
    CASE WHEN kernels = 1 THEN 'op shapes' ELSE 'op shapes, several kernels' END AS how
FROM call_work
-- Of an op that knows of no window, what the model's layers say goes first.
WHERE NOT (contains(notes, 'window not recorded') AND id IN (SELECT id FROM mapped_work))
UNION ALL BY NAME
SELECT
    *,
    'D' AS evidence
FROM mapped_work
WHERE id NOT IN (SELECT id FROM call_work WHERE NOT contains(notes, 'window not recorded'))
UNION ALL BY NAME
SELECT
    id,
    'G' AS evidence,
    'bytes copied' AS how,
    'copy' AS family,
    '' AS math,
    0 AS flops,
    0 AS flops_expected,
    0 AS flops_high,
    -- On one device a copy reads and writes; to or from elsewhere it passes its memory once, and the link.
    CASE WHEN kind = 'memcpy' AND copy_kind = 'DtoD' THEN 2 * bytes ELSE bytes END AS bytes,
    CASE WHEN kind = 'memcpy' AND copy_kind = 'DtoD' THEN 2 * bytes ELSE bytes END AS bytes_expected,
    CASE WHEN kind = 'memcpy' AND copy_kind = 'DtoD' THEN 2 * bytes ELSE bytes END AS bytes_high,
    0 AS weight_bytes,
    0 AS weight_bits,
    0 AS kv_bytes,
    CASE WHEN kind = 'memcpy' AND copy_kind <> 'DtoD' THEN bytes ELSE 0 END AS link_bytes,
    '' AS notes
FROM device_activity
WHERE kind IN ('memcpy', 'memset')
    AND bytes BETWEEN 0 AND 4611686018427387903  -- twice as many are a number, too
    AND (kind = 'memset' OR copy_kind IS NOT NULL);

-- Measured counters of kernels by name and geometry, if there are any: what kernel_counters has, without those of others.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column name VARCHAR: kernel.
-- column shape VARCHAR: its geometry.
-- column measured_bytes BIGINT: from and to memory, of a launch.
-- column measured_flops DOUBLE: operations of a launch.
-- column sm_pct DOUBLE: compute throughput in per cent of the peak.
-- column memory_pct DOUBLE: memory throughput in per cent of the peak.
-- column ncu_waves DOUBLE: waves.
CREATE MACRO counted_kernels() AS TABLE
SELECT
    rank,
    device,
    name,
    launch_shape(grid_x, grid_y, grid_z, block_x, block_y, block_z) AS shape,
    CASE WHEN dram_bytes >= 0 THEN dram_bytes END AS measured_bytes,
    CASE
        WHEN least(tensor_ops, fp16_flops, fp32_flops, fp64_flops) < 0 THEN NULL
        WHEN coalesce(tensor_ops, fp16_flops, fp32_flops, fp64_flops) IS NOT NULL
            THEN coalesce(tensor_ops, 0) + coalesce(fp16_flops, 0) + coalesce(fp32_flops, 0) + coalesce(fp64_flops, 0)
    END AS measured_flops,
    CASE WHEN sm_throughput_pct >= 0 THEN sm_throughput_pct END AS sm_pct,
    CASE WHEN memory_throughput_pct >= 0 THEN memory_throughput_pct END AS memory_pct,
    CASE WHEN waves_per_sm > 0 THEN waves_per_sm END AS ncu_waves
FROM kernel_counters
WHERE ncu_kernel IS NOT NULL;

-- Device rows in the scope with all that the roofline is drawn from. Work is that of the part within the scope.
-- column id BIGINT: the row.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column step INTEGER: serving step, NULL outside steps.
-- column kernel VARCHAR: name as recorded.
-- column op VARCHAR: the op that it runs for.
-- column shapes VARCHAR: dimensions of its inputs.
-- column dtypes VARCHAR: their types.
-- column launch VARCHAR: how it was started: graph (a replay), op (a call in an op), call (outside all), none (not
--   recorded: before the recording began, or lost).
-- column category VARCHAR: category.
-- column subcategory VARCHAR: subcategory.
-- column dur BIGINT: length within the scope.
-- column alone_ns BIGINT: the part of it after all earlier work of its stream.
-- column beside_ns BIGINT: of alone_ns, the part beside work of other streams; at most, where several ran beside it.
-- column exclusive_ns BIGINT: time that is its alone on the device.
-- column math VARCHAR: what computes, NULL without operations.
-- column flops DOUBLE: operations: where it is an interval, those expected.
-- column flops_low DOUBLE: at least.
-- column flops_high DOUBLE: at most.
-- column bytes DOUBLE: bytes of memory, as flops.
-- column bytes_low DOUBLE: at least.
-- column bytes_high DOUBLE: at most.
-- column weight_bytes DOUBLE: those of weights.
-- column weight_bits BIGINT: bits of a weight.
-- column kv_bytes DOUBLE: those of keys and values of earlier tokens.
-- column link_bytes DOUBLE: bytes over links.
-- column memory_ns DOUBLE: least time for the bytes at what is achievable.
-- column memory_high_ns DOUBLE: for the most bytes.
-- column compute_ns DOUBLE: least time for the operations.
-- column compute_high_ns DOUBLE: for the most operations.
-- column roof_ns DOUBLE: the larger of both.
-- column roof_high_ns DOUBLE: for the most of both.
-- column datasheet_ns DOUBLE: as roof_ns, at the peaks of the datasheet.
-- column certain_ns DOUBLE: the same for the least work that it can be.
-- column evidence VARCHAR: as in roofline.
-- column how VARCHAR: the same in words.
-- column notes VARCHAR: what was assumed.
-- column waves DOUBLE: blocks by how many run at once.
-- column blocks_per_sm DOUBLE: blocks by multiprocessors.
-- column ncu_class VARCHAR: what ncu's rule says, NULL if it was not measured.
-- column sm_pct DOUBLE: compute throughput as measured, in per cent of the peak.
-- column memory_pct DOUBLE: memory throughput as measured.
-- column over_links BOOLEAN: communication, or a copy from or to elsewhere.
-- column l2_bytes BIGINT: size of the device's last cache.
CREATE MACRO work_rows() AS TABLE
WITH known AS (
    SELECT
        b.id,
        b.rank,
        b.device,
        b.step,
        d.kind,
        b.name AS kernel,
        coalesce(w.part, o.name) AS op,
        o.shapes,
        o.dtypes,
        CASE
            WHEN contains(a.name, 'GraphLaunch') THEN 'graph'
            WHEN b.op_id IS NOT NULL THEN 'op'
            WHEN b.launch_id IS NOT NULL THEN 'call'
            ELSE 'none'
        END AS launch,
        b.category,
        b.subcategory,
        s.dur,
        s.alone_ns,
        s.beside_ns,
        s.kept,
        b.exclusive_ns,
        w.* EXCLUDE (id, call_id, part),
        c.* EXCLUDE (rank, device, name, shape),
        r.bytes AS range_bytes,
        r.flops AS range_flops,
        m.dram_pct,
        m.tensor_pct,
        kernel_waves(d, l) AS waves,
        blocks_per_sm(d, l) AS blocks_per_sm,
        d.grid_x IS NOT NULL AS has_geometry,
        coalesce(d.kind = 'memcpy' AND d.copy_kind <> 'DtoD', false) AS leaves_device
    FROM classified_segments() AS b
    JOIN device_activity AS d ON d.id = b.id
    JOIN stream_segments() AS s ON s.id = b.id
    LEFT JOIN row_work() AS w ON w.id = b.id
    LEFT JOIN ops AS o ON o.id = coalesce(w.call_id, b.op_id)
    LEFT JOIN launches AS a ON a.id = b.launch_id
    LEFT JOIN device_limits() AS l
        ON l.rank = b.rank
        AND l.device IS NOT DISTINCT FROM b.device
    LEFT JOIN counted_kernels() AS c
        ON c.rank = b.rank
        AND c.device IS NOT DISTINCT FROM b.device
        AND c.name = b.name
        AND c.shape IS NOT DISTINCT FROM launch_shape(d.grid_x, d.grid_y, d.grid_z, d.block_x, d.block_y, d.block_z)
    LEFT JOIN measured_work AS r
        ON r.kernel = b.name
        AND r.op = o.name
        AND r.shapes = o.shapes
        AND r.dtypes = coalesce(o.dtypes, '')
    LEFT JOIN kernel_metrics() AS m
        ON m.rank = b.rank
        AND m.device IS NOT DISTINCT FROM b.device
        AND m.name = b.name
        AND launch_shape(m.grid_x, m.grid_y, m.grid_z, m.block_x, m.block_y, m.block_z)
            IS NOT DISTINCT FROM launch_shape(d.grid_x, d.grid_y, d.grid_z, d.block_x, d.block_y, d.block_z)
),
worked AS (
    SELECT
        * EXCLUDE (evidence, how, math, notes, weight_bits, waves),
        coalesce(ncu_waves, waves) AS waves,
        CASE
            -- tf32 has inputs of fp32: whether it was allowed, only the kernel's name tells.
            WHEN math = 'fp32' AND regexp_matches(kernel, 'tf32|s1688') THEN 'tf32'
            WHEN math <> '' THEN math
        END AS of_math,
        coalesce(weight_bits, 0) AS weight_bits,
        coalesce(notes, '') AS notes,
        CASE
            WHEN sm_pct IS NOT NULL OR measured_bytes IS NOT NULL OR measured_flops IS NOT NULL THEN 'A'
            WHEN range_bytes IS NOT NULL OR range_flops IS NOT NULL THEN 'A'
            WHEN dram_pct IS NOT NULL THEN 'E'
            WHEN evidence IS NOT NULL THEN evidence
            WHEN kind = 'kernel' AND has_geometry AND category <> 'other' THEN 'F'
        END AS evidence,
        CASE
            WHEN sm_pct IS NOT NULL OR measured_bytes IS NOT NULL OR measured_flops IS NOT NULL THEN 'Nsight Compute'
            WHEN range_bytes IS NOT NULL OR range_flops IS NOT NULL THEN 'CUPTI ranges'
            WHEN dram_pct IS NOT NULL THEN 'metrics of the device'
            WHEN evidence IS NOT NULL THEN how
            WHEN kind = 'kernel' AND has_geometry AND category <> 'other' THEN 'name and geometry'
        END AS how
    FROM known
),
peaks AS (
    SELECT
        w.*,
        dram_pct / 100 * q.bandwidth * alone_ns / 1e9 AS metric_bytes,
        q.bandwidth,
        q.achievable_bandwidth,
        q.l2_bytes,
        p.flops AS peak,
        p.achievable_flops AS achievable_peak,
        kept * coalesce(measured_flops, range_flops, w.flops) AS low_flops,
        kept * coalesce(measured_flops, range_flops, flops_expected) AS likely_flops,
        kept * coalesce(measured_flops, range_flops, flops_high) AS high_flops,
        coalesce(kept * measured_bytes, kept * range_bytes, metric_bytes, kept * bytes) AS low_bytes,
        coalesce(kept * measured_bytes, kept * range_bytes, metric_bytes, kept * bytes_expected) AS likely_bytes,
        coalesce(kept * measured_bytes, kept * range_bytes, metric_bytes, kept * bytes_high) AS high_bytes
    FROM worked AS w
    LEFT JOIN device_peaks AS q
        ON q.rank = w.rank
        AND q.device IS NOT DISTINCT FROM w.device
        AND q.math = ''
    LEFT JOIN device_peaks AS p
        ON p.rank = w.rank
        AND p.device IS NOT DISTINCT FROM w.device
        AND p.math = w.of_math
),
least_times AS (
    SELECT
        *,
        1e9 * likely_bytes / achievable_bandwidth AS memory_ns,
        1e9 * high_bytes / achievable_bandwidth AS memory_high_ns,
        CASE
            WHEN likely_flops = 0 THEN 0
            -- Without a peak given for it: every device does more than 2 operations of fp32 in the time of a byte.
            WHEN achievable_peak IS NULL AND of_math = 'fp32' AND high_flops <= 2 * likely_bytes THEN 0
            ELSE 1e9 * likely_flops / achievable_peak
        END AS shape_compute_ns,
        CASE
            WHEN high_flops = 0 THEN 0
            WHEN achievable_peak IS NULL AND of_math = 'fp32' AND high_flops <= 2 * likely_bytes THEN 0
            ELSE 1e9 * high_flops / achievable_peak
        END AS shape_compute_high_ns,
        tensor_pct / 100 * alone_ns AS tensor_ns
    FROM peaks
),
both_times AS (
    SELECT
        *,
        coalesce(CASE WHEN evidence = 'E' THEN tensor_ns END, shape_compute_ns) AS compute_ns,
        coalesce(CASE WHEN evidence = 'E' THEN tensor_ns END, shape_compute_high_ns) AS compute_high_ns,
        category = 'communication' OR leaves_device OR coalesce(link_bytes, 0) > 0 AS over_links
    FROM least_times
)
SELECT
    id,
    rank,
    device,
    step,
    kernel,
    op,
    shapes,
    dtypes,
    launch,
    category,
    subcategory,
    dur,
    alone_ns,
    beside_ns,
    exclusive_ns,
    of_math AS math,
    likely_flops AS flops,
    low_flops AS flops_low,
    high_flops AS flops_high,
    likely_bytes AS bytes,
    low_bytes AS bytes_low,
    high_bytes AS bytes_high,
    kept * weight_bytes AS weight_bytes,
    weight_bits,
    kept * kv_bytes AS kv_bytes,
    kept * link_bytes AS link_bytes,
    memory_ns,
    memory_high_ns,
    compute_ns,
    compute_high_ns,
    CASE WHEN NOT over_links THEN greatest(memory_ns, nullif(compute_ns, 0)) END AS roof_ns,
    CASE WHEN NOT over_links THEN greatest(memory_high_ns, nullif(compute_high_ns, 0)) END AS roof_high_ns,
    CASE
        WHEN NOT over_links
            THEN greatest(1e9 * likely_bytes / bandwidth, CASE WHEN likely_flops > 0 THEN 1e9 * likely_flops / peak END)
    END AS datasheet_ns,
    CASE
        WHEN NOT over_links
            THEN greatest(1e9 * low_bytes / bandwidth, CASE WHEN low_flops > 0 THEN 1e9 * low_flops / peak END)
    END AS certain_ns,
    evidence,
    how,
    notes,
    waves,
    blocks_per_sm,
    CASE WHEN evidence = 'A' THEN nullif(ncu_class(sm_pct, memory_pct, waves, 60, 80, 10), 'unknown') END AS ncu_class,
    sm_pct,
    memory_pct,
    over_links,
    l2_bytes
FROM both_times;
