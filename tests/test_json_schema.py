"""JSON output is what the schemas in the package say, for every kind of trace, and these what is documented."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import tracekit
from tests.command_line import ROWS, run
from tests.event_rows import write_trace
from tests.json_schemas import analyze_schema, compare_schema
from tests.simulator import Plant, Run, simulate

SAMPLES = Path(__file__).parent.parent / "sample_traces"
SCHEMAS = {"analyze": analyze_schema, "compare": compare_schema}


def stored(command: str) -> Any:
    return json.loads((files("tracekit") / f"{command}.schema.json").read_text(encoding="utf-8"))


def validator(command: str) -> Draft202012Validator:
    schema = stored(command)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def said(path: Path, *arguments: str) -> Any:
    shown = run("analyze", path, "--format", "json", *arguments)
    assert shown.exit_code in (0, 1), shown.output
    return json.loads(shown.stdout)


def errors(document: object, command: str = "analyze") -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator(command).iter_errors(document)]


@pytest.mark.parametrize("command", SCHEMAS)
def test_the_file_is_what_is_documented(command: str) -> None:
    """Written by `python -m tests.test_json_schema`."""
    assert stored(command) == SCHEMAS[command]()


def test_of_no_events(tmp_path: Path) -> None:
    assert errors(said(write_trace(tmp_path / "trace.parquet", []))) == []


@pytest.mark.parametrize("name", ["h100_decode_eager.json.gz", "h100_decode_graph.json.gz", "vllm_cpu.parquet"])
def test_of_the_samples(name: str) -> None:
    assert errors(said(SAMPLES / name)) == []


def test_of_a_part_of_several_ranks(tmp_path: Path) -> None:
    plant = Plant(launch_bound_ns=20_000, syncs_per_step=2, communication_wait_ns=200_000)
    simulate(Run(plant=plant, steps=4, ranks=2, with_stack=True), tmp_path / "ranks")
    assert errors(said(tmp_path / "ranks", "--phase", "decode")) == []


def test_of_one_analysis(tmp_path: Path) -> None:
    document = said(write_trace(tmp_path / "trace.parquet", ROWS), "idle_gaps")
    assert list(document["results"]) == ["idle_gaps"]
    assert errors(document) == []


@pytest.mark.parametrize(
    ("base", "candidate"),
    [
        ("h100_decode_eager.json.gz", "h100_decode_graph.json.gz"),
        ("vllm_cpu.parquet", "vllm_cpu.parquet"),
    ],
)
def test_of_comparisons(base: str, candidate: str) -> None:
    document = json.loads(run("compare", SAMPLES / base, SAMPLES / candidate, "--format", "json").stdout)
    assert document["groups"]
    assert errors(document, "compare") == []


def test_of_a_comparison_of_nothing(tmp_path: Path) -> None:
    empty = write_trace(tmp_path / "trace.parquet", [])
    assert errors(json.loads(run("compare", empty, empty, "--format", "json").stdout), "compare") == []


def test_what_is_promised_is_checked(tmp_path: Path) -> None:
    document = said(write_trace(tmp_path / "trace.parquet", ROWS))
    document["results"]["idle_gaps"]["table"][0]["dur"] = "1 us"
    document["results"]["idle_gaps"]["summary"][0]["extra"] = 1
    del document["results"]["health"]["coverage"]
    document["results"]["idle_gaps"]["findings"].append({"id": "no"})
    assert [error.partition(":")[0] for error in sorted(errors(document))] == [
        "$.results.health",
        "$.results.idle_gaps.findings[1].id",
        *["$.results.idle_gaps.findings[1]"] * 10,
        "$.results.idle_gaps.summary[0]",
        "$.results.idle_gaps.table[0].dur",
    ]


if __name__ == "__main__":
    for name, made in SCHEMAS.items():
        target = Path(tracekit.__file__).with_name(f"{name}.schema.json")
        target.write_text(json.dumps(made(), indent=1) + "\n", encoding="utf-8")
