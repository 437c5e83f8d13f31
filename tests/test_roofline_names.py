"""What kernel groups are called: by their work, then by what tells them apart; and how sure their figures are."""

from __future__ import annotations

import pytest

from tests.roofline_rows import Row, group
from tracekit.roofline_names import (
    Product,
    kernel_name,
    mark,
    mark_of_both,
    mark_of_roof,
    product_of,
    titles,
    work_name,
)


@pytest.mark.parametrize(
    "op, shapes, product",
    [
        (None, None, None),
        ("aten::mm", "", None),
        ("aten::mm", "[[8, 4096], [4096, 28672]]", Product(1, 8, 4096, 28672)),
        ("aten::addmm", "[[640], [888, 2880], [2880, 640], [], []]", Product(1, 888, 2880, 640)),
        ("aten::bmm", "[[64, 512, 128], [64, 128, 32]]", Product(64, 512, 128, 32)),
        ("aten::baddbmm", "[[64, 512, 32], [64, 512, 128], [64, 128, 32]]", Product(64, 512, 128, 32)),
        ("aten::linear", "[[2, 7, 4096], [1024, 4096], [1024]]", Product(1, 14, 4096, 1024)),
        ("aten::matmul", "[[2, 3, 7, 8], [8, 5]]", Product(1, 42, 8, 5)),
        ("aten::mv", "[[5, 8], [8]]", Product(1, 5, 8, 1)),
        ("aten::linear", "[[7, 8], [8]]", Product(1, 7, 8, 1)),
        ("aten::bmm", "[[0, 5, 8], [0, 8, 3]]", Product(0, 0, 8, 3)),
        ("aten::mm", "[[8, 4096], [4095, 28672]]", None),
        ("aten::mm", "[[8, 4096]]", None),
        ("aten::mm", "[[8, 4096], []]", None),
        ("aten::mm", '[[8, 4096], [[4096, 1]], "x"]', None),
        ("aten::mm", "{}", None),
        ("aten::mm", "[[8, 40", None),
        ("aten::mm", "[" * 100_000, None),
        ("aten::add", "[[8, 8], [8, 8]]", None),
    ],
)
def test_products(op: str | None, shapes: str | None, product: Product | None) -> None:
    assert product_of(op, shapes) == product


@pytest.mark.parametrize(
    "kernel, name",
    [
        ("", ""),
        ("void ns::gemm<int>(int)", "gemm"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD"),
        ("Memset (Device)", "Memset"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32_MI16x16x1_SN_LDSB1", "Cijk_Alik_Bljk MT128x256x32"),
        ("_ZN7ck_tile6kentryILi2ENS_13FmhaFwdKernelINS_40BlockFmhaEEEv", "FmhaFwdKernel"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bLi64EEEv", "add_rmsnorm_quant_kernel"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm>(P)", "cutlass_80_tensorop_s16816gemm"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<int> > >(P)", "FlashAttnFwdSm90"),
        ("void f::Kernel<1, 2>(int)", "Kernel"),
        ("kernel_cutlass_kernel_norms_FusedAdd_object_at__tensorptrbf16", "norms_FusedAdd"),
        (
            "void at::native::elementwise_kernel<128, 4, at::native::BinaryFunctor<float, MulFunctor<float> > >(int)",
            "elementwise_kernel (Mul)",
        ),
        ("void at::native::vectorized_elementwise_kernel<4, int>(int)", "vectorized_elementwise_kernel"),
        ("x" * 100, "x" * 57 + "..."),
    ],
)
def test_kernels(kernel: str, name: str) -> None:
    assert kernel_name(kernel) == name


@pytest.mark.parametrize(
    "said, name",
    [
        ({}, "k"),
        ({"op": "qkv"}, "qkv"),
        ({"op": "aten::mm", "shapes": "[[8, 64], [64, 32]]"}, "mm 8x64x32"),
        ({"op": "aten::bmm", "shapes": "[[3, 8, 64], [3, 64, 32]]"}, "bmm 3 of 8x64x32"),
        ({"op": "aten::silu", "shapes": "[[], [16, 559], [1]]"}, "silu 16x559"),
        ({"op": "aten::cat", "shapes": "[[[4, 5], [4, 6]], []]"}, "cat 2 of 4x5"),
        ({"op": "aten::add", "shapes": "nonsense"}, "add"),
        ({"op": "Torch-Compiled Region: 0/0"}, "k"),
        ({"op": "aten::copy_", "category": "memory", "kernel": "Memcpy DtoD (Device -> Device)"}, "Memcpy DtoD"),
    ],
)
def test_work(said: Row, name: str) -> None:
    assert work_name(group(**said)) == name


def test_no_two_have_one_name() -> None:
    """Each with the least that tells it from the others."""
    mm = {"op": "aten::mm", "shapes": "[[8, 64], [64, 32]]"}
    add = {"op": "aten::add", "shapes": "[[8, 64], [1]]"}
    rows = [
        group(**mm),
        group(**mm, kernel="other"),
        group(**add),
        group(**{**add, "shapes": "[[8, 64], [8, 64]]"}),
        group(op="aten::exp", dtypes='["c10::BFloat16", "Scalar"]'),
        group(op="aten::exp", dtypes='["float"]'),
        group(op="norm", how="model config, by position"),
        group(op="norm", how="capture trace, in order"),
        group(kernel="ns::run<first_body, 1>(int)"),
        group(kernel="ns::run<second_body, 1>(int)"),
        group(op="qkv"),
        group(op="qkv"),
        group(op="gate"),
    ]
    assert titles(rows) == [
        "mm 8x64x32, k",
        "mm 8x64x32, other",
        "add 8x64, 1",
        "add 8x64",
        "exp, BFloat16",
        "exp, float",
        "norm, by model config, by position",
        "norm, by capture trace, in order",
        "run, first_body",
        "run, second_body",
        "qkv",
        "qkv #2",
        "gate",
    ]
    assert titles([]) == []


@pytest.mark.parametrize(
    "said, sign",
    [
        ({}, ""),
        ({"bytes": 100.0}, ""),
        ({"bytes": 100.0, "bytes_low": 96.0, "bytes_high": 104.0}, ""),
        ({"bytes": 100.0, "bytes_low": 90.0, "bytes_high": 104.0}, "~"),
        ({"bytes": 100.0, "bytes_low": 50.0, "bytes_high": 200.0}, "~"),
        ({"bytes": 100.0, "bytes_low": 100.0, "bytes_high": 200.0}, ">="),
        ({"bytes": 100.0, "notes": "a, key lengths not recorded: taken as if nothing was cached"}, ">="),
        ({"bytes": 0.0, "bytes_low": 0.0, "bytes_high": 200.0}, ""),
    ],
)
def test_how_sure(said: Row, sign: str) -> None:
    assert mark(group(**said), "bytes") == sign
    assert mark_of_both(group(**said)) == ("~" if sign else "")


def test_the_larger_side_makes_the_roof() -> None:
    said = {"bytes": 9.0, "bytes_low": 1.0, "flops": 9.0, "flops_low": 9.0, "flops_high": 90.0, "compute_ns": 5.0}
    assert [mark_of_roof(group(**said, memory_ns=ns)) for ns in (4.0, 6.0, None)] == [">=", "~", ">="]
