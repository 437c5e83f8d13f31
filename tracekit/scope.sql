-- What analyses look at: everything, unless Trace.only() has chosen a part. Rows and gaps are chosen by rank, device and
-- step (a gap by the step of the row that ended it), and cut to a window of time. Choosing comes last: what is computed
-- from neighbours (busy_until, gaps) is computed over all rows, or the absence of others would look like idle time.
--
-- Here the functions say that everything is chosen, which costs nothing; scope_chosen.sql replaces them on the connection
-- of a part.

-- What was chosen; one row, each column NULL where everything is. Filled by the Trace.
-- column ranks INTEGER[]: these ranks.
-- column devices BIGINT[]: these devices.
-- column start_ns BIGINT: from this time on, ns from the trace origin.
-- column end_ns BIGINT: up to this time, itself not included.
-- column by_step BOOLEAN: true where phases or steps were chosen, and so scope_steps counts.
CREATE TABLE scope AS
SELECT
    NULL::INTEGER[] AS ranks,
    NULL::BIGINT[] AS devices,
    NULL::BIGINT AS start_ns,
    NULL::BIGINT AS end_ns,
    NULL::BOOLEAN AS by_step;

-- Steps chosen by number and phase. Filled by the Trace.
-- column rank INTEGER: rank.
-- column step BIGINT: step; -1 for rows outside all steps, which are of phase unknown.
CREATE TABLE scope_steps (
    rank INTEGER NOT NULL,
    step BIGINT NOT NULL
);

-- Is work of this rank, device and step chosen? Never NULL. Of a gap give the step of the row that ended it.
-- parameter of_rank INTEGER: rank.
-- parameter of_device BIGINT: device, NULL for what is of none.
-- parameter of_step BIGINT: step, NULL outside steps.
CREATE MACRO in_scope(of_rank, of_device, of_step) AS true;

-- Does any of this lie in the window of time? A moment does, if it is in the window.
-- parameter of_ts BIGINT: start.
-- parameter of_dur BIGINT: length.
CREATE MACRO in_window(of_ts, of_dur) AS true;

-- A time moved into the window: of what starts at a and ends at b, scope_clip(b) - scope_clip(a) lies in it.
-- parameter of_ts BIGINT: time.
CREATE MACRO scope_clip(of_ts) AS of_ts;

-- Start of the window, the smallest BIGINT if none was chosen.
CREATE MACRO scope_start() AS (-9223372036854775808)::BIGINT;

-- End of the window, itself not included; the largest BIGINT if none was chosen.
CREATE MACRO scope_end() AS 9223372036854775807::BIGINT;
