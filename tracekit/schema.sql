-- The event table, schema version 1: what a trace is once it has been read.
--
-- One row per event. Times are integer nanoseconds. Row groups hold one kind (or a few rare ones) and a narrow
-- time range, so that DuckDB skips what a query does not ask for. Text is data as recorded: never evaluated.
-- The Parquet footer key `tracekit` holds, as JSON: schema version, sources, ranks, devices, origin, capture
-- settings and the health ledger.
CREATE TABLE events (
    -- Unique in the file. Host rows first, then device rows, each by time: the same whatever order the source had.
    id BIGINT NOT NULL,
    -- What the row is:
    --   kernel, memcpy, memset  work on a device
    --   graph                   a graph replay recorded as one block
    --   launch                  a runtime or driver API call, whether or not it started device work
    --   sync                    a device-side synchronisation record
    --   op                      a framework operator on the host
    --   annotation              a user range on the host
    --   gpu_annotation          the device-side envelope of a user range; never counted as work
    --   python                  a Python function on the host
    --   overhead                the profiler's own work
    --   os                      a call into the operating system's runtime, or a time off the CPU ("off CPU")
    --   counter, instant        a sampled value; a moment. Their dur is 0 unless the source gives one
    kind VARCHAR NOT NULL CHECK (kind IN (
        'kernel', 'memcpy', 'memset', 'graph', 'launch', 'sync', 'op', 'annotation', 'gpu_annotation', 'python',
        'overhead', 'os', 'counter', 'instant')),
    -- As recorded.
    name VARCHAR NOT NULL,
    -- Nanoseconds since the trace origin (footer `origin_ns`), the start of the earliest event.
    ts BIGINT NOT NULL,
    -- Nanoseconds.
    dur BIGINT NOT NULL CHECK (dur >= 0),
    -- Process of a distributed job; 0 unless the source says otherwise.
    rank INTEGER NOT NULL CHECK (rank >= 0),
    -- Host rows: operating-system process and thread.
    pid BIGINT,
    tid BIGINT,
    -- Device rows: device index, stream, context as recorded. Stream 0 is a stream.
    device BIGINT,
    stream BIGINT,
    context BIGINT,
    -- Ties device work to the API call that started it; unique only within one source and process.
    correlation BIGINT,
    -- Device rows: id of the API call that started it. One launch has many kernels under CUDA graphs.
    launch_id BIGINT,
    -- Launches and device rows: id of the innermost op around the launch.
    op_id BIGINT,
    -- Host rows: id of the innermost enclosing row on the same thread (the latest to start that ends no earlier).
    parent_id BIGINT,
    -- Index of the serving step the row belongs to; NULL outside steps.
    step INTEGER,
    -- CUDA graph identity, where recorded. 0 in a source means "not in a graph" and is stored as NULL.
    graph_id BIGINT,
    graph_node_id BIGINT,
    -- Launch geometry: blocks, threads per block, registers per thread, bytes of shared memory per block.
    grid_x BIGINT,
    grid_y BIGINT,
    grid_z BIGINT,
    block_x BIGINT,
    block_y BIGINT,
    block_z BIGINT,
    registers BIGINT,
    shared_memory BIGINT,
    -- Theoretical occupancy in per cent, as the profiler estimated it.
    occupancy DOUBLE,
    -- Memory operations: bytes moved or set (of one side), and direction (HtoD, DtoH, DtoD, HtoH, PtoP, ...).
    bytes BIGINT,
    copy_kind VARCHAR,
    -- Op inputs, as JSON arrays: dimensions, types, scalar values.
    shapes VARCHAR,
    dtypes VARCHAR,
    scalars VARCHAR,
    -- Collectives: name, elements in and out, element type, process group.
    collective VARCHAR,
    elements_in BIGINT,
    elements_out BIGINT,
    comm_dtype VARCHAR,
    group_name VARCHAR,
    group_size BIGINT,
    -- JSON object of further allowed arguments. Arguments not on the reader's list are not stored: they may be secrets.
    args VARCHAR
);
