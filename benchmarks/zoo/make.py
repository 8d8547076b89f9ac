"""A model of the catalogue with its inputs and its loss, from a fixed seed."""

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
    """Sizes of inputs and narrow models. Everything else follows from the real configuration."""

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
    """A model that a package's module makes, with its inputs and its number of classes."""

    model: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    classes: int
    layers: int
    real_layers: int
    way: Way = "jit"


@dataclass(frozen=True, slots=True)
class Workload:
    """A model that is ready for training or inference.

    Attributes:
        name: of the model.
        model: returns logits.
        inputs: arguments of the model.
        loss: takes the logits, returns a scalar.
        layers: of the model.
        real_layers: number of layers in its configuration.
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
        """Returns the model compiled with Thunder, in the way that works for it."""
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
    """Returns a model with its inputs and its loss.

    Args:
        name: one of ``names()``.
        layers: number of layers; None for the number in its configuration.
        device: ``"cpu"`` or ``"cuda"``. Narrow models are wider on the latter.
        dtype: of the parameters and of floating-point inputs, by torch's name.
        width: ``"real"`` for the widths of the configuration.
        sequence: tokens per row of the input; few by default.
        batch: rows of the input.
        changes: of litgpt's configuration, other than widths; they override the catalogue's.

    Raises:
        KeyError: if there is no such model.
        ModuleNotFoundError: if the model's package is not installed.
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
    # Masks contain the lowest number of float32, which is an infinity in smaller dtypes.
    import torch

    return value.clamp(min=torch.finfo(dtype).min).to(device=device, dtype=dtype)


def _cross_entropy(built: Built, example: torch.Tensor, sizes: Sizes) -> Callable[[torch.Tensor], torch.Tensor]:
    import torch

    count = sizes.batch if example.is_floating_point() else example.numel()
    targets = torch.randint(0, built.classes, (count,)).to(example.device)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits.float().reshape(count, built.classes), targets)

    return loss
