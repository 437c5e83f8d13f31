"""Which device of a trace is which? Those that work under an index that the trace does not describe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tracekit
from tests.event_rows import footer_of, kernel, launch, write_trace
from tracekit.devices import HOW_TO_GIVE
from tracekit.footer import DeviceInfo
from tracekit.trace import Trace

MI300X = {"numSms": 304, "totalGlobalMem": 206141652992, "computeMajor": 9, "computeMinor": 4, "warpSize": 64}
H100 = {"numSms": 132, "totalGlobalMem": 85018279936, "computeMajor": 9, "computeMinor": 0}
DEVICES = (
    DeviceInfo(0, 0, "AMD Instinct MI300X", MI300X),
    *(DeviceInfo(1, device, "NVIDIA H100 80GB HBM3", H100) for device in (0, 1)),
    DeviceInfo(1, 2, "", MI300X),
    DeviceInfo(4, 0, "", {}),
    DeviceInfo(5, 3, "", H100),
)
ROWS = [
    kernel(0, 5, device=9),
    kernel(0, 5, rank=1, device=7),
    kernel(9, 5, rank=1, device=1),
    kernel(0, 5, rank=2, device=0),
    launch(0, 5, rank=2, name="hipLaunchKernel"),
    kernel(0, 5, rank=3, device=0),
    launch(0, 5, rank=3, name="cuLaunchKernelEx"),
    kernel(0, 5, rank=4, device=1),
    *(kernel(at, 5, rank=5, device=device) for at, device in ((0, 3), (9, None))),
]
GIVEN = {"bf16": 1e15, "bandwidth": 5e12}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("devices")
    return write_trace(folder / "trace.parquet", ROWS, replace(footer_of(ROWS[:-1]), devices=DEVICES))


@pytest.fixture(scope="module")
def trace(path: Path) -> Iterator[Trace]:
    with tracekit.open(path) as opened:
        yield opened


def test_no_device(tmp_path: Path) -> None:
    with tracekit.open(write_trace(tmp_path / "trace.parquet", [])) as empty:
        assert empty.sql("FROM device_descriptions()").to_pylist() == []
        assert empty.peaks() == {}


def test_descriptions(trace: Trace) -> None:
    """A rank that describes one device lends it to the others; one that describes several, or none, does not."""
    found = trace.sql("FROM device_descriptions() ORDER BY rank, device").to_pylist()
    mi300x, h100 = "AMD Instinct MI300X", "NVIDIA H100 80GB HBM3"
    assert [(row["rank"], row["device"], row["name"], row["described_by"]) for row in found] == [
        (0, 0, mi300x, None),
        (0, 9, mi300x, 0),
        (1, 0, h100, None),
        (1, 1, h100, None),
        (1, 2, None, None),
        (1, 7, None, None),
        (2, 0, None, None),
        (3, 0, None, None),
        (4, 0, None, None),  # it is listed, and nothing is said of it
        (4, 1, None, None),
        (5, 3, None, None),
        (5, None, None, 3),
    ]
    assert found[1]["properties"] == found[0]["properties"]
    assert [row["properties"] for row in found[5:10]] == [None, None, None, "{}", None]
    assert found[10]["properties"] == found[11]["properties"]


def test_peaks(trace: Trace) -> None:
    peaks = trace.peaks()
    assert {key: one.spec for key, one in peaks.items() if one.spec} == {
        (0, 0): "AMD Instinct MI300X",
        (0, 9): "AMD Instinct MI300X",
        (1, 0): "NVIDIA H100 80GB HBM3",
        (1, 1): "NVIDIA H100 80GB HBM3",
    }
    assert (peaks[0, 9].described_by, peaks[0, 9].sources["device"]) == (0, "described as device 0")
    assert peaks[0, 9].remarks == (
        "The trace does not describe device 9: taken as device 0, the only one described for this rank.",
    )
    assert (peaks[0, 0].described_by, peaks[0, 0].remarks, peaks[0, 9].achievable["bf16"]) == (None, (), 0.54)
    assert peaks[1, 7].problem == (
        "The trace does not describe device 7, only 0, 1 (NVIDIA H100 80GB HBM3) and 2 (no name): it may be any of "
        f"them. No peaks are assumed. {HOW_TO_GIVE}"
    )
    assert peaks[4, 1].problem == f"The trace has no device name. No peaks are assumed. {HOW_TO_GIVE}"


def test_work_without_a_device(trace: Trace) -> None:
    (remark,) = trace.peaks()[5, None].remarks
    assert remark.startswith("The trace does not say on which device some work ran: taken as device 3, the only one")


def test_given_peaks(path: Path) -> None:
    """They are for every device; shares are those of the vendor, which the calls of a rank tell."""
    with tracekit.open(path, peaks=GIVEN) as trace:
        peaks = trace.peaks()
        table = trace.sql("SELECT rank, device, flops FROM device_peaks WHERE math = 'bf16' ORDER BY ALL").to_pylist()
    assert {row["flops"] for row in table} == {1e15} and len(table) == len(peaks) == 12
    shares = {key: (one.achievable["bf16"], one.achievable["bandwidth"]) for key, one in peaks.items()}
    assert [shares[key] for key in ((0, 9), (1, 7), (2, 0), (3, 0))] == [
        (0.54, 0.8),
        (0.8, 0.8),
        (0.55, 0.8),
        (0.8, 0.9),
    ]
