"""Messages between two processes: lines of JSON over a socket.

Sockets and pipes of the kernel's are all that is used: nothing in shared memory, and no file that somebody must remove.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

_CHUNK = 1 << 16


class Channel:
    """One end of a connection, of which neither sending nor receiving waits for the other end.

    Args:
        connection: the end. It does not block from now on.
    """

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        self._connection = connection
        self._received = b""
        self._unsent = bytearray()

    def fileno(self) -> int:
        """Returns the descriptor, for those who select."""
        return self._connection.fileno()

    @property
    def full(self) -> bool:
        """Whether something is still to be sent: see ``flush``."""
        return bool(self._unsent)

    def send(self, message: Any) -> None:
        """Sends a message, as far as that goes now; ``flush`` sends the rest.

        Raises:
            OSError: if the other end is gone.
        """
        self._unsent += encode(message)
        self.flush()

    def flush(self) -> None:
        """Sends what is still to be sent, as far as that goes now.

        Raises:
            OSError: if the other end is gone.
        """
        while self._unsent:
            try:
                sent = self._connection.send(self._unsent)
            except BlockingIOError:
                return
            del self._unsent[:sent]

    def receive(self) -> list[Any] | None:
        """Returns the messages that are there; None if there will be no more.

        Raises:
            ValueError: if something else than messages was sent.
        """
        chunks = [self._received]
        ended = False
        while True:
            try:
                chunk = self._connection.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            if not chunk:
                ended = True
                break
            chunks.append(chunk)
        *lines, self._received = b"".join(chunks).split(b"\n")
        return None if ended and not lines else [json.loads(line) for line in lines]

    def close(self) -> None:
        """Closes this end. The other one finds that there will be no more."""
        self._connection.close()


def encode(message: Any) -> bytes:
    """Writes a message as a line."""
    return json.dumps(message).encode() + b"\n"


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Makes a connection and returns its two ends. No process that is started inherits either by itself."""
    return socket.socketpair()


def connect_to(descriptor: int) -> socket.socket:
    """Returns the end of a connection that a process was started with."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)
