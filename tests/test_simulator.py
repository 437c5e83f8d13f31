"""The simulator against definitions too naive to be wrong: its text read by json, its times painted one by one."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import zstandard

from tests.simulator import H100, LLAMA_8B, Compress, Layout, Plant, Run, Truth, main, simulate, write_benchmark
from tests.simulator_rows import BASE_NS
from tests.simulator_text import Document, Number, Row
from tests.simulator_truth import Gap

Event = dict[str, Any]
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

DEEP = replace(LLAMA_8B, layers=4)  # the device is slower than the host: gaps come from what is planted
RUNS = {
    "eager": Run(with_stack=True, record_shapes=True, profile_memory=True),
    "deep": Run(model=DEEP, batch=16, prompt=32),
    "full_graph": Run(mode="full_graph", pdl_overlap_ns=600),
    "piecewise_graph": Run(mode="piecewise_graph", steps=4, prefill_steps=2, with_stack=True),
    "streams": Run(model=DEEP, streams=3, batch=8),
    "kernel_gap": Run(model=DEEP, device=replace(H100, kernel_gap_ns=1_200)),
    "two_ranks": Run(model=DEEP, ranks=2, streams=2, straggler_percent=10, batch=8),
    "graph_ranks": Run(mode="full_graph", ranks=2, with_stack=True, time_unit="absolute"),
    "launch_bound": Run(plant=Plant(launch_bound_ns=40_000), with_stack=True),
    "sync": Run(model=DEEP, plant=Plant(syncs_per_step=2, sync_refill_ns=80_000)),
    "between_steps": Run(model=DEEP, steps=4, plant=Plant(between_steps_ns=300_000)),
    "unattributed": Run(model=DEEP, plant=Plant(holes_per_step=2, hole_ns=200_000)),
    "no_final_sync": Run(model=DEEP, steps=4, final_sync=False, plant=Plant(between_steps_ns=50_000)),
    "everything": Run(
        model=DEEP,
        mode="piecewise_graph",
        streams=2,
        plant=Plant(5_000, syncs_per_step=1, between_steps_ns=400_000, holes_per_step=1, hole_ns=250_000),
    ),
    "asynchronous": Run(mode="full_graph", steps=5, streams=3, asynchronous=True, with_stack=True),
}


def load(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return document


def recorded(run: Run, folder: Path) -> tuple[Truth, list[list[Event]]]:
    """The truth, and each rank's events with ts, dur and end in whole ns."""
    truth = simulate(run, folder / "trace")
    files = [folder / "trace"] if run.ranks == 1 else sorted((folder / "trace").iterdir())
    return truth, [events_of(load(file.read_text())) for file in files]


def events_of(document: dict[str, Any]) -> list[Event]:
    events: list[Event] = document["traceEvents"]
    for event in events:
        event["ts"], event["dur"] = nanoseconds(event["ts"]), nanoseconds(event.get("dur", Decimal(0)))
        event["end"] = event["ts"] + event["dur"]
    return events


def nanoseconds(us: Decimal) -> int:
    assert us * 1000 == int(us * 1000)
    return int(us * 1000)


def select(events: Iterable[Event], *categories: str) -> list[Event]:
    return [event for event in events if event.get("cat") in categories and event["ph"] == "X"]


@pytest.fixture(params=RUNS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Run, Truth, list[list[Event]]]:
    run = RUNS[request.param]
    return run, *recorded(run, tmp_path)


def test_no_steps(tmp_path: Path) -> None:
    truth, [events] = recorded(Run(steps=0), tmp_path)
    device = truth.devices[0]
    assert (device.span_ns, device.busy_ns, device.idle_ns, device.gaps, truth.steps) == (0, 0, 0, (), ())
    assert [event["name"] for event in select(events, "cuda_runtime")] == ["cudaDeviceSynchronize"]


def test_busy_and_idle_are_what_painting_every_nanosecond_gives(case: tuple[Run, Truth, list[list[Event]]]) -> None:
    _, truth, ranks = case
    for rank, (device, events) in enumerate(zip(truth.devices, ranks, strict=True)):
        work = select(events, *DEVICE_WORK)
        first = min(event["ts"] for event in work)
        painted = np.zeros(max(event["end"] for event in work) - first, bool)
        added = 0
        for event in sorted(work, key=lambda event: (event["ts"], -event["dur"])):
            part = painted[event["ts"] - first : event["end"] - first]
            added += int((~part).sum())
            part[:] = True
        assert (device.rank, device.ts, device.span_ns) == (rank, first, len(painted))
        assert device.busy_ns == painted.sum() == added == sum(device.exclusive_ns.values())
        assert device.idle_ns == (~painted).sum() == sum(device.idle_by_cause.values())
        assert device.idle_by_cause == sums_by_cause(device.gaps)
        assert sum(device.total_ns.values()) == sum(event["dur"] for event in work)
        for gap in device.gaps:
            part = painted[gap.ts - first : gap.ts - first + gap.dur]
            assert gap.dur == len(part) > 0 and not part.any()
            part[:] = True
        assert painted.all()


def sums_by_cause(gaps: Iterable[Gap]) -> dict[str, int]:
    return {cause: sum(gap.dur for gap in gaps if gap.cause == cause) for cause in {gap.cause for gap in gaps}}


def test_links_resolve(case: tuple[Run, Truth, list[list[Event]]]) -> None:
    _, truth, ranks = case
    links = launches = graphs = 0
    for events in ranks:
        calls = {event["args"]["correlation"]: event for event in select(events, "cuda_runtime", "cuda_driver")}
        assert len(calls) == len(select(events, "cuda_runtime", "cuda_driver"))
        ops = {event["args"]["External id"]: event for event in select(events, "cpu_op")}
        flows = Counter((event["ph"], event["id"], event["pid"]) for event in events if event.get("cat") == "ac2g")
        started = set()
        for event in select(events, *DEVICE_WORK):
            call = calls[event["args"]["correlation"]]
            started.add(event["args"]["correlation"])
            graph = "graph node id" in event["args"]
            assert event["ts"] >= call["end"] + H100.launch_latency_ns
            assert graph == (call["name"] == "cudaGraphLaunch")
            assert event["args"].get("External id") == call["args"].get("External id")
            assert flows["s", event["args"]["correlation"], call["pid"]] == 1
            assert flows["f", event["args"]["correlation"], event["pid"]] >= 1
            graphs += graph
        for call in calls.values():
            around = [op for op in ops.values() if op["ts"] < call["ts"] and call["end"] < op["end"]]
            innermost = min(around, key=lambda op: op["dur"])["args"]["External id"] if around else None
            assert call["args"].get("External id") == innermost
        links += len(select(events, *DEVICE_WORK))
        launches += len(started)
    assert (truth.links, truth.launches, truth.graph_rows) == (links, launches, graphs)


def test_host_rows_nest(case: tuple[Run, Truth, list[list[Event]]]) -> None:
    for events in case[2]:
        nested(events)


def nested(events: list[Event]) -> None:
    """Two rows of a host thread are apart, or one is strictly inside the other; Python parents are the innermost."""
    rows = select(events, "cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver")
    stack: list[Event] = []
    for event in sorted(rows, key=lambda event: event["ts"]):
        while stack and stack[-1]["end"] < event["ts"]:
            stack.pop()
        assert not stack or (stack[-1]["ts"] < event["ts"] and event["end"] < stack[-1]["end"])
        if event["cat"] == "python_function":
            parents = [row["args"]["Python id"] for row in stack if row["cat"] == "python_function"]
            assert event["args"]["Python parent id"] == (parents[-1] if parents else None)
        stack.append(event)


def test_counts_and_steps(case: tuple[Run, Truth, list[list[Event]]]) -> None:
    run, truth, ranks = case
    assert len(truth.steps) == run.steps * run.ranks
    for rank, events in enumerate(ranks):
        counts = Counter(f"{event['ph']} {event.get('cat', '')}".strip() for event in events)
        assert truth.events[rank] == counts
        indexes = [event["args"]["Ev Idx"] for event in events if "Ev Idx" in event.get("args", {})]
        assert sorted(indexes) == list(range(len(indexes)))
        notes = [event for event in select(events, "user_annotation") if event["name"].startswith("execute_")]
        assert [(event["ts"], event["dur"], event["name"]) for event in notes] == [
            (
                step.ts,
                step.dur,
                f"execute_context_{step.prefill_requests}({step.prefill_tokens})"
                f"_generation_{step.decode_requests}({step.decode_tokens})",
            )
            for step in truth.steps
            if step.rank == rank
        ]


def test_a_deep_model_is_not_launch_bound(tmp_path: Path) -> None:
    truth, _ = recorded(RUNS["deep"], tmp_path)
    assert max(gap.dur for gap in truth.devices[0].gaps if gap.cause == "launch_bound") < 10_000


def test_collectives_end_together(tmp_path: Path) -> None:
    run = RUNS["two_ranks"]
    truth, ranks = recorded(run, tmp_path)
    named = [[event for event in select(events, "kernel") if "nccl" in event["name"]] for events in ranks]
    assert [event["end"] for event in named[0]] == [event["end"] for event in named[1]]
    for rank, collective in enumerate(truth.collectives):
        waits = [max(a["ts"], b["ts"]) - (a, b)[rank]["ts"] for a, b in zip(*named, strict=True)]
        others = [event for event in select(ranks[rank], *DEVICE_WORK) if "nccl" not in event["name"]]
        alone = union([*others, *named[rank]]) - union(others)
        assert (collective.count, collective.wait_ns, collective.exposed_ns) == (len(waits), sum(waits), alone)
        assert collective.total_ns == sum(event["dur"] for event in named[rank])
        assert 0 < collective.exposed_ns < collective.total_ns
    assert truth.collectives[0].wait_ns > truth.collectives[1].wait_ns  # rank 1 straggles
    per_step = run.model.layers * 3 + 1  # attention's, the MLP's in two halves, and the logits
    assert truth.collectives[0].count == per_step * run.steps
    args = named[0][0]["args"]
    assert [args[key] for key in ("Collective name", "Group size", "In msg nelems")] == [
        "allreduce",
        2,
        8 * 64 * DEEP.hidden,
    ]


def union(events: list[Event]) -> int:
    return len({ns for event in events for ns in range(event["ts"], event["end"])})


def test_layouts_say_the_same(tmp_path: Path) -> None:
    texts = []
    for layout in LAYOUTS:
        simulate(replace(RUNS["eager"], ranks=2, layout=layout), tmp_path / layout)
        texts.append((tmp_path / layout / "rank1.pt.trace.json").read_text())
    assert len(set(texts)) == len(LAYOUTS)
    assert all(load(text) == load(texts[0]) for text in texts)
    assert json.dumps(json.loads(texts[-1]), indent=2) == re.sub(r"(\.\d*?)0+(?=[,\n])", r"\1", texts[-1]).replace(
        ".,", ".0,"
    )


def test_text_of_a_row() -> None:
    row = Row(
        "X", "kernel", "k<1>", 0, 7, 1_234_567, 89, {"External id": 5, "warps per SM": Number("0.25"), "grid": [1, 2]}
    )
    assert {layout: Document(layout, {}, {}).row(row) for layout in LAYOUTS} == {
        "kineto": '  {\n    "ph": "X", "cat": "kernel", "name": "k<1>", "pid": 0, "tid": 7,\n'
        '    "ts": 1234.567, "dur": 0.089,\n    "args": {\n'
        '      "External id": 5,      "warps per SM": 0.25,      "grid": [1, 2]\n    }\n  }',
        "kineto_2026": '\n  {\n    "ph": "X",\n    "cat": "kernel",\n    "name": "k<1>",\n    "pid": 0,\n'
        '    "tid": 7,\n    "ts": 1234.567,\n    "dur": 0.089\n    ,\n    "args": {\n'
        '      "External id": 5, "warps per SM": 0.25, "grid": [1, 2]\n    }\n  }',
        "minified": '{"ph":"X","cat":"kernel","name":"k<1>","pid":0,"tid":7,"ts":1234.567,"dur":0.089,'
        '"args":{"External id":5,"warps per SM":0.25,"grid":[1,2]}}',
        "indent": '    {\n      "ph": "X",\n      "cat": "kernel",\n      "name": "k<1>",\n      "pid": 0,\n'
        '      "tid": 7,\n      "ts": 1234.567,\n      "dur": 0.089,\n      "args": {\n        "External id": 5,\n'
        '        "warps per SM": 0.25,\n        "grid": [\n          1,\n          2\n        ]\n      }\n    }',
    }


def test_absolute_and_relative_time_are_the_same_time(tmp_path: Path) -> None:
    moments = []
    for unit in ("relative", "absolute"):
        simulate(replace(RUNS["eager"], time_unit=unit), tmp_path / unit)
        text = (tmp_path / unit).read_text()
        assert len(re.findall(r'"ts": \d+\.\d{3}[,\n]', text)) == len(re.findall('"ts"', text))
        document = load(text)
        base = document.get("baseTimeNanoseconds", 0)
        moments.append([base + event["ts"] for event in events_of(document)])
    assert moments[0] == moments[1]
    assert min(moments[0]) > BASE_NS


def test_secrets_are_planted_when_asked(tmp_path: Path) -> None:
    truth = simulate(Run(secrets=True), tmp_path / "with")
    text = (tmp_path / "with").read_text()
    assert len(truth.secrets) == 5
    assert all(text.count(secret) == 1 for secret in truth.secrets)
    assert simulate(Run(), tmp_path / "without").secrets == ()
    assert not any(secret in (tmp_path / "without").read_text() for secret in truth.secrets)


def test_a_seed_decides_everything(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        simulate(Run(seed=seed), tmp_path / name)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c


def test_truth_as_json(tmp_path: Path) -> None:
    """The command line writes what simulate returns."""
    main(
        [
            "trace",
            str(tmp_path / "t.json"),
            "--mode",
            "full_graph",
            "--steps",
            "2",
            "--syncs-per-step",
            "1",
            "--secrets",
        ]
    )
    truth = simulate(Run(mode="full_graph", steps=2, plant=Plant(syncs_per_step=1), secrets=True), tmp_path / "u.json")
    assert (tmp_path / "t.json").read_text() == (tmp_path / "u.json").read_text()
    written = json.loads((tmp_path / "t.json.truth.json").read_text())
    assert written == json.loads(json.dumps(truth.to_json()))
    assert [Gap(**gap) for gap in written["devices"][0]["gaps"]] == list(truth.devices[0].gaps)


@pytest.mark.parametrize("events", [1, 5_000, 40_000])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_benchmark_files(events: int, layout: Layout, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    write_benchmark(path, events, layout)
    rows = events_of(load(path.read_text()))
    assert abs(len(rows) - events) < 3_500
    host = [event for event in rows if event.get("cat") in ("cpu_op", "user_annotation", "python_function")]
    calls = select(rows, "cuda_runtime", "cuda_driver")
    for key, part in (
        ("External id", select(rows, "cpu_op", "user_annotation")),
        ("correlation", calls),
        ("Ev Idx", host),
    ):
        numbers = [event["args"][key] for event in part]
        assert len(set(numbers)) == len(numbers)
    known = {event["args"]["correlation"]: event["end"] for event in calls}
    assert all(known[event["args"]["correlation"]] < event["ts"] for event in select(rows, *DEVICE_WORK))
    assert {event["id"] for event in rows if event["ph"] in "sf"} == set(known)
    nested(rows)
    span = select(rows, "Trace")[0]
    assert all(span["ts"] <= event["ts"] and event["end"] <= span["end"] for event in rows if event["ph"] == "X")


@pytest.mark.parametrize("compress", get_args(Compress))
def test_compressed_benchmark(compress: Compress, tmp_path: Path) -> None:
    write_benchmark(tmp_path / "plain", 20_000, seed=3)
    write_benchmark(tmp_path / "packed", 20_000, seed=3, compress=compress)
    data, packed = (tmp_path / "plain").read_bytes(), (tmp_path / "packed").read_bytes()
    if compress == "gz":
        assert gzip.decompress(packed) == data
    else:
        assert zstandard.ZstdDecompressor().decompressobj().decompress(packed) == data
    assert len(packed) < len(data) // 5
