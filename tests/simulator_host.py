"""One rank: its host thread launches, its device works, both in integer nanoseconds.

A launch reaches the device launch_latency_ns after its call returns; its kernel starts when that has happened, its
stream is free and the stream it waits for has done what it held. A synchronising call returns SYNC_RETURN_NS after
the stream ran dry.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.simulator_instructions import Graph, Launch, Op
from tests.simulator_kernels import ROPE, Kernel, copy_kernel
from tests.simulator_model import StepShape
from tests.simulator_text import Args, Row
from tests.simulator_thread import EDGE_NS, QUERY_NS, VIEW_NS, Thread

LAUNCH_NS, COPY_CALL_NS, SYNC_NS, SYNC_RETURN_NS = 2_600, 4_500, 1_300, 2_800
GRAPH_CALL_NS, GRAPH_NODE_NS = 9_000, 220
SYNC_KINDS = {
    "cudaStreamSynchronize": "Stream Sync", "cudaDeviceSynchronize": "Context Sync",
    "cudaEventSynchronize": "Event Sync", "cudaStreamWaitEvent": "Stream Wait Event",
}  # fmt: skip
LAZY, FLUSH, REQUEST = "Lazy Function Loading", "Buffer Flush", "Activity Buffer Request"


@dataclass(frozen=True, slots=True)
class Call:
    """An API call that starts device work. Its row is in the file only if it was recorded."""

    row: Row
    correlation: int
    recorded: bool = True

    @property
    def external(self) -> int:
        external = self.row.args.get("External id", 0)
        assert isinstance(external, int)
        return external


@dataclass(slots=True)
class Work:
    """One row of device activity; period counts the sampling kernels launched before, but for copies to the host right
    after one, which are of its period."""

    kernel: Kernel
    call: Call
    stream: int
    ts: int
    dur: int
    step: int
    period: int
    graph: tuple[int, int] = (0, 0)
    annotations: tuple[Row, ...] = ()
    recorded: bool = True

    @property
    def end(self) -> int:
        return self.ts + self.dur


@dataclass(frozen=True, slots=True)
class Mark:
    """A step and the ranges around it, outermost first; the last one is the step's mark."""

    shape: StepShape
    ranges: tuple[Row, ...]


@dataclass(slots=True)
class Rank(Thread):
    """The host thread of a rank and its device."""

    played: list[Work] = field(default_factory=list)  # in launch order
    overheads: list[Row] = field(default_factory=list)
    syncs: list[Row] = field(default_factory=list)  # CUPTI's rows of synchronisations
    steps: list[Mark] = field(default_factory=list)
    results: list[Work] = field(default_factory=list)  # each step's copy of its tokens to the host
    free: dict[int, int] = field(default_factory=dict)  # stream: when its last work ends
    loaded: list[str] = field(default_factory=list)  # kernels launched before, outside graphs
    launched: bool = False
    namesakes: Counter[tuple[int, str]] = field(default_factory=Counter)  # kernels so far by step and name
    planted: Counter[str] = field(default_factory=Counter)  # stalls within steps
    replays: int = 0
    period: int = 0
    sampled: bool = False  # and since then only copied to the host

    @property
    def work(self) -> list[Work]:
        """What was recorded of the device, in launch order."""
        return [work for work in self.played if work.recorded]

    def stream(self, role: str) -> int:
        """compute, comm and copy share a stream, or have two, or three."""
        if self.run.streams == 1 or role == "compute":
            return 7
        return 24 if role == "copy" and self.run.streams > 2 else 20

    # ---- calls

    @contextmanager
    def calling(self, name: str, ns: int, recorded: bool = True) -> Iterator[Call]:
        """An API call that starts device work; it lasts for what is spent inside, too."""
        with self.api(name, ns, recorded) as row:
            if not self.launched:
                self.now += self.run.plant.slow_first_launch_ns
                self.launched = True
            yield Call(row, self.correlation, recorded)

    def call(self, name: str, ns: int, recorded: bool = True, held: str = "", held_ns: int = 0) -> Call:
        """The same, held by the profiler or by the loading of code if that is named."""
        with self.calling(name, ns, recorded) as call:
            if held_ns:
                self.overhead(held, held_ns)
        return call

    def overhead(self, name: str, ns: int) -> None:
        """What CUPTI says it did itself meanwhile."""
        cause = "lazy_load_or_jit" if name == LAZY else "profiler"
        self.now += EDGE_NS
        self.overheads.append(Row("X", "overhead", name, -1, 0, self.now, ns, {}, self.step, cause=cause))
        self.now += ns + EDGE_NS

    def arrival(self, call: Call) -> int:
        """When a launch reaches the device."""
        return call.row.end + self.run.device.launch_latency_ns

    def begin(self, kernel: Kernel, call: Call, stream: int, arrival: int, node: tuple[int, int] = (0, 0)) -> Work:
        """Put a row of work on a stream; it starts as soon as it can. Its end is not final if it is a collective."""
        dur = kernel.dur + self._luck(kernel).randrange(max(1, kernel.dur // 32))
        if self.rank and self.rank == self.run.ranks - 1 and kernel.collective is None:
            dur += dur * self.run.straggler_percent // 100
        free = self.free.get(stream, 0)
        ready = free + self.run.device.kernel_gap_ns
        if node[1] > 1:
            previous = self.played[-1]
            ready = free - min(self.run.pdl_overlap_ns, dur // 2, previous.dur // 2)
        ts = max(arrival, ready)
        notes = tuple(row for row in self.stack if row.cat == "user_annotation")
        to_host = self.sampled and "DtoH" in kernel.name
        work = Work(kernel, call, stream, ts, dur, self.step, self.period - to_host, node, notes)
        self.played.append(work)
        self.free[stream] = work.end
        self.period += kernel.category == "sampling"
        self.sampled = to_host or kernel.category == "sampling"
        return work

    def _luck(self, kernel: Kernel) -> random.Random:
        """What decides by how much a kernel takes longer than it could: chance, or in matched runs its name, its step
        and its number among the step's of this name."""
        if not self.run.matched:
            return self.rng
        self.namesakes[self.step, kernel.name] += 1
        return random.Random(f"{self.run.seed} {self.step} {kernel.name} {self.namesakes[self.step, kernel.name]}")

    def dry(self, stream: int | None = None) -> int:
        """When a stream, or the device, has done all it holds."""
        return max(self.free.values(), default=0) if stream is None else self.free.get(stream, 0)

    def synchronize(self, name: str, done: int) -> None:
        """Block until something on the device is done."""
        with self.api(name, SYNC_NS) as row:
            self.now = max(self.now, done + SYNC_RETURN_NS)
        self._note_sync(row, -1)

    def wait_event(self, stream: int) -> None:
        """Let a stream wait for an event; nothing blocks the host."""
        with self.api("cudaStreamWaitEvent", QUERY_NS) as row:
            pass
        self._note_sync(row, stream)

    def _note_sync(self, row: Row, stream: int) -> None:
        args: Args = {"cuda_sync_kind": SYNC_KINDS[row.name], "stream": stream}
        args |= {"correlation": self.correlation, "device": self.rank, "context": 1}
        if self.run.record_syncs:
            kind = SYNC_KINDS[row.name]
            self.syncs.append(Row("X", "cuda_sync", kind, self.rank, stream, row.ts + 1, row.dur - 1, args, self.step))

    # ---- launches

    def launch(self, launch: Launch) -> Work:
        """Frames, ops and the launch call of one kernel."""
        with self.frames(*launch.frames):
            self.leaves(3)
            return self._ops(launch, list(launch.ops))

    def _ops(self, launch: Launch, ops: list[Op]) -> Work:
        if ops:
            with self.op(ops[0]) as row:
                if len(ops) == 1:
                    for view in launch.views:
                        with self.op(view):
                            self.now += VIEW_NS
                    self.memory(512 * (1 + self.rng.randrange(64)))
                if launch.kernel.collective is not None and ops[0].name == "record_param_comms":
                    row.args |= collective_args(launch.kernel, self.run.ranks)
                return self._ops(launch, ops[1:])
        if launch.ops:
            self.spend(self.run.plant.launch_bound_ns)
        self.quick("cudaStreamIsCapturing" if self.correlation % 5 == 0 else "cudaEventQuery")
        stream, after = self.stream(launch.stream), 0
        if launch.after and self.stream(launch.after) != stream:
            self.quick("cudaEventRecordWithFlags")
            self.wait_event(stream)
            after = self.dry(self.stream(launch.after))
        held, held_ns = (FLUSH, launch.held_ns) if launch.held_ns else self._load(launch)
        ns = COPY_CALL_NS if launch.kernel.cat == "gpu_memcpy" else LAUNCH_NS
        call = self.call(launch.api, ns, launch.recorded, held, held_ns)
        return self.begin(launch.kernel, call, stream, max(self.arrival(call), after))

    def _load(self, launch: Launch) -> tuple[str, int]:
        """Load the code of a kernel launched for the first time, here or, by what is returned, within the call.

        Triton compiles first; every third kernel's attributes are asked for before its launch, which loads it.
        """
        ns = self.run.plant.lazy_load_ns
        if not ns or launch.kernel.cat != "kernel" or launch.kernel.name in self.loaded:
            return "", 0
        self.loaded.append(launch.kernel.name)
        if launch.api == "cuLaunchKernelEx":
            with self.frames("triton/compiler/compiler.py(226): compile"):
                self.now += ns
            with self.api("cuModuleLoadData", ns // 2):
                return "", 0
        if len(self.loaded) % 3 == 0:
            with self.api("cudaFuncGetAttributes", QUERY_NS):
                self.overhead(LAZY, ns)
                return "", 0
        return LAZY, ns

    def replay(self, graph: Graph) -> tuple[Call, int]:
        """Replay a graph whose kernels the caller puts on the stream; how many of them are recorded."""
        with self.frames("vllm/compilation/cuda_graph.py(211): __call__", "torch/cuda/graphs.py(139): replay"):
            self.leaves(2)
            ns = GRAPH_CALL_NS + GRAPH_NODE_NS * len(graph.kernels) + self.run.plant.graph_launch_ns
            call = self.call("cudaGraphLaunch", ns)
        self.replays += 1
        kept = len(graph.kernels)
        if self._turn(self.run.lost_replays_percent):
            kept = 0
        elif self._turn(self.run.partial_replays_percent):
            kept //= 2
        return call, kept

    def _turn(self, percent: int) -> bool:
        """Whether this replay is one of so many in a hundred, spread evenly."""
        return self.replays * percent // 100 > (self.replays - 1) * percent // 100

    def result(self, size: int, role: str = "compute") -> Work:
        """Copy a result to pinned host memory; the caller waits for it."""
        stream, after = self.stream(role), 0
        if stream != self.stream("compute"):
            self.quick("cudaEventRecordWithFlags")
            self.wait_event(stream)
            after = self.dry(self.stream("compute"))
        call = self.call("cudaMemcpyAsync", COPY_CALL_NS)
        return self.begin(copy_kernel("DtoH (Device -> Pinned)", size), call, stream, max(self.arrival(call), after))

    def finish(self, requests: int) -> None:
        """Bring the step's tokens to the host; wait for them if the run does, but not if it is asynchronous."""
        with self.frames("vllm/v1/worker/gpu_model_runner.py(2610): _get_output"):
            with (
                self.op(Op("aten::to", ((requests,),), (), "long int")),
                self.op(Op("aten::copy_", ((requests,), (requests,)))),
            ):
                self.results.append(self.result(8 * requests, "copy" if self.run.asynchronous else "compute"))
                self.quick("cudaEventRecordWithFlags")
            if self.run.final_sync and not self.run.asynchronous:
                self.synchronize("cudaEventSynchronize", self.dry(self.stream("compute")))
            self.leaves(2)

    def fetch(self) -> None:
        """Asynchronous scheduling: with this step launched, wait for the tokens of the one before."""
        if len(self.results) > 1:
            with self.frames("vllm/v1/worker/gpu_model_runner.py(230): get_output"):
                self.synchronize("cudaEventSynchronize", self.results[-2].end)
                self.leaves(2)

    def left_over(self, count: int) -> None:
        """Kernels launched before the recording began, back to back but for a little."""
        for number in range(count):
            self.correlation += 1
            row = Row("X", "cuda_runtime", "cudaLaunchKernel", self.pid, self.pid, self.start, 0)
            stream = self.stream("copy" if number % 3 == 2 else "compute")
            kernel = Kernel(ROPE, "rope", 2_000 + 100 * number)
            self.begin(kernel, Call(row, self.correlation, recorded=False), stream, max(self.start, self.dry()) + 700)


def collective_args(kernel: Kernel, ranks: int) -> Args:
    """What record_param_comms and its kernel tell of a collective."""
    assert kernel.collective is not None
    args: Args = {"Collective name": kernel.collective.name, "In msg nelems": kernel.collective.elements_in}
    args |= {"Out msg nelems": kernel.collective.elements_out, "Group size": ranks, "dtype": "BFloat16"}
    args |= {"Process Group Name": "1", "Process Group Description": "tp:0"}
    args["Process Group Ranks"] = str(list(range(ranks)))
    return args
