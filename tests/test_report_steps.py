"""Steps as text: fitting, aligned, the numbers of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.event_rows import kernel, launch
from tests.served_steps import DECODE, Rows, opened, served
from tracekit.report_steps import in_full, overview
from tracekit.text_page import Page

US = 1_000
PREFILL = "execute_context_9(2000)_generation_0(0)"


def texts(path: Path, rows: Sequence[Mapping[str, Any]], width: int, *, whole: bool = False) -> list[str]:
    page = Page("trace.parquet", [], width, "#", whole)
    with opened(path, rows) as trace:
        result = trace.analyze("steps")
    lines = [line.plain.rstrip() for line in (in_full if whole else overview)(page, result)]
    assert all(len(line) <= width for line in lines)
    return lines


def serving() -> Rows:
    """A prefill, and again one with five decode steps; the last one slow; work of no step at the end."""
    works = [(PREFILL, [(0, 900 * US)]), (PREFILL, [(1_000 * US, 800 * US)])]
    works += [(DECODE, [(at * US, 60 * US), ((at + 70) * US, 20 * US)]) for at in range(1_900, 2_400, 100)]
    works += [(DECODE, [(2_400 * US, 90 * US), (2_690 * US, 10 * US)])]
    rows = served(*works)
    return [*rows, launch(0, 1), kernel(2_800 * US, 100 * US, launch_id=len(rows) + 1)]


def test_overview(tmp_path: Path) -> None:
    assert texts(tmp_path, serving(), 80) == [
        "Steady steps, first start to last end; gap: idle before",
        "  phase    batch             steps      p50     p90     p99   busy   idle    gap",
        "  decode   3-4                   6  90.0 us  300 us  300 us  55.6%  27.8%  16.7%",
        "  prefill  9-16, <=2048 tok      1   800 us                  88.9%   0.0%  11.1%",
    ]


def test_overview_on_a_narrow_screen(tmp_path: Path) -> None:
    assert texts(tmp_path, serving(), 60) == [
        "Steady steps, first start to last end; gap: idle before",
        "  phase   batch       steps     p50    p99 busy idle gap",
        "  decode  3-4             6 90.0 us 300 us  56%  28% 17%",
        "  prefill 9-16 <=2048     1  800 us         89%   0% 11%",
    ]


def test_steps_without_any_device_work_are_told_from_their_marks(tmp_path: Path) -> None:
    rows = [*served(*[(DECODE, [])] * 3), *served((PREFILL, []), *[(DECODE, [])] * 6, rank=1)]
    for length, row in enumerate(rows, start=1):
        row["dur"] = length * 500
    rank_1 = [
        "Steps on the host of rank 1, by their marks",
        "  phase    batch             steps      p50      p90      p99",
        "  decode   3-4                   6  3.50 us  5.00 us  5.00 us",
        "  prefill  9-16, <=2048 tok      1  2.00 us",
    ]
    assert texts(tmp_path, rows, 80) == rank_1
    in_full = texts(tmp_path, rows, 80, whole=True)
    assert in_full[0].startswith("  no device activity in this trace")
    assert in_full[-7:] == [
        "Steps on the host of rank 0, by their marks",
        "  phase   batch  steps      p50      p90      p99",
        "  decode  3-4        3  1.00 us  1.50 us  1.50 us",
        *rank_1,
    ]
    assert texts(tmp_path, rows[3:], 55)[:2] == [
        "Steps on the host, by their marks",
        "  phase    batch             steps      p50      p99",
    ]


def test_of_many_batches_those_that_take_most_time_are_shown(tmp_path: Path) -> None:
    works = [(f"execute_context_0(0)_generation_{2**at}(1)", [(100 * at * at, 50)]) for at in range(9)]
    lines = texts(tmp_path, served(*works), 100)
    assert [line.split()[1] for line in lines[2:7]] == ["9-16", "17-32", "33-64", "65-128", "129-256"]
    assert lines[7:] == ["  and 3 more rows, 14.1% of the time of these steps"]


def test_overview_says_what_steps_these_are(tmp_path: Path) -> None:
    one = [launch(0, 1), kernel(0, 10, launch_id=1)]
    assert texts(tmp_path, [], 80) == []
    assert texts(tmp_path, one, 80) == [
        "Steps: no step markers: annotate with tracekit.step, or name ranges that are",
        "steps with --step-range",
    ]
    loading = [*served((DECODE, [(0, 10)])), launch(10_005, 1, name="cuModuleLoadData")]
    assert (
        texts(tmp_path, loading, 80)[0] == "Steps, none steady (1 warm-up), first start to last end; gap: idle before"
    )
    two = [*served((DECODE, [(0, 10)])), *served((DECODE, [(0, 20)]), rank=1, first_id=4)]
    assert texts(tmp_path, two, 90)[0] == ("Steady steps on rank 1 device 0, first start to last end; gap: idle before")
    replays = [
        row
        for at in range(5)
        for row in (launch(100 * at, 9, name="cudaGraphLaunch"), kernel(100 * at, 5, launch_id=2 * at + 1))
    ]
    assert texts(tmp_path, replays, 90)[0] == "Steady steps, inferred, first start to last end; gap: idle before"


@pytest.mark.parametrize("width", [60, 80, 100])
def test_in_full(tmp_path: Path, width: int) -> None:
    rows = [*serving(), *served((DECODE, []), (PREFILL, []), rank=1, first_id=99), kernel(0, 9, rank=1, device=1)]
    lines = texts(tmp_path, rows, width, whole=True)
    start = lines.index("  rank 0 device 0: 8 steps, marked by execute_context")
    bars = [15, 2, 2, 1, 1] if width == 60 else [18, 2, 2, 1, 1]
    assert lines[start:] == [
        "  rank 0 device 0: 8 steps, marked by execute_context",
        "    busy in steps       2.20 ms  75.9%  " + bars[0] * "#",
        "    idle inside steps    250 us   8.6%  " + bars[1] * "#",
        "    idle before steps    250 us   8.6%  " + bars[2] * "#",
        "    busy in no step      100 us   3.4%  " + bars[3] * "#",
        "    idle before that     100 us   3.4%  " + bars[4] * "#",
        "    steady decode, batch 3-4: 6 steps",
        "                                   p50      p90      p99",
        "      start to next start       100 us   100 us   100 us",
        "      first start to last end  90.0 us   300 us   300 us",
        "      busy                     80.0 us   100 us   100 us",
        "      idle inside              10.0 us   200 us   200 us",
        "      idle to next step        10.0 us  10.0 us  10.0 us",
        "    steady prefill, batch 9-16, <=2048 tok: 1 step",
        "      start to next start       900 us",
        "      first start to last end   800 us",
        "      busy                      800 us",
        "      idle inside                 0 us",
        "      idle to next step         100 us",
        "    first prefill, batch 9-16, <=2048 tok: 1 step",
        "      start to next start      1.00 ms",
        "      first start to last end   900 us",
        "      busy                      900 us",
        "      idle inside                 0 us",
        "      idle to next step         100 us",
        "  rank 1 device 1: 0 steps, marked by execute_context",
        "    busy in no step  0.009 us 100.0%  " + (22 if width == 60 else 24) * "#",
        "    empty decode, batch 3-4: 1 step",
        "    empty prefill, batch 9-16, <=2048 tok: 1 step",
    ]


def test_of_many_devices_the_first_are_shown_in_full(tmp_path: Path) -> None:
    rows = [kernel(0, 9, device=device) for device in range(10)]
    lines = texts(tmp_path, rows, 80, whole=True)
    assert lines[-1] == "  and 2 more devices: choose a rank, or --format json"
    assert sum(line.startswith("  rank 0 device ") for line in lines) == 8
