"""What is worth saying of a roofline: time beyond the least, bytes that quantisation would save, what cannot be judged.

Each kernel group is in one finding at most, so that no nanosecond is promised twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from tracekit.analyses import _roofline_advice as advice
from tracekit.analyses import _roofline_savings as savings
from tracekit.analyses import _roofline_sums as sums
from tracekit.analyses import _roofline_texts as texts
from tracekit.analyses._roofline_coverage import no_peaks, uncovered
from tracekit.analysis import Finding, Row, Scalar, duration
from tracekit.roofline_names import OPEN, kernel_name, mark_of_roof, product_of, titles
from tracekit.text_grid import cut

ABOVE = "above roof"
BESIDE = "beside other streams"  # note on what had only a part of the device
WIDE = "may be far more"  # note on work whose upper end is far away
CLAIMED = frozenset("ABCD")  # tiers from which a saving is promised: a window of the whole device is too coarse
MEASURED = frozenset("ABCDE")  # but it does show what is read all the time
_NAMED = 3  # kernels named in a sentence
_SHOWN = 8  # as evidence
_KERNEL = 40  # characters of a kernel's name in a sentence
_PRODUCTS = frozenset(("gemm", "moe"))
_HALF = frozenset(("bf16", "fp16"))
_EIGHT_BITS = re.compile(r"Float8|unsigned char|signed char", re.IGNORECASE)  # how caches of 8 bits are recorded
_LEFT_ALONE = frozenset(("lm_head", "router"))  # by those who quantise models
_VOCABULARY, _SURE_VOCABULARY = 16_000, 110_000  # columns: of a sharded one at least; more than a layer has
Saving = Callable[[Row], float]
Device = tuple[int, int | None]


def findings(
    rows: Sequence[Row],
    summary: Sequence[Row],
    parameters: Mapping[str, Scalar],
    formats: Collection[str] = (),
    tried: Collection[str] = (),
) -> Iterator[Finding]:
    """Each on the device where its share is largest. rows: of the table of roofline; summary: a row for each device;
    formats: of the trace's files, as its footer has them; tried: sources that were to lend work, whether they could.
    """
    of_device: dict[Device, list[Row]] = {}
    for row in rows:
        of_device.setdefault((row["rank"], row["device"]), []).append(row)
    keyed = (((row["rank"], row["device"]), row) for row in summary)
    devices = {key: row | {"vendor": advice.vendor(row, of_device.get(key, ()))} for key, row in keyed}
    by_kind: dict[str, list[Row]] = {}
    for row in rows:
        by_kind.setdefault(kind_of(row, parameters), []).append(row)
    yield from _above(by_kind.get("above", []), devices, parameters)
    yield from _far(by_kind.get("far", []), devices, parameters)
    yield from _latency(by_kind.get("latency", []), rows, devices, parameters)
    yield from _weights(by_kind.get("weights", []), devices, parameters)
    yield from _arithmetic(by_kind.get("arithmetic", []), devices, parameters)
    yield from _kv(by_kind.get("kv", []), devices, parameters)
    yield from no_peaks(summary)
    yield from uncovered(rows, summary, parameters, formats, tried)


def kind_of(row: Row, parameters: Mapping[str, Scalar]) -> str:
    """The one finding that a kernel group may be in: above, far, latency, weights, arithmetic, kv, or "" for none."""
    if row["problem"] == ABOVE:
        return "above"
    if row["evidence"] not in MEASURED or row["roof_ns"] is None or row["category"] == "communication":
        return ""
    if OPEN in (row["notes"] or ""):
        return ""
    kind = {"memory": _read_most(row), "compute": _computes(row), "latency": "latency"}.get(row["bound"], "")
    if row["bound"] == "unknown" and WIDE not in (row["notes"] or "").split(", "):
        kind = "far" if (row["roof_fraction"] or 0) < float(parameters["near_roof"] or 0) else ""
    return kind if row["evidence"] in CLAIMED or row["bound"] == "memory" else ""


def _computes(row: Row) -> str:
    """What a group at the compute roof could compute with fewer bits."""
    is_half = row["category"] in _PRODUCTS and row["math"] in _HALF
    return "arithmetic" if is_half and not is_left_alone(row) else ""


def _read_most(row: Row) -> str:
    """What a group at the memory roof reads that could be smaller: weights, or keys and values; the larger of both."""
    is_product = row["category"] in _PRODUCTS and (row["weight_bits"] or 0) > 4 and not is_left_alone(row)
    weights = (row["weight_bytes"] or 0) if is_product else 0
    cached = 0 if _EIGHT_BITS.search(row["dtypes"] or "") else row["kv_bytes"] or 0
    if not row["bytes"] or not max(weights, cached):
        return ""
    return "kv" if cached > weights else "weights"


def is_left_alone(row: Row) -> bool:
    """Whether its weights stay as they are where a model is quantised: those of lm_head, which are as wide as a
    vocabulary and are read once in a step, and of the router.
    """
    if row["op"] in _LEFT_ALONE:
        return True
    product = product_of(row["op"], row["shapes"])
    if product is None:
        return False
    is_once = 0 < row["count"] <= (row["steps"] or 0)
    return product.n > _SURE_VOCABULARY or (product.n >= _VOCABULARY and is_once)


# ---- at or below the roof --------------------------------------------------------------------------------------------


def _far(rows: Sequence[Row], devices: Mapping[Device, Row], parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    """One for each family in which enough time is lost."""
    for family in dict.fromkeys(map(advice.family, rows)):
        here, device, share = _worst([row for row in rows if advice.family(row) == family], devices, savings.beyond)
        if not _is_enough(share, parameters):
            continue
        beyond = sum(map(savings.beyond, here))
        remedy, cost = advice.remedy(family, here, devices[device]["vendor"])
        detail = texts.FAR_DETAIL.format(share=f"{share:.1%}", roof=duration(sum(row["roof_ns"] for row in here)))
        yield Finding(
            severity="warning",
            title=texts.FAR_TITLE.format(
                family=family,
                near=float(parameters["near_roof"] or 0),
                above=duration(beyond),
                per_step=_per_step(here, beyond),
                where=_where(device, devices),
            ),
            detail=f"Mostly {_listed(here, _far_words)}. {detail}",
            saving_high_ns=savings.promised(here),
            evidence=_evidence(here),
            remedy=remedy,
            cost=cost,
            verify=texts.FASTER,
            arithmetic=tuple(sums.beyond(here, devices[device], parameters)),
        )


def _far_words(row: Row) -> str:
    beside = f", {BESIDE}" if BESIDE in (row["notes"] or "").split(", ") else ""
    return f"{_of_roof(row)}{_in_steps(row, savings.beyond)}{beside}"


def _of_roof(row: Row) -> str:
    return f"{mark_of_roof(row)}{row['roof_fraction'] or 0:.0%} of its roof"


def _latency(
    rows: Sequence[Row], everything: Sequence[Row], devices: Mapping[Device, Row], parameters: Mapping[str, Scalar]
) -> Iterator[Finding]:
    here, device, share = _worst(rows, devices, _exclusive)
    if not _is_enough(share, parameters):
        return
    beyond = sum(map(savings.beyond, here))
    of_device = [row for row in everything if (row["rank"], row["device"]) == device]
    is_nvidia = devices[device]["vendor"] == advice.NVIDIA
    yield _finding(
        texts.LATENCY,
        here,
        lambda row: f"{row['count']:,} x {duration(row['dur_ns'] / max(1, row['count']))}, {_waves(row)}",
        savings.promised(here),
        {
            "which": _short_or_few(here, float(parameters["short_ns"] or 0)),
            "share": f"{share:.1%}",
            "above": duration(beyond) + _per_step(here, beyond),
            "where": _where(device, devices),
            "others": _copies(of_device, devices[device]["busy_ns"]),
            "graphs": texts.GRAPHS_NVIDIA if is_nvidia else texts.GRAPHS_OTHER,
        },
        arithmetic=(
            *sums.time(here, devices[device], parameters),
            *sums.beyond(here, devices[device], parameters),
        ),
    )


def _short_or_few(rows: Sequence[Row], short_ns: float) -> str:
    """What they have in common."""
    short = {row["dur_ns"] < short_ns * row["count"] for row in rows}
    return texts.SHORT_OR_FEW if len(short) > 1 else texts.SHORT if short == {True} else texts.FEW


def _copies(rows: Sequence[Row], busy: int) -> str:
    """What else is bound by latency, that no saving is promised of."""
    copied = sum(_exclusive(row) for row in rows if row["bound"] == "latency" and row["evidence"] == "G")
    share = f"{copied / busy:.1%}"
    return "" if share == "0.0%" else texts.LATENCY_OTHERS.format(share=share)


def _waves(row: Row) -> str:
    return _of_roof(row) if row["waves"] is None else f"{row['waves']:.2g} waves, {_of_roof(row)}"


def _weights(rows: Sequence[Row], devices: Mapping[Device, Row], parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    """At most what the saved bytes take. The time that counts is that of reading weights, not all of the GEMMs."""
    here, device, share = _worst(rows, devices, lambda row: _exclusive(row) * savings.share(row, "weight_bytes"))
    if not _is_enough(share, parameters):
        return
    of = devices[device]
    eight, four = (sum(savings.with_weights_of(row, bits, of) for row in here) for bits in (8, 4))
    best = sum(max(savings.with_weights_of(row, bits, of) for bits in (8, 4)) for row in here)
    taken = sum(map(_exclusive, here)) / of["busy_ns"]
    first, then = advice.small_weights(of["peaks"] or {}, of["vendor"])
    yield _finding(
        texts.WEIGHTS,
        here,
        lambda row: f"{row['weight_bits']} bits, {_of_roof(row)}",
        best,
        {
            "share": f"{taken:.1%}",
            "eight": duration(eight) + _per_step(here, eight),
            "four": duration(four) + _per_step(here, four),
            "where": _where(device, devices),
            "first": first,
            "then": then,
        },
        arithmetic=sums.weights(here, of, parameters),
    )


def _arithmetic(
    rows: Sequence[Row], devices: Mapping[Device, Row], parameters: Mapping[str, Scalar]
) -> Iterator[Finding]:
    """Only of devices that multiply 8 bits faster."""
    can = {key for key, device in devices.items() if (device["peaks"] or {}).get("fp8")}
    here, device, share = _worst([row for row in rows if (row["rank"], row["device"]) in can], devices, _exclusive)
    if not _is_enough(share, parameters):
        return
    # Both factors are then half as large, at most all that is read and written.
    eight = sum(savings.without(row, 0.5, savings.speed(row, ("fp8",), devices[device])) for row in here)
    can_four = "fp4" in devices[device]["peaks"]
    four = (
        sum(savings.without(row, 0.75, savings.speed(row, ("fp8", "fp4"), devices[device])) for row in here)
        if can_four
        else 0.0
    )
    yield _finding(
        texts.ARITHMETIC,
        here,
        lambda row: f"{row['math']}, {_of_roof(row)}",
        max(eight, four),
        {
            "share": f"{share:.1%}",
            "eight": duration(eight) + _per_step(here, eight),
            "four": f", in FP4 at most {duration(four)}" if four > eight else "",
            "also": "; then NVFP4 or MXFP4 where accuracy allows" if four > eight else "",
            "where": _where(device, devices),
        },
        arithmetic=sums.fewer_bits(here, devices[device], parameters, int(max(eight, four))),
    )


def _kv(rows: Sequence[Row], devices: Mapping[Device, Row], parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    here, device, share = _worst(rows, devices, lambda row: _exclusive(row) * savings.share(row, "kv_bytes"))
    if not _is_enough(share, parameters):
        return
    saved = sum(savings.without(row, savings.share(row, "kv_bytes") / 2) for row in here)
    taken = sum(map(_exclusive, here)) / devices[device]["busy_ns"]
    yield _finding(
        texts.KV,
        here,
        lambda row: f"{savings.share(row, 'kv_bytes'):.0%} of its bytes are keys and values",
        saved,
        {"share": f"{taken:.1%}", "saved": duration(saved) + _per_step(here, saved), "where": _where(device, devices)},
        arithmetic=sums.smaller_cache(here, devices[device], parameters, int(saved)),
    )


# ---- above the roof --------------------------------------------------------------------------------------------------


def _above(rows: Sequence[Row], devices: Mapping[Device, Row], parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    here, device, share = _worst(rows, devices, _exclusive)
    if not _is_enough(share, parameters):
        return
    hows = {(row["how"] or "").partition(",")[0] for row in here}
    lent = "capture trace" in hows or any(how.startswith("same kernel") for how in hows)
    suspect = texts.ABOVE_CONFIG if "model config" in hows else texts.ABOVE_LENT if lent else ""
    is_amd = devices[device]["vendor"] == advice.AMD
    yield _finding(
        texts.ABOVE,
        here,
        lambda row: f"{row['datasheet_fraction'] or 0:.0%} of the datasheet's {_larger(row)} roof{_noted(row)}",
        0,
        {
            "share": f"{share:.1%}",
            "first": suspect,
            "spec": devices[device]["spec"] or "none: peaks were given",
            "counters": "" if is_amd else texts.ABOVE_COUNTERS,
            "where": _where(device, devices),
        },
        arithmetic=sums.time(here, devices[device], parameters),
    )


def _larger(row: Row) -> str:
    return "memory" if (row["memory_ns"] or 0) >= (row["compute_ns"] or 0) else "compute"


def _noted(row: Row) -> str:
    """The one note that explains it."""
    found = [note for note in (row["notes"] or "").split(", ") if "cache" in note]
    return f": {found[0]}" if found else ""


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
    advice: texts.Advice,
    rows: Sequence[Row],
    say: Callable[[Row], str],
    high: float,
    words: Mapping[str, str],
    *,
    arithmetic: Iterable[str],
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
        arithmetic=tuple(arithmetic),
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
    """The first ones: their work, the kernel, and what is to be said of them."""
    first = rows[:_NAMED]
    return "; ".join(
        f"{_with_kernel(title, row)} ({say(row)})" for title, row in zip(titles(first), first, strict=True)
    )


def _with_kernel(title: str, row: Row) -> str:
    kernel = cut(kernel_name(row["kernel"]), _KERNEL)
    return title if kernel in title else f"{title} in {kernel}"
