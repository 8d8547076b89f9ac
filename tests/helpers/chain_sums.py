"""The reference sum of a chain, which every way to sum it must equal bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def add_in_turn(args: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the sum that torch computes in float32, one term after the other."""
    total = args[0].to(torch.float32, copy=True)
    for term in args[1:]:
        total += term
    return total
