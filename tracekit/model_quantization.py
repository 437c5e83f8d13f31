"""How are a model's weights stored? What `quantization_config` of a Hugging Face config.json says about it.

Methods and their keys as vLLM and Transformers read them: fp8, fbgemm_fp8, gptq, awq, bitsandbytes, mxfp4, modelopt,
compressed-tensors. What is not understood is refused with its key: half of a weight's bytes make another verdict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from tracekit.errors import UsageError


@dataclass(frozen=True, slots=True)
class Quantization:
    """bits: of a stored weight. group: weights in a row that share a scale, 0 for a scale per output channel or less;
    rows: output channels that share it (128 for fp8 in blocks). scale_bits, zero_bits: of a scale and its zero point.
    math: one of MATHS where activations are quantised too, "" where weights are expanded to the activations' type.
    ignored: modules left as they were, as names, globs or `re:` expressions. kv_bits: of the cache, 0 if not said.
    """

    method: str
    bits: int
    group: int = 0
    rows: int = 1
    scale_bits: int = 16
    zero_bits: int = 0
    math: str = ""
    ignored: tuple[str, ...] = ()
    kv_bits: int = 0

    def covers(self, module: str) -> bool:
        """Whether the weight of a module (`model.layers.0.self_attn.o_proj`, `lm_head`) is stored so."""
        return bool(module) and not any(_names(pattern, module) for pattern in self.ignored)

    def weight_bytes(self, inputs: int, outputs: int) -> int:
        """Bytes of a weight matrix with its scales and zero points, all of them read once."""
        shared = -(-inputs // self.group) if self.group else 1
        scales = shared * -(-outputs // self.rows)
        return -(-inputs * outputs * self.bits // 8) + -(-scales * (self.scale_bits + self.zero_bits) // 8)


def _names(pattern: str, module: str) -> bool:
    """`mlp.gate` names model.layers.0.mlp.gate, and not mlp.gate_proj as a plain search in the text would have it."""
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], module) is not None
        except re.error as error:
            raise UsageError(f"quantization_config: {pattern!r} is not a regular expression: {error}") from error
    if any(character in pattern for character in "*?["):
        return fnmatchcase(module, pattern) or fnmatchcase(module, pattern.rstrip("*.") + ".*")
    return f".{pattern}." in f".{module}."


def read_quantization(said: Any, where: str) -> Quantization | None:
    """From the value of `quantization_config`; None where nothing is quantised.

    where: file and key, for the message. Raises UsageError for a method or form that is not known.
    """
    if said is None or said == {}:
        return None
    if not isinstance(said, Mapping):
        raise UsageError(f"{where}: must be an object")
    method = said.get("quant_method")
    reader = _READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        known = ", ".join(sorted(_READERS))
        raise UsageError(f"{where}.quant_method: {method!r} is not known; known are {known}")
    return reader(_Said(said, where))


@dataclass(frozen=True, slots=True)
class _Said:
    """The values of an object, and where it stands."""

    values: Mapping[str, Any]
    where: str

    def number(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key, default)
        if value is None:
            value = default
        if type(value) is not int or not -1 <= value <= 1 << 20:
            raise self.refusal(key, "must be a whole number" if key in self.values else "is missing")
        return value

    def group(self, key: str, default: int | None = None) -> int:
        return max(0, self.number(key, default))  # -1 says: one for the whole row

    def bits(self, key: str) -> int:
        value = self.number(key)
        if not 1 <= value <= 16:
            raise self.refusal(key, "must be 1 to 16 bits")
        return value

    def inner(self, key: str) -> _Said:
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise self.refusal(key, "must be an object" if key in self.values else "is missing")
        return _Said(value, f"{self.where}.{key}")

    def ignored(self, *keys: str) -> tuple[str, ...]:
        found: list[str] = []
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise self.refusal(key, "must be a list of names")
            found += value
        return tuple(found)

    def refusal(self, key: str, why: str) -> UsageError:
        return UsageError(f"{self.where}.{key}: {why}")


def _fp8(said: _Said) -> Quantization:
    ignored = ("lm_head", *said.ignored("modules_to_not_convert", "ignored_layers"))
    if said.values.get("weight_block_size") is None:
        return Quantization("fp8", 8, scale_bits=32, math="fp8", ignored=ignored)
    rows, group = _block(said, "weight_block_size")
    return Quantization("fp8", 8, group, rows, 32, math="fp8", ignored=ignored)


def _block(said: _Said, key: str) -> tuple[int, int]:
    """Outputs and inputs that share a scale; compressed-tensors also writes `128x128`."""
    value = said.values.get(key)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,6}x[0-9]{1,6}", value):
        value = [int(one) for one in value.split("x")]
    if not isinstance(value, list) or len(value) != 2 or not all(type(one) is int and one > 0 for one in value):
        raise said.refusal(key, "must be two sizes, as [128, 128]")
    return value[0], value[1]


def _gptq(said: _Said) -> Quantization:
    if said.values.get("dynamic"):
        raise said.refusal("dynamic", "other bits for some modules are not understood")
    bits = said.bits("bits")
    zeros = 0 if said.values.get("sym", True) else bits
    ignored = () if said.values.get("lm_head") else ("lm_head",)
    return Quantization("gptq", bits, said.group("group_size", -1), 1, 16, zeros, ignored=(*ignored, *_ROUTERS))


def _awq(said: _Said) -> Quantization:
    bits = said.bits("bits" if "bits" in said.values or "w_bit" not in said.values else "w_bit")
    group = said.group(
        "group_size" if "group_size" in said.values or "q_group_size" not in said.values else "q_group_size"
    )
    zeros = bits if said.values.get("zero_point", True) else 0
    ignored = ("lm_head", *_ROUTERS, *said.ignored("modules_to_not_convert"))
    return Quantization("awq", bits, group, 1, 16, zeros, ignored=ignored)


def _bitsandbytes(said: _Said) -> Quantization:
    ignored = ("lm_head", *said.ignored("llm_int8_skip_modules"))
    if said.values.get("load_in_4bit"):
        return Quantization("bitsandbytes", 4, 64, 1, 32, ignored=ignored)
    if said.values.get("load_in_8bit"):
        return Quantization("bitsandbytes", 8, scale_bits=32, math="int8", ignored=ignored)
    raise said.refusal("load_in_4bit", "neither this nor load_in_8bit is true")


def _mxfp4(said: _Said) -> Quantization:
    ignored = ("lm_head", "self_attn", *_ROUTERS, *said.ignored("modules_to_not_convert"))
    return Quantization("mxfp4", 4, 32, 1, 8, ignored=ignored)


def _modelopt(said: _Said) -> Quantization:
    outer = said
    if "quant_algo" not in said.values and "quantization" in said.values:
        said = said.inner("quantization")
    algorithm = said.values.get("quant_algo")
    ignored = ("lm_head", *_ROUTERS, *said.ignored("ignore", "exclude_modules"))
    cache = 8 if "FP8" in str(said.values.get("kv_cache_quant_algo", "")).upper() else _cache_bits(outer)
    forms = {
        "FP8": Quantization("modelopt", 8, scale_bits=32, math="fp8", ignored=ignored, kv_bits=cache),
        "FP8_PER_CHANNEL_PER_TOKEN": Quantization(
            "modelopt", 8, scale_bits=32, math="fp8", ignored=ignored, kv_bits=cache
        ),
        "NVFP4": Quantization("modelopt", 4, 16, 1, 8, math="fp4", ignored=ignored, kv_bits=cache),
        "MXFP8": Quantization("modelopt", 8, 32, 1, 8, math="fp8", ignored=ignored, kv_bits=cache),
    }
    if algorithm not in forms:
        raise said.refusal("quant_algo", f"{algorithm!r} is not known; known are {', '.join(forms)}")
    return forms[algorithm]


def _compressed(said: _Said) -> Quantization:
    sparse = said.values.get("sparsity_config")
    if isinstance(sparse, Mapping) and sparse.get("format", "dense") != "dense":
        raise said.refusal("sparsity_config", "sparse weights are not understood")
    groups = said.inner("config_groups")
    if len(groups.values) != 1:
        raise said.refusal("config_groups", "must be one group for all modules; several are not understood")
    group = groups.inner(next(iter(groups.values)))
    if group.values.get("targets", ["Linear"]) != ["Linear"]:
        raise group.refusal("targets", 'must be ["Linear"]; other targets are not understood')
    weights = group.inner("weights")
    bits, number = weights.bits("num_bits"), weights.values.get("type", "int")
    strategy = weights.values.get("strategy")
    size = weights.group("group_size", -1) if strategy in ("group", "tensor_group") else 0
    rows, scale = 1, 8 if strategy == "tensor_group" else 16
    if strategy == "block":
        block = _block(weights, "block_structure")
        rows, size, scale = block[0], block[1], 32
    zeros = 0 if weights.values.get("symmetric", True) else bits
    math = "" if group.values.get("input_activations") is None else _math(group.inner("input_activations"), number)
    ignored = said.ignored("ignore")
    return Quantization("compressed-tensors", bits, size, rows, scale, zeros, math, ignored, _cache_bits(said))


def _math(activations: _Said, weights: Any) -> str:
    """What multiplies: the wider of the two operands decides, as 4-bit weights with 8-bit activations are expanded."""
    kind = activations.values.get("type", weights)
    name = f"{'fp' if kind == 'float' else 'int'}{activations.bits('num_bits')}"
    if name not in ("fp8", "int8", "fp4", "int4", "fp16", "int16"):
        raise activations.refusal("num_bits", f"{name} is not known")
    return "" if name in ("fp16", "int16") else name


def _cache_bits(said: _Said) -> int:
    scheme = said.values.get("kv_cache_scheme")
    return _Said(scheme, f"{said.where}.kv_cache_scheme").bits("num_bits") if isinstance(scheme, Mapping) else 0


_ROUTERS = ("mlp.gate", "mlp.router", "block_sparse_moe.gate", "mlp.shared_expert_gate")
_READERS = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "gptq": _gptq,
    "gptq_marlin": _gptq,
    "awq": _awq,
    "awq_marlin": _awq,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "compressed-tensors": _compressed,
}
