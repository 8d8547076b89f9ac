"""One compile for all ranks of a job: the first to ask compiles, and the others take what it made.

Nothing depends on it. Ranks may ask for different things, in any order, or not at all; who waits does so for a bounded
time, and whoever waited in vain once compiles alone from then on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from fusioncache.ir import Key
from fusioncache.process import forks
from fusioncache.process.warning import warn
from fusioncache.store import StoredArtifacts

logger = logging.getLogger("fusioncache")

WAIT_SECONDS = 120.0
"""How long a rank waits for another one to compile a template."""

_PREFIX = "fusioncache"


class Turn:
    """The turn of a rank to compile something.

    Attributes:
        artifacts: what another rank made of it, and its seconds; None if this one is to compile.
    """

    __slots__ = ("_name", "_store", "artifacts")

    def __init__(self, artifacts: StoredArtifacts | None = None, store: Any = None, name: str = ""):
        self.artifacts = artifacts
        self._store = store
        self._name = name

    def publish(self, artifacts: StoredArtifacts | None) -> None:
        """Gives the artifacts to the ranks that wait. None: they are to compile for themselves. Never raises."""
        store, self._store = self._store, None
        if store is None:
            return
        try:
            store.set(f"{self._name}/made", b"" if artifacts is None else pack(artifacts))
        except Exception as error:
            logger.info("other ranks wait for %s in vain", self._name, exc_info=error)


class Ranks:
    """The processes of a ``torch.distributed`` job, if there is one.

    Args:
        wait_seconds: how long to wait for another rank.
    """

    def __init__(self, wait_seconds: float = WAIT_SECONDS):
        self._wait_seconds = wait_seconds
        self._given_up = False
        self._parents: Any = None
        forks.register(self)

    def after_fork(self) -> None:
        """A forked child is no rank of its parent's job: on one connection answers get mixed up."""
        self._parents = find_default_store() if "torch.distributed" in sys.modules else None

    @contextmanager
    def turn(self, key: Key, backend: str) -> Iterator[Turn]:
        """Waits for the rank that compiles this already, if one does. Raises nothing of its own."""
        turn = self._turn(f"{key.digest}.{backend}")
        try:
            yield turn
        finally:
            turn.publish(None)

    def _turn(self, name: str) -> Turn:
        alone = self._given_up or (self._parents is not None and self._parents is find_default_store())
        store = None if alone else find_job_store()
        if store is None:
            return Turn()
        try:
            if store.add(f"{name}/claims", 1) == 1:
                return Turn(None, store, name)
            store.wait([f"{name}/made"], timedelta(seconds=self._wait_seconds))
            made = bytes(store.get(f"{name}/made"))
            return Turn(unpack(made) if made else None)
        except Exception as error:  # whatever it is, this rank can compile for itself
            self._given_up = True
            logger.info("waited for another rank in vain", exc_info=error)
            warn(f"another rank did not share what it compiles; from now on this one compiles: {error}")
            return Turn()


def pack(artifacts: StoredArtifacts) -> bytes:
    """Writes artifacts as one message: a line with their seconds, names and lengths, then their contents."""
    head = [artifacts.seconds, [[name, len(content)] for name, content in artifacts.items()]]
    content = json.dumps(head).encode() + b"\n" + b"".join(artifacts.values())
    return hashlib.sha256(content).digest() + content


def unpack(message: bytes) -> StoredArtifacts:
    """Reads the artifacts of a message.

    Raises:
        ValueError: if it arrived damaged.
    """
    digest, content = message[:32], message[32:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError("what another rank sent has a wrong checksum")
    head, _, rest = content.partition(b"\n")
    artifacts, start = {}, 0
    seconds, names = json.loads(head)
    for name, length in names:
        artifacts[name] = rest[start : start + length]
        start += length
    return StoredArtifacts(artifacts, seconds)


def find_job_store() -> Any:
    """The store that the ranks of a job share; None if there is no job of several ranks."""
    import torch.distributed as distributed

    store = find_default_store()
    return None if store is None or distributed.get_world_size() < 2 else distributed.PrefixStore(_PREFIX, store)


def find_default_store() -> Any:
    """What torch's own ranks of this process's job meet at; None if there is no job."""
    import torch.distributed as distributed

    there = distributed.is_available() and distributed.is_initialized()
    return distributed.distributed_c10d._get_default_store() if there else None
