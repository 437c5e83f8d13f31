-- The functions of scope.sql where a part of the trace was chosen: they read its tables.

CREATE OR REPLACE MACRO in_scope(of_rank, of_device, of_step) AS
    ((SELECT ranks FROM scope) IS NULL OR list_contains((SELECT ranks FROM scope), of_rank))
    AND ((SELECT devices FROM scope) IS NULL OR coalesce(list_contains((SELECT devices FROM scope), of_device), false))
    AND (
        (SELECT by_step FROM scope) IS NULL
        OR (of_rank, coalesce(of_step, -1)) IN (SELECT (rank, step) FROM scope_steps)
    );

CREATE OR REPLACE MACRO in_window(of_ts, of_dur) AS
    of_ts < scope_end() AND (of_ts + of_dur > scope_start() OR of_ts >= scope_start());

CREATE OR REPLACE MACRO scope_clip(of_ts) AS least(greatest(of_ts, scope_start()), scope_end());

CREATE OR REPLACE MACRO scope_start() AS (SELECT coalesce(start_ns, -9223372036854775808) FROM scope);

CREATE OR REPLACE MACRO scope_end() AS (SELECT coalesce(end_ns, 9223372036854775807) FROM scope);
