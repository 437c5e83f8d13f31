"""A user's file of devices (--device-spec): what it can say, and how it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracekit.device_match import find_spec
from tracekit.device_spec import read_device_specs
from tracekit.devices import HOW_TO_GIVE, peaks_of
from tracekit.errors import UsageError

MI300X = {"numSms": 304, "totalGlobalMem": 206141652992, "computeMajor": 9, "computeMinor": 4, "warpSize": 64}
SLICE = "A slice (MIG, MPS) or another part?"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"my\.toml: a file of devices holds \[\[device\]\] tables and nothing else"):
        read_device_specs(written(tmp_path, ""))


MINE = """
[[device]]
names = ["My GPU", "My GPU Ti"]
cc = "12.0"
sms = 10
memory_gib = 8
clock_ghz = 2
tflops = { bf16 = 10.5, fp8 = 21 }
bandwidth_gbs = 500
l2_mib = 32
link_gbs = 25
pcie_gbs = 16
achievable = { bf16 = 0.5, bandwidth = 0.95 }
source = "our lab"
sources = { fp8 = "twice that" }
except = { fp8 = "derived" }
[[device]]
names = [""]
like = "AMD Instinct MI300X"
bandwidth_gbs = 5000
[[device]]
names = ["NVIDIA L4"]
sms = 60
tflops = { bf16 = 62 }
"""


def test_a_file_of_the_user(tmp_path: Path) -> None:
    path = written(tmp_path, MINE)
    specs = read_device_specs(path)
    mine = peaks_of(
        "my gpu ti", {"numSms": 10, "totalGlobalMem": 8 << 30, "computeMajor": 12, "computeMinor": 0}, specs=specs
    )
    assert (mine.spec, mine.problem, dict(mine.flops)) == ("My GPU", "", {"bf16": 10.5e12, "fp8": 21e12})
    assert (mine.bandwidth, mine.l2_bytes, mine.link_bandwidth, mine.pcie_bandwidth) == (500e9, 32 << 20, 25e9, 16e9)
    assert mine.achievable == {"bf16": 0.5, "fp8": 0.8, "bandwidth": 0.95}
    assert (mine.sources["bf16"], mine.sources["fp8"]) == ("our lab", "twice that (derived)")
    # It may know less than the built-in table asks for; what both know must agree.
    assert peaks_of("My GPU", {}, specs=specs).spec == "My GPU"
    assert find_spec("My GPU", {"numSms": 12}, specs) == (
        f"'My GPU' of this trace is not the one in {path}: 12 SMs, not 10. {SLICE}"
    )
    nameless = peaks_of("", MI300X, specs=specs)
    assert (nameless.spec, nameless.bandwidth, nameless.flops["bf16"]) == ("AMD Instinct MI300X", 5000e9, 1307.4e12)
    assert nameless.sources["bandwidth"] == f"{path}: device 2"
    assert nameless.sources["bf16"] == "AMD Instinct MI300X data sheet (verified)"
    assert find_spec("", {"numSms": 304}, specs) == (
        f"The device without a name of this trace is not the one in {path}: the trace does not record its memory. "
        + SLICE
    )
    # Its table of a name replaces the built-in one, even where that would agree.
    assert find_spec("NVIDIA L4", {"numSms": 58}, specs) == (
        f"'NVIDIA L4' of this trace is not the one in {path}: 58 SMs, not 60. {SLICE}"
    )
    own = peaks_of("NVIDIA L4", {"numSms": 60}, specs=specs)
    assert own.problem == f"No bandwidth is known, so only compute is judged. {HOW_TO_GIVE}"


OWN = """
[[device]]
names = [""]
tflops = {{ bf16 = 100 }}
bandwidth_gbs = 300
{more}
"""
NOT_THE_ONE = "The device without a name of this trace is not the one in {path}: {why}. " + SLICE


@pytest.mark.parametrize(
    ("more", "properties", "why"),
    [
        ("", {}, ""),  # the trace does not describe it at all: the user says what it is
        ("sms = 304\nmemory_gib = 192", {}, ""),
        ("sms = 304\nmemory_gib = 192\ncc = 'gfx942'", MI300X, ""),
        # What is recorded must be stated, or the file would be for whatever has no name.
        ("", {"numSms": 304}, "304 SMs, sms is not given"),
        ("", MI300X, "304 CUs, sms is not given, 192 GiB of memory, memory_gib is not given"),
        ("sms = 38\nmemory_gib = 192", MI300X, "304 CUs, not 38"),
    ],
)
def test_own_figures_of_a_device_without_a_name(
    tmp_path: Path, more: str, properties: dict[str, int], why: str
) -> None:
    path = written(tmp_path, OWN.format(more=more))
    specs = read_device_specs(path)
    found = find_spec("", properties, specs)
    assert found == (NOT_THE_ONE.format(path=path, why=why) if why else specs[0])
    if not why:
        peaks = peaks_of("", properties, specs=specs)
        assert (peaks.spec, peaks.problem, peaks.flops["bf16"], peaks.bandwidth) == (specs[0].place, "", 100e12, 300e9)


def test_figures_of_the_table_need_a_device_that_is_described(tmp_path: Path) -> None:
    path = written(tmp_path, '[[device]]\nnames = [""]\nlike = "NVIDIA L4"')
    assert find_spec("", {}, read_device_specs(path)) == (
        "The trace does not describe the device, so nothing tells whether it is like NVIDIA L4: in "
        f"{path}, state its tflops and bandwidth_gbs without like."
    )
    # `like` a device of the same file lends figures of the user's own.
    text = '[[device]]\nnames = ["Mine"]\nsms = 5\nbandwidth_gbs = 1\n[[device]]\nnames = [""]\nlike = "mine"'
    mine, nameless = read_device_specs(written(tmp_path, text))
    assert (mine.like, nameless.like, find_spec("", {}, [nameless])) == ("", "", nameless)


@pytest.mark.parametrize("name", ["", "AMD Radeon Graphics"])
def test_the_file_that_a_refusal_suggests(tmp_path: Path, name: str) -> None:
    """Its three lines as they stand in the message are a file with which the device is found."""
    problem = peaks_of(name, MI300X).problem
    first = problem.splitlines().index("[[device]]")
    lines = problem.splitlines()[first : first + 3]
    assert problem.splitlines()[first + 3] == f"No peaks are assumed. {HOW_TO_GIVE}"
    specs = read_device_specs(written(tmp_path, "\n".join(lines)))
    found = peaks_of(name, MI300X, specs=specs)
    assert (found.problem, found.bandwidth, found.achievable["bf16"]) == ("", 5300e9, 0.54)


def test_the_first_file_decides(tmp_path: Path) -> None:
    files = []
    for name, bandwidth in (("a.toml", 1), ("b.toml", 2)):
        path = tmp_path / name
        path.write_text(f'[[device]]\nnames = ["X"]\nbandwidth_gbs = {bandwidth}', encoding="utf-8")
        files.append(read_device_specs(path)[0])
    first, second = files
    assert find_spec("X", {}, [first, second, first]) is first
    assert find_spec("X", {}, [second, first]) is second


def test_two_devices_that_cannot_be_told_apart(tmp_path: Path) -> None:
    text = '[[device]]\nnames = ["X"]\nsms = 1\nbandwidth_gbs = 1\n[[device]]\nnames = ["x"]\nbandwidth_gbs = 2'
    path = written(tmp_path, text)
    assert find_spec("X", {"numSms": 1}, read_device_specs(path)) == (
        f"'X' is 2 devices in {path}, and the trace does not record which."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("device = 3", "my.toml: device is not a list of tables: write [[device]]"),
        ("[[gpu]]\nnames = ['x']", "my.toml: a file of devices holds [[device]] tables and nothing else"),
        ("[[device]]", "device 1: names must be a list of one or more strings"),
        ("[[device]]\nnames = []", "device 1: names must be a list of one or more strings"),
        ("[[device]]\nnames = ['x']", "device 1: neither tflops nor bandwidth_gbs is given, nor like"),
        ("[[device]]\nnames = ['x']\nbandwith = 3", "device 1: unknown key 'bandwith'; known are names, cc, like, "),
        ("[[device]]\nnames = ['x']\nlike = 'y'", "device 1: like: no device of the name 'y' further up or built in"),
        ("[[device]]\nnames = ['x']\nlike = 3", "device 1: like must be a string"),
        ("[[device]]\nnames = ['x']\nsms = 1.5", "device 1: sms must be a whole number"),
        ("[[device]]\nnames = ['x']\nsms = true", "device 1: sms must be a whole number"),
        ("[[device]]\nnames = ['x']\ntflops = 989", "device 1: tflops must be a table"),
        ("[[device]]\nnames = ['x']\ntflops = { half = 1 }", "device 1: tflops: unknown key 'half'; known are fp64, "),
        ("[[device]]\nnames = ['x']\ntflops = { bf16 = '1' }", "device 1: tflops.bf16 must be a number"),
        (
            "[[device]]\nnames = ['x']\ntflops = { bf16 = 989e12 }",
            "device 1: tflops.bf16 must be more than 0 and at most 1,000,000, not 989000000000000.0; is the unit "
            "another?",
        ),
        (
            "[[device]]\nnames = ['x']\nbandwidth_gbs = nan",
            "device 1: bandwidth_gbs must be more than 0 and at most 1,000,000, not nan; is the unit another?",
        ),
        (
            "[[device]]\nnames = ['x']\nachievable = { bf16 = 80 }",
            "device 1: achievable.bf16 must be more than 0 and at most 1, not 80; is the unit another?",
        ),
        (
            "[[device]]\nnames = ['x']\nbandwidth_gbs = 1\ncc = 'sm_90'",
            'device 1: cc must be like "9.0" or "gfx942", not \'sm_90\'',
        ),
        (
            "[[device]]\nnames = ['x']\nsources = { half = 'a' }",
            "device 1: sources: unknown key 'half'; known are fp64, ",
        ),
        ("[[device]]\nnames = ['x']\nexcept = { bf16 = 1 }", "device 1: except.bf16 must be a string"),
        (
            "[[device]]\nnames = ['x']\nconfidence = 'sure'",
            "device 1: unknown confidence 'sure'; known are verified, partly, derived",
        ),
        (
            "[[device]]\nnames = ['x']\nbandwidth_gbs = 1\n[[device]]\nnames = ['X']\nbandwidth_gbs = 2",
            "device 2: 'x' is there already, ",
        ),
        (
            "[[device]]\nnames = ['x']\nlike = 'NVIDIA L4'\ntflops = { bf16 = 242 }",
            # 58 * 2.04e9 * 1024
            "device 1: sms x clock_ghz x flops_per_clock is 121.2 TFLOPS, tflops of 16 bits says 242: a sparse peak",
        ),
        ("[[device]\n", "my.toml: not a TOML file: "),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_device_specs(written(tmp_path, text))
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path / "my.toml"))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml: cannot be read: No such file"):
        read_device_specs(tmp_path / "nowhere.toml")
    path = tmp_path / "my.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"my\.toml: not a TOML file: "):
        read_device_specs(path)
