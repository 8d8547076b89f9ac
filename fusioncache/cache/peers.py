"""Those who compile for this process while it does something else, as the cache sees them.

One compile for all ranks of a job: the first to ask compiles, and the others take what it made.

Nothing depends on it. Ranks may ask for different things, in any order, or not at all; who waits does so for a bounded
time, and a process that waited in vain once compiles alone from then on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from fusioncache.ir import GeneralInstance, Instance, Key
from fusioncache.ir.template import Request
from fusioncache.process import forks
from fusioncache.process.warning import warn
from fusioncache.store import StoredArtifacts


@dataclass(frozen=True, slots=True)
class Ask:
    """What a call is going to ask the store for.

    Attributes:
        key: under which the store will have it.
        request: what is asked for.
        instance: the region that is compiled if it is not there.
        made: the region as an instance of the general one whose code its own is to be made of; None if it is compiled
            alone.
    """

    key: Key
    request: Request
    instance: Instance
    made: GeneralInstance | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """How a call came by what it asked a helper for.

    Attributes:
        beside: whether a helper made it.
        here: seconds that this process spent on making it before, while it waited for something else.
        on_others: seconds of this wait that this process spent on making other things.
        on_start: seconds of this wait in which a compiler started, in this process or beside it.
    """

    beside: bool = False
    here: float = 0.0
    on_others: float = 0.0
    on_start: float = 0.0


class Helpers(Protocol):
    """Compiles what it is asked for, and puts it into the store. Nothing depends on it, and it raises nothing."""

    def get_ready(self) -> None:
        """Starts what compiles, because a program is about to be traced. Waits for nothing."""

    def hand_over(self, asks: Sequence[Ask]) -> int:
        """Has these compiled, as far as the store does not have them, and returns how many will be."""

    def hand_over_later(self, asks: Sequence[Ask], on_done: Callable[[], object]) -> int:
        """Has these compiled while nothing else is, and returns how many will be. Each that ends calls ``on_done``."""

    def expect(self, asks: Callable[[], Sequence[Ask]], handed_over: Callable[[int], object]) -> None:
        """Has these compiled, and says how many, if anything that calls ask for turns out to be missing.

        For a program that was loaded the store has them all, as a rule. Then nothing is asked.
        """

    def note_missing(self) -> bool:
        """Hands over what was expected, as the store lacks something that a call asks for; returns whether it did."""

    def wait_for(self, key: Key) -> Wait:
        """Waits for a helper that makes this, for a bounded time, if there is one.

        Meanwhile this process makes something else that no process has begun. Afterwards no helper begins with what was
        asked for any more, so that the caller can compile it.
        """


logger = logging.getLogger("fusioncache")

WAIT_SECONDS = 120.0
"""How long a rank waits for another one to compile a template."""

_PREFIX = "fusioncache"


class RankTurn:
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
    def turn(self, key: Key, backend: str) -> Iterator[RankTurn]:
        """Waits for the rank that compiles this already, if one does. Raises nothing of its own."""
        turn = self._turn(f"{key.digest}.{backend}")
        try:
            yield turn
        finally:
            turn.publish(None)

    def _turn(self, name: str) -> RankTurn:
        alone = self._given_up or (self._parents is not None and self._parents is find_default_store())
        store = None if alone else find_job_store()
        if store is None:
            return RankTurn()
        try:
            if store.add(f"{name}/claims", 1) == 1:
                return RankTurn(None, store, name)
            store.wait([f"{name}/made"], timedelta(seconds=self._wait_seconds))
            made = bytes(store.get(f"{name}/made"))
            return RankTurn(unpack(made) if made else None)
        except Exception as error:  # whatever it is, this rank can compile for itself
            self._given_up = True
            logger.info("waited for another rank in vain", exc_info=error)
            warn(f"another rank did not share what it compiles; from now on this one compiles: {error}")
            return RankTurn()


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
