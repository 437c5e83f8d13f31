"""What a step is cut into for CUDA graphs, and what is said of each piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracekit
from tests.event_rows import annotation, kernel, launch, write_trace
from tests.graph_rows import (
    DECODE,
    NAMES,
    US,
    Between,
    Row,
    Rows,
    call,
    copied,
    item,
    on_legacy_stream,
    put,
    ranked,
    replay,
    step,
    steps,
    varying,
)
from tracekit.gains import estimate
from tracekit.graph_pieces import Period, period_of
from tracekit.graph_regions import Limits, Region, decode_graph, regions
from tracekit.graph_sizes import ranges
from tracekit.replay_choice import groups
from tracekit.trace import Trace


def sequence(path: Path, rows: Rows, **parameters: Any) -> list[Row]:
    with tracekit.open(write_trace(path / "trace.parquet", rows)) as trace:
        launches: list[Row] = trace.macro("graph_launches", parameters).to_pylist()
        return launches


def found(path: Path, rows: Rows, **limits: Any) -> tuple[Region, ...]:
    with tracekit.open(write_trace(path / "trace.parquet", rows)) as trace:
        return regions(trace, Limits(**limits))


def sizes(launches: list[Row]) -> list[int]:
    """Launches of each piece of the last step."""
    pieces = [one["piece"] for one in launches if one["step"] == launches[-1]["step"] and one["piece"] is not None]
    return [pieces.count(piece) for piece in dict.fromkeys(pieces)]


# ---- pieces ----------------------------------------------------------------------------------------------------------


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    assert sequence(tmp_path, []) == []
    assert found(tmp_path, []) == ()


def test_whole_sequence_of_a_step(tmp_path: Path) -> None:
    """A layer is staged for, waits for the device once, and is sampled from."""
    rows: Rows = [annotation(DECODE, 0, 900 * US)]
    copied("cudaMemcpyAsync", "HtoD", "Pinned -> Device")(rows, 10 * US, 0)
    for place, name in enumerate(("prepare", *NAMES[:2], "", *NAMES[2:], "topk_topp_sampling_kernel")):
        if name:
            put(rows, launch((50 + 20 * place) * US, US), kernel((55 + 20 * place) * US, 2 * US, name=name, grid_x=1))
        else:
            rows.append(launch((50 + 20 * place) * US, US, name="cudaDeviceSynchronize"))
    shown = [
        (one["position"], one["rows"], one["place"], one["blocker"], one["splits"], one["piece"])
        for one in sequence(tmp_path, rows)
    ]
    assert shown == [
        (1, 1, "before", None, False, None),
        (2, 1, "inside", None, False, 0),
        (3, 1, "inside", None, False, 0),
        (4, 1, "inside", None, False, 0),
        (5, 0, "inside", "synchronisation", True, None),
        (6, 1, "inside", None, False, 1),
        (7, 1, "inside", None, False, 1),
        (8, 1, "after", None, False, None),
    ]


BLOCKERS: list[tuple[str | None, Between, list[int]]] = [
    ("readback", item, [7, 6]),  # the copy itself could be captured
    ("pageable_copy", copied("cudaMemcpyAsync", "HtoD", "Pageable -> Device"), [6, 6]),
    ("readback", copied("cudaMemcpyAsync", "DtoH", "Device -> Pageable"), [6, 6]),
    ("synchronous_copy", copied("cudaMemcpy", "DtoD", "Device -> Device"), [6, 6]),
    ("synchronisation", call("cudaStreamSynchronize"), [6, 6]),
    ("synchronisation", call("hipEventSynchronize"), [6, 6]),
    ("allocation", call("cudaMalloc"), [6, 6]),
    ("loading", call("cuModuleLoadData"), [12]),  # such a step is one of warm-up: others do not load
    ("host_callback", call("cudaStreamAddCallback"), [6, 6]),
    ("host_callback", call("cudaLaunchHostFunc"), [12]),  # a node of the graph
    ("legacy_stream", on_legacy_stream, [6, 6]),
    ("varying_shapes", varying, [6, 6]),
    (None, call("cudaEventQuery"), [12]),
    (None, call("cudaMemsetAsync"), [12]),  # without work: lost, or of no bytes
]


def test_blockers(tmp_path: Path) -> None:
    cases = [steps(between, stream=9 if between is on_legacy_stream else 7) for _, between, _ in BLOCKERS]
    launches = sequence(tmp_path, ranked(*cases))
    for rank, (kind, _, pieces) in enumerate(BLOCKERS):
        here = [one for one in launches if one["rank"] == rank]
        seen = [one["blocker"] for one in here if one["step"] == 3 and one["blocker"] is not None]
        assert (kind, seen, sizes(here)) == (kind, [kind] * (kind is not None), pieces)


def test_rare_blockers_split_nothing(tmp_path: Path) -> None:
    """The allocator asks the driver for memory in one step of four."""
    rows: Rows = []
    for number in range(4):
        step(rows, number, between=call("cudaMalloc") if number == 3 else None)
    assert sizes(sequence(tmp_path, rows)) == [12]
    assert sizes(sequence(tmp_path, rows, blocker_share=0.25)) == [6, 6]


def test_what_is_no_blocker(tmp_path: Path) -> None:
    """One stream, whatever its number. Grids of another batch: a kernel varies only among steps of one; and where most
    kernels differ, none stands out. Copies to the host on a stream of their own: left aside.
    """
    offload = copied("cudaMemcpyAsync", "DtoH", "Device -> Pinned", stream=20, dur=500 * US)
    batches: Rows = []
    unknown: Rows = []
    for number in range(4):
        step(batches, number, grid=4 + number, mark=f"step[DECODE bs={5 + number}]")
        step(unknown, number, grid=4 + number)
    launches = sequence(tmp_path, ranked(steps(stream=0), batches, unknown, steps(offload)))
    assert [sizes([one for one in launches if one["rank"] == rank]) for rank in range(4)] == [[12]] * 4
    assert [one["place"] for one in launches if one["rank"] == 3 and one["step"] == 3].count("aside") == 1


def test_an_engines_mark_bounds_the_forward_pass(tmp_path: Path) -> None:
    rows = steps(count=1)
    rows.append(annotation("gpu_model_runner: forward", 240 * US, 200 * US))
    assert [one["place"] for one in sequence(tmp_path, rows)] == ["before"] * 4 + ["inside"] * 4 + ["after"] * 4


def test_without_steps_a_pause_cuts(tmp_path: Path) -> None:
    rows: Rows = []
    for number in (0, 2, 4):
        step(rows, number, mark=None)
    assert sizes(sequence(tmp_path, rows)) == [12, 12, 12]


@pytest.mark.parametrize(
    ("token", "period"),
    [
        ([], None),
        ([1], None),
        ([1, 2, 3, 4], None),
        ([1, 1, 1, 1], Period(1, 4)),
        ([9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 8], Period(3, 3)),
        ([1, 2, 1, 3, 1, 2, 1, 3], Period(4, 2)),  # a kernel twice in each layer
        ([1, 1, 2, 3, 4, 5, 6, 7], None),  # too little of it
    ],
)
def test_period(token: list[int], period: Period | None) -> None:
    assert period_of(np.array(token, np.int64)) == period


def test_ranges() -> None:
    assert [ranges(sizes) for sizes in ([], [4], [1, 2, 3, 5, 8, 9])] == ["", "4", "1-3, 5, 8-9"]


# ---- regions ---------------------------------------------------------------------------------------------------------


def test_whole_region(tmp_path: Path) -> None:
    (one,) = found(tmp_path, steps())
    assert (one.label, one.verdict, one.reason) == (
        "the forward pass",
        "worth it",
        "launches repeat 3 x 4 launches; the same in 3 of 3 steps",
    )
    assert (one.pieces, one.launches, one.kernels, one.replays, one.repeats) == (1, 12, 12, 0, 3)
    # From the first work, which begins 6 us after its launch, to the end of the twelfth.
    assert (one.wall_ns, one.gpu_ns, one.idle_ns) == (555 * US, 60 * US, 495 * US)
    assert one.estimate is not None
    # The host no longer takes 46 us before each of eleven launches, and 4 for them.
    assert 0.8 * 550 * US < one.estimate.saving_low_ns <= one.estimate.saving_high_ns <= 551 * US
    assert one.estimate.error < 0.01


def graphs(count: int, eager: int) -> Rows:
    """Four steps of that many replays, and launches after each."""
    rows: Rows = []
    for number in range(4):
        at = number * 2_000 * US
        rows.append(annotation(DECODE, at, 1_900 * US))
        for turn in range(count):
            ts = at + (50 + turn * 300) * US
            replay(rows, ts, NAMES * 4)
            for i in range(eager):
                late = ts + (200 + 20 * i) * US
                put(rows, launch(late, 4 * US), kernel(late + 6 * US, 5 * US, name=NAMES[1], grid_x=4))
    return rows


def test_verdicts(tmp_path: Path) -> None:
    cases = [
        (steps(), ["worth it"]),
        (steps(every_ns=10 * US, dur=155 * US, waits=True), ["GPU-bound, will not help"]),
        (steps(layers=1), ["too few launches"]),
        (graphs(1, 1), ["already a graph"]),
        (graphs(3, 4), ["worth it"]),  # piecewise
        (steps(item), ["worth it", "worth it", "blocked by readback"]),
        (steps(call("cudaMalloc"), layers=4), ["worth it", "blocked by allocation"]),  # two pieces alike
        (steps(count=1), ["worth it"]),  # layers repeat within it
        (different(1), ["seen once"]),
        (different(4), ["seen once"]),
    ]
    some = found(tmp_path, ranked(*(rows for rows, _ in cases)))
    shown = [[one.verdict for one in some if one.group.rank == rank] for rank in range(len(cases))]
    assert shown == [verdicts for _, verdicts in cases]
    assert all(one.reason for one in some)
    for one in some:
        estimated = one.verdict in ("worth it", "GPU-bound, will not help") or one.is_whole
        assert (one.estimate is not None) == estimated


def different(count: int) -> Rows:
    """Steps of twelve kernels in another order each."""
    categories = [
        NAMES[1],
        NAMES[0],
        NAMES[2],
        "flash_fwd_kernel",
        "rotary_embedding_kernel",
        "topk_softmax_moe_kernel",
    ]
    rows: Rows = []
    for number in range(count):
        at = number * 2_000 * US
        rows.append(annotation(DECODE, at, 1_900 * US))
        for turn in range(6 + number):
            ts = at + (turn + 1) * 50 * US
            name = categories[0] if turn in (0, 5 + number) else categories[turn % 6]
            put(rows, launch(ts, 4 * US), kernel(ts + 6 * US, 5 * US, name=name, grid_x=turn + 1))
    return rows


def test_too_short_pieces_stay_eager(tmp_path: Path) -> None:
    assert [one.launches for one in found(tmp_path, steps(item))] == [7, 6, 13]
    assert [(one.launches, one.verdict) for one in found(tmp_path, steps(item), min_launches=7)] == [
        (7, "worth it"),
        (13, "blocked by readback"),
    ]


def test_where_the_replay_is_off_nothing_is_said(tmp_path: Path) -> None:
    (one,) = found(tmp_path, [kernel(i * 50 * US, 5 * US, name=NAMES[i % 4]) for i in range(12)])
    assert (one.verdict, one.estimate) == ("cannot tell", None)
    assert one.reason.endswith("off, more than 5%")


def test_calls_of_a_region_and_of_one_graph_of_all(tmp_path: Path) -> None:
    with tracekit.open(write_trace(tmp_path / "trace.parquet", steps(item))) as trace:
        first, second, whole = regions(trace)
        step_of = first.group.median
        starts = [
            step_of.calls.ts[calls] % (2_000 * US) // US for one in (first, second) for calls in one.calls(step_of)
        ]
        assert [start.tolist() for start in starts] == [
            [50, 100, 150, 200, 250, 300, 311],
            [350, 400, 450, 500, 550, 600],
        ]
        assert [len(calls) for calls in whole.calls(step_of)] == [13]
        parts = [one.estimate for one in (first, second, whole) if one.estimate is not None]
        assert sum(one.saving_high_ns for one in parts) <= step_of.measured_ns
        _one_graph_wins_what_all_regions_do(trace, [first, second, whole])


def _one_graph_wins_what_all_regions_do(trace: Trace, parts: list[Region]) -> None:
    (group,) = groups(trace)
    together = estimate(group, [decode_graph(trace, group)])
    apart = [one.estimate for one in parts if one.estimate is not None]
    assert together.saving_high_ns <= sum(one.saving_high_ns for one in apart) + US
    assert together.saving_low_ns >= sum(one.saving_low_ns for one in apart) - 50 * US
