"""Talk to a running capture from another terminal: what `tracekit collect --control` does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from tracekit.collectors._session_folder import SessionFolder, connect, running_sessions
from tracekit.collectors._wire import Peer
from tracekit.errors import CaptureError, UsageError

Request = Literal["start", "stop", "status"]

_NONE_RUNS = (
    "no capture runs; begin one that waits for --control start: tracekit collect --paused -- COMMAND, as this user "
    "and on this machine"
)


def control(do: Request, *, session: int | None, timeout: float, say: Callable[[str], None]) -> str:
    """Send a request, and wait for what it asks for to have happened; returns what the collector says of it.

    session: pid of the collector, None where only one runs. timeout: seconds. Raises CaptureError, UsageError.
    """
    folder = _chosen(session)
    try:
        link = connect(folder)
    except OSError as error:
        raise CaptureError(f"the capture {folder.path.name} does not answer: {error}") from error
    peer = Peer(link)
    try:
        peer.send({"say": "control", "do": do})
        return _answer(peer, timeout, say)
    finally:
        peer.close()


def _chosen(session: int | None) -> SessionFolder:
    running = running_sessions()
    names = ", ".join(folder.path.name for folder in running)
    if session is not None:
        for folder in running:
            if folder.path.name == str(session):
                return folder
        raise CaptureError(f"no capture with the pid {session} runs; there are: {names}" if running else _NONE_RUNS)
    if not running:
        raise CaptureError(_NONE_RUNS)
    if len(running) > 1:
        listed = "".join(f"\n  {one.path.name}  since {one.since}  {one.output}" for one in running)
        raise UsageError(f"{len(running)} captures run; name one by --session PID:{listed}")
    return running[0]


def _answer(peer: Peer, timeout: float, say: Callable[[str], None]) -> str:
    until = time.monotonic() + timeout
    while (left := until - time.monotonic()) > 0:
        peer.link.settimeout(left)
        try:
            for message in peer.read():
                if "tell" in message:
                    say(str(message["tell"]))
                elif message.get("done"):
                    if not message.get("ok"):
                        raise CaptureError(str(message.get("text", "")))
                    return str(message.get("text", ""))
        except ConnectionError as error:
            if isinstance(error.__cause__, TimeoutError):
                break
            raise CaptureError("the capture ended without an answer; look where it runs") from error
    raise CaptureError(
        f"no answer within {timeout:.0f} s (--timeout); the capture goes on, ask for its --control status"
    )
