"""What to say of kernels that are far from their roof, at it, or above it. Sentences only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Advice:
    """Title, what follows the numbers, and what to do. Words in braces are filled in by the finding."""

    title: str
    detail: str
    remedy: str
    cost: str
    verify: str


_SAME_LOAD = "Same load, this one change: {} in a new trace, P50 and P99 of TPOT unprofiled."

WEIGHTS = Advice(
    "reading weights bounds GEMMs that take {share} of the busy time{where}",
    "They run near the memory roof, so fewer bytes are the way to be faster: with weights of 8 bits at most {eight} "
    "less, of 4 bits at most {four}. That is the saved bytes at the achievable bandwidth; scales, and the arithmetic "
    "that expands the weights, take some of it.",
    "Quantise the weights: FP8 (E4M3, a scale for each channel) first, then 4 bits (AWQ or GPTQ with Marlin or "
    "Machete; NVFP4 or MXFP4 where the tensor cores have it). Or serve more requests in a step: they read the same "
    "weights.",
    "Accuracy: evaluate the tasks you serve. 4-bit weights are expanded in the kernel: large prefill batches, which "
    "compute bounds, get slower. A larger batch costs latency.",
    _SAME_LOAD.format("time of these GEMMs"),
)
KV = Advice(
    "reading keys and values bounds attention that takes {share} of the busy time{where}",
    "It runs near the memory roof and most of its bytes are the KV cache: an FP8 cache saves at most {saved}, if it "
    "holds 16 bits now. How many bytes a token has is a property of the model: with fewer KV heads (GQA) or a latent "
    "(MLA) the same context costs less.",
    "Keep the KV cache in FP8 (vLLM: --kv-cache-dtype fp8; SGLang: --kv-cache-dtype fp8_e4m3). For other models prefer "
    "GQA or MLA. Shared prefixes: attention that reads a prefix once for all requests (cascade).",
    "Accuracy at long contexts; not every attention backend reads FP8.",
    _SAME_LOAD.format("time of attention at the same context lengths"),
)
LATENCY = Advice(
    "kernels too small for the device take {share} of the busy time{where}",
    "They are far below both roofs and short, or have fewer blocks than the device runs at once: their time is start, "
    "waiting for memory and end. Above the roof they spend {above}.",
    "More work in a kernel: a larger batch, fusion of neighbours (torch.compile, fused norm + quant, fused RoPE + "
    "cache write), split-K or split-KV for more blocks. CUDA graphs and programmatic dependent launch shorten the "
    "pauses between them, not the kernels.",
    "A larger batch costs latency; compile time; graph memory.",
    _SAME_LOAD.format("their number and time"),
)
ABOVE = Advice(
    "kernels with {share} of the busy time{where} are above a roof, which cannot be",
    "A figure that they are judged by is wrong. No verdict on them holds.",
    "Check in this order. The device: is it the one of the table ({spec})? If not, --device-spec or --peak. The work: "
    "padding, masks, skipped experts or broadcast operands make the model count more than ran (column notes). Caches: "
    "data that the last kernel left in L2 comes faster than memory; counters (--ncu) tell.",
    "Nothing.",
    "The column problem after the change.",
)

FASTER = "Same load, this one change: roof_fraction of these kernels."
_GENERAL = (
    "See what holds them: ncu on these kernels (analysis counters prints the command), then another library's kernel, "
    "or a larger batch."
)
FAR_TITLE = "{category}: kernels below {near:.0%} of their roof spend {above} above it{per_step}{where}"
FAR_DETAIL = (
    "That is {share} of the busy time. What they compute and move at least would take {roof} at achievable peaks; no "
    "real kernel gets all of the rest back."
)
# By category: remedy and its cost.
FAR: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "gemm": (
            "Sizes that fill whole tiles (multiples of 128; padded vocabulary), 16-byte aligned operands, and tuned "
            "kernels (cuBLASLt heuristics, max-autotune, hipBLASLt or AITER tuning). A few rows (decode): split-K or "
            "stream-K kernels, a larger batch.",
            "Tuning time at start; memory of padding; a larger batch costs latency.",
        ),
        "attention": (
            "Another attention backend (FlashAttention 3, FlashInfer, TRT-LLM's), split-KV for few requests with long "
            "contexts, larger KV pages, head sizes that the backend has kernels for.",
            "Backends differ in features (sliding window, FP8 cache, MLA).",
        ),
        "moe": (
            "Kernels tuned for this model and device (vLLM: benchmark_moe.py writes the file), grouped GEMMs "
            "(DeepGEMM, CUTLASS, Triton), more tokens for each expert: larger batches or expert parallelism.",
            "Tuning time; expert parallelism adds all-to-all communication.",
        ),
        "communication": (_GENERAL, "Time to look."),
    }
)
POINTWISE = (
    "Contiguous tensors (strided or broadcast reads halve the bandwidth), vectorised or fused kernels (torch.compile, "
    "the engine's own ops), and fewer of them: neighbours fused read and write once.",
    "Compile time; recompilation where shapes vary.",
)
OTHERS = (_GENERAL, "Another library's kernel must exist for the shapes in use.")
POINTWISE_CATEGORIES = frozenset(
    (
        *("norm", "rope", "activation", "softmax", "elementwise", "reduction", "index", "fused_pointwise"),
        *("quant", "dequant", "kv_cache", "embedding"),
    )
)

NO_PEAKS = Advice(
    "no {what} for {name}",
    "{problem} Time, FLOPs and bytes are shown; verdicts that need these peaks are not.",
    "{how} Of the datasheet's figures take those without sparsity.",
    "A look at the datasheet.",
    "The column roof_fraction.",
)

UNCOVERED_TITLE = "{share} of the busy time has no evidence of its work"
UNCOVERED_VERIFY = "by_evidence in the summary of the next run."
# Why a group has no evidence: in words, and what to record or give.
UNCOVERED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "graph": (
            "graph replays recorded as one block",
            "Record the nodes of CUDA graphs (nsys: --cuda-graph-trace=node).",
        ),
        "no_op": (
            "launched within no recorded op, as what CUDA graphs replay",
            "For CUDA graphs give --capture-trace (a trace with shapes, recorded while the server captured or ran "
            "eagerly) or --model config.json; else --ncu metrics.csv.",
        ),
        "no_shapes": (
            "launched by ops without shapes",
            "Record shapes: record_shapes=True in torch.profiler, `tracekit collect` with shapes.",
        ),
        "compiled": (
            "launched by compiled code without ops of its own",
            "Measure compiled kernels with Nsight Compute and give --ncu metrics.csv; their shapes are in no trace.",
        ),
        "no_model": (
            "launched by ops whose work is not known",
            "Measure these kernels with Nsight Compute and give --ncu metrics.csv (analysis counters prints the "
            "command).",
        ),
        "communication": (
            "communication, whose sizes were not recorded",
            "Record with a torch.profiler that writes the sizes of collectives (record_param_comms).",
        ),
    }
)
