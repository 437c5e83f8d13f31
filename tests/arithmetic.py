"""Does the arithmetic of a finding hold? A calculator for its lines that knows how exactly each number is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from tracekit.analysis import Finding
from tracekit.trace import Trace

_QUERY = re.compile(r'(?P<label>[^:"]+): tracekit sql TRACE "(?P<query>[^"]+)" = (?P<shown>[\d,.]+)( \w+)?')
_SUM = re.compile(r"(?P<label>[^:]+): (?P<sum>.+) = (?P<shown>-?[\d,.]+%?)( [\w/]+)?")
_TOKEN = re.compile(
    r"(?P<number>\d[\d,]*(?:\.\d+)?)|(?P<call>min|max)\(|(?P<sign>[()]|(?<= )[-+*/](?= ))|,(?= )|[\w/]+|\s+"
)


@dataclass(frozen=True, slots=True)
class Number:
    """What a number as written may be: a whole one is exact, of others the last figure is rounded."""

    low: float
    high: float


def written(text: str) -> Number:
    """ "1,234.5" is 1234.45 to 1234.55, "12.3%" 0.1225 to 0.1235."""
    plain = text.rstrip("%").replace(",", "")
    value, decimals = float(plain), len(plain.partition(".")[2])
    half = 0.5 * 10.0**-decimals if decimals else 0.0
    scale = 100 if text.endswith("%") else 1
    return Number((value - half) / scale, (value + half) / scale)


def combined(left: Number, right: Number, how: Callable[[float, float], float]) -> Number:
    ends = [how(a, b) for a, b in product((left.low, left.high), (right.low, right.high))]
    return Number(min(ends), max(ends))


_SIGNS: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "min": min,
    "max": max,
}


class Calculator:
    """+ - * / with spaces around, parentheses, min(a, b) and max(a, b); words are units and mean nothing."""

    def __init__(self, text: str) -> None:
        assert "".join(match[0] for match in _TOKEN.finditer(text)) == text, f"cannot be read: {text!r}"
        found = (match[0] for match in _TOKEN.finditer(text))
        self._left = [one for one in found if re.fullmatch(r"\d.*|(min|max)\(|[-+*/(),]", one)]

    def value(self) -> Number:
        found = self._sum()
        assert not self._left, self._left
        return found

    def _sum(self) -> Number:
        found = self._product()
        while self._left and self._left[0] in "+-":
            sign = _SIGNS[self._left.pop(0)]
            found = combined(found, self._product(), sign)
        return found

    def _product(self) -> Number:
        found = self._one()
        while self._left and self._left[0] in "*/":
            sign = _SIGNS[self._left.pop(0)]
            found = combined(found, self._one(), sign)
        return found

    def _one(self) -> Number:
        word = self._left.pop(0)
        if word[0].isdigit():
            return written(word)
        found = self._sum()
        if word != "(":
            assert self._left.pop(0) == ","
            found = combined(found, self._sum(), _SIGNS[word[:-1]])
        assert self._left.pop(0) == ")"
        return found


def check_line(line: str, trace: Trace | None = None) -> None:
    """Raises AssertionError unless the line is one of the three kinds, and holds. trace: to run queries on."""
    if line.startswith("saving: "):
        assert re.fullmatch(r"saving: at least [\d,]+ ns, at most [\d,]+ ns", line), line
    elif match := _QUERY.fullmatch(line):
        if trace is not None:
            ((value,),) = (row.values() for row in trace.query_readonly(match["query"]).to_pylist())
            _check_same(Number(float(value), float(value)), match["shown"], line)
    else:
        match = _SUM.fullmatch(line)
        assert match is not None, f"neither a sum nor a query: {line}"
        _check_same(Calculator(match["sum"]).value(), match["shown"], line)


def _check_same(found: Number, shown: str, line: str) -> None:
    plain = shown.rstrip("%").replace(",", "")
    half = 0.5 * 10.0 ** -len(plain.partition(".")[2]) / (100 if shown.endswith("%") else 1)
    value = float(plain) / (100 if shown.endswith("%") else 1)
    slack = half * (1 + 1e-9) + 1e-12 * abs(value)
    assert found.low - slack <= value <= found.high + slack, f"{line}: it is {found}"


def check(finding: Finding, trace: Trace | None = None) -> None:
    """Raises AssertionError unless all lines hold, and the last one gives the saving, if there is any."""
    for line in finding.arithmetic:
        check_line(line, trace)
    if finding.saving_high_ns:
        last = f"saving: at least {finding.saving_low_ns:,} ns, at most {finding.saving_high_ns:,} ns"
        assert finding.arithmetic[-1:] == (last,), finding
        ends = " ".join(line.rpartition(" = ")[2] for line in finding.arithmetic[:-1])
        shown = [float(one.replace(",", "")) for one in re.findall(r"([\d,.]+) ns", ends)]
        for saved in (finding.saving_low_ns, finding.saving_high_ns):
            assert saved == 0 or any(saved <= one < saved + 1.05 for one in shown), f"{saved:,} ns comes from nowhere"
    else:
        assert not any(line.startswith("saving:") for line in finding.arithmetic), finding
