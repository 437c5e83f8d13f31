"""What to do about idle time, by cause and by what the trace shows: remedy, price, proof."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tracekit.analyses import _idle_texts as texts
from tracekit.analyses._idle_texts import MEANINGS, Advice

__all__ = ["MEANINGS", "Advice", "Scene", "advise"]

Workload = Literal["serving", "training", "unknown"]
Shape = Literal["small gaps", "few gaps", "long gaps"]


@dataclass(frozen=True, slots=True)
class Scene:
    """What the trace shows of the gaps of one cause.

    phase: serving phase. engine: "vLLM", "SGLang" or "". graphs: most device work comes from graph replays. shape: the
    few longest gaps hold most of the time; else small ones do; else long ones. pauses: most of the time the work had
    been launched before the device ran dry. in_calls: most of the time is blamed on API calls. on_data: much of it on
    data loaders.
    """

    workload: Workload = "unknown"
    phase: str = "unknown"
    engine: str = ""
    graphs: bool = False
    shape: Shape = "small gaps"
    pauses: bool = False
    in_calls: bool = False
    on_data: bool = False

    @property
    def metric(self) -> str:
        """What to measure without a profiler, to see whether the change helped."""
        if self.workload != "serving":
            return "the step time"
        return {
            "prefill": "P50 and P99 of TTFT",
            "decode": "P50 and P99 of ITL",
            "verify": "P50 and P99 of ITL",
            "draft": "P50 and P99 of ITL",
            "mixed": "P50 and P99 of TTFT and ITL",
        }.get(self.phase, "the step time")


# What is said of a cause whatever else the trace shows: of serving, and of what is not.
_PLAIN = {
    "graph_launch": texts.GRAPH_LAUNCH,
    "sync": texts.SYNC,
    "pageable_copy": texts.PAGEABLE,
    "allocation": texts.ALLOCATION,
    "input_preparation": texts.INPUTS,
    "scheduler": texts.SCHEDULER,
    "python": texts.PYTHON,
    "gc": texts.GC,
    "lazy_load_or_jit": texts.FIRST_USE,
    "stream_dependency": texts.DEPENDENCY,
    "communication_wait": texts.COMMUNICATION,
    "no_requests": texts.NO_REQUESTS,
    "profiler": texts.PROFILER,
    "unattributed": texts.UNATTRIBUTED,
}
_NO_SERVING = {
    "graph_launch": texts.GRAPH_LAUNCH_NO_SERVING,
    "sync": texts.SYNC_NO_SERVING,
    "input_preparation": texts.INPUTS_NO_SERVING,
}


def advise(cause: str, scene: Scene) -> Advice:
    """What fits the cause and the trace, with the names of the engine in use, or none."""
    found = _chosen(cause, scene)
    return replace(
        found,
        remedy=found.remedy.replace("{flags}", found.flags.get(scene.engine, "")),
        verify=found.verify.replace("{metric}", scene.metric),
    )


def _chosen(cause: str, scene: Scene) -> Advice:
    match cause:
        case "launch_bound":
            return _launch_bound(scene)
        case "launch_latency":
            if scene.pauses:
                return texts.PAUSES
            return texts.LATENCY_TRAINING if scene.workload == "training" else texts.LATENCY
        case "input_preparation" | "python" if scene.on_data:
            return texts.DATA
        case "unattributed" if scene.pauses:
            return texts.QUEUED  # the host, with or without stacks, has nothing to tell
        case _:
            return _PLAIN[cause] if scene.workload == "serving" else _NO_SERVING.get(cause, _PLAIN[cause])


def _launch_bound(scene: Scene) -> Advice:
    """Graphs only help where launches are the price: in many small gaps."""
    cases = (  # the first that holds
        (scene.on_data, texts.DATA),
        (scene.in_calls and scene.shape != "small gaps", texts.IN_CALLS),
        (scene.shape == "few gaps", texts.FEW_GAPS),
        (scene.shape == "long gaps", texts.PYTHON),
        (scene.workload == "training", texts.TRAINING),
        (scene.graphs and scene.workload != "serving", texts.GRAPHS_ALREADY_NO_SERVING),
        (scene.graphs, texts.GRAPHS_ALREADY),
        (scene.phase == "prefill", texts.PREFILL),
        (scene.phase in ("decode", "verify", "draft"), texts.DECODE),
        (True, texts.LAUNCH_BOUND),
    )
    return next(said for holds, said in cases if holds)
