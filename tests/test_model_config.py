"""config.json in, the model's sizes out; and a clear word on what is missing, wrong or of another kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.model_configs import DEEPSEEK_V3, GPT_OSS_20B, LLAMA_3_8B, TINY
from tracekit.errors import UsageError
from tracekit.model_config import Experts, Latent, ModelConfig, model_config, read_model_config
from tracekit.model_quantization import Quantization, read_quantization

MISSING = "is missing; the work of the model's kernels cannot be told without it"
UNUSUAL = "layers of this kind are not modelled; leave out --model"


def read(said: dict[str, Any]) -> ModelConfig:
    return model_config(said, "config.json")


def test_llama() -> None:
    assert read(LLAMA_3_8B) == ModelConfig(
        "llama", 32, 4096, 32, 8, 128, 14336, 128256, routed=(False,) * 32, windows=(0,) * 32
    )


def test_gpt_oss() -> None:
    model = read(GPT_OSS_20B)
    assert (model.head_dim, model.experts, model.dtype) == (64, Experts(32, 4, 2880), "bf16")
    assert model.assumed == ("bf16 assumed",)
    assert model.windows == (128, 0) * 12
    assert all(model.routed)
    stored = model.quantization
    assert stored is not None
    modules = ("self_attn.q_proj", "mlp.router", "mlp.experts")
    assert [stored.covers(f"model.layers.7.{module}") for module in modules] == [False, False, True]
    # 2880 * 5760 values of 4 bits, and a byte of scale for each 32 of a row.
    assert stored.weight_bytes(2880, 5760) == 2880 * 5760 // 2 + 2880 // 32 * 5760


def test_deepseek() -> None:
    model = read(DEEPSEEK_V3)
    assert model.latent == Latent(1536, 512, 128, 64, 128)
    assert model.experts == Experts(256, 8, 2048, 2048)
    assert (model.routed[:4], model.head_dim) == ((False, False, False, True), 192)
    stored = model.quantization
    assert stored is not None
    assert (stored.math, stored.covers("model.layers.0.self_attn.o_proj"), stored.covers("lm_head")) == (
        "fp8", True, False,
    )  # fmt: skip
    assert stored.weight_bytes(7168, 2112) == 7168 * 2112 + 7168 // 128 * 17 * 4


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, {"kv_heads": 2, "dtype": "fp16", "gated": True, "tied": False, "windows": (0, 0)}),
        ({"num_key_value_heads": None}, {"kv_heads": 4}),
        ({"head_dim": None}, {"head_dim": 2}),
        ({"torch_dtype": None, "dtype": "bfloat16"}, {"dtype": "bf16", "assumed": ()}),
        ({"torch_dtype": "float32"}, {"dtype": "bf16", "assumed": ("bf16 assumed",)}),
        ({"model_type": "gpt_neox"}, {"gated": False}),
        ({"hidden_act": "relu2"}, {"gated": False}),
        ({"model_type": "unheard_of"}, {"name": "unheard_of", "layers": 2}),
        ({"model_type": "mistral", "sliding_window": 4096}, {"windows": (4096, 4096)}),
        ({"model_type": "mistral", "sliding_window": None}, {"windows": (0, 0)}),
        ({"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": False}, {"windows": (0, 0)}),
        (
            {"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1},
            {"windows": (0, 9)},
        ),
        ({"model_type": "gemma2", "sliding_window": 9}, {"windows": (9, 0)}),
        ({"sliding_window": 9, "sliding_window_pattern": 2}, {"windows": (9, 0)}),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 4, "decoder_sparse_step": 2},
            {"experts": Experts(8, 2, 4), "routed": (False, True)},
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [1], "shared_expert_intermediate_size": 6},
            {"experts": Experts(8, 2, 16, 6, True), "routed": (True, False)},
        ),
        ({"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": [0, 1]}, {"routed": (False, True)}),
    ],
)
def test_what_keys_mean(said: dict[str, Any], expected: dict[str, Any]) -> None:
    model = read(TINY | said)
    assert {name: getattr(model, name) for name in expected} == expected


def test_a_model_within_another(tmp_path: Path) -> None:
    """Models that see hold the text model in `text_config`, and what is common to both beside it."""
    text = {key: value for key, value in TINY.items() if key != "torch_dtype"}
    quantization = {"quant_method": "awq", "bits": 4, "group_size": 128}
    whole = {"model_type": "gemma3", "torch_dtype": "float16", "text_config": text, "quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    model = read_model_config(tmp_path)
    assert (model.dtype, model.hidden, model.quantization and model.quantization.bits) == ("fp16", 8, 4)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"hidden_size": None}, f"c: hidden_size: {MISSING}"),
        ({"hidden_size": "8"}, "c: hidden_size: must be a whole number from 1 to 2147483648, not '8'"),
        ({"num_hidden_layers": True}, "c: num_hidden_layers: must be a whole number from 1 to 10000, not 'True'"),
        ({"num_hidden_layers": 10**9},
         "c: num_hidden_layers: must be a whole number from 1 to 10000, not '1000000000'"),
        ({"num_key_value_heads": 3}, "c: num_key_value_heads: 3 does not divide the 4 heads"),
        ({"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": None},
         "c: head_dim: is missing, and 3 heads do not divide the hidden size 8"),
        ({"torch_dtype": "float8"}, "c: torch_dtype: 'float8' is not known"),
        ({"index_topk": 2048}, f"c: index_topk: {UNUSUAL}"),
        ({"is_encoder_decoder": True}, f"c: is_encoder_decoder: {UNUSUAL}"),
        # State spaces and hybrids, though Llama's keys are all there.
        ({"layers_block_type": ["mamba", "attention"]}, f"c: layers_block_type: {UNUSUAL}"),
        ({"attn_layer_indices": [1]}, f"c: attn_layer_indices: {UNUSUAL}"),
        ({"state_size": 16}, f"c: state_size: {UNUSUAL}"),
        ({"mamba_d_conv": 4}, f"c: mamba_d_conv: {UNUSUAL}"),
        ({"ssm_state_size": 128}, f"c: ssm_state_size: {UNUSUAL}"),
        ({"hybrid_override_pattern": "M-M*"}, f"c: hybrid_override_pattern: {UNUSUAL}"),
        ({"model_type": "mamba2"}, f"c: model_type: {UNUSUAL}"),
        ({"architectures": ["MambaForCausalLM"]}, f"c: architectures: {UNUSUAL}"),
        ({"layer_types": ["full_attention"]}, "c: layer_types: must name each of 2 layers"),
        ({"layer_types": ["full_attention", "linear_attention"]},
         "c: layer_types: 'linear_attention' layers are not modelled; leave out --model"),
        ({"layer_types": ["full_attention", "sliding_attention"]},
         "c: sliding_window: is missing, and layer_types has sliding layers"),
        ({"num_experts": 8}, f"c: num_experts_per_tok: {MISSING}"),
        ({"num_experts": 8, "num_experts_per_tok": 9},
         "c: num_experts_per_tok: must be a whole number from 1 to 8, not '9'"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": [1]},
         "c: moe_layer_freq: must be a number, or 0 or 1 for each of 2 layers"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": 1},
         "c: mlp_only_layers: must be a list of layers"),
        ({"kv_lora_rank": 4}, f"c: qk_nope_head_dim: {MISSING}"),
        ({"text_config": {"hidden_size": 8}},
         f"c: text_config.num_hidden_layers: {MISSING}"),
        ({"quantization_config": {"quant_method": "gguf"}},
         "c: quantization_config.quant_method: 'gguf' is not known; known are awq, awq_marlin, bitsandbytes, "
         "compressed-tensors, fbgemm_fp8, fp8, gptq, gptq_marlin, modelopt, modelopt_fp4, mxfp4"),
    ],
)  # fmt: skip
def test_what_is_refused(said: dict[str, Any], message: str) -> None:
    wrong = dict(TINY | said)
    if said == {"text_config": {"hidden_size": 8}}:
        wrong = said
    with pytest.raises(UsageError) as error:
        model_config(wrong, "c")
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, ": cannot be read: No such file or directory"),
        (b"{\n 1", ":2:2: not JSON: Expecting property name enclosed in double quotes"),
        (b"[" * 100_000, ": not JSON: "),
        (b"\xff\xff", ": not JSON: "),
        (b"[]", ": a model's config.json is an object"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, text: bytes | None, message: str) -> None:
    file = tmp_path / "config.json"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(UsageError) as error:
        read_model_config(file)
    assert str(error.value).startswith(f"{file}{message}")


WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "group_size": None}
ACTIVATIONS = {"num_bits": 8, "type": "float", "strategy": "token"}
GROUP = {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": ACTIVATIONS}


@pytest.mark.parametrize(
    ("said", "expected", "weight"),
    [
        (None, None, None),
        ({"quant_method": "fp8", "activation_scheme": "static"},
         Quantization("fp8", 8, scale_bits=32, math="fp8", ignored=("lm_head",)), 256 * 512 + 512 * 4),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "lm_head": True},
         Quantization("gptq", 4, 128, 1, 16, ignored=("mlp.gate", "mlp.router", "block_sparse_moe.gate",
                                                      "mlp.shared_expert_gate")),
         256 * 512 // 2 + 2 * 512 * 2),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": False},
         Quantization("gptq", 4, 0, 1, 16, 4, ignored=("lm_head", "mlp.gate", "mlp.router", "block_sparse_moe.gate",
                                                       "mlp.shared_expert_gate")),
         256 * 512 // 2 + 512 * 20 // 8),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True, "modules_to_not_convert": ["x"]},
         Quantization("awq", 4, 64, 1, 16, 4, ignored=("lm_head", "mlp.gate", "mlp.router", "block_sparse_moe.gate",
                                                       "mlp.shared_expert_gate", "x")),
         256 * 512 // 2 + 4 * 512 * 20 // 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True},
         Quantization("bitsandbytes", 4, 64, 1, 32, ignored=("lm_head",)), 256 * 512 // 2 + 4 * 512 * 4),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["x"]},
         Quantization("modelopt", 4, 16, 1, 8, 0, "fp4", ("lm_head", "mlp.gate", "mlp.router", "block_sparse_moe.gate",
                                                          "mlp.shared_expert_gate", "x"), 8),
         256 * 512 // 2 + 16 * 512),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": GROUP}, "ignore": ["lm_head"],
          "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
         Quantization("compressed-tensors", 8, math="fp8", ignored=("lm_head",), kv_bits=8), 256 * 512 + 512 * 2),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": GROUP | {
            "weights": WEIGHTS | {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128},
            "input_activations": None}}},
         Quantization("compressed-tensors", 4, 128), 256 * 512 // 2 + 2 * 512 * 2),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": GROUP | {
            "weights": WEIGHTS | {"strategy": "block", "block_structure": "128x128"}}}},
         Quantization("compressed-tensors", 8, 128, 128, 32, math="fp8"), 256 * 512 + 2 * 4 * 4),
    ],
)  # fmt: skip
def test_quantization(said: Any, expected: Quantization | None, weight: int | None) -> None:
    found = read_quantization(said, "q")
    assert found == expected
    assert found is None or found.weight_bytes(256, 512) == weight


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ([], "q: must be an object"),
        ({"quant_method": "gptq"}, "q.bits: is missing"),
        ({"quant_method": "gptq", "bits": 99}, "q.bits: must be 1 to 16 bits"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"x": {}}},
         "q.dynamic: other bits for some modules are not understood"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "q.weight_block_size: must be two sizes, as [128, 128]"),
        ({"quant_method": "fp8", "ignored_layers": "x"}, "q.ignored_layers: must be a list of names"),
        ({"quant_method": "bitsandbytes"}, "q.load_in_4bit: neither this nor load_in_8bit is true"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"},
         "q.quant_algo: 'W4A8' is not known; known are FP8, FP8_PER_CHANNEL_PER_TOKEN, NVFP4, MXFP8"),
        ({"quant_method": "compressed-tensors"}, "q.config_groups: is missing"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": GROUP, "b": GROUP}},
         "q.config_groups: must be one group for all modules; several are not understood"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": GROUP | {"targets": ["re:.*mlp.*"]}}},
         'q.config_groups.a.targets: must be ["Linear"]; other targets are not understood'),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": GROUP}, "sparsity_config": {"format": "24"}},
         "q.sparsity_config: sparse weights are not understood"),
    ],
)  # fmt: skip
def test_quantization_that_is_refused(said: Any, message: str) -> None:
    with pytest.raises(UsageError) as error:
        read_quantization(said, "q")
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("pattern", "module", "named"),
    [
        ("lm_head", "lm_head", True),
        ("mlp.gate", "model.layers.0.mlp.gate", True),
        ("mlp.gate", "model.layers.0.mlp.gate_proj", False),
        ("model.layers.1", "model.layers.11.mlp.gate", False),
        ("model.layers.1", "model.layers.1.mlp.gate", True),
        ("model.layers.*.self_attn", "model.layers.1.self_attn.o_proj", True),
        ("*lm_head*", "lm_head", True),
        (r"re:.*\.o_proj$", "model.layers.1.self_attn.o_proj", True),
        (r"re:o_proj", "model.layers.1.self_attn.o_proj", False),
    ],
)
def test_modules_left_as_they_were(pattern: str, module: str, named: bool) -> None:
    assert Quantization("x", 8, ignored=(pattern,)).covers(module) is not named


def test_a_module_pattern_that_is_no_expression() -> None:
    with pytest.raises(UsageError, match=r"quantization_config: 're:\(' is not a regular expression"):
        Quantization("x", 8, ignored=("re:(",)).covers("lm_head")
