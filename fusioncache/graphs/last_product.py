"""The last product of a program, which is computed behind the graph that the rest of the program is captured in.

What a graph computed is copied when it leaves, as the next replay overwrites it. Most of that is often one product with
which a program ends, such as a language model's logits. Its operands stay where the graph leaves them. The product
follows each replay, on the same stream and before anything else is replayed, and allocates what it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class _Behind:
    """Stands among the results of a program for what is computed behind its graph."""


BEHIND = _Behind()


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

    def compute(self, operands: Sequence[Any]) -> Any:
        """Computes the product, without autocast like the rest of the program. Gradients are off."""
        import torch

        if not torch.is_autocast_enabled(operands[0].device.type):
            return self.product(*operands)
        with torch.autocast(operands[0].device.type, enabled=False):
            return self.product(*operands)
