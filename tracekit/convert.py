"""Trace files of any known format into one Parquet file."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

from tracekit import __version__
from tracekit.assemble import Assembler
from tracekit.errors import MalformedTraceError, TruncatedTraceError, UnknownFormatError, UsageError
from tracekit.event_table import EventWriter
from tracekit.footer import DeviceInfo, Footer, Ledger, SourceInfo
from tracekit.join import LEFT_APART, merge, same_processes
from tracekit.ranks import Ranks, assign_ranks
from tracekit.registry import readers
from tracekit.source import Reader, SourceRead
from tracekit.spool import Spool
from tracekit.step_marks import Dialects
from tracekit.step_sources import steps_in_spools
from tracekit.steps import RULES, Membership
from tracekit.streams import head_of

# Called with a file, bytes of it read so far, and its size.
FileProgress = Callable[[Path, int, int], None]


class _TwiceError(UsageError):
    """Two files hold the same recording."""


def convert(
    paths: Sequence[Path | str],
    out: Path | str,
    *,
    allow_partial: bool = False,
    force: bool = False,
    progress: FileProgress | None = None,
    step_range: str | None = None,
    ranks: Mapping[Path, int] | None = None,
    capture: Mapping[str, object] | None = None,
) -> Footer:
    """Read trace files, and directories of them, into the Parquet file `out`; returns its footer.

    step_range: a regular expression; annotations whose name it matches (`re.search`) are the serving steps, instead of
    the marks of known engines. ranks: of files, by the path they are read by, whatever they say or are named; several
    may have the same. capture: what the recorder knows, JSON values, stored in `Footer.capture` over what files say.

    `out` appears when it is complete. Raises UsageError (nothing to read, `out` exists), UnknownFormatError,
    MalformedTraceError; and TruncatedTraceError, after the whole events of a file that ends early have been written,
    unless `allow_partial`.
    """
    out = Path(out)
    Dialects.of(step_range)  # a mistake in it is told before the work is done
    known = list(readers().values())
    files = _files([Path(path) for path in paths], known)
    if out.exists() and any(out.samefile(path) for path in [*files.named, *files.from_directory]):
        raise UsageError(f"{out} is one of the files to read: write to another")
    writer = EventWriter(out, force=force)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".spool", dir=out.parent) as spool:
            sources = _read(files, known, Path(spool), progress)
            footer = _write(sources, writer, files, step_range, ranks or {})
        footer = replace(footer, capture=_with(footer.capture, capture or {}))
        writer.finish(footer)
    finally:
        writer.abandon()
    _report_truncation(footer, allow_partial)
    return footer


def _with(said: Mapping[str, object], known: Mapping[str, object]) -> dict[str, object]:
    """What the recorder knows over what files say; what is missing by either is missing."""
    missing = [one for facts in (known, said) for one in cast("Sequence[str]", facts.get("partial") or ())]
    return {**said, **known} | ({"partial": list(dict.fromkeys(missing))} if missing else {})


@dataclass(slots=True)
class _Files:
    """What was asked for. `from_directory` files may turn out to be something else; named ones may not."""

    named: list[Path] = field(default_factory=list)
    from_directory: list[Path] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)


def _files(paths: Sequence[Path], known: Sequence[Reader]) -> _Files:
    files = _Files()
    for path in paths:
        if path.is_dir() and not _is_source(path, known):
            files.from_directory += _found_in(path, known)
        elif path.exists():
            files.named.append(path)
        else:
            raise UsageError(f"{path}: no such file or directory")
    if not files.named and not files.from_directory:
        raise UsageError(f"no files in {', '.join(map(str, paths)) or 'nothing'}")
    return files


def _found_in(directory: Path, known: Sequence[Reader]) -> Iterator[Path]:
    """All files below a directory that are not tracekit's own, and directories that are one recording."""
    for child in sorted(directory.iterdir()):
        if child.name.startswith("."):
            continue
        if child.is_dir() and not _is_source(child, known):
            yield from _found_in(child, known)
        elif child.is_dir() or (child.is_file() and child.suffix != ".parquet"):
            yield child


def _is_source(directory: Path, known: Sequence[Reader]) -> bool:
    """Whether a directory as a whole is one recording."""
    return any(reader.accepts(directory, b"") for reader in known)


def _read(files: _Files, known: Sequence[Reader], spool: Path, progress: FileProgress | None) -> list[SourceRead]:
    sources: list[SourceRead] = []
    for number, path in enumerate([*files.named, *files.from_directory]):
        directory = spool / str(number)
        directory.mkdir()
        try:
            source = _read_one(path, Spool(directory), known, progress)
            _refuse_same_recording(source, sources)
        except (UnknownFormatError, MalformedTraceError, _TwiceError) as error:
            if path in files.named:
                raise
            # A folder of traces holds other things too, and a sidecar of 0 bytes is no reason to refuse the rest.
            files.ignored[str(error)] += 1
        else:
            sources.append(source)
    if not sources:
        reasons = sorted(files.ignored)
        more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        raise UnknownFormatError("none of the files is a trace: " + "; ".join(reasons[:3]) + more)
    return sources


def _read_one(path: Path, spool: Spool, known: Sequence[Reader], progress: FileProgress | None) -> SourceRead:
    head = b"" if path.is_dir() else head_of(path)
    if not head.strip() and not path.is_dir():
        raise MalformedTraceError(f"{path}: the file is empty (0 bytes of content); was the profiler stopped?")
    for reader in known:
        if reader.accepts(path, head):
            return reader.read(path, spool, None if progress is None else partial(progress, path))
    if head.startswith(b"PAR1"):
        raise UnknownFormatError(f"{path}: Parquet, not a profiler's file; one made by tracekit is analysed as it is")
    if path.suffix in (".csv", ".ncu-rep"):
        raise UnknownFormatError(
            f"{path}: no trace; what Nsight Compute measured goes beside one, as a table: tracekit analyze TRACE --ncu "
            "metrics.csv"
        )
    names = ", ".join(reader.NAME for reader in known)
    raise UnknownFormatError(
        f"{path}: no reader knows this format; expected is torch.profiler's JSON, plain, .gz or .zst, or a report of "
        f"Nsight Systems, exported or not (readers: {names})"
    )


def _refuse_same_recording(source: SourceRead, others: Sequence[SourceRead]) -> None:
    """A report and its export hold the same events, which must not count twice."""
    for other in others:
        if source.identity is not None and source.identity == other.identity:
            raise _TwiceError(f"{source.path} and {other.path} are the same recording, in two files; give one of them")


def _write(
    sources: list[SourceRead], writer: EventWriter, files: _Files, step_range: str | None, known: Mapping[Path, int]
) -> Footer:
    same, left_apart = same_processes(sources)
    ranks = assign_ranks(sources, known, same)
    sources.sort(key=lambda source: (min(ranks[source.path].values()), source.path.name, str(source.path)))
    clocks = [asdict(merge(one, number)) for number, one in enumerate(same)]
    firsts = [first + source.base_ns for source in sources if (first := source.spool.first_ts()) is not None]
    origin = min(firsts, default=0)
    steps = steps_in_spools(sources, [ranks[source.path] for source in sources], origin, step_range)
    membership = Membership(steps)
    next_id = 0
    by_kind: Counter[str] = Counter()
    notes: Counter[str] = Counter({LEFT_APART: left_apart} if left_apart else {})
    for source in sources:
        assembler = Assembler(source, ranks[source.path], source.base_ns - origin, next_id, membership)
        for table in assembler.tables():
            writer.write(table)
        next_id = assembler.next_id
        by_kind += assembler.by_kind
        if assembler.ambiguous:
            notes["API calls that share a correlation with an earlier one"] += assembler.ambiguous
        shutil.rmtree(source.spool.directory)
    footer = _footer(sources, ranks, origin, by_kind=by_kind, notes=notes, files=files)
    capture = {**footer.capture, "clocks": clocks} if clocks else footer.capture
    return replace(footer, capture=capture, step_rules=RULES, step_range=step_range)


def _footer(
    sources: list[SourceRead],
    ranks: Ranks,
    origin: int,
    *,
    by_kind: Counter[str],
    notes: Counter[str],
    files: _Files,
) -> Footer:
    skipped: Counter[str] = Counter()
    repaired: Counter[str] = Counter()
    dropped_args: Counter[str] = Counter()
    capture: dict[str, object] = {}
    for source in sources:
        skipped += source.skipped
        repaired += source.repaired
        dropped_args += source.dropped_args
        capture |= source.capture
    ledger = Ledger(
        read=sum(source.read for source in sources),
        stored=sum(by_kind.values()),
        by_kind=dict(by_kind),
        skipped=dict(skipped),
        repaired=dict(repaired),
        dropped_args=dict(dropped_args),
        notes=dict(notes),
        ignored_files=sorted(files.ignored),
    )
    return Footer(
        sources=tuple(
            _source_info(source, rank) for source in sources for rank in sorted({*ranks[source.path].values()})
        ),
        devices=_devices(sources, ranks),
        origin_ns=origin,
        capture=capture,
        ledger=ledger,
        tracekit=__version__,
    )


def _devices(sources: list[SourceRead], ranks: Ranks) -> tuple[DeviceInfo, ...]:
    """Each device of a rank once, though each of its files may list it."""
    found: dict[tuple[int, int], DeviceInfo] = {}
    for source in sources:
        for rank in sorted({*ranks[source.path].values()}):
            for device in source.devices:
                info = DeviceInfo(rank, device["device"], device["name"], device["properties"])
                found.setdefault((rank, info.device), info)
    return tuple(found.values())


def _source_info(source: SourceRead, rank: int) -> SourceInfo:
    return SourceInfo(
        path=source.path.name,
        format=source.format,
        rank=rank,
        rank_from=source.rank_from,
        world_size=source.world_size,
        size_bytes=_size(source.path),
        base_ns=source.base_ns,
        truncated_at=source.truncated_at,
    )


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _report_truncation(footer: Footer, allow_partial: bool) -> None:
    cut = [source for source in footer.sources if source.truncated_at is not None]
    if cut and not allow_partial:
        raise TruncatedTraceError(
            f"{cut[0].path} ends early: its events are whole up to byte {cut[0].truncated_at:,} of the (uncompressed) "
            f"file. {footer.ledger.stored:,} events were kept; pass --allow-partial to accept that"
        )
