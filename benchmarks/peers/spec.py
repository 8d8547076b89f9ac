"""Who is compared in the benchmark of peers, and what one of its measurements is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.common.spec import count_layers

RESIDUAL = "residual"
WIDTHS = ("narrow", "real")
PARTS = ("trace", "compile", "execute", "total")


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to run a model.

    Attributes:
        name: as in ``--peers``.
        kind: which compiler it is.
        variant: of the compiler: what makes it differ from the plain one.
        keeps_cache: whether it leaves something on disk that a second process finds, which is then measured warm.
        enable: of nvFuser's options, by its environment variable.
        needs_nvfuser: whether it exists with that backend only.
        needs_blocks: whether it has something to do only in a model of transformer blocks.
    """

    name: str
    kind: Literal["thunder", "torch.compile", "eager"]
    variant: Literal["", "lru", "fusioncache", "dedup", "nested"] = ""
    keeps_cache: bool = False
    enable: str = ""
    needs_nvfuser: bool = False
    needs_blocks: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its processes."""
        store = {"FUSIONCACHE_STORE": "1"} if self.variant == "fusioncache" else {}
        return store | ({"NVFUSER_ENABLE": self.enable} if self.enable else {})


_ALL = (
    Peer("thunder", "thunder"),
    Peer("thunder-lru", "thunder", "lru", needs_nvfuser=True),
    Peer("thunder-lru-db", "thunder", "lru", keeps_cache=True, enable="kernel_db", needs_nvfuser=True),
    Peer("fusioncache", "thunder", "fusioncache", keeps_cache=True),
    Peer("torch.compile", "torch.compile", keeps_cache=True),
    Peer("torch.compile-dedup", "torch.compile", "dedup", keeps_cache=True),
    Peer("torch.compile-nested", "torch.compile", "nested", keeps_cache=True, needs_blocks=True),
    Peer("eager", "eager"),
)
PEERS = {peer.name: peer for peer in _ALL}


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """One process of the benchmark.

    Attributes:
        peer: one of ``PEERS``.
        model: ``RESIDUAL``, or litgpt's name of a configuration.
        width: of litgpt's model, one of ``WIDTHS``.
        layers: of the model.
        sequence: tokens in a row of the input of litgpt's model.
        batch: its rows.
        size: of the residual model's square matrices.
        inference: whether the step is a forward pass without gradients.
        backend: of Thunder's peers: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of weights and activations, by torch's name.
        steps: timed ones after the first.
        warmup: untimed ones before those.
        first_step_only: whether to leave out the steady steps; a warm process does.
    """

    peer: str
    model: str
    width: str
    layers: int
    sequence: int
    batch: int
    size: int
    inference: bool
    backend: str
    device: str
    dtype: str
    steps: int
    warmup: int
    first_step_only: bool = False

    def __str__(self) -> str:
        return f"{self.model}, {count_layers(self.layers)}, {self.peer}"
