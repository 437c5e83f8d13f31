"""Serving steps, executed by all ranks in lockstep.

So a collective can end on every rank at once: when the last rank has entered it, plus the time of the transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from tests.simulator_host import Mark, Rank, Work
from tests.simulator_instructions import Graph, Instruction, Launch
from tests.simulator_marks import forward_only, mark_names
from tests.simulator_model import Run, StepShape, step_shapes
from tests.simulator_plan import step_plan
from tests.simulator_plants import IN_STEP, between_steps


def serve(run: Run, ranks: list[Rank]) -> None:
    """The whole recording."""
    with ExitStack() as stack:
        for rank in ranks:
            rank.left_over(run.orphans)
            stack.enter_context(
                rank.frames("threading.py(1010): run", "vllm/v1/executor/multiproc_executor.py(655): worker_busy_loop")
            )
        for shape in step_shapes(run):
            _step(run, ranks, shape)
        for rank in ranks:
            rank.step = run.steps
            rank.synchronize("cudaDeviceSynchronize", rank.dry())


def _step(run: Run, ranks: list[Rank], shape: StepShape) -> None:
    plan = step_plan(run, shape)
    for rank in ranks:
        rank.step = shape.index
        if shape.index:
            between_steps(rank)
    with ExitStack() as whole, ExitStack() as marked:
        for rank in ranks:
            whole.enter_context(rank.frames("vllm/v1/worker/gpu_worker.py(371): execute_model"))
            names = mark_names(run, shape)
            *around, mark = names or [""]
            ranges = [whole.enter_context(rank.annotation(name)) for name in around]
            if mark:
                inner = marked if forward_only(run.marks) else whole
                ranges.append(inner.enter_context(rank.annotation(mark)))
                rank.steps.append(Mark(shape, tuple(ranges)))
            rank.leaves(4)
        _execute(ranks, plan.forward)
        marked.close()
        _execute(ranks, plan.head)
        for rank in ranks:
            rank.finish(shape.requests)
    if run.asynchronous:
        for rank in ranks:
            rank.fetch()


def _execute(ranks: list[Rank], instructions: Sequence[Instruction]) -> None:
    for instruction in instructions:
        if isinstance(instruction, Launch):
            _together(ranks, [rank.launch(instruction) for rank in ranks])
        elif isinstance(instruction, Graph):
            _replay(ranks, instruction)
        else:
            for rank in ranks:
                rank.planted[instruction.stall] += 1
                IN_STEP[instruction.stall](rank, instruction.ns)


def _replay(ranks: list[Rank], graph: Graph) -> None:
    replays = [rank.replay(graph) for rank in ranks]
    for number, kernel in enumerate(graph.kernels, start=1):
        works = []
        for rank, (call, kept) in zip(ranks, replays, strict=True):
            node = (graph.graph_id, number)
            work = rank.begin(kernel, call, rank.stream("compute"), rank.arrival(call), node)
            work.recorded = number <= kept
            works.append(work)
        _together(ranks, works)


def _together(ranks: list[Rank], works: list[Work]) -> None:
    """A collective ends on every rank when its transfer, begun by the last rank to enter, is done."""
    if works[0].kernel.collective is None:
        return
    end = max(work.ts for work in works) + works[0].dur
    for rank, work in zip(ranks, works, strict=True):
        work.dur = end - work.ts
        rank.free[work.stream] = end
