"""What model does a server run? Its layers and sizes, from the config.json of a Hugging Face model.

Kernels of a replayed graph carry no shapes. With the model's sizes and what a step works on, their work is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.errors import UsageError
from tracekit.model_quantization import Quantization, read_quantization

_NESTED = ("text_config", "llm_config", "language_config")
_UNMODELLED = "layers of this kind are not modelled; leave out --model"
_LARGEST = 1 << 31
_MOST_LAYERS = 10_000
_MOST_BYTES = 1 << 24
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
# Keys that say that layers are not what their sizes let one think, and the values that say nothing.
_UNUSUAL: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,),
    "block_configs": (),
    "hybrid_override_pattern": (),
    "layers_block_type": (),
    "attn_layer_period": (),
    "layers_block_types": (),
    "block_types": (),
    "attn_layer_indices": (),
    "attn_type_list": (),
    "hybrid_layer_ids": (),
    "full_attn_idxs": (),
    "state_size": (),
    "time_step_rank": (),
    "lru_width": (),
    "linear_attn_config": (),
    "linear_num_value_heads": (),
    "full_attention_interval": (),
    "interleave_moe_layer_step": (),
    "intermediate_size_mlp": (),
    "index_topk": (),
    "num_kv_shared_layers": (0,),
    "cross_attention_layers": ([],),
    "multi_query": (False,),
    "n_embd": (),
    "ffn_dim": (),
}
_STATE_KEYS = ("mamba_", "ssm_")  # how keys of state spaces begin, also where Llama's keys stand beside them
_STATE_NAMES = re.compile(r"mamba|rwkv|jamba|retnet|griffin|xlstm|_ssm|hyena", re.IGNORECASE)
_PLAIN_MLP = frozenset({"gpt_neox", "phi", "starcoder2", "nemotron", "falcon"})
_PLAIN_ACTIVATIONS = frozenset({"relu2", "relu"})
_EVEN_LAYERS_SLIDE = frozenset({"gemma2", "gpt_oss"})  # configs of before `layer_types` leave it to the code


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts: how many, how many a token goes to, and the width of one. shared: width of the experts that every
    token goes to, 0 without; shared_gate: whether these have a gate of their own (Qwen2-MoE).
    """

    count: int
    per_token: int
    intermediate: int
    shared: int = 0
    shared_gate: bool = False


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of multi-head latent attention (DeepSeek-V2). query: rank of the queries, 0 if they are not compressed."""

    query: int
    key_value: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer. intermediate: width of a dense MLP. dtype: of activations, "bf16" or "fp16".

    routed: of each layer, whether its MLP is experts. windows: of each layer, how many keys a token sees, 0 for all.
    gated: the MLP has a gate beside its up projection. assumed: what the file does not say, a few words each.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    dtype: str = "bf16"
    tied: bool = False
    gated: bool = True
    routed: tuple[bool, ...] = ()
    windows: tuple[int, ...] = ()
    experts: Experts | None = None
    latent: Latent | None = None
    quantization: Quantization | None = None
    assumed: tuple[str, ...] = ()

    def is_routed(self, layer: int) -> bool:
        """Whether the MLP of a layer is experts."""
        return layer < len(self.routed) and self.routed[layer]

    def window(self, layer: int) -> int:
        """How many keys a token of this layer sees, 0 for all of them."""
        return self.windows[layer] if layer < len(self.windows) else 0


def read_model_config(path: Path) -> ModelConfig:
    """The model of a config.json, or of the directory that holds one.

    Raises UsageError with file and key for what is missing, wrong, or of a kind that the layers' sizes do not describe.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{file}: too large for a model's config.json")
        outer = json.loads(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        raise UsageError(f"{file}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not JSON: {error}") from error
    if not isinstance(outer, Mapping):
        raise UsageError(f"{file}: a model's config.json is an object")
    return model_config(outer, str(file))


def model_config(outer: Mapping[str, Any], where: str) -> ModelConfig:
    """The same from what the file holds. where: names the file in messages."""
    said = _Said(outer, outer, where, "")
    for key in _NESTED:
        if isinstance(outer.get(key), Mapping):
            said = _Said(outer[key], outer, where, f"{key}.")
            break
    said.refuse_unusual()
    layers = said.count("num_hidden_layers", most=_MOST_LAYERS)
    hidden, heads = said.count("hidden_size"), said.count("num_attention_heads")
    kv_heads = said.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise said.wrong("num_key_value_heads", f"{kv_heads} does not divide the {heads} heads")
    latent = _latent(said)
    experts = _experts(said)
    dtype, assumed = _dtype(said)
    return ModelConfig(
        name=str(said.get("model_type") or "model"),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(said, hidden, heads) if latent is None else latent.nope + latent.rope,
        intermediate=_intermediate(said, experts),
        vocab=said.count("vocab_size"),
        dtype=dtype,
        tied=bool(said.get("tie_word_embeddings")),
        gated=said.get("model_type") not in _PLAIN_MLP and _activation(said) not in _PLAIN_ACTIVATIONS,
        routed=_routed(said, layers) if experts else (False,) * layers,
        windows=_windows(said, layers),
        experts=experts,
        latent=latent,
        quantization=read_quantization(said.get("quantization_config"), said.place("quantization_config")),
        assumed=assumed,
    )


@dataclass(frozen=True, slots=True)
class _Said:
    """The values of the text model. Some keys stand beside a nested configuration, not in it."""

    values: Mapping[str, Any]
    outer: Mapping[str, Any]
    where: str
    prefix: str

    def get(self, key: str) -> Any:
        value = self.values.get(key)
        return self.outer.get(key) if value is None else value

    def place(self, key: str) -> str:
        return f"{self.where}: {self.prefix if key in self.values or key not in self.outer else ''}{key}"

    def wrong(self, key: str, why: str) -> UsageError:
        return UsageError(f"{self.place(key)}: {why}")

    def count(self, *keys: str, default: int | None = None, least: int = 1, most: int = _LARGEST) -> int:
        """The first of the keys that is there, a whole number in these bounds."""
        key = next((one for one in keys if self.values.get(one) is not None), None)
        if key is None:
            if default is None:
                raise self.wrong(keys[0], "is missing; the work of the model's kernels cannot be told without it")
            return default
        value = self.values[key]
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(key, f"must be a whole number from {least} to {most}, not {str(value)[:40]!r}")
        return value

    def refuse_unusual(self) -> None:
        begun = [key for key in self.values if key.startswith(_STATE_KEYS) and self.values[key] is not False]
        for key in (*_UNUSUAL, *begun):
            value = self.values.get(key)
            if value is not None and value not in _UNUSUAL.get(key, ()):
                raise self.wrong(key, _UNMODELLED)
        for key in ("model_type", "architectures"):
            if _STATE_NAMES.search(str(self.get(key) or "")):
                raise self.wrong(key, _UNMODELLED)


def _head_dim(said: _Said, hidden: int, heads: int) -> int:
    if said.values.get("head_dim") is None and hidden % heads:
        raise said.wrong("head_dim", f"is missing, and {heads} heads do not divide the hidden size {hidden}")
    return said.count("head_dim", default=hidden // heads)


def _activation(said: _Said) -> Any:
    return said.get("hidden_act") or said.get("hidden_activation")


def _dtype(said: _Said) -> tuple[str, tuple[str, ...]]:
    """Engines serve fp32 checkpoints in half precision, and bf16 is what a file that does not say mostly means."""
    value = said.get("torch_dtype") or said.get("dtype")
    name = value.removeprefix("torch.") if isinstance(value, str) else ""
    if name in _DTYPES:
        return _DTYPES[name], ()
    if value is None or name in ("float32", "auto"):
        return "bf16", ("bf16 assumed",)
    raise said.wrong("torch_dtype" if said.get("torch_dtype") else "dtype", f"{str(value)[:40]!r} is not known")


def _latent(said: _Said) -> Latent | None:
    if said.values.get("kv_lora_rank") is None:
        return None
    return Latent(
        said.count("q_lora_rank", default=0),
        said.count("kv_lora_rank"),
        said.count("qk_nope_head_dim"),
        said.count("qk_rope_head_dim"),
        said.count("v_head_dim"),
    )


def _experts(said: _Said) -> Experts | None:
    keys = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
    count = said.count(*keys, default=0, least=0)
    if count < 2:
        return None
    per_token = said.count("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k", most=count)
    width = said.count("moe_intermediate_size", "intermediate_size")
    shared = said.count("shared_expert_intermediate_size", default=0, least=0)
    gate = shared > 0
    if not shared:
        shared = width * said.count("n_shared_experts", "num_shared_experts", default=0, least=0)
    return Experts(count, per_token, width, shared, gate)


def _intermediate(said: _Said, experts: Experts | None) -> int:
    return said.count("intermediate_size", default=experts.intermediate if experts else None)


def _routed(said: _Said, layers: int) -> tuple[bool, ...]:
    """Which layers have experts: DeepSeek names the first dense ones and a period, Qwen a period and exceptions."""
    dense = said.count("first_k_dense_replace", default=0, least=0)
    every = said.values.get("moe_layer_freq", 1)
    if isinstance(every, list):
        if len(every) != layers or not all(one in (0, 1) for one in every):
            raise said.wrong("moe_layer_freq", f"must be a number, or 0 or 1 for each of {layers} layers")
        return tuple(bool(one) for one in every)
    period = said.count("moe_layer_freq", default=1)
    step = said.count("decoder_sparse_step", default=1)
    plain = said.values.get("mlp_only_layers") or []
    if not isinstance(plain, list):
        raise said.wrong("mlp_only_layers", "must be a list of layers")
    return tuple(at >= dense and at % period == 0 and (at + 1) % step == 0 and at not in plain for at in range(layers))


def _windows(said: _Said, layers: int) -> tuple[int, ...]:
    window = said.count("sliding_window", default=0, least=0)
    kinds = said.values.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise said.wrong("layer_types", f"must name each of {layers} layers")
        if unknown := [str(kind)[:40] for kind in kinds if kind not in ("full_attention", "sliding_attention")]:
            raise said.wrong("layer_types", f"{unknown[0]!r} layers are not modelled; leave out --model")
        if "sliding_attention" in kinds and not window:
            raise said.wrong("sliding_window", "is missing, and layer_types has sliding layers")
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if not window or said.values.get("use_sliding_window") is False:
        return (0,) * layers
    pattern = said.count("sliding_window_pattern", "_sliding_window_pattern", default=0, least=0)
    if pattern:
        return tuple(window if (at + 1) % pattern else 0 for at in range(layers))
    if said.get("model_type") in _EVEN_LAYERS_SLIDE:
        return tuple(0 if at % 2 else window for at in range(layers))
    first = said.count("max_window_layers", default=0, least=0) if said.values.get("use_sliding_window") else 0
    return tuple(window if at >= first else 0 for at in range(layers))
