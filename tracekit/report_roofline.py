"""The roofline as text: which roofs and whose, what bounds the time, how much of it has evidence, which kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from tracekit.analysis import Result, Row, duration
from tracekit.kernel_names import name_forms
from tracekit.roofline_names import kernel_name, mark, mark_of_both, mark_of_roof, op_with_sizes, work_name
from tracekit.roofline_panel import first_sentence, share_of_finding
from tracekit.text_grid import clean, cut, grid
from tracekit.text_page import Page
from tracekit.wording import counted

_GROUPS, _FEWEST = 25, 8  # shown of a device
_LEAST_SHOWN = 0.002  # of the busy time, beyond the fewest
_DEVICES = 8
_LITTLE = 0.01  # of the busy time: what is above a roof is then said, no more
_LETTERS = "abcdefghijklmnopqrstuvwxyz"  # by which notes are told
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
_HEADS = ("time", "count", "FLOP/B", "TFLOP/s", "GB/s", "% of roof", "% datasheet", "bound", "evidence")
_FIGURES = frozenset(_HEADS[:7])
_SPARE = ("% datasheet", "count", "FLOP/B", "evidence")  # columns to leave out where the page is narrow


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
    above = here["above_roof_ns"] / here["busy_ns"]
    if above >= _LITTLE:
        see = ", see the findings" if above >= share_of_finding(roofline.parameters) else ""
        doubts.append(f"{above:.1%} above a roof: an error{see}")
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
    is_found = share_of_finding(roofline.parameters)
    for device in roofline.summary[:_DEVICES]:
        here = [row for row in rows if (row["rank"], row["device"]) == (device["rank"], device["device"])]
        lines += [*_roofs(page, device, here), *_times(page, device, is_found), *_groups(page, device, here)]
    if (left := len(roofline.summary) - _DEVICES) > 0:
        lines += page.line((f"  and {counted(left, 'more device')}: choose a rank, or --format json", "dim"))
    return lines


def _roofs(page: Page, device: Row, rows: Sequence[Row]) -> Iterator[Text]:
    """Peaks of what its kernels compute with, what of them is achievable, and where each figure is from."""
    name = clean(device["name"] or "a device without a name")
    spec = f", roofs of {clean(device['spec'])}" if device["spec"] else ""
    yield from page.line((f"  rank {device['rank']} device {device['device']}: {name}{spec}", "bold"))
    if device["problem"]:  # in full among the findings, but for the lines of a file
        yield from page.wrapped(f"{first_sentence(device['problem'])}.", "    ", "yellow", None)
        if lines := device["problem"].split("\n")[1:-1]:
            yield from page.line(("    If you know that it is one, a file for --device-spec:", "yellow"))
            yield from (Text(cut(f"      {clean(line)}", page.width), no_wrap=True) for line in lines)
    for remark in device.get("remarks") or ():
        yield from page.wrapped(remark, "    ", "yellow", None)
    used = {row["math"] for row in rows}
    peaks = {
        "bandwidth": device["bandwidth"],
        **{of: device["peaks"][of] for of in device["peaks"] or {} if of in used},
    }
    shown = {what: peak for what, peak in peaks.items() if peak}
    for what, peak in shown.items():
        figure = f"{peak / 1e9:,.0f} GB/s" if what == "bandwidth" else f"{peak / 1e12:,.1f} TFLOP/s"
        fraction = (device["achievable"] or {}).get(what)
        reach = "" if fraction is None else f", {fraction:.0%} achievable"
        yield from page.line((f"    {what:<11} {figure}{reach}", ""))
    yield from _sources(page, device["sources"] or {}, tuple(shown))


def _sources(page: Page, sources: Mapping[str, str], shown: Sequence[str]) -> Iterator[Text]:
    """Of the peaks, then of the shares that are achievable; each source once, with what it is for where they differ."""
    for prefix, said in (("", "peaks"), ("achievable.", "achievable")):
        of: dict[str, list[str]] = {}
        for what in shown:
            if source := sources.get(f"{prefix}{what}"):
                of.setdefault(source, []).append(what)
        listed = "; ".join(
            source if len(of) == 1 and len(names) == len(shown) else f"{', '.join(names)} from {source}"
            for source, names in of.items()
        )
        if listed:
            yield from page.wrapped(f"{said}: {listed}", "    ", "dim", None)


def _times(page: Page, device: Row, is_found: float) -> Iterator[Text]:
    busy = device["busy_ns"]
    if not busy:
        return
    yield from page.line((f"    bound by, of {duration(busy)} busy time", "dim"))
    for name, ns in _ranked(device["by_bound"], _ORDER):
        if ns:
            yield from page.bar(f"      {name:<13} {duration(ns):>9} {ns / busy:>6.1%}  ", ns / busy)
    if above := device["above_roof_ns"] / busy:
        said = f"{above:.1%} of it is above a roof: wrong device, wrong shapes or caches; no verdict there"
        if above < _LITTLE:
            said = f"{duration(device['above_roof_ns'])} of it above a roof, as from a cache: no verdict there"
        yield from page.wrapped(said, "      ", "red" if above >= is_found else "dim", None)
    yield from page.line((f"    evidence: {_covered(device):.1%} of it", "dim"))
    for tier, ns in _ranked(device["by_evidence"], tuple(_TIERS)):
        if ns:
            sign = "-" if tier == "none" else tier
            yield from page.line((f"      {sign} {duration(ns):>9} {ns / busy:>6.1%}  {_TIERS.get(tier, '')}", ""))


def _groups(page: Page, device: Row, rows: Sequence[Row]) -> Iterator[Text]:
    """Costliest first: a line of figures, and below it what it works on and the kernel's name, which need a line of
    their own. Then what the letters of the notes stand for, and the signs before figures.
    """
    ranked = sorted(rows, key=lambda row: (-row["exclusive_ns"], row["example_id"]))
    kept = _worth(ranked, device["busy_ns"])
    if not kept:
        return
    letters = _letters(kept)
    shown = [dict(zip(_HEADS, _cells(row, letters), strict=True)) for row in kept]
    heads = [head for head in _HEADS if any(row[head] for row in shown)]
    first, *lines = _fitting(heads, shown, page.width - 4)
    yield Text(f"    {first}", style="dim", no_wrap=True)
    for line, row in zip(lines, kept, strict=True):
        yield Text(f"    {line}", no_wrap=True)
        yield Text(f"      {cut(_name(row), page.width - 6)}", style="dim", no_wrap=True)
    if left := ranked[len(kept) :]:
        share = sum(row["exclusive_ns"] for row in left) / device["busy_ns"] if device["busy_ns"] else 0.0
        yield from page.line((f"    and {counted(len(left), 'more kernel group')}, {share:.1%}: --format json", "dim"))
    said = [f"{letter} {note}" for note, letter in letters.items()]
    figures = " ".join(cell for row in shown for cell in row.values())
    said += [f"{sign} {words}" for sign, words in (("~", "expected"), (">=", "at least")) if sign in figures]
    if said:
        yield from page.wrapped("; ".join(said), "    ", "dim", None)


def _worth(ranked: Sequence[Row], busy: int) -> Sequence[Row]:
    """The first ones, and of the others those that take enough time to be read."""
    enough = sum(row["exclusive_ns"] >= _LEAST_SHOWN * busy for row in ranked)
    return ranked[: min(_GROUPS, max(_FEWEST, enough))]


def _letters(rows: Sequence[Row]) -> Mapping[str, str]:
    """A letter for each note on these groups; there are never more notes than letters that matter."""
    notes = dict.fromkeys(note for row in rows for note in _notes(row))
    return dict(zip(notes, _LETTERS, strict=False))


def _notes(row: Row) -> list[str]:
    return [note for note in (row["notes"] or "").split(", ") if note]


def _fitting(heads: Sequence[str], rows: Sequence[Mapping[str, str]], width: int) -> list[str]:
    """A grid without the columns that there is no room for."""
    lines: list[str] = []
    for dropped in range(len(_SPARE) + 1):
        kept = [head for head in heads if head not in _SPARE[:dropped]]
        # A sign before a number makes it text to the grid: such columns are aligned here.
        wide = {head: max(len(head), *(len(row[head]) for row in rows)) if head in _FIGURES else 0 for head in kept}
        aligned = [{head.rjust(wide[head]): row[head].rjust(wide[head]) for head in kept} for row in rows]
        lines = grid(list(aligned[0]), aligned)
        if max(map(len, lines)) <= width:
            return lines
    return [cut(line, width) for line in lines]


def _cells(row: Row, letters: Mapping[str, str]) -> tuple[str, ...]:
    """Time without what other kernels cover; rates by the kernels' own time. Of communication, GB/s are those of its
    links.
    """
    flops, bandwidth = row["achieved_flops"], row["achieved_bandwidth"]
    of_bytes = "" if row["bound"] == "communication" else mark(row, "bytes")
    return (
        duration(row["exclusive_ns"]),
        f"{row['count']:,}",
        _figure(row["intensity"], mark_of_both(row)),
        _figure(flops and flops / 1e12, mark(row, "flops")),
        _figure(bandwidth and bandwidth / 1e9, of_bytes),
        _percent(row["roof_fraction"], mark_of_roof(row)),
        _percent(row["datasheet_fraction"], mark_of_roof(row)),
        _bound(row),
        " ".join([row["evidence"] or "-", *(letters[note] for note in _notes(row) if note in letters)]),
    )


def _name(row: Row) -> str:
    """What it works on, and the kernel: the whole name, unless that is mangled."""
    work, forms = work_name(row), name_forms(row["kernel"])
    if row["category"] == "memory":
        return clean(f"{row['kernel']}  {op_with_sizes(row)}")
    kernel = kernel_name(row["kernel"]) if forms.simplified.startswith("_Z") else forms.simplified
    return clean(kernel if work == kernel_name(row["kernel"]) else f"{work}  {kernel}")


def _figure(value: float | None, sign: str) -> str:
    if not value:
        return ""
    return sign + (f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}")


def _bound(row: Row) -> str:
    """What bounds it; where that is not clear, where it leans."""
    if row["problem"] == _ABOVE:
        return "error: above roof"
    return f"unknown ({row['leaning']}?)" if row["bound"] == "unknown" and row["leaning"] else str(row["bound"])


def _percent(value: float | None, sign: str) -> str:
    return "" if value is None else f"{sign}{value * 100:.1f}"
