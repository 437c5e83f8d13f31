"""Advice of idle_gaps: it fits the cause, the engine, the phase, and what else the trace shows of the gaps."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.event_rows import op
from tests.idle_rows import (
    BACKWARD,
    DECODE,
    MS,
    OP,
    OWN,
    TRAINING,
    US,
    VLLM,
    Hold,
    Rows,
    analyze,
    by_cause,
    causes,
    held,
    ranked,
    small_gaps,
    step,
    steps,
    unmarked,
    unseen,
)
from tracekit.analyses._idle_advice import MEANINGS, Scene, Shape, Workload, advise
from tracekit.analysis import Finding

IN_VAIN = ("no_requests", "profiler", "unattributed")  # causes that no change of the engine ends
BY_GRAPHS = ("launch_bound", "launch_latency", "graph_launch")  # what they could save cuda_graphs says
Found = Mapping[str, Mapping[str, Finding]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """By mark and cause. The causes of a mark share a trace, each on a rank of its own: a finding is about the rank
    where its cause takes most.
    """
    folder = tmp_path_factory.mktemp("causes")
    return {
        mark: by_cause(analyze(folder, ranked(*causes(mark).values(), [BACKWARD] * (mark == TRAINING))))
        for mark in (DECODE, VLLM, OWN, TRAINING)
    }


@pytest.mark.parametrize(
    ("cause", "severity", "share", "title", "blamed", "remedy"),
    [
        ("launch_latency", "warning", 16.7, "launches arrive at an empty", "cudaLaunchKernel (700 us)", "Let launches"),
        ("launch_bound", "critical", 66.7, "the host launches too slowly", "aten::mm (2.77 ms)", "Replay decode"),
        ("graph_launch", "critical", 66.3, "the device idles while a gr", "cudaGraphLaunch (2.79 ms)", "Launch the"),
        ("sync", "critical", 65.8, "the host waits for the device", "cudaStreamSynchronize (2.77 ms)", "Take .item()"),
        ("pageable_copy", "critical", 66.3, "copies of pageable", "cudaMemcpyAsync (2.79 ms)", "Copy from and"),
        ("allocation", "critical", 65.8, "the host allocates or", "cudaMalloc (2.77 ms)", "Warm up all shapes, keep"),
        ("input_preparation", "critical", 65.8, "waits for the inputs", "model_runner.py(7): _pr", "Prepare the next"),
        ("scheduler", "critical", 65.8, "the device waits for the", "gpu_model_runner: bookkeep (2", "Overlap them"),
        ("python", "critical", 81.4, "host code keeps the", "sampler.py(5): forward (6.26 ms)", "Shorten the host"),
        ("gc", "critical", 65.8, "garbage collection stops", "Python GC (2.77 ms)", "After warm-up gc.collect()"),
        ("lazy_load_or_jit", "critical", 65.8, "waits for compilation", "triton/compiler/compiler.py(230)", "Warm up"),
        ("stream_dependency", "warning", 64.7, "although work is queued", "cudaStreamWaitEvent (2.72", "See who"),
        ("communication_wait", "critical", 65.8, "waits for other ranks", "gloo:broadcast (2.77 ms)", "Convert the"),
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
    assert (finding.saving_high_ns == 0) == (cause in (*IN_VAIN, *BY_GRAPHS))


def test_every_cause_was_found(found: Found) -> None:
    assert {frozenset(of_mark) for of_mark in found.values()} == {frozenset(MEANINGS)}


# ---- by what the trace shows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "vllm", "sglang"),
    [
        ("launch_bound", "no --enforce-eager; --cudagraph-capture-sizes", "no --disable-cuda-graph; --cuda-graph"),
        ("launch_latency", "no --enforce-eager; --cudagraph-capture-sizes", "no --disable-cuda-graph; --cuda-graph"),
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


@pytest.mark.parametrize(
    ("names", "engine"),
    [
        (["vllm/v1/worker/gpu_worker.py(1): execute_model"], "vLLM: no --enforce-eager"),
        (["sgl_kernel::rmsnorm", "sgl_kernel::rmsnorm", "vllm::all_reduce"], "SGLang: no --disable-cuda-graph"),
        (["my-notes/notvllmatall.py(1): f"], "Replay steps of the same shape as CUDA graphs. Where"),
    ],
)
def test_engines_are_known_by_their_code_where_they_mark_no_steps(
    tmp_path: Path, names: list[str], engine: str
) -> None:
    finding = by_cause(analyze(tmp_path, [*unmarked(steps()), *(op(0, 1, name=name, tid=9) for name in names)]))
    assert engine in finding["launch_bound"].remedy
    assert "the step time unprofiled" in finding["launch_bound"].verify


@pytest.mark.parametrize("engine", ["SGLang", "vLLM"])
def test_phases_have_their_remedy_and_their_metric(tmp_path: Path, engine: str) -> None:
    """A trace with all phases; each has a finding of its own."""
    marks = {
        "prefill": "step[EXTEND bs=1 toks=8]", "decode": DECODE, "mixed": "step[MIXED c=1 g=3]",
        "verify": "step[VERIFY bs=4]", "draft": "step[DRAFT bs=4]",
    } if engine == "SGLang" else {
        "prefill": "execute_context_1(60)_generation_0(0)", "decode": VLLM,
        "mixed": "execute_context_1(60)_generation_3(3)",
    }  # fmt: skip
    findings = analyze(tmp_path, ranked(*(steps(mark=mark) for mark in marks.values()))).findings
    graphs = "Replay decode steps as CUDA graphs"
    expected = {
        "prefill": ("Compile and capture prefill piecewise", "P50 and P99 of TTFT unprofiled."),
        "decode": (graphs, "P50 and P99 of ITL unprofiled."),
        "mixed": ("Replay steps of the same shape as CUDA graphs", "P50 and P99 of TTFT and ITL unprofiled."),
        "verify": (graphs, "P50 and P99 of ITL unprofiled."),
        "draft": (graphs, "P50 and P99 of ITL unprofiled."),
    }
    found = {one.title.partition(" step,")[0].rpartition(" ")[2]: one for one in findings}
    assert found.keys() == marks.keys()
    for phase, finding in found.items():
        remedy, metric = expected[phase]
        assert (finding.remedy.startswith(remedy), finding.verify.endswith(metric)) == (True, True)
    assert ("piecewise (vLLM: a cudagraph_mode with PIECEWISE" in found["prefill"].remedy) == (engine == "vLLM")


@pytest.mark.parametrize(
    ("options", "title", "remedy"),
    [
        ({"mark": TRAINING}, "the host launches too slowly", "Replay steps of the same shape as CUDA graphs. Where"),
        ({"call": {"name": "cudaGraphLaunch"}, "mark": VLLM}, "the host launches", "Most work comes from graph"),
        ({"count": 3}, "the device waits in a few gaps", "Warm up before recording"),
        ({"hold": held("launch", "cudaFuncGetAttributes"), "count": 3}, "inside an API call of the host", "Warm up"),
        ({"hold": held("launch", "cudaFuncGetAttributes")}, "the host launches too slowly", "Replay decode steps"),
        ({"gap": 2 * MS}, "host code keeps the device waiting", "Shorten the host code named here"),
        ({"hold": held("op", "enumerate(DataLoader)#_Iter.__next__")}, "the device waits for data", "Load ahead of"),
        ({"hold": held("python", "torch/utils/data/dataloader.py(7): __next__")}, "waits for data", "Load ahead of"),
        ({"hold": unseen, "call": {"ts": 30 * US}}, "queued work waits, the trace does not", "Record what waits"),
    ],
    ids=["no engine", "graphs", "few", "few in calls", "in calls", "long", "data", "data in Python", "queued"],
)  # fmt: skip
def test_advice_by_what_gaps_look_like(tmp_path: Path, options: dict[str, Any], title: str, remedy: str) -> None:
    """Graphs only help where launches are the price; stacks only where the host was in the way."""
    hold: Hold = options.pop("hold", OP)
    found = by_cause(analyze(tmp_path, steps(hold, **options)))
    (finding,) = [one for cause, one in found.items() if cause != "launch_latency"]
    assert title in finding.title
    assert finding.remedy.startswith(remedy)


def test_pauses_of_the_device_are_only_said(tmp_path: Path) -> None:
    """Kernels that were all launched ahead: nothing but fewer of them would help."""
    (finding,) = analyze(tmp_path, small_gaps(ahead=True)).findings
    assert finding.severity == "info"
    assert finding.title.startswith("launch_latency: the device pauses between kernels, 100 us per decode step, 16.7%")
    assert finding.remedy.startswith("Fewer, larger kernels")


def test_training_is_not_served(found: Found) -> None:
    """But for causes that only an engine has."""
    words = ("ITL", "TTFT", "decode", "vLLM", "SGLang", "scheduling", "padded", "block tables", "structured output")
    for cause in MEANINGS.keys() - {"scheduler", "no_requests"}:
        finding = found[TRAINING][cause]
        said = " ".join((finding.title, finding.detail, finding.remedy, finding.cost, finding.verify))
        assert not [word for word in words if word in said], cause
    assert found[TRAINING]["launch_bound"].remedy.startswith("Compile the model (torch.compile")
    assert "the step time unprofiled" in found[TRAINING]["launch_bound"].verify


@pytest.mark.parametrize("workload", get_args(Workload))
def test_no_advice_has_holes(workload: Workload) -> None:
    for cause, engine, shape, yes in product(MEANINGS, ("", "vLLM", "SGLang"), get_args(Shape), (False, True)):
        scene = Scene(workload, "prefill", engine, yes, shape, pauses=yes, in_calls=not yes, on_data=not yes)
        said = advise(cause, scene)
        for text in (said.title, said.detail, said.remedy, said.cost, said.verify):
            assert text.strip() == text
            assert not set("{}") & set(text)
        assert said.remedy.endswith(".")
        assert engine or "--" not in said.remedy.replace("tracekit collect --stacks", "")


# ---- blame -----------------------------------------------------------------------------------------------------------


def called_from(function: str) -> Hold:
    """An op in a function of an engine, below one that only passes calls on."""
    return lambda ts, dur: [
        {"kind": "python", "name": f"/opt/venv/site-packages/{function}", "ts": ts - 2 * US, "dur": dur + 3 * US},
        {"kind": "python", "name": "/x/vllm/parameter.py(1): __torch_function__", "ts": ts - US, "dur": dur + 2 * US},
        {"kind": "python", "name": "torch/nn/functional.py(2): linear", "ts": ts - US, "dur": dur + US},
        op(ts, dur, name="aten::addmm"),
    ]


def test_blame_names_the_function_of_the_engine_that_called(tmp_path: Path) -> None:
    """Where one call took it all; of several only the longest is looked up."""
    rows = steps(called_from("vllm/model_executor/layers/linear.py(3): apply"), count=2)
    finding = by_cause(analyze(tmp_path, rows))["launch_bound"]
    assert (
        "; mostly in aten::addmm (395 us, called by vllm/model_executor/layers/linear.py(3): apply). " in finding.detail
    )
    finding = by_cause(analyze(tmp_path, steps(called_from("sglang/srt/layers/linear.py(3): apply"))))["launch_bound"]
    assert "aten::addmm (2.77 ms, the longest called by sglang/srt/layers/linear.py(3): apply). " in finding.detail


def test_blame_names_the_two_costliest(tmp_path: Path) -> None:
    rows = steps(count=5)
    for name in ("aten::cat", "aten::add_", "aten::add_"):
        step(rows, held("op", name))
    finding = by_cause(analyze(tmp_path, rows))["launch_bound"]
    assert "; mostly in aten::mm (1.58 ms); aten::add_ (790 us). " in finding.detail


def test_blame_is_for_the_time_a_row_lasted(tmp_path: Path) -> None:
    """The op that holds most of a gap, 200 us of 395, did not take the rest of it."""

    def hold(ts: int, dur: int) -> Rows:
        return [op(ts, 60 * US), op(ts + 60 * US, 200 * US, name="aten::add_"), op(ts + 260 * US, dur - 260 * US)]

    finding = by_cause(analyze(tmp_path, steps(hold)))["launch_bound"]
    assert "; mostly in aten::add_ (1.40 ms). " in finding.detail


def test_small_launches_have_no_caller(tmp_path: Path) -> None:
    """They come from everywhere; where one of them came from says nothing."""
    around = {"kind": "python", "name": "vllm/worker.py(1): run", "ts": 0, "dur": 10 * MS}
    finding = by_cause(analyze(tmp_path, [*small_gaps(ahead=False), around]))["launch_latency"]
    assert "; mostly in cudaLaunchKernel (700 us). " in finding.detail


def test_gaps_are_counted_whole(tmp_path: Path) -> None:
    """One in which garbage is collected between two ops is one gap of launch_bound, not two."""

    def hold(ts: int, dur: int) -> Rows:
        garbage = {"kind": "python", "name": "Python GC", "ts": ts + 101 * US, "dur": 100 * US}
        return [*OP(ts, dur), garbage]

    found = by_cause(analyze(tmp_path, steps(hold)))
    assert found["launch_bound"].detail.startswith("14 gaps, the longest 295 us, in 7 steps; mostly in ")
    assert found["gc"].detail.startswith("7 gaps, the longest 100 us, in 7 steps; mostly in Python GC (700 us). ")
