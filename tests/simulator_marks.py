"""How engines mark their steps on the host: the names of the ranges, and what ends with them."""

from __future__ import annotations

from tests.simulator_model import Marks, Run, StepShape

#: The name a reader gives the dialect.
SOURCES: dict[Marks, str] = {
    "vllm": "execute_context",
    "vllm_detailed": "execute_context",
    "sglang": "step",
    "sglang_detailed": "step",
    "tracekit": "tracekit",
    "ProfilerStep": "ProfilerStep",
    "none": "inferred",
}


def mark_names(run: Run, shape: StepShape) -> tuple[str, ...]:
    """Names of the ranges around a step, outermost first; the last one is the step's mark."""
    return {
        "vllm": (_execute_context(shape),),
        "vllm_detailed": (_detailed(run, shape),),
        "sglang": (_sglang(shape),),
        "sglang_detailed": (_detailed(run, shape), _sglang(shape)),
        "tracekit": (_tracekit(shape),),
        "ProfilerStep": (f"ProfilerStep#{shape.index + 5}",),
        "none": (),
    }[run.marks]


def is_serving(marks: Marks) -> bool:
    """Whether these are marks of a serving engine; the others may be any program's."""
    return SOURCES[marks] in ("execute_context", "step", "tracekit")


def forward_only(marks: Marks) -> bool:
    """Whether the mark ends with the forward pass: logits and sampling are launched after it."""
    return marks in ("vllm_detailed", "sglang_detailed")


def _execute_context(shape: StepShape) -> str:
    return (
        f"execute_context_{shape.prefill_requests}({shape.prefill_tokens})"
        f"_generation_{shape.decode_requests}({shape.decode_requests})"
    )


def _detailed(run: Run, shape: StepShape) -> str:
    """With sums over requests of queries q, keys k, q^2 and q * k."""
    new, old, prompt, context = shape.prefill_requests, shape.decode_requests, run.prompt, shape.context
    prefill = f"sq{new * prompt}sk{new * prompt}sqsq{new * prompt**2}sqsk{new * prompt**2}"
    decode = f"sq{old}sk{old * context}sqsq{old}sqsk{old * context}"
    return f"execute_{shape.tokens}_context_{new}({prefill})_generation_{old}({decode})"


def _sglang(shape: StepShape) -> str:
    if shape.phase == "decode":
        return f"step[DECODE bs={shape.decode_requests}]"
    if shape.phase == "prefill":
        return f"step[EXTEND bs={shape.prefill_requests} toks={shape.prefill_tokens}]"
    return f"step[MIXED bs={shape.requests} toks={shape.tokens} c={shape.prefill_requests} g={shape.decode_requests}]"


def _tracekit(shape: StepShape) -> str:
    prefill = f" prefill_requests={shape.prefill_requests} prefill_tokens={shape.prefill_tokens}"
    decode = f" decode_requests={shape.decode_requests} decode_tokens={shape.decode_requests}"
    counts = (prefill if shape.prefill_requests else "") + (decode if shape.decode_requests else "")
    return f"tracekit.step[{shape.phase}{counts}]"
