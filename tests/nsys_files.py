"""Exports of Nsight Systems from the few rows a test cares about: SQLite files of old and of new schemas."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EPOCH_NS = 1_700_000_000_000_000_000
PID = 4711
TID = 4712
SYNC_TYPES = {"event": 1, "stream_wait_event": 2, "stream": 3, "context": 4}
PUSH_POP, START_END, MARK, CATEGORY, DOMAIN = 59, 60, 34, 33, 75

# Columns as Nsight Systems 2022.4 (schema 3.0) has them, and those that 2026.2 (schema 3.25) has besides. All are
# INTEGER but the texts.
_DEVICE = "start end deviceId contextId streamId correlationId globalPid"
_KERNEL = (
    "demangledName shortName mangledName launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY "
    "blockZ staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted "
    "graphNodeId sharedMemoryLimitConfig"
)
_OLD = {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_DEVICE} {_KERNEL}",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_DEVICE} bytes copyKind deprecatedSrcId srcKind dstKind srcDeviceId srcContextId "
    "dstDeviceId dstContextId migrationCause graphNodeId virtualAddress",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_DEVICE} value bytes graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_DEVICE} graphId graphExecId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_DEVICE} syncType eventId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue callchainId",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start end eventClass globalTid correlationId nameId overheadType",
    "PROFILER_OVERHEAD": "start end globalTid nameId returnValue",
    "NVTX_EVENTS": "start end eventType rangeId category color text globalTid endGlobalTid textId domainId uint64Value "
    "int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText",
    "OSRT_API": "start end eventClass globalTid nameId returnValue nestingLevel callchainId",
    "SCHED_EVENTS": "start cpu isSchedIn globalTid",
    "GPU_METRICS": "timestamp typeId metricId value",
    "TARGET_INFO_GPU_METRICS": "typeId sourceId typeName metricId metricName",
    "TARGET_INFO_GPU": "vmId id name busLocation isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount "
    "pwGpuId uuid luid chipName cuDevice computeMajor computeMinor smMajor smMinor",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
    "ANALYSIS_DETAILS": "globalVid duration startTime stopTime",
    "StringIds": "id value",
    "EXPORT_META_DATA": "name value",
    "META_DATA_EXPORT": "name value",
    "META_DATA_CAPTURE": "name value",
}
_NEW = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "greenContextId graphId clusterX clusterY clusterZ clusterSchedulingPolicy",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "greenContextId copyCount",
    "CUPTI_ACTIVITY_KIND_MEMSET": "greenContextId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "greenContextId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "greenContextId deprecatedSyncType eventSyncId",
    "PROFILER_OVERHEAD": "overheadType",
    "NVTX_EVENTS": "binaryData",
    "SCHED_EVENTS": "threadState threadBlock",
    "TARGET_INFO_SESSION_START_TIME": "systemClockNs",
}
_TEXTS = {"text", "jsonText", "binaryData", "name", "busLocation", "uuid", "chipName", "typeName", "metricName"}
_TEXTS |= {"utcTime", "localTime"}
_REALS = {"doubleValue", "floatValue"}
_TEXT_VALUES = {"StringIds", "EXPORT_META_DATA", "META_DATA_EXPORT", "META_DATA_CAPTURE"}
_VERSIONS = {"3.0": ("EXPORT_META_DATA", "2022.4.2.1"), "3.25": ("META_DATA_EXPORT", "2026.2.1.210")}

Columns = dict[str, Any]


def global_id(pid: int, tid: int = 0) -> int:
    """A process and thread as Nsight Systems writes them: 8 bits each of hardware and machine, 24 each of the two."""
    return 1 << 48 | pid << 24 | tid


@dataclass(slots=True)
class NsysFile:
    """Rows of an export by table. Methods add one row; columns they do not name may be given by their own names, also
    such as no version has. Times are nanoseconds from the start of the session. Only tables with rows are written, as
    Nsight Systems does; `rows[table]` of nothing makes an empty one.
    """

    schema: str = "3.25"
    pid: int = PID
    tid: int = TID
    rows: dict[str, list[Columns]] = field(default_factory=dict)
    strings: dict[str, int] = field(default_factory=dict)

    def add(self, table: str, **columns: Any) -> None:
        """A row of any table."""
        self.rows.setdefault(table, []).append(columns)

    def string(self, text: str) -> int:
        """The id of a text in StringIds."""
        return self.strings.setdefault(text, len(self.strings) + 1)

    # ---- work on a device --------------------------------------------------------------------------------------------

    def _device_row(self, table: str, start: int, end: int | None, columns: Columns, pid: int | None) -> None:
        where = {"deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 0}
        process = {"globalPid": global_id(self.pid if pid is None else pid)}
        self.add(f"CUPTI_ACTIVITY_KIND_{table}", start=start, end=end, **where | process | columns)

    def kernel(
        self, start: int, end: int | None, name: str = "gemm", *, pid: int | None = None, **columns: Any
    ) -> None:
        """A kernel of one block of 128 threads; NULL instead of a graph node."""
        text = self.string(name)
        geometry = dict.fromkeys(("gridX", "gridY", "gridZ", "blockY", "blockZ"), 1) | {"blockX": 128}
        names = {"demangledName": text, "shortName": text, "mangledName": text}
        shared = {"staticSharedMemory": 0, "dynamicSharedMemory": 0, "registersPerThread": 32}
        self._device_row("KERNEL", start, end, names | geometry | shared | columns, pid)

    def memcpy(self, start: int, end: int | None, *, pid: int | None = None, **columns: Any) -> None:
        """A copy of 4096 bytes from pageable memory to the device."""
        what = {"bytes": 4096, "copyKind": 1, "srcKind": 0, "dstKind": 2}
        self._device_row("MEMCPY", start, end, what | columns, pid)

    def memset(self, start: int, end: int | None, *, pid: int | None = None, **columns: Any) -> None:
        """64 bytes of device memory set to zero."""
        self._device_row("MEMSET", start, end, {"bytes": 64, "value": 0, "memKind": 2} | columns, pid)

    def graph(self, start: int, end: int | None, *, pid: int | None = None, **columns: Any) -> None:
        """A replay of graph 5, recorded as one block."""
        self._device_row("GRAPH_TRACE", start, end, {"graphId": 5, "graphExecId": 6} | columns, pid)

    def sync(
        self, start: int, end: int | None, kind: str = "stream", *, pid: int | None = None, **columns: Any
    ) -> None:
        """A record of a synchronisation."""
        what = {"syncType": SYNC_TYPES[kind], "eventId": 4294967295}
        self._device_row("SYNCHRONIZATION", start, end, what | columns, pid)

    # ---- the host ----------------------------------------------------------------------------------------------------

    def _thread(self, pid: int | None, tid: int | None) -> int:
        return global_id(self.pid if pid is None else pid, self.tid if tid is None else tid)

    def runtime(
        self,
        start: int,
        end: int | None,
        name: str = "cudaLaunchKernel_v7000",
        *,
        pid: int | None = None,
        tid: int | None = None,
        **columns: Any,
    ) -> None:
        """A call of the runtime; eventClass=1 of the driver."""
        what = {"eventClass": 0, "correlationId": 0, "nameId": self.string(name), "returnValue": 0}
        thread = {"globalTid": self._thread(pid, tid)}
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, **what | thread | columns)

    def nvtx(
        self,
        start: int,
        end: int | None,
        text: str | None,
        *,
        registered: bool = False,
        pid: int | None = None,
        tid: int | None = None,
        **columns: Any,
    ) -> None:
        """A range pushed and popped; eventType of another kind. registered: the text is in StringIds."""
        said = {"textId": self.string(text)} if registered and text is not None else {"text": text}
        what = {"eventType": PUSH_POP, "globalTid": self._thread(pid, tid), "domainId": 0}
        self.add("NVTX_EVENTS", start=start, end=end, **what | said | columns)

    def nvtx_start_end(
        self,
        start: int,
        end: int | None,
        text: str,
        *,
        end_tid: int | None = None,
        pid: int | None = None,
        **columns: Any,
    ) -> None:
        """A range that may end on another thread."""
        ended = {"endGlobalTid": self._thread(pid, end_tid), "rangeId": 1}
        self.nvtx(start, end, text, pid=pid, **{"eventType": START_END} | ended | columns)

    def osrt(self, start: int, end: int | None, name: str = "poll", *, tid: int | None = None, **columns: Any) -> None:
        """A call into the operating system's runtime."""
        what = {"eventClass": 27, "nameId": self.string(name), "returnValue": 0, "callchainId": 0}
        self.add("OSRT_API", start=start, end=end, **{"globalTid": self._thread(None, tid)} | what | columns)

    def sched(self, start: int, on: bool, *, tid: int | None = None, **columns: Any) -> None:
        """A thread put on a CPU, or taken off it."""
        what = {"cpu": 3, "isSchedIn": int(on), "globalTid": self._thread(None, tid)}
        self.add("SCHED_EVENTS", start=start, **what | columns)

    def overhead(self, start: int, end: int | None, name: str = "CUDA profiling overhead", **columns: Any) -> None:
        """The profiler's own work."""
        what = {"globalTid": self._thread(None, None), "nameId": self.string(name)}
        self.add("PROFILER_OVERHEAD", start=start, end=end, **what | columns)

    # ---- what is known of the machine --------------------------------------------------------------------------------

    def metric(self, timestamp: int, value: int, name: str = "SM Active", *, gpu: int = 0) -> None:
        """A sample of a metric of a GPU, and the metric itself where it is new. A typeId ends with the GPU's number."""
        known = self.rows.setdefault("TARGET_INFO_GPU_METRICS", [])
        type_id = 1 << 56 | gpu
        of = next((row for row in known if (row["typeId"], row["metricName"]) == (type_id, name)), None)
        if of is None:
            of = {"typeId": type_id, "sourceId": 1, "typeName": "GA10x", "metricId": len(known), "metricName": name}
            known.append(of)
        self.add("GPU_METRICS", timestamp=timestamp, typeId=type_id, metricId=of["metricId"], value=value)

    def gpu(self, device: int = 0, name: str = "NVIDIA H100 80GB HBM3", **columns: Any) -> None:
        """A GPU as the target has it."""
        size = {"smCount": 132, "totalMemory": 85_018_279_936, "memoryBandwidth": 3_352_320_000_000}
        version = {"computeMajor": 9, "computeMinor": 0, "clockRate": 1_980_000_000, "chipName": "GH100"}
        self.add("TARGET_INFO_GPU", id=device, cuDevice=device, name=name, **size | version | columns)

    # ---- the file ----------------------------------------------------------------------------------------------------

    def write(
        self,
        path: Path,
        *,
        without: Collection[str] = (),
        rename: Callable[[str], str] = str,
        shuffled: int | None = None,
        epoch_ns: int | None = EPOCH_NS,
    ) -> Path:
        """Make the file. without: tables to leave out. rename: the name of each table but StringIds. shuffled: a seed,
        for rows and columns in no order. epoch_ns: when the session began, None if the file does not say.
        """
        chance = None if shuffled is None else random.Random(shuffled)
        with sqlite3.connect(path) as connection:
            for table, given in self._tables(epoch_ns).items():
                if table not in without:
                    columns = list(dict.fromkeys([*self._columns(table), *(key for row in given for key in row)]))
                    rows = given
                    if chance is not None:
                        chance.shuffle(columns)
                        rows = chance.sample(given, len(given))
                    name = table if table == "StringIds" else rename(table)
                    _create(connection, name, columns, rows, text_value=table in _TEXT_VALUES)
        connection.close()
        return path

    def _tables(self, epoch_ns: int | None) -> dict[str, list[Columns]]:
        meta, version = _VERSIONS[self.schema]
        said = {"EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems", "EXPORT_PRODUCT_VERSION": version}
        said |= {"EXPORT_SCHEMA_VERSION": f"{self.schema}.0"}
        tables = self.rows | {meta: [{"name": name, "value": value} for name, value in said.items()]}
        if epoch_ns is not None:
            tables["TARGET_INFO_SESSION_START_TIME"] = [{"utcEpochNs": epoch_ns}]
        return tables | {"StringIds": [{"id": number, "value": text} for text, number in self.strings.items()]}

    def _columns(self, table: str) -> list[str]:
        new = "" if self.schema == "3.0" else _NEW.get(table, "")
        return [*_OLD.get(table, "").split(), *new.split()]


def _create(
    connection: sqlite3.Connection, table: str, columns: list[str], rows: list[Columns], *, text_value: bool
) -> None:
    types = {"value": "TEXT"} if text_value else {}
    types |= dict.fromkeys(_TEXTS, "TEXT") | dict.fromkeys(_REALS, "REAL")
    types |= {"id": "INTEGER PRIMARY KEY"} if table == "StringIds" else {}
    declared = ", ".join(f"{quoted(column)} {types.get(column, 'INTEGER')}" for column in columns)
    connection.execute(f"CREATE TABLE {quoted(table)} ({declared})")
    places = ", ".join("?" * len(columns))
    values = ([row.get(column) for column in columns] for row in rows)
    connection.executemany(f"INSERT INTO {quoted(table)} VALUES ({places})", values)


def quoted(name: str) -> str:
    """A name of a table or column for a statement of SQLite, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'
