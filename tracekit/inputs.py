"""What was given to be opened: one Parquet file of tracekit, or files of profilers that are to be converted?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tracekit.counters import Counters
from tracekit.errors import UsageError
from tracekit.registry import readers

PathLike = str | os.PathLike[str]
_PARQUET_MAGIC = b"PAR1"
_RANKS = "to see several ranks together, convert the profiler's own files into one"


def paths_of(given: PathLike | Sequence[PathLike]) -> list[Path]:
    """As a list. Raises UsageError for an empty path, which would be the current directory."""
    one_or_more = [given] if isinstance(given, (str, os.PathLike)) else list(given)
    if not all(map(os.fspath, one_or_more)):
        raise UsageError("the path is empty")
    return [Path(one) for one in one_or_more]


def counters_in(files: Sequence[Path]) -> Counters | None:
    """What Nsight Compute measured, by the tables that it printed; None without files."""
    if not files:
        return None
    from tracekit.collectors.ncu_csv import read_counters

    return read_counters(files)


def only_parquet(paths: Sequence[Path]) -> Path | None:
    """The one Parquet file among what is given, None if it is all to be converted.

    Raises UsageError for several: each is a trace of its own, and the ids of their events clash.
    """
    found = [path for path in paths if is_parquet(path)]
    if len(paths) == 1 and paths[0].is_dir():
        files = sorted(child for child in paths[0].rglob("*") if child.is_file() and not child.name.startswith("."))
        parquets = [child for child in files if child.suffix == ".parquet"]
        raw = len(parquets) < len(files) or any(_is_recording(folder) for folder in {file.parent for file in files})
        found = [] if raw else parquets  # beside raw files, one may be made from them
    elif found and len(paths) == 1:
        return found[0]
    elif found:
        raise UsageError(f"{found[0]} is a tracekit trace already: Parquet files are analysed one at a time; {_RANKS}")
    if len(found) > 1:
        raise UsageError(
            f"{paths[0]} holds {len(found)} Parquet files ({found[0].name}, {found[1].name}"
            f"{', ...' if len(found) > 2 else ''}), which are analysed one at a time; name one. {_RANKS.capitalize()}"
        )
    return found[0] if found else None


def _is_recording(folder: Path) -> bool:
    """Whether a reader takes the folder as one recording: some profilers export a table a file."""
    return any(reader.accepts(folder, b"") for reader in readers().values())


def is_parquet(path: Path) -> bool:
    """Tell by its first bytes whether a file is Parquet."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
