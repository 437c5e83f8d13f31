"""The roofline as text: fitting, the numbers of the result, no triumph above a roof."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.roofline_rows import MS, US, Row, group, h100, result, unknown
from tracekit.report_roofline import in_full, overview
from tracekit.text_page import Page


def texts(rows: Sequence[Row], summary: Sequence[Row], width: int = 100, most: int | None = None) -> list[str]:
    """most: of the overview; without it, all."""
    page = Page("trace.parquet", [], width, "#", most is None)
    shown = result(rows, summary, "2.0% not known" if rows else "")
    lines = [line.plain.rstrip() for line in (in_full(page, shown) if most is None else overview(page, shown, most))]
    assert all(len(line) <= width for line in lines)
    return lines


ROWS = [
    group(
        **{"kernel": "void nvjet_tst_64x8<2>(Params)", "op": "aten::mm", "shapes": "[[32, 4096], [4096, 14336], []]"},
        **{"dur_ns": 6 * MS, "count": 1200, "math": "bf16", "flops": 4.5e12, "bytes": 1.7e10, "evidence": "B"},
        **{"roof_fraction": 0.94, "datasheet_fraction": 0.846, "bound": "memory", "example_id": 1},
    ),
    group(
        **{"kernel": "softmax", "dur_ns": 2 * MS, "flops": 1e8, "bytes": 1e9, "evidence": "D", "leaning": "memory"},
        **{"flops_low": 1e8, "flops_high": 4e8, "bytes_low": 1e8, "bytes_high": 1.2e9, "memory_ns": 1.0 * MS},
        **{"roof_fraction": 0.5, "datasheet_fraction": 0.45, "notes": "bf16 assumed, padding", "example_id": 2},
    ),
    group(
        **{"kernel": "wrong", "math": "fp8", "flops": 3e12, "bytes": 1e9, "evidence": "B", "problem": "above roof"},
        **{"roof_fraction": 1.9, "datasheet_fraction": 1.52, "notes": "padding", "example_id": 3},
    ),
    group(
        **{"kernel": "Memcpy HtoD (Pinned -> Device)", "category": "memory", "dur_ns": 800 * US, "evidence": "F"},
        **{"op": "aten::copy_", "shapes": "[[513], [513]]", "example_id": 4},
    ),
    group(kernel="bare\x1b[31m", dur_ns=200 * US, example_id=5),
]
DEVICE = h100(
    by_bound={"unknown": 4 * MS, "memory": 6 * MS},
    by_evidence={"none": 200 * US, "B": 7 * MS, "D": 2 * MS, "F": 800 * US},
    above_roof_ns=1 * MS,
)


def test_nothing() -> None:
    assert texts([], []) == texts([], [], most=7) == texts([], [h100(busy_ns=0)], most=7) == []
    assert texts([], [h100(busy_ns=0, sources={})]) == [
        "  rank 0 device 0: NVIDIA H100 80GB HBM3, roofs of H100 SXM5 80 GB",
        "    bandwidth   3,350 GB/s, 90% achievable",
    ]


def test_in_full() -> None:
    assert texts(ROWS, [DEVICE]) == [
        "  2.0% not known",
        "  rank 0 device 0: NVIDIA H100 80GB HBM3, roofs of H100 SXM5 80 GB",
        "    bandwidth   3,350 GB/s, 90% achievable",
        "    bf16        989.0 TFLOP/s, 80% achievable",
        "    fp8         1,979.0 TFLOP/s, 80% achievable",
        "    peaks: datasheet",
        "    bound by, of 10.0 ms busy time",
        "      memory          6.00 ms  60.0%  ##############",
        "      unknown         4.00 ms  40.0%  ##########",
        "      10.0% of it is above a roof: wrong device, wrong shapes or caches; no verdict there",
        "    evidence: 90.0% of it",
        "      B   7.00 ms  70.0%  op shapes, one kernel",
        "      D   2.00 ms  20.0%  capture trace, like kernels or model config",
        "      F    800 us   8.0%  name and geometry only",
        "      -    200 us   2.0%  nothing",
        "       time  count  FLOP/B  TFLOP/s   GB/s  % of roof  % datasheet  bound              evidence",
        "    6.00 ms  1,200     265      750  2,833       94.0         84.6  memory             B",
        "      mm 32x4096x14336  nvjet_tst_64x8<2>",
        "    2.00 ms      1  ~0.100  >=0.050   ~500      ~50.0        ~45.0  unknown (memory?)  D a b",
        "      softmax",
        "    1.00 ms      1   3,000    3,000  1,000      190.0        152.0  error: above roof  B b",
        "      wrong",
        "     800 us      1                                                  unknown            F",
        "      Memcpy HtoD (Pinned -> Device)  copy_ 513",
        "     200 us      1                                                  unknown            -",
        "      bare\\x1b[31m",
        "    a bf16 assumed; b padding; ~ expected; >= at least",
    ]


def test_sources_that_differ() -> None:
    """Each once, with what it is for, those of what is achievable apart; remarks, and a file that may be written."""
    sources = {"bandwidth": "the profiler", "bf16": "datasheet", "fp8": "datasheet"}
    sources |= {"achievable.bandwidth": "measured", "achievable.bf16": "measured"}
    problem = 'As GPU X. In three lines:\n[[device]]\nnames = [""]\nNo peaks.'
    rows = [group(math=math, dur_ns=5 * MS) for math in ("bf16", "fp8")]
    lines = texts(rows, [h100(sources=sources, problem=problem, remarks=["taken as device 0"])])
    assert lines[2:12] == [
        "    As GPU X.",
        "    If you know that it is one, a file for --device-spec:",
        "      [[device]]",
        '      names = [""]',
        "    taken as device 0",
        "    bandwidth   3,350 GB/s, 90% achievable",
        "    bf16        989.0 TFLOP/s, 80% achievable",
        "    fp8         1,979.0 TFLOP/s, 80% achievable",
        "    peaks: bandwidth from the profiler; bf16, fp8 from datasheet",
        "    achievable: bandwidth, bf16 from measured",
    ]


@pytest.mark.parametrize(
    "above, line",
    [
        (0, "    evidence: 0.0% of it"),
        (99 * US, "      99.0 us of it above a roof, as from a cache: no verdict there"),
        (100 * US, "      1.0% of it is above a roof: wrong device, wrong shapes or caches; no verdict there"),
    ],
)
def test_a_little_above_a_roof_is_no_alarm(above: int, line: str) -> None:
    assert texts([], [h100(above_roof_ns=above)])[4] == line
    assert ("above a roof" in "".join(texts([], [h100(above_roof_ns=above)], most=7))) == (above >= 100 * US)


def test_many_groups_and_devices() -> None:
    """1 ms of 1 s is too little to be listed, but for the first ones."""
    rows = [group(kernel=f"k{at}", example_id=at) for at in range(30)]
    lines = texts(rows, [h100(rank=rank) for rank in range(9)])
    assert "    and 5 more kernel groups, 50.0%: --format json" in lines
    assert lines[-1] == "  and 1 more device: choose a rank, or --format json"
    assert "    and 22 more kernel groups, 2.2%: --format json" in texts(rows, [h100(busy_ns=1000 * MS)])


@pytest.mark.parametrize(
    "summary, most, lines",
    [
        (
            [DEVICE],
            7,
            [
                "Busy time bound by: memory 60.0%, unknown 40.0%",
                "  90.0% with evidence of its work; 10.0% above a roof: an error, see the findings",
            ],
        ),
        (
            [
                h100(busy_ns=5 * MS),
                h100(rank=1, by_bound={"latency": 10 * MS, "memory": 1}, by_evidence={"A": 1 * MS}),
            ],
            3,
            ["Busy time bound by on rank 1 device 0: latency 100.0%", "  10.0% with evidence of its work"],
        ),
        (
            [unknown()],
            7,
            ["Busy time bound by: cannot tell. The trace has no device name: no roofs to compare with"],
        ),
        (
            [unknown(bandwidth=1e12, by_bound={"unknown": 10 * MS})],
            7,
            [
                "Busy time bound by: unknown 100.0%",
                "  0.0% with evidence of its work; The trace has no device name",
            ],
        ),
    ],
)
def test_overview(summary: Sequence[Row], most: int, lines: list[str]) -> None:
    assert texts([], summary, most=most) == lines
    assert len(texts([], summary, 40, most=most)) <= 4
