"""Ways to compile a model whose steps are measured one by one. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run a model.

    Attributes:
        name: as in ``--ways``.
        compiler: what compiles the model; ``"eager"`` if nothing does.
        dynamic: whether that is told that sizes vary.
        shares: whether Thunder has fusioncache.
        attention: of fusioncache's ways who computes it, as for ``fusioncache.executors``.
        graphs: whether programs are captured in CUDA graphs, by fusioncache or by torch.compile.
        pads: whether each length is rounded up to the next power of two, and the output cut to what was asked for.
        environment: variables of the process.
    """

    name: str
    compiler: Literal["thunder.jit", "thunderfx", "torch.compile", "eager"]
    dynamic: bool = False
    shares: bool = False
    attention: Literal["thunder", "cudnn"] = "thunder"
    graphs: bool = False
    pads: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
