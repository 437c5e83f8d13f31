"""The part of the report that tells of busy and idle devices: how much, by cause, by length of gap, and which gaps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow.compute as pc
from rich.text import Text

from tracekit.analyses._idle_advice import MEANINGS
from tracekit.analysis import Result, Row, duration
from tracekit.scope import in_units
from tracekit.text_grid import clean, cut, from_package, grid
from tracekit.text_page import Page
from tracekit.trace import Trace
from tracekit.wording import counted

_ROWS = 20  # longest parts of gaps shown
_FOLDERS = re.compile(r"^[^\s(<]*/(?=[^/\s]+\.py\()")
_LONG_NS = 1_000  # shorter ones are shown only if there are no others
_COPIES = 0.1  # share of the busy time without a kernel from which it is said
_STEP = 14  # columns of a figure per step
Device = tuple[int, int | None]


def devices(page: Page, idle: Result, attribution: Result | None, most: int | None) -> list[Text]:
    """Span, busy and idle time of each device, of so many at most; why idle time cannot be told, where it cannot."""
    reason = page.wrapped(idle.coverage.reason, "", "yellow", None if page.whole else 3)
    if not idle.summary:
        return reason if attribution is None else []
    if len(idle.summary) == 1:
        (row,) = idle.summary
        lines = page.packed(
            [
                f"rank {row['rank']} device {row['device']}",
                f"span {duration(row['span_ns'])}",
                f"busy {duration(row['busy_ns'])}{_share(row, 'busy_ns', ' ({:.1%})')}",
                f"idle {'cannot tell' if row['idle_ns'] is None else duration(row['idle_ns'])}"
                f"{_share(row, 'idle_ns', ' ({:.1%})')}",
                *_without_copies(row, attribution),
            ]
        )
    else:
        lines = page.line((f"{'rank':>4} {'device':>6} {'span':>9} {'busy':>6} {'idle':>6}  most of it", "bold"))
        lines += _device_rows(page, idle.summary, attribution, most)
    return lines + (reason if any(row["idle_ns"] is None for row in idle.summary) else [])


def _share(row: Row, key: str, form: str = "{:.1%}", otherwise: str = "") -> str:
    """A part of the span. Where idle time cannot be told, neither can how much of the span was busy."""
    return otherwise if row["idle_ns"] is None else form.format(row[key] / max(1, row["span_ns"]))


def _without_copies(row: Row, attribution: Result | None) -> Iterator[str]:
    """How long the device computed, where that is much less than it was busy."""
    for other in attribution.summary if attribution else ():
        here = (other["rank"], other["device"]) == (row["rank"], row["device"])
        if here and row["busy_ns"] - (other["kernel_ns"] or 0) > _COPIES * row["busy_ns"]:
            share = _share({**row, "kernel_ns": other["kernel_ns"] or 0}, "kernel_ns", " ({:.1%})")
            yield f"kernels alone {duration(other['kernel_ns'] or 0)}{share}"


def _device_rows(page: Page, summary: Sequence[Row], attribution: Result | None, most: int | None) -> list[Text]:
    top = _top_categories(attribution)
    shown = summary[:most]
    lines: list[Text] = []
    for row in shown:
        cause = max(row["by_cause"].items(), key=lambda item: item[1], default=("", 0))[0]
        busy, idle = (_share(row, key, otherwise="?") for key in ("busy_ns", "idle_ns"))
        numbers = f"{row['rank']:>4} {row['device']!s:>6} {duration(row['span_ns']):>9} {busy:>6} {idle:>6}  "
        busiest = clean(top.get((row["rank"], row["device"]), ""))
        said = (busiest, *_without_copies(row, attribution), f"idle: {cause}" if cause else "")
        main = "; ".join(part for part in said if part)
        lines += page.line((numbers + main, ""), indent=" " * len(numbers))
    if len(summary) > len(shown):
        lines += page.line((f"     and {counted(len(summary) - len(shown), 'more device')}", "dim"))
    return lines


def _top_categories(attribution: Result | None) -> dict[Device, str]:
    time_of: dict[Device, Counter[str]] = {}
    for row in attribution.table.to_pylist() if attribution else ():
        time_of.setdefault((row["rank"], row["device"]), Counter())[row["category"]] += row["exclusive_ns"]
    return {where: times.most_common(1)[0][0] for where, times in time_of.items()}


# ---- causes ----------------------------------------------------------------------------------------------------------


def causes(page: Page, idle: Result, most: int | None) -> list[Text]:
    """Idle time by cause, longest first, so many at most: time, share of the span, gaps, and time per step of each
    phase that fits.
    """
    span = sum(row["span_ns"] for row in idle.summary)
    by_cause: Counter[str] = Counter()
    for row in idle.summary:
        by_cause.update(row["by_cause"])
    if not span or not by_cause:
        return []
    counts = idle.table.group_by("cause").aggregate([("after_id", "count_distinct")]).to_pylist()
    gaps = {row["cause"]: row["after_id_count_distinct"] for row in counts}
    per_step = _per_step(idle.summary)
    phases = list(per_step)[: (page.width - len(_figures("", "", "", ""))) // _STEP]
    heads = "".join(f"{_step_of(phase):>{_STEP}}" for phase in phases)
    lines = _heads(page, "Idle time by cause", _figures("", "", "of span", "gaps") + heads)
    ranked = sorted(by_cause.items(), key=lambda item: (-item[1], item[0]))
    for cause, ns in ranked[:most]:
        said = _figures(cause, duration(ns), f"{ns / span:.1%}", f"{gaps[cause]:,}")
        of_step = [per_step[phase].get(cause) for phase in phases]
        said += "".join(f"{'' if mean is None else duration(mean):>{_STEP}}" for mean in of_step)
        lines += page.line((said, ""))
        if page.whole:
            lines += page.wrapped(MEANINGS.get(cause, ""), "    ", "dim", None)
    if rest := ranked[len(ranked[:most]) :]:
        ns = sum(ns for _, ns in rest)
        lines += page.line((_figures(f"{len(rest)} more", duration(ns), f"{ns / span:.1%}", ""), ""))
    return lines


def _figures(name: str, time: str, share: str, gaps: str) -> str:
    return f"  {name:<18} {time:>9} {share:>7} {gaps:>7}"


def _heads(page: Page, title: str, heads: str) -> list[Text]:
    """A title with the names of the columns on its line."""
    return page.line((title, "bold underline"), (heads[len(title) :], "dim"))


def _step_of(phase: str) -> str:
    return "/step" if phase == "unknown" else f"/{phase} step"


def _per_step(summary: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean idle time of a step by phase and cause, over all devices; the phase with most of it first."""
    spent: dict[str, Counter[str]] = {}
    steps: dict[str, int] = {}
    for row in summary:
        counts = {one["phase"]: one["steps"] for one in row["per_step"]}
        for phase, count in counts.items():
            steps[phase] = steps.get(phase, 0) + count
        for one in row["per_step"]:
            spent.setdefault(one["phase"], Counter())[one["cause"]] += one["ns"]
    ranked = sorted(spent, key=lambda phase: (-spent[phase].total(), phase))
    return {phase: {cause: ns / steps[phase] for cause, ns in spent[phase].items()} for phase in ranked}


# ---- gaps ------------------------------------------------------------------------------------------------------------


def in_full(page: Page, trace: Trace, idle: Result) -> list[Text]:
    """How long gaps are, what is to be known of them, and the longest."""
    return [*lengths(page, idle), *remarks(page, idle), *longest_gaps(page, trace, idle)]


def lengths(page: Page, idle: Result) -> list[Text]:
    """How many gaps are how long, and what time they take."""
    bins = _bins(idle.summary)
    total = sum(ns for _, _, _, ns in bins)
    if not total:
        return []
    lines = _heads(page, "Gaps by length", _figures("", "", "of idle", "gaps"))
    for low, high, gaps, ns in bins:
        said = _figures(_extent(low, high), duration(ns), f"{ns / total:.1%}", f"{gaps:,}")
        lines += page.bar(f"{said}  ", ns / total)
    return lines


def _bins(summary: Sequence[Row]) -> list[tuple[int, int | None, int, int]]:
    """From, to, gaps and time over all devices, without empty ones at either end."""
    added: dict[tuple[int, int | None], tuple[int, int]] = {}
    for row in summary:
        for one in row["histogram"]:
            key = (one["from_ns"], one["to_ns"])
            gaps, ns = added.get(key, (0, 0))
            added[key] = gaps + one["gaps"], ns + one["ns"]
    bins = [(*key, *value) for key, value in added.items()]
    filled = [at for at, one in enumerate(bins) if one[2]]
    return bins[filled[0] : filled[-1] + 1] if filled else []


def _extent(low: int, high: int | None) -> str:
    if high is None:
        return f"{in_units(low)} and more"
    return f"{in_units(low)} to {in_units(high)}" if low else f"below {in_units(high)}"


def remarks(page: Page, idle: Result) -> list[Text]:
    """What of the idle time says little: before the first recorded launch, and at the mercy of clocks."""
    return [line for text in _remarks(idle.summary) for line in page.wrapped(text, "  ", "dim", None)]


def _remarks(summary: Sequence[Row]) -> Iterator[str]:
    if excluded := sum(row["excluded_ns"] or 0 for row in summary):
        yield f"{duration(excluded)} of it was ended by work launched before the recording began: no finding counts it"
    uncertain = sum(row["uncertain_ns"] or 0 for row in summary)
    skew = max((row["skew_ns"] or 0 for row in summary), default=0)
    if uncertain and skew:
        yield f"{duration(uncertain)} of it may be of a neighbouring cause: the clocks differ by up to {duration(skew)}"


def longest_gaps(page: Page, trace: Trace, idle: Result) -> list[Text]:
    """The longest parts of gaps, with the work that ended them and what they are blamed on."""
    ordered = idle.table.sort_by([("dur", "descending"), ("rank", "ascending"), ("ts", "ascending")])
    if not ordered.num_rows:
        return page.wrapped(idle.coverage.reason or "no gap", "  ", "dim", None)
    long = ordered.filter(pc.field("dur") >= _LONG_NS)
    parts = (long if long.num_rows else ordered).slice(0, _ROWS).to_pylist()
    names = trace.rows(id for part in parts for id in (part["blame"], part["after_id"]) if id is not None)
    said = f"longest first, {len(parts)} of {counted(ordered.num_rows, 'part')} of gaps"
    if len(parts) < ordered.num_rows:
        said += "; all of them, by time: --format json"
    columns = ["ts", "dur", "cause", "step", "phase", "place"]
    if len(idle.summary) > 1:
        columns = ["rank", "device", *columns]
    header, *lines = grid(
        columns,
        [part | {"ts": f"{part['ts'] / 1e6:.3f} ms", "dur": duration(part["dur"])} for part in parts],
        page.width,
    )
    shown = [*page.wrapped(said, "  ", "dim", None), Text(header)]
    for line, part in zip(lines, parts, strict=True):
        around = [("ended by", part["after_id"])] + ([] if part["blame"] is None else [("blamed on", part["blame"])])
        room = (page.width - 4 * len(around)) // len(around)
        referred = [_referred(word, id, names[id]["name"], room) for word, id in around]
        shown += [Text(line), Text("    " + "    ".join(referred), style="dim")]
    return shown


def _referred(word: str, id: int, name: str, room: int) -> str:
    """A row by id and name, the name cut to fit: of a Python function the folders go first."""
    start = f"{word} {id} "
    most = max(8, room - len(start))
    shown = from_package(name)
    if len(shown) > most:
        shown = _FOLDERS.sub("", shown)
    return start + cut(clean(shown), most)
