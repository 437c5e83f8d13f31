"""NVTX ranges, by which Nsight Systems sees the steps of this process. Made by the first of these there is, as for
tracekit.step (tracekit/ranges.py tells why): torch.cuda.nvtx where torch is built for a GPU, the package `nvtx`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Tuple

from .torch_facts import built_for_gpu

if TYPE_CHECKING:
    from collections.abc import Callable

_NONE = "torch is not built for CUDA, and there is no package nvtx: pip install nvtx"
_TOO_NEW = "the package nvtx {version} takes this Nsight Systems for none; pip install nvtx==0.2.11, or a newer nsys"


class Nvtx:
    """push(name) opens a range on the calling thread, pop() closes the innermost one."""

    def __init__(self, push: Callable[[str], object], pop: Callable[[], object]) -> None:
        self.push = push
        self.pop = pop


def find_nvtx(torch: Any) -> Tuple[Optional[Nvtx], str]:
    """What makes ranges here; None and why not, where nothing does."""
    if built_for_gpu(torch):
        return Nvtx(torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop), ""
    try:
        import nvtx
    except ImportError:
        return None, _NONE
    if hasattr(nvtx, "get_domain") and type(nvtx.get_domain(None)).__name__ == "DummyDomain":
        return None, _TOO_NEW.format(version=_version())
    return Nvtx(nvtx.push_range, nvtx.pop_range), ""


def _version() -> str:
    try:
        from importlib.metadata import version

        return version("nvtx")
    except Exception:
        return "installed here"
