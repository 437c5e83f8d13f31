-- Where does the busy time go? One row per device, category and phase in the scope; time that several rows cover is
-- given to the one that started first, so exclusive_ns adds up to the busy time (see busy_segments).
-- threshold other_share: share of a device's busy time in no category, above which there is a finding.
-- threshold pointwise_share: the same of elementwise work and the like.
-- threshold memory_share: the same of copies.
-- threshold missing_share: share of launches without device work, or of device rows without an end, above which no idle
--                          time is told.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column phase VARCHAR: phase of the serving step that launched the work: prefill, decode, mixed, verify, draft, unknown.
-- column category VARCHAR: what the work is for: attention, gemm, communication, ..., memory (copies), other.
-- column subcategory VARCHAR: which kind of it, '' where the rules do not say.
-- column count BIGINT: rows.
-- column total_ns BIGINT: sum of durations; above exclusive_ns where work overlaps.
-- column exclusive_ns BIGINT: time that is theirs alone.
-- column share DOUBLE: exclusive_ns as a part of the device's busy time, 0 to 1.
CREATE MACRO attribution() AS TABLE
SELECT
    c.rank,
    c.device,
    coalesce(s.phase, 'unknown') AS phase,
    c.category,
    c.subcategory,
    count(*) AS count,
    sum(c.dur)::BIGINT AS total_ns,
    sum(c.exclusive_ns)::BIGINT AS exclusive_ns,
    coalesce(
        sum(c.exclusive_ns)::DOUBLE / nullif(sum(sum(c.exclusive_ns)) OVER (PARTITION BY c.rank, c.device), 0)::DOUBLE,
        0
    ) AS share
FROM classified_segments() AS c
LEFT JOIN steps AS s
    ON s.rank = c.rank
    AND s.step = c.step
GROUP BY
    c.rank,
    c.device,
    coalesce(s.phase, 'unknown'),
    c.category,
    c.subcategory
ORDER BY
    c.rank,
    c.device,
    exclusive_ns DESC,
    phase,
    c.category,
    c.subcategory;

-- Host ops in the scope, with the time that is theirs alone: an op's duration without the ops inside it.
-- column id BIGINT: the op.
-- column rank INTEGER: rank.
-- column name VARCHAR: as recorded.
-- column phase VARCHAR: phase of the serving step around it, else unknown.
-- column category VARCHAR: by the op's name.
-- column subcategory VARCHAR: which kind of it.
-- column dur BIGINT: length within the scope.
-- column exclusive_ns BIGINT: time that is its alone.
CREATE MACRO host_segments() AS TABLE
WITH RECURSIVE climb AS (
    -- From each row that is no op but encloses one directly, up to the op around it.
    SELECT DISTINCT
        p.id AS start_id,
        p.parent_id AS at_id
    FROM ops AS o
    JOIN events AS p ON p.id = o.parent_id
    WHERE p.kind <> 'op'
    UNION ALL
    SELECT
        c.start_id,
        p.parent_id
    FROM climb AS c
    JOIN events AS p ON p.id = c.at_id
    WHERE p.kind <> 'op'
),
cut AS (
    SELECT
        * REPLACE (scope_clip(ts + dur) - scope_clip(ts) AS dur),
        in_scope(rank, NULL, step) AND in_window(ts, dur) AS chosen
    FROM ops
),
inner_time AS (
    SELECT
        coalesce(c.at_id, o.parent_id) AS outer_id,
        sum(o.dur) AS ns
    FROM cut AS o
    LEFT JOIN (SELECT c.* FROM climb AS c JOIN ops AS a ON a.id = c.at_id) AS c ON c.start_id = o.parent_id
    GROUP BY outer_id
)
SELECT
    o.id,
    o.rank,
    o.name,
    coalesce(s.phase, 'unknown') AS phase,
    coalesce(c.category, 'other') AS category,
    coalesce(c.subcategory, '') AS subcategory,
    o.dur,
    greatest(0, o.dur - coalesce(i.ns, 0))::BIGINT AS exclusive_ns
FROM cut AS o
LEFT JOIN steps AS s
    ON s.rank = o.rank
    AND s.step = o.step
LEFT JOIN inner_time AS i ON i.outer_id = o.id
LEFT JOIN kernel_classes AS c
    ON c.kind = 'op'
    AND c.name = o.name
WHERE o.chosen;

-- attribution for a trace without device activity: where does the time of the host's ops go?
-- column rank INTEGER: rank.
-- column device BIGINT: NULL, as nothing here is device time.
-- column phase VARCHAR: phase of the serving step around the op.
-- column category VARCHAR: by the op's name.
-- column subcategory VARCHAR: which kind of it.
-- column count BIGINT: ops.
-- column total_ns BIGINT: sum of durations; ops inside ops count again.
-- column exclusive_ns BIGINT: time that is theirs alone; threads add up.
-- column share DOUBLE: exclusive_ns as a part of all op time of the rank, 0 to 1.
CREATE MACRO host_attribution() AS TABLE
SELECT
    rank,
    NULL::BIGINT AS device,
    phase,
    category,
    subcategory,
    count(*) AS count,
    sum(dur)::BIGINT AS total_ns,
    sum(exclusive_ns)::BIGINT AS exclusive_ns,
    coalesce(
        sum(exclusive_ns)::DOUBLE / nullif(sum(sum(exclusive_ns)) OVER (PARTITION BY rank), 0)::DOUBLE,
        0
    ) AS share
FROM host_segments()
GROUP BY
    rank,
    phase,
    category,
    subcategory
ORDER BY
    rank,
    exclusive_ns DESC,
    phase,
    category,
    subcategory;
