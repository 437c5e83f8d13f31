"""What is known of devices: the built-in table devices.toml and files of a user, which have the same format.

The format stands at the top of devices.toml. A file that is wrong is refused with the place; nothing is guessed.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tracekit.errors import UsageError
from tracekit.work import MATHS

_toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

BUILT_IN = Path(__file__).with_name("devices.toml")
CONFIDENCES = ("verified", "partly", "derived")
SHARES = (*MATHS, "compute", "bandwidth")
# What `sources` and `except` may name.
FIGURES = (*MATHS, "bandwidth", "l2", "link", "pcie", "achievable", *(f"achievable.{share}" for share in SHARES))
# Names that say nothing of the part. Only a user's file may use them; what is `like` a built-in device is then told by
# SMs and memory.
GENERIC = ("", "unknown", "gpu", "graphics device", "nvidia graphics device", "amd radeon graphics", "amd instinct")

_NUMBERS = {  # key: in the base unit, and beyond which value a figure must be in another unit
    "memory_gib": (1 << 30, 1e5),
    "clock_ghz": (1e9, 20),
    "bandwidth_gbs": (1e9, 1e6),
    "l2_mib": (1 << 20, 1e5),
    "link_gbs": (1e9, 1e5),
    "pcie_gbs": (1e9, 1e5),
}
_COUNTS = ("sms", "flops_per_clock")
_TEXTS = ("cc", "like", "source", "confidence")
_TABLES = {"tflops": (MATHS, 1e6), "achievable": (SHARES, 1)}
_KEYS = ("names", *_TEXTS, *_COUNTS, *_NUMBERS, *_TABLES, "except", "sources")
_TERA = 10**12


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device as a table has it; None and missing where it does not say.

    cc: as a trace has it, "9.4" of gfx942. memory: bytes. clock: Hz, that the peaks are for. flops_per_clock: per SM,
    16-bit inputs. flops: dense, per second, by MATHS. bandwidth: bytes per second. link, pcie: the same, one direction.
    achievable: share of a peak that the best kernels reach, by MATHS, "compute" or "bandwidth". sources: where each of
    FIGURES is from. place: file and table. given: by the user. like: the built-in device that lent figures, "" of none.
    """

    names: tuple[str, ...]
    place: str
    given: bool
    like: str = ""
    vendor: str = ""
    cc: str = ""
    sms: int | None = None
    memory: float | None = None
    clock: float | None = None
    flops_per_clock: int | None = None
    flops: Mapping[str, float] = field(default_factory=dict)
    bandwidth: float | None = None
    l2_bytes: int | None = None
    link: float | None = None
    pcie: float | None = None
    achievable: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Achievable:
    """What the best kernels of a vendor's devices reach where their own table does not say; cc: () for all others.
    sources: by compute and bandwidth.
    """

    vendor: str
    cc: tuple[str, ...]
    compute: float
    bandwidth: float
    sources: Mapping[str, str]

    def of(self, what: str) -> tuple[float, str]:
        """The share of "compute" or "bandwidth", and where it is from."""
        return self.bandwidth if what == "bandwidth" else self.compute, self.sources[what]


def same_name(name: str) -> str:
    """A name as it is compared: lower case, single spaces."""
    return " ".join(name.split()).lower()


def read_device_specs(path: Path) -> tuple[DeviceSpec, ...]:
    """The devices of a user's file, which may be `like` built-in ones.

    Raises UsageError, naming the file, the table and the key, where it is wrong.
    """
    tables = _tables(path)
    if set(tables) - {"device"} or not tables.get("device"):
        raise UsageError(f"{path}: a file of devices holds [[device]] tables and nothing else")
    return _specs(tables["device"], str(path), _built_in()[2])


def built_in_specs() -> tuple[DeviceSpec, ...]:
    """The devices of the table that comes with the package."""
    return _built_in()[0]


def default_achievable(vendor: str, cc: str) -> Achievable | None:
    """What the best kernels of such a device reach; None for a vendor of which nothing is known."""
    fitting = (one for one in _built_in()[1] if one.vendor == vendor and (not one.cc or cc in one.cc))
    return next(fitting, None)


def like_specs(sms: int | None, memory: int | None, cc: str) -> list[str]:
    """Built-in devices whose SMs, memory and compute capability are all recorded and agree: to name, not to choose."""
    if sms is None or memory is None or not cc:
        return []
    return [
        spec.names[0] for spec in built_in_specs() if spec.sms == sms and spec.cc == cc and holds(spec.memory, memory)
    ]


def holds(nominal: float | None, recorded: int) -> bool:
    """Whether a recorded size of memory can be that of a part sold with `nominal` bytes.

    Seen: 91 % (T4 and L4, ECC), 93 % (288 GB of B300 are decimal), 98 to 100 % elsewhere.
    """
    return nominal is None or 0.88 <= recorded / nominal <= 1.03


@lru_cache(maxsize=1)
def _built_in() -> tuple[tuple[DeviceSpec, ...], tuple[Achievable, ...], Mapping[str, dict[str, Any]]]:
    tables = _tables(BUILT_IN)
    bases: dict[str, dict[str, Any]] = {}
    specs = _specs(tables["device"], "", MappingProxyType({}), bases)
    shares = tuple(
        Achievable(
            one["vendor"],
            tuple(_capability(cc, BUILT_IN.name)[1] for cc in one.get("cc", ())),
            one["compute"],
            one["bandwidth"],
            one["sources"],
        )
        for one in tables["achievable"]
    )
    return specs, shares, MappingProxyType(bases)


def _tables(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = _toml.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, or not TOML
        raise UsageError(f"{path}: not a TOML file: {error}") from error
    for key, value in content.items():
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise UsageError(f"{path}: {key} is not a list of tables: write [[{key}]]")
    return content


def _specs(
    tables: list[dict[str, Any]],
    file: str,
    built_in: Mapping[str, dict[str, Any]],
    bases: dict[str, dict[str, Any]] | None = None,
) -> tuple[DeviceSpec, ...]:
    """The devices of one file; `file` is "" for the built-in one. bases: by name, filled for `like`."""
    own = {} if bases is None else bases
    found: list[DeviceSpec] = []
    for number, table in enumerate(tables, 1):
        place = f"{file or BUILT_IN.name}: device {number}"
        _check(table, place)
        whole = table
        if "like" in table:
            above = own.get(same_name(table["like"]))
            base = built_in.get(same_name(table["like"])) if above is None else above
            if base is None:
                raise UsageError(f"{place}: like: no device of the name {table['like']!r} further up or built in")
            whole = _merged(base, table, place if file else "")
            if above is not None and "like" not in above:
                del whole["like"]  # the figures are all of this file
        spec = _spec(whole, place, bool(file))
        _check_whole(spec, found)
        found.append(spec)
        for name in spec.names:
            own.setdefault(same_name(name), whole)
    return tuple(found)


def _check(table: dict[str, Any], place: str) -> None:
    """Refuse what has another type, unit or name than the format says."""
    for key, value in table.items():
        _check_value(key, value, place)
    names = table.get("names")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{place}: names must be a list of one or more strings")
    for confidence in (table.get("confidence"), *table.get("except", {}).values()):
        if confidence is not None and confidence not in CONFIDENCES:
            raise UsageError(f"{place}: unknown confidence {confidence!r}; known are {', '.join(CONFIDENCES)}")


def _check_value(key: str, value: Any, place: str) -> None:
    if key not in _KEYS:
        raise UsageError(f"{place}: unknown key {key!r}; known are {', '.join(_KEYS)}")
    where = f"{place}: {key}"
    if key in _TEXTS and not isinstance(value, str):
        raise UsageError(f"{where} must be a string")
    if key in _COUNTS:
        _number(value, 1e6, where, whole=True)
    elif key in _NUMBERS:
        _number(value, _NUMBERS[key][1], where)
    elif key in _TABLES:
        known, most = _TABLES[key]
        for name, one in _entries(value, known, where).items():
            _number(one, most, f"{where}.{name}")
    elif key in ("except", "sources"):
        for name, one in _entries(value, FIGURES, where).items():
            if not isinstance(one, str):
                raise UsageError(f"{where}.{name} must be a string")


def _entries(value: Any, known: Iterable[str], place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{place} must be a table")
    for name in value:
        if name not in known:
            raise UsageError(f"{place}: unknown key {name!r}; known are {', '.join(known)}")
    return value


def _number(value: Any, most: float, place: str, whole: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise UsageError(f"{place} must be a {'whole number' if whole else 'number'}")
    if not 0 < value <= most or not math.isfinite(value):
        raise UsageError(f"{place} must be more than 0 and at most {most:,.0f}, not {value}; is the unit another?")


def _own(table: dict[str, Any]) -> set[str]:
    """Which of FIGURES a table states itself."""
    simple = {key.partition("_")[0] for key in ("bandwidth_gbs", "l2_mib", "link_gbs", "pcie_gbs") if key in table}
    return simple | set(table.get("tflops", {})) | {f"achievable.{share}" for share in table.get("achievable", {})}


def _merged(base: dict[str, Any], table: dict[str, Any], place: str) -> dict[str, Any]:
    """A table with what it does not state from another. What it states is by the user if `place` says where."""
    stated = _own(table)
    whole = {**base, **table}
    for key in _TABLES:
        whole[key] = {**base.get(key, {}), **table.get(key, {})}
    for key in ("sources", "except"):
        inherited = {name: text for name, text in base.get(key, {}).items() if name not in stated}
        whole[key] = {**inherited, **table.get(key, {})}
    if place:
        source, confidence = table.get("source", place), table.get("confidence", "")
        whole["sources"] = {**whole["sources"], **dict.fromkeys(stated, source), **table.get("sources", {})}
        whole["except"] = {**whole["except"], **dict.fromkeys(stated, confidence), **table.get("except", {})}
        whole.update({key: base[key] for key in ("source", "confidence") if key in base})
    return whole


def _spec(table: dict[str, Any], place: str, given: bool) -> DeviceSpec:
    vendor, cc = _capability(table.get("cc", ""), place)
    number = {key: table[key] * unit for key, (unit, _) in _NUMBERS.items() if key in table}
    source, confidence = table.get("source", place), table.get("confidence", "")
    sources = {}
    for figure in sorted(_own(table)):
        texts = table.get("sources", {})
        text = texts.get(figure, texts.get(figure.partition(".")[0], source))
        sure = table.get("except", {}).get(figure, confidence)
        sources[figure] = f"{text} ({sure})" if sure and not figure.startswith("achievable.") else text
    return DeviceSpec(
        names=tuple(table["names"]),
        place=place,
        given=given,
        like=table.get("like", ""),
        vendor=vendor or vendor_of(table["names"][0]),
        cc=cc,
        sms=table.get("sms"),
        memory=number.get("memory_gib"),
        clock=number.get("clock_ghz"),
        flops_per_clock=table.get("flops_per_clock"),
        flops=MappingProxyType({one: float(value) * _TERA for one, value in table.get("tflops", {}).items()}),
        bandwidth=number.get("bandwidth_gbs"),
        l2_bytes=round(number["l2_mib"]) if "l2_mib" in number else None,
        link=number.get("link_gbs"),
        pcie=number.get("pcie_gbs"),
        achievable=MappingProxyType(dict(table.get("achievable", {}))),
        sources=MappingProxyType(sources),
    )


def _check_whole(spec: DeviceSpec, before: list[DeviceSpec]) -> None:
    """Refuse a device that says nothing, or that cannot be told from others."""
    if not spec.flops and spec.bandwidth is None:
        raise UsageError(f"{spec.place}: neither tflops nor bandwidth_gbs is given, nor like")
    for name in spec.names:
        if same_name(name) in GENERIC and not spec.given:
            raise UsageError(f"{spec.place}: {name!r} can be any device")
    computed, peak = _by_clock(spec), spec.flops.get("bf16", spec.flops.get("fp16"))
    if computed and peak and not 0.95 <= peak / computed <= 1.05:
        raise UsageError(
            f"{spec.place}: sms x clock_ghz x flops_per_clock is {computed / _TERA:.4g} TFLOPS, tflops of 16 bits says "
            f"{peak / _TERA:.4g}: a sparse peak, or that of a whole package?"
        )
    for other in before:
        shared = {same_name(name) for name in spec.names} & {same_name(name) for name in other.names}
        if shared and (spec.sms, spec.memory, spec.cc) == (other.sms, other.memory, other.cc):
            raise UsageError(f"{spec.place}: {sorted(shared)[0]!r} is there already, {other.place}")


def _by_clock(spec: DeviceSpec) -> float | None:
    """The 16-bit peak that SMs, clock and rate make, FLOPs per second."""
    if spec.sms is None or spec.clock is None or spec.flops_per_clock is None:
        return None
    return spec.sms * spec.clock * spec.flops_per_clock


def vendor_of(name: str) -> str:
    """NVIDIA or AMD by the first word of a device's name, "" if that does not tell."""
    first = same_name(name).partition(" ")[0]
    if first in ("nvidia", "tesla", "geforce", "quadro", "orin", "rtx") or re.fullmatch(r"a\d+(-\w+)*", first):
        return "NVIDIA"
    return "AMD" if first == "amd" else ""


def _capability(text: str, place: str) -> tuple[str, str]:
    """Vendor and compute capability: gfx90a is 9.0, gfx942 is 9.4 and gfx1100 is 11.0 of AMD."""
    if not text:
        return "", ""
    if of_amd := re.fullmatch(r"gfx(\d{1,2})([\da-f])[\da-f]", text):
        return "AMD", f"{of_amd[1]}.{int(of_amd[2], 16)}"
    if re.fullmatch(r"\d{1,2}\.\d", text):
        return "NVIDIA", text
    raise UsageError(f'{place}: cc must be like "9.0" or "gfx942", not {text!r}')
