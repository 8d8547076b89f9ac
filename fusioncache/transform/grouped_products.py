"""Grouped products in Thunder: the parts of ``torch._grouped_mm`` that training a layer of experts needs.

A grouped product multiplies groups of rows, columns or matrices, each by its own matrix. A tensor of offsets has the
end of each group, so that other group sizes are other numbers, but no other program. Thunder 0.2.6 has the operation,
but its check of torch's support raises, it has neither a gradient nor torch's argument names, and it takes one of the
four forms. This module adds what is missing; it is uninstalled with the shortcuts in tracing:

========================  =============  ========================================================
operands                  offsets        the result
========================  =============  ========================================================
``(m, k), (g, k, n)``     of ``m`` rows  ``(m, n)``: rows of each group by its matrix
``(m, k), (k, n)``        of ``k``       ``(g, m, n)``: a product for each part of the summed dimension
``(g, m, k), (k, n)``     of ``n``       ``(m, n)``: each group's matrix by its columns
``(g, m, k), (g, k, n)``  none           ``(g, m, n)``: a batch of products
========================  =============  ========================================================
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fusioncache.thunder_adapter.api import Languages, TensorProxy, dtypes, get_grad, langctx, ltorch, prims, put_grad
from fusioncache.thunder_adapter.api import torch_executor as ex
from fusioncache.thunder_adapter.installation import Replacement, find_known
from fusioncache.transform.rewrite import register_once

_NAMES = ("a", "b", "offsets", "bias", "dtype")
"""Thunder's names of the arguments, in torch's order."""
_ALIGNMENT = 16
"""Rows or columns have to begin at multiples of this number of bytes."""


def replacements() -> Iterator[Replacement]:
    """Yields replacements for the parts that this Thunder lacks, but for none that it implements in another way."""
    from fusioncache.thunder_adapter.accelerator_api import jit_ext, transforms

    known = find_known("grouped products").values()
    for symbol in (prims._grouped_mm, ltorch._grouped_mm):
        implementation = ex.implmap[symbol.id]
        if implementation.checker in known:
            yield Replacement(implementation, "checker", lambda own: can_run)
    # Now rather than at the first use in a trace, because programs stored by other processes refer to them by name.
    multiply, *gradients = register_operators()
    rules, product = transforms._grad_fn_map, prims._grouped_mm
    if product.id not in rules and product.id not in transforms.augmented_forward_impls:
        yield Replacement(rules, product.id, lambda own: make_rule(product, *gradients))
    if tuple(inspect.signature(ltorch._grouped_mm.meta).parameters) == _NAMES:
        functions, lookasides = ltorch._torch_to_thunder_function_map, jit_ext._general_jit_lookaside_map
        taking = take_all_forms(functions[torch._grouped_mm], multiply)
        yield Replacement(rules, multiply.id, lambda own: make_rule(multiply, *gradients))
        yield Replacement(functions, torch._grouped_mm, lambda own: taking)
        yield Replacement(lookasides, torch._grouped_mm, lambda own: make_lookaside(taking))


def register_operators() -> list[Any]:
    """Returns operations of Thunder's executor for torch: a product of any form, and its operands' gradients.

    Each is registered once in a process.
    """
    operators: dict[str, Any] = {
        "grouped_mm": (infer_product, multiply_groups),
        "grouped_mm_left_gradient": (lambda grad, a, b, offsets: TensorProxy(like=a), compute_left_gradient),
        "grouped_mm_right_gradient": (lambda grad, a, b, offsets: TensorProxy(like=b), compute_right_gradient),
    }
    return [register_once(name, meta, function) for name, (meta, function) in operators.items()]


def make_lookaside(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the lookaside of Thunder's interpreter for a function of torch, wrapped as Thunder wraps each."""
    from fusioncache.thunder_adapter.accelerator_api import (
        ensure_recursive_proxies,
        interpreter_needs_wrap,
        record_source_loc_in_symbol_header,
    )

    lookaside: Callable[..., Any] = ensure_recursive_proxies(
        interpreter_needs_wrap(record_source_loc_in_symbol_header(function))
    )
    return lookaside


def take_all_forms(original: Callable[..., Any], multiply: Any) -> Callable[..., Any]:
    """Returns a replacement of Thunder's function that accepts torch's argument names, and the forms it refuses.

    Args:
        original: Thunder's function, for the single form that it supports.
        multiply: the operation for the other forms.
    """

    def _grouped_mm(self: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
        dtype = None if out_dtype is None else dtypes.to_dtype(out_dtype)
        is_plain = type(self) is type(mat2) is TensorProxy and bias is None and dtype in (None, self.dtype)
        if not is_plain or (self.ndim == 2 and mat2.ndim == 3):
            return original(self, mat2, offs, bias, dtype)
        return multiply(self, mat2, offs)

    return _grouped_mm


def can_run(a: Any, b: Any, offsets: Any, bias: Any = None, dtype: Any = None) -> bool:
    """True if torch can run a grouped product with these types; they are the same on a GPU and on a CPU."""
    taken = (dtypes.bfloat16, dtypes.float16, dtypes.float32)
    plain = bias is None and dtype in (None, a.dtype)
    return plain and a.dtype in taken and a.dtype == b.dtype and (offsets is None or offsets.dtype == dtypes.int32)


def infer_product(a: Any, b: Any, offsets: Any) -> Any:
    """Returns the proxy of a grouped product.

    Raises:
        RuntimeError: if torch could not compute the product.
    """
    from fusioncache.thunder_adapter.accelerator_api import utils

    given = " and ".join(each.type_string() for each in (a, b, offsets) if each is not None)
    utils.check(
        can_run(a, b, offsets),
        lambda: f"grouped products are of two bfloat16, float16 or float32 with int32 offsets, not of {given}",
    )
    of_groups = None if offsets is None else tuple(offsets.shape)
    shape = find_shape(tuple(a.shape), tuple(b.shape), of_groups)
    utils.check(shape is not None, lambda: f"there is no grouped product of {given}")
    utils.check_same_device(a, b, *(() if offsets is None else (offsets,)))
    return TensorProxy(like=a, shape=shape)


def find_shape(a: tuple[int, ...], b: tuple[int, ...], offsets: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Returns the shape of the grouped product of tensors of these shapes, or None."""
    match a, b, offsets:
        case (m, k), (g, also_k, n), (also_g,) if (k, g) == (also_k, also_g):
            return m, n
        case (m, k), (also_k, n), (g,) if k == also_k:
            return g, m, n
        case (g, m, k), (also_k, n), (also_g,) if (k, g) == (also_k, also_g):
            return m, n
        case (g, m, k), (also_g, also_k, n), None if (k, g) == (also_k, also_g):
            return g, m, n
    return None


def make_rule(product: Any, of_left: Any, of_right: Any) -> Callable[..., Any]:
    """Returns the autograd rule of a symbol of grouped products, which is torch's.

    Unused gradients are dropped from backward, such as those of frozen experts.

    Args:
        product: the symbol.
        of_left: the operation that computes the gradient of the left operand.
        of_right: the same for the right operand.
    """

    def differentiate(a: Any, b: Any, offsets: Any) -> Any:
        result = product(a, b, offsets)
        grad = get_grad(result)
        put_grad(a, of_left(grad, a, b, offsets))
        put_grad(b, of_right(grad, a, b, offsets))
        return result

    rule: Callable[..., Any] = langctx(Languages.TORCH)(differentiate)
    return rule


def multiply_groups(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor | None) -> torch.Tensor:
    """Returns a grouped product of any form."""
    return torch._grouped_mm(a, b, offsets)


def compute_left_gradient(
    grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor | None
) -> torch.Tensor:
    """Returns the gradient of the left operand as torch does: in the operand's layout, which selects the kernel.

    Args:
        grad: of the product.
        a: the left operand, of which only the layout is used.
        b: the right operand.
        offsets: of the product.
    """
    grad, b = _lay_out(grad, of_rows=a.ndim < b.ndim), _lay_out(b)
    if _has_columns(a):
        return torch._grouped_mm(b, grad.mT, offsets).mT
    return torch._grouped_mm(grad, b.mT, offsets)


def compute_right_gradient(
    grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor | None
) -> torch.Tensor:
    """Returns the gradient of the right operand as torch does: in the operand's layout, which selects the kernel.

    Args:
        grad: of the product.
        a: the left operand.
        b: the right operand, of which only the layout is used.
        offsets: of the product.
    """
    grad, a = _lay_out(grad, of_rows=a.ndim < b.ndim), _lay_out(a)
    if _has_columns(b):
        return torch._grouped_mm(grad.mT, a, offsets).mT
    return torch._grouped_mm(a.mT, grad, offsets)


def _has_columns(matrices: torch.Tensor) -> bool:
    """True if matrices are contiguous by columns, which is torch's criterion."""
    return matrices.stride(-2) == 1 and matrices.stride(-1) == matrices.shape[-2]


def _lay_out(matrices: torch.Tensor, *, of_rows: bool = False) -> torch.Tensor:
    """Returns the tensor if torch accepts its layout in a product, else a copy with a layout that it accepts.

    A gradient may have any layout, such as a sum's, which is one number with stride 0: for these torch raises.

    Args:
        matrices: the tensor.
        of_rows: whether its groups consist of rows. On a GPU these may not be laid out by columns: if a group is empty,
            or its size not a multiple, torch's kernel would end the process.
    """
    multiple = _ALIGNMENT // matrices.element_size()
    (rows, columns), (down, along) = matrices.shape[-2:], matrices.stride()[-2:]
    if down == 1 and along >= max(1, rows):
        fits = along % multiple == 0 and not (of_rows and matrices.is_cuda)
    else:
        fits = along == 1 and down >= max(1, columns) and down % multiple == 0
    if fits and (matrices.is_cpu or matrices.data_ptr() % _ALIGNMENT == 0):
        return matrices
    padded = -(-columns // multiple) * multiple
    strides = (rows * padded, padded, 1)[-matrices.ndim :]
    return matrices.new_empty_strided(matrices.shape, strides).copy_(matrices)
