"""The last product of a program, which is computed behind the graph that the rest of the program is captured in.

What a graph computed is copied when it leaves, as the next replay overwrites it. Most of that is often one product with
which a program ends, such as a language model's logits. Its operands stay where the graph leaves them. The product
follows each replay, on the same stream and before anything else is replayed, and allocates what it makes.

To launch it takes the host longer than to launch a copy, so what is copied quickly is computed in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class _Behind:
    """Stands among the results of a program for what is computed behind its graph."""


BEHIND = _Behind()

LEAST_BYTES = 16 * 2**20
"""Bytes from which on a product is computed behind the graph. A GPU copies fewer in less time than the host saves."""


@dataclass(frozen=True, slots=True)
class LastProduct:
    """A program in two parts.

    Attributes:
        head: takes what the program takes. Returns what that returns, with ``BEHIND`` wherever the product would be,
            and the product's operands.
        product: one of torch's functions.
    """

    head: Callable[..., tuple[Any, Sequence[Any]]]
    product: Callable[..., Any]

    def is_large(self, operands: Sequence[Any]) -> bool:
        """Tells whether the product of these operands is better computed behind the graph than copied out of it."""
        import torch

        shapes = [each.to("meta") if isinstance(each, torch.Tensor) else each for each in operands]
        return int(self.product(*shapes).nbytes) >= LEAST_BYTES

    def compute(self, operands: Sequence[Any]) -> Any:
        """Computes the product, without autocast like the rest of the program. Gradients are off."""
        import torch

        if not torch.is_autocast_enabled(operands[0].device.type):
            return self.product(*operands)
        with torch.autocast(operands[0].device.type, enabled=False):
            return self.product(*operands)
