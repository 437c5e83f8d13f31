"""What must kernels do that no op with shapes launched? From the model's config.json and what each step works on.

    device rows of steps + ModelConfig -> the role of each kernel (config_match.py) -> its work (config_estimates.py)

Steps that run the same kernels are matched once. A step that is not whole, or runs another model beside this one (a
draft model, two micro batches), fits nowhere: its kernels get no work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit import config_estimates as estimates
from tracekit.arrays import Int64s
from tracekit.attention_counts import Range
from tracekit.config_estimates import Estimate
from tracekit.config_layers import Layers, Order
from tracekit.config_match import Kernel, Role, roles_of, why_none
from tracekit.config_steps import Steps
from tracekit.model_config import ModelConfig
from tracekit.step_marks import Composition

BY_POSITION, IN_ALL = "model config, by position", "model config, in all"
CONFIG_WORK = pa.schema(
    [
        ("id", pa.int64()),
        ("family", pa.string()),
        ("part", pa.string()),
        ("math", pa.string()),
        *(
            (name, pa.int64())
            for name in (
                "flops",
                "flops_expected",
                "flops_high",
                "bytes",
                "bytes_expected",
                "bytes_high",
                "weight_bytes",
                "weight_bits",
                "kv_bytes",
                "link_bytes",
            )
        ),
        ("how", pa.string()),
        ("notes", pa.string()),
    ]
)
_COUNTS = tuple(name for name in CONFIG_WORK.names if CONFIG_WORK.field(name).type == pa.int64() and name != "id")


@dataclass(frozen=True, slots=True)
class ConfigWork:
    """work: CONFIG_WORK, one row per kernel whose work is known. unused: why steps fit nowhere, and how many each."""

    work: pa.Table
    unused: Mapping[str, int]


def config_work(rows: pa.Table, config: ModelConfig, tensor_parallel: int = 1) -> ConfigWork:
    """Work of kernels by their place in the step.

    rows: all kernels of the steps (not copies) with id, rank, device, step, ts, dur, name, category, subcategory, the
    fields of Composition, and, if they are there, `known`: its op tells its work; it marks a place and gets no row,
    unless `unsure` (the op does not know of windows) and layers of the model have them. flops, bytes: at least;
    _expected: with experts chosen evenly and sequences of equal length; _high: at most. part: which product or kernel
    of the layer. Counted is the work for the useful tokens: a graph captured for a larger batch does more.
    Raises UsageError where the model cannot be split over so many devices.
    """
    layers = Layers(config, tensor_parallel)
    steps = Steps.of(rows, windows=any(config.windows))
    unused: Counter[str] = Counter()
    if steps is None:
        return ConfigWork(CONFIG_WORK.empty_table(), unused)
    output = _Output(_Works(layers))
    matched: dict[tuple[bytes, str], tuple[int, Int64s, list[Role]]] = {}
    for start, end, load in steps.spans():
        if load.phase == "draft":
            continue
        if estimates.tokens_of(load) is None:
            unused["the marks do not say how many tokens a step has"] += 1
            continue
        codes = steps.codes[start:end]
        key = (codes.tobytes(), load.phase)
        if key not in matched:
            kernels = [steps.kernels[code] for code in codes.tolist()]
            matched[key] = (len(matched), *_matched(kernels, layers, load.phase))
        pattern, numbers, roles = matched[key]
        if not roles:
            unused[why_none([steps.kernels[code] for code in codes.tolist()], layers)] += 1
            continue
        part = slice(start, end)
        step = _Matched(pattern, roles, load)
        output.add(steps.ids[part], steps.durations[part], steps.shown[part], numbers, step)
    return ConfigWork(output.table(), unused)


@dataclass(frozen=True, slots=True)
class _Matched:
    """Which kernels a step runs, their roles by number, and what it works on."""

    pattern: int
    roles: Sequence[Role]
    load: Composition


def _matched(kernels: Sequence[Kernel], layers: Layers, phase: str) -> tuple[Int64s, list[Role]]:
    """A number for each row, -1 without a role, and the roles by number."""
    numbers: dict[Role, int] = {}
    roles = roles_of(kernels, layers, phase)
    codes = [-1 if role is None else numbers.setdefault(role, len(numbers)) for role in roles]
    return np.array(codes, np.int64), list(numbers)


# ---- work ------------------------------------------------------------------------------------------------------------


class _Works:
    """Work of roles by load, each counted once."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._found: dict[tuple[Role, Composition], Estimate | None] = {}
        self._counts: dict[tuple[str, bool], list[Counter[Role]]] = {}

    def of(self, role: Role, load: Composition) -> Estimate | None:
        key = (role, load)
        if key not in self._found:
            self._found[key] = self._in_all(role, load) if role.shared else _role_work(role, self._layers, load)
        return self._found[key]

    def part(self, role: Role) -> str:
        """What the kernel is of the model, in a few words; layers of another window apart."""
        window = self._layers.config.window(role.layer) if role.kind == "attention" else 0
        return f"{_part(role)}, window {window}" if window else _part(role)

    def _in_all(self, role: Role, load: Composition) -> Estimate | None:
        """Of all products of one kind: at least those of the shortest order, at most those of the longest."""
        totals = []
        for counts in self._orders(role.kind, load.phase in ("decode", "verify", "draft")):
            found = [(self.of(one, load), times) for one, times in counts.items()]
            known = [(one, times) for one, times in found if one is not None]
            if known and len(known) == len(found):
                totals.append(_sum(known))
        if not totals:
            return None
        least = min(totals, key=lambda one: one.work.bytes)
        flops, moved = (
            Range(min(one.low for one in ranges), least_range.expected, max(one.high for one in ranges))
            for ranges, least_range in (
                ([one.flops for one in totals], least.flops),
                ([one.bytes for one in totals], least.bytes),
            )
        )
        return Estimate(replace(least.work, flops=flops.low, bytes=moved.low), flops, moved)

    def _orders(self, kind: str, decode: bool) -> list[Counter[Role]]:
        if (kind, decode) not in self._counts:
            self._counts[kind, decode] = [self._products(order, kind) for order in self._layers.orders(decode)]
        return self._counts[kind, decode]

    def _products(self, order: Order, kind: str) -> Counter[Role]:
        return Counter(
            Role("gemm", self._layers.like(place.layer), place.slot)
            for place in order.all_places
            if place.slot and (place.slot.rows == "routed") == (kind == "experts")
        )


def _sum(parts: Sequence[tuple[Estimate, int]]) -> Estimate:
    first = parts[0][0].work
    flops, moved = Range(0, 0, 0), Range(0, 0, 0)
    weights = 0
    for one, times in parts:
        flops, moved = flops + one.flops.times(times), moved + one.bytes.times(times)
        weights += one.work.weight_bytes * times
    return Estimate(replace(first, flops=flops.low, bytes=moved.low, weight_bytes=weights), flops, moved)


def _role_work(role: Role, layers: Layers, load: Composition) -> Estimate | None:
    if role.kind in ("gemm", "reduce") and role.slot is not None:
        return _product(role, layers, load)
    if role.kind == "attention":
        return estimates.attention(layers, role.layer, load, role.part, role.cache_bits)
    if role.kind == "norm":
        return estimates.norm(layers, load, role.name, role.part)
    if role.kind == "activation":
        return estimates.activation(layers, load, role.name, role.part)
    if role.kind == "kv_cache":
        return estimates.cache_write(layers, load, role.cache_bits)
    return estimates.rope(layers, load) if role.kind == "rope" else estimates.embedding(layers, load)


def _product(role: Role, layers: Layers, load: Composition) -> Estimate | None:
    """A product; where another kernel adds up its parts, that one writes the result, once between the two of them."""
    slot = role.slot
    whole = estimates.gemm(layers, slot, role.layer, load) if slot else None
    rows = estimates.sampled_of(load) if slot and slot.rows == "sampled" else estimates.tokens_of(load)
    if slot is None or whole is None or rows is None or (role.kind == "gemm" and not role.split):
        return whole
    result = Range.exactly(-min(estimates.output_bytes(layers, slot, rows), whole.bytes.low))
    if role.kind == "reduce":
        return estimates.estimate("gemm", Range.exactly(0), result.times(-1), "", notes=("adds up split K",))
    rest = whole.bytes + result
    return Estimate(replace(whole.work, bytes=rest.low), whole.flops, rest)


class _Output:
    """Rows of the answer. What rows of one role and load have in common is kept once, and looked up at the end."""

    def __init__(self, works: _Works) -> None:
        self._works = works
        self._numbers: dict[tuple[Role, Composition], int] = {}
        self._plain: dict[tuple[int, Composition], list[int]] = {}
        self._texts: list[tuple[str, ...]] = []
        self._values: list[list[int]] = []
        self._ids: list[Int64s] = []
        self._chosen: list[Int64s] = []
        self._shares: list[tuple[Int64s, npt.NDArray[np.int64]]] = []
        self._length = 0

    def add(self, ids: Int64s, durations: Int64s, shown: npt.NDArray[np.bool_], codes: Int64s, step: _Matched) -> None:
        """The rows of a step. codes: which of its roles a row has, -1 for none. shown: rows to answer for."""
        numbers = np.array([*self._numbers_of(step), -1], np.int64)
        chosen = numbers[codes]
        keep = np.flatnonzero((chosen >= 0) & shown)
        for code, role in enumerate(step.roles):
            if role.shared and numbers[code] >= 0:
                at = np.flatnonzero(codes == code)
                values = shares_by_time(self._values[int(numbers[code])], durations[at])
                wanted = shown[at]
                places = self._length + np.searchsorted(keep, at[wanted])
                self._shares.append((places.astype(np.int64), np.stack(values, axis=1)[wanted]))
        self._ids.append(ids[keep])
        self._chosen.append(chosen[keep])
        self._length += len(keep)

    def _numbers_of(self, step: _Matched) -> list[int]:
        """The number of each role. Only attention asks how long the sequences are; else decode steps are alike."""
        load = step.load
        plain = Composition(
            load.phase, load.prefill_requests, load.prefill_tokens, load.decode_requests, load.decode_tokens
        )
        key = (step.pattern, plain)
        if key not in self._plain:
            self._plain[key] = [-1 if role.kind == "attention" else self._number(role, plain) for role in step.roles]
        numbers = list(self._plain[key])
        for code, role in enumerate(step.roles):
            if role.kind == "attention":
                numbers[code] = self._number(role, load)
        return numbers

    def _number(self, role: Role, load: Composition) -> int:
        key = (role, load)
        if key not in self._numbers:
            one = self._works.of(role, load)
            self._numbers[key] = len(self._texts) if one else -1
            if one:
                how = IN_ALL if role.shared else BY_POSITION
                self._texts.append((one.work.family, self._works.part(role), one.work.math, how, _notes(role, one)))
                self._values.append(_counts(one))
        return self._numbers[key]

    def table(self) -> pa.Table:
        """All rows, as CONFIG_WORK."""
        if not self._length:
            return CONFIG_WORK.empty_table()
        chosen = np.concatenate(self._chosen)
        values = np.array(self._values, np.int64)[chosen]
        for places, shares in self._shares:
            values[places] = shares
        picked = pa.array(chosen)
        arrays = {name: pa.array(values[:, at]) for at, name in enumerate(_COUNTS)}
        for name, texts in zip(("family", "part", "math", "how", "notes"), zip(*self._texts, strict=True), strict=True):
            arrays[name] = pa.array(texts, pa.string()).take(picked)
        arrays["id"] = pa.array(np.concatenate(self._ids))
        return pa.table([arrays[name] for name in CONFIG_WORK.names], CONFIG_WORK)


def shares_by_time(figures: Sequence[int], durations: Int64s) -> list[Int64s]:
    """Shares of each of _COUNTS. Of ends of an interval what lies between is shared: rounding turns none around."""
    shares: list[Int64s] = []
    for at, (name, value) in enumerate(zip(_COUNTS, figures, strict=True)):
        if name == "weight_bits":
            shares.append(np.full(len(durations), value, np.int64))
        elif name.endswith(("_expected", "_high")):
            shares.append(shares[-1] + _split(value - figures[at - 1], durations))
        else:
            shares.append(_split(value, durations))
    return shares


def _split(value: int, durations: Int64s) -> Int64s:
    """A whole number divided by durations; the parts add up to it. Exact: never through a double."""
    passed = np.cumsum(durations)
    total = int(passed[-1])
    if total == 0:
        return _split(value, np.ones(len(durations), np.int64))
    whole, rest = divmod(value, total)
    if total < 1 << 31:
        ends: Int64s = whole * passed + rest * passed // total
    else:  # the product would not fit
        ends = np.array([value * end // total for end in passed.tolist()], np.int64)
    shares: Int64s = np.diff(ends, prepend=0)
    return shares


def _counts(one: Estimate) -> list[int]:
    work = one.work
    return [
        *(one.flops.low, one.flops.expected, one.flops.high),
        *(one.bytes.low, one.bytes.expected, one.bytes.high),
        *(work.weight_bytes, work.weight_bits, work.kv_bytes, 0),
    ]


def _part(role: Role) -> str:
    if role.slot is not None:
        return role.slot.name if role.kind == "gemm" else f"{role.slot.name}, split K"
    if role.kind not in ("attention", "norm", "activation") or role.part in ("all", "hidden", "dense"):
        return role.kind
    return f"{role.kind} of {role.part}"


def _notes(role: Role, one: Estimate) -> str:
    shared = ("of all products of the step, by time",) if role.shared else ()
    return ", ".join((*shared, *one.work.notes))
