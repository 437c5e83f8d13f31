-- Which kernels could be one: what matching needs to know of device rows, and what fusion() reads.

-- Device rows with their size, and the op that started them with its inputs. Ops have inputs where the profiler
-- recorded
-- shapes; rows of a graph replay have no op.
-- column id BIGINT: the row.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column threads BIGINT: threads of all blocks; NULL for copies.
-- column op VARCHAR: name of the op around its launch.
-- column shapes VARCHAR: dimensions of its inputs, JSON.
-- column dtypes VARCHAR: their types, JSON.
-- column scalars VARCHAR: its scalars, JSON.
-- column strides VARCHAR: strides of its inputs, JSON.
CREATE MACRO fusion_rows() AS TABLE
SELECT
    d.id,
    d.rank,
    d.device,
    d.grid_x * d.grid_y * d.grid_z * d.block_x * d.block_y * d.block_z AS threads,
    o.name AS op,
    o.shapes,
    o.dtypes,
    o.scalars,
    o.args ->> 'Input Strides' AS strides
FROM device_activity AS d
LEFT JOIN ops AS o ON o.id = d.op_id;

-- How short kernels of a device get, whatever they do: what one launch less saves at least.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column floor_ns BIGINT: length that one in a hundred kernels does not exceed.
CREATE MACRO kernel_floors() AS TABLE
SELECT
    rank,
    device,
    quantile_disc(dur, 0.01) AS floor_ns
FROM kernels
GROUP BY
    rank,
    device
ORDER BY
    rank,
    device;

-- Patterns of kernels that could be one, by device, phase and batch; filled by the Trace when a query first reads it,
-- by
-- matching and replaying representative steps (tracekit/fusion_candidates.py). All times are of one step.
-- column place BIGINT: in which order they were estimated.
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
CREATE TABLE fusion_table (
    place BIGINT NOT NULL,
    rank INTEGER NOT NULL,
    device BIGINT,
    phase VARCHAR NOT NULL,
    bucket VARCHAR NOT NULL,
    steps BIGINT NOT NULL,
    pattern VARCHAR NOT NULL,
    kernels VARCHAR NOT NULL,
    count BIGINT NOT NULL,
    time_ns BIGINT NOT NULL,
    bytes_removed BIGINT,
    saving_low_ns BIGINT,
    saving_high_ns BIGINT,
    error DOUBLE,
    grade VARCHAR NOT NULL,
    state VARCHAR NOT NULL,
    remark VARCHAR NOT NULL,
    example_id BIGINT
);
