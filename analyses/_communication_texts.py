"""What to say of communication, and what to do about it. Words only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Advice:
    """What a finding says beside its figures."""

    detail: str
    remedy: str
    cost: str
    verify: str


EXPOSED = Advice(
    "Nothing else ran on the device meanwhile.",
    "Overlap it: two micro-batches in turn, or a GEMM that sends each tile when it is done (async TP). ",
    "Micro-batches need batches that are large enough for two; fewer ranks put more weights on each device; fewer bits "
    "cost accuracy.",
    "Same load, this one change: exposed_ns of communication on all ranks.",
)
_FROM_EXPERTS = (
    "Send less: fp8 to the experts, tokens to few ranks each (experts in groups), kernels made for it (DeepEP and its "
    "like) instead of a general all-to-all."
)
#: What to send less of, by the collective that costs most.
SEND_LESS: Mapping[str, str] = MappingProxyType(
    {
        "all_reduce": "Send less: a smaller tensor-parallel degree, quantised all-reduce. Sequence parallelism "
        "(reduce-scatter, norm, all-gather) sends as much and spares work between.",
        **dict.fromkeys(("all_to_all", "dispatch", "combine"), _FROM_EXPERTS),
    }
)
SEND_LESS_OF_OTHERS = "Send less: fewer ranks in the group, fewer bits, and not again what has not changed."
WAIT = Advice(
    "In a collective the ranks that come first wait for the last; the device is busy with waiting.",
    "Give all ranks as much to do at one time: the same batch, experts placed evenly, no rank with work of its own "
    "(sampling, logging, detokenisation). Pin the threads of each rank, keep clocks and power limits of devices alike.",
    "None for clocks and pinning; experts that move cost their transfer.",
    "Same load, this one change: wait_ns of communication on all ranks, and who comes last.",
)
NAMED_LAST = "See what rank {rank} does before it comes: idle_gaps and attribution with --rank {rank}. "
NOBODY_LAST = "No one rank is to blame: launches jitter. CUDA graphs make them alike. "
SMALL = Advice(
    "What they take is latency, not bandwidth.",
    "Use an all-reduce made for small messages: the engine's own, one-shot over peer or symmetric memory, multicast in "
    "the switch. Fuse it with the residual and the norm that follow. Make one message of several.",
    "Peer buffers take device memory; one-shot sends more over the links, so it pays for small messages only.",
    "Same load, this one change: transfer_ns of these messages on all ranks.",
)
OWN_ALREADY = "The engine's own all-reduce is in use: fusing it with the norm that follows is left, or fewer ranks. "
SLOW = Advice(
    "The peak is that of links within a machine, in one direction; ranks of several machines share a slower network.",
    "See how the devices are joined (nvidia-smi topo -m), which algorithm, protocol and channels were taken "
    "(NCCL_DEBUG=INFO), and what nccl-tests reach with this size. Kernels beside a collective take its multiprocessors "
    "and its memory bandwidth.",
    "None to look; settings of NCCL are for the whole job.",
    "Same load, this one change: bus_bandwidth of these messages on all ranks.",
)
NONE = "no communication in this trace"
OPAQUE = "{replays} recorded as one block may hold communication (record graphs by node)"
#: Why waiting and transfer of kernels cannot be told apart, by their state in matched_collectives.
STATES: Mapping[str, str] = MappingProxyType(
    {
        "kind": "of broadcasts, sends and the like no rank waits for all others",
        "group": "process groups were not recorded (PyTorch notes them, but not in CUDA graphs nor of engines' own "
        "kernels; all ranks are taken for the group if the trace says how many there are and no group is smaller)",
        "ranks": "ranks of their group are not in this trace: record all ranks at one time and convert all together",
        "order": "ranks have different sequences of them, so records are missing: record again",
        "clocks": "clocks of the ranks differ by up to {skew}: synchronise them, or record ranks of one machine",
        "edge": "they lie where not all ranks were being recorded",
    }
)


def size(count: int) -> str:
    """Bytes with a fitting unit: "64 KiB", "1.5 MiB", "513 bytes"."""
    for scale, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= scale:
            return f"{count / scale:,.4g} {unit}"
    return f"{count:,} bytes"
