-- Which kernels could be one, and what would that win? One row for each pattern in the steps of a phase and batch size
-- on a device; of a device and phase what is open first, in the order in which savings were estimated, each on top of
-- those above it. All times and bytes are of one step. See docs/fusion.md.
-- threshold kernel_floor_ns: least time of any kernel.
-- threshold cache_speedup: how much faster than memory the cache may have served what a fusion no longer reads.
-- threshold cache_share: share of the cache up to which data may still have been in it.
-- threshold finding_share: share of the step won at best, from which on there is a finding.
-- threshold warning_share: share won at worst, from which on it is more than a remark.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column phase VARCHAR: as in steps.
-- column bucket VARCHAR: batch size, as in steps.
-- column steps BIGINT: steps of that kind.
-- column pattern VARCHAR: name in fusion_patterns.toml.
-- column kernels VARCHAR: the kernels that run one after another, "a -> b"; of several sequences the most frequent.
-- column count BIGINT: times that they do in a step.
-- column time_ns BIGINT: time of these kernels.
-- column bytes_removed BIGINT: bytes that would not go to memory and back; NULL where shapes do not tell.
-- column saving_low_ns BIGINT: what one kernel instead wins at least, on top of the rows above; NULL without estimate.
-- column saving_high_ns BIGINT: at most.
-- column error DOUBLE: how far the replay of an unchanged step is off, as a share of it.
-- column grade VARCHAR: how sure it is that one reads what the other wrote: A the op says where it writes, B shapes and
--   types fit, C they follow each other; '' without any.
-- column state VARCHAR: candidate; partly active (the fused kernel runs elsewhere); active (everywhere: nothing to
--   win);
--   not fusible (listed alone).
-- column remark VARCHAR: what was seen: fused kernels and how often, why there is no estimate.
-- column example_id BIGINT: the first of the kernels, once; NULL without any.
CREATE MACRO fusion() AS TABLE
SELECT
    rank,
    device,
    phase,
    bucket,
    steps,
    pattern,
    kernels,
    count,
    time_ns,
    bytes_removed,
    saving_low_ns,
    saving_high_ns,
    error,
    grade,
    state,
    remark,
    example_id
FROM fusion_table
ORDER BY place;
