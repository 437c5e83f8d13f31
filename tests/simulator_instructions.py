"""What a serving step is made of, for the host to execute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from tests.simulator_kernels import Kernel

Shape: TypeAlias = tuple[int, ...]
BF16 = "c10::BFloat16"
Stall: TypeAlias = Literal[
    "item", "hole", "pageable_input", "pageable_output", "allocation", "input_preparation", "bookkeeping", "python",
    "garbage", "barrier", "profiler", "dependency", "dependency_aside", "legacy_stream", "varying_shape",
]  # fmt: skip


class Typed(NamedTuple):
    """A tensor of another type than the op's."""

    dtype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Op:
    """One aten or custom op and its inputs: tensors of the op's type or of their own, scalars among or after them."""

    name: str
    tensors: tuple[Shape | Typed | str, ...] = ()
    scalars: tuple[str, ...] = ()
    dtype: str = BF16


@dataclass(frozen=True, slots=True)
class Launch:
    """Python frames around ops (outermost first) around one launch call; views are ops that launch nothing.

    stream is a role (compute, comm, copy); the kernel also waits for what the stream `after` holds by then. The
    profiler flushes a buffer for held_ns within the call. A call that is not recorded leaves no row.
    """

    frames: tuple[str, ...]
    ops: tuple[Op, ...]
    views: tuple[Op, ...]
    api: str
    kernel: Kernel
    stream: str = "compute"
    after: str = ""
    held_ns: int = 0
    recorded: bool = True


@dataclass(frozen=True, slots=True)
class Graph:
    """One cudaGraphLaunch that replays many kernels."""

    graph_id: int
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True, slots=True)
class Planted:
    """Something that keeps the host thread from launching, or the device from working, for so long."""

    stall: Stall
    ns: int


Instruction: TypeAlias = Launch | Graph | Planted
