"""A host thread, event by event, in integer nanoseconds: its clock advances by what each row costs.

Whenever a row begins or ends the thread paints which rows hold it from now on: that is all the truth needs to know.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.simulator_instructions import Op, Typed
from tests.simulator_model import Run
from tests.simulator_text import Args, Row, Value

OP_NS, VIEW_NS, FRAME_NS, QUERY_NS = 350, 180, 120, 260
EDGE_NS = 15  # no row begins or ends with the one around it
CBIDS = {
    "cudaLaunchKernel": 211, "cudaLaunchKernelExC": 430, "cuLaunchKernelEx": 652, "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51, "cudaGraphLaunch": 311, "cudaStreamSynchronize": 131, "cudaDeviceSynchronize": 165,
    "cudaEventSynchronize": 137, "cudaEventQuery": 138, "cudaEventRecordWithFlags": 370, "cudaStreamWaitEvent": 147,
    "cudaStreamIsCapturing": 317, "cudaPeekAtLastError": 11, "cudaMalloc": 20, "cudaFree": 22,
    "cudaFuncGetAttributes": 15, "cuModuleLoadData": 45,
}  # fmt: skip
#: Causes of idle time that a call's name alone tells.
CALL_CAUSES = {
    "cudaStreamSynchronize": "sync", "cudaDeviceSynchronize": "sync", "cudaEventSynchronize": "sync",
    "cudaGraphLaunch": "graph_launch", "cudaMalloc": "allocation", "cudaFree": "allocation",
    "cuModuleLoadData": "lazy_load_or_jit",
}  # fmt: skip
#: The same for ops.
OP_CAUSES = {"c10d::barrier": "communication_wait", "aten::pin_memory": "input_preparation"}
#: The same for Python functions, by the function's name.
FRAME_CAUSES = {
    "_prepare_inputs": "input_preparation", "schedule": "scheduler", "_bookkeeping_sync": "scheduler",
    "compile": "lazy_load_or_jit", "recv_requests": "requests", "barrier": "communication_wait",
    "Python GC": "gc",
}  # fmt: skip
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
class Thread:
    """The thread of a rank that launches: its clock and its rows."""

    run: Run
    rank: int
    start: int
    now: int = 0
    step: int = 0
    external: int = 0
    correlation: int = 0
    python: int = 0
    rng: random.Random = field(default_factory=random.Random)
    host: list[Row] = field(default_factory=list)  # ops, annotations and memory instants, by time
    python_rows: list[Row] = field(default_factory=list)
    calls: list[Row] = field(default_factory=list)  # runtime and driver
    stack: list[Row] = field(default_factory=list)
    painted: list[tuple[int, tuple[Row, ...]]] = field(default_factory=list)  # from when on which rows held the thread
    allocated: int = 2_000_000_000

    def __post_init__(self) -> None:
        self.now = self.start
        self.rng.seed(self.run.seed * 1009 + self.rank)

    @property
    def pid(self) -> int:
        return 5000 + self.rank

    def spend(self, ns: int) -> None:
        """Let the host work for ns, give or take an eighth."""
        self.now += ns + self.rng.randrange(ns // 8 + 1) - ns // 16

    def _open(self, row: Row) -> None:
        self.stack.append(row)
        self.painted.append((self.now, tuple(self.stack)))

    def _close(self, row: Row) -> None:
        assert self.stack.pop() is row
        row.dur = self.now - row.ts
        self.painted.append((self.now, tuple(self.stack)))

    @contextmanager
    def frames(self, *names: str) -> Iterator[None]:
        """Python functions around what follows, outermost first."""
        opened = [self._frame(name) for name in names]
        yield
        for row in reversed(opened):
            self.now += EDGE_NS
            self._close(row)

    def _frame(self, name: str) -> Row:
        self.now += FRAME_NS
        row = self._function(name, self.pid)
        self._open(row)
        return row

    def _function(self, name: str, tid: int) -> Row:
        """The row of a Python function that begins now, its parent the innermost open one if it is on this thread."""
        open_ = (row.args["Python id"] for row in reversed(self.stack) if row.cat == "python_function")
        self.python += 1
        args: Args = {"Python parent id": next(open_, None) if tid == self.pid else None, "Python id": self.python}
        if name.startswith("nn.Module"):
            args["Python module id"] = int(name.rpartition("_")[2]) if name[-1].isdigit() else 0
        cause = FRAME_CAUSES.get(name.rpartition(": ")[2], "")
        row = Row("X", "python_function", name, self.pid, tid, self.now, 0, args, self.step, cause=cause)
        self.python_rows.append(row)
        return row

    def elsewhere(self, name: str, ns: int) -> Row:
        """A Python function on another thread of the process, while this one waits for it."""
        self.now += EDGE_NS
        row = self._function(name, self.pid + 1)
        row.dur = ns
        self.now += ns + EDGE_NS
        return row

    def leaves(self, count: int) -> None:
        """Python calls that do a little and return."""
        for _ in range(count):
            with self.frames(frame_name(self.rng.randrange(3000))):
                self.now += self.rng.randrange(FRAME_NS)

    @contextmanager
    def op(self, op: Op) -> Iterator[Row]:
        """An op around what follows."""
        self.external += 1
        self.now += EDGE_NS
        args: Args = {"External id": self.external, "Record function id": 0}
        if self.run.record_shapes:
            args |= _shapes(op)
        cause = OP_CAUSES.get(op.name, "")
        row = Row("X", "cpu_op", op.name, self.pid, self.pid, self.now, 0, args, self.step, cause=cause)
        self.host.append(row)
        self._open(row)
        self.spend(OP_NS)
        yield row
        self.spend(OP_NS // 3)
        self.now += EDGE_NS
        self._close(row)

    @contextmanager
    def annotation(self, name: str, cause: str = "") -> Iterator[Row]:
        """record_function around what follows."""
        self.external += 1
        self.now += EDGE_NS
        args: Args = {"External id": self.external, "Record function id": 0}
        row = Row("X", "user_annotation", name, self.pid, self.pid, self.now, 0, args, self.step, cause=cause)
        self.host.append(row)
        self._open(row)
        yield row
        self.now += EDGE_NS
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

    @contextmanager
    def api(self, name: str, ns: int, recorded: bool = True) -> Iterator[Row]:
        """A runtime or driver call that takes ns and what is spent inside; unless recorded it leaves no row."""
        self.correlation += 1
        self.now += EDGE_NS
        around = next((row for row in reversed(self.stack) if row.cat == "cpu_op"), None)
        args: Args = {} if around is None else {"External id": around.args["External id"]}
        args |= {"cbid": CBIDS[name], "correlation": self.correlation}
        cat = "cuda_driver" if name in ("cuLaunchKernelEx", "cuModuleLoadData") else "cuda_runtime"
        row = Row("X", cat, name, self.pid, self.pid, self.now, 0, args, self.step, cause=CALL_CAUSES.get(name, ""))
        if recorded:
            self.calls.append(row)
            self._open(row)
        self.spend(ns)
        yield row
        row.dur = self.now - row.ts
        if recorded:
            self._close(row)

    def quick(self, *names: str) -> None:
        """API calls that ask or note something and start no work."""
        for name in names:
            with self.api(name, QUERY_NS):
                pass


def _shapes(op: Op) -> Args:
    types: list[Value] = []
    values: list[Value] = []
    dims: list[Value] = []
    strides: list[Value] = []
    for one in (*op.tensors, *op.scalars):
        shape = () if isinstance(one, str) else one.shape if isinstance(one, Typed) else one
        types.append("Scalar" if isinstance(one, str) else one.dtype if isinstance(one, Typed) else op.dtype)
        values.append(one if isinstance(one, str) else "")
        dims.append(list(shape))
        strides.append(_strides(shape))
    return {"Concrete Inputs": values, "Input type": types, "Input Strides": strides, "Input Dims": dims}


def _strides(shape: tuple[int, ...]) -> list[Value]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return list(reversed(strides))
