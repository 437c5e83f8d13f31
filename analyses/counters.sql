-- What did Nsight Compute (`--ncu`) measure of the kernels? One row per kernel in the scope by name and launch geometry,
-- measured or not, the costliest first; no rows if no measurements were given.
-- parameter low_pct BIGINT: below this in compute and memory, a kernel is bound by latency, or its grid is too small.
-- parameter high_pct BIGINT: from here on, either is highly used.
-- parameter difference_pct BIGINT: from this difference on, between them, the higher one is what binds.
-- threshold covered_share: share of the kernel time with counters, below which there is a finding.
-- threshold under_share: share of a device's kernel time under both roofs, from which on there is a finding.
-- threshold duration_ratio: time of a kernel under ncu to its time in the trace, beyond which it was another situation.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column kernel VARCHAR: name as recorded in the trace.
-- column grid VARCHAR: blocks, as (x, y, z), NULL if the trace does not say.
-- column block VARCHAR: threads.
-- column count BIGINT: launches in the trace.
-- column dur_ns BIGINT: sum of their durations within the scope.
-- column match VARCHAR: as in kernel_counters: how it was found among the measured, or why it was not joined.
-- column launches BIGINT: launches measured.
-- column dram_bytes BIGINT: bytes a launch reads from and writes to DRAM.
-- column sm_throughput_pct DOUBLE: compute throughput in per cent of the peak.
-- column memory_throughput_pct DOUBLE: memory throughput in per cent of the peak.
-- column dram_throughput_pct DOUBLE: DRAM throughput in per cent of the peak.
-- column achieved_occupancy_pct DOUBLE: active warps in per cent of the most that fit.
-- column waves_per_sm DOUBLE: blocks of the grid by those that run at once.
-- column ncu_class VARCHAR: high_throughput, compute, memory, balanced, latency, small_grid, underused; else unknown.
-- column duration_ratio DOUBLE: median duration under Nsight Compute by that in the trace.
-- column example_id BIGINT: its longest launch.
CREATE MACRO counters(low_pct := 60, high_pct := 80, difference_pct := 10) AS TABLE
WITH chosen AS (
    SELECT
        rank,
        device,
        name,
        grid_x,
        grid_y,
        grid_z,
        block_x,
        block_y,
        block_z,
        count(*) AS count,
        sum(scope_clip(ts + dur) - scope_clip(ts))::BIGINT AS dur_ns,
        median(dur) AS typical_ns,
        arg_max(id, (dur, -id)) AS example_id
    FROM kernels
    WHERE in_scope(rank, device, step)
        AND in_window(ts, dur)
        AND EXISTS (FROM ncu_launches)
    GROUP BY ALL
)
SELECT
    k.rank,
    k.device,
    k.name AS kernel,
    '(' || k.grid_x || ', ' || k.grid_y || ', ' || k.grid_z || ')' AS grid,
    '(' || k.block_x || ', ' || k.block_y || ', ' || k.block_z || ')' AS block,
    k.count,
    k.dur_ns,
    c.match,
    c.launches,
    c.dram_bytes,
    c.sm_throughput_pct,
    c.memory_throughput_pct,
    c.dram_throughput_pct,
    c.achieved_occupancy_pct,
    c.waves_per_sm,
    ncu_class(
        c.sm_throughput_pct,
        c.memory_throughput_pct,
        c.waves_per_sm,
        low_pct,
        high_pct,
        difference_pct
    ) AS ncu_class,
    c.duration_ns / nullif(k.typical_ns, 0) AS duration_ratio,
    k.example_id
FROM chosen AS k
JOIN kernel_counters AS c
    ON c.rank = k.rank
    AND c.device IS NOT DISTINCT FROM k.device
    AND c.name = k.name
    AND c.grid_x IS NOT DISTINCT FROM k.grid_x
    AND c.grid_y IS NOT DISTINCT FROM k.grid_y
    AND c.grid_z IS NOT DISTINCT FROM k.grid_z
    AND c.block_x IS NOT DISTINCT FROM k.block_x
    AND c.block_y IS NOT DISTINCT FROM k.block_y
    AND c.block_z IS NOT DISTINCT FROM k.block_z
ORDER BY
    k.rank,
    k.device,
    k.dur_ns DESC,
    k.name,
    grid,
    block;

-- Measured kernels that are no kernel of the trace: another name, another geometry, or another program.
-- column kernel VARCHAR: its name, as Nsight Compute prints it.
-- column shape VARCHAR: grid and block, NULL if not printed.
-- column launches BIGINT: launches measured.
CREATE MACRO unmatched_counters() AS TABLE
SELECT
    kernel,
    launch_shape(grid_x, grid_y, grid_z, block_x, block_y, block_z) AS shape,
    count(*) AS launches
FROM ncu_launches
WHERE (
    kernel,
    coalesce(launch_shape(grid_x, grid_y, grid_z, block_x, block_y, block_z), ''),
    coalesce(cc, '')
) NOT IN (SELECT (kernel, coalesce(measured_shape, ''), coalesce(cc, '')) FROM ncu_pairs() WHERE best_here)
GROUP BY ALL
ORDER BY ALL;
