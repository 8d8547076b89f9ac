"""Who is compared in ``benchmarks/lengths``, and what each gets. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.common.ways import Way

_STATIC = {"FUSIONCACHE_SIZES": "static"}
_ALL = (
    Way("fusioncache", "thunder.jit", shares=True),
    Way("fusioncache-static", "thunder.jit", shares=True, environment=_STATIC),
    Way("fusioncache-thunderfx", "thunderfx", shares=True),
    Way("fusioncache-thunderfx-dynamic", "thunderfx", dynamic=True, shares=True),
    Way("fusioncache-padded", "thunder.jit", shares=True, pads=True, environment=_STATIC),
    Way("torch.compile", "torch.compile"),
    Way("torch.compile-dynamic", "torch.compile", dynamic=True),
    Way("thunder", "thunder.jit"),
)
WAYS = {way.name: way for way in _ALL}


@dataclass(frozen=True, slots=True)
class LengthsSpec:
    """What one process measures.

    Attributes:
        way: its name.
        layers: of the narrow Llama.
        lengths: of the steps, in order.
        later: how many more steps each of the first ``again`` distinct lengths gets when all are done, for the time of
            a later step.
        again: see there.
        batch: rows of tokens.
        backend: the compiler of regions: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of weights and activations, by torch's name.
    """

    way: str
    layers: int
    lengths: tuple[int, ...]
    later: int
    again: int
    batch: int
    backend: str
    device: str
    dtype: str
