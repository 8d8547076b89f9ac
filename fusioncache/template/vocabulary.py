"""What canonicalization must know about single operations. Everything else is opaque."""

from __future__ import annotations

ADD = "prims.add"
CONVERT = "prims.convert_element_type"
COPY = "prims.copy_"
"""``copy_(source, target)``: writes a value into the memory of a region input. Its result has the source's value."""
RESIDUAL = "residual"
"""A left-to-right sum ``head + term + term + ...`` whose terms are region inputs.

``args`` is ``(head, dtype)`` with the dtype in which the terms are stored; head and terms are converted to the result's
dtype before they are added.
"""


def _prims(names: str) -> frozenset[str]:
    return frozenset(f"prims.{name}" for name in names.split())


COMMUTATIVE = _prims("add mul eq ne bitwise_and bitwise_or bitwise_xor")
"""Exact under exchange of the two operands. maximum and minimum are not: they may tell 0.0 from -0.0 by position."""

IDENTITY = frozenset({"prims.shallow_copy"})
"""Inside a region these return their operand."""

RANDOM = frozenset({"prims.uniform_philox"})
"""Draw from an explicit seed and offset, so that they are functions of their operands."""

NEVER_MERGED = RANDOM | {RESIDUAL, COPY}
"""Two of these with the same operands stay two: draws, to be on the safe side; residual chains, for their terms."""

EFFECTS = frozenset({COPY})
"""Never dead, and written behind everything that is computed: what reads the target reads it as it was."""

_PASSES_PRODUCT_ON = _prims("neg abs convert_element_type broadcast_in_dim reshape transpose squeeze slice_prim")
# Short on purpose: exp, tanh, sin and their like are library code that may itself end in a multiplication.
_NEVER_A_PRODUCT = {RESIDUAL} | _prims(
    "add sub eq ne lt le gt ge sum amax amin full iota maximum minimum floor ceil sign "
    "bitwise_and bitwise_or bitwise_xor"
)
_ADDS_UP = _prims(
    "sum prod var var_mean cumsum linear matmul convolution embedding_backward "
    "scatter_add index_add index_put _grouped_mm"
)


def adds_up_elements(operation: str) -> bool:
    """Whether an op adds elements of one tensor in an order that the compiler chooses anew for every kernel."""
    return operation in _ADDS_UP or not (operation.startswith("prims.") or operation == RESIDUAL)


def products(operation: str, operand_is_product: bool) -> bool:
    """Whether an op's result may be the direct result of a multiplication, inside one kernel.

    A compiler may contract ``a * b + c`` into one rounding. If both operands of an add are products, which of them is
    contracted depends on their order, so such an add does not commute bitwise.
    """
    if operation in _PASSES_PRODUCT_ON:
        return operand_is_product
    return operation not in _NEVER_A_PRODUCT
