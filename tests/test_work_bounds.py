"""Whatever the arguments, work lies within its bounds: of nonsense, and of each call in the tests' tables, changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests import (
    test_work_attention,
    test_work_collective,
    test_work_gemm,
    test_work_moe,
    test_work_paged,
    test_work_pointwise,
    test_work_quantized,
)
from tests.attention_rows import MIXED
from tests.op_calls import tensor
from tracekit.op_call import Argument, OpCall, Tensor
from tracekit.step_marks import Composition
from tracekit.work import MATHS, Work, registered, work_of

CALLS: dict[str, list[OpCall]] = {
    "attention": [*(row[0] for row in test_work_attention.CALLS), *(row[0] for row in test_work_paged.CACHED)],
    "moe": [row[0] for row in test_work_moe.CALLS],
    "gemm": [row[0] for row in test_work_gemm.CASES],
    "quantized": [row[0] for row in (*test_work_quantized.PRODUCTS, *test_work_quantized.OTHERS)],
    "collective": [row[0] for row in test_work_collective.COLLECTIVES],
    "pointwise": [
        row[0]
        for name in ("POINTWISE", "NORMS", "REDUCTIONS", "INDEXING")
        for row in getattr(test_work_pointwise, name)
    ],
}
LOADS = (None, MIXED, test_work_paged.DECODE, Composition("prefill", 2, 888, 0, 0))


def problems(found: Work) -> Iterator[str]:
    """What cannot be true of any work. -1 stands for: the same as at least."""
    for what in ("flops", "bytes"):
        low, likely, high = (getattr(found, what + end) for end in ("", "_expected", "_high"))
        if low < 0 or (-1 not in (likely, high) and likely > high) or (likely != -1 and not low < likely):
            yield f"{what}: {low}, expected {likely}, at most {high}"
        if (high != -1 and not low < high) or (likely != -1 and high == -1):
            yield f"{what}: {low} at least, {high} at most, {likely} expected"
    expected = max(found.bytes, found.bytes_expected)
    if not 0 <= found.weight_bytes <= expected or not 0 <= found.kv_bytes <= expected:
        yield f"of {expected} bytes {found.weight_bytes} are weights, {found.kv_bytes} keys and values"
    if found.math not in ("", *MATHS) or bool(found.math) != (max(found.flops, found.flops_high) > 0):
        yield f"{found.flops} to {found.flops_high} operations of {found.math or 'nothing'}"
    if any(part.flops < 0 or part.bytes < 0 for part in found.parts):
        yield "a part is negative"


def changed(call: OpCall) -> Iterator[OpCall]:
    """The call, and for each argument some with another one in its place."""
    yield call
    for place, one in enumerate(call.args):
        for other in others(one):
            yield replace(call, args=(*call.args[:place], other, *call.args[place + 1 :]))


def others(one: Argument) -> Iterator[Argument]:
    """Missing, larger, smaller, another type, another rank."""
    yield None
    if isinstance(one, Tensor):
        for at, size in enumerate(one.shape):
            for other in (0, 1, size + 1, 2 * size, 10**30):
                yield replace(one, shape=(*one.shape[:at], other, *one.shape[at + 1 :]), strides=())
        yield replace(one, shape=one.shape[1:], strides=())
        yield replace(one, dtype="uint8")
        yield replace(one, dtype="")
    elif isinstance(one, bool):
        yield not one
    elif isinstance(one, int):
        yield from (0, -1, 1, one + 1, 10**400)


@pytest.mark.parametrize("family", CALLS)
def test_bounds_hold(family: str) -> None:
    for call in CALLS[family]:
        loads = LOADS if family == "attention" else (None,)
        for one in changed(call):
            for load in loads:
                found = work_of(one, load)
                assert found is None or not list(problems(found)), (one, load, found)


GARBAGE: list[tuple[Argument, ...]] = [
    (),
    (None,) * 12,
    (tensor("fp32"),) * 12,
    (tensor("bf16 0"),) * 12,
    (tensor("bf16 4x0x3"), tensor("int64 0x2"), -1, 2, tensor("int32 5"), (3,), True),
    (tensor("bf16 2x3"), tensor("uint8 7")) * 6,
    (tensor("bf16 2x3"),) * 12,
    (tensor("bf16 2x3"), 10**30, -(10**30), 0, 0.5, float("nan"), True, "text", (), (-1,), (0, 0), tensor("fp32")),
    (tensor("bf16 2x3"), (-5, 3), tensor("bf16 2x3"), (0,), (-1,), (0,), False, (0,), 1),
    (tensor("bf16 2x3x4x5"), tensor("bf16 6x3x3x3"), (0, 0), (0, 0), (1, 1), (1, 1), False, (0, 0), 0),
    (tensor("bf16 2x3x4x5"), tensor("bf16 6x3x9x9"), None, (1, 1), (0, 0), (1, 1), True, (0, 0), -3),
    ((tensor(" 2x3"), tensor(" 2x3")), 0, tensor("bf16 0")),
    (tensor("unknown 2x3"),) * 8,
    (0, 559, 0, tensor("int64 0")),
    (float("inf"), float("inf"), 1, tensor("int64 0")),
    (tensor("fp32 4x6"), float("nan"), float("inf")),
    (tensor("bf16 4x6"), (-2, 3), tensor("bf16 4x6"), float("nan"), tensor("bf16 4x6"), float("inf")),
]


@pytest.mark.parametrize("args", GARBAGE)
def test_no_model_raises_for_what_a_trace_may_hold(args: tuple[Argument, ...]) -> None:
    for name in registered():
        for load in (None, MIXED):
            found = work_of(OpCall(name, args), load)
            assert found is None or not list(problems(found)), (name, found)


def test_stars_stand_at_the_end_only() -> None:
    assert [name for name in registered() if "*" in name.removesuffix("*")] == []
