"""What to do about idle time, by cause and by what the trace shows: remedy, price, proof. Sentences only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

Workload = Literal["serving", "training", "unknown"]
Shape = Literal["small gaps", "few gaps", "long gaps"]

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "launch_bound": "the host was still working or launching when the device ran dry",
        "sync": "the host waited for the device, then had to start from empty",
        "between_steps": "most of the gap lies outside all serving steps",
        "queued": "the work had been launched in time; the device, a stream or a peer made it wait",
        "unattributed": "the trace shows no launch, or no host at work",
    }
)


@dataclass(frozen=True, slots=True)
class Scene:
    """What the trace shows of the gaps of one cause.

    phase: serving phase of most of the time. engine: "vLLM", "SGLang" or "". graphs: most device work comes from graph
    replays. shape: the few longest gaps hold most of the time; else small ones do; else long ones. pauses: the mean
    gap is shorter than a launch takes. The rest says what most of the time is blamed on: API calls, of these other
    than kernel launches; and much of it on data loaders, or on compilers, loaders and other programs.
    """

    workload: Workload = "unknown"
    phase: str = "unknown"
    engine: str = ""
    graphs: bool = False
    shape: Shape = "small gaps"
    pauses: bool = False
    in_calls: bool = False
    in_other_calls: bool = False
    on_data: bool = False
    on_compilation: bool = False

    @property
    def metric(self) -> str:
        """What to measure without a profiler, to see whether the change helped."""
        if self.workload != "serving":
            return "the step time"
        return {
            "prefill": "P50 and P99 of TTFT",
            "decode": "P50 and P99 of ITL",
            "verify": "P50 and P99 of ITL",
            "draft": "P50 and P99 of ITL",
            "mixed": "P50 and P99 of TTFT and ITL",
        }.get(self.phase, "the step time")


@dataclass(frozen=True, slots=True)
class Advice:
    """What to say of a cause. `{metric}` and the flags in `verify` and `remedy` are filled in by `advise`."""

    title: str
    detail: str
    remedy: str
    cost: str
    verify: str = "Same load, this one change: idle by cause in a new trace; {metric} unprofiled."
    flags: Mapping[str, str] = field(default_factory=dict)  # by engine, put in for `{flags}`


_AFTER_WARM_UP = "Record again after warm-up: the gap is gone, or it is real."
_LAUNCH_BOUND = Advice(
    "the host launches too slowly",
    "The host was still preparing or launching when the device ran dry. Tracing slows the host, so the true figure is "
    "lower.",
    "Replay steps of the same shape as CUDA graphs{flags}. Where shapes vary, compile, or fuse to launch fewer and "
    "larger kernels.",
    "Graph memory, longer start-up, batches padded to captured sizes.",
    flags={"vLLM": " (vLLM: drop enforce_eager)", "SGLang": " (SGLang: drop disable-cuda-graph)"},
)
_DECODE = replace(_LAUNCH_BOUND, remedy=_LAUNCH_BOUND.remedy.replace("steps of the same shape", "decode steps"))
_PREFILL = replace(
    _LAUNCH_BOUND,
    remedy="Compile and capture prefill piecewise{flags}, fuse small kernels, or give each step more tokens so that "
    "kernels outlast their launches.",
    flags={"vLLM": " (vLLM: a cudagraph_mode with PIECEWISE, no enforce_eager)"},
)
_TRAINING = replace(
    _LAUNCH_BOUND,
    remedy="Compile the model (torch.compile), use fused or foreach optimizers, and give each step more work (a larger "
    "batch) so that kernels outlast their launches.",
    cost="Compile time; recompilation where shapes vary; memory of the larger batch.",
)
_GRAPHS_ALREADY = replace(
    _LAUNCH_BOUND,
    remedy="Most work comes from graph replays already: shorten the host code between them, capture what is still "
    "launched one by one, and overlap scheduling with the device.",
    cost="Asynchronous scheduling applies results one step later.",
)
_IN_CALLS = Advice(
    "the device waits inside an API call of the host",
    "The call that was to bring work took the time itself. The first call of a kind loads code or uploads a graph, "
    "and a profiler makes graph launches much longer than they are.",
    "Warm up before recording, so that first calls lie outside; if it stays, look at the call named here: a blocking "
    "copy, an allocation, a graph of too many nodes.",
    "Longer warm-up.",
    _AFTER_WARM_UP,
)
_COMPILATION = Advice(
    "the device waits for compilation or loading",
    "A compiler, a loader or another program ran on the host in much of this time, as it does the first time and not "
    "again.",
    "Warm up all shapes before recording. If it shows in operation too: compile ahead, keep the compile cache, and "
    "find the shapes that compile anew.",
    "Longer start-up.",
    _AFTER_WARM_UP,
)
_FEW_GAPS = Advice(
    "the device waits in a few gaps",
    "So few gaps are seldom the price of launching: a first use (compiling, loading, allocating), garbage "
    "collection, or one stretch of host code.",
    "Warm up before recording, so that first uses lie outside; if the gap stays, shorten the host code named here or "
    "move it off the path of the step.",
    "Longer warm-up.",
    _AFTER_WARM_UP,
)
_LONG_GAPS = replace(
    _LAUNCH_BOUND,
    title="host code keeps the device waiting",
    detail="These gaps are too long to be the price of launching: host code runs in them. Tracing slows the host, so "
    "the true figure is lower.",
    remedy="Shorten the host code named here, move it off the path of the step, or let it run ahead of the device.",
    cost="Code that runs ahead works on results one step old.",
)
_DATA = Advice(
    "the device waits for data",
    "The host was loading the next batch in much of this time.",
    "Load ahead of the step: more data loader workers, pinned memory, prefetching, cheaper decoding and augmentation; "
    "copy to the device without blocking.",
    "Host memory and cores for the workers.",
)
_SYNC = Advice(
    "the host waits for the device, then starts from empty",
    "A synchronising call drained the device. The wait costs nothing, refilling the device does: that is the gap.",
    "Take .item(), .cpu(), nonzero() and copies of pageable memory out of the step; copy results back pinned and "
    "non-blocking, and wait on an event one step later (asynchronous scheduling{flags}).",
    "Results arrive one step later; stop conditions and structured output must tolerate that.",
    flags={"vLLM": "; vLLM: async scheduling", "SGLang": "; SGLang: overlap schedule"},
)
_SYNC_NO_SERVING = replace(
    _SYNC,
    remedy="Take .item(), .cpu(), nonzero() and copies of pageable memory out of the step; copy results back pinned "
    "and non-blocking, and read them (losses, metrics) some steps later.",
    cost="Results are seen some steps later.",
)
_BETWEEN = Advice(
    "the device waits for the scheduler between steps",
    "Most of this time lies outside all steps: scheduling, input preparation, output processing, or no request to "
    "serve.",
    "Overlap scheduling with the forward pass{flags} and move detokenisation and input preparation off that path. "
    "Under too little load, add load first.",
    "Stopping and admitting requests takes one step longer.",
    flags={"vLLM": " (vLLM: async scheduling)", "SGLang": " (SGLang: overlap schedule)"},
)
_BETWEEN_NO_SERVING = Advice(
    "the device waits between steps",
    "Most of this time lies outside all steps: loading data, logging, checkpoints, evaluation.",
    "Shorten the host code named here, or let it run beside the step (in worker processes or a thread).",
    "Host memory and cores for what runs beside.",
)
_QUEUED = Advice(
    "the device waits although work is queued",
    "The work that ended these gaps had been launched in time, so the host is not the cause: it waited for another "
    "stream, a peer, or the device itself.",
    "See which stream, event or rank the work that ends the longest gaps waits for (waits for events and collectives "
    "before it).",
    "Depends on what it waits for.",
)
_QUEUED_SHORT = replace(
    _QUEUED,
    title="the device pauses between kernels",
    detail="The work had been launched in time: these are the device's own pauses between kernels.",
    remedy="Fewer, larger kernels, or programmatic dependent launch inside CUDA graphs.",
    cost="Fused kernels must exist for the shapes in use.",
)
_UNATTRIBUTED = Advice(
    "idle time without a cause in the trace",
    "The work that ends these gaps has no recorded launch, or its thread shows neither op nor call nor Python "
    "function for most of the gap.",
    "Record again with Python stacks (tracekit collect --stack; torch.profiler: with_stack=True), to see the host in "
    "these gaps.",
    "Stacks slow the host and enlarge the trace; record few steps.",
    "The unattributed share in the new trace.",
)


def advise(cause: str, scene: Scene) -> Advice:
    """What fits the cause and the trace, with the names of the engine in use, or none."""
    found = _chosen(cause, scene)
    return replace(
        found,
        remedy=found.remedy.replace("{flags}", found.flags.get(scene.engine, "")),
        verify=found.verify.replace("{metric}", scene.metric),
    )


def _chosen(cause: str, scene: Scene) -> Advice:
    serving = scene.workload == "serving"
    match cause:
        case "launch_bound":
            return _launch_bound(scene)
        case "sync":
            return _SYNC if serving else _SYNC_NO_SERVING
        case "between_steps":
            if scene.on_data:
                return _DATA
            return _BETWEEN if serving else _BETWEEN_NO_SERVING
        case "queued":
            return _QUEUED_SHORT if scene.pauses else _QUEUED
        case _:
            return _UNATTRIBUTED


def _launch_bound(scene: Scene) -> Advice:
    """Graphs only help where launches are the price: in many small gaps."""
    small = scene.shape == "small gaps"
    cases = (  # the first that holds
        (scene.on_data, _DATA),
        (scene.on_compilation, _COMPILATION),
        (scene.in_other_calls or (scene.in_calls and not small), _IN_CALLS),
        (scene.shape == "few gaps", _FEW_GAPS),
        (scene.shape == "long gaps", _LONG_GAPS),
        (scene.workload == "training", _TRAINING),
        (scene.graphs, _GRAPHS_ALREADY),
        (scene.phase == "prefill", _PREFILL),
        (scene.phase in ("decode", "verify", "draft"), _DECODE),
        (True, _LAUNCH_BOUND),
    )
    return next(said for holds, said in cases if holds)
