"""How a figure of a finding comes about, in lines that a reader can check by hand or run.

Two kinds of lines: "per step: 9,822,776 ns / 5 steps = 1,964,555 ns", in which numbers are as in the tables, words are
units, and the operators have spaces around them; and 'idle: tracekit sql TRACE "SELECT ..." = 9,822,776 ns', a query
that gives the number. No text of a trace is ever in a query: a reader pastes it into a shell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tracekit.analysis import Scalar
from tracekit.macros import parse_macros
from tracekit.wording import counted

_DEFAULT = re.compile(r"(\w+) := ([\d.]+)")
_DECIMALS = 1  # of what is no whole number
TRACE = "tracekit sql TRACE"  # the beginning of a query, with a word for the name of the trace


def amount(value: float, unit: str = "ns") -> str:
    """ "9,822,776 ns": exact if it is whole."""
    text = f"{value:,.0f}" if value == int(value) else f"{value:,.{_DECIMALS}f}"
    return f"{text} {unit}".rstrip()


def queried(label: str, query: str, value: float, unit: str = "ns") -> str:
    """The line of a query that has one number."""
    return f'{label}: {TRACE} "{query}" = {amount(value, unit)}'


def each(label: str, total: float, count: int, what: str = "step") -> str:
    """What one of so many takes, in the mean, to the nanosecond."""
    return f"{label}: {amount(total)} / {counted(count, what)} = {total / count:,.0f} ns"


def share(label: str, part: float, whole: float, unit: str = "ns", *, decimals: int = 1) -> str:
    """A part of a whole in per cent."""
    return f"{label}: {amount(part, unit)} / {amount(whole, unit)} = {part / whole:.{decimals}%}"


def total(label: str, parts: Sequence[float], unit: str = "ns") -> str:
    """Parts added up."""
    return f"{label}: {' + '.join(amount(part, unit) for part in parts)} = {amount(sum(parts), unit)}"


def less(label: str, whole: float, part: float) -> str:
    """What is left of a whole without a part."""
    return f"{label}: {amount(whole)} - {amount(part)} = {amount(whole - part)}"


def times(label: str, ns: float, count: int, what: str = "step") -> str:
    """So many times the same."""
    return f"{label}: {amount(ns)} * {counted(count, what)} = {amount(ns * count)}"


def saving(low: int, high: int) -> str:
    """The last line of a finding that promises something."""
    return f"saving: at least {amount(low)}, at most {amount(high)}"


# ---- texts of queries ------------------------------------------------------------------------------------------------


def called(name: str, parameters: Mapping[str, Scalar]) -> str:
    """The call of an analysis's macro with those parameters that are not as they are by default."""
    given = [
        f"{key} := {parameters[key]}"
        for key, default in _defaults(name).items()
        if key in parameters and parameters[key] != default
    ]
    return f"{name}({', '.join(given)})"


def on(rank: int, device: int | None) -> str:
    """The condition that chooses a device."""
    return f"rank = {rank} AND device {'IS NULL' if device is None else f'= {device}'}"


def one_of(words: Sequence[str | int]) -> str:
    """A list for IN: of words that tracekit itself made, or of ids."""
    return f"({', '.join(str(word) if isinstance(word, int) else repr(word) for word in words)})"


@cache
def _defaults(name: str) -> Mapping[str, float]:
    """Parameters of the macro of an analysis, as its file has them."""
    text = Path(__file__).with_name(f"{name}.sql").read_text(encoding="utf-8")
    body = next(doc.body for doc in parse_macros(text) if doc.name == name)
    return {key: float(value) for key, value in _DEFAULT.findall(body.partition(" AS TABLE")[0])}
