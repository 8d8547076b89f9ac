"""Thunder's symbols for products joined with what ranks exchange, each with its gradient.

====================================  ====================================================
symbol                                gradient
====================================  ====================================================
``multiply_gathered``, column layers  products added up and scattered; weights': plain products
``scatter_product``, a row layer      gathered, and its product; the weight's: a plain product
====================================  ====================================================

A weight's gradient takes what was gathered, whole: the operation that gathers gives that as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from fusioncache.distributed.joined_products import all_gather_and_multiply, multiply_and_reduce_scatter


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
