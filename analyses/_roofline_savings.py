"""What could a kernel group save at most, by its roof? Time beyond the least, fewer bytes, cheaper arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.analysis import Row

FUSED = (  # categories that the analysis fusion looks after
    *("activation", "elementwise", "fused_pointwise", "kv_cache", "norm", "quant", "reduction", "rope", "softmax"),
)


def beyond(row: Row) -> float:
    """Time beyond what the work needs at achievable peaks. What runs beside other work cannot be had back."""
    return max(0.0, float(min(row["alone_ns"] - row["roof_ns"], row["exclusive_ns"])))


def promised(rows: Sequence[Row]) -> int:
    """Of what these take beyond that, what is theirs to promise: of kernels that could be one with their neighbours the
    analysis fusion says what they could save, and no nanosecond is promised twice.
    """
    return int(sum(beyond(row) for row in rows if row["category"] not in FUSED))


def with_weights_of(row: Row, bits: int, device: Row) -> float:
    """Time saved at most: where the device can, weights of so many bits are multiplied as such, else expanded."""
    if row["weight_bits"] <= bits:
        return 0.0
    return without(row, share(row, "weight_bytes") * (1 - bits / row["weight_bits"]), weight_speed(row, bits, device))


def weight_speed(row: Row, bits: int, device: Row) -> float:
    """How many times as fast the device multiplies weights of so many bits."""
    return speed(row, ("fp8", "int8") if bits == 8 else ("fp4",), device)


def speed(row: Row, maths: Sequence[str], device: Row) -> float:
    """How many times what is achievable of its arithmetic the best of these achieves; 1 if none is faster."""
    peaks, shares = device["peaks"] or {}, device["achievable"] or {}
    own, *others = (peaks.get(of or "", 0.0) * shares.get(of or "", 1.0) for of in (row["math"], *maths))
    return max(1.0, max(others) / own) if own else 1.0


def share(row: Row, name: str) -> float:
    """Share of the bytes. Counters may see fewer bytes than the shapes have: caches."""
    return min(1.0, float((row[name] or 0) / row["bytes"]))


def without(row: Row, part: float, faster: float = 1.0) -> float:
    """How much less the roof asks for without this part of the bytes, and with arithmetic that is so much faster."""
    left = max((row["memory_ns"] or 0) * (1 - part), (row["compute_ns"] or 0) / faster)
    return max(0.0, float(min(row["roof_ns"] - left, row["exclusive_ns"])))
