"""The ops of a serving step with their shapes, and the kernels they launch, in launch order."""

from __future__ import annotations

from dataclasses import replace

from tests.simulator_instructions import Launch, Op, Shape, Typed
from tests.simulator_kernels import (
    ACTIVATION,
    CACHE,
    CAST,
    FLASH,
    FUSED_ROPE,
    GATHER,
    PAGED,
    ROPE,
    SOFTMAX,
    Collective,
    Kernel,
    copy_kernel,
    fill_kernel,
    gemm_kernel,
    nccl_kernel,
    roofline_ns,
)
from tests.simulator_model import Run, StepShape
from tests.simulator_unfused import Unfused


class Builder:
    """Kernels and ops of one step on one rank."""

    def __init__(self, run: Run, shape: StepShape) -> None:
        self.run, self.shape, self.model, self.device = run, shape, run.model, run.device
        self.width = run.model.dtype_bytes
        self.q = run.model.heads * run.model.head_dim // run.ranks
        self.kv = max(1, run.model.kv_heads // run.ranks) * run.model.head_dim
        self.mlp = run.model.intermediate // run.ranks

    def inputs(self) -> list[Launch]:
        """Token ids and positions to the device, slot mapping on it."""
        tokens = self.shape.tokens
        frames = ("vllm/v1/worker/gpu_model_runner.py(612): _prepare_inputs",)
        copies = [
            Launch(
                frames,
                (Op("aten::copy_", ((tokens,), (tokens,)), ("True",), "int"),),
                (Op("aten::slice", ((tokens,),), ("0", "0", str(tokens), "1"), "int"),),
                "cudaMemcpyAsync",
                copy_kernel("HtoD (Pinned -> Device)", 4 * tokens),
            )
            for _ in range(2)
        ]
        slots = self._kernel(
            "_compute_slot_mapping_kernel", "engine_metadata", 0, 12 * tokens, (tokens // 256 + 1, 1, 1)
        )
        return [*copies, Launch(frames, (), (), "cuLaunchKernelEx", slots)]

    def embedding(self) -> Launch:
        tokens, hidden = self.shape.tokens, self.model.hidden
        kernel = self._kernel(
            "_vocab_parallel_embedding_kernel", "embedding", 0, 2 * tokens * hidden * self.width, (tokens, 1, 1)
        )
        op = Op("aten::embedding", ((self.model.vocab, hidden), (tokens,)), ("-1", "False", "False"))
        return Launch(("nn.Module: VocabParallelEmbedding_0",), (op,), (), "cudaLaunchKernel", kernel)

    def layer(self, index: int) -> list[Launch]:
        """One decoder layer, in launch order."""
        hidden, name = self.model.hidden, f"LlamaDecoderLayer_{index}"
        plan = self.norm(name, first=index == 0)
        plan.append(self._linear(f"QKVParallelLinear_{index}", hidden, self.q + 2 * self.kv))
        if "rope_kv" in self.run.fused:
            plan.append(self._rope_and_cache(index))
        else:
            plan += [self._rope(index), self._cache(index)]
        plan += self._attention(index)
        if self.run.streams > 1 and index % 2 == 0:
            plan.append(self._offload(index))
        plan.append(self._linear(f"RowParallelLinear_{2 * index}", self.q, hidden))
        if self.run.ranks > 1:
            plan.append(self._all_reduce(self.shape.tokens))
        plan += self.norm(name)
        plan.append(self._linear(f"MergedColumnParallelLinear_{index}", hidden, 2 * self.mlp))
        plan += self._activation(index)
        down = f"RowParallelLinear_{2 * index + 1}"
        if self.run.ranks > 1 and self.run.streams > 1 and self.shape.tokens > 1:
            half = self.shape.tokens // 2  # the first half's all-reduce runs beside the second half's GEMM
            for rows in (half, self.shape.tokens - half):
                plan += [self._linear(down, self.mlp, hidden, rows), self._all_reduce(rows)]
        else:
            plan.append(self._linear(down, self.mlp, hidden))
            if self.run.ranks > 1:
                plan.append(self._all_reduce(self.shape.tokens))
        return plan

    def norm(self, module: str, first: bool = False) -> list[Launch]:
        """RMSNorm, with the residual's add before it but for the first."""
        # each layer's first kernel waits for the previous layer's all-reduce
        after = "comm" if self.run.ranks > 1 and not first else ""
        add = not first and "add_rms_norm" not in self.run.fused
        if not add and (not first or "rms_norm" in self.run.fused):
            return [self._fused_norm(module, first, after)]
        frames = (f"nn.Module: {module}", "vllm/model_executor/layers/layernorm.py(162): forward_native")
        unfused = Unfused(self.device, frames, self.shape.tokens, self.model.hidden, self.width)
        plan = [unfused.add_residual(after)] if add else []
        if "rms_norm" in self.run.fused:
            return [*plan, self._fused_norm(module, True, "")]
        return [*plan, *unfused.rms_norm()]

    def _fused_norm(self, module: str, first: bool, after: str) -> Launch:
        """One kernel; the first norm has nothing to add."""
        tokens, hidden = self.shape.tokens, self.model.hidden
        size = tokens * hidden * self.width
        tensors: tuple[Shape, ...] = ((tokens, hidden), (tokens, hidden), (hidden,))
        name, moved = "fused_add_rms_norm", 4 * size
        symbol = f"void vllm::{name}_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, c10::BFloat16*, float, int, int)"
        if first:
            name, moved = "rms_norm", 2 * size
            symbol = (
                "void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*, c10::BFloat16 const*, long, float, int, int)"
            )
        kernel = self._kernel(symbol, "norm", 0, moved, (tokens, 1, 1), block=(min(1024, hidden // 8), 1, 1))
        frames = (f"nn.Module: {module}", "vllm/model_executor/layers/layernorm.py(198): forward_cuda")
        views = (Op("aten::empty_like", ((tokens, hidden),), ("", "", "", "", "")),)
        return Launch(frames, (Op(f"_C::{name}", tensors, ("1e-05",)),), views, "cudaLaunchKernel", kernel, after=after)

    def head(self) -> list[Launch]:
        """Logits of the last token of each request, and sampling."""
        rows, vocab, hidden = self.shape.requests, self.model.vocab, self.model.hidden
        gather = self._kernel(
            GATHER,
            "index", 0, 2 * rows * hidden * self.width, (rows, 1, 1),
        )  # fmt: skip
        select = Op("aten::index_select", ((self.shape.tokens, hidden), "0", Typed("long int", (rows,))))
        plan = [
            Launch(
                ("nn.Module: LogitsProcessor_0",),
                (Op("aten::index", ((self.shape.tokens, hidden), (rows,))), select),
                (),
                "cudaLaunchKernel",
                gather,
            ),
            self._linear("ParallelLMHead_0", hidden, vocab // self.run.ranks, rows),
        ]
        if self.run.ranks > 1:
            plan.append(self._all_gather(rows))
        size = rows * vocab
        frames = ("nn.Module: Sampler_0", "vllm/v1/sample/sampler.py(88): forward")
        cast = self._kernel(
            CAST,
            "elementwise", 0, 6 * size, (size // 512 + 1, 1, 1),
        )  # fmt: skip
        softmax = self._kernel(
            SOFTMAX,
            "softmax", 5 * size, 8 * size, (rows, 1, 1), block=(1024, 1, 1),
        )  # fmt: skip
        sample = self._kernel("_topk_topp_sampling_kernel", "sampling", 0, 4 * size, (rows, 1, 1), block=(1024, 1, 1))
        to_copy = Op("aten::_to_copy", ((rows, vocab),), ("6", "", "", "", "False", ""))
        copy = Op("aten::copy_", (Typed("float", (rows, vocab)), (rows, vocab)), ("False",))
        probs = Op("aten::softmax", ((rows, vocab),), ("-1", "6"), "float")
        plan.append(
            Launch(frames, (to_copy, copy), (), "cudaLaunchKernel", cast, after="comm" if self.run.ranks > 1 else "")
        )
        zero = Op("aten::zero_", ((rows,),), (), "int")
        plan.append(Launch(frames, (zero,), (), "cudaMemsetAsync", fill_kernel(4 * rows)))
        plan.append(Launch(frames, (probs, replace(probs, name="aten::_softmax")), (), "cudaLaunchKernel", softmax))
        plan.append(Launch(frames, (), (), "cuLaunchKernelEx", sample))  # Triton: no op around, so no External id
        return plan

    def _kernel(
        self,
        name: str,
        category: str,
        flops: int,
        moved: int,
        grid: tuple[int, int, int] = (1, 1, 1),
        *,
        block: tuple[int, int, int] = (256, 1, 1),
    ) -> Kernel:
        dur = roofline_ns(self.device, flops, moved)
        return Kernel(name, category, dur, flops=flops, bytes=moved, grid=grid, block=block)

    def _linear(self, module: str, inner: int, outer: int, rows: int = 0) -> Launch:
        rows = rows or self.shape.tokens
        kernel = gemm_kernel(self.device, rows, inner, outer, self.width)
        views = (
            Op("aten::t", ((outer, inner),)),
            Op("aten::transpose", ((outer, inner),), ("0", "1")),
            Op("aten::as_strided", ((outer, inner),), (f"[{inner}, {outer}]", f"[1, {inner}]", "")),
            Op("aten::resolve_conj", ((inner, outer),)),
        )
        product = ((rows, inner), (inner, outer))
        ops = (
            Op("aten::linear", ((rows, inner), (outer, inner))),
            Op("aten::matmul", product),
            Op("aten::mm", product),
        )
        frames = (f"nn.Module: {module}", "vllm/model_executor/layers/linear.py(1214): forward")
        return Launch(frames, ops, views, "cudaLaunchKernelExC", kernel)

    def _rope(self, index: int) -> Launch:
        tokens = self.shape.tokens
        kernel = self._kernel(
            ROPE,
            "rope", 0, 2 * tokens * (self.q + self.kv) * self.width, (tokens, 1, 1), block=(512, 1, 1),
        )  # fmt: skip
        head = self.model.head_dim
        op = Op(
            "_C::rotary_embedding",
            (Typed("long int", (tokens,)), (tokens, self.q), (tokens, self.kv), str(head), (8192, head), "True"),
        )
        return Launch((f"nn.Module: RotaryEmbedding_{index}",), (op,), self._heads(), "cudaLaunchKernel", kernel)

    def _heads(self) -> tuple[Op, ...]:
        """Queries, keys and values as views of the projection's result."""
        tokens, sizes = self.shape.tokens, f"[{self.q}, {self.kv}, {self.kv}]"
        return (
            Op("aten::split_with_sizes", ((tokens, self.q + 2 * self.kv),), (sizes, "-1")),
            Op("aten::view", ((tokens, self.q),), (f"[{tokens}, -1]",)),
        )

    def _cache(self, index: int) -> Launch:
        tokens, head = self.shape.tokens, self.model.head_dim
        kernel = self._kernel(
            CACHE,
            "kv_cache", 0, 4 * tokens * self.kv * self.width, (tokens, 1, 1), block=(min(512, self.kv), 1, 1),
        )  # fmt: skip
        heads = self.kv // head
        ops = (
            Op("vllm::unified_attention_with_output", ((tokens, self.q), (tokens, self.kv), (tokens, self.kv))),
            Op(
                "_C_cache_ops::reshape_and_cache_flash",
                (
                    *[(tokens, heads, head)] * 2,
                    *[(4096, 16, heads, head)] * 2,
                    Typed("long int", (tokens,)),
                ),
            ),
        )
        return Launch((f"nn.Module: Attention_{index}",), ops, (), "cudaLaunchKernel", kernel)

    def _rope_and_cache(self, index: int) -> Launch:
        """The rotated keys go to the cache without a way through memory."""
        tokens, head = self.shape.tokens, self.model.head_dim
        moved = 2 * tokens * (self.q + 2 * self.kv) * self.width
        kernel = self._kernel(FUSED_ROPE, "rope", 0, moved, (tokens, 1, 1), block=(512, 1, 1))
        cache = (4096, 16, self.kv // head, head)
        slots = Typed("long int", (tokens,))
        op = Op(
            "sgl_kernel::fused_rope_store",
            ((tokens, self.q), (tokens, self.kv), (tokens, self.kv), cache, cache, (8192, head), slots, slots, "True"),
        )
        around = Op("sglang::unified_attention_with_output", ((tokens, self.q), (tokens, self.kv), (tokens, self.kv)))
        return Launch((f"nn.Module: Attention_{index}",), (around, op), self._heads(), "cudaLaunchKernel", kernel)

    def _attention(self, index: int) -> list[Launch]:
        """One attention kernel per phase present: FlashAttention for prefill, FlashInfer's paged one for decode."""
        shape, plan = self.shape, []
        kinds = []
        if shape.prefill_requests:
            prompt = shape.prefill_tokens // shape.prefill_requests
            pairs = shape.prefill_requests * prompt * (prompt + 1) // 2
            kinds.append(("flash", shape.prefill_tokens, pairs, shape.prefill_tokens))
        if shape.decode_requests:
            cached = shape.decode_requests * shape.context
            kinds.append(("paged", shape.decode_requests + shape.padding, cached, cached))
        for kind, queries, pairs, cached in kinds:
            name = FLASH if kind == "flash" else PAGED
            moved = (2 * queries * self.q + 2 * cached * self.kv) * self.width
            kernel = replace(
                self._kernel(name, "attention", 4 * pairs * self.q, moved),
                grid=(queries, self.kv // self.model.head_dim, 1),
                registers=255,
                shared=81920,
            )
            op = Op(
                "_vllm_fa2_C::varlen_fwd" if kind == "flash" else "flashinfer::batch_decode",
                (
                    (queries, self.q // self.model.head_dim, self.model.head_dim),
                    (4096, 16, self.kv // self.model.head_dim, self.model.head_dim),
                ),
            )
            around = Op(
                "vllm::unified_attention_with_output", ((queries, self.q), (queries, self.kv), (queries, self.kv))
            )
            plan.append(Launch((f"nn.Module: Attention_{index}",), (around, op), (), "cudaLaunchKernel", kernel))
        return plan

    def _activation(self, index: int) -> list[Launch]:
        tokens, frames = self.shape.tokens, (f"nn.Module: SiluAndMul_{index}",)
        if "silu_mul" not in self.run.fused:
            return Unfused(self.device, frames, tokens, self.mlp, self.width).silu_and_mul()
        kernel = self._kernel(
            ACTIVATION,
            "activation", 0, 3 * tokens * self.mlp * self.width, (tokens, 1, 1), block=(min(1024, self.mlp), 1, 1),
        )  # fmt: skip
        op = Op("_C::silu_and_mul", ((tokens, self.mlp), (tokens, 2 * self.mlp)))
        views = (Op("aten::empty", (), (f"[{tokens}, {self.mlp}]", "15", "", "", "False", "")),)
        return [Launch(frames, (op,), views, "cudaLaunchKernel", kernel)]

    def _offload(self, index: int) -> Launch:
        size = 2 * self.shape.tokens * self.kv * self.width
        ops = (Op("aten::copy_", ((self.shape.tokens, 2 * self.kv), (self.shape.tokens, 2 * self.kv)), ("True",)),)
        copy = copy_kernel("DtoH (Device -> Pinned)", size)
        frames = (f"vllm/v1/kv_offload/worker.py({200 + index}): store",)
        return Launch(frames, ops, (), "cudaMemcpyAsync", copy, stream="copy", after="compute")

    def _all_reduce(self, rows: int) -> Launch:
        elements = rows * self.model.hidden
        return self._collective(
            "all_reduce", "allreduce_", (rows, self.model.hidden), Collective("allreduce", elements, elements)
        )

    def _all_gather(self, rows: int) -> Launch:
        share = self.model.vocab // self.run.ranks
        collective = Collective("_allgather_base", rows * share, rows * share * self.run.ranks)
        return self._collective("all_gather", "_allgather_base_", (rows, share), collective)

    def _collective(self, function: str, op: str, shape: Shape, collective: Collective) -> Launch:
        kernel = nccl_kernel(self.device, self.run.ranks, collective, self.width)
        ops = tuple(Op(name, (shape,)) for name in (f"vllm::{function}", f"c10d::{op}", "record_param_comms"))
        frames = (f"vllm/distributed/communication_op.py(12): tensor_model_parallel_{function}",)
        return Launch(frames, ops, (), "cudaLaunchKernelExC", kernel, stream="comm", after="compute")
