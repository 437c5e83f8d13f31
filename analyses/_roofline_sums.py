"""How the figures of a roofline's findings come about. Groups are named by the id of their longest launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tracekit.analyses import _arithmetic as arithmetic
from tracekit.analyses import _roofline_savings as savings
from tracekit.analysis import Row, Scalar

_WORKED = 3  # groups whose saving is worked out in full
_BEYOND = "greatest(0, least(alone_ns - roof_ns, exclusive_ns))"


def time(rows: Sequence[Row], device: Row, parameters: Mapping[str, Scalar]) -> Iterator[str]:
    """What groups take of the busy time of their device."""
    ns, busy = sum(int(row["exclusive_ns"]) for row in rows), int(device["busy_ns"])
    yield arithmetic.queried("their time", f"SELECT sum(exclusive_ns) {_of(rows, parameters)}", ns)
    here = arithmetic.on(device["rank"], device["device"])
    yield arithmetic.queried("busy time", f"SELECT sum(exclusive_ns) FROM roofline() WHERE {here}", busy)
    yield arithmetic.share("share", ns, busy)


def beyond(rows: Sequence[Row], device: Row, parameters: Mapping[str, Scalar]) -> Iterator[str]:
    """What they take beyond their least time, and what of it is promised."""
    ns, busy, high = sum(map(savings.beyond, rows)), int(device["busy_ns"]), savings.promised(rows)
    chosen = _of(rows, parameters)
    yield arithmetic.queried("beyond their least time", f"SELECT sum({_BEYOND}) {chosen}", ns)
    steps = {row["steps"] or 0 for row in rows}
    if len(steps) == 1 and max(steps) > 1:
        yield arithmetic.each("of each step", ns, max(steps))
    yield arithmetic.share("of the busy time", ns, busy)
    if 0 < high < int(ns):
        others = f"category NOT IN {arithmetic.one_of(savings.FUSED)}"
        own = sum(savings.beyond(row) for row in rows if row["category"] not in savings.FUSED)
        yield arithmetic.queried("of kernels that no fusion ends", f"SELECT sum({_BEYOND}) {chosen} AND {others}", own)
    if high:
        yield arithmetic.saving(0, high)


def weights(rows: Sequence[Row], device: Row, parameters: Mapping[str, Scalar]) -> Iterator[str]:
    """With weights of 8 and of 4 bits; promised is, group by group, the better of both."""
    yield from time(rows, device, parameters)
    for bits in (8, 4):

        def saved(row: Row, bits: int = bits) -> float:
            return savings.with_weights_of(row, bits, device)

        def said(row: Row, bits: int = bits) -> str:
            gone = f"{_share(row, 'weight_bytes')} * (1 - {bits} / {row['weight_bits']})"
            return _without(row, gone, savings.weight_speed(row, bits, device))

        yield from _sum(f"{bits} bits", rows, saved, said)
    best = [max(savings.with_weights_of(row, bits, device) for bits in (8, 4)) for row in rows]
    yield _added("the better of both, group by group", best)
    yield arithmetic.saving(0, int(sum(best)))


def fewer_bits(rows: Sequence[Row], device: Row, parameters: Mapping[str, Scalar], high: int) -> Iterator[str]:
    """With operands of 8 bits, and of 4 where the device multiplies these. high: what is promised, ns."""
    yield from time(rows, device, parameters)
    choices: list[tuple[str, float, tuple[str, ...]]] = [("FP8", 0.5, ("fp8",))]
    choices += [("FP4", 0.75, ("fp8", "fp4"))] * ("fp4" in (device["peaks"] or {}))
    for name, gone, maths in choices:

        def saved(row: Row, gone: float = gone, maths: Sequence[str] = maths) -> float:
            return savings.without(row, gone, savings.speed(row, maths, device))

        def said(row: Row, gone: float = gone, maths: Sequence[str] = maths) -> str:
            return _without(row, f"{gone}", savings.speed(row, maths, device))

        yield from _sum(name, rows, saved, said)
    yield arithmetic.saving(0, high)


def smaller_cache(rows: Sequence[Row], device: Row, parameters: Mapping[str, Scalar], high: int) -> Iterator[str]:
    """With keys and values of half the bytes. high: what is promised, ns."""
    yield from time(rows, device, parameters)
    yield from _sum(
        "keys and values of half the bytes",
        rows,
        lambda row: savings.without(row, savings.share(row, "kv_bytes") / 2),
        lambda row: _without(row, f"{_share(row, 'kv_bytes')} / 2", 1.0),
    )
    yield arithmetic.saving(0, high)


def _of(rows: Sequence[Row], parameters: Mapping[str, Scalar]) -> str:
    ids = arithmetic.one_of([int(row["example_id"]) for row in rows])
    return f"FROM {arithmetic.called('roofline', parameters)} WHERE example_id IN {ids}"


def _sum(label: str, rows: Sequence[Row], saved: Callable[[Row], float], say: Callable[[Row], str]) -> Iterator[str]:
    """The first groups worked out, then all of them added up."""
    for row in rows[:_WORKED]:
        if ns := saved(row):
            yield f"{label}, group of {row['example_id']}: {say(row)} = {arithmetic.amount(ns)}"
    yield _added(f"{label}, all groups", list(map(saved, rows)))


def _added(label: str, parts: Sequence[float]) -> str:
    """Those worked out one by one, the others as one part."""
    rest = [sum(parts[_WORKED:])] if len(parts) > _WORKED else []
    return arithmetic.total(label, [*parts[:_WORKED], *rest])


def _share(row: Row, name: str) -> str:
    """Share of the bytes."""
    part, whole = (arithmetic.amount(row[key], "bytes") for key in (name, "bytes"))
    return f"{part} / {whole}" if savings.share(row, name) < 1 else "1"


def _without(row: Row, gone: str, faster: float) -> str:
    """What the roof asks for less without a part of the bytes, at most what is the group's alone."""
    memory, compute, roof, alone = (
        arithmetic.amount(row[key] or 0) for key in ("memory_ns", "compute_ns", "roof_ns", "exclusive_ns")
    )
    left = f"max({memory} * (1 - {gone}), {compute}{f' / {faster:.6f}' if faster > 1 else ''})"
    return f"min({roof} - {left}, {alone})"
