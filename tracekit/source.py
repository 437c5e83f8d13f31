"""What a reader hands over: rows in a spool, and a description of the file they came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tracekit.spool import Spool

# Called with bytes of the file read so far, and its size.
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class SourceRead:
    """One file as read. Times in the spool are the file's own; adding `base_ns` makes them comparable.

    Rows with a missing or negative duration have dur NULL in the spool: they had not ended when recording stopped.
    rank: None if the file does not say. labels: process labels, where a file holds several processes. label_ranks:
    their ranks, if the reader knows them; only their order, unless rank_from is "MPI". pids: operating-system processes
    that have host rows, and their labels (None: without). identity: of the recording; files with the same one are
    exports of the same recording.
    first_unreadable: byte of the first event that could not be read.

    A spool may have a column `process`, small numbers within which alone a correlation is unique.
    """

    path: Path
    format: str
    spool: Spool
    rank: int | None = None
    labels: set[str] = field(default_factory=set)
    label_ranks: dict[str, int] = field(default_factory=dict)
    pids: dict[int, str | None] = field(default_factory=dict)
    identity: str | None = None
    rank_from: str = "default"
    world_size: int | None = None
    base_ns: int = 0
    devices: list[dict[str, Any]] = field(default_factory=list)
    capture: dict[str, Any] = field(default_factory=dict)
    read: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    dropped_args: Counter[str] = field(default_factory=Counter)
    truncated_at: int | None = None
    first_unreadable: int | None = None


class Reader(Protocol):
    """A module of `tracekit.collectors` that reads a format."""

    NAME: str

    def accepts(self, path: Path, head: bytes) -> bool:
        """Whether the file, of which `head` is the decompressed beginning, is of this format."""
        ...

    def read(self, path: Path, spool: Spool, progress: Progress | None = None) -> SourceRead:
        """Read a file into a spool."""
        ...
