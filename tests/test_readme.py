"""What the README says is so. `python -m tests.test_readme` writes the generated parts of it, and of docs/, anew."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from tests.test_packaging import project_files
from tracekit import Trace, errors, registry
from tracekit.analyses._idle_advice import MEANINGS
from tracekit.cli import main
from tracekit.errors import TracekitError

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
_GENERATED = re.compile(r"<!-- (output: (?P<command>[^>]*)|analyses|causes) -->\n(?P<body>.*?)<!-- end -->", re.DOTALL)


def tracekit(command: str) -> subprocess.CompletedProcess[str]:
    """Run a command line that begins with `tracekit`, at the root of the checkout, whatever the terminal's width."""
    name, *arguments = shlex.split(command)
    assert name == "tracekit"
    return subprocess.run(
        [sys.executable, "-m", "tracekit", *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
        capture_output=True,
        text=True,
        check=False,
    )


def generated(match: re.Match[str]) -> str:
    """What the part that the match found should be."""
    if match["command"]:
        done = tracekit(match["command"])
        assert done.returncode == 0, done.stderr
        lines = [f"$ {match['command']}", *done.stdout.rstrip().splitlines()]
        body = "```text\n" + "\n".join(line.rstrip() for line in lines) + "\n```\n"
    elif match[1] == "causes":
        body = table("cause", "what happened in that time", MEANINGS)
    else:
        questions = {name: loaded.analysis.question for name, loaded in registry.analyses().items()}
        body = table("analysis", "question", questions)
    return f"<!-- {match[1]} -->\n{body}<!-- end -->"


def table(name: str, meaning: str, rows: Mapping[str, str]) -> str:
    lines = [f"| {name} | {meaning} |", "|---|---|", *(f"| `{one}` | {said} |" for one, said in rows.items())]
    return "\n".join(lines) + "\n"


def renew(text: str, make: Callable[[re.Match[str]], str] = generated) -> str:
    return _GENERATED.sub(make, text)


def with_output() -> list[Path]:
    return [page for page in PAGES if _GENERATED.search(page.read_text())]


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", with_output(), ids=lambda page: page.name)
def test_generated_parts_are_what_tracekit_says_today(page: Path) -> None:
    text = page.read_text()
    assert text == renew(text), "python -m tests.test_readme writes them anew"


def test_what_is_generated() -> None:
    found = {page.name: [match[1] for match in _GENERATED.finditer(page.read_text())] for page in with_output()}
    assert found == {
        "README.md": [
            "output: tracekit analyze sample_traces/h100_decode_eager.json.gz",
            "output: tracekit whatif sample_traces/h100_decode_eager.json.gz --graph decode --phase decode",
            "analyses",
            "causes",
        ],
        "record_vllm.md": ["output: tracekit analyze sample_traces/vllm_cpu.parquet steps"],
    }


def test_first_two_commands_exist() -> None:
    first, second = code_blocks("sh")[0].splitlines()
    program, script = first.split()
    assert program == "bash"
    assert (ROOT / script).is_file()
    assert second == ".venv/bin/python -m pytest"
    assert ".venv/bin/" in (ROOT / script).read_text()


@pytest.mark.parametrize("command", main.list_commands(click.Context(main)))
def test_each_command_is_shown_with_an_example_and_explained(command: str) -> None:
    text = README.read_text()
    assert f"| `{command}` |" in text
    assert f"\ntracekit {command} " in text


def test_options_in_examples_exist() -> None:
    examples = [line for block in code_blocks("text") for line in block.splitlines() if line.startswith("tracekit ")]
    assert len(examples) >= 4
    for example in examples:
        words = shlex.split(example.partition(" -- ")[0])
        listed = tracekit(f"tracekit {words[1]} --help").stdout
        assert not [word for word in words if word.startswith("-") and word not in listed], example


def test_notebook_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = code_blocks("python")
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(code.replace("trace.parquet", "sample_traces/h100_decode_eager.json.gz"), names)
    trace = names["trace"]
    assert isinstance(trace, Trace)
    assert "launch_bound" in str(trace.explain("idle_gaps.1"))
    (picture,) = (block for block in code_blocks("py") if "roofline" in block)
    exec(picture.replace("roofline.png", str(tmp_path / "roofline.png")), names)
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")
    trace.close()


def texts() -> list[Path]:
    return [name for name in project_files() if name.suffix not in (".gz", ".parquet")]


def test_exit_codes_are_those_of_the_errors() -> None:
    stated = {int(code) for code in re.findall(r"^\| (\d) \|", README.read_text(), re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TracekitError)]
    raised = {kind.exit_code for kind in kinds}
    assert stated == raised | {0}


def test_nothing_names_a_package_index_or_this_checkout() -> None:
    index = "|".join(re.escape(host + suffix) for host, suffix in (("pypi", ".org"), ("files.pythonhosted", ".org")))
    unwanted = re.compile(rf"{index}|{re.escape(str(ROOT))}\b")
    found = {str(name): unwanted.findall((ROOT / name).read_text(errors="replace")) for name in texts()}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_samples_are_small_and_described() -> None:
    samples = [name for name in project_files() if name.parts[0] == "sample_traces"]
    assert sum((ROOT / name).stat().st_size for name in samples) < 2_000_000
    for name in samples:
        if name.suffix == ".gz":
            text = gzip.decompress((ROOT / name).read_bytes()).decode()
            assert not re.search(rf'{re.escape(str(ROOT))}|"host_name": "[^"]|"traceName": "[^"]*/', text), name
    described = (ROOT / "sample_traces/README.md").read_text()
    assert not [name.name for name in samples if name.suffix in (".gz", ".parquet") and name.name not in described]


if __name__ == "__main__":
    for one in with_output():
        one.write_text(renew(one.read_text()))
