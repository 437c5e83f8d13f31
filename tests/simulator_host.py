"""One rank's host thread and device, event by event, in integer nanoseconds.

The host's clock advances by what each row costs. A launch reaches the device launch_latency_ns after its call returns;
its kernel starts when that has happened, its stream is free and the stream it waits for has done what it held. A
synchronising call returns SYNC_RETURN_NS after the stream ran dry. All ranks execute the same plan in lockstep, so that
a collective can end on every rank at once: when the last rank has entered it, plus the time of the transfer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tests.simulator_kernels import Kernel, copy_kernel
from tests.simulator_model import Run, StepShape
from tests.simulator_plan import Graph, Hole, Instruction, Item, Launch, Op
from tests.simulator_text import Args, Row, Value

OP_NS, VIEW_NS, FRAME_NS, EDGE_NS = 350, 180, 120, 15  # EDGE_NS: no row begins or ends with the one around it
LAUNCH_NS, COPY_CALL_NS, QUERY_NS, SYNC_NS, SYNC_RETURN_NS = 2_600, 4_500, 260, 1_300, 2_800
GRAPH_CALL_NS, GRAPH_NODE_NS = 9_000, 220
CBIDS = {
    "cudaLaunchKernel": 211, "cudaLaunchKernelExC": 430, "cuLaunchKernelEx": 652, "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51, "cudaGraphLaunch": 311, "cudaStreamSynchronize": 131, "cudaDeviceSynchronize": 165,
    "cudaEventSynchronize": 137, "cudaEventQuery": 138, "cudaEventRecordWithFlags": 370, "cudaStreamWaitEvent": 147,
    "cudaStreamIsCapturing": 317, "cudaPeekAtLastError": 11,
}  # fmt: skip
#: Calls that libkineto starts a flow from; the others get a flow's end only.
FLOW_STARTS = {name for name in CBIDS if "Launch" in name or "Async" in name or "Synchronize" in name}
FILES = (
    "gpu_model_runner",
    "gpu_input_batch",
    "block_table",
    "scheduler",
    "kv_cache_manager",
    "linear",
    "forward_context",
)
VERBS = ("get", "set", "update", "build", "prepare", "apply", "check", "collect")
NOUNS = ("slots", "batch", "metadata", "blocks", "tokens", "config", "mask", "state")


def frame_name(number: int) -> str:
    """One of some thousand Python functions."""
    if number % 5 == 0:
        return f"<built-in method {VERBS[number % 8]} of type object at 0x7f{number * 4096:010x}>"
    file, function = FILES[number % 7], f"{VERBS[number // 7 % 8]}_{NOUNS[number // 56 % 8]}"
    return f"vllm/v1/worker/{file}.py({40 + number * 7 % 2311}): {function}"


@dataclass(slots=True)
class Call:
    """An API call that starts device work, and what the host had done since the one before."""

    begin: int
    end: int
    correlation: int
    external: int
    waited: bool  # the host had waited for the device since its previous launch


@dataclass(slots=True)
class Work:
    """One row of device activity."""

    kernel: Kernel
    call: Call
    stream: int
    ts: int
    dur: int
    step: int
    arrival: int
    graph: tuple[int, int] = (0, 0)
    annotations: tuple[Row, ...] = ()

    @property
    def end(self) -> int:
        return self.ts + self.dur


@dataclass(slots=True)
class Rank:
    """The clocks, rows and records of one rank."""

    run: Run
    rank: int
    start: int
    now: int = 0
    step: int = 0
    external: int = 0
    correlation: int = 0
    python: int = 0
    waited: bool = False
    rng: random.Random = field(default_factory=random.Random)
    host: list[Row] = field(default_factory=list)  # ops, annotations and memory instants, by time
    python_rows: list[Row] = field(default_factory=list)
    calls: list[Row] = field(default_factory=list)  # runtime and driver
    work: list[Work] = field(default_factory=list)
    outside: list[tuple[int, int]] = field(default_factory=list)  # host time between two steps' annotations
    holes: list[tuple[int, int]] = field(default_factory=list)
    steps: list[tuple[StepShape, Row]] = field(default_factory=list)
    free: dict[int, int] = field(default_factory=dict)  # stream: when its last work ends
    stack: list[Row] = field(default_factory=list)
    allocated: int = 2_000_000_000

    def __post_init__(self) -> None:
        self.now = self.start
        self.rng.seed(self.run.seed * 1009 + self.rank)

    @property
    def pid(self) -> int:
        return 5000 + self.rank

    def stream(self, role: str) -> int:
        """compute, comm and copy share a stream, or have two, or three."""
        if self.run.streams == 1 or role == "compute":
            return 7
        return 24 if role == "copy" and self.run.streams > 2 else 20

    def spend(self, ns: int) -> None:
        """Let the host work for ns, give or take an eighth."""
        self.now += ns + self.rng.randrange(ns // 8 + 1) - ns // 16

    @contextmanager
    def frames(self, *names: str) -> Iterator[None]:
        """Python functions around what follows, outermost first, each calling one or two others that return."""
        opened = [self._frame(name) for name in names]
        yield
        for row in reversed(opened):
            self._close(row)

    def _frame(self, name: str) -> Row:
        self.now += FRAME_NS
        parent = next((row.args["Python id"] for row in reversed(self.stack) if row.cat == "python_function"), None)
        self.python += 1
        args: Args = {"Python parent id": parent, "Python id": self.python}
        if name.startswith("nn.Module"):
            args["Python module id"] = int(name.rpartition("_")[2]) if name[-1].isdigit() else 0
        row = Row("X", "python_function", name, self.pid, self.pid, self.now, 0, args, self.step)
        self.python_rows.append(row)
        self.stack.append(row)
        return row

    def leaves(self, count: int) -> None:
        """Python calls that do a little and return."""
        for _ in range(count):
            row = self._frame(frame_name(self.rng.randrange(3000)))
            self.now += self.rng.randrange(FRAME_NS)
            self._close(row)

    def _close(self, row: Row) -> None:
        assert self.stack.pop() is row
        self.now += EDGE_NS
        row.dur = self.now - row.ts

    @contextmanager
    def op(self, op: Op) -> Iterator[Row]:
        """An op around what follows."""
        self.external += 1
        self.now += EDGE_NS
        args: Args = {"External id": self.external, "Record function id": 0}
        if self.run.record_shapes:
            args |= _shapes(op)
        row = Row("X", "cpu_op", op.name, self.pid, self.pid, self.now, 0, args, self.step)
        self.host.append(row)
        self.stack.append(row)
        self.spend(OP_NS)
        yield row
        self.spend(OP_NS // 3)
        self._close(row)

    @contextmanager
    def annotation(self, name: str) -> Iterator[Row]:
        """record_function around what follows."""
        self.external += 1
        self.now += EDGE_NS
        args: Args = {"External id": self.external, "Record function id": 0}
        row = Row("X", "user_annotation", name, self.pid, self.pid, self.now, 0, args, self.step)
        self.host.append(row)
        self.stack.append(row)
        yield row
        self._close(row)

    def memory(self, size: int) -> None:
        """What profile_memory records of an allocation."""
        if self.run.profile_memory:
            self.allocated += size
            args: Args = {"Total Reserved": 68_719_476_736, "Total Allocated": self.allocated, "Bytes": size}
            args |= {"Addr": 139_000_000_000_000 + self.allocated, "Device Id": self.rank, "Device Type": 1}
            self.host.append(
                Row("i", "cpu_instant_event", "[memory]", self.pid, self.pid, self.now, -1, args, self.step)
            )

    def api(self, name: str, ns: int, until: int = 0) -> Row:
        """A runtime or driver call of ns, or one that blocks until a time."""
        self.correlation += 1
        self.now += EDGE_NS
        around = next((row for row in reversed(self.stack) if row.cat == "cpu_op"), None)
        args: Args = {} if around is None else {"External id": around.args["External id"]}
        args |= {"cbid": CBIDS[name], "correlation": self.correlation}
        cat = "cuda_driver" if name.startswith("cuL") else "cuda_runtime"
        row = Row("X", cat, name, self.pid, self.pid, self.now, 0, args, self.step)
        self.calls.append(row)
        self.spend(ns)
        self.now = max(self.now, until)
        row.dur = self.now - row.ts
        return row

    def call(self, name: str, ns: int) -> Call:
        """An API call that starts device work."""
        row = self.api(name, ns)
        external = row.args.get("External id", 0)
        assert isinstance(external, int)
        call = Call(row.ts, self.now, self.correlation, external, self.waited)
        self.waited = False
        return call

    def begin(self, kernel: Kernel, call: Call, stream: int, after: int, node: tuple[int, int] = (0, 0)) -> Work:
        """Put a row of work on a stream; it starts as soon as it can. Its end is not final if it is a collective."""
        arrival = max(call.end + self.run.device.launch_latency_ns, after)
        dur = kernel.dur + self.rng.randrange(max(1, kernel.dur // 32))
        if self.rank and self.rank == self.run.ranks - 1 and kernel.collective is None:
            dur += dur * self.run.straggler_percent // 100
        free = self.free.get(stream, 0)
        ready = free + self.run.device.kernel_gap_ns
        if node[1] > 1:
            previous = self.work[-1]
            ready = free - min(self.run.pdl_overlap_ns, dur // 2, previous.dur // 2)
        ts = max(arrival, ready)
        notes = tuple(row for row in self.stack if row.cat == "user_annotation")
        work = Work(kernel, call, stream, ts, dur, self.step, arrival, node, notes)
        self.work.append(work)
        self.free[stream] = work.end
        return work

    def synchronize(self, name: str, stream: int | None = None) -> None:
        """Block until a stream, or the device, has run dry."""
        dry = max(self.free.values(), default=0) if stream is None else self.free.get(stream, 0)
        self.api(name, SYNC_NS, until=dry + SYNC_RETURN_NS)
        self.waited = True

    def launch(self, launch: Launch) -> Work:
        """Frames, ops and the launch call of one kernel."""
        frames = list(launch.frames)
        with self.frames(*frames):
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
        self.api("cudaStreamIsCapturing" if self.correlation % 5 == 0 else "cudaEventQuery", QUERY_NS)
        stream, after = self.stream(launch.stream), 0
        if launch.after and self.stream(launch.after) != stream:
            self.api("cudaEventRecordWithFlags", QUERY_NS)
            self.api("cudaStreamWaitEvent", QUERY_NS)
            after = self.free.get(self.stream(launch.after), 0)
        call = self.call(launch.api, COPY_CALL_NS if launch.kernel.cat == "gpu_memcpy" else LAUNCH_NS)
        return self.begin(launch.kernel, call, stream, after)

    def graph_call(self, graph: Graph) -> Call:
        """Replay a graph; its kernels are put on the stream by the caller."""
        with self.frames("vllm/compilation/cuda_graph.py(211): __call__", "torch/cuda/graphs.py(139): replay"):
            self.leaves(2)
            return self.call("cudaGraphLaunch", GRAPH_CALL_NS + GRAPH_NODE_NS * len(graph.kernels))

    def item(self, item: Item) -> None:
        """aten::item and the host work that follows it."""
        with self.op(Op("aten::item", ((1,),))), self.op(Op("aten::_local_scalar_dense", ((1,),))):
            self.result(4)
            self.synchronize("cudaStreamSynchronize", self.stream("compute"))
        if item.refill_ns:
            with (
                self.annotation("gpu_model_runner: bookkeep"),
                self.frames("vllm/v1/worker/gpu_model_runner.py(1702): _bookkeep"),
            ):
                self.now += item.refill_ns

    def result(self, size: int) -> None:
        """Copy a result to pinned host memory; the caller waits for it."""
        stream = self.stream("compute")
        self.begin(copy_kernel("DtoH (Device -> Pinned)", size), self.call("cudaMemcpyAsync", COPY_CALL_NS), stream, 0)

    def finish(self, requests: int) -> None:
        """Bring the step's tokens to the host, and wait for them if the run does."""
        with self.frames("vllm/v1/worker/gpu_model_runner.py(2610): _get_output"):
            with (
                self.op(Op("aten::to", ((requests,),), (), "long int")),
                self.op(Op("aten::copy_", ((requests,), (requests,)))),
            ):
                self.result(8 * requests)
                self.api("cudaEventRecordWithFlags", QUERY_NS)
            if self.run.final_sync:
                self.synchronize("cudaEventSynchronize", self.stream("compute"))
            self.leaves(2)

    def hole(self, hole: Hole) -> None:
        """Record nothing until the device has run dry and idled."""
        begin = self.now
        self.now = max(self.now, *self.free.values()) + hole.idle_ns
        self.holes.append((begin, self.now))

    def between(self) -> None:
        """Schedule the next step."""
        begin = self.now
        with self.frames("vllm/v1/core/sched/scheduler.py(214): schedule"):
            self.leaves(3)
            self.now += self.run.plant.between_steps_ns
        self.outside.append((begin, self.now))


def execute(ranks: list[Rank], shape: StepShape, plan: list[Instruction]) -> None:
    """One step on every rank."""
    for rank in ranks:
        rank.step = shape.index
        if shape.index:
            rank.between()
    with ExitStack() as stack:
        for rank in ranks:
            stack.enter_context(rank.frames("vllm/v1/worker/gpu_worker.py(371): execute_model"))
            rank.steps.append((shape, stack.enter_context(rank.annotation(shape.annotation))))
            rank.leaves(4)
        for instruction in plan:
            _instruction(ranks, instruction)
        for rank in ranks:
            rank.finish(shape.requests)


def _instruction(ranks: list[Rank], instruction: Instruction) -> None:
    if isinstance(instruction, Launch):
        _together(ranks, [rank.launch(instruction) for rank in ranks])
    elif isinstance(instruction, Graph):
        calls = [rank.graph_call(instruction) for rank in ranks]
        for number, kernel in enumerate(instruction.kernels, start=1):
            node = (instruction.graph_id, number)
            stream = ranks[0].stream("compute")
            _together(
                ranks, [rank.begin(kernel, call, stream, 0, node) for rank, call in zip(ranks, calls, strict=True)]
            )
    elif isinstance(instruction, Item):
        for rank in ranks:
            rank.item(instruction)
    else:
        for rank in ranks:
            rank.hole(instruction)


def _together(ranks: list[Rank], works: list[Work]) -> None:
    """A collective ends on every rank when its transfer, begun by the last rank to enter, is done."""
    if works[0].kernel.collective is None:
        return
    end = max(work.ts for work in works) + works[0].dur
    for rank, work in zip(ranks, works, strict=True):
        work.dur = end - work.ts
        rank.free[work.stream] = end


def collective_args(kernel: Kernel, ranks: int) -> Args:
    """What record_param_comms and its kernel tell of a collective."""
    assert kernel.collective is not None
    args: Args = {"Collective name": kernel.collective.name, "In msg nelems": kernel.collective.elements_in}
    args |= {"Out msg nelems": kernel.collective.elements_out, "Group size": ranks, "dtype": "BFloat16"}
    args |= {"Process Group Name": "1", "Process Group Description": "tp:0"}
    args["Process Group Ranks"] = str(list(range(ranks)))
    return args


def _shapes(op: Op) -> Args:
    blank: list[Value] = [[] for _ in op.scalars]
    dims: list[Value] = [list(shape) for shape in op.tensors]
    return {
        "Concrete Inputs": [*([""] * len(op.tensors)), *op.scalars],
        "Input type": [*([op.dtype] * len(op.tensors)), *(["Scalar"] * len(op.scalars))],
        "Input Strides": [*(_strides(shape) for shape in op.tensors), *blank],
        "Input Dims": [*dims, *blank],
    }


def _strides(shape: tuple[int, ...]) -> list[Value]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return list(reversed(strides))
