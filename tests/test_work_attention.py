"""Work of attention whose call says its lengths: computed by hand, and by PyTorch."""

from __future__ import annotations

import pytest

from tests.attention_rows import without_load, work
from tests.op_calls import call, tensor
from tracekit.op_call import Argument, OpCall
from tracekit.work import Work, work_of

UNKNOWN = ("mask not recorded",)


# ---- PyTorch's ops ---------------------------------------------------------------------------------------------------


SDPA = "aten::_scaled_dot_product_flash_attention"
GQA = ("bf16 1x8x5x16", "bf16 1x2x9x16", "bf16 1x2x9x16")
KEYS = 2 * 2 * 16 * 2  # bytes of a token: key and value of 2 heads of 16
ENDS = 2 * 8 * 5 * 16 * 2  # bytes of queries and outputs

CALLS: list[tuple[OpCall, Work | None]] = [
    (call(SDPA), None),
    (call(SDPA, "bf16 2x4x16x8", "bf16 2x4x16x8"), None),
    (call(SDPA, "bf16 2x4x16x8", "bf16 2x3x16x8", "bf16 2x3x16x8", 0.0, False), None),  # 4 heads do not share 3
    (call(SDPA, "bf16 0x4x16x8", "bf16 0x4x16x8", "bf16 0x4x16x8", 0.0, False), work(0, 0)),
    (
        call(SDPA, "bf16 2x4x16x8", "bf16 2x4x16x8", "bf16 2x4x16x8", 0.0, False),
        work(2 * 2 * 4 * 16 * 16 * (8 + 8), 4 * 2 * 4 * 16 * 8 * 2),
    ),
    (call(SDPA, *GQA, 0.0, False), work(2 * 8 * 5 * 9 * 32, ENDS + 9 * KEYS, 4 * KEYS)),
    # Right-aligned: 5 + 6 + 7 + 8 + 9. PyTorch's own mask begins at the left: 1 + 2 + 3 + 4 + 5, 4 keys are not read.
    (call(SDPA, *GQA, 0.0, True), work(2 * 8 * 35 * 32, ENDS + 9 * KEYS, 4 * KEYS)),
    (call(f"{SDPA}_for_cpu", *GQA, 0.0, True), work(2 * 8 * 15 * 32, ENDS + 5 * KEYS)),
    (
        call(SDPA, *GQA),
        work(2 * 8 * 35 * 32, ENDS + 9 * KEYS, 4 * KEYS, flops_high=2 * 8 * 5 * 9 * 32, notes=UNKNOWN),
    ),
    # Keys expanded to 8 heads (stride 0) are one in memory; a bias is read once however it is broadcast.
    (
        call(
            "aten::_scaled_dot_product_efficient_attention",
            "fp16 1x8x5x16",
            tensor("fp16 1x8x9x16", 144, 0, 16, 1),
            tensor("fp16 1x8x9x16", 144, 0, 16, 1),
            tensor("fp16 1x8x5x9", 45, 0, 9, 1),
            False,
            0.0,
            False,
        ),
        work(2 * 8 * 5 * 9 * 32, ENDS + 9 * KEYS // 2 + 45 * 2, 4 * KEYS // 2, math="fp16"),
    ),
    (
        call(
            "aten::_scaled_dot_product_flash_attention_backward",
            "bf16 1x8x5x16",
            *GQA,
            "bf16 1x8x5x16",
            *[None] * 6,
            False,
        ),
        work(2 * 8 * 5 * 9 * 5 * 16, 2 * ENDS + 2 * 9 * KEYS, notes=("backward",)),
    ),
    # [batch, tokens, heads, width], and all sequences in one row.
    (
        call(
            "aten::_flash_attention_forward", *["bf16 16x559x16x64"] * 3, None, None, 559, 559, 0.0, True, False, 0.125
        ),
        work(2 * 16 * 16 * (559 * 560 // 2) * 128, 4 * 16 * 559 * 16 * 64 * 2),
    ),
    (
        call("aten::_flash_attention_forward", *["bf16 10x4x8"] * 3, "int32 4", "int32 4", 6, 6, 0.0, True, False),
        work(2 * 4 * 22 * 16, 4 * 10 * 32 * 2, flops_high=2 * 4 * 31 * 16),
    ),
    (
        call("aten::_efficient_attention_forward", *["bf16 1x10x4x8"] * 3, None, "int32 4", "int32 4", 6, 6, 0.0, 0),
        work(2 * 4 * 34 * 16, 4 * 10 * 32 * 2, flops_high=2 * 4 * 52 * 16),
    ),
    (
        call("aten::_efficient_attention_forward", *["bf16 2x10x4x8"] * 3, *[None] * 5, 0.0, 2, False, None, None, 3),
        work(2 * 2 * 4 * 27 * 16, 4 * 2 * 10 * 32 * 2),  # the last 3: 1 + 2 + 8 x 3
    ),
    # FlashAttention: a window on dense tensors, 1 + 2 + 3 x 6.
    (
        call("flash_attn::_flash_attn_forward", *["bf16 1x8x2x4"] * 3, 0.0, 0.5, True, 2, 0, 0.0, None, False),
        work(2 * 2 * 21 * 8, 4 * 8 * 8 * 2),
    ),
    (call("flash_attn::_flash_attn_forward"), None),
]


@pytest.mark.parametrize(("one", "expected"), CALLS)
def test_calls_whose_shapes_say_it(one: OpCall, expected: Work | None) -> None:
    assert without_load(work_of(one)) == expected


# ---- PyTorch's own count ---------------------------------------------------------------------------------------------

DENSE = {"query": "1x8x5x16", "key": "1x2x9x16", "value": "1x2x9x16", "is_causal": False}
NESTED = {"query": "10x4x8", "key": "10x4x8", "value": "10x4x8", "max_q": 5, "max_k": 5, "is_causal": False}
GRADIENTS = {**DENSE, "grad_out": "1x8x5x16", "grad_out_": "1x8x5x16", "out": "1x8x5x16"}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("_scaled_dot_product_flash_attention", DENSE),
        ("_scaled_dot_product_efficient_attention", DENSE),
        ("_scaled_dot_product_cudnn_attention", DENSE),
        ("_scaled_dot_product_flash_attention_backward", GRADIENTS),
        ("_scaled_dot_product_efficient_attention_backward", GRADIENTS),
        ("_scaled_dot_product_cudnn_attention_backward", GRADIENTS),
        ("_flash_attention_forward", NESTED),
    ],
)
def test_pytorch_counts_the_same_operations(name: str, given: dict[str, str | int]) -> None:
    """By the names of its schemas, so that places are tested too. Its formulas do not look at masks."""
    torch = pytest.importorskip("torch")
    counter = pytest.importorskip("torch.utils.flop_counter")
    op = getattr(torch.ops.aten, name)
    theirs: list[object] = []
    ours: list[Argument] = []
    for argument in op.default._schema.arguments:
        value = given.get(argument.name)
        if argument.name.startswith("cum_seq"):
            theirs.append(torch.tensor([0, 5, 10]) if given is NESTED else None)
            ours.append("int32 3" if given is NESTED else None)
        elif isinstance(value, str):
            theirs.append(torch.empty([int(size) for size in value.split("x")], device="meta"))
            ours.append(f"bf16 {value}")
        else:
            theirs.append(value)
            ours.append(value)
    found = work_of(call(f"aten::{name}", *ours))
    assert found is not None
    assert found.flops == counter.flop_registry[op](*theirs, out_val=theirs[0])


def test_the_mask_of_pytorch_begins_at_the_left() -> None:
    """So that a query sees fewer keys than in an engine, where queries are the last of the keys."""
    torch = pytest.importorskip("torch")
    query, key, value = (torch.ones(1, 2, tokens, 8) for tokens in (5, 9, 9))
    value[:, :, 5:] = 7.0  # what no query sees
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    assert [one.name for one in op.default._schema.arguments[3:6]] == ["dropout_p", "is_causal", "attn_mask"]
    assert op(query, key, value, 0.0, True)[0].max().item() == pytest.approx(1.0)
    one = call("aten::_scaled_dot_product_flash_attention_for_cpu", "fp32 1x2x5x8", *["fp32 1x2x9x8"] * 2, 0.0, True)
    assert work_of(one) == work(2 * 2 * 15 * 16, 4 * (2 * 2 * 5 * 8 + 2 * 2 * 5 * 8), math="fp32")
