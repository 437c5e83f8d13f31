"""The work model counts what PyTorch's own FlopCounterMode counts, on what torch.profiler records of a real run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tracekit.op_call import OpCall, parse_call
from tracekit.work import Work, work_of

# Earlier ones have no _scaled_mm for the CPU.
torch = pytest.importorskip("torch", minversion="2.6")
counter = pytest.importorskip("torch.utils.flop_counter")


def operands() -> SimpleNamespace:
    """Small tensors, of a fixed seed."""
    make = torch.Generator().manual_seed(7)

    def random(*shape: int) -> Any:
        return torch.randn(*shape, generator=make)

    return SimpleNamespace(
        a=random(6, 8),
        b=random(8, 10),
        row=random(10),
        batch=random(3, 6, 8),
        right=random(3, 8, 4),
        one=random(1, 8, 4),
        image=random(2, 4, 9, 7),
        filters=random(6, 4, 3, 3),
        grouped=random(6, 2, 3, 3),
        up=random(4, 5, 3, 3),
        up_grouped=random(4, 3, 3, 3),
        line=random(2, 4, 11),
        taps=random(6, 4, 5),
        eight=random(16, 32).to(torch.float8_e4m3fn),
        weight=random(32, 16).to(torch.float8_e4m3fn).t().contiguous().t(),
        scale=torch.ones(1),
        gradient=random(2, 6, 5, 4),
    )


STRIDED = ([6], [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
# Name, what to run on the operands above, the ops that must do it, and the total by hand.
CASES: list[tuple[str, Callable[[SimpleNamespace], Any], list[str], int]] = [
    ("mm", lambda t: torch.mm(t.a, t.b), ["aten::mm"], 2 * 6 * 8 * 10),
    ("mm transposed", lambda t: torch.mm(t.a, t.b.t().contiguous().t()), ["aten::mm"], 2 * 6 * 8 * 10),
    ("linear", lambda t: torch.nn.functional.linear(t.batch, t.b.t(), t.row), ["aten::addmm"], 2 * 18 * 8 * 10),
    ("addmm", lambda t: torch.addmm(t.row, t.a, t.b, beta=0.5), ["aten::addmm"], 2 * 6 * 8 * 10),
    ("bmm", lambda t: torch.bmm(t.batch, t.right), ["aten::bmm"], 2 * 3 * 6 * 8 * 4),
    ("baddbmm", lambda t: torch.baddbmm(t.right[:, :1, :], t.batch, t.right), ["aten::baddbmm"], 2 * 3 * 6 * 8 * 4),
    ("matmul", lambda t: torch.matmul(t.batch, t.one), ["aten::bmm"], 2 * 3 * 6 * 8 * 4),
    ("einsum", lambda t: torch.einsum("bik,bkj->bij", t.batch, t.right), ["aten::bmm"], 2 * 3 * 6 * 8 * 4),
    # (9 + 2 - 3) // 2 + 1 = 5 by (7 + 2 - 3) // 2 + 1 = 4
    (
        "conv2d",
        lambda t: torch.conv2d(t.image, t.filters, stride=2, padding=1),
        ["aten::convolution"],
        2 * 2 * 20 * 6 * 4 * 9,
    ),
    ("grouped", lambda t: torch.conv2d(t.image, t.grouped, groups=2), ["aten::convolution"], 2 * 2 * 35 * 6 * 2 * 9),
    ("dilated", lambda t: torch.conv2d(t.image, t.filters, dilation=2), ["aten::convolution"], 2 * 2 * 15 * 6 * 4 * 9),
    ("conv1d", lambda t: torch.conv1d(t.line, t.taps), ["aten::convolution"], 2 * 2 * 7 * 6 * 4 * 5),
    (
        "transposed",
        lambda t: torch.conv_transpose2d(t.image, t.up, stride=2),
        ["aten::convolution"],
        2 * 2 * 63 * 4 * 5 * 9,
    ),
    (
        "both",
        lambda t: torch.conv_transpose2d(t.image, t.up_grouped, groups=2),
        ["aten::convolution"],
        2 * 2 * 63 * 4 * 3 * 9,
    ),
    (
        "backward",
        lambda t: torch.ops.aten.convolution_backward(t.gradient, t.image, t.filters, *STRIDED, [True, True, True]),
        ["aten::convolution_backward"],
        2 * (2 * 2 * 20 * 6 * 4 * 9),
    ),
    ("scaled", lambda t: torch._scaled_mm(t.eight, t.weight, t.scale, t.scale), ["aten::_scaled_mm"], 2 * 16 * 32 * 16),
]


def recorded(path: Path) -> list[OpCall]:
    """The op calls that a trace file holds, in order."""
    rows = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    found = [row for row in rows if row.get("cat") == "cpu_op"]
    keys = ("Input Dims", "Input type", "Concrete Inputs", "Input Strides")
    return [
        parse_call(row["name"], *(json.dumps(row["args"].get(key, [])) for key in keys))
        for row in sorted(found, key=lambda row: float(row["ts"]))
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[OpCall], int]]:
    """Of each case the recorded calls, and what FlopCounterMode counted: one profile for all, split by marks."""
    results, totals = {}, {}
    given = operands()
    path = tmp_path_factory.mktemp("flops") / "trace.json"
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.no_grad(), torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        for _, case, _, _ in CASES:
            torch.ones(1)  # a mark between the cases: aten::ones
            case(given)
    profile.export_chrome_trace(str(path))
    for name, case, _, _ in CASES:
        with counter.FlopCounterMode(display=False) as mode, torch.no_grad():
            case(given)
        totals[name] = mode.get_total_flops()
    for (name, _, _, _), calls in zip(CASES, split(recorded(path)), strict=True):
        results[name] = (calls, totals[name])
    return results


def split(calls: list[OpCall]) -> Iterator[list[OpCall]]:
    """The calls after each mark."""
    marks = [at for at, call in enumerate(calls) if call.name == "aten::ones"]
    for start, end in zip(marks, [*marks[1:], len(calls)], strict=True):
        yield calls[start + 1 : end]


@pytest.mark.parametrize(("name", "ops", "expected"), [(name, ops, total) for name, _, ops, total in CASES])
def test_as_flop_counter_counts(
    runs: dict[str, tuple[list[OpCall], int]], name: str, ops: list[str], expected: int
) -> None:
    calls, counted = runs[name]
    works = [work_of(call) for call in calls if call.name in ops]
    assert [type(work) for work in works] == [Work] * len(ops)
    assert sum(work.flops for work in works if work) == counted == expected
