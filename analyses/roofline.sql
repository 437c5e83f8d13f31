-- Which kernels does memory bind, which computing, which neither, and how far are they from it? One row for each kernel
-- and call signature on a device, the costliest first. The least time is that at what good kernels achieve of the peaks;
-- see docs/roofline.md.
-- parameter memory_compute_ratio DOUBLE: from this factor between the two least times on, the larger alone binds.
-- parameter near_roof DOUBLE: from this share of the achievable roof on, the roof is what binds.
-- parameter far_roof DOUBLE: below this share of it, a kernel that is short or leaves a part of the device empty is bound
--   by latency: a part of it is idle if there are fewer blocks than multiprocessors.
-- parameter short_ns BIGINT: mean time of a launch below which a kernel is short.
-- parameter above_roof DOUBLE: above this share of the datasheet's roof, the device, the shapes or the bytes are wrong.
-- threshold share: share of the busy time: findings on less are left out.
-- threshold covered_share: share of the busy time with evidence, below which there is a finding.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column kernel VARCHAR: name as recorded, of copies, too.
-- column op VARCHAR: the op that it runs for, NULL if none is recorded.
-- column shapes VARCHAR: dimensions of that op's inputs.
-- column dtypes VARCHAR: their types.
-- column launch VARCHAR: how it was started: graph (a replay), op (a call in an op), call (outside all), none (not
--   recorded: before the recording began, or lost).
-- column category VARCHAR: what the kernel is for, as in attribution.
-- column subcategory VARCHAR: which kind of it.
-- column count BIGINT: launches.
-- column steps BIGINT: serving steps that have it.
-- column dur_ns BIGINT: sum of durations within the scope.
-- column alone_ns BIGINT: the same without what overlaps earlier work of its stream; what rates are taken by.
-- column exclusive_ns BIGINT: time that is theirs alone on the device; adds up to its busy time.
-- column math VARCHAR: what computes: bf16, fp8, fp32, ...; NULL without operations.
-- column flops DOUBLE: floating-point operations of all launches; of an interval those expected.
-- column flops_low DOUBLE: at least.
-- column flops_high DOUBLE: at most.
-- column bytes DOUBLE: bytes of memory, compulsory ones or as measured; of an interval those expected.
-- column bytes_low DOUBLE: at least.
-- column bytes_high DOUBLE: at most.
-- column weight_bytes DOUBLE: those of weights.
-- column weight_bits BIGINT: bits of a weight as stored, 0 without.
-- column kv_bytes DOUBLE: those of keys and values of earlier tokens.
-- column link_bytes DOUBLE: bytes over links: of a collective by the convention of bus bandwidth.
-- column intensity DOUBLE: operations per byte.
-- column achieved_flops DOUBLE: operations per second.
-- column achieved_bandwidth DOUBLE: bytes per second; of communication that of the link.
-- column memory_ns DOUBLE: least time for the bytes.
-- column compute_ns DOUBLE: least time for the operations.
-- column roof_ns DOUBLE: the larger of both, launch by launch.
-- column roof_fraction DOUBLE: roof_ns by alone_ns.
-- column datasheet_fraction DOUBLE: the same with the peaks of the datasheet.
-- column bound VARCHAR: memory, compute, latency, communication, unknown.
-- column leaning VARCHAR: memory or compute, where bound does not say it; balanced where both are as near.
-- column evidence VARCHAR: A counters, B shapes, C shapes shared by several kernels, D from elsewhere, E metrics of the
--   device, F name and geometry alone, G bytes of a copy, NULL nothing.
-- column how VARCHAR: the same in words.
-- column notes VARCHAR: what was assumed, and what makes the figures doubtful; comma-separated.
-- column waves DOUBLE: blocks by how many run at once.
-- column problem VARCHAR: above roof where the figures cannot be right, else NULL.
-- column example_id BIGINT: the longest launch.
CREATE MACRO roofline(
    memory_compute_ratio := 1.3,
    near_roof := 0.6,
    far_roof := 0.4,
    short_ns := 10000,
    above_roof := 1.05
) AS TABLE
WITH grouped AS (
    SELECT
        rank,
        device,
        kernel,
        op,
        shapes,
        dtypes,
        launch,
        category,
        subcategory,
        count(*) AS count,
        count(DISTINCT step) AS steps,
        sum(dur)::BIGINT AS dur_ns,
        sum(alone_ns)::BIGINT AS alone_ns,
        sum(beside_ns)::BIGINT AS beside_ns,
        sum(exclusive_ns)::BIGINT AS exclusive_ns,
        math,
        sum(flops) AS flops,
        sum(flops_low) AS flops_low,
        sum(flops_high) AS flops_high,
        sum(bytes) AS bytes,
        sum(bytes_low) AS bytes_low,
        sum(bytes_high) AS bytes_high,
        sum(weight_bytes) AS weight_bytes,
        weight_bits,
        sum(kv_bytes) AS kv_bytes,
        sum(link_bytes) AS link_bytes,
        sum(memory_ns) AS memory_ns,
        sum(compute_ns) AS compute_ns,
        sum(roof_ns) AS roof_ns,
        sum(memory_high_ns) AS memory_high_ns,
        sum(compute_high_ns) AS compute_high_ns,
        sum(roof_high_ns) AS roof_high_ns,
        sum(datasheet_ns) AS datasheet_ns,
        sum(certain_ns) AS certain_ns,
        evidence,
        how,
        notes,
        avg(waves) AS waves,
        avg(blocks_per_sm) AS blocks_per_sm,
        mode(ncu_class) AS ncu_class,
        avg(sm_pct) AS sm_pct,
        avg(memory_pct) AS memory_pct,
        bool_or(over_links) AS over_links,
        avg(bytes) < any_value(l2_bytes) AS in_cache,
        arg_max(id, (dur, -id)) AS example_id
    FROM work_rows()
    GROUP BY ALL
),
rated AS (
    SELECT
        *,
        roof_ns / nullif(alone_ns, 0) AS roof_fraction,
        -- Of one that overlaps the one before for most of its time, nobody knows when it worked: only half is left out.
        CASE WHEN alone_ns > 0 THEN roof_ns / greatest(alone_ns, dur_ns / 2) END AS near_fraction,
        -- Keys of earlier tokens that nobody recorded have no upper end.
        CASE
            WHEN NOT contains(notes, 'key lengths not recorded') THEN roof_high_ns / nullif(alone_ns, 0)
        END AS fraction_high,
        datasheet_ns / nullif(alone_ns, 0) AS datasheet_fraction,
        certain_ns / nullif(alone_ns, 0) AS certain_fraction,
        -- It may have worked while the one before it ran: only more than all of its time is an error.
        certain_ns / nullif(dur_ns, 0) AS sure_fraction,
        coalesce(flops_high > 2 * flops OR bytes_high > 2 * bytes, false) AS is_wide,
        CASE
            -- No work at all is a lower bound that says nothing.
            WHEN coalesce(memory_high_ns, 0) = 0 AND coalesce(compute_high_ns, 0) = 0 THEN NULL
            -- Without a peak for its operations, only that it is near the memory's roof can be seen.
            WHEN compute_ns IS NULL THEN CASE WHEN memory_ns >= near_roof * alone_ns THEN 'memory' END
            WHEN memory_ns IS NULL THEN CASE WHEN compute_ns >= near_roof * alone_ns THEN 'compute' END
            -- Of work that may be far more than expected, only what holds at both ends.
            WHEN is_wide AND memory_ns < memory_compute_ratio * compute_high_ns
                AND compute_ns < memory_compute_ratio * memory_high_ns THEN NULL
            WHEN memory_ns >= memory_compute_ratio * compute_ns THEN 'memory'
            WHEN compute_ns >= memory_compute_ratio * memory_ns THEN 'compute'
            ELSE 'balanced'
        END AS side,
        CASE WHEN memory_ns >= coalesce(compute_ns, 0) THEN 'memory' ELSE 'compute' END AS larger,
        beside_ns > 0.1 * alone_ns AS is_overlapped,
        blocks_per_sm < 1 OR dur_ns < short_ns * count AS is_small
    FROM grouped
),
judged AS (
    SELECT
        *,
        CASE WHEN sure_fraction > above_roof THEN 'above roof' END AS problem,
        certain_fraction > above_roof AND sure_fraction <= above_roof AS worked_early,
        datasheet_fraction > above_roof AND certain_fraction <= above_roof AS did_less,
        CASE
            WHEN over_links THEN 'communication'
            -- Nor is there a verdict where only what was expected, not what is certain, is more than can be.
            WHEN greatest(sure_fraction, certain_fraction, datasheet_fraction) > above_roof THEN 'unknown'
            WHEN ncu_class IN ('latency', 'small_grid', 'underused') THEN 'latency'
            WHEN ncu_class IN ('memory', 'compute') THEN ncu_class
            WHEN ncu_class IN ('high_throughput', 'balanced')
                THEN CASE WHEN memory_pct >= sm_pct THEN 'memory' ELSE 'compute' END
            WHEN side = 'balanced' AND near_fraction >= near_roof THEN larger
            WHEN near_fraction >= near_roof THEN side
            -- Beside work of other streams it has only a part of the device: that it is slow says nothing.
            WHEN fraction_high < far_roof AND side IS NOT NULL AND is_small AND NOT is_overlapped THEN 'latency'
            ELSE 'unknown'
        END AS bound
    FROM rated
)
SELECT
    rank,
    device,
    kernel,
    op,
    shapes,
    dtypes,
    launch,
    category,
    subcategory,
    count,
    steps,
    dur_ns,
    alone_ns,
    exclusive_ns,
    math,
    flops,
    flops_low,
    flops_high,
    bytes,
    bytes_low,
    bytes_high,
    weight_bytes,
    weight_bits,
    kv_bytes,
    link_bytes,
    flops / nullif(bytes, 0) AS intensity,
    1e9 * flops / nullif(alone_ns, 0) AS achieved_flops,
    1e9 * CASE WHEN over_links THEN nullif(link_bytes, 0) ELSE bytes END / nullif(alone_ns, 0) AS achieved_bandwidth,
    memory_ns,
    compute_ns,
    roof_ns,
    roof_fraction,
    datasheet_fraction,
    bound,
    CASE
        WHEN over_links OR problem IS NOT NULL THEN NULL
        WHEN ncu_class = 'balanced' OR (side = 'balanced' AND bound IN ('memory', 'compute')) THEN 'balanced'
        WHEN bound IN ('memory', 'compute') THEN NULL
        ELSE coalesce(CASE WHEN memory_pct >= sm_pct THEN 'memory' WHEN sm_pct > memory_pct THEN 'compute' END, side)
    END AS leaning,
    evidence,
    how,
    nullif(
        concat_ws(
            ', ',
            nullif(notes, ''),
            CASE WHEN is_overlapped AND evidence <> 'G' THEN 'beside other streams' END,
            CASE WHEN worked_early THEN 'worked while the one before ran' END,
            CASE WHEN is_wide THEN 'may be far more' END,
            CASE WHEN did_less THEN 'did less than expected' END,
            CASE WHEN in_cache AND problem IS NOT NULL THEN 'its bytes fit in the cache' END
        ),
        ''
    ) AS notes,
    waves,
    problem,
    example_id
FROM judged
ORDER BY
    rank,
    device,
    exclusive_ns DESC,
    alone_ns DESC,
    kernel,
    op,
    shapes,
    dtypes,
    math,
    evidence,
    how,
    notes;
