"""Which runs of element-wise kernels would a compiler make one? Those that no pattern of the catalogue has taken.

PyTorch's own kernels and those that torch.compile made, of as many elements each, one reading what another wrote; the
last may reduce what they made. Kernels of libraries are closed to a compiler.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tracekit.fusion_evidence import is_same
from tracekit.fusion_inputs import Flow
from tracekit.fusion_match import Match, Scene
from tracekit.fusion_patterns import Work
from tracekit.op_call import Tensor

PATTERN = "pointwise_chain"
_REMEMBERED = 16  # tensors that a run wrote, which a later kernel of it may read
_FAMILIES = frozenset(
    ("elementwise", "activation", "norm", "reduction", "rope", "quant", "softmax", "fused_pointwise", "random")
)
_LAST = frozenset(("norm", "reduction", "softmax"))
_OPEN = re.compile(r"_at_native_|^_triton_(?:poi|red|per)_fused_")
_COMPILED = re.compile(r"^_triton_(?:poi|red|per)_fused_")
_CLOSED = re.compile(r"_multi_tensor_apply_|_backward|_cub_|_sort|_topk|_scan|_arg_?(?:max|min)_")


@dataclass(slots=True)
class _Run:
    """Rows so far, and what they wrote last."""

    rows: list[int] = field(default_factory=list)
    written: deque[Tensor] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


def chains(scene: Scene) -> Iterator[Match]:
    """Maximal runs of at least two kernels."""
    for lane in scene.lanes:
        run = _Run()
        for row, cut in zip(lane.rows.tolist(), lane.cut.tolist(), strict=True):
            if run.rows and (cut or not _goes_on(scene, run, row)):
                yield from _whole(scene, run)
                run = _Run()
            if not scene.taken[row] and _is_fusible(scene.work(row)):
                _add(scene, run, row)
        yield from _whole(scene, run)


def is_compiled(scene: Scene, match: Match) -> bool:
    """Whether a compiler has been at it already: that it left several kernels may have a reason."""
    return any(_COMPILED.search(scene.work(row).name) for row in match.rows)


def _whole(scene: Scene, run: _Run) -> Iterator[Match]:
    if len(run.rows) > 1:
        yield Match(tuple(run.rows))


def _add(scene: Scene, run: _Run, row: int) -> None:
    run.rows.append(row)
    flow = _flow(scene, row)
    run.written.extend(() if flow is None else flow.writes)


def _is_fusible(work: Work) -> bool:
    return (
        work.category in _FAMILIES
        and bool(_OPEN.search(work.name))
        and not _CLOSED.search(work.name)
        and work.subcategory not in ("fill", "backward", "scan", "sort", "topk", "argmax")
    )


def _ends(work: Work) -> bool:
    return work.category in _LAST


def _goes_on(scene: Scene, run: _Run, row: int) -> bool:
    """Whether a row belongs to a run: it has as many elements, and reads what one of the run wrote."""
    last = run.rows[-1]
    if scene.taken[row] or _ends(scene.work(last)) or not _is_fusible(scene.work(row)):
        return False
    flow, before = _flow(scene, row), _flow(scene, last)
    if flow is None or before is None:
        return _as_large(scene, last, row)
    reads = any(is_same(written, read) for read in flow.reads for written in run.written)
    return reads and (_ends(scene.work(row)) or _size(flow) == _size(before))


def _flow(scene: Scene, row: int) -> Flow | None:
    return scene.inputs.flow(int(scene.step.rows.id[row]))


def _size(flow: Flow) -> int:
    return max((one.elements for one in flow.writes), default=0)


def _as_large(scene: Scene, one: int, other: int) -> bool:
    ids = scene.step.rows.id
    first, second = scene.inputs.threads(int(ids[one])), scene.inputs.threads(int(ids[other]))
    return first > 0 and first == second
