"""What is installed: built once through the sdist, as a release is, from a copy that holds no earlier build."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

_toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).resolve().parent.parent
PACKAGE_OF = {"tracekit": "tracekit", "collectors": "tracekit/collectors", "analyses": "tracekit/analyses"}
HEAVY = ("duckdb", "pyarrow", "numpy", "pandas", "matplotlib", "torch", "rich")


def project_files() -> list[Path]:
    """Tracked files, and new ones that are not ignored, relative to the root; outside git, all but builds."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        names = [Path(name) for name in listed.stdout.split("\0") if name]
    else:
        names = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
        names = [name for name in names if not {".venv", "build", "dist", "__pycache__"} & set(name.parts)]
    return [name for name in names if (ROOT / name).is_file() and not (ROOT / name).is_symlink()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for name in project_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    built = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(source / "dist")],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (path,) = (source / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, as pip would unpack it."""
    target = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_only_top_level_name_is_tracekit(installed: Path) -> None:
    names = sorted(path.name for path in installed.iterdir())
    assert [name for name in names if not name.endswith(".dist-info")] == ["tracekit"]
    assert [name.partition("-")[0] for name in names if name.endswith(".dist-info")] == ["tracekit_gpu"]


def test_every_source_is_in_the_wheel_and_nothing_else(installed: Path) -> None:
    expected = {
        f"{PACKAGE_OF[name.parts[0]]}/{Path(*name.parts[1:]).as_posix()}"
        for name in project_files()
        if name.parts[0] in PACKAGE_OF
    }
    found = {path.relative_to(installed).as_posix() for path in (installed / "tracekit").rglob("*") if path.is_file()}
    assert found == expected
    assert {"tracekit/py.typed", "tracekit/schema.sql", "tracekit/kernel_rules.toml"} <= found


def test_licence_is_in_the_wheel(installed: Path) -> None:
    (licence,) = installed.glob("*.dist-info/licenses/LICENSE")
    assert licence.read_bytes() == (ROOT / "LICENSE").read_bytes()


def run_installed(installed: Path, code: str) -> str:
    """Run code away from the checkout, with the unpacked wheel ahead of whatever this environment has installed."""
    program = f"import sys; sys.path.insert(0, {str(installed)!r}); {code}"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=installed.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_sub_packages_import_as_tracekit_s_only(installed: Path) -> None:
    code = (
        "import importlib.util as u, tracekit.collectors, tracekit.analyses;"
        "print(u.find_spec('collectors'), u.find_spec('analyses'), tracekit.analyses.__file__)"
    )
    generic_collectors, generic_analyses, origin = run_installed(installed, code).split(" ", 2)
    assert (generic_collectors, generic_analyses) == ("None", "None")
    assert Path(origin).is_relative_to(installed)


def test_installed_copy_finds_its_analyses_and_readers(installed: Path) -> None:
    code = "from tracekit import registry; print(*registry.analyses(), *registry.readers())"
    assert {"health", "attribution", "idle_gaps", "kineto"} <= set(run_installed(installed, code).split())


@pytest.mark.parametrize("arguments", [["--help"], ["collect", "--help"], ["analyze", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from tracekit.cli import main\n"
        f"sys.argv = ['tracekit', *{arguments!r}]\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_importing_the_package_draws_and_frames_nothing() -> None:
    code = "import sys, tracekit; print([name for name in ('pandas', 'matplotlib', 'torch') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_converting_does_not_import_pandas(tmp_path: Path) -> None:
    """Half of what a small trace takes, and one careless `pa.array` is enough to bring it back (tracekit/arrays.py)."""
    code = (
        "import sys; from pathlib import Path; from tracekit.convert import convert\n"
        f"convert([Path('sample_traces/h100_decode_graph.json.gz')], Path({str(tmp_path / 'out.parquet')!r}))\n"
        "print([name for name in ('pandas', 'matplotlib', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def dependency_lines() -> list[str]:
    """Lines of pyproject.toml that name one dependency each."""
    text = (ROOT / "pyproject.toml").read_text()
    project = _toml.loads(text)
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *(name for names in extras.values() for name in names)]
    wanted += project["build-system"]["requires"]
    lines = [line for line in text.splitlines() if any(f'"{name}"' in line for name in wanted)]
    assert len(lines) >= len(wanted)
    return lines


@pytest.mark.parametrize("line", dependency_lines())
def test_each_dependency_states_its_reason(line: str) -> None:
    assert re.search(r"#\s+\w+", line), line


def test_no_dependency_is_pinned() -> None:
    assert not [line for line in dependency_lines() if "==" in line.partition("#")[0].partition(";")[0]]
