"""Findings of idle_gaps: each says what it costs, and advises on what the trace shows, and on nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.event_rows import annotation, footer_of, kernel, launch, op, write_trace
from tests.real_traces import parameters
from tracekit.analysis import Finding, Result
from tracekit.footer import SourceInfo

US = 1_000
MS = 1_000_000
Rows = list[dict[str, Any]]


def analyze(path: Path, rows: Sequence[dict[str, Any]], **options: Any) -> Result:
    with tracekit.open(write_trace(path / "trace.parquet", rows)) as trace:
        return trace.analyze("idle_gaps", **options)


def the_finding(path: Path, rows: Sequence[dict[str, Any]], cause: str = "launch_bound") -> Finding:
    (found,) = [one for one in analyze(path, rows).findings if one.title.startswith(f"{cause}: ")]
    return found


def late(gaps: Sequence[int], *, name: str = "aten::mm", kind: str = "op", call: str = "cudaLaunchKernel") -> Rows:
    """Gaps of these lengths, each spent in one host row (or in the call), ended by a kernel launched just before."""
    rows: Rows = [launch(0, 5 * US, name=call), kernel(10 * US, 90 * US, launch_id=1)]
    at = 100 * US
    for dur in gaps:
        if name == call:
            rows.append(launch(at - US, dur, name=call))
        else:
            rows.append({"kind": kind, "name": name, "ts": at - US, "dur": dur - 5 * US})
            rows.append(launch(at + dur - 5 * US, 4 * US, name=call))
        rows.append(kernel(at + dur, 90 * US, launch_id=len(rows)))
        at += dur + 90 * US
    return rows


def in_step(rows: Rows, mark: str) -> Rows:
    """The same rows inside one step."""
    moved = [{**row, "launch_id": row["launch_id"] + 1} if "launch_id" in row else row for row in rows]
    return [annotation(mark, 0, 10**12), *moved]


MANY = [100 * US] * 8


def test_whole_finding(tmp_path: Path) -> None:
    (finding,) = analyze(tmp_path, in_step(late(MANY), "step[DECODE bs=4]")).findings
    assert finding == Finding(
        severity="critical",
        title="launch_bound: the host launches too slowly, 49.7% of the span",
        detail="8 gaps, the longest 100 us; mostly in aten::mm (800 us). The host was still preparing or launching "
        "when the device ran dry. Tracing slows the host, so the true figure is lower.",
        saving_low_ns=0,
        saving_high_ns=800 * US,
        evidence=(6, 9, 12, 15, 18, 4, 7, 10, 13, 16),
        remedy="Replay decode steps as CUDA graphs (SGLang: drop disable-cuda-graph). Where shapes vary, compile, or "
        "fuse to launch fewer and larger kernels.",
        cost="Graph memory, longer start-up, batches padded to captured sizes.",
        verify="Same load, this one change: idle by cause in a new trace; P50 and P99 of ITL unprofiled.",
    )


@pytest.mark.parametrize(
    ("mark", "call", "remedy", "metric"),
    [
        ("step[DECODE bs=1]", "cudaLaunchKernel", "Replay decode steps as CUDA graphs (SGLang:", "P50 and P99 of ITL"),
        (
            "execute_context_0(0)_generation_4(4)",
            "cudaLaunchKernel",
            "Replay decode steps as CUDA graphs (vLLM: drop enforce_eager)",
            "P50 and P99 of ITL",
        ),
        ("step[EXTEND bs=1 toks=8]", "cudaLaunchKernel", "Compile and capture prefill piecewise, fuse", "of TTFT"),
        (
            "execute_context_1(60)_generation_0(0)",
            "cudaLaunchKernel",
            "Compile and capture prefill piecewise (vLLM: a cudagraph_mode",
            "P50 and P99 of TTFT",
        ),
        ("step[MIXED c=1 g=3]", "cudaLaunchKernel", "Replay steps of the same shape as CUDA graphs", "TTFT and ITL"),
        ("ProfilerStep#3", "cudaLaunchKernel", "Replay steps of the same shape as CUDA graphs. Where", "the step time"),
        ("generate", "cudaLaunchKernel", "Replay steps of the same shape as CUDA graphs. Where", "the step time"),
        ("step[DECODE bs=1]", "cudaGraphLaunch", "Most work comes from graph replays already", "P50 and P99 of ITL"),
    ],
)
def test_many_small_gaps(tmp_path: Path, mark: str, call: str, remedy: str, metric: str) -> None:
    finding = the_finding(tmp_path, in_step(late(MANY, call=call), mark))
    assert finding.remedy.startswith(remedy)
    assert f"{metric} unprofiled" in finding.verify


@pytest.mark.parametrize(
    ("names", "engine"),
    [
        ((), ""),
        (("vllm/v1/worker/gpu_worker.py(1): execute_model",), "vLLM: drop enforce_eager"),
        (("sglang/srt/managers/scheduler.py(1): run_batch",), "SGLang: drop disable-cuda-graph"),
        (("sgl_kernel::rmsnorm", "sgl_kernel::rmsnorm", "vllm::all_reduce"), "SGLang: drop disable-cuda-graph"),
        (("my-notes/notvllmatall.py(1): f",), ""),
    ],
)
def test_flags_are_those_of_the_engine_in_the_trace(tmp_path: Path, names: tuple[str, ...], engine: str) -> None:
    shown: Rows = [{"kind": "python", "name": name, "ts": 0, "dur": 1, "tid": 9} for name in names]
    remedy = the_finding(tmp_path, [*late(MANY), *shown]).remedy
    assert engine in remedy
    assert engine or not any(word in remedy for word in ("vLLM", "SGLang"))


@pytest.mark.parametrize(
    ("gaps", "name", "kind", "title", "remedy"),
    [
        ([23 * MS, *MANY], "subprocess.py(506): run", "python", "waits for compilation", "Warm up all shapes"),
        (MANY, "torch/_inductor/async_compile.py(9): wait", "python", "waits for compilation", "Warm up all shapes"),
        (MANY, "torch/_dynamo/eval_frame.py(574): compile_wrapper", "python", "launches too slowly", "Replay steps"),
        ([MS] * 8, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "op", "waits for data", "Load ahead"),
        ([23 * MS, *MANY], "aten::mm", "op", "waits in a few gaps", "Warm up before recording"),
        ([2 * MS] * 8, "schedule", "python", "host code keeps the device waiting", "Shorten the host code"),
        (MANY, "cudaMalloc", "launch", "inside an API call of the host", "Warm up before recording"),
        (MANY, "cudaLaunchKernel", "launch", "launches too slowly", "Replay steps"),
        ([23 * MS], "cudaLaunchKernel", "launch", "inside an API call of the host", "Warm up before recording"),
    ],
)
def test_graphs_only_where_launches_are_the_price(
    tmp_path: Path, *, gaps: list[int], name: str, kind: str, title: str, remedy: str
) -> None:
    finding = the_finding(tmp_path, late(gaps, name=name, kind=kind))
    assert title in finding.title
    assert finding.remedy.startswith(remedy)
    assert name in finding.detail


@pytest.mark.parametrize("name", ["autograd::engine::evaluate_function: MulBackward0", "Optimizer.step#SGD.step"])
def test_training_is_not_served(tmp_path: Path, name: str) -> None:
    rows = in_step([*late(MANY), op(0, 1, name=name, tid=9)], "ProfilerStep#3")
    finding = the_finding(tmp_path, rows)
    assert finding.remedy.startswith("Compile the model (torch.compile)")
    assert "the step time unprofiled" in finding.verify
    words = " ".join((finding.detail, finding.remedy, finding.cost, finding.verify))
    assert not [word for word in ("ITL", "TTFT", "decode", "vLLM", "graph", "scheduling") if word in words]


def test_sync_and_gaps_between_steps_outside_serving(tmp_path: Path) -> None:
    rows: Rows = [
        annotation("ProfilerStep#1", 0, 110 * US),
        launch(0, 5 * US),
        kernel(10 * US, 90 * US, launch_id=2),
        launch(20 * US, 82 * US, name="cudaStreamSynchronize"),
        annotation("ProfilerStep#2", 110 * US, 145 * US),
        launch(190 * US, 5 * US),
        kernel(200 * US, 50 * US, launch_id=6),
        annotation("ProfilerStep#3", 350 * US, 200 * US),
        launch(360 * US, 5 * US),
        kernel(370 * US, 50 * US, launch_id=9),
    ]
    found = {one.title.partition(":")[0]: one for one in analyze(tmp_path, rows).findings}
    assert found.keys() == {"sync", "between_steps"}
    assert "the device waits between steps" in found["between_steps"].title
    assert not [one for one in found.values() if "scheduling" in one.remedy or "ITL" in one.verify]


# ---- queued ----------------------------------------------------------------------------------------------------------


def test_queued_names_the_call_whose_work_waited(tmp_path: Path) -> None:
    rows = [
        launch(0, 5 * US, name="cudaGraphLaunch"),
        kernel(10 * US, 90 * US, launch_id=1),
        kernel(64 * MS, MS, launch_id=1),
        launch(64 * MS, 5 * US, name="cudaGraphLaunch"),
        kernel(100 * MS, MS, launch_id=4),
        launch(100 * MS, 5 * US),
        kernel(106 * MS, MS, launch_id=6),
    ]
    finding = the_finding(tmp_path, rows, "queued")
    assert finding.severity == "warning"
    assert finding.title == "queued: the device waits although work is queued, 97.1% of the span"
    assert finding.detail.startswith(
        "3 gaps, the longest 63.9 ms. 98.9 ms end at work of cudaGraphLaunch, 63.9 ms lie between rows of the same "
        "launch. Kernels of a graph may not be recorded; then the device was at work here."
    )


def test_pauses_between_kernels_are_only_said(tmp_path: Path) -> None:
    rows = [launch(0, 5 * US), *(kernel(20 * US + at * 10 * US, 9 * US, launch_id=1) for at in range(20))]
    finding = the_finding(tmp_path, rows, "queued")
    assert (finding.severity, finding.title) == (
        "info",
        "queued: the device pauses between kernels, 9.5% of the span",
    )
    assert finding.detail.startswith("19 gaps, the longest 1.00 us. The work had been launched in time")


# ---- how much --------------------------------------------------------------------------------------------------------


def test_quiet_below_two_per_cent(tmp_path: Path) -> None:
    rows = late([19 * US])
    rows[-1]["dur"] = 872 * US
    assert analyze(tmp_path, rows).findings == ()
    assert len(analyze(tmp_path, rows, finding_share=0.01).findings) == 1


def test_savings_never_exceed_the_idle_time_of_a_device(tmp_path: Path) -> None:
    """Devices idle side by side: a finding promises what the worst of them could win, not the sum."""
    rows: Rows = []
    for rank in range(4):
        base = len(rows)
        for row in late([(300 - rank) * US]):
            moved = {"launch_id": row["launch_id"] + base} if "launch_id" in row else {}
            rows.append({**row, "rank": rank, **moved})
    (finding,) = analyze(tmp_path, rows).findings
    assert finding.saving_high_ns == 300 * US
    assert finding.title.endswith("on rank 0 device 0, the worst of 4")


@pytest.mark.parametrize("call", ["cudaGraphLaunch", "cuLaunchKernelEx"])
def test_unrecorded_work_is_not_called_idle(tmp_path: Path, call: str) -> None:
    """32 replays, kernels of one: the holes are work that was not recorded."""
    rows = [launch(i * 100 * US, 5 * US, name=call) for i in range(32)]
    rows += [kernel(10 * US, 5 * US, launch_id=1), kernel(3_000 * US, 5 * US, launch_id=1)]
    result = analyze(tmp_path, rows)
    assert result.findings == ()
    assert result.coverage.explained_ns == 0
    assert result.coverage.reason.startswith("idle time cannot be told: 31 of 32 ")


@pytest.mark.parametrize(("unfinished", "refused"), [(1, False), (2, True)])
def test_rows_without_an_end_are_no_idle_time(tmp_path: Path, unfinished: int, refused: bool) -> None:
    rows = late(MANY)
    for row in [row for row in rows if row["kind"] == "kernel"][:unfinished]:
        row |= {"dur": 0, "args": '{"finished": false, "x": 1}'}
    result = analyze(tmp_path, [*rows, *(kernel(9 * MS + i, 1) for i in range(9 - unfinished))])
    assert (result.findings == ()) == refused
    assert result.coverage.reason.startswith("idle time cannot be told: 2 of 16 device rows have no") == refused


def test_a_cut_file_without_device_rows_was_cut(tmp_path: Path) -> None:
    rows = [op(0, 50)]
    source = SourceInfo(path="a.json", format="kineto", rank=0, truncated_at=777)
    path = write_trace(tmp_path / "trace.parquet", rows, footer_of(rows, sources=(source,)))
    with tracekit.open(path) as trace:
        for name in ("idle_gaps", "attribution"):
            reason = trace.analyze(name).coverage.reason
            assert "the file was cut (a.json at byte 777) before any device activity" in reason
            assert "CUDA activities" not in reason


# ---- real recordings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", parameters())
def test_real_traces_add_up_and_promise_no_nanosecond_twice(path: Path) -> None:
    with tracekit.open(path, allow_partial=True) as trace:
        idle, busy = trace.analyze("idle_gaps"), trace.analyze("attribution")
    for row in idle.summary:
        assert sum(row["by_cause"].values()) == row["idle_ns"] == row["span_ns"] - row["busy_ns"]
    spans = sum(row["span_ns"] for row in idle.summary)
    assert sum(one.saving_high_ns for one in (*idle.findings, *busy.findings)) <= spans
    for finding in (*idle.findings, *busy.findings):
        assert all(part == part.strip() and "{" not in part for part in (finding.title, finding.remedy, finding.verify))
