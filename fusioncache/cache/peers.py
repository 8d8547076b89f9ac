"""Interface of the helpers that compile in the background for a cache, and sharing of compiles among a job's ranks.

Among ranks the first to request a compile does it, and the others receive the artifacts.

Both are optional. Ranks may request different things, in any order, or nothing; each wait is bounded, and a rank whose
wait failed once compiles alone from then on.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from fusioncache.ir import GeneralInstance, Instance, Key
from fusioncache.ir.template import Request
from fusioncache.process import forks
from fusioncache.process.warning import log_errors, logger, warn
from fusioncache.store import StoredArtifacts


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A store request that a call will make.

    Attributes:
        key: of the entry in the store.
        request: the request, for another process.
        instance: the region to compile if the store lacks the entry.
        as_general: the region as an instance of a general one, if its code is derived from that one's; else None.
    """

    key: Key
    request: Request
    instance: Instance
    as_general: GeneralInstance | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """The outcome of a call's wait for a helper.

    Attributes:
        by_helper: whether a helper compiled it.
        seconds_here: seconds that this process spent earlier on compiling it, while it waited for something else.
        seconds_on_others: seconds of this wait that this process spent on compiling other things.
        start_seconds: seconds of this wait in which a compiler started, in this process or in a helper.
    """

    by_helper: bool = False
    seconds_here: float = 0.0
    seconds_on_others: float = 0.0
    start_seconds: float = 0.0


class Helpers(Protocol):
    """Compiles what is requested, and stores it. Helpers are optional and raise no errors."""

    def get_ready(self) -> None:
        """Starts the compiling processes, because a program is about to be traced or filled in. Does not wait."""

    def hand_over(self, requests: Sequence[StoreRequest]) -> int:
        """Requests compiles of what the store lacks, and returns how many there will be."""

    def hand_over_later(self, requests: Sequence[StoreRequest], on_done: Callable[[], object]) -> int:
        """Requests compiles for when helpers are idle; returns how many. Calls ``on_done`` as each one ends."""

    def expect(self, requests: Callable[[], Sequence[StoreRequest]], handed_over: Callable[[int], object]) -> None:
        """Notes requests to hand over once a call's entry is missing; ``handed_over`` then receives their number.

        The store usually has all entries of a loaded program. Then ``requests`` is not called.
        """

    def note_missing(self) -> bool:
        """Hands over the expected requests, because a call's entry is missing; returns whether it did."""

    def wait_for(self, key: Key) -> Wait:
        """Waits for a helper that compiles this, if there is one, for a bounded time.

        Meanwhile this process compiles other requests that no process has begun. Afterwards no helper begins this
        request, so that the caller can compile it.
        """


WAIT_SECONDS = 120.0
"""How long a rank waits for another rank's compile."""

_PREFIX = "fusioncache"


class RankTurn:
    """A rank's turn to compile something.

    Attributes:
        artifacts: those that another rank compiled, with their seconds; None if this rank has to compile.
    """

    __slots__ = ("_name", "_store", "artifacts")

    def __init__(self, artifacts: StoredArtifacts | None = None, store: Any = None, name: str = ""):
        self.artifacts = artifacts
        self._store = store
        self._name = name

    def publish(self, artifacts: StoredArtifacts | None) -> None:
        """Sends the artifacts to the waiting ranks; None makes them compile for themselves. Never raises."""
        store, self._store = self._store, None
        if store is None:
            return
        with log_errors("other ranks wait for %s in vain", self._name):
            store.set(f"{self._name}/made", b"" if artifacts is None else pack(artifacts))


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
        """Stops sharing in a forked child: on the parent's connection answers would get mixed up."""
        self._parents = find_default_store() if "torch.distributed" in sys.modules else None

    @contextmanager
    def turn(self, key: Key, backend: str) -> Iterator[RankTurn]:
        """Waits for a rank that compiles this already, if there is one. Raises no errors of its own."""
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
            content = bytes(store.get(f"{name}/made"))
            return RankTurn(unpack(content) if content else None)
        except Exception as error:  # any: this rank can compile for itself
            self._given_up = True
            logger.info("waited for another rank in vain", exc_info=error)
            warn(f"another rank did not share what it compiles; from now on this one compiles: {error}")
            return RankTurn()


def pack(artifacts: StoredArtifacts) -> bytes:
    """Returns artifacts as one message: a digest, a line with seconds, names and lengths, and the contents."""
    head = [artifacts.seconds, [[name, len(content)] for name, content in artifacts.items()]]
    content = json.dumps(head).encode() + b"\n" + b"".join(artifacts.values())
    return hashlib.sha256(content).digest() + content


def unpack(message: bytes) -> StoredArtifacts:
    """Returns the artifacts of a message.

    Raises:
        ValueError: if the message is damaged.
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
    """Returns the key-value store of a job's ranks; None if there is no job of several ranks."""
    import torch.distributed as distributed

    store = find_default_store()
    return None if store is None or distributed.get_world_size() < 2 else distributed.PrefixStore(_PREFIX, store)


def find_default_store() -> Any:
    """Returns torch's default store of this process's job, where its ranks meet; None if there is no job."""
    import torch.distributed as distributed

    there = distributed.is_available() and distributed.is_initialized()
    return distributed.distributed_c10d._get_default_store() if there else None
