"""What can this device do at most? Its peaks, from a table by name, from the trace itself and from the user.

    DeviceInfo (footer) -> name, SMs, memory, compute capability -> the one DeviceSpec that agrees in all, or a refusal
        -> what Nsight Systems recorded -> what the user gave -> Peaks -> the table device_peaks

A roof of another device makes every verdict wrong and none of them looks it. So nothing is matched by a part of its
name, and where anything that is recorded disagrees there are no peaks but a sentence that says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from tracekit.device_match import Recorded, find_among, recorded_of
from tracekit.device_spec import SHARES, DeviceSpec, default_achievable, vendor_of
from tracekit.errors import UsageError
from tracekit.footer import DeviceInfo
from tracekit.work import MATHS

HOW_TO_GIVE = (
    "Give them: --peak bf16=989e12 --peak bandwidth=3.35e12, with the figures of your device, "
    "or --device-spec my.toml with a table that describes it."
)
# What --peak may name, and from which value to which it can be: outside, it is in another unit.
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
_VALUE = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<prefix>[kMGTPE]i?)?(?P<unit>[A-Za-z]*/s|B|[A-Z]+S)?"
)
_PREFIX = {"": 1, **{letter: 1000**power for power, letter in enumerate("kMGTPE", 1)}}
_BINARY = {f"{letter}i": 1024**power for power, letter in enumerate("kMGTPE", 1)}
_OPERATIONS = ("FLOP/s", "FLOPS", "OP/s", "OPS")
_ASSUMED = (0.8, 0.8)  # achievable compute and bandwidth of a vendor that is not known


@dataclass(frozen=True, slots=True)
class Peaks:
    """What one device can do at most; None and missing where it is not known.

    device: its name as recorded. spec: first name of the table's device, None if none agrees. flops: dense, per second,
    by MATHS. bandwidth: bytes per second. link_bandwidth, pcie_bandwidth: the same in one direction. achievable: share
    of each peak that the best kernels reach, by MATHS and "bandwidth". sources: where each figure is from, by MATHS,
    "bandwidth", "l2", "link", "pcie" and "achievable.bf16". problem: why verdicts of compute, of memory or of both are
    refused, and what to do; "" if neither is.
    """

    device: str
    spec: str | None
    flops: Mapping[str, float]
    bandwidth: float | None
    l2_bytes: int | None
    link_bandwidth: float | None
    pcie_bandwidth: float | None
    sms: int | None
    achievable: Mapping[str, float]
    sources: Mapping[str, str]
    problem: str

    def achievable_flops(self, of: str) -> float | None:
        """FLOPs per second that the best kernels reach in one of MATHS."""
        peak = self.flops.get(of)
        return None if peak is None else peak * self.achievable[of]

    @property
    def achievable_bandwidth(self) -> float | None:
        """Bytes per second that the best kernels reach."""
        return None if self.bandwidth is None else self.bandwidth * self.achievable["bandwidth"]


# ---- what the user gives ---------------------------------------------------------------------------------------------


def parse_peak(text: str) -> tuple[str, float]:
    """The name and value of one `--peak NAME=VALUE`: `bf16=989e12`, `bandwidth=3.35TB/s`, `achievable.bf16=0.8`.

    Raises UsageError, which names what is valid.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    name = name.lower()
    if not equals or name not in GIVEN:
        raise UsageError(f"--peak {text}: give NAME=VALUE; NAME is one of {', '.join(GIVEN)}")
    match = _VALUE.fullmatch(value)
    if match is None:
        raise UsageError(f"--peak {text}: the value must be a number like 989e12, 989T, 3.35TB/s or 50MiB")
    unit = match["unit"] or ""
    if unit and unit not in _units(name):
        raise UsageError(f"--peak {text}: {name} is in {' or '.join(_units(name)) or 'no unit, a share'}, not {unit}")
    found = float(match["number"]) * {**_PREFIX, **_BINARY}[match["prefix"] or ""]
    check_given({name: found}, f"--peak {text}: ")
    return name, found


def _units(name: str) -> tuple[str, ...]:
    if name in MATHS:
        return _OPERATIONS
    if name == "l2":
        return ("B",)
    return () if name.startswith("achievable.") else ("B/s",)


def check_given(given: Mapping[str, float], place: str = "") -> None:
    """Refuse, with UsageError, a name that is none of GIVEN, and a value that cannot be right."""
    for name, value in given.items():
        if name not in GIVEN:
            raise UsageError(f"{place}unknown peak {name!r}; known are {', '.join(GIVEN)}")
        least, most = GIVEN[name]
        if not least <= value <= most:  # not a number is in no range
            unit = "" if name.startswith("achievable.") else f" {_units(name)[0]}"
            raise UsageError(
                f"{place}{name} must be from {least:g} to {most:g}{unit}, not {value:g}; is the unit another?"
            )


# ---- its peaks -------------------------------------------------------------------------------------------------------


def peaks_of(
    name: str,
    properties: Mapping[str, Any],
    *,
    specs: Sequence[DeviceSpec] = (),
    given: Mapping[str, float] = MappingProxyType({}),
) -> Peaks:
    """The peaks of a device by its name and properties as recorded (footer.DeviceInfo).

    specs: of the user's files, asked before the built-in table. given: of --peak, which wins over everything else.
    Raises UsageError if `given` holds what cannot be.
    """
    check_given(given)
    recorded = recorded_of(properties)
    found = find_among(name, recorded, specs)
    spec, refusal = (found, "") if isinstance(found, DeviceSpec) else (None, found)
    peaks = _of_spec(name, spec, recorded)
    peaks = _with_recorded(peaks, spec, recorded)
    peaks = _with_given(peaks, given)
    peaks = _with_achievable(peaks, spec, recorded, given)
    return replace(peaks, problem=_problem(peaks, refusal))


def _of_spec(name: str, spec: DeviceSpec | None, recorded: Recorded) -> Peaks:
    if spec is None:
        return Peaks(name, None, {}, None, None, None, None, recorded.sms, {}, {}, "")
    sources = {figure: text for figure, text in spec.sources.items() if not figure.startswith("achievable")}
    return Peaks(
        device=name,
        spec=spec.names[0],
        flops=spec.flops,
        bandwidth=spec.bandwidth,
        l2_bytes=spec.l2_bytes,
        link_bandwidth=spec.link,
        pcie_bandwidth=spec.pcie,
        sms=recorded.sms or spec.sms,
        achievable={},
        sources=sources,
        problem="",
    )


def _with_recorded(peaks: Peaks, spec: DeviceSpec | None, recorded: Recorded) -> Peaks:
    """What Nsight Systems records wins for memory; its clock only lowers a peak.

    The clock is the highest the device can be set to, which for H100 (1.98 GHz) is beyond that of its data sheet
    (1.83 GHz): a device may be slower than its table's, never faster.
    """
    flops, sources = dict(peaks.flops), dict(peaks.sources)
    if recorded.bandwidth is not None:
        sources["bandwidth"] = "recorded by the profiler"
        if peaks.bandwidth and not 0.95 <= recorded.bandwidth / peaks.bandwidth <= 1.05:
            sources["bandwidth"] += f" (the table has {peaks.bandwidth / 1e9:.0f} GB/s)"
    if recorded.l2_bytes is not None:
        sources["l2"] = "recorded by the profiler"
    if spec is not None and spec.clock and recorded.clock and recorded.clock < 0.995 * spec.clock:
        slower = f", at the recorded {recorded.clock / 1e9:.3f} GHz instead of {spec.clock / 1e9:.3f}"
        for one, peak in flops.items():
            flops[one] = peak * recorded.clock / spec.clock
            sources[one] += slower
    return replace(
        peaks,
        flops=flops,
        sources=sources,
        bandwidth=recorded.bandwidth or peaks.bandwidth,
        l2_bytes=recorded.l2_bytes or peaks.l2_bytes,
    )


def _with_given(peaks: Peaks, given: Mapping[str, float]) -> Peaks:
    l2 = given.get("l2")
    return replace(
        peaks,
        flops={one: given.get(one, peaks.flops.get(one, 0.0)) for one in MATHS if one in given or one in peaks.flops},
        bandwidth=given.get("bandwidth", peaks.bandwidth),
        l2_bytes=peaks.l2_bytes if l2 is None else int(l2),
        link_bandwidth=given.get("link", peaks.link_bandwidth),
        pcie_bandwidth=given.get("pcie", peaks.pcie_bandwidth),
        sources={**peaks.sources, **{name: "--peak" for name in given if not name.startswith("achievable.")}},
    )


def _with_achievable(peaks: Peaks, spec: DeviceSpec | None, recorded: Recorded, given: Mapping[str, float]) -> Peaks:
    """The share of each peak: the user's, its own in the table, else that of its vendor and generation."""
    vendor = (spec.vendor if spec else "") or vendor_of(peaks.device)
    if not vendor and recorded.warp == 64:  # a wavefront of CDNA; 32 lanes are not NVIDIA's alone
        vendor = "AMD"
    default = default_achievable(vendor, (spec.cc if spec else "") or recorded.cc)
    compute, bandwidth = _ASSUMED if default is None else (default.compute, default.bandwidth)
    otherwise = "assumed" if default is None else default.source
    shares: dict[str, float] = {}
    sources = dict(peaks.sources)
    for one in [*peaks.flops, *(["bandwidth"] if peaks.bandwidth else [])]:
        last = "bandwidth" if one == "bandwidth" else "compute"
        share, source = (bandwidth if one == "bandwidth" else compute), otherwise
        for name in (last, one):
            if spec is not None and name in spec.achievable:
                share, source = spec.achievable[name], spec.sources[f"achievable.{name}"]
        for name in (last, one):
            if f"achievable.{name}" in given:
                share, source = given[f"achievable.{name}"], "--peak"
        shares[one], sources[f"achievable.{one}"] = share, source
    return replace(peaks, achievable=shares, sources=sources)


def _problem(peaks: Peaks, refusal: str) -> str:
    if peaks.flops and peaks.bandwidth:
        return ""
    if peaks.flops or peaks.bandwidth:
        missing, known = ("bandwidth", "compute") if peaks.flops else ("compute peak", "memory")
        return " ".join(filter(None, (refusal, f"No {missing} is known, so only {known} is judged.", HOW_TO_GIVE)))
    return f"{refusal} No peaks are assumed. {HOW_TO_GIVE}"


# ---- as a table ------------------------------------------------------------------------------------------------------

_SCHEMA = pa.schema(
    [
        ("rank", pa.int32()),
        ("device", pa.int64()),
        ("spec", pa.string()),
        ("math", pa.string()),
        ("flops", pa.float64()),
        ("achievable_flops", pa.float64()),
        ("bandwidth", pa.float64()),
        ("achievable_bandwidth", pa.float64()),
        ("l2_bytes", pa.int64()),
        ("link_bandwidth", pa.float64()),
        ("pcie_bandwidth", pa.float64()),
        ("sms", pa.int64()),
        ("problem", pa.string()),
    ]
)


def peaks_table(
    devices: Sequence[DeviceInfo],
    *,
    specs: Sequence[DeviceSpec] = (),
    given: Mapping[str, float] = MappingProxyType({}),
) -> pa.Table:
    """The rows of the table device_peaks: per device one for each of MATHS, flops NULL where it is not known, and one
    with math '' for what needs no math. All but the FLOPs is the same in each.
    """
    rows = []
    for info in devices:
        peaks = peaks_of(info.name, info.properties, specs=specs, given=given)
        for one in ("", *MATHS):
            rows.append(
                {
                    "rank": info.rank,
                    "device": info.device,
                    "spec": peaks.spec,
                    "math": one,
                    "flops": peaks.flops.get(one),
                    "achievable_flops": peaks.achievable_flops(one),
                    "bandwidth": peaks.bandwidth,
                    "achievable_bandwidth": peaks.achievable_bandwidth,
                    "l2_bytes": peaks.l2_bytes,
                    "link_bandwidth": peaks.link_bandwidth,
                    "pcie_bandwidth": peaks.pcie_bandwidth,
                    "sms": peaks.sms,
                    "problem": peaks.problem,
                }
            )
    return pa.Table.from_pylist(rows, schema=_SCHEMA)
