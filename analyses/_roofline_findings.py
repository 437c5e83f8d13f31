"""What is worth saying of a roofline: time above the roof, bytes that quantisation would save, what cannot be judged.

Each kernel group is in one finding at most, so that no nanosecond is promised twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tracekit.analyses import _roofline_texts as texts
from tracekit.analysis import Finding, Row, Scalar, duration
from tracekit.devices import HOW_TO_GIVE
from tracekit.kernel_names import name_forms

ABOVE = "above roof"
OPEN = "key lengths not recorded"  # note on what may do far more than is known
BESIDE = "beside other streams"  # note on what had only a part of the device
CLAIMED = frozenset("ABCD")  # tiers from which a saving is promised: a window of the whole device is too coarse
COVERED = frozenset("ABCDEG")  # tiers that say what a kernel did
_NAMED = 3  # kernels named in a sentence
_SHOWN = 8  # as evidence
_NAME = 60  # characters of a name in a sentence
_EIGHT_BITS = re.compile(r"Float8|unsigned char|signed char", re.IGNORECASE)  # how caches of 8 bits are recorded
# Ranges that torch.compile writes around the code it made: they have no inputs, and what it launches is no op.
_COMPILED = re.compile(r"(## )?(Call )?(Torch-Compiled Region|CompiledFxGraph|CompiledFunction)")
Saving = Callable[[Row], float]
Device = tuple[int, int | None]


def findings(rows: Sequence[Row], summary: Sequence[Row], parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    """rows: of the table of roofline; summary: a row for each device. Each on the device where its share is largest."""
    devices = {(row["rank"], row["device"]): row for row in summary}
    by_kind: dict[str, list[Row]] = {}
    for row in rows:
        by_kind.setdefault(kind_of(row, parameters), []).append(row)
    yield from _above(by_kind.get("above", []), devices, parameters)
    yield from _far(by_kind.get("far", []), devices, parameters)
    yield from _latency(by_kind.get("latency", []), devices, parameters)
    yield from _weights(by_kind.get("weights", []), devices, parameters)
    yield from _kv(by_kind.get("kv", []), devices, parameters)
    yield from _no_peaks(summary)
    yield from _uncovered(rows, summary, parameters)


def kind_of(row: Row, parameters: Mapping[str, Scalar]) -> str:
    """The one finding that a kernel group may be in: above, far, latency, weights, kv, or "" for none."""
    if row["problem"] == ABOVE:
        return "above"
    if row["evidence"] not in CLAIMED or row["roof_ns"] is None or row["category"] == "communication":
        return ""
    if OPEN in (row["notes"] or ""):
        return ""
    if row["bound"] == "latency":
        return "latency"
    if row["bound"] == "memory":
        return _read_most(row)
    near = float(parameters["near_roof"] or 0)
    return "far" if row["bound"] == "unknown" and (row["roof_fraction"] or 0) < near else ""


def _read_most(row: Row) -> str:
    """What a group at the memory roof reads that could be smaller: weights, or keys and values; the larger of both."""
    is_product = row["category"] in ("gemm", "moe") and (row["weight_bits"] or 0) > 4
    weights = (row["weight_bytes"] or 0) if is_product else 0
    cached = 0 if _EIGHT_BITS.search(row["dtypes"] or "") else row["kv_bytes"] or 0
    if not row["bytes"] or not max(weights, cached):
        return ""
    return "kv" if cached > weights else "weights"


# ---- at or below the roof --------------------------------------------------------------------------------------------


def _above_roof(row: Row) -> float:
    """Time beyond what the work needs at achievable peaks. What runs beside other work cannot be had back."""
    return max(0.0, float(min(row["alone_ns"] - row["roof_ns"], row["exclusive_ns"])))


def _far(rows: Sequence[Row], devices: Mapping[Device, Row], parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    """One for each category in which enough time lies above the roof."""
    for category in dict.fromkeys(row["category"] for row in rows):
        here, device, share = _worst([row for row in rows if row["category"] == category], devices, _above_roof)
        if not _is_enough(share, parameters):
            continue
        above = sum(map(_above_roof, here))
        default = texts.POINTWISE if category in texts.POINTWISE_CATEGORIES else texts.OTHERS
        remedy, cost = texts.FAR.get(category, default)
        listed = _listed(here, _far_words)
        detail = texts.FAR_DETAIL.format(share=f"{share:.1%}", roof=duration(sum(row["roof_ns"] for row in here)))
        yield Finding(
            severity="warning",
            title=texts.FAR_TITLE.format(
                category=category,
                near=float(parameters["near_roof"] or 0),
                above=duration(above),
                per_step=_per_step(here, above),
                where=_where(device, devices),
            ),
            detail=f"Mostly {listed}. {detail}",
            saving_high_ns=int(above),
            evidence=_evidence(here),
            remedy=remedy,
            cost=cost,
            verify=texts.FASTER,
        )


def _far_words(row: Row) -> str:
    beside = f", {BESIDE}" if BESIDE in (row["notes"] or "").split(", ") else ""
    return f"{row['roof_fraction'] or 0:.0%} of its roof{_in_steps(row, _above_roof)}{beside}"


def _latency(rows: Sequence[Row], devices: Mapping[Device, Row], parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    here, device, share = _worst(rows, devices, _exclusive)
    if not _is_enough(share, parameters):
        return
    above = sum(map(_above_roof, here))
    yield _finding(
        texts.LATENCY,
        here,
        lambda row: f"{row['count']:,} x {duration(row['dur_ns'] / max(1, row['count']))}, {_waves(row)}",
        above,
        {"share": f"{share:.1%}", "above": duration(above) + _per_step(here, above), "where": _where(device, devices)},
    )


def _waves(row: Row) -> str:
    said = f"{row['roof_fraction'] or 0:.0%} of its roof"
    return said if row["waves"] is None else f"{row['waves']:.2g} waves, {said}"


def _weights(rows: Sequence[Row], devices: Mapping[Device, Row], parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    """At most what the saved bytes take. The time that counts is that of reading weights, not all of the GEMMs."""
    here, device, share = _worst(rows, devices, lambda row: _exclusive(row) * _part(row, "weight_bytes"))
    if not _is_enough(share, parameters):
        return
    peaks = devices[device]["peaks"] or {}
    eight, four = (sum(_with_weights_of(row, bits, peaks) for row in here) for bits in (8, 4))
    best = sum(max(_with_weights_of(row, bits, peaks) for bits in (8, 4)) for row in here)
    taken = sum(map(_exclusive, here)) / devices[device]["busy_ns"]
    yield _finding(
        texts.WEIGHTS,
        here,
        lambda row: f"{row['weight_bits']} bits, {row['roof_fraction'] or 0:.0%} of its roof",
        best,
        {
            "share": f"{taken:.1%}",
            "eight": duration(eight) + _per_step(here, eight),
            "four": duration(four) + _per_step(here, four),
            "where": _where(device, devices),
        },
    )


def _with_weights_of(row: Row, bits: int, peaks: Mapping[str, float]) -> float:
    """Time saved at most: where the device can, weights of so many bits are multiplied as such, else expanded."""
    if row["weight_bits"] <= bits:
        return 0.0
    small = max(peaks.get(math) or 0 for math in (("fp8", "int8") if bits == 8 else ("fp4",)))
    own = peaks.get(row["math"] or "")
    faster = small / own if small and own else 1.0
    return _without(row, _part(row, "weight_bytes") * (1 - bits / row["weight_bits"]), max(1.0, faster))


def _kv(rows: Sequence[Row], devices: Mapping[Device, Row], parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    here, device, share = _worst(rows, devices, lambda row: _exclusive(row) * _part(row, "kv_bytes"))
    if not _is_enough(share, parameters):
        return
    saved = sum(_without(row, _part(row, "kv_bytes") / 2) for row in here)
    taken = sum(map(_exclusive, here)) / devices[device]["busy_ns"]
    yield _finding(
        texts.KV,
        here,
        lambda row: f"{_part(row, 'kv_bytes'):.0%} of its bytes are keys and values",
        saved,
        {"share": f"{taken:.1%}", "saved": duration(saved) + _per_step(here, saved), "where": _where(device, devices)},
    )


def _part(row: Row, name: str) -> float:
    """Share of the bytes. Counters may see fewer bytes than the shapes have: caches."""
    return min(1.0, float((row[name] or 0) / row["bytes"]))


def _without(row: Row, part: float, faster: float = 1.0) -> float:
    """How much less the roof asks for without this part of the bytes, and with arithmetic that is so much faster."""
    left = max((row["memory_ns"] or 0) * (1 - part), (row["compute_ns"] or 0) / faster)
    return max(0.0, float(min(row["roof_ns"] - left, row["exclusive_ns"])))


# ---- what cannot be judged -------------------------------------------------------------------------------------------


def _above(rows: Sequence[Row], devices: Mapping[Device, Row], parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    here, device, share = _worst(rows, devices, _exclusive)
    if not _is_enough(share, parameters):
        return
    yield _finding(
        texts.ABOVE,
        here,
        lambda row: f"{row['datasheet_fraction'] or 0:.0%} of the datasheet's {_larger(row)} roof{_noted(row)}",
        0,
        {
            "share": f"{share:.1%}",
            "spec": devices[device]["spec"] or "none: peaks were given",
            "where": _where(device, devices),
        },
    )


def _larger(row: Row) -> str:
    return "memory" if (row["memory_ns"] or 0) >= (row["compute_ns"] or 0) else "compute"


def _noted(row: Row) -> str:
    """The one note that explains it."""
    found = [note for note in (row["notes"] or "").split(", ") if "cache" in note]
    return f": {found[0]}" if found else ""


def _no_peaks(summary: Sequence[Row]) -> Iterator[Finding]:
    """One for each kind of device."""
    advice = texts.NO_PEAKS
    for what, name, problem in dict.fromkeys((_missing(row), row["name"], row["problem"]) for row in summary):
        if not problem or not what:
            continue
        yield Finding(
            severity="info",
            title=advice.title.format(what=what, name=_short(name) if name else "a device without a name"),
            detail=advice.detail.format(problem=problem.replace(HOW_TO_GIVE, "").strip()),
            remedy=advice.remedy.format(how=HOW_TO_GIVE),
            cost=advice.cost,
            verify=advice.verify,
        )


def _missing(device: Row) -> str:
    """Which roofs a device lacks; "" if none, or it had nothing to do."""
    if not device["busy_ns"] or (device["peaks"] and device["bandwidth"]):
        return ""
    return "memory roof" if device["peaks"] else "compute roofs" if device["bandwidth"] else "roofs"


def _uncovered(rows: Sequence[Row], summary: Sequence[Row], parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    """One for all devices: what has no evidence, why, and what would give it."""
    total = sum(row["busy_ns"] for row in summary)
    left = sorted((row for row in rows if row["evidence"] not in COVERED), key=_exclusive, reverse=True)
    missing = sum(map(_exclusive, left))
    if total <= 0 or total - missing >= float(parameters["covered_share"] or 0) * total:
        return
    times: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    for row in left:
        times[_why(row)] += _exclusive(row)
        kernels[_short(name_forms(row["kernel"]).function)] += _exclusive(row)
    ranked = [why for why, _ in times.most_common()]
    shares = {why: f"{times[why] / total:.1%}" for why in ranked}
    reasons = "; ".join(f"{share} {texts.UNCOVERED[why][0]}" for why, share in shares.items() if share != "0.0%")
    listed = "; ".join(f"{name} ({duration(ns)})" for name, ns in kernels.most_common(_NAMED))
    worth = [why for why in ranked if times[why] >= float(parameters["share"] or 0) * total] or ranked[:1]
    yield Finding(
        severity="info",
        title=texts.UNCOVERED_TITLE.format(share=f"{missing / total:.1%}"),
        detail=f"Of the busy time, {reasons}. Mostly {listed}.",
        evidence=_evidence(left),
        remedy=" ".join(texts.UNCOVERED[why][1] for why in worth),
        cost="Another run; recording shapes slows the host.",
        verify=texts.UNCOVERED_VERIFY,
    )


def _why(row: Row) -> str:
    """Why the work of a group is not known."""
    if row["category"] in ("graph", "communication"):
        return str(row["category"])
    if not row["op"]:
        return "no_op"
    if _COMPILED.match(row["op"]):
        return "compiled"
    return "no_model" if row["shapes"] and row["shapes"] != "[]" else "no_shapes"


# ---- shared ----------------------------------------------------------------------------------------------------------


def _worst(
    rows: Iterable[Row], devices: Mapping[Device, Row], time: Callable[[Row], float]
) -> tuple[list[Row], Device, float]:
    """Of the device on which they take the largest share: its rows, most time first; which it is; and the share."""
    by_device: dict[Device, list[Row]] = {}
    for row in rows:
        by_device.setdefault((row["rank"], row["device"]), []).append(row)
    shares = {
        device: sum(map(time, here)) / devices[device]["busy_ns"]
        for device, here in by_device.items()
        if device in devices and devices[device]["busy_ns"]
    }
    if not shares:
        return [], (0, None), 0.0
    worst = max(shares, key=lambda device: shares[device])
    return sorted(by_device[worst], key=time, reverse=True), worst, shares[worst]


def _is_enough(share: float, parameters: Mapping[str, Scalar]) -> bool:
    return share > 0 and share >= float(parameters["share"] or 0)


def _finding(
    advice: texts.Advice, rows: Sequence[Row], say: Callable[[Row], str], high: float, words: Mapping[str, str]
) -> Finding:
    return Finding(
        severity="warning",
        title=advice.title.format_map(words),
        detail=f"Mostly {_listed(rows, say)}. {advice.detail.format_map(words)}",
        saving_high_ns=int(high),
        evidence=_evidence(rows),
        remedy=advice.remedy.format_map(words),
        cost=advice.cost,
        verify=advice.verify,
    )


def _exclusive(row: Row) -> int:
    return int(row["exclusive_ns"])


def _in_steps(row: Row, saving: Saving) -> str:
    """Of one group, in each step that has it."""
    return (
        f", {duration(saving(row) / row['steps'])} in each of {row['steps']:,} steps" if (row["steps"] or 0) > 1 else ""
    )


def _per_step(rows: Sequence[Row], ns: float) -> str:
    """Only where all are in as many steps: groups of decode and of prefill are in no step together."""
    steps = {row["steps"] or 0 for row in rows}
    many = min(steps, default=0)
    return f", {duration(ns / many)} per step" if len(steps) == 1 and many > 1 else ""


def _where(device: Device, devices: Mapping[Device, Row]) -> str:
    return f" on rank {device[0]} device {device[1]}" if len(devices) > 1 else ""


def _evidence(rows: Sequence[Row]) -> tuple[int, ...]:
    return tuple(row["example_id"] for row in rows[:_SHOWN])


def _listed(rows: Sequence[Row], say: Callable[[Row], str]) -> str:
    return "; ".join(f"{_named(row)} ({say(row)})" for row in rows[:_NAMED])


def _named(row: Row) -> str:
    """Many kernels are called elementwise_kernel: the op tells which it is."""
    op = (row["op"] or "").rpartition("::")[2]
    return _short(name_forms(row["kernel"]).function) + (f" of {_short(op)}" if op else "")


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."
