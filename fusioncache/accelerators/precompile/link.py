"""The connection of a process to the nursery of its crew."""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import socket
import subprocess
import threading
import weakref
from contextlib import suppress
from typing import Any, Protocol

from fusioncache.accelerators.precompile import nursery
from fusioncache.accelerators.precompile.channel import encode, make_pair
from fusioncache.accelerators.precompile.offspring import start_module
from fusioncache.process import forks

logger = logging.getLogger("fusioncache")

END_SECONDS = 5.0
"""How long a nursery may take to end."""

_MODULE = "fusioncache.accelerators.precompile.nursery"


class Listener(Protocol):
    """Whoever is told what a nursery says, by a thread of its link."""

    def hear(self, message: Any) -> None:
        """Takes in what the nursery says."""

    def lose(self, link: Link, *, failed: bool) -> None:
        """Takes note that the nursery is gone, and whether it failed."""


class Link:
    """The connection to a nursery: a thread that speaks, one that listens.

    Args:
        listener: is told what is heard.
        arguments: of the nursery.
        quiet: whether nobody is to see what it writes to stderr.

    Raises:
        OSError: if it does not start.

    Attributes:
        open: whether the nursery hands out what it is given.
        pid: the nursery's process.
    """

    def __init__(self, listener: Listener, arguments: list[str], quiet: bool):
        self.open = False
        mine, its = make_pair()
        try:
            self._process = start_module(_MODULE, [str(os.getpid()), *arguments], its, quiet=quiet)
        except OSError:
            mine.close()
            raise
        self.pid: int = self._process.pid
        self._connection = mine
        self._ended = False
        self._unsent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._queued = 0
        self._lock = forks.lock()
        _links.add(self)
        listening = threading.Thread(target=self._listen, args=(listener,), daemon=True, name="fusioncache crew")
        listening.start()
        threading.Thread(target=self._speak, daemon=True, name="fusioncache crew").start()

    def send(self, message: Any) -> None:
        """Sends a message, now if that goes without waiting: a compiler may keep the thread from it for long.

        Whether it arrives is heard, or not.
        """
        content = encode(message)
        with self._lock:
            if not self._queued:
                try:
                    content = content[self._connection.send(content, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    pass
                except OSError:
                    return
            if content:
                self._queued += 1
                self._unsent.put(content)

    def end(self) -> None:
        """Ends the nursery, which ends its workers."""
        if self._ended:
            return
        self._ended = True
        _links.discard(self)
        self._unsent.put(None)
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(END_SECONDS if self.open else 0.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def leave(self) -> None:
        """Closes what a forked child has of the connection: its parent's end is to be the only one."""
        self._ended = True
        _links.discard(self)
        self._connection.close()
        self._process.returncode = 0  # it is no child of this process, which must not wait for it

    def _speak(self) -> None:
        while (content := self._unsent.get()) is not None:
            try:
                self._connection.sendall(content)
            except OSError:
                return
            with self._lock:
                self._queued -= 1

    def _listen(self, listener: Listener) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    message = json.loads(line)
                    self.open |= message == [nursery.OPEN]
                    listener.hear(message)
        except (OSError, ValueError) as error:
            logger.info("a crew is not understood", exc_info=error)
        finally:
            self._unsent.put(None)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
            listener.lose(self, failed=self._process.returncode != 0)
            self._connection.close()


_links: weakref.WeakSet[Link] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Ends all nurseries before this process does. They would end by themselves, a moment later."""
    for each in list(_links):
        each.end()
