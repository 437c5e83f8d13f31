"""Work of ops that compute each element by itself, of norms, reductions, indexing and generated kernels, by hand."""

from __future__ import annotations

import pytest

from tests.op_calls import call, tensor
from tracekit.op_call import OpCall
from tracekit.work import Work, work_of
from tracekit.work_index import join, join_by_kernel
from tracekit.work_sizes import broadcast, promoted

N = 16 * 559 * 1024
UNKNOWN = ("dimensions not recorded",)
DISTINCT = ("indices taken as distinct",)


def gathered(family: str, least: int, most: int) -> Work:
    """Of indices that all name one row, or each another, as is expected."""
    return Work(family, 0, least, bytes_high=most, notes=DISTINCT, bytes_expected=most)


POINTWISE: list[tuple[OpCall, Work]] = [
    (call("aten::add", "bf16 16x559x1024", "bf16 16x559x1024", 1), Work("elementwise", N, 3 * 2 * N, "fp32")),
    # A broadcast operand as stored: of size 1, of stride 0, a row, a number.
    (
        call("aten::mul", "fp32 16x559x1024", "fp32 16x559x1"),
        Work("elementwise", N, 4 * (2 * N + 16 * 559), "fp32"),
    ),
    (
        call("aten::mul", "fp32 4x6", tensor("fp32 4x6", 1, 0)),
        Work("elementwise", 24, 4 * (24 + 4 + 24), "fp32"),
    ),
    (call("aten::mul", "bf16 6", "fp32 4x6"), Work("elementwise", 24, 2 * 6 + 2 * 4 * 24, "fp32")),
    (call("aten::mul", "bf16 4x6", "fp64"), Work("elementwise", 24, 2 * 2 * 24, "fp32")),
    (call("aten::pow", "fp32 4x6", 2), Work("elementwise", 24, 2 * 4 * 24, "fp32")),
    # In place: what is updated is read and written, at its own type.
    (call("aten::add_", "fp64 4", "fp32 4", 1), Work("elementwise", 4, 8 * 4 + 4 * 4 + 8 * 4, "fp64")),
    (call("aten::masked_fill_", "bf16 888x2880", "bool 888x1", 0), Work("elementwise", 0, 2 * 2 * 888 * 2880 + 888)),
    # Integers: bytes, no operations; a division or a root of them is fp32, a comparison bool.
    (call("aten::add", "int64 16", "int64", 1), Work("elementwise", 0, 2 * 8 * 16)),
    (call("aten::div", "int64 5", "int64"), Work("elementwise", 5, 8 * 5 + 4 * 5, "fp32")),
    (call("aten::sqrt", "int32 5"), Work("elementwise", 5, 4 * 5 + 4 * 5, "fp32")),
    (call("aten::mul", "int64 5", "fp64"), Work("elementwise", 5, 8 * 5 + 4 * 5, "fp32")),
    (call("aten::eq", "int64 16x559", 1), Work("elementwise", 0, 9 * 16 * 559)),
    (call("aten::gt", "fp32 24", 0), Work("elementwise", 24, 4 * 24 + 24, "fp32")),
    # An out tensor is recorded as it was before: empty. Its type counts.
    (call("aten::abs", "fp64 1x4096", "fp64 0"), Work("elementwise", 4096, 2 * 8 * 4096, "fp64")),
    (call("aten::add", "bf16 4", "bf16 4", 1, "fp32 4"), Work("elementwise", 4, 2 * 4 + 2 * 4 + 4 * 4, "fp32")),
    (call("aten::where", "bool 4x1", "bf16 4x6", 0.5), Work("elementwise", 0, 4 + 2 * 24 + 2 * 24)),
    (call("aten::clamp", "fp32 24", 0, 1), Work("elementwise", 2 * 24, 2 * 4 * 24, "fp32")),
    (call("aten::lerp", "fp32 24", "fp32 24", 0.5), Work("elementwise", 3 * 24, 3 * 4 * 24, "fp32")),
    (call("aten::fill_", "bf16 888x3072", 0.0), Work("elementwise", 0, 2 * 888 * 3072)),
    (call("aten::silu", "bf16 24"), Work("activation", 4 * 24, 2 * 2 * 24, "fp32")),
    (call("aten::silu_", "bf16 24"), Work("activation", 4 * 24, 2 * 2 * 24, "fp32")),
    (call("aten::threshold_backward", "fp32 24", "fp32 24", 0), Work("activation", 24, 3 * 4 * 24, "fp32")),
    (call("aten::copy_", "bf16 24", "fp32 24", False), Work("copy", 0, 2 * 24 + 4 * 24)),
    (call("aten::copy_", "int64 4x6", tensor("int64 4x6", 0, 1), False), Work("copy", 0, 8 * (24 + 6))),
    (call("aten::clone", "bf16 24", None), Work("copy", 0, 2 * 2 * 24)),
    (call("aten::_to_copy", "fp32 24", 15), Work("copy", 0, 4 * 24 + 2 * 24)),
    (call("aten::repeat", "fp32 4x6", (2, 3)), Work("copy", 0, 4 * (24 + 6 * 24))),
    (call("aten::upsample_nearest2d", "bf16 1x512x64x64", (128, 128)), Work("elementwise", 0, 2 * 512 * 5 * 64 * 64)),
    (call("aten::glu", "fp32 4x6", -1), Work("activation", 4 * 12, 4 * (24 + 12), "fp32")),
    (call("aten::native_dropout", "fp32 24", 0.5, True), Work("elementwise", 24, 4 * 24 + 4 * 24 + 24, "fp32")),
    (
        call("sgl_kernel::silu_and_mul", "bf16 15360x12288", "bf16 15360x24576"),
        Work("activation", 5 * 15360 * 12288, 3 * 2 * 15360 * 12288, "fp32"),
    ),
    (
        call("_C::silu_and_mul_quant", "fp8_e4m3 8x16", "bf16 8x32", "fp32 1"),
        Work("activation", 6 * 128, 128 + 2 * 256 + 4, "fp32"),
    ),
]

NORMS: list[tuple[OpCall, Work]] = [
    # mean and 1/deviation of each row in fp32
    (
        call("aten::native_layer_norm", "bf16 4x6", (6,), "bf16 6", "bf16 6", 1e-5),
        Work("norm", 7 * 24, 2 * (24 + 6 + 6 + 24) + 2 * 4 * 4, "fp32"),
    ),
    (
        call("aten::native_layer_norm", "fp32 4x6", None, "fp32 6", "fp32 6", None),
        Work("norm", 7 * 24, 4 * (24 + 6 + 6 + 24) + 2 * 4 * 4, "fp32"),
    ),
    (
        call("aten::_fused_rms_norm", "bf16 4x6", (6,), "bf16 6", None),
        Work("norm", 4 * 24, 2 * (24 + 6 + 24) + 4 * 4, "fp32"),
    ),
    (
        call("aten::native_group_norm", "fp32 2x4x3", "fp32 4", None, 2, 4, 3, 2, 1e-5),
        Work("norm", 7 * 24, 4 * (24 + 4 + 24), "fp32"),
    ),
    (
        call("aten::native_batch_norm", "fp32 2x4x3", "fp32 4", "fp32 4", "fp32 4", "fp32 4", False, 0.1, 1e-5),
        Work("norm", 4 * 24, 4 * (24 + 4 * 4 + 24), "fp32"),
    ),
    (
        call("_C::rms_norm", "bf16 888x2880", "bf16 888x2880", "bf16 2880", 1e-5),
        Work("norm", 4 * 888 * 2880, 2 * (2 * 888 * 2880 + 2880), "fp32"),
    ),
    # In place: input and residual are read and written.
    (
        call("_C::fused_add_rms_norm", "bf16 888x2880", "bf16 888x2880", "bf16 2880", 1e-5),
        Work("norm", 5 * 888 * 2880, 2 * (4 * 888 * 2880 + 2880), "fp32"),
    ),
    # Both have places of their own: out, input, residual in, residual out, weight.
    (
        call("aiter::add_rmsnorm", *["bf16 15360x4096"] * 4, "bf16 4096", 1e-6),
        Work("norm", 5 * 15360 * 4096, 2 * (4 * 15360 * 4096 + 4096), "fp32"),
    ),
    (
        call("_C::fused_add_rms_norm_static_fp8_quant", "fp8_e4m3 8x16", *["bf16 8x16"] * 2, "bf16 16", "fp32 1", 1e-5),
        Work("norm", 6 * 128, 128 + 2 * 128 + 2 * 2 * 128 + 2 * 16 + 4, "fp32"),
    ),
    (
        call(
            "_C::rms_norm_dynamic_per_token_quant",
            *("fp8_e4m3 8x16", "bf16 8x16", "bf16 16", "fp32 8x1", 1e-5, None, "bf16 8x16"),
        ),
        Work("norm", 7 * 128, 128 + 2 * 128 + 2 * 16 + 4 * 8 + 2 * 2 * 128, "fp32"),
    ),
    (call("aten::_softmax", "bf16 4x6", -1, True), Work("softmax", 5 * 24, 2 * 24 + 4 * 24, "fp32")),
    (call("aten::_log_softmax", "fp32 4x6", -1, False), Work("softmax", 5 * 24, 2 * 4 * 24, "fp32")),
    # Of 128 dimensions a head has, 64 are rotated: half of q and k, at least one row of the table, at most one a token.
    (
        call("_C::rotary_embedding", "int64 10", "bf16 10x512", "bf16 10x128", 128, "bf16 4096x64", True),
        Work(
            "rope",
            3 * 10 * 640 // 2,
            2 * 2 * 10 * 640 // 2 + 8 * 10 + 2 * 64,
            "fp32",
            bytes_high=2 * 2 * 10 * 640 // 2 + 8 * 10 + 10 * 2 * 64,
        ),
    ),
    (
        call(
            "_C::fused_qk_norm_rope", "bf16 10x768", 4, 1, 1, 128, 1e-6, "bf16 128", "bf16 128", "bf16 4096x128", True
        ),
        Work("rope", 7 * 10 * 640, 2 * 2 * 10 * 640 + 2 * 2 * 128, "fp32"),
    ),
]

REDUCTIONS: list[tuple[OpCall, Work]] = [
    (call("aten::sum", "fp32 4x6", None), Work("reduction", 24, 4 * (24 + 1), "fp32")),
    (call("aten::sum", "fp32 4x6", (0,), False, None), Work("reduction", 24, 4 * (24 + 6), "fp32")),
    (call("aten::sum", "fp32 4x6", (-1, 0), True, 7), Work("reduction", 24, 4 * 24 + 8, "fp32")),
    (call("aten::sum", "int32 4x6", "[]", False, None), Work("reduction", 0, 4 * 24 + 8)),
    (call("aten::sum", "fp32 4x6", (-1,), False, 6, "fp32 4"), Work("reduction", 24, 4 * (24 + 4), "fp32")),
    (call("aten::mean", "bf16 4x6", (-1,), True, None), Work("reduction", 24, 2 * (24 + 4), "fp32")),
    # Dimensions that were not recorded leave anything from one element to all.
    (
        call("aten::sum", "fp32 4x6", None, None, None),
        Work("reduction", 24, 4 * (24 + 1), "fp32", bytes_high=4 * (24 + 24), notes=UNKNOWN),
    ),
    (call("aten::argmax", "fp32 16x128256", -1, False), Work("reduction", 16 * 128256, 4 * 16 * 128256 + 128, "fp32")),
    (call("aten::argmax", "fp32 4x6", None, False), Work("reduction", 24, 4 * 24 + 8, "fp32")),
    (call("aten::max", "fp32 4x6"), Work("reduction", 24, 4 * 25, "fp32")),
    (call("aten::max", "fp32 4x6", 1, False), Work("reduction", 24, 4 * 24 + 12 * 4, "fp32")),
    (call("aten::max", "fp32 4x6", "fp32 6"), Work("elementwise", 24, 4 * (24 + 6 + 24), "fp32")),
    (call("aten::var", "fp32 4x6", (1,), 1, False), Work("reduction", 4 * 24, 4 * (24 + 4), "fp32")),
    (call("aten::linalg_vector_norm", "fp32 4x6", 2, (1,), False, None), Work("reduction", 48, 4 * 28, "fp32")),
    (call("aten::all", "bool 4x6", 1, False), Work("reduction", 0, 24 + 4)),
    (call("aten::cumsum", "int32 16", 0, 3), Work("reduction", 0, 2 * 4 * 16)),
    (call("aten::cumsum", "int32 16", 0, None), Work("reduction", 0, 4 * 16 + 8 * 16)),
    (call("aten::topk", "fp32 4x6", 2, -1, True, True), Work("reduction", 0, 4 * 24 + 12 * 8)),
    (call("aten::sort", "fp32 4x6", -1, False), Work("reduction", 0, 4 * 24 + 12 * 24, notes=("one pass of several",))),
    (call("aten::exponential_", "fp32 24", 1.0, None), Work("random", 0, 4 * 24)),
    (
        call("sgl_kernel::top_p_renorm_probs", "fp32 4x6", "fp32 4x6", None, 0.9),
        Work("sampling", 0, 2 * 4 * 24, notes=("one pass of several",)),
    ),
    (
        call("flashinfer::sampling_from_probs", "fp32 4x6", None, True),
        Work("sampling", 0, 4 * 24 + 4 * 4, notes=("one pass of several",)),
    ),
    (
        call("_C::apply_repetition_penalties_", "fp32 4x6", "bool 4x6", "bool 4x6", "fp32 4"),
        Work("sampling", 24, 2 * 4 * 24 + 2 * 24 + 4 * 4, "fp32"),
    ),
    (call("aten::multinomial", "fp32 4x6", 2, False), Work("sampling", 0, 4 * 24 + 8 * 8)),
]

INDEXING: list[tuple[OpCall, Work]] = [
    (
        call("aten::embedding", "bf16 1000x64", "int64 10", -1),
        gathered("embedding", 8 * 10 + 2 * 640, 8 * 10 + 2 * 2 * 640),
    ),
    # The table is smaller than what is gathered from it.
    (
        call("aten::index_select", "bf16 3x64", 0, "int64 10"),
        gathered("index", 8 * 10 + 2 * 640, 8 * 10 + 2 * (640 + 192)),
    ),
    (
        call("aten::gather", "bf16 1000x64", 0, tensor("int64 10x64", 1, 0), False),
        gathered("index", 8 * 10 + 2 * 640, 8 * 10 + 2 * 2 * 640),
    ),
    # Strides not recorded: the index may be broadcast or not.
    (
        call("aten::gather", "bf16 1000x64", 0, "int64 10x64", False),
        gathered("index", 8 * 10 + 2 * 640, 8 * 640 + 2 * 2 * 640),
    ),
    (call("aten::scatter_", "fp32 4x6", 0, "int64 1x6", "fp32 4x6"), Work("index", 0, 8 * 6 + 2 * 24, notes=DISTINCT)),
    (
        call("aten::scatter", "fp32 4x6", 0, "int64 1x6", 1.0),
        Work("index", 0, 8 * 6 + 4 * (2 * 24 - 6), notes=DISTINCT),
    ),
    (
        call("aten::index_add_", "fp32 4x6", 0, "int64 2", "fp32 2x6", 1),
        Work("index", 0, 8 * 2 + 3 * 4 * 12, notes=DISTINCT),
    ),
    (
        call("aten::_index_put_impl_", "int32 4097x131076", None, "int32 16", False, False),
        Work("index", 0, 2 * 4 * 16, notes=("indices not recorded",)),
    ),
    (call("aten::slice_scatter", "fp32 4x6", "fp32 1x6", 0), Work("index", 0, 4 * (18 + 6 + 24))),
    (call("aten::arange", 0, 559, 1, "int64 0"), Work("elementwise", 0, 8 * 559)),
    (call("aten::arange", 0, 1, 0.3, "fp32 0"), Work("elementwise", 0, 4 * 4)),
    (
        call("aten::cat", (tensor(" 4x6"), tensor(" 2x6")), 0, "bf16 6x6"),
        Work("index", 0, 2 * 2 * 36),
    ),
    # The cache is of fp8 and has far more slots than are written.
    (
        call(
            "_C_cache_ops::reshape_and_cache_flash",
            *("bf16 888x1x64", "bf16 888x1x64", "uint8 4213816x16x1x64", "uint8 4213816x16x1x64", "int64 888"),
            *(None, "fp32", "fp32"),
        ),
        Work("kv_cache", 0, 8 * 888 + 2 * 3 * 888 * 64, notes=("no slot taken as padding",)),
    ),
    # Four tokens of padding have no slot.
    (
        call("sglang::store_cache", "bf16 12x128", "bf16 12x128", "bf16 99x128", "bf16 99x128", "int64 8", 256, 0),
        Work("kv_cache", 0, 8 * 8 + 4 * 2 * 8 * 128, notes=("no slot taken as padding",)),
    ),
    (
        call("vllm::unified_kv_cache_update", "bf16 8x2x64", "bf16 8x2x64", "model.layers.0.self_attn.attn"),
        Work(
            "kv_cache",
            0,
            (2 + 1) * 2 * 8 * 2 * 64,
            bytes_high=(2 + 2) * 2 * 8 * 2 * 64,
            notes=("no slot taken as padding", "cache type not recorded"),
            bytes_expected=(2 + 2) * 2 * 8 * 2 * 64,
        ),
    ),
    (
        call("vllm::unified_mla_kv_cache_update", "bf16 8x512", "bf16 8x1x64", "layer", "fp8_ds_mla", "fp32"),
        Work("kv_cache", 0, (2 + 1) * 8 * (512 + 64), notes=("no slot taken as padding",)),
    ),
    (
        call("_C_cache_ops::concat_and_cache_mla", "bf16 8x512", "bf16 8x64", "bf16 9x16x576", "int64 8", None, "fp32"),
        Work("kv_cache", 0, 8 * 8 + 2 * 2 * 8 * 576, notes=("no slot taken as padding",)),
    ),
]


@pytest.mark.parametrize(
    ("given", "expected"),
    POINTWISE + NORMS + REDUCTIONS + INDEXING,
    ids=lambda one: one.name if isinstance(one, OpCall) else "",
)
def test_work(given: OpCall, expected: Work) -> None:
    assert work_of(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        call("aten::add", "bf16 4x6", "bf16 5x6"),
        call("aten::add", tensor(" 4x6"), tensor(" 4x6")),
        call("aten::copy_", "bf16 4x6"),
        call("aten::cat", (tensor(" 4x6"), tensor(" 4x6")), 0),  # lists have no types
        call("aten::index", "bf16 4x6", None),  # nor do indices have sizes
        call("aten::arange", 0, 5, 0, "int64 0"),
        call("aten::topk", "fp32 4x6", 7),
        call("_C_cache_ops::reshape_and_cache_flash", "bf16 8x64", "bf16 8x64"),
        call("vllm::unified_kv_cache_update", "bf16 8x2x64", "bf16 9x2x64", "layer"),
    ],
)
def test_no_answer(given: OpCall) -> None:
    assert work_of(given) is None


def test_join_of_elements_whose_size_the_kernel_tells() -> None:
    parts = (tensor(" 16x16x559x32"), tensor(" 16x16x559x32"))
    assert join(call("aten::cat", parts, -1), 2) == Work("index", 0, 2 * 2 * 2 * 16 * 16 * 559 * 32)
    kernels = {
        "at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>>": 2,
        "at::native::<unnamed>::CatArrayBatchedCopy_vectorized<at::native::<unnamed>::OpaqueType<(unsigned int)4>>": 4,
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)": 4,
        "CatArrayBatchedCopy<c10::BFloat16, unsigned int>": 2,
    }
    for kernel, size in kernels.items():
        assert join_by_kernel(call("aten::cat", parts, -1), kernel) == join(call("aten::cat", parts, -1), size)
    assert join_by_kernel(call("aten::cat", parts, -1), "elementwise_kernel<128>") is None
    assert join_by_kernel(call("aten::add", "bf16 4", "bf16 4"), "OpaqueType<2u>") is None
    cut = join(call("aten::cat", (tensor(" 2"),) * 30), 4)
    assert cut == Work("index", 0, 2 * 60 * 4, notes=("at least: the list is cut short",))
    assert join(call("aten::cat", ()), 2) is None


FUSED = "fused: operations not recorded"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (call("triton_poi_fused_add_0"), None),
        (call("triton_tem_fused_mm_0", "bf16 4"), None),
        (
            call("triton_poi_fused_add_0", "int32 888", "int64 888", "bool 888", 0, 25136, 201088, 201088, 0, 888),
            Work("elementwise", 0, (4 + 8 + 1) * 888, notes=(FUSED,)),
        ),
        # Of a table of a million rows no more is read than the loop has elements.
        (
            call("triton_poi_fused_embedding_1", "int64 8", "bf16 1000000x64", "bf16 8x64", 512),
            Work("elementwise", 512, 8 * 8 + 2 * 2 * 512, "fp32", notes=(FUSED,)),
        ),
        (
            call("triton_red_fused_mean_2", "fp32 16x64", "fp32 16", 16, 64),
            Work("reduction", 1024, 4 * (1024 + 16), "fp32", notes=(FUSED,)),
        ),
        (
            call("triton_per_fused_sum_3", "fp32 16x64", "fp32 16", 7, 9),
            Work("reduction", 1024, 4 * (1024 + 16), "fp32", notes=(FUSED, "loop sizes not understood")),
        ),
    ],
)
def test_generated_kernels(given: OpCall, expected: Work | None) -> None:
    assert work_of(given) == expected


def test_broadcast_and_promotion() -> None:
    assert broadcast([]) == ()
    assert broadcast([(2, 1, 4), (3, 1), (1,)]) == (2, 3, 4)
    assert broadcast([(2,), (3,)]) is None
    assert promoted([]) == ""
    assert promoted([tensor("fp16 2"), tensor("bf16 2")]) == "fp32"
    assert promoted([tensor("int8 2"), tensor("int32 2")]) == "int32"
    assert promoted([tensor("bool 2"), True]) == "bool"
    assert promoted([tensor("bf16"), tensor("fp32")]) == "fp32"
    assert promoted([tensor("int32 2"), 1.5]) == "fp32"
