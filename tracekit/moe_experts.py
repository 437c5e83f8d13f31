"""Which experts does a call touch, and what do their weights weigh? What the models of work_moe.py have in common.

Which experts are touched is in the data, not in the shapes. `bytes` counts the fewest possible (all tokens choose the
same experts), `bytes_high` the most (min(experts, rows)), `bytes_expected` as many as uniform routing would touch,
E (1 - (1 - k/E)^T); weight_bytes are those. Real routing touches fewer. Of E_all experts on all ranks, E of them here,
uniform routing sends a share of E / E_all of the rows here, to E (1 - (1 - k/E_all)^T) experts.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.op_call import OpCall, Tensor
from tracekit.work import Part, Work
from tracekit.work_sizes import INDEX_TYPES, beyond

FLOATS = {"fp64": "fp64_matrix", "fp32": "fp32", "fp16": "fp16", "bf16": "bf16"}
_FP8 = ("fp8_e4m3", "fp8_e5m2")
TWO_IN_A_BYTE = ("uint8", "fp4x2")  # as activations of fp4 are kept
_EXACT = 2**53  # more is no double: only a broken trace has that many
_PACKED = (*TWO_IN_A_BYTE, "int8", "int32", "uint32", "int64")


def expected_experts(experts: int, chosen: int, tokens: int, everywhere: int = 0) -> float:
    """Experts that uniform routing touches: each of `tokens` chooses `chosen` of `experts`, or of more that are
    everywhere, these among them. 0 where there are none.
    """
    if experts <= 0 or chosen <= 0 or tokens <= 0:
        return 0.0
    experts, chosen, tokens, among = (min(one, _EXACT) for one in (experts, chosen, tokens, everywhere or experts))
    return experts * (1.0 - (1.0 - min(1.0, chosen / among)) ** tokens)


@dataclass(frozen=True, slots=True)
class Routing:
    """Who chooses what. rows: tokens times experts per token. everywhere: experts on all ranks, of which this one has
    `experts`; 0 if it has all of them. Else how many of the rows it has is not recorded (partial).
    """

    experts: int
    tokens: int
    chosen: int
    everywhere: int = 0

    @property
    def partial(self) -> bool:
        """Whether other ranks have some of the rows."""
        return self.everywhere > 0

    @property
    def rows(self) -> int:
        """Rows of the grouped products."""
        return self.tokens * self.chosen

    @property
    def fewest(self) -> int:
        """Experts touched at least."""
        return 0 if self.partial or not self.rows else min(self.chosen, self.experts)

    @property
    def most(self) -> int:
        """Experts touched at most."""
        return min(self.experts, self.rows)

    @property
    def likely(self) -> float:
        """Experts touched if routing is uniform."""
        return expected_experts(self.experts, self.chosen, self.tokens, self.everywhere)

    def likely_bytes(self, each: int) -> int:
        """Bytes of the experts that uniform routing touches, `each` of one, to a millionth of an expert."""
        likely = round(self.likely * 10**6) * each // 10**6
        return min(max(likely, self.fewest * each), self.most * each)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the interval stands for."""
        if self.partial:
            return ("experts of other ranks: share of this one not recorded",)
        if self.fewest == self.most:
            return ()
        return (f"{round(self.likely)} of {self.experts} experts if routing is uniform",)


@dataclass(frozen=True, slots=True)
class Projection:
    """One matrix per expert: rows of k values become rows of n. expert_bytes: of one matrix with its scales."""

    n: int
    k: int
    expert_bytes: int
    bits: int


# ---- weights ---------------------------------------------------------------------------------------------------------


def projection_of(
    weight: Tensor, k: int, scales: tuple[Tensor, ...] = (), *, transposed: bool = False
) -> Projection | None:
    """Of [experts, n, k], or [experts, k, n], k packed where an element holds more than one value."""
    if len(weight.shape) != 3 or weight.itemsize is None or not weight.shape[0]:
        return None
    experts, n, stored = weight.shape if not transposed else (weight.shape[0], weight.shape[2], weight.shape[1])
    values = _values_per_element(weight, k, stored)
    if values is None:
        return None
    scaled = sum((one.bytes or 0) // experts for one in scales)
    return Projection(n, k, n * stored * weight.itemsize + scaled, weight.itemsize * 8 // values)


def _values_per_element(weight: Tensor, k: int, stored: int) -> int | None:
    """1, or as many 4 or 8 bit values as an element of a packed type holds; None if the sizes do not fit."""
    if stored == k:
        return 1
    if not stored or not k or k % stored or weight.dtype not in _PACKED:
        return None
    values = k // stored
    return values if (weight.itemsize or 0) * 8 // values in (4, 8) else None


def scales_of(call: OpCall, first: int, experts: int) -> tuple[Tensor, ...]:
    """Tensors beside that hold something per expert: scales, zero points, biases."""
    return tuple(
        found
        for at in range(first, len(call.args))
        if (found := call.tensor(at)) is not None
        and len(found.shape) > 1
        and found.shape[0] == experts
        and found.dtype not in INDEX_TYPES[1:]
    )


def math_of_experts(activation: Tensor, weight: Tensor, bits: int) -> str | None:
    """Which of MATHS multiplies them, None if it is not known. Weights of 8 bits multiply activations that are
    quantised on the way; those of 4 bits are expanded, unless the activations are packed too.
    """
    if weight.dtype in _FP8:
        return "fp8"
    if bits == 4 and activation.dtype in TWO_IN_A_BYTE:
        return "fp4"
    if activation.dtype in _FP8:
        return "fp8"
    if weight.dtype == "int8" and bits == 8:
        return "int8"
    return FLOATS.get(activation.dtype)


# ---- the work --------------------------------------------------------------------------------------------------------


def experts_work(
    routing: Routing, projections: tuple[Projection, ...], math: str, moved: int, parts: tuple[Part, ...]
) -> Work:
    """Of grouped products. moved: bytes of activations."""
    flops = sum(2 * routing.rows * one.n * one.k for one in projections)
    each = sum(one.expert_bytes for one in projections)
    low, high = (moved + count * each for count in (routing.fewest, routing.most))
    weights = routing.likely_bytes(each)
    return Work(
        "gemm",
        0 if routing.partial else flops,
        low,
        math if flops else "",
        flops_high=beyond(flops, 0) if routing.partial else -1,
        bytes_high=beyond(high, low),
        weight_bytes=weights,
        weight_bits=max(one.bits for one in projections),
        parts=parts,
        notes=routing.notes,
        flops_expected=beyond(flops * routing.experts // routing.everywhere, 0) if routing.partial else -1,
        bytes_expected=beyond(moved + weights, low),
    )
