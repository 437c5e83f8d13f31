"""Kernels that are known in, kernels that borrow out; captures and replays in, which is which out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tracekit.borrowed_work import KERNEL_KEY, SEQUENCES, borrowed, captured_sequences, lendable, match_replay

INT = pa.int64()
_KEY = [(name, pa.string() if name == "name" else INT) for name in KERNEL_KEY]
LENDERS = pa.schema([*_KEY, ("work", INT), ("by_load", pa.bool_()), ("tokens", INT), ("dur", INT)])
ROWS = pa.schema([("id", INT), *_KEY, ("tokens", INT), ("dur_low", INT), ("dur_high", INT)])
CALLS = pa.schema(
    [
        *((name, INT) for name in ("id", "rank", "pid", "tid", "ts")),
        ("name", pa.string()),
        ("op_id", INT),
        ("starts", pa.bool_()),
        ("kernel", pa.string()),
        ("work", INT),
        ("tokens", INT),
    ]
)
REPLAYS = pa.schema(
    [("id", INT), ("launch_id", INT), ("ts", INT), ("graph_node_id", INT), ("name", pa.string()), ("tokens", INT)]
)


def key(name: str, grid: int | None) -> dict[str, Any]:
    one = None if grid is None else 1
    sizes = dict.fromkeys(KERNEL_KEY[2:], one)
    return {"name": name, "grid_x": grid, **sizes}


def lenders(*rows: tuple[str, int | None, int | None, bool, int | None], dur: int = 9_000) -> pa.Table:
    """name, grid, work, by_load, tokens."""
    found = [
        {**key(name, grid), "work": work, "by_load": load, "tokens": tokens, "dur": dur}
        for name, grid, work, load, tokens in rows
    ]
    return pa.Table.from_pylist(found, LENDERS)


@pytest.mark.parametrize(
    ("rows", "lent"),
    [
        ([], []),
        ([("gemm", 8, 1, False, 16)], [("gemm", 8, 1, 16, 16)]),
        ([("gemm", 8, 1, False, 16), ("gemm", 8, 1, False, 4)], [("gemm", 8, 1, 4, 16)]),
        ([("gemm", 8, 1, False, 16), ("gemm", 8, 1, False, None)], [("gemm", 8, 1, None, None)]),
        ([("gemm", 8, 1, False, 16), ("gemm", 8, 2, False, 16)], []),  # did two things
        ([("gemm", 8, 1, False, 16), ("gemm", 8, None, False, 16)], []),  # once it is not known what it did
        (
            [("gemm", 8, 1, False, 16), ("gemm", 9, 2, False, 16)],
            [("gemm", 8, 1, 16, 16), ("gemm", 9, 2, 16, 16)],
        ),
        ([("attention", 8, 1, True, 16)], []),
        ([("gemm", None, 1, False, 16)], []),
    ],
)
def test_what_is_lent(rows: list[Any], lent: list[Any]) -> None:
    found = lendable(lenders(*rows)).to_pylist()
    columns = ("name", "grid_x", "work", "tokens_low", "tokens_high")
    assert [tuple(row[name] for name in columns) for row in found] == lent


@pytest.mark.parametrize(
    ("lender", "borrower", "expected"),
    [
        ([16], 16, [(7, 1, True)]),
        ([16], 32, []),  # the same grid may have twice the work for twice the batch
        ([16], None, []),
        ([4, 16], 8, [(7, 1, True)]),
        ([4, 16], None, [(7, 1, False)]),
        ([None], 8, [(7, 1, False)]),
        ([None], None, [(7, 1, False)]),
        ([16, None], 8, [(7, 1, False)]),
    ],
)
def test_at_which_size_of_step(lender: list[int | None], borrower: int | None, expected: list[Any]) -> None:
    lent = lendable(lenders(*(("gemm", 8, 1, False, tokens) for tokens in lender)))
    kinds = {0: ("gemm", 9), 1: ("other", 8), 2: ("gemm", None), 7: ("gemm", 8)}
    rows = [
        {"id": at, **key(name, grid), "tokens": borrower, "dur_low": 9_000, "dur_high": 9_000}
        for at, (name, grid) in kinds.items()
    ]
    found = borrowed(pa.Table.from_pylist(rows, ROWS), lent)
    assert [tuple(row.values()) for row in found.to_pylist()] == [(*one, True) for one in expected]
    assert borrowed(ROWS.empty_table(), lent).num_rows == 0


@pytest.mark.parametrize(
    ("seen", "low", "high", "timely"),
    [
        (9_000, 9_000, 9_000, True),
        (9_000, 6_000, 13_500, True),
        (9_000, 5_999, 9_000, False),
        (9_000, 9_000, 13_501, False),
        (12_000, 12_000, 42_000, False),  # of a product of a depth of 4096 and one of 14336 by turns, on one grid
        (1_000, 0, 7_500, True),  # of so short ones time says nothing
        (1_000, 0, 7_501, False),
        (7_501, 0, 0, False),
    ],
)
def test_of_another_time(seen: int, low: int, high: int, timely: bool) -> None:
    rows = [{"id": 7, **key("gemm", 8), "tokens": 16, "dur_low": low, "dur_high": high}]
    lent = lendable(lenders(("gemm", 8, 1, False, 16), dur=seen))
    assert borrowed(pa.Table.from_pylist(rows, ROWS), lent)["timely"].to_pylist() == [timely]


# ---- captured graphs -------------------------------------------------------------------------------------------------

BEGIN, END, LAUNCH = "cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaLaunchKernel"


def calls(*rows: tuple[str, str], tid: int = 1, tokens: int | None = None) -> list[dict[str, Any]]:
    """name of the call, and the kernel."""
    return [
        {
            "id": 100 * tid + at, "rank": 0, "pid": 1, "tid": tid, "ts": 10 * at, "name": name, "op_id": 1000 + at,
            "starts": name == LAUNCH, "kernel": kernel, "work": at, "tokens": tokens,
        }
        for at, (name, kernel) in enumerate(rows)
    ]  # fmt: skip


def sequences(*captures: Sequence[str], tokens: Sequence[int | None] = (), works: Sequence[int] = ()) -> pa.Table:
    rows = [
        {
            "sequence": number, "position": at, "launch_id": 10 * number + at, "op_id": 100 * number + at,
            "kernel": kernel, "work": works[number] if works else number, "tokens": tokens[number] if tokens else None,
        }
        for number, kernels in enumerate(captures)
        for at, kernel in enumerate(kernels)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, SEQUENCES)


def replay(*names: str, tokens: int | None = None, nodes: Sequence[int | None] = (), launch: int = 5) -> pa.Table:
    """Recorded in the opposite order of time: id counts from 0 with the first."""
    rows = [
        {
            "id": at, "launch_id": launch, "ts": 100 + at, "graph_node_id": nodes[at] if nodes else None, "name": name,
            "tokens": tokens,
        }
        for at, name in enumerate(names)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows[::-1], REPLAYS)


def test_captures_in_order() -> None:
    """Two threads capture at once; launches outside, captures without an end and empty ones are left out."""
    first = calls((LAUNCH, "no"), (BEGIN, ""), (LAUNCH, "a"), ("cudaStreamIsCapturing", ""), (LAUNCH, "b"), (END, ""),
                  (LAUNCH, "no"), (BEGIN, ""), (END, ""), (BEGIN, ""), (LAUNCH, "no"))  # fmt: skip
    second = calls((BEGIN, ""), (LAUNCH, "no"), ("cudaStreamBeginCapture_ptsz", ""), (LAUNCH, "c"), (END, ""), tid=2)
    table = pa.Table.from_pylist([*second, *first][::-1], CALLS)
    found = captured_sequences(table)
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (0, 0, 102, 1002, "a", 2, None),
        (0, 1, 104, 1004, "b", 4, None),
        (1, 0, 203, 1003, "c", 3, None),
    ]
    assert captured_sequences(CALLS.empty_table()) == SEQUENCES.empty_table()


def test_nothing_to_match() -> None:
    found = match_replay(SEQUENCES.empty_table(), REPLAYS.empty_table())
    assert (found.matches.num_rows, found.refused.num_rows) == (0, 0)


def test_a_replay_in_order_of_time() -> None:
    found = match_replay(sequences(["a", ""]), replay("a", "b"))
    assert [tuple(row.values()) for row in found.matches.to_pylist()] == [(0, 0, 0, 0, 0), (1, 0, 1, 1, 0)]


@pytest.mark.parametrize(("nodes", "ids"), [((9, 3), [1, 0]), ((9, None), [0, 1])])
def test_nodes_go_before_time(nodes: Sequence[int | None], ids: list[int]) -> None:
    """Streams of a graph overlap: nodes are numbered as they were captured. Where one has none, time decides."""
    found = match_replay(sequences(["", ""]), replay("a", "b", nodes=nodes))
    assert found.matches.column("id").to_pylist() == ids


@pytest.mark.parametrize(
    ("captured", "tokens", "works", "replayed", "expected"),
    [
        ([["a"]], (), (), 16, "no capture has as many kernels"),
        ([["a", "c"]], (), (), 16, "the captures' kernels have other names"),
        ([["", ""], ["", ""]], (), (), 16, "several captures fit, and their work differs"),
        ([["", ""], ["", ""]], (), (4, 4), 16, 0),
        ([["", ""], ["", ""]], (16, 32), (), None, "several captures fit, and their work differs"),
        ([["", ""], ["", ""], ["", ""]], (32, 8, 16), (), 9, 2),
        ([["", ""], ["", ""]], (8, 16), (), 17, "every capture is of a smaller batch"),
        ([["", ""], ["", ""]], (8, None), (), 4, "several captures fit, and their work differs"),
        ([["a", "b"], ["c", "d"]], (), (), 16, 0),
        ([["a", "_Z1bPfS_"]], (), (), 16, 0),  # the runtime's own text is mangled
    ],
)
def test_which_capture(
    captured: list[list[str]],
    tokens: Sequence[int | None],
    works: Sequence[int],
    replayed: int | None,
    expected: object,
) -> None:
    found = match_replay(sequences(*captured, tokens=tokens, works=works), replay("a", "b", tokens=replayed))
    if isinstance(expected, str):
        assert found.refused.to_pylist() == [{"launch_id": 5, "reason": expected}]
        assert found.matches.num_rows == 0
    else:
        assert set(found.matches.column("sequence").to_pylist()) == {expected}
        assert found.refused.num_rows == 0


def test_many_replays() -> None:
    """Each is matched by itself; rows of no launch are not asked about."""
    tables = [replay("a", "b", launch=1), replay("a", launch=2), replay("a", "b", launch=3)]
    tables = [
        table.set_column(0, "id", pa.array([10 * at + 1, 10 * at][: len(table)])) for at, table in enumerate(tables)
    ]
    loose = replay("a").set_column(1, "launch_id", pa.array([None], INT))
    found = match_replay(sequences(["a", "b"]), pa.concat_tables([*tables, loose]))
    pairs = [(row["id"], row["position"]) for row in found.matches.to_pylist()]
    assert sorted(pairs) == [(0, 0), (1, 1), (20, 0), (21, 1)]
    assert found.refused.column("launch_id").to_pylist() == [2]
