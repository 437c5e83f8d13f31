"""explain: the rows of a finding and the code around them, and arithmetic that holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.arithmetic import check, check_line
from tests.event_rows import annotation, footer_of, kernel, launch, op, write_trace
from tests.simulator import Plant, Run, simulate
from tracekit.analysis import Finding
from tracekit.errors import UsageError
from tracekit.evidence import EvidenceRow, Frame, evidence_of
from tracekit.explain import explain
from tracekit.trace import Trace

US, MS = 1_000, 1_000_000
ADVANCE = "/opt/venv/lib/python3/site-packages/vllm/logits.py(57): advance"
Row = dict[str, Any]


def python(name: str, ts: int, dur: int, **columns: Any) -> Row:
    return {"kind": "python", "name": name, "ts": ts, "dur": dur, **columns}


def slow_steps(count: int = 4) -> list[Row]:
    """Decode steps of 2 ms, of which the device works for 1 and then waits for a Python function of 0.9 ms."""
    rows: list[Row] = []
    for start in range(0, count * 2 * MS, 2 * MS):
        at = len(rows) + 1
        rows += [
            annotation("step[DECODE bs=4]", start, 1_950 * US),
            python("serve.py(3): loop", start, 1_940 * US, parent_id=at),
            python(ADVANCE, start, 900 * US, parent_id=at + 1),
            op(start + 910 * US, 20 * US, parent_id=at + 1),
            launch(start + 912 * US, 10 * US, parent_id=at + 3, op_id=at + 3),
            kernel(start + 920 * US, 1 * MS, launch_id=at + 4, op_id=at + 3, name="nvjet<&>"),
        ]
    return rows


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    path = write_trace(tmp_path_factory.mktemp("slow") / "trace.parquet", slow_steps())
    with tracekit.open(path) as trace:
        yield trace


# ---- the rows and the code around them -------------------------------------------------------------------------------


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    with tracekit.open(write_trace(tmp_path / "trace.parquet", [])) as trace:
        assert evidence_of(trace, []) == ()
        assert evidence_of(trace, [7]) == ()
        with pytest.raises(UsageError, match=r"no finding 'idle_gaps\.1'; idle_gaps has no findings here"):
            trace.explain("idle_gaps.1")


def test_whole_explanation(slow: Trace) -> None:
    steady = "FROM step_time() WHERE rank = 0 AND device = 0 AND phase = 'decode' AND kind = 'steady'"
    assert str(explain(slow, "idle_gaps.1", name="my trace.parquet")).splitlines() == [
        "idle_gaps.1: python: host code keeps the device waiting, 940 us per decode step, 47.0% of its time",
        "critical, saves 0 to 2.82 ms in all",
        "question: Why does the GPU idle?",
        "3 gaps, the longest 940 us, in 3 steps; mostly in vllm/logits.py(57): advance (2.70 ms);",
        "serve.py(3): loop (60.0 us). These gaps are too long to be the price of launching: Python code runs",
        "in them. Tracing slows the host, so the true figure is lower.",
        "Arithmetic",
        "  idle: tracekit sql 'my trace.parquet' \"SELECT sum(dur) FROM idle_gaps() WHERE cause = 'python' AND rank = "
        f'0 AND device = 0 AND step IN (SELECT step {steady})" = 2,820,000 ns',
        "  of each step: 2,820,000 ns / 3 steps = 940,000 ns",
        "  time of the steps: tracekit sql 'my trace.parquet' \"SELECT sum(busy_ns + idle_ns + gap_before_ns) "
        f'{steady}" = 6,000,000 ns',
        "  share: 2,820,000 ns / 6,000,000 ns = 47.0%",
        "  saving: at least 0 ns, at most 2,820,000 ns",
        "Evidence (8 rows)",
        "  id  kind      start    takes  step  where              launch  name",
        "  12  kernel  2.92 ms  1.00 ms     1  device 0 stream 7      11  nvjet<&>",
        "  18  kernel  4.92 ms  1.00 ms     2  device 0 stream 7      17  nvjet<&>",
        "  24  kernel  6.92 ms  1.00 ms     3  device 0 stream 7      23  nvjet<&>",
        "   9  python  2.00 ms   900 us     1  thread 1                   vllm/logits.py(57): advance",
        "  15  python  4.00 ms   900 us     2  thread 1                   vllm/logits.py(57): advance",
        "  21  python  6.00 ms   900 us     3  thread 1                   vllm/logits.py(57): advance",
        "   2  python     0 us  1.94 ms     0  thread 1                   serve.py(3): loop",
        "   8  python  2.00 ms  1.94 ms     1  thread 1                   serve.py(3): loop",
        "  comes from: vllm/logits.py(57): advance (3 rows)",
        "  comes from: serve.py(3): loop (2 rows)",
        "  around 12, 18, 24",
        "    launch cudaLaunchKernel",
        "    op aten::mm",
        "    python serve.py(3): loop",
        "    annotation step[DECODE bs=4]",
        "  around 9, 15, 21",
        "    python serve.py(3): loop",
        "    annotation step[DECODE bs=4]",
        "  around 2, 8",
        "    annotation step[DECODE bs=4]",
        "Do",
        "  Shorten the host code named here, move it off the path of the step, or let it run ahead of the",
        "  device.",
        "Price",
        "  Code that runs ahead works on results one step old.",
        "Check",
        "  Same load, this one change: idle by cause in a new trace; P50 and P99 of ITL unprofiled.",
        "Look further",
        "  tracekit sql 'my trace.parquet' 'FROM events WHERE id IN (12, 18, 24, 9, 15, 21, 2, 8)'",
        "  tracekit plot timeline 'my trace.parquet' --step 1 -o step_1.png",
        "  tracekit analyze 'my trace.parquet' idle_gaps",
    ]


def test_a_finding_is_known_by_itself_too(slow: Trace) -> None:
    found = slow.explain("idle_gaps.1")
    assert slow.explain(found.finding) == found
    strange = slow.explain(Finding("info", "of another trace", evidence=(6, 10**9)))
    assert (strange.id, strange.question, [row.id for row in strange.rows]) == ("", "", [6])
    assert str(strange).splitlines()[:2] == ["of another trace", "info, promises no saving of its own"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("idle_gaps.9", r"no finding 'idle_gaps\.9'; there are: idle_gaps\.1, idle_gaps\.2"),
        ("idle_gaps.", r"no finding 'idle_gaps\.'; there are: idle_gaps\.1, idle_gaps\.2"),
        ("idle_gaps", r"idle_gaps is no finding but an analysis; there are: idle_gaps\.1, idle_gaps\.2"),
        ("idle.1", r"no finding 'idle\.1': a finding is named as idle_gaps\.1 is; the analyses are: attribution, "),
        ("", "no finding ''"),
    ],
)
def test_ids_that_do_not_exist(slow: Trace, asked: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        slow.explain(asked)


def test_of_a_part_the_figures_are_those_of_the_part(slow: Trace) -> None:
    with slow.only(steps=(2, 4)) as part:
        found = explain(part, "idle_gaps.1", name="t.parquet")
        check(found.finding, part)
        assert found.finding.saving_high_ns == 2 * 940 * US
        assert found.part == "steps 2:4"
        assert found.commands[-1] == "tracekit analyze t.parquet idle_gaps --steps 2:4"
        assert "run them with Trace.only(...).sql(...) in Python" in str(found)


def test_plain_values(slow: Trace) -> None:
    said = json.loads(json.dumps(slow.explain("idle_gaps.1").to_json(), allow_nan=False))
    assert said.keys() == {"id", "question", "finding", "arithmetic", "evidence", "lines", "commands"}
    assert said["evidence"][0]["around"][0] == {"id": 11, "kind": "launch", "name": "cudaLaunchKernel"}
    assert said["lines"] == {"vllm/logits.py(57): advance": 3, "serve.py(3): loop": 2}


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ([], ""),
        (["serve.py(3): loop"], "serve.py(3): loop"),
        (["<built-in method item of Tensor>", "nn.Module: Linear_0", "a/b.py(1): f", "c.py(2): g"], "a/b.py(1): f"),
        (["torch/nn/modules/linear.py(130): forward", "/x/site-packages/torch/_ops.py(9): __call__"], ""),
        (["vllm/parameter.py(122): __torch_function__", "vllm/linear.py(5): apply"], "vllm/linear.py(5): apply"),
        (["contextlib.py(81): inner", "/v/lib/sglang/srt/x.py(5): run"], "sglang/srt/x.py(5): run"),
        (["<frozen os>(808): getenv", "Python GC"], ""),
    ],
)
def test_the_innermost_line_that_is_not_the_frameworks(names: Sequence[str], line: str) -> None:
    frames = tuple(Frame(at, "python", name) for at, name in enumerate(names))
    row = EvidenceRow(9, "op", "aten::mm", 0, 1, 0, None, 1, 1, None, None, None, frames)
    assert row.line == line
    if frames:  # the same where it is the row itself
        assert replace(row, kind="python", name=names[0], around=frames[1:]).line == line


def test_rows_of_one_length_lie_in_each_other_as_recorded(tmp_path: Path) -> None:
    rows = [python("a.py(1): f", 0, 10), python("b.py(2): g", 0, 10, parent_id=1), op(0, 10, parent_id=2)]
    with tracekit.open(write_trace(tmp_path / "trace.parquet", rows)) as trace:
        found = evidence_of(trace, [3, 2, 1])
    assert [(row.id, [one.id for one in row.around]) for row in found] == [(3, [2, 1]), (2, [1]), (1, [])]


# ---- arithmetic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "per step: 9,822,776 ns / 5 steps = 1,964,555 ns",
        "share: 9,822,776 ns / 46,100,000 ns = 21.3%",
        "reading: 26,000,000,000 bytes / 3,350,000,000,000 bytes/s = 0.0078 s",
        "a: 2 * (3 + 4) - 10 / 4 = 11.5",
        "a: min(10 ns - max(7.5 ns * (1 - 3 bytes / 4 bytes), 1 ns), 9 ns) = 8.1 ns",
        "saving: at least 0 ns, at most 9 ns",
    ],
)
def test_lines_that_hold(line: str) -> None:
    check_line(line)


@pytest.mark.parametrize(
    "line",
    [
        "per step: 9,822,776 ns / 5 steps = 1,964,556 ns",
        "share: 9,822,776 ns / 46,100,000 ns = 21.2%",
        "a: 2 * 3 + 4 = 14",
        "a: 7 - 4 - 1 = 4",
        "a: 7.5 + 1.0 = 8.7",
        "a: 1 + = 1",
        "a: 1 ns",
        "saving: a lot",
        'found: tracekit sql TRACE "SELECT count(*) FROM kernels" = 5 rows',
    ],
)
def test_lines_that_do_not(slow: Trace, line: str) -> None:
    with pytest.raises((AssertionError, IndexError)):
        check_line(line, slow)


def unmarked(count: int = 20) -> list[Row]:
    """Kernels without steps, of which the last launches left no work, as if half of the recording had been lost."""
    rows = [one for at in range(count) for one in (launch(at * MS, 5 * US), kernel(at * MS + 10 * US, 90 * US))]
    for at in range(count):
        rows[2 * at + 1] |= {"launch_id": 2 * at + 1, "name": f"unheard_of_{at}"}
    return rows + [launch((count + at) * MS, 5 * US) for at in range(count)]


MADE: dict[str, list[Row]] = {
    "slow steps": slow_steps(),
    "no steps": unmarked(),
    "host only": [op(0, 90, name="my::op"), op(100, 10, name="aten::mm")],
}
SIMULATED = {
    "eager": Run(
        steps=3,
        ranks=2,
        plant=Plant(launch_bound_ns=20_000, syncs_per_step=2, between_steps_ns=500_000, python_ns=400_000),
        fused=frozenset(),
        record_shapes=True,
    ),
    "graphs": Run(mode="full_graph", steps=7, batches=(4, 3, 4, 9, 9, 9), capture_sizes=(4,), record_shapes=True),
}


@pytest.fixture(scope="module", params=[*MADE, *SIMULATED])
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    folder, name = tmp_path_factory.mktemp("judged"), request.param
    if name in MADE:
        write_trace(folder / "trace.parquet", MADE[name], footer_of(MADE[name], capture={"partial": ["a rank"]}))
    else:
        simulate(SIMULATED[name], folder / "trace")
    with tracekit.open(folder / ("trace.parquet" if name in MADE else "trace")) as trace:
        yield trace


def test_arithmetic_of_every_finding_holds(judged: Trace) -> None:
    """Sums, queries run on the trace, and the saving last."""
    findings = judged.summary().findings
    assert findings
    for finding in findings.values():
        check(finding, judged)
        silent = finding.title.startswith(("capture: ", "no memory roof", "no compute roofs", "no roofs"))
        assert finding.arithmetic or silent, finding.title


def test_arithmetic_of_a_part_holds(slow: Trace) -> None:
    """Of a window that cuts a step and a gap. Health is always that of the whole trace."""
    with slow.only(since_ns=1_500 * US, until_ns=7 * MS) as part:
        for key, finding in part.summary().findings.items():
            check(finding, part.whole if key.startswith("health.") else part)
