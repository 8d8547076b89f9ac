"""What a model's training step is, as a benchmark's parent process and its workers exchange it. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MODELS = ("residual", "llama")

NARROW: Mapping[str, tuple[int, int, int, int]] = MappingProxyType(
    {"cuda": (512, 8, 1376, 1024), "cpu": (128, 4, 384, 512)}
)
"""Small widths for a device: of the embedding, heads, of the layers between, and of the vocabulary."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model and its step.

    Attributes:
        model: one of ``MODELS``.
        layers: of the model.
        backend: the compiler: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of weights and activations, by torch's name.
        recompute: whether Thunder's rematerialization is made to recompute the residual stream.
        grad: whether the step includes a backward pass.
        size: of the residual model's square matrices.
        steps: how many later steps are timed, after as many that are not.
    """

    model: str
    layers: int
    backend: str
    device: str
    dtype: str
    recompute: bool = False
    grad: bool = True
    size: int = 10
    steps: int = 0

    def __str__(self) -> str:
        return f"{self.model}, {count_layers(self.layers)}"


def count_layers(layers: int) -> str:
    """Returns the number of layers in words."""
    return f"{layers} {'layer' if layers == 1 else 'layers'}"
