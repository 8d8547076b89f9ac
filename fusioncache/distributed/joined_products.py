"""Products joined with what ranks exchange: what traces call for a gather with the products behind it, and so on.

A product joined with a gather begins with the rows that this rank has, while those of the others are on their way; one
joined with a scatter sends each other rank its rows of the result as soon as they are computed. Who computes them is
chosen by where the tensors are: see ``symmetric_memory.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch


class Products(Protocol):
    """Computes products joined with what ranks exchange. All ranks of a group call the same, in the same order."""

    def find_obstacle(self, group: Any, device: torch.device) -> str:
        """Returns why this rank cannot; nothing if it can. Asks no other rank."""

    def place_of(self, device: torch.device) -> str:
        """Returns where a device is, for the other ranks."""

    def find_obstacle_between(self, device: torch.device, places: Sequence[str]) -> str:
        """Returns why this rank cannot reach the others, which are at these places; nothing if it can."""

    def prepare(self, group: Any, device: torch.device) -> str:
        """Makes with the other ranks what all products need; returns nothing, or why that is not there."""

    def gather(
        self, part: torch.Tensor, matrices: Sequence[torch.Tensor], group: Any, dim: int
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Returns all of a tensor of which each rank has a part along a dimension, and its product by each matrix."""

    def scatter(
        self, factors: Sequence[torch.Tensor], matrices: Sequence[torch.Tensor], group: Any, dim: int
    ) -> torch.Tensor:
        """Returns this rank's part along a dimension of a sum: of the factors' products by matrices, over all ranks."""


def products_of(device: torch.device) -> Products | None:
    """Returns what computes joined products on a device; None if nothing does."""
    from fusioncache.distributed.symmetric_memory import SymmetricProducts

    return SymmetricProducts() if device.type == "cuda" else None


def all_gather_and_multiply(
    a: torch.Tensor, weights: Sequence[torch.Tensor], group: Any, dim: int, transposed: bool
) -> tuple[torch.Tensor, ...]:
    """Returns a tensor that is gathered along a dimension, then its product by each weight.

    Args:
        a: the part that this rank has.
        weights: matrices.
        group: the process group.
        dim: any but the last one, in which products add up.
        transposed: whether weights are as a linear layer has them, with a row for each feature of its result.
    """
    whole, given = _find_products(a.device).gather(a, _turn(weights, transposed), group, dim)
    return whole, *given


def multiply_and_reduce_scatter(
    factors: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], group: Any, dim: int, transposed: bool
) -> torch.Tensor:
    """Returns this rank's part, along a dimension, of the sum over ranks of products, which are added up as well.

    Args:
        factors: what is multiplied.
        weights: by which each is, as many.
        group: the process group.
        dim: any but the last one, in which products add up.
        transposed: whether weights are as a linear layer has them, with a row for each feature of its result.
    """
    return _find_products(factors[0].device).scatter(factors, _turn(weights, transposed), group, dim)


def _find_products(device: torch.device) -> Products:
    products = products_of(device)
    if products is None:
        raise RuntimeError(f"products were to be joined with what ranks exchange, which nothing does on {device}")
    return products


def _turn(weights: Sequence[torch.Tensor], transposed: bool) -> list[torch.Tensor]:
    return [weight.t() if transposed else weight for weight in weights]
