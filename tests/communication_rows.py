"""Collectives as PyTorch records them: an op that notes the message, and its kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.event_rows import annotation, footer_of, kernel, op
from tracekit.footer import Footer, SourceInfo

Rows = list[dict[str, Any]]
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
OWN = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)"


@dataclass(frozen=True, slots=True)
class Call:
    """A collective on one rank. elements: they go in, and come out, too, if `out` is 0. group "": nothing is noted."""

    rank: int
    ts: int
    dur: int
    elements: int = 1024
    collective: str = "allreduce"
    out: int = 0
    group: str = "1"
    members: tuple[int, ...] = (0, 1)
    name: str = NCCL
    step: int | None = None


def recorded(calls: Iterable[Call], *others: dict[str, Any]) -> Rows:
    """Rows of the calls, the op of each right before its kernel: kernels have even ids; then other rows."""
    rows: Rows = []
    for call in calls:
        noted: dict[str, Any] = {}
        if call.group:
            ranks = ",".join(map(str, call.members))
            noted = {
                "collective": call.collective,
                "elements_in": call.elements,
                "elements_out": call.out or call.elements,
                "comm_dtype": "BFloat16",
                "group_name": call.group,
                "group_size": len(call.members),
                "args": f'{{"Process Group Ranks":"[{ranks}]"}}',
            }
        name = "record_param_comms" if call.group else "aten::add"
        rows.append(op(call.ts, 1, name=name, rank=call.rank, step=call.step, **noted))
        noted.pop("args", None)
        where = {"rank": call.rank, "device": call.rank, "stream": 20, "op_id": len(rows), "step": call.step}
        rows.append(kernel(call.ts, call.dur, name=call.name, **where, **noted))
    return rows + list(others)


def gemm(rank: int, ts: int, dur: int, step: int | None = None) -> dict[str, Any]:
    """Other work on the device of a rank."""
    return kernel(ts, dur, name=GEMM, rank=rank, device=rank, step=step)


def decode(rank: int, step: int, ts: int) -> dict[str, Any]:
    """The mark of a decode step."""
    return annotation("execute_context_0(0)_generation_4(4)", ts, 1, rank=rank, step=step)


def job(rows: Rows, world: int) -> Footer:
    """A footer that says how many ranks the job has."""
    ranks = sorted({row.get("rank", 0) for row in rows})
    sources = tuple(SourceInfo(f"rank{rank}.json", "kineto", rank, world_size=world) for rank in ranks)
    return footer_of(rows, sources=sources)
