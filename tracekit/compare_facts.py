"""Under which conditions was a recording made, as far as it tells?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tracekit.analyses._missing import cut
from tracekit.analysis import Row
from tracekit.trace import Trace

NO, YES = "no", "yes"
_DEVICES = """
    SELECT
        coalesce(d.name, 'unknown') AS name,
        count(*) AS devices
    FROM (SELECT DISTINCT rank, device FROM device_activity WHERE in_scope(rank, device, step)) AS u
    LEFT JOIN device_descriptions() AS d ON d.rank = u.rank AND d.device IS NOT DISTINCT FROM u.device
    GROUP BY ALL
    ORDER BY ALL
"""
_SOURCES = "SELECT DISTINCT source FROM steps ORDER BY source"
# Settings of the profiler that take the host time, by the key of the footer.
SWITCHES = {
    "with_stack": "Python stacks recorded",
    "record_shapes": "input shapes recorded",
    "profile_memory": "memory recorded",
    "with_modules": "modules recorded",
    "with_flops": "FLOPs recorded",
}
_VERSIONS = {
    "cuda_runtime_version": "CUDA",
    "cuda_driver_version": "CUDA driver",
    "cupti_version": "CUPTI",
    "hip_runtime_version": "HIP",
    "hip_driver_version": "HIP driver",
    "roctracer_version": "roctracer",
    "vllm_version": "vLLM",
    "engine_version": "engine version",
    "nsys_version": "Nsight Systems",
    "profiler_version": "profiler version",
    "cuda_graph_trace": "CUDA graphs traced by",
    "engine": "engine",
}
_THOUSANDS = frozenset({"cuda_runtime_version", "cuda_driver_version"})  # 12090 is 12.9


@dataclass(frozen=True, slots=True)
class Facts:
    """settings: what is to be equal, as text by name, without what the recording does not tell. warnings: what is wrong
    with the recording itself.
    """

    settings: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def facts_of(trace: Trace) -> Facts:
    """What the footer, the devices and the steps say."""
    told = {name: text for name, text in _settings(trace) if text}
    return Facts(told, tuple(_warnings(trace)))


def _settings(trace: Trace) -> Iterator[tuple[str, str]]:
    footer, capture = trace.footer, trace.footer.capture
    devices: list[Row] = trace.sql(_DEVICES).to_pylist()
    yield "device", ", ".join(f"{row['devices']} x {row['name']}" for row in devices)
    yield "ranks", str(len(footer.ranks))
    yield "world size", ", ".join(sorted({str(one.world_size) for one in footer.sources if one.world_size}))
    yield "format", ", ".join(sorted({one.format for one in footer.sources}))
    for key, name in SWITCHES.items():
        yield name, YES if capture.get(key) else NO
    for key, name in _VERSIONS.items():
        yield name, _version(key, capture.get(key))
    torch = {str(one.get("torch", "")) for one in _list(capture.get("processes")) if isinstance(one, dict)}
    yield "torch", ", ".join(sorted(torch - {""}))
    yield "command", " ".join(map(str, _list(capture.get("command"))))
    yield "steps marked by", ", ".join(row["source"] for row in trace.sql(_SOURCES).to_pylist())
    yield "step range", footer.step_range or ""
    yield "part of the trace", str(trace.scope) or "all"
    yield "tracekit", footer.tracekit


def _version(key: str, value: object) -> str:
    if value is None:
        return ""
    if key in _THOUSANDS and isinstance(value, int):
        return f"{value // 1000}.{value % 1000 // 10}"
    return str(value)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _warnings(trace: Trace) -> Iterator[str]:
    """By the footer: the health check takes longer than the comparison."""
    footer = trace.footer
    if footer.ledger.stored == 0:
        yield "nothing was recorded"
    if where := cut(footer):
        yield f"it was cut short: {where}"
    yield from footer.partial
