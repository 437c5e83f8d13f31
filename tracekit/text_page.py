"""What a report is written on: lines of text that fit a width. Text from a trace is data here, never markup."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from tracekit.analysis import duration
from tracekit.text_grid import clean

PLACEHOLDER = " ..."
_BAR = 24


@dataclass(frozen=True, slots=True)
class Page:
    """The name of the trace and the arguments that choose a part of it, the width, the character of bars, whether all
    is said in full, and the arguments that name what was read beside the trace.
    """

    trace: str
    chosen: Sequence[str]
    width: int
    block: str
    whole: bool
    beside: Sequence[str] = ()

    def more(self, names: Sequence[str]) -> list[Text]:
        """Where all of it can be read."""
        command = shlex.join(["tracekit", "analyze", self.trace, *names, *self.chosen, *self.beside])
        return self.wrapped(f"in full: {command}", "  ", "dim", None)

    def line(self, *parts: tuple[str, str], indent: str = "    ") -> list[Text]:
        """One line of parts with their styles, or several where it is too long."""
        line = Text(no_wrap=True)
        for text, style in parts:
            line.append(text, style=style)
        line.rstrip()
        if len(line.plain) <= self.width:
            return [line]
        start = line.plain[: len(line.plain) - len(line.plain.lstrip())]
        rest = textwrap.wrap(
            line.plain.lstrip(), self.width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
        )
        return [Text(one, style=parts[0][1], no_wrap=True) for one in rest]

    def bar(self, said: str, share: float) -> list[Text]:
        """A line that ends with a bar for a share, 0 to 1, in the room that the text leaves."""
        length = round(share * min(_BAR, self.width - len(said)))
        return self.line((said, ""), (self.block * length, "green"))

    def timed_bar(self, name: str, ns: int, total: int) -> list[Text]:
        """A bar for a part of a time."""
        return self.bar(f"  {clean(name):<18} {duration(ns):>9} {ns / total:>6.1%}  ", ns / total)

    def packed(self, pieces: Sequence[str], style: str = "") -> list[Text]:
        """Pieces side by side, as many to a line as fit; one that is longer than a line is broken."""
        lines = [""]
        for piece in map(clean, pieces):
            joined = f"{lines[-1]}   {piece}" if lines[-1] else piece
            if len(joined) <= self.width:
                lines[-1] = joined
            else:
                indent = "  " if lines[-1] else ""
                broken = textwrap.wrap(piece, self.width, initial_indent=indent, subsequent_indent="  ")
                lines = [*(line for line in lines if line), *broken]
        return [Text(line, style=style, no_wrap=True) for line in lines]

    def wrapped(self, text: str, indent: str, style: str, most: int | None) -> list[Text]:
        """At most so many lines; the rest is replaced by an ellipsis."""
        lines = textwrap.wrap(
            clean(text),
            self.width,
            initial_indent=indent,
            subsequent_indent=" " * len(indent),
            max_lines=most,
            placeholder=PLACEHOLDER,
            break_on_hyphens=False,
        )
        return [Text(line, style=style, no_wrap=True) for line in lines]
