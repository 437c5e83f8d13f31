-- What does communication between devices cost, and why?

-- Which collective a name means: one that PyTorch records, that of an op, or of a kernel; 'other' if it tells none. Of
-- recorded names it says what work_collective.kind_of says.
-- parameter plain VARCHAR: the name in lower case, without underscores.
CREATE MACRO collective_kind(plain) AS CASE
    WHEN contains(plain, 'reducescatter') THEN 'reduce_scatter'
    WHEN contains(plain, 'allreduce') THEN 'all_reduce'
    WHEN contains(plain, 'allgather') THEN 'all_gather'
    WHEN regexp_matches(plain, 'alltoall|a2a') THEN 'all_to_all'
    WHEN regexp_matches(plain, 'crossdevicereduce|quickreduce|(one|two)shot|userbuffers') THEN 'all_reduce'
    WHEN regexp_matches(plain, '(^|kernel|:)broadcast') THEN 'broadcast'
    WHEN regexp_matches(plain, '(^|kernel|:)gather') THEN 'gather'
    WHEN regexp_matches(plain, '(^|kernel|:)scatter') THEN 'scatter'
    WHEN regexp_matches(plain, '(^|kernel|:)reduce') THEN 'reduce'
    WHEN regexp_matches(plain, '(^|kernel|:)(send|recv)') THEN 'send'
    WHEN contains(plain, 'dispatch') THEN 'dispatch'
    WHEN contains(plain, 'combine') THEN 'combine'
    ELSE 'other'
END;

-- Kernels that communicate, with what was recorded of each. Not filtered by the scope.
-- column id BIGINT: the kernel.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column step INTEGER: serving step that launched it, NULL outside steps.
-- column name VARCHAR: as recorded.
-- column ts BIGINT: start.
-- column dur BIGINT: length.
-- column group_name VARCHAR: process group, NULL where not recorded, as the next three.
-- column group_ranks VARCHAR: its ranks as recorded; the profiler shortens long lists.
-- column group_size BIGINT: ranks in it.
-- column dtype VARCHAR: element type as recorded.
-- column collective VARCHAR: as collective_kind has it, by what was recorded, else by the ops around it, else by name.
-- column subcategory VARCHAR: collective (of a library), custom_allreduce, fused_norm, dispatch_combine, ...
-- column elements BIGINT: elements that a rank gives, NULL where not recorded.
-- column bytes BIGINT: their bytes, of an all-reduce also by the shapes of its op; NULL where not known.
-- column message BIGINT: bytes of the larger side.
-- column link_bytes BIGINT: what the links carry by the convention of bus bandwidth (work_collective.py); NULL where size
--   or ranks are not known.
CREATE MACRO communication_kernels() AS TABLE
WITH found AS (
    SELECT
        k.id,
        k.rank,
        k.device,
        k.step,
        k.name,
        k.ts,
        k.dur,
        coalesce(k.group_name, o.group_name) AS group_name,
        CASE WHEN json_valid(o.args) THEN o.args ->> '$."Process Group Ranks"' END AS group_ranks,
        coalesce(k.group_size, o.group_size) AS group_size,
        coalesce(k.comm_dtype, o.comm_dtype) AS dtype,
        list_transform(
            [coalesce(k.collective, o.collective), o.name, p.name, k.name],
            lambda one: collective_kind(replace(lower(one), '_', ''))
        ) AS kinds,
        c.subcategory,
        coalesce(k.elements_in, o.elements_in) AS given,
        coalesce(k.elements_out, o.elements_out) AS taken
    FROM kernels AS k
    LEFT JOIN ops AS o ON o.id = k.op_id
    LEFT JOIN ops AS p ON p.id = o.parent_id
    JOIN kernel_classes AS c
        ON c.kind = 'kernel'
        AND c.name = k.name
        AND c.op_name = coalesce(o.name, '')
        AND c.category = 'communication'
)
SELECT
    f.* EXCLUDE (kinds, subcategory, given, taken),
    coalesce(
        list_filter(f.kinds, lambda kind: kind <> 'other')[1],
        CASE WHEN f.subcategory IN ('custom_allreduce', 'fused_norm') THEN 'all_reduce' ELSE 'other' END
    ) AS collective,
    f.subcategory,
    f.given AS elements,
    -- Memory is read for what is given and written for what is taken: each has its part by its elements.
    CASE
        WHEN f.given::HUGEINT + f.taken > 0 THEN (w.bytes * f.given::HUGEINT // (f.given::HUGEINT + f.taken))::BIGINT
        WHEN collective = 'all_reduce' THEN w.bytes // 2
    END AS bytes,
    CASE
        WHEN f.given::HUGEINT + f.taken > 0
            THEN (w.bytes * greatest(f.given, f.taken)::HUGEINT // (f.given::HUGEINT + f.taken))::BIGINT
        WHEN collective = 'all_reduce' THEN w.bytes // 2
    END AS message,
    nullif(w.link_bytes, 0) AS link_bytes
FROM found AS f
LEFT JOIN row_work() AS w ON w.id = f.id;

-- Which kernels are one collective on several ranks? Those of one group, kind, type and size, in their order: a group
-- works one after the other. Where no group was recorded it is all ranks of the job, unless smaller groups are there. Not
-- filtered by the scope: who looks at one rank asks for whom it waits.
-- parameter max_skew_ns BIGINT: by so much clocks of ranks may differ.
-- column id BIGINT: the kernel.
-- column state VARCHAR: matched, or why it is not: kind (no rank has to wait for all others), group (its ranks are not
--   known), ranks (not all are in the trace), order (their sequences differ), clocks (these differ too much), edge (it
--   ended before all ranks were recorded, or began when one no longer was).
-- column last_ts BIGINT: start of the last rank's, NULL unless matched, as the next.
-- column last_rank INTEGER: that rank.
-- column skew_ns BIGINT: by how much the ends differ from rank to rank, by their medians; NULL unless they were compared.
CREATE MACRO matched_collectives(max_skew_ns := 20000) AS TABLE
WITH said AS MATERIALIZED (
    SELECT
        *,
        -- Sides of other collectives may differ from rank to rank. Without a group, each kernel by its name.
        dense_rank() OVER (
            ORDER BY
                group_name,
                group_ranks,
                collective,
                dtype,
                CASE WHEN collective = 'all_reduce' THEN elements END,
                CASE WHEN group_name IS NULL THEN name END
        ) AS series
    FROM communication_kernels()
),
job AS (
    SELECT
        CASE
            WHEN count(world_size) = count(*)
                AND NOT EXISTS (FROM said WHERE group_size > 1 AND group_size < (SELECT max(world_size) FROM ranks))
                THEN max(world_size)
        END AS size
    FROM ranks
),
common AS (
    SELECT
        series,
        count(*) AS ranks,
        max(first_ts) AS from_ts,
        min(last_end) AS to_ts
    FROM (SELECT series, rank, device, min(ts) AS first_ts, max(ts + dur) AS last_end FROM said GROUP BY ALL)
    GROUP BY series
),
placed AS MATERIALIZED (
    SELECT
        s.*,
        s.ts + s.dur AS end_ts,
        CASE WHEN s.group_name IS NULL THEN (SELECT size FROM job) ELSE s.group_size END AS size,
        c.ranks,
        s.ts + s.dur > c.from_ts AND s.ts < c.to_ts AS is_common,
        count(*) FILTER (is_common) OVER (PARTITION BY s.series, s.rank, s.device ORDER BY s.ts, s.id) AS number
    FROM said AS s
    JOIN common AS c ON c.series = s.series
),
met AS MATERIALIZED (
    SELECT
        *,
        max(ts) OVER (PARTITION BY series, number) AS last_ts,
        arg_max(rank, (ts, rank)) OVER (PARTITION BY series, number) AS last_rank,
        min(end_ts) OVER (PARTITION BY series, number) AS first_end
    FROM placed
    WHERE is_common
),
compared AS (
    SELECT
        series,
        count(DISTINCT numbers) = 1 AS is_even,
        -- All must be in it at one time, and leave it together: at least as nearly as clocks may differ.
        max(late_ns) - min(late_ns) AS skew_ns,
        greatest(skew_ns, max(apart_ns)) AS apart_ns
    FROM (
        SELECT
            series,
            count(*) AS numbers,
            quantile_disc(end_ts - first_end, 0.5) AS late_ns,
            max(last_ts - first_end) AS apart_ns
        FROM met
        GROUP BY
            series,
            rank,
            device
    )
    GROUP BY series
)
SELECT
    p.id,
    CASE
        WHEN p.collective NOT IN ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all') THEN 'kind'
        WHEN p.size IS NULL OR p.ranks > p.size THEN 'group'
        WHEN p.ranks < p.size THEN 'ranks'
        WHEN NOT p.is_common THEN 'edge'
        WHEN NOT c.is_even THEN 'order'
        WHEN c.apart_ns > max_skew_ns THEN 'clocks'
        ELSE 'matched'
    END AS state,
    CASE WHEN state = 'matched' THEN m.last_ts END AS last_ts,
    CASE WHEN state = 'matched' THEN m.last_rank END AS last_rank,
    CASE WHEN state IN ('matched', 'clocks') THEN c.skew_ns END AS skew_ns
FROM placed AS p
LEFT JOIN met AS m ON m.id = p.id
LEFT JOIN compared AS c ON c.series = p.series;

-- Kernels in the scope that communicate, with their time: what of it other work covers, and what is waiting.
-- parameter max_skew_ns BIGINT: by so much clocks of ranks may differ.
-- column id BIGINT: the kernel.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column step INTEGER: serving step that launched it, NULL outside steps.
-- column phase VARCHAR: phase of that step, else unknown.
-- column group_name VARCHAR: as in communication_kernels, as the next six.
-- column group_size BIGINT: ranks in it.
-- column collective VARCHAR: which one.
-- column subcategory VARCHAR: whose kernel.
-- column dtype VARCHAR: element type.
-- column bytes BIGINT: what a rank gives.
-- column message BIGINT: bytes of the larger side.
-- column message_to BIGINT: the same to the next power of two.
-- column link_bytes BIGINT: what the links carry; NULL also of one that the window cuts.
-- column dur BIGINT: length within the scope.
-- column alone_ns BIGINT: what of it comes after earlier communication of the device.
-- column exposed_ns BIGINT: what of alone_ns no other work of the device covers.
-- column wait_ns BIGINT: up to the start of the last rank's; NULL where that cannot be told.
-- column exposed_wait_ns BIGINT: what of exposed_ns lies before that.
-- column state VARCHAR: as in matched_collectives, as the next two.
-- column last_rank INTEGER: the rank that came last.
-- column skew_ns BIGINT: by how much clocks seem to differ.
CREATE MACRO collective_calls(max_skew_ns := 20000) AS TABLE
WITH met AS MATERIALIZED (
    SELECT
        c.*,
        m.* EXCLUDE (id),
        max(c.ts + c.dur) OVER earlier AS communicated_until
    FROM communication_kernels() AS c
    JOIN matched_collectives(max_skew_ns := max_skew_ns) AS m ON m.id = c.id
    WINDOW earlier AS (
        PARTITION BY c.rank, c.device
        ORDER BY c.ts, c.dur DESC, c.id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
),
cut AS MATERIALIZED (
    SELECT
        *,
        least(greatest(from_ts, until_ts), to_ts) AS own_ts,
        CASE WHEN state = 'matched' THEN least(greatest(from_ts, last_cut_ts), to_ts) END AS met_ts
    FROM (
        SELECT
            *,
            scope_clip(ts) AS from_ts,
            scope_clip(ts + dur) AS to_ts,
            scope_clip(coalesce(communicated_until, ts)) AS until_ts,
            scope_clip(last_ts) AS last_cut_ts
        FROM met
        WHERE in_scope(rank, device, step)
            AND in_window(ts, dur)
    )
),
others AS (
    SELECT
        rank,
        device,
        greatest(ts, coalesce(max(ts + dur) OVER earlier, ts)) AS ts,
        ts + dur AS end_ts
    FROM device_activity
    WHERE id NOT IN (SELECT id FROM met)
    WINDOW earlier AS (
        PARTITION BY rank, device
        ORDER BY ts, dur DESC, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
),
-- Other work as times that do not overlap, and how much of it lies before each.
pieces AS MATERIALIZED (
    SELECT
        *,
        sum(end_ts - ts) OVER (PARTITION BY rank, device ORDER BY ts) - (end_ts - ts) AS before_ns
    FROM others
    WHERE end_ts > ts
),
moments AS (
    SELECT
        id,
        rank,
        device,
        unnest(['own', 'met', 'to']) AS moment,
        unnest([own_ts, greatest(own_ts, coalesce(met_ts, own_ts)), to_ts]) AS ts
    FROM cut
),
covered AS (
    SELECT
        m.id,
        sum(p.before_ns + least(m.ts, p.end_ts) - p.ts) FILTER (m.moment = 'own') AS own_ns,
        sum(p.before_ns + least(m.ts, p.end_ts) - p.ts) FILTER (m.moment = 'met') AS met_ns,
        sum(p.before_ns + least(m.ts, p.end_ts) - p.ts) FILTER (m.moment = 'to') AS to_ns
    FROM moments AS m
    ASOF JOIN pieces AS p
        ON p.rank = m.rank
        AND p.device IS NOT DISTINCT FROM m.device
        AND p.ts <= m.ts
    GROUP BY m.id
)
SELECT
    c.id,
    c.rank,
    c.device,
    c.step,
    coalesce(s.phase, 'unknown') AS phase,
    c.group_name,
    c.group_size,
    c.collective,
    c.subcategory,
    c.dtype,
    c.bytes,
    c.message,
    CASE
        WHEN c.message IN (0, 1) THEN c.message
        WHEN c.message BETWEEN 2 AND 1::BIGINT << 60 THEN 1::BIGINT << length(bin(c.message - 1))
    END AS message_to,
    CASE WHEN c.to_ts - c.from_ts = c.dur THEN c.link_bytes END AS link_bytes,
    c.to_ts - c.from_ts AS dur,
    c.to_ts - c.own_ts AS alone_ns,
    (c.to_ts - c.own_ts - coalesce(h.to_ns, 0) + coalesce(h.own_ns, 0))::BIGINT AS exposed_ns,
    c.met_ts - c.from_ts AS wait_ns,
    CASE
        WHEN c.met_ts IS NOT NULL
            THEN greatest(c.met_ts, c.own_ts) - c.own_ts - coalesce(h.met_ns, 0) + coalesce(h.own_ns, 0)
    END::BIGINT AS exposed_wait_ns,
    c.state,
    c.last_rank,
    c.skew_ns
FROM cut AS c
LEFT JOIN covered AS h ON h.id = c.id
LEFT JOIN steps AS s
    ON s.rank = c.rank
    AND s.step = c.step;

-- What communication costs in the scope: one row for each kind, group and size of messages on a device, in each phase.
-- Kernels are looked at, in graphs or not; a replay that was recorded as one block may hold communication that nobody
-- sees. Where all ranks of a group are in the trace and their clocks compare, time is split into waiting for the last
-- one and transfer.
-- parameter max_skew_ns BIGINT: by so much clocks of ranks may differ; beyond, waiting cannot be told.
-- threshold exposed_share: share of the step time in which nothing else runs, from which on there is a finding.
-- threshold critical_share: share from which on it is critical, as waiting is.
-- threshold finding_share: share of the step time of one cause alone, from which on there is a finding.
-- threshold last_share: share of the waiting that is for one rank, from which on that is named.
-- threshold small_bytes: messages up to this size are small.
-- threshold latency_share: share of the links' peak below which latency binds small messages.
-- threshold bandwidth_share: the same below which larger ones are slow.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column phase VARCHAR: phase of the serving step that launched it: prefill, decode, mixed, verify, draft, unknown.
-- column group VARCHAR: process group as recorded, NULL where it was not.
-- column group_size BIGINT: ranks in it, NULL where not recorded.
-- column collective VARCHAR: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, send
--   (and receive), dispatch, combine, other.
-- column subcategory VARCHAR: as in attribution: collective (of a library), custom_allreduce, fused_norm, ...
-- column dtype VARCHAR: element type as recorded.
-- column message_to BIGINT: bytes of the larger side of a message, to the next power of two; NULL where not recorded.
-- column count BIGINT: kernels.
-- column bytes BIGINT: what the rank gave, all of them together; NULL where one of them is not known.
-- column total_ns BIGINT: sum of durations.
-- column alone_ns BIGINT: the same without what earlier communication of the device covers; adds up to the time in which
--   it communicates.
-- column exposed_ns BIGINT: what of alone_ns no other work of the device covers.
-- column matched BIGINT: kernels of which all ranks are in the trace, on comparable clocks: the next three are of these.
-- column wait_ns BIGINT: from their start to that of the last rank; NULL where it cannot be told.
-- column exposed_wait_ns BIGINT: what of exposed_ns is such waiting; NULL where it cannot be told.
-- column transfer_ns BIGINT: the rest of their time; NULL where it cannot be told.
-- column bus_bandwidth DOUBLE: bytes per second by the convention of nccl-tests, NULL where size or ranks are not known.
-- column bandwidth_over VARCHAR: transfer (by transfer_ns) or total (by total_ns, which has waiting in it: a lower bound).
-- column example_id BIGINT: the longest.
CREATE MACRO communication(max_skew_ns := 20000) AS TABLE
SELECT
    rank,
    device,
    phase,
    group_name AS "group",
    group_size,
    collective,
    subcategory,
    dtype,
    message_to,
    count(*) AS count,
    CASE WHEN count(bytes) = count(*) THEN TRY_CAST(sum(bytes) AS BIGINT) END AS bytes,
    sum(dur)::BIGINT AS total_ns,
    sum(alone_ns)::BIGINT AS alone_ns,
    sum(exposed_ns)::BIGINT AS exposed_ns,
    count(wait_ns) AS matched,
    sum(wait_ns)::BIGINT AS wait_ns,
    sum(exposed_wait_ns)::BIGINT AS exposed_wait_ns,
    sum(dur - wait_ns)::BIGINT AS transfer_ns,
    1e9 * CASE
        WHEN count(wait_ns) > 0
            THEN sum(link_bytes) FILTER (wait_ns IS NOT NULL)
                / nullif(sum(dur - wait_ns) FILTER (link_bytes IS NOT NULL), 0)
        ELSE sum(link_bytes) / nullif(sum(dur) FILTER (link_bytes IS NOT NULL), 0)
    END AS bus_bandwidth,
    CASE WHEN bus_bandwidth IS NULL THEN NULL WHEN count(wait_ns) > 0 THEN 'transfer' ELSE 'total' END AS bandwidth_over,
    arg_max(id, (dur, -id)) AS example_id
FROM collective_calls(max_skew_ns := max_skew_ns)
GROUP BY ALL
ORDER BY
    rank,
    device,
    exposed_ns DESC,
    total_ns DESC,
    example_id;
