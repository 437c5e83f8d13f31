"""What to do about a share of the busy time, by what it is for. Sentences only.

Quiet about GEMM and attention, whether they are efficient is not for time alone to say; and about communication, of
which the analysis of that name knows what is exposed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """What to say where these categories together take more than the parameter named allows. saves: whether their time
    is promised as what it could save at most; of what other analyses know more of, they promise it.
    """

    parameter: str
    categories: frozenset[str]
    title: str
    detail: str
    remedy: str
    cost: str
    verify: str
    saves: bool = True


SHARES = (
    Advice(
        "pointwise_share",
        frozenset({"elementwise", "reduction", "index", "norm"}),
        "unfused pointwise work (elementwise, reduction, index, norm) takes {share} of the busy time{where}",
        "Each of these kernels reads and writes all of its tensor for little arithmetic. Fusion saves a part of this "
        "time: what remains is reading the inputs once and writing the results once.",
        "Compile (torch.compile) or use fused kernels, so that neighbours become one kernel or the end of a GEMM.",
        "Compile time; recompilation where shapes vary.",
        "Same load, this one change: exclusive time of these categories.",
        saves=False,
    ),
    Advice(
        "memory_share",
        frozenset({"memory"}),
        "copies and memsets take {share} of the busy time{where}",
        "A device that copies is busy and computes nothing; kernel_ns in the summary is the time with kernels alone. "
        "Copies that kernels cover cost little.",
        "Find what is copied. Weights while the model loads: record later. Tensors of the host in each step: keep them "
        "on the device, or pin their memory and copy ahead on another stream. Offloaded weights or KV cache: more "
        "memory, a smaller model or cache, quantisation.",
        "Device memory, or accuracy with quantisation.",
        "Same load, this one change: exclusive time of the category memory.",
    ),
)
