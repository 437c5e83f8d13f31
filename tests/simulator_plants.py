"""Planted causes of idle time: what each makes the host thread, or the device, do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from tests.simulator_host import COPY_CALL_NS, LAUNCH_NS, REQUEST, SYNC_RETURN_NS, Rank
from tests.simulator_instructions import Launch, Op, Stall, Typed
from tests.simulator_kernels import ARANGE, MASK, Kernel, copy_kernel
from tests.simulator_marks import is_serving

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
PAGEABLE_BYTES = 200_000
LEGACY_STREAM = 0
ARANGE_BLOCK = 64


def _item(rank: Rank, ns: int) -> None:
    """aten::item and the host work that follows it."""
    with rank.op(Op("aten::item", ((1,),))), rank.op(Op("aten::_local_scalar_dense", ((1,),))):
        rank.result(4)
        rank.synchronize("cudaStreamSynchronize", rank.dry(rank.stream("compute")))
    if ns:
        with rank.op(Op("aten::cumsum", ((ns // 500 + 1,),), ("0", ""), "long int")):
            rank.now += ns


def _hole(rank: Rank, ns: int) -> None:
    """Record nothing until the device has run dry and idled."""
    rank.now = max(rank.now, rank.dry()) + ns


def _pageable_input(rank: Rank, ns: int) -> None:
    """The driver stages the bytes, and returns when they have arrived."""
    _pageable(rank, "HtoD (Pageable -> Device)", ns)


def _pageable_output(rank: Rank, ns: int) -> None:
    """The call waits for all work before it, and then for the copy."""
    _pageable(rank, "DtoH (Device -> Pageable)", ns)


def _pageable(rank: Rank, kinds: str, ns: int) -> None:
    ops = Op("aten::copy_", ((PAGEABLE_BYTES,), (PAGEABLE_BYTES,)), ("False",), "signed char")
    with rank.op(ops), rank.calling("cudaMemcpyAsync", COPY_CALL_NS + ns) as call:
        call.row.cause = "pageable_copy"
        work = rank.begin(copy_kernel(kinds, PAGEABLE_BYTES), call, rank.stream("compute"), rank.now)
        rank.now = work.end + SYNC_RETURN_NS


def _allocation(rank: Rank, ns: int) -> None:
    with rank.op(Op("aten::empty", (), (f"[{ns}]", "15", "", "", "False", ""))), rank.api("cudaMalloc", ns):
        pass
    with rank.api("cudaFree", ns // 2):
        pass


def _input_preparation(rank: Rank, ns: int) -> None:
    """In an engine's stage; what is no engine only pins memory."""
    with ExitStack() as stack:
        if is_serving(rank.run.marks):
            stack.enter_context(rank.annotation("gpu_model_runner: preprocess", "input_preparation"))
        stack.enter_context(rank.frames(f"{RUNNER}(1160): _prepare_inputs"))
        rank.leaves(2)
        with rank.op(Op("aten::pin_memory", ((PAGEABLE_BYTES,),))):
            rank.now += ns


def _bookkeeping(rank: Rank, ns: int) -> None:
    with rank.annotation("gpu_model_runner: bookkeep", "scheduler"), rank.frames(f"{RUNNER}(1702): _bookkeeping_sync"):
        rank.leaves(2)
        rank.now += ns


def _python(rank: Rank, ns: int) -> None:
    with rank.frames("serve/logits.py(31): apply_grammar", "serve/logits.py(57): advance"):
        rank.now += ns


def _garbage(rank: Rank, ns: int) -> None:
    with rank.frames("vllm/v1/sample/metadata.py(12): clone", "Python GC"):
        rank.now += ns


def _garbage_elsewhere(rank: Rank, ns: int) -> None:
    """Another thread holds the interpreter lock for it."""
    with rank.frames("vllm/v1/core/block_pool.py(88): free_blocks"):
        rank.elsewhere("Python GC", ns)


def _barrier(rank: Rank, ns: int) -> None:
    with rank.frames("torch/distributed/distributed_c10d.py(4157): barrier"), rank.op(Op("c10d::barrier")):
        rank.now += ns


def _profiler(rank: Rank, ns: int) -> None:
    """CUPTI asks for a buffer while the host is in some op."""
    with rank.op(Op("aten::view", ((8,),), ("[8]",))):
        rank.overhead(REQUEST, ns)


def _dependency(rank: Rank, ns: int) -> None:
    """The compute stream waits for an event that comes ns after it has run dry."""
    stream = rank.stream("compute")
    rank.wait_event(stream)
    rank.free[stream] = max(rank.now, rank.dry()) + ns


def _dependency_aside(rank: Rank, ns: int) -> None:
    """The same, and then a copy is launched on another stream, which waits for something later still."""
    _dependency(rank, ns)
    aside = rank.stream("copy")
    rank.wait_event(aside)
    rank.free[aside] = rank.dry() + 5_000
    call = rank.call("cudaMemcpyAsync", COPY_CALL_NS)
    rank.begin(copy_kernel("DtoH (Device -> Pinned)", 64), call, aside, rank.arrival(call))


def _legacy_stream(rank: Rank, _: int) -> None:
    """A kernel of an extension that names no stream: it waits for all others, and they for it."""
    mask = Kernel(MASK, "other", rank.run.device.floor_ns)
    with rank.frames("serve/mask.py(18): apply"), rank.op(Op("serve::apply_mask", ((128,), Typed("int", (128,))))):
        call = rank.call("cudaLaunchKernel", LAUNCH_NS)
        work = rank.begin(mask, call, LEGACY_STREAM, max(rank.arrival(call), rank.dry()))
    rank.free = {stream: max(free, work.end) for stream, free in rank.free.items()}


def _varying_shape(rank: Rank, _: int) -> None:
    """As many indices as there are tokens by now."""
    blocks = 1 + rank.step
    size = str(blocks * ARANGE_BLOCK)
    arange = Kernel(ARANGE, "elementwise", rank.run.device.floor_ns, grid=(blocks, 1, 1), block=(ARANGE_BLOCK, 1, 1))
    ops = (
        Op("aten::arange", (), (size, "4", "", "", "False")),
        Op("aten::arange", (), ("0", size, "1", "4"), "long int"),
    )
    rank.launch(Launch((f"{RUNNER}(933): _indices",), ops, (), "cudaLaunchKernel", arange))


IN_STEP: Mapping[Stall, Callable[[Rank, int], None]] = {
    "item": _item,
    "hole": _hole,
    "pageable_input": _pageable_input,
    "pageable_output": _pageable_output,
    "allocation": _allocation,
    "input_preparation": _input_preparation,
    "bookkeeping": _bookkeeping,
    "python": _python,
    "garbage": _garbage,
    "barrier": _barrier,
    "profiler": _profiler,
    "dependency": _dependency,
    "dependency_aside": _dependency_aside,
    "legacy_stream": _legacy_stream,
    "varying_shape": _varying_shape,
}


def between_steps(rank: Rank) -> None:
    """Deal with the tokens of a step and schedule the next."""
    plant = rank.run.plant
    if plant.scheduler_ns:
        with rank.annotation("llm_engine step: process_outputs", "scheduler"):
            rank.now += plant.scheduler_ns // 2
    if plant.communication_wait_ns:
        with rank.annotation("gloo:broadcast", "communication_wait"):
            rank.now += plant.communication_wait_ns
    if plant.no_requests_ns:
        with rank.frames("sglang/srt/managers/scheduler.py(1036): recv_requests"):
            rank.now += plant.no_requests_ns
    if plant.python_ns:
        _python(rank, plant.python_ns)
    if plant.gc_ns:
        _garbage_elsewhere(rank, plant.gc_ns)
    with rank.frames("vllm/v1/core/sched/scheduler.py(214): schedule"):
        rank.leaves(3)
        rank.now += plant.between_steps_ns
        if plant.scheduler_ns:
            with rank.annotation("schedule: allocate_slots", "scheduler"):
                rank.now += plant.scheduler_ns // 2
