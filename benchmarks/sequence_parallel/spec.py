"""Who is compared in the benchmark of shared sequences, and what one of its jobs measures. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PEERS: Mapping[str, str] = MappingProxyType(
    {
        "plain": "fusioncache",
        "torch": "torch's parallelize_module and torch.compile, with its pass that joins exchanges with products",
    }
)


@dataclass(frozen=True, slots=True)
class Width:
    """How large a model is.

    Attributes:
        features: of the residual stream.
        gated: features of the gated product.
        heads: of attention.
        vocabulary: how many tokens there are.
    """

    features: int
    gated: int
    heads: int
    vocabulary: int


WIDTHS: Mapping[str, Width] = MappingProxyType(
    {"narrow": Width(64, 176, 4, 512), "real": Width(4096, 11008, 32, 32000)}
)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job: a peer, which takes steps at one length after the other.

    Attributes:
        peer: one of ``PEERS``.
        width: one of ``WIDTHS``.
        layers: of the model.
        batch: how many sequences.
        lengths: of them, in the order in which they come.
        backend: of fusioncache: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of weights and activations, by torch's name.
        steps: timed ones at each length.
        warmup: untimed ones between the first and those.
    """

    peer: str
    width: str
    layers: int
    batch: int
    lengths: tuple[int, ...]
    backend: str
    device: str
    dtype: str
    steps: int
    warmup: int
