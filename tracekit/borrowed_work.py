"""What can a trace with shapes tell of the same kernels in a trace without them?

Two ways. A kernel (name, grid, block) that did one thing wherever an op with shapes launched it does that elsewhere.
And the calls between cudaStreamBeginCapture and cudaStreamEndCapture are, in order, the kernels of each replay of that
graph: this needs no device rows in the capture trace. Both refuse what is not certain; nothing is guessed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import Int64s
from tracekit.kernel_names import name_forms

KERNEL_KEY = ("name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_AS_LONG = 1.5  # times as long is still the same
_SHORT_NS = 5000.0
_BEGIN = ("cudaStreamBeginCapture", "hipStreamBeginCapture", "cuStreamBeginCapture")
_END = ("cudaStreamEndCapture", "hipStreamEndCapture", "cuStreamEndCapture")
SEQUENCES = pa.schema(
    [
        ("sequence", pa.int64()),
        ("position", pa.int64()),
        ("launch_id", pa.int64()),
        ("op_id", pa.int64()),
        ("kernel", pa.string()),
        ("work", pa.int64()),
        ("tokens", pa.int64()),
    ]
)
MATCHES = pa.schema(
    [
        ("id", pa.int64()),
        ("sequence", pa.int64()),
        ("position", pa.int64()),
        ("op_id", pa.int64()),
        ("work", pa.int64()),
    ]
)
REFUSALS = pa.schema([("launch_id", pa.int64()), ("reason", pa.string())])


def lendable(rows: pa.Table) -> pa.Table:
    """Kernels that do one thing wherever it is known what they do: KERNEL_KEY, work, tokens_low, tokens_high, dur_low,
    dur_high.

    rows: device rows with op evidence, alike ones at least once: KERNEL_KEY; work BIGINT, equal for rows of equal work
    (any key of its figures); by_load BOOLEAN, the work depends on the lengths of sequences; tokens BIGINT, new tokens
    of the row's step, NULL where unknown; dur BIGINT, how long they mostly take.

    Not lent: work by load; kernels without geometry (graph replays on AMD), whose name alone says too little; kernels
    that did different things. A kernel that sizes its grid by the device, not by the work, is the same for a batch of
    16 and of 32: so the answer says at which sizes of step its work was seen, and `borrowed` keeps to these.
    """
    rows = rows.filter(pc.is_valid(rows.column("grid_x")))
    wanted = rows.select([*KERNEL_KEY, "work", "by_load", "tokens", "dur"])
    loads = pc.fill_null(wanted.column("by_load"), True)
    known = pc.cast(pc.is_valid(wanted.column("tokens")), pa.int64())
    wanted = wanted.set_column(wanted.column_names.index("by_load"), "by_load", pc.cast(loads, pa.int64()))
    grouped = wanted.append_column("known", known).group_by([*KERNEL_KEY], use_threads=False)
    found = grouped.aggregate(
        [
            ("work", "min"),
            ("work", "max"),
            ("work", "count"),
            ("by_load", "max"),
            ("tokens", "min"),
            ("tokens", "max"),
            ("known", "min"),
            ("known", "count"),
            ("dur", "min"),
            ("dur", "max"),
        ]
    )
    one = pc.and_(
        pc.and_(pc.equal(found.column("work_min"), found.column("work_max")), pc.equal(found.column("by_load_max"), 0)),
        pc.equal(found.column("work_count"), found.column("known_count")),
    )
    found = found.filter(one)
    # Seen once outside all steps, it may have been of any size.
    sized = pc.equal(found.column("known_min"), 1)
    nothing = pa.scalar(None, pa.int64())
    return pa.table(
        {
            **{name: found.column(name) for name in KERNEL_KEY},
            "work": found.column("work_min"),
            "tokens_low": pc.if_else(sized, found.column("tokens_min"), nothing),
            "tokens_high": pc.if_else(sized, found.column("tokens_max"), nothing),
            "dur_low": found.column("dur_min"),
            "dur_high": found.column("dur_max"),
        }
    )


def borrowed(rows: pa.Table, lent: pa.Table) -> pa.Table:
    """Work for rows without evidence: id BIGINT, work BIGINT, sized BOOLEAN, timely BOOLEAN.

    rows: kinds of kernels: id BIGINT of one, KERNEL_KEY, tokens BIGINT (of their step, NULL where unknown), dur_low and
    dur_high BIGINT: how long most of them take, between these. lent: from `lendable`. A kind borrows where its step's
    size is between those at which the kernel's work was seen. Where it is not known at which these were, sized is
    false: the same kernel may have done more or less for another batch. Where only the row's is not known, the kernel
    must have done the same at several.

    Where timely is false it does not do the same: the depth of a product is not in its grid, but in its time.
    """
    names = [*KERNEL_KEY]
    lent = lent.select([*names, "work", "tokens_low", "tokens_high", "dur_low", "dur_high"])
    lent = lent.rename_columns([f"lent_{name}" if name.startswith("dur") else name for name in lent.column_names])
    rows = rows.select(["id", *names, "tokens", "dur_low", "dur_high"]).filter(pc.is_valid(rows.column("grid_x")))
    found = rows.join(lent, keys=names, join_type="inner")
    low, high, tokens = (found.column(name) for name in ("tokens_low", "tokens_high", "tokens"))
    inside = pc.fill_null(pc.and_(pc.less_equal(low, tokens), pc.less_equal(tokens, high)), False)
    at_any = pc.fill_null(pc.or_kleene(pc.is_null(low), pc.and_(pc.is_null(tokens), pc.less(low, high))), False)
    found = found.append_column("sized", inside).append_column("timely", _timely(found))
    return found.filter(pc.or_(inside, at_any)).select(["id", "work", "sized", "timely"]).sort_by("id")


def _timely(found: pa.Table) -> pa.ChunkedArray:
    """Whether rows take as long as where their work was seen. Of short ones starting is most of it."""
    low, high, lent_low, lent_high = (
        pc.max_element_wise(pc.cast(found.column(name), pa.float64()), _SHORT_NS)
        for name in ("dur_low", "dur_high", "lent_dur_low", "lent_dur_high")
    )
    not_longer = pc.less_equal(high, pc.multiply(lent_high, _AS_LONG))
    return pc.and_(not_longer, pc.less_equal(lent_low, pc.multiply(low, _AS_LONG)))


# ---- captured graphs -------------------------------------------------------------------------------------------------


def captured_sequences(calls: pa.Table) -> pa.Table:
    """Launches that were captured, in order: SEQUENCES, a sequence for each graph.

    calls: launch rows (kind `launch`) by any order with id, rank, pid, tid, ts, name, op_id; starts BOOLEAN (it starts
    device work: kernel launches, copies, sets); kernel VARCHAR, what it launches, NULL or '' where the profiler does
    not say (CUDA); work BIGINT, of the op around it, NULL if unknown; tokens BIGINT, size of the batch that is
    captured, NULL if unknown. A capture stands on one thread. One that has no end or begins again is left out.
    """
    columns = ["id", "rank", "pid", "tid", "ts", "name", "op_id", "starts", "kernel", "work", "tokens"]
    ordered = calls.select(columns).sort_by([(name, "ascending") for name in ("rank", "pid", "tid", "ts", "id")])
    found: list[dict[str, Any]] = []
    for number, captured in enumerate(_captures(ordered.to_pylist())):
        for position, call in enumerate(captured):
            texts = {"kernel": call["kernel"] or "", "launch_id": call["id"]}
            kept = {name: call[name] for name in ("op_id", "work", "tokens")}
            found.append({"sequence": number, "position": position, **texts, **kept})
    return pa.Table.from_pylist(found, SEQUENCES)


def _captures(calls: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """The launches of each complete capture."""
    open_captures: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for call in calls:
        thread = (call["rank"], call["pid"], call["tid"])
        name = str(call["name"])
        if name.startswith(_BEGIN):
            open_captures[thread] = []
        elif name.startswith(_END):
            if captured := open_captures.pop(thread, None):
                yield captured
        elif thread in open_captures and call["starts"]:
            open_captures[thread].append(call)


@dataclass(frozen=True, slots=True)
class Replayed:
    """matches: MATCHES, what each kernel of a replay does. refused: REFUSALS, replays that fit no capture, and why."""

    matches: pa.Table
    refused: pa.Table


def match_replay(sequences: pa.Table, replays: pa.Table) -> Replayed:
    """Kernels of replayed graphs by their place in a captured sequence.

    sequences: from `captured_sequences`. replays: device rows that one graph launch started: id, launch_id, ts,
    graph_node_id (NULL where not recorded), name, tokens BIGINT (of the step, NULL where unknown). In order of nodes,
    else of time. A capture fits a replay that has as many rows, of the same kernels where the capture says them.
    Servers capture one graph for each of many batch sizes, and all have as many kernels: the smallest that holds the
    step's tokens is taken; where sizes are unknown, one only if all that fit have the same work.
    """
    captured: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in sequences.to_pylist():
        captured[row["sequence"]].append(row)
    by_length: dict[int, list[list[dict[str, Any]]]] = defaultdict(list)
    for calls in captured.values():
        by_length[len(calls)].append(calls)
    replays = replays.filter(pc.is_valid(replays.column("launch_id")))
    chosen: dict[tuple[bytes, int | None], _Chosen | str] = {}
    ids, found, refused = [], [], []
    for launch, at, codes, names, tokens in _replays(replays):
        # Replays of one graph are alike: each kind is looked up once.
        key = (codes.tobytes(), tokens)
        if key not in chosen:
            chosen[key] = _choose(by_length.get(len(at), []), [names[code] for code in codes.tolist()], tokens)
        if isinstance(one := chosen[key], str):
            refused.append({"launch_id": launch, "reason": one})
        else:
            ids.append(at)
            found.append(one.rows)
    matches = MATCHES.empty_table()
    if found:
        matches = pa.concat_tables(found).add_column(0, "id", pa.array(np.concatenate(ids)))
    return Replayed(matches, pa.Table.from_pylist(refused, REFUSALS))


def _replays(rows: pa.Table) -> Iterator[tuple[int, Int64s, Int64s, list[str], int | None]]:
    """Of each launch: its rows' ids and names (as codes) in order, and the step's tokens."""
    if not len(rows):
        return
    column = rows.column("name").cast(pa.string()).combine_chunks().dictionary_encode()
    column = column if isinstance(column, pa.DictionaryArray) else column.combine_chunks()
    names: list[str] = column.dictionary.to_pylist()
    codes = column.indices.to_numpy().astype(np.int64)
    ids, launch, time, node, tokens = (
        rows.column(name).cast(pa.int64()).fill_null(-1).to_numpy()
        for name in ("id", "launch_id", "ts", "graph_node_id", "tokens")
    )
    _, numbers = np.unique(launch, return_inverse=True)
    without = np.bincount(numbers, node < 0) > 0
    order = np.lexsort((ids, time, np.where(without[numbers], time, node), launch))
    starts = np.flatnonzero(np.diff(launch[order], prepend=launch[order[0]] - 1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        at = order[start:end]
        size = int(tokens[at[0]])
        yield int(launch[at[0]]), ids[at], codes[at], names, size if size >= 0 else None


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What each kernel of a replay does: MATCHES without the ids."""

    rows: pa.Table


def _choose(candidates: Sequence[list[dict[str, Any]]], names: Sequence[str], tokens: int | None) -> _Chosen | str:
    """The capture of a replay, or why there is none."""
    if not candidates:
        return "no capture has as many kernels"
    fitting = [one for one in candidates if _same_kernels(one, names)]
    if not fitting:
        return "the captures' kernels have other names"
    sizes = {_tokens(one) for one in fitting}
    if tokens is not None and None not in sizes:
        holding = [size for size in sizes if size is not None and size >= tokens]
        if not holding:
            return "every capture is of a smaller batch"
        fitting = [one for one in fitting if _tokens(one) == min(holding)]
    if len({tuple(row["work"] for row in one) for one in fitting}) > 1:
        return "several captures fit, and their work differs"
    return _Chosen(pa.Table.from_pylist(fitting[0], pa.schema([MATCHES.field(at) for at in range(1, len(MATCHES))])))


def _tokens(captured: Sequence[Mapping[str, Any]]) -> int | None:
    """The batch of a capture, None where its launches do not agree."""
    sizes = {row["tokens"] for row in captured}
    return sizes.pop() if len(sizes) == 1 else None


def _same_kernels(captured: Sequence[Mapping[str, Any]], names: Sequence[str]) -> bool:
    return all(
        not row["kernel"] or row["kernel"] == name or _function(row["kernel"]) == _function(name)
        for row, name in zip(captured, names, strict=True)
    )


@lru_cache(maxsize=4096)
def _function(name: str) -> str:
    """Only the function: a runtime's own text for a kernel may be mangled, and a replay's is not."""
    return name_forms(name).function
