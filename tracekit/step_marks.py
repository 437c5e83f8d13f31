"""What engines say in the marks that they put around a step: which dialect, and what the step works on."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace

from tracekit.errors import UsageError

PHASES = ("prefill", "decode", "mixed", "verify", "draft")
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Composition:
    """What a step works on; None where the mark does not say.

    kv_tokens: sum of key lengths over the requests. sqsq: sum of q * q, sqsk: of q * k, with q the new tokens and k the
    key length of a request: what attention costs.
    """

    phase: str = "unknown"
    prefill_requests: int | None = None
    prefill_tokens: int | None = None
    decode_requests: int | None = None
    decode_tokens: int | None = None
    prefill_kv_tokens: int | None = None
    prefill_sqsq: int | None = None
    prefill_sqsk: int | None = None
    decode_kv_tokens: int | None = None
    decode_sqsq: int | None = None
    decode_sqsk: int | None = None

    def completed_by(self, other: Composition) -> Composition:
        """With what this one leaves open taken from the other."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        known = {name: value for name, value in said.items() if value is not None and value != "unknown"}
        return replace(other, **known)


# ---- dialects --------------------------------------------------------------------------------------------------------

_EXECUTE = re.compile(r"execute_(?:[0-9]+_)?context_([0-9]+)\(([^)]*)\)_generation_([0-9]+)\(([^)]*)\)")
_STEP = re.compile(r"step\[([A-Z_]+)")
_TRACEKIT = re.compile(r"tracekit\.step\[(\w*)")
_SUM = re.compile(r"(sqsq|sqsk|sq|sk)([0-9]+)")
_VALUE = re.compile(r"\b(\w+)=([0-9]+)")
_LEADING = re.compile(r"[0-9]+")
# Best first. source: as in the view `steps`.
_DIALECTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("execute_context", _EXECUTE),
    ("step", _STEP),
    ("tracekit", _TRACEKIT),
    ("stage", re.compile(r"gpu_model_runner: forward$")),
    ("stage", re.compile(r"gpu_model_runner: preprocess$")),
    ("stage", re.compile(r"scheduler\.run_batch$")),
    ("ProfilerStep", re.compile(r"ProfilerStep#[0-9]+")),
)
RANGE = 0
EXECUTE_CONTEXT = 1
STEP_MARK = 2
SOURCES = ("range", *(source for source, _ in _DIALECTS))
NO_MARK = len(SOURCES)
INFERRED = "inferred"  # the source of steps without marks


@dataclass(frozen=True, slots=True)
class Dialects:
    """Tells marks from other annotations. `wanted`: what the user calls a step, which beats every dialect."""

    wanted: re.Pattern[str] | None = None

    @classmethod
    def of(cls, step_range: str | None) -> Dialects:
        """With the user's regular expression. Raises UsageError where it is none, or empty."""
        if step_range is None:
            return cls()
        if not step_range:
            raise UsageError("the step range is empty: it would match every annotation")
        try:
            return cls(re.compile(step_range))
        except re.error as error:
            at = error.pos or 0
            line = step_range[:at].rpartition("\n")[2] + step_range[at:].partition("\n")[0]
            column = len(step_range[:at].rpartition("\n")[2])
            raise UsageError(
                f"the step range is not a regular expression: {error.msg}\n  {line}\n  {' ' * column}^"
            ) from error

    def number(self, name: str) -> int:
        """Of the dialect that a name is of: the smaller, the better."""
        if self.wanted is not None and self.wanted.search(name):
            return RANGE
        for number, (_, pattern) in enumerate(_DIALECTS, start=1):
            if pattern.match(name):
                return number
        return NO_MARK

    def is_mark(self, name: str) -> bool:
        """Whether annotations of this name may be steps."""
        return self.number(name) != NO_MARK


def composition_of(name: str) -> Composition:
    """What a mark says in its name."""
    if match := _EXECUTE.match(name):
        return _execute_context(*match.groups())
    if match := _STEP.match(name):
        return _step(match[1], _values(name))
    if match := _TRACEKIT.match(name):
        return _tracekit(match[1], _values(name))
    return Composition()


def _execute_context(contexts: str, context: str, generations: str, generation: str) -> Composition:
    """`1(60)`, `1(sq60sk60sqsq3600sqsk3600)` and `1(888_788544)`: requests, and first their new tokens."""
    prefill_requests, decode_requests = _number(contexts), _number(generations)
    prefill, decode = ({key: _number(digits) for key, digits in _SUM.findall(text)} for text in (context, generation))
    return Composition(
        _phase(prefill_requests, decode_requests),
        prefill_requests,
        _leading(context) if "sq" not in prefill else prefill["sq"],
        decode_requests,
        _leading(generation) if "sq" not in decode else decode["sq"],
        *(prefill.get(key) for key in ("sk", "sqsq", "sqsk")),
        *(decode.get(key) for key in ("sk", "sqsq", "sqsk")),
    )


def _phase(prefill_requests: int | None, decode_requests: int | None) -> str:
    if prefill_requests and decode_requests:
        return "mixed"
    if prefill_requests:
        return "prefill"
    return "decode" if decode_requests else "unknown"


def _step(mode: str, said: dict[str, int | None]) -> Composition:
    """`DECODE bs=32`, `EXTEND bs=15 toks=15360`, `MIXED bs=9 c=2 g=7`, with sums as `c_sq=` and `g_sq=`."""
    phase = _phase_of_mode(mode)
    batch, tokens = said.get("bs"), said.get("toks")
    prefills, decodes = phase == "prefill", phase in {"decode", "verify", "draft"}
    return Composition(
        phase,
        said.get("c", batch if prefills else None),
        said.get("c_sq", tokens if prefills else None),
        said.get("g", batch if decodes else None),
        # A plain decode makes one token a request, and the mark of SGLang leaves that out.
        said.get("g_sq", (tokens or (batch if phase == "decode" else None)) if decodes else None),
        *(said.get(f"c_{key}") for key in ("sk", "sqsq", "sqsk")),
        *(said.get(f"g_{key}") for key in ("sk", "sqsq", "sqsk")),
    )


def _phase_of_mode(mode: str) -> str:
    if mode in {"DECODE", "MIXED"}:
        return mode.lower()
    if "VERIFY" in mode:
        return "verify"
    if "DRAFT" in mode:  # DRAFT_EXTEND too
        return "draft"
    return "prefill" if "EXTEND" in mode or "PREFILL" in mode else "unknown"


def _tracekit(mode: str, said: dict[str, int | None]) -> Composition:
    named = {field.name: said.get(field.name) for field in fields(Composition) if field.name != "phase"}
    phase = mode if mode in PHASES else _phase(named["prefill_requests"], named["decode_requests"])
    return Composition(phase, **named)


def _values(name: str) -> dict[str, int | None]:
    return {key: _number(digits) for key, digits in _VALUE.findall(name)}


def _leading(text: str) -> int | None:
    match = _LEADING.match(text)
    return _number(match[0]) if match else None


def _number(digits: str) -> int | None:
    """None for what no BIGINT holds."""
    number = int(digits) if len(digits) < 20 else _LARGEST + 1
    return number if number <= _LARGEST else None
