"""What may make kernels faster that are far from their roof: by what they do, whose device it is, and what runs now."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tracekit.analysis import Row
from tracekit.device_spec import vendor_of
from tracekit.roofline_names import product_of

AMD, NVIDIA = "AMD", "NVIDIA"
MOE = "MoE"
_OF_AMD = re.compile(r"Cijk_|ck_tile|_ZN2ck|aiter|rocprim|hip|miopen", re.IGNORECASE)
_TILE = 128
_FEW_ROWS = 64
_SHORT_OF_BLOCKS = re.compile(r"split_?k|stream_?k", re.IGNORECASE)
# Attention backends by their kernels' names, the first that fits.
_BACKENDS = (
    ("TRT-LLM", re.compile(r"fmhaSm\d+|trtllm|xqa")),
    ("FlashAttention 3", re.compile(r"FlashAttnFwdSm90|flash_fwd.*sm90|FwdSm90")),
    ("FlashInfer", re.compile(r"flashinfer|BatchDecodeWith|BatchPrefillWith|SinglePrefillWith", re.IGNORECASE)),
    ("AITER", re.compile(r"aiter|_pa_|pa_fwd|fmha_fwd_hd")),
    ("CK", re.compile(r"ck_tile|Fmha")),
    ("FlashAttention 2", re.compile(r"flash_fwd")),
    ("Triton", re.compile(r"unified_attention|_attn_fwd|attn_fwd|_fwd_kernel|_fwd_grouped")),
)
_POINTWISE_CATEGORIES = frozenset(
    (
        *("norm", "rope", "activation", "softmax", "elementwise", "reduction", "index", "fused_pointwise"),
        *("quant", "dequant", "kv_cache", "embedding"),
    )
)


def vendor(device: Row, rows: Sequence[Row]) -> str:
    """NVIDIA or AMD by the device's name, else by what its kernels are called; "" if neither tells."""
    named = vendor_of(device["spec"] or "") or vendor_of(device["name"] or "")
    return named or (AMD if any(_OF_AMD.search(row["kernel"]) for row in rows) else "")


def family(row: Row) -> str:
    """The category, with products of experts apart from those of whole layers."""
    return MOE if row["category"] == "moe" or row["subcategory"] == "grouped" else str(row["category"])


def remedy(kind: str, rows: Sequence[Row], maker: str) -> tuple[str, str]:
    """For the rows of a family on a device: what to do, and what it costs."""
    if kind == "gemm":
        return _products(rows, maker)
    if kind == "attention":
        return _attention(rows, maker)
    if kind == MOE:
        return _experts(maker)
    if kind in _POINTWISE_CATEGORIES:
        return (
            "Contiguous tensors (strided or broadcast reads halve the bandwidth), vectorised or fused kernels "
            "(torch.compile, the engine's own ops), and fewer of them: neighbours fused read and write once.",
            "Compile time; recompilation where shapes vary.",
        )
    counters = "rocprof-compute on these kernels" if maker == AMD else "ncu on these kernels"
    if maker == NVIDIA:
        counters += " (analysis counters prints the command)"
    return (
        f"See what holds them: {counters}, then another library's kernel, or a larger batch.",
        "Another library's kernel must exist for the shapes in use.",
    )


def _products(rows: Sequence[Row], maker: str) -> tuple[str, str]:
    """Padding only where a size asks for it; more blocks only where there are few rows."""
    said, cost = [], ["Tuning time at start"]
    sizes = [product for row in rows if (product := product_of(row["op"], row["shapes"]))]
    odd = sorted({size for one in sizes for size in (one.k, one.n) if size % _TILE})
    if odd:
        said.append(f"Sizes that fill whole tiles: {', '.join(map(str, odd[:4]))} are no multiples of {_TILE} (pad).")
        cost.append("memory of padding")
    tuned = {
        AMD: "hipBLASLt or AITER tuned for these sizes (TunableOp writes the choice)",
        NVIDIA: "cuBLASLt's heuristics or max-autotune of torch.compile",
    }
    said.append(f"Tuned kernels: {tuned.get(maker, 'autotuning of the library')}.")
    is_small = any(one.m <= _FEW_ROWS for one in sizes) if sizes else any(row["leaning"] == "memory" for row in rows)
    if is_small:
        split = any(_SHORT_OF_BLOCKS.search(row["kernel"]) for row in rows)
        said.append(f"A few rows (decode): {'' if split else 'split-K or stream-K kernels, '}a larger batch.")
        cost.append("a larger batch costs latency")
    return " ".join(said), f"{'; '.join(cost)}."


def backend(rows: Sequence[Row]) -> str:
    """The attention backend that most of the time is spent in, "" if its kernels' names do not tell."""
    times: dict[str, int] = {}
    for row in rows:
        name = next((name for name, pattern in _BACKENDS if pattern.search(row["kernel"])), "")
        times[name] = times.get(name, 0) + row["exclusive_ns"]
    return max(times, key=lambda name: times[name]) if times else ""


def _attention(rows: Sequence[Row], maker: str) -> tuple[str, str]:
    now = backend(rows)
    others = ("AITER", "CK", "Triton") if maker == AMD else ("FlashInfer", "TRT-LLM", "FlashAttention")
    listed = ", ".join(one for one in others if not now.startswith(one))
    said = [f"Another attention backend ({listed}){f'; now it is {now}' if now else ''}."]
    if any(row["subcategory"] == "decode" or row["leaning"] == "memory" for row in rows):
        said.append("Decode: split-KV for few requests with long contexts, larger KV pages.")
    said.append("Head sizes that the backend has kernels for.")
    return " ".join(said), "Backends differ in features (sliding window, FP8 cache, MLA)."


def _experts(maker: str) -> tuple[str, str]:
    grouped = "AITER, CK, Triton" if maker == AMD else "DeepGEMM, CUTLASS, TRT-LLM, Triton"
    return (
        "Kernels tuned for this model and device (vLLM: benchmark_moe.py writes the file for Triton's), another "
        f"grouped GEMM ({grouped}), more tokens for each expert: larger batches or expert parallelism.",
        "Tuning time; a larger batch costs latency; expert parallelism adds all-to-all communication.",
    )


def small_weights(peaks: Mapping[str, float], maker: str) -> tuple[str, str]:
    """How weights are quantised there: with 8 bits, and with 4."""
    eight = "FP8 (E4M3, a scale for each channel) first" if peaks.get("fp8") else "8 bits (INT8, or FP8 as storage)"
    if maker == AMD:
        return eight, "MXFP4 where the matrix cores have it, else AWQ or GPTQ in the engine's Triton kernels"
    own = "NVFP4 or MXFP4, or " if peaks.get("fp4") else ""
    return eight, f"{own}AWQ or GPTQ with Marlin or Machete"
