"""A model of the catalogue with its inputs and its loss, always from the same seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.zoo.catalogue import find_entry

if TYPE_CHECKING:
    import torch

_SEED = 2916
_MODULES = {"litgpt": "benchmarks.zoo.litgpt_models", "transformers": "benchmarks.zoo.huggingface_models"}

Width = Literal["narrow", "real"]
Way = Literal["jit", "thunderfx"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large inputs and narrow models are. Everything else follows from the real configuration."""

    batch: int
    sequence: int
    embedding: int
    heads: int
    vocabulary: int
    experts: int


_SIZES = {
    "cpu": Sizes(batch=2, sequence=8, embedding=64, heads=4, vocabulary=256, experts=3),
    "cuda": Sizes(batch=2, sequence=64, embedding=512, heads=8, vocabulary=1024, experts=8),
}


@dataclass(frozen=True, slots=True)
class Built:
    """What a module of one package makes: the model, what it is called with, and how many classes it tells apart."""

    model: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    classes: int
    layers: int
    real_layers: int
    way: Way = "jit"


@dataclass(frozen=True, slots=True)
class Workload:
    """A model that is ready to be trained or asked.

    Attributes:
        name: of the model.
        model: returns logits.
        inputs: what to call it with.
        loss: takes the logits, returns a scalar.
        layers: of the model.
        real_layers: how many its configuration has.
        way: into Thunder: ``"jit"`` for ``thunder.jit``, ``"thunderfx"`` for ``thunder.dynamo.thunderfx``.
    """

    name: str
    model: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    loss: Callable[[torch.Tensor], torch.Tensor]
    layers: int
    real_layers: int
    way: Way

    def compile(self, executors: Sequence[Any], transforms: Sequence[Any] = ()) -> Callable[..., torch.Tensor]:
        """Compiles the model with Thunder, by the way that works for it."""
        import thunder
        from thunder.dynamo import thunderfx

        function = thunder.jit if self.way == "jit" else thunderfx
        return function(self.model, executors=list(executors), transforms=list(transforms))


def make(
    name: str,
    layers: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    width: Width = "narrow",
    *,
    sequence: int | None = None,
    batch: int | None = None,
    changes: Mapping[str, object] | None = None,
) -> Workload:
    """Makes a model, its inputs and its loss.

    Args:
        name: one of ``names()``.
        layers: how many; None for as many as its configuration has.
        device: ``"cpu"`` or ``"cuda"``. Narrow models are wider on the latter.
        dtype: of the parameters and of inputs that are no tokens, by torch's name.
        width: ``"real"`` for the configuration's own widths.
        sequence: tokens in a row of the input, which are few by default.
        batch: rows of the input.
        changes: of litgpt's configuration, other than widths; they go before the catalogue's.

    Raises:
        KeyError: if there is no such model.
        ModuleNotFoundError: if the package that it comes from is not installed.
    """
    import torch

    found = find_entry(name)
    torch.manual_seed(_SEED)
    found = replace(found, changes={**found.changes, **(changes or {})})
    sizes = _SIZES[device]
    sizes = replace(sizes, sequence=sequence or sizes.sequence, batch=batch or sizes.batch)
    built: Built = import_module(_MODULES[found.package]).build(found, layers, sizes, width)
    model = built.model.to(device=device, dtype=getattr(torch, dtype)).train()
    inputs = tuple(_move(value, model, device) for value in built.inputs)
    loss = _cross_entropy(built, inputs[0], sizes)
    return Workload(name, model, inputs, loss, built.layers, built.real_layers, built.way)


def _move(value: torch.Tensor, model: torch.nn.Module, device: str) -> torch.Tensor:
    dtype = next(model.parameters()).dtype
    if not value.is_floating_point():
        return value.to(device)
    # The lowest number of float32, which masks have, is an infinity in smaller types.
    import torch

    return value.clamp(min=torch.finfo(dtype).min).to(device=device, dtype=dtype)


def _cross_entropy(built: Built, example: torch.Tensor, sizes: Sizes) -> Callable[[torch.Tensor], torch.Tensor]:
    import torch

    count = sizes.batch if example.is_floating_point() else example.numel()
    targets = torch.randint(0, built.classes, (count,)).to(example.device)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits.float().reshape(count, built.classes), targets)

    return loss
