"""Whether the bits of a graph's values hang on what else is in their kernel."""

from __future__ import annotations

from fusioncache.ir import Arithmetic, Graph, TensorType, ValueType, operands
from fusioncache.ir.ops import op_traits

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
        traits = op_traits(op.name)
        if traits.composite or (of_product and traits.adds):
            return True
        product += [traits.may_be_product(of_product)] * len(op.outputs)
    return False
