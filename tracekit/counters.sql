-- Hardware counters that Nsight Compute measured, beside the trace: docs/counters.md. All of this is empty unless files
-- were given (`--ncu`, `tracekit.open(..., ncu=...)`). Values are in base units: byte, ns, Hz, %, byte/s.

-- Launches that were measured. Filled by the Trace.
-- column launch BIGINT: number of the launch, over all files.
-- column file VARCHAR: where it was first met.
-- column kernel VARCHAR: its name, as Nsight Compute prints it.
-- column grid_x BIGINT: blocks; NULL in files of old versions, as the next five.
-- column grid_y BIGINT: blocks.
-- column grid_z BIGINT: blocks.
-- column block_x BIGINT: threads.
-- column block_y BIGINT: threads.
-- column block_z BIGINT: threads.
-- column device BIGINT: index of the device in the measured process.
-- column cc VARCHAR: compute capability of the device, such as 9.0; NULL in files of old versions.
CREATE TABLE ncu_launches (
    launch BIGINT NOT NULL,
    file VARCHAR NOT NULL,
    kernel VARCHAR NOT NULL,
    grid_x BIGINT,
    grid_y BIGINT,
    grid_z BIGINT,
    block_x BIGINT,
    block_y BIGINT,
    block_z BIGINT,
    device BIGINT,
    cc VARCHAR
);

-- What was measured of each launch. Filled by the Trace.
-- column launch BIGINT: the launch.
-- column metric VARCHAR: id of the metric, section/label where the details page prints a label whose id is not known.
-- column label VARCHAR: as the details page prints it, NULL of a raw page.
-- column unit VARCHAR: base unit, '' without one.
-- column value DOUBLE: in that unit.
CREATE TABLE ncu_readings (
    launch BIGINT NOT NULL,
    metric VARCHAR NOT NULL,
    label VARCHAR,
    unit VARCHAR NOT NULL,
    value DOUBLE NOT NULL
);

-- What was read of the files: values read = kept + skipped. Filled by the Trace.
-- column file VARCHAR: path as given.
-- column entry VARCHAR: launches, read, kept, skipped (values); other lines (around the table).
-- column reason VARCHAR: skipped: no value, text, repeated, rule, no metric; other lines: ncu, program; else ''.
-- column count BIGINT: how many.
CREATE TABLE ncu_ledger (
    file VARCHAR NOT NULL,
    entry VARCHAR NOT NULL,
    reason VARCHAR NOT NULL,
    count BIGINT NOT NULL
);

-- Metrics of the measured kernels, over all launches of one name, grid and block on one device.
-- column kernel VARCHAR: its name, as Nsight Compute prints it.
-- column grid_x BIGINT: blocks, NULL where not printed.
-- column grid_y BIGINT: blocks.
-- column grid_z BIGINT: blocks.
-- column block_x BIGINT: threads.
-- column block_y BIGINT: threads.
-- column block_z BIGINT: threads.
-- column device BIGINT: device in the measured process.
-- column cc VARCHAR: its compute capability.
-- column metric VARCHAR: id of the metric.
-- column label VARCHAR: as the details page prints it.
-- column unit VARCHAR: base unit.
-- column value DOUBLE: median over the launches.
-- column launches BIGINT: launches that have it.
-- column low DOUBLE: smallest value.
-- column high DOUBLE: largest value.
CREATE VIEW ncu_metrics AS
SELECT
    l.kernel,
    l.grid_x,
    l.grid_y,
    l.grid_z,
    l.block_x,
    l.block_y,
    l.block_z,
    l.device,
    l.cc,
    r.metric,
    min(r.label) AS label,
    r.unit,
    median(r.value) AS value,
    count(*) AS launches,
    min(r.value) AS low,
    max(r.value) AS high
FROM ncu_readings AS r
JOIN ncu_launches AS l ON l.launch = r.launch
GROUP BY ALL
ORDER BY ALL;

-- A launch geometry as one value, NULL if any of it is not known.
-- parameter gx BIGINT: blocks of the grid.
-- parameter gy BIGINT: blocks.
-- parameter gz BIGINT: blocks.
-- parameter tx BIGINT: threads of a block.
-- parameter ty BIGINT: threads.
-- parameter tz BIGINT: threads.
CREATE MACRO launch_shape(gx, gy, gz, tx, ty, tz) AS
    '(' || gx || ', ' || gy || ', ' || gz || ') (' || tx || ', ' || ty || ', ' || tz || ')';

-- Executions of one instruction by threads in a launch, as counted, or from what the roofline sections have: the rate
-- per cycle, cycles per second and the duration.
-- parameter metrics MAP: value by metric, of a launch.
-- parameter op VARCHAR: fadd, fmul, ffma, and with d and h for f.
CREATE MACRO ncu_instructions(metrics, op) AS coalesce(
    metrics['smsp__sass_thread_inst_executed_op_' || op || '_pred_on.sum'],
    metrics['sm__sass_thread_inst_executed_op_' || op || '_pred_on.sum'],
    metrics['smsp__sass_thread_inst_executed_op_' || op || '_pred_on.sum.per_cycle_elapsed']
    * metrics['smsp__cycles_elapsed.avg.per_second']
    * metrics['gpu__time_duration.sum']
    / 1e9
);

-- The measured kernels with what a roofline needs: medians over the launches of one name, geometry and compute
-- capability, whatever the device. NULL where it was not measured.
-- column kernel VARCHAR: its name, as Nsight Compute prints it.
-- column measured_shape VARCHAR: its geometry.
-- column cc VARCHAR: compute capability.
-- column launches BIGINT: launches measured.
-- column duration_ns BIGINT: under Nsight Compute: by default clocks are locked to base and caches flushed before it.
-- column dram_bytes BIGINT: read and written, else bandwidth times duration.
-- column dram_read_bytes BIGINT: read.
-- column dram_write_bytes BIGINT: written.
-- column sm_throughput_pct DOUBLE: compute throughput in per cent of the peak.
-- column memory_throughput_pct DOUBLE: memory throughput in per cent of the peak, of the busiest of L1, L2 and DRAM.
-- column dram_throughput_pct DOUBLE: DRAM throughput in per cent of the peak.
-- column achieved_occupancy_pct DOUBLE: active warps in per cent of the most that fit.
-- column waves_per_sm DOUBLE: blocks of the grid by those that run at once.
-- column registers BIGINT: per thread.
-- column sm_frequency_hz DOUBLE: clock during the measurement.
-- column fp16_flops DOUBLE: half precision, outside tensor cores: additions + multiplications + 2 times fused.
-- column fp32_flops DOUBLE: single precision.
-- column fp64_flops DOUBLE: double precision.
-- column tensor_ops DOUBLE: operations of tensor cores, of those pairs of types that were measured.
-- column tensor_pipe_pct DOUBLE: cycles with an active tensor pipe; of active cycles if only these were measured.
CREATE MACRO ncu_kernels() AS TABLE
WITH per_launch AS (
    SELECT
        l.launch,
        any_value(l.kernel) AS kernel,
        any_value(launch_shape(l.grid_x, l.grid_y, l.grid_z, l.block_x, l.block_y, l.block_z)) AS measured_shape,
        any_value(l.cc) AS cc,
        coalesce(
            map_from_entries(list((r.metric, r.value)) FILTER (r.metric IS NOT NULL)),
            MAP {}::MAP(VARCHAR, DOUBLE)
        ) AS m,
        sum(r.value) FILTER (
            regexp_matches(r.metric, '^sm__ops_path_tensor_src_[a-z0-9]+_dst_[a-z0-9]+\.sum$')
        ) AS tensor_ops
    FROM ncu_launches AS l
    LEFT JOIN ncu_readings AS r ON r.launch = l.launch
    GROUP BY l.launch
),
named AS (
    SELECT
        kernel,
        measured_shape,
        cc,
        tensor_ops,
        m['gpu__time_duration.sum'] AS duration_ns,
        coalesce(m['dram__bytes_read.sum'], m['dram__bytes_op_read.sum']) AS dram_read_bytes,
        coalesce(m['dram__bytes_write.sum'], m['dram__bytes_op_write.sum']) AS dram_write_bytes,
        coalesce(
            m['dram__bytes.sum'],
            m['dram__bytes_read.sum'] + m['dram__bytes_write.sum'],
            m['dram__bytes_op_read.sum'] + m['dram__bytes_op_write.sum'],
            m['dram__bytes.sum.per_second'] * m['gpu__time_duration.sum'] / 1e9
        ) AS dram_bytes,
        m['sm__throughput.avg.pct_of_peak_sustained_elapsed'] AS sm_throughput_pct,
        m['gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed'] AS memory_throughput_pct,
        coalesce(
            m['gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed'],
            m['dram__throughput.avg.pct_of_peak_sustained_elapsed']
        ) AS dram_throughput_pct,
        m['sm__warps_active.avg.pct_of_peak_sustained_active'] AS achieved_occupancy_pct,
        m['launch__waves_per_multiprocessor'] AS waves_per_sm,
        m['launch__registers_per_thread'] AS registers,
        coalesce(
            m['gpc__cycles_elapsed.avg.per_second'],
            m['sm__cycles_elapsed.avg.per_second'],
            m['smsp__cycles_elapsed.avg.per_second']
        ) AS sm_frequency_hz,
        ncu_instructions(m, 'hadd') + ncu_instructions(m, 'hmul') + 2 * ncu_instructions(m, 'hfma') AS fp16_flops,
        ncu_instructions(m, 'fadd') + ncu_instructions(m, 'fmul') + 2 * ncu_instructions(m, 'ffma') AS fp32_flops,
        ncu_instructions(m, 'dadd') + ncu_instructions(m, 'dmul') + 2 * ncu_instructions(m, 'dfma') AS fp64_flops,
        coalesce(
            m['sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed'],
            m['sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active']
        ) AS tensor_pipe_pct
    FROM per_launch
)
SELECT
    kernel,
    measured_shape,
    cc,
    count(*) AS launches,
    whole_number(median(duration_ns)) AS duration_ns,
    whole_number(median(dram_bytes)) AS dram_bytes,
    whole_number(median(dram_read_bytes)) AS dram_read_bytes,
    whole_number(median(dram_write_bytes)) AS dram_write_bytes,
    median(sm_throughput_pct) AS sm_throughput_pct,
    median(memory_throughput_pct) AS memory_throughput_pct,
    median(dram_throughput_pct) AS dram_throughput_pct,
    median(achieved_occupancy_pct) AS achieved_occupancy_pct,
    median(waves_per_sm) AS waves_per_sm,
    whole_number(median(registers)) AS registers,
    median(sm_frequency_hz) AS sm_frequency_hz,
    median(fp16_flops) AS fp16_flops,
    median(fp32_flops) AS fp32_flops,
    median(fp64_flops) AS fp64_flops,
    median(tensor_ops) AS tensor_ops,
    median(tensor_pipe_pct) AS tensor_pipe_pct
FROM named
GROUP BY
    kernel,
    measured_shape,
    cc;

-- What ncu's own rule SOLBottleneck (SpeedOfLight.py, 2022.3) says of a kernel: below the low bound in both throughputs
-- latency, or small_grid if there is less than one wave; underused if the waves, which tell these two, were not measured;
-- from the high bound on in either high_throughput; in between compute or memory, or balanced; unknown without both.
-- parameter sm_pct DOUBLE: compute throughput in per cent of the peak.
-- parameter memory_pct DOUBLE: memory throughput in per cent of the peak.
-- parameter waves DOUBLE: blocks of the grid by those that run at once.
-- parameter low BIGINT: per cent below which a throughput is low.
-- parameter high BIGINT: per cent from which on it is high.
-- parameter difference BIGINT: from which difference on, in between, the higher one is what binds.
CREATE MACRO ncu_class(sm_pct, memory_pct, waves, low, high, difference) AS CASE
    WHEN sm_pct IS NULL OR memory_pct IS NULL THEN 'unknown'
    WHEN greatest(sm_pct, memory_pct) >= high THEN 'high_throughput'
    WHEN greatest(sm_pct, memory_pct) < low
        THEN CASE
            WHEN waves IS NULL THEN 'underused'
            WHEN waves < 1 THEN 'small_grid'
            ELSE 'latency'
        END
    WHEN abs(sm_pct - memory_pct) < difference THEN 'balanced'
    WHEN sm_pct > memory_pct THEN 'compute'
    ELSE 'memory'
END;
