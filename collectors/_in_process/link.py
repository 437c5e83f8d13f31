"""The connection of this process to the collector: JSON objects, one a line, over a Unix socket of the user's own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
from typing import Any

_CONNECT_S = 5.0


class Link:
    """Facts out by `tell`, from any thread; commands in by `receive`, from one. Loss of the collector is no error."""

    def __init__(self, folder: str) -> None:
        self.address = os.path.join(folder, "socket")
        self.lock = threading.RLock()  # a signal's handler may tell while this thread does
        self.socket: socket.socket | None = None
        self.identity: tuple[int, int] | None = None
        self.pending = b""

    def connect(self) -> bool:
        """Whether the collector is there."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(_CONNECT_S)
        try:
            link.connect(self.address)
        except OSError:
            link.close()
            return False
        self.socket, self.pending = link, b""
        self.identity = _identity(link)
        return True

    def there(self) -> socket.socket | None:
        """The socket, unless the program has closed its descriptor, as daemons do; it may be another's by now."""
        link = self.socket
        if link is not None and _identity(link) != self.identity:
            link.detach()
            link = self.socket = None
        return link

    def tell(self, say: str, **facts: Any) -> None:
        """Send one line."""
        line = json.dumps({"say": say, **facts}).encode() + b"\n"
        with self.lock, contextlib.suppress(OSError):
            link = self.there()
            if link is not None:
                link.sendall(line)

    def receive(self, timeout: float | None) -> dict[str, Any] | None:
        """The next command; None after `timeout` seconds without one. Raises EOFError if the collector is gone."""
        while b"\n" not in self.pending:
            try:
                link = self.there()
                if link is None:
                    raise EOFError
                waiting = select.poll()  # select itself knows no descriptor above 1023
                waiting.register(link, select.POLLIN)
                if not waiting.poll(None if timeout is None else timeout * 1000):
                    return None
                if self.there() is None:
                    raise EOFError
                received = link.recv(65536)
            except OSError as error:
                raise EOFError from error
            if not received:
                raise EOFError
            self.pending += received
        line, _, self.pending = self.pending.partition(b"\n")
        command: dict[str, Any] = json.loads(line)
        return command

    def close(self) -> None:
        """End the connection; the collector takes that for the end of the process."""
        with self.lock:
            link, self.socket = self.there(), None
            if link is not None:
                link.close()

    def in_fork(self) -> int:
        """Make it usable in a forked process: the lock may have been held by a thread that is not here.

        Returns the descriptor, -1 if there is none.
        """
        self.lock = threading.RLock()
        link = self.there()
        return -1 if link is None else link.fileno()

    def after_fork(self) -> None:
        """Leave the parent's connection to the parent."""
        self.in_fork()
        self.close()


def _identity(link: socket.socket) -> tuple[int, int] | None:
    """What the descriptor stands for."""
    try:
        found = os.fstat(link.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino
