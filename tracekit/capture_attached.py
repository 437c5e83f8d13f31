"""What a server recorded of itself becomes one trace, and is described."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.capture_files import count_rows, keep_parts, move_in, same_file
from tracekit.capture_gates import no_kernels, unconverted
from tracekit.capture_summary import Counts, size
from tracekit.errors import CaptureError, TracekitError
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.collectors.attach import Attached


def convert_attached(
    attached: Attached, output: Path, keep_raw: Path | None, folder: Path, say: Callable[[str], None]
) -> list[str]:
    """Convert the files into `output`, and say what is in it. Returns what it lacks.

    Files below `folder` are ours and go; others are the server's and stay. A folder keep_raw gets them, or copies.
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
    say(f"Recorded {counted(len(counts), 'rank')}:")
    for rank, one in sorted(counts.items()):
        events, steps = counted(one.events, "event"), counted(one.steps, "step")
        say(f"  rank {rank}: {events}, {one.device:,} of the device, {steps}")
    written = f"Wrote {output} ({size(draft.stat().st_size)})"
    draft.replace(output)
    say(written)
    _keep(ours, [path for path in attached.files if path not in ours], keep_raw, folder, say)
    if unfinished := attached.unfinished():
        say(f"{unfinished}.")
    return partial


def _convert(attached: Attached, partial: list[str], draft: Path) -> tuple[dict[int, Counts], int, int]:
    """Convert; rows of each rank, launches of kernels, kernels."""
    from tracekit.convert import convert

    capture = {**attached.capture, "partial": partial}
    convert(attached.files, draft, force=True, allow_partial=True, ranks=attached.ranks or None, capture=capture)
    return count_rows(draft)


def _keep(
    ours: Sequence[Path], servers: Sequence[Path], keep_raw: Path | None, folder: Path, say: Callable[[str], None]
) -> None:
    """Move our files and copy the server's into keep_raw; say where the server's are. folder: temporary."""
    copied = [path for path in servers if keep_raw is not None and not same_file(path.parent, keep_raw)]
    if keep_raw is not None and (ours or copied):
        keep_raw.mkdir(exist_ok=True)
        for path in ours:
            move_in(path, keep_raw)
        for path in copied:  # by way of a folder of ours, so that no half file has a final name
            move_in(Path(shutil.copy2(path, folder / path.name)), keep_raw)
        say(f"Wrote {keep_raw}: the profiler's own files; they may hold secrets")
    if servers:
        say(f"The profiler's own files {'also ' * bool(copied)}stay where the server wrote them: {servers[0].parent}")
