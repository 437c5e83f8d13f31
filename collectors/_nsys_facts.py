"""What does an export say of the recording besides its events? The session, the devices, the settings, the processes.

Everything is taken by allow-list: the same tables hold the environment, the output and the command line of the recorded
program, the names of host and user, and paths.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.arrays import int64_array, text_array
from tracekit.collectors._nsys_export_batches import Export, Row, Value
from tracekit.collectors._nsys_tables import find_columns, find_tables, is_called
from tracekit.secrets import redact

Key = tuple[int | None, ...]

# CUPTI's words for where memory is and which way a copy goes, by its numbers; an export lists them in ENUM tables.
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
_COPIES = ("Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
_PAGED = ("HtoD", "DtoH", "DtoD")  # pages of managed memory that move, numbered behind them
_DIRECTION = re.compile(r"KIND_(?:UVM_)?([HDAP])TO([HDAP])$")

# Settings that are stored, and the names that they get.
_SETTINGS = {
    "EXPORT_PRODUCT_VERSION": "nsys_version",
    "EXPORT_SCHEMA_VERSION": "nsys_schema_version",
    "CUDA_GRAPH_TRACE_OPTIONS:MODE": "cuda_graph_trace",
    "CUDA_TRACE_SCOPE": "cuda_trace_scope",
    "TRACE_AFTER_FORK_BEFORE_EXEC": "trace_fork_before_exec",
    "OS_RUNTIME_OPTIONS:DURATION_THRESHOLD_NS": "osrt_threshold_ns",
}
_WARNING = 2  # of DIAGNOSTIC_EVENT's severities; above it are errors
_SWITCHES = {"true": True, "false": False}
_SIGNS = (
    r"StringIds|META_DATA_EXPORT|EXPORT_META_DATA|TARGET_INFO_SESSION_START_TIME|NVTX_EVENTS|CUPTI_ACTIVITY_KIND_\w+"
)
_TO_DATE = 1 << 61  # ns
_WORD = re.compile(r"[\w.+-]{1,40}")

# TARGET_INFO_GPU's columns by the names that torch.profiler gives the same properties; the others keep their own.
_PROPERTIES = {
    "smCount": "numSms",
    "totalMemory": "totalGlobalMem",
    "computeMajor": "computeMajor",
    "computeMinor": "computeMinor",
    "threadsPerWarp": "warpSize",
    "maxThreadsPerBlock": "maxThreadsPerBlock",
    "maxRegistersPerBlock": "regsPerBlock",
    "maxRegistersPerSm": "regsPerMultiprocessor",
    "maxShmemPerBlock": "sharedMemPerBlock",
    "maxShmemPerBlockOptin": "sharedMemPerBlockOptin",
    "maxShmemPerSm": "sharedMemPerMultiprocessor",
    "maxBlocksPerSm": "maxBlocksPerMultiprocessor",
    "memoryBandwidth": "memoryBandwidth",  # bytes per second
    "clockRate": "clockRate",  # Hz, the highest
    "l2CacheSize": "l2CacheSize",
    "chipName": "chipName",
}

# What messages of the profiler mean for the recording. Their texts, in which there are paths, are not stored.
_MEANINGS = (
    (r"(?i)\b(dropped|lost|missed|overflow|out of memory|insufficient buffer)", "the profiler lost events"),
    (r"(?i)ERR_NVGPUCTRPERM|insufficient privilege", "the driver did not allow counters to be read"),
    (r"(?i)CUPTI_ERROR_MULTIPLE_SUBSCRIBERS|another (profiler|tool|CUPTI)", "another profiler used CUPTI"),
    (r"(?i)CUDA (injection|trace).*fail|CUPTI_ERROR", "CUDA was traced in part or not at all"),
    (r"(?i)^No CUDA events collected", "no CUDA events were collected"),
)


def lookups(export: Export) -> dict[str, pa.Table]:
    """Small tables for the SQL: copy_kinds, memory_kinds, metrics, gpus, domains, categories."""
    copies = dict(enumerate(_COPIES + _PAGED))
    for number, name, _ in _enumeration(export, "ENUM_CUDA_MEMCPY_OPER"):
        if (match := _DIRECTION.search(name)) is not None:
            copies[number] = f"{match.group(1)}to{match.group(2)}"
    memory = dict(enumerate(_MEMORY))
    memory |= {number: label for number, _, label in _enumeration(export, "ENUM_CUDA_MEM_KIND") if label.isprintable()}
    metrics: dict[Key, str] = {
        (kind, number): redact(str(name))
        for kind, number, name in _rows(export, "TARGET_INFO_GPU_METRICS", "typeId", "metricId", "metricName")
        if isinstance(kind, int) and isinstance(number, int) and name is not None
    }
    gpus = _cuda_ids(export)
    named = _named_by_nvtx(export)
    domains: dict[Key, str] = {(process, number): text for kind, process, number, _, text in named if kind == _DOMAIN}
    categories: dict[Key, str] = {
        (process, domain, number): text for kind, process, domain, number, text in named if kind == _CATEGORY
    }
    return {
        "copy_kinds": _table({(number,): text for number, text in copies.items()}, ("id",), "direction"),
        "memory_kinds": _table({(number,): text for number, text in memory.items()}, ("id",), "memory"),
        "metrics": _table(metrics, ("type", "id"), "metric"),
        "gpus": pa.table({"id": _numbers(list(gpus)), "device": _numbers(list(gpus.values()))}),
        "domains": _table(domains, ("process", "id"), "domain"),
        "categories": _table(categories, ("process", "domain_id", "id"), "label"),
    }


def _table(texts: Mapping[Key, str], keys: Sequence[str], value: str) -> pa.Table:
    columns = {key: _numbers([numbers[place] for numbers in texts]) for place, key in enumerate(keys)}
    return pa.table(columns | {value: text_array(list(texts.values()))})


def _numbers(values: Sequence[int | None]) -> pa.Array:
    null = np.array([value is None for value in values], np.bool_)
    return int64_array(np.array([value or 0 for value in values], np.int64), null)


def _enumeration(export: Export, table: str) -> list[tuple[int, str, str]]:
    rows = _rows(export, table, "id", "name", "label")
    return [(number, str(name), str(label)) for number, name, label in rows if isinstance(number, int)]


_CATEGORY = 33
_DOMAIN = 75


def _named_by_nvtx(export: Export) -> list[tuple[int, int, int | None, int | None, str]]:
    """Domains and categories: type of the row, process, domain, category, name."""
    wanted = ("eventType", "globalTid", "domainId", "category", "text", "textId")
    found: list[tuple[int, int, int | None, int | None, str]] = []
    for table in find_tables(export, "NVTX_EVENTS"):
        has = find_columns(export.tables[table], wanted)
        if not {"eventType", "globalTid"} <= has.keys():
            continue
        rows = export.small(table, list(has.values()), (has["eventType"], (_CATEGORY, _DOMAIN)))
        records = [dict(zip(has, row, strict=True)) for row in rows]
        ids = {number for record in records if isinstance(number := record.get("textId"), int)}
        texts = export.strings(sorted(ids))
        for record in records:
            kind, thread, domain, category = (_integer(record.get(name)) for name in wanted[:4])
            text = record.get("text") or texts.get(_integer(record.get("textId")) or 0)
            if kind is not None and thread is not None and text is not None:
                found.append((kind, thread >> 24, domain, category, redact(str(text))))
    return found


def _integer(value: Value) -> int | None:
    return value if isinstance(value, int) else None


def _rows(export: Export, pattern: str, *columns: str) -> list[Row]:
    """Some columns of a small table, sorted; NULL where the file lacks one, nothing where it lacks the table."""
    rows: list[Row] = []
    for table in find_tables(export, pattern):
        has = find_columns(export.tables[table], columns)
        for row in export.small(table, list(has.values())) if has else ():
            record = dict(zip(has, row, strict=True))
            rows.append(tuple(record.get(name) for name in columns))
    return rows


# ---- session ---------------------------------------------------------------------------------------------------------


def epoch_ns(export: Export) -> int:
    """Unix time, in ns, of the export's time 0; 0 if it is not recorded."""
    found = [_integer(row[0]) for row in _rows(export, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")]
    return next((epoch for epoch in found if epoch is not None and 0 <= epoch < _TO_DATE), 0)


def identity(export: Export) -> str | None:
    """Names the recording: the same for each way to export it, another for each report of a session."""
    if not epoch_ns(export):
        return None
    window = _rows(export, "ANALYSIS_DETAILS", "startTime", "stopTime")
    return "nsys " + " ".join(map(str, [epoch_ns(export), *(value for row in window for value in row)]))


def capture(export: Export) -> dict[str, Any]:
    """Settings of the recording, and what the profiler said of it that bears on its use."""
    facts: dict[str, Any] = {}
    settings = _rows(export, "META_DATA_EXPORT|EXPORT_META_DATA|META_DATA_CAPTURE", "name", "value")
    for key, value in settings:
        if isinstance(key, str) and key in _SETTINGS and (text := _word(value)) is not None:
            facts[_SETTINGS[key]] = _SWITCHES.get(text, text.lower())
    traces = {text for key, value in settings if key == "CAPTURE_EVENT_TYPE" and (text := _word(value)) is not None}
    if traces:
        facts["nsys_traces"] = sorted(traces)
    if warnings := _warnings(export):
        facts["nsys_warnings"] = warnings
        facts["partial"] = list(warnings)
    return facts


def _word(value: Value) -> str | None:
    return value if isinstance(value, str) and _WORD.fullmatch(value) and redact(value) == value else None


def _warnings(export: Export) -> dict[str, int]:
    """Warnings and errors about something missing, by what they mean."""
    found: Counter[str] = Counter()
    for severity, text in _rows(export, "DIAGNOSTIC_EVENT", "severity", "text"):
        if not isinstance(severity, int) or severity >= _WARNING:
            found.update([meaning for pattern, meaning in _MEANINGS if re.search(pattern, str(text))][:1])
    return dict(sorted(found.items()))


# ---- devices and processes -------------------------------------------------------------------------------------------


def _cuda_ids(export: Export) -> dict[int, int]:
    """CUDA's number of each GPU by Nsight Systems' own, where they are recorded and one process cannot contradict."""
    numbers: dict[int, set[int]] = {}
    for gpu, device in _rows(export, "TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId"):
        if isinstance(gpu, int) and isinstance(device, int):
            numbers.setdefault(gpu, set()).add(device)
    for gpu, device in _rows(export, "TARGET_INFO_GPU", "id", "cuDevice"):
        if isinstance(gpu, int) and isinstance(device, int):
            numbers.setdefault(gpu, {device})
    return {gpu: min(devices) for gpu, devices in sorted(numbers.items()) if len(devices) == 1}


def devices(export: Export) -> list[dict[str, Any]]:
    """Device number, name and properties of each GPU, as `SourceRead.devices` has them; empty if not recorded."""
    numbers = _cuda_ids(export)
    found: dict[int, dict[str, Any]] = {}
    for gpu, name, *values in _rows(export, "TARGET_INFO_GPU", "id", "name", *_PROPERTIES):
        if not isinstance(gpu, int):
            continue
        properties: dict[str, Value] = dict(zip(_PROPERTIES.values(), values, strict=True))
        kept = {
            key: value
            for key, value in properties.items()
            if isinstance(value, (int, float)) or (key == "chipName" and _word(value) is not None)
        }
        device = numbers.get(gpu, gpu)
        found.setdefault(device, {"device": device, "name": redact(str(name or "")), "properties": kept})
    return [found[device] for device in sorted(found)]


def mpi_ranks(export: Export) -> dict[int, int]:
    """Rank of each process (pid) that called MPI."""
    ranks: dict[int, int] = {}
    for thread, rank in _rows(export, "MPI_RANKS", "globalTid", "rank"):
        if isinstance(thread, int) and isinstance(rank, int) and 0 <= rank < 1 << 31:
            ranks.setdefault((thread >> 24) & 0xFFFFFF, rank)
    return ranks


def is_export(tables: Sequence[str]) -> bool:
    """Whether tables with these names come from Nsight Systems."""
    return any(is_called(table, _SIGNS) for table in tables)
