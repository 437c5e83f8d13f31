"""What this torch can, which GPU and rank this process has, and how much memory it takes."""

from __future__ import annotations

import contextlib
import functools
import glob
import sys
import types
from typing import Any

_GPUS = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")  # NVIDIA, AMD, WSL


def wants_gpu(torch: Any, activities: list[str] | None) -> bool:
    """Whether recording is to wait for the process to use a GPU.

    Not by torch.cuda.is_available(), which may initialise the driver, after which no worker may be forked.
    """
    return built_for_gpu(torch) and (activities is None or "cuda" in activities) and any(map(glob.glob, _GPUS))


def knows(torch: Any, setting: str) -> bool:
    """Whether this torch has a setting of the profiler."""
    return setting in (torch._C._profiler._ExperimentalConfig.__init__.__doc__ or "")


def built_for_gpu(torch: Any) -> bool:
    """Whether this torch is built for CUDA or ROCm."""
    return torch.version.cuda is not None or torch.version.hip is not None


def choose_device(torch: Any) -> None:
    """Set this thread's device to one that the process uses.

    The profiler waits for the current device, which is 0 in a new thread: there, each rank would make a context of its
    own on the first GPU, some hundred MB each, and wait for the wrong one.
    """
    with contextlib.suppress(Exception):
        used = [number for number in range(torch.cuda.device_count()) if torch._C._cuda_hasPrimaryContext(number)]
        if used and torch.cuda.current_device() not in used:
            torch.cuda.set_device(used[0])


class Rank:
    """Rank and number of ranks of this process in torch.distributed, None as long as it has not taken part.

    It is known only while the process group is there, and a program may destroy that before it ends.
    """

    def __init__(self, torch: Any) -> None:
        self.distributed = getattr(torch, "distributed", None)
        self.rank: int | None = None
        self.world_size: int | None = None
        destroy = getattr(self.distributed, "destroy_process_group", None)
        if destroy is None:
            return

        @functools.wraps(destroy)
        def note_then_destroy(*arguments: Any, **keywords: Any) -> Any:
            self.note()
            return destroy(*arguments, **keywords)

        vars(self.distributed)["destroy_process_group"] = note_then_destroy

    def note(self) -> None:
        """Look again."""
        distributed = self.distributed
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self.rank, self.world_size = distributed.get_rank(), distributed.get_world_size()


def own_memory() -> int:
    """Bytes of memory that are this process's own: files it has mapped do not count."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            found = next((line for line in file if line.startswith("RssAnon:")), "0 0 kB")
        return int(found.split()[1]) * 1024
    except OSError:
        import resource
        import sys

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def prepare(torch: Any, profiler: Any) -> None:
    """profiler.prepare_trace(), without the import of torch._inductor.

    That looks one setting up there, which nobody has changed before it is imported; and it imports 800 modules, which
    takes a second, and reads variables that the program may not have set yet.
    """
    if "torch._inductor" in sys.modules:
        profiler.prepare_trace()
        return

    class Torch:
        def __getattr__(self, name: str) -> Any:
            if name == "_inductor":
                raise AttributeError(name)
            return getattr(torch, name)

    method = type(profiler).prepare_trace
    names = {**method.__globals__, "torch": Torch()}
    types.FunctionType(method.__code__, names, method.__name__, method.__defaults__, method.__closure__)(profiler)
