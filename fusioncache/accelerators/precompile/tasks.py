"""What a worker is given to compile, as data that a message can carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusioncache.accelerators.precompile.requests import StoredRequest
from fusioncache.cache.peers import Ask
from fusioncache.ir.request import decode_region, decode_request, encode_region, encode_request


@dataclass(frozen=True, slots=True)
class EntryTask:
    """To compile what an entry of the store asks for.

    Attributes:
        id: of the entry.
        weight: how long it takes, compared with others.
        device: the number of the GPU that it is for; None if that does not matter.
    """

    id: str
    weight: float = 0.0
    device: int | None = None

    def encode(self) -> list[Any]:
        """Returns it as the content of a message."""
        return ["entry", self.id]


@dataclass(frozen=True, slots=True)
class RequestTask:
    """To compile what a call is going to ask for.

    Attributes:
        ask: what it is going to ask for.
        device: the number of the GPU that it runs on; None if it runs on none.
    """

    ask: Ask
    device: int | None = None

    @property
    def weight(self) -> float:
        """How long it takes, compared with others: compilers take more than twice as long for twice as much."""
        graph = self.ask.request.graph
        return float(len(graph.ops) * (len(graph.inputs) + len(graph.outputs)))

    def encode(self) -> list[Any]:
        """Returns it as the content of a message."""
        texts = encode_request(self.ask.request).decode(), encode_region(self.ask.instance).decode()
        return ["request", *texts, self.ask.key.digest, self.device]


Task = EntryTask | RequestTask


@dataclass(frozen=True, slots=True)
class Received:
    """A request as a worker received it.

    Attributes:
        stored: what to compile.
        digest: of the key that the result has to have.
        device: the number of the GPU to compile on; None if that is for none.
    """

    stored: StoredRequest
    digest: str
    device: int | None


def decode(content: list[Any]) -> str | Received:
    """Reads a task: the id of an entry, or a request.

    Raises:
        ValueError: if it is neither.
    """
    match content:
        case ["entry", str(id_)]:
            return id_
        case ["request", str(asked), str(region), str(digest), int() | None as device]:
            stored = StoredRequest(decode_request(asked), decode_region(region))
            return Received(stored, digest, device)
    raise ValueError("a task of an unknown kind")
