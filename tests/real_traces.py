"""Public recordings that some checkouts have beside them; tests on them are skipped elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

DIRECTORY = Path(__file__).resolve().parents[2] / "shared" / "traces"
KINETO = sorted(DIRECTORY.glob("*.json.gz"))
NSYS = sorted(DIRECTORY.glob("*.sqlite"))
# One of the eight ranks of a job stands for the others where a test takes long.
DISTINCT = [path for path in KINETO if "worker" not in path.name or "worker0" in path.name]


def parameters(paths: list[Path] = KINETO) -> list[object]:
    """The files as test parameters, or one that is skipped."""
    if not paths:
        return [pytest.param(None, marks=pytest.mark.skip(reason="no public traces beside this checkout"))]
    return [pytest.param(path, id=path.name.removesuffix(".json.gz").removesuffix(".sqlite")) for path in paths]


def trace(name: str) -> Path:
    """One file by the beginning of its name; skips where it is absent."""
    found = [path for path in (*KINETO, *NSYS) if path.name.startswith(name)]
    if not found:
        pytest.skip("no public traces beside this checkout")
    return found[0]
