"""Helpers that compile nothing and record their requests."""

from collections.abc import Callable, Sequence

from fusioncache.cache.peers import Helpers, StoreRequest, Wait
from fusioncache.ir import Key


class Recorder(Helpers):
    """Records requests that are handed over, now and for later, and keys that calls wait for, by the keys' digests.

    Attributes:
        warned: how often a program was about to be traced or filled in.
    """

    def __init__(self) -> None:
        self.handed: dict[str, StoreRequest] = {}
        self.later: dict[str, StoreRequest] = {}
        self.wanted: set[str] = set()
        self.warned = 0

    def get_ready(self) -> None:
        self.warned += 1

    def hand_over(self, requests: Sequence[StoreRequest]) -> int:
        self.handed |= {request.key.digest: request for request in requests}
        return len(requests)

    def hand_over_later(self, requests: Sequence[StoreRequest], on_done: Callable[[], object]) -> int:
        new = {request.key.digest: request for request in requests if request.key.digest not in self.later}
        self.later |= new
        for _ in new:
            on_done()
        return len(new)

    def wait_for(self, key: Key) -> Wait:
        self.wanted.add(key.digest)
        return Wait()
