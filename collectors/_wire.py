"""JSON objects, one a line, over a Unix socket: the collector's end of a connection."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

_READ = 1 << 16
_LONGEST_LINE = 1 << 22
_SENDING_S = 2.0  # a stopped process reads nothing; its few short messages fit into the socket's buffer


class Peer:
    """One connection. Messages are objects; what is none ends the connection."""

    def __init__(self, link: socket.socket) -> None:
        link.settimeout(_SENDING_S)
        self.link = link
        self.pid = peer_of(link)[0]
        self._rest = b""

    def fileno(self) -> int:
        """For a selector."""
        return self.link.fileno()

    def read(self) -> Iterator[dict[str, Any]]:
        """Messages that have come. To be called when there is something to read.

        Raises ConnectionError at the end and when the other side talks nonsense.
        """
        try:
            data = self.link.recv(_READ)
        except OSError as error:
            raise ConnectionError(str(error)) from error
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError as error:
                raise ConnectionError("not JSON") from error
            if not isinstance(message, dict):
                raise ConnectionError("not an object")
            yield message
        if not data or len(self._rest) > _LONGEST_LINE:
            raise ConnectionError("ended")

    def send(self, message: dict[str, Any]) -> None:
        """Send, if the other side is there; that it has gone is noticed when reading."""
        try:
            self.link.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def close(self) -> None:
        """End the connection."""
        self.link.close()


def peer_of(link: socket.socket) -> tuple[int, int]:
    """Process and user at the other end; 0 and our own user where the system does not tell."""
    kind = getattr(socket, "SO_PEERCRED", None)
    if kind is None:
        return 0, os.getuid()
    pid, user, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, kind, struct.calcsize("3i")))
    return int(pid), int(user)
