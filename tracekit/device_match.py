"""Which device of a table is the one of a trace? The one of its name with which everything recorded agrees, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracekit.device_spec import GENERIC, DeviceSpec, built_in_specs, holds, like_specs, same_name, vendor_of

_CLOCKS = (1e8, 1e10)  # Hz; anything else in a trace is in another unit
_BANDWIDTHS = (1e9, 1e15)
_CACHES = (1e3, 1e12)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the trace says of a device beside its name; None where it does not, "" for cc."""

    sms: int | None
    memory: int | None
    cc: str
    bandwidth: float | None
    l2_bytes: int | None
    clock: float | None
    warp: int | None

    @property
    def units(self) -> str:
        """What the device calls its multiprocessors."""
        return "CUs" if self.warp == 64 else "SMs"


def find_spec(name: str, properties: Mapping[str, Any], specs: Sequence[DeviceSpec] = ()) -> DeviceSpec | str:
    """The one device of that name with which everything recorded agrees, or why there is none.

    specs: of the user. The first of their files that has the name decides; the built-in table is then not asked.
    """
    return find_among(name, recorded_of(properties), specs)


def find_among(name: str, recorded: Recorded, specs: Sequence[DeviceSpec], nameless: str = "") -> DeviceSpec | str:
    """The same with the properties read already. nameless: what to say where there is no name, if it is known why."""
    wanted = same_name(name)
    named = [spec for spec in specs if wanted in map(same_name, spec.names)]
    if named:  # the first file that has the name decides, even if it is given twice
        named = list({spec.place: spec for spec in named if _file(spec) == _file(named[0])}.values())
    else:
        if wanted in GENERIC:
            return nameless or _nameless(name, recorded)
        named = [spec for spec in built_in_specs() if wanted in map(same_name, spec.names)]
    if not named:
        return f"{name!r} is not in the table of devices, and a similar name is not enough."
    differing = {spec.place: _differences(spec, recorded, wanted in GENERIC) for spec in named}
    agreeing = [spec for spec in named if not differing[spec.place]]
    if len(agreeing) == 1:
        return agreeing[0]
    who = repr(name) if name.strip() else "The device without a name"
    whose = _file(named[0]) if named[0].given else "the table of devices"
    if agreeing:
        return f"{who} is {len(agreeing)} devices in {whose}, and the trace does not record which."
    if named[0].like and (recorded.sms, recorded.memory, recorded.cc) == (None, None, ""):
        return (
            f"The trace does not describe the device, so nothing tells whether it is like {named[0].like}: in {whose}, "
            "state its tflops and bandwidth_gbs without like."
        )
    reasons = "; or: ".join(", ".join(differing[spec.place]) for spec in named)
    return f"{who} of this trace is not the one in {whose}: {reasons}. A slice (MIG, MPS) or another part?"


def _file(spec: DeviceSpec) -> str:
    return spec.place.rpartition(": ")[0]


def _nameless(name: str, recorded: Recorded) -> str:
    said = [
        *([f"{recorded.sms} {recorded.units}"] if recorded.sms else []),
        *([f"{_gib(recorded.memory)} of memory"] if recorded.memory else []),
        *([f"compute capability {recorded.cc}"] if recorded.cc else []),
    ]
    what = (
        f"The trace calls its device {name!r}, which says nothing" if name.strip() else "The trace has no device name"
    )
    which = f"; it has {', '.join(said)}" if said else ""
    alike = like_specs(recorded.sms, recorded.memory, recorded.cc) if vendor_of(name) != "NVIDIA" else []
    if not alike:
        return f"{what}{which}."
    return (
        f"{what}{which}, as {' or '.join(alike)}. If you know that it is one, say so in a file for --device-spec, in "
        f'three lines:\n[[device]]\nnames = ["{name.strip()}"]\nlike = "{alike[0]}"\n'
    )


def _differences(spec: DeviceSpec, recorded: Recorded, generic: bool) -> list[str]:
    """What of a trace does not agree with a device. Figures of the built-in table also want the SMs to be recorded at
    all. A name that says nothing wants all that is recorded to be stated, and for such figures the memory, too.
    """
    found: list[str] = []
    by_table = not spec.given or (generic and spec.like)
    if spec.sms is not None and recorded.sms is None and by_table:
        found.append(f"the trace does not record its {recorded.units}")
    elif spec.sms is not None and recorded.sms not in (None, spec.sms):
        found.append(f"{recorded.sms} {recorded.units}, not {spec.sms}")
    elif spec.sms is None and recorded.sms is not None and generic:
        found.append(f"{recorded.sms} {recorded.units}, sms is not given")
    if recorded.memory is not None and not holds(spec.memory, recorded.memory):
        found.append(f"{_gib(recorded.memory)} of memory, not {_gib(spec.memory)}")
    elif recorded.memory is not None and spec.memory is None and generic:
        found.append(f"{_gib(recorded.memory)} of memory, memory_gib is not given")
    if recorded.memory is None and generic and spec.like:
        found.append("the trace does not record its memory")
    if spec.cc and recorded.cc and recorded.cc != spec.cc:
        found.append(f"compute capability {recorded.cc}, not {spec.cc}")
    return found


def _gib(size: float | None) -> str:
    return "?" if size is None else f"{size / (1 << 30):.4g} GiB"


def recorded_of(properties: Mapping[str, Any]) -> Recorded:
    """What is plausible of the properties of a device, by torch.profiler's names and those of nsys_export."""
    major, minor = _positive(properties, "computeMajor"), _positive(properties, "computeMinor", least=0)
    sms, memory = _positive(properties, "numSms"), _positive(properties, "totalGlobalMem")
    size, warp = _positive(properties, "l2CacheSize", *_CACHES), _positive(properties, "warpSize")
    return Recorded(
        sms=None if sms is None else int(sms),
        memory=None if memory is None else int(memory),
        cc="" if major is None or minor is None else f"{int(major)}.{int(minor)}",
        bandwidth=_positive(properties, "memoryBandwidth", *_BANDWIDTHS),
        l2_bytes=None if size is None else int(size),
        clock=_positive(properties, "clockRate", *_CLOCKS),
        warp=None if warp is None else int(warp),
    )


def _positive(properties: Mapping[str, Any], key: str, least: float = 1, most: float = 1e18) -> float | None:
    value = properties.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        return None
    return value
