"""Kernel classification: names of every engine, the operator as a fallback, users' rules, the labelled corpus."""

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.classify import CATEGORIES, OTHER, Rule, Rules, classify_kernel, read_rules, words
from tracekit.errors import RulesError

LABELLED = Path(__file__).parents[2] / "shared" / "kernel_names.tsv"
CORE = {"attention", "gemm", "communication", "dequant", "quant", "norm", "moe", "rope", "kv_cache"}

# category | subcategory | name
NAMES = """
attention|prefill|void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits<(MaskMode)1, 128u>>(P)
attention|prefill|void flashinfer::SinglePrefillWithKVCacheKernel<flashinfer::KernelTraits<128u>>(Params)
attention|decode|void flashinfer::BatchDecodeWithPagedKVCacheKernel<(PosEncodingMode)0, 2u, 4u, 8u>(Params)
attention|mla|void flashinfer::mla::BatchMLAPagedAttentionKernel<flashinfer::mla::KernelTraits<true>>(Params)
attention|merge|void flashinfer::PersistentVariableLengthMergeStatesKernel<8u, 16u, 8u, 4u, __nv_bfloat16>(P)
attention|prefill|void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>, false, true>(P)
attention|decode|void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>(flash::Flash_fwd_params)
attention|merge|void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64>>(flash::Flash_fwd_params)
attention|generic|void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<Mainloop<2>>>>(P)
attention|generic|kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensorptrbf16gmem
attention|metadata|void flash::prepare_varlen_num_blocks_kernel<1, true>(int, int, int)
attention|metadata|get_mla_metadata_kernel(Mla_metadata_params)
attention|sparse_index|void deep_gemm::sm90_fp8_paged_mqa_logits<32u, 128u, true>(unsigned int)
attention|decode|void vllm::paged_attention_v1_kernel<unsigned short, unsigned short, 128, 16, 128>(unsigned short*)
attention|merge|void vllm::paged_attention_v2_reduce_kernel<unsigned short, 128, 128, 512>(unsigned short*)
attention|merge|void vllm::merge_attn_states_kernel<__nv_bfloat16, 128u>(__nv_bfloat16*, float*)
attention|merge|_fwd_kernel_stage2
attention|prefill|_fwd_kernel
attention|backward|_bwd_kernel_dk_dv
attention|decode|void tensorrt_llm::kernels::mmha::masked_multihead_attention_kernel<__nv_bfloat16, 128>(Params)
attention|merge|fmhaReductionKernel
attention|generic|_ZN7ck_tile6kentryILi2ENS_13FmhaFwdKernelINS_25BlockFmhaPipelineQRKSVSAsyncE
linear_attention|gdn|chunk_gated_delta_rule_fwd_kernel_h_blockdim64
linear_attention|gdn|recompute_w_u_fwd_kernel
linear_attention|gdn|merge_16x16_to_64x64_inverse_kernel
linear_attention|kda|chunk_kda_scaled_dot_kkt_fwd_kernel_intra_sub_intra
linear_attention|ssm|void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16>>(SSMParamsBase)
linear_attention|conv|_causal_conv1d_update_kernel
linear_attention|linear|chunk_abc_fwd_kernel_intra_V
gemm|dense|nvjet_hsh_64x8_64x16_1x2_h_bz_TNN
gemm|dense|void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>>>(Params)
gemm|dense|Custom_Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1_SN
gemm|dense|void fused_a_gemm_kernel<1, 2112, 7168>(__nv_bfloat16*, __nv_bfloat16 const*)
gemm|gemv|void wvSplitK_hf_sml_<__hip_bfloat16, 64, 1, 16, 8, 4, 1>(int, int)
gemm|gemv|void gemv2T_kernel_val<int, int, __nv_bfloat16, float, 128, 16, 4, 4>(cublasGemvParamsEx<int>)
gemm|batched|_ZN2ck27kernel_batched_gemm_multi_dINS_32GridwiseBatchedGemm
gemm|splitk_reduce|void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(P)
gemm|quantized|void Marlin<256, 4, 16, 4, 4, true>(int4 const*, int4 const*, int4*)
gemm|quantized|void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 24576u, 1536u, 1u>(unsigned char*)
gemm|quantized|void vllm::awq::gemm_forward_4bit_cuda_m16nXk32<128>(int, int, __half*)
gemm|quantized|void kgemm_4bit_inference_naive<__nv_bfloat16, 128, 16>(int, int, int)
gemm|quantized|void allspark::ampere_hgemm_W8A16_perc_f16_f16_128x128x32_hgemm1688_fprop_kernel<__half>(Params)
gemm|quantized|_w8a8_block_fp8_matmul
gemm|grouped|fused_moe_kernel
gemm|grouped|void moe_wna16_gemm_kernel<__nv_bfloat16, 16>(__nv_bfloat16 const*)
gemm|grouped|_ZN5aiter41fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tgE
gemm|grouped|void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<int>>>(P)
gemm|grouped|_lora_shrink_kernel
gemm|dense|__myl_FcMulAdd_0x1bd3a9c07c1e2caf5075aa11f1676c70
dequant||void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*, unsigned char*, float*, __nv_bfloat16*)
dequant||void vllm::awq::dequantize_weights(int*, __half*, int*, __half*, int)
dequant||void vllm::gptq::reconstruct_exllama_4bit_kernel(unsigned int const*, int const*)
dequant||cp_gather_and_upconvert_fp8_kv_cache_kernel
quant||void vllm::dynamic_per_token_scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(float*)
quant||void tensorrt_llm::kernels::quantize_with_block_size<(BlockScaleQuantizationType)0, __nv_bfloat16, 16>(int)
quant||void tensorrt_llm::kernels::fp8_blockscale_gemm::scale_1x128_kernel<__nv_bfloat16>(__nv_fp8_e4m3*)
quant||void deep_gemm::transpose_and_pack_fp32_into_ue8m0<512u, 48u, 64u>(float*, unsigned int*)
quant||act_quant_kernel
quant|repack|void vllm::gptq::shuffle_4bit_kernel(unsigned int*, int, int)
communication|collective|ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
communication|custom_allreduce|void sglang::cross_device_reduce_2stage<__nv_bfloat16, 4>(RankData*, RankSignals)
communication|custom_allreduce|void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half>>(P)
communication|custom_allreduce|void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<8, __nv_bfloat16>(P)
communication|fused_norm|void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>(P)
communication|dispatch_combine|void deep_ep::internode_ll::dispatch<true, 3, 7168>(void*, void*)
communication|dispatch_combine|void tensorrt_llm::kernels::moe_alltoall::moeA2ADispatchKernel<8>(Params)
moe|align_sort|void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*)
moe|align_sort|_ZN7ck_tile6kentryILi1ENS_16MoeSortingKernelINS_
moe|routing|void vllm::moe::topkGatingSoftmax<4, 128, 4, 16>(float const*, bool const*)
moe|routing|void tensorrt_llm::kernels::deepseek_v3_topk_kernel<float, __nv_bfloat16, 256>(float*)
moe|permute|void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel<__nv_bfloat16>(__nv_bfloat16 const*)
moe|permute|_fwd_kernel_ep_scatter_1
moe|finalize|void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<__half, __half>(__half const*)
norm||std::enable_if<(((8) > (0))) && vllm::_typeConvert<int>::exists, void>::type vllm::fused_add_rms_norm_kernel<8>(P)
norm||void flashinfer::norm::GemmaRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)
norm||kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_at__tensorptrbf16gmem
norm||void tensorrt_llm::kernels::fusedQKNormRopeKernel<128, true>(__nv_bfloat16*)
norm|backward|_rms_norm_backward_kernel
norm||__myl_CastMulMeanAddSqrtDivMul_0xa441bf244a3768760b5a738a6325d2ed
rope||void vllm::batched_rotary_embedding_kernel<c10::BFloat16, true>(long const*)
rope||void aiter::kn_entry_2c_sbhd_cached_indirect_inplace<aiter::OpCachedFwd, 1, true>(float*)
rope||_triton_mrope_forward
kv_cache|write|void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, unsigned char, (vllm::Fp8KVCacheDataType)1>(float*)
kv_cache|write|void flashinfer::AppendPagedKVCacheKernel<128u, 4u>(flashinfer::paged_kv_t<__half, int>)
kv_cache|write|void store_kv_cache_256x1<long>(unsigned long*)
kv_cache|write|void vllm::indexer_k_quant_and_cache_kernel<__nv_bfloat16, unsigned char>(__nv_bfloat16 const*)
kv_cache|gather|void vllm::cp_gather_cache<__nv_bfloat16, 576>(__nv_bfloat16 const*)
kv_cache|copy|void vllm::copy_blocks_kernel<__nv_bfloat16>(long*, long*, long const*, int)
activation||void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>(P)
activation||silu_mul_fp8_quant_deep_gemm_kernel
activation||_geglu_tanh_forward_kernel
activation||void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::elu_kernel(x)>(P)
sampling||void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u, (BlockScanAlgorithm)2>(float*)
sampling||void flashinfer::sampling::OnlineSoftmaxFusedKernel<1024u, 8u, float>(float*)
sampling||rejection_random_sample_kernel
sampling||void xgrammar_apply_token_bitmask_inplace_kernel<float, int, 4>(float*)
embedding||void at::native::(anonymous namespace)::EmbeddingBag_updateOutputKernel_sum_mean<float, int>(int const*)
engine_metadata||_compute_slot_mappings_kernel
engine_metadata||eagle_prepare_next_token_padded_kernel
engine_metadata||write_req_to_token_pool_triton
engine_metadata||alloc_extend_kernel
engine_metadata||_prepare_mrope_positions_kernel
softmax||void at::native::(anonymous namespace)::cunn_SoftMaxForwardSmem<4, float, float>(float*)
softmax||__myl_MaxSubExpSumDiv_0x1bd3a9c07c1e2caf5075aa11f1676c70
conv||_5x_cudnn_ampere_scudnn_128x32_relu_interior_nn_v1
conv||miopenSp3AsmConv_v21_1_3_gfx9_fp32_f2x3_stride1
elementwise|pointwise|void at::native::vectorized_elementwise_kernel<4, at::native::sgn_kernel_cuda(x)::{lambda()#1}>(P)
elementwise|cast|void at::native::unrolled_elementwise_kernel<at::native::float8_copy_kernel_cuda(x)>(P)
reduction|topk|void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(P)
reduction|scan|void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float>>(float*)
reduction|sort|void cub::CUB_200400_SM_90::DeviceRadixSortOnesweepKernel<cub::Policy900, false, long>(int*)
index|gather|void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int)
index||void at::native::triu_tril_kernel<c10::BFloat16, int, false, 2, false>(int)
index||__myl_MoveTranResh_0xa441bf244a3768760b5a738a6325d2ed
random||void at::native::(anonymous namespace)::poisson_cuda_kernel(x)
pooling_interp||void at::native::(anonymous namespace)::avg_pool2d_out_cuda_frame<float, float>(int)
fft||void regular_fft<256u, EPT<16u>, 8u>(kernel_arguments_t<unsigned int>)
loss||liger_cross_entropy_kernel
optimizer||void at::native::(anonymous namespace)::multi_tensor_apply_kernel<Meta<4>, FusedAdamMathFunctor<float, 4>>(P)
rope|kv_write|fused_rope_store_kernel
quant||per_token_group_quant_masked_kernel
engine_metadata||UpdateTokenTableDecodeKernel
linear_attention||_replayssm_output_only_kernel
attention|decode|_swa_decode_split
attention||_qsa_split_kernel
kv_cache|copy|_copy_pages_kernel
moe|routing|route_radix4_kernel
sampling||reset_vocab_mask_kernel
gemm||_fused_down_proj_kernel
memory|memcpy|Memcpy HtoD (Pinned -> Device)
memory|memcpy|[CUDA memcpy Device-to-Host]
memory|memset|Memset (Device)
memory|memset|__amd_rocclr_fillBufferAligned.kd
graph||cudaGraphLaunch
other||void my_kernel<float>(float*)
attention||triton_tem_fused_flex_attention_0
gemm|dense|triton_tem_fused_addmm_3
conv||triton_tem_fused_convolution_1
norm||triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0
norm|backward|triton_red_fused_native_layer_norm_backward_2
softmax||triton_per_fused__softmax_0
loss||triton_per_fused_nll_loss_forward_1
random||triton_poi_fused_native_dropout_4
embedding||triton_poi_fused_embedding_0
pooling_interp||triton_poi_fused__adaptive_avg_pool2d_7
quant||triton_per_fused__to_copy_abs_amax_clamp_div_5
reduction|argmax|triton_red_fused_argmax_0
reduction|scan|triton_spl_fused_cumsum_0
reduction||triton_red_fused_sum_1
index||triton_poi_fused_cat_2
elementwise|fill|triton_poi_fused_zeros_0
elementwise|cast|triton_poi_fused__to_copy_0
elementwise|pointwise|triton_poi_fused_add_0
fused_pointwise||triton_poi_fused_add_mul_sub_3
fused_pointwise||__myl_MulAddCast_0xa441bf244a3768760b5a738a6325d2ed
"""

COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(x)>(int)"
BARE = "void at::native::vectorized_elementwise_kernel<4, at::native::..."
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::..."

# category | subcategory | operator | name
WITH_OPERATOR = f"""
elementwise|pointwise|aten::add|{BARE}
elementwise|fill|aten::fill_|{BARE}
elementwise|copy|aten::copy_|{BARE}
activation||aten::silu|{BARE}
index||aten::index_select|{BARE}
random||aten::bernoulli_|{BARE}
pooling_interp||aten::upsample_nearest2d|{BARE}
fft||aten::_fft_r2c|{BARE}
loss||aten::mse_loss|{BARE}
optimizer||aten::_fused_adamw_|{BARE}
embedding||aten::embedding_dense_backward|{BARE}
softmax||aten::_softmax|{REDUCE}
reduction||aten::sum|{REDUCE}
norm||aten::native_layer_norm|{REDUCE}
quant||_C::dynamic_scaled_fp8_quant|{REDUCE}
attention||vllm::unified_attention_with_output|triton_
rope||_C::rotary_embedding|triton_poi_fused_3
moe||_moe_C::topk_softmax|kernel_0
kv_cache||_C_cache_ops::reshape_and_cache_flash|kernel_0
linear_attention||vllm::gdn_attention_core|kernel_0
gemm||aten::mm|kernel_0
dequant||_C::awq_dequantize|kernel_0
conv||aten::cudnn_convolution|kernel_0
sampling||flashinfer::sampling_from_probs|kernel_0
communication||vllm::all_reduce|kernel_0
communication|copy|c10d::allgather_|Memcpy DtoD (Device -> Device)
kv_cache|copy|_C_cache_ops::swap_blocks|Memcpy HtoD (Pinned -> Device)
memory|memcpy|aten::copy_|Memcpy HtoD (Pageable -> Device)
elementwise||vllm::moe_forward|{BARE}
elementwise||aten::linear|{BARE}
reduction||CompiledFxGraph f3x|{REDUCE}
elementwise|copy|vllm::unified_attention_with_output|{COPY}
communication|collective|c10d::allreduce_|ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
gemm|dense|vllm::moe_forward|nvjet_tst_64x24_64x16_4x1_v_bz_splitK_TNT
moe|finalize|aten::add|void vllm::moe::moe_sum_kernel<c10::BFloat16, 8>(c10::BFloat16*)
norm||aten::linear|void vllm::rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)
fused_pointwise||CompiledFxGraph f3x|triton_poi_fused_3
"""


def rows(table: str, columns: int) -> list[list[str]]:
    return [line.split("|", columns - 1) for line in table.strip().splitlines()]


def labelled() -> Iterator[dict[str, str]]:
    if not LABELLED.exists():
        pytest.skip(f"the labelled names are not here: {LABELLED}")
    with LABELLED.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


@pytest.mark.parametrize(("category", "subcategory", "name"), rows(NAMES, 3))
def test_name(category: str, subcategory: str, name: str) -> None:
    assert classify_kernel(name) == (category, subcategory)


@pytest.mark.parametrize(("category", "subcategory", "op", "name"), rows(WITH_OPERATOR, 4))
def test_operator_decides_only_where_the_name_says_nothing(category: str, subcategory: str, op: str, name: str) -> None:
    assert classify_kernel(name, op) == (category, subcategory)


def test_empty_names() -> None:
    assert classify_kernel("") == OTHER
    assert classify_kernel(" \n", "aten::add") == OTHER
    assert classify_kernel("...", "") == OTHER


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void vllm::act_and_mul_kernel<c10::Half, &silu>(c10::Half*)", "_vllm_act_and_mul_kernel_c10_half_silu_"),
        ("BatchDecodeWithPagedKVCacheKernel<0, 2>(Params)", "_batch_decode_with_paged_kv_cache_kernel_0_2_"),
        ("void (anonymous namespace)::softmax_warp<(int)4>(int)", "_softmax_warp_int_4_"),
        ("<unnamed>::MoEGemm.kd", "_moe_gemm_"),
        ("std::enable_if<((8) > (0)), void>::type vllm::norm<int, 8>(int*)", "_vllm_norm_int_8_"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16EEE", "_aiter_add_rmsnorm_quant_kernel_"),
        ("aten::copy_", "_aten_copy_"),
        ("Memcpy HtoD (Pageable -> Device)", "_memcpy_hto_d_pageable_device_"),
    ],
)
def test_words(name: str, expected: str) -> None:
    assert words(name) == expected


# ---- rules of the user ---------------------------------------------------------------------------------------------


def test_rules_of_the_user_come_first_in_the_order_given(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text("""
        [[rule]]
        category = "sampling"
        subcategory = "mine"
        pattern = 'MyKernel'
        [[rule]]
        category = "moe"
        any = ['_rms_norm_', '_nvjet_']
        not = '_fused_'
        [[rule]]
        category = "graph"
        on = "op"
        pattern = '_mine_add_'
    """)
    second.write_text('[[rule]]\ncategory = "fft"\npattern = "_nvjet_|_fused_add_"')
    rules = Rules.load([first, second])
    assert rules.classify("void ns::MyKernel<int>(int)") == ("sampling", "mine")
    assert rules.classify("my_kernel") == OTHER  # a capital letter: the name as recorded
    assert rules.classify("nvjet_tst_64x24") == ("moe", "")
    assert rules.classify("fused_add_rms_norm_kernel") == ("fft", "")
    assert rules.classify("reshape_and_cache_kernel", "mine::add") == ("graph", "")
    assert rules.classify("reshape_and_cache_kernel") == ("kv_cache", "write")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rule]\n", "bad.toml: not a TOML file"),
        ("rule = 3", r"bad.toml: a rules file holds \[\[rule\]\]"),
        ("[other]\n", r"bad.toml: a rules file holds \[\[rule\]\]"),
        ("[[rule]]\npattern = 'x'", "bad.toml: rule 1: category is missing"),
        ("[[rule]]\ncategory = 'norms'\npattern = 'x'", "bad.toml: rule 1: unknown category 'norms'"),
        ("[[rule]]\ncategory = 3\npattern = 'x'", "bad.toml: rule 1: category must be a string"),
        ("[[rule]]\ncategory = 'norm'", "bad.toml: rule 1: one of pattern and any is needed"),
        ("[[rule]]\ncategory = 'norm'\npattern = 'x'\nany = ['y']", "rule 1: one of pattern and any"),
        ("[[rule]]\ncategory = 'norm'\nany = 'x'", "bad.toml: rule 1: any must be a list"),
        ("[[rule]]\ncategory = 'norm'\nany = []", "bad.toml: rule 1: any must be a list"),
        ("[[rule]]\ncategory = 'norm'\npatern = 'x'", "bad.toml: rule 1: unknown key 'patern'"),
        ("[[rule]]\ncategory = 'norm'\npattern = 'x'\non = 'base'", "bad.toml: rule 1: on must be"),
        ("[[rule]]\ncategory = 'norm'\npattern = 'x'\n[[rule]]\ncategory = 'fft'\nany = ['y', '(']", r"2: '\(' is"),
        ("[[rule]]\ncategory = 'norm'\npattern = 'x'\nnot = '[a'", r"bad.toml: rule 1: '\[a' is not a regular"),
    ],
)
def test_bad_rules_name_the_file_and_the_rule(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(RulesError, match=message) as raised:
        Rules.load([path])
    assert raised.value.exit_code == 2


def test_unreadable_rules_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(RulesError, match=r"absent\.toml: cannot be read"):
        Rules.load([tmp_path / "absent.toml"])
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RulesError, match=r"binary\.toml: not a TOML file"):
        Rules.load([tmp_path / "binary.toml"])


# ---- the built-in rules as a whole -----------------------------------------------------------------------------------


def test_accuracy_on_labelled_names() -> None:
    """At least 97 % of the names in the core categories and 95 % of all; a secondary role counts as right."""
    wrong: list[tuple[bool, str]] = []
    counts = {"core": 0, "all": 0}
    for row in labelled():
        core = row["category"] in CORE
        counts["all"] += 1
        counts["core"] += core
        got, _ = classify_kernel(row["name"])
        if got not in (row["category"], row["secondary"]):
            wrong.append((core, f"{row['category']}, got {got}: {row['name']}"))
    listing = "\n".join(text for _, text in wrong)
    assert sum(core for core, _ in wrong) <= 0.03 * counts["core"], listing
    assert len(wrong) <= 0.05 * counts["all"], listing


def test_no_built_in_rule_is_dead() -> None:
    """Each rule decides at least one name of the tables above or of the labelled names."""
    rules = Rules.load()
    names: list[tuple[str, str | None]] = [(name, None) for _, _, name in rows(NAMES, 3)]
    names += [(row["name"], None) for row in labelled()]
    names += [(name, op) for _, _, op, name in rows(WITH_OPERATOR, 4)]
    alive = {rule.source for rule in (rules.match(name, op) for name, op in names) if rule}
    assert {rule.source for rule in rules.rules} - alive == set()
    assert {rule.category for rule in rules.rules} <= set(CATEGORIES)


def test_the_index_finds_what_trying_every_rule_finds() -> None:
    rules = Rules.load()
    for name in [name for _, _, name in rows(NAMES, 3)] + [row["name"] for row in labelled()]:
        assert rules.match(name) is first_of(rules, name), name


def first_of(rules: Rules, name: str) -> Rule | None:
    text = words(name)
    return next((rule for rule in rules.rules if rule.on == "name" and rule.matches(name.strip(), text)), None)


PIECES = ["void ", "_ZN", "<", ">", "(", ")", "::", ", ", "_", "...", "Memcpy ", "MoE", "gemm", "RMSNorm", "9", "12a"]


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)), st.none() | st.text())
def test_any_text_has_a_category_and_blanks_around_it_do_not_matter(name: str, op: str | None) -> None:
    found = classify_kernel(name, op)
    assert found[0] in CATEGORIES
    assert classify_kernel(f" \n{name}\t ", op) == found


PATTERN_PIECES = ["_abc", "d", "(?:", "(", ")", "|", "?", "*", "+", "{2,}", "[xy]", r"\w", "(?!z)", "."]


@settings(max_examples=1000, deadline=None)
@given(
    st.lists(st.sampled_from(PATTERN_PIECES), max_size=9).map("".join),
    st.lists(st.sampled_from(["abc", "d", "x", "y", "_", "z", "abcd"]), max_size=6),
)
def test_the_index_never_hides_a_match(tmp_path_factory: pytest.TempPathFactory, pattern: str, name: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "mine.toml"
    path.write_text(f"[[rule]]\ncategory = 'fft'\npattern = '{pattern}'")
    try:
        rules = Rules.of(read_rules(path))
    except RulesError:
        return  # not a regular expression
    text = "".join(name)
    assert rules.match(text) is (first_of(rules, text) if text else None)
