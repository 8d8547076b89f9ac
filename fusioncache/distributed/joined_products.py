"""Products joined with what ranks exchange, as Thunder symbols with gradients, computed in symmetric memory.

A product joined with a gather begins with the rows that this rank has, while those of the others are on their way; one
joined with a scatter sends each other rank its rows of the result as soon as they are computed.

====================================  ====================================================
symbol                                gradient
====================================  ====================================================
``multiply_gathered``, column layers  products added up and scattered; weights': plain products
``scatter_product``, a row layer      gathered, and its product; the weight's: a plain product
====================================  ====================================================

A weight's gradient takes the whole gathered tensor: the operation that gathers returns that as well.

Symmetric memory is memory of the GPUs of one node that all of them can read. torch keeps a workspace of it for each
group. A product that needs more allocates it again, which all ranks do together, as they run the same program on the
same sizes. So it is as large as the longest sequence seen needs, and nothing else depends on the length.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

_FIRST_BYTES = 2**20
"""Of a group's workspace in the beginning."""


class SymmetricProducts:
    """Joined products as torch has them. None needs NVLink's multicast."""

    def find_obstacle(self, group: Any, device: torch.device) -> str:
        """Returns why this rank cannot; nothing if it can. Asks no other rank."""
        from torch.distributed import get_backend

        if get_backend(group) != "nccl":
            return f"the ranks exchange over {get_backend(group)}, not NCCL"
        try:
            from torch.distributed._symmetric_memory import (  # noqa: F401
                _pipelined_produce_and_all2all,
                get_symm_mem_workspace,
            )
        except ImportError:
            return "this torch has no symmetric memory as it is used here"
        operations = ("fused_all_gather_matmul", "fused_matmul_reduce_scatter")
        if not all(hasattr(torch.ops.symm_mem, name) for name in operations):
            return "this torch has no products in symmetric memory"
        # torch puts its workspace there.
        return "" if _number_of(device) == torch.cuda.current_device() else "the model is not on the current GPU"

    def place_of(self, device: torch.device) -> str:
        """Returns the node and the number of a GPU."""
        started = Path("/proc/sys/kernel/random/boot_id")
        node = started.read_text().strip() if started.exists() else ""
        return f"{socket.gethostname()} {node}/{_number_of(device)}"

    def find_obstacle_between(self, device: torch.device, places: Sequence[str]) -> str:
        """Returns why this rank cannot reach the others, which are at these places; nothing if it can."""
        nodes, numbers = zip(*(place.rpartition("/")[::2] for place in places), strict=True)
        if len(set(nodes)) > 1:
            return "the ranks are on several nodes"
        if len(set(numbers)) < len(numbers):
            return "a rank does not see the GPUs of the others"
        own = _number_of(device)
        others = [int(number) for number in numbers if int(number) != own]
        if any(other >= torch.cuda.device_count() for other in others):
            return "a rank does not see the GPUs of the others"
        if not all(torch.cuda.can_device_access_peer(own, other) for other in others):
            return "a GPU cannot read another one's memory"
        return ""

    def prepare(self, group: Any, device: torch.device) -> str:
        """Makes with the other ranks memory that all of them can read; returns nothing, or raises."""
        from torch.distributed._symmetric_memory import get_symm_mem_workspace

        get_symm_mem_workspace(group.group_name, _FIRST_BYTES)
        return ""

    def gather(
        self, part: torch.Tensor, matrices: Sequence[torch.Tensor], group: Any, dim: int
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Returns all of a tensor of which each rank has a part along a dimension, and its product by each matrix."""
        # torch takes the dimension to the front, and raises if rows do not lie one behind the other then.
        rows = part.movedim(dim, 0).contiguous().movedim(0, dim)
        # It takes the way by multicast where the whole tensor is not asked for.
        whole, given = torch.ops.symm_mem.fused_all_gather_matmul(
            rows, list(matrices), dim, group.group_name, return_A=True
        )
        return whole, given

    def scatter(
        self, factors: Sequence[torch.Tensor], matrices: Sequence[torch.Tensor], group: Any, dim: int
    ) -> torch.Tensor:
        """Returns this rank's part along a dimension of a sum: of the factors' products by matrices, over all ranks."""
        if len(factors) > 1:
            return _scatter_several(factors, matrices, group, dim)
        given: torch.Tensor = torch.ops.symm_mem.fused_matmul_reduce_scatter(
            factors[0], matrices[0], "sum", dim, group.group_name
        )
        return given


def _scatter_several(
    factors: Sequence[torch.Tensor], matrices: Sequence[torch.Tensor], group: Any, dim: int
) -> torch.Tensor:
    """Adds up products where they are computed. torch's operation is of one product, and would take copies of these."""
    from torch.distributed._symmetric_memory import _pipelined_produce_and_all2all

    ranks, moved = group.size(), [factor.movedim(dim, 0) for factor in factors]
    pieces = [one.flatten(0, -2).chunk(ranks) for one in moved]

    def produce(rank: int, out: torch.Tensor) -> None:
        torch.mm(pieces[0][rank], matrices[0], out=out)
        for piece, matrix in zip(pieces[1:], matrices[1:], strict=True):
            out.addmm_(piece[rank], matrix)

    length, *others, _ = moved[0].shape
    stacked = factors[0].new_empty((moved[0][..., 0].numel(), matrices[0].shape[1]))
    _pipelined_produce_and_all2all(produce, stacked, group.group_name)
    summed = stacked.view(ranks, length // ranks, *others, -1).sum(0)
    return summed.movedim(0, dim).contiguous()


def _number_of(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


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


@cache
def gathering_operator() -> Any:
    """Returns Thunder's operation for ``all_gather_and_multiply``."""
    return _register("all_gather_and_multiply", _infer_gathered, all_gather_and_multiply)


@cache
def scattering_operator() -> Any:
    """Returns Thunder's operation for ``multiply_and_reduce_scatter``."""
    return _register("multiply_and_reduce_scatter", _infer_scattered, multiply_and_reduce_scatter)


def _register(name: str, infer: Any, function: Any) -> Any:
    from fusioncache.thunder_adapter.api import torch_executor as ex

    return ex.opmap.get(name) or ex.register_operator(name, meta=infer, fn=function)


def _infer_gathered(a: Any, weights: Sequence[Any], group: Any, dim: int, transposed: bool) -> tuple[Any, ...]:
    from fusioncache.thunder_adapter.api import TensorProxy

    rows = [*a.shape[:dim], a.shape[dim] * group.size(), *a.shape[dim + 1 : -1]]
    features = [a.shape[-1], *(weight.shape[0 if transposed else 1] for weight in weights)]
    return tuple(TensorProxy(like=a, shape=(*rows, size)) for size in features)


def _infer_scattered(factors: Sequence[Any], weights: Sequence[Any], group: Any, dim: int, transposed: bool) -> Any:
    from fusioncache.thunder_adapter.api import TensorProxy

    first, size = factors[0], weights[0].shape[0 if transposed else 1]
    rows = (*first.shape[:dim], first.shape[dim] // group.size(), *first.shape[dim + 1 : -1])
    return TensorProxy(like=first, shape=(*rows, size))


@cache
def multiply_gathered() -> Any:
    """Returns the symbol that takes rows, weights of linear layers, a process group and the dimension of the rows.

    It gives what each layer makes of all rows, which are gathered.
    """

    def multiply(rows: Any, weights: Sequence[Any], group: Any, dim: int) -> tuple[Any, ...]:
        return tuple(gathering_operator()(rows, list(weights), group, dim, True)[1:])

    def differentiate(rows: Any, weights: Sequence[Any], group: Any, dim: int) -> tuple[Any, ...]:
        from fusioncache.thunder_adapter.api import get_grad, put_grad

        whole, *products = gathering_operator()(rows, list(weights), group, dim, True)
        gradients = [get_grad(product) for product in products]
        put_grad(rows, scattering_operator()(gradients, list(weights), group, dim, False))
        for weight, gradient in zip(weights, gradients, strict=True):
            put_grad(weight, _weight_gradient(gradient, whole))
        return tuple(products)

    return _make_symbol("multiply_gathered", multiply, differentiate)


@cache
def scatter_product() -> Any:
    """Returns the symbol that takes features, a linear layer's weight, a process group and the dimension of the rows.

    It gives this rank's rows of what all ranks' layers make of these together.
    """

    def multiply(features: Any, weight: Any, group: Any, dim: int) -> Any:
        return scattering_operator()([features], [weight], group, dim, True)

    def differentiate(features: Any, weight: Any, group: Any, dim: int) -> Any:
        from fusioncache.thunder_adapter.api import get_grad, put_grad

        part = multiply(features, weight, group, dim)
        whole, gradient = gathering_operator()(get_grad(part), [weight], group, dim, False)
        put_grad(features, gradient)
        put_grad(weight, _weight_gradient(whole, features))
        return part

    return _make_symbol("scatter_product", multiply, differentiate)


def _make_symbol(name: str, multiply: Any, differentiate: Any) -> Any:
    from fusioncache.thunder_adapter.api import Languages, Symbol, langctx, register_grad

    symbol = Symbol(name, meta=langctx(Languages.TORCH)(multiply), id=f"fusioncache.{name}")
    register_grad(symbol, differentiate)
    return symbol


def _weight_gradient(gradient: Any, taken: Any) -> Any:
    """Returns the gradient of a linear layer's weight, as Thunder computes it."""
    from fusioncache.thunder_adapter.api import ltorch

    rows = ltorch.reshape(gradient, (-1, gradient.shape[-1]))
    return ltorch.matmul(ltorch.permute(rows, (1, 0)), ltorch.reshape(taken, (-1, taken.shape[-1])))


def register_joined_symbols() -> None:
    """Has Thunder know all of these, in any process in the same order: keys of programs say what it knows."""
    gathering_operator()
    scattering_operator()
    multiply_gathered()
    scatter_product()
