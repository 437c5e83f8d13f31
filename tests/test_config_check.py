"""Sizes of a model, recorded ops and kernels in; whether they can belong together out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.model_configs import DEEPSEEK_V3, GPT_OSS_20B, LLAMA_3_8B
from tracekit.config_check import doubt
from tracekit.config_layers import Layers
from tracekit.model_config import model_config

Op = tuple[str, list[list[int]]]
AWQ = LLAMA_3_8B | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
FP8 = LLAMA_3_8B | {"quantization_config": {"quant_method": "fp8"}}
DENSE = ("nvjet_sm103_tst_64x16_64x16_4x1_v_bz_TNT", "dense")
ATTENTION = "vllm::unified_attention_with_output"


def asked(said: dict[str, Any], ops: list[Op], products: list[tuple[str, str]], devices: int = 1) -> str:
    calls = [(name, json.dumps(shapes)) for name, shapes in ops]
    return doubt(Layers(model_config(said, "c"), devices), calls, products)


@pytest.mark.parametrize(
    ("ops", "devices", "why"),
    [
        ([], 1, ""),
        ([("aten::argmax", [[16, 128256], [], []])], 1, ""),
        ([("aten::argmax", [[16, 128320]])], 1, ""),  # padded
        ([("aten::_softmax", [[16, 16032], []])], 8, ""),  # one of eight parts
        (
            [("aten::argmax", [[16, 32000]]), ("aten::topk", [[16, 151936], []])],
            1,
            "a vocabulary of 128256, but logits of 151936, 32000 in the trace",
        ),
        ([("aten::argmax", [[16, 32000]]), ("aten::argmax", [[16, 128256]])], 1, ""),  # of a draft model, and of this
        ([("aten::topk", [[16, 256], []]), ("aten::_softmax", [[1, 32, 2048, 2048], [], []])], 1, ""),
        ([("aten::embedding", [[128256, 4096], [16], [], [], []])], 1, ""),
        (
            [("aten::embedding", [[16032, 5120], [16]])],
            8,
            "a hidden size of 4096, but 5120 beside the vocabulary in the trace",
        ),
        (
            [("aten::mm", [[46, 5120], [5120, 128256]]), ("aten::linear", [[46, 2048], [128256, 2048], []])],
            1,
            "a hidden size of 4096, but 5120, 2048 beside the vocabulary in the trace",
        ),
        ([("aten::mm", [[46, 1792], [1792, 16384]])], 8, ""),  # no more than as wide as a part of the vocabulary
        ([("aten::embedding", [[2048, 768], [16]]), ("aten::mm", [[16, 4096], [4096, 6144]])], 1, ""),
        ([(ATTENTION, [[16, 32, 128], [16, 8, 128], [16, 8, 128], [16, 32, 128]])], 1, ""),
        ([(ATTENTION, [[16, 512], [16, 128], [16, 128]])], 8, ""),
        (
            [(ATTENTION, [[16, 64, 64], [16, 8, 64], [16, 8, 64]])],
            1,
            "queries of 32 x 128 values and keys of 8 x 128 on a device, but 4096 and 512 in the trace",
        ),
        ([("aten::argmax", []), ("aten::mm", [[1, 2]]), (ATTENTION, [[], []]), ("aten::embedding", [[128256]])], 1, ""),
    ],
)
def test_what_ops_say(ops: list[Op], devices: int, why: str) -> None:
    assert asked(LLAMA_3_8B, ops, [DENSE], devices) == why


@pytest.mark.parametrize("text", ["[[16,", "7", "{}", "[[[16, 32000]]]", '[["a"]]', "[" * 100_000])
def test_shapes_that_are_none(text: str) -> None:
    assert doubt(Layers(model_config(LLAMA_3_8B, "c")), [("aten::argmax", text)], []) == ""


NO_FOUR = "weights of 4 bits (awq), but no kernel of a product is named for such in the trace"
NO_EIGHT = "weights of 8 bits (fp8), but no kernel of a product is named for such in the trace"


@pytest.mark.parametrize(
    ("said", "products", "why"),
    [
        (AWQ, [], ""),
        (AWQ, [DENSE], NO_FOUR),
        (AWQ, [DENSE, ("void marlin::Marlin<__nv_bfloat16, 1125899906842624l>", "dense")], ""),
        (AWQ, [("_Z9gemm_awq4", "dense")], ""),
        (AWQ, [("custom", "quantized")], ""),
        (AWQ, [("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_VWA4_VWB4_AF4EM4", "dense")],
         NO_FOUR),
        (FP8, [("Cijk_Alik_Bljk_BBS_BH_MT256x192x64_MI16x16x1_SN_VWA8_VWB8_AF8EM8_WS64", "dense")], NO_EIGHT),
        (GPT_OSS_20B, [("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu", "grouped")], ""),
        (FP8, [DENSE], NO_EIGHT),
        (FP8, [("nvjet_sm90_qqtst_128x128_128x6_1x2_h_bz_TNT", "dense")], ""),
        (FP8, [("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n", "dense")], ""),
        (FP8, [("void deep_gemm::sm90_gemm_1d2d_impl<7168u>", "dense")], ""),
        (FP8, [("Cijk_Alik_Bljk_F8BS_BH_Bias_S_HA_S_SAV", "dense")], ""),
        (FP8, [("void marlin::Marlin<__nv_bfloat16>", "dense")], ""),  # no units for fp8: weights are expanded
        (FP8, [("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn", "dense")], NO_EIGHT),
        (FP8, [("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_tn_align8>", "dense")],
         NO_EIGHT),
        (DEEPSEEK_V3, [DENSE], NO_EIGHT),
        (LLAMA_3_8B, [DENSE], ""),
    ],
)  # fmt: skip
def test_what_names_of_kernels_say(said: dict[str, Any], products: list[tuple[str, str]], why: str) -> None:
    assert asked(said, [], products) == why
