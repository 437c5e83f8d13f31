"""A comparison as text: whole, on one screen, fitting its width, with the numbers of the JSON."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.compare_recordings import GEMM, LAUNCH, recording, steps
from tracekit.analyses._idle_summary import Losses
from tracekit.analysis import duration
from tracekit.compare import Comparison, Recording, Thresholds, compared
from tracekit.compare_kernels import KernelSums, KernelTime
from tracekit.compare_measure import WHOLE
from tracekit.report_compare import render, signed

US = 1_000
QUICK = Thresholds(resamples=50)
NORM = ("busy", "norm")


def lines(found: Comparison, width: int = 100) -> list[str]:
    said = [line.plain for line in render(found, width=width, unicode=False)]
    assert all(len(line) <= width and line == line.rstrip() for line in said)
    return said


def kernels(*times: tuple[str, int, int]) -> KernelSums:
    """Name, ns and launches of a step each, in the order of their launches."""
    rows = [KernelTime("kernel", name, "norm", "", "", ns * 10, count * 10) for name, ns, count in times]
    return KernelSums(tuple(rows), 10, tuple(name for name, _, count in times for _ in range(count)))


def side(name: str, idle: int, norm: int, of: KernelSums, **settings: str) -> Recording:
    group = steps({GEMM: [500 * US] * 10, NORM: [norm] * 10, LAUNCH: [idle] * 10}, kernels=of)
    return recording(group, name=name, settings={"device": "1 x H100", **settings})


BASE = side("a.parquet", 400 * US, 90 * US, kernels(("gemm", 500 * US, 1), ("add", 30 * US, 1), ("norm", 60 * US, 1)))
CANDIDATE = side(
    "b.parquet", 480 * US, 50 * US, kernels(("gemm", 500 * US, 1), ("add_norm", 50 * US, 1)), torch="2.9", CUDA="13.0"
)


def test_nothing_to_compare() -> None:
    empty = recording(basis="nothing", name="empty", warnings=("nothing was recorded",))
    assert lines(compared([empty], [empty])) == [
        "base       empty   100 events",
        "candidate  empty   100 events",
        "There is nothing to compare: neither steps nor device work were recorded.",
        "  empty: nothing was recorded",
    ]


CHANGED = [
    "base       a.parquet   100 events   1 x H100",
    "candidate  b.parquet   100 events   1 x H100",
    "  one recording a side: how much one differs from the next is not known and counted as nothing;",
    "  record three or more",
    "decode 5-8: slower, 990 us -> 1.03 ms a step, +40.0 us +4.0% [+4.0%, +4.0%]; 10 steps each",
    "  p50    990 us ->   1.03 ms    +40.0 us   +4.0% [+4.0%, +4.0%]",
    "  p90    990 us ->   1.03 ms    +40.0 us   +4.0% [+4.0%, +4.0%]",
    "  p99    990 us ->   1.03 ms    +40.0 us   +4.0%",
    "  what explains it, a step",
    "    idle launch_bound    400 us ->    480 us    +80.0 us  ########################",
    "    busy norm           90.0 us ->   50.0 us    -40.0 us  ############",
    "    sum                                         +40.0 us",
    "  kernels, a step",
    "    fused add + norm -> add_norm: 90.0 us -> 50.0 us, -40.0 us; 2 -> 1 launches",
]


def test_a_change_and_what_explains_it() -> None:
    assert lines(compared([BASE], [CANDIDATE], QUICK)) == CHANGED


def test_on_a_narrow_screen() -> None:
    assert lines(compared([BASE], [CANDIDATE], QUICK), 60) == [
        "base       a.parquet   100 events   1 x H100",
        "candidate  b.parquet   100 events   1 x H100",
        "  one recording a side: how much one differs from the next",
        "  is not known and counted as nothing; record three or more",
        "decode 5-8: slower, 990 us -> 1.03 ms a step, +40.0 us +4.0%",
        "  [+4.0%, +4.0%]; 10 steps each",
        "  p50    990 us ->   1.03 ms   +4.0% [+4.0%, +4.0%]",
        "  p90    990 us ->   1.03 ms   +4.0% [+4.0%, +4.0%]",
        "  p99    990 us ->   1.03 ms   +4.0%",
        "  what explains it, a step",
        "    idle launch_bound    400 us ->    480 us    +80.0 us  ##",
        "    busy norm           90.0 us ->   50.0 us    -40.0 us  #",
        "    sum                                         +40.0 us",
        "  kernels, a step",
        "    fused add + norm -> add_norm: 90.0 us -> 50.0 us, -40.0",
        "    us; 2 -> 1 launches",
    ]


def test_no_difference_needs_no_explanation() -> None:
    assert lines(compared([BASE, BASE], [BASE, BASE, BASE], QUICK)) == [
        "base       a.parquet, a.parquet   2 recordings   200 events   1 x H100",
        "candidate  a.parquet, a.parquet, a.parquet   3 recordings   300 events   1 x H100",
        "decode 5-8: no difference shown, 990 us -> 990 us a step, +0 us +0.0% [+0.0%, +0.0%]; 20 and 30",
        "  steps of 2 and 3 recordings",
        "  p50    990 us ->    990 us       +0 us   +0.0% [+0.0%, +0.0%]",
        "  p90    990 us ->    990 us       +0 us   +0.0% [+0.0%, +0.0%]",
        "  p99    990 us ->    990 us       +0 us   +0.0%",
    ]


def test_one_sample_of_a_whole_recording() -> None:
    sides = [recording(steps({GEMM: [100], LAUNCH: [ns]}, key=WHOLE), basis="whole", name="run") for ns in (50, 80)]
    assert lines(compared(sides[:1], sides[1:])) == [
        "base       run   100 events",
        "candidate  run   100 events",
        "No steps were found: recordings are compared as a whole. --step-range REGEX names what is a step.",
        "whole recording: cannot tell, 0.150 us -> 0.180 us, +0.030 us +20.0%; 1 recording each",
        "  1 recording in base and 1 recording in candidate; it takes 5 to tell a change from chance",
        "  where it differs, untested",
        "    idle launch_bound  0.050 us ->  0.080 us   +0.030 us  ########################",
        "    sum                                        +0.030 us",
    ]


def test_conditions_that_differ_come_first() -> None:
    changed = side("b.parquet", 480 * US, 50 * US, KernelSums((), 10, ()), CUDA="13.0", torch="2.9")
    base = side("a.parquet", 400 * US, 90 * US, KernelSums((), 10, ()), CUDA="12.9", torch="2.8")
    assert lines(compared([base], [changed], QUICK))[2:6] == [
        "! One change at a time: 2 conditions are not alike, so no difference can be put down to one of them",
        "  alone",
        "! CUDA: 12.9 in base, 13.0 in candidate",
        "! torch: 2.8 in base, 2.9 in candidate",
    ]


def test_many_kinds_of_steps_and_parts_are_cut_to_a_screen() -> None:
    """The six that take most time; of parts the six that change most."""

    def of(shift: int) -> Recording:
        names = [("busy", f"part{number}") for number in range(9)]
        return recording(
            *(
                steps(
                    {name: [at * US + shift * (9 - place)] * 9 for place, name in enumerate(names)},
                    key=("decode", str(at)),
                )
                for at in range(1, 10)
            )
        )

    said = lines(compared([of(0)], [of(500)], QUICK))
    assert [line.partition(":")[0] for line in said if "a step," in line] == [f"decode {at}" for at in range(9, 3, -1)]
    assert sum(line.startswith("    sum  ") and line.endswith("  +22.5 us") for line in said) == 6
    assert sum(line.startswith("    3 other parts  ") and line.endswith("  +3.00 us") for line in said) == 6
    assert said[-1] == "and 3 more kinds of step (decode 3 slower, decode 2 slower, decode 1 slower): --format json"


def test_names_from_a_trace_are_data(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "[bold]\x1b[31mred\x07"
    names: Sequence[str] = (evil, evil + "2")
    both = [
        recording(
            steps({("busy", evil): [ns] * 9}, kernels=kernels((name, ns, 1))), name=name, settings={"device": name}
        )
        for name, ns in zip(names, (100, 200), strict=True)
    ]
    said = "\n".join(lines(compared(both[:1], both[1:], QUICK)))
    assert "[bold]\\x1b[31mred\\x07" in said and all(char.isprintable() for char in said.replace("\n", ""))


def test_the_text_says_what_the_json_says() -> None:
    found = compared([BASE], [CANDIDATE], QUICK)
    (group,), said = found.to_json()["groups"], "\n".join(lines(found))
    for part in group["parts"]:
        if part["significant"]:
            assert f"{part['kind']} {part['name']}" in said and signed(part["change_ns"]) in said
    for name in ("p50", "p90", "p99", "mean"):
        assert duration(group["base"][f"{name}_ns"]) in said and duration(group["candidate"][f"{name}_ns"]) in said
    assert f"sum{signed(group['change_ns']):>49}" in said


def test_where_causes_cannot_be_told_it_says_why() -> None:
    lossy = recording(steps({GEMM: [100] * 9}), name="lossy", losses=Losses(refusal="9 launches left no work"))
    assert lines(compared([lossy], [lossy], QUICK))[2] == "  lossy: 9 launches left no work"
