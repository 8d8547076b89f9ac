"""Who is compared in ``benchmarks/experts``, and what each gets. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.common.ways import Way

EAGER = "eager"


@dataclass(frozen=True, slots=True)
class Peer:
    """A way to run a mixture of experts.

    Attributes:
        name: as in ``--peers``.
        what: litgpt's Mixtral, or one layer: with one grouped product, or with a loop over its experts.
        way: what compiles it; None if nothing does.
    """

    name: str
    what: Literal["model", "grouped", "looped"]
    way: Way | None


_JIT = Way("fusioncache", "thunder.jit", shares=True)
_SHARED = Way("fusioncache", "thunderfx", shares=True)
_COMPILED = Way("torch.compile", "torch.compile")
_ALL = (
    Peer("fusioncache", "model", _SHARED),
    Peer("torch.compile", "model", _COMPILED),
    Peer("thunder", "model", Way("thunder", "thunderfx")),
    Peer("eager", "model", None),
    Peer("grouped-fusioncache", "grouped", _JIT),
    Peer("grouped-torch.compile", "grouped", _COMPILED),
    Peer("grouped-eager", "grouped", None),
    Peer("looped-fusioncache", "looped", _SHARED),
    Peer("looped-torch.compile", "looped", _COMPILED),
    Peer("looped-eager", "looped", None),
)
PEERS = {peer.name: peer for peer in _ALL}


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """What one process measures.

    Attributes:
        peer: its name.
        layers: of the narrow Mixtral.
        experts: of each layer, of which each token goes to two.
        batch: rows of tokens.
        length: tokens in a row.
        steps: how many at most.
        seconds: after which no other step begins.
        backend: the compiler of regions: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of weights and activations, by torch's name.
    """

    peer: str
    layers: int
    experts: int
    batch: int
    length: int
    steps: int
    seconds: float
    backend: str
    device: str
    dtype: str
