"""The work of every peer: a model, its input, and one step of training or inference."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.common.models import Residual, narrow_widths
from benchmarks.common.tensors import cotangent
from benchmarks.peers.spec import RESIDUAL, PeerSpec

_SEED = 2916


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be computed.

    Attributes:
        model: as torch runs it.
        example: its input.
        targets: the tokens that the cross entropy is taken with, or the cotangent that the backward pass starts from.
        inference: whether a step is a forward pass without gradients.
    """

    model: nn.Module
    example: torch.Tensor
    targets: torch.Tensor
    inference: bool

    def step(self, call: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Runs one step with the model, or with what a peer made of it; leaves gradients in the model's parameters.

        The loss is no part of what peers compile, so that it costs all of them the same.
        """
        with torch.no_grad() if self.inference else nullcontext():
            output = call(self.example)
        if not self.inference:
            self._backward(output)
        return output

    def clear(self) -> None:
        """Drops the gradients, so that the next step does not add to them."""
        self.model.zero_grad(set_to_none=True)

    def in_dtype(self, dtype: torch.dtype) -> Work:
        """Returns the same work with these very weights in another dtype. The model is converted in place."""
        example, targets = (x.to(dtype) if x.is_floating_point() else x for x in (self.example, self.targets))
        return Work(self.model.to(dtype), example, targets, self.inference)

    def _backward(self, output: torch.Tensor) -> None:
        if self.targets.is_floating_point():
            output.backward(self.targets)
        else:
            nn.functional.cross_entropy(output.flatten(0, -2), self.targets.flatten()).backward()


def make_work(spec: PeerSpec) -> Work:
    """Returns the work of a specification, from a fixed seed.

    Raises:
        ValueError: if litgpt knows no such model, or it is too small for the input.
    """
    torch.manual_seed(_SEED)
    dtype = getattr(torch, spec.dtype)
    # On the device from the start: to make billions of random weights on the CPU takes minutes.
    with torch.device(spec.device):
        if spec.model == RESIDUAL:
            model: nn.Module = Residual(spec.layers, spec.size)
            example = torch.randn(spec.size, spec.size).to(dtype)
            targets = cotangent(example)
        else:
            model, example, targets = _litgpt(spec)
    # Afterwards, not by a default dtype: positions and frequencies of the rotary embedding need float32.
    model = model.to(dtype).requires_grad_(not spec.inference)
    return Work(model, example, targets, spec.inference)


def _litgpt(spec: PeerSpec) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    from litgpt import GPT, Config

    narrow = {**narrow_widths(spec.model, spec.device), "block_size": spec.sequence} if spec.width == "narrow" else {}
    config = Config.from_name(spec.model, n_layer=spec.layers, **narrow)
    if spec.sequence > config.block_size:
        raise ValueError(f"{spec.model} takes at most {config.block_size} tokens, not {spec.sequence}")
    tokens = torch.randint(0, config.padded_vocab_size, (2, spec.batch, spec.sequence))
    return GPT(config), tokens[0], tokens[1]
