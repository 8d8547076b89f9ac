"""Operations that Thunder is given: each is a function of torch, and the same function in Thunder's traces.

- ``project`` is a linear layer whose weight has rows for its inputs, as in Hugging Face's GPT-2. If it were a linear
  layer of the transposed weight, nvFuser would take transposed weights into regions, and autograd would copy the
  weight's gradient into the weight's layout. Forward and gradients have torch's bits, but for sums of gradients.
- ``pick`` picks elements of a mask, as Hugging Face's models do. Thunder has this operation, but it flattens the mask,
  and nvFuser compiles a region with such a reshape again at each length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from fusioncache.thunder_adapter.accelerator_api import jit_ext, transforms
from fusioncache.thunder_adapter.api import Languages, TensorProxy, get_grad, langctx, ltorch, put_grad
from fusioncache.thunder_adapter.installation import Replacement
from fusioncache.transform.grouped_products import make_lookaside
from fusioncache.transform.rewrite import register_once

_PROJECT, _ROWS, _WEIGHT = CONTIGUOUS_OPERATIONS = (
    "fusioncache_project",
    "fusioncache_project_rows_gradient",
    "fusioncache_project_weight_gradient",
)
"""Names in traces, which a model's variables do not have, of operations whose results are contiguous."""
PICK = "fusioncache_pick"


def project(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Returns ``rows @ weight + bias``.

    Args:
        rows: (..., inputs).
        weight: (inputs, outputs).
        bias: (outputs,).
    """
    return torch.addmm(bias, rows.flatten(0, -2), weight).view(*rows.shape[:-1], weight.shape[1])


def compute_rows_gradient(grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns the gradient of the rows, with their shape."""
    return torch.mm(grad.flatten(0, -2), weight.t()).view(*grad.shape[:-1], weight.shape[0])


def compute_weight_gradient(rows: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Returns the gradient of the weight, which is contiguous."""
    return torch.mm(rows.flatten(0, -2).t(), grad.flatten(0, -2))


def pick(values: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
    """Returns the integers or booleans at these positions: one tensor of positions for each dimension of the values."""
    return values[indices]


def replacements() -> Iterator[Replacement]:
    """Yields replacements that make Thunder trace each function as one operation."""
    from fusioncache.thunder_adapter.accelerator_api import autocast, compute_broadcast_shape

    def infer(rows: Any, weight: Any, bias: Any) -> Any:
        return TensorProxy(like=rows, shape=(*rows.shape[:-1], weight.shape[1]))

    def infer_rows_gradient(grad: Any, weight: Any) -> Any:
        return TensorProxy(like=grad, shape=(*grad.shape[:-1], weight.shape[0]))

    def infer_weight_gradient(rows: Any, grad: Any) -> Any:
        return TensorProxy(like=grad, shape=(rows.shape[-1], grad.shape[-1]))

    def infer_picked(values: Any, *indices: Any) -> Any:
        return TensorProxy(like=values, shape=compute_broadcast_shape(*(each.shape for each in indices)))

    product = register_once(_PROJECT, infer, project)
    of_rows = register_once(_ROWS, infer_rows_gradient, compute_rows_gradient)
    of_weight = register_once(_WEIGHT, infer_weight_gradient, compute_weight_gradient)

    def convert(rows: Any, weight: Any, bias: Any, *, dtype: Any) -> Any:
        return product(*autocast.maybe_downcast_to(dtype, (rows, weight, bias)))

    picked = register_once(PICK, infer_picked, pick)
    yield Replacement(transforms._grad_fn_map, product.id, lambda own: make_rule(product, of_rows, of_weight))
    yield Replacement(autocast.autocast_impls, product.id, lambda own: convert)
    for function, symbol in ((project, product), (pick, picked)):
        yield Replacement(ltorch._torch_to_thunder_function_map, function, _always(symbol))
        yield Replacement(jit_ext._general_jit_lookaside_map, function, _always(make_lookaside(symbol)))


def _always(new: Any) -> Callable[[Any], Any]:
    return lambda own: new


def make_rule(product: Any, of_rows: Any, of_weight: Any) -> Callable[..., Any]:
    """Returns the autograd rule of ``project``, which is torch's.

    Args:
        product: the operation.
        of_rows: the operation that computes the gradient of the rows.
        of_weight: the same for the weight.
    """

    def differentiate(rows: Any, weight: Any, bias: Any) -> Any:
        result = product(rows, weight, bias)
        grad = get_grad(result)
        put_grad(rows, of_rows(grad, weight))
        put_grad(weight, of_weight(rows, grad))
        put_grad(bias, ltorch.sum(grad, tuple(range(grad.ndim - 1))))
        return result

    rule: Callable[..., Any] = langctx(Languages.TORCH)(differentiate)
    return rule
