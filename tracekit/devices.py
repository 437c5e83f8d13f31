"""What can this device do at most? Its peaks, from a table by name, from the trace itself and from the user.

    device_descriptions() -> name, SMs, memory, compute capability -> the one DeviceSpec that agrees, or a refusal
        -> what Nsight Systems recorded -> what the user gave (peaks_given.py) -> Peaks -> the table device_peaks

A roof of another device makes every verdict wrong and none of them looks it. So nothing is matched by a part of its
name, and where anything that is recorded disagrees there are no peaks but a sentence that says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from tracekit.device_match import Recorded, find_among, recorded_of
from tracekit.device_spec import DeviceSpec, default_achievable, vendor_of
from tracekit.peaks_given import check_given
from tracekit.work import MATHS

HOW_TO_GIVE = (
    "Give them: --peak bf16=989e12 --peak bandwidth=3.35e12 (figures of an H100 SXM: put those of your device, per "
    "second and dense), or --device-spec my.toml with a table that describes it."
)
_ASSUMED = (0.8, 0.8)  # achievable compute and bandwidth of a vendor that is not known
_FAR_ABOVE = 1.8  # times what is known of a device: data sheets print the double of it for sparse products and links


@dataclass(frozen=True, slots=True)
class Peaks:
    """What one device can do at most; None and missing where it is not known.

    device: its name as recorded. spec: first name of the table's device, None if none agrees. flops: dense, per second,
    by MATHS. bandwidth: bytes per second. link_bandwidth, pcie_bandwidth: the same in one direction. achievable: share
    of each peak that the best kernels reach, by MATHS and "bandwidth". sources: where each figure is from, by MATHS,
    "bandwidth", "l2", "link", "pcie" and "achievable.bf16"; "device", where the trace describes it as another. problem:
    why verdicts of compute, of memory or of both are refused, and what to do; "" if neither is. Lines of it that are to
    be copied stand by themselves. described_by: index of the device whose description it has for want of one of its
    own. remarks: sentences on what was taken for granted, or looks wrong.
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
    described_by: int | None = None
    remarks: tuple[str, ...] = ()

    def achievable_flops(self, of: str) -> float | None:
        """FLOPs per second that the best kernels reach in one of MATHS."""
        peak = self.flops.get(of)
        return None if peak is None else peak * self.achievable[of]

    @property
    def achievable_bandwidth(self) -> float | None:
        """Bytes per second that the best kernels reach."""
        return None if self.bandwidth is None else self.bandwidth * self.achievable["bandwidth"]


# ---- its peaks -------------------------------------------------------------------------------------------------------


def peaks_of(
    name: str,
    properties: Mapping[str, Any],
    *,
    specs: Sequence[DeviceSpec] = (),
    given: Mapping[str, float] = MappingProxyType({}),
    vendor: str = "",
    nameless: str = "",
) -> Peaks:
    """The peaks of a device by its name and properties as recorded (footer.DeviceInfo).

    specs: of the user's files, asked before the built-in table. given: of --peak, which wins over everything else.
    vendor: NVIDIA or AMD, where something else than the device tells. nameless: what to say of a device without a name.
    Raises UsageError if `given` holds what cannot be.
    """
    check_given(given)
    recorded = recorded_of(properties)
    found = find_among(name, recorded, specs, nameless)
    spec, refusal = (found, "") if isinstance(found, DeviceSpec) else (None, found)
    known = _with_recorded(_of_spec(name, spec, recorded), spec, recorded)
    peaks = _with_given(known, given)
    peaks = _with_achievable(peaks, spec, recorded, given, vendor)
    return replace(peaks, problem=_problem(peaks, refusal), remarks=(*_far_above(known, given), *_partial(peaks, spec)))


def described_as(peaks: Peaks, device: int | None, other: int) -> Peaks:
    """The same, and said that they are of a device that the trace describes as another."""
    what = "does not say on which device some work ran" if device is None else f"does not describe device {device}"
    remark = f"The trace {what}: taken as device {other}, the only one described for this rank."
    sources = {**peaks.sources, "device": f"described as device {other}"}
    return replace(peaks, described_by=other, sources=sources, remarks=(remark, *peaks.remarks))


def _of_spec(name: str, spec: DeviceSpec | None, recorded: Recorded) -> Peaks:
    if spec is None:
        return Peaks(name, None, {}, None, None, None, None, recorded.sms, {}, {}, "")
    sources = {figure: text for figure, text in spec.sources.items() if not figure.startswith("achievable")}
    return Peaks(
        device=name,
        spec=spec.names[0] or spec.like or spec.place,
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


def _known(peaks: Peaks, name: str) -> float | None:
    """A peak by the name that --peak has for it."""
    others = {
        "bandwidth": peaks.bandwidth,
        "l2": peaks.l2_bytes,
        "link": peaks.link_bandwidth,
        "pcie": peaks.pcie_bandwidth,
    }
    return others[name] if name in others else peaks.flops.get(name)


def _doubt(known: Peaks, name: str, value: float) -> str:
    """Why a given peak looks wrong: it is far above what the table or the trace has. "" if it does not."""
    figure = None if name.startswith("achievable.") else _known(known, name)
    if not figure or value < _FAR_ABOVE * figure:
        return ""
    scale, unit = (1e12, "TFLOP/s") if name in MATHS else (1e6, "MB") if name == "l2" else (1e9, "GB/s")
    times = value / figure
    guess = "in another unit?"
    if times < 2.5:  # prints of what is sparse, or goes both ways, are double
        guess = "sparse?" if name in MATHS else "both directions?" if name in ("link", "pcie") else guess
    return f"{times:.3g} times the {figure / scale:.4g} {unit} of {known.sources[name]}: {guess}"


def _far_above(known: Peaks, given: Mapping[str, float]) -> list[str]:
    doubts = {name: _doubt(known, name, value) for name, value in given.items()}
    return [f"--peak {name} is {doubt}" for name, doubt in doubts.items() if doubt]


def _partial(peaks: Peaks, spec: DeviceSpec | None) -> list[str]:
    """Of a device that no table has, the user may give the peaks of some maths only: said, as it is easily missed."""
    missing = [one for one in MATHS if one not in peaks.flops]
    if not peaks.flops or not missing or (spec is not None and (spec.like or not spec.given)):
        return []
    return [
        f"Of the compute peaks only {', '.join(peaks.flops)} {'is' if len(peaks.flops) == 1 else 'are'} given: what "
        f"computes in {', '.join(missing)} has no compute roof."
    ]


def _with_given(peaks: Peaks, given: Mapping[str, float]) -> Peaks:
    l2 = given.get("l2")
    sources = dict(peaks.sources)
    for name, value in given.items():
        if not name.startswith("achievable."):
            sources[name] = "; ".join(filter(None, ("--peak", _doubt(peaks, name, value))))
    return replace(
        peaks,
        flops={one: given.get(one, peaks.flops.get(one, 0.0)) for one in MATHS if one in given or one in peaks.flops},
        bandwidth=given.get("bandwidth", peaks.bandwidth),
        l2_bytes=peaks.l2_bytes if l2 is None else int(l2),
        link_bandwidth=given.get("link", peaks.link_bandwidth),
        pcie_bandwidth=given.get("pcie", peaks.pcie_bandwidth),
        sources=sources,
    )


def _with_achievable(
    peaks: Peaks, spec: DeviceSpec | None, recorded: Recorded, given: Mapping[str, float], vendor: str
) -> Peaks:
    """The share of each peak: the user's, its own in the table, else that of its vendor and generation."""
    named = (spec.vendor if spec else "") or vendor_of(peaks.device)
    if not named and recorded.warp == 64:  # a wavefront of CDNA; 32 lanes are not NVIDIA's alone
        named = "AMD"
    default = default_achievable(named or vendor, (spec.cc if spec else "") or recorded.cc)
    shares: dict[str, float] = {}
    sources = dict(peaks.sources)
    for one in [*peaks.flops, *(["bandwidth"] if peaks.bandwidth else [])]:
        last = "bandwidth" if one == "bandwidth" else "compute"
        share, source = default.of(last) if default else (_ASSUMED[last == "bandwidth"], "assumed")
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
    said = "No peaks are assumed."
    if peaks.flops or peaks.bandwidth:
        missing, known = ("bandwidth", "compute") if peaks.flops else ("compute peak", "memory")
        said = f"No {missing} is known, so only {known} is judged."
    between = " " if refusal and not refusal.endswith("\n") else ""  # what is to be copied ends its line
    return f"{refusal}{between}{said} {HOW_TO_GIVE}"


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


def peaks_table(devices: Mapping[tuple[int, int | None], Peaks]) -> pa.Table:
    """The rows of the table device_peaks from the peaks by rank and device: per device one for each of MATHS, flops
    NULL where it is not known, and one with math '' for what needs no math. All but the FLOPs is the same in each.
    """
    rows = []
    for (rank, device), peaks in devices.items():
        for one in ("", *MATHS):
            rows.append(
                {
                    "rank": rank,
                    "device": device,
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
