"""Work of kernels whose own op does not tell it: rows of mapped_work and measured_work, from each source that has any.

First what a trace given with --capture-trace lends, then what the trace itself captured, then the same kernel elsewhere
in it, then the sizes of the model: a kernel takes the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import Bools, Int64s
from tracekit.borrowed_work import KERNEL_KEY, borrowed, captured_sequences, lendable, match_replay
from tracekit.op_call import parse_call
from tracekit.roofline_tables import CALL, MAPPED, figures_of
from tracekit.wording import counted
from tracekit.work import modelled

if TYPE_CHECKING:
    from tracekit.trace import Trace

_OWN = "same kernel elsewhere in the trace"
_OTHER = "capture trace, same kernel"
_OWN_IN_ORDER = "captured in the trace, in order"
_IN_ORDER = "capture trace, in order"
_UNSURE = "window not recorded"
_TOLD_NOTHING = "no kernel or graph in it tells of any here that is without work"
_UNSIZED = "batch at which it was seen not known"
# A trace has millions of kernels of a few hundred kinds: asked once for each, by its first kernel.
_KIND = ", ".join((*KERNEL_KEY, "tokens"))
# Half of a kind takes a time between the two: of kernels that do two things by turns, one of them is another's.
_DURATIONS = "quantile_disc(dur, 0.25) AS dur_low, quantile_disc(dur, 0.75) AS dur_high"
_KINDS = f"SELECT min(id) AS id, {_KIND}, {_DURATIONS} FROM bare_kernels() GROUP BY {_KIND}"
_FIRSTS = f"SELECT id, min(id) OVER (PARTITION BY {_KIND}) AS first FROM bare_kernels()"
_LIKE = f"{_FIRSTS} QUALIFY first IN (SELECT unnest($wanted))"
_FIGURES = [name for name in MAPPED.names if name not in ("id", "how")]
REMARKS = pa.schema([("source", pa.string()), ("remark", pa.string()), ("steps", pa.int64())])
MEASURED = pa.schema(
    [
        *((name, pa.string()) for name in ("kernel", "op", "shapes", "dtypes")),
        ("bytes", pa.int64()),
        ("flops", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Lent:
    """Rows of mapped_work, one a kernel at most, of measured_work, one for each kernel and call, and of
    lending_remarks.
    """

    mapped: pa.Table
    measured: pa.Table
    remarks: pa.Table


def lent_work(trace: Trace) -> Lent:
    """All that there is. All tables at once: other traces may have to be converted to be asked."""
    bare = trace.sql(_KINDS)
    mapped: list[pa.Table] = []
    measured: list[pa.Table] = []
    remarks = _Remarks([])
    for path in trace.beside.captures:
        with trace.beside_it(path) as other:
            said = remarks.of(str(path))
            mapped += [_in_order(trace, other, said), _lent(trace, other, bare, said)]
            measured.append(other.sql("FROM range_work()"))
            if not any(map(len, (*mapped[-2:], measured[-1]))):
                said.add(_TOLD_NOTHING)
    mapped.append(_in_order(trace, trace))
    if len(bare):
        mapped.append(_lent(trace, trace, bare))
    if trace.beside.model is not None:
        mapped.append(_of_model(trace, remarks.of("model")))
    elif trace.beside.tensor_parallel is not None:
        remarks.of("tensor parallel").add("it divides the sizes of a model, and no --model was given: not used")
    return Lent(_first_of_each(_surest(trace, mapped)), _measured(measured), remarks.table())


@dataclass(frozen=True, slots=True)
class _Remarks:
    """Rows of lending_remarks; those that are added are of `source`."""

    rows: list[dict[str, Any]]
    source: str = ""

    def of(self, source: str) -> _Remarks:
        return _Remarks(self.rows, source)

    def add(self, remark: str, steps: int | None = None) -> None:
        self.rows.append({"source": self.source, "remark": remark, "steps": steps})

    def table(self) -> pa.Table:
        return pa.Table.from_pylist(self.rows, schema=REMARKS)


def _surest(trace: Trace, tables: list[pa.Table]) -> list[pa.Table]:
    """In the order in which they are believed. What a model with windows says of attention goes before what an op told
    that knows of none.
    """
    if trace.beside.model is None or not any(trace.beside.model.windows):
        return tables
    *lent, of_model = tables
    unsure = [pc.match_substring(table["notes"], _UNSURE) for table in lent]
    sure = [table.filter(pc.invert(found)) for table, found in zip(lent, unsure, strict=True)]
    return [*sure, of_model, *(table.filter(found) for table, found in zip(lent, unsure, strict=True))]


def _first_of_each(tables: list[pa.Table]) -> pa.Table:
    together = pa.concat_tables([table.select(MAPPED.names).cast(MAPPED) for table in tables])
    _, first = np.unique(together["id"].to_numpy(), return_index=True)
    return together.take(pa.array(first))


def _measured(tables: list[pa.Table]) -> pa.Table:
    rows = {
        tuple(row[name] for name in ("kernel", "op", "shapes", "dtypes")): row
        for table in reversed(tables)
        for row in table.select(MEASURED.names).to_pylist()
    }
    return pa.Table.from_pylist(list(rows.values()), schema=MEASURED)


# ---- the same kernel -------------------------------------------------------------------------------------------------


def _lent(trace: Trace, lender: Trace, bare: pa.Table, remarks: _Remarks | None = None) -> pa.Table:
    """What kernels of the lender tell of those of the trace without evidence that have their name and geometry. bare:
    the first of each kind.
    """
    rows = lender.sql("FROM lending_kernels()")
    taken = borrowed(bare, lendable(rows.select([*KERNEL_KEY, "work", "by_load", "tokens", "dur"])))
    timely = taken["timely"]
    if remarks is not None and (other := len(taken) - pc.sum(timely).as_py() if len(taken) else 0):
        remarks.add(f"{counted(other, 'kind')} of kernels took another time there: not lent")
    taken = taken.filter(timely).drop_columns(["timely"])
    if not len(taken):
        return MAPPED.empty_table()
    figures = rows.filter(pc.is_valid(rows["work"])).select(["work", *_FIGURES])
    _, first = np.unique(figures["work"].to_numpy(), return_index=True)
    found = taken.join(figures.take(pa.array(first)), keys="work", join_type="inner")
    notes = pc.if_else(found["sized"], found["notes"], pc.binary_join_element_wise(found["notes"], _UNSIZED, ", "))
    found = found.set_column(found.column_names.index("notes"), "notes", pc.utf8_ltrim(notes, ", "))
    found = found.append_column("how", pa.array([_OWN if lender is trace else _OTHER] * len(found)))
    kernels = trace.sql(_LIKE, {"wanted": found["id"].to_pylist()})
    return kernels.join(found.rename_columns({"id": "first"}), keys="first", join_type="inner")


# ---- a captured graph ------------------------------------------------------------------------------------------------


def _in_order(trace: Trace, lender: Trace, remarks: _Remarks | None = None) -> pa.Table:
    """What the launches of the lender's captures tell, place by place, of replays in the trace."""
    calls = lender.sql("FROM captured_calls()")
    replayed = trace.sql("FROM replayed_rows() ORDER BY id")
    if not len(calls) or not len(replayed):
        return MAPPED.empty_table()
    asked, numbered = _numbered(calls)
    matched = match_replay(_sized(captured_sequences(numbered), asked), replayed)
    matches = matched.matches
    if remarks is not None:
        for reason, replays in Counter(matched.refused["reason"].to_pylist()).items():
            remarks.add(f"{counted(replays, 'replay')} of graphs not told: {reason}")
    rows = replayed.take(pa.array(np.searchsorted(replayed["id"].to_numpy(), matches["id"].to_numpy())))
    kept = pa.array(_doers(matches, rows))
    found = _figured(trace, asked, matches.filter(kept)["work"], rows.filter(kept))
    return found.append_column("how", pa.array([_OWN_IN_ORDER if lender is trace else _IN_ORDER] * len(found)))


def _doers(matches: pa.Table, rows: pa.Table) -> Bools:
    """Rows that do all that their op does: its only one, or its only kernel but for those that stand beside (what adds
    up the parts of a split product). What a copy moves is recorded, whatever its op.
    """
    known = pc.is_valid(matches["work"]).to_numpy()
    _, replays = np.unique(rows["launch_id"].to_numpy(), return_inverse=True)
    _, calls = np.unique(pc.fill_null(matches["op_id"], -1).to_numpy(), return_inverse=True)
    _, call = np.unique(replays * (len(matches) + 1) + calls, return_inverse=True)
    takes = known & rows["is_kernel"].to_numpy() & ~rows["is_beside"].to_numpy()
    started, takers = np.bincount(call), np.bincount(call, takes)
    doers: Bools = known & rows["is_kernel"].to_numpy() & ((started[call] == 1) | (takes & (takers[call] == 1)))
    return doers


def _figured(trace: Trace, asked: list[Mapping[str, Any]], work: pa.ChunkedArray, rows: pa.Table) -> pa.Table:
    """Work of rows (id, rank, step) that do the calls of these numbers, without those that nobody knows. What depends
    on the load is that of the row's step. Asked once for each call and load: a trace has many replays of few graphs.
    """
    loads = {(row["rank"], row["step"]): row["load"] for row in trace.sql("FROM step_loads()").to_pylist()}
    by_load = modelled({call["name"] for call in asked})
    first, place = _alike(work, rows, [by_load.get(call["name"], False) for call in asked])
    known: dict[tuple[int, tuple[int | None, ...]], dict[str, Any] | None] = {}
    told: list[dict[str, Any]] = []
    row_of = np.full(len(first), -1)
    for number, at in enumerate(first.tolist()):
        call = asked[work[at].as_py()]
        load = loads.get((rows["rank"][at].as_py(), rows["step"][at].as_py()), [])
        key = work[at].as_py(), tuple(load if by_load.get(call["name"]) else ())
        if key not in known:
            known[key] = figures_of({**call, "load": list(key[1])})
        if (figures := known[key]) is not None:
            row_of[number] = len(told)
            told.append({"part": call["name"], **figures})
    taken = row_of[place]
    figured = pa.Table.from_pylist(told, schema=pa.schema([MAPPED.field(name) for name in _FIGURES]))
    ids = rows["id"].filter(pa.array(taken >= 0))
    return figured.take(pa.array(taken[taken >= 0])).add_column(0, "id", ids)


def _alike(work: pa.ChunkedArray, rows: pa.Table, by_load: list[bool]) -> tuple[Int64s, Int64s]:
    """The first of rows of the same work, and of the same step where that depends on the load; of each, which it is."""
    calls = work.to_numpy().astype(np.int64)
    step = pc.fill_null(rows["step"], -1).to_numpy().astype(np.int64)
    _, steps = np.unique(rows["rank"].to_numpy().astype(np.int64) << 32 | step & 0xFFFFFFFF, return_inverse=True)
    depends = np.array(by_load, bool)[calls]
    _, first, place = np.unique(
        calls * (len(rows) + 1) + np.where(depends, steps + 1, 0), return_index=True, return_inverse=True
    )
    return first, place


def _numbered(calls: pa.Table) -> tuple[list[Mapping[str, Any]], pa.Table]:
    """Distinct calls of ops, and the launches with the number of theirs as `work` and the op that tells it as op_id."""
    numbers: dict[tuple[Any, ...], int] = {}
    work: list[int | None] = []
    for row in calls.to_pylist():
        key = (row["op_name"], *(row[name] for name in CALL[1:]))
        work.append(None if row["op_name"] is None else numbers.setdefault(key, len(numbers)))
    asked: list[Mapping[str, Any]] = [dict(zip(CALL, key, strict=True)) for key in numbers]
    kept = calls.drop_columns(["op_id"]).append_column("op_id", calls["call_id"])
    kept = kept.append_column("work", pa.array(work, pa.int64()))
    return asked, kept.append_column("tokens", pa.nulls(len(calls), pa.int64()))


def _sized(sequences: pa.Table, asked: list[Mapping[str, Any]]) -> pa.Table:
    """The batch of each capture, where most of its products agree in their number of rows."""
    rows = sequences.to_pylist()
    size_of = [_rows_of_product(call) for call in asked]
    sizes: dict[int, Counter[int]] = {}
    for row in rows:
        if row["work"] is not None and (size := size_of[row["work"]]) is not None:
            sizes.setdefault(row["sequence"], Counter())[size] += 1
    batch = {number: counts.most_common(1)[0][0] for number, counts in sizes.items() if _agree(counts)}
    tokens = pa.array([batch.get(row["sequence"]) for row in rows], pa.int64())
    return sequences.set_column(sequences.column_names.index("tokens"), "tokens", tokens)


def _agree(counts: Counter[int]) -> bool:
    """The product with the vocabulary may have fewer rows."""
    return counts.most_common(1)[0][1] > counts.total() / 2


def _rows_of_product(call: Mapping[str, Any]) -> int | None:
    place = {"aten::mm": 0, "aten::addmm": 1}.get(call["name"])
    if place is None:
        return None
    left = parse_call(call["name"], call["shapes"], call["dtypes"], None, None).tensor(place)
    return left.shape[0] if left is not None and len(left.shape) == 2 else None


# ---- the model -------------------------------------------------------------------------------------------------------


def _of_model(trace: Trace, remarks: _Remarks) -> pa.Table:
    from tracekit.config_check import doubt
    from tracekit.config_layers import Layers
    from tracekit.config_work import config_work

    assert trace.beside.model is not None
    devices = trace.beside.tensor_parallel
    assumed = devices is None
    if devices is None:
        devices = max((source.world_size or 1 for source in trace.footer.sources), default=1)
    rows = trace.sql("FROM config_rows()")
    told = (tuple(row.values()) for row in trace.sql("SELECT name, shapes FROM telling_ops()").to_pylist())
    if why := doubt(Layers(trace.beside.model, devices), told, _products(rows)):
        remarks.add(f"{why}: not used")
        return MAPPED.empty_table()
    worked = config_work(rows, trace.beside.model, devices)
    found = worked.work
    for why, steps in worked.unused.items():
        remarks.add(f"{why}: not used", steps)
    if not len(found) and not worked.unused:
        remarks.add("no step has kernels whose ops leave their work open: not used")
    if not assumed or devices == 1:
        return found
    notes = pc.binary_join_element_wise(found["notes"], f"tensor parallel over {devices} assumed", ", ")
    return found.set_column(found.column_names.index("notes"), "notes", pc.utf8_ltrim(notes, ", "))


def _products(rows: pa.Table) -> list[tuple[str, str]]:
    """Name and subcategory of the kernels of products."""
    products = rows.filter(pc.is_in(rows["category"], pa.array(["gemm", "moe"])))
    kinds = products.group_by(["name", "subcategory"]).aggregate([]).to_pylist()
    return [(row["name"], row["subcategory"]) for row in kinds]
