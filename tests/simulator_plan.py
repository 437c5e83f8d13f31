"""What a serving step asks of host and device, in launch order, and where causes of idle time are planted in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.simulator_instructions import Graph, Instruction, Launch, Planted, Stall
from tests.simulator_kernels import Kernel
from tests.simulator_layers import Builder
from tests.simulator_model import Run, StepShape

GRAPHS_OF_A_SIZE = 1_000  # the graphs of the next larger batch count on from the next thousand


@dataclass(frozen=True, slots=True)
class Plan:
    """A step from its input preparation to the forward pass's last launch; then logits and sampling."""

    forward: tuple[Instruction, ...]
    head: tuple[Instruction, ...]


def step_plan(run: Run, shape: StepShape) -> Plan:
    """Everything between a step's begin and its last launch."""
    exact, size = Builder(run, shape), graph_size(run, shape)
    builder = Builder(run, replace(shape, padding=size - shape.decode_requests)) if size else exact
    layers = [builder.layer(index) for index in range(run.model.layers)]
    inputs = exact.inputs()
    body: list[Launch] = [*inputs, builder.embedding()]
    starts = []
    for layer in layers:
        starts.append(len(body))
        body.extend(layer)
    body.extend(builder.norm("model.norm"))
    planted = _planted(run, starts)
    forward: list[Instruction] = []
    if run.plant.input_preparation_ns:
        forward.append(Planted("input_preparation", run.plant.input_preparation_ns))
    if not size:
        for index, launch in enumerate(body):
            forward.extend(planted.get(index, ()))
            forward.append(launch)
    else:
        copies = len(inputs)
        forward.extend(inputs)
        within = {index - copies: extra for index, extra in planted.items()}
        forward.extend(_graphs(run, body[copies:], within, GRAPHS_OF_A_SIZE * _sizes(run).index(size)))
    return Plan(tuple(forward), tuple(_head(run, exact.head())))


def graph_size(run: Run, shape: StepShape) -> int:
    """The batch of the graph that the step replays, 0 if it is eager."""
    if run.mode == "eager" or shape.phase != "decode":
        return 0
    return next((size for size in _sizes(run) if size >= shape.decode_requests), 0)


def _sizes(run: Run) -> list[int]:
    return sorted({*(run.capture_sizes or run.batches or (run.batch,))})


def _head(run: Run, launches: list[Launch]) -> list[Instruction]:
    """Logits and sampling; the first launch may be held by the profiler, the calls after it not be recorded."""
    lost = run.plant.lost_calls_per_step
    held = [replace(launches[0], held_ns=run.plant.profiler_ns)]
    held += [replace(launch, recorded=index >= lost) for index, launch in enumerate(launches[1:])]
    bookkeeping = [Planted("bookkeeping", run.plant.scheduler_ns)] if run.plant.scheduler_ns else []
    return [*held, *bookkeeping]


def _planted(run: Run, starts: list[int]) -> dict[int, list[Instruction]]:
    """What is planted within the forward pass, by the position in the body that it comes before."""
    plant = run.plant
    aside: Stall = "dependency_aside" if run.streams > 1 else "dependency"
    kinds: list[tuple[int, int, tuple[Stall, ...], int]] = [
        (plant.syncs_per_step, plant.sync_refill_ns, ("item",), 0),
        (plant.holes_per_step, plant.hole_ns, ("hole",), 3),
        (plant.pageable_copies_per_step, plant.pageable_copy_ns, ("pageable_input", "pageable_output"), 1),
        (plant.dependencies_per_step, plant.dependency_ns, (aside, "dependency"), 2),
        (plant.allocation_ns > 0, plant.allocation_ns, ("allocation",), 4),
        (plant.python_ns > 0, plant.python_ns, ("python",), 5),
        (plant.gc_ns > 0, plant.gc_ns, ("garbage",), 6),
        (plant.communication_wait_ns > 0, plant.communication_wait_ns, ("barrier",), 7),
        (plant.profiler_ns > 0, plant.profiler_ns, ("profiler",), 8),
        (plant.legacy_stream_per_step, 0, ("legacy_stream",), 6),
        (plant.varying_shapes, 0, ("varying_shape",), 7),
    ]
    planted: dict[int, list[Instruction]] = {}
    for count, ns, stalls, offset in kinds:
        for turn in range(count):
            at = starts[turn * len(starts) // count] + offset
            planted.setdefault(at, []).append(Planted(stalls[turn % len(stalls)], ns))
    return planted


def _graphs(run: Run, body: list[Launch], planted: dict[int, list[Instruction]], number: int) -> list[Instruction]:
    """The body as graph replays: one in all, or pieces with the cache write and attention eager between.

    Ids count on from number. Offload copies stay outside. A planted instruction splits nothing: it comes before the
    next replay or eager launch.
    """
    plan: list[Instruction] = []
    piece: list[Kernel] = []
    aside: list[Instruction] = []

    def flush() -> None:
        nonlocal number, piece, aside
        plan.extend(aside)
        if piece:
            number += 1
            plan.append(Graph(number, tuple(piece)))
        piece, aside = [], []

    for index, launch in enumerate(body):
        aside.extend(planted.get(index, ()))
        eager = run.mode == "piecewise_graph" and launch.kernel.category in ("kv_cache", "attention")
        if launch.stream == "copy" or eager:
            if eager:
                flush()
            plan.append(launch)
        else:
            piece.append(launch.kernel)
    flush()
    return plan
