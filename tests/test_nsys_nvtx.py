"""Marks made from inside a program and by tracekit.step choose alike what makes NVTX ranges."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.collecting import environment
from tests.nsys_runs import nvtx_folder

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="the rule begins with torch")

BOTH = """
import torch
from tracekit.collectors._in_process.nvtx_ranges import find_nvtx
from tracekit.ranges import _nvtx
inside, why = find_nvtx(torch)
outside = _nvtx(torch)
print(inside and inside.push.__module__, outside and outside.push.__module__)
print(why)
"""


def chosen(*folders: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {list(folders)}\n{BOTH}"],
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_package_that_every_nsys_understands() -> None:
    assert chosen(nvtx_folder()) == ["nvtx.nvtx nvtx.nvtx", ""]


def test_package_that_finds_no_tool() -> None:
    nvtx = pytest.importorskip("nvtx", reason="the package nvtx, 0.2.12 or newer, is wanted")
    if type(nvtx.get_domain(None)).__name__ != "DummyDomain":
        pytest.skip("the package nvtx is older than 0.2.12")
    ways, why = chosen()
    assert ways == "None None"
    assert why.startswith("the package nvtx 0.")
