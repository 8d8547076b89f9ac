"""Results of a step: its tensors by name, and their bitwise comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch


def cotangent(output: torch.Tensor) -> torch.Tensor:
    """Returns the cotangent for a backward pass. With all ones, errors that cancel in a sum would not be noticed."""
    return torch.linspace(-1, 1, output.numel(), device=output.device).reshape(output.shape).to(output.dtype)


def name_results(model: torch.nn.Module, output: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the output and each gradient of the model's parameters, by name."""
    gradients = {f"gradient of {name}": parameter.grad for name, parameter in model.named_parameters()}
    return {"output": output.detach(), **{name: tensor for name, tensor in gradients.items() if tensor is not None}}


def digest(tensor: torch.Tensor) -> str:
    """Returns a digest of a tensor's bytes, dtype and shape."""
    content = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    content.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return content.hexdigest()


def digest_all(tensors: Mapping[str, torch.Tensor]) -> str:
    """Returns one digest of all these tensors and their names."""
    return hashlib.sha256(
        "".join(f"{name} {digest(tensor)}\n" for name, tensor in tensors.items()).encode()
    ).hexdigest()


def same_bits(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """True if two tensors agree in dtype, shape and every bit: 0.0 differs from -0.0, and a NaN equals itself."""
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    # A scalar has no last dimension to reinterpret.
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*bits)


def compare(
    found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], again: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Returns the number of bitwise equal tensors, and names of those that differ, are not finite or not repeatable."""
    names = list(dict.fromkeys([*found, *expected]))
    differing = [name for name in names if not same_bits(found.get(name), expected.get(name))]
    largest = max((count_epsilons(found.get(name), expected.get(name)) for name in differing), default=0.0)
    return {
        "tensors": len(names),
        "bitwise": len(names) - len(differing),
        "differing": differing,
        "largest_epsilons": largest,
        "not_finite": [name for name, value in expected.items() if not value.isfinite().all()],
        "not_repeatable": [name for name, value in expected.items() if not same_bits(again.get(name), value)],
    }


def count_epsilons(one: torch.Tensor | None, other: torch.Tensor | None) -> float:
    """Returns the largest difference, in units of the dtype's epsilon times the second tensor's largest magnitude."""
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return float("inf")
    scale = other.abs().max().double() * torch.finfo(other.dtype).eps
    difference = (one.double() - other.double()).abs().max()
    return float(difference / scale) if scale > 0 else float("inf") * bool(difference > 0)
