"""Which analyses and file readers are there? Built-in ones are found by walking the packages, others by entry point.

An analysis module exposes `ANALYSIS` and has its SQL macro beside it (`x.py`, `x.sql`). A reader module exposes `NAME`,
`accepts(path, head)` and `read(...)`; a module of `tracekit.collectors` without these records but does not read.
Modules whose name begins with `_` are helpers. Entry point groups are named like the packages; entries name a module.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tracekit.analysis import Analysis
    from tracekit.source import Reader

ANALYSES = "tracekit.analyses"
COLLECTORS = "tracekit.collectors"


class PluginWarning(UserWarning):
    """A third party's analysis or collector was left out; the message says which and why."""


@dataclass(frozen=True, slots=True)
class LoadedAnalysis:
    """An analysis and the SQL that defines its macros; `origin` is the module it came from."""

    analysis: Analysis
    sql: str
    origin: str
    built_in: bool


def analyses() -> dict[str, LoadedAnalysis]:
    """All analyses by name, the built-in ones first."""
    found: dict[str, LoadedAnalysis] = {}
    for module, built_in in _modules(ANALYSES):
        try:
            analysis = cast("Analysis", module.ANALYSIS)
            loaded = LoadedAnalysis(analysis, macro_sql(module), module.__name__, built_in)
            name = analysis.name
        except Exception as error:
            if built_in:
                raise
            _left_out(module.__name__, ANALYSES, error)
            continue
        if name in found:
            _left_out(module.__name__, ANALYSES, f"the analysis {name!r} exists already, in {found[name].origin}")
        else:
            found[name] = loaded
    return found


def built_in_questions() -> dict[str, str]:
    """The question of each built-in analysis, as the SQL beside it begins, without importing any: for the help."""
    package = importlib.import_module(ANALYSES)
    paths = sorted(path for folder in package.__path__ for path in Path(folder).glob("[a-z]*.sql"))
    return {path.stem: question_of(path.read_text(encoding="utf-8")) for path in paths}


def question_of(sql: str) -> str:
    """The first sentence of the comment that SQL begins with; "" where it is no question."""
    header = " ".join(line[2:].strip() for line in takewhile(lambda line: line.startswith("--"), sql.splitlines()))
    question, mark, _ = header.partition("?")
    return question + mark if mark else ""


def collectors() -> dict[str, ModuleType]:
    """All collector modules by NAME, or by the module's own name if it has none; the built-in ones first."""
    found: dict[str, ModuleType] = {}
    for module, _ in _modules(COLLECTORS):
        name = str(getattr(module, "NAME", module.__name__.rpartition(".")[2]))
        if name in found:
            _left_out(module.__name__, COLLECTORS, f"{name!r} exists already, in {found[name].__name__}")
        else:
            found[name] = module
    return found


def readers() -> dict[str, Reader]:
    """The collector modules that read a file format."""
    needed = ("NAME", "accepts", "read")
    return {
        name: cast("Reader", module)
        for name, module in collectors().items()
        if all(hasattr(module, attribute) for attribute in needed)
    }


def macro_sql(module: ModuleType) -> str:
    """The text of the .sql file beside a module, "" if there is none."""
    path = Path(module.__file__ or "").with_suffix(".sql")
    return path.read_text(encoding="utf-8") if module.__file__ and path.is_file() else ""


def _modules(group: str) -> Iterator[tuple[ModuleType, bool]]:
    package = importlib.import_module(group)
    for entry in sorted(pkgutil.iter_modules(package.__path__), key=lambda entry: entry.name):
        if not entry.name.startswith("_"):
            yield importlib.import_module(f"{group}.{entry.name}"), True
    for point in sorted(entry_points(group=group), key=lambda point: (point.name, point.value)):
        if (module := _loaded(point)) is not None:
            yield module, False


def _loaded(point: EntryPoint) -> ModuleType | None:
    """The module an entry point is in, or None: what another package raises must not stop ours."""
    try:
        point.load()
        return importlib.import_module(point.module)
    except Exception as error:
        _left_out(f"{point.name} ({point.value})", point.group, error)
        return None


def _left_out(who: str, group: str, why: object) -> None:
    reason = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else str(why)
    warnings.warn(f"{who} of {group} was left out: {reason}", PluginWarning, stacklevel=3)
