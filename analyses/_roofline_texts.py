"""What to say of kernels that are far from their roof, at it, or above it. Sentences only."""

from __future__ import annotations

from dataclasses import dataclass


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
    "that expands the weights, take some of it. lm_head and router are not among them: quantised models keep these.",
    "Quantise the weights: {first}, then 4 bits ({then}). Or serve more requests in a step: they read the same "
    "weights.",
    "Accuracy: evaluate the tasks you serve. 4-bit weights are expanded in the kernel: large prefill batches, which "
    "compute bounds, get slower. A larger batch costs latency.",
    _SAME_LOAD.format("time of these GEMMs"),
)
ARITHMETIC = Advice(
    "arithmetic bounds 16-bit GEMMs that take {share} of the busy time{where}",
    "They run near the compute roof, so cheaper arithmetic is the way to be faster: in FP8 at most {eight} less{four}. "
    "That is the difference of the achievable peaks; to quantise the activations takes some of it.",
    "FP8 (E4M3) weights and activations, with scales for each channel and token{also}. lm_head and router stay as they "
    "are.",
    "Accuracy: evaluate the tasks you serve. Activations are quantised in each layer: fuse that into the norms.",
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
    "{which} take {share} of the busy time{where}",
    "They are far below both roofs: their time is start, waiting for memory and end. They spend {above} beyond their "
    "least time.{others}",
    "More work in a kernel: a larger batch, fusion of neighbours (torch.compile, fused norm + quant, fused RoPE + "
    "cache write), split-K or split-KV for more blocks. {graphs}",
    "A larger batch costs latency; compile time; graph memory.",
    _SAME_LOAD.format("their number and time"),
)
SHORT, FEW, SHORT_OR_FEW = (
    "short kernels",
    "kernels with fewer blocks than the device has multiprocessors",
    "kernels that are short or leave multiprocessors idle",
)
LATENCY_OTHERS = " Copies that are as short, {share} of the busy time, are not among them."
GRAPHS_NVIDIA = (
    "CUDA graphs and programmatic dependent launch shorten the pauses between them, not the kernels themselves."
)
GRAPHS_OTHER = "Graphs shorten the pauses between them, not the kernels themselves."
ABOVE = Advice(
    "kernels with {share} of the busy time{where} are above a roof, which cannot be",
    "A figure that they are judged by is wrong. No verdict on them holds.",
    "Check in this order. {first}The device: is it the one of the table ({spec})? If not, --device-spec or --peak. The "
    "work: padding, masks, skipped experts or broadcast operands make the model count more than ran (column notes). "
    "Caches: data that the last kernel left in L2 comes faster than memory{counters}.",
    "Nothing.",
    "The column problem after the change.",
)
ABOVE_CONFIG = (
    "The configuration: is --model that of the served model (sizes, layers, quantisation), and --tensor-parallel the "
    "number that served it? "
)
ABOVE_LENT = "The trace that lent the work: is it of the same model, options and batch? "
ABOVE_COUNTERS = "; counters (--ncu) tell"

FASTER = "Same load, this one change: roof_fraction of these kernels."
FAR_TITLE = "{family}: kernels below {near:.0%} of their roof spend {above} beyond their least time{per_step}{where}"
FAR_DETAIL = (
    "That is {share} of the busy time. What they compute and move at least would take {roof} at achievable peaks; no "
    "real kernel gets all of the rest back."
)

NO_PEAKS = Advice(
    "no {what} for {name}",
    "{problem} Time, FLOPs and bytes are shown; verdicts that need these peaks are not.",
    "{how} Of the datasheet's figures take those without sparsity.",
    "A look at the datasheet.",
    "The column roof_fraction.",
)
