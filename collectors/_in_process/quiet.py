"""Keep the profiler's bookkeeping off the program's stderr.

Kineto prints `ERROR: External init callback must run in same thread as registerClient` where a profiler is started on
another thread than torch was imported on; it means nothing here. Neither can descriptor 2 be pointed elsewhere for the
second that the first start takes, as a process started meanwhile would inherit that. So the C library's variable
`stderr` is, which only C code in this process uses.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHATTER = (b"ERROR: External init callback", b"USDT:", b"STAGE:", b"INFO:")


@contextlib.contextmanager
def c_stderr_filtered() -> Iterator[None]:
    """What C code prints on stderr meanwhile comes afterwards, without the chatter. Does nothing but on Linux."""
    if sys.platform != "linux":
        yield
        return
    import ctypes

    try:
        library = ctypes.CDLL(None)
        variable = ctypes.c_void_p.in_dll(library, "stderr")
        library.fdopen.restype = ctypes.c_void_p
        held = tempfile.TemporaryFile()  # noqa: SIM115  closed below
        stream = library.fdopen(os.dup(held.fileno()), b"w")
    except (OSError, ValueError, AttributeError):
        yield
        return
    with held:
        previous, variable.value = variable.value, stream
        try:
            yield
        finally:
            variable.value = previous
            library.fflush(ctypes.c_void_p(stream))  # not closed: another thread may be about to print to it
            _let_through(held)


@contextlib.contextmanager
def descriptor_filtered(marker: bytes) -> Iterator[None]:
    """Hold back lines with `marker` from descriptor 2 itself, for what C++ prints: for a moment that starts nothing."""
    try:
        held = tempfile.TemporaryFile()  # noqa: SIM115  closed below
        saved = os.dup(2)
    except OSError:  # no temporary folder, or the program closed its stderr
        yield
        return
    with held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            _let_through(held, marker)


def _let_through(held: Any, marker: bytes | None = None) -> None:
    """Print the lines held back, but for chatter."""
    held.seek(0)
    for line in held.read().splitlines(keepends=True):
        if not line.startswith(_CHATTER) and (marker is None or marker not in line):
            with contextlib.suppress(OSError):
                os.write(2, line)
