"""The work of the benchmark of memory: a stack of blocks, its input, and a training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch

from benchmarks import zoo
from benchmarks.memory.spec import MemorySpec

_NO_WINDOW: dict[str, object] = {"sliding_window_size": None, "sliding_window_indices": [0] * 1024}
"""The second for narrow models, which get a window whatever the first says."""
_NO_HEAD: dict[str, object] = {"padded_vocab_size": 512, "final_logit_softcapping": None}
_SCALE = 1e-2


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be trained.

    Attributes:
        workload: the model, its tokens, and a loss over its vocabulary.
        cotangent: where the backward pass starts; None for the loss.
    """

    workload: zoo.Workload
    cotangent: torch.Tensor | None

    def forward(self, compiled: Callable[..., torch.Tensor]) -> torch.Tensor:
        """Runs the forward pass of what was made of the model."""
        return compiled(*self.workload.inputs)

    def backward(self, output: torch.Tensor) -> None:
        """Runs the backward pass, which leaves gradients in the model's parameters."""
        if self.cotangent is None:
            self.workload.loss(output).backward()
        else:
            output.backward(self.cotangent)

    def clear(self) -> None:
        """Drops the gradients, so that the next step does not add to them."""
        self.workload.model.zero_grad(set_to_none=True)


def make_work(spec: MemorySpec) -> Work:
    """Returns the work of a specification, always from the same seed."""
    changes = _NO_WINDOW if spec.head else {**_NO_WINDOW, **_NO_HEAD}
    size: Any = {"sequence": spec.sequence, "batch": spec.batch, "changes": changes}
    # On the device from the start: to make billions of random weights on the CPU takes minutes.
    with torch.device(spec.device):
        workload = zoo.make(spec.model, spec.layers, spec.device, spec.dtype, cast(Any, spec.width), **size)
        if spec.head:
            return Work(workload, None)
        model: Any = workload.model
        model.lm_head = torch.nn.Identity()
        # Not the same everywhere: a norm ends the model, whose gradient would vanish.
        shape = *workload.inputs[0].shape, model.config.n_embd
        return Work(workload, _SCALE * torch.randn(shape, dtype=getattr(torch, spec.dtype)))
