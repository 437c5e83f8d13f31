"""What a server recorded of itself becomes one trace, and is described."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.capture_files import count_rows, keep_parts, move_in
from tracekit.capture_gates import no_kernels, unconverted
from tracekit.capture_summary import Counts, size
from tracekit.errors import CaptureError, TracekitError

if TYPE_CHECKING:
    from tracekit.collectors.attach import Attached


def convert_attached(
    attached: Attached, output: Path, keep_raw: Path | None, folder: Path, say: Callable[[str], None]
) -> list[str]:
    """Convert the files into `output`, and say what is in it. Returns what it lacks.

    Files below `folder` are ours and go, unless keep_raw names a folder for them; others are the server's and stay.
    Raises CaptureError if they cannot be converted; ours are kept then.
    """
    draft = folder / "draft.parquet"
    ours = [path for path in attached.files if path.is_relative_to(folder)]
    partial = list(attached.partial)
    try:
        counts, launches, kernels = _convert(attached, partial, draft)
        if launches and not kernels:
            partial.append(no_kernels(launches).text)
            _convert(attached, [*attached.partial, no_kernels(launches).stored], draft)
    except TracekitError as error:
        kept = keep_parts(ours, output) if ours else attached.files[0].parent
        raise CaptureError(unconverted(error, kept, output)) from error
    say(f"Recorded {len(counts)} rank{'s' if len(counts) > 1 else ''}:")
    for rank, one in sorted(counts.items()):
        say(f"  rank {rank}: {one.events:,} events, {one.device:,} of the device, {one.steps:,} steps")
    written = f"Wrote {output} ({size(draft.stat().st_size)})"
    draft.replace(output)
    say(written)
    if keep_raw is not None:
        _keep(ours, attached.files, keep_raw, say)
    return partial


def _convert(attached: Attached, partial: list[str], draft: Path) -> tuple[dict[int, Counts], int, int]:
    """Convert; rows of each rank, launches of kernels, kernels."""
    from tracekit.convert import convert

    capture = {**attached.capture, "partial": partial}
    convert(attached.files, draft, force=True, allow_partial=True, ranks=attached.ranks or None, capture=capture)
    return count_rows(draft)


def _keep(ours: list[Path], files: tuple[Path, ...], keep_raw: Path, say: Callable[[str], None]) -> None:
    if ours:
        keep_raw.mkdir(exist_ok=True)
        for path in ours:
            move_in(path, keep_raw)
        say(f"Wrote {keep_raw}: the profiler's own files; they may hold secrets")
    else:
        say(f"The profiler's own files stay where the server wrote them: {files[0].parent}")
