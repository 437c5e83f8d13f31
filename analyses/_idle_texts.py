"""What each cause of idle time means, and the advice that fits it. Sentences only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "launch_latency": "a launch was on its way, or the device paused between two kernels",
        "launch_bound": "the host was in ops, calls or the Python between them: it launches too slowly",
        "graph_launch": "the host was in the call that launches a CUDA graph",
        "sync": "the host was in a wait for the device, or starting again after it had run dry",
        "pageable_copy": "a copy from or to pageable host memory blocked the host",
        "allocation": "the host allocated or freed device or pinned memory",
        "input_preparation": "the host prepared the inputs of a step",
        "scheduler": "the engine scheduled, or processed outputs, between steps",
        "python": "the host ran Python code for long without an op or a call",
        "gc": "Python collected garbage",
        "lazy_load_or_jit": "code was loaded or compiled at its first use",
        "stream_dependency": "the work was launched in time and waited for another stream or device",
        "communication_wait": "the host waited for another rank",
        "no_requests": "the engine waited for requests",
        "profiler": "the profiler's own work stopped the host",
        "unattributed": "the trace does not show what host or device waited for",
    }
)


@dataclass(frozen=True, slots=True)
class Advice:
    """What to say of a cause. `{metric}` in `verify` and `{flags}` in `remedy` are filled in by `advise`."""

    title: str
    detail: str
    remedy: str
    cost: str
    verify: str = "Same load, this one change: idle by cause in a new trace; {metric} unprofiled."
    flags: Mapping[str, str] = field(default_factory=dict)  # by engine, put in for `{flags}`


_AFTER_WARM_UP = "Record again after warm-up: the gap is gone, or it is real."
_RECORD_AGAIN = "The share of this cause in the new trace."
_ASYNC = {"vLLM": " (vLLM: --async-scheduling)", "SGLang": " (SGLang: no --disable-overlap-schedule)"}

LAUNCH_BOUND = Advice(
    "the host launches too slowly",
    "The host was still preparing or launching when the device ran dry. Tracing slows the host, so the true figure is "
    "lower.",
    "Replay steps of the same shape as CUDA graphs{flags}. Where shapes vary, compile, or fuse to launch fewer and "
    "larger kernels.",
    "Graph memory, longer start-up, batches padded to captured sizes.",
    flags={
        "vLLM": " (vLLM: no --enforce-eager; --cudagraph-capture-sizes up to the batch)",
        "SGLang": " (SGLang: no --disable-cuda-graph; --cuda-graph-max-bs up to the batch)",
    },
)
DECODE = replace(LAUNCH_BOUND, remedy=LAUNCH_BOUND.remedy.replace("steps of the same shape", "decode steps"))
PREFILL = replace(
    LAUNCH_BOUND,
    remedy="Compile and capture prefill piecewise{flags}, fuse small kernels, or give each step more tokens so that "
    "kernels outlast their launches.",
    flags={"vLLM": " (vLLM: a cudagraph_mode with PIECEWISE, no --enforce-eager)"},
)
TRAINING = replace(
    LAUNCH_BOUND,
    remedy="Compile the model (torch.compile; if it is, with mode reduce-overhead), use fused or foreach optimizers, "
    "and give each step more work (a larger batch) so that kernels outlast their launches.",
    cost="Compile time; recompilation where shapes vary; memory of the larger batch.",
)
GRAPHS_ALREADY = replace(
    LAUNCH_BOUND,
    remedy="Most work comes from graph replays already: shorten the host code between them, capture what is still "
    "launched one by one{flags}, and overlap scheduling with the device.",
    cost="Asynchronous scheduling applies results one step later.",
    flags={"vLLM": " (vLLM: a cudagraph_mode with FULL)"},
)
GRAPHS_ALREADY_NO_SERVING = replace(
    GRAPHS_ALREADY,
    remedy="Most work comes from graph replays already: shorten the host code between them, and capture what is still "
    "launched one by one.",
    cost="Graph memory, longer start-up.",
)
IN_CALLS = Advice(
    "the device waits inside an API call of the host",
    "The call that was to bring work took the time itself. The first call of a kind loads code, and a profiler makes "
    "calls longer than they are.",
    "Warm up before recording, so that first calls lie outside; if it stays, look at the call named here.",
    "Longer warm-up.",
    _AFTER_WARM_UP,
)
FEW_GAPS = Advice(
    "the device waits in a few gaps",
    "So few gaps are seldom the price of launching: a first use, or one stretch of host code.",
    "Warm up before recording, so that first uses lie outside; if the gap stays, shorten the host code named here or "
    "move it off the path of the step.",
    "Longer warm-up.",
    _AFTER_WARM_UP,
)
LATENCY = Advice(
    "launches arrive at an empty device",
    "The device had nothing else to do while these launches were on their way.",
    "Let launches run ahead of the device: shorten the host code between them, or replay them as CUDA graphs{flags}.",
    LAUNCH_BOUND.cost,
    flags=LAUNCH_BOUND.flags,
)
LATENCY_TRAINING = replace(
    LATENCY,
    remedy="Let launches run ahead of the device: compile the model, or give each step more work.",
    cost=TRAINING.cost,
)
PAUSES = Advice(
    "the device pauses between kernels",
    "The work had been launched in time: these are the device's own pauses between kernels.",
    "Fewer, larger kernels, or programmatic dependent launch inside CUDA graphs.",
    "Fused kernels must exist for the shapes in use.",
)
GRAPH_LAUNCH = Advice(
    "the device idles while a graph is launched",
    "The device was empty while the host was inside the call. The first launch of a graph uploads it, and a profiler "
    "lengthens the call by a microsecond or two a node: the true figure is lower.",
    "Launch the graph before the device runs dry: overlap scheduling with the device{flags}; fewer nodes (fusion). "
    "Warm up before recording.",
    "Asynchronous scheduling applies results one step later.",
    flags=_ASYNC,
)
GRAPH_LAUNCH_NO_SERVING = replace(
    GRAPH_LAUNCH,
    remedy="Launch the graph before the device runs dry: prepare its inputs ahead, and read results some steps later; "
    "fewer nodes (fusion). Warm up before recording.",
    cost="Results are seen some steps later.",
)
SYNC = Advice(
    "the host waits for the device, then starts from empty",
    "A synchronising call drained the device. The wait for queued work costs nothing, refilling the device does: "
    "that is the gap.",
    "Take .item(), .cpu() and nonzero() out of the step; copy results back pinned and non-blocking, and wait on an "
    "event one step later{flags}.",
    "Results arrive one step later; stop conditions and structured output must tolerate that.",
    flags=_ASYNC,
)
SYNC_NO_SERVING = replace(
    SYNC,
    remedy="Take .item(), .cpu() and nonzero() out of the step; copy results back pinned and non-blocking, and read "
    "them (losses, metrics) some steps later.",
    cost="Results are seen some steps later.",
)
PAGEABLE = Advice(
    "copies of pageable memory block the host",
    "A copy from or to pageable host memory returns when it is done, whatever it was asked; the device then starts "
    "from empty.",
    "Copy from and to pinned memory (pin_memory, non_blocking=True), from one buffer that is kept; or make small "
    "tensors on the device.",
    "Pinned memory; a buffer must not be touched until its copy is done.",
)
ALLOCATION = Advice(
    "the host allocates or frees memory",
    "Such calls wait for the device or the driver. In operation the caching allocator makes few of them.",
    "Warm up all shapes, keep buffers instead of making them anew, pin host memory once; against fragmentation "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    "Memory held in reserve.",
)
INPUTS = Advice(
    "the device waits for the inputs of the step",
    "The host prepared inputs (ids, block tables, attention metadata) while the device had nothing to do.",
    "Prepare the next step while this one runs{flags}; update inputs in place in pinned buffers, one copy a step.",
    "Asynchronous scheduling applies results one step later.",
    flags=_ASYNC,
)
INPUTS_NO_SERVING = replace(
    INPUTS,
    detail="The host prepared inputs while the device had nothing to do.",
    cost="Memory for the inputs of two steps.",
)
DATA = Advice(
    "the device waits for data",
    "The host was loading the next batch in much of this time.",
    "Load ahead of the step: more data loader workers, pinned memory, prefetching, cheaper decoding and augmentation; "
    "copy to the device without blocking.",
    "Host memory and cores for the workers.",
)
SCHEDULER = Advice(
    "the device waits for the scheduler",
    "Scheduling and the processing of outputs lie on the path of the step.",
    "Overlap them with the forward pass{flags}, and move detokenisation off that path. Under too little load, add load "
    "first.",
    "Stopping and admitting requests takes one step longer.",
    flags=_ASYNC,
)
PYTHON = Advice(
    "host code keeps the device waiting",
    "These gaps are too long to be the price of launching: Python code runs in them. Tracing slows the host, so the "
    "true figure is lower.",
    "Shorten the host code named here, move it off the path of the step, or let it run ahead of the device.",
    "Code that runs ahead works on results one step old.",
)
GC = Advice(
    "garbage collection stops the host",
    "Python's collector walked all objects while the device waited.",
    "After warm-up gc.collect() and gc.freeze(), then higher thresholds (gc.set_threshold), or collect when idle.",
    "More memory between collections.",
)
FIRST_USE = Advice(
    "the device waits for compilation or loading",
    "A compiler or a loader ran on the host, as it does the first time and not again.",
    "Warm up all shapes before recording. If it shows in operation too: compile ahead, keep the compile cache, and "
    "find the shapes that compile anew.",
    "Longer start-up.",
    _AFTER_WARM_UP,
)
DEPENDENCY = Advice(
    "the device waits although work is queued",
    "The work that ended these gaps had been launched in time: its stream had been told to wait for an event.",
    "See who records the event that the call named here waits for: another stream, another device, or a peer.",
    "Depends on what it waits for.",
)
COMMUNICATION = Advice(
    "the host waits for other ranks",
    "Host-side collectives (barriers, broadcasts of objects) held the host while the device was empty.",
    "Convert the traces of all ranks together and see which is late; take host-side collectives out of the step.",
    "Depends on what the ranks agree on there.",
)
NO_REQUESTS = Advice(
    "there was nothing to serve",
    "The engine was waiting for requests. This is no fault of the step.",
    "Add load, or record while there is some.",
    "None.",
    _RECORD_AGAIN,
)
PROFILER = Advice(
    "the profiler itself stops the host",
    "Its buffers, its start, or its first launch held the host; none of it is there without it.",
    "Record again after warm-up with fewer events (no stacks, no shapes, fewer steps), and leave the first steps out.",
    "None.",
    _RECORD_AGAIN,
)
QUEUED = Advice(
    "queued work waits, the trace does not show for what",
    "The work that ended these gaps had been launched in time. The device waited for an event or a peer that was not "
    "recorded, or it was at work: kernels, of graph replays above all, may be missing from the trace.",
    "Record what waits on the device too (torch.profiler: experimental_config=_ExperimentalConfig("
    "enable_cuda_sync_events=True)), and compare the kernels of one graph replay with those of the model run eagerly.",
    "Some more events; an eager run to compare with.",
    _RECORD_AGAIN,
)
UNATTRIBUTED = Advice(
    "idle time without a cause in the trace",
    "The work that ends these gaps has no recorded launch, or its thread shows neither op nor call nor Python "
    "function.",
    "Record again with Python stacks (tracekit collect --stacks; torch.profiler: with_stack=True), to see the host in "
    "these gaps.",
    "Stacks slow the host and enlarge the trace; record few steps.",
    _RECORD_AGAIN,
)
