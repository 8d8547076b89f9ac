"""Facts about the results of a program on tensors: everything that a caller can observe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

Facts = dict[str, Any]
"""Facts of one call by name; equal if the two calls cannot be distinguished."""


def find_difference(found, expected):
    wrong = [name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]
    return "\n".join(f"{name}: {found.get(name)} in place of {expected.get(name)}" for name in wrong) or None


def find_unexplained(found: Facts, *others: Facts) -> str | None:
    """Returns the facts of results, except bits, that agree with none of the other calls; None if there are none."""
    names = [name for name in found if not name.endswith("bits") and not name.startswith(("input", "gradient"))]
    wrong = [name for name in names if all(found[name] != other.get(name) for other in others)]
    return "\n".join(f"{name}: {found[name]}, not {[other.get(name) for other in others]}" for name in wrong) or None


def observe(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Facts:
    """Returns the facts of a call of a function from tensors to tensors, and of a backward pass from all results."""
    results = function(*inputs)
    facts: Facts = {}
    others = [(f"input {number}", tensor) for number, tensor in enumerate(inputs)]
    others += [(f"result {number}", tensor) for number, tensor in enumerate(results)]
    for number, result in enumerate(results):
        facts |= {f"result {number}'s {what}": fact for what, fact in _facts(result)}
        facts[f"result {number} is"] = [what for what, other in others if other is result]
        facts[f"result {number} shares memory with"] = list(_neighbours(result, others))
    for number, tensor in enumerate(inputs):
        facts[f"input {number} afterwards"] = _bits(tensor)
    _go_backward(results)
    for number, tensor in enumerate(inputs):
        facts[f"gradient {number}"] = None if tensor.grad is None else list(_facts(tensor.grad))
    for number, result in enumerate(results):
        facts[f"result {number} may be written"] = _write(result)
    return facts


def _write(tensor: torch.Tensor) -> str:
    """Returns ``yes``, or torch's error for a write into a tensor, which depends on the base of the view."""
    try:
        tensor.mul_(2)
    except RuntimeError as error:
        return str(error)[:70]
    return "yes"


def _facts(tensor: torch.Tensor) -> Iterator[tuple[str, Any]]:
    yield "type", (tensor.dtype, tuple(tensor.shape))
    # Strides mean nothing in dimensions of one element, and in tensors without elements.
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    yield "strides", [stride for size, stride in strides if size > 1] if tensor.numel() else []
    yield "autograd", (tensor.requires_grad, tensor.is_leaf)
    yield "bits", _bits(tensor)


def _bits(tensor: torch.Tensor) -> bytes:
    packed = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return bytes(packed.flatten().view(torch.uint8).tolist())


def _neighbours(tensor: torch.Tensor, others: Sequence[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, int]]:
    """Yields the tensors in the same memory, each with its offset in bytes."""
    for what, other in others if tensor.numel() else ():
        if other.numel() and other.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            yield what, other.data_ptr() - tensor.data_ptr()


def _go_backward(results: Sequence[torch.Tensor]) -> None:
    total: Any = 0
    for weight, result in enumerate(results, 1):
        if result.requires_grad:
            wide = torch.view_as_real(result.resolve_conj()) if result.is_complex() else result
            total = total + weight * wide.double().sum()
    if isinstance(total, torch.Tensor):
        total.backward()
