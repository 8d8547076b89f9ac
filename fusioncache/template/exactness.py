"""Which bits of a template's results must be those of the region that it stands for, and how far the others may be off.

Derived from the graph alone. docs/how-it-works.md says which rewrites keep every bit; this is the same, as code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod, sqrt
from types import MappingProxyType

from fusioncache.ir import Graph, Op, TensorType, ValueType, operands
from fusioncache.ir.ops import op_traits, writes_of
from fusioncache.template.plan import Plan, folding_is_bitwise

UNITS: Mapping[str, float] = MappingProxyType(
    {
        "float8_e5m2": 2.0**-2,
        "float8_e5m2fnuz": 2.0**-2,
        "float8_e4m3fn": 2.0**-3,
        "float8_e4m3fnuz": 2.0**-3,
        "bfloat16": 2.0**-7,
        "float16": 2.0**-10,
        "complex32": 2.0**-10,
        "float32": 2.0**-23,
        "complex64": 2.0**-23,
        "float64": 2.0**-52,
        "complex128": 2.0**-52,
    }
)
"""The distance of 1 to the next larger number, by dtype. Compilers add up in float32 at least."""

ALLOWED_UNITS = 2


@dataclass(frozen=True, slots=True)
class Reordered:
    """A value that depends on a sum whose elements may be added up in another order.

    Attributes:
        dtype: the coarsest one in which it was kept since.
        added: how many elements are added up, as far as sizes are static.
    """

    dtype: str
    added: int

    @property
    def relative(self) -> float:
        """Returns how far an element may be off, as a fraction of the largest magnitude of its tensor.

        Two units of the coarsest dtype: a last bit that changes before the value is rounded moves it by one, and what
        is computed from it by another. The order itself costs units of the dtype in which elements are added up, and
        as the errors of a sum do, they grow with the square root of how many there are.
        """
        unit = UNITS[self.dtype]
        return ALLOWED_UNITS * max(unit, sqrt(self.added) * min(unit, UNITS["float32"]))

    def __str__(self) -> str:
        return f"a sum of {self.added} in any order, kept in {self.dtype}"


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for the results of a template; None where every bit must be the same.

    Attributes:
        outputs: for each output.
        writes: for each input that the template writes in place, by its position.
    """

    outputs: tuple[Reordered | None, ...]
    writes: Mapping[int, Reordered | None]


def keeps_every_bit(template: Graph, plan: Plan, *, alike: bool) -> bool:
    """Returns whether all of a region's results have the bits of the region compiled on its own.

    Args:
        template: what the region is one of.
        plan: how its residual chains are summed.
        alike: whether what was compiled for the template is the very definition that Thunder wrote for this region.
    """
    if plan is Plan.INLINE:
        return alike
    # A fold is not taken where it may change a bit that must stay. If it was all the same, that is a mistake.
    return not folding_is_bitwise(template)


def rules_of(template: Graph, *, exact: bool) -> Rules:
    """Returns what must hold for each result. ``exact``: whether all of them must have every bit."""
    reordered = {} if exact else reordered_values(template)
    writes = {target: None if source is None else reordered.get(source) for source, target in writes_of(template)}
    return Rules(tuple(map(reordered.get, template.outputs)), MappingProxyType(writes))


def reordered_values(graph: Graph) -> Mapping[int, Reordered]:
    """Returns the floating-point values that depend on elements added up in an order that a compiler chooses.

    A value of another kind, such as a comparison with a mean, has no last bit to differ in: it is not among them, but
    what is computed from it is.
    """
    types: list[ValueType | None] = [*graph.inputs, *[None] * graph.sizes]
    behind: dict[int, Reordered] = {}
    for op, first in graph.results():
        used = [index for _, index in operands(op)]
        sources = [behind[index] for index in used if index in behind]
        if op_traits(op.name).adds_up:
            sources += _sums(op, [types[index] for index in used])
        types += op.outputs
        for index, type_ in enumerate(op.outputs):
            if sources:
                behind[first + index] = _coarsest([*sources, *_as_kept(type_)])
    return {index: found for index, found in behind.items() if list(_as_kept(types[index]))}


def _coarsest(values: list[Reordered]) -> Reordered:
    return Reordered(max(values, key=lambda value: UNITS[value.dtype]).dtype, max(value.added for value in values))


def _sums(op: Op, operands_: list[ValueType | None]) -> Iterator[Reordered]:
    """Yields the sum that an op's results are, as precise as can be."""
    results = [_elements(type_) for type_ in op.outputs if isinstance(type_, TensorType)]
    fewest = max(1, min(results, default=1))
    added = [1]
    for type_ in operands_:
        if isinstance(type_, TensorType):
            # Some sum over all that is gone from the shape; products of matrices and running sums over one dimension.
            added += [_elements(type_) // fewest, *(size for size in type_.shape if isinstance(size, int))]
    yield Reordered("float64", max(added))


def _elements(type_: TensorType) -> int:
    return prod(size for size in type_.shape if isinstance(size, int))


def _as_kept(type_: ValueType | None) -> Iterator[Reordered]:
    dtype = type_.dtype.rstrip("_") if isinstance(type_, TensorType) else ""
    if dtype in UNITS:
        yield Reordered(dtype, 1)
