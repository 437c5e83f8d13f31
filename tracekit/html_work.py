"""What does the device do while it is busy? Its time by category and phase, and its kernels against the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracekit.analysis import Result, Row
from tracekit.html_roofline import Numbered, drawing
from tracekit.html_svg import share_bar, swatch
from tracekit.html_views import (
    ROWS,
    Block,
    Cell,
    Column,
    Figure,
    Notes,
    Section,
    Table,
    number_cell,
    reason_of,
    share_cell,
    shown,
    some_of,
    table,
    text_cell,
    time_cell,
)
from tracekit.plot_style import fill_of, si
from tracekit.roofline_names import kernel_name, mark, mark_of_both, mark_of_roof, work_name
from tracekit.roofline_panel import first_sentence
from tracekit.wording import counted

_BOUNDS = ("memory", "compute", "latency", "communication", "unknown")
_EVIDENCE = {
    "A": "counters of the kernel",
    "B": "op shapes, one kernel",
    "C": "op shapes, several kernels",
    "D": "capture trace, like kernels or model config",
    "E": "GPU metrics while it ran",
    "F": "name and geometry only",
    "G": "bytes of copies",
    "none": "nothing",
}
_GROUPS = 60  # kernel groups of a device
_DEVICES = 2  # with a drawing of their own


# ---- categories ------------------------------------------------------------------------------------------------------


def categories(attribution: Result, again: str) -> Section:
    """again: the command that prints all of it."""
    rows = attribution.table.to_pylist()
    total = sum(row["exclusive_ns"] for row in rows)
    if not total:
        said = reason_of(attribution, "no device activity in this part of the trace")
        return Section("categories", "Time by category", "", (Notes(said),))
    on_host = rows[0]["device"] is None
    several = len({(row["rank"], row["device"]) for row in rows}) > 1
    most = max(row["exclusive_ns"] for row in rows)
    columns = (
        *((Column("rank", "number"), Column("device", "number")) if several else ()),
        Column("phase"),
        Column("category"),
        Column("kind"),
        Column("count", "number"),
        Column("time", "number", "time that is theirs alone: where work overlaps, it is of what started first"),
        Column("share", "bar", "of the busy time of the device"),
        Column("sum of durations", "number", "above the time where work overlaps"),
    )
    ranked = sorted(rows, key=lambda row: -row["exclusive_ns"])
    cells = [
        (
            *((number_cell(row["rank"]), number_cell(row["device"])) if several else ()),
            text_cell(row["phase"]),
            Cell(shown(row["category"], 40), markup=swatch(fill_of(row["category"]))),
            text_cell(row["subcategory"]),
            number_cell(row["count"]),
            time_cell(row["exclusive_ns"]),
            share_cell(row["share"], share_bar(row["exclusive_ns"] / most)),
            time_cell(row["total_ns"]),
        )
        for row in ranked[:ROWS]
    ]
    note = some_of(len(cells), len(rows), "those with most time", again)
    title = "Host op time by category" if on_host else "Busy time by category"
    why = reason_of(attribution)
    reason = [Notes(why, "warn" if on_host else "plain")] if any(why) else []
    lead = "" if on_host else "Each device row has one category, by the rules for kernel names and the op around it."
    return Section("categories", title, lead, (*reason, table("By phase and category", columns, cells, note)))


# ---- roofline --------------------------------------------------------------------------------------------------------


def roofline(result: Result, again: str) -> Section:
    """A drawing of each of the devices with most work, what bounds their time, and the kernel groups."""
    rows = result.table.to_pylist()
    devices = sorted(result.summary, key=lambda row: -row["busy_ns"])
    if not rows or not devices:
        said = reason_of(result, "no device activity in this part of the trace")
        return Section("roofline", "Roofline", "", (Notes(said),))
    blocks: list[Block] = []
    for device in devices[:_DEVICES]:
        here = [row for row in rows if (row["rank"], row["device"]) == (device["rank"], device["device"])]
        blocks += _device(device, here, result, again, len(devices) > 1)
    if (left := len(devices) - _DEVICES) > 0:
        blocks.append(Notes((f"{counted(left, 'more device')}, with less work: {again}",)))
    lead = "How near does each group of kernels come to what the device can do, and which limit is it near?"
    return Section("roofline", "Roofline", lead, tuple(blocks))


def _device(device: Row, rows: Sequence[Row], result: Result, again: str, several: bool) -> list[Block]:
    where = f"rank {device['rank']} device {device['device']}: " if several else ""
    name = f"{where}{shown(device['name'] or 'a device without a name', 60)}"
    blocks: list[Block] = []
    said = [f"{first_sentence(device['problem'])}."] if device["problem"] else []
    said += [str(remark) for remark in device.get("remarks") or ()]
    if said:
        blocks.append(Notes(tuple(shown(one, 2_000) for one in said), "warn"))
    ranked = sorted(rows, key=lambda row: (-row["exclusive_ns"], row["example_id"]))
    numbered: Numbered = {}
    if found := drawing(ranked, device, result.parameters):
        numbered = found.numbers
        blocks.append(Figure(f"Roofline of {name}", found.markup, found.keys, found.note, wide=True))
    blocks.append(_bounds(device))
    blocks.append(_groups(ranked, device, numbered, again))
    return blocks


def _bounds(device: Row) -> Table:
    """Of the busy time, what bounds it, and by which evidence that is known."""
    busy = max(1, device["busy_ns"])
    times = device["by_bound"] or {}
    rows = [
        (
            text_cell(f"bound by {name}"),
            time_cell(times[name]),
            share_cell(times[name] / busy, share_bar(times[name] / busy)),
        )
        for name in sorted(times, key=lambda one: _BOUNDS.index(one) if one in _BOUNDS else 9)
        if times[name]
    ]
    evidence: Mapping[str, int] = device["by_evidence"] or {}
    rows += [
        (
            text_cell(f"known by {_EVIDENCE.get(tier, tier)} ({tier})" if tier != "none" else "known by nothing"),
            time_cell(evidence[tier]),
            share_cell(evidence[tier] / busy, share_bar(evidence[tier] / busy)),
        )
        for tier in _EVIDENCE
        if evidence.get(tier)
    ]
    columns = (Column("busy time"), Column("time", "number"), Column("share", "bar"))
    return table("What bounds it, and how that is known", columns, rows)


def _groups(ranked: Sequence[Row], device: Row, numbered: Numbered, again: str) -> Table:
    columns = (
        Column("#", "number", "in the drawing"),
        Column("works on, and kernel", "prose"),
        Column("category"),
        Column("time", "number"),
        Column("share", "number", "of the busy time"),
        Column("bound"),
        Column("of roof", "number", "of the achievable roof that it is nearest to"),
        Column("FLOP/B", "number"),
        Column("FLOP/s", "number"),
        Column("B/s", "number"),
        Column("count", "number"),
        Column("by", title="; ".join(f"{tier}: {said}" for tier, said in _EVIDENCE.items())),
    )
    rows = [_group(row, device, numbered) for row in ranked[:_GROUPS]]
    note = some_of(len(rows), len(ranked), "those with most time", again)
    signs = "~ expected; \u2265 at least. Rates are by the kernels' own time; those of communication are of its links."
    return table("Kernel groups", columns, rows, f"{signs} {note}".strip())


def _group(row: Row, device: Row, numbered: Numbered) -> list[Cell]:
    busy = device["busy_ns"]
    of_bytes = "" if row["bound"] == "communication" else mark(row, "bytes")
    work, kernel = shown(work_name(row), 80), shown(kernel_name(row["kernel"]), 60)
    return [
        number_cell(numbered.get(row["example_id"])),
        Cell(work, title=shown(row["kernel"]), detail="" if kernel == work else kernel),
        Cell(shown(row["category"], 40), markup=swatch(fill_of(row["category"]))),
        time_cell(row["exclusive_ns"]),
        share_cell(row["exclusive_ns"] / busy if busy else None),
        text_cell(_bound(row), tone="bad" if row["problem"] == "above roof" else "plain"),
        _of_roof(row),
        _figure(row["intensity"], mark_of_both(row), ""),
        _figure(row["achieved_flops"], mark(row, "flops"), "FLOP/s"),
        _figure(row["achieved_bandwidth"], of_bytes, "B/s"),
        number_cell(row["count"]),
        text_cell(row["evidence"] or "-", title=_EVIDENCE.get(row["evidence"] or "none", "")),
    ]


def _figure(value: float | None, sign: str, unit: str) -> Cell:
    if not value:
        return Cell("", "")
    said = si(value, unit) if unit else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return Cell(sign.replace(">=", "\u2265") + said, value)


def _of_roof(row: Row) -> Cell:
    share = row["roof_fraction"]
    if share is None:
        return Cell("", "")
    return Cell(f"{mark_of_roof(row).replace('>=', chr(0x2265))}{share:.1%}", share)


def _bound(row: Row) -> str:
    """What bounds it; where that is not clear, where it leans."""
    if row["problem"] == "above roof":
        return "error: above roof"
    return f"unknown ({row['leaning']}?)" if row["bound"] == "unknown" and row["leaning"] else str(row["bound"])
