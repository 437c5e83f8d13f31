"""A simulated rank as trace rows, in the order and with the surroundings that libkineto writes.

Host ops first, then Python functions, then device work and API calls with their flows, then the device's annotations.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulator_host import Rank, Work, collective_args
from tests.simulator_model import Device, Run
from tests.simulator_text import Args, Document, Number, Row
from tests.simulator_thread import CBIDS

#: Unix time that relative timestamps count from; libkineto floors it to a grid of about 91 days.
BASE_NS = 1_767_189_312_000_000_000
#: Where a run begins after it: 4.9e12 µs, where doubles no longer hold three decimals exactly.
START_NS = 4_912_345_678_901_234


@dataclass(frozen=True, slots=True)
class Sections:
    """The rows of a rank, by the part of the file they stand in."""

    host: list[Row]
    python: list[Row]
    device: list[Row]
    last: list[Row]


#: Calls that libkineto starts a flow from; the others get a flow's end only.
FLOW_STARTS = {name for name in CBIDS if "Launch" in name or "Async" in name or "Synchronize" in name}
#: Made-up secrets by where they are planted: head of the file, args of an annotation, text within an arg.
SECRETS = {
    "HF_TOKEN": "hf_QmFzZVRva2VuRm9yVGVzdHNPbmx5MDA",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnSIMULATEDKEYbPxRfiCYplanted0001",
    "Authorization": "Bearer eyJhbGciOiJub25lIn0.c2ltdWxhdGVk.cGxhbnRlZA",
    "OPENAI_API_KEY": "sk-simulated-4f9a7c2e1b8d6035planted",
    "aws_access_key_id": "AKIASIMULATED0PLANTD",
}


def sections(rank: Rank) -> Sections:
    """All rows of a rank; Ev Idx counts host rows, then Python functions."""
    run = rank.run
    host = rank.host
    python = rank.python_rows if run.with_stack else []
    numbered = [row for row in host if row.ph == "X"] + python + [row for row in host if row.ph == "i"]
    for index, row in enumerate(numbered):
        row.args["Ev Idx"] = index
    by_call: dict[int, list[Row]] = {}
    for work in rank.work:
        by_call.setdefault(work.call.correlation, []).extend(_work_rows(rank, work))
    device = [row for work in rank.work if not work.call.recorded for row in by_call.pop(work.call.correlation)]
    for call in rank.calls:
        correlation = call.args["correlation"]
        assert isinstance(correlation, int)
        device += by_call.get(correlation, ())
        device += [call, _flow("s" if call.name in FLOW_STARTS else "f", call, correlation)]
    device += [*rank.syncs, *rank.overheads]
    last = _device_annotations(rank) + _metadata(rank)
    if run.secrets:
        _plant_secrets(host)
    return Sections(host, python, device, last)


def _work_rows(rank: Rank, work: Work) -> list[Row]:
    """A row of device activity and the end of the flow to it."""
    args, kernel = work_args(work, rank.run, rank.rank), work.kernel
    row = Row("X", kernel.cat, kernel.name, rank.rank, work.stream, work.ts, work.dur, args, work.step)
    return [row, _flow("f", row, work.call.correlation)]


def _flow(phase: str, end: Row, correlation: int) -> Row:
    """A flow's start or end at the begin of a row."""
    return Row(phase, "ac2g", "ac2g", end.pid, end.tid, end.ts, flow=correlation, step=end.step)


def _device_annotations(rank: Rank) -> list[Row]:
    """One row per annotation and stream around the work launched inside; 1 ns wider on both sides, as recorded."""
    spans: dict[tuple[int, int], tuple[Row, int, int]] = {}
    for work in rank.work:
        for note in work.annotations:
            key = (id(note), work.stream)
            _, begin, end = spans.get(key, (note, work.ts, work.end))
            spans[key] = (note, min(begin, work.ts), max(end, work.end))
    return [
        Row(
            "X", "gpu_user_annotation", note.name, rank.rank, stream, begin - 1, end - begin + 2,
            {"External id": note.args["External id"]}, note.step,
        )
        for (_, stream), (note, begin, end) in spans.items()
    ]  # fmt: skip


def _metadata(rank: Rank) -> list[Row]:
    """Names of processes and threads, the span of the recording, and its marks."""
    pid, begin, end = rank.pid, rank.start - 50_000, rank.now + 50_000
    rows = [
        Row("M", "", key, process, 0, begin, -1, {field: value})
        for process, label, order in ((pid, "CPU", pid), (rank.rank, f"GPU {rank.rank}", 5_000_000 + rank.rank))
        for key, field, value in (
            ("process_name", "name", "VLLM::Worker"),
            ("process_labels", "labels", label),
            ("process_sort_index", "sort_index", order),
        )
    ]
    rows.append(Row("M", "", "thread_name", pid, pid, begin, -1, {"name": f"thread {pid} (VLLM::Worker)"}))
    rows += [
        Row("M", "", "thread_name", rank.rank, stream, begin, -1, {"name": f"stream {stream}"})
        for stream in sorted(rank.free)
    ]
    rows.append(
        Row("X", "Trace", "PyTorch Profiler (0)", "Spans", "PyTorch Profiler", begin, end - begin, {"Op count": 0})
    )
    rows.append(Row("M", "", "process_sort_index", "Spans", 0, begin, -1, {"sort_index": 536870912}))
    rows.append(Row("i", "", "Iteration Start: PyTorch Profiler", "Traces", "Trace PyTorch Profiler", begin))
    rows.append(Row("i", "", "Record Window End", "", "", end))
    return rows


def _plant_secrets(host: list[Row]) -> None:
    """Three in the args of annotations; the other two stand in the head."""
    first = next(row for row in host if row.cat == "user_annotation")
    first.args["Authorization"] = SECRETS["Authorization"]
    first.args["env"] = "HF_HOME=/data HF_TOKEN=" + SECRETS["HF_TOKEN"]
    first.args["command"] = f"serve --aws-access-key-id {SECRETS['aws_access_key_id']}"


def document(run: Run, rank: int) -> Document:
    """The file's other keys."""
    devices = [_device_properties(run.device, number) for number in range(run.ranks)]
    head: dict[str, object] = {"schemaVersion": 1, "deviceProperties": devices}
    head |= {"cupti_version": 28, "cuda_runtime_version": 12090, "cuda_driver_version": 13000}
    if run.ranks > 1:
        ranks = list(range(run.ranks))
        groups = [("0", "default_pg"), ("1", "tp:0")]
        head["distributedInfo"] = {
            "backend": "nccl",
            "rank": rank,
            "world_size": run.ranks,
            "pg_count": len(groups),
            "pg_config": [
                {"pg_name": name, "pg_desc": text, "backend_config": "cuda:nccl", "pg_size": run.ranks, "ranks": ranks}
                for name, text in groups
            ],
            "nccl_version": "2.27.5",
        }
    flags = {"record_shapes": run.record_shapes, "with_stack": run.with_stack, "profile_memory": run.profile_memory}
    head |= {key: 1 for key, on in flags.items() if on}
    if run.secrets:
        head["environment"] = {
            "HOME": "/root",
            "OPENAI_API_KEY": SECRETS["OPENAI_API_KEY"],
            "AWS_SECRET_ACCESS_KEY": SECRETS["AWS_SECRET_ACCESS_KEY"],
        }
    head["trace_id"] = f"{run.seed + 0x51A7ED:016X}{rank:016X}"
    head["displayTimeUnit"] = "ms" if run.time_unit == "relative" else "ns"
    if run.time_unit == "relative":
        head["baseTimeNanoseconds"] = BASE_NS
    return Document(run.layout, head, {"traceName": f"rank{rank}.pt.trace.json"})


def _device_properties(device: Device, number: int) -> dict[str, object]:
    return {
        "id": number,
        "name": device.name,
        "totalGlobalMem": device.total_memory,
        "computeMajor": device.compute_major,
        "computeMinor": device.compute_minor,
        "maxThreadsPerBlock": device.max_threads_per_block,
        "maxThreadsPerMultiprocessor": device.max_threads_per_sm,
        "regsPerBlock": device.registers_per_block,
        "warpSize": device.warp_size,
        "sharedMemPerBlock": device.shared_per_block,
        "numSms": device.sms,
        "regsPerMultiprocessor": device.registers_per_block,
        "sharedMemPerBlockOptin": device.shared_per_block_optin,
        "sharedMemPerMultiprocessor": device.shared_per_sm,
    }


def work_args(work: Work, run: Run, device: int) -> Args:
    """The args of a kernel or a copy."""
    args: Args = {"External id": work.call.external} if work.call.external and not work.graph[0] else {}
    kernel = work.kernel
    place: Args = {"device": device, "context": 1, "stream": work.stream, "correlation": work.call.correlation}
    if kernel.cat != "kernel":
        rate = Number(f"{kernel.bytes / work.dur:.6f}")
        return args | place | {"bytes": kernel.bytes, "memory bandwidth (GB/s)": rate}
    blocks = kernel.grid[0] * kernel.grid[1] * kernel.grid[2]
    warps = blocks * -(-kernel.block[0] // run.device.warp_size)
    args |= {"queued": 0} | place
    args |= {"registers per thread": kernel.registers, "shared memory": kernel.shared}
    args["blocks per SM"] = Number(f"{blocks / run.device.sms:.6f}")
    args["warps per SM"] = Number(f"{warps / run.device.sms:.6f}")
    args |= {"grid": list(kernel.grid), "block": list(kernel.block), "est. achieved occupancy %": 0}
    if work.graph[0]:
        args |= {"graph id": work.graph[0], "graph node id": work.graph[0] * 2**32 + work.graph[1]}
    if kernel.collective is not None and not work.graph[0]:
        args |= collective_args(kernel, run.ranks)
    return args
