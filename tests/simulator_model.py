"""What the simulator is told: the model, the device, the run, and the causes of idle time to plant.

Everything is an integer: nanoseconds, bytes, operations per second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Literal

Mode = Literal["eager", "full_graph", "piecewise_graph"]
Layout = Literal["kineto", "kineto_2026", "minified", "indent"]
TimeUnit = Literal["relative", "absolute"]
Fusion = Literal["add_rms_norm", "silu_mul", "rms_norm", "rope_kv"]
Marks = Literal["vllm", "vllm_detailed", "sglang", "sglang_detailed", "tracekit", "ProfilerStep", "none"]


@dataclass(frozen=True, slots=True)
class Model:
    """A dense Llama-like decoder."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    dtype_bytes: int = 2


TINY = Model(layers=2, hidden=256, heads=8, kv_heads=4, head_dim=32, intermediate=688, vocab=4096)
LLAMA_8B = Model(layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14336, vocab=128256)
MODELS = {"tiny": TINY, "llama-8b": LLAMA_8B}


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as torch.profiler's deviceProperties describes it, and how fast it is.

    bandwidth, flops and link_bandwidth are peaks (bytes/s, operations/s of 16-bit tensor work, bytes/s of the link to
    the other ranks); kernels reach bandwidth_percent and flops_percent of the first two and last at least floor_ns.
    launch_latency_ns passes between the end of a launch call and the start of the kernel on an idle stream.
    kernel_gap_ns passes between two eager kernels of a stream when the second was waiting already.
    """

    name: str
    total_memory: int
    compute_major: int
    compute_minor: int
    sms: int
    bandwidth: int
    flops: int
    link_bandwidth: int
    bandwidth_percent: int = 88
    flops_percent: int = 75
    floor_ns: int = 1_800
    launch_latency_ns: int = 2_500
    kernel_gap_ns: int = 0
    max_threads_per_block: int = 1024
    max_threads_per_sm: int = 2048
    registers_per_block: int = 65536
    warp_size: int = 32
    shared_per_block: int = 49152
    shared_per_block_optin: int = 232448
    shared_per_sm: int = 233472


H100 = Device(
    name="NVIDIA H100 80GB HBM3",
    total_memory=85018279936,
    compute_major=9,
    compute_minor=0,
    sms=132,
    bandwidth=3_350_000_000_000,
    flops=989_000_000_000_000,
    link_bandwidth=450_000_000_000,
)
DEVICES = {"h100": H100}


@dataclass(frozen=True, slots=True)
class Plant:
    """Causes of device idle time to put into a run, with amounts; zero plants nothing.

    "a step" is once in each step, "between" once between each two steps. Python functions show with stacks only.

    launch_bound_ns    host time added inside the op around a launch call (graphs and Triton have no op: none there)
    syncs_per_step     aten::item calls, spread evenly over a step's layers
    sync_refill_ns     host work between the return of such a synchronisation and the next launch
    between_steps_ns   host work between the end of a step's mark and the begin of the next: unseen but for `schedule`
    holes_per_step     stretches of a step with no row of the host thread but what encloses them, over the layers
    hole_ns            how long the device idles in each: the hole lasts until the device has run dry, then this long
    graph_launch_ns    added to every call that replays a graph
    pageable_copies_per_step   copies from and to pageable memory in turn; the call blocks until the copy is done
    pageable_copy_ns   how long the driver stages each
    allocation_ns      a step: cudaMalloc in an op; half as long a cudaFree
    input_preparation_ns       a step: in `gpu_model_runner: preprocess`, _prepare_inputs
    scheduler_ns       a step in `gpu_model_runner: bookkeep`; between: `llm_engine step: ...` and `schedule: ...`
    python_ns          a step, and between: in one Python function
    gc_ns              a step on the thread that launches, and between on another one: Python's garbage collector
    lazy_load_ns       on the first launch of a kernel outside graphs: its code is loaded, Triton's compiled
    dependencies_per_step      kernels that wait for an event of another device, recorded late
    dependency_ns      how long the device has nothing to do until then
    communication_wait_ns      a step in c10d::barrier, between in gloo:broadcast
    no_requests_ns     between: polling for requests
    profiler_ns        a step: the profiler holds a launch (`Buffer Flush`), and the host (`Activity Buffer Request`)
    slow_first_launch_ns       added to the recording's first launch
    lost_calls_per_step        launch calls that were not recorded; their kernels were
    legacy_stream_per_step     kernels on the legacy default stream (0) in the forward pass: each waits for all the
                       device holds, and all that comes later for it
    varying_shapes     a step: kernels in the forward pass whose grid is another one in each step
    """

    launch_bound_ns: int = 0
    syncs_per_step: int = 0
    sync_refill_ns: int = 60_000
    between_steps_ns: int = 0
    holes_per_step: int = 0
    hole_ns: int = 0
    graph_launch_ns: int = 0
    pageable_copies_per_step: int = 0
    pageable_copy_ns: int = 80_000
    allocation_ns: int = 0
    input_preparation_ns: int = 0
    scheduler_ns: int = 0
    python_ns: int = 0
    gc_ns: int = 0
    lazy_load_ns: int = 0
    dependencies_per_step: int = 0
    dependency_ns: int = 150_000
    communication_wait_ns: int = 0
    no_requests_ns: int = 0
    profiler_ns: int = 0
    slow_first_launch_ns: int = 0
    lost_calls_per_step: int = 0
    legacy_stream_per_step: int = 0
    varying_shapes: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """One recording.

    steps            serving steps recorded
    batch, prompt    requests, and tokens of each one's prompt
    prefill_steps    steps over which the requests' prefills spread; from the second on the earlier requests decode
                     alongside (mixed steps)
    batches          decode requests of the successive steps without a prefill, from the first again after the last;
                     empty: batch
    capture_sizes    batches that graphs were captured for: a decode step replays the graph of the smallest that holds
                     it, padded, and is eager if none does; empty: graphs of exactly its batch
    fused            what one kernel each does: the residual's add with the norm, SiLU with its product, RMSNorm (else 8
                     kernels in float32), RoPE with the write to the KV cache
    streams          1: everything on one; 2: all-reduce and cache offload on a second; 3: on one each
    ranks            tensor-parallel ranks, one file each
    marks            how the engine marks its steps
    matched          a kernel of a step takes as long as its like in every other matched run of this seed
    straggler_percent  how much longer the last rank's compute kernels take
    pdl_overlap_ns   how much earlier than its predecessor's end a kernel inside a graph starts
    final_sync       every step ends by waiting for its sampled tokens
    asynchronous     instead of that the host launches the next step, and then waits for this one's tokens
    orphans          kernels at the head whose launch came before the recording began
    clock_skew_ns    how much too early device rows are recorded
    lost_replays_percent     graph replays of which no kernel was recorded
    partial_replays_percent  graph replays of which half of the kernels were recorded
    record_syncs     CUPTI's rows of synchronisations
    secrets          plant five made-up secrets where real traces leak them
    """

    mode: Mode = "eager"
    model: Model = TINY
    device: Device = H100
    steps: int = 3
    batch: int = 4
    prompt: int = 64
    prefill_steps: int = 1
    batches: tuple[int, ...] = ()
    capture_sizes: tuple[int, ...] = ()
    fused: frozenset[Fusion] = frozenset({"add_rms_norm", "silu_mul", "rms_norm"})
    streams: int = 1
    ranks: int = 1
    marks: Marks = "vllm"
    plant: Plant = field(default_factory=Plant)
    matched: bool = False
    straggler_percent: int = 0
    pdl_overlap_ns: int = 0
    final_sync: bool = True
    asynchronous: bool = False
    orphans: int = 0
    clock_skew_ns: int = 0
    lost_replays_percent: int = 0
    partial_replays_percent: int = 0
    with_stack: bool = False
    record_shapes: bool = False
    profile_memory: bool = False
    record_syncs: bool = False
    secrets: bool = False
    time_unit: TimeUnit = "relative"
    layout: Layout = "kineto"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class StepShape:
    """The batch of one step."""

    index: int
    prefill_requests: int
    prefill_tokens: int
    decode_requests: int
    context: int  # tokens in the cache of each decoding request, this step's included
    padding: int = 0  # requests that a graph decodes besides, with nothing in the cache

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_requests + self.padding

    @property
    def requests(self) -> int:
        return self.prefill_requests + self.decode_requests

    @property
    def phase(self) -> str:
        if self.prefill_requests and self.decode_requests:
            return "mixed"
        return "prefill" if self.prefill_requests else "decode"


def step_shapes(run: Run) -> Iterator[StepShape]:
    """The run's steps: prefills first, then one token per request and step."""
    share = -(-run.batch // max(1, run.prefill_steps))
    started, batches = 0, cycle(run.batches or (run.batch,))
    for index in range(run.steps):
        prefill = min(share, run.batch - started)
        decode = started if prefill else next(batches)
        yield StepShape(index, prefill, prefill * run.prompt, decode, run.prompt + index)
        started += prefill
