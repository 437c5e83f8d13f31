"""Work of products of matrices: operations and compulsory bytes, computed by hand."""

from __future__ import annotations

import pytest

import tracekit
from tests import real_traces
from tests.op_calls import call, tensor
from tracekit.op_call import Argument, OpCall, parse_call
from tracekit.work import Work, work_of


def work(flops: int, size: int, math: str, weight: int = 0, *, bits: int = 16) -> Work:
    """The work of a product."""
    return Work("gemm", flops, size, math, weight_bytes=weight, weight_bits=bits if weight else 0)


MM = 2 * (8944 * 1024 + 1024 * 2816 + 8944 * 2816)
ADD = 2 * (8944 * 1024 + 1024 * 1024 + 8944 * 1024)
CASES: list[tuple[OpCall, Work]] = [
    (
        call("aten::mm", "bf16 8944x1024", "bf16 1024x2816"),
        work(2 * 8944 * 1024 * 2816, MM, "bf16", 2 * 1024 * 2816),
    ),
    # The result's type: that of an out tensor, or the number of a dtype (6 is fp32).
    (
        call("aten::mm", "bf16 4x8", "bf16 8x2", 6),
        work(2 * 4 * 8 * 2, 2 * (4 * 8 + 8 * 2) + 4 * 4 * 2, "bf16", 2 * 8 * 2),
    ),
    (
        call("aten::mm", "bf16 4x8", "bf16 8x2", "fp32 4x2"),
        work(2 * 4 * 8 * 2, 2 * (4 * 8 + 8 * 2) + 4 * 4 * 2, "bf16", 2 * 8 * 2),
    ),
    # A bias of N is read once, an addend of M x N whole, none where beta is 0, one of stride 0 as a row.
    (
        call("aten::addmm", "bf16 1024", "bf16 8944x1024", "bf16 1024x1024", 1, 1),
        work(2 * 8944 * 1024 * 1024, ADD + 2 * 1024, "bf16", 2 * 1024 * 1024),
    ),
    (
        call("aten::addmm", "bf16 8944x1024", "bf16 8944x1024", "bf16 1024x1024", 1, 1),
        work(2 * 8944 * 1024 * 1024, ADD + 2 * 8944 * 1024, "bf16", 2 * 1024 * 1024),
    ),
    (
        call("aten::addmm", "bf16 8944x1024", "bf16 8944x1024", "bf16 1024x1024", 0, 1),
        work(2 * 8944 * 1024 * 1024, ADD, "bf16", 2 * 1024 * 1024),
    ),
    (
        call("aten::addmm", tensor("bf16 8944x1024", 0, 1), "bf16 8944x1024", "bf16 1024x1024", None, None),
        work(2 * 8944 * 1024 * 1024, ADD + 2 * 1024, "bf16", 2 * 1024 * 1024),
    ),
    (
        call("aten::_addmm_activation", "fp16 2", "fp16 4x8", "fp16 8x2", 1, 1, True),
        work(2 * 4 * 8 * 2, 2 * (2 + 4 * 8 + 8 * 2 + 4 * 2), "fp16", 2 * 8 * 2),
    ),
    (
        call("aten::_int_mm", "int8 32x64", "int8 64x16"),
        work(2 * 32 * 64 * 16, 32 * 64 + 64 * 16 + 4 * 32 * 16, "int8", 64 * 16, bits=8),
    ),
    (
        call("aten::mm", "fp64 4x8", "fp64 8x2"),
        work(2 * 4 * 8 * 2, 8 * (4 * 8 + 8 * 2 + 4 * 2), "fp64_matrix", 8 * 8 * 2, bits=64),
    ),
    # No operand of a batch is a weight; a broadcast one is read once.
    (
        call("aten::bmm", "bf16 64x512x64", "bf16 64x64x512"),
        work(2 * 64 * 512 * 64 * 512, 2 * 64 * (2 * 512 * 64 + 512 * 512), "bf16"),
    ),
    (
        call("aten::bmm", "fp32 16x32x1", tensor("fp32 16x1x559", 0, 559, 1)),
        work(2 * 16 * 32 * 559, 4 * (16 * 32 + 559 + 16 * 32 * 559), "fp32"),
    ),
    (
        call("aten::baddbmm", "bf16 1x1x6", "bf16 3x4x5", "bf16 3x5x6", 1, 1),
        work(2 * 3 * 4 * 5 * 6, 2 * (6 + 3 * 4 * 5 + 3 * 5 * 6 + 3 * 4 * 6), "bf16"),
    ),
    (
        call("aten::addbmm", "fp32 4x6", "fp32 3x4x5", "fp32 3x5x6", 1, 1),
        work(2 * 3 * 4 * 5 * 6, 4 * (4 * 6 + 3 * 4 * 5 + 3 * 5 * 6 + 4 * 6), "fp32"),
    ),
    (
        call("aten::linear", "bf16 2x3x8", "bf16 5x8", "bf16 5"),
        work(2 * 6 * 8 * 5, 2 * (6 * 8 + 5 * 8 + 5 + 6 * 5), "bf16", 2 * 5 * 8),
    ),
    (
        call("aten::matmul", "bf16 2x3x8", "bf16 8x5"),
        work(2 * 6 * 8 * 5, 2 * (6 * 8 + 8 * 5 + 6 * 5), "bf16", 2 * 8 * 5),
    ),
    (
        call("aten::matmul", "bf16 8", "bf16 4x8x5"),
        work(2 * 4 * 8 * 5, 2 * (8 + 4 * 8 * 5 + 4 * 5), "bf16"),
    ),
    (
        call("aten::mv", "bf16 4x8", "bf16 8"),
        work(2 * 4 * 8, 2 * (4 * 8 + 8 + 4), "bf16", 2 * 4 * 8),
    ),
    (
        call("aten::addmv", "bf16 4", "bf16 4x8", "bf16 8", 1, 1),
        work(2 * 4 * 8, 2 * (4 + 4 * 8 + 8 + 4), "bf16", 2 * 4 * 8),
    ),
    (call("aten::dot", "fp32 8", "fp32 8"), work(2 * 8, 4 * (8 + 8 + 1), "fp32")),
    (call("aten::addr", "fp32 4x6", "fp32 4", "fp32 6", 1, 1), work(2 * 4 * 6, 4 * (24 + 4 + 6 + 24), "fp32")),
]


@pytest.mark.parametrize(("given", "expected"), CASES, ids=lambda one: one.name if isinstance(one, OpCall) else "")
def test_products(given: OpCall, expected: Work) -> None:
    assert work_of(given) == expected


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("bf16 4x8",),
        ("bf16 4x8", None),
        ("bf16 4x8", "bf16 9x2"),
        ("bf16 4x8", "bf16 8"),
        ("bf16 2x4x8", "bf16 2x8x2"),
        ("int64 4x8", "int64 8x2"),  # no matrix unit takes it
        (tensor(" 4x8"), tensor(" 8x2")),  # types not recorded
        ("text", 3.5),
    ],
)
def test_no_answer_where_a_product_is_not_understood(args: tuple[Argument, ...]) -> None:
    assert work_of(call("aten::mm", *args)) is None


def test_rates_on_a_recording() -> None:
    """H100, bf16: 8944 x 1024 x 1024 at 596 TF/s, both ways of the MLP at 617 and 682 TF/s."""
    found = tracekit.open(real_traces.trace("tracelens__h100_qwen1.5")).sql(
        """SELECT o.name, o.shapes, o.dtypes, o.scalars, sum(k.dur) AS ns, count(DISTINCT o.id) AS calls
        FROM kernels AS k JOIN ops AS o ON o.id = k.op_id
        WHERE o.name IN ('aten::mm', 'aten::addmm') GROUP BY ALL ORDER BY ns DESC"""
    )
    rates = {}
    for row in found.to_pylist():
        given = parse_call(row["name"], row["shapes"], row["dtypes"], row["scalars"], None)
        one = work_of(given)
        assert one is not None
        tensors = given.tensors()
        m, k = tensors[-2].shape
        rates[row["name"], m, k, tensors[-1].shape[1]] = round(one.flops * row["calls"] / int(row["ns"]) / 1e3)
    assert rates == {
        ("aten::mm", 8944, 1024, 2816): 617,
        ("aten::addmm", 8944, 1024, 1024): 596,
        ("aten::mm", 8944, 2816, 1024): 682,
        ("aten::mm", 8944, 1024, 1024): 594,
    }


def test_no_elements() -> None:
    assert work_of(call("aten::mm", "bf16 0x8", "bf16 8x2")) == work(0, 2 * 8 * 2, "", 2 * 8 * 2)


def test_numbers_stay_exact() -> None:
    found = work_of(call("aten::mm", "bf16 9007199254740993x3", "bf16 3x5"))
    assert found is not None
    assert found.flops == 2 * 9007199254740993 * 3 * 5
