"""Recordings as `compare` measures them, made from the few figures a test cares about, and noise as steps have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tracekit.analyses._idle_summary import Losses
from tracekit.compare_facts import Facts
from tracekit.compare_kernels import KernelSums
from tracekit.compare_measure import Basis, GroupSteps, Key, PartName, Recording
from tracekit.compare_stats import Floats

DECODE: Key = ("decode", "5-8")
GEMM: PartName = ("busy", "gemm")
LAUNCH: PartName = ("idle", "launch_bound")


def steps(
    parts: Mapping[PartName, Sequence[int]],
    *,
    key: Key = DECODE,
    devices: int | Sequence[int] = 1,
    requests: float | None = 8.0,
    kernels: KernelSums | None = None,
    is_steady: bool = True,
) -> GroupSteps:
    """Steps of one kind, from the ns of each part in each."""
    count = max(map(len, parts.values()))
    each = np.full(count, devices) if isinstance(devices, int) else np.array(devices)
    columns = {name: np.array(ns, np.int64) for name, ns in parts.items()}
    return GroupSteps(
        key, (8, 0), each.astype(np.int64), columns, requests, requests, is_steady, kernels or KernelSums((), count, ())
    )


def recording(
    *groups: GroupSteps,
    name: str = "run.parquet",
    basis: Basis = "device",
    waited_ns: int = 0,
    losses: Losses | None = None,
    settings: Mapping[str, str] | None = None,
    warnings: tuple[str, ...] = (),
) -> Recording:
    """One recording of these steps."""
    facts = Facts(settings or {}, warnings)
    return Recording(name, 100, basis, {one.key: one for one in groups}, waited_ns, losses or Losses(), facts)


def noise(random: np.random.Generator, count: int, *, alike: float = 0.5, size: float = 0.02) -> Floats:
    """Factors around 1, lognormal, each so much like the one before it as an AR(1) process has it."""
    values = np.empty(count + 50)
    values[0] = random.standard_normal()
    for at, fresh in enumerate(random.standard_normal(count + 49), start=1):
        values[at] = alike * values[at - 1] + np.sqrt(1 - alike**2) * fresh
    factors: Floats = np.exp(size * values[50:])
    return factors
