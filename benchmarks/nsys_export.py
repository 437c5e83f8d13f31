"""A large export of Nsight Systems: two processes that serve, each on its device, as SQLite makes it in a minute."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.nsys_files import NsysFile, global_id

_NAMES = 256  # kernels
_UNITS_PER_STEP = 1_000  # of both processes
_UNIT_BYTES = 268  # in the file, about
_UNIT_NS = 5_000
_FIRST_NS = 155_000_000_000  # a server has run for minutes when the recording begins
_TABLES = ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION", "RUNTIME")

# i counts launches of both processes, which take turns; a correlation is unique within its process. Times are noisy:
# regular ones would be compressed to nothing.
_PLACES = f"""
    WITH RECURSIVE unit(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM unit WHERE i + 1 < :units),
    hashed AS (SELECT i, i * 2654435761 % 4294967296 AS hash FROM unit),
    place AS (
        SELECT
            i,
            i / 2 AS number,
            {_FIRST_NS} + i * {_UNIT_NS} + hash * (hash / 65536) % 1000003 % 997 AS at,
            hash * (hash / 65536) % 999983 % 4096 AS noise,
            i % 2 AS device,
            CASE i % 2 WHEN 0 THEN :first ELSE :second END AS process
        FROM hashed
    )
"""
_STATEMENTS = (
    """
    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (
        start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, demangledName, shortName,
        mangledName, launchType, cacheConfig, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ,
        staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, gridId, sharedMemoryExecuted,
        sharedMemoryLimitConfig, clusterX, clusterY, clusterZ, clusterSchedulingPolicy
    )
    SELECT
        at + 6000, at + 8000 + noise, device, 1, 0, 7 + i / 64 % 2 * 6, 4 * number + 1, process,
        number % :names + 1, number % :names + 1, number % :names + 1, 1, 1, 32 + i % 200, 1 + i % 4096, 1, 1, 128, 1,
        1, 0, i % 49152, 0, 250871808, i, 32768, 0, 0, 0, 0, 0
    FROM place
    """,
    """
    INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (
        start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, bytes, copyKind, srcKind,
        dstKind, copyCount
    )
    SELECT at + 15100, at + 15900, device, 1, 0, 7, 4 * number + 2, process, 4096 + i % 999, 1 + i / 4 % 2, 1, 2, 1
    FROM place WHERE i % 10 < 2
    """,
    """
    INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET (
        start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, value, bytes, memKind
    )
    SELECT at + 15950, at + 15990, device, 1, 0, 7, 4 * number + 3, process, 0, 64, 2 FROM place WHERE i % 20 < 2
    """,
    """
    INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue)
    SELECT at + 100, at + 2000 + noise / 4, 0, process + 7, 4 * number + 1, :launch, 0 FROM place
    UNION ALL
    SELECT at + 3200, at + 3400, 1, process + 7, 4 * number + 4, :query, 0 FROM place WHERE i % 10 < 4
    UNION ALL
    SELECT at + 3500, at + 4100, 0, process + 7, 4 * number + 2, :copy, 0 FROM place WHERE i % 10 < 2
    UNION ALL
    SELECT at + 4150, at + 4250, 0, process + 7, 4 * number + 3, :set, 0 FROM place WHERE i % 20 < 2
    UNION ALL
    SELECT at + 4300, at + 9000, 0, process + 7, 4 * number + 4, :wait, 0 FROM place WHERE i % :step >= :step - 2
    """,
    """
    INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (
        start, end, deviceId, contextId, streamId, correlationId, globalPid, syncType, eventId
    )
    SELECT at + 4400, at + 8900, device, 1, 7, 4 * number + 4, process, 3, 4294967295
    FROM place WHERE i % :step >= :step - 2
    """,
    """
    INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, textId, domainId)
    SELECT at - 50, at + 9400, 59, 'aten::linear, op_id = ' || (i * 3), process + 7, NULL, 0 FROM place
    UNION ALL
    SELECT at, at + 4260, 59, NULL, process + 7, :range, 0 FROM place WHERE i % 4 < 2
    UNION ALL
    SELECT at - 80, at + :step * 5000 - 200, 59, 'tracekit.step[decode decode_requests=' || (1 + i % 64) || ']',
        process + 7, NULL, 0
    FROM place WHERE i % :step < 2
    """,
)


def write_export(path: Path, megabytes: int) -> None:
    """Make a file of about that size, rows of each table by start, without indexes: as Nsight Systems exports."""
    file = NsysFile()
    for device in range(2):
        file.gpu(device)
    for number in range(_NAMES):
        file.string(
            f"void at::native::vectorized_elementwise_kernel<(int){number}, at::native::CUDAFunctor_add<float>, "
            f"std::array<char *, (unsigned long)3>>(int, T{number}, T3)"
        )
    calls = {
        "launch": "cudaLaunchKernel_v7000",
        "query": "cuKernelGetAttribute",
        "copy": "cudaMemcpyAsync_v3020",
        "set": "cudaMemsetAsync_v3020",
        "wait": "cudaStreamSynchronize_v3020",
        "range": "model.layers.self_attn",
    }
    parameters = {name: file.string(text) for name, text in calls.items()}
    parameters |= {"units": megabytes * 1_000_000 // _UNIT_BYTES, "names": _NAMES, "step": _UNITS_PER_STEP}
    parameters |= {"first": global_id(4711), "second": global_id(4712)}
    for table in _TABLES:
        file.rows[f"CUPTI_ACTIVITY_KIND_{table}"] = []
    file.rows["NVTX_EVENTS"] = []
    file.write(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    for statement in _STATEMENTS:
        connection.execute(_PLACES + statement, parameters)
    connection.close()
