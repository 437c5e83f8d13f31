"""host_causes: which names on the host tell why a thread was held up, and which look alike and do not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tracekit
from tests.event_rows import kernel, launch, write_trace

CAUSES = {
    "launch": {
        "sync": [
            "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "hipStreamSynchronize",
            "cuCtxSynchronize", "cuEventSynchronize", "cudaMemcpy", "hipMemcpyWithStream",
        ],
        "allocation": [
            "cudaMalloc", "cudaMallocAsync", "cudaFree", "cudaHostAlloc", "cudaFreeHost", "cuMemCreate", "cuMemMap",
            "cuMemUnmap", "cuMemAddressReserve", "hipMalloc", "hipExtMallocWithFlags", "hipHostMalloc", "hipFree",
            "cudaHostRegister",
        ],
        "lazy_load_or_jit": [
            "cuModuleLoadData", "cuModuleLoadDataEx", "cuLibraryLoadData", "hipModuleLoadData", "cudaGraphInstantiate",
            "cudaLibraryLoadData", "cuModuleGetFunction",
        ],
        "graph_launch": ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch"],
        None: [
            "cudaLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaEventQuery",
            "cudaStreamWaitEvent", "cudaEventRecordWithFlags", "cudaStreamIsCapturing", "hipModuleLaunchKernel",
            "cudaMemPrefetchAsync", "cudaMemGetInfo", "cuMemcpyHtoDAsync_v2",
        ],
    },
    "annotation": {
        "input_preparation": ["gpu_model_runner: preprocess", "enumerate(DataLoader)#_SingleProcessDataLoaderIter"],
        "requests": ["scheduler.recv_requests"],
        "scheduler": [
            "scheduler.process_input_requests", "scheduler.get_next_batch_to_run", "scheduler.process_batch_result",
            "schedule: allocate_slots", "llm_engine step: process_outputs", "gpu_model_runner: bookkeep",
            "gpu_model_runner: postprocess",
        ],
        "communication_wait": ["gloo:broadcast"],
        None: [
            "gpu_model_runner: forward", "gpu_model_runner: sample", "scheduler.run_batch", "ProfilerStep#3",
            "execute_context_0(0)_generation_4(4)", "step[DECODE bs=4]", "nccl:all_reduce",
        ],
    },
    "op": {
        "input_preparation": ["aten::pin_memory", "aten::_pin_memory"],
        "communication_wait": ["c10d::barrier", "c10d::recv_"],
        None: ["aten::copy_", "aten::item", "c10d::allreduce_", "record_param_comms", "vllm::moe_forward"],
    },
    "os": {
        "requests": [
            "poll", "ppoll", "epoll_wait", "epoll_pwait", "select", "pselect", "recv", "recvfrom", "recvmsg",
            "recvmmsg", "accept", "accept4", "nanosleep", "clock_nanosleep", "sleep", "usleep",
        ],
        None: ["pthread_cond_wait", "pthread_mutex_lock", "sem_wait", "read", "ioctl", "off CPU", "recvfile"],
    },
    "python": {
        "gc": ["Python GC"],
        "profiler": [
            "torch/profiler/profiler.py(872): start", "torch/autograd/profiler.py(854): __enter__",
            "sglang/srt/managers/scheduler_profiler_mixin.py(222): start_profile",
        ],
        "lazy_load_or_jit": [
            "triton/compiler/compiler.py(230): compile", "triton/backends/nvidia/compiler.py(300): make_ptx",
            "torch/_dynamo/convert_frame.py(1100): __call__", "torch/_inductor/compile_fx.py(700): compile_fx_inner",
            "torch/utils/cpp_extension.py(1200): load", "subprocess.py(500): run",
            "<frozen importlib._bootstrap>(900): _load_unlocked",
        ],
        "requests": [
            "sglang/srt/managers/scheduler.py(1656): recv_requests", "zmq/sugar/socket.py(961): recv_pyobj",
            "vllm/distributed/device_communicators/shm_broadcast.py(961): dequeue", "queue.py(154): get",
            "selectors.py(452): select", "multiprocessing/connection.py(250): recv",
            "<built-in method poll of select.epoll object at 0x7f1abc7fc9c0>",
        ],
        "communication_wait": [
            "torch/distributed/distributed_c10d.py(4500): barrier",
            "torch/distributed/distributed_c10d.py(3100): broadcast_object_list",
            "sglang/srt/utils.py(1100): broadcast_pyobj",
        ],
        "input_preparation": [
            "vllm/v1/worker/gpu_model_runner.py(1920): _prepare_inputs",
            "vllm/v1/worker/gpu_model_runner.py(1736): _prepare_input_ids",
            "vllm/v1/worker/gpu_model_runner.py(1520): _build_attention_metadata",
            "vllm/v1/worker/gpu_model_runner.py(1172): _update_states",
            "sglang/srt/managers/schedule_batch.py(2286): prepare_for_decode",
            "sglang/srt/model_executor/forward_batch_info.py(443): init_new",
            "sglang/srt/model_executor/cuda_graph_runner.py(1275): replay_prepare",
            "sglang/srt/layers/attention/aiter_backend.py(661): init_forward_metadata",
            "torch/utils/data/dataloader.py(700): __next__",
        ],
        "scheduler": [
            "vllm/v1/core/sched/scheduler.py(214): schedule",
            "vllm/v1/core/sched/scheduler.py(900): update_from_output",
            "vllm/v1/worker/gpu_model_runner.py(3468): _bookkeeping_sync",
            "sglang/srt/managers/scheduler.py(2485): get_next_batch_to_run",
            "sglang/srt/managers/scheduler.py(3184): process_batch_result",
            "sglang/srt/managers/scheduler_output_processor_mixin.py(181): process_batch_result_prefill",
            "sglang/srt/managers/scheduler_output_processor_mixin.py(996): stream_output",
        ],
        None: [
            "sglang/srt/managers/scheduler.py(1594): event_loop_overlap",
            "sglang/srt/managers/scheduler.py(3006): run_batch",
            "vllm/v1/worker/gpu_model_runner.py(3939): execute_model",
            "torch/_dynamo/eval_frame.py(791): compile_wrapper",
            "triton/compiler/compiler.py(487): launch_metadata", "triton/backends/nvidia/driver.py(699): __call__",
            "<frozen importlib._bootstrap>(1390): _handle_fromlist", "my_scheduler.py(3): reschedule",
            "notes/profiler.py(3): work", "dict.py(3): get",
        ],
    },
}  # fmt: skip


def causes(path: Path, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    with tracekit.open(write_trace(path / "trace.parquet", rows)) as trace:
        return {row["name"]: row["cause"] for row in trace.sql(
            "SELECT e.name, c.cause FROM host_causes() AS c JOIN events AS e ON e.id = c.id").to_pylist()}  # fmt: skip


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    assert causes(tmp_path, []) == {}


def test_names(tmp_path: Path) -> None:
    expected = {name: cause for of_kind in CAUSES.values() for cause, names in of_kind.items() for name in names}
    rows = [
        {"kind": kind, "name": name, "ts": at, "dur": 1}
        for kind, of_kind in CAUSES.items()
        for names in of_kind.values()
        for at, name in enumerate(names)
    ]
    found = causes(tmp_path, rows)
    assert {name: found.get(name) for name in expected} == expected


def test_how_an_api_call_waits_is_its_own_business(tmp_path: Path) -> None:
    """Of two polls the one in a synchronisation says nothing: it is the device that is waited for."""
    rows = [
        launch(0, 100, name="cudaStreamSynchronize"),
        {"kind": "os", "name": "poll", "ts": 10, "dur": 80, "parent_id": 1},
        {"kind": "os", "name": "epoll_wait", "ts": 200, "dur": 80},
    ]
    assert causes(tmp_path, rows) == {"cudaStreamSynchronize": "sync", "epoll_wait": "requests"}


def copy(name: str, ts: int, dur: int, launch_id: int) -> dict[str, Any]:
    return {"kind": "memcpy", "name": name, "ts": ts, "dur": dur, "launch_id": launch_id}


def test_copies_by_what_they_copy_and_whether_their_call_waited(tmp_path: Path) -> None:
    rows = [launch(at * 100, 50, name=f"cudaMemcpyAsync {at}") for at in range(1, 6)]
    rows += [
        copy("Memcpy HtoD (Pageable -> Device)", 140, 100, 1),
        copy("Memcpy DtoH (Device -> Pageable)", 210, 30, 2),
        copy("Memcpy DtoH (Device -> Pinned)", 310, 40, 3),
        copy("Memcpy DtoH (Device -> Pinned)", 410, 41, 4),
        copy("Memcpy HtoD (Pinned -> Device)", 510, 10, 5),
        kernel(600, 10),
    ]
    assert causes(tmp_path, rows) == {
        "cudaMemcpyAsync 1": "pageable_copy",
        "cudaMemcpyAsync 2": "pageable_copy",
        "cudaMemcpyAsync 3": "sync",
    }
