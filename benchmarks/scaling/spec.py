"""What one point of the scaling benchmark is, as the parent process and its workers exchange it."""

from __future__ import annotations

from dataclasses import dataclass, replace

MODELS = ("residual", "llama")
MODES = ("cached", "warm", "uncached", "lru")
"""Those that a run has unless it is told otherwise: they run the same trace."""
ON_REQUEST = ("own", "baseline")
"""Those that leave Thunder's rematerialization as it is, with ``recompute`` as without."""
KEPT = ("cached", "warm")
"""Those that share cache directories, in this order: the second finds what the first one left."""
NEED_NVFUSER = ("lru", "baseline")
"""Those that have nvFuser's ``LruFusionCache`` around ``create_fd``."""
EXACT = ("float32", "float64")
"""Types in which a sum has the same bits whether it crossed from one kernel to another or not."""
PHASES = ("trace", "canonicalize", "compile", "load", "run", "first_step", "startup")


@dataclass(frozen=True, slots=True)
class Spec:
    """One point: a model's first step in a fresh process.

    Attributes:
        model: one of ``MODELS``.
        layers: of the model.
        mode: ``"cached"``, with fusioncache and an empty store; ``"warm"``, the same in a second process, which finds
            that store; ``"uncached"``, plain Thunder; ``"lru"``, Thunder with nvFuser's own cache; ``"own"``, with
            fusioncache, which recomputes the residual stream by itself; ``"baseline"``, as ``"lru"``, and nothing
            recomputes.
        recompute: whether Thunder's rematerialization is made to recompute the residual stream.
        grad: whether the step includes a backward pass.
        backend: the compiler: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of weights and activations, by torch's name.
        size: of the residual model's square matrices.
        steps: how many later steps are timed, after as many that are not.
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
    steps: int = 0

    def __str__(self) -> str:
        return f"{self.model}, {self.layers} {'layer' if self.layers == 1 else 'layers'}, {self.mode}"

    def at(self, layers: int, mode: str) -> Spec:
        """This point at another depth and in another mode."""
        return replace(self, layers=layers, mode=mode, recompute=self.recompute and mode not in ON_REQUEST)

    def must_equal(self, other: Spec) -> bool:
        """Whether both compute the same bits.

        The same trace does. Sums that Thunder's rematerialization recomputes stay in float32 from region to region;
        without it they are rounded to the model's dtype between layers. Where that is no rounding, all are the same.
        """
        return self.recompute == other.recompute or self.dtype in EXACT
