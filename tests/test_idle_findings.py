"""Findings of idle_gaps: each says what it costs a step, and advises on what the trace shows, and on nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest

import tracekit
from tests.event_rows import annotation, footer_of, kernel, launch, op, write_trace
from tests.idle_rows import DECODE, GAP, MS, OP, STEP, US, Rows, analyze, by_cause, held, put, ranked, small_gaps
from tests.idle_rows import step, steps, unmarked, unseen, waited, warned
from tests.real_traces import parameters
from tests.simulator import Plant, Run, simulate
from tracekit.analyses._idle_advice import MEANINGS, Scene, Shape, Workload, advise
from tracekit.analysis import Finding
from tracekit.footer import SourceInfo

VLLM = "execute_context_0(0)_generation_4(4)"
OWN = "tracekit.step[decode decode_requests=4 decode_tokens=4]"
TRAINING = "ProfilerStep#3"
IN_VAIN = ("no_requests", "profiler", "unattributed")  # causes that no change of the engine ends


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    assert analyze(tmp_path, []).findings == ()


def test_whole_finding(tmp_path: Path) -> None:
    (finding,) = analyze(tmp_path, steps()).findings
    assert finding == Finding(
        severity="critical",
        title="launch_bound: the host launches too slowly, 400 us per decode step, 66.7% of its time",
        detail="14 gaps, the longest 395 us, in 7 steps; mostly in aten::mm (2.77 ms). The host was still preparing or "
        "launching when the device ran dry. Tracing slows the host, so the true figure is lower.",
        saving_low_ns=0,
        saving_high_ns=2_800 * US,
        evidence=(13, 20, 27, 34, 41, 11, 18, 25, 32, 39),
        remedy="Replay decode steps as CUDA graphs (SGLang: no --disable-cuda-graph; --cuda-graph-max-bs up to the "
        "batch). Where shapes vary, compile, or fuse to launch fewer and larger kernels.",
        cost="Graph memory, longer start-up, batches padded to captured sizes.",
        verify="Same load, this one change: idle by cause in a new trace; P50 and P99 of ITL unprofiled.",
    )


# ---- what is said of each cause --------------------------------------------------------------------------------------


def seen(mark: str) -> dict[str, Rows]:
    """For each cause steps in which it takes most of the time."""
    slow = {"ts": 99 * US, "dur": GAP - US}
    pageable = {"kind": "memcpy", "name": "Memcpy HtoD (Pageable -> Device)"}
    return {
        "launch_latency": small_gaps(mark, ahead=False),
        "launch_bound": steps(OP, mark=mark),
        "graph_launch": steps(unseen, mark=mark, call={"name": "cudaGraphLaunch", **slow}),
        "sync": steps(waited, mark=mark),
        "pageable_copy": steps(unseen, mark=mark, call={"name": "cudaMemcpyAsync", **slow}, work=pageable),
        "allocation": steps(held("launch", "cudaMalloc"), mark=mark),
        "input_preparation": steps(held("python", "model_runner.py(7): _prepare_inputs"), mark=mark),
        "scheduler": steps(held("annotation", "gpu_model_runner: bookkeep"), mark=mark),
        "python": steps(held("python", "sampler.py(5): forward"), mark=mark, gap=900 * US),
        "gc": steps(held("python", "Python GC"), mark=mark),
        "lazy_load_or_jit": steps(held("python", "triton/compiler/compiler.py(230): compile"), mark=mark),
        "stream_dependency": steps(warned, mark=mark, call={"ts": 30 * US}),
        "communication_wait": steps(held("annotation", "gloo:broadcast"), mark=mark),
        "no_requests": steps(held("annotation", "scheduler.recv_requests"), mark=mark, gap=25 * MS),
        "profiler": steps(held("overhead", "Buffer Flush"), mark=mark),
        "unattributed": steps(unseen, mark=mark),
    }


Found = Mapping[str, Mapping[str, Finding]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """By mark and cause. The causes of a mark share a trace, each on a rank of its own: a finding is about the rank
    where its cause takes most.
    """
    folder = tmp_path_factory.mktemp("causes")
    backward = op(0, 1, name="autograd::engine::evaluate_function: MulBackward0", tid=9)
    return {
        mark: by_cause(analyze(folder, ranked(*seen(mark).values(), [backward] * (mark == TRAINING))))
        for mark in (DECODE, VLLM, OWN, TRAINING)
    }


@pytest.mark.parametrize(
    ("cause", "severity", "share", "title", "blamed", "remedy"),
    [
        ("launch_latency", "warning", 16.7, "launches arrive at an empty", "cudaLaunchKernel (700 us)", "Let launches run"),
        ("launch_bound", "critical", 66.7, "the host launches too slowly", "aten::mm (2.77 ms)", "Replay decode steps as"),
        ("graph_launch", "critical", 66.3, "the device idles while a gr", "cudaGraphLaunch (2.79 ms)", "Launch the graph"),
        ("sync", "critical", 65.8, "the host waits for the device", "cudaStreamSynchronize (2.77 ms)", "Take .item(), .cpu"),
        ("pageable_copy", "critical", 66.3, "copies of pageable", "cudaMemcpyAsync (2.79 ms)", "Copy from and to pinned"),
        ("allocation", "critical", 65.8, "the host allocates or", "cudaMalloc (2.77 ms)", "Warm up all shapes, keep buffers"),
        ("input_preparation", "critical", 65.8, "waits for the inputs", "model_runner.py(7): _pr", "Prepare the next step"),
        ("scheduler", "critical", 65.8, "the device waits for the", "gpu_model_runner: bookkeep (2", "Overlap them with"),
        ("python", "critical", 81.4, "host code keeps the", "sampler.py(5): forward (6.26 ms)", "Shorten the host code named"),
        ("gc", "critical", 65.8, "garbage collection stops", "Python GC (2.77 ms)", "After warm-up gc.collect()"),
        ("lazy_load_or_jit", "critical", 65.8, "waits for compilation", "triton/compiler/compiler.py(230)", "Warm up all"),
        ("stream_dependency", "warning", 64.7, "although work is queued", "cudaStreamWaitEvent (2.72", "See who records the"),
        ("communication_wait", "critical", 65.8, "waits for other ranks", "gloo:broadcast (2.77 ms)", "Convert the traces of"),
        ("no_requests", "info", 99.2, "there was nothing to serve", "scheduler.recv_requests (175 ms)", "Add load"),
        ("profiler", "info", 65.8, "the profiler itself stops", "Buffer Flush (2.77 ms)", "Record again after warm-up"),
        ("unattributed", "info", 65.8, "idle time without a cause", "", "Record again with Python stacks"),
    ],
)  # fmt: skip
def test_each_cause_has_advice_that_fits(
    found: Found, *, cause: str, severity: str, share: float, title: str, blamed: str, remedy: str
) -> None:
    finding = found[OWN][cause]
    assert title in finding.title
    assert f" per decode step, {share}% of its time on rank {list(MEANINGS).index(cause)} device 0" in finding.title
    assert finding.severity == severity
    assert finding.remedy.startswith(remedy)
    assert (f"; mostly in {blamed}" if blamed else "in 7 steps. ") in finding.detail
    assert (finding.saving_high_ns == 0) == (cause in IN_VAIN)


def test_every_cause_was_found(found: Found) -> None:
    assert {tuple(causes) for causes in found.values()} == {tuple(MEANINGS)}


@pytest.mark.parametrize(
    ("cause", "vllm", "sglang"),
    [
        ("launch_bound", "no --enforce-eager; --cudagraph-capture-sizes", "no --disable-cuda-graph; --cuda-graph-max-bs"),
        ("launch_latency", "no --enforce-eager; --cudagraph-capture-sizes", "no --disable-cuda-graph; --cuda-graph-max-b"),
        ("graph_launch", "--async-scheduling", "no --disable-overlap-schedule"),
        ("sync", "--async-scheduling", "no --disable-overlap-schedule"),
        ("input_preparation", "--async-scheduling", "no --disable-overlap-schedule"),
        ("scheduler", "--async-scheduling", "no --disable-overlap-schedule"),
    ],
)  # fmt: skip
def test_flags_are_those_of_the_engine_in_the_trace(found: Found, cause: str, vllm: str, sglang: str) -> None:
    assert f"(vLLM: {vllm}" in found[VLLM][cause].remedy
    assert f"(SGLang: {sglang}" in found[DECODE][cause].remedy
    assert not [word for word in ("vLLM", "SGLang", "--") if word in found[OWN][cause].remedy]


def test_training_is_not_served(found: Found) -> None:
    """But causes that only an engine can have."""
    words = ("ITL", "TTFT", "decode", "vLLM", "SGLang", "scheduling", "padded", "block tables", "structured output")
    for cause in MEANINGS.keys() - {"scheduler", "no_requests"}:
        finding = found[TRAINING][cause]
        said = " ".join((finding.detail, finding.remedy, finding.cost, finding.verify)).removeprefix("decode")
        assert not [word for word in words if word in said], cause
    assert found[TRAINING]["launch_bound"].remedy.startswith("Compile the model (torch.compile)")
    assert "the step time unprofiled" in found[TRAINING]["launch_bound"].verify


@pytest.mark.parametrize("workload", get_args(Workload))
def test_no_advice_has_holes(workload: Workload) -> None:
    flags = (False, True)
    for cause in MEANINGS:
        for engine in ("", "vLLM", "SGLang"):
            for shape in get_args(Shape):
                for yes in flags:
                    scene = Scene(
                        workload, "prefill", engine, yes, shape, pauses=yes, in_calls=not yes, on_data=not yes
                    )
                    said = advise(cause, scene)
                    for text in (said.title, said.detail, said.remedy, said.cost, said.verify):
                        assert text.strip() == text
                        assert not set("{}") & set(text)
                    assert said.remedy.endswith(".")
                    assert engine or "--" not in said.remedy.replace("collect --stack", "")
