"""Read what torch.profiler writes: Kineto's Chrome-trace JSON, plain, gzip or Zstandard, of any size.

The file is cut into pieces (`tracekit.json_pieces`); DuckDB parses pieces side by side, one cursor a core; a piece it
refuses is read event by event (`tracekit.json_repair`). Memory holds a few pieces, whatever the size of the file.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tracekit.errors import MalformedTraceError, UnknownFormatError
from tracekit.json_pieces import PIECE_BYTES, EventArray, Piece, head_object, tail_object
from tracekit.json_repair import UNREADABLE
from tracekit.piece_parser import METADATA, REFUSED, SKIPPED_OWN, SKIPPED_WINDOW, Part, PieceParser, Renumbered
from tracekit.ranks import rank_in_name
from tracekit.secrets import redact
from tracekit.source import Progress, SourceRead
from tracekit.spool import Spool
from tracekit.streams import ByteStream

NAME = "kineto"

# Kineto's categories, the capitalised ones of 2020 among them, and what they are. Any other becomes an annotation.
KINDS = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "mtia_ccp_events": "kernel",
    "hpu_op": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
    "cuda_sync": "sync",
    "xpu_sync": "sync",
    "cuda_event": "sync",
    "gpu_user_annotation": "gpu_annotation",
    "cpu_op": "op",
    "Operator": "op",
    "user_annotation": "annotation",
    "python_function": "python",
    "cuda_runtime": "launch",
    "Runtime": "launch",
    "cuda_driver": "launch",
    "mtia_runtime": "launch",
    "glow_runtime": "launch",
    "xpu_runtime": "launch",
    "xpu_driver": "launch",
    "privateuse1_runtime": "launch",
    "privateuse1_driver": "launch",
    "overhead": "overhead",
    "cpu_instant_event": "instant",
    "hardware_counters": "counter",
    "cuda_profiler_range": "counter",
    "Trace": SKIPPED_WINDOW,
    # What tracekit writes (`tracekit convert --to perfetto`) has these too.
    "graph": "graph",
    "os": "os",
    "tracekit": SKIPPED_OWN,
}

# Top-level keys that are stored. Whatever else a file has there (environments, user metadata) is not.
CAPTURE_KEYS = (
    "record_shapes",
    "with_stack",
    "with_flops",
    "with_modules",
    "profile_memory",
    "cupti_version",
    "cuda_runtime_version",
    "cuda_driver_version",
    "hip_runtime_version",
    "hip_driver_version",
    "roctracer_version",
    "vllm_version",
)
_SQL = Path(__file__).with_suffix(".sql")
_SMALL_FILE = 1 << 20  # not worth a second thread
_SLACK = 1 << 16  # a piece ends at an event: without it a crumb would be left over
_NARROWING = 8
_SMALLEST = PIECE_BYTES // _NARROWING**2
_PROPERTY_NAME = re.compile(r"[A-Za-z]{2,40}")


def accepts(path: Path, head: bytes) -> bool:
    """JSON, whatever the file is called: what is in it shows when it is read."""
    del path
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in {b"{", b"["}


def read(path: Path, spool: Spool, progress: Progress | None = None) -> SourceRead:
    """Read one file into a spool.

    Raises UnknownFormatError for JSON that is no trace, MalformedTraceError for one in which nothing can be read.
    """
    source = SourceRead(path, NAME, spool)
    first_unreadable: int | None = None
    with ByteStream(path) as stream, PieceParser(spool.directory, _SQL, KINDS) as parser:
        array = EventArray(stream, _piece_bytes(stream.expected_bytes, parser.workers))
        parser.renumbered, source.label_ranks = _renumbered(head_object(array.head).get("otherData"))
        for part in _parts(array, parser, spool, lambda: _tell(progress, stream)):
            _count_in(source, part)
            if first_unreadable is None:
                first_unreadable = part.first_unreadable
        source.truncated_at = array.truncated_at
        if stream.cut and source.truncated_at is None and not array.closed_properly:
            source.truncated_at = array.offset
        metadata = head_object(array.head) | (tail_object(array.tail, array.depth) or {})
        source.first_unreadable = first_unreadable
    _describe(source, metadata)
    _refuse_what_is_no_trace(source, bare=array.depth == 0)
    return source


def _piece_bytes(size: int, workers: int) -> int:
    """A size of pieces that gives every worker the same number of them."""
    count = workers * -(-size // (workers * PIECE_BYTES))
    return max(_SMALL_FILE, -(-size // max(1, count)) + _SLACK)


def _tell(progress: Progress | None, stream: ByteStream) -> None:
    if progress is not None:
        progress(stream.progress_bytes(), stream.size_bytes)


def _parts(array: EventArray, parser: PieceParser, spool: Spool, tick: Callable[[], None]) -> Iterator[Part]:
    """Parse pieces ahead, take them in order; on a refusal take back what was ahead and go on exactly."""
    ahead: deque[tuple[Piece, Future[Part]]] = deque()
    while True:
        while len(ahead) <= parser.workers and (piece := array.next_piece()) is not None:
            ahead.append((piece, parser.submit(spool, piece.raw, piece.cut)))
            tick()
        if not ahead:
            return
        piece, future = ahead.popleft()
        try:
            yield future.result()
        except REFUSED:
            for _, later in ahead:
                _forget(later)
            array.push_back(piece, *(later_piece for later_piece, _ in ahead))
            ahead.clear()
            yield from _exactly(array, parser, spool)


def _exactly(array: EventArray, parser: PieceParser, spool: Spool, size: int = PIECE_BYTES) -> Iterator[Part]:
    """The next events, about `size` bytes, with cuts that honour every quote.

    What is refused even so is narrowed down, and only a small part around the damage read event by event: that takes
    fifty times as long.
    """
    piece = array.exact_piece(size)
    if piece is not None:
        try:
            part = parser.submit(spool, piece.raw, piece.cut).result()
        except REFUSED:
            array.push_back(piece)
        else:
            yield part
            return
        end = array.offset + len(piece.raw)
        if size > _SMALLEST:
            while array.offset < end and not array.exhausted:
                yield from _exactly(array, parser, spool, size // _NARROWING)
            return
    scan = array.scan_piece(size)
    yield Part(
        read=scan.read - len(scan.documents),
        skipped=scan.skipped,
        repaired=scan.repaired,
        first_unreadable=scan.first_unreadable,
    )
    yield from _by_halves(scan.documents, parser, spool)


def _by_halves(documents: list[str], parser: PieceParser, spool: Spool) -> Iterator[Part]:
    """Parse mended events; should DuckDB still refuse one, it alone is lost, and counted."""
    text = ",".join(documents).encode(errors="replace")
    try:
        part = parser.submit(spool, text, len(text)).result()
    except REFUSED:
        if len(documents) == 1:
            yield Part(read=1, skipped=Counter({UNREADABLE: 1}))
            return
        middle = len(documents) // 2
        yield from _by_halves(documents[:middle], parser, spool)
        yield from _by_halves(documents[middle:], parser, spool)
    else:
        yield part


def _forget(future: Future[Part]) -> None:
    if future.cancel():
        return
    try:
        part = future.result()
    except REFUSED:
        return
    for run in part.runs.values():
        Spool.discard(run)


def _count_in(source: SourceRead, part: Part) -> None:
    source.read += part.read
    source.skipped.update(part.skipped)
    source.repaired.update(part.repaired)
    source.dropped_args.update(part.dropped_args)
    source.labels |= part.labels
    for name, run in part.runs.items():
        source.spool.accept(name, run)


def _renumbered(other: object) -> tuple[Renumbered, dict[str, int]]:
    """What `tracekit convert --to perfetto` wrote for other processes and threads, and the ranks of its labels.

    Viewers need numbers of their own for these; what reads wrong is left as it is.
    """
    try:
        told = json.loads(other["renumbered"]) if isinstance(other, dict) and "renumbered" in other else {}
        processes = {str(pid): (int(rank), _integer(real)) for pid, (rank, real) in told.get("processes", {}).items()}
        threads = {str(tid): _integer(real) for tid, (real,) in told.get("threads", {}).items()}
    except (ValueError, TypeError, AttributeError):
        return Renumbered(), {}
    several = len({rank for rank, _ in processes.values()}) > 1
    label = {rank: f"rank {rank}" for rank, _ in processes.values()} if several else {}
    known = {pid: (label.get(rank), real) for pid, (rank, real) in processes.items()}
    return Renumbered(known, threads), {text: rank for rank, text in label.items()}


def _describe(source: SourceRead, metadata: dict[str, Any]) -> None:
    """Rank, devices, time base and settings, from the keys around the events."""
    distributed = metadata.get("distributedInfo")
    if isinstance(distributed, dict):
        source.rank = _integer(distributed.get("rank"))
        source.world_size = _integer(distributed.get("world_size"))
    if source.rank is not None and 0 <= source.rank < 1 << 31:
        source.rank_from = "distributedInfo"
    elif (rank := rank_in_name(source.path.name)) is not None:
        source.rank, source.rank_from = rank, "file name"
    else:
        source.rank = None
    source.base_ns = _integer(metadata.get("baseTimeNanoseconds")) or 0
    source.capture = {
        key: metadata[key]
        for key in CAPTURE_KEYS
        if isinstance(metadata.get(key), (int, float))
        or (
            key.endswith("_version")
            and isinstance(metadata.get(key), str)
            and re.fullmatch(r"[\w.+-]{1,40}", metadata[key])
        )
    }
    properties = metadata.get("deviceProperties")
    for position, device in enumerate(properties if isinstance(properties, list) else []):
        if isinstance(device, dict):
            source.devices.append(_device(device, position))


def _device(device: dict[str, Any], position: int) -> dict[str, Any]:
    kept = {
        key: redact(value) if isinstance(value, str) else value
        for key, value in device.items()
        if _PROPERTY_NAME.fullmatch(key) and isinstance(value, (str, int, float)) and key not in {"id", "name"}
    }
    identity = _integer(device.get("id"))
    return {
        "device": position if identity is None else identity,
        "name": redact(str(device.get("name", ""))),
        "properties": kept,
    }


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    try:
        return int(value)
    except ValueError:
        return None


def _refuse_what_is_no_trace(source: SourceRead, *, bare: bool) -> None:
    kept = source.read - sum(source.skipped.values())
    if kept or source.skipped[METADATA]:
        return
    if source.truncated_at is not None:
        raise MalformedTraceError(
            f"{source.path}: the file ends at byte {source.truncated_at} before one event is whole; record it again"
        )
    if source.first_unreadable is not None:
        raise MalformedTraceError(
            f"{source.path}: no event can be read; the first unreadable one is at byte {source.first_unreadable}"
        )
    if bare or source.read:
        raise UnknownFormatError(
            f"{source.path}: a JSON list, but not of trace events (none has a phase `ph` and a time)"
        )
