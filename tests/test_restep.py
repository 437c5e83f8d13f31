"""One column, three ways: as converting fills it, as it is filled again later, and row by row from the rules."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tracekit
from tests import real_traces
from tests.command_line import run
from tests.event_rows import annotation, footer_of, kernel, launch, write_trace
from tests.naive_steps import naive_column
from tests.simulator import simulate
from tests.simulator_model import Run
from tracekit.convert import convert
from tracekit.errors import UsageError
from tracekit.footer import KEY, Footer
from tracekit.restep import restep
from tracekit.steps import RULES

RUNS = {
    "none": Run(steps=0),
    "eager": Run(steps=4, prefill_steps=2, with_stack=True),
    "full graph": Run(steps=4, mode="full_graph", marks="vllm_detailed"),
    "piecewise graph": Run(steps=4, mode="piecewise_graph", streams=3, marks="sglang"),
    "wrapped": Run(steps=4, marks="sglang_detailed", with_stack=True),
    "own marks": Run(steps=4, marks="tracekit", time_unit="absolute", profile_memory=True),
    "ProfilerStep": Run(steps=4, marks="ProfilerStep"),
    "asynchronous": Run(steps=5, asynchronous=True, orphans=3),
    "ranks": Run(steps=3, ranks=3, streams=2),
}
COLUMNS = ["id", "kind", "name", "rank", "pid", "tid", "ts", "dur", "launch_id", "step"]


@dataclass(frozen=True, slots=True)
class Converted:
    """A trace as converted, and filled again."""

    path: Path
    again: Path


def filled_twice(source: Path, folder: Path) -> Converted:
    found = Converted(folder / "converted.parquet", folder / "again.parquet")
    convert([source], found.path, allow_partial=True)
    restep(found.path, found.again, None)
    return found


@pytest.fixture(scope="module", params=list(RUNS.values()), ids=list(RUNS))
def simulated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Converted]:
    folder = tmp_path_factory.mktemp("simulated")
    source = folder / ("ranks" if request.param.ranks > 1 else "trace.json")
    simulate(request.param, source)
    yield filled_twice(source, folder)


def check(converted: Converted) -> None:
    rows = pq.read_table(converted.path, columns=COLUMNS).to_pylist()
    expected = naive_column(rows)
    assert {row["id"]: row["step"] for row in rows} == expected
    again = pq.read_table(converted.again, columns=["id", "step"]).to_pylist()
    assert [(row["id"], row["step"]) for row in again] == [(row["id"], expected[row["id"]]) for row in rows]


def test_the_three_agree(simulated: Converted) -> None:
    check(simulated)


@pytest.mark.parametrize("path", real_traces.parameters(real_traces.DISTINCT))
def test_the_three_agree_on_recordings(path: Path, tmp_path: Path) -> None:
    check(filled_twice(path, tmp_path))


def test_nothing_else_changes(simulated: Converted) -> None:
    """Row groups, order, values, types, footer."""
    before, after = pq.ParquetFile(simulated.path), pq.ParquetFile(simulated.again)
    assert after.num_row_groups == before.num_row_groups
    for group in range(before.num_row_groups):
        assert after.read_row_group(group).equals(before.read_row_group(group))
    assert after.schema_arrow.remove_metadata().equals(before.schema_arrow.remove_metadata())
    assert after.metadata.metadata[KEY] == before.metadata.metadata[KEY]


def test_view_and_column_agree(simulated: Converted) -> None:
    with tracekit.open(simulated.path) as trace:
        columns = "SELECT DISTINCT rank, step FROM events WHERE step IS NOT NULL ORDER BY ALL"
        view = "SELECT rank, step FROM steps ORDER BY ALL"
        assert trace.sql(columns).to_pylist() == trace.sql(view).to_pylist()


ROWS = [
    annotation("forward", 10, 20),
    launch(12, 1),
    annotation("step[DECODE bs=1]", 40, 5),
    launch(42, 1),
    kernel(43, 5, launch_id=4),
]


def old_file(path: Path, rules: int = 0, step_range: str | None = None) -> Path:
    """As an older version wrote it: with other steps than these rules find, or none."""
    footer = replace(footer_of(ROWS), step_rules=rules, step_range=step_range)
    write_trace(path, [row | {"step": 7 if rules else None} for row in ROWS])
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({KEY: footer.to_bytes()}), path, row_group_size=2)
    return path


def column(trace: tracekit.Trace) -> list[int | None]:
    return [row["step"] for row in trace.sql("SELECT step FROM events ORDER BY id").to_pylist()]


@pytest.mark.parametrize("rules", [0, RULES + 1])
def test_a_file_made_by_other_rules_gets_its_steps_on_opening(tmp_path: Path, rules: int) -> None:
    path = old_file(tmp_path / "old.parquet", rules)
    content = path.read_bytes()
    with tracekit.open(path) as trace:
        used = trace.path
        assert column(trace) == [None, None, 0, 0, 0]
        assert (trace.footer.step_rules, trace.footer.step_range) == (RULES, None)
    assert used != path
    assert not used.exists()
    assert path.read_bytes() == content


def test_a_footer_that_knows_nothing_of_steps(tmp_path: Path) -> None:
    text = footer_of(ROWS).to_bytes().replace(b'"step_range": null, "step_rules": 0, ', b"")
    assert b"step_r" not in text
    assert Footer.from_bytes(text) == footer_of(ROWS)


def test_a_file_with_these_steps_is_used_as_it_is(tmp_path: Path) -> None:
    path = old_file(tmp_path / "trace.parquet", RULES, "forward")
    for asked in (None, "forward"):
        with tracekit.open(path, step_range=asked) as trace:
            assert (trace.path, column(trace)) == (path, [7, 7, 7, 7, 7])


def test_the_users_range_beats_every_dialect(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.parquet", ROWS)
    with tracekit.open(path, step_range="^for|nothing") as trace:
        assert column(trace) == [0, 0, 0, 0, 0]
        found = trace.sql("SELECT step, ts, dur, phase, source, id, until_ts FROM steps").to_pylist()
        assert [tuple(row.values()) for row in found] == [(0, 10, 20, "unknown", "range", 1, 50)]
        assert trace.footer.step_range == "^for|nothing"
        kept = trace.path.read_bytes()
    again = tmp_path / "again.parquet"
    again.write_bytes(kept)
    with tracekit.open(again) as trace:
        assert trace.path == again, "what the file was made with holds until something else is asked for"
    with tracekit.open(path, step_range="bs=") as trace:
        assert column(trace) == [None, None, 0, 0, 0]
        assert trace.sql("SELECT phase, decode_requests, source FROM steps").to_pylist() == [
            {"phase": "decode", "decode_requests": 1, "source": "range"}
        ]


def test_a_range_that_matches_nothing(tmp_path: Path) -> None:
    rows = [*ROWS, *(annotation(f"layer {number}", 100 + number, 1) for number in range(30))]
    rows += [annotation(f"{letter}\n", 200, 1) for letter in "abx"]
    path = write_trace(tmp_path / "trace.parquet", rows)
    message = (
        "no annotation matches the step range 'Forward'; "
        r"there are 'layer 0' (30 such), 'a\n', 'b\n', 'forward', 'step[DECODE bs=1]', ..."
    )
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        tracekit.open(path, step_range="Forward")
    bare = write_trace(tmp_path / "bare.parquet", [kernel(0, 1)])
    with pytest.raises(UsageError, match=r"there are none$"):
        tracekit.open(bare, step_range="x")


@pytest.mark.parametrize(
    ("step_range", "message"),
    [
        ("", "the step range is empty: it would match every annotation"),
        ("a(b", "the step range is not a regular expression: missing ), unterminated subpattern\n  a(b\n   ^"),
        ("a\nb[z-a]c", "the step range is not a regular expression: bad character range z-a\n  b[z-a]c\n    ^"),
    ],
)
def test_a_range_that_is_no_regular_expression(tmp_path: Path, step_range: str, message: str) -> None:
    path = write_trace(tmp_path / "trace.parquet", ROWS)
    raw = tmp_path / "trace.json"
    raw.write_text("[]")
    for source in (path, raw):
        with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
            tracekit.open(source, step_range=step_range)
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        convert([raw], tmp_path / "out.parquet", step_range=step_range)


def test_converting_with_a_range(tmp_path: Path) -> None:
    simulate(Run(steps=3), tmp_path / "trace.json")
    out = tmp_path / "out.parquet"
    footer = convert([tmp_path / "trace.json"], out, step_range="generation_4")
    assert (footer.step_rules, footer.step_range) == (RULES, "generation_4")
    rows = pq.read_table(out, columns=COLUMNS).to_pylist()
    assert {row["id"]: row["step"] for row in rows} == naive_column(rows, "generation_4")
    assert {row["step"] for row in rows} == {None, 0, 1}, "the two decode steps; prefill is none"
    with pytest.raises(UsageError, match="'execute_context_"):
        convert([tmp_path / "trace.json"], out, force=True, step_range="nothing")


def test_dictionaries_and_plain_text_alike(tmp_path: Path) -> None:
    """Files whose texts are no dictionaries, as other writers of Parquet leave them."""
    path = write_trace(tmp_path / "trace.parquet", ROWS)
    footer = restep(path, tmp_path / "again.parquet", "forward")
    plain, again = pq.read_table(path), pq.read_table(tmp_path / "again.parquet")
    assert again.schema.field("name").type == pa.string()
    assert again.drop_columns("step").equals(plain.drop_columns("step"))
    assert again.column("step").to_pylist() == [0, 0, 0, 0, 0]
    assert footer.step_range == "forward"


# ---- the command line ------------------------------------------------------------------------------------------------

QUERY = "SELECT step, source FROM steps"


def test_commands_take_a_step_range(tmp_path: Path) -> None:
    simulate(Run(steps=3), tmp_path / "trace.json")
    out = tmp_path / "trace.parquet"
    done = run("convert", tmp_path / "trace.json", "-o", out, "--step-range", "generation_4")
    assert done.exit_code == 0
    for arguments in ((out,), (tmp_path / "trace.json", "--step-range", "generation_4")):
        shown = run("sql", *arguments, QUERY, "--format", "csv")
        assert (shown.exit_code, shown.stdout) == (0, "step,source\n0,range\n1,range\n")
    other = run("analyze", out, "health", "--step-range", "context_4", "--format", "json")
    assert "1 step in 1 rank" in other.stdout


def test_commands_say_what_is_wrong_with_a_step_range(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.parquet", ROWS)
    wrong = run("sql", path, QUERY, "--step-range", "a(b")
    assert wrong.exit_code == 2
    assert wrong.stderr.startswith("tracekit: the step range is not a regular expression: missing ), unterminated")
    assert wrong.stderr.endswith("\n  a(b\n   ^\n")
    command = [sys.executable, "-m", "tracekit", "sql", str(path), QUERY, "--step-range", "x", "--format", "csv"]
    nothing = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    assert (nothing.returncode, nothing.stdout) == (2, "")
    told = "tracekit: no annotation matches the step range 'x'; there are 'forward', 'step[DECODE bs=1]'\n"
    assert nothing.stderr == told
    assert run("sql", path, QUERY, "--step-range", "\udcff").stderr.startswith("tracekit: the step range is not UTF-8")
