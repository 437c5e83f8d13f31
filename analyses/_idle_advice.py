"""What to do about idle time, by cause: the remedy, its price, and how to prove it. Sentences only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Advice:
    """What to say of a cause."""

    title: str
    detail: str
    remedy: str
    cost: str
    verify: str


_VERIFY = "Same load, this one change: idle by cause in a new trace; P50 and P99 of ITL unprofiled."

_LAUNCH_BOUND = Advice(
    "the host launches too slowly",
    "The host was still preparing or launching when the device ran dry. Tracing slows the host, so the true figure is "
    "lower.",
    "Replay decode steps as CUDA graphs (vLLM: drop enforce_eager; SGLang: drop disable-cuda-graph). Where shapes "
    "vary, compile, or fuse to launch fewer and larger kernels.",
    "Graph memory, longer start-up, batches padded to captured sizes.",
    _VERIFY,
)
_PREFILL = replace(
    _LAUNCH_BOUND,
    remedy="Compile and capture prefill piecewise (vLLM: a cudagraph_mode with PIECEWISE, no enforce_eager), fuse "
    "small kernels, or give each step more tokens so that kernels outlast their launches.",
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
    "Record again after warm-up: the gap is gone, or it is real.",
)

CAUSES: Mapping[str, Advice] = MappingProxyType(
    {
        "launch_bound": _LAUNCH_BOUND,
        "sync": Advice(
            "the host waits for the device, then starts from empty",
            "A synchronising call drained the device. The wait costs nothing, refilling the device does: that is the "
            "gap.",
            "Take .item(), .cpu(), nonzero() and copies of pageable memory out of the step; copy results back pinned "
            "and non-blocking, and wait on an event one step later (asynchronous scheduling).",
            "Results arrive one step later; stop conditions and structured output must tolerate that.",
            _VERIFY,
        ),
        "between_steps": Advice(
            "the device waits for the scheduler between steps",
            "Most of these gaps lies outside all steps: scheduling, input preparation, output processing, or no "
            "request to serve.",
            "Overlap scheduling with the forward pass (vLLM: async scheduling; SGLang: overlap schedule) and move "
            "detokenisation and input preparation off that path. Under too little load, add load first.",
            "Stopping and admitting requests takes one step longer.",
            _VERIFY,
        ),
        "queued": Advice(
            "the device waits although work is queued",
            "The next work had been launched in time, so the host is not the cause: it waited for another stream or "
            "rank, or these are the device's own pauses between kernels (1-2 us each).",
            "Short gaps: fewer, larger kernels, or programmatic dependent launch inside CUDA graphs. Long gaps: see "
            "which stream or rank the work that ends them waits for.",
            "Fused kernels must exist for the shapes in use.",
            _VERIFY,
        ),
        "unattributed": Advice(
            "idle time without a cause in the trace",
            "The work that ends these gaps has no recorded launch, or its thread shows neither op nor call nor Python "
            "function for most of the gap.",
            "Record again with Python stacks (with_stack), to see the host in these gaps.",
            "Stacks slow the host and enlarge the trace; record few steps.",
            "The unattributed share in the new trace.",
        ),
    }
)


def launch_bound(*, in_calls: bool, graphs: bool, phase: str) -> Advice:
    """The variant that fits: most of the time inside API calls; most work from graph replays; mostly prefill."""
    if in_calls:
        return _IN_CALLS
    if graphs:
        return _GRAPHS_ALREADY
    return _PREFILL if phase == "prefill" else _LAUNCH_BOUND
