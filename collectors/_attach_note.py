"""A note of ours that a server is recording for us, so that a second recording does not begin on top of the first.

An engine that is asked to record again before it has answered the stop of an earlier recording may end itself, and few
refuse. The note is there from the start until the stop is answered, which may be long after the files are whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tracekit.collectors._engine_api import Address
from tracekit.collectors._server_process import Identity, identity_of, is_running
from tracekit.collectors._session_folder import runtime_folder
from tracekit.errors import CaptureError, UsageError

_OLD_S = 600.0  # nobody learns of an answer after we have ended; servers take minutes


class Note:
    """The note on one server. What cannot be written is left: it protects, and nothing depends on it."""

    def __init__(self, address: Address, server: Identity | None) -> None:
        self._address, self._server = address, server
        place = f"here:{address.port}" if server is not None else str(address)
        self._name = f"attach-{hashlib.sha256(place.encode()).hexdigest()[:16]}"
        self._path: Path | None = None

    def check(self) -> None:
        """Raise CaptureError if an earlier recording of this server is not over."""
        try:
            path = runtime_folder() / self._name
            age = time.time() - path.stat().st_mtime
            said = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, UsageError):  # none, or no place for any
            return
        if not isinstance(said, dict) or age > _OLD_S or _identity(said.get("server")) != self._server:
            return
        collector = _identity(said.get("collector"))
        if collector is not None and collector[0] != os.getpid() and is_running(collector):
            raise CaptureError(f"{self._address} is being recorded by another tracekit, process {collector[0]}")
        raise CaptureError(
            f"{self._address} was told {age:.0f} s ago to end an earlier recording, and had not answered yet; a second "
            f"one on top may end the server. Once its log says that the profiler has stopped, remove {path}"
        )

    def write(self) -> None:
        """From now on."""
        with suppress(OSError, UsageError):
            folder = runtime_folder()
            for path in folder.glob("attach-*"):  # of servers whose answer nobody waited for
                if time.time() - path.stat().st_mtime > _OLD_S:
                    path.unlink()
            path = folder / self._name
            path.write_text(json.dumps({"collector": identity_of(os.getpid()), "server": self._server}))
            self._path = path

    def remove(self) -> None:
        """The recording is over."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()


def _identity(value: Any) -> Identity | None:
    match value:
        case [int(pid), int(start)]:
            return pid, start
    return None
