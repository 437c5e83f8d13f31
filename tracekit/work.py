"""How much must a call of an op compute and move at least? Floating-point operations and compulsory bytes.

    OpCall (op_call.py) + what the step works on -> model of that op (work_*.py) -> Work

Bytes are compulsory: each operand read once, each result written once, whatever caches do beside that. A multiply-add
is two operations. Where the shapes leave it open (lengths of sequences, routing of experts), the answer is an interval.
A model that does not know says None, never a guess.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

from tracekit.op_call import OpCall
from tracekit.step_marks import Composition

# What computes, as devices.toml names its peaks: matrix units by input type (accumulating in fp32), else fp32 and fp64
# of the vector units. A matrix product of fp32 inputs is "fp32"; that tf32 was allowed, only the kernel's name tells.
MATHS = ("fp64", "fp64_matrix", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4", "int4")
_MODULES = (
    "work_fused",
    "work_gemm",
    "work_quantized",
    "work_attention",
    "work_paged",
    "work_moe",
    "work_pointwise",
    "work_norm",
    "work_conv",
    "work_index",
    "work_reduce",
    "work_collective",
)


@dataclass(frozen=True, slots=True)
class Part:
    """What one kernel of several does for a call, in the order in which they run. category: as kernels have it."""

    category: str
    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Work:
    """What one call must do at least.

    family: gemm, attention, moe, norm, rope, activation, softmax, elementwise, reduction, quant, dequant, kv_cache,
    embedding, index, copy, conv, random, communication, sampling: a category of kernels where there is one so named.
    flops, bytes: at least; _high: at most; _expected: if routing is even and sequences are equally long; -1 for the
    same as at least. math: one of MATHS, "" where flops is 0.
    weight_bytes, kv_bytes: of the expected bytes, those of weights of the model, and of keys and values of earlier
    tokens.
    weight_bits: of a weight as stored, 0 if there are none. link_bytes: what a collective moves over its links, bus
    bandwidth times time. parts: of a call whose kernels do different things. by_load: the answer depends on what the
    step works on. notes: what was assumed, a few words each.
    """

    family: str
    flops: int
    bytes: int
    math: str = ""
    flops_high: int = -1
    bytes_high: int = -1
    weight_bytes: int = 0
    weight_bits: int = 0
    kv_bytes: int = 0
    link_bytes: int = 0
    parts: tuple[Part, ...] = ()
    by_load: bool = False
    notes: tuple[str, ...] = ()
    flops_expected: int = -1
    bytes_expected: int = -1


Model = Callable[[OpCall], Work | None]
LoadModel = Callable[[OpCall, Composition | None], Work | None]
_MODELS: dict[str, Model] = {}
_LOAD_MODELS: dict[str, LoadModel] = {}


def models(*names: str) -> Callable[[Model], Model]:
    """Register a model for ops by name, without overload: `aten::mm`; with a star at its end, by how names begin."""

    def register(model: Model) -> Model:
        for name in names:
            if name in _MODELS or name in _LOAD_MODELS:
                raise ValueError(f"{name} has a model already")
            _MODELS[name] = model
        return model

    return register


def load_models(*names: str) -> Callable[[LoadModel], LoadModel]:
    """The same for ops whose work depends on what the step works on: lengths of keys are in no shape. The model gets
    None where the step's mark does not say.
    """

    def register(model: LoadModel) -> LoadModel:
        for name in names:
            if name in _MODELS or name in _LOAD_MODELS:
                raise ValueError(f"{name} has a model already")
            _LOAD_MODELS[name] = model
        return model

    return register


def registered() -> tuple[str, ...]:
    """All names under which there is a model."""
    _load()
    return (*_MODELS, *_LOAD_MODELS)


def modelled(names: Iterable[str]) -> dict[str, bool]:
    """Those of some ops that have a model, and whether the work of each depends on the step."""
    _load()
    places = {name: _place(name) for name in names}
    return {name: place in _LOAD_MODELS for name, place in places.items() if place is not None}


def work_of(call: OpCall, load: Composition | None = None) -> Work | None:
    """The work of a call, None if its op has no model or its record lacks what the model needs."""
    _load()
    place = _place(call.name)
    if place is None:
        return None
    if (by_load := _LOAD_MODELS.get(place)) is not None:
        found = by_load(call, load)
        return None if found is None else replace(found, by_load=True)
    return _MODELS[place](call)


def _place(name: str) -> str | None:
    """The name under which the model of an op is registered."""
    if name in _MODELS or name in _LOAD_MODELS:
        return name
    return next((star for star in _stars() if name.startswith(star[:-1])), None)


@cache
def _stars() -> tuple[str, ...]:
    return tuple(name for name in registered() if name.endswith("*"))


def _load() -> None:
    for module in _MODULES:
        importlib.import_module(f"tracekit.{module}")
