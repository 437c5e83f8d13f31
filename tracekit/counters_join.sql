-- Which measured kernel (counters.sql) is which kernel of the trace? By name and launch geometry, one to one.

-- The forms of the kernel names of trace and measurements, by which they are compared. Filled by the Trace when a query
-- first reads it (kernel_names.py).
-- column name VARCHAR: as printed.
-- column signature VARCHAR: namespaces, name and template arguments in one spelling; no return type, no parameters.
-- column simplified VARCHAR: the same without namespaces.
-- column function VARCHAR: the function's name alone.
-- column is_bare BOOLEAN: the profiler printed nothing but the function's name.
CREATE TABLE kernel_name_forms (
    name VARCHAR NOT NULL,
    signature VARCHAR NOT NULL,
    simplified VARCHAR NOT NULL,
    function VARCHAR NOT NULL,
    is_bare BOOLEAN NOT NULL
);

-- What kernel_name_forms is made from.
-- column name VARCHAR: as printed.
CREATE MACRO names_to_compare() AS TABLE
SELECT name FROM kernels WHERE EXISTS (FROM ncu_launches)
UNION
SELECT kernel FROM ncu_launches
ORDER BY name;

-- Compute capability of the devices of the trace, where it says.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column cc VARCHAR: such as 9.0.
CREATE MACRO device_cc() AS TABLE
SELECT
    rank,
    device,
    json_extract_string(properties, '$.computeMajor') || '.' || json_extract_string(properties, '$.computeMinor') AS cc
FROM device_descriptions();

-- Kernels of the trace and measured kernels that could be the same: of one name, as strictly as they agree in it, and
-- of one geometry, where one that a side does not know fits any.
-- column name VARCHAR: kernel of the trace.
-- column shape VARCHAR: its geometry.
-- column device_cc VARCHAR: compute capability of the device of the trace, NULL if it does not say.
-- column kernel VARCHAR: measured kernel.
-- column measured_shape VARCHAR: its geometry.
-- column cc VARCHAR: compute capability where it was measured.
-- column match VARCHAR: exact, signature, simplified or function: the columns of kernel_name_forms that agree.
-- column fits BOOLEAN: measured on the same kind of device, as far as both say.
-- column best_here BOOLEAN: no other measured kernel agrees more strictly with that of the trace.
-- column best_there BOOLEAN: no other kernel of the trace agrees more strictly with the measured one.
CREATE MACRO ncu_pairs() AS TABLE
WITH in_trace AS (
    SELECT DISTINCT
        k.name,
        launch_shape(k.grid_x, k.grid_y, k.grid_z, k.block_x, k.block_y, k.block_z) AS shape,
        d.cc AS device_cc
    FROM kernels AS k
    LEFT JOIN device_cc() AS d
        ON d.rank = k.rank
        AND d.device = k.device
),
measured AS (
    SELECT DISTINCT
        kernel,
        launch_shape(grid_x, grid_y, grid_z, block_x, block_y, block_z) AS measured_shape,
        cc
    FROM ncu_launches
),
pairs AS (
    SELECT
        t.name,
        t.shape,
        t.device_cc,
        m.kernel,
        m.measured_shape,
        m.cc,
        CASE
            WHEN t.name = m.kernel THEN 1
            WHEN a.signature = b.signature THEN 2
            WHEN a.simplified = b.simplified THEN 3
            -- A bare name may be any instance of a template; two full names that differ are two kernels.
            WHEN a.is_bare OR b.is_bare THEN 4
        END AS tier,
        coalesce(t.device_cc = m.cc, true) AS fits
    FROM in_trace AS t
    JOIN kernel_name_forms AS a ON a.name = t.name
    JOIN kernel_name_forms AS b ON b.function = a.function
    JOIN measured AS m ON m.kernel = b.name
    WHERE coalesce(t.shape = m.measured_shape, true)
)
SELECT
    name,
    shape,
    device_cc,
    kernel,
    measured_shape,
    cc,
    ['exact', 'signature', 'simplified', 'function'][tier] AS match,
    fits,
    tier = min(tier) OVER (PARTITION BY name, shape, device_cc, fits) AS best_here,
    tier = min(tier) OVER (PARTITION BY kernel, measured_shape, cc, fits) AS best_there
FROM pairs
WHERE tier IS NOT NULL;

-- Which measurements belong to which kernel of the trace? Those of its one best pair, if that is the measured kernel's
-- one best pair too.
-- column name VARCHAR: kernel of the trace that has a pair.
-- column shape VARCHAR: its geometry.
-- column device_cc VARCHAR: compute capability of its device, NULL if not known.
-- column match VARCHAR: as in ncu_pairs; ambiguous: several pair; other_gpu: measured on another GPU; none: is another.
-- column kernel VARCHAR: measured kernel, NULL if it was not joined.
-- column measured_shape VARCHAR: its geometry.
-- column cc VARCHAR: compute capability where it was measured.
CREATE MACRO ncu_matches() AS TABLE
WITH counted AS (
    SELECT
        *,
        count(*) FILTER (best_here) OVER (PARTITION BY name, shape, device_cc, fits) AS candidates,
        count(DISTINCT (name, shape)) FILTER (best_there) OVER (PARTITION BY kernel, measured_shape, cc, fits) AS takers
    FROM ncu_pairs()
),
judged AS (
    SELECT
        name,
        shape,
        device_cc,
        {kernel: kernel, measured_shape: measured_shape, cc: cc} AS other,
        CASE
            WHEN NOT fits THEN 'other_gpu'
            WHEN candidates > 1 THEN 'ambiguous'
            WHEN NOT best_there THEN 'none'
            WHEN takers > 1 THEN 'ambiguous'
            ELSE match
        END AS match
    FROM counted
    WHERE best_here
    QUALIFY row_number() OVER (
        PARTITION BY name, shape, device_cc
        ORDER BY fits DESC, kernel, measured_shape, cc
    ) = 1
)
SELECT
    name,
    shape,
    device_cc,
    match,
    joined.kernel,
    joined.measured_shape,
    joined.cc
FROM (
    SELECT
        *,
        CASE WHEN match NOT IN ('ambiguous', 'other_gpu', 'none') THEN other END AS joined
    FROM judged
);

-- Every kernel of the trace by name and geometry, with what was measured of it (ncu_kernels). Join it to `kernels` by
-- rank, device, name, grid and block, with IS NOT DISTINCT FROM where the geometry may not be known.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column name VARCHAR: kernel of the trace.
-- column grid_x BIGINT: blocks, NULL where the trace does not say, as the next five.
-- column grid_y BIGINT: blocks.
-- column grid_z BIGINT: blocks.
-- column block_x BIGINT: threads.
-- column block_y BIGINT: threads.
-- column block_z BIGINT: threads.
-- column match VARCHAR: as in ncu_matches; none, too, without a pair.
-- column ncu_kernel VARCHAR: name under which it was measured; NULL, as all that follows, if it was not joined.
-- column cc VARCHAR: compute capability where it was measured.
-- column launches BIGINT: launches measured.
-- column duration_ns BIGINT: median duration under Nsight Compute, clocks locked and caches flushed by default.
-- column dram_bytes BIGINT: read and written.
-- column dram_read_bytes BIGINT: read.
-- column dram_write_bytes BIGINT: written.
-- column sm_throughput_pct DOUBLE: compute throughput in per cent of the peak.
-- column memory_throughput_pct DOUBLE: memory throughput in per cent of the peak.
-- column dram_throughput_pct DOUBLE: DRAM throughput in per cent of the peak.
-- column achieved_occupancy_pct DOUBLE: active warps in per cent of the most that fit.
-- column waves_per_sm DOUBLE: blocks of the grid by those that run at once.
-- column registers BIGINT: per thread.
-- column sm_frequency_hz DOUBLE: clock during the measurement.
-- column fp16_flops DOUBLE: half precision, outside tensor cores.
-- column fp32_flops DOUBLE: single precision.
-- column fp64_flops DOUBLE: double precision.
-- column tensor_ops DOUBLE: operations of tensor cores.
-- column tensor_pipe_pct DOUBLE: time in which tensor pipes were active.
CREATE VIEW kernel_counters AS
WITH in_trace AS (
    SELECT DISTINCT
        rank,
        device,
        name,
        grid_x,
        grid_y,
        grid_z,
        block_x,
        block_y,
        block_z
    FROM kernels
)
SELECT
    t.*,
    coalesce(j.match, 'none') AS match,
    j.kernel AS ncu_kernel,
    n.cc,
    n.* EXCLUDE (kernel, measured_shape, cc)
FROM in_trace AS t
LEFT JOIN device_cc() AS d
    ON d.rank = t.rank
    AND d.device = t.device
LEFT JOIN ncu_matches() AS j
    ON j.name = t.name
    AND j.shape IS NOT DISTINCT FROM launch_shape(t.grid_x, t.grid_y, t.grid_z, t.block_x, t.block_y, t.block_z)
    AND j.device_cc IS NOT DISTINCT FROM d.cc
LEFT JOIN ncu_kernels() AS n
    ON n.kernel = j.kernel
    AND n.measured_shape IS NOT DISTINCT FROM j.measured_shape
    AND n.cc IS NOT DISTINCT FROM j.cc
ORDER BY ALL;
