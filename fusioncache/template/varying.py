"""Whether the bits of a graph's values hang on what else is in their kernel."""

from __future__ import annotations

from fusioncache.ir import Arithmetic, Graph, TensorType, ValueType, operands
from fusioncache.template.vocabulary import ADDS, RESIDUAL, products

_NARROW = frozenset({"bfloat16", "float16"})


def is_narrow(type_: ValueType | None) -> bool:
    """Whether a tensor's floating-point numbers have fewer than 32 bits, so that compilers compute in more."""
    if not isinstance(type_, TensorType):
        return False
    dtype = type_.dtype.rstrip("_")
    return dtype in _NARROW or dtype.startswith("float8")


def varies(graph: Graph, arithmetic: Arithmetic) -> bool:
    """Whether some value of a graph may have other bits once other ops of it are in another kernel.

    Args:
        graph: a region or a template.
        arithmetic: of the compiler that makes kernels of it.
    """
    if not arithmetic.rounds and any(is_narrow(type_) for op in graph.ops for type_ in op.outputs):
        return True
    return not arithmetic.contracts_alike and _adds_a_product(graph)


def _adds_a_product(graph: Graph) -> bool:
    product = [False] * graph.first_result
    for op in graph.ops:
        of_product = any(product[index] for _, index in operands(op))
        composite = not op.name.startswith("prims.") and op.name != RESIDUAL  # there may be anything inside
        if composite or (of_product and op.name in ADDS):
            return True
        product += [products(op.name, of_product)] * len(op.outputs)
    return False
