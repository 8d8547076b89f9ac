"""What a compiler makes of the arithmetic that a graph asks for, and whether a value's bits depend on its kernel."""

from __future__ import annotations

from dataclasses import dataclass

from fusioncache.ir.graph import Graph, operands
from fusioncache.ir.ops import op_traits
from fusioncache.ir.types import TensorType, ValueType

_NARROW = frozenset({"bfloat16", "float16"})


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What a value's bits do not depend on, when the ops around it move to another kernel.

    Attributes:
        rounds: whether a value that the graph rounds to fewer than 32 bits is rounded for the ops behind it as well,
            and not only where it leaves the kernel.
        contracts_alike: whether a product and the add behind it, once both are in one graph, are always one rounding or
            always two.
    """

    rounds: bool
    contracts_alike: bool


AS_WRITTEN = Arithmetic(rounds=True, contracts_alike=True)
"""The arithmetic of a compiler whose results are those of the graph, op by op, but for contraction, which follows from
the graph."""


def is_narrow(type_: ValueType | None) -> bool:
    """Returns whether a tensor's floating-point numbers have fewer than 32 bits, so that compilers compute in more."""
    if not isinstance(type_, TensorType):
        return False
    dtype = type_.dtype.rstrip("_")
    return dtype in _NARROW or dtype.startswith("float8")


def bits_depend_on_kernel(graph: Graph, arithmetic: Arithmetic) -> bool:
    """Returns whether a value of a graph may have other bits, by the compiler's arithmetic, in another kernel."""
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
