"""What the roofline is drawn from, beside the trace's own rows: models of ops, their calls, peaks of the devices."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.arrays import Bools, Int64s
from tracekit.op_call import Message, parse_call
from tracekit.step_marks import Composition
from tracekit.work import Work, modelled, work_of

_LARGEST = 2**63 - 1
CALL = ("name", "shapes", "dtypes", "scalars", "args", "beside")  # as in asked_calls
_ASKED = pa.schema([*((name, pa.string()) for name in CALL), ("load", pa.list_(pa.int64()))])
_NUMBERS = (
    *("flops", "flops_expected", "flops_high", "bytes", "bytes_expected", "bytes_high"),
    *("weight_bytes", "weight_bits", "kv_bytes", "link_bytes"),
)
_WORK = pa.schema(
    [
        *_ASKED,
        ("family", pa.string()),
        ("math", pa.string()),
        *((name, pa.int64()) for name in _NUMBERS),
        ("part_categories", pa.list_(pa.string())),
        ("part_flops", pa.list_(pa.int64())),
        ("part_bytes", pa.list_(pa.int64())),
        ("by_load", pa.bool_()),
        ("notes", pa.string()),
    ]
)

MAPPED = pa.schema(
    [
        *((name, pa.int64() if name == "id" else pa.string()) for name in ("id", "part", "family", "math")),
        *((name, pa.int64()) for name in _NUMBERS),
        ("how", pa.string()),
        ("notes", pa.string()),
    ]
)


def op_models(names: Iterable[str]) -> pa.Table:
    """Rows of op_models. names: of the ops in the trace."""
    known = modelled(names)
    return pa.table({"name": pa.array(known, pa.string()), "by_load": pa.array(known.values(), pa.bool_())})


def model_calls(around: pa.Table, parents: pa.Table) -> pa.Table:
    """Rows of model_calls: of each innermost op the next one outside that has a model, itself first.

    around: op_id. parents: id (ascending), parent_id, has_model, prepares (it only copies or fills) of all host rows.
    Ops in none that has a model are left out.
    """
    start = around["op_id"].to_numpy()
    ids = parents["id"].to_numpy()
    good = parents["has_model"].to_numpy()
    outside = _next_outside(ids, parents["parent_id"].fill_null(-1).to_numpy(), good)
    place = _places(ids, start)
    call = np.where((place < 0) | good[place], place, outside[place]) if ids.size else place
    start, call = start[call >= 0], call[call >= 0]
    encloses = np.zeros(ids.size, np.bool_)
    inner = np.unique(call)
    inner = inner[~parents["prepares"].to_numpy()[inner]]
    while (inner := np.unique(outside[inner][outside[inner] >= 0])).size:
        encloses[inner] = True
    return pa.table({"op_id": start, "call_id": ids[call], "encloses": encloses[call]})


def _next_outside(ids: Int64s, parent_id: Int64s, good: Bools) -> Int64s:
    """Place of the next good row around each, -1 without one."""
    place = _places(ids, parent_id)
    # What encloses comes before: a row that claims otherwise would go in circles.
    place = np.where(place < np.arange(ids.size), place, -1)
    while (active := np.flatnonzero((place >= 0) & ~good[place])).size:
        place[active] = place[place[active]]  # a row's own place may have moved already: twice as far is as good
    return place


def _places(ids: Int64s, wanted: Int64s) -> Int64s:
    """Where each id is among ids, which ascend; -1 if it is not there."""
    if not ids.size:
        return np.full(wanted.size, -1)
    place = np.minimum(np.searchsorted(ids, wanted), ids.size - 1)
    return np.where(ids[place] == wanted, place, -1)


def op_work(asked: pa.Table) -> pa.Table:
    """Rows of op_work. asked: name, shapes, dtypes, scalars, args, load of distinct calls."""
    rows: list[dict[str, Any]] = []
    for call in asked.select(_ASKED.names).to_pylist():
        figures = figures_of(call)
        if figures is not None:
            rows.append(call | figures)
    return pa.Table.from_pylist(rows, schema=_WORK)


def figures_of(call: Mapping[str, Any]) -> dict[str, Any] | None:
    """The columns of op_work that say how much work a call is, None if nobody knows. call: a row of asked_calls."""
    work = _work(call)
    return _columns(work) if work is not None and _fits(work) else None


def load_of(values: Sequence[int | None]) -> Composition | None:
    """What step_load wrote, in the order of the fields of Composition; None if it is empty."""
    return Composition("unknown", *values) if values else None


def _work(call: Mapping[str, Any]) -> Work | None:
    name, beside = call["name"], call["beside"]
    is_message = name == "record_param_comms"
    parsed = parse_call(
        name,
        call["shapes"],
        call["dtypes"],
        call["scalars"],
        _strides(call["args"]),
        kernel="" if is_message else beside,
        message=_message(beside) if is_message else None,
    )
    return work_of(parsed, load_of(call["load"]))


def _message(beside: str) -> Message | None:
    """A collective as asked_calls writes it."""
    if not beside:
        return None
    kind, dtype, read, written, ranks = json.loads(beside)
    if None in (kind, dtype, read, written):
        return None
    return Message(str(kind), str(dtype), int(read), int(written), None if ranks is None else int(ranks))


def _strides(args: str) -> str | None:
    """The strides among the arguments, as JSON."""
    if "Input Strides" not in args:
        return None
    try:
        found = json.loads(args).get("Input Strides")
    except (ValueError, AttributeError, RecursionError):
        return None
    return found if isinstance(found, str) else json.dumps(found)


def _fits(work: Work) -> bool:
    """Whether the numbers can be true of any tensor: a trace holds what it likes."""
    numbers = [getattr(work, name) for name in _NUMBERS]
    numbers += [number for part in work.parts for number in (part.flops, part.bytes)]
    return all(number <= _LARGEST for number in numbers) and min(work.flops, work.bytes) >= 0


def _columns(work: Work) -> dict[str, Any]:
    numbers = {name: getattr(work, name) for name in _NUMBERS}
    for name in ("flops", "bytes"):
        for end in ("expected", "high"):
            if numbers[f"{name}_{end}"] < 0:
                numbers[f"{name}_{end}"] = numbers[name]
    return {
        "family": work.family,
        "math": work.math,
        **numbers,
        "part_categories": [part.category for part in work.parts],
        "part_flops": [part.flops for part in work.parts],
        "part_bytes": [part.bytes for part in work.parts],
        "by_load": work.by_load,
        "notes": ", ".join(work.notes),
    }
