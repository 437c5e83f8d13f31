"""The sample notebook: it runs, says what is stored in it, and ends at the guilty line.

`python -m tests.test_notebook` runs it and stores what it says.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "sample_traces" / "drill_down.ipynb"
GUILTY = "serve/logits.py(57): advance"
Cell = dict[str, Any]


def stored() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def executed(folder: Path) -> Any:
    """The notebook as it runs now, in this interpreter; what Jupyter writes goes to the folder."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    class ThisPython(AsyncKernelManager):
        """No kernel need be installed. Sockets of the file system: no port is open, and nothing warns of one."""

        def __init__(self, **options: Any) -> None:
            files = {"connection_file": str(folder / "kernel.json"), "ip": str(folder / "kernel")}
            super().__init__(transport="ipc", **files, **options)

        @property
        def kernel_spec(self) -> KernelSpec:
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=argv, display_name="Python 3", language="python")

    notebook = stored()
    where = {"metadata": {"path": str(NOTEBOOK.parent)}}
    client = NotebookClient(notebook, kernel_manager_class=ThisPython, timeout=120, resources=where)
    client.execute(env={**os.environ, "IPYTHONDIR": str(folder), "PYTHONPATH": str(ROOT)})
    return notebook


def said(notebook: Any) -> list[str]:
    """The text of each code cell's outputs."""
    return [
        "".join(out.get("text", "") or out.get("data", {}).get("text/plain", "") for out in cell["outputs"])
        for cell in notebook.cells
        if cell["cell_type"] == "code"
    ]


@pytest.fixture(scope="module")
def fresh() -> Any:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:  # names of sockets are short
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        return executed(Path(folder))


def test_it_runs_and_says_what_is_stored(fresh: Any) -> None:
    assert said(fresh) == said(stored())
    outputs = [out for cell in fresh.cells if cell["cell_type"] == "code" for out in cell["outputs"]]
    assert not [out for out in outputs if out["output_type"] == "error" or out.get("name") == "stderr"]


def test_it_goes_from_the_verdict_to_the_guilty_line(fresh: Any) -> None:
    texts = said(fresh)
    first = [next(at for at, text in enumerate(texts) if words in text) for words in ("Findings", "cause", GUILTY)]
    assert first == sorted(first)
    assert f"{{'{GUILTY}': 5}}" in texts
    pictures = [out for cell in fresh.cells for out in cell.get("outputs", ()) if "image/png" in out.get("data", {})]
    assert len(pictures) == 1


def test_what_is_stored_is_small_and_names_no_machine() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 400_000
    assert not re.findall(r"/(?:home|root|tmp|work|opt|usr)/", re.sub(r'"image/png": "[^"]*"', "", text))
    nbformat.validate(stored())


def store() -> None:
    """Run it, and keep what it says: no times of cells, no versions."""
    with tempfile.TemporaryDirectory() as folder:
        notebook = executed(Path(folder))
    for cell in notebook.cells:
        cell["metadata"] = {}
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    store()
