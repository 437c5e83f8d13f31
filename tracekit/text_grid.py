"""Tables and names as plain text, safe for a terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_NUMBER = re.compile(r"(-?\d[\d,]*(\.\d+)?( (us|ms|s))?)?")
_INSTALLED = re.compile(r"^\S*/(?=(vllm|sglang|tensorrt_llm|transformers|torch|flashinfer)/)")
_NARROWEST = 8  # of a column that is made narrower


def clean(text: object) -> str:
    """Text from a trace, safe for a terminal: control characters are written as escapes."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        char if unicodedata.category(char)[0] != "C" else char.encode("unicode_escape").decode() for char in shown
    )


def from_package(name: str) -> str:
    """The name of a Python function with its path from the package on: where that is installed says nothing."""
    return _INSTALLED.sub("", name)


def grid(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], width: int | None = None) -> list[str]:
    """Aligned columns, numbers to the right. Where `width` is given, text is cut to fit it; numbers never are."""
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    numeric = [all(_NUMBER.fullmatch(row[at]) for row in cells) for at in range(len(columns))]
    head = [clean(column) for column in columns]
    widths = [max([len(column), *(len(row[at]) for row in cells)]) for at, column in enumerate(head)]
    if width is not None:
        widths = _narrowed(widths, numeric, width)
    lines = []
    for row in [head, *cells]:
        fitted = [cut(cell, widths[at]) for at, cell in enumerate(row)]
        padded = [cell.rjust(widths[at]) if numeric[at] else cell.ljust(widths[at]) for at, cell in enumerate(fitted)]
        lines.append("  ".join(padded).rstrip())
    return lines


def _narrowed(widths: Sequence[int], numeric: Sequence[bool], width: int) -> list[int]:
    """Take from the widest columns of text first."""
    found = list(widths)
    while (excess := sum(found) + 2 * (len(found) - 1) - width) > 0:
        texts = sorted((at for at in range(len(found)) if not numeric[at]), key=lambda at: -found[at])
        if not texts or found[texts[0]] <= _NARROWEST:
            break
        widest = found[texts[0]]
        level = next((found[at] for at in texts if found[at] < widest), _NARROWEST)
        together = [at for at in texts if found[at] == widest]
        target = max(level, _NARROWEST, widest - -(-excess // len(together)))
        for at in together:
            found[at] = target
    return found


def cut(cell: str, width: int) -> str:
    """A text that fits the width, with dots where something is missing."""
    return cell if len(cell) <= width else cell[: width - 3] + "..."


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else clean(value)
