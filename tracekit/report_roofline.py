"""The roofline as text: which roofs and whose, what bounds the time, how much of it has evidence, which kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from tracekit.analysis import Result, Row, duration
from tracekit.kernel_names import name_forms
from tracekit.roofline_panel import first_sentence
from tracekit.text_grid import clean, cut, grid
from tracekit.text_page import Page
from tracekit.wording import counted

_GROUPS = 25  # shown of a device
_DEVICES = 8
_SHAPES = 40  # characters of the shapes of an op
_ABOVE = "above roof"
_TIERS = {
    "A": "counters of the kernel",
    "B": "op shapes, one kernel",
    "C": "op shapes, several kernels",
    "D": "capture trace, like kernels or model config",
    "E": "GPU metrics while it ran",
    "F": "name and geometry only",
    "G": "bytes of copies",
    "none": "nothing",
}
_ORDER = ("memory", "compute", "latency", "communication", "unknown")
_SPARE = ("% datasheet", "count", "FLOP/B", "evidence")  # columns to leave out where the page is narrow
_HEADS = ("time", "count", "FLOP/B", "TFLOP/s", "GB/s", "% of roof", "% datasheet", "bound", "evidence")


# ---- one screen ------------------------------------------------------------------------------------------------------


def overview(page: Page, roofline: Result, most: int | None) -> list[Text]:
    """At most four lines on the device with most work: what bounds its time, and how sure that is; fewer where `most`,
    the entries of other lists, is small. Nothing without any device.
    """
    here = max(roofline.summary, key=lambda row: row["busy_ns"], default=None)
    if here is None or not here["busy_ns"]:
        return []
    where = f" on rank {here['rank']} device {here['device']}" if len(roofline.summary) > 1 else ""
    room = 1 if most is not None and most <= 3 else 2
    if here["problem"] and not _has_roofs(here):
        said = f"Busy time bound by{where}: cannot tell. {first_sentence(here['problem'])}: no roofs to compare with"
        return page.wrapped(said, "", "yellow", room)
    parts = [
        f"{name} {ns / here['busy_ns']:.1%}"
        for name, ns in _ranked(here["by_bound"], _ORDER)
        if ns / here["busy_ns"] >= 0.0005
    ]
    lines = page.wrapped(f"Busy time bound by{where}: {', '.join(parts)}", "", "", room)
    doubts = [f"{_covered(here):.1%} with evidence of its work"]
    if here["above_roof_ns"] >= 0.0005 * here["busy_ns"]:
        doubts.append(f"{here['above_roof_ns'] / here['busy_ns']:.1%} above a roof: an error, see the findings")
    if here["problem"]:
        doubts.append(first_sentence(here["problem"]))
    return lines + page.wrapped("; ".join(doubts), "  ", "dim", room)


def _has_roofs(device: Row) -> bool:
    return bool(device["peaks"] or device["bandwidth"])


def _covered(device: Row) -> float:
    """Share of the busy time with evidence of what was done; a name and a geometry is none."""
    sure = sum(ns for tier, ns in (device["by_evidence"] or {}).items() if tier not in ("F", "none"))
    return float(sure / device["busy_ns"]) if device["busy_ns"] else 0.0


def _ranked(times: Mapping[str, int] | None, order: Sequence[str]) -> list[tuple[str, int]]:
    """In this order, and what is not in it last."""
    known = {name: at for at, name in enumerate(order)}
    return sorted((times or {}).items(), key=lambda item: (known.get(item[0], len(known)), item[0]))


# ---- in full ---------------------------------------------------------------------------------------------------------


def in_full(page: Page, roofline: Result) -> list[Text]:
    """For each device its roofs, what bounds its time, the evidence, and its costliest kernel groups."""
    lines: list[Text] = []
    if roofline.coverage.reason:
        lines += page.wrapped(roofline.coverage.reason, "  ", "dim", None)
    rows = roofline.table.to_pylist()
    for device in roofline.summary[:_DEVICES]:
        here = [row for row in rows if (row["rank"], row["device"]) == (device["rank"], device["device"])]
        lines += [*_roofs(page, device, here), *_times(page, device), *_groups(page, here)]
    if (left := len(roofline.summary) - _DEVICES) > 0:
        lines += page.line((f"  and {counted(left, 'more device')}: choose a rank, or --format json", "dim"))
    return lines


def _roofs(page: Page, device: Row, rows: Sequence[Row]) -> Iterator[Text]:
    """Peaks of what its kernels compute with, what of them is achievable, and where each figure is from."""
    name = clean(device["name"] or "a device without a name")
    spec = f", roofs of {clean(device['spec'])}" if device["spec"] else ""
    yield from page.line((f"  rank {device['rank']} device {device['device']}: {name}{spec}", "bold"))
    if device["problem"]:
        yield from page.wrapped(device["problem"], "    ", "yellow", None)
    used = {row["math"] for row in rows} & (device["peaks"] or {}).keys()
    peaks = {"bandwidth": device["bandwidth"], **(device["peaks"] or {})}
    for what, peak in peaks.items():
        if not peak or (used and what not in {*used, "bandwidth"}):
            continue
        figure = f"{peak / 1e9:,.0f} GB/s" if what == "bandwidth" else f"{peak / 1e12:,.1f} TFLOP/s"
        fraction = (device["achievable"] or {}).get(what)
        reach = "" if fraction is None else f", {fraction:.0%} achievable"
        source = (device["sources"] or {}).get(what)
        yield from page.wrapped(f"{what:<11} {figure}{reach}{f'  ({source})' if source else ''}", "    ", "", None)


def _times(page: Page, device: Row) -> Iterator[Text]:
    busy = device["busy_ns"]
    if not busy:
        return
    yield from page.line((f"    bound by, of {duration(busy)} busy time", "dim"))
    for name, ns in _ranked(device["by_bound"], _ORDER):
        if ns:
            yield from page.bar(f"      {name:<13} {duration(ns):>9} {ns / busy:>6.1%}  ", ns / busy)
    if device["above_roof_ns"]:
        share = f"{device['above_roof_ns'] / busy:.1%}"
        yield from page.wrapped(
            f"{share} of it is above a roof: wrong device, wrong shapes or caches; no verdict there",
            "      ",
            "red",
            None,
        )
    yield from page.line((f"    evidence: {_covered(device):.1%} of it", "dim"))
    for tier, ns in _ranked(device["by_evidence"], tuple(_TIERS)):
        if ns:
            mark = "-" if tier == "none" else tier
            yield from page.line((f"      {mark} {duration(ns):>9} {ns / busy:>6.1%}  {_TIERS.get(tier, '')}", ""))


def _groups(page: Page, rows: Sequence[Row]) -> Iterator[Text]:
    """Costliest first: a line of figures, and below it the op with its shapes and the kernel's name, which need a line
    of their own.
    """
    ranked = sorted(rows, key=lambda row: (-row["exclusive_ns"], row["example_id"]))[:_GROUPS]
    if not ranked:
        return
    shown = [dict(zip(_HEADS, _cells(row), strict=True)) for row in ranked]
    heads = [head for head in _HEADS if any(row[head] for row in shown)]
    first, *lines = _fitting(heads, shown, page.width - 4)
    yield Text(f"    {first}", style="dim", no_wrap=True)
    for line, row in zip(lines, ranked, strict=True):
        yield Text(f"    {line}", no_wrap=True)
        yield Text(f"      {cut(_name(row), page.width - 6)}", style="dim", no_wrap=True)
    if (left := len(rows) - _GROUPS) > 0:
        yield from page.line((f"    and {counted(left, 'more kernel group')}: --format json", "dim"))


def _fitting(heads: Sequence[str], rows: Sequence[Mapping[str, str]], width: int) -> list[str]:
    """A grid without the columns that there is no room for."""
    for dropped in range(len(_SPARE) + 1):
        lines = grid([head for head in heads if head not in _SPARE[:dropped]], rows, width)
        if max(map(len, lines)) <= width:
            break
    return lines


def _cells(row: Row) -> tuple[str, ...]:
    """Time without what other kernels cover; rates by the kernels' own time. Of communication, GB/s are those of its
    links.
    """
    bandwidth = row["achieved_bandwidth"]
    return (
        duration(row["exclusive_ns"]),
        f"{row['count']:,}",
        _figure(row["intensity"]),
        _figure(row["achieved_flops"] and row["achieved_flops"] / 1e12),
        _figure(bandwidth and bandwidth / 1e9),
        _percent(row["roof_fraction"]),
        _percent(row["datasheet_fraction"]),
        _bound(row),
        row["evidence"] or "-",
    )


def _name(row: Row) -> str:
    """The op without its namespace, its shapes, and the kernel."""
    kernel = row["kernel"] if row["category"] == "memory" else name_forms(row["kernel"]).simplified
    op = (row["op"] or "").rpartition("::")[2]
    shapes = cut((row["shapes"] or "").replace(" ", "").replace(",[]", ""), _SHAPES)
    return clean("  ".join(part for part in (f"{op} {shapes}".strip() if op else "", kernel) if part))


def _figure(value: float | None) -> str:
    if not value:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def _bound(row: Row) -> str:
    """What bounds it; where that is not clear, where it leans."""
    if row["problem"] == _ABOVE:
        return "error: above roof"
    return f"unknown ({row['leaning']}?)" if row["bound"] == "unknown" and row["leaning"] else str(row["bound"])


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value * 100:.1f}"
