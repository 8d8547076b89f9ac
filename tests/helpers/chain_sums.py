"""What every way to sum a chain must compute, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def add_in_turn(args: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the sum of which torch adds one term after the other in float32."""
    total = args[0].to(torch.float32, copy=True)
    for term in args[1:]:
        total += term
    return total
