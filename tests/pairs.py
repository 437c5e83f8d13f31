"""The same serving run before and after a change, and how much time a step really saves by it.

An estimate of the change, made from the trace before it alone, can be held against that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from tests.simulator import LLAMA_8B, TINY, Run, play, write
from tests.simulator_host import Rank
from tests.simulator_model import Fusion, step_shapes
from tracekit.convert import convert


@dataclass(frozen=True, slots=True)
class Pair:
    """Two recordings as Parquet files, and the device periods of their steady decode steps in ns.

    A step's period lasts from the start of its first device work to that of the next step's. steps are those whose
    period is known in both recordings: decode steps before another one, but for the first. Of rank 0.
    """

    before: Path
    after: Path
    steps: tuple[int, ...]
    before_ns: tuple[int, ...]
    after_ns: tuple[int, ...]

    @property
    def true_before_ns(self) -> int:
        return int(median(self.before_ns))

    @property
    def true_after_ns(self) -> int:
        return int(median(self.after_ns))

    @property
    def true_saving_ns(self) -> int:
        """The mean over the steps, negative if they became longer."""
        return round(mean(before - after for before, after in zip(self.before_ns, self.after_ns, strict=True)))


def pair(before: Run, after: Run, folder: Path) -> Pair:
    """Record both runs into the folder."""
    first, second = record(before, folder, "before"), record(after, folder, "after")
    steps = sorted(first.keys() & second.keys())
    return Pair(
        folder / "before.parquet", folder / "after.parquet", tuple(steps),
        tuple(first[step] for step in steps), tuple(second[step] for step in steps),
    )  # fmt: skip


def record(run: Run, folder: Path, name: str) -> dict[int, int]:
    """Write the run, with the luck of all others, as name.parquet; the period of each steady decode step."""
    run = replace(run, matched=True)
    ranks = play(run)
    raw = folder / f"{name}.{'ranks' if run.ranks > 1 else 'json'}"
    write(run, ranks, raw)
    convert([raw], folder / f"{name}.parquet")
    return periods(run, ranks[0])


def periods(run: Run, rank: Rank) -> dict[int, int]:
    """By step, as Pair defines it, from what the simulator did."""
    first: dict[int, int] = {}
    for work in rank.played:
        first[work.step] = min(work.ts, first.get(work.step, work.ts))
    decode = [shape.index for shape in step_shapes(run) if shape.phase == "decode"]
    return {step: first[step + 1] - first[step] for step in decode[1:-1]}


# ---- runs to pair

STEPS = 10
SHALLOW = replace(TINY, layers=4)  # every kernel lasts as long as the shortest one can: the host is slower
DEEP = replace(LLAMA_8B, layers=4, vocab=8_192)  # the device is slower
#: Eager decode that waits for its launches.
LAUNCH_BOUND = Run(model=SHALLOW, batch=8, steps=STEPS, record_shapes=True)
#: Eager decode that waits for its kernels.
GPU_BOUND = Run(model=DEEP, batch=64, prompt=16, steps=STEPS, record_shapes=True)
#: The same with so many requests that pointwise kernels take as long as their bytes do.
MANY_REQUESTS = replace(GPU_BOUND, batch=2_048)
#: The same with the forward pass as one graph; inputs, logits and sampling are launched one by one.
FULL_GRAPH = replace(LAUNCH_BOUND, mode="full_graph")
#: Graphs of its parts, with the KV cache's write and attention eager between.
PIECEWISE = replace(LAUNCH_BOUND, mode="piecewise_graph")
#: Batches as an engine meets them, some of them larger than any graph.
PADDED = replace(FULL_GRAPH, steps=14, batches=(4, 9, 9, 17), capture_sizes=(4, 8, 16))
#: What is not one kernel in the run before a fusion. After an eager RMSNorm's fusion its add is still a kernel.
UNFUSED: Mapping[Fusion, frozenset[Fusion]] = {
    "add_rms_norm": frozenset({"add_rms_norm"}),
    "silu_mul": frozenset({"silu_mul"}),
    "rms_norm": frozenset({"add_rms_norm", "rms_norm"}),
    "rope_kv": frozenset({"rope_kv"}),
}


def fusion(name: Fusion, run: Run = LAUNCH_BOUND) -> tuple[Run, Run]:
    """The run without a fusion, and with it."""
    before = replace(run, fused=run.fused - UNFUSED[name])
    return before, replace(before, fused=before.fused | {name})


def unfused(run: Run, names: Sequence[Fusion]) -> Run:
    """The run without several fusions."""
    return replace(run, fused=run.fused.difference(*(UNFUSED[name] for name in names)))
