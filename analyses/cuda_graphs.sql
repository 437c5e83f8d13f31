-- What would CUDA graphs win, and what stands in their way? One row for each region: what could be captured, in steps of
-- one phase and batch size on one device. Regions of a group go one on top of the other: their savings add up. Times are
-- those of one step. docs/cuda_graphs.md has the rules.
-- threshold min_launches: launches of the smallest region worth a graph.
-- threshold gpu_bound_share: share of the step that a graph must save, or the step is bound by the GPU.
-- threshold graphed_share: share of what could be captured that one replay brings, from which on the step is a graph
--                          already.
-- threshold critical_share: share of the step won at worst, from which on the finding is critical.
-- threshold wasted_share: share of the rows of padded steps that no request filled, from which on there is a finding.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column phase VARCHAR: phase of the steps, unknown for a trace without steps.
-- column bucket VARCHAR: size of their batches, as in step_batches.
-- column region VARCHAR: what is captured.
-- column verdict VARCHAR: worth it; may help (at best, not at worst); GPU-bound, will not help; already a graph; seen
--                         once; cannot tell; blocked by what: the graph that there could be with that gone.
-- column reason VARCHAR: why.
-- column steps BIGINT: steps of the group.
-- column repeats BIGINT: of these, steps in which the same kinds of work come in the same order.
-- column pieces BIGINT: graphs in a step.
-- column launches BIGINT: calls in them.
-- column kernels BIGINT: device rows that these started.
-- column replays BIGINT: of the calls, those that replay a graph already.
-- column period VARCHAR: what repeats within a step, as "16 x 25 launches"; NULL if nothing does.
-- column step_ns BIGINT: the median step, from the start of its work to the start of the next step's.
-- column wall_ns BIGINT: from the first launch of each graph, or the start of the step's work, to the end of its own;
--   NULL, as the next two, where nothing can be told.
-- column gpu_ns BIGINT: of that, time in which the device was busy.
-- column idle_ns BIGINT: and in which it was not.
-- column saving_low_ns BIGINT: what is won at worst; NULL where nothing is promised.
-- column saving_high_ns BIGINT: what is won at best.
-- column error DOUBLE: how far the replay of the unchanged step is off, as a share of its time.
-- column spread_low_ns BIGINT: the middle of the interval, at least, over the steps replayed.
-- column spread_high_ns BIGINT: the same at most.
-- column blockers VARCHAR: JSON list of what a capture does not allow: kind, call, op, function, place, splits,
--                          per_step, ids.
CREATE MACRO cuda_graphs() AS TABLE
SELECT
    rank,
    device,
    phase,
    bucket,
    region,
    verdict,
    reason,
    steps,
    repeats,
    pieces,
    launches,
    kernels,
    replays,
    period,
    step_ns,
    wall_ns,
    gpu_ns,
    idle_ns,
    saving_low_ns,
    saving_high_ns,
    error,
    spread_low_ns,
    spread_high_ns,
    blockers
FROM graph_region_table;
