"""A stand-in for products in torch's symmetric memory: plain collectives and plain products, over any library."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fusioncache.distributed import joined_products
from fusioncache.distributed.joined_products import SymmetricProducts


class PlainProducts:
    """Gathers and multiplies, or multiplies and adds up, one behind the other.

    Args:
        obstacle: what it says that keeps this rank from joining.
        between: what it says that keeps it from reaching the others.
        error: by how much the results of one of its operations are wrong.
    """

    def __init__(self, obstacle: str = "", between: str = "", error: float = 0.0):
        self.obstacle, self.between, self.error = obstacle, between, error
        self.calls: Counter[str] = Counter()
        self.places: Sequence[str] = ()

    def find_obstacle(self, group: Any, device: torch.device) -> str:
        return self.obstacle

    def place_of(self, device: torch.device) -> str:
        return f"place of {torch.distributed.get_rank()}"

    def find_obstacle_between(self, device: torch.device, places: Sequence[str]) -> str:
        self.places = places
        return self.between

    def prepare(self, group: Any, device: torch.device) -> str:
        self.calls["prepare"] += 1
        return ""

    def gather(
        self, part: torch.Tensor, matrices: Sequence[torch.Tensor], group: Any, dim: int
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        self.calls[f"gather for {len(matrices)}"] += 1
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
        torch.distributed.all_gather(parts, part.contiguous(), group)
        # As torch's, it lies with the gathered dimension in front.
        whole = torch.cat([one.movedim(dim, 0) for one in parts])
        return whole.movedim(0, dim), [(whole @ matrix).movedim(0, dim) for matrix in matrices]

    def scatter(
        self, factors: Sequence[torch.Tensor], matrices: Sequence[torch.Tensor], group: Any, dim: int
    ) -> torch.Tensor:
        self.calls[f"scatter of {len(factors)}"] += 1
        products = [factor @ matrix for factor, matrix in zip(factors, matrices, strict=True)]
        summed = torch.stack(products).sum(0).contiguous()
        torch.distributed.all_reduce(summed, group=group)
        return summed.chunk(group.size(), dim)[group.rank()].contiguous() + self.error


def join_over_gloo(patch: pytest.MonkeyPatch) -> PlainProducts:
    """Has this process join products by the stand-in; returns it."""
    products = PlainProducts()
    join_by(patch, products)
    return products


def join_by(patch: pytest.MonkeyPatch, products: joined_products.Products) -> None:
    """Has this process join products in a way of its own."""
    patch.setattr(joined_products, "products_of", lambda device: products)


@contextmanager
def torchs_products_on_cpu(patch: pytest.MonkeyPatch) -> Iterator[SymmetricProducts]:
    """Has torch compute its joined products on a CPU: in its own plain way, which is for tensors without values."""
    import torch.distributed._symmetric_memory as symmetric

    def produce_and_exchange(produce: Callable[[int, torch.Tensor], None], output: torch.Tensor, group: str) -> None:
        made = torch.empty_like(output)
        ranks = torch.distributed.get_world_size()
        for number, chunk in enumerate(made.chunk(ranks)):
            produce(number, chunk)
        torch.distributed.all_to_all_single(output, made)

    patch.setattr(symmetric, "_pipelined_produce_and_all2all", produce_and_exchange)
    patch.setattr(SymmetricProducts, "prepare", lambda *_: "")
    with torch.library._scoped_library("symm_mem", "IMPL") as library:
        library.impl("fused_all_gather_matmul", symmetric._fused_all_gather_matmul_fallback, "CPU")
        library.impl("fused_matmul_reduce_scatter", symmetric._fused_matmul_reduce_scatter_fallback, "CPU")
        yield SymmetricProducts()
