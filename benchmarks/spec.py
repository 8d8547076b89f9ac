"""What one point of the scaling benchmark is, as the parent process and its workers exchange it."""

from __future__ import annotations

from dataclasses import dataclass

MODELS = ("residual", "llama")
MODES = ("cached", "uncached", "lru")
PHASES = ("trace", "canonicalize", "compile", "run", "first_step", "startup")


@dataclass(frozen=True, slots=True)
class Spec:
    """One point: a model's first step in a fresh process.

    Attributes:
        model: one of ``MODELS``.
        layers: of the model.
        mode: one of ``MODES``.
        recompute: whether rematerialization recomputes the residual stream.
        grad: whether the step includes a backward pass.
        backend: the compiler: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of weights and activations, by torch's name.
        size: of the residual model's square matrices.
    """

    model: str
    layers: int
    mode: str
    recompute: bool
    grad: bool
    backend: str
    device: str
    dtype: str
    size: int

    def __str__(self) -> str:
        return f"{self.model}, {self.layers} {'layer' if self.layers == 1 else 'layers'}, {self.mode}"
