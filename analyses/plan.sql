-- What should be changed first, and what is it worth on top of the rest? Remedies by phase and batch size, each on top
-- of those before it.
--
-- Steps of one phase and batch size are looked at on the device where they take most time, those that take most time
-- first. Savings are of one step, by replaying it (docs/replay.md, docs/plan.md); they add up.
-- threshold min_share: share of the step: remedies that add less are left out.
-- threshold most: remedies of steps of one phase and batch size, at most.
-- threshold group_share: share of the time of all steps: steps that take less are left out.
-- threshold max_error: error of the unchanged replay, as a part of the step, beyond which nothing is said.
-- column rank INTEGER: rank.
-- column device BIGINT: device.
-- column phase VARCHAR: phase of the steps.
-- column bucket VARCHAR: batch size of the steps.
-- column steps BIGINT: how many there are; 1 for a trace without steps, which is planned as a whole.
-- column devices BIGINT: on how many devices there are such steps.
-- column step_ns BIGINT: the median step as recorded.
-- column error DOUBLE: how far its replay without any change is off, as a share of it.
-- column busy_ns BIGINT: time in it in which the device works.
-- column launches_free_ns BIGINT: the step at best if launches were free, in graphs or not; NULL: it cannot be said.
-- column place INTEGER: place of the remedy, from 1; NULL: there is none, reason says why.
-- column remedy VARCHAR: what to change.
-- column kind VARCHAR: graph, fusion, sync, copy, overlap.
-- column source VARCHAR: the analysis that says more of it.
-- column saving_low_ns BIGINT: what it saves of a step on top of those before it, at worst.
-- column saving_high_ns BIGINT: at best.
-- column after_low_ns BIGINT: the step after this remedy and those before it, at best.
-- column after_high_ns BIGINT: at worst.
-- column share DOUBLE: the middle of the saving, as a share of the step as recorded.
-- column price VARCHAR: what it costs.
-- column reason VARCHAR: why there is no remedy, or no estimate.
CREATE MACRO plan() AS TABLE
SELECT
    rank,
    device,
    phase,
    bucket,
    steps,
    devices,
    step_ns,
    error,
    busy_ns,
    launches_free_ns,
    place,
    remedy,
    kind,
    source,
    saving_low_ns,
    saving_high_ns,
    after_low_ns,
    after_high_ns,
    share,
    price,
    reason
FROM plan_rows;
