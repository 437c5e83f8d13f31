"""Calls of ops as profilers write them, and what is understood of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tracekit.op_call import Argument, OpCall, Tensor, parse_call

NESTED = "[" * 5_000 + "]" * 5_000


def parsed(dims: Any, types: Any, values: Any, strides: Any = None) -> tuple[Argument, ...]:
    texts = [None if one is None else json.dumps(one) for one in (dims, types, values, strides)]
    return parse_call("aten::op", *texts).args


def test_nothing_recorded() -> None:
    assert parse_call("aten::op", None, None, None, None) == OpCall("aten::op")


@pytest.mark.parametrize(
    ("dims", "types", "values", "expected"),
    [
        ([[2, 3]], ["c10::BFloat16"], [""], (Tensor((2, 3), "bf16"),)),
        ([[2, 3]], ["c10::Float8_e4m3fn"], [""], (Tensor((2, 3), "fp8_e4m3"),)),
        ([[2, 3]], ["unsigned char"], [""], (Tensor((2, 3), "uint8"),)),
        ([[]], ["long int"], [""], (Tensor((), "int64"),)),  # a tensor without dimensions has one element
        ([[2]], ["a new type"], [""], (Tensor((2,), ""),)),
        ([[], [], []], ["Scalar", "Scalar", "Scalar"], ["1", "0.125", "True"], (1, 0.125, True)),
        ([[]], ["ScalarList"], ["[-1, 2]"], ((-1, 2),)),
        ([[], []], ["Scalar", ""], ["sum", ""], ("sum", None)),
        ([[[2, 3], [2, 5]]], ["TensorList"], [""], ((Tensor((2, 3)), Tensor((2, 5))),)),
        ([[[2, 3], [2, 5]]], ["GenericList"], [""], ((Tensor((2, 3)), Tensor((2, 5))),)),
        ([[2, 3]], None, None, (Tensor((2, 3), ""),)),
        ([[2, -3]], ["float"], [""], (None,)),
        ([[2, "x"]], ["float"], [""], (None,)),
        ([[2, True]], ["float"], [""], (None,)),
        (["2"], ["float"], [""], (Tensor((), "fp32"),)),
        ({"a": 1}, 7, "x", ()),
    ],
)
def test_arguments(dims: Any, types: Any, values: Any, expected: tuple[Argument, ...]) -> None:
    assert parsed(dims, types, values) == expected


@pytest.mark.parametrize("text", ["", "[1", "nan", "[[1e999]]", NESTED, '[["__import__"]]', "\x00"])
def test_text_of_any_kind_is_data(text: str) -> None:
    parse_call("aten::op", text, text, text, text)


def test_bytes_in_memory() -> None:
    """A dimension of stride 0 is one element, read again and again; one of size 0 is nothing."""
    (full,) = parsed([[4, 8]], ["float"], [""], [[8, 1]])
    (broadcast,) = parsed([[4, 8]], ["float"], [""], [[0, 1]])
    (empty,) = parsed([[0, 8]], ["float"], [""], [[0, 1]])
    (unknown,) = parsed([[4, 8]], ["who knows"], [""])
    sizes = [
        (one.elements, one.stored, one.bytes) for one in (full, broadcast, empty, unknown) if isinstance(one, Tensor)
    ]
    assert sizes == [(32, 32, 128), (32, 8, 32), (0, 0, 0), (32, 32, None)]


def test_by_place() -> None:
    call = OpCall("aten::op", (Tensor((2,), "fp32"), 1, True, (Tensor((3,)), Tensor((4,))), "text"))
    assert (call.tensor(0), call.tensor(1), call.tensor(9), call.tensor(-5)) == (
        Tensor((2,), "fp32"),
        None,
        None,
        call.args[0],
    )
    assert (call.number(1), call.number(2), call.number(0), call.flag(2), call.flag(1)) == (1, None, None, True, None)
    assert call.tensors() == (Tensor((2,), "fp32"), Tensor((3,)), Tensor((4,)))
