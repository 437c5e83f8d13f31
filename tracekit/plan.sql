-- What should be changed first. Filled by the Trace when a query first reads it: remedies are ranked by replaying steps
-- (plan_order.py), which is no work for SQL.
CREATE TABLE plan_rows (
    rank INTEGER NOT NULL,
    device BIGINT,
    phase VARCHAR NOT NULL,
    bucket VARCHAR NOT NULL,
    steps BIGINT NOT NULL,
    devices BIGINT NOT NULL,
    step_ns BIGINT,
    error DOUBLE,
    busy_ns BIGINT,
    launches_free_ns BIGINT,
    place INTEGER,
    remedy VARCHAR,
    kind VARCHAR,
    source VARCHAR,
    saving_low_ns BIGINT,
    saving_high_ns BIGINT,
    after_low_ns BIGINT,
    after_high_ns BIGINT,
    share DOUBLE,
    price VARCHAR,
    reason VARCHAR
);
