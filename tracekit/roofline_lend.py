"""Work of kernels whose own op does not tell it: rows of mapped_work, from each source that has any.

First what a trace given with --capture-trace lends, then the same kernel elsewhere in the trace, then the sizes of the
model: a kernel takes the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.borrowed_work import KERNEL_KEY, borrowed, captured_sequences, lendable, match_replay
from tracekit.roofline_tables import CALL, MAPPED, figures_of

if TYPE_CHECKING:
    from tracekit.trace import Trace

_OWN = "same kernel elsewhere in the trace"
_OTHER = "capture trace, same kernel"
_IN_ORDER = "capture trace, in order"
_UNSIZED = "batch at which it was seen not known"
_FIGURES = [name for name in MAPPED.names if name not in ("id", "how")]


def mapped_work(trace: Trace) -> pa.Table:
    """Rows of mapped_work, one a kernel at most."""
    bare = trace.sql("FROM bare_kernels()")
    found = [table for path in trace.beside.captures for table in _of_capture(trace, path, bare)]
    if len(bare):
        found.append(_lent(trace, bare, _OWN))
    if trace.beside.model is not None:
        found.append(_of_model(trace))
    together = pa.concat_tables([table.select(MAPPED.names).cast(MAPPED) for table in found] or [MAPPED.empty_table()])
    _, first = np.unique(together["id"].to_numpy(), return_index=True)
    return together.take(pa.array(first))


def _of_capture(trace: Trace, path: Path, bare: pa.Table) -> Iterator[pa.Table]:
    from tracekit.trace import open as open_trace

    with open_trace(path) as other:
        yield _in_order(trace, other)
        yield _lent(other, bare, _OTHER)


# ---- the same kernel -------------------------------------------------------------------------------------------------


def _lent(lender: Trace, bare: pa.Table, how: str) -> pa.Table:
    """What kernels of the lender tell of those without evidence that have their name and geometry."""
    rows = lender.sql("FROM lending_kernels()")
    taken = borrowed(bare, lendable(rows.select([*KERNEL_KEY, "work", "by_load", "tokens"])))
    if not len(taken):
        return MAPPED.empty_table()
    figures = rows.select(["work", *_FIGURES])
    _, first = np.unique(figures["work"].to_numpy(), return_index=True)
    found = taken.join(figures.take(pa.array(first)), keys="work", join_type="inner")
    notes = pc.if_else(found["sized"], found["notes"], pc.binary_join_element_wise(found["notes"], _UNSIZED, ", "))
    found = found.set_column(found.column_names.index("notes"), "notes", pc.utf8_ltrim(notes, ", "))
    return found.append_column("how", pa.array([how] * len(found)))


# ---- a captured graph ------------------------------------------------------------------------------------------------


def _in_order(trace: Trace, other: Trace) -> pa.Table:
    """What the launches of the other trace's captures tell, place by place, of replays in this one. Work that depends
    on what a step works on is that of the replay's step.
    """
    calls = other.sql("FROM captured_calls()")
    if not len(calls):
        return MAPPED.empty_table()
    asked, numbered = _numbered(calls)
    sequences = _sized(captured_sequences(numbered), asked)
    matches = match_replay(sequences, trace.sql("FROM replayed_rows()")).matches
    matches = matches.filter(pc.is_valid(matches["work"]))
    loads = dict(zip(*(trace.sql("FROM replayed_loads()")[name].to_pylist() for name in ("id", "load")), strict=True))
    known: dict[tuple[int, tuple[int | None, ...]], dict[str, Any] | None] = {}
    rows: list[dict[str, Any]] = []
    for id, work in zip(matches["id"].to_pylist(), matches["work"].to_pylist(), strict=True):
        if id not in loads:  # a copy: what it moves is recorded
            continue
        key = work, tuple(loads[id])
        if key not in known:
            known[key] = figures_of({**asked[work], "load": loads[id]})
        if (figures := known[key]) is not None:
            rows.append({"id": id, "part": asked[work]["name"], "how": _IN_ORDER, **figures})
    return pa.Table.from_pylist(rows, schema=MAPPED)


def _numbered(calls: pa.Table) -> tuple[list[Mapping[str, Any]], pa.Table]:
    """Distinct calls of ops, and the launches with the number of theirs as `work`: of ops with one launch alone."""
    numbers: dict[tuple[Any, ...], int] = {}
    work: list[int | None] = []
    for row in calls.to_pylist():
        key = (row["op_name"], *(row[name] for name in CALL[1:]))
        alone = row["op_name"] is not None and row["launched"] == 1
        work.append(numbers.setdefault(key, len(numbers)) if alone else None)
    asked: list[Mapping[str, Any]] = [dict(zip(CALL, key, strict=True)) for key in numbers]
    kept = calls.append_column("work", pa.array(work, pa.int64()))
    return asked, kept.append_column("tokens", pa.nulls(len(calls), pa.int64()))


def _sized(sequences: pa.Table, asked: list[Mapping[str, Any]]) -> pa.Table:
    """The batch of each capture, where most of its products agree in their number of rows."""
    rows = sequences.to_pylist()
    sizes: dict[int, Counter[int]] = {}
    for row in rows:
        if row["work"] is not None and (size := _rows_of_product(asked[row["work"]])) is not None:
            sizes.setdefault(row["sequence"], Counter())[size] += 1
    batch = {number: counts.most_common(1)[0][0] for number, counts in sizes.items() if _agree(counts)}
    tokens = pa.array([batch.get(row["sequence"]) for row in rows], pa.int64())
    return sequences.set_column(sequences.column_names.index("tokens"), "tokens", tokens)


def _agree(counts: Counter[int]) -> bool:
    """The product with the vocabulary may have fewer rows."""
    return counts.most_common(1)[0][1] > counts.total() / 2


def _rows_of_product(call: Mapping[str, Any]) -> int | None:
    from tracekit.op_call import parse_call

    place = {"aten::mm": 0, "aten::addmm": 1}.get(call["name"])
    if place is None:
        return None
    left = parse_call(call["name"], call["shapes"], call["dtypes"], None, None).tensor(place)
    return left.shape[0] if left is not None and len(left.shape) == 2 else None


# ---- the model -------------------------------------------------------------------------------------------------------


def _of_model(trace: Trace) -> pa.Table:
    from tracekit.config_work import config_work

    assert trace.beside.model is not None
    devices = trace.beside.tensor_parallel
    assumed = devices is None
    if devices is None:
        devices = max((source.world_size or 1 for source in trace.footer.sources), default=1)
    found = config_work(trace.sql("FROM config_rows()"), trace.beside.model, devices)
    if not assumed or devices == 1:
        return found
    notes = pc.binary_join_element_wise(found["notes"], f"tensor parallel over {devices} assumed", ", ")
    return found.set_column(found.column_names.index("notes"), "notes", pc.utf8_ltrim(notes, ", "))
