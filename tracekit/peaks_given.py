"""Peaks that the user gives: `--peak NAME=VALUE` on the command line, a mapping in Python. What can they be?"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Real
from types import MappingProxyType

from tracekit.device_spec import SHARES
from tracekit.errors import UsageError
from tracekit.work import MATHS

# What can be named, and from which value to which it can be: outside, it is in another unit.
GIVEN: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        **dict.fromkeys(MATHS, (1e9, 1e18)),
        "bandwidth": (1e9, 1e15),
        "l2": (1e3, 1e12),
        "link": (1e8, 1e14),
        "pcie": (1e8, 1e14),
        **{f"achievable.{share}": (1e-6, 1.0) for share in SHARES},
    }
)
_SIMPLE = ", ".join(name for name in GIVEN if "." not in name)
_NAMES = f"{_SIMPLE}, achievable.bf16 and so on, achievable.compute, achievable.bandwidth"
_VALUE = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<prefix>[kMGTPE]i?)?(?P<unit>[A-Za-z]*/s|B|[A-Z]+S)?"
)
_PREFIX = {"": 1, **{letter: 1000**power for power, letter in enumerate("kMGTPE", 1)}}
_BINARY = {f"{letter}i": 1024**power for power, letter in enumerate("kMGTPE", 1)}
_OPERATIONS = ("FLOP/s", "FLOPS", "OP/s", "OPS")


def parse_peak(text: str) -> tuple[str, float]:
    """The name and value of one `--peak NAME=VALUE`: `bf16=989e12`, `bandwidth=3.35TB/s`, `achievable.bf16=0.8`.

    Raises UsageError, which names what is valid.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    name = name.lower()
    if name not in GIVEN and (meant := _meant(name)):
        raise UsageError(f"--peak {text}: no such name; did you mean {meant}?")
    if not equals or name not in GIVEN:
        raise UsageError(f"--peak {text}: give NAME=VALUE; NAME is one of {_NAMES}")
    return name, _value(name, value, f"--peak {text}: ")


def parse_peaks(texts: Iterable[str]) -> dict[str, float]:
    """All that was given with `--peak`, by name. Raises UsageError where one is wrong or given twice."""
    found: dict[str, float] = {}
    for text in texts:
        name, value = parse_peak(text)
        if name in found:
            raise UsageError(f"--peak {text}: {name} is given twice")
        found[name] = value
    return found


def peaks_given(given: Mapping[str, float | str]) -> dict[str, float]:
    """The peaks of a mapping, whose values may be texts such as "989T", as on the command line.

    Raises UsageError for a name that does not exist and a value that cannot be right.
    """
    found: dict[str, float] = {}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (str, Real)):
            raise UsageError(f"peak {name}: must be a number, or a text like 989T, not {value!r}")
        _check_name(name, "")
        found[name] = _value(name, value, f"peak {name}={value}: ") if isinstance(value, str) else _number(value)
    check_given(found)
    return found


def check_given(given: Mapping[str, float], place: str = "") -> None:
    """Refuse, with UsageError, a name that is none of GIVEN, and a value that cannot be right."""
    for name, value in given.items():
        _check_name(name, place)
        least, most = GIVEN[name]
        if not least <= value <= most:  # not a number is in no range
            unit = "" if name.startswith("achievable.") else f" {units(name)[0]}"
            raise UsageError(
                f"{place}{name} must be from {least:g} to {most:g}{unit}, not {value:g}; is the unit another?"
            )


def units(name: str) -> tuple[str, ...]:
    """The units in which one of GIVEN may be written, () of a share."""
    if name in MATHS:
        return _OPERATIONS
    if name == "l2":
        return ("B",)
    return () if name.startswith("achievable.") else ("B/s",)


def _value(name: str, text: str, place: str) -> float:
    match = _VALUE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{place}the value must be a number like 989e12, 989T, 3.35TB/s or 50MiB")
    unit = match["unit"] or ""
    if unit and unit not in units(name):
        raise UsageError(f"{place}{name} is in {' or '.join(units(name)) or 'no unit, a share'}, not {unit}")
    found: float = float(match["number"]) * {**_PREFIX, **_BINARY}[match["prefix"] or ""]
    check_given({name: found}, place)
    return found


def _number(value: float) -> float:
    """A number of any type as Python's own."""
    try:
        return float(value)
    except OverflowError:  # a whole number beyond all others, which is refused with them
        return math.inf


def _check_name(name: str, place: str) -> None:
    if name not in GIVEN:
        meant = _meant(name)
        hint = f"did you mean {meant}?" if meant else f"known are {_NAMES}"
        raise UsageError(f"{place}unknown peak {name!r}; {hint}")


def _meant(name: str) -> str:
    """The one of GIVEN that is most like a name, "" if none is."""
    return next(iter(get_close_matches(str(name).lower(), GIVEN, 1)), "")
