"""Whether a peer computed the right thing: its error against that of eager torch, and a digest of its bits.

The reference is eager torch with the very same weights in a wider dtype: float32 for 16 bits on a GPU, where models are
too large for float64, else float64. An error is the relative L2 distance from it, ``|x - reference| / |reference|``, of
the output or of one gradient. A peer may have twice the error that eager has in the model's own dtype, or twice that of
arithmetic itself where eager happens to have less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from unittest import mock

import torch

from benchmarks.common.tensors import name_results
from benchmarks.peers.work import Work

_ALLOWED = 2.0

Tensors = Mapping[str, torch.Tensor]
"""The output and the gradients of a step, by name."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one step compares with the reference.

    Attributes:
        worst: the tensor whose error is the largest in relation to what is allowed.
        error: of that tensor.
        eager: the error that eager torch has in it.
        allowed: how large its error may be.
        wrong: how many tensors have a larger error than is allowed.
    """

    worst: str
    error: float
    eager: float
    allowed: float
    wrong: int

    def __str__(self) -> str:
        if not self.wrong:
            return "correct"
        more = f", and {self.wrong - 1} more" if self.wrong > 1 else ""
        return f"wrong: {self.worst}, {self.error:.2g} (eager: {self.eager:.2g}){more}"


def copy_results(work: Work, output: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the output and the gradients of the last step, on the CPU: the GPU will be needed for the reference."""
    return {name: tensor.cpu() for name, tensor in name_results(work.model, output).items()}


def judge(work: Work, found: Tensors) -> Verdict:
    """Compares a peer's tensors with the reference. Leaves the model in the reference's dtype.

    Raises:
        torch.OutOfMemoryError: if the device has no room for the reference.
    """
    dtype = next(iter(work.model.parameters())).dtype
    work.clear()
    eager = copy_results(work, work.step(work.model))
    work.clear()
    wider = torch.float32 if work.example.is_cuda and dtype.itemsize < 4 else torch.float64
    work = work.in_dtype(wider)
    with keep_wide(wider):
        output = work.step(work.model)
    return compare(found, eager, name_results(work.model, output), _error_of_arithmetic(dtype))


def compare(found: Tensors, eager: Tensors, reference: Tensors, inevitable: float) -> Verdict:
    """Returns the verdict on a peer's tensors.

    Args:
        found: the peer's.
        eager: those of eager torch in the same dtype.
        reference: the right ones.
        inevitable: an error that is nobody's fault.
    """
    verdicts = []
    for name in dict.fromkeys([*reference, *found]):
        error = _error(found.get(name), reference.get(name))
        of_eager = _error(eager.get(name), reference.get(name))
        of_eager = of_eager if math.isfinite(of_eager) else 0.0  # where eager has no number either, none is right
        verdicts.append(Verdict(name, error, of_eager, _ALLOWED * max(of_eager, inevitable), 0))
    worst = max(verdicts, key=lambda verdict: verdict.error / verdict.allowed)
    wrong = sum(not verdict.error <= verdict.allowed for verdict in verdicts)
    return Verdict(worst.worst, worst.error, worst.eager, worst.allowed, wrong)


def _error(found: torch.Tensor | None, reference: torch.Tensor | None) -> float:
    """Returns the relative L2 error; infinite for what is missing, has another shape, or is no number."""
    if found is None or reference is None or found.shape != reference.shape:
        return math.inf
    scale = torch.linalg.vector_norm(reference).item()
    distance = torch.linalg.vector_norm(found.to(reference.device, reference.dtype) - reference).item()
    if math.isnan(distance):
        return math.inf
    if scale == 0:
        return 0.0 if distance == 0 else math.inf
    return distance / scale


def _error_of_arithmetic(dtype: torch.dtype) -> float:
    """Returns an error that is nobody's fault.

    A value of 16 bits is rounded from float32: half a unit. In float32 itself functions are a few units off.
    """
    units = 0.5 if dtype.itemsize < 4 else 4
    return units * torch.finfo(dtype).eps


def keep_wide(dtype: torch.dtype) -> mock._patch | nullcontext[None]:
    """Lets ``float`` leave float64 as it is while the reference runs in it.

    litgpt's RMSNorm calls ``float``, which would make the reference no better than the model's float32.
    """
    return mock.patch.object(torch.Tensor, "float", torch.Tensor.double) if dtype == torch.float64 else nullcontext()
