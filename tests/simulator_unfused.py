"""Kernels that engines fuse, as PyTorch launches them one by one, with the names, ops, shapes and bytes of each."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulator_instructions import Launch, Op, Typed
from tests.simulator_kernels import CAST, Kernel, roofline_ns
from tests.simulator_model import Device

_POINTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, {0}, std::array<char*, {1}ul> >"
    "(int, {0}, std::array<char*, {1}ul>)"
)
_STRIDED = (
    "void at::native::elementwise_kernel<128, {1}, at::native::gpu_kernel_impl_nocast<{0} >(at::TensorIteratorBase&, "
    "{0} const&)::{{lambda(int)#1}}>(int, at::native::gpu_kernel_impl_nocast<{0} >(at::TensorIteratorBase&, "
    "{0} const&)::{{lambda(int)#1}})"
)
_MUL_BF16 = (
    "at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, "
    "at::native::binary_internal::MulFunctor<float> >"
)
_MUL_FLOAT = "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"
_SILU = (
    "at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}::operator()() const"
    "::{lambda()#6}::operator()() const::{lambda(c10::BFloat16)#1}"
)
_POW = (
    "at::native::(anonymous namespace)::pow_tensor_scalar_kernel_impl<float, float>(at::TensorIteratorBase&, float)"
    "::{lambda(float)#1}"
)
_RSQRT = (
    "at::native::rsqrt_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() const"
    "::{lambda()#2}::operator()() const::{lambda(float)#1}"
)
_MEANS = "at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4>"
MEAN = f"void at::native::reduce_kernel<512, 1, {_MEANS} >({_MEANS})"
ADD = _POINTWISE.format("at::native::CUDAFunctor_add<c10::BFloat16>", 3)
ADD_EPSILON = _POINTWISE.format("at::native::CUDAFunctorOnSelf_add<float>", 2)
SILU, POW, RSQRT = (_POINTWISE.format(functor, 2) for functor in (_SILU, _POW, _RSQRT))
MUL = _POINTWISE.format(_MUL_BF16, 3)
MUL_BY_WEIGHT, MUL_BY_ROW = _STRIDED.format(_MUL_BF16, 4), _STRIDED.format(_MUL_FLOAT, 2)
TO_BF16 = _POINTWISE.format("at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}", 2)
PER_BLOCK = 512  # elements a block of a pointwise kernel takes: 128 threads, 4 each


@dataclass(frozen=True, slots=True)
class Unfused:
    """Launches of rows x columns elements of the model's type (width bytes) within a module's Python frames."""

    device: Device
    frames: tuple[str, ...]
    rows: int
    columns: int
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    @property
    def elements(self) -> int:
        return self.rows * self.columns

    def add_residual(self, after: str = "") -> Launch:
        """The residual stream and what a block made, into a new residual."""
        add = Op("aten::add", (self.shape, self.shape), ("1",))
        return self._launch((add,), ADD, "elementwise", 3 * self.elements * self.width, after=after)

    def silu_and_mul(self) -> list[Launch]:
        """The gate's SiLU, then its product with the other half."""
        size = self.elements * self.width
        return [
            self._launch((Op("aten::silu", (self.shape,)),), SILU, "activation", 2 * size),
            self._launch((Op("aten::mul", (self.shape, self.shape)),), MUL, "elementwise", 3 * size),
        ]

    def rms_norm(self, after: str = "") -> list[Launch]:
        """LlamaRMSNorm as Hugging Face writes it: in float32 but for the weight, 8 launches."""
        n, rows, width = self.elements, self.rows, self.width
        exact, row = Typed("float", self.shape), Typed("float", (rows, 1))
        widen = (
            Op("aten::to", (self.shape,), ("6", "False", "False", "")),
            Op("aten::_to_copy", (self.shape,), ("6", "", "", "", "False", "")),
            Op("aten::copy_", (exact, self.shape), ("False",)),
        )
        narrow = (
            Op("aten::to", (exact,), ("15", "False", "False", "")),
            Op("aten::_to_copy", (exact,), ("15", "", "", "", "False", "")),
            Op("aten::copy_", (self.shape, exact), ("False",)),
        )
        return [
            self._launch(widen, CAST, "elementwise", (4 + width) * n, after=after),
            self._launch((Op("aten::pow", (exact, "2")),), POW, "elementwise", 8 * n),
            self._launch((Op("aten::mean", (exact,), ("[-1]", "True", "")),), MEAN, "reduction", 4 * (n + rows)),
            self._launch((Op("aten::add", (row, "1e-05", "1")),), ADD_EPSILON, "elementwise", 8 * rows, rows),
            self._launch((Op("aten::rsqrt", (row,)),), RSQRT, "elementwise", 8 * rows, rows),
            self._launch((Op("aten::mul", (exact, row)),), MUL_BY_ROW, "elementwise", 8 * n + 4 * rows),
            self._launch(narrow, TO_BF16, "elementwise", (4 + width) * n),
            self._launch(
                (Op("aten::mul", ((self.columns,), self.shape)),),
                MUL_BY_WEIGHT,
                "elementwise",
                (2 * n + self.columns) * width,
            ),
        ]

    def _launch(
        self, ops: tuple[Op, ...], name: str, category: str, moved: int, elements: int = 0, *, after: str = ""
    ) -> Launch:
        blocks = -(-(elements or self.elements) // PER_BLOCK)
        dur = roofline_ns(self.device, 0, moved)
        kernel = Kernel(name, category, dur, bytes=moved, grid=(blocks, 1, 1), block=(128, 1, 1))
        return Launch(self.frames, ops, (), "cudaLaunchKernel", kernel, after=after)
