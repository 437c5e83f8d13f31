"""Peaks of devices: the table, which of it a trace's device is, and what the trace and --peak say instead."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import pytest

from tracekit.device_spec import DeviceSpec, built_in_specs
from tracekit.devices import HOW_TO_GIVE, described_as, peaks_of, peaks_table
from tracekit.errors import UsageError
from tracekit.work import MATHS

TABLE = built_in_specs()
MI300X = ("AMD Instinct MI300X", 304, 206141652992, "9.4")
H100 = ("NVIDIA H100 80GB HBM3", 132, 85018279936, "9.0")


def recorded(sms: int | None = None, memory: int | None = None, cc: str = "", **more: Any) -> dict[str, Any]:
    """Properties of a device as the footer has them."""
    major, _, minor = cc.partition(".")
    found = {"numSms": sms, "totalGlobalMem": memory}
    found |= {"computeMajor": int(major), "computeMinor": int(minor)} if cc else {}
    found |= {"warpSize": 64} if cc in ("9.4", "9.5") else {}
    return {**{key: value for key, value in found.items() if value is not None}, **more}


def test_no_devices() -> None:
    table = peaks_table({})
    assert table.num_rows == 0
    assert ", ".join(table.column_names) == (
        "rank, device, spec, math, flops, achievable_flops, bandwidth, achievable_bandwidth, l2_bytes, link_bandwidth, "
        "pcie_bandwidth, sms, problem"
    )


# ---- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", TABLE, ids=lambda spec: spec.names[0])
def test_a_device_of_the_table_is_whole(spec: DeviceSpec) -> None:
    assert spec.vendor in ("NVIDIA", "AMD")
    assert spec.cc
    assert spec.memory
    assert spec.bandwidth
    assert spec.l2_bytes
    figures = {*spec.flops, "bandwidth", "l2", *(f"achievable.{one}" for one in spec.achievable)}
    figures |= {one for one in ("link", "pcie") if getattr(spec, one)}
    assert set(spec.sources) == figures
    # Each source names something that can be looked up.
    document = re.compile("data sheet|whitepaper|product brief|benchmarks|MAMF|kernels|maximum-achievable|^assumed$")
    assert [text for text in spec.sources.values() if not document.search(text)] == []
    bf16 = spec.cc not in ("7.0", "7.5")  # Volta and Turing have none
    assert ("bf16" in spec.flops) == bf16
    assert spec.flops.get("bf16", spec.flops["fp16"]) == spec.flops["fp16"]
    # Data sheets print sparse FLOPs. Of the dense ones, half the bits are twice the rate; 8-bit integers of GeForce are
    # four times fp16 accumulating in fp32.
    assert spec.flops.get("fp8", 2 * spec.flops["fp16"]) / spec.flops["fp16"] == pytest.approx(2, rel=0.03)
    assert spec.flops.get("tf32", spec.flops["fp16"] / 2) / spec.flops["fp16"] == pytest.approx(0.5, rel=0.03)
    assert round(spec.flops.get("int8", 0) / spec.flops["fp16"]) in (0, 1, 2, 4)


@pytest.mark.parametrize("spec", TABLE, ids=lambda spec: spec.names[0])
def test_peak_is_units_by_rate_by_clock(spec: DeviceSpec) -> None:
    if spec.names[0].startswith("NVIDIA H20") and spec.sms == 78:
        pytest.skip("matrix units of H20 are fused down: its peak is not what its SMs and clock would make")
    assert spec.sms
    assert spec.clock
    assert spec.flops_per_clock
    assert spec.sms * spec.flops_per_clock * spec.clock == pytest.approx(spec.flops["fp16"], rel=0.02)


def test_names_of_the_table() -> None:
    names = Counter(name for spec in TABLE for name in spec.names)
    # One name of two devices, which differ in CUs.
    assert {name for name, times in names.items() if times > 1} == {"AMD Instinct MI250X / MI250"}


# ---- which device it is ----------------------------------------------------------------------------------------------

# As traces have them: name, SMs, bytes of memory, compute capability; dense TFLOPS of fp16 and GB/s.
SEEN = [
    (("Tesla V100-SXM2-32GB", 80, 34089730048, "7.0"), "Tesla V100-SXM2-32GB", 125, 900),
    (("Tesla T4", 40, 15828320256, "7.5"), "Tesla T4", 65, 320),
    (("NVIDIA A100-SXM4-80GB", 108, 84990623744, "8.0"), "NVIDIA A100-SXM4-80GB", 312, 2039),
    (("NVIDIA A100-PG509-200", 108, 42297524224, "8.0"), "NVIDIA A100-PG509-200", 312, 1555),
    (("  nvidia  a40 ", 84, 47850782720, "8.6"), "NVIDIA A40", 149.7, 696),
    (H100, "NVIDIA H100 80GB HBM3", 989.4, 3350),
    (("NVIDIA H100", 132, 102085492736, "9.0"), "NVIDIA H100", 989.4, 2400),
    (("NVIDIA H100 NVL", 132, 99861463040, "9.0"), "NVIDIA H100 NVL", 835.5, 3938),
    (("NVIDIA H200", 132, 150754820096, "9.0"), "NVIDIA H200", 989.4, 4800),
    (("NVIDIA H200 NVL", 132, 150754820096, "9.0"), "NVIDIA H200 NVL", 835.5, 4800),
    (("NVIDIA B200", 148, 191503138816, "10.0"), "NVIDIA B200", 2250, 8000),
    (("NVIDIA B300 SXM6 AC", 148, 287416123392, "10.3"), "NVIDIA B300 SXM6 AC", 2250, 8000),
    (("AMD Instinct MI210", 104, 68702699520, "9.0"), "AMD Instinct MI210", 181, 1638),
    (("AMD Instinct MI250X / MI250", 104, 68702699520, "9.0"), "AMD Instinct MI250X / MI250", 181, 1638),
    (("AMD Instinct MI250X / MI250", 110, 68702699520, "9.0"), "AMD Instinct MI250X", 191.5, 1638),
    (MI300X, "AMD Instinct MI300X", 1307.4, 5300),
    (("NVIDIA A800-SXM4-80GB", 108, 84990623744, "8.0"), "NVIDIA A800-SXM4-80GB", 312, 2039),
    (("NVIDIA H800", 132, None, ""), "NVIDIA H800", 989.4, 3350),
]


@pytest.mark.parametrize(("device", "spec", "fp16", "bandwidth"), SEEN)
def test_devices_seen_in_traces(
    device: tuple[str, int, int | None, str], spec: str, fp16: float, bandwidth: float
) -> None:
    name, sms, memory, cc = device
    peaks = peaks_of(name, recorded(sms, memory, cc))
    assert (peaks.device, peaks.spec, peaks.sms, peaks.problem) == (name, spec, sms, "")
    assert peaks.bandwidth == bandwidth * 1e9
    assert peaks.flops["fp16"] == pytest.approx(fp16 * 1e12)


SLICE = "A slice (MIG, MPS) or another part?"
NOT_IN = "is not in the table of devices, and a similar name is not enough."
NAMELESS = (
    "If you know that it is one, say so in a file for --device-spec, in three lines:\n"
    '[[device]]\nnames = ["{}"]\nlike = "AMD Instinct {}"\n'
)
REFUSED = [
    (("", None, None, ""), "The trace has no device name."),
    (
        ("", 304, 206141652992, "9.4"),
        "The trace has no device name; it has 304 CUs, 192 GiB of memory, compute capability 9.4, as AMD Instinct "
        "MI300X. " + NAMELESS.format("", "MI300X"),
    ),
    (
        ("AMD Radeon Graphics", 104, 68702699520, "9.0"),
        "The trace calls its device 'AMD Radeon Graphics', which says nothing; it has 104 SMs, 63.98 GiB of memory, "
        "compute capability 9.0, as AMD Instinct MI210 or AMD Instinct MI250X / MI250. "
        + NAMELESS.format("AMD Radeon Graphics", "MI210"),
    ),
    # Parts of names, and names that have another as a part.
    (("NVIDIA A100", 108, 42297524224, "8.0"), f"'NVIDIA A100' {NOT_IN}"),
    (("NVIDIA GB300 NVL", 148, None, "10.3"), f"'NVIDIA GB300 NVL' {NOT_IN}"),
    (("H100", 132, 85018279936, "9.0"), f"'H100' {NOT_IN}"),
    (("NVIDIA A100-PG509-200 MIG 1g.5gb", 14, None, "8.0"), f"'NVIDIA A100-PG509-200 MIG 1g.5gb' {NOT_IN}"),
    # The name is in the table, the device is another.
    (
        ("NVIDIA H100 80GB HBM3", 114, 85018279936, "9.0"),
        f"'NVIDIA H100 80GB HBM3' of this trace is not the one in the table of devices: 114 SMs, not 132. {SLICE}",
    ),
    (
        ("NVIDIA H100", 132, 85018279936, "9.0"),
        f"'NVIDIA H100' of this trace is not the one in the table of devices: 79.18 GiB of memory, not 96 GiB. {SLICE}",
    ),
    (
        ("AMD Instinct MI300X", 38, 206141652992, "9.4"),
        f"'AMD Instinct MI300X' of this trace is not the one in the table of devices: 38 CUs, not 304. {SLICE}",
    ),
    (
        ("Orin", 8, 16458694656, "8.7"),
        "'Orin' of this trace is not the one in the table of devices: 8 SMs, not 16, 15.33 GiB of memory, not 64 GiB. "
        + SLICE,
    ),
    (
        ("NVIDIA B200", 148, None, "9.0"),
        "'NVIDIA B200' of this trace is not the one in the table of devices: compute capability 9.0, not 10.0. "
        + SLICE,
    ),
    (
        ("NVIDIA L4", None, None, ""),
        f"'NVIDIA L4' of this trace is not the one in the table of devices: the trace does not record its SMs. {SLICE}",
    ),
]


@pytest.mark.parametrize(("device", "problem"), REFUSED)
def test_another_device_has_no_peaks(device: tuple[str, int | None, int | None, str], problem: str) -> None:
    name, sms, memory, cc = device
    peaks = peaks_of(name, recorded(sms, memory, cc))
    gap = "" if problem.endswith("\n") else " "
    assert peaks.problem == f"{problem}{gap}No peaks are assumed. {HOW_TO_GIVE}"
    assert (peaks.spec, dict(peaks.flops), peaks.bandwidth, dict(peaks.achievable)) == (None, {}, None, {})
    assert peaks.achievable_bandwidth is None
    assert peaks.sms == sms


def test_properties_can_be_anything() -> None:
    junk = {"numSms": True, "totalGlobalMem": "80 GB", "computeMajor": None, "clockRate": math.nan, "l2CacheSize": -1}
    peaks = peaks_of("NVIDIA H100 80GB HBM3", {**junk, "memoryBandwidth": math.inf})
    assert (peaks.spec, peaks.bandwidth, peaks.l2_bytes, peaks.sms) == (None, None, None, None)


# ---- what Nsight Systems records -------------------------------------------------------------------------------------


def test_recorded_memory_wins_and_the_clock_only_lowers() -> None:
    nsys = recorded(132, 85018279936, "9.0", memoryBandwidth=3352320000000, clockRate=1980000000, l2CacheSize=52428800)
    peaks = peaks_of(H100[0], nsys)
    assert (peaks.bandwidth, peaks.l2_bytes, peaks.flops["bf16"]) == (3352320000000, 52428800, 989.4e12)
    assert peaks.sources["bandwidth"] == peaks.sources["l2"] == "recorded by the profiler"
    assert peaks.sources["bf16"] == "NVIDIA Hopper architecture whitepaper (verified)"
    slow = peaks_of(H100[0], {**nsys, "clockRate": 915000000, "memoryBandwidth": 2_000_000_000_000})
    assert slow.flops["bf16"] == pytest.approx(989.4e12 / 2)  # 0.915 of 1.83 GHz
    assert slow.flops["fp8"] == pytest.approx(1978.9e12 / 2)
    assert slow.sources["bf16"] == (
        "NVIDIA Hopper architecture whitepaper (verified), at the recorded 0.915 GHz instead of 1.830"
    )
    assert slow.sources["bandwidth"] == "recorded by the profiler (the table has 3350 GB/s)"
    wrong_unit = peaks_of(H100[0], {**nsys, "clockRate": 1980, "memoryBandwidth": 3352, "l2CacheSize": 50})
    assert (wrong_unit.bandwidth, wrong_unit.l2_bytes, wrong_unit.flops["bf16"]) == (3350e9, 50 << 20, 989.4e12)


def test_unknown_device_with_recorded_bandwidth_has_a_memory_roof() -> None:
    nsys = recorded(68, 10736893952, "8.6", memoryBandwidth=760080000000, clockRate=1710000000, l2CacheSize=5242880)
    peaks = peaks_of("NVIDIA GeForce RTX 3080", nsys)
    assert (dict(peaks.flops), peaks.bandwidth, peaks.l2_bytes) == ({}, 760080000000, 5242880)
    assert peaks.achievable_bandwidth == 0.9 * 760080000000
    assert peaks.problem == (
        f"'NVIDIA GeForce RTX 3080' {NOT_IN} No compute peak is known, so only memory is judged. {HOW_TO_GIVE}"
    )


# ---- what the user gives (test_peaks_given.py: how) ------------------------------------------------------------------


def test_given_peaks_win_and_make_up_for_a_refusal() -> None:
    given = {"bf16": 2e15, "bandwidth": 4e12, "l2": 1e6, "link": 1e9, "pcie": 2e9, "achievable.compute": 0.7}
    peaks = peaks_of("", recorded(304, 206141652992, "9.4"), given=given)
    assert (peaks.spec, peaks.problem, dict(peaks.flops)) == (None, "", {"bf16": 2e15})
    assert (peaks.bandwidth, peaks.l2_bytes, peaks.link_bandwidth, peaks.pcie_bandwidth) == (4e12, 1000000, 1e9, 2e9)
    assert peaks.achievable == {
        "bf16": 0.7,
        "bandwidth": 0.8,
    }  # the bandwidth's by the vendor, which its wavefront tells
    assert peaks.sources["bf16"] == peaks.sources["achievable.bf16"] == "--peak"
    over = peaks_of(H100[0], recorded(*H100[1:]), given={"bf16": 1e15, "achievable.bf16": 1.0})
    assert (over.flops["bf16"], over.flops["fp8"], over.achievable_flops("bf16")) == (1e15, 1978.9e12, 1e15)
    assert over.achievable_flops("fp8") == 1978.9e12 * 0.71
    assert over.achievable_flops("fp4") is None
    half = peaks_of("", {}, given={"bf16": 1e15})
    assert half.problem == (
        f"The trace has no device name. No bandwidth is known, so only compute is judged. {HOW_TO_GIVE}"
    )
    assert half.sources["achievable.bf16"] == "assumed"
    with pytest.raises(UsageError, match=r"bf16 must be from .* not nan"):
        peaks_of("", {}, given={"bf16": math.nan})


def test_shares_are_those_of_the_vendor_by_whatever_tells_it() -> None:
    """Of peaks that --peak gives, too: an AMD device does not reach NVIDIA's shares."""
    given = {"bf16": 1e15, "bandwidth": 1e12}
    amd, nvidia = {"bf16": 0.55, "bandwidth": 0.8}, {"bf16": 0.8, "bandwidth": 0.9}
    assert peaks_of("AMD Radeon Graphics", {}, given=given).achievable == amd
    assert peaks_of("", {"warpSize": 64}, given=given).achievable == amd
    assert peaks_of("", {}, given=given, vendor="AMD").achievable == amd
    assert peaks_of("", {}, given=given, vendor="NVIDIA").achievable == nvidia
    assert peaks_of("NVIDIA L4 of another world", {}, given=given, vendor="AMD").achievable == nvidia
    cdna4 = peaks_of("", recorded(256, 309220868096, "9.5"), given=given)
    assert cdna4.achievable == {"bf16": 0.62, "bandwidth": 0.8}
    assert cdna4.sources["achievable.bf16"] == "default for CDNA4: matrix products reach 62 % on MI355X"
    assert cdna4.sources["achievable.bandwidth"] == "default for CDNA4: assumed"


SHEET = "NVIDIA Hopper architecture whitepaper (verified)"


@pytest.mark.parametrize(
    ("given", "doubt"),
    [
        ({"bf16": 989e12, "bandwidth": 4e12, "achievable.bf16": 1.0, "fp4": 4e15}, {}),
        ({"bf16": 1.79 * 989.4e12}, {}),
        # 1979 / 989.4 = 2.0002
        ({"bf16": 1979e12}, {"bf16": f"2 times the 989.4 TFLOP/s of {SHEET}: sparse?"}),
        ({"bandwidth": 33.5e12}, {"bandwidth": f"10 times the 3350 GB/s of {SHEET}: in another unit?"}),
        (
            {"link": 900e9, "l2": 1e8, "fp8": 6e15},
            {
                "link": f"2 times the 450 GB/s of {SHEET}: both directions?",
                "l2": f"1.91 times the 52.43 MB of {SHEET}: in another unit?",  # 100 MB / 50 MiB
                "fp8": f"3.03 times the 1979 TFLOP/s of {SHEET}: in another unit?",
            },
        ),
    ],
)
def test_a_given_peak_far_above_the_known_one_is_doubted(given: dict[str, float], doubt: dict[str, str]) -> None:
    peaks = peaks_of(H100[0], recorded(*H100[1:]), given=given)
    assert peaks.problem == ""
    assert peaks.remarks == tuple(f"--peak {name} is {text}" for name, text in doubt.items())
    figures = [name for name in given if not name.startswith("achievable.")]
    assert {name: peaks.sources[name] for name in figures} == {
        name: f"--peak; {doubt[name]}" if name in doubt else "--peak" for name in figures
    }


def test_maths_that_were_forgotten() -> None:
    """A device of the table has all of its maths; of another, the user may not think of fp32."""
    peaks = peaks_of("", {}, given={"bf16": 1e15, "fp8": 2e15, "bandwidth": 1e12})
    assert peaks.remarks == (
        "Of the compute peaks only bf16, fp8 are given: what computes in fp64, fp64_matrix, fp32, tf32, fp16, int8, "
        "fp4, int4 has no compute roof.",
    )
    assert peaks_of("", {}, given={"bandwidth": 1e12}).remarks == ()  # that compute is refused, its problem says
    assert peaks_of("", {}, given=dict.fromkeys(MATHS, 1e12)).remarks == ()


def test_a_device_that_is_described_as_another() -> None:
    peaks = described_as(peaks_of(H100[0], recorded(*H100[1:]), given={"bf16": 2e15}), 9, 0)
    assert (peaks.described_by, peaks.sources["device"], peaks.spec) == (0, "described as device 0", H100[0])
    assert peaks.remarks == (
        "The trace does not describe device 9: taken as device 0, the only one described for this rank.",
        f"--peak bf16 is 2.02 times the 989.4 TFLOP/s of {SHEET}: sparse?",  # 2000 / 989.4
    )


# ---- the table for SQL -----------------------------------------------------------------------------------------------


def test_rows_of_device_peaks() -> None:
    peaks = {(3, 1): peaks_of(H100[0], recorded(*H100[1:])), (3, None): peaks_of("", {})}
    rows = peaks_table(peaks).to_pylist()
    assert [(row["device"], row["math"]) for row in rows] == [(at, one) for at in (1, None) for one in ("", *MATHS)]
    by_math = {row["math"]: row for row in rows if row["device"] == 1}
    assert by_math["bf16"] == {
        "rank": 3,
        "device": 1,
        "spec": H100[0],
        "math": "bf16",
        "flops": 989.4e12,
        "achievable_flops": 989.4e12 * 0.8,
        "bandwidth": 3350e9,
        "achievable_bandwidth": 3350e9 * 0.92,
        "l2_bytes": 50 * 1024**2,
        "link_bandwidth": 450e9,
        "pcie_bandwidth": 63e9,
        "sms": 132,
        "problem": "",
    }
    nothing = {"flops": None, "achievable_flops": None}
    assert by_math["fp4"] == {**by_math["bf16"], "math": "fp4", **nothing}
    assert by_math[""] == {**by_math["bf16"], "math": "", **nothing}
    assert {row["problem"] for row in rows if row["device"] is None} == {
        f"The trace has no device name. No peaks are assumed. {HOW_TO_GIVE}"
    }
    assert {row["flops"] for row in rows if row["device"] is None} == {None}
