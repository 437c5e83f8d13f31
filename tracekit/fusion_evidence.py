"""Does each kernel of a match really read what one before it wrote? And how many bytes would one kernel leave out?

Grades, as the table has them: A where the schemas of the ops say which tensor they write, B where what they write
follows from their inputs; both only if a later kernel takes a tensor of that size and type. C: nothing was recorded,
they follow each other. Where everything was recorded and some kernel takes nothing from the others, they are no match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tracekit.arrays import Int64s
from tracekit.fusion_inputs import Flow, Inputs
from tracekit.fusion_match import Match
from tracekit.op_call import Tensor

Grade = Literal["A", "B", "C"]
_REMEMBERED = 64  # tensors read already that a later row may read again


@dataclass(frozen=True, slots=True)
class Evidence:
    """removed_low, removed_high: bytes that would not be moved, at least and at most; None where shapes do not tell.
    moved: bytes that all kernels of the match move, None where a model is missing."""

    grade: Grade
    removed_low: int | None = None
    removed_high: int | None = None
    moved: int | None = None


@dataclass(frozen=True, slots=True)
class _Edge:
    """A tensor that one row writes and a later one reads."""

    writer: int
    reader: int
    written: Tensor
    read: Tensor
    certain: bool


def evidence_of(match: Match, row_ids: Int64s, inputs: Inputs) -> Evidence | None:
    """The evidence of a match, None where what was recorded speaks against it. row_ids: of all rows of the step."""
    ids = [int(row_ids[row]) for row in match.rows]
    flows = [inputs.flow(id) for id in ids]
    edges = _edges(flows)
    known = [flow is not None for flow in flows]
    if not _is_connected(len(flows), edges, known):
        return None
    if not all(known):
        return Evidence("C")
    kept = {place for place, row in enumerate(match.rows) if row in match.kept}
    removed = _removed(edges, flows, kept)
    sizes = [inputs.moved(id) for id in ids]
    moved = None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)
    grade: Grade = "A" if all(edge.certain for edge in edges) else "B"
    if removed is None:
        return Evidence(grade, moved=moved)
    return Evidence(grade, *removed, moved)


def is_same(written: Tensor, read: Tensor) -> bool:
    """Whether two recorded tensors may be one: as many elements of one type; the shape may be another (a view), but the
    same shape with other strides is another tensor.
    """
    if written.elements != read.elements or (written.dtype and read.dtype and written.dtype != read.dtype):
        return False
    is_view = written.shape != read.shape or not written.strides or not read.strides
    return is_view or written.strides == read.strides


def _edges(flows: Sequence[Flow | None]) -> list[_Edge]:
    """For each tensor that a row reads, the latest such one that an earlier row wrote; those that nobody has read yet
    go first, for what is written is to be read. No row takes one tensor twice.
    """
    found: list[_Edge] = []
    unread: list[tuple[int, Tensor]] = []
    old: list[tuple[int, Tensor]] = []
    for at, flow in enumerate(flows):
        if flow is None:
            continue
        taken: list[tuple[int, Tensor]] = []
        for read in flow.reads:
            fits = (one for one in (*reversed(unread), *reversed(old)) if one not in taken and is_same(one[1], read))
            source = next(fits, None)
            if source is None:
                continue
            taken.append(source)
            writer = flows[source[0]]
            found.append(_Edge(source[0], at, source[1], read, writer is not None and writer.certain))
        old = [*old, *(one for one in unread if one in taken)][-_REMEMBERED:]
        left = [one for one in unread if one not in taken]
        unread = [*left, *((at, written) for written in flow.writes)][-_REMEMBERED:]
    return found


def _is_connected(count: int, edges: Sequence[_Edge], known: Sequence[bool]) -> bool:
    """Whether all rows hang together by their edges. Of what is not known, it is taken to hang on its neighbours."""
    neighbours: dict[int, set[int]] = {at: set() for at in range(count)}
    pairs = [(edge.writer, edge.reader) for edge in edges]
    pairs += [(at, at + 1) for at in range(count - 1) if not (known[at] and known[at + 1])]
    for one, other in pairs:
        neighbours[one].add(other)
        neighbours[other].add(one)
    seen, waiting = {0}, [0]
    while waiting:
        more = neighbours[waiting.pop()] - seen
        seen |= more
        waiting += more
    return len(seen) == count


def _removed(edges: Sequence[_Edge], flows: Sequence[Flow | None], kept: set[int]) -> tuple[int, int] | None:
    """Bytes of all reads of what is written in the match, and of the writes: not of those kept; of tensors that belong
    to somebody else, at most."""
    low = high = 0
    written: set[tuple[int, Tensor]] = set()
    for edge in edges:
        read, size = edge.read.bytes, edge.written.bytes
        if read is None and size is None:
            return None
        moved = read if read is not None else size or 0
        low, high = low + moved, high + moved
        if edge.writer in kept or (edge.writer, edge.written) in written:
            continue
        written.add((edge.writer, edge.written))
        flow = flows[edge.writer]
        high += size if size is not None else moved
        low += 0 if flow is None or flow.updated else size if size is not None else moved
    return low, high
