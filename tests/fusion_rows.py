"""Steps made of a list of kernels, each launched by an op of its own or all by one graph replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tracekit
from tests.event_rows import annotation, kernel, launch, op, write_trace
from tracekit.analysis import Result
from tracekit.trace import Trace

US = 1_000
EVERY = 10 * US  # from launch to launch
DECODE = "step[DECODE bs=4]"
BF16, FLOAT, FP8, LONG = '"c10::BFloat16"', '"float"', '"c10::Float8_e4m3fn"', '"long int"'
SIZE = {"grid_x": 4, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}
Row = dict[str, Any]

_POINTWISE = "void at::native::vectorized_elementwise_kernel<4, {}, std::array<char*, 3ul> >(int)"
_MUL = "at::native::binary_internal::MulFunctor<float>"
ADD = _POINTWISE.format("at::native::CUDAFunctor_add<c10::BFloat16>")
MUL = _POINTWISE.format(f"at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, {_MUL} >")
SILU, EXP = (
    _POINTWISE.format(f"at::native::{name}(at::TensorIteratorBase&)::{{lambda(c10::BFloat16)#1}}")
    for name in ("(anonymous namespace)::silu_kernel", "exp_kernel_cuda")
)
NORM = "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*)"
FUSED_NORM = "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)"
ROPE = "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)"
CACHE = "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(int)"
SGLANG_ROPE = "void (anonymous namespace)::fused_rope_kernel<true, 128l, true, __nv_bfloat16, long, 16u>(int)"
SGLANG_STORE = "void (anonymous namespace)::store_kvcache<2048l, 4, true, long>(int)"
SGLANG_BOTH = "void (anonymous namespace)::fused_rope_store_kernel<true, 128l, true, __nv_bfloat16, long, 16u>(int)"
QUANT = "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(int)"
GEMM = "nvjet_tst_64x16_64x16_4x1_v_bz_TNT"
ATTENTION = "fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP64VarSeqQ8Kv128PersistentSwapsAbForGen"


@dataclass(frozen=True, slots=True)
class Done:
    """A kernel and the op that launches it. shapes, dtypes: insides of the JSON lists."""

    name: str
    op: str = "aten::mm"
    shapes: str = ""
    dtypes: str = ""
    dur: int = 4 * US
    stream: int = 7


SCALAR = '"Scalar"'
NORM_ROW = Done(NORM, "_C::rms_norm", "[4,64],[4,64],[64],[]", f"{BF16},{BF16},{BF16},{SCALAR}")
GEMM_ROW = Done(GEMM, "aten::mm", "[4,64],[64,64]", f"{BF16},{BF16}", dur=6 * US)
ADD_ROW = Done(ADD, "aten::add", "[4,64],[4,64],[]", f"{BF16},{BF16},{SCALAR}")
SILU_ROW = Done(SILU, "aten::silu", "[4,64]", BF16)
MUL_ROW = Done(MUL, "aten::mul", "[4,64],[4,64]", f"{BF16},{BF16}")
EXP_ROW = Done(EXP, "aten::exp", "[4,64]", BF16)
ROPE_ROW = Done(
    ROPE, "_C::rotary_embedding", "[4],[4,128],[4,64],[],[512,64],[]", f"{LONG},{BF16},{BF16},{SCALAR},{BF16},{SCALAR}"
)
CACHE_ROW = Done(
    CACHE,
    "_C_cache_ops::reshape_and_cache_flash",
    "[4,1,64],[4,1,64],[99,16,1,64],[99,16,1,64],[4],[],[],[]",
    f'{BF16},{BF16},{BF16},{BF16},{LONG},"","",""',
)
QUANT_ROW = Done(QUANT, "_C::static_scaled_fp8_quant", "[4,64],[4,64],[]", f"{FP8},{BF16},{FLOAT}")


def bare(name: str, dur: int = 4 * US) -> Done:
    """A kernel of which nothing but its name was recorded."""
    return Done(name, "", dur=dur)


def rows_of(works: Sequence[Done], steps: int = 4, *, graph: bool = False, mark: str = DECODE) -> list[Row]:
    """Steps that run these kernels, launched one by one, 10 us apart (works without an op by no op), or by a graph that
    the host waits for.
    """
    rows: list[Row] = []
    add_steps(rows, works, steps, graph=graph, mark=mark)
    return rows


def add_steps(rows: list[Row], works: Sequence[Done], steps: int, *, graph: bool = False, mark: str = DECODE) -> None:
    """The same after what there is already."""
    for _ in range(steps):
        at = max((row["ts"] + row["dur"] for row in rows), default=-5 * US) + 5 * US
        (_graph_step if graph else _step)(rows, works, at, mark)


def _graph_step(rows: list[Row], works: Sequence[Done], at: int, mark: str) -> None:
    end = at + 8 * US + sum(work.dur + US for work in works)
    rows += [annotation(mark, at, end - at + 2 * US), launch(at + US, 5 * US, name="cudaGraphLaunch")]
    replay, free = len(rows), at + 8 * US
    rows.append(launch(at + 7 * US, end - at - 6 * US, name="cudaStreamSynchronize"))
    for work in works:
        rows.append(kernel(free, work.dur, name=work.name, stream=work.stream, launch_id=replay, **SIZE))
        free += work.dur + US


def _step(rows: list[Row], works: Sequence[Done], at: int, mark: str) -> None:
    end = at + len(works) * EVERY + 5 * US
    rows.append(annotation(mark, at, end - at))
    free = at
    for place, work in enumerate(works):
        ts, called = at + US + place * EVERY, {}
        if work.op:
            inputs = {"shapes": f"[{work.shapes}]", "dtypes": f"[{work.dtypes}]"} if work.shapes else {}
            rows.append(op(ts, 8 * US, name=work.op, **inputs))
            called = {"op_id": len(rows)}
        rows.append(launch(ts + 2 * US, 3 * US, **called))
        free = max(free, ts + 7 * US)
        rows.append(kernel(free, work.dur, name=work.name, stream=work.stream, launch_id=len(rows), **SIZE, **called))
        free += work.dur + US


def opened(path: Path, rows: Sequence[Row]) -> Trace:
    """The rows as a trace."""
    return tracekit.open(write_trace(path / "trace.parquet", rows))


def fused(path: Path, works: Sequence[Done], **options: Any) -> Result:
    """What fusion says of such steps."""
    with opened(path, rows_of(works, **options)) as trace:
        return trace.analyze("fusion")
