"""Which tables of an Nsight Systems export become events, and which of their columns are read?

Names are matched as patterns, whatever their case: an export may call a table `NVTX_EVENTS_V2`. A table that is not
here, but has a column with a time, is counted as not stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracekit.collectors._nsys_export_batches import ColumnType, Export

TIMES = ("start", "timestamp", "rawTimestamp")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of table. statement: of nsys_export.sql. columns: read where the file has them, else NULL.

    library: where rows are calls into a library, which. once: rows that other tables may repeat, read after them.
    """

    pattern: str
    statement: str
    columns: Mapping[str, ColumnType]
    library: str | None = None
    once: bool = False


def _columns(integers: str, names: str = "", texts: str = "") -> dict[str, ColumnType]:
    columns: dict[str, ColumnType] = dict.fromkeys(integers.split(), "integer")
    columns |= dict.fromkeys(names.split(), "name")
    return columns | dict.fromkeys(texts.split(), "text")


_DEVICE = "start end deviceId contextId streamId correlationId globalPid"
_CALL = "start end globalTid"

KINDS = (
    Kind(
        r"CUPTI_ACTIVITY_KIND_(CONCURRENT_)?KERNEL",
        "kernel",
        _columns(
            f"{_DEVICE} registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory "
            "dynamicSharedMemory localMemoryPerThread graphNodeId graphId clusterX clusterY clusterZ",
            names="demangledName shortName mangledName",
        ),
    ),
    Kind(
        r"CUPTI_ACTIVITY_KIND_MEMCPY(2|_?P(EER|TOP))?",
        "memcpy",
        _columns(f"{_DEVICE} bytes copyKind srcKind dstKind srcDeviceId dstDeviceId graphNodeId graphId"),
    ),
    Kind(r"CUPTI_ACTIVITY_KIND_MEMSET", "memset", _columns(f"{_DEVICE} bytes memKind graphNodeId graphId")),
    Kind(r"CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "graph", _columns(f"{_DEVICE} graphId graphExecId"), once=True),
    Kind(
        r"CUPTI_ACTIVITY_KIND_(RUNTIME|DRIVER)",
        "launch",
        _columns(f"{_CALL} correlationId returnValue", names="nameId"),
    ),
    Kind(r"CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "sync", _columns(f"{_DEVICE} syncType eventId")),
    Kind(
        r"CUPTI_ACTIVITY_KIND_CUDA_EVENT",
        "cuda_event",
        _columns("timestamp deviceId contextId streamId correlationId globalPid eventId"),
    ),
    Kind(r"CUPTI_ACTIVITY_KIND_OVERHEAD|PROFILER_OVERHEAD", "overhead", _columns(_CALL, names="nameId")),
    Kind(
        r"NVTX_EVENTS",
        "nvtx",
        _columns(
            "start end eventType globalTid endGlobalTid domainId category uint64Value int64Value uint32Value "
            "int32Value",
            texts="text jsonText doubleValue floatValue",
            names="textId jsonTextId",
        ),
    ),
    Kind(r"OSRT_API", "osrt", _columns(f"{_CALL} eventClass", names="nameId")),
    Kind(r"GPU_METRICS", "gpu_metric", _columns("timestamp rawTimestamp typeId metricId value")),
    Kind(
        r"CUDA_GPU_MEMORY_USAGE_EVENTS",
        "memory",
        _columns("start globalPid deviceId contextId address bytes memKind memoryOperationType"),
    ),
    *(
        Kind(pattern, "library", _columns(_CALL, names="nameId textId"), library)
        for pattern, library in (
            (r"CUBLAS_EVENTS", "cuBLAS"),
            (r"CUDNN_EVENTS", "cuDNN"),
            (r"MPI_(COLLECTIVES|P2P|START_WAIT|OTHER)_EVENTS", "MPI"),
        )
    ),
)

SCHEDULING = r"SCHED_EVENTS"
STRINGS = r"StringIds"


def is_called(table: str, pattern: str) -> bool:
    """Whether a table has this name, or it with a version (`_V2`) behind."""
    return re.fullmatch(f"(?i:{pattern})(?i:_V\\d+)?", table) is not None


def kind_of(table: str) -> Kind | None:
    """The kind of a table; None if its rows do not become events one by one."""
    return next((kind for kind in KINDS if is_called(table, kind.pattern)), None)


def find_columns(table: Sequence[str], wanted: Sequence[str]) -> dict[str, str]:
    """For each wanted column that a table has, whatever its case, the name that it has there."""
    present = {name.lower(): name for name in reversed(table)}
    return {name: present[name.lower()] for name in wanted if name.lower() in present}


def times_of(columns: Sequence[str]) -> list[str]:
    """The columns that make the rows of a table events."""
    return list(find_columns(columns, TIMES).values())


def find_tables(export: Export, pattern: str) -> list[str]:
    """The tables of this name."""
    return [table for table in export.tables if is_called(table, pattern)]
