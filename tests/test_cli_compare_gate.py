"""tracekit compare --fail-on: the exit code, the line that says why, and what a build server reads."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.command_line import run
from tests.event_rows import write_trace
from tests.idle_rows import GAP, OP, US, steps

SLOWER = "slower: 600 us -> 660 us a step, +60.0 us +10.0%"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base of 600 us a step, 400 of them idle, a candidate of 660, and one with too few steps to tell."""
    folder = tmp_path_factory.mktemp("gate")
    write_trace(folder / "base.parquet", steps(OP, gap=GAP))
    write_trace(folder / "candidate.parquet", steps(OP, gap=GAP + 60 * US))
    write_trace(folder / "few.parquet", steps(OP, gap=GAP, count=4))
    return folder


@pytest.fixture(autouse=True)
def there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


CONDITIONS = {  # of the candidate, and what is said of those that hold
    "slower": "decode 3-4",
    "decode.p50 > +9%": "600 us -> 660 us is +10.0%, between +10.0% and +10.0%",
    "decode.p50 > +10%": "",
    "decode.mean > +50us": "600 us -> 660 us is +60.0 us, between +60.0 us and +60.0 us",
    "decode[3-4].mean > 650us": "it is 660 us, with the idle time before the step",
    "decode.mean < 1us": "",
    "idle_share > 0.9": "",
    "idle_share > +2pp": "68.3% -> 71.2% is +2.9 pp",
    "prefill.p50 > +3%": "cannot tell: there are no prefill steps",
}
FEW = {"slower": "cannot tell: 3 steps in candidate; it takes 5 to tell a change from chance"}


@pytest.mark.parametrize(
    ("candidate", "conditions"),
    [
        ("base.parquet", dict.fromkeys(["slower", "decode.p50 > +0%"], "")),
        ("candidate.parquet", CONDITIONS),
        ("few.parquet", FEW),
    ],
)
def test_what_fails(candidate: str, conditions: dict[str, str]) -> None:
    given = [word for one in conditions for word in ("--fail-on", one)]
    result = run("compare", "base.parquet", candidate, *given)
    failed = [f"tracekit: failed: {condition}: {said}" for condition, said in conditions.items() if said]
    assert result.stderr.splitlines() == failed
    assert result.exit_code == bool(failed)
    assert result.stdout.startswith("base       base.parquet")


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("critical", "findings are of one trace: tracekit analyze"),
        ("decode.p50", "decode.p50"),
        ("__import__('os') > 1", "__import__('os') > 1"),
    ],
)
def test_what_makes_no_sense(condition: str, said: str) -> None:
    result = run("compare", "base.parquet", "candidate.parquet", "--fail-on", condition)
    assert result.exit_code == 2 and said in result.stderr


def test_as_junit(tmp_path: Path) -> None:
    out = tmp_path / "compare.xml"
    arguments = ("--fail-on", "slower", "--fail-on", "idle_share > 0.9", "--format", "junit", "-o", out)
    assert run("compare", "base.parquet", "candidate.parquet", *arguments).exit_code == 1
    root = ElementTree.parse(out).getroot()
    assert (root.get("tests"), root.get("failures")) == ("3", "1")
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert list(cases) == ["slower", "idle_share > 0.9", "decode 3-4"]
    assert [one.get("message") for one in cases["slower"]] == ["decode 3-4"]
    said = (cases["decode 3-4"].findtext("system-out") or "").splitlines()
    assert said[0].startswith(SLOWER) and said[1] == "idle launch_bound: +60.0 us"


def test_as_annotations() -> None:
    result = run("compare", "base.parquet", "candidate.parquet", "--fail-on", "slower", "--format", "github")
    error, warning = result.stdout.splitlines()
    assert (result.exit_code, error) == (1, "::error title=tracekit gate%3A slower::decode 3-4")
    assert warning.startswith(f"::warning title=tracekit steps%3A decode 3-4::{SLOWER.replace('%', '%25')}")
