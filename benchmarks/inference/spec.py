"""Who is compared in ``benchmarks/inference``, and what each gets. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.common.ways import Way

EAGER = "eager"
_ALL = (
    Way(EAGER, "eager"),
    Way("torch.compile", "torch.compile"),
    Way("reduce-overhead", "torch.compile", graphs=True),
    Way("thunder", "thunder.jit"),
    Way("fusioncache", "thunder.jit", shares=True),
    Way("graphs", "thunder.jit", shares=True, graphs=True),
    Way("cudnn", "thunder.jit", shares=True, attention="cudnn"),
    Way("cudnn graphs", "thunder.jit", shares=True, attention="cudnn", graphs=True),
)
WAYS = {way.name: way for way in _ALL}
GPU_WAYS = frozenset(way.name for way in _ALL if way.graphs or way.attention == "cudnn")
"""Those that need a GPU. Elsewhere they are left out."""

CHECKED = 8
"""Of how many tokens of the first prompt the bits of all logits are compared."""


@dataclass(frozen=True, slots=True)
class InferenceSpec:
    """What one process measures.

    Attributes:
        way: its name.
        width: ``"narrow"`` or ``"real"``: of Llama-2-7b.
        layers: of the model.
        prompts: lengths of the prompts, in order.
        tokens: how many are generated behind each prompt.
        repeat: how often that is done again once everything is compiled, for the median.
        grad_mode: ``"inference_mode"`` or ``"no_grad"``.
        backend: the compiler of regions: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of weights, activations and the cache, by torch's name.
    """

    way: str
    width: str
    layers: int
    prompts: tuple[int, ...]
    tokens: int
    repeat: int
    grad_mode: str
    backend: str
    device: str
    dtype: str

    @property
    def cache_length(self) -> int:
        """How many tokens the key-value cache has room for: a power of two."""
        return 1 << (max(self.prompts) + self.tokens - 1).bit_length()
