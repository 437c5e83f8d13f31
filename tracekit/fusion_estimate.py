"""How long would one kernel take that does the work of several?

At best as long as the longest of them, or as its bytes take at the best rate that they reached. At worst as long as all
of them, less what is sure to be saved: the bytes that stay on the device, at the rate of its cache where they fit
there, or the shortest time that a kernel takes at all, for each that is gone. docs/fusion.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.arrays import Int64s
from tracekit.changes import FusedRows
from tracekit.fusion_evidence import Evidence
from tracekit.fusion_match import Match
from tracekit.trace import Trace


@dataclass(frozen=True, slots=True)
class Limits:
    """Parameters. kernel_floor_ns: what a kernel takes whatever it does, without what overlaps others (B300: 1.1 to 1.2
    us), if the trace shows none that is shorter. cache_speedup: how many times as fast as memory a device's last cache
    is. cache_share: of that cache; what is written in a step and fits there is read from it.
    """

    kernel_floor_ns: int = 1_100
    cache_speedup: float = 3.0
    cache_share: float = 0.5


DEFAULTS = Limits()


@dataclass(frozen=True, slots=True)
class Device:
    """floor_ns: the shortest that a kernel takes. bandwidth: bytes per second that good kernels reach, None if not
    known; cached: that of its last cache, for so many bytes at most (cached_bytes).
    """

    floor_ns: int
    bandwidth: float | None
    cached: float | None
    cached_bytes: float


def device_of(trace: Trace, rank: int, device: int | None, limits: Limits) -> Device:
    """What one device of a trace can do."""
    rows = trace.whole.macro("kernel_floors").to_pylist()
    shortest = [row["floor_ns"] for row in rows if row["rank"] == rank and row["device"] == device]
    peaks = trace.whole.once(("peaks",), trace.whole.peaks).get((rank, device))
    rate = peaks.achievable_bandwidth if peaks is not None else None
    size = peaks.l2_bytes or 0 if peaks is not None else 0
    return Device(
        floor_ns=min([limits.kernel_floor_ns, *shortest]),
        bandwidth=rate,
        cached=None if rate is None else rate * limits.cache_speedup,
        cached_bytes=size * limits.cache_share,
    )


def fused(
    match: Match,
    evidence: Evidence,
    times: tuple[Int64s, ...],
    device: Device,
    moved: Sequence[int | None],
    *,
    sure: bool,
) -> FusedRows:
    """The rows of a match as one kernel. times: of all rows of the step, as they were, and when such rows are quick and
    slow; moved: bytes of each of the match's rows, None where not known; sure: whether anything is certain to be saved.
    """
    durs, quick, slow = ([int(ns[row]) for row in match.rows] for ns in times)
    total = sum(durs)
    rates = [1e9 * size / ns for size, ns in zip(moved, durs, strict=True) if size and ns]
    low = min(total, max(*quick, _at_best(evidence, rates, device)))
    saved = _saved(evidence, durs, rates, device) if sure else 0
    high = min(total, max(*slow, low, total - saved))
    return FusedRows(np.array(match.rows, np.int64), low, high)


def _at_best(evidence: Evidence, rates: Sequence[float], device: Device) -> int:
    """Time of what has to be moved all the same, at the best rate of these kernels or of good ones; 0 where that is not
    known: of short kernels the own rate tells nothing.
    """
    good = device.bandwidth
    if evidence.moved is None or evidence.removed_high is None or good is None or device.cached is None:
        return 0
    left = max(0, evidence.moved - evidence.removed_high)
    best = max([*rates, device.cached if left <= device.cached_bytes else good])
    return round(1e9 * left / best)


def _saved(evidence: Evidence, durs: Sequence[int], rates: Sequence[float], device: Device) -> int:
    """What is sure to be saved: the larger of two lower bounds."""
    floors = (len(durs) - 1) * min(device.floor_ns, *durs)
    if not evidence.removed_low or device.bandwidth is None or device.cached is None:
        return floors
    rate = device.cached if evidence.removed_low <= device.cached_bytes else device.bandwidth
    return max(floors, round(1e9 * evidence.removed_low / max([*rates, rate])))
