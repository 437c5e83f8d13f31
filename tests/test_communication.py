"""communication: rows in, table out; waiting and transfer as the simulator knows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracekit
from tests.communication_rows import GEMM, NCCL, OWN, Call, Rows, gemm, job, recorded
from tests.event_rows import kernel, write_trace
from tests.simulator import Run, simulate
from tracekit.analysis import Result
from tracekit.footer import Footer
from tracekit.work_collective import kind_of

MEASURED = ("rank", "count", "bytes", "total_ns", "wait_ns", "transfer_ns", "exposed_ns")


def analyze(path: Path, rows: Rows) -> Result:
    with tracekit.open(write_trace(path / "trace.parquet", rows)) as trace:
        return trace.analyze("communication")


def table(result: Result, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in result.table.to_pylist()]


# ---- nothing ---------------------------------------------------------------------------------------------------------


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    result = analyze(tmp_path, [])
    assert (result.table.num_rows, result.summary, result.findings) == (0, (), ())
    assert result.coverage.reason.startswith("nothing was recorded")


def test_one_device_that_does_not_communicate(tmp_path: Path) -> None:
    rows = [gemm(0, 0, 10), {"kind": "graph", "name": "cudaGraphLaunch", "ts": 20, "dur": 5}]
    result = analyze(tmp_path, rows)
    assert (result.table.num_rows, result.findings) == (0, ())
    assert result.summary == (
        {
            "rank": 0,
            "device": 0,
            "span_ns": 25,
            "busy_ns": 15,
            "communication_ns": 0,
            "exposed_ns": 0,
            "wait_ns": None,
            "transfer_ns": None,
            "by_phase": [],
        },
    )
    assert result.coverage.reason == (
        "no communication in this trace; 1 graph replay recorded as one block may hold communication (record graphs by "
        "node)"
    )


# ---- what is measured ------------------------------------------------------------------------------------------------


def test_an_all_reduce_of_two_ranks(tmp_path: Path) -> None:
    """Rank 1 comes 30 ns late; 20 ns are left for 2 kB, of which each link carries 2 * 1/2. On rank 0 a GEMM covers 10
    ns of the waiting.
    """
    rows = recorded([Call(0, 100, 50), Call(1, 130, 20)], gemm(0, 90, 20))
    result = analyze(tmp_path, rows)
    common = {
        "phase": "unknown",
        "group": "1",
        "group_size": 2,
        "collective": "all_reduce",
        "subcategory": "collective",
        "dtype": "BFloat16",
        "message_to": 2048,
        "count": 1,
        "bytes": 2048,
        "matched": 1,
        "transfer_ns": 20,
        "bus_bandwidth": 102.4e9,
        "bandwidth_over": "transfer",
    }
    times = (
        {"total_ns": 50, "alone_ns": 50, "exposed_ns": 40, "wait_ns": 30, "exposed_wait_ns": 20},
        {"total_ns": 20, "alone_ns": 20, "exposed_ns": 20, "wait_ns": 0, "exposed_wait_ns": 0},
    )
    assert result.table.to_pylist() == [
        {"rank": rank, "device": rank, "example_id": 2 + 2 * rank} | common | times[rank] for rank in (0, 1)
    ]
    assert [(row["communication_ns"], row["exposed_ns"], row["wait_ns"]) for row in result.summary] == [
        (50, 40, 30),
        (20, 20, 0),
    ]
    assert (result.coverage.explained_ns, result.coverage.total_ns, result.coverage.reason) == (70, 70, "")


def test_sizes_and_bandwidth_by_the_convention_of_nccl_tests(tmp_path: Path) -> None:
    """Over 4 ranks and 1000 ns, in GB/s: what a rank gives, the larger side, and 2 * 3/4, 3/4 or all of that side."""
    calls = [
        ("allreduce", 4096, 4096),
        ("_allgather_base", 1024, 4096),
        ("_reduce_scatter_base", 4096, 1024),
        ("all_to_all", 4096, 4096),
        ("broadcast", 4096, 4096),
        ("send", 4096, 4096),
    ]
    one = [
        Call(0, 2000 * at, 1000, given, name, out, members=(0, 1, 2, 3)) for at, (name, given, out) in enumerate(calls)
    ]
    found = table(analyze(tmp_path, recorded(one)), "collective", "bytes", "message_to", "bus_bandwidth")
    assert sorted(found) == [
        ("all_gather", 2048, 8192, 6.144e9),
        ("all_reduce", 8192, 8192, 12.288e9),
        ("all_to_all", 8192, 8192, 6.144e9),
        ("broadcast", 8192, 8192, 8.192e9),
        ("reduce_scatter", 8192, 8192, 6.144e9),
        ("send", 8192, 8192, 8.192e9),
    ]


def test_what_was_not_recorded_is_not_known(tmp_path: Path) -> None:
    """An engine's own all-reduce has a name; its size is that of its op's tensor, if shapes were recorded."""
    rows = recorded([Call(0, 0, 10, group="", name=OWN)])
    shaped = {"name": "symm_mem::multimem_all_reduce_", "shapes": "[[512],[],[]]", "dtypes": '["c10::BFloat16","",""]'}
    rows += [{"kind": "op", "ts": 20, "dur": 1, **shaped}, kernel(20, 10, name="multimem_all_reduce_kernel", op_id=3)]
    found = table(
        analyze(tmp_path, rows),
        "group",
        "collective",
        "subcategory",
        "bytes",
        "wait_ns",
        "transfer_ns",
        "bus_bandwidth",
    )
    assert found == [
        (None, "all_reduce", "custom_allreduce", None, None, None, None),
        (None, "all_reduce", "custom_allreduce", 1024, None, None, None),
    ]


def test_numbers_and_texts_that_cannot_be(tmp_path: Path) -> None:
    rows = recorded([Call(0, 0, 10, elements=2**62), Call(0, 20, 10, elements=-5), Call(0, 40, 10, group="[bold]'")])
    rows[4]["args"] = '{"Process Group Ranks":'
    found = table(analyze(tmp_path, rows), "group", "collective", "bytes", "message_to", "bus_bandwidth", "wait_ns")
    assert found == [("1", "all_reduce", None, None, None, None), ("[bold]'", "all_reduce", 2048, 2048, 204.8e9, None)]


def test_collectives_are_named_as_the_work_model_names_them(tmp_path: Path) -> None:
    said = ["allreduce", "allreduce_coalesced", "_allgather_base", "all_gather_into_tensor_coalesced", "all_gather"]
    said += ["reduce_scatter_tensor_coalesced", "_reduce_scatter_base", "all_to_allv", "alltoall_base", "gather"]
    said += ["scatter", "broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "send", "recv", "barrier", "wait"]
    with tracekit.open(write_trace(tmp_path / "trace.parquet", [])) as trace:
        query = "SELECT collective_kind(replace(lower(one), '_', '')) AS kind FROM (SELECT unnest($said) AS one)"
        trace.macro("communication")
        kinds = [row["kind"] for row in trace.sql(query, {"said": said}).to_pylist()]
    assert kinds == [kind_of(one) or "other" for one in said]


NCCL_SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def test_the_ops_around_tell_what_the_kernel_does_not(tmp_path: Path) -> None:
    rows = [
        {"kind": "op", "name": "c10d::alltoall_base_", "ts": 0, "dur": 9},
        {"kind": "op", "name": "record_param_comms", "ts": 1, "dur": 5, "parent_id": 1},
        kernel(10, 5, name=NCCL_SEND, op_id=2),
        kernel(20, 5, name=NCCL_SEND),
        kernel(30, 5, name="void deep_ep::internode_ll::dispatch<true>(void*)"),
    ]
    assert sorted(table(analyze(tmp_path, rows), "collective")) == [("all_to_all",), ("dispatch",), ("send",)]


RUNS = {
    "eager, with a straggler": Run(ranks=4, streams=2, straggler_percent=20),
    "full graph": Run(ranks=2, mode="full_graph", straggler_percent=10),
    "piecewise graph": Run(ranks=3, mode="piecewise_graph", streams=3),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_times_are_those_of_the_simulator(tmp_path: Path, run: Run) -> None:
    """In graphs no sizes are recorded; who is in a group is known all the same, as all ranks of the job are here."""
    truth = simulate(run, tmp_path / "ranks")
    with tracekit.open(tmp_path / "ranks") as trace:
        result = trace.analyze("communication")
    sums: dict[int, dict[str, Any]] = {}
    for row in result.table.to_pylist():
        of_rank = sums.setdefault(row["rank"], dict.fromkeys(MEASURED[1:], 0))
        for name in MEASURED[1:]:
            known = None not in (row[name], of_rank[name])
            of_rank[name] = of_rank[name] + row[name] if known else None
    in_graphs = run.mode != "eager"
    assert {rank: tuple(found.values()) for rank, found in sums.items()} == {
        true.rank: tuple(None if name == "bytes" and in_graphs else getattr(true, name) for name in MEASURED[1:])
        for true in truth.collectives
    }
    assert result.coverage.explained_ns == result.coverage.total_ns == sum(true.total_ns for true in truth.collectives)
    assert [(row["exposed_ns"], row["wait_ns"]) for row in result.summary] == [
        (true.exposed_ns, true.wait_ns) for true in truth.collectives
    ]


# ---- exposed time ----------------------------------------------------------------------------------------------------

# Many small recordings in one file: each (rank, device) is one.
PLACE = st.tuples(st.integers(0, 5), st.integers(0, 1))
ROW = st.tuples(PLACE, st.integers(0, 60), st.integers(0, 12), st.booleans())


@settings(deadline=None, max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ROW, max_size=200))
def test_exposed_time_against_painted_nanoseconds(tmp_path: Path, drawn: list[Any]) -> None:
    rows = [
        kernel(ts, dur, name=NCCL if sends else GEMM, rank=rank, device=device)
        for (rank, device), ts, dur, sends in drawn
    ]
    expected = []
    for place in sorted({row[0] for row in drawn}):
        sending = [set(range(ts, ts + dur)) for where, ts, dur, sends in drawn if where == place and sends]
        other = [set(range(ts, ts + dur)) for where, ts, dur, sends in drawn if where == place and not sends]
        painted = set().union(*sending)
        expected.append((*place, len(painted), len(painted - set().union(*other))))
    result = analyze(tmp_path, rows)
    columns = ("rank", "device", "communication_ns", "exposed_ns")
    assert [tuple(row[column] for column in columns) for row in result.summary] == expected


def test_parts_of_the_time_add_up(tmp_path: Path) -> None:
    rows = recorded([Call(0, 100, 50), Call(1, 130, 20), Call(0, 200, 20), Call(1, 190, 30)], gemm(0, 90, 20))
    names = ("total_ns", "alone_ns", "exposed_ns", "wait_ns", "exposed_wait_ns", "transfer_ns")
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        whole = {name: sum(trace.macro("communication")[name].to_pylist()) for name in names}
        parts = dict.fromkeys(names, 0)
        for since, until in ((None, 105), (105, 137), (137, None)):
            with trace.only(since_ns=since, until_ns=until) as part:
                for name in names:
                    parts[name] += sum(part.macro("communication")[name].to_pylist())
    assert parts == whole == dict(zip(names, (120, 120, 110, 40, 30, 80), strict=True))


def test_who_looks_at_one_rank_sees_for_whom_it_waits(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.parquet", recorded([Call(0, 100, 50), Call(1, 130, 20)]))
    with tracekit.open(path) as trace, trace.only(rank=0) as part:
        result = part.analyze("communication")
        (call,) = part.sql("SELECT state, last_rank, exposed_wait_ns FROM collective_calls()").to_pylist()
    assert table(result, "rank", "wait_ns", "transfer_ns") == [(0, 30, 20)]
    assert call == {"state": "matched", "last_rank": 1, "exposed_wait_ns": 30}


# ---- what is one collective ------------------------------------------------------------------------------------------


def states(path: Path, rows: Rows, footer: Footer | None = None) -> list[tuple[str, int | None]]:
    with tracekit.open(write_trace(path / "trace.parquet", rows, footer)) as trace:
        trace.macro("communication")
        found = trace.sql("SELECT state, wait_ns FROM collective_calls() ORDER BY id").to_pylist()
    return [(row["state"], row["wait_ns"]) for row in found]


def of_both(*times: tuple[int, int], **more: Any) -> list[Call]:
    """The same collective on two ranks: starts of each; both end 20 after the later one."""
    return [Call(rank, start, max(pair) + 20 - start, **more) for pair in times for rank, start in enumerate(pair)]


NONE = None
GROUPS: dict[str, list[tuple[Call, str, int | None]]] = {
    "all ranks": [(Call(0, 0, 50), "matched", 30), (Call(1, 30, 20), "matched", 0)],
    "a rank is missing": [(Call(0, 0, 50), "ranks", NONE)],
    "two groups of one name": [
        (Call(0, 0, 50), "matched", 30),
        (Call(1, 30, 20), "matched", 0),
        (Call(2, 10, 40, members=(2, 3)), "matched", 0),
        (Call(3, 0, 50, members=(2, 3)), "matched", 10),
    ],
    "one recording began late": [
        (Call(0, 0, 20), "edge", NONE),
        (Call(0, 100, 20), "matched", 0),
        (Call(1, 90, 30), "matched", 10),
    ],
    "one recording ended early": [
        (Call(0, 0, 20), "matched", 0),
        (Call(1, 0, 20), "matched", 0),
        (Call(1, 90, 20), "edge", NONE),
    ],
    "a record was lost": [
        (Call(0, 0, 20), "order", NONE),
        (Call(0, 90, 20), "order", NONE),
        (Call(1, 0, 20), "order", NONE),
        (Call(1, 50, 20), "order", NONE),
        (Call(1, 90, 20), "order", NONE),
    ],
    "two sizes in two streams": [
        (Call(0, 0, 29), "matched", 9),
        (Call(0, 5, 20, elements=64), "matched", 0),
        (Call(1, 2, 23, elements=64), "matched", 3),
        (Call(1, 9, 20), "matched", 0),
    ],
    "clocks far apart": [(Call(0, 0, 20), "edge", NONE), (Call(1, 30_000, 20), "edge", NONE)],
    "clocks apart": [(Call(0, 0, 60_000), "clocks", NONE), (Call(1, 30_000, 60_000), "clocks", NONE)],
    "shifted by one": [
        (Call(0, 0, 60_000), "clocks", NONE),
        (Call(0, 100_000, 60_000), "clocks", NONE),
        (Call(1, 59_000, 60_000), "clocks", NONE),
        (Call(1, 159_000, 60_000), "clocks", NONE),
    ],
    "nobody waits for all": [
        (Call(0, 0, 50, collective="broadcast"), "kind", NONE),
        (Call(1, 30, 20, collective="broadcast"), "kind", NONE),
    ],
}


def test_which_kernels_are_one_collective(tmp_path: Path) -> None:
    calls = [(replace(call, group=name), state) for name, group in GROUPS.items() for call, *state in group]
    assert states(tmp_path, recorded([call for call, _ in calls])) == [tuple(state) for _, state in calls]


@pytest.mark.parametrize(
    ("others", "world", "expected"),
    [
        ([], 0, [("group", None)] * 2),
        ([], 2, [("matched", 30), ("matched", 0)]),
        ([], 4, [("ranks", None)] * 2),
        ([Call(0, 90, 5, members=(0, 9)), Call(2, 90, 5), Call(3, 90, 5)], 4, [("group", None)] * 2),
    ],
    ids=["job not known", "all of the job", "not all of the job", "smaller groups are there"],
)
def test_a_group_that_was_not_recorded_is_all_of_the_job(
    tmp_path: Path, others: list[Call], world: int, expected: list[tuple[str, int | None]]
) -> None:
    rows = recorded([*of_both((0, 30), group=""), *others])
    assert states(tmp_path, rows, job(rows, world) if world else None)[:2] == expected


def test_why_it_cannot_be_told(tmp_path: Path) -> None:
    rows = recorded([Call(0, 0, 60_000), Call(1, 30_000, 60_000), Call(0, 90_000, 10, group="5", members=(0, 9))])
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        result = trace.analyze("communication")
        assert trace.analyze("communication", max_skew_ns=30_000).coverage.explained_ns == 120_000
    assert (result.coverage.explained_ns, result.coverage.total_ns) == (0, 120_010)
    assert result.coverage.reason == (
        "waiting and transfer cannot be told apart of 120 us: clocks of the ranks differ by up to 30.0 us: synchronise "
        "them, or record ranks of one machine; of 0.010 us: ranks of their group are not in this trace: record all "
        "ranks at one time and convert all together"
    )
