"""Kernels of a simulated serving step: names as they stand in real traces, and ideal durations.

A kernel's duration is a roofline: the longest of the device's floor, bytes / bandwidth and operations / peak.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulator_model import Device

FLASH = (
    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, "
    "cutlass::bfloat16_t>, true, false, false, false, true, false, true, false>(flash::Flash_fwd_params)"
)
PAGED = (
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u, 4u, 8u, 16u, 8u, 1u, "
    "flashinfer::DefaultAttention<false, false, false, false>, flashinfer::BatchDecodeParams>"
)
ROPE = (
    "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*, "
    "c10::BFloat16 const*, int, long, long, long, int, int, int)"
)
CACHE = (
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>"
    "(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, __nv_bfloat16*, long const*, long, long, long)"
)
FUSED_ROPE = (
    "void (anonymous namespace)::fused_rope_store_kernel<true, 128l, true, __nv_bfloat16, long, 16u>"
    "((anonymous namespace)::FusedRopeStoreParams)"
)
ACTIVATION = (
    "void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::BFloat16 vllm::silu_kernel<c10::BFloat16>"
    "(c10::BFloat16 const&)), true>(c10::BFloat16*, c10::BFloat16 const*, int)"
)
MASK = "void (anonymous namespace)::apply_mask_kernel<c10::BFloat16>(c10::BFloat16*, int const*, int)"
_ARANGE = (
    "at::native::arange_cuda_out(c10::Scalar const&, c10::Scalar const&, c10::Scalar const&, at::Tensor&)"
    "::{lambda()#1}::operator()() const::{lambda()#4}::operator()() const::{lambda(long)#1}"
)
ARANGE = (
    f"void (anonymous namespace)::elementwise_kernel_with_index<int, {_ARANGE}>"
    f"(int, {_ARANGE}, function_traits<{_ARANGE}>::result_type*)"
)
GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
CAST = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
    "::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>, "
    "4, TrivialOffsetCalculator<1, unsigned int>, at::native::memory::LoadWithCast<1>>(int, std::array<char*, 2ul>)"
)
SOFTMAX = (
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, "
    "at::native::(anonymous namespace)::SoftMaxForwardEpilogue>(float*, float const*, int)"
)


@dataclass(frozen=True, slots=True)
class Collective:
    """What NCCL's op records about a collective."""

    name: str
    elements_in: int
    elements_out: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One row of device work: a kernel, a copy or a fill."""

    name: str
    category: str
    dur: int
    cat: str = "kernel"
    flops: int = 0
    bytes: int = 0
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    registers: int = 32
    shared: int = 0
    collective: Collective | None = None


def roofline_ns(device: Device, flops: int, moved: int) -> int:
    """The longest of the device's floor, the time to move the bytes and the time to compute."""
    memory = moved * 10**9 * 100 // (device.bandwidth * device.bandwidth_percent)
    compute = flops * 10**9 * 100 // (device.flops * device.flops_percent)
    return max(device.floor_ns, memory, compute)


def gemm_kernel(device: Device, rows: int, inner: int, outer: int, width: int) -> Kernel:
    """rows x inner times inner x outer."""
    tile = 16 if rows <= 16 else 64 if rows <= 128 else 128
    flops, moved = 2 * rows * inner * outer, (rows * inner + inner * outer + rows * outer) * width
    return Kernel(
        f"nvjet_tst_64x{tile}_64x{14 if tile < 128 else 6}_2x1_v_bz_TNT",
        "gemm",
        roofline_ns(device, flops, moved),
        flops=flops,
        bytes=moved,
        grid=(-(-outer // 64), -(-rows // tile), 1),
        block=(384, 1, 1),
        registers=168,
        shared=213656,
    )


def copy_kernel(kinds: str, size: int) -> Kernel:
    """A copy over PCIe at 25 GB/s, such as HtoD (Pinned -> Device)."""
    return Kernel(f"Memcpy {kinds}", "memory", max(1_000, size // 25), cat="gpu_memcpy", bytes=size)


def fill_kernel(size: int) -> Kernel:
    """A small fill."""
    return Kernel("Memset (Device)", "memory", 900, cat="gpu_memset", bytes=size)


def nccl_kernel(device: Device, ranks: int, collective: Collective, width: int) -> Kernel:
    """A ring collective: what a link must carry, and 4 µs; without the wait for other ranks.

    An all-reduce carries 2 (ranks - 1) / ranks of its elements, an all-gather (ranks - 1) times its own share.
    """
    reduces = collective.name == "allreduce"
    size = collective.elements_in * width
    carried = 2 * size * (ranks - 1) // ranks if reduces else size * (ranks - 1)
    algorithm = "AllReduce_Sum_bf16_RING_LL" if reduces else "AllGather_RING_LL"
    return Kernel(
        f"ncclDevKernel_{algorithm}(ncclDevKernelArgsStorage<4096ul>)",
        "communication",
        4_000 + carried * 10**9 // device.link_bandwidth,
        bytes=size,
        grid=(16, 1, 1),
        block=(544, 1, 1),
        registers=96,
        shared=104832,
        collective=collective,
    )
