"""What rows of an Nsight Systems export become, what is said of the recording, and what is not taken over."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tracekit
from tests.nsys_files import EPOCH_NS, MARK, PID, TID, NsysFile, global_id
from tests.nsys_reading import read
from tests.nsys_runs import needs_nsys
from tracekit.collectors import nsys_export
from tracekit.collectors._nsys_names import UNKNOWN
from tracekit.collectors._nsys_tool import export_sqlite, find_nsys, import_stream
from tracekit.convert import convert
from tracekit.errors import MalformedTraceError


@pytest.fixture
def file() -> NsysFile:
    return NsysFile()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "export.sqlite"


GEOMETRY = '{"cluster": [2, 1, 1], "local memory per thread": 8}'


def test_kernels_carry_what_analyses_ask_of_them(file: NsysFile, path: Path) -> None:
    file.kernel(
        100, 150, "gemm<64>", streamId=9, correlationId=3, gridX=4, staticSharedMemory=1024, dynamicSharedMemory=512,
        graphNodeId=5 << 32 | 2, graphId=0, clusterX=2, clusterY=1, clusterZ=1, localMemoryPerThread=8,
    )  # fmt: skip
    file.kernel(200, 250, "gemm<64>", demangledName=None, mangledName=None)
    columns = "name ts dur device stream context correlation grid_x block_x registers shared_memory"
    columns += " graph_id graph_node_id args"
    assert read(file.write(path), ", ".join(f"e.{column}" for column in columns.split()))[0] == [
        ("gemm<64>", 100, 50, 0, 9, 1, 3, 4, 128, 32, 1536, 5, 5 << 32 | 2, GEOMETRY),
        ("gemm<64>", 200, 50, 0, 7, 1, 0, 1, 128, 32, 0, None, None, None),
    ]


def test_copies_and_fills_are_named_as_torch_profiler_names_them(file: NsysFile, path: Path) -> None:
    file.memcpy(0, 1, copyKind=1, srcKind=0, dstKind=2)
    file.memcpy(2, 3, copyKind=2, srcKind=2, dstKind=1)
    file.memcpy(4, 5, copyKind=8, srcKind=2, dstKind=2)
    file.memcpy(6, 7, copyKind=10, srcKind=2, dstKind=2, srcDeviceId=0, dstDeviceId=1)
    file.memcpy(8, 9, copyKind=77, srcKind=None, dstKind=None)
    file.memset(10, 11, bytes=64)
    assert read(file.write(path), "e.name, e.copy_kind, e.bytes, e.args")[0] == [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", 4096, None),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH", 4096, None),
        ("Memcpy DtoD (Device -> Device)", "DtoD", 4096, None),
        ("Memcpy PtoP (Device -> Device)", "PtoP", 4096, '{"fromDevice": 0, "toDevice": 1}'),
        ("Memcpy Unknown (Unknown -> Unknown)", "Unknown", 4096, None),
        ("Memset (Device)", None, 64, None),
    ]


def test_calls_lose_the_version_in_their_name_and_keep_their_failure(file: NsysFile, path: Path) -> None:
    for start, name in enumerate(("cudaLaunchKernel_v7000", "cudaStreamSynchronize_ptsz_v7000", "cuMemAlloc_v2")):
        file.runtime(start, start, name)
    file.runtime(3, 3, "cudaMalloc_v3020", returnValue=2)
    assert read(file.write(path), "e.name, e.args")[0] == [
        ("cudaLaunchKernel", None),
        ("cudaStreamSynchronize_ptsz", None),
        ("cuMemAlloc_v2", None),
        ("cudaMalloc", '{"returnValue": 2}'),
    ]


def test_synchronisation_is_named_as_torch_profiler_names_it(file: NsysFile, path: Path) -> None:
    file.sync(0, 1, "stream")
    file.sync(2, 3, "stream_wait_event", eventId=12)
    file.sync(4, 5, "context", streamId=4294967295)
    file.add(
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT", timestamp=6, streamId=7, deviceId=0, eventId=12, globalPid=global_id(PID)
    )
    file.add("CUPTI_ACTIVITY_KIND_CUDA_EVENT", timestamp=None, streamId=7, deviceId=0, eventId=13)
    rows, footer = read(file.write(path), "e.kind, e.name, e.dur, e.stream, e.args")
    assert rows == [
        ("sync", "Stream Sync", 1, 7, '{"cuda_sync_kind": "Stream Sync"}'),
        ("sync", "Stream Wait Event", 1, 7, '{"cuda_sync_kind": "Stream Wait Event", "wait_on_cuda_event_id": 12}'),
        ("sync", "Context Sync", 1, None, '{"cuda_sync_kind": "Context Sync"}'),
        ("sync", "cudaEvent", 0, 7, '{"event_id": 12}'),
    ]
    assert footer.ledger.skipped == {"CUPTI_ACTIVITY_KIND_CUDA_EVENT: no time on the device was recorded": 1}


RANGES = {
    "aten::mul, seq = 3, op_id = 7, sizes = [[2, 3], []], input_op_ids = [[5, 0]]": ("op", "aten::mul", "[[2, 3], []]"),
    "aten::view, op_id = 314290": ("op", "aten::view", None),
    "MulBackward0, seq = 12": ("op", "MulBackward0", None),
    "autograd::engine::evaluate_function: MulBackward0, seq = 12, op_id = 9": (
        ("op", "autograd::engine::evaluate_function: MulBackward0", None)
    ),
    "FSDP::pre_forward (layer.1), op_id = 8": ("annotation", "FSDP::pre_forward (layer.1)", None),
    "execute_context_0(0)_generation_2(2), op_id = 8": ("annotation", "execute_context_0(0)_generation_2(2)", None),
    "aten::mul, sizes = [[2,, 3]]": ("annotation", "aten::mul, sizes = [[2,, 3]]", None),
    "load, op_id = seven": ("annotation", "load, op_id = seven", None),
    ", op_id = 8": ("annotation", ", op_id = 8", None),
    "plain, with a comma": ("annotation", "plain, with a comma", None),
    "aten::mul": ("annotation", "aten::mul", None),
}


@pytest.mark.parametrize("text", RANGES)
def test_ranges_that_pytorch_emits_are_its_operators(text: str, file: NsysFile, path: Path) -> None:
    file.nvtx(10, 20, text)
    assert read(file.write(path), "e.kind, e.name, e.shapes")[0] == [RANGES[text]]


IN_DOMAIN = '{"domain": "NCCL", "category": "collectives", "payload": 18446744073709551615}'


def test_what_else_a_range_carries(file: NsysFile, path: Path) -> None:
    file.nvtx(0, 0, "NCCL", eventType=75, domainId=1)
    file.nvtx(0, 0, "collectives", eventType=33, domainId=1, category=4)
    file.nvtx(10, 20, "ncclAllReduce", registered=True, domainId=1, category=4, uint64Value=-1)
    file.nvtx(11, 19, "timed", doubleValue=0.5)
    file.nvtx(12, 18, "told", jsonText='{"rows": [1, 2]}')
    file.nvtx(13, None, "aten::add, seq = 6")
    file.nvtx_start_end(14, 17, "request", end_tid=9)
    file.nvtx(15, None, "token", eventType=MARK, int64Value=7)
    rows, footer = read(file.write(path), "e.kind, e.name, e.dur, e.args")
    assert rows == [
        ("annotation", "ncclAllReduce", 10, IN_DOMAIN),
        ("annotation", "timed", 8, '{"payload": 0.5}'),
        ("annotation", "told", 6, '{"payload": {"rows": [1, 2]}}'),
        ("op", "aten::add", 7, '{"finished": false, "Sequence number": 6}'),
        ("annotation", "request", 3, '{"end_tid": 9}'),
        ("instant", "token", 0, '{"payload": 7}'),
    ]  # fmt: skip
    assert all(json.loads(row[3]) for row in rows)
    assert footer.ledger.skipped == {"NVTX_EVENTS: names of domains, categories and threads": 2}


def test_steps_of_an_engine_are_found_under_emit_nvtx(file: NsysFile, path: Path) -> None:
    for step in range(3):
        at = 1_000 * step
        file.nvtx(at, at + 900, f"execute_context_0(0)_generation_2(2), op_id = {step + 1}")
        file.runtime(at + 10, at + 20, correlationId=step + 1)
        file.kernel(at + 30, at + 800, correlationId=step + 1)
    convert([file.write(path)], path.with_suffix(".parquet"))
    trace = tracekit.open(path.with_suffix(".parquet"))
    assert (
        trace.sql("SELECT phase, decode_requests, dur FROM steps ORDER BY step").to_pylist()
        == [{"phase": "decode", "decode_requests": 2, "dur": 900}] * 3
    )


def test_libraries_memory_and_overhead(file: NsysFile, path: Path) -> None:
    thread = {"globalTid": global_id(PID, TID)}
    file.add("MPI_P2P_EVENTS", start=0, end=5, textId=file.string("MPI_Send"), **thread)
    file.add("CUBLAS_EVENTS", start=1, end=2, nameId=file.string("cublasSgemm_v2"), **thread)
    file.overhead(3, 4, "Lazy Function Loading")
    process = {"globalPid": global_id(PID), "deviceId": 0, "memKind": 2}
    file.add("CUDA_GPU_MEMORY_USAGE_EVENTS", start=5, bytes=512, memoryOperationType=0, address=16, **process)
    assert read(file.write(path), "e.kind, e.name, e.bytes, e.device, e.args")[0] == [
        ("annotation", "MPI_Send", None, None, '{"library": "MPI"}'),
        ("annotation", "cublasSgemm_v2", None, None, '{"library": "cuBLAS"}'),
        ("overhead", "Lazy Function Loading", None, None, None),
        ("instant", "GPU memory allocation", 512, 0, '{"Addr": 16, "memory": "Device"}'),
    ]


def test_a_name_that_the_export_lacks_costs_no_row(file: NsysFile, path: Path) -> None:
    file.kernel(0, 1, demangledName=999)
    rows, footer = read(file.write(path), "e.name")
    assert rows == [(UNKNOWN,)]
    assert footer.ledger.repaired == {"name that is not in StringIds": 1}


def test_a_thread_is_off_the_cpu_until_it_is_put_back(file: NsysFile, path: Path) -> None:
    for start, on in ((1, True), (5, False), (9, True), (20, False), (30, False), (34, True), (40, False)):
        file.sched(start, on, tid=1)
    file.sched(6, False, tid=2)
    file.add("SCHED_EVENTS", start=None, isSchedIn=0, globalTid=global_id(PID, 2))
    file.osrt(45, 50, tid=1)
    rows, footer = read(file.write(path, shuffled=3), "e.name, e.tid, e.ts, e.dur, e.args")
    assert rows == [
        ("off CPU", 1, 5, 4, None),
        ("off CPU", 2, 6, 44, '{"finished": false}'),
        ("off CPU", 1, 30, 4, None),
        ("off CPU", 1, 40, 10, '{"finished": false}'),
        ("poll", 1, 45, 5, None),
    ]
    assert footer.ledger.skipped == {
        "SCHED_EVENTS: end of a time off the CPU, joined with its beginning": 3,
        "SCHED_EVENTS: beginning of a time off the CPU whose end is not recorded": 1,
        "unusable time in SCHED_EVENTS": 1,
    }


# ---- processes and ranks ---------------------------------------------------------------------------------------------


def test_ranks_of_processes_go_by_their_devices(file: NsysFile, path: Path) -> None:
    file.kernel(0, 1, pid=9, deviceId=0)
    file.kernel(2, 3, pid=5, deviceId=1)
    file.runtime(4, 5, "cudaGetDevice", pid=7)
    rows, footer = read(file.write(path), "e.kind, e.rank, e.device, e.pid")
    assert rows == [("launch", 0, None, 7), ("kernel", 0, 0, None), ("kernel", 1, 1, None)]
    assert [(source.rank, source.base_ns) for source in footer.sources] == [(0, EPOCH_NS), (1, EPOCH_NS)]


def test_ranks_that_mpi_gave_come_first(file: NsysFile, path: Path) -> None:
    for device, pid, rank in ((0, 5, 3), (1, 9, 2)):
        file.kernel(device, device + 1, pid=pid, deviceId=device)
        file.add("MPI_RANKS", globalTid=global_id(pid, pid), rank=rank)
    assert read(file.write(path), "e.device, e.rank")[0] == [(0, 3), (1, 2)]


def test_a_process_without_rank_counts_with_the_first(file: NsysFile, path: Path) -> None:
    """mpirun itself, say: there is no rank 0 in this file."""
    for pid, rank in ((5, 4), (9, 5)):
        file.kernel(0, 1, pid=pid)
        file.add("MPI_RANKS", globalTid=global_id(pid, pid), rank=rank)
    file.nvtx(0, 1, "launcher", pid=3)
    assert read(file.write(path), "e.kind, e.rank")[0] == [("annotation", 4), ("kernel", 4), ("kernel", 5)]


def test_the_only_process_with_device_work_has_its_own_rank(file: NsysFile, path: Path) -> None:
    for pid, rank in ((5, 4), (9, 5)):
        file.add("MPI_RANKS", globalTid=global_id(pid, pid), rank=rank)
    file.kernel(0, 1, pid=9)
    assert read(file.write(path), "e.rank")[0] == [(5,)]


@pytest.mark.parametrize(("name", "rank"), [("serve_rank3.sqlite", 3), ("serve.sqlite", 0)])
def test_the_rank_of_one_process_may_be_in_the_file_name(name: str, rank: int, file: NsysFile, tmp_path: Path) -> None:
    file.kernel(0, 1)
    assert read(file.write(tmp_path / name), "e.rank")[0] == [(rank,)]


# ---- what is said of the recording -----------------------------------------------------------------------------------


def test_settings_and_warnings_are_stored_by_their_meaning(file: NsysFile, path: Path) -> None:
    file.kernel(0, 1)
    file.add("META_DATA_CAPTURE", name="CUDA_GRAPH_TRACE_OPTIONS:MODE", value="Graph")
    file.add("META_DATA_CAPTURE", name="TRACE_AFTER_FORK_BEFORE_EXEC", value="true")
    for traced in ("NvtxEvents", "Cuda"):
        file.add("META_DATA_CAPTURE", name="CAPTURE_EVENT_TYPE", value=traced)
    for severity, text in ((2, "12 events were lost on /home/me"), (1, "No events were lost."), (2, "It is late.")):
        file.add("DIAGNOSTIC_EVENT", timestamp=0, severity=severity, text=text)
    footer = read(file.write(path))[1]
    assert footer.capture == {
        "nsys_version": "2026.2.1.210",
        "nsys_schema_version": "3.25.0",
        "cuda_graph_trace": "graph",
        "trace_fork_before_exec": True,
        "nsys_traces": ["Cuda", "NvtxEvents"],
        "nsys_warnings": {"the profiler lost events": 1},
        "partial": ["the profiler lost events"],
    }


def test_secrets_of_the_recorded_program_are_nowhere_in_the_file(file: NsysFile, path: Path) -> None:
    secret = "hf_" + "Z7" * 20  # the shape of a token
    file.kernel(0, 1)
    file.string(f"HF_TOKEN={secret}")
    file.nvtx(0, 1, f"login with {secret}")
    file.nvtx(0, 0, secret, eventType=75, domainId=3)
    file.nvtx(2, 3, "in the domain", domainId=3, jsonText=json.dumps({"token": secret}))
    file.add("ANALYSIS_FILE", id=0, filename=secret, contentId=file.string(secret))
    file.add("ProcessStreams", globalPid=0, filenameId=file.string(secret), contentId=file.string(secret + "!"))
    file.add("TARGET_INFO_SYSTEM_ENV", name="HF_TOKEN", value=secret)
    file.add("META_DATA_CAPTURE", name="CUDA_TRACE_SCOPE", value=secret)
    file.add("META_DATA_CAPTURE", name="COMMAND_LINE", value=f"--token {secret}")
    file.add("PROCESSES", globalPid=global_id(PID), pid=PID, name=secret)
    file.add("DIAGNOSTIC_EVENT", timestamp=0, text=f"lost: {secret}")
    file.gpu(name=secret, chipName=secret)
    rows, footer = read(file.write(path), "e.name, e.args")
    assert [row[0] for row in rows] == ["login with [redacted]", "in the domain", "gemm"]
    assert secret not in str(rows) + footer.to_bytes().decode()
    assert secret.encode() not in path.with_name(f"{path.name}.parquet").read_bytes()


# ---- what a file may be ----------------------------------------------------------------------------------------------


def test_a_compressed_export_says_the_same(file: NsysFile, path: Path, tmp_path: Path) -> None:
    file.kernel(0, 1)
    packed = tmp_path / "export.sqlite.gz"
    packed.write_bytes(gzip.compress(file.write(path).read_bytes()))
    assert read(packed)[0] == read(path)[0]


def test_errors_name_the_file_that_was_given(file: NsysFile, path: Path, tmp_path: Path) -> None:
    packed = tmp_path / "export.sqlite.gz"
    packed.write_bytes(gzip.compress(file.write(path).read_bytes()[:5000]))
    with pytest.raises(MalformedTraceError, match=rf"^{re.escape(str(packed))}: the file ends at byte 5,000 of"):
        read(packed)


def test_nothing_else_is_accepted(tmp_path: Path) -> None:
    assert not nsys_export.accepts(tmp_path, b"")
    assert not nsys_export.accepts(tmp_path / "trace.json", b'{"traceEvents": []}')
    assert not nsys_export.accepts(tmp_path / "trace.parquet", b"PAR1")


@needs_nsys
def test_a_report_and_its_raw_stream_say_what_the_export_says(tmp_path: Path) -> None:
    nsys = find_nsys()
    assert nsys is not None
    if nsys.importer is None:
        pytest.skip(f"the installation of {nsys.path} has no QdstrmImporter")
    stream, report, export = (tmp_path / name for name in ("r.qdstrm", "r.nsys-rep", "r.sqlite"))
    record = [str(nsys.path), "profile", "-t", "osrt", "-s", "none", "--cpuctxsw=none", "-o", str(tmp_path / "r")]
    program = [sys.executable, "-S", "-c", "print(1)"]
    done = subprocess.run([*record, *program], capture_output=True, text=True, check=False, timeout=60)
    if not stream.is_file():
        pytest.skip(f"nsys left no raw stream: exit code {done.returncode}, {done.stderr.strip()[-200:]}")
    recorded = stream.read_bytes()
    shutil.copyfile(stream, tmp_path / "copy.qdstrm")
    import_stream(tmp_path / "copy.qdstrm", report)
    export_sqlite(report, export)
    expected = read(export)[0]
    assert "os" in {row[0] for row in expected}
    assert read(report)[0] == read(stream)[0] == expected
    assert stream.read_bytes() == recorded
