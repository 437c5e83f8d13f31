"""The files that an engine's profiler writes while we wait: which are new, which are whole, and what is in them."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from tracekit.errors import TracekitError
from tracekit.json_pieces import EventArray, head_object
from tracekit.streams import ByteStream

# What Kineto writes of a step's mark, and of ops and device work. A step of vLLM on no request is no work.
_MARK = re.compile(
    rb'"cat":\s*"user_annotation",\s*"name":\s*"(?:execute_(?:\d+_)?context_(\d+)\(\w*\)_generation_(\d+)|step\[)'
)
_WORK = re.compile(rb'"cat":\s*"(?:cpu_op|kernel|gpu_memcpy|gpu_memset)"')
_PLACE = re.compile(r"(?i)(?:^|[^a-z])(dp|pp|tp|rank)[-_]?(\d{1,6})(?!\d)")
# The process that takes the requests: its recording holds the thread that started it, which does nothing else.
_FRONTEND = ".async_llm."
_RECENT_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A profiler's file as found. whole: to the end of its JSON. marks: steps, idle ones too; steps: those with work.

    rank, world_size: of torch.distributed, None if it does not say. replica: of data parallelism, by the file's name.
    """

    path: Path
    size: int
    whole: bool
    marks: int = 0
    steps: int = 0
    worked: bool = False
    rank: int | None = None
    world_size: int | None = None
    replica: int = 0


def inspect(path: Path) -> TraceFile:
    """Read a file through, in one pass and little memory."""
    size = path.stat().st_size
    places = {kind.lower(): int(number) for kind, number in _PLACE.findall(path.name)}
    marks = steps = 0
    worked = False
    try:
        with ByteStream(path) as stream:
            array = EventArray(stream)
            while (piece := array.next_piece()) is not None:
                found = _MARK.findall(piece.raw)
                marks += len(found)
                steps += sum(one != (b"0", b"0") for one in found)
                worked = worked or _WORK.search(piece.raw) is not None
            whole = array.closed_properly and not stream.cut
            distributed = head_object(array.head).get("distributedInfo")
    except (TracekitError, OSError):  # it holds no event yet, or is gone again
        return TraceFile(path, size, whole=False)
    said = distributed if isinstance(distributed, dict) else {}
    rank, world_size = said.get("rank"), said.get("world_size")
    return TraceFile(
        path,
        size,
        whole,
        marks,
        steps,
        worked,
        rank if isinstance(rank, int) else places.get("rank", places.get("tp")),
        world_size if isinstance(world_size, int) else None,
        places.get("dp", 0),
    )


@dataclass(slots=True)
class NewFiles:
    """Files of profilers that appear in a folder from now on.

    prefix: what the engine was asked to begin the names with. Some take the wish and ignore it, so it only decides
    where there are files of both kinds: another server may write to the same folder.
    """

    folder: Path
    prefix: str = ""
    _before: dict[Path, tuple[int, int]] = field(default_factory=dict)
    _last: dict[Path, tuple[int, int]] = field(default_factory=dict)
    _read: dict[Path, TraceFile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._before = self._list()

    def look(self) -> list[TraceFile]:
        """The new files. One that has not changed since the last look has been read; the others count as not whole."""
        now = {path: state for path, state in self._list().items() if self._before.get(path) != state}
        for path, state in now.items():
            if self._last.get(path) != state:
                self._read.pop(path, None)
            elif path not in self._read:
                self._read[path] = inspect(path)
        self._last = now
        ours = [path for path in sorted(now) if self.prefix and path.name.startswith(self.prefix)] or sorted(now)
        return [self._read.get(path) or TraceFile(path, now[path][0], whole=False) for path in ours]

    def growing(self, seconds: float) -> list[Path]:
        """Files of earlier recordings that are being written: those that change within a moment, so many seconds."""
        now = time.time_ns()
        recent = [path for path, (_, changed) in self._before.items() if now - changed < _RECENT_NS]
        if not recent:
            return []
        time.sleep(seconds)
        later = self._list()
        return [path for path in sorted(recent) if path in later and later[path] != self._before[path]]

    def _list(self) -> dict[Path, tuple[int, int]]:
        """Size and time of change of each file. The folder may not be there yet."""
        found = {}
        try:
            for path in self.folder.iterdir():
                if ".trace.json" in path.name and _FRONTEND not in path.name:
                    status = path.stat()
                    if path.is_file():
                        found[path] = (status.st_size, status.st_mtime_ns)
        except OSError:
            pass
        return found
