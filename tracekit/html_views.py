"""What is a page of the HTML report made of? Sections of blocks: plain values that the template prints and escapes.

    results --html_*.py--> Section(Table, Figure, ...) --page/report.html--> text

Text from a trace goes through `name_cell` or `shown`: control characters, among them those that turn the direction of
writing, are written as escapes. What is markup is made by html_svg.py alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from markupsafe import Markup

from tracekit.analysis import Result, duration
from tracekit.text_grid import clean, cut, from_package
from tracekit.wording import counted

Tone = Literal["plain", "good", "warn", "bad"]
Kind = Literal["text", "prose", "number", "code", "bar"]

ROWS = 100  # of a table in the report
_NAME = 90  # characters of a name in a cell
_WHOLE = 600  # of the same where the pointer rests on it


# ---- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """text: what is read. value: what the column is sorted by, if not the text. title: the whole of what text cuts.
    markup: a drawing beside the text. detail: a second line, in small letters of one width.
    """

    text: str
    value: float | str | None = None
    title: str = ""
    markup: Markup = field(default_factory=Markup)
    tone: Tone = "plain"
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, how its cells are set, and what it means."""

    name: str
    kind: Kind = "text"
    title: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """caption: what the rows are. note: what is not among them, or what signs mean."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    block: str = "table"


# ---- other blocks ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend: its swatch, its name, and its figures."""

    swatch: Markup
    name: str
    figure: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with its title, the legend below it, and what must be said of it. wide: its text cannot shrink, so it
    scrolls where the page is narrow.
    """

    title: str
    drawing: Markup
    keys: tuple[Key, ...] = ()
    note: str = ""
    wide: bool = False
    block: str = "figure"


@dataclass(frozen=True, slots=True)
class Notes:
    """Paragraphs."""

    texts: tuple[str, ...]
    tone: Tone = "plain"
    block: str = "notes"


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure that matters, large."""

    name: str
    figure: str
    detail: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Tiles:
    """Some figures side by side."""

    tiles: tuple[Tile, ...]
    block: str = "tiles"


@dataclass(frozen=True, slots=True)
class Remark:
    """A finding. parts: heading and text; evidence: rows that prove it; command: that tells more."""

    id: str
    severity: str
    title: str
    saving: str
    parts: tuple[tuple[str, str], ...]
    arithmetic: tuple[str, ...]
    evidence: Table | None
    command: str
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Remarks:
    """Findings, the worst first; `folded` after a fold."""

    shown: tuple[Remark, ...]
    folded: tuple[Remark, ...] = ()
    block: str = "remarks"


@dataclass(frozen=True, slots=True)
class Commands:
    """Command lines, each with what it does."""

    lines: tuple[tuple[str, str], ...]
    block: str = "commands"


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that are shown when asked for."""

    title: str
    blocks: tuple[Block, ...]
    block: str = "fold"


@dataclass(frozen=True, slots=True)
class TimelineView:
    """The interactive timeline: windows to choose from, the data as JSON (safe in a script element), limits."""

    choices: tuple[str, ...]
    data: Markup
    keys: tuple[Key, ...]
    note: str
    block: str = "timeline"


Block = Table | Figure | Notes | Tiles | Remarks | Commands | Fold | TimelineView


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report under a heading. id: of the heading, for links. lead: one line that says what it answers."""

    id: str
    title: str
    lead: str
    blocks: tuple[Block, ...]


# ---- cells -----------------------------------------------------------------------------------------------------------


def shown(text: object, most: int = _WHOLE) -> str:
    """Text from a trace, fit to be printed."""
    return cut(clean(text), most)


def text_cell(text: object, title: str = "", tone: Tone = "plain") -> Cell:
    """Words of ours, or a short text from the trace."""
    return Cell(shown(text, _NAME), title=title, tone=tone)


def name_cell(name: object, prefix: str = "") -> Cell:
    """A name from the trace, cut; the whole of it where the pointer rests. Of Python functions without the folders in
    which a package is installed.
    """
    whole = shown(from_package(str(name)))
    short = cut(whole, _NAME)
    return Cell(prefix + short, title=whole if short != whole else "")


def time_cell(ns: float | None, tone: Tone = "plain") -> Cell:
    """A time, sorted by nanoseconds, which it says where the pointer rests."""
    if ns is None:
        return Cell("", "")
    return Cell(duration(ns), ns, title=f"{ns:,.0f} ns", tone=tone)


def number_cell(value: float | None, form: str = "{:,}") -> Cell:
    """A number, or nothing."""
    return Cell("", "") if value is None else Cell(form.format(value), value)


def share_cell(share: float | None, markup: Markup | None = None) -> Cell:
    """A share of a whole, in per cent."""
    if share is None:
        return Cell("", "")
    return Cell(f"{share:.1%}", share, markup=Markup() if markup is None else markup)


def sentence(text: str) -> str:
    """What an analysis says in passing, as a sentence of its own."""
    words = shown(text, 2_000)
    if not words:
        return ""
    return words[0].upper() + words[1:] + ("" if words[-1] in ".:!?" else ".")


def reason_of(result: Result, otherwise: str = "") -> tuple[str, ...]:
    """Why an analysis cannot say all, or anything: for Notes."""
    return (sentence(result.coverage.reason or otherwise),)


def interval_text(low: int | None, high: int | None) -> str:
    """Two times as short as can be: "2.31-2.58 ms", "0-41.0 us"; "" where they are not known."""
    if low is None or high is None:
        return ""
    first, last = duration(low), duration(high)
    if first == last:
        return last
    if low == 0:
        return f"0\u2013{last}"
    number, unit = first.split(" ")
    return f"{number}\u2013{last}" if last.endswith(f" {unit}") else f"{first}\u2013{last}"


def interval_cell(low: int | None, high: int | None) -> Cell:
    """Two times, sorted by the second."""
    return Cell(interval_text(low, high), "" if high is None else high)


def some_of(rows: int, all_: int, by: str, command: str) -> str:
    """What a table that is cut leaves out; "" of one that is whole."""
    if rows >= all_:
        return ""
    return f"{rows:,} of {counted(all_, 'row')}, {by}; all: {command}"


def table(caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], note: str = "") -> Table:
    """A table whose rows have a cell for each column."""
    made = tuple(tuple(row) for row in rows)
    if any(len(row) != len(columns) for row in made):
        raise ValueError(f"{caption}: a row has not {len(columns)} cells")
    return Table(caption, tuple(columns), made, note)
