"""Work of attention on a KV cache, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tracekit
from tests.attention_rows import MIXED, without_load, work
from tests.op_calls import call
from tests.real_traces import trace
from tracekit.op_call import Argument, OpCall, parse_call
from tracekit.step_marks import Composition
from tracekit.work import Work, work_of

# ---- on a cache ------------------------------------------------------------------------------------------------------

DECODE = Composition("decode", 0, 0, 4, 4, 0, 0, 0, 100, 4, 100)  # 4 requests on 100 keys in all
NO_CACHE = ("key lengths not recorded: taken as if nothing was cached", "cache type and window not recorded")
UNSEEN = ("cache type and window not recorded",)
VLLM = "vllm::unified_attention_with_output"
# A window may be of any size: at least, each of the 4 tokens sees itself alone; expected are all 100 keys.
VLLM_WORK = replace(
    work(
        2 * 4 * 32 * 256,
        4 * 32 * 256 * 2 + 4 * 8 * 256 * 2,
        100 * 8 * 256 * 2,
        flops_high=2 * 100 * 32 * 256,
        bytes_high=4 * 32 * 256 * 2 + 100 * 8 * 256 * 2,
        notes=UNSEEN,
    ),
    flops_expected=2 * 100 * 32 * 256,
    bytes_expected=4 * 32 * 256 * 2 + 100 * 8 * 256 * 2,
)
# FlashAttention 3 in vLLM: 6 optional tensors around the output, lengths, pages, 8 more, scale, causal, window.
FA3: tuple[Argument, ...] = (
    None,
    None,
    None,
    None,
    "int32 5",
    None,
    None,
    None,
    "int32 4",
    1,
    64,
    "int32 4x8",
    *[None] * 8,
    0.125,
    True,
)
FA3_CALL: tuple[Argument, ...] = ("fp8_e4m3 4x32x128", "fp8_e4m3 999x16x8x128", "fp8_e4m3 999x16x8x128", *FA3)
ROWS = 4 * 32 * 128 * (1 + 2)  # queries of fp8 read, outputs of 16 bits written
TOKEN = 2 * 8 * 128  # key and value of 8 heads in fp8
FA2: tuple[Argument, ...] = (
    None,
    "int32 3",
    "int32 3",
    "int32 2",
    None,
    "int32 2x4",
    None,
    3,
    64,
    0.0,
    0.125,
    False,
    True,
    -1,
    -1,
)
MLA: tuple[Argument, ...] = ("bf16 4x16x192", "bf16 4x512", "bf16 4x1x64", "bf16 4x2048")
PAGED: tuple[Argument, ...] = (
    "bf16 4x32x128",
    "bf16 99x8x16x16x8",
    "bf16 99x8x128x16",
    8,
    0.1,
    "int32 4x8",
    "int32 4",
    16,
    100,
)

# FlashInfer: workspaces and plan; pages, their list, lengths of the last; output, log-sum-exp.
SPACES: tuple[Argument, ...] = ("uint8 999", "uint8 99", (1, 2, 3))
PAGES: tuple[Argument, ...] = ("int32 5", "int32 20", "int32 4")
NHD, HND = 0, 1
BUILT = "dtype_q_bf16_dtype_kv_bf16_dtype_o_bf16_dtype_idx_i32_head_dim_qk_128_head_dim_vo_128_posenc_0"
DECODE_RUN = f"batch_decode_with_kv_cache_{BUILT}::run"
PAGED_RUN = f"batch_prefill_with_kv_cache_{BUILT}::paged_run"
RAGGED_RUN = f"flashinfer::batch_prefill_with_kv_cache_{BUILT}_ragged_run"
MERGED = Work("attention", 3 * 4 * 2 * 8, 3 * 4 * 2 * 8 * 2 + 2 * 2 * 4 * 4, "fp32")
CHUNKS = replace(MIXED, decode_requests=0, decode_tokens=0, decode_kv_tokens=0, decode_sqsq=0, decode_sqsk=0)

CACHED: list[tuple[OpCall, Composition | None, Work | None]] = [
    (call(VLLM), DECODE, None),
    (call(VLLM, "bf16 4x32x128", "bf16 4x8x128", "bf16 4x8x128", "bf16 4x32x128"), None, None),
    (call(VLLM, "bf16 4x32x128", "bf16 4x8x128", "bf16 4x8x128", "bf16 4x32x128"), Composition("decode"), None),
    # Grouped queries: 32 heads multiply, the keys of 8 are read.
    (
        call(VLLM, "bf16 4x32x128", "bf16 4x8x128", "bf16 4x8x128", "bf16 4x32x128"),
        DECODE,
        VLLM_WORK,
    ),
    (
        call("vllm::unified_attention", "bf16 4x4096", "bf16 4x1024", "bf16 4x1024"),
        DECODE,
        VLLM_WORK,
    ),
    # A prompt of 888 tokens on fp8 keys: 8 heads of 64, one of keys.
    (
        call(VLLM, "fp8_e4m3 888x8x64", "bf16 888x1x64", "bf16 888x1x64", "bf16 888x8x64"),
        Composition("prefill", 1, 888, 0, 0),
        replace(
            work(
                2 * 888 * 8 * 128,
                888 * 8 * 64 * (1 + 2) + 888 * 128,
                888 * 128,
                math="fp8",
                flops_high=2 * (888 * 889 // 2) * 8 * 128,
                notes=NO_CACHE,
            ),
            flops_expected=2 * (888 * 889 // 2) * 8 * 128,
        ),
    ),
    (call(VLLM, "bf16 3x32x128", "bf16 3x8x128", "bf16 3x8x128", "bf16 3x32x128"), DECODE, None),  # another step's
    # Without a step: one key each at least, at most 4 x 64 (the longest; the pages would hold 128 each).
    (
        call("_vllm_fa3_C::fwd", *FA3_CALL, -1, -1),
        None,
        work(
            2 * 4 * 32 * 256,
            ROWS + 4 * TOKEN,
            4 * TOKEN,
            math="fp8",
            flops_high=2 * 256 * 32 * 256,
            bytes_high=ROWS + 256 * TOKEN,
        ),
    ),
    (
        call("_vllm_fa3_C::fwd", *FA3_CALL, -1, -1),
        DECODE,
        work(2 * 100 * 32 * 256, ROWS + 100 * TOKEN, 100 * TOKEN, math="fp8"),
    ),
    # A window of 16: at least 16 and 3 more, if one request has 97 of the 100 keys; 16 each at most and of equal ones.
    (
        call("_vllm_fa3_C::fwd", *FA3_CALL, 15, 0),
        DECODE,
        replace(
            work(
                2 * 19 * 32 * 256,
                ROWS + 19 * TOKEN,
                64 * TOKEN,
                math="fp8",
                flops_high=2 * 64 * 32 * 256,
                bytes_high=ROWS + 64 * TOKEN,
            ),
            flops_expected=2 * 64 * 32 * 256,
            bytes_expected=ROWS + 64 * TOKEN,
        ),
    ),
    # The step has more keys than the pages: the call is of something else.
    (
        call("_vllm_fa3_C::fwd", *FA3_CALL, -1, -1),
        replace(DECODE, decode_kv_tokens=9999, decode_sqsk=9999),
        work(
            2 * 4 * 32 * 256,
            ROWS + 4 * TOKEN,
            4 * TOKEN,
            math="fp8",
            flops_high=2 * 256 * 32 * 256,
            bytes_high=ROWS + 256 * TOKEN,
        ),
    ),
    # FlashAttention 2 in vLLM, chunks of 2 on 5 keys and 3 on 7.
    (
        call("_vllm_fa2_C::varlen_fwd", "bf16 5x4x8", "bf16 99x16x2x8", "bf16 99x16x2x8", *FA2),
        CHUNKS,
        work(2 * 27 * 4 * 16, 2 * 5 * 32 * 2 + 12 * 64, 12 * 64),
    ),
    # FlashAttention 3 on latent keys: 64 of rope multiply queries of 64, the latent 512 multiplies twice.
    (
        call(
            "sgl_kernel::fwd",
            "bf16 4x16x64",
            "bf16 99x1x1x64",
            "bf16 99x1x1x512",
            None,
            None,
            "bf16 4x16x512",
            *FA3[3:],
            -1,
            -1,
        ),
        replace(DECODE, decode_kv_tokens=20, decode_sqsk=20),
        work(2 * 20 * 16 * (64 + 512 + 512), 4 * 16 * (64 + 512 + 512) * 2 + 20 * 576 * 2, 20 * 576 * 2),
    ),
    (
        call("_C::paged_attention_v1", "bf16 4x32x128", *PAGED),
        DECODE,
        work(2 * 100 * 32 * 256, 4 * 32 * 256 * 2 + 100 * 8 * 256 * 2, 100 * 8 * 256 * 2),
    ),
    (
        call(
            "_C::paged_attention_v2",
            *["fp32 1"] * 4,
            *("bf16 4x32x128", "uint8 99x8x8x16x16", "uint8 99x8x128x16"),
            *PAGED[3:],
        ),
        None,
        work(
            2 * 4 * 32 * 256,
            4 * 32 * 256 * 2 + 4 * 8 * 256,
            4 * 8 * 256,
            flops_high=2 * 4 * 128 * 32 * 256,
            bytes_high=4 * 32 * 256 * 2 + 4 * 128 * 8 * 256,
        ),
    ),
    # FlashInfer decodes by the pages in use, whichever way these lie; an earlier version has no log-sum-exp.
    *(
        (
            call(
                DECODE_RUN, *SPACES, "bf16 4x32x128", cache, cache, *PAGES, "bf16 4x32x128", None, layout, -1, None, 0.1
            ),
            DECODE,
            work(2 * 100 * 32 * 256, 4 * 32 * 256 * 2 + 100 * 8 * 256 * 2, 100 * 8 * 256 * 2),
        )
        for cache, layout in (("bf16 99x16x8x128", NHD), ("bf16 99x8x16x128", HND))
    ),
    # Without a step: a key each at least, the 20 pages of 16 at most. fp8 keys under 16-bit queries.
    (
        call(
            DECODE_RUN,
            *(*SPACES, "bf16 4x32x128", *["fp8_e4m3 99x16x8x128"] * 2, *PAGES, "bf16 4x32x128", NHD, -1, None, 0.1),
        ),
        None,
        work(
            2 * 4 * 32 * 256,
            4 * 32 * 256 * 2 + 4 * TOKEN,
            4 * TOKEN,
            flops_high=2 * 320 * 32 * 256,
            bytes_high=4 * 32 * 256 * 2 + 320 * TOKEN,
        ),
    ),
    (call(DECODE_RUN, *SPACES, "bf16 4x32x128", *["bf16 99x16x8x128"] * 2, *PAGES, "bf16 4x32x128"), DECODE, None),
    # Its prompts: chunks of 2 on 5 keys and of 3 on 7, in pages or not, causal or not.
    (
        call(
            PAGED_RUN,
            *(*SPACES, "bf16 5x4x8", *["bf16 99x16x2x8"] * 2, "int32 3", "int32 3", "int32 2", "int32 2"),
            *("bf16 5x4x8", None, 1, NHD, -1, True, None),
        ),
        CHUNKS,
        work(2 * 27 * 4 * 16, 2 * 5 * 32 * 2 + 12 * 64, 12 * 64),
    ),
    (
        call(
            RAGGED_RUN,
            *(*SPACES, "bf16 5x4x8", *["bf16 12x2x8"] * 2, "int32 3", "int32 3", "bf16 5x4x8", None, 1, NHD, -1, True),
        ),
        CHUNKS,
        work(2 * 27 * 4 * 16, 2 * 5 * 32 * 2 + 12 * 64, 7 * 64),
    ),
    (call(RAGGED_RUN, *SPACES, "bf16 5x4x8", *["bf16 12x2x8"] * 2, "int32 1", "int32 1"), CHUNKS, None),
    (
        call(
            f"single_prefill_with_kv_cache_{BUILT}::run",
            *("bf16 5x4x8", "bf16 2x12x8", "bf16 2x12x8", "uint8 99", "bf16 5x4x8", None, 0, HND, -1, None),
        ),
        None,
        work(2 * 5 * 12 * 4 * 16, 2 * 5 * 32 * 2 + 12 * 64, 7 * 64),
    ),
    (
        call(
            "flashinfer_kernels::single_decode_with_kv_cache",
            *("bf16 4x8", "bf16 12x2x8", "bf16 12x2x8", "uint8 99", "bf16 4x8", None, NHD, 3, 0.0),
        ),
        None,
        work(2 * 4 * 4 * 16, 2 * 32 * 2 + 4 * 64, 4 * 64),  # a window of three keys and its own
    ),
    # Two parts of one attention: read with their log-sum-exp and written together. Of 4 tokens one has earlier keys.
    (
        call("_C::merge_attn_states", "bf16 4x2x8", None, "bf16 4x2x8", "fp32 2x4", "bf16 4x2x8", "fp32 2x4"),
        None,
        MERGED,
    ),
    (
        call("_C::merge_attn_states", "bf16 4x2x8", None, "bf16 4x2x8", "fp32 2x4", "bf16 4x2x8", "fp32 2x4", 1, None),
        None,
        replace(MERGED, bytes=MERGED.bytes - 3 * 2 * 8 * 2),
    ),
    (
        call("sgl_kernel::merge_state_v2", *["bf16 4x2x8", "fp32 4x2"] * 3),
        None,
        replace(MERGED, bytes=3 * (4 * 2 * 8 * 2 + 4 * 2 * 4)),
    ),
    (
        call("flashinfer::merge_state", *["bf16 4x2x8", "fp32 4x2"] * 2),
        None,
        replace(MERGED, bytes=3 * (4 * 2 * 8 * 2 + 4 * 2 * 4)),
    ),
    (call("sgl_kernel::merge_state"), None, None),
    # TensorRT-LLM: queries, keys and values in one row of (32 + 8 + 8) x 128, a window that nothing exceeds.
    (
        call("trtllm::attn_custom_op_inplace", "bf16 4x6144", *[None] * 5, 4096, None, None, "0", "bf16 4x4096"),
        DECODE,
        work(
            2 * 100 * 32 * 256,
            4 * 32 * 256 * 2 + 100 * 8 * 256 * 2,
            100 * 8 * 256 * 2,
            notes=("cache type not recorded",),
        ),
    ),
    # Latent attention: all heads read one row of 512 + 64 for each key. Prompts multiply keys of 192, values of 128.
    (
        call("vllm::unified_mla_attention_with_output", *MLA),
        DECODE,
        work(
            2 * 100 * 16 * (576 + 512),
            4 * 16 * (192 + 128) * 2 + 100 * 576 * 2,
            100 * 576 * 2,
            notes=("projections left out",),
        ),
    ),
    (
        call("vllm::unified_mla_attention_with_output", *MLA),
        Composition("prefill", 1, 4, 0, 0, 4, 16, 16, 0, 0, 0),
        work(2 * 10 * 16 * (192 + 128), 4 * 16 * 320 * 2 + 4 * 576 * 2, 4 * 576 * 2, notes=("projections left out",)),
    ),
    (call("vllm::unified_mla_attention", *MLA[:3]), Composition("prefill", 1, 4, 0, 0, 4, 16, 16, 0, 0, 0), None),
    (
        call(
            "_flashmla_C::fwd_kvcache_mla",
            *("bf16 4x1x16x576", "bf16 99x64x1x576", 512, "int32 4", "int32 4x2", 0.1, True),
        ),
        DECODE,
        work(2 * 100 * 16 * (576 + 512), 4 * 16 * (576 + 512) * 2 + 100 * 576 * 2, 100 * 576 * 2),
    ),
    (  # a sparse call: which of the listed keys are padding is not recorded
        call(
            "sgl_kernel::fwd_kvcache_mla",
            *("bf16 4x1x16x576", "uint8 99x64x1x656", 512, "int32 4", "int32 4x2", 0.1, False, None, None, True),
            "int32 4x1x2048",
        ),
        DECODE,
        None,
    ),
    (
        call(
            "_C::sm100_cutlass_mla_decode",
            *("bf16 4x16x512", "fp32 1", "bf16 4x16x512", "bf16 4x16x64", "bf16 99x64x576", "int32 4", "int32 4x2"),
        ),
        DECODE,
        work(2 * 100 * 16 * (576 + 512), 4 * 16 * (576 + 512) * 2 + 100 * 576 * 2, 100 * 576 * 2),
    ),
    (
        call(
            "aiter::mla_decode_stage1_asm_fwd",
            *("bf16 4x16x576", "bf16 999x1x1x576", "int32 5", "int32 5", "int32 104", "int32 4"),
            "fp32 4x2x16x512",
        ),
        DECODE,
        work(2 * 100 * 16 * (576 + 512), 4 * 16 * (576 + 512) * 2 + 100 * 576 * 2, 100 * 576 * 2),
    ),
]


@pytest.mark.parametrize(("one", "load", "expected"), CACHED)
def test_calls_on_a_cache(one: OpCall, load: Composition | None, expected: Work | None) -> None:
    assert without_load(work_of(one, load)) == expected


def test_a_batch_prefill_of_a_public_recording() -> None:
    """15 prompts of 1024 tokens: the shapes alone say it, and the step's own sums agree."""
    opened = tracekit.open(trace("tracelens__sglang_qwen3-8b"))
    (row,) = opened.sql(
        "SELECT DISTINCT name, shapes, dtypes, scalars FROM ops WHERE name = 'aiter::mha_batch_prefill'"
    ).to_pylist()
    one = parse_call(row["name"], row["shapes"], row["dtypes"], row["scalars"], None)
    flops = 15 * (1024 * 1025 // 2) * 2 * 32 * 256
    expected = work(flops, 15360 * (32 * 256 + 8 * 256) * 2, 15360 * 8 * 256 * 2)
    load = Composition("prefill", 15, 15360, 0, 0, 15360, 15728640, 15728640, 0, 0, 0)
    assert [without_load(work_of(one, given)) for given in (None, load)] == [expected] * 2
