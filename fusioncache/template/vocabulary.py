"""What canonicalization must know about single operations. Everything else is opaque."""

from __future__ import annotations

ADD = "prims.add"
MUL = "prims.mul"
CONVERT = "prims.convert_element_type"
COPY = "prims.copy_"
"""``copy_(source, target)``: writes a value into the memory of a region input. Its result has the source's value."""
RESIDUAL = "residual"
"""A left-to-right sum ``head + term + term + ...`` whose terms are region inputs.

``args`` is ``(head, dtype)`` with the dtype in which the terms are stored; head and terms are converted to the result's
dtype before they are added.
"""


def prims(names: str) -> frozenset[str]:
    """The names of primitive operations, from a list in words."""
    return frozenset(f"prims.{name}" for name in names.split())


COMMUTATIVE = prims("add mul eq ne bitwise_and bitwise_or bitwise_xor")
"""Exact under exchange of the two operands, but for which of two NaNs comes out, and for products of complex numbers
(see ``Commuting``). maximum and minimum are not: they may tell 0.0 from -0.0 by position."""

IDENTITY = frozenset({"prims.shallow_copy"})
"""Inside a region these return their operand."""

RANDOM = frozenset({"prims.uniform_philox"})
"""Draw from an explicit seed and offset, so that they are functions of their operands."""

NEVER_MERGED = RANDOM | {RESIDUAL, COPY}
"""Two of these with the same operands stay two: draws, to be on the safe side; residual chains, for their terms."""

EFFECTS = frozenset({COPY})
"""Never dead, and written behind everything that is computed: what reads the target reads it as it was."""

ELEMENTWISE = prims(
    "abs acos acosh asin asinh atan atan2 atanh bitwise_not ceil cos cosh erf erfc exp exp2 expm1 floor isfinite "
    "log log10 log1p log2 neg reciprocal round rsqrt sign signbit sin sinh sqrt tan tanh trunc "
    "add bitwise_and bitwise_or bitwise_xor div eq fmod ge gt le lt maximum minimum mul ne pow remainder sub where "
    "broadcast_in_dim convert_element_type full reshape shallow_copy squeeze transpose"
)
"""Cheap to compute again, and functions of their operands alone. Reductions and random numbers are not among them."""

_VIEWS = prims("broadcast_in_dim convert_element_type reshape shallow_copy squeeze transpose")

MAKES_MEMORY = (ELEMENTWISE - _VIEWS) | prims("sum prod amax amin var var_mean cat iota") | {RESIDUAL}
"""The results of these lie in no operand's memory. Those of all others may be views of one, or an operand itself."""

ADDS = prims("add sub")
"""What a multiplication may be contracted with."""

_PASSES_PRODUCT_ON = prims("neg abs convert_element_type broadcast_in_dim reshape transpose squeeze slice_prim")
# Short on purpose: exp, tanh, sin and their like are library code that may itself end in a multiplication.
_NEVER_A_PRODUCT = {RESIDUAL} | prims(
    "add sub eq ne lt le gt ge sum amax amin full iota maximum minimum floor ceil sign "
    "bitwise_and bitwise_or bitwise_xor"
)
_ADDS_UP = prims(
    "sum prod var var_mean cumsum linear matmul convolution embedding_backward "
    "scatter_add index_add index_put _grouped_mm"
)


def adds_up_elements(operation: str) -> bool:
    """Whether an op adds elements of one tensor in an order that the compiler chooses anew for every kernel."""
    return operation in _ADDS_UP or not (operation.startswith("prims.") or operation == RESIDUAL)


def passes_product_on(operation: str) -> bool:
    """Whether an op's result is its operand's, as far as contraction is concerned."""
    return operation in _PASSES_PRODUCT_ON


def products(operation: str, operand_is_product: bool) -> bool:
    """Whether an op's result may be the direct result of a multiplication, inside one kernel.

    A compiler may contract ``a * b + c`` into one rounding. If both operands of an add are products, which of them is
    contracted depends on their order, so such an add does not commute bitwise.
    """
    if operation in _PASSES_PRODUCT_ON:
        return operand_is_product
    return operation not in _NEVER_A_PRODUCT
