"""What to set so that steps are replayed as CUDA graphs, what that costs, and how to get what stands in the way out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

COST = (
    "Capture takes start-up time and each captured size device memory. Shapes and addresses are fixed: batches are "
    "padded to captured sizes, inputs copied into static buffers."
)
_DECODE = ("decode", "verify", "draft")
_VLLM = {
    True: 'vLLM: no --enforce-eager; --compilation-config \'{"cudagraph_mode": "FULL_AND_PIECEWISE"}\', with '
    "cudagraph_capture_sizes up to the largest batch.",
    False: "vLLM: no --enforce-eager; a cudagraph_mode with PIECEWISE, with cudagraph_capture_sizes up to the tokens "
    "of such a step. Beyond the largest size steps run eagerly.",
}
_SGLANG = {
    True: "SGLang: no --disable-cuda-graph; --cuda-graph-max-bs up to the largest batch, or the sizes with "
    "--cuda-graph-bs.",
    False: "SGLang: no --disable-piecewise-cuda-graph, where the version has piecewise graphs of prefill.",
}
_TRT_LLM = (
    "TensorRT-LLM: cuda_graph_config with batch_sizes (or max_batch_size) up to the largest batch, enable_padding."
)
_TORCH = (
    'Plain PyTorch: torch.compile(mode="reduce-overhead"), or capture into static inputs with torch.cuda.graph or '
    "torch.cuda.make_graphed_callables, once for each size, after some warm-up steps."
)
_MODE = {
    "vLLM": "vLLM: a cudagraph_mode with FULL for these steps (--compilation-config), and an attention backend that "
    "supports it.",
}
BLOCKERS: Mapping[str, str] = MappingProxyType(
    {
        "readback": "Leave the result on the device (no .item(), .cpu(), nonzero() within the step), or read it a step "
        "later from pinned memory.",
        "pageable_copy": "Pin the host tensor and copy with non_blocking=True into a static buffer before the step.",
        "synchronous_copy": "Copy asynchronously, before the step.",
        "synchronisation": "Take the wait out of the step: stream order is enough on the device.",
        "allocation": "Allocate before, or let the framework's caching allocator do so; no empty_cache in a step.",
        "loading": "Warm up before the capture, so that code is loaded and tuned.",
        "host_callback": "Call the host function after the replay.",
        "legacy_stream": "Launch on the current stream: a custom kernel has to take the stream it is given.",
        "varying_shapes": "Launch with the grid of the largest size and mask the rest on the device, as attention "
        "backends for full graphs do; else leave these kernels between the pieces (piecewise graphs).",
    }
)
BLOCKED_COST = "Code of the model or the engine changes; results that are read later arrive a step later."


def remedy(engine: str, phase: str, *, has_graphs: bool, serving: bool) -> str:
    """What to set. engine: "vLLM", "SGLang" or "". has_graphs: the steps have replays already, in pieces."""
    is_decode = phase in _DECODE
    if has_graphs and engine in _MODE:
        return _MODE[engine]
    if has_graphs:
        return "Capture what is still launched one by one, up to one graph a step."
    known = {"vLLM": _VLLM, "SGLang": _SGLANG}
    if engine in known:
        return known[engine][is_decode]
    return " ".join([_TORCH, *((_VLLM[is_decode], _SGLANG[is_decode], _TRT_LLM) if serving and is_decode else ())])


def more_sizes(engine: str) -> str:
    """What to set so that larger batches are captured, too."""
    return {
        "vLLM": "vLLM: cudagraph_capture_sizes (or max_cudagraph_capture_size) up to the largest batch served.",
        "SGLang": "SGLang: --cuda-graph-max-bs up to the largest batch served.",
    }.get(engine, f"Capture graphs up to the largest batch served. {_TRT_LLM}")


def closer_sizes(engine: str) -> str:
    """What to set so that less is padded."""
    return {
        "vLLM": "vLLM: add the batch sizes that are served most to cudagraph_capture_sizes.",
        "SGLang": "SGLang: add the batch sizes that are served most with --cuda-graph-bs.",
    }.get(engine, "Capture the batch sizes that are served most.")


def unblock(kinds: Iterable[str]) -> str:
    """What to do about blockers of these kinds."""
    return " ".join(BLOCKERS[kind] for kind in dict.fromkeys(kinds) if kind in BLOCKERS)


def metric(phase: str) -> str:
    """What to measure without a profiler."""
    if phase in _DECODE:
        return "P50 and P99 of ITL"
    return {"prefill": "P50 and P99 of TTFT", "mixed": "P50 and P99 of TTFT and ITL"}.get(phase, "the step time")


def verify(phase: str) -> str:
    """How to prove it."""
    return f"Same load, this one change: {metric(phase)} unprofiled; in a new trace such steps are replays."
