"""What one point of the scaling benchmark is, as the parent process and its workers exchange it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.common.spec import ModelSpec

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
class Spec(ModelSpec):
    """One point: a model's first step in a fresh process.

    Attributes:
        mode: ``"cached"``, with fusioncache and an empty store; ``"warm"``, the same in a second process, which finds
            that store; ``"uncached"``, plain Thunder; ``"lru"``, Thunder with nvFuser's own cache; ``"own"``, with
            fusioncache, which recomputes the residual stream by itself; ``"baseline"``, as ``"lru"``, and nothing
            recomputes.
    """

    mode: str = ""

    def __str__(self) -> str:
        return f"{ModelSpec.__str__(self)}, {self.mode}"

    def at(self, layers: int, mode: str) -> Spec:
        """Returns this point at another depth and in another mode."""
        return replace(self, layers=layers, mode=mode, recompute=self.recompute and mode not in ON_REQUEST)

    def must_equal(self, other: Spec) -> bool:
        """Returns whether both compute the same bits.

        The same trace does. Sums that Thunder's rematerialization recomputes stay in float32 from region to region;
        without it they are rounded to the model's dtype between layers. Where that is no rounding, all are the same.
        """
        return self.recompute == other.recompute or self.dtype in EXACT
