"""The catalogue: that it is read right, what is no catalogue, and that it knows the names of real kernels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tracekit.classify import classify_kernel, words
from tracekit.errors import RulesError
from tracekit.fusion_patterns import ENGINES, Pattern, Piece, Work, catalogue, read_catalogue

ELEMENT = '[element.rope]\ncategory = "rope"\n'
PATTERN = '[[pattern]]\nname = "p"\ntitle = "t"\nremoves = "r"\nprice = "p"\n'


def read(folder: Path, text: str) -> Pattern:
    (folder / "mine.toml").write_text(text)
    return read_catalogue(folder / "mine.toml").patterns[0]


def work(name: str, op: str = "") -> Work:
    return Work(words(name), words(op) if op else "", *classify_kernel(name, op or None))


def test_a_pattern_is_read_whole(tmp_path: Path) -> None:
    written = (
        f'{ELEMENT}[element.kv]\ncategory = ["kv_cache/write"]\nname = "_store_"\nop = "_cache_"\nnot = "_x_"\n'
        f'{PATTERN}unfused = ["rope! kv? ( rope | ~kv )+"]\nfused = ["_both_"]\nfused_ops = ["_ops_"]\nsure = false\n'
        '[pattern.switch]\nvllm = "this"\n'
    )
    assert read(tmp_path, written) == Pattern(
        name="p",
        title="t",
        sequences=(
            (
                Piece("rope", "", kept=True),
                Piece("kv", "?"),
                Piece(mark="(?:"),
                Piece("rope"),
                Piece(mark="|"),
                Piece("kv", passed=True),
                Piece(mark=")+"),
            ),
        ),
        fused=(re.compile("_both_"),),
        fused_ops=(re.compile("_ops_"),),
        removes="r",
        price="p",
        switches={"vllm": "this"},
        sure=False,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "holds [element.NAME] and [[pattern]] tables and nothing else"),
        ("[[pattern", "not a TOML file"),
        ('[element.x]\nname = "_y_"', "element x: category is missing"),
        ('[element.x]\ncategory = "ropes"', "element x: unknown category 'ropes'; known are attention, "),
        ('[element.x]\ncategory = "rope"\nnam = ""', "element x: unknown key 'nam'; known are category, name, not, op"),
        ('[element.x]\ncategory = "rope"\nname = "("', "element x: '(' is not a regular expression"),
        ("[[pattern]]\nname = 'p'", "pattern 1: title is missing"),
        (f"{PATTERN}fuse = []", "pattern 1: unknown key 'fuse'"),
        (f"{PATTERN}sure = 1", "pattern 1 (p): sure must be true or false"),
        (f"{PATTERN}fused = [1]", "pattern 1 (p): fused must be a string"),
        (f'{PATTERN}unfused = ["rope"]', "pattern 1 (p): no element is called 'rope'; there are "),
        (f'{ELEMENT}{PATTERN}unfused = ["rope!!"]', "pattern 1 (p): 'rope!!' of 'rope!!' is neither an element"),
        (f'{ELEMENT}{PATTERN}unfused = ["( rope"]', "is not a regular expression"),
        (f'{PATTERN}[pattern.switch]\nllama = "x"', "pattern 1 (p): unknown key 'llama'; known are sglang, "),
        (PATTERN + PATTERN, "two patterns are called p"),
    ],
)
def test_what_is_no_catalogue(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RulesError, match=re.escape(message)):
        read(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RulesError, match="cannot be read: No such file"):
        read_catalogue(tmp_path / "none.toml")


def test_the_built_in_one_says_how_to_get_each() -> None:
    book = catalogue()
    assert len(book.elements) > 20
    for pattern in book.patterns:
        assert pattern.switches.keys() <= ENGINES.keys()
        assert pattern.switches or not pattern.fusible
        assert pattern.sequences or pattern.name == "pointwise_chain"
        used = {piece.element for sequence in pattern.sequences for piece in sequence if piece.element}
        assert used <= book.elements.keys()
    everywhere = {piece.element for one in book.patterns for sequence in one.sequences for piece in sequence}
    assert everywhere - {""} == set(book.elements)


@pytest.mark.parametrize(
    ("element", "name", "op"),
    [
        ("rope", "void (anonymous namespace)::fused_rope_kernel<true, 128l, true, __nv_bfloat16, long, 16u>(int)", ""),
        ("kv_write", "void (anonymous namespace)::store_kvcache<2048l, 4, true, long>(int)", ""),
        ("kv_write", "void flashinfer::AppendPagedKVCacheKernel<128, 8, __nv_bfloat16>(int)", ""),
        ("rms_norm", "kernel_cutlass_kernel_flashinfernormkernelsrmsnormRMSNormKernel_object_at_", ""),
        (
            "rms_norm",
            "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0ELb0ELb1ELi1EEEvPT0_",
            "aiter::rmsnorm",
        ),
        ("quant", "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(int)", ""),
        ("quant", "void per_token_group_quant_8bit_kernel<__nv_bfloat16, __nv_fp8_e4m3, true>(int)", ""),
        ("gated", "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu, true>(c10::BFloat16*)", ""),
        ("all_reduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ""),
        ("all_reduce", "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", ""),
        ("reduce_scatter", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ""),
        ("dequant", "void vllm::awq::dequantize_weights(int*, half*)", ""),
        ("merge", "void flashinfer::MergeStatesKernel<8u, __nv_bfloat16, __nv_bfloat16>(int)", ""),
        ("moe_order", "void vllm::moe::moe_align_block_size_kernel<int>(int*)", ""),
        ("mul", "triton_poi_fused_mul_0", "aten::mul"),
    ],
)
def test_elements_know_real_names(element: str, name: str, op: str) -> None:
    assert catalogue().elements[element].matches(work(name, op))


@pytest.mark.parametrize(
    ("element", "name", "op"),
    [
        ("norm", "void cudnn::bn_bw_1C11_kernel_new<float>(int)", ""),
        ("rms_norm", "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float>(int)", ""),
        ("all_reduce", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ""),
        ("gemm_dense", "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", ""),
    ],
)
def test_elements_leave_others(element: str, name: str, op: str) -> None:
    assert not catalogue().elements[element].matches(work(name, op))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("add_rms_norm", "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)"),
        ("add_rms_norm", "void flashinfer::norm::FusedAddRMSNormKernel<8, __nv_bfloat16>(__nv_bfloat16*)"),
        ("add_rms_norm", "_fused_add_rms_norm_forward_kernel"),
        ("rms_norm_eager", "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)"),
        ("rms_norm_eager", "_rms_norm_forward_kernel"),
        ("rms_norm_eager", "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0"),
        ("norm_quant", "void vllm::rms_norm_static_fp8_quant_kernel<c10::BFloat16, c10::Float8_e4m3fn>(int)"),
        ("norm_quant", "void vllm::rms_norm_dynamic_per_token_quant_kernel<c10::BFloat16>(int)"),
        ("norm_quant", "void vllm::rms_norm_per_block_quant_kernel<c10::BFloat16>(int)"),
        ("norm_quant", "void flashinfer::norm::FusedAddRMSNormQuantKernel<8, __nv_bfloat16>(int)"),
        ("silu_mul", "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu, true>(c10::BFloat16*)"),
        ("silu_mul", "_swiglu_forward_kernel"),
        ("act_quant", "void vllm::act_and_mul_quant_kernel<c10::Half>(c10::Float8_e4m3fn*)"),
        ("act_quant", "void vllm::silu_and_mul_per_block_quant_kernel<c10::BFloat16>(int)"),
        ("act_quant", "_silu_mul_fp8_quant_deep_gemm_kernel"),
        ("qk_norm_rope", "void tensorrt_llm::kernels::fusedQKNormRopeKernel<128, true>(void*)"),
        ("qk_norm_rope", "void (anonymous namespace)::fused_qk_norm_rope_store<128l, true>(int)"),
        ("rope_kv", "void (anonymous namespace)::fused_rope_store_kernel<true, 128l>(int)"),
        ("rope_kv", "void vllm::concat_and_cache_mla_rope_fused_kernel<__nv_bfloat16>(int)"),
        ("rope_kv", "void flashinfer::RopeQuantizeAppendPagedKVCacheKernel<128>(int)"),
        (
            "all_reduce_norm",
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<0>(int)",
        ),
        ("moe_finalize_all_reduce_norm", "void moe_finalize_allreduce_fusion_kernel_oneshot_lamport<0>(int)"),
        ("router", "void vllm::moe::topkGatingSoftmax<4, 8, 4, 16, 32, int>(float const*)"),
        ("dequant_gemm", "void marlin::Marlin<__nv_bfloat16, 8, 4>(int4 const*)"),
    ],
)
def test_fused_kernels_are_known(pattern: str, name: str) -> None:
    found = catalogue().pattern(pattern)
    assert found is not None
    assert found.is_fused(work(name))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("rope_kv", "void (anonymous namespace)::fused_rope_kernel<true, 128l, true>(int)"),
        ("rope_kv", "void (anonymous namespace)::store_kvcache<2048l, 4, true, long>(int)"),
        ("add_rms_norm", "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*)"),
        # What AITER calls its norm kernel, whatever it does.
        ("norm_quant", "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0ELb0ELb1ELi1EEEvPT0_"),
        ("act_quant", "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu, true>(c10::BFloat16*)"),
        ("rms_norm_eager", "at::native::rsqrt_kernel_cuda"),
        ("all_reduce_norm", "void multimem_all_reduce_kernel<c10::BFloat16, 16>(int)"),
    ],
)
def test_unfused_kernels_are_none(pattern: str, name: str) -> None:
    found = catalogue().pattern(pattern)
    assert found is not None
    assert not found.is_fused(work(name))
