-- How long device rows worked by themselves, and how much of the device their blocks fill.

-- A number that can be a count or a size, as recorded; NULL if it is none, or not above zero. Exact enough, and no product
-- of such numbers is too large.
-- parameter value VARCHAR: as recorded.
CREATE MACRO plausible(value) AS CASE WHEN TRY_CAST(value AS DOUBLE) BETWEEN 1 AND 1e18 THEN TRY_CAST(value AS DOUBLE) END;

-- What a device's multiprocessors hold at once, where the trace says.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column sms DOUBLE: multiprocessors.
-- column threads DOUBLE: threads of one.
-- column registers DOUBLE: registers of one.
-- column shared_memory DOUBLE: bytes of shared memory of one.
CREATE MACRO device_limits() AS TABLE
SELECT
    rank,
    device,
    plausible(properties ->> '$.numSms') AS sms,
    plausible(properties ->> '$.maxThreadsPerMultiprocessor') AS threads,
    plausible(properties ->> '$.regsPerMultiprocessor') AS registers,
    coalesce(
        plausible(properties ->> '$.sharedMemPerMultiprocessor'),
        plausible(properties ->> '$.maxSharedMemoryPerMultiProcessor')
    ) AS shared_memory
FROM device_descriptions();

-- Blocks of a kernel by multiprocessors: below 1, some of these have nothing to do, whatever the kernel needs of one. A
-- persistent kernel has one for each, and less than a wave. NULL where the trace does not say.
-- parameter k STRUCT: a kernel.
-- parameter d STRUCT: a row of device_limits.
CREATE MACRO blocks_per_sm(k, d) AS plausible(k.grid_x) * plausible(k.grid_y) * plausible(k.grid_z) / d.sms;

-- Blocks of a kernel by how many run on the device at once: below 1, a part of the device has nothing to do. As far as
-- threads, registers and shared memory limit them; blocks by multiprocessors where the trace does not say; else NULL.
-- parameter k STRUCT: a kernel.
-- parameter d STRUCT: a row of device_limits.
CREATE MACRO kernel_waves(k, d) AS
    blocks_per_sm(k, d) / greatest(
        1,
        coalesce(
            least(
                floor(d.threads / (plausible(k.block_x) * plausible(k.block_y) * plausible(k.block_z))),
                floor(
                    d.registers
                    / (plausible(k.registers) * plausible(k.block_x) * plausible(k.block_y) * plausible(k.block_z))
                ),
                floor(d.shared_memory / plausible(k.shared_memory))
            ),
            1
        )
    );

-- All device rows with the end of the work before them, on their device and on their stream, and the row that this is.
-- column id BIGINT: the row.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column stream BIGINT: stream.
-- column step INTEGER: serving step, NULL outside steps.
-- column ts BIGINT: start.
-- column dur BIGINT: length.
-- column finished BOOLEAN: its end was recorded.
-- column stream_until BIGINT: end of all earlier work of its stream, NULL for its first row.
-- column busy_until BIGINT: end of all earlier work of the device, NULL for its first row.
-- column holder_id BIGINT: the earlier row of the device that ends last, NULL for the first row.
-- column holder_stream BIGINT: its stream.
CREATE MACRO placed_rows() AS TABLE
SELECT
    * EXCLUDE (holder),
    holder.id AS holder_id,
    holder.stream AS holder_stream
FROM (
    SELECT
        *,
        last_value(
            CASE WHEN busy_until IS NULL OR ts + dur > busy_until THEN {id: id, stream: stream} END IGNORE NULLS
        ) OVER earlier AS holder
    FROM (
        SELECT
            id,
            rank,
            device,
            stream,
            step,
            ts,
            dur,
            dur > 0 OR NOT coalesce(contains(args, '"finished": false'), false) AS finished,
            max(ts + dur) OVER (
                PARTITION BY rank, device, stream
                ORDER BY ts, dur DESC, id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS stream_until,
            max(ts + dur) OVER (
                PARTITION BY rank, device
                ORDER BY ts, dur DESC, id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS busy_until
        FROM device_activity
    )
    WINDOW earlier AS (
        PARTITION BY rank, device
        ORDER BY ts, dur DESC, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
);

-- Device rows in the scope with the time that is theirs on their stream. A kernel that is launched before the one before
-- it has ended (programmatic dependent launch) waits for it: that is not its work's time.
-- column id BIGINT: the row.
-- column stream BIGINT: stream.
-- column dur BIGINT: length within the scope.
-- column alone_ns BIGINT: the part of it after all earlier work of its stream.
-- column beside_ns BIGINT: of alone_ns, the part beside work of other streams; at most, where several ran beside it.
-- column kept DOUBLE: share of the row that lies in the scope; 0 if its end was not recorded.
CREATE MACRO stream_segments() AS TABLE
WITH placed AS MATERIALIZED (
    FROM placed_rows()
),
joined AS (
    SELECT
        holder_id AS id,
        sum(scope_clip(least(ts + dur, busy_until)) - scope_clip(ts))::BIGINT AS ns
    FROM placed
    WHERE ts < busy_until
        AND holder_stream IS DISTINCT FROM stream
    GROUP BY holder_id
),
timed AS (
    SELECT
        p.*,
        scope_clip(p.ts + p.dur) - scope_clip(p.ts) AS clipped,
        greatest(0, scope_clip(p.ts + p.dur) - scope_clip(greatest(p.ts, coalesce(p.stream_until, p.ts)))) AS alone,
        greatest(0, scope_clip(p.ts + p.dur) - scope_clip(greatest(p.ts, coalesce(p.busy_until, p.ts)))) AS exclusive,
        coalesce(j.ns, 0) AS joined_ns
    FROM placed AS p
    LEFT JOIN joined AS j ON j.id = p.id
    WHERE in_scope(p.rank, p.device, p.step)
        AND in_window(p.ts, p.dur)
)
SELECT
    id,
    stream,
    clipped AS dur,
    alone AS alone_ns,
    least(alone, alone - exclusive + joined_ns) AS beside_ns,
    CASE WHEN finished THEN coalesce(clipped / nullif(dur, 0), 1) ELSE 0 END AS kept
FROM timed;
