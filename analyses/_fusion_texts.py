"""What to say of kernels that could be one. Sentences only; what is said of a pattern is in fusion_patterns.toml."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.fusion_patterns import ENGINES

TITLE = (
    "{pattern}: {possibly}{launches} kernels could be {count}: {won} less per {phase}step, {share} of its time{where}"
)
DETAIL = "{title}: {kernels}{others}, {time} of a step. {grade} What goes: {removes}{bytes}."
GRADES = {
    "A": "The ops say which tensor they write, and the next kernel reads it.",
    "B": "Shapes and types fit: what one op makes is what the next one takes.",
    "C": "They follow each other on the stream; nothing was recorded of what they read and write, so this is possible, "
    "no more (record_shapes=True, without CUDA graphs, would tell).",
}
BESIDE_GRAPHS = " On top of the CUDA graphs that cuda_graphs advises: what those win is not counted here."
ACTIVE = " The fused kernel runs already in other places: {names}; these were left out."
ERROR = " The replay of an unchanged step is {error} off."
VERIFY = "Same load, this one change: {instead} in a new trace, and {metric} unprofiled."
NO_CHANGE = "no switch known"
_ORDER = ("torch", "vllm", "sglang", "tensorrt_llm")


def remedy(switches: Mapping[str, str], engine: str) -> str:
    """How to get it in the engine that the trace is of (as ENGINES names it; "" for none), or in each."""
    order = _ORDER[1:] + _ORDER[:1] if engine else _ORDER
    known = {ENGINES[key]: switches[key] for key in order if key in switches}
    if engine in known:
        return _sentence(f"{engine}: {known[engine]}")
    if not known:
        return _sentence(NO_CHANGE)
    said = "; ".join(f"{name}: {text}" for name, text in known.items())
    return _sentence(f"no switch known in {engine}; elsewhere: {said}" if engine else said)


def _sentence(text: str) -> str:
    return f"{text[0].upper() if text[0] == 'n' else text[0]}{text[1:].rstrip('.')}."
